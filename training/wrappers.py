"""Sentences that people and programs put around a question; which of them says nothing of its difficulty.

`TRAINED` are put around copies of the training rows. `UNSEEN` serve only to measure what a strange wrapper
does to the scores.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeAlias

Wrapper: TypeAlias = tuple[str, str]

TRAINED: tuple[Wrapper, ...] = (
    ("Please help me with this:\n", ""),
    ("Hi! ", " Thanks in advance."),
    ("### Task\n", "\n\n### Response\n"),
    ("Consider the question below and reply as well as you can.\n\n", ""),
    ("Here is a question from a user.\n---\n", "\n---\nWrite your reply in plain text."),
    ("", "\n\nThink carefully before you reply."),
    ("You are an expert. ", " Keep it short."),
    ("[INST] ", " [/INST]"),
    ("User: ", "\nAssistant:"),
    ("I was asked this and do not know what to say: ", ""),
    ('Read the text and do what it asks for. Return JSON with the key "result".\n\n', ""),
    ("", "\nState your reasoning first and then the result on a line of its own."),
    ("Exam, part 2. Every item gives one point.\n\n", "\n\nYour reply:"),
    ("<prompt>\n", "\n</prompt>\nDo not explain."),
)
UNSEEN: tuple[Wrapper, ...] = (
    (
        "Below you find a task. Complete it as a professional would.\n\n",
        "\n\nSolution:",
    ),
    ("Could you take a look at the following? ", " I need it by tomorrow."),
    ("Quiz time! ", " What do you say?"),
    ("System: be precise and truthful.\nHuman: ", "\nAI:"),
    ("**Prompt**\n\n", "\n\nWrap up with one line that starts with RESULT."),
    ("My colleague wants to know: ", ""),
)


def wrap(text: str, key: str, wrappers: Sequence[Wrapper]) -> str:
    """The text in one of the wrappers, always the same one for the same key."""
    digest = hashlib.sha256(f"wrapper {key}".encode()).digest()
    before, after = wrappers[int.from_bytes(digest[:8], "big") % len(wrappers)]
    return f"{before}{text}{after}"
