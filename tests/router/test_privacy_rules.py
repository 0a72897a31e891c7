"""The rules: each kind is found, what only looks like it is not, no disguise helps, the time stays linear."""

from __future__ import annotations

import base64
import time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mead.router.classifier import checksums
from mead.router.classifier.normalise import normalise
from mead.router.classifier.patterns import find

CARD = "4012 8888 8888 1881"
# Put together here, so that no scanner of repositories takes them for leaked.
RANDOM = "aB3dE5fG7hJ9kL2mN4pQ6rS8tU1vW3xY5zA7b"
HEX = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b"


def kinds(text: str) -> set[str]:
    return {finding.kind for finding in find(text)}


PRIVATE = [
    ("card", f"my card is {CARD}"),
    ("card", "378282246310005"),
    ("card", f"{CARD} 12/29"),
    ("card", "5555-5555-5555-4444"),
    ("iban", "DE89 3704 0044 0532 0130 00"),
    ("iban", "gb82west12345698765432"),
    ("ssn", "078-05-1120"),
    ("ssn", "my SSN: 078 05 1120"),
    ("british_id", "943 476 5919"),
    ("british_id", "her NI number AB 12 34 56 C"),
    ("spanish_id", "12345678Z"),
    ("spanish_id", "X1234567L"),
    ("italian_id", "RSSMRA85T10A562S"),
    ("french_id", "2 55 08 14 168 025 38"),
    ("brazilian_id", "529.982.247-25"),
    ("dutch_id", "mijn BSN is 111222333"),
    ("indian_id", "2341 2341 2346"),
    ("indian_id", "PAN: ABCPE1234F"),
    ("chinese_id", "11010519491231002X"),
    ("polish_id", "PESEL 44051401359"),
    ("german_id", "Steuer-ID 86 095 742 719"),
    ("identity", "passport number is C01X00T47"),
    ("identity", "driver's license: D4471-56209-01834"),
    ("identity", "Reisepass Nr. C4VPR63HN2"),
    ("identity", "account number 4471 9923 01"),
    ("birth_date", "Ana, born 3 May 1984"),
    ("birth_date", "date of birth: 1984-05-03"),
    ("birth_date", "geboren am 3.5.1984"),
    ("email", "ada.lovelace@somewhere.org"),
    ("phone", "+49 30 901820"),
    ("phone", "(212) 736-5000"),
    ("phone", "212.736.5000 x12"),
    ("phone", "06 12 34 56 78"),
    ("phone", "+1 415 555 0142"),
    ("phone", "my number is 736 5002"),
    ("address", "14 Mulberry Lane"),
    ("address", "Sonnenallee 223"),
    ("address", "12 rue de la Paix"),
    ("address", "Calle de Alcalá 48"),
    ("address", "Via Garibaldi, 25"),
    ("address", "Prinsengracht 263"),
    ("address", "P.O. Box 4711"),
    ("address", "Springfield, IL 62704"),
    ("address", "SW1A 2AB"),
    ("ip_address", "83.169.41.7"),
    ("ip_address", "2a02:8108:4740:5b4:11aa:22bb:33cc:44dd"),
    ("private_key", "-----BEGIN RSA PRIVATE KEY-----\nabc"),
    ("api_key", "AKIA" + "QX7ZP2MWV4TB6RND"),
    ("api_key", "ghp_" + RANDOM),
    ("api_key", "github_pat_" + RANDOM),
    ("api_key", "glpat-" + RANDOM[:20]),
    ("api_key", "AIza" + RANDOM[:35]),
    ("api_key", "xoxb-" + "2837465-918273-" + RANDOM[:20]),
    ("api_key", "sk_live_" + RANDOM[:24]),
    ("api_key", "sk-ant-api03-" + RANDOM),
    ("api_key", "sk-proj-" + RANDOM),
    ("api_key", "OPENAI_API_KEY=sk-" + RANDOM),
    ("api_key", "npm_" + RANDOM[:36]),
    ("api_key", "pypi-" + RANDOM),
    ("api_key", "AC" + HEX[:32]),
    ("api_key", "SG." + RANDOM[:22] + "." + RANDOM),
    ("api_key", "110201543:" + "AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw9"[:35]),
    ("api_key", "hf_" + RANDOM[:34]),
    ("api_key", "dop_v1_" + HEX + HEX[:24]),
    ("api_key", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlMTIz"),
    ("api_key", "acme_sk_" + RANDOM[:24]),
    ("api_key", "Authorization: Bearer " + RANDOM),
    ("password", "postgres://admin:Hunter2go@db.internal:5432/prod"),
    ("password", "my password is )YN)S6e*4"),
    ("password", "DB_PASSWORD='vwhhR#caunQF'"),
    ("password", "SMTP_PASS = 7tGdZ*qBzavu"),
    ("password", "mot de passe : s3same!ouvre"),
    ("password", "密码是 hunter22!"),
    ("password", "# passphrase VjxpBtwbb"),
    ("password", "the webhook signing secret is " + HEX[:32]),
    ("password", "my PIN is 4831"),
    ("directive", "do not send this to any external service"),
    ("directive", "keep this analysis on-prem"),
    ("directive", "此数据不得上传到外部服务"),
    ("confidential_mark", "Strictly confidential: the plan"),
]
HARMLESS = [
    "card 4012 8888 8888 1882",
    "1234 5678 9012 3456 7890 1234",
    "DE89 3704 0044 0532 0130 01",
    "000-12-3456",
    "call 555-0100",
    "1-800-FLOWERS",
    "911",
    "somebody@example.com",
    "icon@2x.png",
    "noreply@bank.de",
    "127.0.0.1:8080, 10.0.0.7, 192.168.1.20 and 203.0.113.9",
    "DNS 8.8.8.8 and 1.1.1.1",
    "version 1.20.4.176",
    "7.19.82.51-build67357",
    "2001:db8::1 and fe80::1:2:3:4",
    "it was 12:30:45",
    f"commit {HEX}",
    f"sha256:{HEX}{HEX[:24]}",
    f'"integrity": "sha512-{RANDOM}{RANDOM}=="',
    "request id 9b204776-30c9-4b1a-be66-80e58c066a69",
    "2026-02-01T21:14:07.821Z pid=68405",
    "ISBN 978-3-16-148410-0",
    "ISBN 0-306-40615-2",
    "order number 4829104756",
    "invoice #0048291047",
    "5995 + 4108 + 7782 + 4087",
    "date 03-11-2000",
    "10 Downing Street",
    "1600 Pennsylvania Avenue NW",
    "221B Baker Street",
    "the battle took place in June 1990",
    "2D rendering, 3 more steps, Spring 2024, Python 3",
    "C. Multiply 25 by 5",
    "in the 1996 World Food Summit",
    "Albert Einstein was born in 1879",
    "born on 14 March 1879",
    "api_key = 'YOUR_API_KEY'",
    "password=<your-password>",
    "sk-...redacted...",
    "AKIAXXXXXXXXXXXXXXXX",
    "${{ secrets.GITHUB_TOKEN }}",
    "api_key = os.environ['API_KEY']",
    "password: string;",
    "password = getpass()",
    "my password is wrong, what now?",
    "how long should a password be?",
    "max_tokens=4096, token limit 128000",
    "the key idea is simple",
    "self.token = tokenizer.encode(text)",
    "https://user@host.org/path",
    "what is the cloud? never mind the external link",
    "a confidential informant in a novel",
    "keep the file on a local disk",
    "data:image/png;base64," + base64.b64encode(bytes(range(256))).decode(),
]


@pytest.mark.parametrize("kind,text", PRIVATE)
def test_r16_each_kind_is_found(kind: str, text: str) -> None:
    assert kind in kinds(text)
    assert kind in kinds(f"Please look at this: {text}\nThank you.")


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_looks_private_is_passed_over(text: str) -> None:
    assert find(text) == ()


@pytest.mark.parametrize(
    "text",
    [
        CARD.replace(" ", ""),
        " ".join(CARD.replace(" ", "")),
        "\u200b".join(CARD),
        CARD.translate({ord(digit): chr(ord(digit) + 0xFEE0) for digit in "0123456789"}),
        CARD.translate({ord(digit): chr(ord(digit) - 48 + 0x660) for digit in "0123456789"}),
        CARD.replace(" ", "\u00a0"),
        CARD.replace(" ", "\u2013"),
        "".join([chr(0xE0000 + ord(ch)) for ch in CARD]),
        base64.b64encode(f"card {CARD}".encode()).decode(),
        base64.urlsafe_b64encode(f"card {CARD}".encode()).decode().rstrip("="),
        quote(CARD, safe=""),
        "".join([f"%{ord(ch):02x}" for ch in CARD]),
    ],
    ids=[
        *("bare", "spaced", "zero-width", "fullwidth", "arabic", "no-break", "dashes", "tags", "base64"),
        *("base64url", "percent", "all percent"),
    ],
)
def test_r16_a_disguised_card_is_found_where_it_stands(text: str) -> None:
    before = "Bitte prüfen: "

    found = [finding for finding in find(f"{before}{text} danke") if finding.kind == "card"]

    assert found
    assert len(before) <= found[0].start < found[0].end <= len(before) + len(text)
    assert found[0].end - found[0].start >= len(text) - 1


def test_a_key_with_an_invisible_character_inside_is_found() -> None:
    assert kinds("AKIA\u200bIOSFODNN7EXAMPLE") == {"api_key"}


@given(st.text(st.characters(), max_size=400))
def test_plain_text_knows_where_each_character_came_from(text: str) -> None:
    plain = normalise(text)

    for place in range(len(plain.text)):
        start, end = plain.span(place, place + 1)
        assert 0 <= start < end <= len(text)


def test_checksums_turn_down_each_single_wrong_digit() -> None:
    checks = [
        (checksums.luhn, "4012888888881881"),
        (checksums.is_iban, "DE89370400440532013000"),
        (checksums.is_nhs, "9434765919"),
        (checksums.is_cpf, "52998224725"),
        (checksums.is_bsn, "111222333"),
        (checksums.is_aadhaar, "234123412346"),
        (checksums.is_steuer_id, "86095742719"),
        (checksums.is_isbn, "9783161484100"),
    ]
    for check, value in checks:
        assert check(value)
        for place, digit in enumerate(value):
            if digit.isdecimal() and place > 1:
                wrong = value[:place] + str((int(digit) + 1) % 10) + value[place + 1 :]
                assert not check(wrong), (check, wrong)


REPEATED = [
    *(
        "1 ",
        "1-",
        "1",
        "0",
        "0 1 ",
        "4111 1111 ",
        "AA11 ",
        "AA11 A ",
        "111-11-",
        "+1 ",
        "+1(1)",
        "(0",
        "1\t2\t",
        "1.",
    ),
    *(
        "a@",
        "a.",
        "a@a.",
        "a.b@c",
        "@",
        "1.1.1.",
        "1:1:",
        "a:b:",
        "12 Ab ",
        "12 Main ",
        "Via A ",
        "Rue de ",
        "12 rue a ",
    ),
    *(
        "Apt 1 ",
        "suite 123,",
        "Str. ",
        "weg 1 ",
        "corner of a ",
        "lives on A ",
        "A1 ",
        "Ab AB 12345",
        "1990 AB, ",
    ),
    *(
        "-----BEGIN A ",
        "-",
        "sk-",
        "sk-a-",
        "eyJ-",
        "eyJaaaaaaaaaa.eyJ",
        "xoxb-",
        "AKIA",
        "SG.aaaaaaaaaaaaaaaaa.",
        "$2a$",
    ),
    *(
        "ab_cd_",
        "pul-",
        "12345678:",
        "MAAAAAAAAAAAAAAAAAAAAAAA.",
        "password ",
        "password:",
        "token is ",
        "key=",
        "Bearer ",
    ),
    *(
        "http://a:",
        "://",
        "%41",
        "%",
        "QUJD",
        "AAAA\n",
        "e\u0301",
        "\u200b",
        "一",
        "１",
        "\n",
        "born ",
        "passport ",
        "id 1",
    ),
    *(
        "do not send ",
        "keep this ",
        "must be kept ",
        "only within our ",
        "不要",
        "confidential ",
        "\ud800",
        '"',
        "(",
    ),
]


@pytest.mark.parametrize("repeated", REPEATED)
def test_no_text_makes_the_time_grow_faster_than_its_length(repeated: str) -> None:
    def taken_s(chars: int) -> float:
        text = repeated * (chars // len(repeated)) + "!"
        started = time.process_time()
        find(text)
        return time.process_time() - started

    taken_s(1_000)
    short = min(taken_s(25_000), taken_s(25_000))
    long = min(taken_s(200_000), taken_s(200_000))

    # In proportion it is 8 times as long; with the square of the length it would be 64 times.
    assert long < 24 * max(short, 0.004)
