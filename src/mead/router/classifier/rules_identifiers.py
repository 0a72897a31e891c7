"""Rules for numbers that stand for a person: cards, accounts, national identifiers, birth dates.

What has a checksum is checked by it. What has none counts only near a word that says what it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from mead.router.classifier import checksums
from mead.router.classifier.rule import Rule, Span, before

_DIGITS = re.compile(r"\d\D{0,2}\d\D{0,2}\d\D{0,2}\d")
_GROUP = re.compile(r"\d+")
_CARD_SHAPES = {(4, 4, 4, 4), (4, 4, 4, 4, 3), (4, 6, 5), (4, 6, 4), (4, 5, 6), (4, 4, 4, 1), (4, 4, 5)}


def _card(match: re.Match[str]) -> Span | None:
    """The whole row, or the groups of it that have a card's usual shape: an expiry date may stand beside."""
    groups = [(group.start(), group.end(), group.group()) for group in _GROUP.finditer(match.group())]
    digits = "".join([group[2] for group in groups])
    if checksums.is_card(digits):
        return match.span()
    for first in range(len(groups)):
        for last in range(first, min(first + 5, len(groups))):
            part = groups[first : last + 1]
            sizes = tuple([len(group[2]) for group in part])
            if (len(sizes) == 1 or sizes in _CARD_SHAPES) and checksums.is_card(
                "".join([g[2] for g in part])
            ):
                return match.start() + part[0][0], match.start() + part[-1][1]
    return None


def _iban(match: re.Match[str]) -> Span | None:
    """As many letters and digits as the country's IBANs have; anything may follow after a space."""
    length = checksums.iban_length(match.group()[:2])
    if length is None:
        return None
    found = ""
    for place, ch in enumerate(match.group()):
        if ch.isalnum():
            found += ch
        if len(found) == length:
            end = match.start() + place + 1
            whole = end >= len(match.string) or not match.string[end].isalnum()
            return (match.start(), end) if whole and checksums.is_iban(found.upper()) else None
    return None


def _bare(match: re.Match[str]) -> str:
    return re.sub(r"[^0-9A-Za-z]", "", match.group())


def _ssn(match: re.Match[str]) -> Span | None:
    return match.span() if checksums.is_ssn(_bare(match)) else None


_PERSONAL = re.compile(
    r"(?i)\b(?:ssn|social sec|social insurance|\bsin\b|itin|tax|tin\b|nhs|bsn|burgerservice|sofi|dni|nie\b"
    r"|nif\b"
    r"|cpf|pesel|personnummer|aadhaar|aadhar|uidai|pan\b|steuer|idnr|nir\b|s[ée]cu|insee|codice fiscale|tfn"
    r"|medicare"
    r"|national (?:id|insurance)|ni number|nino|id(?:entity|entification)? (?:card|no|num)|personal (?:id|no"
    r"|num|code)"
    r"|patient|citizen|cédula|cedula|rfc\b|curp)|身份证|证件"
)


# Seven digits, or a part of an Italian, British or Indian identifier.
_ROW_OF_DIGITS = re.compile(r"\d(?:(?:\D?\d){6}|\d[A-Za-z]\d\d[A-Za-z]\d|\d ?\d\d ?\d\d ?[A-D]|\d{3}[A-Z])")
_STRONG_IDS = (
    # kind, pattern, checksum; the shape and the checksum together are rare by chance.
    ("spanish_id", r"(?:\d{8}|[XYZxyz]-?\d{7})[ -]?[A-Za-z]", checksums.is_dni),
    (
        "italian_id",
        r"[A-Za-z]{6}\d{2}[A-EHLMPRSTa-ehlmprst]\d{2}[A-Za-z]\d{3}[A-Za-z]",
        checksums.is_codice_fiscale,
    ),
    (
        "french_id",
        r"[12] ?\d\d ?(?:0[1-9]|1[0-2]|[2-9]\d) ?(?:\d\d|2[ABab]) ?\d{3} ?\d{3} ?\d\d",
        checksums.is_nir,
    ),
    ("brazilian_id", r"\d{3}\.\d{3}\.\d{3}-\d{2}", checksums.is_cpf),
    ("chinese_id", r"\d{17}[\dXx]", checksums.is_chinese_id),
    ("indian_id", r"[2-9]\d{3}[ -]\d{4}[ -]\d{4}", checksums.is_aadhaar),
    ("british_id", r"\d{3}[ -]\d{3}[ -]\d{4}", checksums.is_nhs),
)


_WEAK_IDS = (
    # The same, for shapes that other numbers have as well: these need a word beside them.
    ("british_id", r"\d{10}", checksums.is_nhs),
    ("dutch_id", r"\d{9}|\d{4}\.\d{2}\.\d{3}", checksums.is_bsn),
    ("brazilian_id", r"\d{11}", checksums.is_cpf),
    ("polish_id", r"\d{11}", checksums.is_pesel),
    ("indian_id", r"[2-9]\d{11}", checksums.is_aadhaar),
    ("german_id", r"[1-9]\d(?: ?\d{3}){3}", checksums.is_steuer_id),
    ("swedish_id", r"(?:19|20)?\d{6}[-+]?\d{4}", lambda text: checksums.luhn(text[-10:])),
    ("canadian_id", r"\d{3}[ -]?\d{3}[ -]?\d{3}", checksums.luhn),
    ("ssn", r"\d{3}[ .]?\d{2}[ .]?\d{4}", checksums.is_ssn),
)
_SHAPED_IDS = (
    # No checksum, but a shape that little else has.
    ("british_id", r"(?!BG|GB|NK|KN|TN|NT|ZZ)[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?\d\d ?\d\d ?\d\d ?[A-D]"),
    ("indian_id", r"[A-Z]{3}[ABCFGHLJPT][A-Z]\d{4}[A-Z]"),
)


def _id_rule(kind: str, shape: str, is_valid: Callable[[str], bool], *, needs_word: bool) -> Rule:
    def check(match: re.Match[str]) -> Span | None:
        if needs_word and not _PERSONAL.search(before(match)):
            return None
        return match.span() if is_valid(_bare(match)) else None

    regex = re.compile(rf"(?<![\w.+-])(?:{shape})(?![\w-]|[.,]\d)", re.ASCII)
    return Rule(kind, regex, _ROW_OF_DIGITS, check)


_LABELLED = re.compile(
    r"(?i)(?:\b(?:passport|reisepass|passeport|pasaporte|passaporto|paspoort|passnummer"
    r"|driv(?:er'?s?|ing) ?licen[cs]e|dl|führerschein|permis de conduire|licencia de conducir"
    r"|carnet de conducir|patente"
    r"|rijbewijs|licen[cs]e plate|number plate|vin|national id|id card|identity card|personalausweis"
    r"|carte d'identité"
    r"|account|acct|konto|compte|cuenta|routing|sort code|bank code|medical record|mrn|patient id|member id"
    r"|health card"
    r"|insurance|policy|medicare|medicaid|employee id|tax id|taxpayer id|visa|green card|voter id|student id"
    r")s?|护照|身份证|驾照|驾驶证|账号|卡号)"
    r"(?:[ _-]?(?:card|number|num|no|nr|id|code|numéro|número|numero|nummer|号|号码)\b\.?){0,2}"
    r"[ \t]?(?:is|was|are|ist|est|es|è|:|=|#|：|,|\()?[ \t]?[:#]?[ \t]?[\"']?"
    r"(?P<value>[A-Za-z]{0,5}[ -]?\d[A-Za-z0-9]{1,18}(?:[ -][A-Za-z0-9]*\d[A-Za-z0-9]*){0,5})(?!\w)"
)
_SOME_DIGITS = re.compile(r"\d[\w -]{0,6}\d[\w -]{0,6}\d")


def _labelled(match: re.Match[str]) -> Span | None:
    value = match.group("value")
    digits = [ch for ch in value if ch.isdigit()]
    mixed = len(digits) >= 3 and len(value) >= 8 and value.isalnum() and value.isupper()
    if (len(digits) < 5 and not mixed) or len(set(value)) < 4 or _is_counting("".join(digits)):
        return None
    return match.span("value")


def _is_counting(digits: str) -> bool:
    """Whether the digits are typed in order, as people do for an example."""
    return len(digits) > 6 and digits in "01234567890123456789"


_MONTHS = (
    r"(?:jan|feb|mar|mär|apr|may|mai|mei|jun|jui|jul|aug|ago|aoû|sep|set|oct|okt|ott|out|nov|dec|dez|dic|déc"
    r"|ene|abr|gen|mag|giu|lug|fév|fev|avr)[a-zéûäç]{0,7}\.?"
)
_DATE = (
    rf"(?:\d{{1,2}}(?:st|nd|rd|th|er|\.)? ?(?:de |of )?{_MONTHS},? ?(?:de |of )?(?:19|20)\d\d"
    rf"|{_MONTHS} \d{{1,2}}(?:st|nd|rd|th)?,? (?:19|20)\d\d"
    r"|\d{1,2}[./-]\d{1,2}[./-](?:(?:19|20)\d\d|\d\d)|(?:19|20)\d\d[./-]\d{1,2}[./-]\d{1,2}"
    r"|(?:19|20)\d\d年\d{1,2}月\d{1,2}日)"
)
_BIRTH = re.compile(
    r"(?i)(?:\b(?:born|d\.?o\.?b\.?|date of birth|birth ?da(?:te|y)|geb(?:oren|\.|urtsdatum)?|née?(?:\(e\))?"
    r"|date de naissance|nacid[oa]|fecha de nacimiento|nat[oa]|data di nascita|geboren|geboortedatum"
    r"|nascid[oa]"
    r"|data de nascimento)|出生日期|出生|生日)"
    r"[ :=\"'(]{0,4}(?:is |was |on |am |le |el |il |op |em |em: |on the )?(?P<value>" + _DATE + r")(?!\d)"
)


def _birth_date(match: re.Match[str]) -> Span | None:
    """Somebody who may be alive: what is older is history."""
    year = re.search(r"(?:19|20)\d\d", match.group("value"))
    return None if year and year.group() < "1915" else match.span("value")


_STRONG = tuple([_id_rule(*row, needs_word=False) for row in _STRONG_IDS])
_WEAK = tuple([_id_rule(*row, needs_word=True) for row in _WEAK_IDS])
_SHAPED = tuple([_id_rule(kind, shape, bool, needs_word=True) for kind, shape in _SHAPED_IDS])
RULES = (
    Rule(
        "card",
        re.compile(r"(?<![\w.])(?<!\d-)\d(?:[ .-]?\d){11,22}(?![\w.-]?\d)(?![A-Za-z_])", re.ASCII),
        re.compile(r"\d(?:[ .-]?\d){11}"),
        _card,
    ),
    Rule(
        "iban",
        re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2}\d{2}(?:[ -]?[A-Za-z0-9]){11,30}", re.ASCII),
        re.compile(r"[A-Za-z]{2}\d\d[ -]?\w"),
        _iban,
    ),
    Rule("ssn", re.compile(r"(?<![\w-])\d{3}-\d{2}-\d{4}(?![\w-])", re.ASCII), _DIGITS, _ssn),
    *_STRONG,
    *_WEAK,
    *_SHAPED,
    Rule("identity", _LABELLED, _SOME_DIGITS, _labelled),
    Rule(
        "birth_date",
        _BIRTH,
        (
            "born",
            "birth",
            "dob",
            "d.o.b",
            "geb",
            "née",
            "né ",
            "naissance",
            "naci",
            "nato",
            "nata",
            "nascid",
            "生",
        ),
        _birth_date,
    ),
)
