"""What a TOML text says, and how each mistake in it is told."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mead.core.options import Options
from mead.settings import (
    KEYS,
    ClassifierSettings,
    ConfigError,
    EmbeddedSettings,
    RouterSettings,
    Secret,
    SessionSettings,
    SlotSettings,
    SlotsSettings,
    parse,
)
from mead.settings._reader import ANY_NAME

DOCS = Path(__file__).parents[2] / "docs" / "settings.md"
KEY = "sk-ant-0123456789-do-not-show"
LOCAL = '[router.slots.local]\nprovider = "ollama"\nmodel = "llama3.1"\n'
CLOUD = '[router.slots.cloud]\nprovider = "anthropic"\nmodel = "claude"\n'
FOREIGN = '[router.slots.local]\nprovider = "my.models:Mine"\n'


def mistake(text: str, **environ: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse(text, file=Path("mead.toml"), environ=environ)
    return caught.value


def cloud_slot(text: str, **environ: str) -> SlotSettings:
    slot = parse(text, environ=environ).router.slots.cloud
    assert slot is not None
    return slot


def local_slot(text: str, **environ: str) -> SlotSettings:
    slot = parse(text, environ=environ).router.slots.local
    assert slot is not None
    return slot


# What is read


def test_an_empty_text_gives_the_defaults() -> None:
    settings = parse("", environ={})

    assert settings.router == RouterSettings(handler=None, slots=SlotsSettings(), options=Options())
    assert settings.sessions == SessionSettings(
        turn_timeout_s=None,
        queue_timeout_s=300.0,
        idle_timeout_s=None,
        busy="queue",
        system=None,
        max_input_bytes=8 * 1024 * 1024,
    )
    assert settings.classifier == ClassifierSettings(cloud_share=0.3, private_words=())
    assert (settings.source, settings.warnings) == (None, ())


def test_r02_every_key_of_a_slot_is_read() -> None:
    text = """
        [router.slots.local]
        provider = "openai"
        model = "qwen3"
        models = ["phi4"]
        base_url = "http://127.0.0.1:8080/v1"
        api_key = "key"
        allow_remote = true
        local_networks = ["100.64.0.0/16"]
        connect_timeout_s = 3
        concurrency = 4
        queue = 0
        requests_per_minute = 50
        system = "Be brief."
        max_tokens = 100
        temperature = 0
        top_p = 0.9
        top_k = 40
        seed = 7
        stop = ["\\n"]
        thinking = "low"
        extra = {logprobs = true}
        idle_timeout_s = 20
    """

    assert local_slot(text) == SlotSettings(
        provider="openai",
        model="qwen3",
        models=("phi4",),
        base_url="http://127.0.0.1:8080/v1",
        api_key=Secret("key"),
        allow_remote=True,
        local_networks=("100.64.0.0/16",),
        connect_timeout_s=3.0,
        concurrency=4,
        queue=0,
        requests_per_minute=50,
        options=Options(
            system="Be brief.",
            max_tokens=100,
            temperature=0.0,
            top_p=0.9,
            top_k=40,
            seed=7,
            stop=("\n",),
            thinking="low",
            extra={"logprobs": True},
            idle_timeout_s=20.0,
        ),
    )


def test_s09_options_can_be_set_for_every_slot() -> None:
    settings = parse("[router.options]\ntemperature = 0.2\nthinking = false", environ={})

    assert settings.router.options == Options(temperature=0.2, thinking=False)


def test_s09_sessions_can_have_a_system_prompt() -> None:
    assert parse('[sessions]\nsystem = "Be kind."', environ={}).sessions == SessionSettings(system="Be kind.")


def test_sessions_classifier_and_embedded_are_read() -> None:
    settings = parse(
        '[sessions]\nturn_timeout_s = 5\nbusy = "reject"\nmax_input_bytes = 10\n'
        '[classifier]\ncloud_share = 1\nprivate_words = ["heron"]\n'
        '[embedded]\nmodel_path = "/m.gguf"\nthreads = 2\ncontext_tokens = 512\nparallel = 1\n',
        environ={},
    )

    assert settings.sessions == SessionSettings(turn_timeout_s=5.0, busy="reject", max_input_bytes=10)
    assert settings.classifier == ClassifierSettings(cloud_share=1.0, private_words=("heron",))
    assert settings.embedded == EmbeddedSettings(
        model_path=Path("/m.gguf"), threads=2, context_tokens=512, parallel=1
    )


def test_a_provider_of_somebody_else_gets_its_options() -> None:
    slot = local_slot(FOREIGN + "[router.slots.local.options]\nanything = [1, 2]\n")

    assert (slot.provider, slot.provider_options) == ("my.models:Mine", {"anything": [1, 2]})


def test_a_byte_order_mark_and_windows_line_ends_are_no_mistake() -> None:
    assert local_slot("\ufeff" + LOCAL.replace("\n", "\r\n")).model == "llama3.1"


def test_the_data_folder_can_be_moved_by_the_environment() -> None:
    assert parse("", environ={"MEAD_DATA_FOLDER": "/srv/mead"}).data_folder == Path("/srv/mead")


# Variables


@pytest.mark.parametrize(
    "written,read",
    [
        ("${NAME}", "value"),
        ("a ${NAME} b ${NAME}", "a value b value"),
        ("${UNSET:-other}", "other"),
        ("${UNSET:-}", ""),
        ("${EMPTY:-other}", "other"),
        ("${EMPTY}", ""),
        ("${NAME:-other}", "value"),
        ("$${NAME}", "${NAME}"),
        ("$$ and $ and $NAME", "$ and $ and $NAME"),
    ],
)
def test_variables_are_expanded(written: str, read: str) -> None:
    slot = cloud_slot(CLOUD + f'system = "{written}"', NAME="value", EMPTY="")

    assert slot.options.system == read


def test_variables_are_expanded_in_lists_and_free_tables() -> None:
    slot = local_slot(
        FOREIGN + 'stop = ["${NAME}"]\n[router.slots.local.options]\na = [{b = "${NAME}"}]', NAME="value"
    )

    assert (slot.options.stop, slot.provider_options) == (("value",), {"a": [{"b": "value"}]})


def test_what_a_variable_holds_is_not_expanded_again() -> None:
    assert cloud_slot(CLOUD + 'system = "${NAME}"', NAME="${OTHER} $$").options.system == "${OTHER} $$"


def test_d87_an_unset_variable_is_named_with_its_key_and_line() -> None:
    error = mistake(CLOUD + 'system = "${WHO}"')

    assert str(error) == (
        "mead.toml, line 4: router.slots.cloud.system: the environment variable WHO is not set; set it, or "
        "give a default: ${WHO:-default}"
    )


@pytest.mark.parametrize("written", ["${", "${}", "${A", "${A B}", "${1}", "${A:-${B}}", "${A-b}"])
def test_a_reference_that_is_none_is_a_mistake(written: str) -> None:
    assert "a variable must follow" in mistake(CLOUD + f'system = "{written}"', A="", B="").message


def test_a_variable_that_is_no_text_is_a_mistake() -> None:
    assert "NAME is not UTF-8 text" in mistake(CLOUD + 'system = "${NAME}"', NAME="\udcff").message


# Keys of providers


@pytest.mark.parametrize(
    "provider,variable,base_url",
    [
        ("anthropic", "ANTHROPIC_API_KEY", None),
        ("anthropic", "ANTHROPIC_API_KEY", "https://api.anthropic.com"),
        ("openai", "OPENAI_API_KEY", None),
        ("openai", "OPENAI_API_KEY", "https://api.openai.com/v1"),
    ],
)
def test_a_key_of_the_environment_goes_to_its_vendor(
    provider: str, variable: str, base_url: str | None
) -> None:
    where = f'base_url = "{base_url}"\n' if base_url else ""
    text = f'[router.slots.cloud]\nprovider = "{provider}"\nmodel = "m"\n{where}'

    assert cloud_slot(text, **{variable: f"{KEY}\n"}).api_key == Secret(KEY)


@pytest.mark.parametrize(
    "base_url",
    [
        "https://api.openai.com.evil.example/v1",
        "https://evil.example/api.openai.com",
        "https://apixopenai.com",
        "http://api.openai.com/v1",
        "https://api.openai.com:8443/v1",
        "http://127.0.0.1:8080/v1",
    ],
)
def test_a_key_of_the_environment_goes_to_no_other_server(base_url: str) -> None:
    text = f'[router.slots.cloud]\nprovider = "openai"\nmodel = "m"\nbase_url = "{base_url}"'

    assert cloud_slot(text, OPENAI_API_KEY=KEY).api_key is None


def test_a_key_of_the_slot_wins_over_the_environment() -> None:
    assert cloud_slot(CLOUD + 'api_key = "mine"', ANTHROPIC_API_KEY=KEY).api_key == Secret("mine")


def test_an_ollama_slot_takes_no_key_of_the_environment() -> None:
    assert local_slot(LOCAL, OPENAI_API_KEY=KEY, ANTHROPIC_API_KEY=KEY).api_key is None


@pytest.mark.parametrize(
    "written,told",
    [
        ("sk\\u0007x", "printable ASCII"),
        ("sk-ключ", "printable ASCII"),
        ("$ANTHROPIC_API_KEY", "write ${NAME}"),
        ("ANTHROPIC_API_KEY", "write ${NAME}"),
        (f"Bearer {KEY}", "without the word Bearer"),
    ],
)
def test_a_key_that_can_be_none_is_a_mistake(written: str, told: str) -> None:
    error = mistake(CLOUD + f'api_key = "{written}"')

    assert told in error.message
    assert (error.line, error.key) == (4, "router.slots.cloud.api_key")


def test_a_broken_key_of_the_environment_is_a_mistake_that_names_the_variable() -> None:
    error = mistake(CLOUD, ANTHROPIC_API_KEY="a\nb")

    assert error.message.startswith("the environment variable ANTHROPIC_API_KEY must hold only printable")


# Mistakes


@pytest.mark.parametrize(
    "text,line,key,message",
    [
        ('[router.slots.local]\nmodle = "x"', 2, "router.slots.local.modle", "did you mean 'model'?"),
        (
            '[router.slots.local]\nprovidre = "x"',
            2,
            "router.slots.local.providre",
            "did you mean 'provider'?",
        ),
        ("[sesions]\n", 1, "sesions", "did you mean 'sessions'?"),
        ("\n[x.y]\na = 1", 2, "x", "the keys here are router, sessions, classifier, embedded, mcp, prices"),
        ("\n[storage.x]\na = 1", 2, "storage.x", "the keys here are url"),
        ("turn_timeout_s = 1", 1, "turn_timeout_s", "it belongs in [sessions]"),
        ("[local]\n", 1, "local", "it belongs in [router.slots]"),
        ('[router]\nmodel = "x"', 2, "router.model", "it belongs in [router.slots.local]"),
        ("[router.embedded]", 1, "router.embedded", "[embedded] stands at the top"),
        ('[sessions]\n"bu sy" = 1', 2, 'sessions."bu sy"', "there is no such key; did you mean 'busy'?"),
        ("router = 3", 1, "router", "router must be a table, as [router]"),
        ("[[sessions]]", 1, "sessions", "sessions must be a table, as [sessions]"),
        ("router.slots.cloud = 'x'", 1, "router.slots.cloud", "cloud must be a table"),
    ],
)
def test_an_unknown_key_is_named_with_what_was_meant(text: str, line: int, key: str, message: str) -> None:
    error = mistake(text)

    assert (error.line, error.key) == (line, key)
    assert message in error.message
    assert str(error) == f"mead.toml, line {line}: {key}: {error.message}"


@pytest.mark.parametrize(
    "setting,message",
    [
        ('max_tokens = "10"', "max_tokens must be a whole number, not text"),
        ("max_tokens = 1.5", "max_tokens must be a whole number, not one with a fraction"),
        ("max_tokens = true", "max_tokens must be a whole number, not true or false"),
        ("max_tokens = 0", "max_tokens must be at least 1"),
        ("seed = 9223372036854775808", "this number is too large"),
        ("seed = -1", "seed must be at least 0"),
        ("temperature = -0.1", "temperature must be at least 0"),
        ("temperature = nan", "temperature must be at least 0"),
        ("temperature = 2024-01-01", "temperature must be a number, not a date or time"),
        ("top_p = 1.1", "top_p must be at least 0 and at most 1"),
        ("connect_timeout_s = 0", "connect_timeout_s must be over 0"),
        ("connect_timeout_s = inf", "connect_timeout_s must be over 0"),
        ('thinking = "much"', 'thinking must be one of true, false, "low", "medium", "high"'),
        ("thinking = 1", 'thinking must be one of true, false, "low", "medium", "high"'),
        ('stop = "END"', 'stop must be a list, as ["one", "two"], not text'),
        ('stop = ["a", ""]', "stop has a wrong entry: number 2 must not be empty"),
        ("stop = [1]", "stop has a wrong entry: number 1 must be text in quotes, not a number"),
        ("system = ['a']", "system must be text in quotes, not a list"),
        ("extra = 1", "extra must be a table, not a number"),
        ('allow_remote = "yes"', "allow_remote must be true or false, not text"),
        ('model = " "', "model must not be empty"),
        ('model = "a\\nb"', "model must be one line without control characters"),
        (f'model = "{KEY}"', "model looks like an API key; that belongs in api_key"),
        ('base_url = "localhost:11434"', "base_url must look like http://host:port"),
        ('base_url = "http://a:99999"', "base_url must look like http://host:port"),
        ('base_url = "unix:"', "base_url must name a socket"),
        (f'base_url = "http://me:{KEY}@host"', "base_url must not hold a user name or password"),
        (f'base_url = "http://host/?key={KEY}"', "base_url must end before any ? or #"),
        ('local_networks = ["10.0.0.0/8"]', "must be a part of 100.64.0.0/10"),
        ('local_networks = ["home"]', "must be a part of 100.64.0.0/10"),
    ],
)
def test_a_wrong_value_is_told_without_being_quoted(setting: str, message: str) -> None:
    table = '[router.slots.local]\nprovider = "my.models:Mine"\n'
    error = mistake(table + setting)

    assert message in error.message
    assert (error.file, error.line) == (Path("mead.toml"), 3)
    assert error.key == f"router.slots.local.{setting.partition(' =')[0]}"
    assert KEY not in str(error)


@pytest.mark.parametrize(
    "text,message",
    [
        ('[router]\nhandler = "ruoter"', 'handler must be one of "router", "echo"'),
        ("[sessions]\nturn_timeout_s = 0", "turn_timeout_s must be over 0"),
        ('[sessions]\nbusy = "wait"', 'busy must be one of "queue", "reject", "interrupt"'),
        ("[classifier]\ncloud_share = 2", "cloud_share must be at least 0 and at most 1"),
        ("[classifier]\nthreshold = 0.5", "there is no such key; set cloud_share"),
        (
            '[classifier]\nprivate_patterns = ["("]',
            "private_patterns has a wrong entry: number 1 is no regular",
        ),
        ('[router.escalation]\nto = "local"', 'to must be one of "cloud"'),
        ("[router.slots.cloud.fallbacks.a]\nqueue = 1", "it belongs in [router.slots.local]"),
        ('[classifier]\nprivate_words = [" "]', "number 1 must not be empty"),
        ("[embedded]\ncontext_tokens = 1", "context_tokens must be at least 256"),
        ('[embedded]\nmodel_path = "~nobody-has-this-name/m"', "no home folder is known"),
        ('[embedded]\nmodel_path = "a\\u0000b"', "without control characters"),
    ],
)
def test_the_other_tables_are_as_strict(text: str, message: str) -> None:
    error = mistake(text)

    assert message in error.message
    assert error.line == 2


@pytest.mark.parametrize(
    "text,line,key",
    [
        ('[router.slots.local]\nmodel = "m"', 1, "router.slots.local.provider"),
        ('[router.slots.local]\nprovider = "ollama"', 1, "router.slots.local.model"),
        ('[router.slots.cloud]\nprovider = "openai"', 1, "router.slots.cloud.model"),
        (
            '[router.slots.cloud]\nprovider = "echo"\n[router.slots.cloud.fallbacks.b]\nmodel = "m"',
            3,
            "router.slots.cloud.fallbacks.b.provider",
        ),
        ('router.slots.cloud = {provider = "anthropic"}', 1, "router.slots.cloud.model"),
    ],
)
def test_a_missing_key_is_named_on_the_line_of_its_table(text: str, line: int, key: str) -> None:
    error = mistake(text)

    assert (error.line, error.key) == (line, key)
    assert error.message.startswith("this is missing")


@pytest.mark.parametrize("provider", ["embedded", "echo", "my.models:Mine"])
def test_other_providers_need_no_model(provider: str) -> None:
    assert local_slot(f'[router.slots.local]\nprovider = "{provider}"').model is None


def test_the_options_table_of_a_built_in_provider_is_a_mistake() -> None:
    error = mistake(LOCAL + "[router.slots.local.options]\ntemperature = 1")

    assert error.key == "router.slots.local.options"
    assert "set the keys in [router.slots.local] itself" in error.message


@pytest.mark.parametrize(
    "text,line",
    [
        ("[router]\nhandler = echo", 2),
        ("a = 1 b", 1),
        ("[sessions]\n[sessions]\n", 2),
        ('\n\nx = """open', 3),
        ("a = [1,\n", 1),
        ("a = \x00", 1),
    ],
)
def test_a_syntax_error_is_told_with_its_line(text: str, line: int) -> None:
    error = mistake(text)

    assert error.line == line
    assert str(error).startswith(f"mead.toml, line {line}: this is not valid TOML: ")


@pytest.mark.parametrize(
    "text,message",
    [
        ("a = " + "[" * 5000, "nested too deeply"),
        ("a = " + "9" * 5000, "a number in it is too long"),
        ("router.options.extra." + "a." * 5000 + "b = 1", "nested more than 64 levels deep"),
        ("a = '\ud800'", "not UTF-8"),
    ],
)
def test_a_text_made_to_hurt_is_a_mistake_like_any_other(text: str, message: str) -> None:
    assert message in mistake(text).message


# Secrets


def test_settings_print_no_secret() -> None:
    text = (
        f'[router.slots.local]\nprovider = "my.models:Mine"\napi_key = "{KEY}"\n'
        'extra = {token = "${K}"}\n'
        f'[router.slots.local.options]\ntoken = "${{K}}"\ninner = {{password = "{KEY}"}}\n' + CLOUD
    )
    settings = parse(text, environ={"ANTHROPIC_API_KEY": KEY, "K": KEY})

    assert KEY not in repr(settings) + str(settings) + f"{settings}"
    assert settings.router.slots.local is not None
    assert settings.router.slots.local.provider_options["token"] == KEY


@pytest.mark.parametrize(
    "text",
    [
        f'"{KEY}" = 1',
        f"[router.slots.local]\n{KEY} = 1",
        f"[router.slots.local]\napi_key = {KEY}",
        f'[router.slots.local]\napi_key = {{"{KEY}" = 1}}',
        f"a = {{{KEY} = 1, {KEY} = 2}}",
        f"['{KEY}']\n['{KEY}']",
        f'[router.slots.cloud]\nprovider = "{KEY}"',
        f'[router.slots.cloud]\napikey = "{KEY}"',
        f'[router.slots.cloud]\napi_key = "${{{KEY}}}"',
        f'[router.slots.cloud]\napi_key = "{KEY}',
        f'[router.slots.cloud]\napi_key = ["{KEY}"]',
        f'[router]\nhandler = "{KEY}"',
    ],
)
def test_a_secret_in_the_wrong_place_is_not_repeated(text: str) -> None:
    error = mistake(text)

    assert KEY not in str(error) + repr(error) + repr(vars(error))


@given(st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126), min_size=8))
def test_a_secret_never_prints(text: str) -> None:
    secret = Secret(text)

    assert repr(secret) == str(secret) == f"{secret}" == f"{secret!r}" == "Secret('…')"
    assert secret.reveal() == text


def test_a_secret_is_a_value() -> None:
    assert Secret(" key\n") == Secret("key") != Secret("other")
    assert hash(Secret("key")) == hash(Secret("key"))
    assert Secret("key") != "key"
    assert (bool(Secret(" \n")), bool(Secret("key"))) == (False, True)
    assert copy.deepcopy(Secret("key")) == pickle.loads(pickle.dumps(Secret("key"))) == Secret("key")


def test_a_secret_can_be_a_field_of_a_frozen_value() -> None:
    @dataclass(frozen=True, slots=True)
    class Holder:
        key: Secret

    assert repr(Holder(Secret("key"))).endswith("Holder(key=Secret('…'))")
    assert SlotSettings(provider="x", api_key=Secret("k")) == SlotSettings(provider="x", api_key=Secret("k"))


@pytest.mark.parametrize("text", ["a\nb", "a\x7fb", "ключ", "a\u200bb"])
def test_a_secret_that_no_header_can_carry_is_refused(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        Secret(text)

    assert text not in str(caught.value)


def test_an_error_survives_a_trip_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(mistake("x = 1")))

    assert (str(error), error.line, error.key) == (str(mistake("x = 1")), 1, "x")


# Anything at all

_NAMES = [*sorted({name for names in KEYS.values() for name in names}), "other", "a b", "${X}", ""]
_SCALARS = st.one_of(
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.sampled_from(
        ["ollama", "openai", "echo", "router", "local", "${HOME}", "${X:-y}", "$", "unix:/s", "~/x"]
    ),
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_NAMES), inner, max_size=4),
    max_leaves=12,
)


def as_toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return '"' + "".join([f"\\U{ord(letter):08x}" for letter in value]) + '"'
        case list():
            return "[" + ", ".join([as_toml(item) for item in value]) + "]"
        case dict():
            pairs = [f"{as_toml(name)} = {as_toml(item)}" for name, item in value.items()]
            return "{" + ", ".join(pairs) + "}"
        case _:
            return repr(value)


def settings_or_mistake(text: str) -> None:
    said = ""
    try:
        said = repr(parse(text, environ={"HOME": "/home/somebody"}))
    except ConfigError as error:
        said = str(error)
    assert said


@given(st.text())
def test_any_text_gives_settings_or_a_config_error(text: str) -> None:
    settings_or_mistake(text)


@given(st.sampled_from(sorted(KEYS)), st.dictionaries(st.sampled_from(_NAMES), _VALUES, max_size=5))
def test_any_toml_gives_settings_or_a_config_error(path: tuple[str, ...], table: dict[str, object]) -> None:
    lines = [f"{as_toml(name)} = {as_toml(value)}" for name, value in table.items()]
    settings_or_mistake("\n".join([f"[{'.'.join(path)}]" if path else "", *lines]))


@given(st.data())
def test_a_damaged_example_gives_settings_or_a_config_error(data: st.DataObject) -> None:
    text = example()
    place = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 20))

    settings_or_mistake(text[:place] + data.draw(st.text(max_size=5)) + text[place + cut :])


# The page


def example() -> str:
    return DOCS.read_text(encoding="utf-8").partition("```toml\n")[2].partition("```")[0]


def test_the_example_of_the_page_can_be_used() -> None:
    settings = parse(example(), environ={"ANTHROPIC_API_KEY": KEY})

    assert settings.sessions == SessionSettings(turn_timeout_s=60.0)
    assert settings.router.slots.cloud is not None
    assert settings.router.slots.cloud.api_key == Secret(KEY)


@pytest.mark.parametrize("path", [path for path in KEYS if path], ids=".".join)
def test_every_key_stands_in_the_page_under_its_table(path: tuple[str, ...]) -> None:
    sections = DOCS.read_text(encoding="utf-8").split("\n### ")
    if path == ("router", "slots") or KEYS[path] == (ANY_NAME,):
        return  # their keys are the tables of other headings
    heading = f"[{'.'.join(path)}]".replace("*", "NAME")
    section = next(section for section in sections if heading in section.partition("\n")[0])
    options = KEYS["router", "options"]
    told = "every key of the next table" in section

    listed = "Each takes the keys of a slot" in section  # in a sentence, where another table explains them
    missing = [name for name in KEYS[path] if (f"`{name}`" if listed else f"\n| `{name}` |") not in section]

    assert [name for name in missing if not (told and name in options)] == []


def test_the_repr_of_a_server_shows_nothing_that_variables_put_in() -> None:
    text = (
        '[mcp.servers.a]\ncommand = "a"\nargs = ["--token=${T}"]\nenv = {T = "${T}"}\n'
        '[mcp.servers.b]\nurl = "https://b.org:8443/${T}?key=${T}"\nheaders = {x = "${T}"}\n'
    )

    first, second = parse(text, environ={"T": "hidden"}).mcp.servers

    assert "hidden" not in repr((first, second))
    assert "url='https://b.org:8443/…'" in repr(second)
    assert first.written == ("a", "--token=${T}")


def test_fallbacks_are_read_in_the_order_of_the_file() -> None:
    settings = parse(
        """
        [router.slots.cloud]
        provider = "anthropic"
        model = "one"
        [router.slots.cloud.fallbacks.b]
        provider = "openai"
        model = "two"
        temperature = 0.5
        [router.slots.cloud.fallbacks.a]
        provider = "echo"
        [router.escalation]
        to = "cloud"
        when = ["cut_off"]
        """,
        environ={},
    )

    cloud = settings.router.slots.cloud
    assert cloud is not None
    assert [fallback.provider for fallback in cloud.fallbacks] == ["openai", "echo"]
    assert cloud.fallbacks[0].options.temperature == 0.5
    assert settings.router.escalation.when == ("cut_off",)
