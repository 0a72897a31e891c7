"""What can be set, as frozen values with their defaults. `docs/settings.md` describes each key."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import platformdirs
from msgspec import Struct, field

from mead.core.options import NO_OPTIONS, BusyPolicy, Options

BUILT_IN = ("ollama", "openai", "anthropic", "embedded", "echo")
"""The providers that come with mead, by name."""
SHARED_NETWORK = ipaddress.IPv4Network("100.64.0.0/10")
"""Addresses that carriers share among customers (RFC 6598); private only where somebody says so."""


class Secret:
    """A key. Its text comes out by `reveal()` only; what prints it shows that it is there, and no more.

    White space around it is trimmed: a key read from a file ends with a newline. An empty one is false.
    Raises `ValueError` for a text that no HTTP header can carry.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        text = text.strip()
        if not (text.isascii() and text.isprintable()):
            raise ValueError("must hold only printable ASCII characters, with no line end inside")
        self._text = text

    def reveal(self) -> str:
        """The key itself."""
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "Secret('…')" if self._text else "Secret('')"


class FreeTable(dict[str, Any]):
    """A table whose keys mead does not know. A value in it may be a secret, so only its keys are printed."""

    def __repr__(self) -> str:
        return "{" + ", ".join([f"{name!r}: …" for name in self]) + "}"


class SlotSettings(Struct, frozen=True, kw_only=True):
    """One slot: which provider, which model, where, and the options that its calls start from.

    `provider` is `ollama`, `openai`, `anthropic`, `embedded`, `echo`, the name of an entry point, or a dotted
    path (`package.module:Class`); the last two are made with `provider_options` as keywords. `models` may be
    named by a turn besides `model`. `base_url` is `None` for the provider's usual server. `allow_remote` and
    `local_networks` (parts of 100.64.0.0/10) say what a local slot may connect to. `concurrency` is how many
    calls run at the same time, `queue` how many calls of one owner may wait for that, `requests_per_minute`
    how many begin within any 60 seconds; `None` is no limit. They hold for the slot with its `fallbacks`,
    which are asked in their order where a provider's service fails.
    """

    provider: str
    model: str | None = None
    models: tuple[str, ...] = ()
    base_url: str | None = None
    api_key: Secret | None = None
    allow_remote: bool = False
    local_networks: tuple[str, ...] = ()
    connect_timeout_s: float = 10.0
    concurrency: int | None = None
    queue: int | None = None
    requests_per_minute: int | None = None
    options: Options = NO_OPTIONS
    provider_options: Mapping[str, object] = field(default_factory=FreeTable)
    fallbacks: tuple[SlotSettings, ...] = ()


class SlotsSettings(Struct, frozen=True, kw_only=True):
    """The two slots; `None` is an empty one."""

    local: SlotSettings | None = None
    cloud: SlotSettings | None = None


EscalationTrigger: TypeAlias = Literal["schema", "refusal", "cut_off", "disagreement"]


class EscalationSettings(Struct, frozen=True, kw_only=True):
    """Whether the cloud model is asked too where the local answer of an `auto` turn turns out to be no good.
    `to` is the slot; `None` is never. `when` says what counts: the answer breaks the response format that was
    asked for, refuses, was cut off by a limit, or differs from a second sample."""

    to: Literal["cloud"] | None = None
    when: tuple[EscalationTrigger, ...] = ("schema", "refusal", "cut_off")


class RouterSettings(Struct, frozen=True, kw_only=True):
    """How turns are handled. `handler` is `None` where nobody chose: the router if a slot is filled, else
    the echo. `options` are under those of every slot."""

    handler: Literal["router", "echo"] | None = None
    slots: SlotsSettings = SlotsSettings()
    options: Options = NO_OPTIONS
    escalation: EscalationSettings = EscalationSettings()


class SessionSettings(Struct, frozen=True, kw_only=True):
    """What sessions start from. Times are in seconds; `None` leaves the choice to the door (library 30 s,
    terminal 300 s for a turn; no idle limit in the library, 60 s at the terminal). `system` is the system
    prompt of a session that brings none."""

    turn_timeout_s: float | None = None
    queue_timeout_s: float = 300.0
    idle_timeout_s: float | None = None
    busy: BusyPolicy = "queue"
    system: str | None = None
    max_input_bytes: int = 8 * 1024 * 1024


class ClassifierSettings(Struct, frozen=True, kw_only=True):
    """What the classifier goes by.

    `cloud_share` (0 to 1) is the share of `auto` turns, the hardest, that may go to the cloud model; with
    `adapt` it is counted of the person's own. `profile` says how readily a text is taken for private. A text
    is private, too, if it holds one of `private_words` or `private_paths`, fits one of `private_patterns`
    (regular expressions), or begins with one of `private_prefixes`.
    """

    cloud_share: float = 0.3
    adapt: bool = True
    profile: Literal["balanced", "strict"] = "balanced"
    private_words: tuple[str, ...] = ()
    private_paths: tuple[str, ...] = ()
    private_patterns: tuple[str, ...] = ()
    private_prefixes: tuple[str, ...] = ()


class ServeSettings(Struct, frozen=True, kw_only=True):
    """The HTTP server. `host` and `port` are where it listens, `tls_certificate` and `tls_key` the files that
    it speaks TLS with. `allowed_hosts` are names that it is called by besides those of loopback,
    `allowed_origins` pages that may call it from a browser. `requests_per_minute` is how many requests a
    token may make within any 60 seconds; `None` is no limit. A stop waits `shutdown_timeout_s` for turns that
    run. Times are in seconds."""

    host: str = "127.0.0.1"
    port: int = 4141
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    max_body_bytes: int = 16 * 1024 * 1024
    body_timeout_s: float = 30.0
    requests_per_minute: int | None = None
    shutdown_timeout_s: float = 30.0
    tls_certificate: Path | None = None
    tls_key: Path | None = None


class EmbeddedSettings(Struct, frozen=True, kw_only=True):
    """How the embedded model runs. `None` leaves the choice to mead; `parallel` is how many turns it answers
    at the same time."""

    model_path: Path | None = None
    threads: int | None = None
    context_tokens: int = 4096
    parallel: int = 2


class ArgumentRule(Struct, frozen=True, kw_only=True):
    """A condition on a tool's arguments: `argument` of the tools that `tool` names must match one of `allow`
    (if there are any) and none of `deny`. All are patterns with `*` and `?`; a value that is no text is
    compared as JSON. An argument that is absent matches the empty text."""

    tool: str
    argument: str
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


class McpServerSettings(Struct, frozen=True, kw_only=True):
    """An MCP server: a `command` that is started here, or a `url`.

    `client_id` and `client_secret` name a client that is registered with the authorization server already;
    an id that is an https address names a document that describes it. `trusted` believes the server's own
    hints. `reach` says whether it keeps to this machine. `read` and
    `effect` name tools of that class, whatever the server says; `allow`, `deny` and `rules` limit what is
    shown and called. `mode` is the protocol era to begin with. `owner`, where set, is the only one whose
    turns see the server. `source` is the foreign file that it was read from; `problem` says why it cannot be
    started. `found_in` is the working folder, where the settings were found there and nobody named them: a
    command is then started only once a person has approved it. `written` is the command with its arguments,
    or the url, as they stand in the file, where variables were put in.
    """

    name: str
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=FreeTable)
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=FreeTable)
    auth: Literal["oauth"] | None = None
    client_id: str | None = None
    client_secret: Secret | None = None
    trusted: bool = False
    reach: Literal["machine", "network"] = "network"
    read: tuple[str, ...] = ()
    effect: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    rules: tuple[ArgumentRule, ...] = ()
    mode: Literal["auto", "legacy"] = "auto"
    owner: str | None = None
    enabled: bool = True
    parallel: int = 8
    connect_timeout_s: float = 30.0
    call_timeout_s: float = 60.0
    source: Path | None = None
    problem: str | None = None
    found_in: Path | None = None
    written: tuple[str, ...] = ()

    def __repr__(self) -> str:
        shown = {name: getattr(self, name) for name in self.__struct_fields__ if name != "written"}
        shown["args"] = tuple(["…" for _ in self.args])  # variables were put in: any may be a secret
        if self.url is not None:
            shown["url"] = _host_alone(self.url)
        return f"McpServerSettings({', '.join([f'{name}={value!r}' for name, value in shown.items()])})"


def _host_alone(url: str) -> str:
    """An address without what may hold a secret: user, path and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/…"


class McpSettings(Struct, frozen=True, kw_only=True):
    """The MCP servers and what holds for all of them.

    `config` is an existing configuration file of another program to read servers from. `local_only_calls`
    governs calls of `local_only` turns to servers that may reach the network. `taint` asks for an approval
    of effect calls once a turn has seen a result of a server that is not trusted; `approve` asks for one of
    every effect call, and where it is `None` that is done if there is somebody to ask. `result_chars` is the
    budget of a result, `max_tools` that of a turn.
    """

    servers: tuple[McpServerSettings, ...] = ()
    config: Path | None = None
    local_only_calls: Literal["allow", "ask", "deny"] = "allow"
    taint: Literal["off", "approve"] = "off"
    approve: Literal["off", "effect"] | None = None
    approval_timeout_s: float = 300.0
    parallel: int = 32
    result_chars: int = 50_000
    max_tools: int = 128
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


class PriceSettings(Struct, frozen=True, kw_only=True):
    """What a model costs, in USD per million tokens.

    `cached` and `cache_write` are for the input tokens that were read from or written to the provider's
    cache; `None` is the price of `input`. `as_of` is the day on which somebody looked it up.
    """

    model: str
    input: Decimal
    output: Decimal
    cached: Decimal | None = None
    cache_write: Decimal | None = None
    as_of: datetime.date | None = None


class BudgetSettings(Struct, frozen=True, kw_only=True):
    """How much may be spent on the cloud route, in `tokens` or in `usd`; exactly one of them is set.

    `per` is the time that it holds for: a day or a month in UTC, or the life of a session. `tag` limits it to
    turns with that tag. `owner` limits it to one owner; `"*"` gives each owner the whole of it; `None` counts
    all owners together.
    """

    name: str
    per: Literal["day", "month", "session"]
    tokens: int | None = None
    usd: Decimal | None = None
    tag: str | None = None
    owner: str | None = None


class StorageSettings(Struct, frozen=True, kw_only=True):
    """Where sessions, journal and ledger are kept: `memory://`, or `sqlite:////folder/mead.db`. `None` leaves
    the choice to the door: a file in the data folder at the terminal, nothing in the library. Sessions that
    were not used for `retention_days` are deleted when the store is opened; `None` keeps them."""

    url: str | None = None
    retention_days: int | None = None


class TelemetrySettings(Struct, frozen=True, kw_only=True):
    """What operators are shown. `otel` sends spans and metrics by OTLP, `log_format` is that of the server's
    log lines, `owners` says whether spans and metrics name the owner of a turn."""

    otel: bool = False
    log_format: Literal["text", "json"] = "text"
    owners: bool = False


class Settings(Struct, frozen=True, kw_only=True):
    """Everything that can be set. `source` is the file it came from, `warnings` are sentences about it.
    `discovered` says that the file lay in the working folder and nobody named it."""

    router: RouterSettings = RouterSettings()
    sessions: SessionSettings = SessionSettings()
    classifier: ClassifierSettings = ClassifierSettings()
    embedded: EmbeddedSettings = EmbeddedSettings()
    mcp: McpSettings = McpSettings()
    prices: tuple[PriceSettings, ...] = ()
    budgets: tuple[BudgetSettings, ...] = ()
    storage: StorageSettings = StorageSettings()
    serve: ServeSettings = ServeSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    data_folder: Path = field(default_factory=lambda: platformdirs.user_data_path("mead"))
    source: Path | None = None
    discovered: bool = False
    warnings: tuple[str, ...] = ()
