"""A session with the embedded model: streamed turns, one that is refused, a decision explained, the tokens
counted, and the tools of a real MCP server used. `scripts/demo` installs what it needs and runs it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import mead
from mead.settings import parse

CONFIG = """
[router.slots.local]
provider = "embedded"

[mcp.servers.git]
command = '''{python}'''
args = ["-m", "mcp_server_git"]
trusted = true
reach = "machine"
"""
SYSTEM = "You are a friendly assistant. Answer in one or two short sentences."
TURNS = (
    "Rewrite this sentence politely: give me the report now.",
    "Give me a one-line description of a lighthouse.",
    "Write a short greeting for a new colleague.",
)
QUESTIONS = ("My card number is 4012 8888 8888 1881, is it valid?", "What is a lighthouse?")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="mead-demo-") as folder:
        settings = parse(CONFIG.format(python=sys.executable))
        with mead.SyncRuntime(lambda: mead.Runtime(settings, approver=approve)) as runtime:
            talk(runtime)
            use_tools(runtime, make_repository(Path(folder) / "garden"))


def talk(runtime: mead.SyncRuntime) -> None:
    """Three turns, a refusal, two decisions."""
    session_id = runtime.start_session(system=SYSTEM, turn_timeout_s=300)
    heading("Three turns, answered by a real model on this machine")
    usages = [stream(runtime, session_id, text, tools="none") for text in TURNS]
    heading("A turn that asks for the cloud model, whose slot is empty")
    show_refusal(runtime, session_id)
    heading("Where a turn would go, and why (nothing is sent)")
    for text in QUESTIONS:
        show_decision(runtime, text)
    heading("The session")
    turns = runtime.history(session_id).unwrap()
    print(f"{len(turns)} turns are kept; the refused one left nothing behind.")
    print(
        f"{sum(usage.input_tokens for usage in usages)} tokens in, "
        f"{sum(usage.output_tokens for usage in usages)} out."
    )


def use_tools(runtime: mead.SyncRuntime, repository: Path) -> None:
    """A tool that reads, and one with a side effect: refused, then opted in to and approved."""
    heading(f"A tool that reads: the model asks a real MCP server about {repository}")
    session_id = runtime.start_session(turn_timeout_s=300)
    stream(runtime, session_id, f"Show the log of {repository}.")

    heading("A tool with a side effect: a turn that did not opt in may not call it")
    arguments: dict[str, object] = {"repo_path": str(repository), "branch_name": "roses"}
    refused = runtime.submit(
        lambda r: r.hub.call_tool("git__git_create_branch", arguments, mead.TurnOptions())
    ).result()
    print(refused.content)
    print(f"Branches: {branches(repository)}")

    heading("A turn with tools='effect', and an approval")
    stream(runtime, session_id, f"Create a branch called roses in {repository}.", tools="effect")
    print(f"Branches: {branches(repository)}")
    sends = [sent.record for sent in runtime.egress(session_id) if sent.record.destination == "mcp"]
    print(f"Sent to the server: {', '.join(record.path for record in sends)}.")


async def approve(request: mead.ApprovalRequest) -> mead.Approval:
    """Stands in for a person, who would be shown just this."""
    print(f"  approve {request.tool} {dict(request.arguments)}? yes, once")
    return mead.Approval(decision="once")


def heading(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}")


def stream(
    runtime: mead.SyncRuntime, session_id: str, text: str, tools: mead.ToolChoice = None
) -> mead.UsageTotal:
    """Streams one turn to standard output, and gives what it cost."""
    print(f"\n> {text}")
    for event in runtime.stream_turn(session_id, text, tools=tools, options=mead.Options(max_tokens=60)):
        match event:
            case mead.Delta(text=fragment):
                print(fragment, end="", flush=True)
            case mead.ToolCalled(name=name):
                print(f"  [calls {name}]")
            case mead.Finished(result=result):
                answer = result.unwrap()
                usage = answer.usage
                print(f"\n  [{answer.route}, {usage.input_tokens} tokens in, {usage.output_tokens} out]")
                return usage
    raise AssertionError("a streamed turn ends with Finished")


def show_refusal(runtime: mead.SyncRuntime, session_id: str) -> None:
    """A forced turn for a slot that is empty fails, and nothing leaves."""
    before = runtime.egress(session_id)
    result = runtime.submit_turn(session_id, "Hello, cloud!", route="cloud")
    assert isinstance(result, mead.Err)
    print(f"The turn failed with {result.reason}")
    after = runtime.egress(session_id)
    print(f"Requests that it sent: {len(after) - len(before)}.")
    hosts = sorted({sent.record.host for sent in after})
    print(f"All {len(after)} requests of this session went to {', '.join(hosts)}.")


def show_decision(runtime: mead.SyncRuntime, text: str) -> None:
    """What would be decided of a turn."""
    decision = runtime.explain(text).unwrap()
    assert isinstance(decision, mead.Decision)
    print(f"> {text}")
    print(f"  {decision.route}, {decision.label}: {' '.join(cause.text for cause in decision.causes)}")


def make_repository(folder: Path) -> Path:
    """A throw-away repository with one commit."""
    author = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
    for arguments in (["init", "--quiet", str(folder)], ["-C", str(folder), *author, *COMMIT]):
        subprocess.run(["git", *arguments], check=True)
    return folder


COMMIT = ("commit", "--quiet", "--allow-empty", "--message", "Plant the first tulips")


def branches(repository: Path) -> str:
    found = subprocess.run(
        ["git", "-C", str(repository), "branch", "--format=%(refname:short)"],
        check=True,
        capture_output=True,
        text=True,
    )
    return ", ".join(found.stdout.split())


if __name__ == "__main__":
    main()
