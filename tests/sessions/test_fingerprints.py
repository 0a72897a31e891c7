"""Fingerprints find private text again wherever it stands (R16), and tell nothing without the key."""

from __future__ import annotations

import json
import random
import textwrap
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mead.sessions.fingerprints import (
    GUARANTEED_CHARACTERS,
    GUARANTEED_WORDS,
    KEY_BYTES,
    Fingerprinter,
    pack,
    unpack,
)

KEY = bytes(range(KEY_BYTES))
MARKS = Fingerprinter(KEY)
LETTERS = "abcdefghijklmnopqrstuvwxyzäöüßéñøłжшщдлявбю"
CHINESE = [chr(code) for code in range(0x4E00, 0x4E00 + 3000)]

word = st.text(st.sampled_from(LETTERS), min_size=1, max_size=9)
seeds = st.integers(min_value=0, max_value=2**32)


def finds(private: str, text: str, marks: Fingerprinter = MARKS) -> bool:
    """Whether the private text is found in the other."""
    return not marks.to_keep(private).isdisjoint(marks.to_find(text))


def words_of(chance: random.Random, count: int, *, script: str = LETTERS) -> list[str]:
    return ["".join(chance.choices(script, k=chance.randint(3, 9))) for _ in range(count)]


def spaced(words: list[str], chance: random.Random) -> str:
    """The words with other white space and punctuation between them."""
    between = [" ", "  ", "\n", "\t", ", ", ".\n\n", " — ", "; ", ' "', "\u00a0", ":\r\n"]
    return "".join([part for word in words for part in (word, chance.choice(between))])


def in_json(text: str) -> str:
    return json.dumps({"role": "user", "content": text})


DISGUISES: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "upper case": str.upper,
    "title case": str.title,
    "one line": lambda text: " ".join(text.split()),
    "wrapped": lambda text: textwrap.fill(" ".join(text.split()), 30, break_long_words=False),
    "in JSON": in_json,
    "in JSON as it is": lambda text: json.dumps(text, ensure_ascii=False),
    "in JSON in JSON": lambda text: in_json(in_json(text)),
    "quoted": lambda text: textwrap.indent(text, "> ", lambda line: True),
    "a list": lambda text: textwrap.indent(text, "- ", lambda line: True),
    "bold": lambda text: f"**{text}**",
    "in HTML": lambda text: text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;"),
    "in code": lambda text: f"```\n{text}\n```",
}


@pytest.mark.parametrize("disguise", DISGUISES.values(), ids=DISGUISES)
@settings(max_examples=60, deadline=None)
@given(st.lists(word, min_size=GUARANTEED_WORDS, max_size=40), seeds)
def test_r16_a_run_of_words_is_found_anywhere_in_other_text(
    disguise: Callable[[str], str], words: list[str], seed: int
) -> None:
    chance = random.Random(seed)
    before, after = words_of(chance, chance.randint(0, 60)), words_of(chance, chance.randint(0, 60))
    private = spaced(words, chance)

    text = f"{' '.join(before)} {disguise(private)} {' '.join(after)}"

    assert finds(private, text)


@settings(max_examples=100, deadline=None)
@given(seeds)
def test_r16_a_part_of_the_guaranteed_length_is_found(seed: int) -> None:
    chance = random.Random(seed)
    private = words_of(chance, 200)
    start = chance.randint(0, 200 - GUARANTEED_WORDS)
    part = private[start : start + GUARANTEED_WORDS]

    text = " ".join([*words_of(chance, 30), *part, *words_of(chance, 30)])

    assert finds(" ".join(private), text)


@settings(max_examples=100, deadline=None)
@given(seeds)
def test_r16_a_run_of_characters_is_found_in_scripts_without_spaces(seed: int) -> None:
    chance = random.Random(seed)
    private = "".join(chance.choices(CHINESE, k=100))
    start = chance.randint(0, 100 - GUARANTEED_CHARACTERS)
    part = private[start : start + GUARANTEED_CHARACTERS]
    around = ["".join(chance.choices(CHINESE, k=40)) for _ in range(2)]

    assert finds(private, f"{around[0]}{part[:7]}，\n{part[7:]}{around[1]}")
    assert finds(private, in_json(f"{around[0]}“{part}”{around[1]}"))


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=400), st.text(max_size=400))
def test_any_text_at_all_can_be_read_and_finds_itself(one: str, other: str) -> None:
    kept = MARKS.to_keep(one)

    assert kept <= MARKS.to_find(one)
    assert MARKS.to_keep(one + other) <= MARKS.to_find(one + other)
    assert all(0 <= value < 2**64 and not value & 1 for value in kept)


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_unrelated_texts_have_nothing_in_common(seed: int) -> None:
    chance = random.Random(seed)
    one, other = (" ".join(words_of(chance, 300)) for _ in range(2))
    chinese, more = ("".join(chance.choices(CHINESE, k=300)) for _ in range(2))

    assert not finds(one, other)
    assert not finds(chinese, more)


@pytest.mark.parametrize(
    "private,text",
    [
        ("I earn four thousand a month", "USER: I earn four thousand a month.\nASSISTANT: I see."),
        ("I earn four thousand a month", "> **User:** I EARN four\u00a0thousand a month"),
        ("I earn four thousand a month", '[{"role": "user", "content": "I earn four thousand a month"}]'),
        ("I earn four thousand a month", "i earn four thousand a month"),
        ("internationalisation considerations", "Note: internationalisation considerations!"),
        ("use ghp_9aK3mZq81LsXv7TnR0cYbW5e please", "token=ghp_9aK3mZq81LsXv7TnR0cYbW5e"),
        ("我每个月能挣四千块钱左右", "用户：我每个月能挣四千块钱左右\n助手：好"),
    ],
)
def test_r16_a_short_message_is_found_where_it_fills_a_line(private: str, text: str) -> None:
    assert finds(private, text)


@pytest.mark.parametrize(
    "text",
    [
        "thanks",
        "Thank you very much!",
        "yes, go on",
        "谢谢你的帮助",
        "",
        "   ",
        "👍👍👍👍👍👍",
        "...... ----- !!!!!!",
    ],
)
def test_what_anybody_says_leaves_nothing(text: str) -> None:
    assert MARKS.to_keep(text) == set()


def test_a_phrase_within_other_text_does_not_match() -> None:
    private = "Could you please tell me whether the results of my blood test have arrived at the clinic yet?"
    other = "Could you please tell me whether the train has arrived at the station in the town yet?"

    assert not finds(private, other)


def test_without_the_key_a_fingerprint_tells_nothing() -> None:
    text = " ".join(words_of(random.Random(1), 200))
    other = Fingerprinter(bytes(KEY_BYTES))

    assert MARKS.to_keep(text).isdisjoint(other.to_keep(text))
    assert other.to_keep(text) == Fingerprinter(bytes(KEY_BYTES)).to_keep(text)


@given(st.sets(st.integers(min_value=0, max_value=2**64 - 1)))
def test_they_are_packed_in_eight_bytes_each(values: set[int]) -> None:
    data = pack(values)

    assert len(data) == 8 * len(values)
    assert list(unpack(data)) == sorted(values)
    assert list(unpack(data + b"cut")) == sorted(values)


def test_the_packed_form_is_the_same_on_every_machine() -> None:
    assert pack([2, 1]) == b"\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0"


@pytest.mark.parametrize(
    "make",
    [
        lambda n: "word " * (n // 5),
        lambda n: "\\" * n,
        lambda n: "&amp;" * (n // 5),
        lambda n: '"' * n,
        lambda n: "'a' «" * (n // 5),
        lambda n: "\n" * n,
        lambda n: "a" * n,
        lambda n: "\u0f71\u0f74" * (n // 2),
        lambda n: "é" * n,
        lambda n: "字" * n,
        lambda n: "\\u00e9" * (n // 6),
    ],
    ids=str.split("words backslashes entities quotes others lines letters marks accents chinese escapes"),
)
def test_the_time_grows_as_the_length(make: Callable[[int], str]) -> None:
    def took_s(text: str) -> float:
        times = []
        for _ in range(3):
            started = time.process_time()
            MARKS.to_find(text)
            times.append(time.process_time() - started)
        return min(times)

    short, long = took_s(make(20_000)), took_s(make(160_000))

    assert long < 40 * short + 0.05  # 8 times as long; as the square it would be 64 times


# Under the length of a shingle: found as a whole only.
SHORT = "The spare key is under our flowerpot"
QUOTES = str.split(
    """
"{}" “{}” „{}“ ”{}” «{}» »{}« ‹{}› 「{}」 『{}』 《{}》 〝{}〞 ＂{}＂ `{}` '{}' ‘{}’ ‚{}‘ \\"{}\\"
&quot;{}&quot; &apos;{}&apos; &#39;{}&#39; &#x27;{}&#x27; &amp;quot;{}&amp;quot; &#8220;{}&#8221;
"""
)


@pytest.mark.parametrize("quotes", QUOTES)
def test_r16_a_short_text_is_found_between_quotation_marks_of_every_kind(quotes: str) -> None:
    text = f"Say it better: he told us {quotes.format(SHORT)} and left, and it isn't the boys' fault."

    assert finds(SHORT, text)
    assert finds(SHORT, text.upper())


@pytest.mark.parametrize(
    "private, text",
    [
        ("The boys' key isn't there tonight", "Rewrite “{}” for me."),
        ("The boys' key isn't there tonight", "Rewrite:\n{}\nThanks."),
        ('She said "never" to all of us', "Rewrite «{}» for me."),
        ('She said "never" to all of us', "Rewrite `{}` for me."),
        ('She said "never" to all of us', "Rewrite:\n{}\nThanks."),
        ("She said «never» to all of us", 'Rewrite "{}" for me.'),
    ],
)
def test_r16_a_short_text_with_quotation_marks_in_it_is_found_between_others(private: str, text: str) -> None:
    assert finds(private, text.format(private))
