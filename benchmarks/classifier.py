"""What deciding costs: the privacy gate and the difficulty score on prompts of 400 characters, and on more.

    scripts/bench-classifier

Prints medians, and their ratio to the time that plain Python takes to hash the words and the character
n-grams of the same prompt, so that the figure means the same on another machine.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from zlib import crc32

from mead.core.conversation import encode_exchange, encode_user
from mead.core.options import TurnOptions
from mead.core.turns import NoHub, Turn
from mead.providers.echo import Echo
from mead.router import AutoClassifier, Slot, Slots, explain
from mead.router.classifier import ClassifierInput

WORDS = (
    "The committee asked the engineers to compare three designs for the new bridge, weigh the cost of steel "
    "against that of concrete, and explain which of them would last longest in a coastal climate. Summarise "
    "the main arguments in one page, list open questions, and suggest how the remaining risk could be "
    "measured before the work begins next spring, in words that readers without any training can easily "
    "follow. "
)
PROMPT = WORDS[:400]
ROUNDS = 300


def hashed(text: str) -> int:
    """The hashes of a prompt's words, word pairs, and character n-grams of 3 to 5."""
    words = text.lower().split()
    total = 0
    for word in words:
        total ^= crc32(word.encode())
    for first, second in itertools.pairwise(words):
        total ^= crc32(f"{first} {second}".encode())
    for size in (3, 4, 5):
        for place in range(len(text) - size + 1):
            total ^= crc32(text[place : place + size].encode())
    return total


def median_s(work: Callable[[int], object]) -> float:
    """The median time of one call, which is given the number of its round."""
    for number in range(20):
        work(-number - 1)
    times = []
    for number in range(ROUNDS):
        started = time.perf_counter()
        work(number)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def judged(classifier: AutoClassifier, text: str) -> object:
    """One verdict."""
    return classifier.classify(ClassifierInput(question=text, texts=(text,)))


def main() -> None:
    """Prints the figures."""
    classifier = AutoClassifier()
    floor = median_s(lambda n: hashed(f"{n} {PROMPT}"))
    both = median_s(lambda n: judged(classifier, f"{n} {PROMPT}"))
    again = median_s(lambda n: judged(classifier, PROMPT))
    print(f"hashing n-grams, 400 characters       {floor * 1e3:8.3f} ms")
    print(f"gate and score, 400 fresh characters  {both * 1e3:8.3f} ms   {both / floor:5.2f} x hashing")
    print(f"the same text again                   {again * 1e3:8.3f} ms   {again / floor:5.2f} x hashing")
    for length in (4_000, 40_000, 400_000):
        text = (WORDS * (length // len(WORDS) + 1))[:length]
        started = time.perf_counter()
        judged(classifier, f"{length} {text}")
        took = time.perf_counter() - started
        share = took / length * 400 / both
        print(f"fresh text, {length:>7,} characters         {took * 1e3:8.3f} ms   {share:5.2f} x, per 400")
    slots = Slots(local=Slot(Echo()), cloud=Slot(Echo()))
    turns = [
        Turn(messages=encode_exchange(encode_user(f"{n} {PROMPT}"), PROMPT), route="cloud", label="shareable")
        for n in range(100)
    ]

    def decided(number: int) -> object:
        newest = Turn(messages=encode_user(f"{number} {len(turns)} {PROMPT}"), label="shareable")
        return explain([*turns, newest], TurnOptions(), slots, NoHub(), classifier=classifier)

    decided(0)
    long = median_s(decided)
    turns = []
    short = median_s(decided)
    print(
        f"a turn after 200 messages             {long * 1e3:8.3f} ms   {long / short:5.2f} x one after none"
    )


if __name__ == "__main__":
    main()
