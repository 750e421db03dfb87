"""The protocol: tools and resources for one client, over standard input and output."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import unquote, urlsplit

import anyio.to_thread
import orjson
from mcp.server import MCPServer
from mcp.server.mcpserver import Context, ResourceSecurity
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError, ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolResult, ListRootsRequest, ListRootsResult, TextContent
from pydantic import BaseModel, ConfigDict, Field

from syncd.errors import CheckpointNotFoundError, SyncdError
from syncd.mcp import work
from syncd.mcp.desk import Desk
from syncd.mcp.work import Alive, Caller, Ear, Found, Handoffs, Resumed, Saved, Status
from syncd.redaction import Redactor
from syncd.version import __version__

T = TypeVar("T")
INSTRUCTIONS = """\
syncd keeps what you did and decided, so that you or another agent can go on after a full context, \
a crash, or on another machine.
When you begin: resume. What it lists as completed is done; check what it marks UNVERIFIED.
Always save: before 80 % of your context is used; when a step or the task is done; when blocked; \
before risky operations (database writes, git); when you switch to other work or another mode.
Worth it too: at a milestone, after findings, before you delegate, before a break.
Say only what changed: lists add to what was saved before, `completed` also takes an item out of \
pending. Name ids, results, files, and each decision with its reason and what you rejected. Leave \
out whole files, secrets, people's data and what passes.
Without `task`, the one of this repository and branch is meant."""

Phase = Literal["planning", "implementing", "testing", "reviewing", "handoff", "complete"]
State = Literal["in_progress", "waiting", "blocked", "escalated", "complete", "failed"]
Reason = Literal["periodic", "context_limit", "failure", "reassignment", "rate_limit", "manual"]
Trigger = Literal[
    "explicit_request", "phase_complete", "error_threshold", "context_threshold", "token_budget",
    "timeout",
]  # fmt: skip
Action = Literal["request", "list", "accept", "acknowledge"]
Words = list[str] | None
Count = Annotated[int, Field(ge=1, le=100)]
Room = Annotated[int, Field(ge=500)]
# What an argument of `save` says, in a checkpoint.
_PLACES = {
    "completed": "execution_state.completed_items",
    "pending": "execution_state.pending_items",
    "blocked": "execution_state.blocked_items",
    "decisions": "context_summary.key_decisions",
    "findings": "context_summary.findings",
    "files": "metrics.files_modified",
    "focus": "execution_state.current_focus",
    "phase": "execution_state.phase",
    "status": "execution_state.status",
    "reason": "metadata.reason",
    "error": "execution_state.error",
    "tokens": "metrics.tokens_consumed",
    "context_percent": "metrics.context_used_percent",
}
_ROOTS_SECONDS = 2.0
# The names by which hosts call themselves here, where they are known by another.
_HOSTS = {"codex-mcp-client": "codex"}


class Tools:
    """Each one's first line is all that a model reads of it before it calls it."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def save(
        self,
        ctx: Context,
        completed: Words = None,
        pending: Words = None,
        blocked: Words = None,
        decisions: Annotated[Words, Field(description="each with its reason")] = None,
        findings: Words = None,
        files: Annotated[Words, Field(description="paths you changed")] = None,
        focus: Annotated[str, Field(description="what you work on now")] = "",
        phase: Phase | None = None,
        status: State | None = None,
        reason: Reason | None = None,
        error: str = "",
        tokens: Annotated[int | None, Field(ge=0, description="since the last save")] = None,
        context_percent: Annotated[float | None, Field(ge=0, le=100)] = None,
        task: str = "",
        agent: str = "",
    ) -> Annotated[CallToolResult, Saved]:
        """Write a checkpoint: what changed since the last one. On disk when this returns."""
        told = locals()
        said = {
            path: tuple(value) if isinstance(value := told[name], list) else value
            for name, path in _PLACES.items()
            if told[name] not in (None, "", [])
        }
        return await self._done(ctx, task, agent, work.save, said)

    async def resume(
        self, ctx: Context, max_chars: Room = 10_000, task: str = ""
    ) -> Annotated[CallToolResult, Resumed]:
        """How to go on: what is done, decided and next, checked against the files here."""
        return await self._done(ctx, task, "", work.resume, max_chars)

    async def history(
        self, ctx: Context, limit: Count = 10, task: str = ""
    ) -> Annotated[CallToolResult, Found]:
        """A task's checkpoints, newest first."""
        return await self._done(ctx, task, "", work.history, limit)

    async def search(
        self, ctx: Context, text: str, limit: Count = 10
    ) -> Annotated[CallToolResult, Found]:
        """Checkpoints of any task that contain a text, newest first."""
        return await self._done(ctx, "", "", lambda desk, _: work.search(desk, text, limit))

    async def handoff(
        self,
        ctx: Context,
        action: Action = "request",
        id: Annotated[str, Field(description="for accept, acknowledge")] = "",  # noqa: A002
        trigger: Trigger = "explicit_request",
        target: Annotated[str, Field(description="agent type")] = "",
        task: str = "",
        agent: str = "",
    ) -> Annotated[CallToolResult, Handoffs]:
        """Offer your work to another agent; or list, accept and acknowledge offers."""
        does: dict[str, Callable[[Desk, Caller], Handoffs]] = {
            "request": lambda desk, caller: work.offer(desk, caller, trigger, target),
            "list": lambda desk, _: work.waiting(desk),
            "accept": lambda desk, caller: work.accept(desk, caller, id),
            "acknowledge": lambda desk, caller: work.acknowledge(desk, caller, id),
        }
        return await self._done(ctx, task, agent, does[action])

    async def heartbeat(
        self, ctx: Context, ended: bool = False, task: str = "", agent: str = ""
    ) -> Annotated[CallToolResult, Alive]:
        """Say that you are alive, in long work without a save; or that you have ended."""
        return await self._done(ctx, task, agent, partial(work.heartbeat, ended=ended))

    async def status(self, ctx: Context, agent: str = "") -> Annotated[CallToolResult, Status]:
        """Is the work safe, and replicated? Your task, name and unread messages."""
        return await self._done(ctx, "", agent, work.status)

    async def _done(
        self, ctx: Context, task: str, agent: str, do: Callable[..., BaseModel], *values: Any
    ) -> CallToolResult:
        """Do it in a thread, so that the server answers others meanwhile."""
        caller = Caller(await _start(ctx), _client(ctx), task, agent)
        try:
            result = await anyio.to_thread.run_sync(partial(do, self._desk, caller, *values))
        except SyncdError as error:
            raise ToolError(_said(error)) from None
        structured = result.model_dump(mode="json")
        text = structured.get("prompt") or orjson.dumps(structured).decode()
        return CallToolResult(
            content=[TextContent(type="text", text=text)], structured_content=structured
        )

    # --- resources --------------------------------------------------------------------------------

    def latest_here(self) -> str:
        """The newest checkpoint of this repository's and branch's task."""
        return self._read("")

    def latest_of(self, task: str) -> str:
        """The newest checkpoint of a task."""
        return self._read(task)

    def _read(self, task: str) -> str:
        try:
            found = work.latest(self._desk, Caller(Path.cwd(), "", task).task_id)
        except CheckpointNotFoundError as error:
            raise ResourceNotFoundError(_said(error)) from None
        except SyncdError as error:
            raise ResourceError(_said(error)) from None
        return orjson.dumps(found).decode()


def _said(error: SyncdError) -> str:
    """Cause, remedy, and whether data is damaged; without secrets that stood in the input."""
    damage = "" if error.data_safe else " Data is damaged: tell the user."
    return f"{Redactor().quoted(error.message)}. {error.remedy}{damage}"


# --- who asks, and where --------------------------------------------------------------------------


def _client(ctx: Context) -> str:
    """The agent is called as its host calls itself, if it says no other name."""
    known = ctx.session.client_params
    name = known.client_info.name.strip() if known else ""
    return _HOSTS.get(name, name) or "mcp"


async def _start(ctx: Context) -> Path:
    """The first directory that the client says it works in, else the one it started us in."""
    session = ctx.session
    able = session.client_capabilities
    if able is None or able.roots is None or not session.can_send_request:
        return Path.cwd()
    try:
        told = await session.send_request(ListRootsRequest(), ListRootsResult, _ROOTS_SECONDS)
    except (MCPError, ValueError):  # it does not say
        return Path.cwd()
    places = (urlsplit(str(root.uri)) for root in told.roots)
    folders = (Path(unquote(place.path)) for place in places if place.scheme == "file")
    return next((folder for folder in folders if folder.is_dir()), Path.cwd())


# --- the server -----------------------------------------------------------------------------------


def server(desk: Desk) -> MCPServer:
    tools = Tools(desk)
    made = MCPServer(
        "syncd",
        instructions=INSTRUCTIONS,
        version=__version__,
        log_level="WARNING",
        subscriptions=False,
        tools=[_small(Tool.from_function(tool)) for tool in (
            tools.save, tools.resume, tools.history, tools.search, tools.handoff,
            tools.heartbeat, tools.status,
        )],
    )  # fmt: skip
    as_json = partial(made.resource, mime_type="application/json")
    as_json("syncd://latest", name="latest")(tools.latest_here)
    # A task's name is no path, whatever it looks like.
    named = ResourceSecurity(exempt_params={"task"})
    as_json("syncd://tasks/{+task}/latest", name="latest of a task", security=named)(
        tools.latest_of
    )
    return made


def _small(tool: Tool) -> Tool:
    """Without what tells a model nothing: descriptions are read at the cost of its context. And an
    argument that does not exist is an error, not left out in silence."""

    told = tool.fn_metadata
    config = {"model_config": ConfigDict(extra="forbid")}
    strict: type[BaseModel] = type(tool.name, (told.arg_model,), config)
    output = _slim(told.output_schema, "required")
    small = told.model_copy(update={"arg_model": strict, "output_schema": output})
    parameters = _slim(strict.model_json_schema(by_alias=True))
    return tool.model_copy(update={"fn_metadata": small, "parameters": parameters})


def _slim(schema: Any, *left_out: str) -> Any:
    """Without titles, and without saying that what may be left out may be null."""
    if isinstance(schema, list):
        return [_slim(item, *left_out) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if {"type": "null"} in schema.get("anyOf", ()):
        [kind] = [one for one in schema["anyOf"] if one != {"type": "null"}]
        schema = {**kind, **{k: v for k, v in schema.items() if k not in ("anyOf", "default")}}
    return {
        name: _slim(value, *left_out)
        for name, value in schema.items()
        # Where these are names of arguments, they have schemas for values.
        if name not in left_out
        and not (name == "title" and isinstance(value, str))
        and (name, value) != ("default", "")
    }


def serve(home: Path | None) -> None:
    """Until the client closes our input, or asks us to end."""
    # What a model is told is read at the cost of its context: no links to pydantic's manual.
    os.environ["PYDANTIC_ERRORS_INCLUDE_URL"] = "0"
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="syncd mcp: %(message)s")
    logger = logging.getLogger("syncd")
    logger.handlers = [Ear(), logging.StreamHandler(sys.stderr)]
    logger.propagate = False
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    try:
        server(Desk(home)).run()
    except* (BrokenPipeError, ConnectionResetError):
        _end()  # nobody is left to answer


def _end(*_: object) -> None:
    """At once: a thread that waits for input cannot be told to stop. What was acknowledged is on
    disk, and what is half done is undone by the database."""
    os._exit(0)
