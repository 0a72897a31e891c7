"""What a login has left, in a file that only its owner can read, and one program at a time that renews it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)

from mead.core.private_files import read_private, write_private
from mead.settings import McpServerSettings
from mead.settings.files import make_private_folder

LOCK_TIMEOUT_S = 90.0
"""How long a refresh waits for that of another program."""

_FILE_BYTES: Final = 2**20
_LOCK_POLL_S: Final = 0.05
_Model = TypeVar("_Model", OAuthToken, OAuthClientInformationFull, OAuthMetadata, ProtectedResourceMetadata)


class TokenFile:
    """The tokens of a server, the client that they were granted to, and where they are refreshed.

    It is the SDK's `TokenStorage`: a file of mode 0600, or memory without a folder. A file that is a link,
    that cannot be read, or that was kept for another address of the server, holds nothing.
    """

    def __init__(self, server: McpServerSettings, folder: Path | None) -> None:
        self._path = folder / "auth" / f"{server.name}.json" if folder is not None else None
        self._server = server
        self._kept: dict[str, Any] = {}
        self._context: OAuthContext | None = None
        self.read()

    def __repr__(self) -> str:
        return "TokenFile(…)"

    def read(self) -> None:
        """Reads the file: another program may have logged in, or refreshed."""
        if self._path is None:
            return
        self._kept = {}
        with contextlib.suppress(OSError, msgspec.DecodeError):
            kept = msgspec.json.decode(read_private(self._path, limit=_FILE_BYTES))
            if isinstance(kept, dict) and kept.get("url") == self._server.url:
                self._kept = kept

    @property
    def tokens(self) -> OAuthToken | None:
        """The tokens; `None` before the first login."""
        return _validated(OAuthToken, self._kept.get("tokens"))

    @property
    def expired(self) -> bool:
        """Whether the time of the tokens is over, as far as it is known."""
        expires_at = self._kept.get("expires_at")
        return isinstance(expires_at, int | float) and time.time() >= expires_at

    @property
    def challenge(self) -> str | None:
        """The `WWW-Authenticate` header of a call that the last login does not cover, if there was one."""
        challenge = self._kept.get("challenge")
        return challenge if isinstance(challenge, str) else None

    async def get_tokens(self) -> OAuthToken | None:
        """The same as `tokens`."""
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Keeps tokens that were granted or refreshed. Raises `OSError` where only the memory keeps them."""
        self._kept |= {
            "url": self._server.url,
            "tokens": _dumped(tokens),
            "expires_at": time.time() + tokens.expires_in if tokens.expires_in is not None else None,
            "challenge": None,
        }
        if self._context is not None:
            self._kept["server"] = _dumped(self._context.oauth_metadata)
            self._kept["resource"] = _dumped(self._context.protected_resource_metadata)
        self._write()

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """The client that the settings name, or else the one that is registered."""
        return self._configured_client() or _validated(OAuthClientInformationFull, self._kept.get("client"))

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Remembers a registration. It is written with the tokens that are granted to it."""
        self._kept["client"] = _dumped(client_info)

    def note_challenge(self, challenge: str) -> None:
        """Keeps what the next login has to ask for. Raises `OSError`."""
        self.read()
        self._kept["challenge"] = challenge[:4096]
        self._write()

    def begin_anew(self) -> None:
        """Forgets everything, for a login. The file keeps it until there are new tokens."""
        self._kept = {}

    def attach(self, context: OAuthContext) -> None:
        """Tells the SDK what it found out before, and keeps what it finds out from now on.

        The SDK does not keep where tokens are refreshed, and guesses after a restart.
        """
        self._context = context
        context.oauth_metadata = _validated(OAuthMetadata, self._kept.get("server"))
        context.protected_resource_metadata = _validated(
            ProtectedResourceMetadata, self._kept.get("resource")
        )

    @asynccontextmanager
    async def lock(self) -> AsyncIterator[None]:
        """Held by the one program that refreshes. Raises `TimeoutError`."""
        handle = None
        if self._path is not None:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            with contextlib.suppress(OSError):  # a folder that cannot be written to needs no lock
                handle = os.open(self._path.with_suffix(".lock"), flags, 0o600)
        try:
            async with asyncio.timeout(LOCK_TIMEOUT_S):
                while handle is not None and not _locked(handle):  # noqa: ASYNC110 - nothing tells when it is free
                    await asyncio.sleep(_LOCK_POLL_S)
            yield
        finally:
            if handle is not None:
                os.close(handle)

    def _configured_client(self) -> OAuthClientInformationFull | None:
        server = self._server
        if server.client_id is None or is_document(server.client_id):
            return None
        secret = server.client_secret.reveal() if server.client_secret is not None else None
        return OAuthClientInformationFull(
            client_id=server.client_id,
            client_secret=secret,
            token_endpoint_auth_method=self._way_of_secrets() if secret else "none",
        )

    def _way_of_secrets(self) -> str:
        """How the authorization server takes a secret: as RFC 6749 says, unless it knows only another way."""
        server = self._context.oauth_metadata if self._context is not None else None
        offered = (server.token_endpoint_auth_methods_supported if server is not None else None) or ()
        basic, post = "client_secret_basic", "client_secret_post"
        return post if post in offered and basic not in offered else basic

    def _write(self) -> None:
        if self._path is None:
            return
        make_private_folder(self._path.parent)
        write_private(self._path, msgspec.json.encode(self._kept))


def is_document(client_id: str | None) -> bool:
    """Whether a client's id is the address of a document that describes it, so that it is not registered."""
    return client_id is not None and client_id.startswith("https://")


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _validated(kind: type[_Model], value: object) -> _Model | None:
    """The value as the SDK's type, `None` for one that it is not."""
    try:
        return kind.model_validate(value) if value is not None else None
    except ValueError:
        return None


def _dumped(
    value: OAuthToken | OAuthClientInformationFull | OAuthMetadata | ProtectedResourceMetadata | None,
) -> dict[str, Any] | None:
    return value.model_dump(mode="json", exclude_none=True) if value is not None else None
