"""The replica on several servers: its tables handed to Citus, each organization's rows together.

Every key begins with the organization, and nothing reads across organizations, so that the tables
need no change. The policies do: Citus takes none with a sub-select in it.
"""

from __future__ import annotations

from syncd.errors import ReplicaRefusedError
from syncd.replica import link
from syncd.replica.administration import Administration


def distribute(replica: Administration) -> list[str]:
    """All tables that are not yet distributed; which they were. All of them, or none."""
    if not replica.rows("has_citus")[0][0]:
        raise ReplicaRefusedError(
            "this server has no Citus, so there is nothing to distribute to",
            "Use the DSN of a Citus coordinator, in whose database CREATE EXTENSION citus was run; "
            "on a single server the replica is complete as it is.",
        )
    with link.translated(), replica.connection.transaction():
        # Workers are asked as the owner of the functions, who needs a login for that.
        replica.rows("let_owner_log_in")
        replica.rows("as_owner")
        made = [row[0] for row in replica.rows("undistributed")]
        for table in made:
            _hand_over(replica, table)
        replica.rows("as_oneself")
    return made


def _hand_over(replica: Administration, table: str) -> None:
    if table == "schema_migrations":
        replica.rows("distribute_everywhere", f"syncd.{table}")
        return
    replica.rows("policy_for_citus", table)
    beside = "default" if table == "organizations" else "syncd.organizations"
    replica.rows("distribute", f"syncd.{table}", beside)
