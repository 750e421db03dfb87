"""Whatever fails on the way: the data stays, the user reads what happened and what to do, and the
next exchange completes everything exactly once."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from machines import SYNCD, Machine, Runner, Team, runner, team, team_on
from postgres import Cluster, Session
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from syncd import cluster as clusters
from syncd.errors import ConfigError, ReplicaUnreachableError
from syncd.node import Node
from syncd.replica import link

__all__ = ["runner", "team"]


def password_of(machine: Machine) -> str:
    return (machine.home / "keys" / "cloud.password").read_text()


def at(dsn: str, **changes: Any) -> str:
    return make_conninfo(dsn, **changes)


def refused(machine: Machine, code: int, *words: str) -> dict[str, Any]:
    """What a user is told, by people's words and as JSON: cause, remedy, what of the data."""
    told = machine.run(*(words or ("sync",)))
    assert told.code == code, told
    error = machine.fails(code, *(words or ("sync",)))
    assert error["message"].split(" (")[0] in told.err
    assert error["remedy"] in told.err
    assert error["data_safe"] is True
    assert password_of(machine) not in told.out + told.err + str(error)
    assert machine.secrets() == [machine.home / "keys" / "cloud.password"]
    assert not (machine.home / "log" / "crash.log").exists()
    return error


@pytest.fixture
def ann(team: Team) -> Machine:
    """With one entry at the replica and two that are not."""
    ann = team.machine()
    ann.create()
    ann.sync()
    ann.create()
    ann.create()
    return ann


def completes(team: Team, machine: Machine) -> None:
    """Everything arrives, once, and another machine gets it too."""
    assert machine.json("flush", "--wait", "30")["safe"]
    if len(team.machines) == 1:
        team.machine()
    team.agree()


# --- unreachable ----------------------------------------------------------------------------------


def test_a_stopped_server_is_unreachable_and_gets_everything_later(
    team: Team, ann: Machine
) -> None:
    team.cluster.stop()
    try:
        error = refused(ann, 6)
        assert "cannot be reached" in error["message"]
        flushed = ann.run("flush", "--wait", "1", "--json")
        assert flushed.code == 6
        assert (flushed.json()["safe"], flushed.json()["pending"]) == (False, 2)
        refused(ann, 6, "prove")
    finally:
        team.cluster.start()
    completes(team, ann)


def test_a_flush_that_finds_the_server_again_succeeds(team: Team, ann: Machine) -> None:
    team.cluster.stop()
    try:
        words = [SYNCD, "--home", str(ann.home), "flush", "--wait", "40"]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as flush:
            _until(lambda: "reached" in str(ann.sql("SELECT error FROM attempts")))
            team.cluster.start()
            assert flush.wait(60) == 0
    finally:
        team.cluster.start()
    completes(team, ann)


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"port": "1"}, "refused"),
        ({"host": "nowhere.invalid", "sslmode": "verify-full"}, "cannot be reached"),
        ({"host": "/nowhere"}, "cannot be reached"),
        ({"dbname": "nothing_here"}, "no such database"),
    ],
    ids=["closed port", "unknown name", "no socket", "no database"],
)
def test_a_wrong_address_is_named(
    team: Team, ann: Machine, changes: dict[str, str], cause: str
) -> None:
    ann.environment["SYNCD_CLOUD_DSN"] = at(_dsn(ann), **changes)
    assert cause in refused(ann, 6)["message"]
    assert ann.run("config").out.count("password=***") == 1
    del ann.environment["SYNCD_CLOUD_DSN"]
    completes(team, ann)


def _dsn(machine: Machine) -> str:
    """With its password."""
    from syncd import config, credentials

    return credentials.dsn(machine.home, config.load(machine.home / "config.toml"))


def test_a_wrong_password_is_refused(team: Team, ann: Machine) -> None:
    ann.environment["SYNCD_CLOUD_DSN"] = at(_dsn(ann), password="wrong-word")
    error = refused(ann, 1)
    assert error["code"] == "login_refused"
    assert "password is wrong" in error["message"]
    assert "wrong-word" not in str(error)
    del ann.environment["SYNCD_CLOUD_DSN"]
    completes(team, ann)


def test_a_database_without_the_schema_says_how_to_install_it(
    team: Team, ann: Machine, database: str
) -> None:
    ann.environment["SYNCD_CLOUD_DSN"] = at(_dsn(ann), dbname=database)
    error = refused(ann, 1)
    assert error["code"] == "replica_outdated"
    assert "cloud migrate" in error["remedy"]
    del ann.environment["SYNCD_CLOUD_DSN"]
    completes(team, ann)


# --- cut off --------------------------------------------------------------------------------------


class Proxy:
    """Stands between client and server. When it sees a request with `marker` in it, it cuts the
    line: at once, or after so many bytes of the answer."""

    def __init__(self, port: int, marker: bytes, answer_bytes: int | None = None) -> None:
        self._target = port
        self._marker = marker
        self._answer_bytes = answer_bytes
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                threading.Thread(target=self._between, args=(client, server), daemon=True).start()

    def _between(self, client: socket.socket, server: socket.socket) -> None:
        with client, server, suppress(OSError):
            self._converse(client, server)

    def _converse(self, client: socket.socket, server: socket.socket) -> None:
        left = sys.maxsize  # bytes that may still go to the client
        while left > 0:
            for ready in select.select([client, server], [], [])[0]:
                data = ready.recv(65536)
                if not data:
                    return
                if ready is server:
                    client.sendall(data[:left])
                    left -= len(data)
                    continue
                if self._marker in data:
                    if self._answer_bytes is None:
                        self.cuts += 1
                        return
                    left = self._answer_bytes
                server.sendall(data)
                if left == 0:  # the answer is made, and nobody hears it
                    server.recv(1)
        self.cuts += 1


@contextmanager
def through(machine: Machine, proxy: Proxy) -> Iterator[None]:
    machine.environment["SYNCD_CLOUD_DSN"] = at(_dsn(machine), port=proxy.port)
    with closing(proxy):
        yield
    del machine.environment["SYNCD_CLOUD_DSN"]


def in_cloud(team: Team) -> int:
    return int(team.sql("SELECT count(*) FROM syncd.log")[0][0])


def test_a_push_cut_off_before_it_arrives_is_sent_again(team: Team, ann: Machine) -> None:
    with through(ann, Proxy(team.cluster.port, b"syncd.push")):
        refused(ann, 6)
    assert in_cloud(team) == 1
    completes(team, ann)


def test_a_push_whose_answer_is_lost_is_not_stored_twice(team: Team, ann: Machine) -> None:
    proxy = Proxy(team.cluster.port, b"syncd.push", answer_bytes=0)
    with through(ann, proxy):
        assert ann.run("sync").code == 6
    assert proxy.cuts == 1
    assert in_cloud(team) == 3
    assert ann.sql("SELECT count(*) FROM log WHERE cloud_seq IS NULL") == [(2,)]
    completes(team, ann)


def test_a_pull_cut_off_half_way_takes_in_nothing_by_halves(team: Team, ann: Machine) -> None:
    for _ in range(20):
        ann.create()
    ann.sync()
    bob = team.machine()
    proxy = Proxy(team.cluster.port, b"syncd.pull", answer_bytes=9_000)
    with through(bob, proxy):
        refused(bob, 6)
    assert proxy.cuts == 2
    assert bob.entries() == []
    assert bob.sql("SELECT * FROM batches") == []
    completes(team, bob)


def test_a_server_killed_before_the_commit_has_nothing_and_gets_all(
    team: Team, ann: Machine
) -> None:
    lock = psycopg.connect(team.cluster.superuser_dsn(team.database))
    lock.execute("SELECT FROM syncd.organizations FOR UPDATE")
    words = [SYNCD, "--home", str(ann.home), "sync", "--json"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as sync:
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        _until(lambda: team.sql(waiting) == [(1,)])
        team.cluster.kill()
        _, told = sync.communicate(timeout=30)
    team.cluster.start()
    lock.close()
    assert sync.returncode == 6, told
    assert '"unreachable"' in told
    assert in_cloud(team) == 1
    completes(team, ann)


# --- a server that hangs --------------------------------------------------------------------------


def test_a_server_that_takes_connections_and_says_nothing_is_given_up(
    team: Team, ann: Machine
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        ann.environment["SYNCD_CLOUD_DSN"] = at(_dsn(ann), port=port, connect_timeout=2)
        began = time.monotonic()
        assert "timeout" in ann.fails(6, "sync")["message"]
        assert time.monotonic() - began < 8
    del ann.environment["SYNCD_CLOUD_DSN"]
    completes(team, ann)


def test_a_server_that_stops_in_the_middle_is_given_up(
    team: Team, ann: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "SILENCE_SECONDS", 1.0)
    with closing(Node(ann.home)) as node, node.syncing() as engine:
        backend = engine.replica.connection.info.backend_pid
        os.kill(backend, signal.SIGSTOP)
        began = time.monotonic()
        try:
            with pytest.raises(ReplicaUnreachableError, match="no answer for 1 s"):
                engine.sync()
        finally:
            os.kill(backend, signal.SIGCONT)
        assert time.monotonic() - began < 5
    completes(team, ann)


def test_nothing_waits_for_minutes() -> None:
    parts = conninfo_to_dict(link.protected("postgresql://u@127.0.0.1/d"))
    assert float(str(parts["connect_timeout"])) <= 10
    assert float(str(parts["tcp_user_timeout"])) <= 30_000
    # Longer than the statement_timeout of the logins, which a working server keeps.
    assert 60 < link.SILENCE_SECONDS < 120


def test_logins_have_timeouts_at_the_server(team: Team, ann: Machine) -> None:
    with closing(psycopg.connect(_dsn(ann))) as connection:
        for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
            assert connection.execute(f"SHOW {name}".encode()).fetchone() == ("1min",)


# --- a server that has too much to do -------------------------------------------------------------


@pytest.mark.parametrize("setting", ["lock_timeout", "statement_timeout"])
def test_a_push_that_the_server_gives_up_is_not_the_entries_fault(
    team: Team, ann: Machine, setting: str
) -> None:
    login = conninfo_to_dict(_dsn(ann))["user"]
    team.sql(f"ALTER ROLE {login} SET {setting} = '300ms'")
    with psycopg.connect(team.cluster.superuser_dsn(team.database)) as busy:
        busy.execute("SELECT FROM syncd.organizations FOR UPDATE")
        assert "cannot" in refused(ann, 6)["message"]
    team.sql(f"ALTER ROLE {login} SET {setting} = '30s'")
    assert ann.json("quarantine", "list") == []
    completes(team, ann)


def test_a_server_without_room_for_one_more_connection(team: Team, ann: Machine) -> None:
    login = conninfo_to_dict(_dsn(ann))["user"]
    team.sql(f"ALTER ROLE {login} CONNECTION LIMIT 0")
    assert "too many connections" in refused(ann, 6)["message"]
    team.sql(f"ALTER ROLE {login} CONNECTION LIMIT 20")
    completes(team, ann)


# --- a server that cannot write -------------------------------------------------------------------


def test_a_read_only_replica_says_so(team: Team, ann: Machine) -> None:
    team.sql(f'ALTER DATABASE "{team.database}" SET default_transaction_read_only = on')
    error = refused(ann, 6)
    assert error["code"] == "replica_read_only"
    assert "primary" in error["remedy"]
    team.cluster.sql(
        "postgres", f'ALTER DATABASE "{team.database}" RESET default_transaction_read_only'
    )
    completes(team, ann)


def test_a_standby_says_that_it_is_one(team: Team, ann: Machine, postgres: Session) -> None:
    standby = postgres.place("standby")
    shutil.copytree(team.cluster.base, standby, ignore=_unreadable, symlinks=True)
    clusters.let_server_through(standby)
    team.cluster.stop()
    try:
        _copy_owned(team.cluster.base / "data", standby / "data")
    finally:
        team.cluster.start()
    _own(standby / "data" / "standby.signal")
    for name in ("run", "log"):
        clusters.make_own(standby / name)
    port = clusters.free_port()
    clusters.start(standby, team.cluster.bin, port, team.cluster.options)
    try:
        ann.environment["SYNCD_CLOUD_DSN"] = at(_dsn(ann), port=port)
        error = refused(ann, 6)
        assert error["code"] == "replica_read_only"
        assert "standby" in error["remedy"]
    finally:
        clusters.stop(standby)
        del ann.environment["SYNCD_CLOUD_DSN"]
    completes(team, ann)


def _unreadable(_: str, names: list[str]) -> set[str]:
    return {name for name in names if name in ("data", "run", "log", "tls")}


def _copy_owned(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)


def _own(file: Path) -> None:
    file.touch(0o600)
    if user := clusters.server_user():
        os.chown(file, user.pw_uid, user.pw_gid)


# --- full disks -----------------------------------------------------------------------------------


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("FULL DISKS ARE NOT TESTED: only root can mount a small file system")
    place.mkdir(parents=True, exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0711", "none", str(place)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"FULL DISKS ARE NOT TESTED: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk_at_the_server_keeps_the_entries_here(
    team: Team, ann: Machine, postgres: Session
) -> None:
    with small_disk(postgres.place("small"), "1m") as disk:
        space = disk / "tablespace"
        clusters.make_own(space)
        team.cluster.sql("postgres", f"CREATE TABLESPACE small LOCATION '{space}'")
        try:
            team.sql("ALTER TABLE syncd.log SET TABLESPACE small")
            _fill(disk)
            big = {"context_summary": {"state": {"text": os.urandom(300_000).hex()}}}
            file = ann.home.with_suffix(".json")
            file.write_text(json.dumps(big))
            ann.create("big", "--file", str(file))
            error = refused(ann, 6)
            assert error["code"] == "replica_full"
            assert "space" in error["remedy"]
            assert in_cloud(team) == 1
            (disk / "ballast").unlink()
            subprocess.run(["mount", "-o", "remount,size=9m", str(disk)], check=True)
            completes(team, ann)
        finally:
            team.sql("ALTER TABLE syncd.log SET TABLESPACE pg_default")
            team.cluster.sql("postgres", "DROP TABLESPACE small")


def _fill(disk: Path) -> None:
    with (disk / "ballast").open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            return


def test_a_full_disk_here_takes_in_nothing_by_halves(
    team: Team, ann: Machine, tmp_path: Path
) -> None:
    for _ in range(3):
        ann.create("t", "--decision", os.urandom(100_000).hex())
    ann.sync()
    with small_disk(tmp_path / "small", "4m") as disk:
        bob = team.machine()
        shutil.move(bob.home, disk / "home")
        bob.home = disk / "home"
        _fill(disk)
        told = bob.run("sync", "--json")
        assert told.code == 1
        assert told.error()["code"] == "disk_full"
        (disk / "ballast").unlink()
        assert bob.sql("SELECT count(*) FROM log") == [(0,)]
        completes(team, bob)


# --- TLS ------------------------------------------------------------------------------------------


class Certificate(NamedTuple):
    certificate: Path
    key: Path


class Authority:
    """Makes certificates; `file` is what a client trusts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
        self.file = folder / "authority.pem"
        made = self._signed(self._name, self._key.public_key(), [], days=30, is_authority=True)
        self.file.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def certificate(self, host: str, *, days: int = 30, self_signed: bool = False) -> Certificate:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
        names: list[x509.GeneralName] = [x509.DNSName(host)]
        if self_signed:
            made = self._signed(name, key.public_key(), names, days, issuer=name, by=key)
        else:
            made = self._signed(name, key.public_key(), names, days)
        files = Certificate(self._folder / f"{host}-{days}.pem", self._folder / f"{host}.key")
        files.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        pkcs8, bare = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        files.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, pkcs8, bare))
        return files

    def _signed(
        self, subject: x509.Name, public: Any, names: list[x509.GeneralName], days: int,
        issuer: x509.Name | None = None, by: Any = None, *, is_authority: bool = False,
    ) -> x509.Certificate:  # fmt: skip
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer or self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=60))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(by or self._key, hashes.SHA256())


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def secured(postgres: Session, authority: Authority) -> Cluster:
    """Debian's: the embedded build has no TLS."""
    return postgres.new("15", tls=authority.certificate("db.test"))


@pytest.fixture
def remote(secured: Cluster, runner: Runner, tmp_path: Path) -> Iterator[Team]:
    with team_on(secured, runner, tmp_path) as made:
        yield made


def far(dsn: str, **changes: Any) -> str:
    """The same server, under a name that is not this machine's."""
    return at(dsn, host="db.test", hostaddr="127.0.0.1", **changes)


def present(secured: Cluster, files: Certificate) -> None:
    """Let the server show another certificate."""
    for option, file in zip(("ssl_cert_file", "ssl_key_file"), files, strict=True):
        Path(secured.options[option]).write_bytes(file.read_bytes())
    secured.sql("postgres", "SELECT pg_reload_conf()")
    wanted = ssl.PEM_cert_to_DER_cert(files.certificate.read_text())
    _until(lambda: _shown(secured.port) == wanted)


def _shown(port: int) -> bytes | None:
    """The certificate that the server shows after PostgreSQL's own request for TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port)) as plain:
        plain.sendall(b"\x00\x00\x00\x08\x04\xd2\x16\x2f")
        assert plain.recv(1) == b"S"
        with context.wrap_socket(plain) as protected:
            return protected.getpeercert(binary_form=True)


def test_a_server_with_the_right_certificate_is_trusted(
    remote: Team, secured: Cluster, authority: Authority
) -> None:
    present(secured, authority.certificate("db.test"))
    ann = remote.machine(far(remote.login(), sslrootcert=str(authority.file)))
    ann.create()
    completes(remote, ann)
    with closing(psycopg.connect(link.protected(_dsn(ann)))) as connection:
        asked = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
        assert connection.execute(asked.encode()).fetchone() == (True,)


@pytest.mark.parametrize(
    ("certificate", "cause"),
    [
        (lambda a: a.certificate("other.test"), "does not match host name"),
        (lambda a: a.certificate("db.test", days=-1), "certificate verify failed"),
        (lambda a: a.certificate("db.test", self_signed=True), "certificate verify failed"),
    ],
    ids=["wrong name", "expired", "self-signed"],
)
def test_a_server_with_a_wrong_certificate_gets_nothing(
    remote: Team,
    secured: Cluster,
    authority: Authority,
    certificate: Callable[[Authority], Certificate],
    cause: str,
) -> None:
    present(secured, certificate(authority))
    ann = remote.machine(far(remote.login(), sslrootcert=str(authority.file)))
    ann.create()
    error = refused(ann, 1)
    assert error["code"] == "tls"
    assert cause in error["message"]
    assert "sslrootcert" in error["remedy"]
    present(secured, authority.certificate("db.test"))
    completes(remote, ann)


def test_a_certificate_of_nobody_we_know_is_refused(
    remote: Team, secured: Cluster, authority: Authority
) -> None:
    present(secured, authority.certificate("db.test"))
    ann = remote.machine(far(remote.login()))  # sslrootcert=system
    ann.create()
    assert "certificate verify failed" in refused(ann, 1)["message"]


def test_a_server_without_tls_is_refused(team: Team, ann: Machine) -> None:
    ann.environment["SYNCD_CLOUD_DSN"] = far(_dsn(ann))
    error = refused(ann, 1)
    assert error["code"] == "tls"
    assert "does not support SSL" in error["message"]
    del ann.environment["SYNCD_CLOUD_DSN"]
    completes(team, ann)


@pytest.mark.parametrize("mode", ["disable", "allow", "prefer", "require", "verify-ca"])
def test_a_weaker_mode_is_refused_before_a_packet_is_sent(
    team: Team, ann: Machine, mode: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        ann.environment["SYNCD_CLOUD_DSN"] = far(_dsn(ann), port=port, sslmode=mode)
        error = refused(ann, 2)
        assert f"sslmode={mode}" in error["message"]
        assert link.UNPROTECTED in error["remedy"]
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_only_who_says_the_danger_goes_without_protection(team: Team, ann: Machine) -> None:
    ann.environment["SYNCD_CLOUD_DSN"] = far(_dsn(ann), sslmode="disable")
    ann.environment["SYNCD_CLOUD_TLS"] = "none"
    refused(ann, 2)
    ann.environment["SYNCD_CLOUD_TLS"] = link.UNPROTECTED
    assert ann.sync()["pushed"] == 2


@pytest.mark.parametrize(
    ("dsn", "local"),
    [
        ("dbname=d", True),
        ("host=localhost", True),
        ("host=127.0.0.1", True),
        ("host=127.0.0.2", True),
        ("host=::1", True),
        ("postgresql://u@[::1]/d", True),
        ("host=/var/run/postgresql", True),
        ("host=@abstract", True),
        ("hostaddr=127.0.0.1", True),
        ("host=db.test hostaddr=127.0.0.1", False),
        ("host=localhost hostaddr=192.0.2.1", False),
        ("host=localhost,db.test", False),
        ("host=127.0.0.1.db.test", False),
        ("host=localhost.db.test", False),
        ("host=192.0.2.1", False),
        ("hostaddr=192.0.2.1", False),
        ("service=elsewhere", False),
    ],
)
def test_what_is_not_this_machine_itself_must_be_protected(dsn: str, local: bool) -> None:
    assert (conninfo_to_dict(link.protected(dsn)).get("sslmode") is None) is local
    weak = f"{dsn} sslmode=disable" if "://" not in dsn else f"{dsn}?sslmode=disable"
    if local:
        assert link.protected(weak)
    else:
        with pytest.raises(ConfigError):
            link.protected(weak)


@pytest.mark.parametrize(
    "variable", [("PGHOST", "db.test"), ("PGHOSTADDR", "192.0.2.1"), ("PGSERVICE", "elsewhere")]
)
def test_a_host_from_the_environment_must_be_protected_too(
    variable: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*variable)
    assert conninfo_to_dict(link.protected("dbname=d"))["sslmode"] == "verify-full"
