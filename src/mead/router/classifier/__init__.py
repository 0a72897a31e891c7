"""The interface of classifiers: they judge the newest turn, where `auto` needs it and before a cloud call.

A classifier reads and computes; it contacts nothing, so that asking it can never leak (R4, R16). What it
cannot read (an image, a document) it must call private; one that raises is taken to have found something.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec
from msgspec import Struct

from mead.core.messages import (
    Block,
    DocumentBlock,
    Message,
    TextBlock,
    Tool,
    ToolResultBlock,
    ToolUseBlock,
    blocks_of,
    text_of,
)
from mead.core.options import TurnOptions
from mead.core.repair import encodable
from mead.core.turns import Cause, Finding, Turn, Verdict
from mead.router.classifier.normalise import normalise
from mead.router.classifier.patterns import find_plain
from mead.router.slots import Slots

EARLIER = 8
"""How many of the person's earlier messages a classifier is given beside the newest one."""

_log = logging.getLogger("mead.router")


class ClassifierInput(Struct, frozen=True, kw_only=True):
    """What a classifier may look at.

    `question` is what the person asks; `texts` is all that the newest turn holds: its messages, which are
    several where a client brings its history, and the turn's system prompt, if it has one. `unreadable`
    counts the parts that hold no text. `has_local` and `has_cloud` say which slots are filled. `earlier` are
    the person's last messages that a cloud model may see, the oldest first, and `said` is what person and
    tools say in the newest turn, in order: a secret can be told in two halves. `known_private` is what is
    known to be private already. `tools` are those that the turn may be shown, as far as they are known.
    `lacks` says why the local model cannot do the turn. Of one whose route `is_forced` only what is private
    is asked.
    """

    question: str
    texts: tuple[str, ...]
    unreadable: int = 0
    has_local: bool = True
    has_cloud: bool = True
    earlier: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    known_private: tuple[Finding, ...] = ()
    tools: tuple[Tool, ...] = ()
    lacks: Cause | None = None
    is_forced: bool = False


class Classifier(Protocol):
    """Judges turns. One that learns may also have `observe(verdict)`, which is told of each turn that was
    decided, and `aclose()`."""

    def classify(self, turn: ClassifierInput) -> Verdict:
        """Where the turn should go, whether it is private, and why."""

    def scan(self, text: str) -> Sequence[Finding]:
        """What is private in a text that is about to be sent, a tool's result for one."""


def newest_input(
    turns: Sequence[Turn],
    options: TurnOptions,
    slots: Slots,
    *,
    tools: Sequence[Tool] = (),
    lacks: Cause | None = None,
) -> ClassifierInput:
    """What a classifier may look at of the newest of `turns`."""
    messages = turns[-1].decode()
    texts, unreadable = texts_of(messages)
    texts += texts_besides(options)
    return ClassifierInput(
        question=_question(messages),
        texts=tuple(texts),
        unreadable=unreadable,
        has_local=slots.local is not None,
        has_cloud=slots.cloud is not None,
        earlier=tuple(_questions(turns[:-1])),
        said=tuple(_said(messages)),
        known_private=options.known_private,
        tools=tuple(tools),
        lacks=lacks,
        is_forced=options.route != "auto",
    )


def judge(classifier: Classifier, turn: ClassifierInput) -> Verdict:
    """The classifier's verdict. One that raises has found something private: nothing is sent unscanned."""
    try:
        return classifier.classify(turn)
    except Exception as error:
        _log.error("the classifier raised %s; the turn counts as private", type(error).__name__)
        cause = Cause("unscanned", "The text could not be looked through, so it counts as private.")
        return Verdict(route="local", private=True, causes=(cause,), findings=(_UNSCANNED,))


def scanner(classifier: Classifier) -> Callable[[str], Sequence[Finding]]:
    """The classifier's `scan`, which finds something in every text that it cannot look through."""

    def scan(text: str) -> Sequence[Finding]:
        try:
            return classifier.scan(text)
        except Exception as error:
            _log.error("the scan of a text raised %s; it counts as private", type(error).__name__)
            return (_UNSCANNED,)

    return scan


_UNSCANNED = Finding("unscanned", 0, 0, "•••")


def texts_of(messages: Sequence[Message], *, answers: bool = True) -> tuple[list[str], int]:
    """The texts in some messages, and how many parts hold none that could be read. Without `answers` only
    what was given to the model: the person's words and the results of tools."""
    texts: list[str] = []
    unreadable = 0
    for message in messages:
        if message.role == "assistant" and not answers:
            continue
        for block in blocks_of(message):
            found = _texts_in(block)
            if found is not None:
                texts += found
            elif message.role == "user":
                unreadable += 1
    return texts, unreadable


def _texts_in(block: Block) -> list[str] | None:
    """The texts in a block; `None` for one that cannot be looked into."""
    match block:
        case TextBlock(text=text):
            return [text]
        case ToolResultBlock(content=text):
            return [text, *_texts_in_id(block.tool_use_id)]
        case ToolUseBlock():
            malformed = [block.malformed] if block.malformed else []
            return [block.name, _written(block.input), *malformed, *_texts_in_id(block.id)]
        case DocumentBlock() if block.media_type.startswith("text/"):
            return [block.data.decode(errors="replace"), *([block.name] if block.name else [])]
        case _:
            return None


@functools.lru_cache(4_096)
def _texts_in_id(call_id: str) -> tuple[str, ...]:
    """What rules find private in the id of a call. Nothing else is said of an id: those of services are
    random, and as a whole many look like keys, so of a plain one the parts are looked at."""
    if _ID.fullmatch(call_id):
        found = [*_ID_PARTS.split(call_id), *_GROUPED_DIGITS.findall(call_id)]
        # Shorter numbers are no cards, and some services number their calls with longer ones.
        found = [part for part in found if not part.isdigit() or len(part) in _CARD_DIGITS]
    else:
        found = [call_id]
    return tuple([part for part in found if find_plain(part, normalise(part))])


_ID = re.compile(r"[A-Za-z0-9_-]*")
_ID_PARTS = re.compile(r"[_-]+")
_GROUPED_DIGITS = re.compile(r"(?<![A-Za-z0-9])\d{2,6}(?:[_-]\d{2,6}){2,6}(?![A-Za-z0-9])")
_CARD_DIGITS = range(13, 17)


def _written(value: object) -> str:
    """Something as JSON, with its letters as they are."""
    return msgspec.json.encode(encodable(value)).decode()


def texts_besides(options: TurnOptions) -> list[str]:
    """What is sent besides the messages: system prompt, the caller's tools, texts to stop at, a format."""
    chosen = options.options
    texts = [chosen.system] if chosen.system else []
    texts += [_written(tool) for tool in options.client_tools]
    texts += chosen.stop or ()
    if chosen.response_format is not None:
        texts.append(_written(chosen.response_format))
    if chosen.extra:
        texts.append(_written(chosen.extra))
    return texts


def _question(messages: Sequence[Message]) -> str:
    """The text of the person's last message."""
    for message in reversed(messages):
        if message.role == "user" and (text := text_of(message.content)):
            return text
    return ""


def _questions(earlier: Sequence[Turn]) -> Iterator[str]:
    """The person's last messages in turns that a cloud model may see."""
    shareable = [turn for turn in earlier[-EARLIER:] if turn.label == "shareable"]
    for turn in shareable:
        yield from turn.messages.variant("questions", _texts_of_questions)


def _said(messages: Sequence[Message]) -> Iterator[str]:
    """What the person and the tools say in a turn. Neighbouring messages were made one, with an empty line
    between them: so a text of few paragraphs is given in these."""
    for message in messages:
        if message.role == "user":
            for block in blocks_of(message):
                match block:
                    case TextBlock(text=text):
                        parts = text.split("\n\n")
                        yield from parts if len(parts) <= _SPLIT_PARTS else (text,)
                    case ToolResultBlock(content=text):
                        yield text


_SPLIT_PARTS = 16


def _texts_of_questions(messages: list[Message]) -> tuple[str, ...]:
    users = [message for message in messages if message.role == "user"]
    return tuple([b.text for message in users for b in blocks_of(message) if isinstance(b, TextBlock)])
