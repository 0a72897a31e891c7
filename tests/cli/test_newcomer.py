"""What a newcomer does wrong, and what is said: one sentence with what to do next, status 1 or 2, never a
traceback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from cli.commands import (
    ECHO,
    PATIENCE_S,
    Servers,
    command_line,
    local_slot,
    program,
    questions,
    run,
    run_json,
    said,
)
from mead import __version__
from mead.cli import _embedded, _found
from mead.cli._open import find_settings
from mead.providers.embedded import model as embedded_model
from mead.testing import Answer, FakeServer

MIB = 1024 * 1024
CLAUDE = '[router.slots.cloud]\nprovider = "anthropic"\nmodel = "claude"\n'
OLLAMA = '[router.slots.local]\nprovider = "ollama"\nmodel = "lama3"\nbase_url = "{url}"\n'
NOT_THERE = Answer(status=404, body=b'{"error": "model \\"lama3\\" not found, try pulling it first"}')


def one_sentence(done: subprocess.CompletedProcess[bytes]) -> str:
    """What a failed program wrote: nothing to standard output, one line to standard error."""
    text = done.stderr.decode()
    assert done.stdout == b""
    assert "Traceback" not in text
    assert text.startswith("mead: ")
    assert text.count("\n") == 1
    return text


@pytest.mark.parametrize(
    "config,arguments,status,sentence",
    [
        pytest.param(
            ECHO.replace("provider", "providre"),
            ["ask", "hi"],
            2,
            "mead.toml, line 2: router.slots.local.providre: there is no such key; did you mean 'provider'?",
            id="typo-in-a-key",
        ),
        pytest.param(
            "[router\n", ["ask", "hi"], 2, "mead.toml, line 1: this is not valid TOML", id="broken-file"
        ),
        pytest.param(
            ECHO.replace("echo", "olama"),
            ["ask", "hi"],
            2,
            "router.slots.local: there is no provider 'olama'; use one of anthropic, echo, embedded, ollama",
            id="unknown-provider",
        ),
        pytest.param(
            OLLAMA.format(url="http://127.0.0.1:1"),
            ["ask", "hi"],
            1,
            "transport: nothing accepts connections at 127.0.0.1:1. Start the server, or correct base_url",
            id="server-down",
        ),
        pytest.param(
            OLLAMA.format(url="http://8.8.8.8"),
            ["ask", "hi"],
            2,
            "8.8.8.8, which is neither this machine nor a private network",
            id="local-that-is-not",
        ),
        pytest.param(
            CLAUDE, ["ask", "hi"], 1, "missing_api_key: anthropic needs an API key", id="key-missing"
        ),
        pytest.param(
            ECHO,
            ["ask", "hi", "--route", "cloud"],
            1,
            "cloud_unavailable: no cloud model is configured: add a [router.slots.cloud] to mead.toml.",
            id="empty-slot",
        ),
        pytest.param(
            ECHO,
            ["ask", "hi", "--model", "gtp"],
            1,
            "invalid_options: the slot has no model 'gtp'; it lists none. Add it to the slot's models.",
            id="model-of-no-slot",
        ),
        pytest.param(ECHO, ["ask"], 2, 'nothing to ask: give a text (mead ask "…"), pipe one', id="no-text"),
        pytest.param(ECHO, ["ask", "", " "], 2, "nothing to ask: give a text", id="empty-text"),
        pytest.param(ECHO, ["explain", ""], 2, "nothing to ask: give a text", id="explain-nothing"),
        pytest.param(
            ECHO,
            ["ask", "hi", "--attach", "nothing.txt"],
            2,
            "nothing.txt cannot be read: No such file or directory",
            id="attachment-not-there",
        ),
        pytest.param(
            ECHO,
            ["ask", "hi", "--attach", "folder"],
            2,
            "folder cannot be read: Is a directory",
            id="attached-folder",
        ),
        pytest.param(
            ECHO,
            ["ask", "hi", "--attach", "binary.dat"],
            2,
            "binary.dat is neither text in UTF-8, nor a picture, nor a PDF",
            id="binary-attachment",
        ),
        pytest.param(
            ECHO,
            ["ask", "hi", "--attach", "zeros.txt"],
            2,
            "zeros.txt is neither text in UTF-8, nor a picture, nor a PDF",
            id="attachment-of-zeros",
        ),
        pytest.param(
            ECHO, ["ask", "hi", "--attach", "empty.png"], 2, "empty.png is empty", id="empty-attachment"
        ),
        pytest.param(
            ECHO,
            ["--config", "nowhere.toml", "ask", "hi"],
            2,
            "nowhere.toml: there is no such file",
            id="configuration-not-there",
        ),
        pytest.param(
            ECHO,
            ["--config", "folder", "ask", "hi"],
            2,
            "folder: this is a folder; name the mead.toml in it",
            id="configuration-is-a-folder",
        ),
        pytest.param(
            "[router\n", ["model", "install"], 2, "mead.toml, line 1: this is not", id="model-install"
        ),
    ],
)
def test_a_mistake_gives_one_sentence(
    config: str,
    arguments: list[str],
    status: int,
    sentence: str,
    configure: Callable[..., None],
    home: Path,
) -> None:
    configure(config)
    (home / "folder").mkdir()
    (home / "binary.dat").write_bytes(b"\xff\xfe\xfd")
    (home / "zeros.txt").write_bytes(b"text\0text")
    (home / "empty.png").touch()

    done = program(*arguments)

    assert done.returncode == status
    assert sentence in one_sentence(done)


@pytest.mark.parametrize(
    "arguments,sentence",
    [
        (["aks", "hi"], "No such command 'aks'."),
        (["ask", "hi", "--rotue", "local"], "No such option '--rotue'"),
        (["ask", "hi", "--route", "mars"], "'mars' is not one of 'auto', 'local', 'cloud'."),
        (["ask", "hi", "--timeout", "0"], "Invalid value for '--timeout': it must be a number over 0."),
        (["ask", "hi", "--timeout", "-1"], "Invalid value for '--timeout': it must be a number over 0."),
        (["ask", "hi", "--timeout", "nan"], "Invalid value for '--timeout': it must be a number over 0."),
        (["ask", "hi", "--timeout", "inf"], "Invalid value for '--timeout': it must be a number over 0."),
        (["ask", "hi", "--timeout", "soon"], "Invalid value for '--timeout': 'soon' is not a valid float."),
        (["ask", "hi", "--temperature", "nan"], "'--temperature': it must be a number from 0 on."),
        (["ask", "hi", "--temperature", "-1"], "'--temperature': it must be a number from 0 on."),
        (["ask", "hi", "--max-tokens", "0"], "'--max-tokens': 0 is not in the range"),
        (["ask", "hi", "--max-tokens", "9" * 30], "'--max-tokens': 9999"),
        (["chat", "hello"], "Got unexpected extra argument (hello)"),
        (["doctor", "--jsno"], "No such option '--jsno'"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
@pytest.mark.usefixtures("echoing")
def test_wrong_usage_is_told_with_where_the_help_is(arguments: list[str], sentence: str) -> None:
    result = run(*arguments)

    assert (result.exit_code, result.stdout) == (2, "")
    assert re.search(r"\nTry 'mead( \w+)* --help' for help\.\n", result.stderr)
    assert sentence in result.stderr


def test_a_model_that_ollama_lacks(servers: Servers, configure: Callable[..., None]) -> None:
    configure(OLLAMA.format(url=servers.start(NOT_THERE).url))

    done = program("ask", "hi")

    assert done.returncode == 1
    assert one_sentence(done) == (
        'mead: http_status: the server answered 404 (model "lama3" not found, try pulling it first). Correct '
        "model or base_url in mead.toml; `mead doctor` says which models there are.\n"
    )


def test_a_server_of_another_kind(servers: Servers, configure: Callable[..., None]) -> None:
    page = Answer(body=b"<html>Welcome</html>", headers={"content-type": "text/html"})
    configure(local_slot(servers.start(page)))

    result = run("ask", "hi")

    assert result.exit_code == 1
    assert result.stderr.startswith("mead: malformed_response: ")
    assert result.stderr.endswith("Check provider and base_url in mead.toml.\n")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.usefixtures("echoing")
def test_an_attachment_that_may_not_be_read(home: Path) -> None:
    (home / "mine.txt").write_text("secret")
    (home / "mine.txt").chmod(0)

    assert run("ask", "hi", "--attach", "mine.txt").stderr == (
        "mead: mine.txt cannot be read: Permission denied\n"
    )


# Large and odd input and output


@pytest.mark.usefixtures("echoing")
def test_a_prompt_of_3_mb_is_answered() -> None:
    done = program("ask", data=b"a" * 3 * MIB)

    assert (done.returncode, len(done.stdout), done.stderr) == (0, 3 * MIB + 1, b"")


@pytest.mark.usefixtures("echoing")
def test_a_prompt_over_the_limit_is_refused_with_the_limit() -> None:
    done = program("ask", data=b"a" * 9 * MIB)

    assert done.returncode == 1
    assert one_sentence(done) == (
        "mead: invalid_options: the turn is 9,437,184 bytes long and the limit is 8,388,608; shorten it, or "
        "raise max_input_bytes under [sessions].\n"
    )


@pytest.mark.usefixtures("echoing")
def test_a_file_over_the_limit_is_not_read(home: Path) -> None:
    with open(home / "long.txt", "wb") as file:
        file.truncate(33 * MIB)

    result = run("ask", "hi", "--attach", "long.txt")

    assert (result.exit_code, result.stderr) == (
        2,
        "mead: long.txt is longer than 33,554,432 bytes, the limit\n",
    )


@pytest.mark.usefixtures("echoing")
def test_a_picture_in_the_pipe_is_refused_with_the_option_for_it() -> None:
    done = program("ask", "what is it?", data=b"\x89PNG\r\n\x1a\n\0\0")

    assert done.returncode == 2
    assert one_sentence(done) == (
        "mead: what is piped in is not text; give a picture or a PDF with --attach FILE\n"
    )


def redirected(redirection: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Runs mead in a shell with its streams redirected."""
    shell = ["sh", "-c", f'exec "$@" {redirection}', "sh", *command_line(*arguments)]
    return subprocess.run(shell, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S)


@pytest.mark.parametrize(
    "redirection,output",
    [("<&-", b"hi\n"), (">&-", b""), ("2>&-", b"hi\n"), ("<&- 2>&-", b"hi\n"), ("<&- >&- 2>&-", b"")],
)
@pytest.mark.usefixtures("echoing")
def test_streams_that_are_closed_do_no_harm(redirection: str, output: bytes) -> None:
    done = redirected(redirection, "ask", "hi")

    assert (done.returncode, done.stdout, done.stderr) == (0, output, b"")


@pytest.mark.usefixtures("echoing")
def test_a_chat_without_input_says_so() -> None:
    done = redirected("<&-", "chat")

    assert done.returncode == 2
    assert one_sentence(done) == ('mead: standard input is closed; give one question with: mead ask "…"\n')


@pytest.mark.parametrize("streaming", ["--stream", "--no-stream"])
@pytest.mark.usefixtures("echoing")
def test_a_reader_that_leaves_early_ends_it_in_silence(home: Path, streaming: str) -> None:
    (home / "long.txt").write_bytes(b"line \n" * 200_000)

    with (
        open(home / "long.txt", "rb") as long,
        subprocess.Popen(
            command_line("ask", streaming), stdin=long, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"line \n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE_S) == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a full disk")
@pytest.mark.parametrize("arguments", [["ask", "hi"], ["ask", "hi", "--json"], ["doctor"], ["explain", "hi"]])
@pytest.mark.usefixtures("echoing")
def test_a_full_disk_is_told(arguments: list[str]) -> None:
    done = redirected(">/dev/full", *arguments)

    assert done.returncode == 1
    assert one_sentence(done) == "mead: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
@pytest.mark.usefixtures("echoing")
def test_a_terminal_of_another_alphabet_fails_nothing(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONUTF8", "0")
    monkeypatch.setenv("PYTHONIOENCODING", encoding)

    for arguments in (["doctor"], ["ask", "✓"], ["explain", "✓"]):
        assert program(*arguments).returncode == 0
    assert program("chat", data="✓ \udcff".encode(errors="surrogateescape")).returncode == 0


@pytest.mark.usefixtures("echoing")
def test_an_argument_that_is_no_text_fails_nothing() -> None:
    done = subprocess.run(
        [*command_line("ask"), b"caf\xe9"], stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S
    )

    assert (done.returncode, done.stdout.decode()) == (0, "caf\ufffd\n")


def test_a_provider_that_crashes_fails_the_turn_and_says_where(
    home: Path, configure: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "broken.py").write_text(
        "class Broken:\n    async def complete(self, messages, options):\n        raise KeyError('text')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(home))
    monkeypatch.setenv("MEAD_CONFIG", "mead.toml")
    configure('[router.slots.local]\nprovider = "broken:Broken"\n')

    done = program("ask", "hi")

    last = done.stderr.decode().splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith("mead: crashed: KeyError was raised. This is a mistake in mead or in a provider")
    assert b"broken.py" in done.stderr


# No configuration


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, servers: Servers) -> Callable[..., None]:
    """A machine without the embedded engine, on which these servers stand in for Ollama and llama.cpp."""
    monkeypatch.setattr(_found, "has_engine", lambda: False)

    def stand_in(*, ollama: FakeServer | None = None, llama_cpp: FakeServer | None = None) -> None:
        for name, server in (("OLLAMA_URL", ollama), ("LLAMA_CPP_URL", llama_cpp)):
            monkeypatch.setattr(_found, name, server.url if server else "http://127.0.0.1:1")

    return stand_in


def ollama_with(servers: Servers, *models: object) -> FakeServer:
    """An Ollama that has these models and answers with one line."""
    answer = {
        "message": {"role": "assistant", "content": "From Ollama."},
        "done": True,
        "done_reason": "stop",
        "prompt_eval_count": 1,
        "eval_count": 1,
    }
    return servers.start(
        routes={
            "/api/tags": Answer(body=msgspec.json.encode({"models": models})),
            "/api/show": Answer(body=b'{"capabilities": ["completion"]}'),
            "/api/chat": Answer(body=msgspec.json.encode(answer)),
        }
    )


@pytest.mark.parametrize("arguments", [["ask", "hi"], ["chat"], ["explain", "hi"]], ids=lambda a: a[0])
def test_no_configuration_and_no_model(arguments: list[str], bare: Callable[..., None]) -> None:
    bare()

    result = run(*arguments)

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "mead: no model is configured, and none was found on this machine. The quickest way to one is the "
        "embedded model: pip install 'mead-runtime[local]' and run this again. Or start Ollama, or write a "
        "mead.toml (docs/settings.md)\n"
    )


def test_with_the_engine_the_embedded_model_is_used_and_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_found, "has_engine", lambda: True)

    result = run("explain", "hi")

    assert result.stdout.splitlines()[0] == "route     local (classified) → embedded"
    assert result.stderr == "No model is configured: using the embedded one.\n"


def test_ollama_s_first_model_of_its_own_is_used_and_said_to_be(
    bare: Callable[..., None], servers: Servers
) -> None:
    ollama = ollama_with(
        servers,
        {"name": "gpt-oss:120b", "remote_host": "https://ollama.com"},
        {"name": "kimi", "remote_model": "kimi-k2"},
        {"name": "qwen3-coder:480b-cloud"},
        {"name": "glm-4.6:cloud"},
        {"name": "nomic-embed-text:latest"},
        {"name": "llama3.1:8b"},
        {"name": "qwen3:4b"},
    )
    bare(ollama=ollama, llama_cpp=servers.start(said("never")))

    result = run("ask", "hi")

    assert (result.exit_code, result.stdout) == (0, "From Ollama.\n")
    assert result.stderr == (
        "No model is configured: using llama3.1:8b, which Ollama on this machine offers.\n"
    )
    assert ollama.requests_to("/api/chat")[0].json()["model"] == "llama3.1:8b"


def test_r17_an_ollama_that_has_only_models_of_its_cloud_is_not_used(
    bare: Callable[..., None], servers: Servers
) -> None:
    ollama = ollama_with(servers, {"name": "gpt-oss", "remote_host": "https://ollama.com"})
    bare(ollama=ollama)

    assert run("ask", "hi").exit_code == 2
    assert ollama.requests_to("/api/chat") == []


def test_a_llama_cpp_server_is_used_where_there_is_no_ollama(
    bare: Callable[..., None], servers: Servers
) -> None:
    server = servers.start(
        said("From llama.cpp."), routes={"/models": Answer(body=b'{"data": [{"id": "qwen.gguf"}]}')}
    )
    bare(llama_cpp=server)

    result = run("ask", "hi")

    assert (result.exit_code, result.stdout) == (0, "From llama.cpp.\n")
    assert (
        result.stderr == "No model is configured: using qwen.gguf, which a server on this machine offers.\n"
    )


@pytest.mark.parametrize(
    "answer",
    [
        Answer(body=b"<html>My router</html>"),
        Answer(body=b'{"data": "none"}'),
        Answer(body=b'{"data": [], "models": null}'),
        Answer(body=b'{"data": [{"id": 3}]}'),
        Answer(body=b"[]"),
        Answer(status=500),
        Answer(end="cut"),
        Answer(end="hang"),
    ],
    ids=["page", "no-list", "empty", "no-name", "another-form", "error", "cut", "hang"],
)
def test_something_else_that_listens_there_is_sent_no_conversation(
    answer: Answer, bare: Callable[..., None], servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = servers.start(answer)
    bare(ollama=other, llama_cpp=other)
    monkeypatch.setattr(_found, "_ANSWER_TIMEOUT_S", 0.2)

    result = run("ask", "my secret")

    assert result.exit_code == 2
    assert {request.method for request in other.requests} == {"GET"}
    assert all(request.body == b"" for request in other.requests)


def test_a_configured_slot_is_never_looked_beside(
    bare: Callable[..., None], servers: Servers, configure: Callable[..., None]
) -> None:
    ollama = ollama_with(servers, {"name": "llama3.1"})
    bare(ollama=ollama)
    configure(ECHO)

    assert run("ask", "hi").stdout == "hi\n"
    assert ollama.requests == []


@pytest.mark.usefixtures("echoing")
def test_s03_the_terminal_is_patient_where_the_settings_say_nothing(configure: Callable[..., None]) -> None:
    patient = find_settings(None).sessions
    configure(ECHO, "[sessions]\nturn_timeout_s = 5\nidle_timeout_s = 2\n")
    told = find_settings(None).sessions

    assert (patient.turn_timeout_s, patient.idle_timeout_s) == (300, 60)
    assert (told.turn_timeout_s, told.idle_timeout_s) == (5, 2)


# The embedded model


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    async def install(folder: Path, on_progress: object = None) -> Path:
        raise embedded_model.ModelInstallError("the model could not be fetched: no network")

    monkeypatch.setattr(embedded_model, "install_model", install)
    monkeypatch.setattr(_embedded, "has_engine", lambda: True)


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("arguments", [["ask", "hi"], ["chat"]], ids=lambda a: a[0])
def test_a_model_that_cannot_be_fetched_is_told(arguments: list[str], configure: Callable[..., None]) -> None:
    configure('[router.slots.local]\nprovider = "embedded"\n')

    result = run(*arguments)

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "The embedded model is not installed yet; fetching it (98 MB, once).\n"
        "mead: the model could not be fetched: no network\n"
    )


@pytest.mark.usefixtures("no_network")
def test_a_turn_for_the_cloud_fetches_no_local_model(
    servers: Servers, configure: Callable[..., None]
) -> None:
    server = servers.start(said("From the cloud."))
    slot = local_slot(server).replace("slots.local", "slots.cloud")
    configure('[router.slots.local]\nprovider = "embedded"\n', slot)

    assert run("ask", "hi", "--route", "cloud").stdout == "From the cloud.\n"
    assert questions(server) == ["hi"]


def test_an_engine_that_is_not_installed_is_told(
    configure: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure('[router.slots.local]\nprovider = "embedded"\n')
    monkeypatch.setattr(_embedded, "has_engine", lambda: False)

    result = run("ask", "hi")

    assert result.exit_code == 2
    assert result.stderr == (
        "mead: the engine of the embedded model is not installed: pip install 'mead-runtime[local]'\n"
    )


@pytest.mark.usefixtures("no_network")
def test_model_install_that_fails_says_why() -> None:
    result = run("model", "install")

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "mead: the model could not be fetched: no network\n"


def test_model_install_gives_the_path(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def install(folder: Path, on_progress: object = None) -> Path:
        return folder / "model.gguf"

    monkeypatch.setattr(embedded_model, "install_model", install)

    result = run("model", "install")

    assert (result.exit_code, result.stdout) == (0, f"{home / 'data' / 'models' / 'model.gguf'}\n")
    assert result.stderr == "The embedded model is installed.\n"


def test_model_install_does_nothing_twice(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_model, "find_model", lambda folder: folder / "model.gguf")

    result = run("model", "install")

    assert (result.exit_code, result.stdout) == (0, f"{home / 'data' / 'models' / 'model.gguf'}\n")
    assert result.stderr == "The embedded model is installed already.\n"


# Help


@pytest.mark.parametrize("name", ["ask", "chat", "doctor", "explain", "model"])
def test_every_command_stands_in_the_help_with_what_it_does(name: str) -> None:
    overview, own = run("--help"), run(name, "--help")

    assert (overview.exit_code, own.exit_code) == (0, 0)
    [line] = [line for line in overview.stdout.splitlines() if line.startswith(f"  {name} ")]
    assert line.split(maxsplit=1)[1].rstrip(".") in " ".join(own.stdout.split())


def test_the_version_is_told() -> None:
    assert program("--version").stdout.decode() == f"mead, version {__version__}\n"


def test_help_loads_no_command() -> None:
    code = (
        "import sys; from mead.cli import app; app(['--help'], standalone_mode=False); "
        "print([name for name in sys.modules if name.startswith('mead.cli.')], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=PATIENCE_S)

    assert done.stderr.decode().strip() == "[]"


def test_json_of_a_command_that_cannot_begin_is_on_standard_error_only(
    configure: Callable[..., None],
) -> None:
    configure("[router\n")

    result = run("ask", "hi", "--json")

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("mead: mead.toml, line 1: ")


def test_json_is_asked_for_in_the_same_way_everywhere(echoing: None) -> None:
    for arguments in (["ask", "hi"], ["explain", "hi"], ["doctor"]):
        told, status = run_json(*arguments)
        assert (told["ok"], status) == (True, 0)
