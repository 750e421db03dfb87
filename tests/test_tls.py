"""On the way to a replica on another machine: whoever cannot prove to be it learns nothing, and the
user reads what is wrong and what to do. The same of whoever takes its place on this machine."""

from __future__ import annotations

import hashlib
import socket
import ssl
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from daemons import dsn_of, until
from machines import Machine, Runner, Team, refused, runner, team, team_on
from postgres import DEBIAN, Cluster, Session
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from test_network import Proxy
from test_pgbouncer import pooler_of

from chaos.pooler import PROGRAM
from syncd import credentials
from syncd.errors import ConfigError
from syncd.node import Node
from syncd.replica import Administration, certificate, link

__all__ = ["runner", "team"]

HOST = "db.test"
TLS_REQUEST, HANDSHAKE = bytes.fromhex("0000000804d2162f"), b"\x16\x03"


# --- certificates ---------------------------------------------------------------------------------


class Certificate(NamedTuple):
    certificate: Path
    key: Path


class Authority:
    """Makes certificates; `file` is what a client trusts."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self.file = folder / f"{uuid.uuid4()}.pem"
        made = self._signed(self._name, self._key.public_key(), [], is_authority=True)
        self.file.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def certificate(
        self, host: str = HOST, *, since: int = -60, days: int = 30, self_signed: bool = False
    ) -> Certificate:
        """Valid from and until so many days from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
        names: list[x509.GeneralName] = [x509.DNSName(host)]
        by = (name, key) if self_signed else (None, None)
        made = self._signed(name, key.public_key(), names, since, days, *by)
        stem = self._folder / str(uuid.uuid4())
        files = Certificate(stem.with_suffix(".pem"), stem.with_suffix(".key"))
        files.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        pkcs8, bare = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        files.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, pkcs8, bare))
        return files

    def _signed(
        self, subject: x509.Name, public: Any, names: list[x509.GeneralName], since: int = -60,
        days: int = 30, issuer: Any = None, by: Any = None, *, is_authority: bool = False,
    ) -> x509.Certificate:  # fmt: skip
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer or self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + timedelta(days=since))
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
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Another one, which nobody here trusts."""
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


class Flaw(NamedTuple):
    """A certificate that is not to be accepted, what is said of it, and what is advised."""

    made: Callable[[Authority, Authority], Certificate]
    cause: str
    advice: str


FLAWS = {
    "another name": Flaw(
        lambda ours, _: ours.certificate("other.test"), "is for another name", "Name the host"
    ),
    "expired": Flaw(lambda ours, _: ours.certificate(days=-1), "has expired", "renew it"),
    "not valid yet": Flaw(
        lambda ours, _: ours.certificate(since=1), "is not valid yet", "clock is right"
    ),
    "self-signed": Flaw(
        lambda ours, _: ours.certificate(self_signed=True), "signed by itself", "sslrootcert=FILE"
    ),
    "of another authority": Flaw(
        lambda _, other: other.certificate(), "not trusted here", "sslrootcert=FILE"
    ),
    "of another authority of this name": Flaw(
        lambda ours, _: Authority(ours.file.parent).certificate(), "not trusted here",
        "sslrootcert=FILE",
    ),
}  # fmt: skip


def far(dsn: str, **changes: Any) -> str:
    """The same server, under a name that is not this machine's."""
    return make_conninfo(dsn, **{"host": HOST, "hostaddr": "127.0.0.1", **changes})


# --- a real server --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secured(postgres: Session, authority: Authority) -> Cluster:
    """Debian's: the embedded build has no TLS."""
    if not (DEBIAN / "15" / "bin" / "postgres").exists():
        pytest.skip("TLS IS NOT TESTED with a real server: apt-get install postgresql-15")
    return postgres.new("15", tls=authority.certificate())


@pytest.fixture
def remote(secured: Cluster, runner: Runner, tmp_path: Path) -> Iterator[Team]:
    with team_on(secured, runner, tmp_path) as made:
        yield made


def present(secured: Cluster, files: Certificate) -> None:
    """Let the server show another certificate."""
    for option, file in zip(("ssl_cert_file", "ssl_key_file"), files, strict=True):
        Path(secured.options[option]).write_bytes(file.read_bytes())
    secured.sql("postgres", "SELECT pg_reload_conf()")
    wanted = ssl.PEM_cert_to_DER_cert(files.certificate.read_text())
    until(lambda: _shown(secured.port) == wanted)


def _shown(port: int) -> bytes | None:
    """The certificate that the server shows after PostgreSQL's own request for TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port)) as plain:
        plain.sendall(TLS_REQUEST)
        assert plain.recv(1) == b"S"
        with context.wrap_socket(plain) as protected:
            return protected.getpeercert(binary_form=True)


def is_protected(connection: psycopg.Connection[Any]) -> bool:
    asked = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
    return connection.execute(asked.encode()).fetchone() == (True,)


# What libpq would heed if the DSN did not say otherwise.
WEAKER = {
    "PGSSLMODE": "disable", "PGGSSENCMODE": "prefer", "PGSSLROOTCERT": "/dev/null",
    "PGSSLMINPROTOCOLVERSION": "TLSv1", "PGREQUIRESSL": "0",
}  # fmt: skip


def test_a_server_with_the_right_certificate_is_trusted(
    remote: Team, secured: Cluster, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    present(secured, authority.certificate())
    ann = remote.machine(far(remote.login(), sslrootcert=str(authority.file)))
    ann.create()
    remote.completes(ann)
    for variable in WEAKER.items():
        monkeypatch.setenv(*variable)
    with closing(link.connect(dsn_of(ann))) as connection:
        assert is_protected(connection)


def test_a_server_with_a_wrong_certificate_is_refused_until_it_has_a_right_one(
    remote: Team, secured: Cluster, authority: Authority, stranger: Authority
) -> None:
    ann = remote.machine(far(remote.login(), sslrootcert=str(authority.file)))
    ann.create()
    for name, flaw in FLAWS.items():
        present(secured, flaw.made(authority, stranger))
        error = refused(ann, 1)
        assert error["code"] == "tls", name
        assert flaw.cause in error["message"], name
        assert flaw.advice in error["remedy"], name
    present(secured, authority.certificate())
    remote.completes(ann)


def test_an_authority_that_was_replaced_is_no_longer_trusted(
    remote: Team, secured: Cluster, authority: Authority, stranger: Authority
) -> None:
    present(secured, authority.certificate())
    ann = remote.machine(far(remote.login(), sslrootcert=str(stranger.file)))
    ann.create()
    assert "cannot be protected" in refused(ann, 1)["message"]
    missing = str(stranger.file.with_name("none.pem"))
    ann.environment["SYNCD_CLOUD_DSN"] = far(dsn_of(ann), sslrootcert=missing)
    error = refused(ann, 1)
    assert "the file that sslrootcert names is not there" in error["message"]
    assert "disable" not in str(error), "libpq advises to check nothing"
    ann.environment["SYNCD_CLOUD_DSN"] = far(dsn_of(ann), sslrootcert=str(authority.file))
    assert ann.sync()["pushed"] == 1


def test_a_protected_connection_that_breaks_is_a_broken_one(
    remote: Team, secured: Cluster, authority: Authority
) -> None:
    present(secured, authority.certificate())
    ann = remote.machine(far(remote.login(), sslrootcert=str(authority.file)))
    ann.create()
    with closing(Proxy(secured.port, HANDSHAKE, answer_bytes=2_000)) as proxy:
        ann.environment["SYNCD_CLOUD_DSN"] = far(dsn_of(ann), port=proxy.port)
        assert "broke" in refused(ann, 6)["message"]
    del ann.environment["SYNCD_CLOUD_DSN"]
    ann.sync()  # it may have arrived, and only the answer was lost
    assert remote.sql("SELECT count(*) FROM syncd.log") == [(1,)]
    assert ann.json("status")["push"]["pending"] == 0


@pytest.mark.parametrize("named", [{}, {"sslrootcert": "system"}], ids=["by default", "by name"])
def test_the_authorities_of_the_system_are_trusted_and_no_others(
    remote: Team, secured: Cluster, authority: Authority, monkeypatch: pytest.MonkeyPatch,
    named: dict[str, str],
) -> None:  # fmt: skip
    present(secured, authority.certificate())
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    ann = remote.machine(far(remote.login(), **named))
    ann.create()
    error = refused(ann, 1)
    assert "authority that is not trusted here" in error["message"]
    assert "sslrootcert=FILE" in error["remedy"]
    ann.environment["SSL_CERT_FILE"] = str(authority.file)
    assert ann.sync()["pushed"] == 1


def test_the_authorities_of_the_system_are_found_where_the_system_has_them(
    remote: Team, secured: Cluster, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The OpenSSL that comes with psycopg looks in a folder that no system has."""
    present(secured, authority.certificate())
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(certificate, "_BUNDLES", ("/nowhere", str(authority.file)))
    paths = ssl.get_default_verify_paths()
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: paths._replace(cafile=""))
    with closing(link.connect(far(remote.login()))) as connection:
        assert is_protected(connection)
    admin_dsn = f"{far(secured.admin_dsn(remote.database))} sslrootcert=system"
    with closing(Administration(admin_dsn)) as admin:
        login = admin.add_member(remote.organization_id, "bob", "member", "laptop")
    told = conninfo_to_dict(login.dsn)
    assert told["sslrootcert"] == "system", "another machine has them elsewhere"
    assert told["sslmode"] == "verify-full"


@pytest.mark.parametrize(
    ("rule", "changes", "code", "cause"),
    [
        ("hostnossl", {}, "login_refused", "takes no such login"),
        ("hostssl", {"sslmode": "disable"}, "tls", "takes only protected connections"),
    ],
    ids=["no rule for this login", "no rule without TLS"],
)
def test_the_servers_rules_are_not_taken_for_a_fault_of_its_certificate(
    remote: Team, secured: Cluster, authority: Authority, rule: str, changes: dict[str, str],
    code: str, cause: str,
) -> None:  # fmt: skip
    present(secured, authority.certificate())
    ann = remote.machine(far(remote.login(), sslrootcert=str(authority.file), **changes))
    ann.environment["SYNCD_CLOUD_TLS"] = link.UNPROTECTED if changes else link.VERIFIED
    rules = secured.base / "pg_hba.conf"
    before = rules.read_text()
    try:
        rules.write_text(before.replace("host ", f"{rule} "))
        secured.sql("postgres", "SELECT pg_reload_conf()")
        until(lambda: ann.run("sync").code)
        error = refused(ann, 1)
        assert error["code"] == code
        assert cause in error["message"]
    finally:
        rules.write_text(before)
        secured.sql("postgres", "SELECT pg_reload_conf()")


# --- a pooler -------------------------------------------------------------------------------------


def test_a_pooler_shows_its_certificate_like_a_server(
    team: Team, postgres: Session, authority: Authority, stranger: Authority
) -> None:
    if PROGRAM is None:
        pytest.skip("TLS THROUGH PGBOUNCER IS NOT TESTED: apt-get install pgbouncer")
    ann = team.machine()
    ann.create()
    for made, code in ((stranger, 1), (authority, 0)):
        pooler = pooler_of(team, postgres.place("pgbouncer"), 1, made.certificate())
        with closing(pooler):
            through = far(dsn_of(ann), port=pooler.port, sslrootcert=str(authority.file))
            ann.environment["SYNCD_CLOUD_DSN"] = through
            assert ann.run("sync").code == code
            assert ann.sql("SELECT count(*) FROM log WHERE cloud_seq IS NULL") == [(code,)]


# --- somebody in the server's place ---------------------------------------------------------------


def message(kind: bytes, content: bytes) -> bytes:
    return kind + (len(content) + 4).to_bytes(4) + content


def demand(method: int, content: bytes = b"") -> bytes:
    """PostgreSQL's way to ask for a password, or to say that none is needed."""
    return message(b"R", method.to_bytes(4) + content)


NO_PASSWORD, IN_CLEAR = demand(0) + message(b"Z", b"I"), demand(3)
HASHED, SCRAM = demand(5, b"salt"), demand(10, b"SCRAM-SHA-256\0\0")
ERROR = message(b"E", b'SFATAL\0C28P01\0Mpassword authentication failed for user "x"\0\0')
Answer = Callable[[socket.socket], socket.socket]


class Impostor:
    """Takes the server's place. It answers the request for TLS in its way, then asks for the
    password; `heard` is everything that it is told, deciphered where it could."""

    def __init__(self, answer: Answer, asks: bytes = IN_CLEAR) -> None:
        self._answer = answer
        self._asks = asks
        self.heard: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                line, _ = self._listener.accept()
                line.settimeout(5)
                with line, suppress(OSError):
                    asked_for_tls = self._hear(line) == TLS_REQUEST
                    with self._answer(line) if asked_for_tls else line as answered:
                        self._converse(answered, asked_for_tls)

    def _converse(self, line: socket.socket, asked_for_tls: bool) -> None:
        if asked_for_tls:
            self._hear(line)
        line.sendall(self._asks)
        nonce = self._hear(line).partition(b",r=")[2]
        if nonce and self._asks == SCRAM:  # goes on, though it does not know the verifier
            line.sendall(demand(11, b"r=" + nonce + b"x,s=c2FsdA==,i=4096"))
            self._hear(line)
            line.sendall(demand(12, b"v=" + b"A" * 43 + b"=") + NO_PASSWORD)
            self._hear(line)

    def _hear(self, line: socket.socket) -> bytes:
        told = line.recv(65_536)
        self.heard += [told] if told else []
        if not told:
            raise ConnectionError
        return told


def says(text: bytes) -> Answer:
    def answer(line: socket.socket) -> socket.socket:
        line.sendall(text)
        return line

    return answer


def shows(files: Certificate) -> Answer:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)

    def answer(line: socket.socket) -> socket.socket:
        line.sendall(b"S")
        return context.wrap_socket(line, server_side=True)

    return answer


PASSWORD = "rosebud-4711"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logged in at a server that is not there."""
    home = tmp_path_factory.mktemp("ann") / "home"
    with closing(Node(home)) as node:
        assert node.store.device_id
    dsn = f"postgresql://syncd_login_ann:{PASSWORD}@{HOST}/d?hostaddr=127.0.0.1"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
        credentials.keep(home, dsn)
    return home


@pytest.fixture
def ann(runner: Runner, home: Path) -> Machine:
    return Machine(runner, home)


def meets(ann: Machine, impostor: Impostor, authority: Authority, **changes: str) -> None:
    place = far(dsn_of(ann), port=impostor.port, sslrootcert=str(authority.file), **changes)
    ann.environment["SYNCD_CLOUD_DSN"] = place


def test_an_impostor_with_the_servers_own_certificate_would_get_the_password(
    ann: Machine, authority: Authority
) -> None:
    """The control of what follows: it does hear what it is told."""
    with closing(Impostor(shows(authority.certificate()))) as impostor:
        meets(ann, impostor, authority)
        refused(ann, 6)
        assert any(PASSWORD.encode() in told for told in impostor.heard)


@pytest.mark.parametrize("flaw", FLAWS.values(), ids=FLAWS)
def test_an_impostor_without_it_hears_nothing_but_the_request_for_tls(
    ann: Machine, authority: Authority, stranger: Authority, flaw: Flaw
) -> None:
    with closing(Impostor(shows(flaw.made(authority, stranger)))) as impostor:
        meets(ann, impostor, authority)
        assert flaw.cause in ann.fails(1, "sync")["message"]
        assert set(impostor.heard) == {TLS_REQUEST}


@pytest.mark.parametrize(
    ("answer", "weaker"),
    [
        (b"N", {}), (b"N", WEAKER), (b"S" + IN_CLEAR, WEAKER), (b"S" + NO_PASSWORD, WEAKER),
        (IN_CLEAR, WEAKER), (ERROR, WEAKER), (b"G", WEAKER), (b"?", WEAKER),
    ],
    ids=["no TLS", "no TLS, weaker environment", "TLS and more", "TLS and no password",
         "asks at once", "error", "GSS", "noise"],
)  # fmt: skip
def test_whoever_talks_a_client_out_of_tls_hears_nothing_either(
    ann: Machine, authority: Authority, answer: bytes, weaker: dict[str, str]
) -> None:
    ann.environment |= weaker
    with closing(Impostor(says(answer))) as impostor:
        meets(ann, impostor, authority)
        error = ann.run("sync", "--json")
        assert error.code in (1, 6)
        assert all(told.startswith((TLS_REQUEST, HANDSHAKE)) for told in impostor.heard)
        if answer == b"N":
            assert "offers no TLS" in refused(ann, 1)["message"]
            assert "SSH tunnel" in error.error()["remedy"]


def test_a_service_file_does_not_weaken_it(
    ann: Machine, authority: Authority, tmp_path: Path
) -> None:
    with closing(Impostor(says(b"N"))) as impostor:
        lines = ("[far]", f"host={HOST}", "hostaddr=127.0.0.1", f"port={impostor.port}",
                 "sslmode=disable", "gssencmode=prefer", "user=ann", "dbname=d")  # fmt: skip
        (tmp_path / "services").write_text("\n".join(lines))
        ann.environment["PGSERVICEFILE"] = str(tmp_path / "services")
        for dsn in (f"service=far password={PASSWORD}", f"dbname=x password={PASSWORD}"):
            impostor.heard.clear()
            if "service" not in dsn:
                ann.environment["PGSERVICE"] = "far"
            ann.environment["SYNCD_CLOUD_DSN"] = dsn
            refused(ann, 1)
            assert set(impostor.heard) == {TLS_REQUEST}


@pytest.mark.parametrize(
    "weak",
    [
        *({"sslmode": mode} for mode in ("disable", "allow", "prefer", "require", "verify-ca")),
        {"gssencmode": "prefer"}, {"gssencmode": "require"},
        {"ssl_min_protocol_version": "TLSv1.1"},
    ],
    ids=str,
)  # fmt: skip
def test_a_weaker_mode_is_refused_before_a_packet_is_sent(
    ann: Machine, authority: Authority, weak: dict[str, str]
) -> None:
    [(name, mode)] = weak.items()
    with closing(Impostor(says(b"N"))) as impostor:
        meets(ann, impostor, authority, **weak)
        error = ann.fails(2, "sync")
        assert f"{name}={mode}" in error["message"]
        assert link.UNPROTECTED in error["remedy"]
        assert impostor.heard == []


def test_only_who_says_the_danger_goes_without_protection(team: Team) -> None:
    ann = team.machine()
    ann.create()
    ann.environment["SYNCD_CLOUD_DSN"] = far(dsn_of(ann), sslmode="disable")
    ann.environment["SYNCD_CLOUD_TLS"] = "none"
    refused(ann, 2)
    ann.environment["SYNCD_CLOUD_TLS"] = link.UNPROTECTED
    assert ann.sync()["pushed"] == 1


# --- on this machine ------------------------------------------------------------------------------


# What it asks for, and how often it is told something: the request for TLS, who wants in, and what
# shows nothing without the verifier.
DEMANDS = {"in clear": (IN_CLEAR, 2), "hashed": (HASHED, 2), "no password": (NO_PASSWORD, 2),
           "a proof": (SCRAM, 4)}  # fmt: skip


@pytest.mark.parametrize("what", DEMANDS)
def test_a_program_that_has_taken_the_servers_port_gets_neither_password_nor_entries(
    ann: Machine, what: str
) -> None:
    """There is no certificate to ask for. But the server knows the login's verifier."""
    asks, most = DEMANDS[what]
    ann.environment["PGREQUIREAUTH"] = "password,md5,none,scram-sha-256"
    with closing(Impostor(says(b"N"), asks)) as impostor:
        place = make_conninfo(dsn_of(ann), host="127.0.0.1", port=impostor.port)
        ann.environment["SYNCD_CLOUD_DSN"] = place
        error = ann.fails(1, "sync")
        assert error["code"] == "impostor"
        assert "listens there" in error["remedy"]
        assert len(impostor.heard) == most
        told = b"".join(impostor.heard)
    assert PASSWORD.encode() not in told
    hashed = hashlib.md5(f"{PASSWORD}syncd_login_ann".encode()).hexdigest()
    assert hashlib.md5(f"{hashed}salt".encode()).hexdigest().encode() not in told
    assert b"SELECT" not in told


def test_who_goes_without_protection_does_not_give_the_password_away(ann: Machine) -> None:
    ann.environment["SYNCD_CLOUD_TLS"] = link.UNPROTECTED
    with closing(Impostor(says(b"N"))) as impostor:
        ann.environment["SYNCD_CLOUD_DSN"] = far(dsn_of(ann), port=impostor.port, sslmode="prefer")
        assert refused(ann, 1)["code"] == "impostor"
        assert PASSWORD.encode() not in b"".join(impostor.heard)


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
        ("dbname='host=db.test sslmode=disable'", True),
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


def test_who_administers_with_a_role_of_his_own_may_log_in_as_the_server_wants() -> None:
    """Only a role that syncd made is known to have a verifier."""
    for role, wanted in (("postgres", None), ("syncd_login_x", "scram-sha-256")):
        parts = conninfo_to_dict(link.protected(f"postgresql://{role}:p@127.0.0.1/d"))
        assert parts.get("require_auth") == wanted
    own = "postgresql://syncd_login_x:p@127.0.0.1/d?require_auth=none"
    assert conninfo_to_dict(link.protected(own))["require_auth"] == "none"
