"""The provider that answers with what it was told last: no model, no key, no network."""

from __future__ import annotations

from collections.abc import Sequence

from mead.core.messages import Message, TextBlock, Tool, text_of
from mead.core.options import Options
from mead.core.reasons import ProviderReason
from mead.core.result import Ok, Result
from mead.core.usage import Usage
from mead.providers.protocol import Completion, OnDelta, Reply


class Echo:
    """Repeats the newest message's text, word by word when it streams. Costs no tokens; never fails."""

    name = "echo"

    async def complete(
        self, messages: Sequence[Message], options: Options
    ) -> Result[Completion, ProviderReason]:
        return Ok(Completion(text=_newest_text(messages), usage=_NO_TOKENS))

    async def converse(
        self, messages: Sequence[Message], tools: Sequence[Tool], options: Options
    ) -> Result[Reply, ProviderReason]:
        text = _newest_text(messages)
        return Ok(Reply(content=(TextBlock(text),) if text else (), usage=_NO_TOKENS))

    async def converse_stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], options: Options, on_delta: OnDelta
    ) -> Result[Reply, ProviderReason]:
        words = _newest_text(messages).split(" ")
        for index, word in enumerate(words):
            fragment = word if index == len(words) - 1 else word + " "
            if fragment:
                on_delta(fragment)
        return await self.converse(messages, tools, options)


_NO_TOKENS = Usage(input_tokens=0, output_tokens=0)


def _newest_text(messages: Sequence[Message]) -> str:
    return text_of(messages[-1].content) if messages else ""
