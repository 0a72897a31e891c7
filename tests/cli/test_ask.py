"""`mead ask`: the answer on standard output, all else on standard error."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from cli.commands import (
    PATIENCE_S,
    Servers,
    Terminal,
    cloud_slot,
    command_line,
    local_slot,
    program,
    questions,
    run,
    run_json,
    said,
    streamed,
    streamed_until,
)

PIXEL = b"\x89PNG\r\n\x1a\n\0"


@pytest.mark.usefixtures("echoing")
def test_the_answer_alone_goes_to_standard_output() -> None:
    done = program("ask", "hello", "there")

    assert (done.returncode, done.stdout, done.stderr) == (0, b"hello there\n", b"")


@pytest.mark.usefixtures("echoing")
def test_piped_text_stands_below_the_question() -> None:
    done = program("ask", "sum this up", data=b"first line\nsecond line\n")

    assert done.stdout == b"sum this up\n\nfirst line\nsecond line\n"


@pytest.mark.usefixtures("echoing")
def test_piped_text_alone_is_a_question() -> None:
    assert run("ask", text="hello\n").stdout == "hello\n"


@pytest.mark.usefixtures("echoing")
def test_bytes_that_are_no_text_are_replaced_and_a_byte_order_mark_goes() -> None:
    assert run("ask", text=b"\xef\xbb\xbfcaf\xe9").stdout == "caf\ufffd\n"


@pytest.mark.usefixtures("echoing")
def test_an_attached_text_stands_under_its_name(home: Path) -> None:
    (home / "a.txt").write_text("one\n")
    (home / "b.md").write_text("two\n")

    result = run("ask", "compare", "--attach", "a.txt", "--attach", "b.md", text="three")

    assert result.stdout == "compare\n\na.txt:\n\none\n\nb.md:\n\ntwo\n\nthree\n"


def test_an_attached_picture_goes_to_the_model_as_one(
    home: Path, servers: Servers, configure: Callable[..., None]
) -> None:
    server = servers.start(said("A dot."))
    configure(local_slot(server))
    (home / "dot.png").write_bytes(PIXEL)

    result = run("ask", "what is it?", "--attach", "dot.png")

    assert result.stdout == "A dot.\n"
    parts = server.requests[0].json()["messages"][0]["content"]
    assert [part["type"] for part in parts] == ["image_url", "text"]


def test_the_options_reach_the_model(servers: Servers, configure: Callable[..., None]) -> None:
    server = servers.start(said("ok"))
    configure(local_slot(server, models=["large"], system="from the file", temperature=1))
    given = ["--system", "Be brief.", "--model", "large", "--max-tokens", "5", "--temperature", "0"]

    run("ask", "hi", *given)

    sent = server.requests[0].json()
    assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (sent["model"], sent["temperature"]) == ("large", 0)
    assert 5 in (sent.get("max_tokens"), sent.get("max_completion_tokens"))


def test_r03_a_turn_for_an_empty_slot_sends_nothing_anywhere(
    servers: Servers, configure: Callable[..., None]
) -> None:
    server = servers.start(said("never"))
    configure(local_slot(server))

    result = run("ask", "hi", "--route", "cloud")

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "mead: cloud_unavailable: no cloud model is configured: add a [router.slots.cloud] to mead.toml.\n"
    )
    assert server.requests == []


def test_r16_private_content_goes_to_the_cloud_only_when_it_is_allowed(
    servers: Servers, configure: Callable[..., None]
) -> None:
    server = servers.start(said("ok"))
    configure(cloud_slot(server))
    question = ["ask", "my card is 4111 1111 1111 1111", "--route", "cloud"]

    refused = run(*question)
    requests_before = list(server.requests)
    allowed = run(*question, "--allow-private")

    assert refused.exit_code == 1
    assert "private_content" in refused.stderr
    assert "--allow-private" in refused.stderr
    assert requests_before == []
    assert (allowed.exit_code, len(server.requests)) == (0, 1)


# --json


def test_json_is_one_object_with_all_there_is_to_know(
    servers: Servers, configure: Callable[..., None]
) -> None:
    configure(local_slot(servers.start(said("Hello."))))

    answer, status = run_json("ask", "hi")

    assert status == 0
    assert len(answer.pop("session_id")) > 8
    assert answer.pop("decision") == {
        "route": "local",
        "source": "classified",
        "provider": "openai",
        "model": "small",
        "causes": [{"code": "only_local", "text": "No cloud model is configured."}],
        "label": "shareable",
        "private": False,
        "findings": [],
        "score": None,
        "threshold": None,
        "contributions": [],
        "version": None,
        "may_escalate": False,
        "withheld": 0,
        "tools": [],
        "emulates_tools": False,
        "not_known": [],
    }
    assert answer == {
        "ok": True,
        "text": "Hello.",
        "route": "local",
        "stop_reason": "end_turn",
        "label": "shareable",
        "usage": {
            "input_tokens": 7,
            "output_tokens": 2,
            "cached_tokens": 0,
            "cache_write_tokens": 0,
            "reasoning_tokens": 0,
            "provider_calls": 1,
            "unknown": False,
        },
        "tool_calls": 0,
        "left_out": 0,
        "warnings": [],
    }


@pytest.mark.usefixtures("echoing")
def test_json_of_a_failed_turn_holds_the_reason_and_the_status_is_1() -> None:
    answer, status = run_json("ask", "hi", "--route", "cloud")

    assert status == 1
    assert len(answer.pop("session_id")) > 8
    assert answer == {
        "ok": False,
        "reason": {
            "tag": "cloud_unavailable",
            "detail": "no cloud model is configured: add a [router.slots.cloud] to mead.toml",
        },
    }


@pytest.mark.usefixtures("echoing")
def test_json_escapes_what_a_terminal_would_act_on() -> None:
    result = run("ask", "a\x9b31m\x7f\u202eb", "--json")

    assert "\\u009b31m\\u007f\\u202eb" in result.stdout
    assert msgspec.json.decode(result.stdout)["text"] == "a\x9b31m\x7f\u202eb"


def test_json_with_stream_is_still_one_object(servers: Servers, configure: Callable[..., None]) -> None:
    configure(local_slot(servers.start(said("Hello."))))

    answer, _ = run_json("ask", "hi", "--stream")

    assert answer["text"] == "Hello."


@pytest.mark.usefixtures("echoing")
def test_without_a_route_json_says_so(configure: Callable[..., None]) -> None:
    configure('[router]\nhandler = "echo"\n')

    answer, status = run_json("ask", "hi")

    assert (status, answer["text"], answer["route"], answer["decision"]) == (0, "hi", None, None)


# Streams, and turns that end early


def test_a_stream_is_written_as_it_arrives_and_ctrl_c_cancels_it(
    servers: Servers, configure: Callable[..., None]
) -> None:
    server = servers.start(streamed_until("Once upon", end="hang"))
    configure(local_slot(server))

    with subprocess.Popen(
        command_line("ask", "--stream", "tell me"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        first = process.stdout.read(len("Once upon"))  # the server hangs, and this comes all the same
        process.send_signal(signal.SIGINT)
        rest, complaint = process.communicate(timeout=PATIENCE_S)

    assert first == b"Once upon"
    assert rest == b"\n"
    assert complaint == b"mead: cancelled: nothing of the turn was kept.\n"
    assert process.returncode == 1
    servers.wait_for(server.client_left)


def test_ctrl_c_with_json_gives_the_reason(servers: Servers, configure: Callable[..., None]) -> None:
    server = servers.start(streamed_until("", end="hang"))
    configure(local_slot(server))

    with subprocess.Popen(
        command_line("ask", "--json", "tell me"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as process:
        servers.wait_for(server.answering)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 1
    assert msgspec.json.decode(output)["reason"] == {"tag": "cancelled"}


def test_a_stream_that_breaks_off_is_a_failure_below_what_came(
    servers: Servers, configure: Callable[..., None]
) -> None:
    configure(local_slot(servers.start(streamed_until("Once upon", end="cut"))))

    result = run("ask", "--stream", "tell me")

    assert (result.exit_code, result.stdout) == (1, "Once upon\n")
    assert result.stderr.startswith("mead: transport: ")
    assert "ask again" in result.stderr


def test_s03_the_turn_ends_at_its_timeout(servers: Servers, configure: Callable[..., None]) -> None:
    configure(local_slot(servers.start(streamed_until("", end="hang"))))

    result = run("ask", "tell me", "--timeout", "0.2")

    assert result.exit_code == 1
    assert result.stderr == (
        "mead: timeout: the turn did not end in time. Give it more time with --timeout.\n"
    )


def test_an_answer_that_the_limit_cut_off_is_said_to_be_also_in_a_pipe(
    servers: Servers, configure: Callable[..., None]
) -> None:
    configure(local_slot(servers.start(said("Once", finish_reason="length"))))

    result = run("ask", "tell me")

    assert (result.exit_code, result.stdout) == (0, "Once\n")
    assert result.stderr == "local · small · 7 tokens in, 2 out · cut off by the token limit\n"


def test_an_empty_answer_is_said_to_be_empty(servers: Servers, configure: Callable[..., None]) -> None:
    configure(local_slot(servers.start(said(""))))

    assert "the answer is empty" in run("ask", "tell me").stderr


# At a terminal


def test_at_a_terminal_the_answer_streams_made_safe_and_the_facts_stand_below(
    servers: Servers, configure: Callable[..., None], terminal: Callable[..., Terminal]
) -> None:
    configure(local_slot(servers.start(streamed("Hel", "lo\x1b[2J", " \u202ethere"))))

    shown = terminal("ask", "hi")

    assert shown.wait() == 0
    lines = shown.shown.splitlines()
    assert lines[0] == "Hello[2J there"
    assert "local · small · 7 tokens in, 2 out · " in lines[1]


def test_a_file_gets_the_answer_as_it_is(
    home: Path, servers: Servers, configure: Callable[..., None]
) -> None:
    configure(local_slot(servers.start(said("a\x1b[2Jb"))))

    with open(home / "answer.txt", "wb") as file:
        done = program("ask", "hi", stdout=file)

    assert (done.returncode, done.stderr) == (0, b"")
    assert (home / "answer.txt").read_bytes() == b"a\x1b[2Jb\n"


def test_a_question_asked_twice_is_two_turns(servers: Servers, configure: Callable[..., None]) -> None:
    server = servers.start(said("ok"))
    configure(local_slot(server))

    run("ask", "one")
    run("ask", "two")

    assert questions(server) == ["one", "two"]
    assert len(server.requests[1].json()["messages"]) == 1
