"""The pages behind their gate, as one application."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from syncd.errors import CheckpointNotFoundError, SyncdError
from syncd.ui import look
from syncd.ui.desk import Desk
from syncd.ui.gate import STATIC, Application, Gate, Message, Receive, Scope, Secrets, Send
from syncd.ui.pages import Pages

log = logging.getLogger("syncd.ui")


def application(desk: Desk, keys: Secrets) -> Application:
    pages = Pages(desk, keys.word)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        desk.live.begin()
        yield

    def syncd_error(_: Request, error: Exception) -> Response:
        return pages.problem(error if isinstance(error, SyncdError) else _unexpected())

    def http_error(_: Request, error: Exception) -> Response:
        found = CheckpointNotFoundError("there is no such page", "Go back to the overview.")
        return pages.problem(found if getattr(error, "status_code", 0) == 404 else _misused())

    inner = Starlette(
        routes=_routes(pages),
        lifespan=lifespan,
        exception_handlers={SyncdError: syncd_error, HTTPException: http_error,
                            Exception: syncd_error},
    )  # fmt: skip
    return _Calm(Gate(inner, keys, look.refusal, look.welcome()))


def _routes(pages: Pages) -> list[Route]:
    shown = ("tasks", "task", "checkpoint", "conflicts", "conflict", "agents", "cost", "audit",
             "fleet")  # fmt: skip
    changing = {"/conflict/restore": pages.restore, "/conflict/dismiss": pages.dismiss,
                "/audit/verify": pages.verify}  # fmt: skip
    return [
        Route("/", pages.of_today(pages.overview)),
        *(Route(f"/{name}", pages.of_today(getattr(pages, name))) for name in shown),
        *(Route(path, pages.of_today(page), methods=["POST"]) for path, page in changing.items()),
        Route("/live", pages.live),
        Route(f"{STATIC}{{name}}", pages.static),
    ]


def _unexpected() -> SyncdError:
    return SyncdError(
        "something unexpected happened in the page itself",
        "Details are in log/crash.log of the home; please report them.",
    )


def _misused() -> SyncdError:
    return SyncdError("this cannot be asked in this way", "Go back to the page you came from.")


class _Calm:
    """The last resort. What it logs goes to a file: no traceback is printed between the lines of
    the terminal in which the page runs."""

    def __init__(self, inner: Application) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._inner(scope, receive, noted)
        except Exception as error:
            log.error("a page failed", exc_info=error)
            if scope["type"] == "http" and not begun:
                await _sorry(send)


async def _sorry(send: Any) -> None:
    from syncd.ui.gate import answer

    said = _unexpected()
    await answer(send, 500, look.refusal(500, said.message, said.remedy))
