"""A member with a password, psql and bad intentions: what is another's stays unseen and untouched.

Every attack comes from the attacker's own login over plain psycopg. After each of them, whatever
it was, the other organization's rows and the schema's rights are as they were before.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import psycopg
import pytest
from postgres import Session
from psycopg import errors
from replicas import Cloud, Person, Writer, cloud_on

from syncd.entry import Entry, uuid7
from syncd.replica import Seen
from syncd.replica.login import credentials
from syncd.seal import GENESIS

ORGANIZATION, PERSON, MACHINE = "Umbrella Corporation", "Victoria Vance", "victorias-thinkpad"
TASK, TITLE, BODY, AGENT = "merge-with-initech", "Hostile takeover", "strictly secret", "hal-9000"
NAMES = (ORGANIZATION, PERSON, MACHINE, TASK, TITLE, BODY, AGENT)
NOBODY = "00000000-0000-4000-8000-000000000000"
VERIFIER = "SCRAM-SHA-256$4096:c2FsdHNhbHRzYWx0c2FsdA==$" + "A" * 43 + "=:" + "B" * 43 + "="


class World(NamedTuple):
    cloud: Cloud
    attacker: Person
    colleague: Person
    victim: Person

    def attack(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        cursor = self.attacker.plain.execute(text.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def refusal(self, text: str, *values: object) -> errors.Error:
        with pytest.raises(psycopg.Error) as caught:
            self.attack(text, *values)
        return caught.value

    def secrets(self) -> set[str]:
        """What an attacker might learn of the other organization, ids of roles aside."""
        channel = self.cloud.sql(
            "SELECT channel FROM syncd.organizations WHERE organization_id = %s",
            self.victim.organization_id,
        )
        return {*NAMES, channel[0][0], self.victim.writer.chain.hex()}


@pytest.fixture(scope="module", params=["15", "18"])
def world(postgres: Session, request: pytest.FixtureRequest) -> Iterator[World]:
    with cloud_on(postgres.shared(request.param)) as cloud:
        attacker = cloud.person(cloud.organization("Attackers"), "Mallory")
        colleague = cloud.person(attacker.organization_id, "Colin")
        for person in (attacker, colleague):
            person.push(person.writer.create("own-task", {"own": 1}), person.writer.create())
        made = World(cloud, attacker, colleague, _victim(cloud))
        # As a running server does by itself; estimates come from what this samples.
        cloud.sql("ANALYZE")
        yield made


def _victim(cloud: Cloud) -> Person:
    """With rows in every table, conflicts too."""
    organization = cloud.organization(ORGANIZATION)
    login = cloud.admin.add_member(organization, PERSON, "member", MACHINE)
    victim = cloud.of(organization, PERSON, login)
    other = cloud.machine(victim)
    task = victim.writer.describe_task(TASK, TITLE)
    first = victim.writer.create(TASK, {"text": BODY}, agent=AGENT)
    victim.push(task, first)
    for person in (victim, other):
        person.push(person.writer.update(first.entity_id, [first.entry_id], {"by": person.name},
                                         TASK, agent=AGENT))  # fmt: skip
    for number in range(20):
        victim.push(victim.writer.create(f"{TASK}-{number % 3}", {"text": BODY}))
    victim.push(victim.writer.purge([str(uuid.uuid4())], TASK))  # not here, and awaited
    victim.push(victim.writer.send_message(AGENT, BODY, TASK))
    victim.replica.presence(
        victim.writer.device_id, [Seen(victim.writer.device_id, AGENT, TASK, "x", "y", 1)]
    )
    victim.plain.execute(f"SELECT '{BODY}'".encode())
    return victim


@pytest.fixture(autouse=True)
def _untouched(world: World) -> Iterator[None]:
    before = _everything(world)
    yield
    assert _everything(world) == before


def _everything(world: World) -> list[Any]:
    """The victim's rows, and what the schema allows to whom."""
    rows = [
        world.cloud.sql(f"""
          SELECT (to_jsonb(t) - 'announced_at' - 'last_seen')::text AS row
          FROM syncd.{name} t WHERE organization_id = %s ORDER BY row
        """, world.victim.organization_id)
        for name in tenant_tables(world)
    ]  # fmt: skip
    catalog = """
      SELECT relname, relacl::text, relrowsecurity, relforcerowsecurity, relowner::regrole::text
      FROM pg_class WHERE relnamespace = 'syncd'::regnamespace ORDER BY 1;
    """, """
      SELECT oid::regprocedure::text, proacl::text, proconfig, prosrc, proowner::regrole::text
      FROM pg_proc WHERE pronamespace = 'syncd'::regnamespace ORDER BY 1
    """, "SELECT p::text FROM pg_policies p ORDER BY 1", """
      SELECT r.rolname, r.rolsuper, r.rolcreaterole, r.rolbypassrls
      FROM pg_roles r WHERE r.rolsuper OR r.rolcreaterole OR r.rolbypassrls ORDER BY 1
    """, """
      SELECT g.rolname FROM pg_auth_members m JOIN pg_roles g ON g.oid = m.roleid
      JOIN pg_roles r ON r.oid = m.member WHERE r.rolname = %s ORDER BY 1
    """  # fmt: skip
    return rows + [
        world.cloud.sql(text, *([world.victim.login.role] if "%s" in text else []))
        for text in catalog
    ]


def relations(world: World) -> dict[str, str]:
    """Every table and view of the schema, with its kind."""
    return dict(world.cloud.sql("""
      SELECT relname, relkind::text FROM pg_class
      WHERE relnamespace = 'syncd'::regnamespace AND relkind NOT IN ('i', 't', 'c') ORDER BY 1
    """))  # fmt: skip


def tenant_tables(world: World) -> list[str]:
    return [
        row[0]
        for row in world.cloud.sql("""
          SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
          WHERE c.relnamespace = 'syncd'::regnamespace AND c.relkind = 'r'
            AND a.attname = 'organization_id' ORDER BY 1
        """)
    ]


# --- how the schema is built --------------------------------------------------------------------


def test_every_table_of_the_schema_begins_its_key_with_the_organization(world: World) -> None:
    keys = world.cloud.sql("""
      SELECT c.relname, a.attname FROM pg_class c
      LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
      LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
      WHERE c.relnamespace = 'syncd'::regnamespace AND c.relkind IN ('r', 'p')
    """)
    assert len(keys) > 5
    assert {name: key for name, key in keys if key != "organization_id"} == {
        "schema_migrations": "version"
    }


def test_every_index_begins_with_the_organization(world: World) -> None:
    """Else a condition on it would be looked up before the policy, and EXPLAIN would tell."""
    others = world.cloud.sql("""
      SELECT i.indexrelid::regclass::text FROM pg_index i
      JOIN pg_class c ON c.oid = i.indrelid
      LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
      JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_am m ON m.oid = x.relam
      WHERE c.relnamespace = 'syncd'::regnamespace AND m.amname = 'btree'
        AND a.attname IS DISTINCT FROM 'organization_id'
    """)
    assert others == [("syncd.schema_migrations_pkey",)]


def test_row_level_security_is_forced_wherever_there_are_organizations(world: World) -> None:
    forced = world.cloud.sql("""
      SELECT relname FROM pg_class WHERE relnamespace = 'syncd'::regnamespace
      AND relkind IN ('r', 'p') AND NOT (relrowsecurity AND relforcerowsecurity)
    """)
    assert forced == [("schema_migrations",)]


def test_views_show_what_their_reader_may_see_and_nothing_has_triggers(world: World) -> None:
    assert not world.cloud.sql("""
      SELECT relname FROM pg_class WHERE relnamespace = 'syncd'::regnamespace AND relkind = 'v'
      AND NOT coalesce(reloptions, '{}') && ARRAY['security_invoker=true', 'security_invoker=on']
    """)
    assert "m" not in relations(world).values()
    assert not world.cloud.sql("""
      SELECT tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
      WHERE c.relnamespace = 'syncd'::regnamespace
    """)


def test_functions_with_anothers_rights_fix_where_names_are_looked_up(world: World) -> None:
    loose = world.cloud.sql("""
      SELECT oid::regprocedure::text FROM pg_proc
      WHERE pronamespace = 'syncd'::regnamespace AND prosecdef
        AND NOT coalesce(proconfig, '{}') @> ARRAY['search_path=pg_catalog, pg_temp']
    """)
    assert loose == []


def test_nothing_in_the_schema_is_for_everybody(world: World) -> None:
    assert not world.cloud.sql("""
      SELECT p.oid::regprocedure::text FROM pg_proc p,
        aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
      WHERE p.pronamespace = 'syncd'::regnamespace AND a.grantee = 0
      UNION ALL
      SELECT c.relname FROM pg_class c, aclexplode(c.relacl) a
      WHERE c.relnamespace = 'syncd'::regnamespace AND a.grantee = 0
      UNION ALL
      SELECT n.nspname FROM pg_namespace n, aclexplode(n.nspacl) a
      WHERE n.nspname = 'syncd' AND a.grantee = 0
    """)


def test_no_column_is_sampled_for_estimates_but_one_that_names_nothing(world: World) -> None:
    """An estimate answers `name < 'M'` from all organizations' names."""
    sampled = world.cloud.sql(
        "SELECT tablename, attname FROM pg_stats WHERE schemaname = 'syncd' AND tablename <> %s",
        "schema_migrations",
    )
    large = ("checkpoints", "conflicts", "costs", "log", "messages", "tasks")
    assert sorted(sampled) == [(table, "organization_id") for table in large]
    assert world.cloud.sql(
        "SELECT reltuples > 20 FROM pg_class WHERE oid = 'syncd.log'::regclass"
    ) == [(True,)]


# --- tables and views ---------------------------------------------------------------------------


def test_no_table_or_view_shows_a_row_of_another_organization(world: World) -> None:
    secrets, own = world.secrets(), world.attacker.organization_id
    for name in relations(world):
        shown = " ".join(str(row) for row in world.attack(f"SELECT t::text FROM syncd.{name} t"))
        assert not [secret for secret in secrets if secret in shown], name
        assert world.victim.organization_id not in shown, name
    for name in tenant_tables(world):
        hers = world.cloud.sql(
            f"SELECT count(*) FROM syncd.{name} WHERE organization_id = %s",
            world.victim.organization_id,
        )
        assert hers[0][0] > 0, f"{name} has nothing to hide: this test shows nothing"
    assert world.attack("SELECT DISTINCT organization_id::text FROM syncd.log") == [(own,)]


WRITES = (
    "INSERT INTO syncd.{0} SELECT * FROM syncd.{0}",
    "UPDATE syncd.{0} SET {1} = {1}",
    "DELETE FROM syncd.{0}",
    "TRUNCATE syncd.{0}",
    "MERGE INTO syncd.{0} t USING (SELECT 1) s ON false WHEN NOT MATCHED THEN"
    " INSERT ({1}) VALUES (NULL)",
    "COPY syncd.{0} FROM STDIN",
    "SELECT 1; LOCK TABLE syncd.{0} IN ROW EXCLUSIVE MODE",
    "SELECT FROM syncd.{0} FOR UPDATE",
    "ALTER TABLE syncd.{0} DISABLE ROW LEVEL SECURITY",
    "ALTER TABLE syncd.{0} NO FORCE ROW LEVEL SECURITY",
    "ALTER TABLE syncd.{0} OWNER TO CURRENT_USER",
    "CREATE POLICY mine ON syncd.{0} USING (true)",
    "DROP TABLE syncd.{0}",
    "CREATE INDEX ON syncd.{0} ({1})",
    "CREATE RULE r AS ON INSERT TO syncd.{0} DO INSTEAD NOTHING",
    "COMMENT ON TABLE syncd.{0} IS 'x'",
    "ALTER TABLE syncd.{0} ALTER {1} SET STATISTICS 100",
)


def test_no_table_takes_a_write(world: World) -> None:
    for name, kind in relations(world).items():
        column = world.cloud.sql(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum = 1",
            f"syncd.{name}",
        )[0][0]
        for statement in WRITES:
            refused = world.refusal(statement.format(name, column))
            assert kind != "r" or refused.sqlstate == "42501", statement.format(name, column)


def test_a_function_of_the_attackers_sees_only_rows_he_may_see(world: World) -> None:
    """Cheap and noisy: it is asked first unless the policy forbids it."""
    seen: list[str] = []
    world.attacker.plain.add_notice_handler(lambda n: seen.append(n.message_primary or ""))
    world.attack("""
      CREATE OR REPLACE FUNCTION pg_temp.tell(row_text text) RETURNS boolean COST 0.0000001
      LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE '%', row_text; RETURN true; END $$
    """)
    for name in tenant_tables(world):
        world.attack(f"SELECT FROM syncd.{name} t WHERE pg_temp.tell(t::text)")
    assert any(world.attacker.organization_id in text for text in seen)
    assert not any(world.victim.organization_id in text for text in seen)


def test_explain_answers_a_right_guess_as_it_answers_a_wrong_one(world: World) -> None:
    """With a difference, each question yields a bit, and some hundred of them a text."""
    asked = 0
    for name in tenant_tables(world):
        for column, kind, value in _values(world, name):
            # Known from the names of roles.
            if column == "organization_id":
                continue
            for plan in ("on", "off"):
                world.attack(f"SET enable_seqscan = {plan}")
                for scope in ("true", f"organization_id = '{world.victim.organization_id}'"):
                    _asked_alike(world, name, f"{scope} AND {column}", kind, value)
                    asked += 1
    world.attack("RESET enable_seqscan")
    assert asked > 150


# Comparisons that hold for a value, and the same ones that do not.
GUESSES = (("= %s", "= %s"), ("= ANY (ARRAY[%s])", "= ANY (ARRAY[%s])"), ("<= %s", "< %s"))


def _asked_alike(world: World, name: str, condition: str, kind: str, value: str) -> None:
    wrong = {"text": f"'{value}?'", "uuid": f"'{NOBODY}'", "bytea": "'\\x00'", "bigint": "-5"}
    for position, (right_way, wrong_way) in enumerate(GUESSES):
        right = f"'{value}'::{kind}"
        other = right if position == 2 else f"{wrong[kind]}::{kind}"
        plans = [
            _plan(world, name, f"{condition} {way % guess}")
            for way, guess in ((right_way, right), (wrong_way, other))
        ]
        assert plans[0] == plans[1], (name, condition, plans)


def _plan(world: World, name: str, condition: str) -> str:
    lines = world.attack(
        "EXPLAIN (ANALYZE, COSTS, TIMING off, SUMMARY off) "
        f"SELECT FROM syncd.{name} WHERE {condition}"
    )
    text = "\n".join(line for (line,) in lines if "Buffers" not in line and line != "Planning:")
    # What was asked, which of course differs, and the two forms of "smaller".
    return re.sub(r"'[^']*'::\w+(\[\])?|<=?|'\{[^}]*\}'", "?", text)


def _values(world: World, name: str) -> list[tuple[str, str, str]]:
    """One value that only the victim has, for each column that can be compared."""
    found = []
    for column, kind in world.cloud.sql(
        "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute "
        "WHERE attrelid = %s::regclass AND attnum > 0",
        f"syncd.{name}",
    ):
        if kind in ("text", "uuid", "bytea", "bigint"):
            rows = world.cloud.sql(
                f"SELECT {column}::text FROM syncd.{name} WHERE organization_id = %s AND {column} "
                f"NOT IN (SELECT {column} FROM syncd.{name} WHERE organization_id = %s "
                f"        AND {column} IS NOT NULL) AND {column} IS NOT NULL ORDER BY 1 LIMIT 1",
                world.victim.organization_id,
                world.attacker.organization_id,
            )
            found += [(column, kind, row[0].replace("'", "''")) for row in rows]
    return found


# --- posing as someone else ---------------------------------------------------------------------


def test_no_setting_of_the_attackers_opens_anything(world: World) -> None:
    hers = "SELECT count(*) FROM syncd.log WHERE organization_id = %s"
    settings = world.attack(
        "SELECT name, setting, vartype, enumvals FROM pg_settings "
        "WHERE context = 'user' AND name !~ '^(log|debug|transaction|default_transaction)'"
    )
    assert len(settings) > 80
    for name, now, kind, values in settings:
        others = {"bool": ["off" if now == "on" else "on"], "enum": values}.get(kind, [])
        for value in others:
            # A set-back to how it was must not depend on what was set.
            with world.attacker.plain.transaction(force_rollback=True), suppress(psycopg.Error):
                world.attack(f"SET LOCAL \"{name}\" = '{value}'")
                rows = world.attack(hers, world.victim.organization_id)
                assert rows == [(0,)], (name, value)


@pytest.mark.parametrize(
    "name",
    ["syncd.organization", "syncd.organization_id", "syncd.my_org", "app.current_tenant",
     "request.jwt.claims", "role", "session_authorization"],
)  # fmt: skip
def test_no_setting_of_another_name_says_who_somebody_is(world: World, name: str) -> None:
    for value in (world.victim.organization_id, world.victim.login.role, "syncd_owner"):
        with suppress(psycopg.Error):
            world.attack("SELECT set_config(%s, %s, false)", name, value)
        assert world.attack("SELECT session_user") == [(world.attacker.login.role,)]
        assert {row[0] for row in world.attack("SELECT organization_id::text FROM syncd.log")} == {
            world.attacker.organization_id
        }
        assert [str(row[0]) for row in world.attack("SELECT organization_id FROM syncd.whoami()")] \
            == [world.attacker.organization_id]  # fmt: skip


def test_a_member_becomes_only_what_he_is(world: World) -> None:
    roles = [row[0] for row in world.attack("SELECT rolname FROM pg_roles")]
    assert {"syncd_owner", "syncd_admin", world.victim.login.role} < set(roles)
    became = set()
    for role in roles:
        for statement in ("SET ROLE", "SET SESSION AUTHORIZATION"):
            with suppress(errors.InsufficientPrivilege):
                world.attack(f'{statement} "{role}"')
                became.add(role)
                with suppress(errors.InsufficientPrivilege):
                    shown = world.attack("SELECT DISTINCT organization_id::text FROM syncd.log")
                    assert shown == [(world.attacker.organization_id,)], role
        world.attack("RESET ROLE")
    mine = f"syncd_org_{world.attacker.organization_id}"
    assert became == {world.attacker.login.role, mine, "syncd_auditor", "syncd_member"}


ESCAPES = (
    "CREATE SCHEMA lair",
    "CREATE TABLE public.t ()",
    "CREATE TABLE syncd.t ()",
    "CREATE VIEW syncd.v AS SELECT 1",
    "CREATE FUNCTION syncd.f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE OR REPLACE FUNCTION syncd.clock() RETURNS timestamptz LANGUAGE sql AS 'SELECT now()'",
    "CREATE TYPE syncd.t AS (c int)",
    "CREATE DOMAIN syncd.d AS int",
    "CREATE ROLE mine",
    "CREATE ROLE mine SUPERUSER",
    "CREATE EXTENSION dblink",
    "CREATE PUBLICATION p FOR ALL TABLES",
    "CREATE DATABASE d",
    "ALTER SCHEMA syncd OWNER TO CURRENT_USER",
    "ALTER ROLE CURRENT_USER CREATEROLE",
    "ALTER ROLE CURRENT_USER SUPERUSER",
    "ALTER ROLE CURRENT_USER BYPASSRLS",
    "ALTER ROLE {me} RENAME TO mine",
    "ALTER ROLE syncd_owner LOGIN PASSWORD 'x'",
    "ALTER ROLE syncd_auditor SET row_security = off",
    "ALTER ROLE {victim} PASSWORD 'x'",
    "ALTER ROLE {victim} SET search_path = pg_temp",
    "DROP ROLE {victim}",
    "GRANT syncd_owner TO CURRENT_USER",
    "GRANT syncd_admin TO CURRENT_USER",
    "GRANT {group} TO CURRENT_USER",
    "GRANT syncd_lead TO CURRENT_USER",
    "GRANT {me} TO {victim}",
    "GRANT {mine} TO {victim}",
    "REVOKE {group} FROM {victim}",
    "COMMENT ON ROLE {me} IS 'x'",
    "COMMENT ON FUNCTION syncd.whoami() IS 'x'",
    "COPY syncd.log TO PROGRAM 'cat'",
    "COPY (SELECT 1) TO '/tmp/x'",
    "SELECT pg_read_file('postgresql.conf')",
    "SELECT rolpassword FROM pg_authid",
    "SELECT stavalues1 FROM pg_statistic",
    "SELECT pg_terminate_backend({pid})",
    "SELECT pg_cancel_backend({pid})",
    "SET session_replication_role = replica",
    "DO LANGUAGE plpython3u $$ $$",
    "ALTER SYSTEM SET row_security = off",
    "ALTER DEFAULT PRIVILEGES FOR ROLE syncd_owner GRANT SELECT ON TABLES TO PUBLIC",
    "DROP OWNED BY syncd_owner",
    "REASSIGN OWNED BY syncd_owner TO CURRENT_USER",
)


@pytest.mark.parametrize("statement", ESCAPES)
def test_a_member_is_refused(world: World, statement: str) -> None:
    text = statement.format(
        victim=world.victim.login.role,
        group=f'"syncd_org_{world.victim.organization_id}"',
        mine=f'"syncd_org_{world.attacker.organization_id}"',
        me=world.attacker.login.role,
        pid=world.victim.plain.info.backend_pid,
    )
    refused = world.refusal(text)
    # 42704: there is no such language here. 0A000: "cannot be renamed".
    assert refused.sqlstate in ("42501", "42704", "0A000"), refused


def test_dropping_what_his_roles_own_takes_nothing_from_anybody(world: World) -> None:
    for role in ("syncd_auditor", "syncd_member", f'"syncd_org_{world.attacker.organization_id}"'):
        world.attack(f"DROP OWNED BY {role}")
        world.attack(f"REASSIGN OWNED BY {role} TO CURRENT_USER")
    world.attack("DROP OWNED BY CURRENT_USER")
    assert world.attack("SELECT count(*) > 0 FROM syncd.log") == [(True,)]


# --- functions ----------------------------------------------------------------------------------

# Calls for members, with what each is given: the organization, a device of it.
CALLS = {
    "hello": "SELECT syncd.hello({organization}, {device}, decode(repeat('00', 32), 'hex'), '1')",
    "push": "SELECT syncd.push({organization}, {device}, 1, decode(repeat('00', 32), 'hex'), "
    "ARRAY[gen_random_uuid()], ARRAY['checkpoint'], ARRAY['x'], ARRAY['create'], ARRAY['[]'], "
    "ARRAY[1::bigint], ARRAY['me'], ARRAY['now'], ARRAY[''], ARRAY['{{}}'], ARRAY['x'], "
    "ARRAY['\\x00'::bytea], ARRAY[NULL::bytea], ARRAY[1::bigint], ARRAY['{{}}'::bytea], "
    "ARRAY[NULL::text], ARRAY[NULL::uuid])",
    "pull": "SELECT syncd.pull({organization}, {device}, 0, NULL, 0, 1000, 1000000)",
    "common": "SELECT syncd.common({organization}, ARRAY[1::bigint], ARRAY[{device}])",
    "chains": "SELECT syncd.chains({organization}, {device}, ARRAY[1::bigint])",
    "digests": "SELECT syncd.digests({organization})",
    "thousand": "SELECT syncd.thousand({organization}, {device}, 0)",
    "report": "SELECT syncd.report({organization}, {device}, 1, 1)",
    "report_skew": "SELECT syncd.report_skew({organization}, {device}, 1, 1, 1)",
    "presence": "SELECT syncd.presence({organization}, {device}, ARRAY['a'], ARRAY['t'], "
    "ARRAY[''], ARRAY[''], ARRAY[1::bigint])",
    "announce": "SELECT syncd.announce({organization})",
    "introduce": "SELECT syncd.introduce({organization}, {device}, sha256('')::bytea)",
    "search": "SELECT syncd.search({organization}, '{{}}')",
    "my_device_add": "SELECT syncd.my_device_add({organization}, 'x', {login}, {verifier})",
    "my_device_rename": "SELECT syncd.my_device_rename({organization}, {role}, 'x')",
    "my_device_revoke": "SELECT syncd.my_device_revoke({organization}, {role}, 'x')",
    "my_sessions_end": "SELECT syncd.my_sessions_end({organization}, {role})",
}
# These take nothing and speak of the caller alone.
OF_ONESELF = {"whoami", "my_org", "clock"}
# These refuse a device that another login used first.
OF_A_DEVICE = ("hello", "push", "report", "report_skew", "presence")


def call(name: str, organization: str, device: str, role: str) -> str:
    values = {
        "organization": f"'{organization}'::uuid", "device": f"'{device}'::uuid",
        "role": f"'{role}'", "login": f"'syncd_login_{uuid.uuid4().hex}'",
        "verifier": f"'{VERIFIER}'",
    }  # fmt: skip
    return CALLS[name].format(**values)


def signatures(world: World, allowed: bool) -> list[tuple[str, list[str]]]:
    """Name and argument types of the functions that the attacker may call, or may not."""
    return [(name, list(types)) for name, types in world.cloud.sql("""
      SELECT p.proname, ARRAY(SELECT format_type(t, NULL) FROM unnest(p.proargtypes) AS t)
      FROM pg_proc p WHERE p.pronamespace = 'syncd'::regnamespace
        AND has_function_privilege(%s, p.oid, 'EXECUTE') = %s
    """, world.attacker.login.role, allowed)]  # fmt: skip


def test_every_function_that_members_may_call_is_tried_here(world: World) -> None:
    assert {name for name, _ in signatures(world, True)} == CALLS.keys() | OF_ONESELF


def test_functions_for_others_cannot_be_called(world: World) -> None:
    inner = signatures(world, False)
    assert len(inner) > 20
    for name, types in inner:
        values = ", ".join(f"NULL::{kind}" for kind in types)
        assert world.refusal(f"SELECT syncd.{name}({values})").sqlstate == "42501", name


def _told(error: errors.Error) -> tuple[str | None, ...]:
    diagnosis = error.diag
    return (error.sqlstate, diagnosis.message_primary, diagnosis.message_detail,
            diagnosis.message_hint)  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_another_organization_is_refused_like_one_that_does_not_exist(
    world: World, name: str
) -> None:
    victim = world.victim
    device, role = victim.writer.device_id, victim.login.role
    hers = world.refusal(call(name, victim.organization_id, device, role))
    none = world.refusal(call(name, NOBODY, str(uuid.uuid4()), f"syncd_login_{'0' * 32}"))
    assert _told(hers) == _told(none)
    assert hers.sqlstate == "SY001"


@pytest.mark.parametrize("name", OF_A_DEVICE)
def test_a_colleagues_device_is_refused_to_another_login(world: World, name: str) -> None:
    own, colleague = world.attacker.organization_id, world.colleague
    refused = world.refusal(call(name, own, colleague.writer.device_id, ""))
    assert refused.sqlstate == "SY002"
    if name != "hello":
        none = world.refusal(call(name, own, str(uuid.uuid4()), ""))
        assert _told(refused) == _told(none)


def test_a_device_id_of_another_organization_says_nothing(world: World) -> None:
    """It is as good as any id that was never used."""
    own, device = world.attacker.organization_id, world.victim.writer.device_id
    (standing,) = world.attack(call("hello", own, device, "").replace("SELECT", "SELECT * FROM"))
    assert (standing[2], standing[3]) == (0, GENESIS)
    for name in ("chains", "thousand", "common"):
        assert world.attack(call(name, own, device, "")) in ([], [(None,)])
    pulled = world.attack(call("pull", own, device, ""))
    assert all(world.victim.organization_id not in str(row) for row in pulled)
    world.cloud.sql("DELETE FROM syncd.devices WHERE organization_id = %s AND device_id = %s",
                    own, device)  # fmt: skip


@pytest.mark.parametrize("name", ["my_device_rename", "my_device_revoke", "my_sessions_end"])
def test_another_members_machine_is_refused_like_one_that_does_not_exist(
    world: World, name: str
) -> None:
    own = world.attacker.organization_id
    refusals = {
        _told(world.refusal(call(name, own, NOBODY, role)))
        for role in (world.colleague.login.role, world.victim.login.role, "nobody", "postgres")
    }
    assert len(refusals) == 1
    assert refusals.pop()[0] == "SY012"
    world.colleague.plain.execute("SELECT syncd.whoami()")


# --- names that hide others ---------------------------------------------------------------------

SHADOWED_FUNCTIONS = (
    "sha256(bytea) RETURNS bytea", "gen_random_uuid() RETURNS uuid", "clock() RETURNS timestamptz",
    "my_org() RETURNS uuid", "now() RETURNS timestamptz", "clock_timestamp() RETURNS timestamptz",
    "require(uuid, boolean) RETURNS void", "require_device(uuid, uuid, boolean) RETURNS void",
    "to_json(text) RETURNS json", "substr(text, int) RETURNS text", "floor(numeric) RETURNS int",
    "convert_to(text, name) RETURNS bytea", "octet_length(bytea) RETURNS int",
    "decode(text, text) RETURNS bytea", "encode(bytea, text) RETURNS text",
    "left(text, int) RETURNS text", "cardinality(uuid[]) RETURNS int",
    "pg_notify(text, text) RETURNS void", "format(text, text) RETURNS text",
)  # fmt: skip
SHADOWED_OPERATORS = (
    ("=", "uuid, uuid", "boolean"), ("=", "name, name", "boolean"), ("=", "oid, oid", "boolean"),
    ("=", "text, text", "boolean"), ("||", "bytea, bytea", "bytea"), ("||", "text, text", "text"),
    ("<>", "bytea, bytea", "boolean"), ("~", "name, text", "boolean"),
    ("~", "text, text", "boolean"), ("<", "bigint, integer", "boolean"),
    (">", "bigint, integer", "boolean"), (">>", "bigint, integer", "bigint"),
)  # fmt: skip
SHADOWED_TABLES = (
    "log", "organizations", "members", "logins", "devices", "checkpoints", "conflicts", "tasks",
    "pg_auth_members", "pg_roles", "pg_stat_activity", "schema_migrations",
)  # fmt: skip
RAN = "RAISE EXCEPTION 'a shadow ran'"


@pytest.fixture
def lair(world: World) -> Iterator[str]:
    """A schema of the attacker's own, such as an older `public` would be, full of our names."""
    me = world.attacker.login.role
    world.cloud.sql(f"CREATE SCHEMA lair AUTHORIZATION {me}")
    for declared in SHADOWED_FUNCTIONS:
        world.attack(f"CREATE FUNCTION lair.{declared} LANGUAGE plpgsql AS $$ BEGIN {RAN}; END $$")
    for number, (operator, types, result) in enumerate(SHADOWED_OPERATORS):
        left, right = types.split(", ")
        world.attack(f"""
          CREATE FUNCTION lair.o{number}({types}) RETURNS {result} LANGUAGE plpgsql
          AS $$ BEGIN {RAN}; END $$;
          CREATE OPERATOR lair.{operator} (LEFTARG = {left}, RIGHTARG = {right},
                                           FUNCTION = lair.o{number})
        """)
    for kind in ("uuid", "jsonb", "bytea", "text", "record"):
        world.attack(f"CREATE DOMAIN lair.{kind} AS pg_catalog.int4 CHECK (VALUE > 1000000)")
    for table in SHADOWED_TABLES:
        world.attack(f"CREATE TEMP TABLE {table} (organization_id uuid, login text, rolname name)")
        world.attack(f"INSERT INTO pg_temp.{table} VALUES (%s, session_user, session_user)",
                     world.victim.organization_id)  # fmt: skip
        world.attack(f"CREATE TABLE lair.{table} AS TABLE pg_temp.{table}")
    world.attack("GRANT USAGE ON SCHEMA lair TO PUBLIC")
    world.attack("SET search_path = lair, pg_temp, syncd, pg_catalog")
    yield "lair"
    world.attack("RESET search_path")
    world.attack("DISCARD TEMP")
    world.cloud.sql("DROP SCHEMA lair CASCADE")


@pytest.mark.plain
def test_nothing_that_hides_our_names_is_run_or_read(world: World, lair: str) -> None:
    assert "a shadow ran" in str(world.refusal("SELECT sha256('x'::pg_catalog.bytea)"))
    assert "a shadow ran" in str(world.refusal("SELECT 'a'::pg_catalog.text || 'b'"))
    own = world.attacker.organization_id
    writer = Writer()
    fresh = (own, writer.device_id)
    greet = "SELECT * FROM syncd.hello(%s, %s, %s, %s)"
    assert world.attack(greet, *fresh, writer.key.public(), "1")[0][2] == 0
    verdicts = pushed(world.attacker, writer.create("t", {"shadow": 1}), writer.create())
    assert [row[1] for row in verdicts] == ["accepted", "accepted"]
    assert len(world.attack("SELECT syncd.pull(%s, %s, 0, NULL, 0, 1000, 1000000)", *fresh)) >= 2
    assert world.attack("SELECT organization, member FROM syncd.whoami()") == [
        ("Attackers", "Mallory")
    ]
    assert len(world.attack("SELECT syncd.search(%s, %s)", own, '{"shadow": 1}')) == 1
    assert len(world.attack("SELECT syncd.chains(%s, %s, ARRAY[1::bigint])", *fresh)) == 1
    assert len(world.attack("SELECT syncd.digests(%s)", own)) >= 1
    assert len(world.attack("SELECT syncd.thousand(%s, %s, 0)", *fresh)) == 2
    assert world.attack("SELECT syncd.common(%s, ARRAY[1::bigint], ARRAY[%s::pg_catalog.uuid])",
                        *fresh) == [(None,)]  # fmt: skip
    world.attack("SELECT syncd.report(%s, %s, 1, 1)", *fresh)
    world.attack("SELECT syncd.announce(%s)", own)
    role = f"syncd_login_{uuid.uuid4().hex}"
    world.attack("SELECT syncd.my_device_add(%s, 'shadow', %s, %s)", own, role, VERIFIER)
    world.attack("SELECT syncd.my_device_rename(%s, %s, 'shadow 2')", own, role)
    world.attack("SELECT syncd.my_device_revoke(%s, %s, 'x')", own, role)
    assert world.attack("SELECT syncd.my_sessions_end(%s, %s)", own, role) == [(0,)]
    assert world.attack("SELECT DISTINCT organization_id::pg_catalog.varchar FROM syncd.log") == [
        (own,)
    ]


# --- forged entries -----------------------------------------------------------------------------

COLUMNS = (
    "entry_id", "entity", "entity_id", "op", "bases", "hlc", "actor", "at", "key_id", "meta",
    "hash", "chain", "signature", "effective_hlc", "body",
)  # fmt: skip
TYPES = {
    "entry_id": "uuid", "hlc": "int8", "chain": "bytea", "signature": "bytea",
    "effective_hlc": "int8", "body": "bytea", "purged": "uuid",
}  # fmt: skip


def pushed(person: Person, *entries: Entry, **forged: Any) -> list[tuple[Any, ...]]:
    """A push by hand: any argument can be another one."""
    first = entries[0]
    values: dict[str, Any] = {
        "organization": person.organization_id, "device": first.device_id,
        "first_seq": first.device_seq, "previous": first.previous,
        **{name: [getattr(entry, name) for entry in entries] for name in COLUMNS},
        "given_up": [None] * len(entries), "purged": [None] * len(entries), **forged,
    }  # fmt: skip
    places = ", ".join(_place(name, value) for name, value in values.items())
    given = [value for value in values.values() if not isinstance(value, Raw)]
    return person.plain.execute(f"SELECT * FROM syncd.push({places})".encode(), given).fetchall()


class Raw(str):
    """SQL that makes an argument which is too large to send."""


def _place(name: str, value: Any) -> str:
    if isinstance(value, Raw):
        return value
    scalar = {"organization": "uuid", "device": "uuid", "first_seq": "int8", "previous": "bytea"}
    return f"%s::pg_catalog.{scalar.get(name) or TYPES.get(name, 'text') + '[]'}"


@pytest.fixture
def forger(world: World) -> Person:
    """A device with two entries at the replica, of the attacker's organization."""
    person = world.cloud.person(world.attacker.organization_id)
    person.push(person.writer.create(), person.writer.create())
    return person


def refusal(person: Person, *entries: Entry, **forged: Any) -> str | None:
    """Why a push by hand is refused; it leaves nothing behind."""
    of_mine = f"SELECT count(*) FROM syncd.log WHERE device_id = '{person.writer.device_id}'"
    before = person.plain.execute(of_mine.encode()).fetchall()
    with pytest.raises(psycopg.Error) as caught:
        pushed(person, *entries, **forged)
    assert person.plain.execute(of_mine.encode()).fetchall() == before
    return caught.value.sqlstate


def test_a_gap_in_a_devices_numbers_is_refused(forger: Person) -> None:
    forger.writer.create()
    assert refusal(forger, forger.writer.create()) == "SY003"


def test_a_gap_is_refused_without_a_previous_chain_value_too(forger: Person) -> None:
    forger.writer.create()
    assert refusal(forger, forger.writer.create(), previous=None) == "SY003"


def test_a_number_that_is_used_is_refused_for_another_entry(forger: Person) -> None:
    forged = Writer(forger.writer.device_id)
    assert refusal(forger, forged.create()) == "SY003"
    forged = Writer(forger.writer.device_id)
    assert refusal(forger, forged.create(), previous=None) == "SY003"


def test_another_previous_chain_value_is_refused(forger: Person) -> None:
    entry = forger.writer.create()
    assert refusal(forger, entry, previous=GENESIS) == "SY003"
    assert refusal(forger, entry, previous=b"x" * 32) == "SY003"
    assert refusal(forger, entry, previous=b"") == "SY003"


@pytest.mark.parametrize("chain", [b"x" * 32, b"", b"x", b"x" * 100_000])
def test_a_forged_chain_value_keeps_an_entry_out(forger: Person, chain: bytes) -> None:
    entry = forger.writer.create(body={"forged": 1})
    (verdict,) = pushed(forger, entry, chain=[chain])
    assert (verdict[1], verdict[5]) == ("refused", "its header does not match its chain value")
    assert _checkpoints_with(forger, "forged") == 0


def _checkpoints_with(person: Person, key: str) -> int:
    rows = person.plain.execute(
        "SELECT count(*) FROM syncd.checkpoints WHERE checkpoint_data ? %s", [key]
    ).fetchone()
    return int(rows[0]) if rows else -1


@pytest.mark.parametrize("column", ["entity_id", "op", "bases", "hlc", "actor", "at", "meta"])
def test_a_changed_header_keeps_an_entry_out(forger: Person, column: str) -> None:
    entry = forger.writer.create(body={"forged": 1})
    other = {"hlc": entry.hlc + 1, "bases": '["x"]', "meta": entry.meta.replace("agent", "agenx")}
    (verdict,) = pushed(forger, entry, **{column: [other.get(column, "forged")]})
    assert (verdict[1], verdict[5]) == ("refused", "its header does not match its chain value")
    assert _checkpoints_with(forger, "forged") == 0


def test_an_effective_time_is_never_later_than_the_entry_says(forger: Person) -> None:
    entry = forger.writer.create()
    (verdict,) = pushed(forger, entry, effective_hlc=[entry.hlc + (10**9 << 16)])
    assert (verdict[1], verdict[4]) == ("accepted", entry.hlc)


@pytest.mark.plain
def test_an_earlier_effective_time_only_makes_an_entry_lose(forger: Person) -> None:
    first = forger.writer.create(body={"n": 1})
    low = forger.writer.update(first.entity_id, [], {"n": 2})
    verdicts = pushed(forger, first, low, effective_hlc=[first.hlc, -(2**63)])
    assert [row[1] for row in verdicts] == ["accepted", "capped"]
    assert _current(forger, first.entity_id) == {"n": 1}


def _current(person: Person, checkpoint_id: str) -> Any:
    row = person.plain.execute(
        "SELECT checkpoint_data FROM syncd.checkpoints WHERE id = %s", [checkpoint_id]
    ).fetchone()
    return row[0] if row else None


def test_a_far_future_does_not_win_for_ever(forger: Person) -> None:
    far = forger.writer.create(hlc=2**63 - 1)
    (verdict,) = pushed(forger, far, effective_hlc=[2**63 - 1])
    assert verdict[1] == "capped"
    assert verdict[4] < forger.writer.wall() + 310_000 << 16


def test_a_key_id_that_avoids_the_check_of_the_hash_keeps_the_body_out_of_the_views(
    forger: Person,
) -> None:
    """The replica cannot open what is sealed; the devices that pull it check."""
    entry = forger.writer.create(body={"forged": 1}, key_id="k1")
    (verdict,) = pushed(forger, entry, body=[b'{"forged": 2}'])
    assert verdict[1] == "accepted"
    assert _current(forger, entry.entity_id) is None
    assert _checkpoints_with(forger, "forged") == 0


def test_a_missing_body_keeps_an_entry_out(forger: Person) -> None:
    (verdict,) = pushed(forger, forger.writer.create(), body=[None])
    assert (verdict[1], verdict[5]) == ("refused", "it has no body")


# --- batches beyond the limits ------------------------------------------------------------------


def test_a_body_that_is_said_to_be_purged_is_left_out_of_checkpoints_only(
    forger: Person,
) -> None:
    claim, writer = [str(uuid.uuid4())], forger.writer
    (verdict,) = pushed(forger, writer.create(), body=[None], purged=claim)
    assert verdict[1] == "accepted"
    (verdict,) = pushed(forger, writer.describe_task("t"), body=[None], purged=claim)
    assert verdict[1::4] == ("refused", "it has no body")
    (verdict,) = pushed(forger, writer.create(), purged=claim)
    assert verdict[1] == "accepted"
    text = "SELECT body IS NULL, purged_by::text FROM syncd.log WHERE device_id = %s"
    found = forger.plain.execute(
        (text + " ORDER BY device_seq DESC LIMIT 3").encode(), [writer.device_id]
    ).fetchall()
    assert found == [(False, None), (True, None), (True, claim[0])]


@pytest.mark.plain
def test_a_purge_takes_nothing_of_another_organization_nor_of_a_task_on_hold(
    world: World, forger: Person
) -> None:
    writer = forger.writer
    hers = world.cloud.sql(
        "SELECT entry_id::text FROM syncd.log WHERE organization_id = %s AND body IS NOT NULL",
        world.victim.organization_id,
    )
    names = [entry_id for (entry_id,) in hers]
    (verdict,) = pushed(forger, writer.purge(names, TASK))  # `_untouched` looks at her bodies
    assert verdict[1] == "accepted"
    held, other = writer.create("held", {"kept": 1}), writer.create("other", {"kept": 2})
    hold = writer.describe_task("held", retention="legal_hold")
    pushed(forger, held, other, hold)
    text = b"SELECT count(*) FROM syncd.log WHERE entry_id = ANY (%s) AND body IS NOT NULL"
    kept = [[held.entry_id, other.entry_id]]
    # A purge names entries of its own task; said to be of another, it has no effect on them.
    for task, said in (("held", "its task is on legal hold"), ("unknown", None)):
        for names in ([held.entry_id], [other.entry_id, held.entry_id]):
            (verdict,) = pushed(forger, writer.purge(names, task))
            assert verdict[5] == said
            assert forger.plain.execute(text, kept).fetchall() == [(2,)]
    data = b"SELECT checkpoint_data FROM syncd.checkpoints WHERE id = %s"
    assert forger.plain.execute(data, [held.entity_id]).fetchone() == ({"kept": 1},)
    (verdict,) = pushed(forger, writer.purge([other.entry_id, held.entry_id], "other"))
    assert verdict[1] == "accepted"
    assert forger.plain.execute(text, kept).fetchall() == [(1,)]
    assert forger.plain.execute(data, [other.entity_id]).fetchone() == (None,)


@pytest.mark.parametrize(
    "meta",
    [
        {"entries": []}, {"entries": ["x"]}, {"entries": "x"}, {"entries": [None]}, {}, {"kind": 1},
        {"entries": [str(uuid.uuid4()) for _ in range(1_001)]},
    ],
    ids=["none", "no id", "no list", "null", "nothing", "kind", "too many"],
)  # fmt: skip
def test_a_purge_that_names_nothing_it_could_take_is_refused(
    forger: Person, meta: dict[str, Any]
) -> None:
    told = {"kind": "erase", **meta} if meta else {}
    (verdict,) = pushed(forger, forger.writer.purge([], "task", **told))
    assert verdict[1] == "refused"


def test_a_batch_of_more_than_a_thousand_is_refused(forger: Person) -> None:
    entries = [forger.writer.create() for _ in range(1001)]
    assert refusal(forger, *entries) == "SY004"


def test_a_batch_of_more_than_32_megabytes_is_refused(forger: Person) -> None:
    entries = [forger.writer.create() for _ in range(9)]
    much = "array_fill(repeat('x', 3900000), ARRAY[9])"
    assert refusal(forger, *entries, body=Raw(f"{much}::bytea[]")) == "SY004"
    assert refusal(forger, *entries, actor=Raw(much)) == "SY004"


def test_columns_of_another_shape_are_refused(forger: Person) -> None:
    entries = forger.writer.create(), forger.writer.create()
    for column in (*COLUMNS, "given_up"):
        whole = [getattr(entry, column, None) for entry in entries]
        element = {"bytea": "x", "uuid": NOBODY}.get(TYPES.get(column, ""), "1")
        for shape in (whole[:1], None, [], [whole], f"[2:3]={{{element},{element}}}"):
            assert refusal(forger, *entries, **{column: shape}) == "SY004", (column, shape)


def test_missing_values_are_refused(forger: Person) -> None:
    entries = forger.writer.create(), forger.writer.create()
    for column in sorted({*COLUMNS} - {"signature", "effective_hlc", "body"}):
        values = [getattr(entries[0], column), None]
        assert refusal(forger, *entries, **{column: values}) == "23502", column


@pytest.mark.parametrize("number", [None, 0, -1, 2**63 - 1])
def test_a_number_that_cannot_be_is_refused(forger: Person, number: int | None) -> None:
    # 22003: beyond what a number can be.
    assert refusal(forger, forger.writer.create(), first_seq=number) in (
        "SY003", "SY004", "22003",
    )  # fmt: skip


# --- what is told without being asked -----------------------------------------------------------


def test_no_catalog_tells_a_name_or_a_text(world: World) -> None:
    """All of them, with the victim connected and her last statement in pg_stat_activity."""
    secrets = world.secrets()
    readable = world.attack("""
      SELECT c.oid::regclass::text FROM pg_class c
      WHERE c.relnamespace IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)
        AND c.relkind IN ('r', 'v') AND has_table_privilege(c.oid, 'SELECT')
    """)
    assert len(readable) > 150
    for (name,) in readable:
        # Some are for superusers only, whatever their privileges say.
        with suppress(errors.InsufficientPrivilege, errors.ObjectNotInPrerequisiteState):
            shown = world.attack(f"SELECT string_agg(t::text, ' ') FROM {name} t")[0][0] or ""
            assert not [secret for secret in secrets if secret in shown], name
    told = world.cloud.sql("SELECT string_agg(t::text, ' ') FROM pg_stat_activity t")[0][0]
    assert BODY in told


def test_listening_tells_nothing_of_others_and_ours_says_nothing_but_news(world: World) -> None:
    victim, attacker = world.victim, world.attacker.connect()
    channels = {row[0] for row in world.cloud.sql("SELECT channel FROM syncd.organizations")}
    assert len(channels) == 2
    assert all(re.fullmatch(r"syncd_[0-9a-f]{32}", name) for name in channels)
    own = attacker.execute("SELECT channel FROM syncd.organizations").fetchall()
    assert len(own) == 1
    hers = victim.plain.execute("SELECT channel FROM syncd.organizations").fetchone()
    assert hers
    assert hers[0] not in (own[0][0], f"syncd_{victim.organization_id.replace('-', '')}")
    victim.plain.execute(f"LISTEN {hers[0]}".encode())
    for guess in (victim.organization_id, f"syncd_org_{victim.organization_id}", own[0][0], "*"):
        attacker.execute(f'LISTEN "{guess}"'.encode())
    assert hers[0] not in str(attacker.execute("SELECT pg_listening_channels()").fetchall())
    # At most one in 50 ms.
    time.sleep(0.06)
    assert _announced(victim)
    (heard,) = victim.plain.notifies(timeout=5, stop_after=1)
    assert (heard.channel, heard.payload) == (hers[0], "")
    assert list(attacker.notifies(timeout=0.2)) == []


def _announced(person: Person) -> bool:
    row = person.plain.execute("SELECT syncd.announce(%s)", [person.organization_id]).fetchone()
    return bool(row and row[0] == 0)


# --- machines -----------------------------------------------------------------------------------


def add(person: Person, login: str | None, verifier: str | None, machine: str | None = "x") -> None:
    person.plain.execute(
        "SELECT syncd.my_device_add(%s, %s, %s, %s)",
        [person.organization_id, machine, login, verifier],
    )


ROLE = "syncd_login_" + "ab" * 16
ODD_LOGINS = (
    None, "", "postgres", "syncd_owner", "syncd_admin", "syncd_member", "mine", "pg_read_all_data",
    ROLE + "0", ROLE[:-1], ROLE.upper(), ROLE + "\n", " " + ROLE, ROLE + " SUPERUSER",
    ROLE + '"; ALTER ROLE x SUPERUSER; --', "syncd_org_" + NOBODY,
)  # fmt: skip
ODD_VERIFIERS = (
    None, "", "password", "md5" + "0" * 32, VERIFIER.replace(":", "' SUPERUSER --:"),
    VERIFIER + "' SUPERUSER PASSWORD 'x", "' VALID UNTIL 'infinity", " " + VERIFIER,
)  # fmt: skip


def test_logins_of_another_form_are_not_made(world: World) -> None:
    for login in ODD_LOGINS:
        with pytest.raises(psycopg.Error) as caught:
            add(world.attacker, login, VERIFIER)
        assert caught.value.sqlstate == "SY004", login


def test_what_is_no_verifier_is_not_taken(world: World) -> None:
    for verifier in ODD_VERIFIERS:
        with pytest.raises(psycopg.Error) as caught:
            add(world.attacker, f"syncd_login_{uuid.uuid4().hex}", verifier)
        assert caught.value.sqlstate == "SY004", verifier


def test_a_login_that_exists_is_not_taken_over(world: World) -> None:
    for person in (world.victim, world.colleague, world.attacker):
        with pytest.raises(psycopg.Error) as caught:
            add(world.attacker, person.login.role, VERIFIER)
        assert caught.value.sqlstate == "SY010"
        # The password still is the old one.
        person.connect()


@pytest.mark.parametrize("name", [None, "", "x" * 1025])
def test_a_machine_has_a_name_of_some_length(world: World, name: str | None) -> None:
    own = world.attacker.organization_id
    with pytest.raises(psycopg.Error) as caught:
        add(world.attacker, f"syncd_login_{uuid.uuid4().hex}", VERIFIER, name)
    assert caught.value.sqlstate == "SY004"
    renaming = world.refusal(
        "SELECT syncd.my_device_rename(%s, %s, %s)", own, world.attacker.login.role, name
    )
    assert renaming.sqlstate == "SY004"


def test_a_members_next_machine_has_his_rights_and_no_others(world: World) -> None:
    me = world.cloud.person(world.attacker.organization_id)
    login = credentials(me.plain)
    odd = "'; ALTER ROLE x SUPERUSER; -- \"'"
    add(me, login.role, login.verifier, odd)
    with pytest.raises(psycopg.Error, match="already"):
        add(me, credentials(me.plain).role, VERIFIER, odd)
    next_one = world.cloud.of(me.organization_id, me.name, login)
    assert next_one.replica.membership == me.replica.membership._replace(machine=odd)
    rights = world.cloud.sql(
        """
          SELECT ARRAY(SELECT g.rolname::text FROM pg_auth_members m
                       JOIN pg_roles g ON g.oid = m.roleid
                       WHERE m.member = r.oid AND NOT m.admin_option ORDER BY 1),
            rolsuper, rolcreaterole, rolcreatedb, rolreplication, rolbypassrls, rolconnlimit
          FROM pg_roles r WHERE rolname = ANY (%s) ORDER BY rolname
        """,
        [login.role, me.login.role],
    )
    assert len(rights) == 2
    assert rights[0] == rights[1]
    assert rights[0][0] == ["syncd_member", f"syncd_org_{me.organization_id}"]
    assert rights[0][1:6] == (False,) * 5
    next_one.replica.revoke_machine(me.login.role, "sold")
    with pytest.raises(psycopg.OperationalError, match="not permitted to log in"):
        me.connect()


def test_a_member_has_at_most_50_machines_those_of_today_included(world: World) -> None:
    me = world.cloud.person(world.attacker.organization_id)
    world.cloud.sql(
        """
          INSERT INTO syncd.logins (organization_id, login, member_id, name, added_at, revoked_at)
          SELECT organization_id, 'x' || n, member_id, 'x' || n, now(), now()
          FROM syncd.logins, generate_series(1, 49) AS n WHERE login = %s
        """,
        me.login.role,
    )
    with pytest.raises(psycopg.Error) as caught:
        add(me, f"syncd_login_{uuid.uuid4().hex}", VERIFIER)
    assert caught.value.sqlstate == "SY004"
    world.cloud.sql("DELETE FROM syncd.logins WHERE login ~ '^x'")


def test_a_machine_does_not_take_anothers_name(world: World) -> None:
    me = world.cloud.person(world.attacker.organization_id)
    other = world.cloud.machine(me, "desktop")
    with pytest.raises(psycopg.Error) as caught:
        me.plain.execute("SELECT syncd.my_device_rename(%s, %s, 'desktop')",
                         [me.organization_id, me.login.role])  # fmt: skip
    assert caught.value.sqlstate == "SY010"
    other.replica.rename_machine(other.login.role, "desktop")


def test_a_member_does_not_change_why_an_administrator_revoked_a_machine(world: World) -> None:
    me = world.cloud.person(world.attacker.organization_id)
    other = world.cloud.machine(me)
    world.cloud.admin.revoke_machine(me.organization_id, other.login.role, "stolen")
    me.replica.revoke_machine(other.login.role, "sold")
    (reason,) = [m.reason for m in me.replica.machines() if m.login == other.login.role]
    assert reason == "stolen"


# --- auditors and leads -------------------------------------------------------------------------


def test_an_auditor_reads_and_writes_nothing(world: World) -> None:
    auditor = world.cloud.person(world.attacker.organization_id, kind="auditor")
    assert auditor.replica.pull(auditor.writer.device_id, 0, None, 0)
    writing = ("push", "announce", "my_device_add", "my_device_rename", "my_device_revoke")
    for name in writing:
        text = call(name, auditor.organization_id, auditor.writer.device_id, "")
        with pytest.raises(errors.InsufficientPrivilege):
            auditor.plain.execute(text.encode())


@pytest.mark.parametrize("kind", ["auditor", "lead"])
def test_other_kinds_of_members_see_no_more_than_their_organization(
    world: World, kind: str
) -> None:
    person = world.cloud.person(world.attacker.organization_id, kind=kind)
    for name in tenant_tables(world):
        seen = person.plain.execute(f"SELECT DISTINCT organization_id FROM syncd.{name}".encode())
        assert {str(row[0]) for row in seen.fetchall()} <= {person.organization_id}
    for name in CALLS:
        text = call(name, world.victim.organization_id, NOBODY, world.victim.login.role)
        with pytest.raises(psycopg.Error) as caught:
            person.plain.execute(text.encode())
        assert caught.value.sqlstate in ("SY001", "42501")


def test_a_lead_writes_like_a_member(world: World) -> None:
    lead = world.cloud.person(world.attacker.organization_id, kind="lead")
    assert lead.push(lead.writer.create())[0].verdict == "accepted"


# --- revoked ------------------------------------------------------------------------------------


def test_a_revoked_login_is_refused_at_its_next_call(world: World) -> None:
    """Before its session is ended, and in a transaction that began before."""
    gone = world.cloud.person(world.attacker.organization_id)
    entry = gone.writer.create()
    gone.plain.execute("SELECT 1")
    repeatable = gone.connect(autocommit=False)
    repeatable.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    assert repeatable.execute("SELECT count(*) > 0 FROM syncd.log").fetchall() == [(True,)]
    prepared = gone.connect()
    prepared.prepare_threshold = 0
    prepared.execute("SELECT count(*) FROM syncd.log")

    world.cloud.admin.rows("revoke_machine", gone.organization_id, gone.login.role, "left")

    for text in ("SELECT count(*) FROM syncd.log", "SELECT * FROM syncd.whoami()"):
        for connection in (repeatable, prepared, gone.plain):
            with pytest.raises(errors.InsufficientPrivilege):
                connection.execute(text.encode())
            connection.rollback()
    with pytest.raises(errors.InsufficientPrivilege):
        pushed(gone, entry)
    for name in CALLS:
        text = call(name, gone.organization_id, gone.writer.device_id, gone.login.role)
        with pytest.raises(errors.InsufficientPrivilege):
            gone.plain.execute(text.encode())
    with pytest.raises(psycopg.OperationalError, match="not permitted to log in"):
        gone.connect()


def test_a_revoked_logins_sessions_end_and_its_work_in_progress_with_them(world: World) -> None:
    gone = world.cloud.person(world.attacker.organization_id)
    working = gone.connect(autocommit=False)
    working.execute("SELECT 1")
    before = _committed(world, gone)
    # An open transaction holds the organization's counter: revoking must not wait for it.
    vars(gone)["plain"] = working
    pushed(gone, gone.writer.create())

    world.cloud.admin.revoke_machine(gone.organization_id, gone.login.role, "stolen")

    with pytest.raises(psycopg.OperationalError):
        working.execute("SELECT 1")
    assert _committed(world, gone) == before
    assert not world.cloud.sql(
        "SELECT pid FROM pg_stat_activity WHERE usename = %s", gone.login.role
    )


def _committed(world: World, person: Person) -> int:
    rows = world.cloud.sql(
        "SELECT count(*) FROM syncd.log WHERE device_id = %s", person.writer.device_id
    )
    return int(rows[0][0])


def test_a_removed_member_loses_every_machine_and_nobody_else_loses_any(world: World) -> None:
    gone = world.cloud.person(world.attacker.organization_id)
    second = world.cloud.machine(gone)
    for person in (gone, second):
        person.plain.execute("SELECT 1")
    assert world.cloud.admin.remove_member(gone.organization_id, gone.name, "left") == 2
    for person in (gone, second):
        with pytest.raises(psycopg.OperationalError):
            person.plain.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError, match="not permitted to log in"):
            person.connect()
    assert world.attack("SELECT count(*) > 0 FROM syncd.log") == [(True,)]


def test_the_ids_of_one_organization_can_be_used_in_another(world: World) -> None:
    """Else a refusal would tell that an id is in use."""
    hers = world.cloud.sql(
        "SELECT entry_id::text, entity_id FROM syncd.log WHERE organization_id = %s "
        "AND entity = 'checkpoint' LIMIT 1",
        world.victim.organization_id,
    )[0]
    me = world.cloud.person(world.attacker.organization_id)
    me.push(me.writer.create(TASK, entry_id=hers[0], entity_id=hers[1]))
    entry = me.writer.create(entry_id=hers[0], entity_id=uuid7())
    assert me.push(entry)[0].reason == "its id is in use by another entry"
