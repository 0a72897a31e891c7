"""Carries a decision out: one provider call, or the tool loop (R5–R11)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

import msgspec

from mead import telemetry
from mead.core.conversation import Conversation, EncodedMessages, encode, encode_exchange
from mead.core.messages import (
    Block,
    Message,
    StopReason,
    Tool,
    ToolResultBlock,
    ToolUseBlock,
    clean_text,
    text_of,
)
from mead.core.options import Options, TurnOptions
from mead.core.reasons import ContextOverflow, ProviderReason, ToolLoopLimit, TurnReason
from mead.core.result import Err, Ok, Result
from mead.core.scope import CallRecord, Taint
from mead.core.turns import Answer, Decision, Finding, Hub
from mead.core.usage import Usage, UsageTotal, total
from mead.ledger.accounts import Accounts
from mead.ledger.budgets import nothing_was_spent
from mead.mcp.names import unknown_tool
from mead.providers.protocol import (
    Completion,
    Reply,
    answers_with_results,
    can_converse,
    can_stream,
    context_tokens_of,
)
from mead.router.slots import Slot
from mead.router.views import CloudView, LocalView, ask
from mead.router.window import fit, prompt_bytes, shorten_results

MAX_PROVIDER_CALLS = 8
"""How many provider calls a turn may make (R6)."""

_WITHHELD = "withheld: private"
_MALFORMED = "The arguments are not a JSON object, so the tool was not run. Send them again."
_CUT_IN_A_CALL = "The token limit cut the reply off inside a tool call; the call was not run."
_log = logging.getLogger("mead.router")
_ReplyT = TypeVar("_ReplyT", Completion, Reply)


class Scan(Protocol):
    """Looks for private content in a text that is about to be sent."""

    def __call__(self, text: str) -> Sequence[Finding]: ...


class Attempt:
    """One turn on its way. What it has cost so far is there at every moment, also when it is cancelled."""

    def __init__(
        self,
        decision: Decision,
        slot: Slot,
        call_options: Options,
        view: LocalView | CloudView,
        options: TurnOptions,
        *,
        hub: Hub,
        scan: Scan,
        accounts: Accounts | None = None,
    ) -> None:
        self._decision = decision
        self._provider = slot.provider
        self._limiter = slot.limiter
        self._accounts = accounts
        # A note tells of what the local model may know: the cloud model never sees it.
        self._told_note = options.note is not None and decision.route == "local"
        if self._told_note:
            system = "\n\n".join([text for text in (call_options.system, options.note) if text])
            call_options = msgspec.structs.replace(call_options, system=system)
        self._call_options = call_options
        self._view = view
        # What the hub must know of the turn: where it goes, and what it has seen.
        self._options = msgspec.structs.replace(options, route=decision.route, taint=Taint())
        self._scope = options.scope
        self._hub = hub
        self._scan = scan
        self._usages: list[Usage] = []
        self._calls_made = 0
        self._warnings: list[str] = []
        self._label = decision.label
        self.tool_calls = 0
        self.withheld_results = 0
        self.left_out = 0
        self._context_tokens = 0

    @property
    def usage(self) -> UsageTotal:
        """What the provider calls made so far have cost."""
        return total(self._usages)

    async def run(self, newest: EncodedMessages, tools: Sequence[Tool]) -> Result[Answer, TurnReason]:
        """Answers `newest`; with tools as a loop, without as one call."""
        if tools and can_converse(self._provider):
            return await self._loop(newest, tools)
        return await self._once(newest)

    async def _once(self, newest: EncodedMessages) -> Result[Answer, TurnReason]:
        """One call without tools (R5)."""
        provider, conversation = self._provider, await self._fitted(newest, ())
        if isinstance(conversation, ContextOverflow):
            return Err(conversation)
        if self._options.stream and can_stream(provider):
            options = self._options_now()
            reply = await self._accounted(
                lambda: provider.converse_stream(conversation, (), options, self._scope.delta),
                conversation,
            )
            if isinstance(reply, Err):
                return reply
            text, stop_reason = text_of(reply.value.content), reply.value.stop_reason
        else:
            options = self._options_now()
            completion = await self._accounted(lambda: provider.complete(conversation, options), conversation)
            if isinstance(completion, Err):
                return completion
            text, stop_reason = completion.value.text, completion.value.stop_reason
            if self._options.stream and text:
                self._scope.delta(text)
        return Ok(self._answer(text, encode_exchange(newest, text), stop_reason))

    async def _loop(self, newest: EncodedMessages, tools: Sequence[Tool]) -> Result[Answer, TurnReason]:
        """The model answers or asks for tools, the results go back, until it answers (R6)."""
        messages = newest.decode()
        call_ids: set[str] = set()
        for number in range(1, MAX_PROVIDER_CALLS + 1):
            result = await self._converse(messages, tools)
            if isinstance(result, Err):
                return result
            reply = _with_fresh_ids(result.value, call_ids)
            calls = [block for block in reply.content if isinstance(block, ToolUseBlock)]
            self.tool_calls += len(calls)
            if not calls or reply.stop_reason == "max_tokens":
                return Ok(self._last_answer(messages, reply, cut_in_a_call=bool(calls)))
            if number == MAX_PROVIDER_CALLS:
                break  # nobody would read the results: the calls are not run
            results = await self._run_calls(calls, tools)
            messages = [*messages, Message("assistant", reply.content), Message("user", results)]
            messages = await self._shortened(messages, tools)
        return Err(
            ToolLoopLimit(detail=f"the model still asked for tools in provider call {MAX_PROVIDER_CALLS}")
        )

    async def _converse(
        self, messages: Sequence[Message], tools: Sequence[Tool]
    ) -> Result[Reply, TurnReason]:
        provider, conversation = self._provider, await self._fitted(encode(messages), tools)
        if isinstance(conversation, ContextOverflow):
            return Err(conversation)
        options = self._options_now()
        if self._options.stream and can_stream(provider):
            return await self._accounted(
                lambda: provider.converse_stream(conversation, tools, options, self._scope.delta),
                conversation,
                tools,
            )
        assert can_converse(provider)
        result = await self._accounted(
            lambda: provider.converse(conversation, tools, options), conversation, tools
        )
        if self._options.stream and isinstance(result, Ok) and (text := text_of(result.value.content)):
            self._scope.delta(text)
        return result

    async def _fitted(self, newest: EncodedMessages, tools: Sequence[Tool]) -> Conversation | ContextOverflow:
        """What the model is asked: the view, without the oldest turns where all of it would not fit."""
        history, options = self._view.history, self._options_now()
        if answers_with_results(self._provider) and newest.has_results:
            return ask(self._view, newest)  # no model is asked
        size = prompt_bytes(history, newest, self._extra_bytes(()))
        limit = await context_tokens_of(self._provider, options, size)
        if limit is None:
            return ask(self._view, newest)
        extra = self._extra_bytes(tools)
        fitted = fit(history, newest, context_tokens=limit, options=options, extra_bytes=extra)
        if isinstance(fitted, ContextOverflow):
            return fitted
        if fitted.left_out > self.left_out:
            self.left_out = fitted.left_out
            self._context_tokens = limit
        return ask(self._view, newest, left_out=fitted.left_out)

    async def _shortened(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
        """The turn so far, with its tool results cut to what fits: what the tools did must not be lost."""
        options = self._options_now()
        limit = None
        if not answers_with_results(self._provider):
            size = prompt_bytes((), encode(messages), self._extra_bytes(()))
            limit = await context_tokens_of(self._provider, options, size)
        if limit is None:
            return list(messages)
        extra = self._extra_bytes(tools)
        return shorten_results(messages, context_tokens=limit, options=options, extra_bytes=extra)

    def _extra_bytes(self, tools: Sequence[Tool]) -> int:
        """How much is sent besides the conversation: the system prompt and the tools."""
        system_bytes = len((self._call_options.system or "").encode(errors="replace"))
        return system_bytes + (len(msgspec.json.encode(tools)) if tools else 0)

    def _options_now(self) -> Options:
        """The call's options, with the deadline as it stands: it moves while a person is asked."""
        return msgspec.structs.replace(
            self._call_options,
            deadline=self._scope.deadline,
            route=self._decision.route,
            scope=self._scope,
        )

    async def _accounted(
        self,
        call: Callable[[], Awaitable[Result[_ReplyT, ProviderReason]]],
        conversation: Conversation,
        tools: Sequence[Tool] = (),
    ) -> Result[_ReplyT, TurnReason]:
        """Makes one provider call as soon as its slot has a place for it, if its budgets have one."""
        if self._limiter is None:
            return await self._within_budget(call, conversation, tools)
        entered = await self._limiter.enter(owner=self._options.owner, deadline=self._scope.deadline)
        if isinstance(entered, Err):
            return entered
        with entered.value:
            return await self._within_budget(call, conversation, tools)

    async def _within_budget(
        self,
        call: Callable[[], Awaitable[Result[_ReplyT, ProviderReason]]],
        conversation: Conversation,
        tools: Sequence[Tool],
    ) -> Result[_ReplyT, TurnReason]:
        """Makes one provider call between its reservation and what it came to."""
        record = CallRecord(
            number=self._calls_made + 1,
            route=self._decision.route,
            provider=self._decision.provider or "",
            model=self._call_options.model,
        )
        if self._accounts is None:
            return await self._recorded(call, record)
        reserved = await self._accounts.reserve(
            record,
            conversation,
            self._options,
            extra_bytes=self._extra_bytes(tools),
            max_tokens=self._call_options.max_tokens,
        )
        if reserved is None:
            return await self._recorded(call, record)
        if isinstance(reserved, Err):
            return reserved
        usage: Usage | None = None
        reason: ProviderReason | None = None
        try:
            result = await self._recorded(call, record)
            if isinstance(result, Ok):
                usage = result.value.usage
            else:
                reason = result.reason
            return result
        finally:
            await self._accounts.conclude(reserved.value, record, usage, reason)

    async def _recorded(
        self, call: Callable[[], Awaitable[Result[_ReplyT, ProviderReason]]], record: CallRecord
    ) -> Result[_ReplyT, ProviderReason]:
        """Makes one provider call between its two ledger entries, whatever becomes of it (L1)."""
        self._calls_made = record.number
        await self._scope.call_opened(record)
        started = time.perf_counter()
        usage, status, unspent = None, "crashed", False
        try:
            result = await call()
            if isinstance(result, Ok):
                usage, status = result.value.usage, "ok"
                self._warnings.extend(result.value.warnings)
            else:
                status = result.reason.tag
                unspent = nothing_was_spent(result.reason)
        except asyncio.CancelledError:
            status = "cancelled"
            raise
        finally:
            if not unspent:  # a call that was sent and did not end well has cost nobody knows what
                self._usages.append(usage or Usage())
            self._tell(record, usage, status, time.perf_counter() - started)
            await self._scope.call_closed(record, usage, status)
        return result

    def _tell(self, record: CallRecord, usage: Usage | None, status: str, duration_s: float) -> None:
        if not telemetry.listened(telemetry.PROVIDER_CALL):
            return
        telemetry.emit(
            telemetry.PROVIDER_CALL,
            {
                "duration": duration_s,
                "input_tokens": usage.input_tokens if usage else None,
                "output_tokens": usage.output_tokens if usage else None,
            },
            {
                "route": record.route,
                "provider": record.provider,
                "model": record.model,
                "status": "ok" if status == "ok" else "error",
                "reason": None if status == "ok" else status,
                "session_id": self._options.session_id,
            },
        )

    async def _run_calls(
        self, calls: Sequence[ToolUseBlock], tools: Sequence[Tool]
    ) -> tuple[ToolResultBlock, ...]:
        """Runs the calls of one reply side by side; the results keep the order of the calls."""
        if len(calls) == 1:
            return (await self._run_call(calls[0], tools),)
        running = [asyncio.create_task(self._run_call(call, tools)) for call in calls]
        try:
            return tuple(await asyncio.gather(*running))
        finally:
            # Where one of them raised or was cancelled, the others are not left running without an owner.
            unfinished = [task for task in running if task.cancel()]
            if unfinished:
                await asyncio.gather(*unfinished, return_exceptions=True)

    async def _run_call(self, call: ToolUseBlock, tools: Sequence[Tool]) -> ToolResultBlock:
        """Runs one call, once. Whatever goes wrong becomes a result that tells the model (R7).

        The result goes to the model of this route and to no other (R10), in words of the answer neither: a
        local turn that was given one is `local_only`. The cloud model is not given a private one (R16).
        """
        if call.malformed is not None:
            return _error(call, _MALFORMED)
        if all(tool.name != call.name for tool in tools):
            return _error(call, unknown_tool(call.name, tools))
        options = msgspec.structs.replace(self._options, private=self._label == "local_only")
        try:
            output = await self._hub.call_tool(call.name, dict(call.input), options)
        except Exception as error:
            _log.error("the hub raised %s in a call of %s", type(error).__name__, call.name)
            return _error(call, "The tool failed. The call may have been carried out.")
        if self._decision.route == "local":
            # What a tool told the local model is for it alone, and so is all that is made from it.
            self._label = "local_only"
        elif self._scan(output.content):
            self.withheld_results += 1
            return _error(call, _WITHHELD)
        return ToolResultBlock(call.id, clean_text(output.content), output.is_error)

    def _last_answer(self, messages: Sequence[Message], reply: Reply, *, cut_in_a_call: bool) -> Answer:
        """The answer that ends a loop. Calls that were never run do not enter the history."""
        if cut_in_a_call:
            self._warnings.append(_CUT_IN_A_CALL)
        text = text_of(reply.content)
        used_tools = len(messages) > 1
        content: str | tuple[Block, ...] = text
        if used_tools:
            # Only where tools were used may a vendor ask for its own blocks back.
            content = tuple([block for block in reply.content if not isinstance(block, ToolUseBlock)])
        return self._answer(text, encode([*messages, Message("assistant", content)]), reply.stop_reason)

    def _answer(self, text: str, messages: EncodedMessages, stop_reason: StopReason) -> Answer:
        if self._decision.route == "local" and self._label == "shareable" and self._scan(text):
            self._label = "local_only"
        if self.left_out:
            self._warnings.append(
                f"{self.left_out} earlier turns were left out: the model's context holds "
                f"{self._context_tokens:,} tokens."
            )
        return Answer(
            text=text,
            messages=messages,
            stop_reason="max_tokens" if stop_reason == "max_tokens" else "end_turn",
            label=self._label,
            decision=self._decision,
            usage=self.usage,
            tool_calls=self.tool_calls,
            left_out=self.left_out,
            told_note=self._told_note,
            warnings=tuple(self._warnings),
        )


def _error(call: ToolUseBlock, text: str) -> ToolResultBlock:
    return ToolResultBlock(call.id, text, is_error=True)


def _with_fresh_ids(reply: Reply, seen: set[str]) -> Reply:
    """The reply with call ids that no earlier reply of the turn has used; remembers its ids in `seen`."""
    content: list[Block] = []
    for block in reply.content:
        if isinstance(block, ToolUseBlock):
            call_id, number = block.id, 1
            while call_id in seen:
                number += 1
                call_id = f"{block.id}_{number}"
            seen.add(call_id)
            block = block if call_id == block.id else msgspec.structs.replace(block, id=call_id)
        content.append(block)
    return msgspec.structs.replace(reply, content=tuple(content))
