"""The conformance kit over every provider that mead has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mead.core.messages import StopReason, TextBlock
from mead.core.reasons import HttpStatus, MalformedResponse, MissingApiKey, ToolsUnsupported, Transport
from mead.providers.echo import Echo
from mead.providers.protocol import Provider, Reply
from mead.testing import FakeServer, ScriptedProvider, Step
from mead.testing.providers import (
    TEXT,
    Answers,
    Case,
    IsAway,
    LacksTheKey,
    ProviderConformance,
    Refuses,
    RefusesTools,
    TalksNonsense,
    not_applicable,
)
from providers.formats import ANTHROPIC, OLLAMA, OPENAI, WireFormat


class OverHttp(ProviderConformance):
    """An adapter in front of a server that speaks its format."""

    wire: WireFormat

    @asynccontextmanager
    async def serving(self, *cases: Case) -> AsyncIterator[Provider]:
        if any(isinstance(case, LacksTheKey) for case in cases) and not self.wire.needs_key_option:
            not_applicable("it needs no key")
        if IsAway() in cases:
            async with FakeServer() as server:
                url = server.url
            provider = self.wire.make(url)
            yield provider
            await provider.aclose()
            return
        async with self.wire.serving(*cases) as served:
            yield served


class TestOpenAIChat(OverHttp):
    wire = OPENAI


class TestAnthropic(OverHttp):
    wire = ANTHROPIC


class TestOllama(OverHttp):
    wire = OLLAMA


class TestScripted(ProviderConformance):
    """The scripted provider says the cases itself."""

    counts_tokens = False

    @asynccontextmanager
    async def serving(self, *cases: Case) -> AsyncIterator[Provider]:
        yield ScriptedProvider(*map(step, cases))


def step(case: Case) -> Step:
    match case:
        case Answers(pieces=pieces, calls=calls):
            if not (calls or case.cut_by_limit):
                return list(pieces)
            texts = [TextBlock("".join(pieces))] if pieces else []
            stop_reason: StopReason = "max_tokens" if case.cut_by_limit else "tool_use"
            return Reply(content=(*texts, *calls), stop_reason=stop_reason, usage=case.usage)
        case Refuses():
            return HttpStatus(status=case.status, detail=case.message, retry_after_s=case.retry_after_s)
        case RefusesTools():
            return ToolsUnsupported()
        case TalksNonsense():
            return MalformedResponse()
        case IsAway():
            return Transport(cause="refused")
        case LacksTheKey():
            return MissingApiKey()
    return not_applicable("its script has no broken streams and knows of no deadline")


class TestEcho(ProviderConformance):
    """The echo says what the question says, and nothing else."""

    counts_tokens = False

    @asynccontextmanager
    async def serving(self, *cases: Case) -> AsyncIterator[Provider]:
        if any(case != TEXT for case in cases):
            not_applicable("an echo only repeats")
        yield Echo()
