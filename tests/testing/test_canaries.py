"""Each encoding that a canary is planted in on purpose is found, and what is not there is not."""

from __future__ import annotations

import base64
import gzip
import json
import random
import zlib
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mead.testing.canaries import Canaries, Found, find

CANARIES = Canaries(7)
SECRET, OTHER = CANARIES.make("text"), CANARIES.make("result")


def raw_deflate(data: bytes) -> bytes:
    press = zlib.compressobj(wbits=-15)
    return press.compress(data) + press.flush()


def escaped(text: str) -> str:
    return "".join([f"\\u{ord(letter):04x}" for letter in text])


def percent(text: str) -> str:
    return "".join([f"%{ord(letter):02X}" for letter in text])


ENCODED: dict[str, Callable[[str], bytes]] = {
    "as it is": lambda text: text.encode(),
    "json": lambda text: f'{{"content":"{escaped(text)}"}}'.encode(),
    "url": lambda text: f"GET /?q={percent(text)} HTTP/1.1".encode(),
    "base64": lambda text: base64.b64encode(text.encode()),
    "hex": lambda text: text.encode().hex().encode(),
    "gzip": lambda text: gzip.compress(text.encode()),
    "zlib": lambda text: zlib.compress(text.encode()),
    "deflate": lambda text: raw_deflate(text.encode()),
}


@pytest.mark.parametrize("encoding", ENCODED)
@pytest.mark.parametrize("case", [str.lower, str.upper, str.title], ids=["lower", "upper", "title"])
def test_a_canary_is_found_in_each_encoding(encoding: str, case: Callable[[str], str]) -> None:
    data = ENCODED[encoding](f"we met at {case(SECRET.text)} yesterday")

    assert find(data, [SECRET, OTHER]) == [Found(SECRET, encoding)]


@pytest.mark.parametrize("outer", [name for name in ENCODED if name != "as it is"])
@pytest.mark.parametrize("inner", [name for name in ENCODED if name not in ("gzip", "zlib", "deflate")])
def test_a_canary_is_found_in_one_encoding_inside_another(outer: str, inner: str) -> None:
    data = ENCODED[outer](ENCODED[inner](f"we met at {SECRET} yesterday").decode())

    [found] = find(data, [SECRET])
    assert not found.part
    assert set(found.encoding.split(" > ")) <= {outer, inner, "as it is"}
    assert outer in found.encoding


@pytest.mark.parametrize("before", ["", "a", "ab", "abc", "äöü", "1234567"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode], ids=["standard", "url-safe"])
def test_it_does_not_matter_what_stands_before_it_in_base64(
    before: str, encode: Callable[[bytes], bytes]
) -> None:
    data = b'{"data":"' + encode(f"{before}{SECRET} ÿþ>?>?".encode()) + b'"}'

    assert find(data, [SECRET]) == [Found(SECRET, "base64")]


@pytest.mark.parametrize("cut", range(4))
def test_it_does_not_matter_where_base64_was_cut_out(cut: int) -> None:
    data = base64.b64encode(f"something {SECRET}".encode())[cut:]

    assert find(b"say" * (cut % 2) + data, [SECRET]) == [Found(SECRET, "base64")]


def test_base64_in_lines_is_found() -> None:
    for length in range(60):
        data = base64.encodebytes(b"x" * length + SECRET.text.encode() + b"y" * 40)
        assert [found.canary for found in find(data, [SECRET])] == [SECRET], length


@pytest.mark.parametrize("depth", range(1, 6))
def test_json_texts_inside_json_texts_are_found(depth: int) -> None:
    own = Canaries(1).keep("own", 'my "own" word:\n4012 8888 ß')
    data = own.text
    for _ in range(depth):
        data = json.dumps({"arguments": data})

    assert find(data, [own]) == [Found(own, "json")]


def test_a_secret_of_ones_own_is_found_in_each_encoding() -> None:
    own = Canaries(1).keep("own", "4012 8888 8888 1881")
    for encoding, encode in ENCODED.items():
        assert [found.canary for found in find(encode(f"pay {own} now"), [own])] == [own], encoding
    assert find(quote(f"pay {own} now"), [own]) == [Found(own, "url")]


def test_a_canary_that_was_cut_off_is_found_by_its_half() -> None:
    title = f"Our plan for {SECRET}"[:-5]

    assert find(title, [SECRET]) == [Found(SECRET, "as it is", part=True)]
    assert find(f"…{SECRET.text[8:]}", [SECRET]) == [Found(SECRET, "as it is", part=True)]
    assert find(title + base64.b64encode(SECRET.text.encode()).decode(), [SECRET])[0].part is False


def test_all_that_are_there_are_found_in_the_order_asked_for() -> None:
    data = f"{OTHER} and {percent(SECRET.text)}"

    assert find(data, [SECRET, OTHER]) == [Found(SECRET, "url"), Found(OTHER, "as it is")]


def test_a_stream_that_breaks_off_gives_what_it_has() -> None:
    noise = "".join(random.Random(1).choices("abcdefghij", k=20_000))
    pressed = gzip.compress(f"{noise[:1000]} {SECRET} {noise}".encode())

    assert find(pressed[: len(pressed) // 2], [SECRET]) == [Found(SECRET, "gzip")]


def test_the_same_seed_makes_the_same_words_and_no_word_twice() -> None:
    first, again, other = Canaries(1), Canaries(1), Canaries(2)
    words = [first.make("text") for _ in range(50)]

    assert words == [again.make("text") for _ in range(50)]
    assert len({canary.text for canary in [*words, other.make("text")]}) == 51
    assert [canary.number for canary in words] == list(range(1, 51))
    assert first.made == words


def test_a_canary_is_planted_as_its_word_and_named_without_it() -> None:
    assert f"{SECRET}" == SECRET.text
    assert SECRET.name == "text canary 1"
    with pytest.raises(ValueError, match="6 characters"):
        CANARIES.keep("own", "short")


@given(st.binary(max_size=300))
def test_nothing_is_found_where_nothing_is(data: bytes) -> None:
    assert find(data, [SECRET, OTHER]) == []
    assert find(data.hex(), [SECRET, OTHER]) == []
    assert find(data, []) == []


@given(
    st.text(max_size=80), st.lists(st.sampled_from(["as it is", "json", "url", "base64", "hex"]), max_size=3)
)
def test_nothing_else_hides_it(around: str, encodings: list[str]) -> None:
    text = f"{around} {SECRET} {around}".encode(errors="replace").decode()
    for encoding in encodings:
        text = ENCODED[encoding](text).decode() if encoding != "json" else json.dumps({"text": text})

    assert [found.canary for found in find(text, [SECRET])] == [SECRET]
