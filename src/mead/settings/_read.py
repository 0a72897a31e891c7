"""Turns a parsed TOML document into settings: every key must be known, every value of its kind."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mead.core.options import Options
from mead.settings import _kinds as kinds
from mead.settings._kinds import Kind
from mead.settings._lines import KeyPath
from mead.settings._reader import ANY_NAME, Reader
from mead.settings.errors import ConfigError
from mead.settings.foreign import SERVER_NAME, read_foreign
from mead.settings.values import (
    BUILT_IN,
    ArgumentRule,
    BudgetSettings,
    ClassifierSettings,
    EmbeddedSettings,
    EscalationSettings,
    McpServerSettings,
    McpSettings,
    PriceSettings,
    RouterSettings,
    Secret,
    ServeSettings,
    SessionSettings,
    SlotSettings,
    SlotsSettings,
    StorageSettings,
    TelemetrySettings,
)

_NEEDS_MODEL = ("ollama", "openai", "anthropic")
# The variable that a vendor's own tools read, and the vendor's host: a key must not go to another server.
_VENDOR_KEYS = {
    "anthropic": ("ANTHROPIC_API_KEY", "api.anthropic.com"),
    "openai": ("OPENAI_API_KEY", "api.openai.com"),
}

_SECONDS = kinds.number(0, above=True)
_OPTIONS: dict[str, Kind] = {
    "system": kinds.text,
    "max_tokens": kinds.count(1),
    "temperature": kinds.number(0),
    "top_p": kinds.number(0, 1),
    "top_k": kinds.count(0),
    "seed": kinds.count(0),
    "stop": kinds.list_of(kinds.stop_text),
    "thinking": kinds.choice(True, False, "low", "medium", "high"),
    "extra": kinds.free_table,
    "idle_timeout_s": _SECONDS,
}
_SLOT: dict[str, Kind] = {
    "provider": kinds.name,
    "model": kinds.name,
    "models": kinds.list_of(kinds.name),
    "base_url": kinds.base_url,
    "api_key": kinds.secret,
    "allow_remote": kinds.flag,
    "local_networks": kinds.list_of(kinds.shared_network),
    "connect_timeout_s": _SECONDS,
    "concurrency": kinds.count(1),
    "queue": kinds.count(0),
    "requests_per_minute": kinds.count(1),
}
_SESSIONS: dict[str, Kind] = {
    "turn_timeout_s": _SECONDS,
    "queue_timeout_s": _SECONDS,
    "idle_timeout_s": _SECONDS,
    "busy": kinds.choice("queue", "reject", "interrupt"),
    "system": kinds.text,
    "max_input_bytes": kinds.count(1),
}
_CLASSIFIER: dict[str, Kind] = {
    "cloud_share": kinds.number(0, 1),
    "adapt": kinds.flag,
    "profile": kinds.choice("balanced", "strict"),
    "private_words": kinds.list_of(kinds.word),
    "private_paths": kinds.list_of(kinds.word),
    "private_patterns": kinds.list_of(kinds.regex),
    "private_prefixes": kinds.list_of(kinds.word),
}
_ESCALATION: dict[str, Kind] = {
    "to": kinds.choice("cloud"),
    "when": kinds.list_of(kinds.choice("schema", "refusal", "cut_off", "disagreement")),
}
_SERVE: dict[str, Kind] = {
    "host": kinds.word,
    "port": kinds.count(0, 65_535),
    "allowed_hosts": kinds.list_of(kinds.word),
    "allowed_origins": kinds.list_of(kinds.word),
    "max_body_bytes": kinds.count(1),
    "body_timeout_s": _SECONDS,
    "requests_per_minute": kinds.count(1),
    "shutdown_timeout_s": kinds.number(0),
    "tls_certificate": kinds.file_path,
    "tls_key": kinds.file_path,
}
_EMBEDDED: dict[str, Kind] = {
    "model_path": kinds.file_path,
    "threads": kinds.count(1),
    "context_tokens": kinds.count(256),
    "parallel": kinds.count(1),
}
_PATTERNS = kinds.list_of(kinds.word)
_RULE: dict[str, Kind] = {
    "tool": kinds.word,
    "argument": kinds.word,
    "allow": kinds.list_of(kinds.text),
    "deny": kinds.list_of(kinds.text),
}
_SERVER: dict[str, Kind] = {
    "command": kinds.word,
    "args": kinds.list_of(kinds.text),
    "env": kinds.text_table,
    "cwd": kinds.word,
    "url": kinds.http_url,
    "headers": kinds.text_table,
    "auth": kinds.choice("oauth"),
    "client_id": kinds.word,
    "client_secret": kinds.secret,
    "trusted": kinds.flag,
    "reach": kinds.choice("machine", "network"),
    "read": _PATTERNS,
    "effect": _PATTERNS,
    "allow": _PATTERNS,
    "deny": _PATTERNS,
    "rules": kinds.list_of(kinds.table_of(_RULE, needed=("tool", "argument"))),
    "mode": kinds.choice("auto", "legacy"),
    "owner": kinds.word,
    "enabled": kinds.flag,
    "parallel": kinds.count(1),
    "connect_timeout_s": _SECONDS,
    "call_timeout_s": _SECONDS,
}
_MCP: dict[str, Kind] = {
    "config": kinds.file_path,
    "local_only_calls": kinds.choice("allow", "ask", "deny"),
    "taint": kinds.choice("off", "approve"),
    "approve": kinds.choice("off", "effect"),
    "approval_timeout_s": _SECONDS,
    "parallel": kinds.count(1),
    "result_chars": kinds.count(200),
    "max_tools": kinds.count(1),
    "allow": _PATTERNS,
    "deny": _PATTERNS,
}
_PRICE: dict[str, Kind] = {
    "input": kinds.usd,
    "output": kinds.usd,
    "cached": kinds.usd,
    "cache_write": kinds.usd,
    "as_of": kinds.day,
}
_BUDGET: dict[str, Kind] = {
    "per": kinds.choice("day", "month", "session"),
    "tokens": kinds.count(0),
    "usd": kinds.usd,
    "tag": kinds.word,
    "owner": kinds.word,
}
_BUDGET_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_STORAGE: dict[str, Kind] = {"url": kinds.store_url, "retention_days": kinds.count(1)}
_TELEMETRY: dict[str, Kind] = {
    "otel": kinds.flag,
    "log_format": kinds.choice("text", "json"),
    "owners": kinds.flag,
}
_LIMITS = ("concurrency", "queue", "requests_per_minute")
_FALLBACK_KEYS = (*[name for name in _SLOT if name not in _LIMITS], *_OPTIONS, "options")
_SLOT_KEYS = (*_SLOT, *_OPTIONS, "options", "fallbacks")

KEYS: dict[KeyPath, tuple[str, ...]] = {
    (): (
        "router",
        "sessions",
        "classifier",
        "embedded",
        "mcp",
        "prices",
        "budgets",
        "storage",
        "serve",
        "telemetry",
    ),
    ("sessions",): tuple(_SESSIONS),
    ("classifier",): tuple(_CLASSIFIER),
    ("embedded",): tuple(_EMBEDDED),
    ("serve",): tuple(_SERVE),
    ("telemetry",): tuple(_TELEMETRY),
    ("router",): ("handler", "slots", "options", "escalation"),
    ("router", "escalation"): tuple(_ESCALATION),
    ("router", "options"): tuple(_OPTIONS),
    ("router", "slots"): ("local", "cloud"),
    ("router", "slots", "local"): _SLOT_KEYS,
    ("router", "slots", "cloud"): _SLOT_KEYS,
    ("router", "slots", "local", "fallbacks"): (ANY_NAME,),
    ("router", "slots", "local", "fallbacks", ANY_NAME): _FALLBACK_KEYS,
    ("router", "slots", "cloud", "fallbacks"): (ANY_NAME,),
    ("router", "slots", "cloud", "fallbacks", ANY_NAME): _FALLBACK_KEYS,
    ("storage",): tuple(_STORAGE),
    ("mcp",): (*_MCP, "servers"),
    ("mcp", "servers"): (ANY_NAME,),
    ("mcp", "servers", ANY_NAME): tuple(_SERVER),
    ("prices",): (ANY_NAME,),
    ("prices", ANY_NAME): tuple(_PRICE),
    ("budgets",): (ANY_NAME,),
    ("budgets", ANY_NAME): tuple(_BUDGET),
}
"""The keys of every table, by its path. A lost key is told to go to the first table that has it."""


def read_sessions(reader: Reader) -> SessionSettings:
    """The table [sessions]."""
    return SessionSettings(**reader.take(("sessions",), _SESSIONS))


def read_classifier(reader: Reader) -> ClassifierSettings:
    """The table [classifier]."""
    return ClassifierSettings(**reader.take(("classifier",), _CLASSIFIER))


def read_embedded(reader: Reader) -> EmbeddedSettings:
    """The table [embedded]."""
    return EmbeddedSettings(**reader.take(("embedded",), _EMBEDDED))


def read_serve(reader: Reader) -> ServeSettings:
    """The table [serve]."""
    serve = ServeSettings(**reader.take(("serve",), _SERVE))
    if (serve.tls_certificate is None) != (serve.tls_key is None):
        reader.fail(("serve",), "TLS needs both files: tls_certificate and tls_key")
    return serve


def read_storage(reader: Reader) -> StorageSettings:
    """The table [storage]."""
    return StorageSettings(**reader.take(("storage",), _STORAGE))


def read_telemetry(reader: Reader) -> TelemetrySettings:
    """The table [telemetry]."""
    return TelemetrySettings(**reader.take(("telemetry",), _TELEMETRY))


def read_mcp(reader: Reader) -> McpSettings:
    """The table [mcp] with its servers, and those of the file that it names."""
    servers = [_read_server(reader, name) for name in reader.table(("mcp", "servers"))]
    chosen = reader.take(("mcp",), _MCP)
    if (foreign := chosen.get("config")) is not None:
        known = {server.name for server in servers}
        try:
            found = read_foreign(foreign, environ=reader.environ)
        except ValueError as error:
            problem = str(error)
        else:
            problem = ""
            servers += [server for server in found if server.name not in known]
        if problem:
            reader.fail(("mcp", "config"), problem)
    return McpSettings(**chosen, servers=tuple(servers))


def _read_server(reader: Reader, name: str) -> McpServerSettings:
    path = ("mcp", "servers", name)
    if not SERVER_NAME.fullmatch(name):
        reader.fail(path, "a server's name is 1 to 24 of a-z, 0-9 and -, and begins with a letter")
    server = reader.take(path, _SERVER)
    if ("command" in server) == ("url" in server):
        reader.fail(path, "a server needs either a command, to be started here, or a url")
    if "command" in server and ("headers" in server or "auth" in server):
        reader.fail(path, "headers and auth are for a server with a url; give a command its secrets in env")
    server["rules"] = tuple([ArgumentRule(**rule) for rule in server.get("rules", ())])
    written = _start_line(reader.written(path))
    server["written"] = written if written != _start_line(reader.table(path)) else ()
    return McpServerSettings(name=name, **server)


def _start_line(server: Mapping[str, Any]) -> tuple[str, ...]:
    return (server["url"],) if "url" in server else (server["command"], *server.get("args", ()))


def refuse_code(reader: Reader) -> None:
    """Refuses a slot whose provider is code of somebody's, for settings that nobody has named."""
    for path in _slot_paths(reader):
        provider = str(reader.table(path).get("provider", ""))
        if provider not in BUILT_IN and re.search(r"[.:]", provider):
            reader.fail(
                (*path, "provider"),
                "a provider of your own is loaded only from a file that was named, and this one was found in "
                "the working folder: name it with --config, or in $MEAD_CONFIG",
            )


def _slot_paths(reader: Reader) -> Iterator[KeyPath]:
    """Where each slot stands, and each of its fallbacks."""
    for name, slot in reader.table(("router", "slots")).items():
        yield ("router", "slots", name)
        for fallback in slot.get("fallbacks", {}):
            yield ("router", "slots", name, "fallbacks", fallback)


def read_prices(reader: Reader) -> tuple[PriceSettings, ...]:
    """The tables [prices.MODEL]."""
    return tuple([_read_price(reader, model) for model in reader.table(("prices",))])


def _read_price(reader: Reader, model: str) -> PriceSettings:
    path = ("prices", model)
    price = reader.take(path, _PRICE)
    for name in ("input", "output"):
        if name not in price:
            reader.fail((*path, name), "this is missing; a price is in USD per million tokens")
    return PriceSettings(model=model, **price)


def read_budgets(reader: Reader) -> tuple[BudgetSettings, ...]:
    """The tables [budgets.NAME]."""
    return tuple([_read_budget(reader, name) for name in reader.table(("budgets",))])


def _read_budget(reader: Reader, name: str) -> BudgetSettings:
    path = ("budgets", name)
    if not _BUDGET_NAME.fullmatch(name):
        reader.fail(
            path, "a budget's name is 1 to 40 of a-z, 0-9, - and _, and begins with a letter or digit"
        )
    budget = reader.take(path, _BUDGET)
    if "per" not in budget:
        reader.fail((*path, "per"), 'this is missing; it is "day", "month" or "session"')
    if ("tokens" in budget) == ("usd" in budget):
        reader.fail(path, "a budget is either in tokens or in usd; for both, make two")
    return BudgetSettings(name=name, **budget)


def read_router(reader: Reader) -> RouterSettings:
    """The table [router] with its options and slots."""
    slots = reader.table(("router", "slots"))
    options = reader.take(("router", "options"), _OPTIONS)
    chosen = reader.take(("router",), {"handler": kinds.choice("router", "echo")})
    return RouterSettings(
        **chosen,
        slots=SlotsSettings(**{name: _read_slot(reader, ("router", "slots", name)) for name in slots}),
        options=Options(**options),
        escalation=EscalationSettings(**reader.take(("router", "escalation"), _ESCALATION)),
    )


def _read_slot(reader: Reader, path: KeyPath) -> SlotSettings:
    slot = reader.take(path, _SLOT)
    provider = slot.get("provider")
    if provider is None:
        reader.fail((*path, "provider"), 'this is missing; for example provider = "ollama"')
    if provider in _NEEDS_MODEL and "model" not in slot:
        reader.fail((*path, "model"), f"this is missing; the provider {provider} needs to know which")
    if "queue" in slot and not ("concurrency" in slot or "requests_per_minute" in slot):
        reader.fail((*path, "queue"), "nothing waits without a limit: set concurrency or requests_per_minute")
    if "api_key" not in slot:
        slot["api_key"] = _vendor_key(reader, provider, slot.get("base_url"))
    free = reader.take(path, {"options": kinds.free_table}).get("options")
    if free is not None:
        if provider in BUILT_IN:
            # They would be read by nobody, and max_tokens under [….options] is an easy mistake.
            reader.fail(
                (*path, "options"),
                f"this table is for providers that are not mead's own; for {provider}, set the keys in "
                f"[{'.'.join(path)}] itself, and what mead has no key for in extra",
            )
        slot["provider_options"] = free
    names = reader.table((*path, "fallbacks"))
    slot["fallbacks"] = tuple([_read_slot(reader, (*path, "fallbacks", name)) for name in names])
    return SlotSettings(**slot, options=Options(**reader.take(path, _OPTIONS)))


def _vendor_key(reader: Reader, provider: Any, base_url: str | None) -> Secret | None:
    """The key from the vendor's usual variable, only for the vendor's own server."""
    name, host = _VENDOR_KEYS.get(provider, ("", ""))
    found = reader.environ.get(name) if name else None
    if not found:
        return None
    if base_url is not None and not re.fullmatch(rf"(?i)https://{re.escape(host)}(:443)?(/.*)?", base_url):
        return None
    try:
        return Secret(found)
    except ValueError as error:
        raise ConfigError(f"the environment variable {name} {error}") from None
