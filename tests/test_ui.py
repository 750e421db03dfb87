"""The page in the browser, as a server sees it: who comes in, what is shown, what it withstands."""

from __future__ import annotations

import http.client
import itertools
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import machines
import pytest
import showcase
import windows
from click.testing import CliRunner
from counts import full
from showcase import Showcase
from windows import Page, Window, window

from bench import pages, payload
from syncd import CheckpointService, ExecutionState, conflicts, entry, graphs, tasks, threads
from syncd.cli import ui
from syncd.cli.app import syncd
from syncd.node import Node
from syncd.sql import queries
from syncd.ui import fleet, reading
from syncd.ui.desk import Desk
from syncd.ui.kept import Kept

runner = machines.runner
team = machines.team
PAGES = ("/", "/tasks", "/conflicts", "/conflicts?all=1", "/agents", "/cost", "/audit", "/fleet")


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Showcase:
    return showcase.built(tmp_path_factory.mktemp("ui") / "home")


@pytest.fixture(scope="module")
def opened(shown: Showcase) -> Iterator[Window]:
    """For tests that only look."""
    with window(shown.home) as made:
        yield made


def everywhere(shown: Showcase) -> list[str]:
    with closing(Node(shown.home)) as node:
        named = [row[0] for row in node.store.rows("task_ids")]
        checkpoints = [
            row[0] for row in node.store.connection.execute("SELECT id FROM checkpoints")
        ]
        disputes = [conflict.id for conflict in conflicts.everything(node)]
    special = {shown.forked, shown.damaged, shown.final, checkpoints[0]}
    return [
        *PAGES,
        *(f"/task?id={quote(name)}" for name in named),
        *(f"/checkpoint?id={quote(name)}" for name in special if name),
        *(f"/conflict?id={name}" for name in disputes),
    ]


# --- every page -----------------------------------------------------------------------------------


def test_every_page_opens_and_names_no_other_host(opened: Window, shown: Showcase) -> None:
    for path in everywhere(shown):
        answer = opened.get(path)
        assert answer.status == 200, path
        page = Page(answer.text)
        assert all(address.startswith(("/", "#")) for address in page.addresses()), path
        assert len([tag for tag, _ in page.tags if tag == "h1"]) == 1, path
        assert len(answer.text) < 200_000, path


def test_every_answer_tells_the_browser_what_it_may_do(opened: Window) -> None:
    for path in ("/", "/static/style.css", "/nonsense", "/enter?token=x", "/task?id=none"):
        headers = opened.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none';"), path
        assert "unsafe" not in policy
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers


def test_what_a_page_loads_is_there_and_comes_from_the_package(opened: Window) -> None:
    addresses = {a for path in PAGES for a in Page(opened.page(path)).addresses()}
    static = {address for address in addresses if address.startswith("/static/")}
    assert static == {"/static/style.css", "/static/live.js", "/static/icon.svg"}
    for address in static:
        text = opened.page(address)
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in text
        assert "@import" not in text
    assert opened.get("/static/..%2fgate.py").status == 404


def test_the_overview_says_what_status_says(opened: Window, shown: Showcase) -> None:
    opened.page(f"/checkpoint?id={shown.damaged}")  # now the damage is known
    page = Page(opened.page("/"))
    assert "Something needs your attention" in page.text
    assert "damaged" in page.text
    assert "presumed to have crashed" in page.text


def test_the_overview_gives_the_same_answer_as_the_terminal(team: machines.Team) -> None:
    ann = team.machine()
    ann.create()
    ann.sync()
    device = ann.state("device_id")
    ann.sql("INSERT INTO quarantine VALUES ('e', ?, 'why', '2026-01-01', 'open', '')", device)
    answer = ann.run("status", "--json").json()["answer"]
    assert (answer["kind"], answer["headline"]) == ("refused", "Not all")
    assert ann.run("status").out.splitlines()[0] == f"Not all: {answer['words']}"
    with window(ann.home) as made:
        page = Page(made.page("/"))
    assert "Not all" in page.text
    assert "The replica refused 1 of your entries." in page.text


def test_the_overview_calls_a_replica_out_of_reach_only_where_it_is(team: machines.Team) -> None:
    ann, unreached = team.machine(), team.machine("postgresql://nobody@127.0.0.1:1/none")
    for machine in (ann, unreached):
        machine.create()
    never_asked = overview(ann)
    ann.sync()
    ann.create()
    with team.administration() as admin:
        [login] = [m.login for m in admin.machines(team.organization_id)]
        admin.revoke_machine(team.organization_id, login, "lost")
    ann.fails(1, "sync")
    assert "cannot be reached" not in never_asked + overview(ann)
    unreached.fails(6, "sync")
    assert "The replica cannot be reached; they are sent later." in overview(unreached)


def overview(machine: machines.Machine) -> str:
    with window(machine.home) as made:
        return Page(made.page("/")).text


def test_tasks_are_found_by_name_title_agent_and_status(opened: Window) -> None:
    def found(question: str) -> set[str]:
        page = Page(opened.page(f"/tasks?{question}"))
        return {a.partition("id=")[2] for a in page.addresses() if a.startswith("/task?")}

    assert found("") == set(showcase.TASKS)
    assert found("q=dark") == {"dark-mode"}
    assert found("q=PASSWORD+guessing") == {"login-rate-limit"}
    assert found("status=escalated") == {"login-rate-limit"}
    assert found("q=dark&status=escalated") == set()


def test_a_task_shows_its_chain_with_the_fork_and_who_worked_when(opened: Window) -> None:
    page = Page(opened.page("/task?id=dark-mode"))
    knots = [attrs for _, attrs in page.tags if "knot" in attrs.get("class", "")]
    heads = [attrs for attrs in knots if "head" in attrs["class"]]
    steps = [attrs for tag, attrs in page.tags if tag == "a" and attrs.get("class") == "step"]
    assert len(knots) == len(steps) > 10
    assert len(heads) == 2
    assert len({attrs["cx"] for attrs in heads}) == 2, "branches stand beside each other"
    assert "2 branches" in page.text
    assert "another way: a web component" in page.text


def test_the_thread_of_a_graph_is_shown_with_its_states_and_their_last_time(
    opened: Window,
) -> None:
    listed = Page(counted(opened, "/tasks?q=support")).text
    assert "LangGraph thread" in listed
    assert "12 states" in listed
    assert "just now" in listed or " ago" in listed
    assert Page(opened.page("/tasks")).text.count("LangGraph thread") == 1, "others are none"
    page = Page(counted(opened, f"/task?id={showcase.THREAD}"))
    assert "states of the graph" in page.text
    assert "SyncdSaver" in page.text
    assert "No checkpoint" not in page.text
    assert f"/audit?entity=graph&task={showcase.THREAD}" in page.addresses()
    assert "LangGraph thread" in Page(opened.page("/")).text


def counted(opened: Window, path: str) -> str:
    deadline = time.monotonic() + 30
    while "12" not in (text := opened.page(path)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return text


@pytest.mark.parametrize("name", ["plain", "a/b%2F~c", "50%"])
def test_a_thread_that_was_deleted_is_none_and_one_with_checkpoints_too_shows_both(
    name: str, home: Path
) -> None:
    with closing(CheckpointService(home=home)) as service:
        service.create_checkpoint(name, "ann")
        time.sleep(0.002)  # a time that is shown has milliseconds
        showcase.thread(service.node, name, 3)
        assert threads.counted_all(service.node)[name] == tuple(
            threads.counted(service.node, name).values()
        )
        desk = Desk(service.node)
        (line,) = reading.task_lines(desk)
        assert (line.agent_id, line.thread_at) == ("ann", threads.last_at(service.node, name))
        assert line.at == line.thread_at > reading.task(desk, name).created_at
        graphs.Graphs(service.node).delete_thread(name)
        (line,) = reading.task_lines(desk)
        assert (line.thread_at, threads.last_at(service.node, name)) == ("", "")
        assert threads.counted_all(service.node) == {}


def test_a_checkpoint_is_compared_with_its_parent(opened: Window, shown: Showcase) -> None:
    text = opened.page(f"/checkpoint?id={shown.forked}")
    page = Page(text)
    assert "verified" in page.text
    assert "Changed since its parent" in page.text
    assert [tag for tag, _ in page.tags if tag in ("ins", "del")]
    assert "completed items" in page.text
    short = opened.page(f"/checkpoint?id={shown.forked[:30]}")
    assert shown.forked in short


def test_damage_is_shown_where_it_is_and_hides_nothing_else(
    opened: Window, shown: Showcase
) -> None:
    page = Page(opened.page(f"/checkpoint?id={shown.damaged}"))
    assert "This checkpoint is damaged" in page.text
    assert "verified" not in page.text
    chain = Page(opened.page("/task?id=search-index"))
    assert chain.text.count("damaged") == 1
    assert len([1 for tag, attrs in chain.tags if attrs.get("class") == "step"]) > 10
    assert shown.damaged in Page(opened.page("/audit")).text


def test_costs_are_added_up_by_day_task_and_agent(opened: Window, shown: Showcase) -> None:
    with closing(sqlite3.connect(shown.home / "context.db")) as database:
        (total,) = database.execute("SELECT sum(tokens) FROM checkpoints").fetchone()
        (of_task,) = database.execute(
            "SELECT sum(tokens) FROM checkpoints WHERE task_id = 'dark-mode'"
        ).fetchone()
    text = opened.page("/cost?days=all")
    assert f"{total:,} in all" in text
    assert f"{of_task:,} tokens in" in text
    assert f"{of_task:,} in all" in opened.page("/cost?days=all&task=dark-mode")
    assert "0 in all" in opened.page("/cost?task=no-such-task")


def test_entries_are_listed_by_kind_task_and_actor(opened: Window) -> None:
    assert "update task" in Page(opened.page("/audit?entity=task&task=login-rate-limit")).text
    assert "No entry fits" in opened.page("/audit?actor=nobody")
    kinds = {attrs["value"] for tag, attrs in Page(opened.page("/audit")).tags if tag == "option"}
    assert kinds == {"", *entry.KINDS}
    assert "create graph" in Page(opened.page("/audit?entity=graph")).text
    assert "finalize checkpoint" in " ".join(Page(opened.page("/audit")).text.split())


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nonsense", 404),
        ("/task", 404),
        ("/task?id=none", 404),
        ("/checkpoint?id=", 404),
        ("/checkpoint?id=01a1", 400),
        ("/checkpoint?id=%00%ff", 404),
        ("/conflict?id=zzz", 404),
        ("/tasks?page=-5&status=%3Cb%3E&q=%F0%9F%98%80", 200),
        ("/tasks?page=99999999999999999999", 200),
        ("/task?id=dark-mode&page=77", 200),
        ("/cost?days=never&task=%3Cscript%3E", 200),
        ("/audit?entity=nonsense&page=x", 200),
        ("/agents?state=%00", 200),
    ],
)
def test_nonsense_is_answered_in_words(opened: Window, path: str, status: int) -> None:
    answer = opened.get(path)
    assert answer.status == status
    assert "Traceback" not in answer.text
    assert not (opened.home / "log" / "crash.log").exists()


# --- who comes in ---------------------------------------------------------------------------------


def test_the_link_is_good_for_one_time(shown: Showcase) -> None:
    with closing(Window(shown.home)) as made:
        parts = urlsplit(made.link)
        way = f"{parts.path}?{parts.query}"
        assert made.get("/").status == 401, "without a session"
        wrong = f"{parts.path}?token={'x' * 43}"
        assert made.get(wrong).status == 403
        assert made.get(parts.path).status == 403
        assert made.ask("HEAD", way).status == 405, "a preview does not use it up"
        followed = made.get(way, sec_fetch_site="cross-site", sec_fetch_mode="navigate")
        said = followed.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(said.split("; "))
        assert str(made.port) in said.partition("=")[0], "beside that of another window"
        cookie = made.cookie = said.partition(";")[0]
        assert made.page("/")
        made.cookie = ""
        again = made.get(way)
        assert again.status == 403
        assert "used already" in again.text
        assert "set-cookie" not in again.headers
        made.cookie = cookie[:-2] + "xx"
        assert made.get("/").status == 401
        made.cookie = cookie.replace("=", "=;;\x01=", 1)
        assert made.get("/").status == 401


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example:{port}", "127.0.0.2:{port}",
     "localhost.evil.example", "x@127.0.0.1:{port}", "[::1", "", "0.0.0.0:{port}"],
)  # fmt: skip
def test_a_foreign_name_for_this_machine_is_refused(opened: Window, host: str) -> None:
    for path in ("/", "/enter?token=x", "/static/style.css", "/live"):
        answer = opened.get(path, host=host.format(port=opened.port))
        assert answer.status in (400, 403), path
        assert "dark-mode" not in answer.text


def test_a_tunnel_with_another_port_is_no_foreign_name(opened: Window) -> None:
    assert opened.get("/", host="localhost:9999").status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_gets_nothing(opened: Window, site: str) -> None:
    for path in (*PAGES, "/live", "/static/live.js"):
        assert opened.get(path, sec_fetch_site=site).status == 403, path
    assert opened.get("/", origin="http://evil.example").status == 403


FOREIGN: dict[str, dict[str, str]] = {
    "from another site": {"origin": "http://evil.example"},
    "from another port": {"origin": "http://127.0.0.1:1"},
    "from nowhere": {"origin": ""},
    "from a sandbox": {"origin": "null"},
    "another site, says the browser": {"sec-fetch-site": "cross-site"},
    "another port, says the browser": {"sec-fetch-site": "same-site"},
    "over https": {"origin": "https://127.0.0.1"},
}


def test_a_form_of_another_site_changes_nothing(opened: Window, shown: Showcase) -> None:
    word = opened.word()
    for path in ("/conflict/restore", "/conflict/dismiss", "/audit/verify"):
        for how, headers in FOREIGN.items():
            answer = opened.post(path, headers, id=shown.conflict, word=word)
            assert answer.status == 403, (path, how)
        for wrong in ("", "x", word[:-1], word + "x", "\u2026"):
            assert opened.post(path, id=shown.conflict, word=wrong).status == 403
        assert opened.get(path).status != 200
        for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
            assert opened.ask(method, path).status in (403, 405)
        assert opened.post(path, id=shown.conflict, word=word, more="x" * 70_000).status == 403
    with closing(Node(shown.home)) as node:
        assert conflicts.named(node, shown.conflict).state == "open"


# --- what it shows of others' words ---------------------------------------------------------------

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{7*7}}javascript:alert(3)"
TURNED = "\u202eevil\u2066"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Showcase:
    """Every text that others choose tries to be more than text."""
    home = tmp_path_factory.mktemp("hostile") / "home"
    with closing(CheckpointService(home=home)) as service:
        tasks.add(service.node, EVIL, title=EVIL, description=EVIL + TURNED)
        tasks.escalate(service.node, EVIL, EVIL, EVIL, EVIL, by=EVIL)
        first = service.create_checkpoint(
            EVIL, EVIL, _state(), {"key_decisions": [{"decision": EVIL, "rationale": EVIL}],
                                   "assumptions": [EVIL], "findings": [EVIL]},
            {"files_modified": [EVIL], "tokens_consumed": 10}, agent_type=EVIL,
            mission=EVIL, workspace={"repository": EVIL, "branch": EVIL, "head": EVIL},
        )  # fmt: skip
        second = service.create_checkpoint(EVIL, EVIL + "2", _state(), agent_type=EVIL)
        service.heartbeat(EVIL, EVIL, agent_type=EVIL)
        for focus in (EVIL + "1", EVIL + "2"):
            showcase.refocused(service, second, focus, [EVIL])
        with service.node.store.transaction():
            service.node.store.change("add_attempt", ("2026-01-01T00:00:00+00:00", 0, 0, EVIL))
            service.node.store.change("quarantine", (EVIL, EVIL, EVIL, EVIL, EVIL))
        service.node.store.record_problems([(EVIL, EVIL)])
        (row,) = service.node.store.rows("conflicts_of", (second.metadata.checkpoint_id,))
        service.finalize_checkpoint(first.metadata.checkpoint_id, sign_as=EVIL, meaning=EVIL)
        return Showcase(home, second.metadata.checkpoint_id, str(row[0]), "",
                        first.metadata.checkpoint_id)  # fmt: skip


def _state() -> ExecutionState:
    return ExecutionState(
        phase="testing", completed_items=[EVIL], pending_items=[EVIL], blocked_items=[EVIL],
        current_focus=EVIL, error=EVIL,
    )  # fmt: skip


def test_script_in_any_text_is_shown_as_text(hostile: Showcase) -> None:
    with window(hostile.home) as made:
        paths = everywhere(hostile)
        assert len(paths) == len(PAGES) + 4
        for path in (*paths, f"/tasks?q={quote(EVIL)}", f"/agents?q={quote(EVIL)}",
                     f"/audit?task={quote(EVIL)}&actor={quote(EVIL)}", f"/cost?task={quote(EVIL)}",
                     f"/task?id={quote(EVIL)}x", f"/conflict?id={quote(EVIL)}"):  # fmt: skip
            answer = made.get(path)
            harmless(answer.text)
            if path not in ("/fleet", "/cost", "/conflicts?all=1"):
                assert "alert(1)" in Page(answer.text).text, f"{path} shows it"


def harmless(text: str) -> None:
    page = Page(text)
    scripts = [attrs for tag, attrs in page.tags if tag == "script"]
    assert scripts in ([{"src": "/static/live.js", "defer": ""}], [])
    assert "img" not in {tag for tag, _ in page.tags}
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    assert not [address for address in page.addresses() if address.startswith("javascript")]
    assert not [attrs for _, attrs in page.tags if "style" in attrs]
    assert "49" not in page.text.replace("{{7*7}}", "").replace(EVIL, "") or "{{7*7}}" in page.text
    assert "\u202e" not in text
    assert "\u2066" not in text


# --- what it changes ------------------------------------------------------------------------------


def test_a_conflict_is_restored_or_dismissed_and_the_log_says_so(
    shown: Showcase, tmp_path: Path
) -> None:
    both = (("restore", "guest checkout"), ("dismiss", "saved cards"))
    for how, focus in full(both[1:], both):  # the browser restores one
        home = tmp_path / how
        shutil.copytree(shown.home, home)
        with window(home) as made:
            before = Page(made.page(f"/conflict?id={shown.conflict}"))
            assert "guest checkout" in before.text
            assert "saved cards" in before.text
            answer = made.post(f"/conflict/{how}", id=shown.conflict, word=made.word())
            assert answer.status == 303
            after = made.page(answer.headers["location"])
            assert f"{how}d"[:7] in after.casefold()
            assert "/conflict/restore" not in after, "it is decided"
            assert "No open conflicts" in made.page("/conflicts")
            again = made.post(f"/conflict/{how}", id=shown.conflict, word=made.word())
            assert again.status == 409
            assert "closed already" in again.text
        with closing(CheckpointService(home=home)) as service:
            latest = service.get_latest_checkpoint("checkout-redesign")
            assert latest is not None
            assert latest.execution_state.current_focus == focus


def test_a_complete_check_runs_beside_the_pages_and_a_damaged_file_ends_none_of_them(
    shown: Showcase, tmp_path: Path
) -> None:
    shutil.copytree(shown.home, tmp_path / "copy")
    with window(tmp_path / "copy") as made:
        assert made.post("/audit/verify", word=made.word()).status == 303
        deadline = time.monotonic() + 30
        while "Last done here" not in (text := made.page("/audit")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert "1 problem found" in " ".join(Page(text).text.split())
        with closing(sqlite3.connect(tmp_path / "copy" / "context.db")) as database:
            database.execute("DROP TABLE conflicts")
        for path in (*PAGES, "/task?id=dark-mode"):
            answer = made.get(path)
            assert answer.status in (200, 500)
            assert "Traceback" not in answer.text
        assert "That did not work" in made.get("/conflicts").text, "the file was damaged meanwhile"


# --- homes of all kinds ---------------------------------------------------------------------------


def test_a_new_home_has_pages_too(tmp_path: Path) -> None:
    with window(tmp_path / "new") as made:
        for path in PAGES:
            assert made.page(path)
        assert "Nothing was written yet" in made.page("/")
        assert "There is no task yet" in made.page("/tasks")


@pytest.mark.plain
def test_an_encrypted_home_is_shown_and_without_its_keys_says_so(tmp_path: Path) -> None:
    home = tmp_path / "sealed"
    os.environ["SYNCD_ENCRYPTION"] = "at_rest"
    try:
        with closing(CheckpointService(home=home)) as service:
            tasks.add(service.node, "t", title="a concealed title")
            made = service.create_checkpoint("t", "a", ExecutionState(pending_items=["concealed"]))
            name = made.metadata.checkpoint_id
        assert b"concealed" not in (home / "context.db").read_bytes()
        with window(home) as opened:
            assert "concealed" in opened.page("/task?id=t")
            assert "concealed" in opened.page(f"/checkpoint?id={name}")
            assert "a concealed title" in opened.page("/tasks")
        for file in (home / "keys").glob("*"):
            if file.name != "signing.pem":
                file.unlink()
        with window(home) as opened:
            for path in (*PAGES, "/task?id=t", f"/checkpoint?id={name}"):
                assert opened.get(path).status == 200, path
            assert "sealed" in opened.page(f"/checkpoint?id={name}")
            assert "concealed" not in opened.page("/task?id=t")
    finally:
        del os.environ["SYNCD_ENCRYPTION"]


@pytest.mark.parametrize("damaged", [False, True])
def test_a_database_that_was_brought_back_is_the_one_that_is_shown(
    tmp_path: Path, damaged: bool
) -> None:
    home = tmp_path / "home"
    with closing(CheckpointService(home=home)) as service:
        service.create_checkpoint("before", "ann")
        service.node.back_up()
        service.create_checkpoint("after", "ann")
    with window(home) as made:
        assert "after" in Page(made.page("/tasks")).text
        time.sleep(1.0)
        listener = Listener(made)
        if damaged:  # then it is another file
            (home / "context.db").write_bytes(b"\0garbage" * 1000)
        (copy,) = (home / "backups").glob("*.db")
        restored = ["--home", str(home), "backup", "restore", str(copy)]
        subprocess.run([windows.SYNCD, *restored], check=True, capture_output=True)
        assert listener.within(10), "another database is news"
        text = Page(made.page("/tasks")).text
        assert "before" in text
        assert "after" not in text
        time.sleep(1.0)
        heard = len(listener.heard)
        with closing(CheckpointService(home=home)) as service:
            service.create_checkpoint("afterwards", "ann")
        assert listener.within(10, heard + 1), "what is written to it is told too"
        assert "afterwards" in Page(made.page("/tasks")).text
        made.stop()
        listener.close()


def test_pages_over_a_long_history_are_light(tmp_path: Path) -> None:
    home = pages.filled(tmp_path / "home", payload.small(), full(300, 1_000_000))
    found = pages.measured(home, 1).pages
    assert [asked.path for asked in found if asked.bytes > pages.MOST_BYTES] == []


# --- live -----------------------------------------------------------------------------------------


class Listener:
    """Somebody who waits for news."""

    def __init__(self, made: Window) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", made.port, timeout=30)
        self._connection.request("GET", "/live", headers={"cookie": made.cookie})
        self._answer = self._connection.getresponse()
        assert self._answer.headers["content-type"].startswith("text/event-stream")
        self.heard: list[str] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            while line := self._answer.readline():
                if line.startswith(b"data:"):
                    self.heard.append(line.decode())
        except (OSError, ValueError):
            return

    def close(self) -> None:
        if self._connection.sock is not None:
            self._connection.sock.close()
        self._answer.close()
        self._connection.close()

    def within(self, seconds: float, number: int = 1) -> bool:
        deadline = time.monotonic() + seconds
        while len(self.heard) < number and time.monotonic() < deadline:
            time.sleep(0.02)
        return len(self.heard) >= number


def test_what_others_write_is_told_once_and_reading_damage_is_no_news(
    shown: Showcase, tmp_path: Path
) -> None:
    shutil.copytree(shown.home, tmp_path / "copy")
    with window(tmp_path / "copy") as made:
        made.page(f"/checkpoint?id={shown.damaged}")  # recorded as damage, once
        made.page("/")
        time.sleep(2.0)
        listeners = [Listener(made), Listener(made)]
        for _ in range(5):
            made.page(f"/checkpoint?id={shown.damaged}")
            made.page("/task?id=search-index")
        assert not listeners[0].within(1.0)
        with closing(CheckpointService(home=tmp_path / "copy")) as service:
            for number in range(20):
                service.create_checkpoint("busy", f"agent {number}")
        assert all(listener.within(10) for listener in listeners)
        time.sleep(1.0)
        assert len(listeners[0].heard) <= 3, "twenty writes in a row are one or two pieces of news"
        assert "busy" in made.page("/tasks")
        code, _, err = made.stop()
        assert (code, err) == (0, ""), "a window that waits does not keep it"
        for listener in listeners:
            listener.close()


# --- the command ----------------------------------------------------------------------------------


def test_two_at_a_time_work_and_know_nothing_of_each_other(opened: Window, shown: Showcase) -> None:
    with closing(Window(shown.home).enter()) as other:
        assert opened.port != other.port
        assert opened.page("/")
        assert other.page("/")
        other.cookie = opened.cookie
        assert other.get("/").status == 401
        assert other.stop(signal.SIGTERM) == (0, "", "")


def test_it_ends_quietly_and_its_port_is_free_again(shown: Showcase) -> None:
    with closing(Window(shown.home).enter()) as made:
        made.page("/")
        began = time.monotonic()
        assert made.stop() == (0, "", "")
        assert time.monotonic() - began < 10
    with closing(Window(shown.home, "--port", str(made.port)).enter()) as again:
        assert again.port == made.port
        assert again.page("/tasks")


def test_it_listens_on_this_machine_only(opened: Window) -> None:
    with socket.socket() as other:
        other.settimeout(2)
        assert other.connect_ex(("127.0.0.2", opened.port)) != 0


def test_a_port_that_is_taken_is_named(opened: Window, home: Path) -> None:
    done = CliRunner().invoke(syncd, ["ui", "--no-browser", "--port", str(opened.port)])
    assert f"port {opened.port}" in str(done.exception)


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ui, "find_spec", lambda name: None)
    done = CliRunner().invoke(syncd, ["ui"])
    assert "pip install -e '.[ui]'" in getattr(done.exception, "remedy", "")


def test_a_browser_is_started_only_where_there_is_a_screen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert not ui._has_display()
    monkeypatch.setenv("DISPLAY", ":0")
    assert ui._has_display()


# --- the fleet ------------------------------------------------------------------------------------


def test_the_fleet_says_why_there_is_none(opened: Window, tmp_path: Path) -> None:
    assert "This home has no replica" in opened.page("/fleet")
    away = "postgresql://a:b@127.0.0.1:1/x"
    with window(tmp_path / "away", SYNCD_CLOUD_DSN=away) as made:
        told(made, "cannot be reached")
        assert "Local only" not in made.page("/")
        assert made.page("/tasks")


def told(made: Window, words: str) -> str:
    deadline = time.monotonic() + 30
    while words not in (text := made.page("/fleet")):
        assert time.monotonic() < deadline, Page(text).text
        time.sleep(0.05)
    return text


def test_a_member_sees_the_fleet_as_a_lead_does_and_nothing_of_others(team: machines.Team) -> None:
    member = team.machine()
    with team.administration() as admin:
        login = admin.add_member(team.organization_id, "lead", "lead", "desk")
        other = admin.create_organization("elsewhere")
        stranger = team.machine(str(admin.add_member(other, "eve", "member", "lair").dsn))
    lead = team.machine(str(login.dsn))
    for machine, task in ((lead, "t"), (stranger, "not yours")):
        machine.ok("checkpoint", "create", "--task", task, "--agent", "a", "--tokens", "700")
        machine.sync()
    seen = {}
    for name, machine in {"member": member, "lead": lead, "stranger": stranger}.items():
        with closing(Node(machine.home)) as node:
            seen[name] = fleet.asked(node)
    assert seen["member"].problem == ""
    assert [row[:2] for row in seen["member"].machines] == [
        row[:2] for row in seen["lead"].machines
    ]
    assert len(seen["member"].machines) == len(member.json("admin", "fleet"))
    assert [row[0] for row in seen["member"].tasks] == ["t"]
    assert [row[0] for row in seen["stranger"].tasks] == ["not yours"]
    assert [row[:2] for row in seen["stranger"].machines] == [("eve", "lair")]
    with window(member.home, **member.environment) as made:
        page = Page(told(made, "Machines"))
    assert team.organization in page.text
    assert "700" in page.text
    assert "/task?id=t" in page.addresses()


# --- what it asks of the database -----------------------------------------------------------------

_PAGED: dict[str, tuple[Any, ...]] = {
    "chain_page": ("t", 1, 0),
    "history_page": ("t", 1, 0),
    "checkpoint_header": ("t",),
    "tasks_by_activity": (),
    "graph_last": ("t",),
    "forked_tasks": (),
    "checkpoint_count": ("t",),
    "recent_entries": (0, "", "", "", 1, 0),
}


@pytest.mark.parametrize("name", _PAGED)
def test_no_page_looks_through_the_log_or_all_checkpoints(name: str, home: Path) -> None:
    with closing(Node(home)) as node:
        plan = node.store.connection.execute(
            f"EXPLAIN QUERY PLAN {queries()[name]}", _PAGED[name]
        ).fetchall()
    scans = [
        row[3]
        for row in plan
        if row[3].startswith("SCAN") and row[3] not in ("SCAN tasks", "SCAN k")
    ]
    assert scans == []


# --- what takes long is worked out beside ---------------------------------------------------------


def test_a_quick_answer_is_waited_for_and_asked_for_again_only_when_something_changed() -> None:
    numbers = itertools.count(1)
    kept = Kept(lambda: next(numbers), lambda: None)
    assert kept.get("a").value == 1
    assert kept.get("a") == kept.get("a")
    deadline = time.monotonic() + 5
    while (found := kept.get("b")).value != 2:
        assert time.monotonic() < deadline
    assert found.fresh


def test_a_slow_answer_keeps_nobody_waiting_and_is_told_when_it_is_there() -> None:
    go, rung = threading.Event(), threading.Event()

    def slow() -> str:
        go.wait(10)
        return "done"

    kept = Kept(slow, rung.set)
    began = time.monotonic()
    assert kept.get(1).value is None
    assert time.monotonic() - began < 2
    go.set()
    assert rung.wait(10)
    assert kept.get(1) == ("done", kept.get(1).at, True)
    assert kept.get(2).fresh is False or kept.get(2).value == "done"


def test_what_went_wrong_is_told_to_whoever_asks() -> None:
    def broken() -> str:
        raise ValueError("broken")

    kept = Kept(broken, lambda: None)
    with pytest.raises(ValueError, match="broken"):
        kept.get(1)


__all__ = ["runner", "team", "windows"]
