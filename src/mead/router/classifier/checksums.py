"""Checksums of cards and of national identifiers: what tells one from any other row of digits.

Each function takes the bare characters, without spaces or hyphens, and answers `False` for a wrong length.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_IBAN_LENGTHS = {
    code: length
    for length, codes in {
        15: "NO", 16: "BE", 18: "DK FO FI GL NL SD", 19: "MK SI", 20: "AT BA EE KZ LT LU XK MN",
        21: "CH HR LI LV", 22: "BG BH CR DE GB GE IE ME RS VA", 23: "AE GI IL IQ TL OM SO",
        24: "AD CZ ES MD PK RO SA SE SK TN VG", 25: "LY PT ST", 26: "IS TR", 27: "FR GR IT MC MR SM BI DJ",
        28: "AL AZ BY CY DO GT HU LB NI PL SV", 29: "BR EG PS QA UA", 30: "JO KW MU YE", 31: "MT SC",
        32: "LC", 33: "RU",
    }.items()
    for code in codes.split()
}  # fmt: skip


def iban_length(country: str) -> int | None:
    """How many characters an IBAN of a country has (ISO 13616 registry); `None` for no such country."""
    return _IBAN_LENGTHS.get(country.upper())


def is_iban(text: str) -> bool:
    """ISO 7064 mod 97-10."""
    moved = text[4:] + text[:4]
    return iban_length(text[:2]) == len(text) and int("".join([str(int(ch, 36)) for ch in moved])) % 97 == 1


def luhn(digits: str) -> bool:
    """ISO/IEC 7812-1, annex B; a row of one digit repeated does not count."""
    if len(digits) < 2 or len(set(digits)) == 1:
        return False
    values = [int(ch) for ch in digits]
    doubled = [value * 2 - 9 if value > 4 else value * 2 for value in values[-2::-2]]
    return (sum(values[-1::-2]) + sum(doubled)) % 10 == 0


_CARD_RANGES = (
    ("4", (13, 16, 19)),
    ("34 37", (15,)),
    ("51 52 53 54 55 222 223 224 225 226 227 228 229 23 24 25 26 270 271 2720", (16,)),
    ("6011 644 645 646 647 648 649 65 35 1800 2131", (15, 16, 19)),
    ("300 301 302 303 304 305 3095 36 38 39", (14,)),
    ("62 81", (16, 17, 18, 19)),
    ("50 56 57 58 60 61 63 66 67 68 69", (12, 13, 14, 15, 16, 17, 18, 19)),
)
_CARD_LENGTHS = {prefix: lengths for prefixes, lengths in _CARD_RANGES for prefix in prefixes.split()}


def is_card(digits: str) -> bool:
    """Luhn, and a prefix that a card network issues with that length."""
    lengths = next((_CARD_LENGTHS[digits[:n]] for n in (4, 3, 2, 1) if digits[:n] in _CARD_LENGTHS), ())
    return len(digits) in lengths and luhn(digits)


def _weighted(digits: str, weights: Sequence[int]) -> int:
    return sum([int(digit) * weight for digit, weight in zip(digits, weights, strict=False)])


def is_ssn(digits: str) -> bool:
    """A number that the US Social Security Administration may have issued, or an ITIN (area 9xx)."""
    area, group, serial = digits[:3], digits[3:5], digits[5:]
    if len(digits) != 9 or area in ("000", "666") or group == "00" or serial == "0000":
        return False
    return area < "900" or "50" <= group <= "99"


def is_nhs(digits: str) -> bool:
    """UK NHS number: ten digits, mod 11."""
    check = 11 - _weighted(digits[:9], range(10, 1, -1)) % 11
    return len(digits) == 10 and len(set(digits)) > 2 and digits[9] == str(check % 11) and check != 10


def is_dni(text: str) -> bool:
    """Spanish DNI or NIE: eight digits (X, Y, Z count 0, 1, 2) and a letter by mod 23."""
    number = text[:-1].upper().translate(str.maketrans("XYZ", "012"))
    return (
        len(number) == 8
        and number.isdecimal()
        and "TRWAGMYFPDXBNJZSQVHLCKE"[int(number) % 23] == text[-1].upper()
    )


_ODD = (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23)


def is_codice_fiscale(text: str) -> bool:
    """Italian tax code: sixteen characters, the last by mod 26."""
    text = text.upper()
    values = [int(ch) if ch.isdecimal() else ord(ch) - ord("A") for ch in text[:15]]
    total = sum([_ODD[value] if place % 2 == 0 else value for place, value in enumerate(values)])
    return len(text) == 16 and text[15] == chr(ord("A") + total % 26)


def is_nir(text: str) -> bool:
    """French social security number: thirteen digits (2A, 2B for Corsica) and a key by mod 97."""
    number = text[:13].upper().replace("2A", "19", 1).replace("2B", "18", 1)
    return len(text) == 15 and number.isdecimal() and int(text[13:]) == 97 - int(number) % 97


def is_cpf(digits: str) -> bool:
    """Brazilian CPF: eleven digits, two of them by mod 11."""
    if len(digits) != 11 or len(set(digits)) == 1:
        return False
    return all(int(digits[n]) == (_weighted(digits[:n], range(n + 1, 1, -1)) * 10 % 11) % 10 for n in (9, 10))


def is_bsn(digits: str) -> bool:
    """Dutch BSN: nine digits, the "eleven test"."""
    return (
        len(digits) == 9
        and len(set(digits)) > 2
        and _weighted(digits, (9, 8, 7, 6, 5, 4, 3, 2, -1)) % 11 == 0
    )


def is_pesel(digits: str) -> bool:
    """Polish PESEL: eleven digits that begin with a birth date, the last by mod 10."""
    day = int(digits[4:6] or 0)
    check = -_weighted(digits[:10], (1, 3, 7, 9, 1, 3, 7, 9, 1, 3)) % 10
    return len(digits) == 11 and 1 <= day <= 31 and int(digits[10]) == check


_TIMES = (
    "0123456789", "1234067895", "2340178956", "3401289567", "4012395678",
    "5987604321", "6598710432", "7659821043", "8765932104", "9876543210",
)  # fmt: skip
_TURNED = (
    "0123456789", "1576283094", "5803796142", "8916043527",
    "9453126870", "4286573901", "2793806415", "7046913258",
)  # fmt: skip


def is_aadhaar(digits: str) -> bool:
    """Indian Aadhaar number: twelve digits, Verhoeff."""
    check = 0
    for place, digit in enumerate(reversed(digits)):
        check = int(_TIMES[check][int(_TURNED[place % 8][int(digit)])])
    return len(digits) == 12 and digits[0] in "23456789" and check == 0


def is_chinese_id(text: str) -> bool:
    """Chinese resident identity number: seventeen digits and a check character (GB 11643)."""
    weights = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
    if len(text) != 18 or not "1900" <= text[6:10] <= "2100":
        return False
    return "10X98765432"[_weighted(text[:17], weights) % 11] == text[17].upper()


def is_steuer_id(digits: str) -> bool:
    """German tax id: eleven digits, ISO 7064 mod 11,10."""
    product = 10
    for digit in digits[:10]:
        product = ((int(digit) + product) % 10 or 10) * 2 % 11
    return len(digits) == 11 and digits[0] != "0" and (11 - product) % 10 == int(digits[10])


def is_isbn(text: str) -> bool:
    """A book's number of ten or thirteen digits."""
    text = re.sub(r"[ -]", "", text).upper()
    if len(text) == 10 and text[:9].isdecimal():
        last = 10 if text[9] == "X" else int(text[9]) if text[9].isdecimal() else -99
        return (_weighted(text[:9], range(10, 1, -1)) + last) % 11 == 0
    if len(text) == 13 and text.isdecimal() and text.startswith(("978", "979")):
        return _weighted(text, (1, 3) * 6 + (1,)) % 10 == 0
    return False
