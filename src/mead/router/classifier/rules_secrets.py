"""Rules for secrets: keys by the prefixes that vendors give them, and values that a word beside them gives
away."""

from __future__ import annotations

import re

from mead.router.classifier.allowed import entropy_bits, is_placeholder
from mead.router.classifier.rule import Rule, Span, always, before

# Prefixes are public: each vendor documents its own, so that leaked keys can be found.
_VENDOR_KEYS = (
    r"(?:AKIA|ASIA|ABIA|ACCA|AGPA|AIDA|AROA)[A-Z0-9]{16}(?![A-Z0-9])",  # AWS
    r"sk-(?:[a-z]{2,12}-){0,3}(?:api\d\d-)?[\w-]{16,}",  # OpenAI, Anthropic, OpenRouter, DeepSeek
    r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}",
    r"gl(?:pat|dt|rt|ptt|soat|cbt|ft|imt|agent|oas|ffct)-[\w.-]{16,}|GR1348941[\w-]{16,}",
    r"AIza[\w-]{30,}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,}|1//0[\w-]{30,}",  # Google
    r"xox[abeoprs]-[\w-]{10,}|xapp-\d-[\w-]{20,}|xoxe\.xox[bp]-\d-[\w-]{20,}",  # Slack
    r"(?:sk|rk|pk)_(?:live|test|prod)_\w{10,}|whsec_[\w+/=]{16,}",  # Stripe
    r"npm_[A-Za-z0-9]{30,}|pypi-[\w-]{16,}|rubygems_[0-9a-f]{32,}|cio[A-Za-z0-9]{32}(?!\w)|dckr_(?:pat"
    r"|oat)_[\w-]{20,}",
    r"(?:AC|SK)[0-9a-f]{32}(?!\w)",  # Twilio
    r"SG\.[\w-]{16,}\.[\w-]{16,}|key-[0-9a-f]{32}(?!\w)|[0-9a-f]{32}-us\d{1,2}(?!\w)",
    r"xkeysib-[0-9a-f]{40,}",
    r"(?:bot)?\d{8,10}:[\w-]{35}(?![\w-])",  # Telegram
    r"[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,}",  # Discord
    r"eyJ[\w-]{10,}\.[\w-]{10,}(?:\.[\w-]{5,})?",  # a JWT
    r"hf_[A-Za-z0-9]{30,}|api_org_[A-Za-z]{30,}|r8_[A-Za-z0-9]{30,}|gsk_[A-Za-z0-9]{40,}"
    r"|pplx-[A-Za-z0-9]{30,}",
    r"xai-[A-Za-z0-9]{40,}|fw_[A-Za-z0-9]{20,}|nvapi-[\w-]{40,}|tgp_v1_[\w-]{30,}|lsv2_(?:pt"
    r"|sk)_[0-9a-f]{32}_\w{6,}",
    r"do[oprt]_v1_[0-9a-f]{40,}|dapi[0-9a-f]{32}|dp\.(?:pt|st|ct|sa|scim|audit)\.[\w.]{30,}"
    r"|hv[sbr]\.[\w-]{20,}",
    r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}|sq0(?:atp|csp|idp)-[\w-]{20,}|EAAA[\w-]{40,}|EAACEdEose0cBA\w{20,}",
    r"lin_api_\w{30,}|ntn_\w{30,}|secret_[A-Za-z0-9]{40,}|figd_[\w-]{30,}|PMAK-[0-9a-f]{20,}-[0-9a-f]{20,}"
    r"|pat[A-Za-z0-9]{14}\.[0-9a-f]{40,}",
    r"NRAK-[A-Z0-9]{20,}|ATATT3[\w=-]{20,}|ATCTT3[\w=-]{20,}|HRKU-[\w-]{30,}"
    r"|[A-Za-z0-9]{14}\.atlasv1\.[\w-]{40,}",
    r"gls[ac]_[\w+/=]{20,}|glc_[\w+/=]{20,}|sntry[su]_[\w+/=.-]{20,}|dt0c01\.[A-Z0-9]{24}\.[A-Z0-9]{40,}",
    r"AGE-SECRET-KEY-1[A-Z0-9]{40,}|sbp_[0-9a-f]{30,}|LTAI[A-Za-z0-9]{12,24}(?!\w)"
    r"|AKID[A-Za-z0-9]{28,36}(?!\w)",
    r"nfp_[A-Za-z0-9]{30,}|fo1_[\w-]{30,}|FlyV1 fm\d_[\w+/=,]{30,}|pscale_(?:tkn|pw|oauth)_[\w.-]{30,}"
    r"|tskey-[a-z]+-[\w-]{16,}",
    r"pul-[0-9a-f]{40}|tfp_[\w.-]{40,}|CFPAT-[\w-]{40,}|PRIVATE-TOKEN: ?[\w-]{16,}|CLOJARS_[0-9a-f]{50,}"
    r"|ops_eyJ[\w-]{40,}",
    r"[\w~.-]{3}8Q~[\w~.-]{31,}(?![\w~.-])|SharedAccessSignature sr=\S{20,}|sig=[\w%]{40,}",  # Azure
    r"\$(?:2[abxy]\$\d\d\$[./A-Za-z0-9]{53}|[156y]\$[./A-Za-z0-9]{1,16}\$[./A-Za-z0-9]{22,}"
    r"|argon2i?d?\$v=\d+\$\S{20,})",
    r"https://hooks\.slack\.com/(?:services|workflows)/[\w/]{20,}"
    r"|https://(?:\w+\.)?discord(?:app)?\.com/api/webhooks/\d+/[\w-]{20,}",
    r"https://[\w.-]+\.webhook\.office\.com/\S{20,}|https://\w+@(?:\w+\.)?sentry\.io/\d+",
    # A vendor we do not know, who follows the custom: letters, an underscore, and a long random part.
    r"[a-z]{2,8}_(?:[a-z]{2,8}_){0,2}(?=[a-z]{0,40}[A-Z0-9])(?=[A-Z0-9]{0,40}[a-z])(?=[A-Za-z]{0,40}\d)[A-Za-"
    r"z0-9]{20,}",
)
_VENDOR = re.compile(
    rf"(?<![A-Za-z0-9_+-])(?:{'|'.join(_VENDOR_KEYS)})|(?<![\w-])[\w-]{{13,}}\.eyJ[\w-]{{10,}}\.[\w-]{{10,}}",
    re.ASCII,
)
# Long words are rare in prose, so that the many prefixes need to be tried on few texts.
_LONG_WORD = re.compile(r"[^\s\"'`,;<>()\[\]{}|]{16}")
_SAMPLE_KEY = re.compile(
    r"(?i)x{5}|\.{3}|\*{3}|your|redacted|placeholder|here$|<|…|(?:0123456789){2}|(\w)\1{7}"
)
_DATA_BEFORE = re.compile(r"(?i)(?:base64,|sha(?:1|256|384|512)[-:])$")


def _vendor_key(match: re.Match[str]) -> Span | None:
    value = match.group()
    if _SAMPLE_KEY.search(value) or _DATA_BEFORE.search(before(match, 8)) or len(set(value[-16:])) < 5:
        return None
    if value.startswith(("pk_", "sk-")) and not re.search(r"\d", value) and entropy_bits(value) < 4:
        return None  # sk-learn-something-else, a name with hyphens
    return match.span()


_SECRET_WORD = (
    r"(?:pass(?:word|wd|phrase|code|wort)|(?<![a-z])pwd|(?<![a-z])pw|_pass"
    r"|(?<![a-z])secret(?:[ _-]?(?:access[ _-]?)?key)?"
    r"|(?:api|access|auth|account|private|signing|encryption|master|service|shared|client|consumer|license"
    r"|deploy|session"
    r"|refresh|bearer|bot|webhook|app|csrf|oauth|personal[ _-]access)[ _-]?(?:key|token|secret)|_authtoken"
    r"|(?<![a-z-])token|mot de passe|contraseña|clave|kennwort|wachtwoord|senha|(?<![a-z])otp"
    r"|(?:verification|security|access|door|gate|alarm|2fa|login) code)|密码|口令|密钥|暗証番号|パスワード"
)
_GIVES = r"[)\]\"']?[ \t]?(?:is|was|are|ist|est|es|è|=>|->|:=|:|=|是|为)[ \t]?(?:now |still )?"
_VALUE = r"(?:bearer )?(?P<quote>[\"'`]?)(?P<value>[^\s\"'`,]{4,256})"
_NAMED = re.compile(rf"(?i)(?:{_SECRET_WORD}){_GIVES}{_VALUE}")
# Any name that ends like one of a secret; the value must look like one, too.
_NAMED_KEY = re.compile(rf"(?i)(?<=[a-z0-9_ -])(?:key|token|secret|credentials?|pass|auth){_GIVES}{_VALUE}")
_BESIDE = re.compile(
    r"(?i)\b(?:passphrase|password|passwd|passcode|pwd|api[ _-]?key|secret|token|the key|bearer"
    r"|signing key)[ \t]"
    r"(?P<quote>[\"'`]?)(?P<value>[^\s\"'`,]{8,256})"
)
_PIN = re.compile(
    r"(?i)\b(?:pin|cvv2?|cvc|otp|passcode|(?:verification|security|access|door|gate|alarm|2fa|login) code)"
    r"(?: number| code)?[ \t]?(?:is|was|:|=|#)?[ \t]?(?P<value>\d{3,8})\b(?![.,:/-]?\d)"
)
_WORDS = (
    *(
        "pass",
        "pwd",
        "pw",
        "secret",
        "credential",
        "key",
        "token",
        "auth",
        "mot de",
        "contrase",
        "clave",
        "kennwort",
    ),
    *("wachtwoord", "senha", "code", "otp", "bearer", "密", "口令", "暗", "パス"),
)
_CODE_VALUE = re.compile(
    r"^[(\[{]*[A-Za-z_]+(?:[.:-]{1,2}[A-Za-z_]+)*[;:!?.)]*$|^(?=\D*(?:\d\D*){0,5}$)[\d\W]+$|^https?://[^@]*$"
    r"|^[/~.]"
)


def _named(match: re.Match[str]) -> Span | None:
    """A value named a secret, but no ordinary word, small number, name in code or placeholder."""
    value = match.group("value").rstrip(".;:)!?}]")
    if len(value) < 4 or is_placeholder(value):
        return None
    ordinary = bool(_CODE_VALUE.match(value))
    if ordinary and match.group("quote") and value.isalpha() and len(value) >= 8 and "=" in match.group():
        ordinary = False  # password="correcthorse": nobody quotes a word there but to say it
    if ordinary and not _looks_random(value):
        return None
    return match.span("value")


def _beside(match: re.Match[str]) -> Span | None:
    """A value that follows the word for a secret at once must look like one by itself."""
    value = match.group("value").rstrip(".;:)!?}]")
    least = 1 if match.group()[:10].lower() == "passphrase" else 2
    return match.span("value") if _looks_random(value, least) and not is_placeholder(value) else None


def _looks_random(value: str, turns_least: int = 2) -> bool:
    """Whether a word is made as nobody writes words: both cases mixed, or digits among the letters."""
    if len(value) < 8 or not re.fullmatch(r"[!-~]+", value):
        return False
    if turns_least > 1 and value.isalpha():
        return False  # CamelCase, a name in code
    turns = len(re.findall(r"[a-z][A-Z]|[A-Za-z]\d|\d[A-Za-z]", value))
    symbols = len(re.findall(r"[!@#$%^&*+=?~]", value))
    if "_" in value or "(" in value[1:] or "/" in value:
        turns -= 2
    return turns + symbols >= turns_least and entropy_bits(value) > 2.5


def _pin(match: re.Match[str]) -> Span | None:
    value = match.group("value")
    code = value in ("1234", "0000", "12345", "123456") or (
        len(value) == 3 and "cv" not in match.group().lower()
    )
    return None if code else match.span("value")


_URL_PASSWORD = re.compile(
    r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s:/@\"'<>]{0,64}:(?P<value>[^\s/@\"'<>]{3,128})@["
    r"\w.\[-]"
)
_BEARER = re.compile(
    r"(?i)\b(?:authorization|proxy-authorization|x-[a-z-]{0,20}(?:key|token)|cookie"
    r"|set-cookie)[\"']?[ \t]?[:=][ \t]?[\"']?"
    r"(?:bearer |basic |token |digest |session(?:id)?=)?(?P<value>[\w.~+/=-]{12,512})"
)
_BLOCK = re.compile(
    r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----|PuTTY-User-Key-File-\d"
    r"|---- BEGIN SSH2 ENCRYPTED PRIVATE"
)


def _url_password(match: re.Match[str]) -> Span | None:
    value = match.group("value")
    is_word = value.lower() in ("password", "pass", "pwd", "secret", "token", "pw")
    return None if is_word or is_placeholder(value) else match.span("value")


def _bearer(match: re.Match[str]) -> Span | None:
    value = match.group("value")
    return match.span("value") if not is_placeholder(value) and re.search(r"\d|[a-z][A-Z]", value) else None


RULES = (
    Rule("private_key", _BLOCK, ("-----begin", "putty-user", "begin ssh2"), always),
    Rule("api_key", _VENDOR, _LONG_WORD, _vendor_key),
    Rule("password", _URL_PASSWORD, ("://",), _url_password),
    Rule("api_key", _BEARER, ("authorization", "x-", "cookie"), _bearer),
    Rule("password", _NAMED, _WORDS, _named),
    Rule("api_key", _NAMED_KEY, _WORDS, _beside),
    Rule("password", _BESIDE, _WORDS, _beside),
    Rule("password", _PIN, ("pin", "cvv", "cvc", "otp", "code"), _pin),
)
