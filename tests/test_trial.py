"""`syncd cloud try` and `make run`: whatever is there already, it ends in a home that is kept in
step, or says what to do."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from machines import Machine, Runner, runner
from postgres import Session

from syncd import cluster, credentials, embedded, running, trial
from syncd.node import Node
from syncd.replica import Administration

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
Home = Callable[[str], Machine]

__all__ = ["runner"]


@pytest.fixture(scope="module")
def folder(postgres: Session) -> Path:
    """One server for all of these; it is no matter whether it runs."""
    return postgres.place("trial")


@pytest.fixture
def home(runner: Runner, folder: Path, tmp_path: Path) -> Home:
    """A home by name, which need not be there yet."""
    return lambda name: Machine(runner, tmp_path / name, SYNCD_CLOUD_FOLDER=str(folder))


def tried(machine: Machine) -> dict[str, Any]:
    made: dict[str, Any] = machine.json("cloud", "try")
    return made


def kept(machine: Machine) -> list[str]:
    return [(machine.home / name).read_text() for name in ("config.toml", "keys/cloud.password")]


def machines(folder: Path) -> list[Any]:
    server = embedded.up(folder)
    with closing(Administration(server.admin_dsn)) as admin:
        return [m for o in admin.organizations() for m in admin.machines(o.id)]


def in_step(machine: Machine) -> bool:
    machine.sync()
    return bool(machine.json("prove")["ok"])


# --- once, and again ----------------------------------------------------------------------------


def test_it_prepares_everything_once_and_again_changes_nothing(home: Home) -> None:
    mine = home("mine")
    first = tried(mine)
    assert "login" in first["made"]
    assert (first["organization"], first["machine"]) == ("trial", "mine")
    before = kept(mine)
    mine.create()
    assert mine.sync()["pushed"] == 1
    again = tried(mine)
    assert again["made"] == []
    assert kept(mine) == before
    assert {**again, "made": 0} == {**first, "made": 0}
    assert "running already" in mine.ok("cloud", "try").out


def test_what_the_text_says_to_try_works(folder: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "SYNCD_HOME": str(tmp_path / "first"),
                   "SYNCD_CLOUD_FOLDER": str(folder), "PATH": os.defpath}  # fmt: skip
    said = subprocess.run([BIN / "syncd", "cloud", "try"], env=environment, capture_output=True,
                          text=True, timeout=60)  # fmt: skip
    assert said.returncode == 0, said.stderr
    lines = [line.strip() for line in said.stdout.splitlines() if line.startswith("  ")]
    script = [line for line in lines if line.startswith(("export ", "syncd ", "--"))]
    assert max(map(len, script)) <= 78 or str(tmp_path) in max(script, key=len)
    assert [line for line in script if line.startswith("syncd demo")]
    script = [line for line in script if not line.startswith("syncd demo")]
    text = "set -e\n" + "\n".join(script).replace("/tmp/second", str(tmp_path / "second"))
    text = text.replace("syncd status", "syncd sync; syncd status")  # there is no daemon here
    plain = {"PATH": os.defpath, "HOME": os.environ["HOME"],
             "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring"}  # fmt: skip
    done = subprocess.run(["bash", "-c", text], cwd=tmp_path, env=plain, capture_output=True,
                          text=True, timeout=60)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Safe to close the lid" in done.stdout
    assert "· my own task" in done.stdout


def test_a_second_machine_is_told_the_next_step_only(home: Home) -> None:
    mine, other = home("first"), home("second")
    tried(mine)
    said = mine.ok("--home", str(other.home), "cloud", "try").out
    assert said.endswith(f"\n\nNext: syncd --home {other.home} sync\n")
    assert mine.ok("--home", str(other.home), "sync").code == 0


def test_a_login_of_another_organization_is_refused_with_both_names(
    home: Home, folder: Path
) -> None:
    mine = home("both names")
    tried(mine)
    with closing(Administration(embedded.up(folder).admin_dsn)) as admin:
        organization = admin.create_organization("acme of both names")
        dsn = admin.add_member(organization, "ann", "member", "laptop").dsn
    refused = mine.run("login", "-", "--json", stdin=dsn)
    assert refused.code == 2
    assert "belongs to trial, not acme of both names" in refused.error()["message"]
    assert "SYNCD_HOME" in refused.error()["remedy"]


def test_a_restored_backup_says_that_the_replica_gives_back_what_it_has(home: Home) -> None:
    mine = home("restored")
    tried(mine)
    mine.create()
    mine.sync()  # others have written to this replica
    name = mine.json("backup", "create")["name"]
    later = mine.create()
    mine.sync()
    said = mine.ok("backup", "restore", name).out
    assert "Only there: 1 entry; those the replica has come back at the next sync." in said
    mine.sync()
    assert mine.json("checkpoint", "show", later)["verified"]


# --- what an earlier attempt left ---------------------------------------------------------------


def test_an_attempt_that_was_cut_off_before_the_login_was_kept_is_gone_on_with(
    home: Home, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNCD_CLOUD_FOLDER", str(folder))
    cut = home("cut off")

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, closing(Node(cut.home)) as node:
        patched.setattr(credentials, "keep", crash)
        with pytest.raises(KeyboardInterrupt):
            trial.prepare(node)
    before = machines(folder)
    assert "cut off" in {machine.name for machine in before}
    assert "login" in tried(cut)["made"]
    assert len(machines(folder)) == len(before)
    assert in_step(cut)


def test_a_home_that_was_deleted_comes_back_from_the_server(home: Home) -> None:
    mine = home("deleted")
    tried(mine)
    written = mine.create("deleted")
    mine.sync()
    shutil.rmtree(mine.home)
    again = tried(mine)
    assert (again["machine"], again["made"]) == ("deleted 2", ["login"])
    mine.sync()
    assert mine.json("checkpoint", "latest", "deleted")["metadata"]["checkpoint_id"] == written


def test_two_homes_at_once_get_a_login_each_and_when_the_servers_folder_is_gone_a_new_one(
    postgres: Session, runner: Runner, tmp_path: Path
) -> None:
    folder = postgres.place("lost")
    one, two = (Machine(runner, tmp_path / name / "home", SYNCD_CLOUD_FOLDER=str(folder))
                for name in ("one", "two"))  # fmt: skip
    racers = [
        subprocess.Popen(
            [BIN / "syncd", "--home", machine.home, "cloud", "try", "--json"],
            env={**os.environ, **machine.environment}, stdout=subprocess.DEVNULL,
        )
        for machine in (one, two)
    ]  # fmt: skip
    assert [racer.wait(60) for racer in racers] == [0, 0]
    found = machines(folder)
    assert sorted(machine.name for machine in found) == ["home", "home 2"]
    assert all(machine.devices for machine in found)
    one.create()
    one.sync()
    two.sync()

    embedded.remove(folder)
    assert not folder.exists()
    assert tried(one)["made"] == ["server", "organization", "login"]
    assert tried(two)["made"] == ["login"]
    two.create()
    assert [two.sync()["pushed"], one.sync()["pushed"]] == [1, 1], "each sends its own again"
    assert in_step(one)
    assert in_step(two)
    embedded.remove(folder)


def test_a_home_that_was_logged_out_gets_its_own_login_back(home: Home, folder: Path) -> None:
    mine = home("logged out")
    tried(mine)
    count = len(machines(folder))
    mine.ok("logout")
    assert tried(mine)["made"] == ["login"]
    assert len(machines(folder)) == count
    assert in_step(mine)


def test_a_password_that_is_gone_is_replaced(home: Home) -> None:
    mine = home("forgetful")
    tried(mine)
    (mine.home / "keys" / "cloud.password").unlink()
    assert tried(mine)["made"] == ["login"]
    assert in_step(mine)


def test_a_login_that_was_revoked_is_followed_by_another(home: Home) -> None:
    mine, other = home("revoked"), home("other")
    tried(mine)
    tried(other)
    mine.create()
    other.ok("device", "revoke", "revoked")
    assert tried(mine)["made"] == ["login"]
    assert in_step(mine)


# --- ports and places ---------------------------------------------------------------------------


def test_a_taken_port_is_said_and_after_a_move_the_login_is_right_again(
    home: Home, folder: Path
) -> None:
    mine = home("moved")
    port = tried(mine)["server"]["port"]
    embedded.down(folder)
    with closing(socket.create_server((cluster.HOST, port))):
        said = mine.fails(1, "cloud", "try")
        assert f"port {port} " in said["message"]
        assert "syncd cloud up --port" in said["remedy"]
        mine.ok("cloud", "up", "--port", str(cluster.free_port()))
        assert tried(mine)["server"]["port"] != port
        assert in_step(mine)


def test_a_login_elsewhere_is_left_alone(home: Home, tmp_path: Path) -> None:
    mine = home("elsewhere")
    mine.environment["SYNCD_CLOUD_FOLDER"] = str(tmp_path / "none")
    assert mine.ok("init").code == 0
    for dsn in ("postgresql://u:p@db.example.com/syncd", "postgresql://u:p@127.0.0.1:1/syncd"):
        credentials.keep(mine.home, dsn)
        before = kept(mine)
        assert tried(mine) == {"prepared": False, "home": str(mine.home)}
        assert kept(mine) == before
    credentials.forget(mine.home)
    mine.environment["SYNCD_CLOUD_DSN"] = "postgresql://u@127.0.0.1:1/syncd"
    assert tried(mine)["prepared"] is False
    assert not (tmp_path / "none").exists()


def test_a_login_to_another_server_of_this_machine_is_left_alone(home: Home) -> None:
    mine = home("tunnel")
    mine.ok("init")
    credentials.keep(mine.home, "postgresql://u:p@127.0.0.1:1/syncd")
    before = kept(mine)
    assert tried(mine)["prepared"] is False
    assert kept(mine) == before


def test_a_home_of_another_organization_is_refused(home: Home) -> None:
    mine = home("theirs")
    mine.ok("init")
    mine.sql("INSERT INTO state (name, value) VALUES ('organization', 'another')")
    said = mine.fails(2, "cloud", "try")
    assert "belongs to another organization" in said["message"]
    assert "syncd cloud try" in said["remedy"]


def test_another_folder_than_that_of_the_homes_replica_is_refused(
    home: Home, folder: Path, tmp_path: Path
) -> None:
    mine = home("two folders")
    tried(mine)
    mine.environment["SYNCD_CLOUD_FOLDER"] = str(tmp_path / "other")
    assert f"SYNCD_CLOUD_FOLDER={folder}" in mine.fails(1, "cloud", "try")["remedy"]


# --- make run -----------------------------------------------------------------------------------


@pytest.fixture
def make(folder: Path, tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """`make run` in a session of its own, as a terminal's; nothing is installed."""
    started: list[subprocess.Popen[str]] = []
    stamp = BIN.parent / ".installed-run"

    def begin() -> subprocess.Popen[str]:
        environment = {**os.environ, "SYNCD_CLOUD_FOLDER": str(folder)}
        command = ["make", "-s", "-o", str(stamp), f"VENV={BIN.parent}", "run"]
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def daemon_of(home: Path) -> int:
    deadline = time.monotonic() + 30
    while running.told(home).get("cloud", {}).get("state") != "online" or not running.pid(home):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return running.pid(home)


def test_make_run_runs_the_daemon_until_ctrl_c_and_goes_on_after_a_crash(
    make: Callable[[], subprocess.Popen[str]], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    killed = make()
    first = daemon_of(home)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    running.tell(home, {})
    device = (home / "config.toml").read_text()

    again = make()
    assert daemon_of(home) != first
    refused, _ = make().communicate(timeout=30)
    assert f"running already, as process {running.pid(home)}" in refused
    assert "stop` ends it" in refused
    assert "try in another terminal" not in refused
    assert "Traceback" not in refused
    assert (home / "config.toml").read_text() == device
    os.killpg(again.pid, signal.SIGINT)
    said, _ = again.communicate(timeout=30)
    assert "While it runs, try in another terminal" in said
    assert "logged in already" in said
    assert "stopped  sent_the_rest=True" in said
    assert "Traceback" not in said
    assert not running.pid(home)
