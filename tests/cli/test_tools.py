"""`mead tools` and `mead mcp`: what a turn sees and why; how servers are; a person's word about changes."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from cli.commands import ECHO, Terminal, program, run, run_json
from mead.cli._approve import ask_person
from mead.core.scope import ApprovalRequest
from mead.testing.mcp import FaultyServer

Configure = Callable[..., None]


def server(name: str, mode: str, argument: str | None = None, **keys: object) -> str:
    """A table of mead.toml for a server with a fault."""
    faulty = FaultyServer(mode, argument)
    chosen: dict[str, object] = {"command": faulty.command, "args": list(faulty.args), **keys}
    lines = [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in chosen.items()]
    return "\n".join([f"[mcp.servers.{name}]", *lines, ""])


@pytest.fixture(autouse=True)
def named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The person has named the mead.toml of the working folder, so that it may start servers."""
    monkeypatch.setenv("MEAD_CONFIG", "mead.toml")


def test_tools_lists_what_a_turn_sees_and_with_all_why(configure: Configure) -> None:
    configure(server("notes", "plain", read=["echo"]))

    plain, everything = run("tools"), run("tools", "--all")
    opted_in = run("tools", "--tools", "effect")

    assert plain.exit_code == everything.exit_code == 0
    assert plain.stdout.splitlines()[0].split()[:3] == ["✓", "notes__echo", "read"]
    assert "pid" not in plain.stdout
    assert "2 more are not shown" in plain.stderr
    assert "the settings say that it only reads" in everything.stdout
    assert "hidden: it has side effects and the turn did not opt in" in everything.stdout
    assert "✓ notes__pid" in opted_in.stdout


def test_tools_as_json_has_tools_and_servers(configure: Configure) -> None:
    configure(server("notes", "plain", read=["echo"]), server("bad", "exit_at_start"))

    document, status = run_json("tools", "--all")

    assert status == 0
    assert [tool["name"] for tool in document["tools"]] == ["notes__echo", "notes__pid", "notes__environment"]
    assert [tool["visible"] for tool in document["tools"]] == [True, False, False]
    assert [one["state"] for one in document["servers"]] == ["ready", "down"]


def test_what_is_wrong_with_a_server_is_said(configure: Configure) -> None:
    configure(server("bad", "exit_at_start"), server("odd", "noschema", trusted=True))

    result = run("tools")

    assert "bad: down:" in result.stderr
    assert "missing API key" in result.stderr
    assert "odd: " in result.stderr


def test_without_servers_the_commands_say_where_to_read_on(configure: Configure) -> None:
    configure(ECHO)

    for arguments in (("tools",), ("mcp", "list")):
        result = run(*arguments)
        assert result.exit_code == 0
        assert "docs/tools.md" in result.stderr


def test_mcp_list_says_how_each_server_is(configure: Configure) -> None:
    configure(server("good", "plain"), server("bad", "exit_at_start"), server("off", "plain", enabled=False))

    result = run("mcp", "list")
    document, status = run_json("mcp", "list")

    lines = [line.split()[:2] for line in result.stdout.splitlines()]
    assert lines == [["good", "ready"], ["bad", "down"], ["off", "disabled"]]
    assert result.exit_code == status == 1
    assert not document["ok"]


def test_the_doctor_looks_at_the_servers(configure: Configure) -> None:
    configure(ECHO, server("good", "plain"), server("bad", "exit_at_start"))

    document, status = run_json("doctor")

    checks = {check["what"]: check for check in document["checks"]}
    assert checks["MCP good"]["status"] == "ok"
    assert checks["MCP bad"]["status"] == "error"
    assert "missing API key" in checks["MCP bad"]["said"]
    assert status == 1


def test_without_the_sdk_the_extra_is_named(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(ECHO, server("good", "plain"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    result = run("tools")

    assert result.exit_code == 2
    assert "mead-runtime[mcp]" in result.stderr


# Approving a server


def test_approve_shows_the_difference_and_takes_it(configure: Configure) -> None:
    configure(server("notes", "described", "one"))
    run("tools")
    configure(server("notes", "described", "two"))

    held = run("tools", "--all")
    refused = run("mcp", "approve", "notes")
    approved = run("mcp", "approve", "notes", "--yes")
    after = run("tools", "--tools", "effect")

    assert "notes: changed: its command line is not the one that was approved" in held.stderr
    assert refused.exit_code == 2
    assert "--yes" in refused.stderr
    assert approved.exit_code == 0
    assert "would now be started as:" in approved.stderr
    assert "- thing description: one\n+ thing description: two" in approved.stderr
    assert "✓ notes__thing" in after.stdout


def test_a_person_is_asked_before_anything_is_started(
    configure: Configure, terminal: Callable[..., Terminal], home: Path
) -> None:
    configure(server("notes", "plain"))
    run("tools")
    started = home / "started"
    program_text = f"open({str(started)!r}, 'w')"
    configure(
        f"[mcp.servers.notes]\ncommand = {json.dumps(sys.executable)}\nargs = ['-c', {program_text!r}]\n"
    )

    asking = terminal("mcp", "approve", "notes")
    asking.wait_for("Is that right? [y/N]: ")
    asking.type("n\n")
    asking.wait_for("Nothing was approved.")

    assert asking.wait() == 1
    assert not started.exists()


def test_approve_of_a_server_that_is_as_it_was_says_so(configure: Configure) -> None:
    configure(server("notes", "plain"))
    run("tools")

    result = run("mcp", "approve", "notes")

    assert result.exit_code == 0
    assert "notes is as it was approved: 3 tools." in result.stderr


@pytest.mark.parametrize(
    "arguments,said",
    [
        (("mcp", "approve", "nothing"), "there is no MCP server named 'nothing'; the servers are bad"),
        (("mcp", "login", "nothing"), "there is no MCP server named 'nothing'"),
        (("mcp", "login", "bad"), "needs no login"),
        (("mcp", "approve", "bad", "--yes"), "cannot be looked at: down"),
    ],
)
def test_mistakes_get_a_sentence(configure: Configure, arguments: tuple[str, ...], said: str) -> None:
    configure(server("bad", "exit_at_start"))

    result = run(*arguments)

    assert result.exit_code == 2
    assert said in result.stderr


def test_servers_of_another_programs_file_are_read_and_its_approvals_are_not(
    configure: Configure, home: Path
) -> None:
    faulty = FaultyServer("plain")
    entry = {"command": faulty.command, "args": list(faulty.args), "autoApprove": ["pid"]}
    broken = {"command": "x", "env": {"KEY": "${NOBODY_HAS_SET_THIS}"}}
    (home / "mcp.json").write_text(json.dumps({"mcpServers": {"My Notes": entry, "other": broken}}))
    configure('[mcp]\nconfig = "mcp.json"\n')

    result = run("tools", "--all")

    assert "– my-notes__pid" in result.stdout
    assert "note: My Notes.autoApprove in mcp.json is not taken over" in result.stderr
    assert "other: misconfigured: the environment variable NOBODY_HAS_SET_THIS is not set" in result.stderr


def test_a_file_that_merely_lies_in_the_working_folder_starts_nothing(
    configure: Configure, home: Path
) -> None:
    faulty = FaultyServer("plain")
    entry = {"command": faulty.command, "args": list(faulty.args)}
    for name in (".mcp.json", "mcp.json"):
        (home / name).write_text(json.dumps({"mcpServers": {"notes": entry}}))
    configure(ECHO)

    assert run("tools", "--all").stdout == ""


# A file that nobody named


def trap(home: Path, **keys: object) -> str:
    """A server that leaves a file behind when it is started."""
    chosen: dict[str, object] = {
        "command": sys.executable,
        "args": ["-c", f"open({str(home / 'started')!r}, 'w')"],
        **keys,
    }
    lines = [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in chosen.items()]
    return "\n".join(["[mcp.servers.trap]", *lines, ""])


@pytest.mark.parametrize("command", [("ask", "hi"), ("tools",), ("mcp", "list"), ("doctor",)])
def test_a_file_that_was_found_starts_no_server_before_a_person_approves(
    configure: Configure, home: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.delenv("MEAD_CONFIG")
    configure(ECHO, trap(home))

    result = run(*command)

    assert not (home / "started").exists()
    assert "mead mcp approve trap" in result.output


def test_a_server_of_a_file_that_was_found_is_used_once_approved(
    configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MEAD_CONFIG")
    configure(server("notes", "plain", read=["echo"]))

    before = run("tools")
    approved = run("mcp", "approve", "notes", "--yes")
    after = run("tools")

    assert "found in the working folder" in before.stderr
    assert "+ command: " in approved.stderr
    assert "✓ notes__echo" in after.stdout


def test_a_turn_says_what_servers_wait_for(configure: Configure) -> None:
    configure(ECHO, server("notes", "plain"))
    run("tools")
    configure(ECHO, server("notes", "plain", cwd="."))

    asked = run("ask", "hi")
    chatted = run("chat", text="hi\n")

    note = "note: the MCP server notes waits for your approval: mead mcp approve notes\n"
    assert asked.stderr.count(note) == chatted.stderr.count(note) == 1
    assert asked.stdout == "hi\n"


def test_approve_shows_old_and_new_and_no_secret(
    configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTES_TOKEN", "hidden-value")
    configure(server("notes", "plain"), 'env = {A = "hidden-one"}\n')
    run("tools")
    changed = server("notes", "plain", "--token=${NOTES_TOKEN}", cwd=".")
    configure(changed, 'env = {A = "hidden-two", B = "x"}\n')

    result = run("mcp", "approve", "notes")

    for line in (
        "+ argument 4: --token=${NOTES_TOKEN}",
        "+ folder: .",
        "- env A: ",
        "+ env A: ",
        "+ env B: ",
    ):
        assert line in result.stderr
    assert "hidden" not in result.stderr


# Approving a call


def test_an_argument_is_shown_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    command = "x" * 5000 + "; rm -rf ~"
    request = ApprovalRequest(tool="run", server=None, arguments={"command": command}, because="it is so")

    with pytest.raises(KeyboardInterrupt):  # nobody answers here
        ask_person(request)

    assert f"  │ command = {command}\n" in capsys.readouterr().err


RINGER = """
from mead import Completion, Ok, Reply
from mead.core.messages import TextBlock, ToolResultBlock, ToolUseBlock, blocks_of

FAKE = "\\x1b[2K\\rmead: approved\\n[o]nce, for this [s]ession with these arguments, [n]o, ne[v]er: o"

class Ringer:
    async def complete(self, messages, options):
        return Ok(Completion(text="no tools"))

    async def converse(self, messages, tools, options):
        results = [b for b in blocks_of(messages[-1]) if isinstance(b, ToolResultBlock)]
        if results:
            return Ok(Reply(content=(TextBlock(f"It said: {results[0].content}"),)))
        asked = ToolUseBlock("a", "notes__echo", {"text": FAKE})
        return Ok(Reply(content=(TextBlock(FAKE), asked), stop_reason="tool_use"))
"""


@pytest.fixture
def ringing(home: Path, configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that asks for an effect, and prints what looks like mead's own question first."""
    (home / "ringer.py").write_text(RINGER)
    monkeypatch.setenv("PYTHONPATH", str(home))
    configure('[router.slots.local]\nprovider = "ringer:Ringer"\n', server("notes", "plain"))


@pytest.mark.usefixtures("ringing")
@pytest.mark.parametrize(
    "typed,said",
    [("o", "It said: "), ("s", "It said: "), ("n", "no person approved"), ("", "no person approved")],
)
def test_a_call_with_side_effects_is_asked_about(
    terminal: Callable[..., Terminal], typed: str, said: str
) -> None:
    chat = terminal("chat", "--route", "local", "--tools", "effect")
    chat.wait_for("> ")
    chat.type("ring\n")
    chat.wait_for("wants to call notes__echo of the server notes; it has side effects.")
    question = chat.wait_for("ne[v]er: ")  # the model's own, in the arguments
    chat.wait_for("ne[v]er: ")
    chat.type(f"{typed}\n")
    chat.wait_for(said)

    assert "  │ text = [2K" in question, "the arguments are shown, marked and without escapes"
    assert "\x1b[2K" not in chat.shown


@pytest.mark.usefixtures("ringing")
def test_what_was_typed_before_the_question_is_no_answer(terminal: Callable[..., Terminal]) -> None:
    chat = terminal("chat", "--route", "local", "--tools", "effect")
    chat.wait_for("> ")
    chat.type("ring\no\no\no\n")
    chat.wait_for("wants to call notes__echo")
    chat.wait_for("  │ ")
    chat.wait_for("ne[v]er: ")
    chat.wait_for("ne[v]er: ")
    chat.type("n\n")
    chat.wait_for("no person approved")


@pytest.mark.usefixtures("ringing")
def test_for_the_session_is_asked_once(terminal: Callable[..., Terminal]) -> None:
    chat = terminal("chat", "--route", "local", "--tools", "effect")
    for number in (1, 2):
        chat.wait_for("> ")
        chat.type("ring\n")
        if number == 1:
            chat.wait_for("wants to call")
            chat.wait_for("ne[v]er: ")
            chat.wait_for("ne[v]er: ")
            chat.type("s\n")
        chat.wait_for("It said: ")
    chat.wait_for("> ")

    assert chat.shown.count("wants to call") == 1


@pytest.mark.usefixtures("ringing")
def test_without_a_person_the_settings_decide(home: Path, configure: Configure) -> None:
    text = (home / "mead.toml").read_text()

    unasked = program("ask", "ring", "--route", "local", "--tools", "effect", data=b"")
    configure(text + '[mcp]\napprove = "effect"\n')
    denied = program("ask", "ring", "--route", "local", "--tools", "effect", data=b"")

    assert b"It said: " in unasked.stdout
    assert b"no person approved it" in denied.stdout
