"""Carries a decision out: one provider call, or the tool loop (R5–R11)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from mead import telemetry
from mead.core.conversation import (
    Conversation,
    EncodedMessages,
    encode,
    encode_exchange,
    encode_open,
)
from mead.core.messages import (
    Block,
    Message,
    StopReason,
    TextBlock,
    Tool,
    ToolResultBlock,
    ToolUseBlock,
    blocks_of,
    clean_text,
    text_of,
)
from mead.core.options import Options, TurnOptions
from mead.core.reasons import ContextOverflow, InvalidOptions, ProviderReason, ToolLoopLimit, TurnReason
from mead.core.result import Err, Ok, Result
from mead.core.scope import CallRecord, Taint
from mead.core.turns import Answer, Decision, Finding, Hub
from mead.core.usage import Usage, UsageTotal, total
from mead.ledger.accounts import Accounts
from mead.ledger.budgets import nothing_was_spent
from mead.mcp.names import unknown_tool
from mead.providers.protocol import (
    Completion,
    Provider,
    Reply,
    answers_with_results,
    can_converse,
    can_stream,
    context_tokens_of,
    name_of,
)
from mead.router.health import is_passing
from mead.router.slots import Slot
from mead.router.views import CloudView, LocalView, ask
from mead.router.window import fit, prompt_bytes, shorten_results
from mead.telemetry.calls import tell_call

MAX_PROVIDER_CALLS = 8
"""How many provider calls a turn may make (R6)."""

_WITHHELD = "withheld: private"
_MALFORMED = "The arguments are not a JSON object, so the tool was not run. Send them again."
_BESIDE_MALFORMED = "Not run, since another call beside it could not be read. Send all of them again."
_CUT_IN_A_CALL = "The token limit cut the reply off inside a tool call; the call was not run."
_SAMPLE_TEMPERATURE = 0.8
_log = logging.getLogger("mead.router")
_ReplyT = TypeVar("_ReplyT", Completion, Reply)


class Attempt:
    """One turn on its way. What it has cost so far is there at every moment, also when it is cancelled."""

    def __init__(
        self,
        decision: Decision,
        slot: Slot,
        view: LocalView | CloudView,
        options: TurnOptions,
        *,
        hub: Hub,
        scan: Callable[[str], Sequence[Finding]],
        accounts: Accounts | None = None,
        after: Attempt | None = None,
    ) -> None:
        self._decision = decision
        self._limiter = slot.limiter
        self._health = slot.health
        self._accounts = accounts
        # A note tells of what the local model may know: the cloud model never sees it.
        self._told_note = options.note is not None and decision.route == "local"
        self._backends = _backends(slot, options.options, options.note if self._told_note else None)
        self._view = view
        # What the hub must know of the turn: where it goes, and what it has seen.
        self._options = msgspec.structs.replace(options, route=decision.route, taint=Taint())
        self._scope = options.scope
        self._client_tools = frozenset([tool.name for tool in options.client_tools])
        self._hub = hub
        self._scan = scan
        # A text that may yet be replaced is held back, so that nobody is shown two answers.
        self._holds = decision.may_escalate or after is not None
        self._has_delivered = False
        self._has_replied = False
        self._called_at: float | None = None
        self._first_delta_s: float | None = None
        self._usages: list[Usage] = [] if after is None else after._usages
        self._calls_made: int = 0 if after is None else after._calls_made
        self._warnings: list[str] = [] if after is None else after._warnings
        self._label = decision.label
        self.tool_calls: int = 0 if after is None else after.tool_calls
        self.withheld_results = 0
        self.left_out = 0
        self._context_tokens = 0
        self._asked_messages = 0

    @property
    def usage(self) -> UsageTotal:
        """What the provider calls made so far have cost."""
        return total(self._usages)

    @property
    def provider_name(self) -> str:
        """What events call the provider that was asked last."""
        return name_of(self._provider)

    @property
    def _provider(self) -> Provider:
        return self._backends[0].provider

    @property
    def _call_options(self) -> Options:
        return self._backends[0].options

    async def run(self, newest: EncodedMessages, tools: Sequence[Tool]) -> Result[Answer, TurnReason]:
        """Answers `newest`; with tools as a loop, without as one call."""
        if tools and can_converse(self._provider):
            self._backends = [backend for backend in self._backends if can_converse(backend.provider)]
            return await self._loop(newest, tools)
        return await self._once(newest)

    async def sample(self, newest: EncodedMessages) -> str | None:
        """A second answer to a turn that was answered without tools, to be compared; `None` if it failed."""
        self._backends = [backend.warmer() for backend in self._backends]
        reply = await self._ask(newest, ())
        return text_of(reply.value.content) if isinstance(reply, Ok) else None

    async def _once(self, newest: EncodedMessages) -> Result[Answer, TurnReason]:
        """One call without tools (R5)."""
        reply = await self._ask(newest, ())
        if isinstance(reply, Err):
            return reply
        text = text_of(reply.value.content)
        return Ok(self._answer(text, encode_exchange(newest, text), _end(reply.value)))

    async def _loop(self, newest: EncodedMessages, tools: Sequence[Tool]) -> Result[Answer, TurnReason]:
        """The model answers or asks for tools, the results go back, until it answers (R6)."""
        messages = newest.decode()
        self._asked_messages = len(messages)
        # No id comes twice in a conversation that its client brings: results could not be told apart.
        call_ids = {b.id for message in messages for b in blocks_of(message) if isinstance(b, ToolUseBlock)}
        for number in range(1 + self._calls_made, MAX_PROVIDER_CALLS + 1):
            result = await self._ask(encode(messages), tools)
            if isinstance(result, Err):
                return result
            reply = _with_fresh_ids(result.value, call_ids)
            calls = [block for block in reply.content if isinstance(block, ToolUseBlock)]
            self.tool_calls += len(calls)
            if not calls or reply.stop_reason == "max_tokens":
                return Ok(self._last_answer(messages, reply, cut_in_a_call=bool(calls)))
            handed = [call for call in calls if call.name in self._client_tools]
            if handed and all(call.malformed is None for call in handed):
                return Ok(await self._handed_over(messages, reply, calls, tools))
            if number == MAX_PROVIDER_CALLS:
                break  # nobody would read the results: the calls are not run
            results = await self._run_calls(calls, tools)
            messages = [*messages, Message("assistant", reply.content), Message("user", results)]
            messages = await self._shortened(messages, tools)
        return Err(
            ToolLoopLimit(detail=f"the model still asked for tools in provider call {MAX_PROVIDER_CALLS}")
        )

    async def _ask(self, newest: EncodedMessages, tools: Sequence[Tool]) -> Result[Reply, TurnReason]:
        """Asks the slot's provider; where its service fails before it has said anything, the next one. The
        one that answers is asked first from then on."""
        while True:
            self._has_delivered = False
            place = self._backends[0].place
            result = await self._ask_first(newest, tools)
            if isinstance(result, Ok):
                self._has_replied = True
                if self._health is not None:
                    self._health.worked(place)
                return result
            if self._health is None or not is_passing(result.reason):
                return result
            self._health.failed(place, result.reason)
            if self._has_delivered or len(self._backends) == 1:
                return result
            left, self._backends = self._backends[0], self._backends[1:]
            self._warnings.append(
                f"{name_of(left.provider)} failed ({result.reason.tag}); {name_of(self._provider)} was asked"
            )

    async def _ask_first(self, newest: EncodedMessages, tools: Sequence[Tool]) -> Result[Reply, TurnReason]:
        """One call of the first provider, in the best way that it has."""
        provider, conversation = self._provider, await self._fitted(newest, tools)
        if isinstance(conversation, ContextOverflow):
            return Err(conversation)
        options = self._options_now()
        if self._options.stream and can_stream(provider):
            return await self._accounted(
                lambda: provider.converse_stream(conversation, tools, options, self._delta),
                conversation,
                tools,
            )
        if tools:
            assert can_converse(provider)
            result = await self._accounted(
                lambda: provider.converse(conversation, tools, options), conversation, tools
            )
        else:
            completed = await self._accounted(lambda: provider.complete(conversation, options), conversation)
            result = completed if isinstance(completed, Err) else Ok(_reply_of(completed.value))
        if self._options.stream and isinstance(result, Ok) and (text := text_of(result.value.content)):
            self._delta(text)
        return result

    def _delta(self, text: str) -> None:
        if self._first_delta_s is None and self._called_at is not None:
            self._first_delta_s = time.perf_counter() - self._called_at
        if not self._holds:
            self._has_delivered = True
            self._scope.delta(text)

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
            private=self._takes_private,
            # A tool is demanded of the first reply only: of every one, there would be no end.
            tool_choice=None if self._has_replied else self._call_options.tool_choice,
            scope=self._scope,
        )

    @property
    def _takes_private(self) -> bool:
        """Whether private content goes to the cloud model, by the turn's word."""
        return self._decision.route == "cloud" and self._decision.private

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
            provider=name_of(self._provider),
            model=self._call_options.model,
            private=self._takes_private,
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
        started = self._called_at = time.perf_counter()
        self._first_delta_s = None
        usage, status, unspent, stop_reason = None, "crashed", False, None
        try:
            result = await call()
            if isinstance(result, Ok):
                usage, status, stop_reason = result.value.usage, "ok", result.value.stop_reason
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
            self._called_at = None
            self._tell(record, usage, status, time.perf_counter() - started, stop_reason)
            await self._scope.call_closed(record, usage, status)
        return result

    def _tell(
        self,
        record: CallRecord,
        usage: Usage | None,
        status: str,
        duration_s: float,
        stop_reason: StopReason | None,
    ) -> None:
        if not telemetry.listened(telemetry.PROVIDER_CALL):
            return
        tell_call(
            operation="chat",
            route=record.route,
            provider=record.provider,
            model=record.model,
            usage=usage,
            status=status,
            duration_s=duration_s,
            options=self._options,
            call=record.number,
            stop_reason=stop_reason,
            streamed=self._options.stream and can_stream(self._provider),
            first_delta_s=self._first_delta_s,
            cost_usd=None if self._accounts is None else self._accounts.cost(record, usage)[0],
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
        if call.name in self._client_tools:  # it is handed over only with all others of its reply
            return _error(call, _BESIDE_MALFORMED)
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

    async def _handed_over(
        self,
        messages: Sequence[Message],
        reply: Reply,
        calls: Sequence[ToolUseBlock],
        tools: Sequence[Tool],
    ) -> Answer:
        """The answer that hands the calls of the caller's own tools over. Calls of the hub's tools beside
        them are run, and their results stand first in what the next turn goes on from."""
        handed = tuple([call for call in calls if call.name in self._client_tools])
        results = await self._run_calls([call for call in calls if call not in handed], tools)
        if self._decision.route == "local":
            # What the caller's tools will tell is for the model that asked (R10), as a tool's result here is.
            self._label = "local_only"
        exchange = [*messages, Message("assistant", reply.content)]
        if results:
            exchange.append(Message("user", results))
        answer = self._answer(text_of(reply.content), encode_open(exchange), "tool_use")
        since = encode_open(exchange[self._asked_messages :])
        return msgspec.structs.replace(answer, client_calls=handed, handed_over=since)

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
        return self._answer(text, encode([*messages, Message("assistant", content)]), _end(reply))

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
            stop_reason=stop_reason,
            label=self._label,
            decision=msgspec.structs.replace(
                self._decision, provider=name_of(self._provider), model=self._call_options.model
            ),
            usage=self.usage,
            tool_calls=self.tool_calls,
            left_out=self.left_out,
            told_note=self._told_note,
            warnings=tuple(self._warnings),
        )


class _Chosen(NamedTuple):
    """A provider that may be asked, with the options of its calls."""

    provider: Provider
    options: Options
    place: int

    def warmer(self) -> _Chosen:
        """The same at a temperature at which a model that does not know says something else each time."""
        return self._replace(options=msgspec.structs.replace(self.options, temperature=_SAMPLE_TEMPERATURE))


def _backends(slot: Slot, wanted: Options, note: str | None) -> list[_Chosen]:
    """The slot's providers that take what is wanted, the first one first."""
    chosen = []
    for backend in slot.backends:
        options = backend.options_for(wanted)
        if isinstance(options, InvalidOptions):
            continue
        if note is not None:
            system = "\n\n".join([text for text in (options.system, note) if text])
            options = msgspec.structs.replace(options, system=system)
        chosen.append(_Chosen(backend.provider, options, backend.place))
    assert chosen  # `decide` refuses a model that is not listed
    return chosen


def _reply_of(completion: Completion) -> Reply:
    """A text answer as a reply. Its warnings were taken already."""
    content = (TextBlock(completion.text),) if completion.text else ()
    return Reply(content=content, stop_reason=completion.stop_reason, usage=completion.usage)


def _end(reply: Reply) -> StopReason:
    """Why a last answer ended: a model that says that it asks for tools, and asks for none, is done."""
    return "max_tokens" if reply.stop_reason == "max_tokens" else "end_turn"


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
