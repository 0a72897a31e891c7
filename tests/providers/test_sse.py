"""Streams cut into messages, however the bytes were cut before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mead.providers import _sse
from mead.providers._sse import NdjsonParser, SseParser
from mead.providers.http import AnswerTooLongError

# Lines of text as they may stand in the data of an event.
lines = st.lists(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r\n"), max_size=8))
events = st.lists(lines.filter(bool), min_size=1, max_size=5)
newlines = st.sampled_from(["\n", "\r\n", "\r"])


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """The bytes, cut at these places."""
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[start:stop] for start, stop in zip([0, *places], [*places, len(data)], strict=True)]


def fed(*chunks: bytes) -> list[bytes]:
    parser = SseParser()
    return [message for chunk in chunks for message in parser.feed(chunk)]


@given(events, newlines, st.booleans(), st.lists(st.integers(0, 10_000), max_size=8))
def test_any_cut_gives_the_same_events(
    events: list[list[str]], newline: str, comments: bool, cuts: list[int]
) -> None:
    written = "".join(
        "".join(
            ([f": note{newline}"] if comments else [])
            + [f"data: {line}{newline}" for line in event]
            + [f"event: x{newline}", newline]
        )
        for event in events
    )
    expected = ["\n".join(event).encode() for event in events]

    assert fed(written.encode()) == expected
    assert fed(*pieces(written.encode(), cuts)) == expected


@given(st.binary(max_size=60), st.lists(st.integers(0, 100), max_size=6))
def test_any_bytes_cut_anywhere_give_the_same(data: bytes, cuts: list[int]) -> None:
    assert fed(*pieces(data, cuts)) == fed(data)


@given(events, st.integers(0, 10_000))
def test_an_event_that_the_end_cuts_off_is_dropped(events: list[list[str]], cut: int) -> None:
    whole = "".join("".join(f"data: {line}\n" for line in event) + "\n" for event in events).encode()
    found = fed(whole[: cut % len(whole)])

    assert found == fed(whole)[: len(found)]
    assert len(found) < len(events)


@pytest.mark.parametrize(
    "stream, messages",
    [
        (b"data: a\n\n", [b"a"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"data\n\n", [b""]),
        (b"data:\n\n", [b""]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b"\n\n\ndata: a\n\n\n\n", [b"a"]),
        (b"event: x\nid: 1\nretry: 5\ndata: a\n\n", [b"a"]),
        (b"event: x\n\n", []),
        (b":\n\n: note\n\ndata: a\n: inside\ndata: b\n\n", [b"a\nb"]),
        (b"database: a\n\n", []),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"data: \xef\xbb\xbfa\n\n", [b"\xef\xbb\xbfa"]),
        (b"data: a", []),
        (b"data: a\n", []),
        (b"", []),
    ],
)
def test_the_form_of_events(stream: bytes, messages: list[bytes]) -> None:
    assert fed(stream) == messages
    assert fed(*[stream[at : at + 1] for at in range(len(stream))]) == messages


def test_a_carriage_return_ends_an_event_at_once() -> None:
    parser = SseParser()

    assert parser.feed(b"data: a\r\r") == [b"a"]
    assert parser.feed(b"\ndata: b\r\n\r") == [b"b"]
    assert parser.feed(b"\n") == []


@pytest.mark.parametrize("body", [b'{"a":\n\n1}', b"<html>\n\n</html>", b' \n{"a":1}', b"\xef\xbb\xbf{}"])
def test_a_body_that_is_no_event_stream_is_kept_whole(body: bytes) -> None:
    for chunks in ([body], [body[at : at + 1] for at in range(len(body))]):
        parser = SseParser()
        for chunk in chunks:
            assert parser.feed(chunk) == []

        assert parser.is_other
        assert parser.rest.strip() == body.removeprefix(b"\xef\xbb\xbf").strip()


def test_an_event_stream_is_none_of_those() -> None:
    parser = SseParser()
    parser.feed(b"\n\n: {\n\ndata: {}\n\n")

    assert not parser.is_other


def test_one_message_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sse, "MAX_MESSAGE_BYTES", 10)
    events, ndjson = SseParser(), NdjsonParser()

    assert events.feed(b"data: 1\n\n" * 9) == [b"1"] * 9
    assert ndjson.feed(b"12345\n" * 9) == [b"12345"] * 9
    with pytest.raises(AnswerTooLongError):
        events.feed(b"data: 12345")
    with pytest.raises(AnswerTooLongError):
        ndjson.feed(b"12345678901")


@given(st.lists(st.text(min_size=1, max_size=5)), st.lists(st.integers(0, 1000), max_size=6), st.booleans())
def test_lines_of_json_are_the_same_however_they_are_cut(
    texts: list[str], cuts: list[int], ends: bool
) -> None:
    written = [b'"' + text.encode("unicode_escape") + b'"' for text in texts]
    data = b"\n".join(written) + (b"\n" if ends else b"")
    parser = NdjsonParser()
    found = [line for piece in pieces(data, cuts) for line in parser.feed(piece)]
    if parser.rest:
        found.append(parser.rest)

    assert found == written


def test_blank_lines_between_lines_of_json_are_passed_over() -> None:
    assert NdjsonParser().feed(b"\n1\r\n \n\n2\n3") == [b"1\r", b"2"]
