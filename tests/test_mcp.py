"""The MCP server, spoken to by the SDK's own client over a real pipe."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from counts import full
from mcp import Client, MCPError, StdioServerParameters
from mcp.types import CallToolResult, Implementation, ListRootsResult, Root, TextContent
from resuming import commit, git

from syncd import CheckpointService, ExecutionState
from syncd.keychain import END_TO_END
from syncd.mcp.desk import Desk
from syncd.mcp.server import INSTRUCTIONS, server
from syncd.sealing import encrypt

PROGRAM = [sys.executable, "-m", "syncd"]
TOOLS = {"save", "resume", "history", "search", "handoff", "heartbeat", "status"}
# What a model has to read before it has done anything.
LISTING_BYTES = 6_144


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "theme.css").write_text("body {}")
    git(folder, "init", "-q", "-b", "main")
    commit(folder)
    return folder


@asynccontextmanager
async def connected(
    cwd: Path, mode: str = "legacy", roots: Any = None, **environment: str
) -> AsyncIterator[Client]:
    told = {
        name: value for name, value in os.environ.items() if name.startswith(("SYNCD_", "PYTHON"))
    }
    command, *words = PROGRAM
    process = StdioServerParameters(
        command=command, args=[*words, "mcp"], cwd=cwd, env={**told, **environment}
    )
    info = Implementation(name="some-host", version="1")
    async with Client(process, mode=mode, client_info=info, list_roots_callback=roots) as client:
        yield client


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    async def limited() -> Any:
        with anyio.fail_after(60):
            return await work()

    return anyio.run(limited)


def said(result: CallToolResult) -> str:
    [block] = result.content
    assert isinstance(block, TextContent)
    return block.text


async def told(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert isinstance(result, CallToolResult)
    assert not result.is_error, said(result)
    assert isinstance(result.structured_content, dict)
    return result.structured_content


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert isinstance(result, CallToolResult)
    assert result.is_error
    assert "Traceback" not in said(result)
    return said(result)


# --- what a model is told -------------------------------------------------------------------------


def test_the_listing_and_the_instructions_cost_little_of_a_context(tmp_path: Path) -> None:
    made = server(Desk(tmp_path))
    tools = anyio.run(made.list_tools)
    listing = "".join(tool.model_dump_json(by_alias=True, exclude_none=True) for tool in tools)
    assert {tool.name for tool in tools} == TOOLS
    assert len((listing + INSTRUCTIONS).encode()) <= LISTING_BYTES
    assert all(tool.description and tool.output_schema for tool in tools)


@pytest.mark.parametrize(
    "word", ["80 %", "blocked", "git", "database", "step", "mode", "resume", "save", "delegate"]
)
def test_the_instructions_say_when_to_save(word: str) -> None:
    assert word in INSTRUCTIONS


# --- every tool -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_every_tool_does_what_the_command_does(mode: str, shop: Path, home: Path) -> None:
    """In both generations of the protocol."""

    async def work() -> None:
        async with connected(shop, mode) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == TOOLS
            assert client.instructions == INSTRUCTIONS
            assert "call `save`" in await refused(client, "resume")
            first = await told(client, "save", pending=["toggle", "tests"], files=["theme.css"])
            assert first["task_id"] == "shop@main"
            assert first["agent_id"] == "some-host"
            saved = await told(
                client, "save", completed=["toggle"], files=["theme.css"],
                decisions=["CSS variables: no runtime"], findings=["the Palette is old"],
                context_percent=76, phase="implementing",
            )  # fmt: skip
            assert "76 %" in saved["advice"]
            (shop / "theme.css").write_text("body { color: red }")
            resumed = await client.call_tool("resume", {})
            assert isinstance(resumed, CallToolResult)
            assert resumed.structured_content is not None
            assert resumed.structured_content["stale_files"] == ["theme.css"]
            assert not resumed.structured_content["verified"]
            assert said(resumed) == resumed.structured_content["prompt"]
            assert "save(completed=" in said(resumed)
            assert "UNVERIFIED" in said(resumed)
            past = await told(client, "history")
            assert [one["done"] for one in past["checkpoints"]] == [1, 0]
            [found] = (await told(client, "search", text="palette"))["checkpoints"]
            assert found["text"] == "the Palette is old"
            assert found["checkpoint_id"] == saved["checkpoint_id"]
            alive = await told(client, "heartbeat", agent="helper")
            assert alive["next_expected"]
            await handed_over(client)
            state = await told(client, "status")
            assert (state["verdict"], state["task_id"]) == ("ok", "shop@main")
            for uri in ("syncd://latest", "syncd://tasks/shop@main/latest"):
                [content] = (await client.read_resource(uri)).contents
                latest = json.loads(content.model_dump()["text"])
                assert latest["verified"]
                assert latest["execution_state"]["phase"] == "handoff"
            with pytest.raises(MCPError, match="no checkpoint"):
                await client.read_resource("syncd://tasks/a/b/latest")

    run(work)
    with closing(CheckpointService(home=home)) as service:
        _, last, first = service.get_checkpoint_history("shop@main")
        assert first.workspace is not None
        assert "theme.css" in first.workspace.files
        assert last.execution_state.pending_items == ["tests"]
        assert last.recovery.last_successful_state == first.metadata.checkpoint_id


async def handed_over(client: Client) -> None:
    offered = await told(client, "handoff", trigger="phase_complete")
    [offer] = offered["handoffs"]
    assert (offer["state"], offer["for_type"]) == ("open", "qa")
    [listed] = (await told(client, "handoff", action="list"))["handoffs"]
    assert listed["id"] == offer["id"]
    taken = await told(client, "handoff", action="accept", id=offer["id"], agent="qa-1")
    assert taken["handoffs"][0]["holder"] == "qa-1"
    assert "toggle" in taken["prompt"]
    done = await told(client, "handoff", action="acknowledge", id=offer["id"], agent="qa-1")
    assert done["handoffs"][0]["state"] == "acknowledged"


def test_what_is_wrong_is_said_with_what_to_do(shop: Path, tmp_path: Path) -> None:
    token = "ghp_" + "a1B2" * 9

    async def work() -> None:
        async with connected(tmp_path, SYNCD_AGENT="ann") as client:
            assert "Pass `task`" in await refused(client, "save", completed=["x"])
            assert "completd" in await refused(client, "save", completd=["x"], task="t")
            nonsense = await refused(client, "save", phase="nonsense", task="t")
            assert "phase" in nonsense
            assert "https://" not in nonsense, "no links to somebody's manual"
            assert "Pass `text`" in await refused(client, "search", text=" ")
            assert "handoff list" in await refused(client, "handoff", action="accept", id="abc")
            assert "nowhere" in await refused(client, "handoff", task="nowhere")
            assert token not in await refused(client, "save", task=token, completed=["x"])
            (tmp_path / ".syncd.toml").write_text("ignore = true")
            assert "left alone" in await refused(client, "save", completed=["x"], task="t")
            assert (await told(client, "status"))["task_id"] == ""
            (tmp_path / ".syncd.toml").unlink()
            empty = await told(client, "save", task="t")
            assert "says nothing" in empty["warnings"][0]
            assert empty["agent_id"] == "ann"
            secret = await told(client, "save", task="t", findings=[f"it is {token}"])
            assert "findings" in secret["warnings"][0]
            assert token not in json.dumps(await told(client, "resume", task="t"))

    run(work)


def test_task_and_agent_follow_from_where_the_client_works(
    shop: Path, tmp_path: Path, service: CheckpointService
) -> None:
    """The directory is the one that it names: some hosts start their servers elsewhere. The agent
    is the session that the host's hooks know, as long as there is one: of two side by side, it
    cannot be told which one asks."""

    async def roots(_: Any) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri="file:///nowhere"), Root(uri=shop.as_uri())])

    async def work() -> None:
        async with connected(tmp_path, roots=roots) as client:
            assert (await told(client, "status"))["task_id"] == "shop@main"
            service.heartbeat("some-host-1234abcd", "shop@main")
            service.heartbeat("some-host-99999999", "elsewhere")
            saved = await told(client, "save", pending=["x"])
            assert (saved["task_id"], saved["agent_id"]) == ("shop@main", "some-host-1234abcd")
            assert (await told(client, "status"))["agent_id"] == "some-host-1234abcd"
            assert (await told(client, "save", agent="me", pending=["y"]))["agent_id"] == "me"
            service.heartbeat("some-host-5678abcd", "shop@main")
            assert (await told(client, "save", pending=["z"]))["agent_id"] == "some-host"

    run(work)


# --- a database that is locked, damaged, replaced ----------------------------------------------


def test_a_save_waits_for_a_lock_and_keeps_nobody_waiting(shop: Path, home: Path) -> None:
    """If the lock stays, that is an error with a remedy, and not the server's end."""

    async def work() -> None:
        async with connected(shop, SYNCD_STORE_BUSY_SECONDS="2") as client:
            await told(client, "save", pending=["x"])
            said_last: list[str] = []

            async def save() -> None:
                said_last.append(await refused(client, "save", completed=["x"]))
                said_last.append((await told(client, "save", completed=["x"]))["checkpoint_id"])

            with closing(sqlite3.connect(home / "context.db", isolation_level=None)) as other:
                async with anyio.create_task_group() as group:
                    other.execute("BEGIN EXCLUSIVE")
                    group.start_soon(save)
                    await anyio.sleep(0.2)
                    assert (await told(client, "status"))["verdict"] == "ok"
                    assert len((await told(client, "history"))["checkpoints"]) == 1
                    assert "x" in (await told(client, "resume"))["prompt"]
                    assert said_last == []
                    while not said_last:
                        await anyio.sleep(0.05)
                    await anyio.sleep(0.1)
                    assert len((await told(client, "history"))["checkpoints"]) == 1
                    other.execute("ROLLBACK")
            words, saved = said_last
            assert "locked by another program" in words
            assert "close it" in words
            [latest, _] = (await told(client, "history"))["checkpoints"]
            assert latest["checkpoint_id"] == saved

    run(work)


def test_a_damaged_database_is_told_and_a_restored_one_is_used(shop: Path, home: Path) -> None:
    async def work() -> None:
        async with connected(shop) as client:
            await told(client, "save", pending=["x"])
            with closing(sqlite3.connect(home / "context.db")) as database:
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            sound = (home / "context.db").read_bytes()
            _replaced(home, b"nonsense" * 4096)
            for tool, words in (("save", {"completed": ["x"]}), ("resume", {}), ("history", {})):
                told_of = await refused(client, tool, **words)
                assert "damaged" in told_of
                assert "syncd backup restore" in told_of
            assert (await told(client, "status"))["verdict"] == "failed"
            _replaced(home, sound)
            assert "x" in (await told(client, "resume"))["prompt"]
            await told(client, "save", completed=["x"])

    run(work)


def test_the_task_of_the_surroundings_is_meant_by_status_too(shop: Path, home: Path) -> None:
    async def work() -> None:
        async with connected(shop, SYNCD_TASK="dark-mode") as client:
            saved = await told(client, "save", pending=["x"])
            assert saved["task_id"] == (await told(client, "status"))["task_id"] == "dark-mode"

    run(work)


def test_what_is_sealed_with_a_key_that_is_not_here_is_left_out_and_named(
    shop: Path, home: Path
) -> None:
    with closing(CheckpointService(home=home)) as service:
        encrypt(service.node, END_TO_END)
        sealed = service.create_checkpoint("t", "a", ExecutionState(current_focus="palette"))
    (home / "keys" / "data.json").unlink()

    async def work() -> None:
        async with connected(shop) as client:
            for tool, words in (("history", {"task": "t"}), ("search", {"text": "palette"})):
                found = await told(client, tool, **words)
                [left_out] = found["left_out"]
                assert found["checkpoints"] == []
                assert sealed.metadata.checkpoint_id in left_out
                assert "is sealed with key" in left_out

    run(work)


def test_of_much_that_is_left_out_some_is_named(shop: Path, home: Path) -> None:
    with closing(CheckpointService(home=home)) as service:
        encrypt(service.node, END_TO_END)
        for _ in range(30):
            service.create_checkpoint("t", "a")
    (home / "keys" / "data.json").unlink()

    async def work() -> None:
        async with connected(shop) as client:
            for tool, words in (("history", {"task": "t"}), ("search", {"text": "palette"})):
                left_out = (await told(client, tool, limit=30, **words))["left_out"]
                assert (len(left_out), left_out[-1]) == (6, "and 25 more")

    run(work)


def _replaced(home: Path, content: bytes) -> None:
    """As a restore does it: another file takes the name."""
    for beside in home.glob("context.db-*"):
        beside.unlink()
    new = home / "new"
    new.write_bytes(content)
    new.replace(home / "context.db")


def test_a_server_that_is_killed_has_lost_nothing_that_it_acknowledged(
    shop: Path, home: Path
) -> None:
    for number in range(full(1, 10)):
        with _server(shop) as process:
            _hello(process)
            acknowledged = []
            for count in range(40):
                _send(process, 10 + count, "tools/call", _save(f"{number}.{count}"))
                if count < 39:
                    acknowledged.append(_answer(process)["structuredContent"]["checkpoint_id"])
            time.sleep(0.002 * number)
            process.kill()
            process.wait()
        with closing(CheckpointService(home=home)) as service:
            for checkpoint_id in acknowledged:
                assert service.get_checkpoint(checkpoint_id).verified


# --- the process ----------------------------------------------------------------------------------


def _server(cwd: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*PROGRAM, "mcp"], cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip


def _save(item: str) -> dict[str, Any]:
    return {"name": "save", "arguments": {"completed": [item]}}


def _send(process: subprocess.Popen[bytes], number: int, method: str, params: Any) -> None:
    assert process.stdin
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    process.stdin.write(json.dumps(message).encode() + b"\n")
    process.stdin.flush()


def _answer(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout
    result: dict[str, Any] = json.loads(process.stdout.readline())["result"]
    return result


def _hello(process: subprocess.Popen[bytes]) -> None:
    about = {"protocolVersion": "2025-06-18", "capabilities": {},
             "clientInfo": {"name": "raw", "version": "0"}}  # fmt: skip
    _send(process, 1, "initialize", about)
    assert _answer(process)["serverInfo"]["name"] == "syncd"
    assert process.stdin
    process.stdin.write(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
    process.stdin.flush()


@pytest.mark.parametrize("end", ["closed", "SIGINT", "SIGTERM", "client gone"])
def test_it_ends_quietly_and_says_nothing_but_the_protocol(end: str, shop: Path) -> None:
    with _server(shop) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        _hello(process)
        _send(process, 2, "tools/call", _save("x"))
        assert _answer(process)["structuredContent"]["agent_id"] == "raw"
        if end == "closed":
            process.stdin.close()
        elif end == "client gone":
            process.stdout.close()
            _send(process, 3, "tools/call", _save("y"))
            process.stdin.close()
        else:
            process.send_signal(getattr(signal, end))
        assert process.wait(30) == 0
        assert process.stderr.read() == b""
        if end != "client gone":
            assert process.stdout.read() == b""


def test_nonsense_on_its_input_is_answered_in_the_protocol(shop: Path) -> None:
    done = subprocess.run(
        [*PROGRAM, "mcp"], cwd=shop, input=b"nonsense\n\xff\xfe\n[1, 2\n{}\n",
        capture_output=True, timeout=30,
    )  # fmt: skip
    assert done.returncode == 0
    assert all(json.loads(line)["jsonrpc"] == "2.0" for line in done.stdout.splitlines())
    assert b"Traceback" not in done.stderr


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['mcp'] = None; from syncd.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", hidden, "mcp"], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 1
    assert "extra `mcp`" in done.stderr
    assert "pip install -e '.[mcp]'" in done.stderr
    assert done.stdout == ""
