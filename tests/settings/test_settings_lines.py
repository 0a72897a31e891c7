"""On which line of a TOML text a key stands."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mead.settings._lines import line_of

TEXT = '''\
# a comment with [brackets] and = signs
top = 1
[router]  # the table
handler = "a # b"

[ router . "slots" . 'local' ]
system = """
[router]
model = "not here"
"""
literal = \'\'\'
stop = 1
\'\'\'
stop = [
  "a]", # ]
  "b",
]
model = "x"
extra = {deep = {deeper = 1}}
dotted.key = 1
"quoted.key" = 1
"esc\\u0061ped" = 1
[[list]]
first = 1
[[list]]
second = 1
'''


@pytest.mark.parametrize(
    "path,line",
    [
        (("top",), 2),
        (("router",), 3),
        (("router", "handler"), 4),
        (("router", "slots"), 6),
        (("router", "slots", "local"), 6),
        (("router", "slots", "local", "system"), 7),
        (("router", "slots", "local", "stop"), 14),
        (("router", "slots", "local", "model"), 18),
        (("router", "slots", "local", "extra", "deep", "deeper"), 19),
        (("router", "slots", "local", "dotted"), 20),
        (("router", "slots", "local", "dotted", "key"), 20),
        (("router", "slots", "local", "quoted.key"), 21),
        (("router", "slots", "local", "escaped"), 22),
        (("router", "slots", "local", "absent"), 6),
        (("list",), 23),
        (("list", "second"), 26),
        (("absent",), None),
        (("absent", "key"), None),
    ],
    ids=str,
)
def test_a_key_is_found_or_else_its_table(path: tuple[str, ...], line: int | None) -> None:
    tomllib.loads(TEXT)

    assert line_of(TEXT, path) == line
    assert line_of(TEXT.replace("\n", "\r\n"), path) == line


@given(
    st.lists(st.sampled_from(['"""a"""', "'''\n[x]\n'''", '"""\n"x"\n"""', "[\n1\n]", '""', '"\\""', "'\\'"]))
)
def test_a_key_is_found_after_any_values(values: list[str]) -> None:
    before = "".join([f"a{place} = {value}\n" for place, value in enumerate(values)])
    text = before + "wanted = 1\n"
    tomllib.loads(text)

    assert line_of(text, ("wanted",)) == before.count("\n") + 1


@given(st.text())
def test_a_text_that_is_no_toml_does_no_harm(text: str) -> None:
    line_of(text, ("a", "b"))
