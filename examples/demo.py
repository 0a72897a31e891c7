"""A session with the embedded model: three streamed turns, one turn that is refused, a decision explained,
and the tokens counted. Run it with `scripts/demo`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import mead
from mead.cli._embedded import ensure_model
from mead.cli._open import command_settings
from mead.cli._terminal import describe, facts_of

SYSTEM = "You are a friendly assistant. Answer in one or two short sentences."
TURNS = (
    "Rewrite this sentence politely: give me the report now.",
    "Give me a one-line description of a lighthouse.",
    "Write a short greeting for a new colleague.",
)


@contextmanager
def heading(text: str) -> Iterator[None]:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}")
    yield


def main() -> None:
    settings = command_settings(None)
    ensure_model(settings)
    totals = [0, 0]
    with mead.SyncRuntime(lambda: mead.Runtime(settings)) as runtime:
        session = runtime.start_session(system=SYSTEM)
        with heading("Three turns, answered by a real model on this machine"):
            for text in TURNS:
                print(f"\n> {text}")
                answer = stream(runtime, session, text)
                print(f"\n  [{facts_of(answer)}]")
                totals[0] += answer.usage.input_tokens
                totals[1] += answer.usage.output_tokens

        with heading("A turn that asks for the cloud model, whose slot is empty"):
            before = runtime.egress()
            result = runtime.submit_turn(session, "Hello, cloud!", route="cloud")
            assert isinstance(result, mead.Err)
            after = runtime.egress()
            print(describe(result.reason))
            print(f"Requests that left for it: {len(after) - len(before)}.")
            hosts = sorted({sent.record.host.rpartition(":")[0] for sent in after})
            print(f"All requests of this session ({len(after)}) went to: {', '.join(hosts)}.")

        with heading("Where a turn would go, and why (nothing is sent)"):
            for text in ("My card number is 4012 8888 8888 1881, is it valid?", "What is a lighthouse?"):
                decision = runtime.explain(text).unwrap()
                assert isinstance(decision, mead.Decision)
                reasons = " ".join(cause.text for cause in decision.causes)
                print(f"> {text}\n  {decision.route}, {decision.label}: {reasons}")

        turns = runtime.history(session).unwrap()
        with heading("The session"):
            print(
                f"{len(turns)} turns kept (the refused one left nothing behind), {totals[0]} tokens in, ",
                end="",
            )
            print(f"{totals[1]} out.")


def stream(runtime: mead.SyncRuntime, session: str, text: str) -> mead.Answer:
    """Streams one turn to standard output, and gives its answer."""
    for event in runtime.stream_turn(session, text, route="local", options=mead.Options(max_tokens=60)):
        match event:
            case mead.Delta(text=fragment):
                print(fragment, end="", flush=True)
            case mead.Finished(result=result):
                return result.unwrap()
    raise AssertionError("a streamed turn ends with Finished")


if __name__ == "__main__":
    main()
