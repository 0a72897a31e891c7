"""`mead serve`: the HTTP server."""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from mead.cli._open import command_settings
from mead.cli._store import store_url
from mead.cli._terminal import fail_usage, say
from mead.core.private_files import write_private
from mead.sessions.runtime import Runtime
from mead.settings import ConfigError, ServeSettings, Settings
from mead.storage import StoreError, open_store
from mead.telemetry.setup import install_from_settings

if TYPE_CHECKING:
    from mead.serve.tokens import Tokens

FIRST_TOKEN_FILE = "serve-token"
NO_SERVER = "the server needs its extra: pip install 'mead-runtime[serve]'"


@click.command("serve")
@click.option("--host", help="Where to listen; 127.0.0.1 without it.")
@click.option("--port", type=click.IntRange(0, 65_535), help="The port; 4141 without it.")
@click.option("--no-auth", is_flag=True, help="Ask for no token. On loopback only.")
@click.pass_obj
def command(config: Path | None, /, host: str | None, port: int | None, no_auth: bool) -> None:
    """Serve sessions and models over HTTP, for OpenAI and Anthropic clients too."""
    if any(importlib.util.find_spec(name) is None for name in ("starlette", "uvicorn")):
        fail_usage(NO_SERVER)
    settings = command_settings(config)
    serve = settings.serve
    serve = msgspec.structs.replace(serve, host=host or serve.host, port=serve.port if port is None else port)
    settings = msgspec.structs.replace(settings, serve=serve)
    if no_auth and not is_loopback(serve.host):
        fail_usage("--no-auth is for loopback only: whoever reaches another address could use your models")
    _run(settings, no_auth=no_auth)


def _run(settings: Settings, *, no_auth: bool) -> None:
    import uvicorn

    from mead.serve.app import make_app
    from mead.serve.stopping import StoppingServer
    from mead.serve.tokens import Tokens

    try:
        finish_telemetry = install_from_settings(settings)
        runtime = Runtime(settings, store=open_store(store_url(settings)))
        tokens = None if no_auth else Tokens(settings.data_folder)
        if tokens is not None:
            _first_token(tokens, settings.data_folder)
    except (ConfigError, StoreError, OSError, ValueError) as error:
        fail_usage(str(error))
    serve = settings.serve
    try:
        listening = _listen(serve.host, serve.port)
    except OSError as error:
        fail_usage(f"cannot listen on {serve.host}:{serve.port}: {error.strerror or error}")
    address = _address(serve, listening.getsockname()[1])
    say(f"mead serves at {address} (OpenAI clients: {address}/v1)")
    if no_auth:
        say("no token is asked for: every program on this machine can use it")
    elif not is_loopback(serve.host) and serve.tls_certificate is None:
        say("warning: tokens travel in the clear; set tls_certificate, or put a TLS proxy in front")
    app = make_app(runtime, tokens)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        http="httptools",
        server_header=False,
        date_header=False,
        ssl_certfile=serve.tls_certificate,
        ssl_keyfile=serve.tls_key,
    )
    # The server raises the signal again that has stopped it, which would end the process before its time.
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with listening, contextlib.suppress(KeyboardInterrupt):
            stopping = StoppingServer(config, app.state.server, timeout_s=serve.shutdown_timeout_s)
            stopping.run(sockets=[listening])
    finally:
        finish_telemetry()


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises `OSError` where it cannot."""
    family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
    # With the protocol named: asyncio sends small answers at once (TCP_NODELAY) only on such a socket.
    listening = socket.socket(family, kind, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(1024)
    except BaseException:
        listening.close()
        raise
    return listening


def _first_token(tokens: Tokens, folder: Path) -> None:
    """Makes a token that may do everything, where there is none yet, and says it once."""
    if tokens.records():
        return
    from mead.serve.tokens import SCOPES

    _, text = tokens.create("first", scopes=SCOPES)
    file = folder / FIRST_TOKEN_FILE
    write_private(file, text.encode())
    say(f"a first token was made, which may do everything: {text}")
    say(f"it is kept in {file}; `mead token create` makes others that may do less")


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _address(serve: ServeSettings, port: int) -> str:
    scheme = "http" if serve.tls_certificate is None else "https"
    host = f"[{serve.host}]" if ":" in serve.host else serve.host
    return f"{scheme}://{host}:{port}"
