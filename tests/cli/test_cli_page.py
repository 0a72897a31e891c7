"""docs/cli.md tells of every option, and its examples are what the commands write."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from cli.commands import ECHO, Servers, cloud_slot, local_slot, run, run_json, said
from mead.cli import app

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
CLAUDE = '[router.slots.cloud]\nprovider = "anthropic"\nmodel = "claude-sonnet-5-5"\n'
CARD = "My card is 4111 1111 1111 1111."


def every_command(command: click.Command = app, path: str = "mead") -> Iterator[tuple[str, click.Command]]:
    """The commands that do something, with their full names."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from every_command(inner, f"{path} {name}")


COMMANDS = dict(every_command())


def section(name: str) -> str:
    """What stands under the heading of a command."""
    [found] = [part for part in PAGE.split("\n## ") if part.startswith((f"`{name}`", f"`{name} "))]
    return found


def example(heading: str, number: int = 0) -> Any:
    """A JSON example of the page."""
    part = PAGE.partition(f"\n### `{heading}`\n")[2].partition("\n### ")[0]
    return msgspec.json.decode(re.findall(r"```json\n(.*?)```", part, re.DOTALL)[number])


def shape(value: Any) -> Any:
    """The keys of a JSON value and the kinds of what they hold, in their order."""
    if isinstance(value, dict):
        return [(key, shape(inner)) for key, inner in value.items()]
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    return type(value).__name__


def options_of(command: click.Command) -> list[str]:
    return [
        name
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for name in (*parameter.opts, *parameter.secondary_opts)
    ]


def test_there_are_the_commands_that_the_page_begins_with() -> None:
    listed = re.findall(r"^(mead [a-z-]+(?: [a-z]+)?)", PAGE.partition("```\n")[2].partition("```")[0], re.M)

    assert sorted(listed) == sorted(COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_of_a_command_stands_under_its_heading(name: str) -> None:
    told = section(name)

    assert [option for option in options_of(COMMANDS[name]) if f"`{option}" not in told] == []


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_no_option_is_told_that_the_command_lacks(name: str) -> None:
    told = set(re.findall(r"`(--[a-z-]+)", section(name)))
    elsewhere = {"--stream"} if name == "mead explain" else set()  # named as the one that it lacks

    assert told - elsewhere <= set(options_of(COMMANDS[name]))


def test_the_options_before_the_command_are_told() -> None:
    assert [option for option in options_of(app) if f"`{option}" not in PAGE] == []


@pytest.mark.usefixtures("echoing")
def test_every_command_of_a_chat_is_told() -> None:
    typed = re.findall(r"^(/\w+)", run("chat", text="/help\n").stderr, re.M)

    assert typed
    assert [name for name in typed if f"`{name}" not in section("mead chat")] == []


def test_the_answer_has_the_form_of_the_example(servers: Servers, configure: Callable[..., None]) -> None:
    configure(local_slot(servers.start(said("Hello.")), model="m"), CLAUDE)

    answer, status = run_json("ask", "Say hello.")
    answer["decision"]["model"] = None  # the embedded model of the example has no name to choose it by

    assert status == 0
    assert shape(answer) == shape(example("mead ask --json"))


def test_the_failure_is_that_of_the_example(configure: Callable[..., None]) -> None:
    configure(ECHO, CLAUDE)
    expected = example("mead ask --json", 1)

    told, status = run_json("ask", "Say hello.", "--route", "cloud")
    told["session_id"] = expected["session_id"]

    assert status == 1
    assert told == expected


def test_the_explanation_is_that_of_the_example(configure: Callable[..., None]) -> None:
    configure(ECHO, CLAUDE)

    told, status = run_json("explain", CARD, "--route", "cloud")

    assert status == 0
    assert told == example("mead explain --json")


def test_the_explanation_for_a_person_is_that_of_the_example(configure: Callable[..., None]) -> None:
    configure('[router.slots.local]\nprovider = "embedded"\n', CLAUDE)

    told = run("explain", CARD).stdout

    assert f'$ mead explain "{CARD}"\n{told}```' in section("mead explain")


def test_the_doctor_s_object_has_the_form_of_the_example(configure: Callable[..., None]) -> None:
    configure('[router.slots.local]\nprovider = "embedded"\n', CLAUDE)
    expected = example("mead doctor --json")

    told, status = run_json("doctor")

    assert status == 1
    assert shape(told) == shape(expected)
    assert [check["what"] for check in told["checks"]] == [check["what"] for check in expected["checks"]]
    assert told["checks"][2] == expected["checks"][2]


@pytest.mark.usefixtures("echoing")
def test_a_turn_is_made_of_its_parts_as_the_example_shows(home: Path) -> None:
    (home / "notes.md").write_text("# Notes\nThe heron is grey.\n")

    told = run("ask", "sum up", "--attach", "notes.md", text="The heron stands still.").stdout

    assert f"```\n{told}```" in section("mead ask")


@pytest.mark.usefixtures("echoing")
def test_the_example_of_a_failure_is_what_is_written() -> None:
    told = run("ask", "hello", "--route", "cloud")

    assert told.exit_code == 1
    assert f'$ mead ask "hello" --route cloud\n{told.stderr}```' in PAGE


def test_every_state_and_every_subject_of_the_doctor_is_told(
    servers: Servers, configure: Callable[..., None]
) -> None:
    configure(ECHO, cloud_slot(servers.start()), '[sessions]\nbusy = "queue"\n')
    told, _ = run_json("doctor")

    for check in told["checks"]:
        assert f"`{check['what']}`" in PAGE
        assert f"`{check['status']}`" in PAGE
