"""Who may come in: the user, through the link that was printed for him, and nobody else.

Any web page that he has open, and any program of another user on this machine, can send requests to
a loopback port. So each request must name this host (else somebody has bent a foreign name to it),
must not come from another site, and must carry the cookie that the link was exchanged for, once.
What changes something must in addition come from a page of ours, and say the word that only those
pages hold.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Refuse = Callable[[int, str, str], bytes]

ENTRANCE, STATIC = "/enter", "/static/"
_OUR_NAMES = frozenset(("127.0.0.1", "localhost"))
_LONGEST_FORM = 64_000
HEADERS = (
    ("content-security-policy",
     "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
     "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"),
    ("x-frame-options", "DENY"),
    ("x-content-type-options", "nosniff"),
    # Not `no-referrer`: with that, browsers hide where a form comes from.
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
)  # fmt: skip


class Secrets:
    """The token of the link, good for one use; the session that it buys; the word of the forms."""

    def __init__(self, port: int) -> None:
        self._token: str | None = secrets.token_urlsafe(32)
        self._session = secrets.token_urlsafe(32)
        self.word = secrets.token_urlsafe(32)
        # Cookies know no ports: two of these at a time must not take each other's.
        self.cookie = f"syncd_{port}"

    @property
    def token(self) -> str:
        return self._token or ""

    def spend(self, token: str) -> bool:
        """Whether this is the token; from now on it is worth nothing."""
        if self._token is None or not _same(self._token, token):
            return False
        self._token = None
        return True

    @property
    def spent(self) -> bool:
        return self._token is None

    def session_cookie(self) -> str:
        return f"{self.cookie}={self._session}; HttpOnly; SameSite=Strict; Path=/"

    def knows(self, cookies: str) -> bool:
        try:
            morsel = SimpleCookie(cookies).get(self.cookie)
        except CookieError:
            return False
        return morsel is not None and _same(self._session, morsel.value)


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode("utf-8", "replace"))


class Gate:
    """In front of the pages. `refusal` draws the page that says no."""

    def __init__(self, pages: Application, keys: Secrets, refusal: Refuse, welcome: bytes) -> None:
        self._pages = pages
        self._keys = keys
        self._refusal = refusal
        self._welcome = welcome

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._pages(scope, receive, send)
            return
        guarded = _with_headers(send)
        headers = {name.decode("latin-1"): value.decode("latin-1", "replace")
                   for name, value in scope["headers"]}  # fmt: skip
        if said := _foreign(headers, scope["path"]):
            await self._refuse(guarded, 403, *said)
        elif scope["path"] == ENTRANCE:
            await self._enter(scope, guarded)
        elif scope["path"].startswith(STATIC):
            await self._pages(scope, receive, guarded)
        elif not self._keys.knows(headers.get("cookie", "")):
            await self._refuse(guarded, 401, *_NO_SESSION)
        elif scope["method"] in ("GET", "HEAD"):
            await self._pages(scope, receive, guarded)
        else:
            await self._change(scope, headers, receive, guarded)

    async def _enter(self, scope: Scope, send: Send) -> None:
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["method"] != "GET":
            await self._refuse(send, 405, *_WRONG_METHOD)
        elif self._keys.spend(token):
            # No redirect: after a click in another page, the first page of ours would come without
            # its cookie, since a browser counts the whole way as that page's doing.
            await answer(send, 200, self._welcome, ("set-cookie", self._keys.session_cookie()))
        else:
            await self._refuse(send, 403, *(_SPENT if self._keys.spent else _WRONG_TOKEN))

    async def _change(
        self, scope: Scope, headers: dict[str, str], receive: Receive, send: Send
    ) -> None:
        if scope["method"] != "POST":
            await self._refuse(send, 405, *_WRONG_METHOD)
            return
        body = await _whole(receive)
        form = parse_qs(body.decode("latin-1")) if body is not None else {}
        ours = headers.get("origin", "") == f"http://{headers.get('host', '')}"
        if not ours or not _same(self._keys.word, form.get("word", [""])[0]):
            await self._refuse(send, 403, *_FOREIGN_FORM)
            return
        scope["syncd_form"] = {name: values[0] for name, values in _decoded(body or b"").items()}
        await self._pages(scope, receive, send)

    async def _refuse(self, send: Send, status: int, what: str, remedy: str) -> None:
        await answer(send, status, self._refusal(status, what, remedy))


def _decoded(body: bytes) -> dict[str, list[str]]:
    return parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)


async def _whole(receive: Receive) -> bytes | None:
    """The body of a request; none if it is longer than any form of ours."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > _LONGEST_FORM or message["type"] == "http.disconnect":
            return None
    return body


async def answer(send: Send, status: int, body: bytes, *headers: tuple[str, str]) -> None:
    listed = [("content-type", "text/html; charset=utf-8"), ("content-length", str(len(body)))]
    raw = [(name.encode(), value.encode()) for name, value in (*listed, *headers)]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def _with_headers(send: Send) -> Send:
    """Every answer carries them, whoever gives it."""
    wanted = [(name.encode(), value.encode()) for name, value in HEADERS]
    ours = {name for name, _ in wanted}

    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            others = [pair for pair in message.get("headers", ()) if pair[0].lower() not in ours]
            message = {**message, "headers": [*others, *wanted]}
        await send(message)

    return guarded


# --- what is refused, and why -------------------------------------------------------------------

_AGAIN = "Run `syncd ui` in a terminal: it prints a new link."
_NO_SESSION = ("This page is for whoever has the link.", _AGAIN)
_SPENT = ("This link has been used already: it is good for one time.", _AGAIN)
_WRONG_TOKEN = ("This link is not the one that was printed.", _AGAIN)
_WRONG_METHOD = ("This cannot be asked in this way.", "Go back to the page you came from.")
_FOREIGN_FORM = (
    "This request does not come from a page of this window; nothing was changed.",
    "Open the page again and repeat it there.",
)
_FOREIGN_NAME = (
    "This server answers to 127.0.0.1 and localhost only.",
    "Use the link that `syncd ui` has printed.",
)
_FOREIGN_SITE = (
    "Another web site has asked for this page; it was not given.",
    "Use the link that `syncd ui` has printed.",
)


def _foreign(headers: dict[str, str], path: str) -> tuple[str, str] | None:
    """Why a request is none of the user's own, or None. A link is followed from anywhere: whoever
    has the token may come in."""
    if not _our_name(headers.get("host", "")):
        return _FOREIGN_NAME
    site = headers.get("sec-fetch-site", "none")
    followed = path == ENTRANCE and headers.get("sec-fetch-mode") == "navigate"
    if site not in ("none", "same-origin") and not followed:
        return _FOREIGN_SITE
    origin = headers.get("origin")
    if origin is not None and not followed and origin != f"http://{headers['host']}":
        return _FOREIGN_SITE
    return None


def _our_name(host: str) -> bool:
    """Any port: the user may have come through a tunnel."""
    try:
        split = urlsplit(f"//{host}")
        return split.hostname in _OUR_NAMES and split.netloc == host and "@" not in host
    except ValueError:
        return False
