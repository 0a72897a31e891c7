"""What only looks private: examples of documentation, placeholders, and what everybody knows anyway."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from math import log2

_PLACEHOLDER = re.compile(
    r"(?i)x{4}|\*{3}|\.{3}|…|•|<[^>]*>?|\$\{|\{\{|%\(|\bexample\b|_?your[_-]|^your|change.?me|placeholder"
    r"|dummy|redacted"
    r"|^(?:string|str|int|none|null|undefined|true|false|required|optional|password|passwd|secret|token|test"
    r"|todo)\W?$"
    r"|^\$[a-z_]+$|^%\w+%$|insert[_-]|replace[_-]|(?:key|token|password|secret)[_-]?here|0{8}|(?:1234){3}"
)
_CALL_OR_NAME = re.compile(
    r"[A-Za-z_]{2,}(?:\.[A-Za-z_]+)*[(\[]|(?:[a-z_]{2,}\.)+[A-Za-z_]{2,}$|(?:os|process)\.env"
)


def is_placeholder(value: str) -> bool:
    """Whether a value stands for one: `<your-key>`, `xxxx`, a variable, a call."""
    return bool(_PLACEHOLDER.search(value) or _CALL_OR_NAME.match(value)) or len(set(value)) <= 3


def entropy_bits(value: str) -> float:
    """Shannon's entropy of the value's characters, in bits a character."""
    total = len(value)
    return -sum([count / total * log2(count / total) for count in Counter(value).values()]) if value else 0.0


_SAMPLE_DOMAIN = re.compile(
    r"(?:^|\.)(?:example|test|invalid|localhost|local)(?:\.|$)|^(?:your|my)?(?:domain|company|email|host"
    r"|site|server)\."
)
_FILE_ENDING = re.compile(r"\.(?:png|jpe?g|gif|svg|webp|js|ts|css|py|json|md|html?|txt|so|dll)$")
_ROLE = re.compile(r"^(?:no-?reply|do-?not-?reply|postmaster|mailer-daemon|abuse|hostmaster|git)$")


def is_sample_email(address: str) -> bool:
    """Addresses of RFC 2606's domains, of nobody (`noreply@`), and what is no address (`icon@2x.png`)."""
    local, _, domain = address.lower().rpartition("@")
    return bool(_SAMPLE_DOMAIN.search(domain) or _FILE_ENDING.search(domain) or _ROLE.match(local))


_FICTIONAL = re.compile(r"555\D{0,2}01\d\d$")
_TOLL_FREE = re.compile(r"(?:1\D?)?\(?8(?:00|33|44|55|66|77|88)\)?\D")


def is_sample_phone(number: str) -> bool:
    """A number kept for fiction (555-01xx, without an area code), a toll-free one, or digits in order."""
    digits = re.sub(r"\D", "", number)
    if _FICTIONAL.search(number) and len(digits) <= 7:
        return True
    if digits.startswith(("555555", "123456", "1234567", "01234567")) or len(set(digits)) <= 2:
        return True
    return bool(_TOLL_FREE.match(number.removeprefix("+")))


_KNOWN_HOSTS = {
    *(
        "8.8.8.8",
        "8.8.4.4",
        "1.1.1.1",
        "1.0.0.1",
        "9.9.9.9",
        "149.112.112.112",
        "208.67.222.222",
        "208.67.220.220",
    ),
    *(
        "1.2.3.4",
        "4.3.2.1",
        "4.4.4.4",
        "4.2.2.2",
        "4.2.2.1",
        "94.140.14.14",
        "76.76.2.0",
        "64.6.64.6",
        "1.1.1.2",
    ),
    *(
        "2001:4860:4860::8888",
        "2001:4860:4860::8844",
        "2606:4700:4700::1111",
        "2606:4700:4700::1001",
        "2620:fe::fe",
    ),
}


def is_public_host(address: str) -> bool:
    """Whether an IP address tells of nobody: private networks, documentation, well-known resolvers."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return True
    if parsed.version == 6 and not parsed.exploded.startswith(("2", "3")):
        return True
    return not parsed.is_global or parsed.is_multicast or str(parsed) in _KNOWN_HOSTS


_FAMOUS = re.compile(
    r"(?i)\b(?:10,? downing st|1600,? (?:pennsylvania av|amphitheatre p)|221 ?b,? baker st|4,? privet drive"
    r"|1,? infinite loop|(?:1|one) apple park|350 (?:fifth|5th) av|1,? hacker way|(?:1|one) microsoft way"
    r"|742 evergreen terrace|11 wall st|20 w(?:est)?\.? 34th st|1260 6th av|30 rockefeller|5,? avenue anatole"
    r"|55,? rue du faubourg|12 grimmauld|32 windsor gardens|platz der republik 1|42 wallaby|31 spooner st"
    r"|(?:123|1|12|42|1234|456),? (?:main|fake|any|elm|high|sample|example) (?:st|road|rd|av))"
)


def is_famous_address(address: str) -> bool:
    """Addresses that everybody knows, of the world or of fiction."""
    return _FAMOUS.search(address) is not None
