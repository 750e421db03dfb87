"""The daemon as a service: what is written, what is asked of systemd, what is left afterwards.

No systemd runs here: `systemctl.py` stands in for it, where something is installed. What is written
is read by systemd's own parser, and the daemon speaks to a real socket, and runs under the real
filters of the kernel, wherever these are at hand.
"""

from __future__ import annotations

import json
import os
import plistlib
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from ctypes.util import find_library
from pathlib import Path
from typing import Any

import pytest
from machines import Team, runner, team

from syncd import running, unit
from syncd.config import SETTINGS
from syncd.errors import ServiceError

__all__ = ["runner", "team"]

TESTS = Path(__file__).parent
TEMPLATE = TESTS.parent / "systemd" / "syncd.service"
ODD = """a b%d "q" it's $x \\y é"""
SYSTEMD = Path("/lib/systemd/systemd")


def needs(program: str) -> pytest.MarkDecorator:
    there = shutil.which(program) or Path(program).exists()
    return pytest.mark.skipif(not there, reason=f"{program} is not installed here")


def syncd(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "syncd", *words], env={**os.environ, **environment}, cwd="/",
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "Traceback" not in done.stdout + done.stderr
    return done


def answer(*words: str, code: int = 0, **environment: str) -> dict[str, Any]:
    done = syncd(*words, "--json", **environment)
    assert done.returncode == code, done
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def ended(home: Path) -> None:
    if pid := running.pid(home):
        os.kill(pid, signal.SIGTERM)
    wait(lambda: not running.pid(home))


def wait(until: Any, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def lines(text: str, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", text, re.M)


# --- the unit -----------------------------------------------------------------------------------


def test_the_unit_names_this_home_and_this_program(home: Path) -> None:
    words = ["/opt/venv/bin/python", "-m", "syncd", "--home", "/srv/home", "run"]
    text = unit.systemd_text(Path("/srv/home"), words, 12.0)
    assert lines(text, "ExecStart") == [" ".join(words)]
    assert lines(text, "ConditionPathExists") == ["/srv/home/context.db"]
    assert lines(text, "ReadWritePaths") == ["/srv/home"]
    assert lines(text, "PrivateTmp") == lines(text, "PrivateUsers") == ["yes"]
    assert "%h" not in text
    assert unit.command(home)[0] == sys.executable


def test_only_the_lines_that_are_put_in_differ_from_the_unit_that_ships() -> None:
    made = unit.systemd_text(Path("/srv/home"), ["/bin/syncd"], 5.0, namespaces=False)
    pairs = zip(made.split("\n"), TEMPLATE.read_text("utf-8").split("\n"), strict=True)
    changed = [new.partition("=")[0] for new, old in pairs if new != old]
    assert changed == [
        "Description", "ConditionPathExists", "ExecStart", "PrivateUsers", "ReadWritePaths",
    ]  # fmt: skip


def test_the_time_to_stop_is_longer_than_the_daemons_own() -> None:
    (grace,) = [s.default for s in SETTINGS if s.name == "daemon.grace_seconds"]
    assert int(lines(TEMPLATE.read_text("utf-8"), "TimeoutStopSec")[0]) > grace
    text = unit.systemd_text(Path("/srv/home"), ["/bin/syncd"], 120.5)
    assert int(lines(text, "TimeoutStopSec")[0]) > 120.5


def test_a_home_in_tmp_is_not_hidden_from_its_service() -> None:
    text = unit.systemd_text(Path("/var/tmp/home"), ["/bin/syncd"], 5.0)
    assert lines(text, "PrivateTmp") == ["no"]
    assert lines(text, "ReadWritePaths") == ["/tmp /var/tmp"]


@pytest.mark.parametrize("home", ["/srv/two\nlines", "/srv/\udcff"])
def test_a_name_that_no_service_can_have_is_refused(home: str) -> None:
    for text in (unit.systemd_text, unit.launchd_text):
        with pytest.raises(ServiceError, match="cannot be given the name"):
            text(Path(home), ["/bin/syncd", "--home", home], 5.0)


@pytest.mark.parametrize("program", ["/srv/a$b", "/srv/it's", '/srv/"', "/srv/\\"])
def test_a_program_that_systemd_would_not_start_is_refused(program: str) -> None:
    with pytest.raises(ServiceError, match="no program with such a name"):
        unit.systemd_text(Path("/srv/home"), [program], 5.0)


@needs("systemd-analyze")
def test_systemd_finds_nothing_to_complain_of(tmp_path: Path) -> None:
    program = tmp_path / "a b%d é" / "python"
    program.parent.mkdir()
    program.symlink_to(sys.executable)
    made = tmp_path / "syncd.service"
    made.write_text(unit.systemd_text(Path("/srv") / ODD, [str(program), "--home", ODD], 5.0))
    for file in (made, TEMPLATE):
        done = analyzed(tmp_path, "verify", "--user", str(file))
        assert (done.returncode, done.stdout + done.stderr) == (0, "")
    program.unlink()
    assert analyzed(tmp_path, "verify", "--user", str(made)).returncode != 0


@needs("systemd-analyze")
def test_systemd_rates_the_unit_well(tmp_path: Path) -> None:
    """It takes every service for root's. A user's has no capabilities: that is what counts, but
    cannot be written in the unit of a manager that has none either."""
    assert rating(tmp_path, TEMPLATE) < 5
    told = TEMPLATE.read_text("utf-8").replace(
        "UMask=", "User=1000\nCapabilityBoundingSet=\nUMask="
    )
    users = tmp_path / "syncd.service"
    users.write_text(told)
    assert rating(tmp_path, users) < 2.5


def rating(folder: Path, file: Path) -> float:
    done = analyzed(folder, "security", "--offline=true", "--no-pager", str(file))
    (found,) = re.findall(r"exposure level for \S+ ([\d.]+)", done.stdout)
    return float(found)


def analyzed(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *words], env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@needs(str(SYSTEMD))
def test_systemd_reads_odd_paths_as_they_are() -> None:
    """It reads the unit, says what it understood, and ends; as root it would not."""
    with tempfile.TemporaryDirectory() as folder:
        units = Path(folder) / "systemd" / "user"
        (units / "default.target.wants").mkdir(parents=True)
        words = ["/bin/true", "--home", f"/srv/{ODD}"]
        (units / "syncd.service").write_text(unit.systemd_text(Path("/srv") / ODD, words, 5.0))
        (units / "default.target.wants" / "syncd.service").symlink_to("../syncd.service")
        Path(folder).chmod(0o755)
        told = subprocess.run(
            [SYSTEMD, "--user", "--test"], capture_output=True, text=True, timeout=60,
            user="nobody" if os.getuid() == 0 else None,
            env={"HOME": folder, "XDG_CONFIG_HOME": folder, "XDG_RUNTIME_DIR": folder},
        )  # fmt: skip
    found = {line.strip() for line in told.stdout.splitlines()}
    assert f"ReadWritePaths: /srv/{ODD}" in found, told.stderr
    assert f"ConditionPathExists: /srv/{ODD}/context.db untested" in found
    # As it tells it, in C's way; it takes $$ for $ when it starts the program.
    quoted = ODD.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$\\$")
    assert f'Command Line: /bin/true --home "/srv/{quoted}"' in found


# --- the agent ----------------------------------------------------------------------------------


def test_the_agent_of_macos_names_this_home_and_this_program() -> None:
    home = Path("/Users/ann") / ODD
    agent = plistlib.loads(unit.launchd_text(home, unit.command(home), 12.0).encode())
    assert agent["ProgramArguments"] == unit.command(home)
    assert agent["Label"] == unit.name_of(home)
    assert agent["RunAtLoad"] is True
    assert agent["KeepAlive"] == {"PathState": {str(home / "context.db"): True}}
    assert agent["ThrottleInterval"] >= 10
    assert agent["ExitTimeOut"] > 12
    assert agent["Umask"] == 0o077
    assert Path(agent["StandardErrorPath"]).parent == home / "log"


# --- names --------------------------------------------------------------------------------------


def test_each_home_has_a_service_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert unit.name_of(tmp_path / "data" / "syncd") == "syncd"
    names = {unit.name_of(tmp_path / name) for name in ("one", "two")}
    assert len(names) == 2
    assert all(re.fullmatch(r"syncd-[0-9a-f]{8}", name) for name in names)
    (tmp_path / "other").symlink_to(tmp_path / "one")
    assert unit.name_of(tmp_path / "other") == unit.name_of(tmp_path / "one")


# --- installing ---------------------------------------------------------------------------------


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The stand-in on the PATH; the folder in which it keeps what it was asked."""
    if sys.platform == "darwin":
        pytest.skip("there is no systemd on macOS")
    folder = tmp_path / "systemd"
    folder.mkdir()
    (folder / "namespaces").touch()
    for name in ("systemctl", "systemd-run"):
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {TESTS / "systemctl.py"} "$0" "$@"\n')
        script.chmod(0o755)
    (tmp_path / "user").mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SYSTEMD", str(folder))
    yield folder
    for file in folder.glob("*.pid"):
        program = Path(f"/proc/{file.read_text()}/cmdline")
        if program.exists() and "syncd" in program.read_text():
            os.kill(int(file.read_text()), signal.SIGTERM)


def asked(systemd: Path) -> list[str]:
    """What was asked since the last time, questions left out."""
    file = systemd / "asked"
    told = file.read_text().splitlines() if file.exists() else []
    file.unlink(missing_ok=True)
    return [line for line in told if not line.startswith(("is-", "show-"))]


@pytest.fixture
def user(tmp_path: Path) -> Path:
    return tmp_path / "user"


def test_a_service_is_installed_seen_and_removed_without_a_trace(
    systemd: Path, user: Path, home: Path
) -> None:
    (user / "notes").touch()
    before = tree(user)
    name = f"{unit.name_of(home)}.service"
    file = user / ".config" / "systemd" / "user" / name

    done = answer("service", "install")
    assert done["pid"] == running.pid(home) > 0
    assert asked(systemd) == ["daemon-reload", f"enable --now {name}"]
    state = answer("service", "status")
    assert state == {"installed": True, "enabled": True, "active": True, "manager": "systemd",
                     "unit": str(file), "remedy": ""}  # fmt: skip
    assert lines(file.read_text(), "PrivateUsers") == ["yes"]
    assert stat.S_IMODE(home.stat().st_mode) == 0o700

    again = answer("service", "install")
    assert again["pid"] == done["pid"], "what runs as it should is left alone"

    asked(systemd)
    data = tree(home)
    gone = syncd("service", "uninstall")
    assert gone.returncode == 0
    assert f"Your data is in {home}, untouched." in gone.stdout
    assert asked(systemd) == [f"disable --now {name}", "daemon-reload", f"reset-failed {name}"]
    assert running.pid(home) == 0
    assert tree(user) == before
    assert data <= tree(home) | {"context.db-wal", "context.db-shm"}
    assert answer("service", "status")["installed"] is False
    assert answer("service", "uninstall")["uninstalled"] is False
    assert tree(user) == before


def test_others_units_stay_where_they_are(systemd: Path, user: Path, tmp_path: Path) -> None:
    mine = str(tmp_path / "mine")
    answer("service", "install")
    answer("--home", mine, "service", "install")
    answer("service", "uninstall")
    assert answer("--home", mine, "service", "status")["active"] is True
    answer("--home", mine, "service", "uninstall")
    assert tree(user) == set()


def test_the_service_takes_over_from_a_daemon_that_was_started_by_hand(
    systemd: Path, home: Path
) -> None:
    first = answer("start")["pid"]
    second = answer("service", "install")["pid"]
    assert first != second == running.pid(home)
    answer("service", "uninstall")


def test_installing_again_after_a_change_starts_the_daemon_anew(systemd: Path, home: Path) -> None:
    first = answer("service", "install")
    file = Path(first["unit"])
    right = file.read_text()
    file.write_text(right.replace(sys.executable, "/moved/python"))
    asked(systemd)
    second = answer("service", "install")
    assert file.read_text() == right
    assert second["pid"] != first["pid"]
    assert asked(systemd) == ["daemon-reload", f"stop {file.name}", f"enable --now {file.name}"]
    answer("service", "uninstall")


def test_an_odd_home_has_a_service_too(systemd: Path, tmp_path: Path) -> None:
    home = tmp_path / ODD
    pid = answer("--home", str(home), "service", "install")["pid"]
    assert pid == running.pid(home)
    answer("--home", str(home), "service", "uninstall")
    assert running.pid(home) == 0


def test_where_users_have_no_namespaces_the_unit_asks_for_none(systemd: Path) -> None:
    (systemd / "namespaces").unlink()
    file = Path(answer("service", "install")["unit"])
    assert lines(file.read_text(), "PrivateUsers") == ["no"]
    answer("service", "uninstall")


def test_the_units_folder_is_where_xdg_says(
    systemd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "elsewhere"))
    file = Path(answer("service", "install")["unit"])
    assert file.parent == tmp_path / "elsewhere" / "systemd" / "user"
    answer("service", "uninstall")
    assert not (tmp_path / "elsewhere").exists()


def test_settings_of_the_shell_are_said_not_to_reach_the_service(systemd: Path, home: Path) -> None:
    done = syncd("service", "install", SYNCD_BACKUP_KEEP="3")
    assert done.returncode == 0
    assert "SYNCD_BACKUP_KEEP is set in this shell only" in done.stderr
    assert "loginctl enable-linger" in done.stdout
    answer("service", "uninstall")


def test_a_service_that_does_not_run_needs_attention(systemd: Path, home: Path) -> None:
    answer("service", "install")
    assert answer("stop")["stopped"] is True
    state = answer("service", "status", code=3)
    assert (state["installed"], state["active"]) == (True, False)
    assert "syncd service install" in state["remedy"]
    assert answer("service", "install")["pid"] == running.pid(home)
    answer("service", "uninstall")


def test_what_systemd_refuses_is_said_with_its_words(systemd: Path, home: Path) -> None:
    (systemd / "systemctl").write_text(
        '#!/bin/sh\n[ "$2" != enable ] || { echo "Unit is masked." >&2; exit 1; }\n'
        '[ "$2" != is-active ]\n'
    )
    done = syncd("service", "install", "--json")
    assert done.returncode == 1
    assert "Unit is masked." in json.loads(done.stderr)["error"]["message"]


def test_without_a_manager_the_error_says_what_to_do_instead(systemd: Path, home: Path) -> None:
    """The program is there, but nobody answers it."""
    (systemd / "away").touch()
    done = syncd("service", "install", "--json")
    assert done.returncode == 1
    remedy = json.loads(done.stderr)["error"]["remedy"]
    assert "`syncd start`" in remedy
    assert f"@reboot {sys.executable} " in remedy
    assert not home.exists()
    assert answer("service", "status")["manager"] == "none"


def test_a_unit_is_removed_even_where_no_manager_answers(
    systemd: Path, user: Path, home: Path
) -> None:
    answer("service", "install")
    ended(home)
    (systemd / "away").touch()
    assert answer("service", "status", code=3)["manager"] == "none"
    assert answer("service", "uninstall")["uninstalled"] is True
    assert tree(user) == set()


# --- what systemd hears -------------------------------------------------------------------------


def heard(listener: socket.socket, until: str, count: int = 1) -> list[str]:
    found: list[str] = []
    deadline = time.monotonic() + 20
    while sum(line.startswith(until) for line in found) < count:
        assert time.monotonic() < deadline, found
        found += listener.recv(4096).decode().splitlines()
    return found


@pytest.fixture(params=["path", "abstract"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """As systemd has one, and how it names it in NOTIFY_SOCKET."""
    if request.param == "abstract" and sys.platform != "linux":
        pytest.skip("only Linux has abstract addresses")
    name = f"@syncd-{os.getpid()}" if request.param == "abstract" else f"{tmp_path}/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as opened:
        opened.bind(name.replace("@", "\0", 1) if request.param == "abstract" else name)
        opened.settimeout(20)
        yield opened, name


def daemon(home: Path, address: str, *under: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*under, *unit.command(home)], cwd="/",
        env={**os.environ, "NOTIFY_SOCKET": address, "WATCHDOG_USEC": "300000"},
    )  # fmt: skip


def test_systemd_hears_when_the_daemon_is_ready_alive_and_stopping(
    listener: tuple[socket.socket, str], home: Path
) -> None:
    opened, address = listener
    process = daemon(home, address)
    try:
        begin = heard(opened, "READY=1")
        assert running.pid(home) == process.pid
        begun = time.monotonic()
        alive = heard(opened, "WATCHDOG=1", 6)
        assert time.monotonic() - begun < 6 * 0.3, "in time for each"
        assert [line for line in begin + alive if line.startswith("STATUS=") and line != "STATUS="]
        assert "STOPPING=1" not in begin + alive
        process.terminate()
        heard(opened, "STOPPING=1")
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


def test_a_daemon_to_whom_systemd_does_not_listen_works_and_ends(
    tmp_path: Path, home: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as opened:
        opened.bind(str(tmp_path / "notify"))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out, suppress(BlockingIOError):
            out.setblocking(False)
            while True:
                out.sendto(b"unread", str(tmp_path / "notify"))
        process = daemon(home, str(tmp_path / "notify"))
        try:
            log = home / "log" / "daemon.log"
            wait(lambda: log.exists() and '"started"' in log.read_text())
            process.terminate()
            assert process.wait(20) == 0
        finally:
            process.kill()
            process.wait()
    assert '"stopped"' in log.read_text()


def test_a_daemon_whose_home_is_deleted_ends_and_leaves_no_home(tmp_path: Path, home: Path) -> None:
    """What the unit's condition then keeps so."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as opened:
        opened.bind(str(tmp_path / "notify"))
        opened.settimeout(20)
        process = daemon(home, str(tmp_path / "notify"))
        try:
            heard(opened, "READY=1")
            while home.exists():  # it may write something while it goes
                shutil.rmtree(home, ignore_errors=True)
            assert process.wait(20) == 1
            assert not (home / "context.db").exists()
        finally:
            process.kill()
            process.wait()


@needs("systemd-analyze")
@pytest.mark.skipif(not find_library("seccomp"), reason="libseccomp is not installed here")
def test_the_daemon_works_under_the_filters_of_its_unit(team: Team, tmp_path: Path) -> None:
    machine = team.machine()
    entry = machine.create()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as opened:
        opened.bind(str(tmp_path / "notify"))
        opened.settimeout(20)
        under = (sys.executable, str(TESTS / "sandbox.py"), str(TEMPLATE))
        process = daemon(machine.home, str(tmp_path / "notify"), *under)
        try:
            heard(opened, "READY=1")
            status = Path(f"/proc/{process.pid}/status").read_text()
            assert re.search(r"^Seccomp:\s*2$", status, re.M)
            wait(lambda: team.sql("SELECT entry_id::text FROM syncd.log") == [(entry,)])
            process.terminate()
            assert process.wait(20) == 0
        finally:
            process.kill()
            process.wait()
    said = (machine.home / "log" / "daemon.log").read_text()
    assert '"warning"' not in said
    assert "not permitted" not in said
