"""Organizations, members, machines and their logins: who gets in, who no longer does, and where
the password is."""

from __future__ import annotations

import os
import pty
import shlex
import stat
import subprocess
from pathlib import Path

import pytest
from machines import SYNCD, Machine, Team, connects, runner, team
from psycopg.conninfo import conninfo_to_dict

from syncd.replica.link import masked

__all__ = ["runner", "team"]


def password_in(dsn: str) -> str:
    return str(conninfo_to_dict(dsn)["password"])


@pytest.fixture
def admin(team: Team) -> Machine:
    return team.administrator()


def device_names(machine: Machine) -> dict[str, bool]:
    """Each machine, and whether it is still allowed."""
    return {row["name"]: not row["revoked"] for row in machine.json("device", "list")}


# --- from nothing to the first exchange -----------------------------------------------------------


def test_an_empty_database_becomes_a_replica_that_two_people_share(
    team: Team, admin: Machine, database: str
) -> None:
    admin.environment["SYNCD_ADMIN_DSN"] = team.cluster.admin_dsn(database)
    assert admin.json("cloud", "migrate")["schema_version"] >= 1
    assert admin.json("cloud", "migrate")["applied"] == []
    made = admin.json("admin", "org", "create", "Acme & Söhne")
    assert made == {"id": made["id"], "name": "Acme & Söhne"}
    people = []
    for name in ("ann", "bob"):
        login = admin.json("admin", "member", "add", "Acme & Söhne", name)
        assert login["organization_id"] == made["id"]
        person = team.blank(name)
        told = person.json("login", "-", stdin=login["dsn"] + "\n")
        assert (told["member"], told["organization"]) == (name, "Acme & Söhne")
        people.append(person)
    ann, bob = people
    ann.create("shared")
    ann.sync()
    assert bob.sync()["pulled"] == 1
    assert bob.json("checkpoint", "latest", "shared") == ann.json("checkpoint", "latest", "shared")
    members = admin.json("admin", "member", "list", "Acme & Söhne")
    assert [(m["name"], m["kind"], m["machines"]) for m in members] == [
        ("ann", "member", 1), ("bob", "member", 1),
    ]  # fmt: skip
    [listed] = admin.json("admin", "org", "list")
    assert (listed["name"], listed["members"], listed["cloud_seq"]) == ("Acme & Söhne", 2, 1)


def test_names_are_used_once_and_unknown_ones_are_named(team: Team, admin: Machine) -> None:
    org = team.organization
    assert "already" in admin.fails(7, "admin", "org", "create", org)["message"]
    admin.ok("admin", "member", "add", org, "ann")
    refused = admin.fails(7, "admin", "member", "add", org, "ann")
    assert "ann" in refused["message"]
    for command in ("member reset", "device add"):
        assert f"`syncd admin {command} {shlex.quote(org)} ann" in refused["remedy"]
    for words in (
        ("member", "add", "nobody's", "ann"),
        ("member", "remove", org, "nobody"),
        ("member", "reset", org, "nobody"),
        ("device", "add", org, "nobody", "laptop"),
        ("device", "revoke", org, "nothing"),
        ("recovery", "open", "nobody's"),
    ):
        assert "nobody" in str(admin.fails(4, "admin", *words)) or "nothing" in words


def test_admin_needs_an_administrators_login(team: Team, admin: Machine) -> None:
    member = team.login()
    admin.environment["SYNCD_ADMIN_DSN"] = member
    for words in (("org", "create", "mine"), ("member", "add", team.organization, "me")):
        error = admin.run("admin", *words, "--json")
        assert error.code != 0
        assert password_in(member) not in error.err
    del admin.environment["SYNCD_ADMIN_DSN"]
    assert "SYNCD_ADMIN_DSN" in admin.fails(1, "admin", "org", "list")["remedy"]


def test_whoever_is_not_there_is_told_with_the_administrators_own_lists(
    team: Team, admin: Machine
) -> None:
    name = team.organization
    machines = f"syncd admin device list {shlex.quote(name)}"
    for words, what, remedy in (
        (("member", "reset", name, "nope"), "no member 'nope'", "syncd admin member list"),
        (("member", "remove", name, "nope"), "no member 'nope'", "syncd admin member list"),
        (("device", "revoke", name, "nope"), "no machine 'nope'", machines),
    ):
        error = admin.fails(4, "admin", *words)
        assert what in error["message"]
        assert remedy in error["remedy"]
    admin.ok("admin", "member", "add", name, "ann", "--machine", "laptop")
    reset = ("admin", "member", "reset", name, "ann")
    assert machines in admin.fails(4, *reset, "--machine", "nope")["remedy"]
    admin.ok("admin", "device", "revoke", name, "laptop")
    error = admin.fails(4, *reset)
    assert "all machines of ann are revoked" in error["message"]
    assert f"syncd admin device add {shlex.quote(name)} ann" in error["remedy"]


def test_the_dsn_that_is_printed_works_with_psql(team: Team, admin: Machine) -> None:
    dsn = admin.json("admin", "member", "add", team.organization, "ann")["dsn"]
    asked = team.cluster.program("psql", "-d", dsn, "-Atc", "SELECT member FROM syncd.whoami()")
    assert asked == "ann\n"
    assert "syncd login" in admin.ok("admin", "member", "add", team.organization, "bob").out


# --- login ----------------------------------------------------------------------------------------


def test_a_dsn_on_the_command_line_works_and_warns(team: Team) -> None:
    ann, dsn = team.blank(), team.login()
    for form in ((), ("--json",)):
        told = ann.ok("login", dsn, *form)
        assert "Warning" in told.err
        assert password_in(dsn) not in told.out + told.err
    assert told.json()["member"]
    assert ann.sync()["state"] == "online"


def test_a_dsn_from_standard_input_or_the_environment_does_not_warn(team: Team) -> None:
    ann, bob, dsn = team.blank(), team.blank(), team.login()
    assert ann.ok("login", "-", stdin=dsn + "\n").err == ""
    assert bob.ok("login", SYNCD_CLOUD_DSN=dsn).err == ""
    for machine in (ann, bob):
        assert machine.sync()["state"] == "online"


def test_a_dsn_is_asked_for_at_a_terminal_and_not_shown(team: Team) -> None:
    ann, dsn = team.blank(), team.login()
    main, terminal = pty.openpty()
    environment = {**os.environ, "SYNCD_HOME": str(ann.home)}
    with subprocess.Popen(
        [SYNCD, "login"], stdin=terminal, stdout=terminal, stderr=terminal, env=environment,
        start_new_session=True,
    ) as login:  # fmt: skip
        os.close(terminal)
        shown = os.read(main, 1000)
        while b"DSN" not in shown:
            shown += os.read(main, 1000)
        os.write(main, dsn.encode() + b"\n")
        while chunk := _read(main):
            shown += chunk
    os.close(main)
    assert login.returncode == 0, shown
    assert password_in(dsn).encode() not in shown
    assert ann.sync()["state"] == "online"


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1000)
    except OSError:  # Linux says so when the other end is closed
        return b""


def test_without_a_terminal_and_a_dsn_login_says_how(team: Team) -> None:
    assert "syncd login -" in team.blank().fails(2, "login")["remedy"]


def test_a_login_in_the_environment_alone_is_enough(team: Team) -> None:
    ann = team.blank()
    ann.environment["SYNCD_CLOUD_DSN"] = team.login()
    ann.create()
    assert ann.sync()["pushed"] == 1
    assert not (ann.home / "config.toml").exists()
    assert not (ann.home / "keys" / "cloud.password").exists()


def test_a_kept_password_is_not_sent_to_another_server_that_the_environment_names(
    team: Team,
) -> None:
    ann = team.machine()
    parts = conninfo_to_dict(team.login())
    bare = f"postgresql://{parts['user']}@{parts['host']}:{parts['port']}/{parts['dbname']}"
    ann.environment["SYNCD_CLOUD_DSN"] = bare
    assert "no password supplied" in ann.fails(1, "sync")["message"]


def test_a_login_that_is_refused_changes_nothing(team: Team) -> None:
    ann, other = team.machine(), team.login()
    before = (ann.home / "config.toml").read_bytes()
    wrong = other.replace(password_in(other), "wrong-word")
    error = ann.fails(1, "login", "-", stdin=wrong)
    assert error["code"] == "login_refused"
    assert "wrong-word" not in str(error)
    assert (ann.home / "config.toml").read_bytes() == before
    assert ann.sync()["state"] == "online"


NONSENSE = {
    "no DSN": "hunter2 is my password",
    "nothing": "",
    "another scheme": "mysql://ann:hunter2@db.test/x",
    "an unknown option": "postgresql://ann:hunter2@127.0.0.1/x?colour=hunter2",
    "a slash in the password": "postgresql://ann:hun/ter2@127.0.0.1/x",
    "a slash after digits": "postgresql://ann:12/hunter2@127.0.0.1/x",
    "an at sign in the password": "postgresql://ann:hun@ter2@127.0.0.1/x",
    "a bad escape": "postgresql://ann:hunter2%zz@127.0.0.1/x",
    "an odd port": "host=127.0.0.1 port=hunter2",
    "a line break": "postgresql://ann:hunter2@127.0.0.1/x\nhunter2",
}
HINTS = ("hunter2", "ter2", "hun/", "hun@")


@pytest.mark.parametrize("dsn", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_refused_clearly_and_not_repeated(team: Team, dsn: str) -> None:
    ann = team.blank()
    ann.create()
    for told in (
        ann.run("sync", SYNCD_CLOUD_DSN=dsn),
        ann.run("login", SYNCD_CLOUD_DSN=dsn) if dsn else ann.run("login", "-", stdin="\n"),
        ann.run("login", dsn) if dsn else ann.run("sync"),
        ann.run("admin", "org", "list", SYNCD_ADMIN_DSN=dsn),
    ):
        assert told.code in (1, 2), told
        assert "Remedy:" in told.err
        assert not any(hint in told.err + told.out for hint in HINTS)
    shown = ann.ok("config", SYNCD_CLOUD_DSN=dsn, SYNCD_ADMIN_DSN=dsn)
    assert not any(hint in shown.out + shown.err for hint in HINTS)
    everything = b"".join(f.read_bytes() for f in ann.home.rglob("*") if f.is_file())
    assert not any(hint.encode() in everything for hint in HINTS)


def test_config_shows_dsns_without_their_passwords(team: Team, admin: Machine) -> None:
    ann, dsn = team.machine(), team.login()
    for told in (
        ann.ok("config", SYNCD_CLOUD_DSN=dsn, SYNCD_ADMIN_DSN=dsn),
        ann.ok("config", "--json", SYNCD_CLOUD_DSN=dsn, SYNCD_ADMIN_DSN=dsn),
        ann.ok("config"),
    ):
        assert password_in(dsn) not in told.out
        assert "host=127.0.0.1" in told.out
    assert "***" in masked(dsn)
    assert masked("host=h sslpassword=secret").count("secret") == 0


# --- where the password is ------------------------------------------------------------------------


def test_without_a_keyring_the_password_is_in_a_file_for_its_owner_alone(team: Team) -> None:
    ann, dsn = team.blank(), team.login()
    ann.ok("login", "-", stdin=dsn)
    file = ann.home / "keys" / "cloud.password"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert ann.secrets() == [file]
    ann.sync()
    ann.ok("logout")
    assert not file.exists()
    assert "127.0.0.1" not in (ann.home / "config.toml").read_text()


def test_with_a_keyring_the_password_is_there_and_nowhere_else(team: Team, tmp_path: Path) -> None:
    ann, dsn = team.blank(), team.login()
    ann.environment["PYTHON_KEYRING_BACKEND"] = "keyrings.alt.file.PlaintextKeyring"
    ann.environment["XDG_DATA_HOME"] = str(tmp_path / "data")
    assert ann.json("login", "-", stdin=dsn)["password_in"] == "the keyring"
    assert not (ann.home / "keys" / "cloud.password").exists()
    password = password_in(dsn).encode()
    assert not any(password in f.read_bytes() for f in ann.home.rglob("*") if f.is_file())
    ann.create()
    assert ann.sync()["pushed"] == 1
    kept = tmp_path / "data" / "python_keyring" / "keyring_pass.cfg"
    assert "syncd" in kept.read_text()
    ann.ok("logout", SYNCD_CLOUD_DSN="postgresql://other@127.0.0.1/other")
    assert "user" not in kept.read_text()


def test_a_login_leaves_the_users_settings_as_they_are(team: Team) -> None:
    ann = team.blank()
    ann.ok("init")
    file = ann.home / "config.toml"
    file.write_text("# mine\n[backup]\nkeep = 3 # not ten\n")
    ann.ok("login", "-", stdin=team.login())
    assert file.read_text().startswith("# mine\n[backup]\nkeep = 3 # not ten\n")
    ann.ok("logout")
    assert file.read_text().strip() == "# mine\n[backup]\nkeep = 3 # not ten"


def test_logout_says_what_is_only_here_and_the_next_login_sends_it(team: Team) -> None:
    ann, dsn = team.blank(), team.login()
    ann.ok("login", "-", stdin=dsn)
    ann.create()
    assert "1 entry is" in ann.ok("logout").out
    assert ann.fails(1, "sync")["code"] == "unconfigured"
    assert ann.json("logout") == {"logged_out": False, "pending": 1}
    ann.ok("login", "-", stdin=dsn)
    assert ann.sync()["pushed"] == 1


# --- machines of one's own ------------------------------------------------------------------------


def test_a_members_next_machine_needs_no_administrator(team: Team) -> None:
    ann = team.machine(team.login("ann", "desktop"))
    ann.create()
    ann.sync()
    made = ann.json("device", "add", "laptop")
    assert made["organization_id"] == team.organization_id
    laptop = team.blank()
    laptop.ok("login", "-", stdin=made["dsn"])
    assert laptop.sync()["pulled"] == 1
    assert device_names(ann) == {"desktop": True, "laptop": True}
    assert "already" in ann.fails(7, "device", "add", "laptop")["message"]
    ann.ok("device", "rename", "laptop", "notebook")
    assert device_names(laptop) == {"desktop": True, "notebook": True}
    assert "laptop" in ann.fails(4, "device", "rename", "laptop", "x")["message"]


def test_a_member_sees_and_touches_only_his_own_machines(team: Team) -> None:
    ann, bob = team.machine(team.login("ann", "desktop")), team.machine(team.login("bob", "tower"))
    assert device_names(ann) == {"desktop": True}
    [theirs] = bob.json("device", "list")
    for name in ("tower", theirs["login"]):
        ann.fails(4, "device", "revoke", name)
    assert device_names(bob) == {"tower": True}


def test_a_revoked_machine_is_refused_and_its_unsent_entries_stay(team: Team) -> None:
    ann = team.machine(team.login("ann", "desktop"))
    laptop = team.blank()
    dsn = ann.json("device", "add", "laptop")["dsn"]
    laptop.ok("login", "-", stdin=dsn)
    sent = laptop.create()
    laptop.sync()
    unsent = [laptop.create(), laptop.create()]
    ann.ok("device", "revoke", "laptop", "--reason", "left in the train")
    [row] = [row for row in ann.json("device", "list") if row["name"] == "laptop"]
    assert (row["revoked"], row["reason"]) == (True, "left in the train")
    for words in (("sync",), ("prove",)):
        error = laptop.fails(1, *words)
        assert error["code"] == "login_refused"
        assert "revoked" in error["message"]
        assert "safe on this machine: 2 entries" in error["message"]
        assert "device add" in error["remedy"]
        assert error["data_safe"]
    flushed = laptop.fails(1, "flush", "--wait", "0")
    assert (flushed["code"], flushed["pending"], flushed["data_safe"]) == ("login_refused", 2, True)
    [need] = laptop.run("status", "--json").json()["attention"]
    assert "revoked" in need["what"]
    laptop.ok("logout")
    status = laptop.run("status", "--json")
    assert (status.code, status.json()["attention"]) == (0, [])
    assert not connects(dsn)
    shown = laptop.json("checkpoint", "list")
    assert {c["revision"] for c in shown} == {sent, *unsent}
    assert laptop.json("audit", "verify")["ok"]


def test_a_machine_can_revoke_itself(team: Team) -> None:
    ann = team.machine(team.login("ann", "desktop"))
    ann.create()
    assert ann.json("device", "revoke", "desktop")["revoked"]
    assert "safe on this machine: 1 entry" in ann.fails(1, "sync")["message"]


def test_a_removed_member_is_refused_on_all_machines(team: Team, admin: Machine) -> None:
    first = team.login("ann", "desktop")
    ann = team.machine(first)
    second = ann.json("device", "add", "laptop")["dsn"]
    laptop = team.machine(second)
    laptop.create()
    told = admin.json("admin", "member", "remove", team.organization, "ann", "--reason", "left")
    assert told == {"removed": "ann", "machines": 2}
    assert "safe on this machine: 1 entry" in laptop.fails(1, "sync")["message"]
    ann.fails(1, "sync")
    assert not connects(first)
    assert not connects(second)
    [member] = admin.json("admin", "member", "list", team.organization)
    assert member["removed_at"]


def test_a_session_that_is_open_ends_with_the_revocation(team: Team, admin: Machine) -> None:
    import psycopg

    dsn = team.login("ann", "desktop")
    with psycopg.connect(dsn, autocommit=True) as connection:
        admin.ok("admin", "device", "revoke", team.organization, "desktop")
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT * FROM syncd.log")


def test_a_new_password_ends_the_old_one_and_the_home_goes_on(team: Team, admin: Machine) -> None:
    old = team.login("ann", "desktop")
    ann = team.machine(old)
    ann.create()
    new = admin.json("admin", "member", "reset", team.organization, "ann")["dsn"]
    assert conninfo_to_dict(new)["user"] == conninfo_to_dict(old)["user"]
    assert "password is wrong" in ann.fails(1, "sync")["message"]
    ann.ok("login", "-", stdin=new)
    assert ann.sync()["pushed"] == 1
    assert not connects(old)


def test_a_machine_with_a_new_login_after_a_revocation_goes_on(team: Team, admin: Machine) -> None:
    ann = team.machine(team.login("ann", "desktop"))
    ann.create()
    ann.sync()
    ann.create()
    admin.ok("admin", "device", "revoke", team.organization, "desktop")
    ann.fails(1, "sync")
    made = admin.json("admin", "device", "add", team.organization, "ann", "desktop")
    ann.ok("login", "-", stdin=made["dsn"])
    ann.create()
    team.machine()
    team.agree()


# --- one home, one organization -------------------------------------------------------------------


def test_what_the_replica_refused_stays_unsafe_under_the_next_login(team: Team) -> None:
    """Its content is on this disk alone, whoever's login it was that offered it."""
    team.sql(
        "UPDATE syncd.organizations SET body_limit = 10000 WHERE organization_id = %s",
        team.organization_id,
    )
    ann = team.machine()
    large = ann.create("t", "--focus", "x" * 20_000)
    ann.sync()
    ann.ok("login", "-", stdin=team.login(machine="another"))
    ann.create("t", "--pending", "more")
    ann.sync()
    said = ann.run("status", "--json")
    assert said.code == 3
    assert (said.json()["safe_to_close"], said.json()["push"]["pending"]) == (False, 0)
    proof = ann.run("prove", "--json")
    assert proof.code == 3
    assert proof.json()["missing_in_cloud"] == [large]
    assert ann.run("flush", "--wait", "1").code == 1
    team.sql(
        "UPDATE syncd.organizations SET body_limit = 99999 WHERE organization_id = %s",
        team.organization_id,
    )
    ann.ok("quarantine", "retry", large)
    ann.sync()
    assert ann.json("status")["safe_to_close"] is True
    assert ann.json("prove")["ok"]


def test_a_home_stays_with_its_organization_once_it_has_synced(team: Team) -> None:
    ann, there = team.machine(), team.another()
    elsewhere = there.login()
    ann.create()
    ann.sync()
    ann.create()
    error = ann.fails(2, "login", "-", stdin=elsewhere)
    assert "another organization" in error["message"]
    assert "SYNCD_HOME" in error["remedy"]
    assert "another organization" in ann.fails(1, "sync", SYNCD_CLOUD_DSN=elsewhere)["message"]
    assert (
        there.sql("SELECT * FROM syncd.log WHERE organization_id = %s", there.organization_id) == []
    )
    assert ann.sync()["pushed"] == 1


def test_a_home_that_has_not_synced_may_still_choose(team: Team) -> None:
    ann, there = team.machine(), team.another()
    ann.create()
    ann.ok("login", "-", stdin=there.login())
    assert ann.sync()["pushed"] == 1
    [(where,)] = there.sql("SELECT organization_id::text FROM syncd.log")
    assert where == there.organization_id


def test_another_organizations_home_gets_nothing_of_ours(team: Team) -> None:
    ann, there = team.machine(), team.another()
    bob = there.machine()
    ann.create("secret")
    team.settle(ann, bob)
    assert bob.entries() == []
    assert bob.json("prove") == {
        "ok": True, "local": 0, "cloud": 0, "missing_in_cloud": [], "missing_here": [],
        "damaged": [],
    }  # fmt: skip


def test_an_auditor_reads_and_keeps_what_he_writes(team: Team, admin: Machine) -> None:
    ann = team.machine()
    ann.create()
    ann.sync()
    dsn = admin.json("admin", "member", "add", team.organization, "eve", "--role", "auditor")["dsn"]
    eve = team.machine(dsn)
    assert eve.json("sync", "--pull-only")["pulled"] == 1
    assert eve.sync()["pushed"] == 0
    eve.create()
    ann.create()
    ann.sync()
    outcome = eve.sync()
    assert (outcome["pushed"], outcome["pulled"], outcome["pending"]) == (0, 1, 1)
    assert len(eve.json("checkpoint", "list")) == 3


def test_status_heeds_another_login_before_it_has_met_the_replica(
    team: Team, admin: Machine
) -> None:
    def login(name: str, *words: str) -> str:
        made = admin.json("admin", "member", "add", team.organization, name, *words)
        return str(made["dsn"])

    eve = team.blank()
    eve.create()
    for dsn, kind, code in (
        (login("eve", "--role", "auditor"), "kept", 0), (login("bob"), "waiting", 3),
        (login("eva", "--role", "auditor"), "kept", 0),
    ):  # fmt: skip
        eve.ok("login", "-", stdin=dsn)
        status = eve.run("status", "--json")
        assert (status.code, status.json()["answer"]["kind"]) == (code, kind)


def test_an_auditor_is_told_why_what_he_writes_stays_here(team: Team, admin: Machine) -> None:
    dsn = admin.json("admin", "member", "add", team.organization, "eve", "--role", "auditor")["dsn"]
    eve = team.blank()
    assert "what is written here stays here" in eve.ok("login", "-", stdin=dsn).out
    eve.create()
    assert "Kept here, for this login only reads" in eve.ok("sync").out
    unsent = eve.fails(1, "flush", "--wait", "60")
    assert (unsent["code"], unsent["pending"]) == ("reads_only", 1)
    assert "only reads" in unsent["message"]
    assert unsent["waited_s"] < 30
    status = eve.run("status")
    assert (status.code, status.out.startswith("Kept here: ")) == (0, True)
    proof = eve.run("prove", "--repair")
    assert proof.code == 3
    assert "this login only reads" in proof.out
    assert "may not do that" in eve.fails(1, "device", "add", "another")["message"]
    assert [m["name"] for m in eve.json("device", "list")] == ["first machine"]
