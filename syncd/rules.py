"""What a secret looks like. Rules give places in a text; what happens there is not their business.

Each rule has needles, texts without which it cannot match: looking for those is cheap, and nearly
always enough. (detect-secrets takes 7 ms for a small checkpoint, gitleaks' rules in Python 0.35 and
100 more to import; a write has 0.06.) Patterns are compiled when first needed. Whatever they repeat
is bounded or cannot be matched in two ways, so that a long text takes no longer than its length.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import NamedTuple

Span = tuple[int, int]
Spans = Iterable[Span]
Judge = Callable[[re.Match[str]], bool]


class Rule(NamedTuple):
    """`needles` are lower case. With `one_word`, what it finds begins a word of WORD letters or
    more, and what it needs to know it by stands in that word."""

    name: str
    needles: tuple[str, ...]
    find: Callable[[str], Spans]
    one_word: bool = False


WORD = 16


def secret_span(match: re.Match[str]) -> Span:
    """The group named `secret` where there is one, else all of it."""
    return match.span("secret" if "secret" in match.re.groupindex else 0)


@cache
def _compiled(source: str) -> re.Pattern[str]:
    return re.compile(source)


def _matching(source: str, judge: Judge | None = None) -> Callable[[str], Spans]:
    def find(text: str) -> Iterator[Span]:
        for match in _compiled(source).finditer(text):
            if judge is None or judge(match):
                yield secret_span(match)

    return find


# --- what is no secret though it has the form of one --------------------------------------------

_EXAMPLE = r"(?i)example|placeholder|redacted|[x*#•]{6}|\.{3}|…|0{12}"
_TEMPLATE = (
    r"(?:PASSWORD|PASS|SECRET|TOKEN)\Z|\$\{|\$\(|\{\{|%\(|%[sd]\Z|\$[A-Za-z_]\w*\Z|"
    r"[<{%\[].*[>}%\]]\Z|[%*x•.…]+\Z"
)
_WORDS = (
    r"(?i)(?:your|my|the|some|any|no|not|an?|sample|dummy|fake|test|change|changeme|changeit|insert|"
    r"enter|replace|todo|hidden|masked|removed|none|null|nil|undefined|true|false|yes|required|"
    r"optional|string|str|text|bytes|secret|password|passwd|passphrase|token|key|api|empty|unset|"
    r"default|prompt|stdin|env|vault|keyring|expired|missing)(?![a-z0-9])"
)
_PATH = r"[~/]|\.{1,2}/|[A-Za-z]:\\|[a-z][a-z0-9+.-]{1,20}://|[\w./-]*/[\w.-]*\.\w{1,5}\Z"
_BASE64 = r"[A-Za-z0-9/+]{40,}={0,2}\Z"
_IDENTIFIER = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*\Z"
_SLUG = r"(?:[A-Za-z]+\d{0,3}|\d{1,4})(?:[-_/.:+](?:[A-Za-z]+\d{0,3}|\d{1,4}))+\Z"


def _not_an_example(match: re.Match[str]) -> bool:
    return not _compiled(_EXAMPLE).search(match[0])


def _no_template(match: re.Match[str]) -> bool:
    value = match["secret"]
    return not (_compiled(_TEMPLATE).match(value) or _compiled(_EXAMPLE).search(value))


def _harmless(value: str) -> bool:
    if (
        _compiled(_TEMPLATE).match(value)
        or _compiled(_EXAMPLE).search(value)
        or _compiled(_WORDS).match(value)
    ):
        return True
    if not _compiled(_PATH).match(value):
        return False
    return not (_compiled(_BASE64).match(value) and _mixed(value, 3))


def _mixed(value: str, digits: int = 1) -> bool:
    """Letters, and some digits."""
    return any(c.isalpha() for c in value) and sum(c.isdigit() for c in value) >= digits


# --- values that are named: password=…, api_key: …, {"token": …} --------------------------------


class _Assigned(NamedTuple):
    """A value beside a name, as far as its surroundings tell whether it is meant literally."""

    value: str
    quoted: bool
    plainly: bool  # `=` without blanks, as nobody writes in a sentence
    called: bool  # a bracket follows: the name of a function


def _is_password(found: _Assigned) -> bool:
    """A password may be a word; in code and in sentences, a word is a name or a word."""
    value, least = found.value, 4 if found.quoted else 6
    if len(value) < least or _harmless(value) or any(c.isspace() for c in value):
        return False
    if found.quoted:
        return True
    if _compiled(_IDENTIFIER).match(value):
        if found.called or "." in value:
            return False
        return (found.plainly and "_" not in value) or _mixed(value)
    if _compiled(_SLUG).match(value):
        return found.plainly and any(c.isalpha() for c in value)
    return any(c.isalpha() for c in value) or value.isdigit()


def _is_key(found: _Assigned) -> bool:
    """Keys and tokens are made by machines: long, with letters and digits."""
    value = found.value
    if len(value) < 10 or _harmless(value) or any(c.isspace() for c in value):
        return False
    if _compiled(_SLUG).match(value) or not _mixed(value):
        return False
    return (
        found.quoted
        or not _compiled(_IDENTIFIER).match(value)
        or (_mixed(value, 2) and not found.called)
    )


NAMING = {"password": _is_password, "api-key": _is_key}
_NAMES = {"password": r"(?:passw(?:or)?d|passphrase|pwd)", "api-key": r"(?:secret|token|key)"}
_SUFFIX = (
    r"(?:[_-]?(?:access[_-]?)?key(?:[_-]?base)?)?"
    r"(?:[_-](?:prod|production|staging|stage|dev|test|live|value|old|new))?[_-]?\d{0,3}"
)
# Most keys open nothing.
_KIND_OF_KEY = (
    r"(?i)(?:api|access|account|auth|private|encryption|signing|master|license|subscription|"
    r"service|storage)[ _-]?\Z"
)
_OPTION = r"--[\w-]{0,30}\Z"
_ASSIGNMENT = r"""(?ix)
  (?P<between>
    \\?["'`]? \]? [ \t]{0,3} (?: => | := | [:=]=? ) \s{0,3}
    # x: str = "…"
    (?: (?<=[:][ ]) &? [\w.\[\]]{1,30} \s{0,3} = \s{0,3} (?=["'`]) )?
  | [ ]{1,3}
  )
  (?P<quote>\\?(?P<sign>["'`]))?
  (?P<secret>
    (?(quote) (?: (?!\\?(?P=sign)) [^\n] ){4,LONG} | [^\s"'`,;&|<>(){}\[\]\\]{4,LONG} )
  )
  (?P<after> [(\[]? )
"""
_LONG = 100
_REST = r"[^\s\"'`]*+"


def _lowered(text: str) -> str:
    """In ASCII only, so that places stay the same."""
    if text.isascii():
        return text.lower()
    return text.encode(errors="surrogatepass").lower().decode(errors="surrogatepass")


def _assigned(rule: str, *needles: str) -> Rule:
    """Looks beside each needle, instead of everywhere: these are common words."""
    source = _ASSIGNMENT.replace("(?ix)", f"(?ix){_NAMES[rule]}{_SUFFIX}")
    source = source.replace("LONG", str(_LONG))

    def find(text: str) -> list[Span]:
        lowered, spans = _lowered(text), set()
        for needle in needles:
            at = lowered.find(needle)
            while at >= 0:
                match = _compiled(source).match(text, at)
                if match and _is_literal(match) and NAMING[rule](_surroundings(match)):
                    spans.add((match.start("secret"), _end(match)))
                at = lowered.find(needle, at + 1)
        return sorted(spans)

    return Rule(rule, needles, find)


def _is_literal(match: re.Match[str]) -> bool:
    """Blanks alone give a value to an option of a command only."""
    before = match.string[max(match.start() - 32, 0) : match.start()]
    if match[0][:3].lower() == "key" and not _compiled(_KIND_OF_KEY).search(before):
        return False
    return bool(match["between"].strip() or _compiled(_OPTION).search(before))


def _surroundings(match: re.Match[str]) -> _Assigned:
    quoted = bool(match["quote"])
    value = match["secret"] if quoted else match["secret"].rstrip(".:!?")
    return _Assigned(value, quoted, match["between"] == "=", called=bool(match["after"]))


def _end(match: re.Match[str]) -> int:
    """Of a secret that is longer than what it takes to know it as one."""
    end = match.end("secret")
    rest = _compiled(_REST).match(match.string, end)
    return rest.end() if rest and end - match.start("secret") == _LONG else end


def named_secret(name: str, value: str) -> str | None:
    """The rule by which a value is a secret because of the name that it has in a document."""
    for rule, names in _NAMES.items():
        match = _compiled(rf"(?i){names}{_SUFFIX}\Z").search(name)
        if match and NAMING[rule](_Assigned(value, quoted=True, plainly=True, called=False)):
            bare_key = match[0][:3].lower() == "key"
            if not bare_key or _compiled(_KIND_OF_KEY).search(name[: match.start()]):
                return rule
    return None


# --- what says itself what it is ----------------------------------------------------------------

# Of a word; after a line break too that is written as in JSON.
_START = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))"


def _token(name: str, prefixes: str, rest: str, stem: str = "") -> Rule:
    """Prefixes that a service gives its tokens, separated by blanks, and what follows them. Where
    they have something in common, the stem, one needle does for all."""
    literal = prefixes.split()
    either = "|".join(map(re.escape, literal))
    source = rf"{_START}(?:{either}){rest}(?![A-Za-z0-9])"
    needles = (stem,) if stem else tuple(prefix.lower() for prefix in literal)
    return Rule(name, needles, _matching(source, _not_an_example), one_word=True)


_PRIVATE_TAG = r"(?i)<(/?)private>"


def _tagged(text: str) -> Iterator[Span]:
    """From the first opening tag to the next closing one, in one pass."""
    start = None
    for tag in _compiled(_PRIVATE_TAG).finditer(text):
        if not tag[1]:
            start = tag.start() if start is None else start
        elif start is not None:
            yield start, tag.end()
            start = None


_PEM = (
    r"-----BEGIN (?P<kind>[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?)-----"
    # Before Python 3.11.5, a group that gives nothing back may miss what it should find.
    r"[^-]*+(?:-(?!----)[^-]*+)*-----END (?P=kind)-----"
    # One that was cut off is as good as whole.
    r"|-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:\s|\\[nr])*[A-Za-z0-9+/=]{32}"
    r"[A-Za-z0-9+/=\s\\]*+"
)
_AUTHORIZATION = (
    r"(?i)authorization\\?[\"'`]?\s{0,3}[:=]\s{0,3}\\?[\"'`]?(?:(?:bearer|basic|token|digest|apikey)\s{1,3})?"
    r"(?P<secret>[A-Za-z0-9._~+/=-]{12,})"
)
_BEARER = r"(?i)\bbearer\s{1,3}(?P<secret>[A-Za-z0-9._~+/=-]{16,})"
_WEBHOOK = (
    r"://(?:hooks\.slack\.com/(?:services|workflows|triggers)"
    r"|(?:[a-z]{1,10}\.)?discord(?:app)?\.com/api/webhooks"
    r"|[\w-]{1,60}\.webhook\.office\.com/webhookb2)/(?P<secret>[\w/@.+-]{20,})"
)
_CURL = (
    r"\bcurl\b[^\n|;]{0,300}?\s(?:-u|--user)[ =]?[\"']?[^\s:\"']{1,100}:(?P<secret>[^\s\"']{4,})"
)


def _mixed_value(match: re.Match[str]) -> bool:
    return (
        _mixed(match["secret"])
        and _no_template(match)
        and not _compiled(_SLUG).match(match["secret"])
    )


RULES = (
    Rule("private", ("<private>",), _tagged),
    Rule("private-key", ("-----begin",), _matching(_PEM)),
    _token("aws-access-key", "AKIA ASIA ABIA ACCA", r"[A-Z2-7]{16}"),
    _token("google-api-key", "AIza", r"[\w-]{35}"),
    _token("google-token", "ya29. GOCSPX-", r"[\w-]{20,}"),
    Rule("azure-devops-token", ("azdo",), one_word=True, find=_matching(
        r"(?<![A-Za-z0-9])[A-Za-z0-9]{76}AZDO[A-Za-z0-9]{4}(?![A-Za-z0-9])")),
    Rule("azure-secret", ("q~",), one_word=True, find=_matching(
        r"(?<![\w.~-])[\w.~-]{3}\dQ~[\w.~-]{31,34}(?![\w~-])")),
    Rule("azure-signature", ("sig=",), _matching(r"[?&;]sig=(?P<secret>[A-Za-z0-9%+/=_-]{30,})")),
    _token("digitalocean-token", "dop_v1_ doo_v1_ dor_v1_", r"[a-f0-9]{64}", "_v1_"),
    _token("alibaba-access-key", "LTAI", r"[A-Za-z0-9]{16,26}"),
    _token("github-token", "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_", r"[A-Za-z0-9_]{30,255}"),
    _token("gitlab-token", "glpat- gldt- glrt- glcbt- glptt- glft- glsoat- glimt- glagent-",
           r"[\w.-]{20,}"),
    _token("slack-token", "xoxa- xoxb- xoxc- xoxd- xoxe- xoxe. xoxo- xoxp- xoxr- xoxs-",
           r"[\w-]{10}[\w.%-]*", "xox"),
    _token("slack-token", "xapp-", r"[\w-]{20,}"),
    _token("stripe-key", "sk_live_ rk_live_", r"[A-Za-z0-9]{16,}", "k_live_"),
    _token("stripe-key", "sk_test_ rk_test_", r"[A-Za-z0-9]{16,}", "k_test_"),
    Rule("stripe-key", ("whsec_",), _matching(_START + r"whsec_[A-Za-z0-9+/=]{16,}")),
    _token("anthropic-key", "sk-ant-", r"[\w-]{20,}"),
    _token("openai-key", "sk-", r"(?:(?:proj|svcacct|admin|or-v1)-[\w-]{20,}|[A-Za-z0-9]{32,})"),
    _token("ai-service-key", "gsk_ xai- pplx- hf_ r8_ nvapi-", r"[A-Za-z0-9]{28,}"),
    _token("langsmith-key", "lsv2_", r"(?:pt|sk)_[a-f0-9]{32}_[a-f0-9]{10}"),
    _token("npm-token", "npm_", r"[A-Za-z0-9]{36}"),
    _token("pypi-token", "pypi-", r"[\w-]{50,}"),
    _token("registry-token", "rubygems_ dckr_pat_", r"[\w-]{24,}"),
    _token("sendgrid-key", "SG.", r"[\w-]{16,40}\.[\w-]{16,}"),
    _token("mailgun-key", "key-", r"[a-f0-9]{32}"),
    _token("twilio-key", "SK", r"[a-f0-9]{32}"),
    _token("shopify-token", "shpat_ shpca_ shppa_ shpss_", r"[a-fA-F0-9]{32}", "shp"),
    _token("databricks-token", "dapi", r"[a-f0-9]{32}(?:-\d)?"),
    _token("vault-token", "hvs. hvb. hvr.", r"[\w-]{20,}"),
    _token("age-key", "AGE-SECRET-KEY-1", r"[0-9A-Z]{50,}"),
    _token("tailscale-key", "tskey-auth- tskey-api- tskey-client-", r"[\w-]{20,}", "tskey-"),
    _token("sentry-token", "sntrys_ sntryu_", r"[\w=.-]{20,}", "sntry"),
    _token("planetscale-token", "pscale_tkn_ pscale_pw_ pscale_oauth_", r"[\w=.-]{20,}", "pscale_"),
    _token("service-token", "PMAK- glsa_ glc_ NRAK- lin_api_ ntn_ ATATT3 dp.pt. dp.st. sbp_ "
           "sb_secret_ figd_ HRKU- sq0atp- sq0csp- nfp_ ops_eyJ", r"[\w=.-]{20,}"),
    Rule("telegram-token", (":aa",), _matching(r"(?<!\w)\d{8,10}:AA[\w-]{32,34}(?!\w)")),
    Rule("jwt", ("eyj",), one_word=True, find=_matching(
        _START + r"eyJ[\w-]{8,4000}(?:\.[\w-]{8,9000}){1,4}", _not_an_example)),
    Rule("webhook", ("://",), _matching(_WEBHOOK, _no_template)),
    Rule("url-password", ("://",), _matching(
        r"://[^\s/:@\"'`<>]{0,200}:(?P<secret>[^\s/\"'`<>]{1,300})@(?=[^\s@])", _no_template)),
    Rule("curl-password", ("curl",), _matching(_CURL, _no_template)),
    Rule("authorization", ("authoriz",), _matching(_AUTHORIZATION, _mixed_value)),
    Rule("authorization", ("bearer",), _matching(_BEARER, _mixed_value)),
    _assigned("password", "passw", "passphrase", "pwd"),
    _assigned("api-key", "secret", "token", "key"),
)  # fmt: skip


# --- what merely looks random -------------------------------------------------------------------

_RANDOM = r"(?<![\w+/=.-])[A-Za-z0-9+_-]{20,200}={0,2}(?![\w+/=-])"
_BITS_PER_LETTER = 3.9


def _looks_random(match: re.Match[str]) -> bool:
    text = match[0]
    kinds = (str.islower, str.isupper, str.isdigit)
    if not all(any(map(kind, text)) for kind in kinds) or _compiled(_EXAMPLE).search(text):
        return False
    counts, length = Counter(text).values(), len(text)
    return -sum(n / length * math.log2(n / length) for n in counts) >= _BITS_PER_LETTER


ENTROPY = Rule("entropy", (), _matching(_RANDOM, _looks_random))
