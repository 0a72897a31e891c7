"""The two models of a random conversation, as servers of their wire formats, and the tools that they ask for.

Each model quotes all that it was shown, in its answers and in the arguments of its calls, encoded in one way
or another. So what reached it once cannot be hidden any more, and whatever it should not have seen shows.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote

import msgspec

import mead
from mead.core.messages import Tool, ToolUseBlock
from mead.core.options import Options, Route, TurnOptions
from mead.core.reasons import MalformedResponse, ProviderReason, Transport
from mead.core.result import Err, Ok, Result
from mead.core.turns import ToolOutput
from mead.providers.http import HttpClient, HttpReply, OnChunk
from mead.testing import Answer, Received
from mead.testing.canaries import Canary
from mead.testing.providers import Answers, BreaksOff, GoesSilent, Refuses, TalksNonsense
from mead.testing.recording import Recorder
from privacy.plan import Quoting, Turn
from providers.formats import ANTHROPIC, OLLAMA, OPENAI, WireFormat

CARD = "4012 8888 8888 1881"
WIRES: dict[str, WireFormat] = {wire.name: wire for wire in (OPENAI, ANTHROPIC, OLLAMA)}
_WORD = re.compile(r"[^\s\"\\,:{}\[\]<>]{20,300}")

Plant = Callable[[str], Canary]


class Doings:
    """What the models and the tools planted for one turn: in arguments and answers of either model, in plain
    results and in private ones. `results` counts the calls that came back with a result, of these
    `results_before`, before the cloud model was asked anything."""

    def __init__(self) -> None:
        self.made: dict[Route, list[Canary]] = {"local": [], "cloud": []}
        self.open: list[Canary] = []
        self.private: list[Canary] = []
        self.results = 0
        self.results_before: int | None = None

    @property
    def results_for_local(self) -> int:
        """How many results the local model was given, where it was asked first."""
        return self.results if self.results_before is None else self.results_before


class Book:
    """Knows whose doing a request or a call is: a turn that was replaced may still be on its way when the
    next one begins."""

    def __init__(self) -> None:
        self._current = Doings()
        self._by_question: dict[str, Doings] = {}
        self._by_argument: dict[str, Doings] = {}
        self._is_sole = True

    def begin(self, question: str | None = None) -> Doings:
        """A turn begins whose text holds this word. Without one, all is its doing from now on."""
        self._current = Doings()
        self._is_sole = question is None
        if question is not None:
            self._by_question[question] = self._current
        return self._current

    def of_request(self, body: str) -> Doings:
        """Whose request it is: the newest question is the last one to be seen for the first time."""
        places = {} if self._is_sole else {body.find(word): word for word in self._by_question}
        newest = max(places, default=-1)
        return self._by_question[places[newest]] if newest >= 0 else self._current

    def note_argument(self, argument: Canary, doings: Doings) -> None:
        """A call that begins with this canary was asked for in a turn."""
        self._by_argument[argument.text] = doings

    def of_call(self, at: str) -> Doings:
        """Whose call it is."""
        return self._by_argument.get(at.partition(" ")[0], self._current)


class Model:
    """One model. `plant` makes the canaries of its arguments and answers, which the book keeps."""

    def __init__(self, route: Route, wire: WireFormat, plant: Plant, book: Book) -> None:
        self.route: Route = route
        self.wire = wire
        self.recorder = Recorder(f"the {route} model")
        self.asked = asyncio.Event()
        self._book = book
        self._plant = plant
        self._turn: Turn | None = None
        self._replies = 0

    def begin(self, turn: Turn) -> None:
        """From now on it does what this turn says."""
        self._turn, self._replies = turn, 0
        self.asked.clear()

    def respond(self, request: Received) -> Answer:
        """The answer to any request of its adapter."""
        route = request.path.removeprefix("/v1")
        if request.path in self.wire.routes:
            answer = self.wire.routes[request.path]
            return answer if isinstance(answer, Answer) else answer(request)
        if route in ("/api/show", "/props"):
            return Answer(status=404)
        self.asked.set()
        assert self._turn is not None
        self._replies += 1
        doings = self._book.of_request(request.body.decode(errors="replace"))
        if self.route == "cloud" and doings.results_before is None:
            doings.results_before = doings.results
        case = self._case(self._turn, request, doings)
        made = self.wire.answer(case)
        return made if isinstance(made, Answer) else made(request)

    def _case(self, turn: Turn, request: Received, doings: Doings) -> Any:
        body = request.body.decode(errors="replace")
        ends = self._replies >= turn.ends_at
        has_tools = bool(request.json().get("tools"))
        calls = () if self._replies > turn.rounds or not has_tools else self._calls(turn, body, doings)
        text = "" if calls else self._text(turn, body, doings)
        if ends and turn.end == "stopped" and turn.hangs:
            return GoesSilent(pieces=(text[:30] or "one",))
        match turn.end if ends else "ok":
            case "error":
                # Whole words: that a word is cut off in mead's own cleaning is looked at elsewhere.
                said = quoted(body, "plain")[:500].rpartition(" ")[0]
                return Refuses(status=500, message=f"cannot go on from {said}")
            case "cut":
                return BreaksOff(pieces=(text[:30] or "one", "two"))
            case "nonsense":
                return TalksNonsense()
        middle = len(text) // 2
        pieces = tuple(filter(None, (text[:middle], text[middle:])))
        return Answers(pieces=pieces, calls=calls, cut_by_limit=turn.end == "limit" and not calls)

    def _calls(self, turn: Turn, body: str, doings: Doings) -> tuple[ToolUseBlock, ...]:
        names = ("look", "look", "keep", "fail", "nobody_knows_it")
        calls = []
        for number in range(turn.calls):
            own = self._own("argument", doings)
            self._book.note_argument(own, doings)
            name = names[(self._replies + number + len(body)) % len(names)]
            at = f"{own} {quoted(body, turn.quoting)[:600]}"
            calls.append(ToolUseBlock(f"call_{self._replies}_{number}_{own.number}", name, {"at": at}))
        return tuple(calls)

    def _text(self, turn: Turn, body: str, doings: Doings) -> str:
        card = f" pay with {CARD}" if turn.tells_card else ""
        sorry = "I am sorry, I cannot do that. " if turn.refuses else ""
        return f"{sorry}{self._own('answer', doings)}{card} from {quoted(body, turn.quoting)}"

    def _own(self, kind: str, doings: Doings) -> Canary:
        canary = self._plant(f"{self.route} {kind}")
        doings.made[self.route].append(canary)
        return canary


def quoted(body: str, quoting: Quoting) -> str:
    """Each long word of a request once, in this encoding; the longest ones stand in the history anyway."""
    text = " ".join(dict.fromkeys(_WORD.findall(body)))
    match quoting:
        case "upper":
            return text.upper()
        case "json":
            return "".join([f"\\u{ord(letter):04x}" if letter.isalpha() else letter for letter in text])
        case "url":
            return quote(text).replace("e", "%65").replace("a", "%61")
        case "base64":
            return base64.b64encode(text.encode()).decode()
        case "hex":
            return text.encode().hex()
    return text


class DirectClient(HttpClient):
    """The gated connections of a slot, without a connection: a model in this process answers. It refuses
    nothing: what comes here has come too far already, if it should not have."""

    def __init__(self, model: Model) -> None:
        super().__init__(
            "http://127.0.0.1:1/v1" if model.wire is OPENAI else "http://127.0.0.1:1", slot=model.route
        )
        self._model = model

    async def send(
        self,
        method: Literal["GET", "POST"],
        path: str,
        options: Options,
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        on_chunk: OnChunk | None = None,
        at_root: bool = False,
    ) -> Result[HttpReply, ProviderReason]:
        path = path if at_root else self.prefix + path
        self._record(path, len(body), options)
        request = Received(method=method, path=path, headers=headers or {}, body=body)
        head = "\r\n".join(
            [f"{method} {path}", *[f"{name}: {value}" for name, value in request.headers.items()]]
        )
        recorder = self._model.recorder
        recorder.add(
            f"request {len(recorder.pieces) + 1}: {method} {path}", f"{head}\r\n\r\n".encode() + body
        )
        await asyncio.sleep(0)
        answer = self._model.respond(request)
        pieces = [answer.body] if isinstance(answer.body, bytes) else list(answer.body)
        is_streamed = on_chunk is not None and answer.status == 200
        for piece in pieces:
            await asyncio.sleep(0)
            if is_streamed and piece and on_chunk is not None and on_chunk(piece):
                break
        if answer.end == "hang":
            await asyncio.Event().wait()
        if answer.end == "cut":
            return Err(Transport(cause="cut", detail="broken off"))
        if not pieces and answer.status == 200 and not is_streamed:
            return Err(MalformedResponse(detail="empty"))
        return Ok(HttpReply(status=answer.status, body=b"" if is_streamed else b"".join(pieces)))


class Tools:
    """The tools, as Python functions or as a hub. What they tell is a canary each time, every other time with
    something private beside it."""

    def __init__(self, plant: Plant, book: Book) -> None:
        self._plant = plant
        self._book = book

    def tell(self, at: str) -> str:
        """What a call comes to."""
        doings, canary = self._book.of_call(at), self._plant("result")
        doings.results += 1
        is_private = len(at) % 2 == 0
        (doings.private if is_private else doings.open).append(canary)
        return f"found {canary}" + (f" and the card {CARD}" if is_private else "")

    def functions(self) -> Sequence[Callable[..., object]]:
        """They as functions, one on a thread."""

        @mead.tool(effect=False)
        async def look(at: str) -> str:
            "Looks something up."
            await asyncio.sleep(0)
            return self.tell(at)

        @mead.tool(effect=True)
        def keep(at: str) -> str:
            "Keeps something."
            return self.tell(at)

        @mead.tool(effect=False)
        async def fail(at: str) -> str:
            "Fails, in words that quote what it was asked."
            raise RuntimeError(self.tell(at))

        return (look, keep, fail)


class FakeHub:
    """A hub that offers the same tools and knows no policy; `fail` raises out of it."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def tools_for(self, options: TurnOptions) -> Sequence[Tool]:
        return self.known_tools(options)

    def known_tools(self, options: TurnOptions) -> Sequence[Tool]:
        schema = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
        return tuple([Tool(name, f"The tool {name}.", schema) for name in ("look", "keep", "fail")])

    async def call_tool(self, name: str, input: dict[str, object], options: TurnOptions) -> ToolOutput:
        await asyncio.sleep(0)
        if name == "fail":
            raise RuntimeError(msgspec.json.encode(input).decode())
        return ToolOutput(self._tools.tell(str(input["at"])))
