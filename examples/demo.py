"""A session with the embedded model: three streamed turns, one turn that is refused, a decision explained,
and the tokens counted. `scripts/demo` installs what it needs and runs it."""

from __future__ import annotations

import sys

import mead
from mead.settings import parse

CONFIG = """
[router.slots.local]
provider = "embedded"
"""
SYSTEM = "You are a friendly assistant. Answer in one or two short sentences."
TURNS = (
    "Rewrite this sentence politely: give me the report now.",
    "Give me a one-line description of a lighthouse.",
    "Write a short greeting for a new colleague.",
)
QUESTIONS = ("My card number is 4012 8888 8888 1881, is it valid?", "What is a lighthouse?")


def main() -> None:
    settings = parse(CONFIG)
    with mead.SyncRuntime(lambda: mead.Runtime(settings)) as runtime:
        session_id = runtime.start_session(system=SYSTEM, turn_timeout_s=300)
        heading("Three turns, answered by a real model on this machine")
        usages = [stream(runtime, session_id, text) for text in TURNS]
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


def heading(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}")


def stream(runtime: mead.SyncRuntime, session_id: str, text: str) -> mead.UsageTotal:
    """Streams one turn to standard output, and gives what it cost."""
    print(f"\n> {text}")
    for event in runtime.stream_turn(session_id, text, options=mead.Options(max_tokens=60)):
        match event:
            case mead.Delta(text=fragment):
                print(fragment, end="", flush=True)
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


if __name__ == "__main__":
    main()
