"""What commands make is for their user alone, whatever the umask. Secrets are told to nobody else:
neither in the arguments of a process, nor in what is printed, logged or kept."""

from __future__ import annotations

import ast
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click
import pytest
from daemons import ending
from machines import Machine, Result, Runner, runner, team_on
from postgres import Cluster, Session
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from test_project import FILES, PACKAGE, ROOT

from syncd import embedded
from syncd.cli.app import command_paths
from syncd.config import SETTINGS
from syncd.replica import link

__all__ = ["runner"]

TESTS = Path(__file__).parent
STRACE = shutil.which("strace")
PASSPHRASE = "open-sesame-4711"


# --- a tour of the commands -----------------------------------------------------------------------


class Tour:
    """Someone's first days, with an open umask: what was printed, and which secrets there are."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self.machine = machine
        self.folder = folder
        self.printed: list[tuple[tuple[str, ...], Result]] = []
        # A secret, and the only command whose output may have it.
        self.secrets: dict[str, tuple[str, ...]] = {PASSPHRASE: ()}

    def run(
        self, *words: str, code: int = 0, stdin: str = "", given: dict[str, str] | None = None
    ) -> Result:
        """`given`: what is in the environment besides."""
        done = self.machine.run(*words, stdin=stdin, **(given or {}))
        assert done.code == code, (words, done)
        self.printed.append((words, done))
        return done

    def told(self, *words: str, given: dict[str, str] | None = None) -> None:
        """A command that prints a password, this once."""
        dsn = self.run(*words, "--json", given=given).json()["dsn"]
        self.secrets[password_in(dsn)] = (*words, "--json")

    def files(self) -> Iterator[Path]:
        """All that was made, but for what PostgreSQL itself keeps."""
        for path in self.folder.rglob("*"):
            if "data" not in path.relative_to(self.folder).parts and not path.is_symlink():
                yield path


def password_in(dsn: str) -> str:
    return str(conninfo_to_dict(dsn)["password"])


def mode_of(path: Path) -> str:
    return stat.filemode(path.stat().st_mode)


@contextmanager
def touring(cluster: Cluster, postgres: Session, trace: Path) -> Iterator[Tour]:
    folder = postgres.place("tour")
    folder.mkdir(mode=0o711)
    watched = (STRACE, "-f", "-qq", "--seccomp-bpf", "-e", "trace=execve", "-s", "65536", "-v",
               "-o", str(trace)) if STRACE else ()  # fmt: skip
    with ExitStack() as last_first:
        commands = trace.with_name("commands")
        commands.mkdir()
        subprocess.run(["git", "init", "-q", str(commands)], check=True)
        runner = Runner(commands, [str(word) for word in watched])
        last_first.callback(runner.close)
        team = last_first.enter_context(team_on(cluster, runner, folder))
        machine = Machine(runner, folder / "new" / "home", **_surroundings(folder, commands))
        machine.umask = 0
        last_first.callback(embedded.remove, folder / "server" / "postgres")
        last_first.enter_context(ending(machine))
        tour = Tour(machine, folder)
        _first_days(tour, team)
        yield tour


def _surroundings(folder: Path, commands: Path) -> dict[str, str]:
    """Nothing of the developer's; systemd's stand-in on the PATH."""
    systemd = commands / "systemd"
    systemd.mkdir()
    (systemd / "namespaces").touch()
    for name in ("systemctl", "systemd-run"):
        script = systemd / name
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {TESTS / "systemctl.py"} "$0" "$@"\n')
        script.chmod(0o755)
    return {
        "HOME": str(folder / "user"),
        "XDG_CONFIG_HOME": str(folder / "user" / "config"),
        "SYNCD_CLOUD_FOLDER": str(folder / "server" / "postgres"),
        "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring",
        "PATH": f"{systemd}:{os.environ['PATH']}",
        "FAKE_SYSTEMD": str(systemd),
    }


def _first_days(tour: Tour, team: Any) -> None:
    dsn = team.login("ann", "desktop")
    tour.secrets[password_in(dsn)] = ()
    tour.run("init")
    tour.run("login", "-", stdin=dsn)
    created = ("checkpoint", "create", "--task", "t", "--agent", "ann", "--json")
    name = tour.run(*created).json()["metadata"]["checkpoint_id"]
    tour.run("checkpoint", "finalize", name)
    tour.run("sync")
    _keeping(tour)
    tour.run("start")
    tour.told("device", "add", "laptop")
    tour.run("device", "list")
    tour.run("logs")
    tour.run("status")
    tour.run("stop")
    tour.run("service", "install")
    _administering(tour, team)
    _failing(tour, dsn)


def _keeping(tour: Tour) -> None:
    backup = tour.run("backup", "create", "--json").json()["name"]
    tour.run("backup", "restore", backup)
    tour.run("audit", "export", "t", "--output", str(tour.folder / "evidence"))
    secret = {"SYNCD_KEYS_PASSPHRASE": PASSPHRASE}
    tour.run("keys", "encrypt", "--mode", "end_to_end", "--passphrase", given=secret)
    exported = tour.run("keys", "export", given=secret).out.strip()
    tour.secrets[exported.split(":")[2]] = ("keys", "export")
    tour.run("keys", "export", "--output", str(tour.folder / "exported"), given=secret)
    tour.run("keys", "import", str(tour.folder / "exported"), "--json", given=secret)
    (tour.folder / "exported").unlink()
    tour.run("keys", "rotate", given=secret)
    tour.run("keys", "show", "--json", given=secret)
    tour.machine.environment |= secret
    pem = (tour.machine.home / "keys" / "signing.pem").read_text().splitlines()[1]
    tour.secrets[pem] = ()


def _administering(tour: Tour, team: Any) -> None:
    tour.run("cloud", "up", "--json")
    tour.run("cloud", "status")
    base = (tour.folder / "server" / "postgres" / "cluster").resolve()
    for line in (base / "passfile").read_text().splitlines():
        tour.secrets[line.split(":")[4]] = ()
    password = team.cluster.passwords["syncd_installer"]
    tour.secrets[password] = ()
    admin = make_conninfo(team.cluster.admin_dsn(team.database), password=password, passfile="")
    secret = {"SYNCD_ADMIN_DSN": admin}
    tour.run("cloud", "migrate", given=secret)
    for words in (
        ("member", "add", team.organization, "bob"),
        ("member", "reset", team.organization, "bob"),
        ("device", "add", team.organization, "bob", "tower"),
    ):
        tour.told("admin", *words, given=secret)
    tour.run("admin", "device", "list", team.organization, given=secret)
    tour.run("config", given=secret)
    tour.run("doctor", "--json", given=secret)
    tour.run("cloud", "down")


def _failing(tour: Tour, dsn: str) -> None:
    wrong, nowhere = make_conninfo(dsn, dbname="none"), make_conninfo(dsn, port=1)
    tour.run("login", wrong, code=6)
    tour.run("login", wrong.replace("dbname", "dbnam"), "--json", code=2)
    tour.run("sync", code=6, given={"SYNCD_CLOUD_DSN": nowhere})
    tour.run("cloud", "migrate", wrong, "--json", code=6)
    tour.run("admin", "org", "list", code=6, given={"SYNCD_ADMIN_DSN": nowhere})
    tour.run("prove", code=6, given={"SYNCD_CLOUD_DSN": nowhere})
    tour.run("keys", "export", "--json", code=2)
    config = tour.machine.home / "config.toml"
    kept = config.read_text()
    config.write_text(f'[cloud]\ndsn = "{wrong}"\ndns = 1\n')
    tour.run("status", code=1)
    config.write_text(kept)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every program that was started, with its arguments."""
    return tmp_path_factory.mktemp("trace") / "execve"


@pytest.fixture(scope="module")
def tour(cluster: Cluster, postgres: Session, trace: Path) -> Iterator[Tour]:
    with touring(cluster, postgres, trace) as made:
        yield made


# --- files ----------------------------------------------------------------------------------------


def test_what_commands_make_is_for_their_user_alone_however_open_the_umask(tour: Tour) -> None:
    server = tour.folder / "server" / "postgres"
    modes = {path.relative_to(tour.folder): mode_of(path) for path in tour.files()}
    made = {str(path) for path in modes}
    assert {
        *(f"new/home/{name}" for name in ("config.toml", "keys/data.json", "log/daemon.log")),
        *("new/home/run/sync.lock", "evidence", "server/postgres/lock", "user/config"),
    } <= made
    # As root the server's user must get to what it owns; its rules hold no secret.
    through = {"drwx--x--x"} if os.geteuid() == 0 else {"drwx------"}
    for path in (server.parent, server, (server / "cluster").resolve()):
        assert {modes.pop(path.relative_to(tour.folder))} <= through, path
    assert modes.pop(Path("server/postgres/cluster/pg_hba.conf")) == "-rw-r--r--"
    # Copies of PostgreSQL's programs, if its user cannot get at those that are installed.
    own = {path: mode for path, mode in modes.items() if "program" not in path.parts}
    odd = {path: mode for path, mode in own.items() if mode not in ("drwx------", "-rw-------")}
    # The socket is in a folder of its owner's.
    assert {mode[0] for mode in odd.values()} <= {"s"}, odd


def test_what_commands_make_can_be_used_however_narrow_the_umask(
    runner: Runner, tmp_path: Path
) -> None:
    machine = Machine(runner, tmp_path / "new" / "one" / "home")
    machine.umask = 0o777
    machine.create()
    exported = ("audit", "export", "t", "--output", str(tmp_path / "new" / "evidence"))
    for words in (("backup", "create"), ("keys", "encrypt"), exported):
        machine.ok(*words)
    modes = {path: mode_of(path) for path in (tmp_path / "new").rglob("*")}
    assert set(modes.values()) == {"drwx------", "-rw-------"}, modes


# --- secrets --------------------------------------------------------------------------------------


def test_no_secret_is_among_the_arguments_of_a_process(tour: Tour, trace: Path) -> None:
    if not STRACE:
        pytest.skip("THE ARGUMENTS OF PROCESSES ARE NOT TESTED: apt-get install strace")
    lines = [line.partition("execve(")[2] for line in trace.read_text().splitlines()]
    # The environment is the user's own; others cannot read it.
    arguments = [line.partition("], [")[0] for line in lines if line]
    for program in ("git", "initdb", "pg_ctl", "postgres", "systemctl", '"run", "--quiet"'):
        assert any(program in line for line in arguments), program
    assert len(tour.secrets) >= 9
    for secret in tour.secrets:
        assert not [line for line in arguments if secret in line]


def test_no_secret_is_printed_but_where_it_is_given_out(tour: Tour) -> None:
    for words, result in tour.printed:
        for secret, given_out_by in tour.secrets.items():
            assert secret not in result.err, words
            assert secret not in result.out or words == given_out_by, words
    for secret, given_out_by in tour.secrets.items():
        told = [words for words, result in tour.printed if secret in result.out]
        assert told == ([given_out_by] if given_out_by else [])


def test_no_file_has_a_secret_but_the_one_that_keeps_it(tour: Tour) -> None:
    places = {"cloud.password", "signing.pem", "passfile"}
    kept = [path for path in tour.files() if path.is_file()]
    assert places <= {path.name for path in kept}
    for secret in tour.secrets:
        found = {path.name for path in kept if secret.encode() in path.read_bytes()}
        assert found <= places, found


DSN = "postgresql://ann:rosebud-4711@127.0.0.1:1/d?sslpassword=rosebud-4711"
# What takes long, or is left alone here because the tour has it.
_ELSEWHERE = {"syncd run", "syncd start", "syncd restart", "syncd demo", "syncd cloud up",
              "syncd cloud try", "syncd service install", "syncd ui"}  # fmt: skip
_WORDS = {"dsn": DSN, "shell": "bash", "file": "/nowhere", "output": "/nowhere/x", "seconds": "0.1"}


def arguments_of(command: click.Command) -> list[str]:
    """Something for each that it needs."""
    words: list[str] = []
    for parameter in command.params:
        given = _WORDS.get(parameter.name or "", "x")
        if isinstance(parameter, click.Argument) and (parameter.required or given != "x"):
            words.append(given)
        elif isinstance(parameter, click.Option) and (parameter.required or given != "x"):
            words += [parameter.opts[0], given]
    return words


def test_no_command_repeats_a_password_that_it_was_given(runner: Runner, tmp_path: Path) -> None:
    secret = {"SYNCD_CLOUD_DSN": DSN, "SYNCD_ADMIN_DSN": DSN, "SYNCD_KEYS_PASSPHRASE": PASSPHRASE}
    ann = Machine(runner, tmp_path / "ann", **secret)
    ann.create()
    codes = set()
    for number, (path, command) in enumerate(command_paths().items()):
        if path not in _ELSEWHERE:
            words = [*path.split()[1:], *arguments_of(command)]
            done = ann.run(*words, *(["--json"] if number % 2 else []))
            codes.add(done.code)
            for word in ("rosebud", PASSPHRASE):
                assert word not in done.out + done.err, words
    assert {0, 2, 4, 6} <= codes
    for file in ann.home.rglob("*"):
        assert not file.is_file() or b"rosebud" not in file.read_bytes(), file


# --- what we say about it -------------------------------------------------------------------------


def test_the_commands_tests_and_settings_that_security_md_names_exist() -> None:
    told = (ROOT / "SECURITY.md").read_text("utf-8")
    assert "(SECURITY.md)" in (ROOT / "README.md").read_text("utf-8")
    commands = re.findall(r"`(syncd [a-z ]+[a-z])", told)
    assert len(commands) >= 7
    assert {*commands} <= {*command_paths()}
    for name in re.findall(r"test_[a-z]+\.py", told):
        assert (TESTS / name).exists(), name
    for mode in next(s.choices for s in SETTINGS if s.name == "encryption"):
        assert f"| `{mode}` |" in told
    assert link.UNPROTECTED in told
    assert "complian" not in told.lower()


# --- no shell -------------------------------------------------------------------------------------

_STARTERS = {
    f"subprocess.{name}" for name in ("run", "Popen", "call", "check_call", "check_output")
}
_SHELLS = {
    "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput",
    "asyncio.create_subprocess_shell", "pty.spawn",
}  # fmt: skip


def shells(tree: ast.Module) -> list[int]:
    """The lines where a program is started by a shell, or from a text put together."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and (
            ast.unparse(node.func) in _SHELLS
            or "shell" in {word.arg for word in node.keywords}
            or (ast.unparse(node.func) in _STARTERS and _is_text(node))
        )
    ]


def _is_text(call: ast.Call) -> bool:
    """Whether the words do not come one by one."""
    given = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "args")]
    texts = ast.Constant | ast.JoinedStr | ast.BinOp | ast.Call
    return not given or isinstance(given[0], texts)


def _started_otherwise(tree: ast.Module) -> set[str]:
    """Names of starters that were imported by themselves, and would not be found."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {
        f"{node.module}.{alias.name}"
        for node in imports if node.module in ("subprocess", "os", "pty", "asyncio")
        for alias in node.names
        if f"{node.module}.{alias.name}" in _STARTERS | _SHELLS
    }  # fmt: skip


@pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(PACKAGE)) for file in FILES])
def test_no_program_is_started_by_a_shell(file: Path) -> None:
    tree = ast.parse(file.read_text("utf-8"))
    assert shells(tree) == []
    assert _started_otherwise(tree) == set()


@pytest.mark.parametrize(
    "source",
    [
        "os.system('x')",
        "subprocess.run('x', shell=True)",
        "subprocess.run(['x'], shell=flag)",
        "subprocess.run('x y')",
        "subprocess.Popen(f'{x} y')",
        "subprocess.call('x ' + y)",
        "subprocess.Popen(' '.join(words))",
        "async def f():\n    await asyncio.create_subprocess_shell(x)",
        "subprocess.check_output(args='x')",
        "subprocess.getoutput('x')",
    ],
)
def test_the_search_for_shells_finds_them(source: str) -> None:
    assert len(shells(ast.parse(source))) == 1


def test_the_search_for_shells_knows_what_is_none() -> None:
    source = "subprocess.run(['x', y])\ndef f(*words):\n    subprocess.run(words, env=e)\nrun('x')"
    assert shells(ast.parse(source)) == []
    assert _started_otherwise(ast.parse("from subprocess import run")) == {"subprocess.run"}
