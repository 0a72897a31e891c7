"""Rules for what a person says about the text itself: that it is confidential, or must not go elsewhere."""

from __future__ import annotations

import re

from mead.router.classifier.rule import Rule, always

_NEGATED = (
    r"(?:do not|don'?t|(?<!is )(?<!are )(?<!was )never|must ?n[o']t|may not|cannot|can'?t|should ?n[o']t|no"
    r"|not to be"
    r"|nothing may)"
)
_SEND = (
    r"(?:sen[dt]|shared?|upload(?:ed)?|forward(?:ed)?|transmit(?:ted)?|pass(?:ed)?|expos\w{1,2}"
    r"|export(?:ed)?|us(?:e|ing)"
    r"|call(?:ing)?)"
)
_ELSEWHERE = (
    r"(?:cloud|external|extern|outside|third[- ]part|anyone|anybody|off[- ]?(?:site|prem)|internet|openai"
    r"|anthropic"
    r"|chatgpt|public api|remote|other compan)"
)
_ELSEWHERE_HINTS = (
    *(
        "cloud",
        "extern",
        "outside",
        "third",
        "anyone",
        "anybody",
        "off-",
        "offsite",
        "internet",
        "openai",
        "anthropic",
    ),
    *("chatgpt", "public api", "remote", "other compan"),
)
_HERE = (
    r"(?:locally|local(?=[.,;:!?)]|\s*$|[ -]only)|on[- ]?prem\w{0,6}|in[- ]?house|internally|offline"
    r"|on[- ]device"
    r"|on this (?:machine|device|computer|laptop))"
)
_HERE_HINTS = (
    "local",
    "prem",
    "house",
    "internally",
    "offline",
    "device",
    "this machine",
    "this computer",
    "this laptop",
)
_PLACES = (
    r"(?:network|premises|machine|device|computer|laptop|building|company|country|organi[sz]ation|team"
    r"|infrastructure"
    r"|jurisdiction|servers?|environment|data ?cent\w{2}|tenant|borders?|region|eu|operations|staff|office)"
)
_WITHIN = r"(?:with)?in(?:side)?"
_SOME = r"[^.!?\n]{0,40}?\b"

_DIRECTIVES = (
    (rf"\b{_NEGATED} (?:be |ever )?{_SEND}\b[^.!?\n]{{0,60}}?\b{_ELSEWHERE}", _ELSEWHERE_HINTS),
    (
        rf"\b{_NEGATED} (?:ever )?(?:leave|exit|cross|go outside)\b{_SOME}{_PLACES}\b",
        ("leave", "exit", "cross", "go outside"),
    ),
    (
        r"\b(?:keep|process|handle|analy[sz]e|treat|run) (?:this|it|these|that|everything"
        r"|all(?: of)? (?:this|it)"
        rf"|the (?:data|file|text|following))\b{_SOME}(?:{_HERE}|confidential|private|secret|to yourself"
        rf"|between us)(?!\w)",
        (*_HERE_HINTS, "confidential", "private", "secret", "to yourself", "between us"),
    ),
    (
        r"\b(?:must|ha(?:s|ve) to|needs? to|should|shall|may only|is to|to) (?:be |only )?(?:stay|remain"
        r"|kept|processed"
        rf"|handled|stored|run)\b{_SOME}(?:{_HERE}|{_WITHIN} (?:our|the|this) {_SOME}{_PLACES}\b|in our\b)",
        (
            *_HERE_HINTS,
            "within",
            "inside",
            "in our",
            "stay in",
            "kept in",
            "remain in",
            "processed in",
            "stored in",
        ),
    ),
    (
        rf"\b(?:restricted|limited|confined) to (?:our|this|these) {_SOME}{_PLACES}\b"
        rf"|\bonly {_WITHIN} (?:our|the|this) {_SOME}{_PLACES}\b",
        ("restricted to", "limited to", "confined to", "only within", "only in"),
    ),
    (
        r"\bfor (?:internal use|your eyes|internal eyes) only\b|\bnot for (?:distribution|external|onward"
        r"|circulation)\b"
        r"|\bdo not (?:distribute|circulate|disclose|redistribute)\b|\boff the record\b|\bstays? between us\b"
        r"|\bunder (?:nda|embargo)\b",
        (
            "use only",
            "eyes only",
            "not for ",
            "do not ",
            "off the record",
            "between us",
            "under nda",
            "under embargo",
        ),
    ),
    (
        r"(?:不要|不能|不得|不可|禁止|请勿|勿)[^。！？\n]{0,12}(?:外部|云|外网|第三方|离开|上传|外传|出境|泄露|境外|公网)"
        r"|(?:本地|内网|离线)[^。！？\n]{0,6}(?:处理|运行|分析|完成|执行)"
        r"|(?:必须|只能|仅限|仅在|都要)[^。！？\n]{0,24}(?:本地|境内|内网|内部环境)",
        ("不", "禁止", "勿", "本地", "内网", "离线", "境内", "内部环境"),
    ),
    (
        r"\b(?:nicht|nie) (?:an dritte|in die cloud|nach außen|extern|weitergeben|weiterleiten)"
        r"|\b(?:darf|dürfen) (?:das haus|die firma|unser \w{1,20}) nicht verlassen"
        r"|\bne (?:pas|jamais) (?:diffuser|partager|envoyer|divulguer|transmettre)"
        r"|\bno (?:compartir|enviar|difundir|divulgar)\b|\bnon (?:condividere|inviare|divulgare|diffondere)\b"
        r"|\bniet (?:delen|doorsturen|verspreiden)\b",
        (
            *(
                "nicht ",
                "nie ",
                "verlassen",
                "ne pas",
                "ne jamais",
                "no comp",
                "no env",
                "no dif",
                "no div",
                "non cond",
            ),
            *("non inv", "non div", "non diff", "niet "),
        ),
    ),
)
_MARK = re.compile(
    r"(?im)(?:^|[:.!?\"] )\W{0,4}(?:(?!about|what|how|why|the|is)\w{1,20} ){0,2}(?:confidential|confidencial"
    r"|confidentiel(?:le)?"
    r"|vertraulich\w{0,2}|riservat[oa]|confidenziale|vertrouwelijk|streng geheim|top secret|internal only"
    r"|internal use"
    r"|company internal|privileged|nur intern|usage interne|uso interno)"
    r"(?: (?:draft|memo|document|and proprietary|und intern|only))?\W{0,2}[:\])—-]"
    r"|机密[:】]|内部资料|社外秘|部外秘"
)
_MARK_HINTS = (
    *(
        "confiden",
        "vertraulich",
        "riservat",
        "vertrouwelijk",
        "geheim",
        "top secret",
        "internal only",
        "internal use",
    ),
    *(
        "company internal",
        "privileged",
        "nur intern",
        "usage interne",
        "uso interno",
        "机密",
        "内部",
        "社外",
        "部外",
    ),
)

RULES = (
    *[Rule("directive", re.compile(regex, re.IGNORECASE), hint, always) for regex, hint in _DIRECTIVES],
    Rule("confidential_mark", _MARK, _MARK_HINTS, always),
)
