"""The replica on Citus. Most of it is a matter of how the schema is built, which any server can
tell; with the DSN of a coordinator in SYNCD_TEST_CITUS_DSN, the rest is tried there."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from replicas import Cloud, Writer, cloud, shared_cloud

from syncd.errors import ReplicaRefusedError
from syncd.replica import Administration, Replica, encoded
from syncd.replica.distribution import distribute
from syncd.replica.queries import Asked, Queries
from syncd.sql import admin_queries

__all__ = ["cloud", "shared_cloud"]
# Read at import: a test's own environment is cleared of every setting.
COORDINATOR = os.environ.get("SYNCD_TEST_CITUS_DSN", "")


# --- how the schema is built --------------------------------------------------------------------


def test_every_unique_key_contains_the_organization(shared_cloud: Cloud) -> None:
    """Citus can only keep those apart that are on one worker."""
    others = shared_cloud.sql("""
      SELECT i.indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
      WHERE c.relnamespace = 'syncd'::regnamespace AND i.indisunique AND NOT EXISTS (
        SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum = ANY (i.indkey)
          AND a.attname = 'organization_id')
    """)
    assert others == [("syncd.schema_migrations_pkey",)]


def test_no_reference_leads_to_another_organization(shared_cloud: Cloud) -> None:
    others = shared_cloud.sql("""
      SELECT conname FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
      WHERE c.relnamespace = 'syncd'::regnamespace AND k.contype IN ('f', 'x') AND NOT EXISTS (
        SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum = ANY (k.conkey)
          AND a.attname = 'organization_id')
    """)
    assert others == []


def test_no_table_has_triggers_sequences_or_computed_columns(shared_cloud: Cloud) -> None:
    assert not shared_cloud.sql("""
      SELECT t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
      WHERE c.relnamespace = 'syncd'::regnamespace
      UNION ALL SELECT relname FROM pg_class
      WHERE relnamespace = 'syncd'::regnamespace AND relkind IN ('S', 'm', 'f')
      UNION ALL SELECT a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
      WHERE c.relnamespace = 'syncd'::regnamespace AND (a.attidentity <> '' OR a.attgenerated <> '')
    """)


def test_every_column_of_the_organization_has_the_same_type(shared_cloud: Cloud) -> None:
    """Else tables are not kept beside each other."""
    kinds = shared_cloud.sql("""
      SELECT DISTINCT format_type(a.atttypid, NULL) FROM pg_attribute a
      JOIN pg_class c ON c.oid = a.attrelid
      WHERE c.relnamespace = 'syncd'::regnamespace AND a.attname = 'organization_id'
    """)
    assert kinds == [("uuid",)]


# --- handing over -------------------------------------------------------------------------------


def test_a_server_without_citus_is_told_so_and_left_alone(cloud: Cloud) -> None:
    with pytest.raises(ReplicaRefusedError, match="has no Citus") as caught:
        distribute(cloud.admin)
    assert "coordinator" in caught.value.remedy
    assert _owner_logs_in(cloud) is False


def _owner_logs_in(cloud: Cloud) -> bool:
    [(found,)] = cloud.sql("SELECT rolcanlogin FROM pg_roles WHERE rolname = 'syncd_owner'")
    return bool(found)


# Stands in for Citus: notes what it is given, and refuses what Citus refuses.
STAND_IN = """
  CREATE TABLE public.pg_dist_partition (logicalrelid regclass, beside text);
  GRANT SELECT, INSERT ON public.pg_dist_partition TO PUBLIC;
  CREATE FUNCTION public.create_distributed_table(relation regclass, name text,
                                                  colocate_with text) RETURNS void
  LANGUAGE plpgsql AS $$
  BEGIN
    IF current_user <> (SELECT relowner::regrole::text FROM pg_class WHERE oid = relation) THEN
      RAISE EXCEPTION 'not the owner';
    END IF;
    IF EXISTS (SELECT FROM pg_policy WHERE polrelid = relation
               AND pg_get_expr(polqual, polrelid) ~* 'select') THEN
      RAISE EXCEPTION 'Subqueries are not supported in policies on distributed tables';
    END IF;
    INSERT INTO public.pg_dist_partition VALUES (relation, colocate_with);
  END $$;
  CREATE FUNCTION public.create_reference_table(relation regclass) RETURNS void
  LANGUAGE sql AS $$ INSERT INTO public.pg_dist_partition VALUES (relation, 'everywhere') $$;
"""


@pytest.fixture
def stand_in(cloud: Cloud) -> Iterator[Cloud]:
    cloud.sql(STAND_IN)
    yield cloud
    cloud.sql("ALTER ROLE syncd_owner NOLOGIN")


def test_every_table_is_handed_over_once(stand_in: Cloud) -> None:
    [(tables,)] = stand_in.sql("""
      SELECT array_agg(relname::text ORDER BY relname) FROM pg_class
      WHERE relnamespace = 'syncd'::regnamespace AND relkind = 'r'
    """)
    made = distribute(stand_in.admin)
    assert sorted(made) == tables
    assert made[0] == "organizations"
    placed = dict(stand_in.sql("SELECT logicalrelid::text, beside FROM pg_dist_partition"))
    assert placed.pop("syncd.organizations") == "default"
    assert placed.pop("syncd.schema_migrations") == "everywhere"
    assert set(placed.values()) == {"syncd.organizations"}
    assert _owner_logs_in(stand_in)
    assert distribute(stand_in.admin) == []


def test_the_rule_that_citus_takes_hides_the_same(stand_in: Cloud) -> None:
    one, two = stand_in.person(), stand_in.person()
    for person in (one, two):
        person.push(person.writer.create())
    distribute(stand_in.admin)
    for table in ("log", "checkpoints", "devices", "organizations"):
        seen = one.plain.execute(f"SELECT organization_id::text FROM syncd.{table}".encode())
        assert {row[0] for row in seen} == {one.organization_id}
    assert one.push(one.writer.create())[0].verdict == "accepted"


@pytest.mark.skipif(not COORDINATOR, reason="SYNCD_TEST_CITUS_DSN names no Citus coordinator")
def test_a_distributed_replica_works() -> None:
    """As its superuser, in a database that has the extension; what is made there stays."""
    with closing(Administration(COORDINATOR)) as admin:
        admin.migrate()
        distribute(admin)
        logins = []
        for number in range(2):
            organization = admin.create_organization(f"organization {uuid.uuid4()}")
            logins.append(admin.add_member(organization, f"person {number}", "lead", "laptop"))
    for login in logins:
        writer = Writer()
        with closing(Replica(login.dsn)) as replica:
            replica.hello(writer.device_id, writer.key.public())
            entries = [writer.create(tokens=5) for _ in range(20)]
            assert {v.verdict for v in replica.push(encoded(entries))} == {"accepted"}
            assert len(replica.pull(writer.device_id, 0, None, 0)) == 20
        with closing(Queries(login.dsn)) as queries:
            for name in admin_queries():
                queries.ask(Asked(name))
        with closing(psycopg.connect(make_conninfo(login.dsn))) as plain:
            [count] = plain.execute("SELECT count(*) FROM syncd.log").fetchall()
            assert count == (20,)
