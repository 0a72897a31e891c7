"""Rules for what reaches a person: e-mail, phone, street and IP addresses."""

from __future__ import annotations

import re

from mead.router.classifier.allowed import is_famous_address, is_public_host, is_sample_email, is_sample_phone
from mead.router.classifier.checksums import is_isbn
from mead.router.classifier.rule import Rule, Span, before, when

_SEVEN_DIGITS = re.compile(r"\d(?:[ ./()-]{0,3}\d){5}")
_CALLING = re.compile(
    r"(?i)\b(?:phone|call|tel|telefon|téléphone|tél|teléfono|telefoon|telefono|mobile|mobil|m[óo]vil|cell"
    r"|fax|sms"
    r"|text me|text (?:him|her|them)|whatsapp|signal|contact|reach|ring|dial|handy|n[uú]m(?:ber|mer"
    r"|[eé]ro)(?: is|:)|ph)\b:?|电话|手机|联系|電話|携帯"
)
_NO_PHONE = re.compile(
    r"(?i)(?:\b(?:isbn|issn|doi|order|invoice|ticket|tracking|build|version|ver|rev|pid|serial|sku|part|case"
    r"|issue|model"
    r"|ref(?:erence)?|batch|article|item|commit|port|timestamp|epoch|id|seed)\b[ \w.]{0,9}[:#=]{0,2} ?[\"']?"
    r"|#|[$€£]|v)$"
)
_A_DATE = re.compile(r"(?:19|20)\d\d[ ./-](?:0[1-9]|1[0-2])[ ./-][0-3]\d|\d\d[ ./-]\d\d[ ./-](?:19|20)\d\d$")


def _phone(match: re.Match[str]) -> Span | None:
    number = match.group()
    digits = re.sub(r"\D", "", number)
    context = before(match, 24)
    if not 7 <= len(digits) <= 15 or is_sample_phone(number) or _NO_PHONE.search(context):
        return None
    if is_isbn(number) and (number.count("-") + number.count(" ") >= 3 or "isbn" in context.lower()):
        return None
    return None if _A_DATE.match(number) else match.span()


def _called_phone(match: re.Match[str]) -> Span | None:
    return _phone(match) if _CALLING.search(before(match, 40)) else None


_PHONE = re.compile(
    r"(?<![\w.,+/=-])(?<!\d )(?:"
    r"(?:\+|00)\(?[1-9]\d{0,2}\)?(?:[ ./-]?\(0\))?(?:[ ./-]{0,2}\(?\d{1,5}\)?){2,7}"  # international
    r"|(?:\+?1[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}"  # North America
    r"|\(0\d{1,5}\)(?:[ /-]?\d{2,8}){1,4}"  # an area code in brackets
    r"|0[1-9]\d{0,4}(?:[ /-]\d{2,8}){1,5}|0[1-9]\d{7,10}"  # a trunk prefix
    r"|[679]\d{2} \d{3} \d{3}|[6789]\d{2} \d{2} \d{2} \d{2}|1[3-9]\d-\d{4}-\d{4}|1[3-9]\d{9}"  # Spain, China
    r")(?: ?(?:x|ext\.? ?)\d{1,6})?(?![\w-]|[.,]\d)",
    re.ASCII,
)
_CALLED_PHONE = re.compile(r"(?<![\w.,+-])\(?\d(?:[ ./()-]{0,2}\d){6,13}(?![\w-]|[.,]\d)", re.ASCII)

_EMAIL = re.compile(
    r"(?<![\w.+-])[\w.+'-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){0,8}\.(?:[^\W\d_]{2,63}"
    r"|xn--[\w-]{2,59})(?![\w-])"
)

_VERSION_BEFORE = re.compile(
    r"(?i)(?:\bv|version|release|build|firmware|chrome/|section|chapter|§)[ :=]{0,2}$"
)
_HOST_BEFORE = re.compile(r"(?i)\b(?:ip|ipv4|host|server|address|client|from|ssh|login|ping|connect)")


def _ip(match: re.Match[str]) -> Span | None:
    address = match.group()
    context = before(match, 24)
    if _VERSION_BEFORE.search(context) or is_public_host(address):
        return None
    # Four single digits are a version, or a numbered section, far more often than a machine.
    if len(address) == 7 and not _HOST_BEFORE.search(context):
        return None
    return match.span()


_NAME = r"[A-ZÀ-ÖØ-ÞΑ-ΩЀ-Я][\w.'’-]{0,24}"
_PARTICLE = r"(?:de|la|le|les|du|des|del|della|dei|di|da|do|dos|van|der|den|of|the|\d{1,3}(?:st|nd|rd|th))"
_STREET = (
    r"(?:Street|St|Avenue|Ave|Road|Rd|Boulevard|Blvd|Lane|Ln|Drive|Terrace|Crescent|Cres|Parkway|Pkwy"
    r"|Highway|Hwy|Alley"
    r"|Mews|Groves?|Gardens|Quay|Esplanade|Turnpike)"
)
# These mean other things as well, so that something that ends an address must follow.
_MAYBE_STREET = (
    r"(?:Av|Dr|Court|Ct|Place|Pl|Square|Sq|Ter|Way|Close|Circle|Cir|Trail|Trl|Walk|Row|Rise|Plaza|Loop"
    r"|Parade|Ridge"
    r"|Junction|Hill|Hills|Park|Point|Field|Fields|Green|View|Village|Mill|Mills|Meadows?|Manor|Orchard"
    r"|Bridge|Cove|Creek"
    r"|Common|Corner|Glen|Harbor|Haven|Heights|Lake|Lakes|Lodge|Passage|Path|Pike|Shore|Shores|Spring"
    r"|Springs|Station"
    r"|Track|Valley|Vista|Estates?|Falls|Forge|Islands?|Landing)"
)
_GERMANIC = (
    r"[\w.'-]{2,30}(?:straße|strasse|str\.|weg|gasse|platz|allee|ufer|damm|laan|straat|plein|kade|gracht"
    r"|dreef|singel"
    r"|steeg|boulevard|vägen|gatan|vej|veien|vegen|gata|katu|utca)"
)
_ROMANCE = (
    r"(?:rue|chemin|all[ée]e|impasse|quai|viale|piazza|vicolo|strada|rotonda|contrada|calle"
    r"|(?-i:C\. de(?: la| los| las)?|[Cc]/)|avenida|avda\.?|paseo"
    r"|cuesta|pasaje|glorieta|rambla|callejón|urbanización|alameda|rua|travessa|praça|stretto|incrocio|ulica"
    r"|ul\.|ulitsa)"
)
_MAYBE_ROMANCE = (
    r"(?:[Aa]venue|[Bb]oulevard|[Pp]lace|[Rr]oute|[Vv]ia|[Cc]orso|[Ll]argo|[Bb]orgo|[Pp]laza"
    r"|[Cc]amino|[Rr]onda|[Aa]cceso|[Vv]ial|[Cc]anale|[Aa]v\.)"
)
_UNIT = r"(?:(?:Apt|Apartment|Appt)\.? ?#?\d{1,5}[A-Za-z]?|(?:Suite|Ste)\.? ?#?\d{3,4})"
_GAP = r"[,\s>?|*]{1,8}"
_HOUSE = r"\d{1,6}[A-Za-z]?,? "
_NO_YEAR = r"(?!(?:19|20)\d\d\b)\d{1,4}(?![\w%]|[.,:]\d)"
_NO_CODE = (
    r"(?!US|UK|EU|AM|PM|AD|BC|CE|TV|UN|GB|MB|KB|TB|AI|IT|HD|PC|CD|DJ|NE|NW|SE|SW|OR|IN|IS|TO|OF|ON|AT|BY|NO)"
)
_CODES = re.compile(
    # postal codes that only look like postal codes
    r"\b(?:GIR 0AA|[A-PR-UWYZ][A-HK-Y]?\d[A-Z\d]? \d(?!GB|TB)[ABD-HJLNP-UW-Z]{2})\b"
    rf"|(?<![\w.])[1-9]\d{{3}} {_NO_CODE}[A-Z]{{2}}, [A-Z][a-z]{{2,}}"
    r"|\b[A-Z][a-z]{2,30},? [A-Z]{2} \d{5}(?:-\d{4})?\b"
)
_NUMBER_FIRST = re.compile(
    r"(?<![\w.$€£])(?=\d)(?:"
    rf"{_HOUSE}(?:(?:{_NAME}|{_PARTICLE}) ){{1,4}}{_STREET}\b(?![\w'’-])"
    rf"|(?!(?:19|20)\d\d ){_HOUSE}(?:{_NAME} ){{1,3}}{_MAYBE_STREET}(?=,|\n|\.?$|\.? (?:Apt|Suite|Unit|\d))"
    rf"|{_HOUSE}(?:{_NAME} ){{0,3}}(?i:{_GERMANIC})(?![\w'’-])"
    rf"|\d{{1,6}}(?: ?bis| ?ter|[A-Za-z])?,? (?i:{_ROMANCE}) (?:[\w.'’-]{{1,24}} ){{0,4}}[\w.'’-]{{2,24}}"
    rf"|\d{{1,6}}(?: ?bis| ?ter|[A-Za-z])?,? {_MAYBE_ROMANCE} (?:{_PARTICLE} ){{0,2}}{_NAME}"
    rf"|(?i:\d[\w.'’ -]{{3,50}}{_GAP}{_UNIT})\b)"
)


def _address(match: re.Match[str]) -> Span | None:
    around = match.string[max(0, match.start() - 8) : match.end() + 12]
    return None if is_famous_address(around) else match.span()


_NUMBER_LAST = re.compile(rf"(?<![\w.'’-])(?P<word>[\w.'’-]{{2,40}})[ ,]{{1,3}}(?:n[°º]? ?)?{_NO_YEAR}")
_GERMANIC_WORD = re.compile(_GERMANIC, re.IGNORECASE)
_STREET_BEFORE = re.compile(
    rf"(?:(?<!\w)(?:(?i:{_ROMANCE}),?|Via) (?:(?:{_NAME}|{_PARTICLE}|dalla|dello"
    rf"|dalle) ){{0,5}}{_NAME}[ ,]{{1,3}}"
    rf"|(?<!\w){_MAYBE_ROMANCE} (?:(?:{_NAME}|{_PARTICLE}) ){{0,5}}{_NAME}, "
    rf"|\b{_NAME} (?:Stra(?:ss|ß)e|Str\.|[Uu]tca|[Uu]t|[Uu]\.|[Vv]ei|[Gg]ate) )(?:n[°º]? ?)?\d{{1,4}}\Z"
)


def _number_last(match: re.Match[str]) -> Span | None:
    """A number after a word for a street, or after a name that follows one."""
    word = match.group("word")
    if _GERMANIC_WORD.fullmatch(word):
        return _address(match)
    if not (word[0].isupper() or word in ("u.", "út", "ut", "vei", "gate", "utca")):
        return None
    found = _STREET_BEFORE.search(match.string[max(0, match.start() - 80) : match.end()])
    return (match.end() - len(found.group()), match.end()) if found and _address(match) else None


_PARTS = re.compile(
    rf"\bcorner of (?:[\w.'’-]{{1,24}} ){{1,5}}and (?:[\w.'’-]{{1,24}} ){{1,4}}(?i:{_STREET}"
    rf"|{_MAYBE_STREET}s?)\b"
    rf"|\b[Ll]ives? (?:on|at|in) (?:{_NAME} ){{1,4}}{_NO_YEAR}|\b[Ll]ives? (?:on|at) \d{{1,5}} {_NAME}"
    r"|(?i:\b(?:p\.? ?o\.? ?box|postfach|apartado|bo[iî]te postale|casilla) \d{1,6})\b"
    r"|(?i:\b(?:unit|psc) \d{1,5},? box \d{1,5}|\b[adf]po,? a[aep] \d{5}\b)"
    r"|\bFlat \d{1,4}[A-Za-z]?,? [A-Z][\w'’-]+ [A-Z]"
    rf"|(?i:(?<!\w){_UNIT}{_GAP}(?:[\w.'’-]{{1,24}}{_GAP}){{1,6}}\d{{3,6}}\b)"
)
_PART_HINTS = (
    *(
        "corner of",
        "live",
        "box",
        "postfach",
        "apartado",
        "casilla",
        "po a",
        "po, a",
        "flat",
        "apt",
        "suite",
        "ste",
    ),
    *("apartment", "appt", "postale"),
)
_CHINESE_ADDRESS = re.compile(r"[一-鿿]{1,12}(?:路|街|道|巷|弄)[一-鿿]{0,4}\d{1,5}号|\d{1,4}号楼?\d{1,5}室")


_ANY_DIGIT = re.compile(r"\d")
_WORD_AND_NUMBER = re.compile(r"[^\W\d]\.?[ ,]{1,3}(?:n[°º]? ?)?\d")
RULES = (
    Rule("email", _EMAIL, ("@",), when(lambda address: not is_sample_email(address))),
    Rule("phone", _PHONE, _SEVEN_DIGITS, _phone),
    Rule("phone", _CALLED_PHONE, _SEVEN_DIGITS, _called_phone),
    Rule(
        "ip_address",
        re.compile(r"(?<![\w.+-])\d{1,3}(?:\.\d{1,3}){3}(?![\w-]|\.\w)", re.ASCII),
        re.compile(r"\d\.\d{1,3}\.\d"),
        _ip,
    ),
    Rule(
        "ip_address",
        re.compile(r"(?<![\w:.])[0-9A-Fa-f]{1,4}(?::{1,2}[0-9A-Fa-f]{1,4}){3,7}(?::{2})?(?![\w:.])"),
        re.compile(r"[0-9A-Fa-f]:[0-9A-Fa-f:]{1,5}:"),
        _ip,
    ),
    Rule("address", _NUMBER_FIRST, _ANY_DIGIT, _address),
    Rule("address", _CODES, re.compile(r"[A-Z]\d|\d [A-Z]{2},|[A-Z]{2} \d{5}"), _address),
    Rule("address", _NUMBER_LAST, _WORD_AND_NUMBER, _number_last),
    Rule("address", _PARTS, _PART_HINTS, _address),
    Rule("address", _CHINESE_ADDRESS, re.compile("[号室]"), _address),
)
