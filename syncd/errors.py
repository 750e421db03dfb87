"""Every error a user can meet: what happened, what to do, whether the data is safe. Libraries raise
these; the command line turns them into two lines and an exit code."""

from __future__ import annotations


class SyncdError(Exception):
    """The root. A subclass sets what its kind has in common, an instance the rest."""

    code = "error"
    exit_code = 1
    remedy = "Run `syncd doctor` to check this installation."
    data_safe = True
    # Whether it may be over some time without anybody's doing.
    passes = False

    def __init__(
        self, message: str, remedy: str | None = None, *, data_safe: bool | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        if remedy is not None:
            self.remedy = remedy
        if data_safe is not None:
            self.data_safe = data_safe

    def as_dict(self) -> dict[str, object]:
        return {
            "code": self.code,
            "message": self.message,
            "remedy": self.remedy,
            "data_safe": self.data_safe,
        }


class UsageError(SyncdError):
    code = "usage"
    exit_code = 2
    remedy = "Add --help to the command to see what it takes."


class CheckpointError(SyncdError):
    """What can go wrong with a checkpoint itself."""

    code = "checkpoint"


class InvalidInputError(CheckpointError):
    code = "invalid_input"
    exit_code = 2
    remedy = "Correct the input and run the command again; nothing was written."


class CheckpointNotFoundError(CheckpointError):
    code = "not_found"
    exit_code = 4
    remedy = "`syncd checkpoint list` shows what there is."


class TaskNotFoundError(CheckpointNotFoundError):
    remedy = "`syncd task list` shows what there is."


class MessageNotFoundError(CheckpointNotFoundError):
    remedy = "`syncd inbox AGENT --all` shows what there is."


class CheckpointCorruptionError(CheckpointError):
    """What was read is not what was written, or nothing proves that it is."""

    code = "corrupt"
    exit_code = 5
    remedy = (
        "`syncd audit verify` names every damaged entry; `syncd checkpoint latest --fallback` "
        "goes back to the newest intact one."
    )
    data_safe = False

    def __init__(
        self, message: str, remedy: str | None = None, *, entry_id: str = "", problem: str = ""
    ) -> None:
        super().__init__(message, remedy)
        self.entry_id = entry_id
        self.problem = problem or message


class ViewDamagedError(CheckpointCorruptionError):
    """A view differs from the log, which is what counts."""

    code = "view_damaged"
    remedy = "`syncd rebuild` makes the views anew from the log, which is intact here."
    data_safe = True


class GraphDamagedError(CheckpointCorruptionError):
    """A state of a graph's thread, or a value in it, is not what was put."""

    remedy = (
        "`syncd audit verify` names every damaged entry, `syncd backup restore` goes back to a "
        "copy. To go on from an older state: `list(config, before=...)` with the damaged one's id."
    )


class CheckpointExistsError(CheckpointError):
    code = "exists"
    exit_code = 7
    remedy = "Use `syncd checkpoint update` to change it, or leave the id out to get a new one."


class PurgedError(CheckpointError):
    """The body is gone on purpose, by an entry that says so."""

    code = "purged"
    exit_code = 4
    remedy = (
        "Its header, hash and place in the chain remain: `syncd explain ID` tells them. "
        "`syncd checkpoint latest --fallback` goes back to the newest one that has its body."
    )

    def __init__(self, message: str, *, entry_id: str, problem: str) -> None:
        super().__init__(message)
        self.entry_id = entry_id
        self.problem = problem


class LegalHoldError(CheckpointError):
    code = "legal_hold"
    exit_code = 7
    remedy = "Whoever set the hold can lift it: `syncd task set TASK --retention default`."


class HandoffError(CheckpointError):
    code = "handoff"


class LeaseHeldError(HandoffError):
    """The work is another's."""

    code = "held"
    exit_code = 7
    remedy = "Leave the work to whoever holds it, or take it over: `syncd recover --takeover`."


class RecoveryPausedError(CheckpointError):
    """It was tried again and again, and nothing came of it."""

    code = "recovery_paused"
    exit_code = 7


class WorkAtRiskError(CheckpointError):
    """More would be put aside than anybody meant to."""

    code = "work_at_risk"
    exit_code = 7


class StaleBaseError(CheckpointError):
    code = "stale_base"
    exit_code = 7
    remedy = "Read the checkpoint again and repeat the change on top of its current revision."


class FinalizedError(CheckpointError):
    code = "finalized"
    exit_code = 7
    remedy = "A finalized checkpoint never changes: create a new one, it becomes its child."


class ErasedError(FinalizedError):
    code = "erased"
    remedy = "An erased checkpoint never changes: create a new one for what is to be kept."


class StoreError(SyncdError):
    """The local database could not be used."""

    code = "store"


class StoreBusyError(StoreError):
    code = "busy"
    passes = True
    remedy = "Another program holds the database locked: close it, then run the command again."


class DiskRefusedError(StoreError):
    code = "disk_refused"
    remedy = (
        "See your quota (`quota -s`), your limits (`ulimit -f`) and what the system says of the "
        "disk (`dmesg`); what was acknowledged before is on disk."
    )


class DiskFullError(DiskRefusedError):
    code = "disk_full"
    remedy = "Free some space and run the command again; what was acknowledged before is on disk."


class ReadOnlyError(StoreError):
    code = "read_only"
    remedy = "Make the home directory writable for you, or set SYNCD_HOME to one that is."


class HomeError(StoreError):
    code = "home"
    remedy = "Set SYNCD_HOME to a directory of your own on a local disk."


class NewerDatabaseError(StoreError):
    code = "newer_database"
    remedy = "Upgrade syncd on this machine; the database was left as it is."


class DatabaseCorruptError(StoreError):
    code = "corrupt"
    exit_code = 5
    remedy = "`syncd backup list`, then `syncd backup restore NAME`; the damaged file is kept."
    data_safe = False


class BackupRefusedError(StoreError):
    """A backup that is not fit to be restored; the database itself was not touched."""

    code = "backup_refused"
    exit_code = 5
    remedy = "Choose another one: `syncd backup list`."


class KeyMissingError(SyncdError):
    code = "key_missing"
    remedy = "`syncd keys export` on a machine that has the key, `syncd keys import` here."


class KeyChangedError(SyncdError):
    """Whoever asks again has the new key."""

    code = "key_changed"
    passes = True
    remedy = "Nothing was sent; run the command again."


class ConfigError(SyncdError):
    code = "config"
    exit_code = 2


class ExtraMissingError(SyncdError):
    """A part of syncd that is installed on demand."""

    code = "extra_missing"

    def __init__(self, extra: str) -> None:
        super().__init__(
            f"this needs syncd's extra `{extra}`, which is not installed",
            f"In the checkout: pip install -e '.[{extra}]' (with pipx: pipx install --force"
            f" '.[{extra}]').",
        )


class EmbeddedError(SyncdError):
    """The embedded PostgreSQL could not be made, started or stopped."""

    code = "embedded"
    remedy = "See that the disk has space and the folder is yours, then run the command again."


class ReplicaError(SyncdError):
    """The replica could not be used. What was written stays in the local database."""

    code = "replica"
    remedy = "Nothing was lost: what is not yet at the replica is sent at the next attempt."


class UnconfiguredError(ReplicaError):
    code = "unconfigured"
    remedy = (
        "`syncd login` with the DSN that `syncd admin member add` printed, or `syncd cloud try` "
        "for a replica on this machine."
    )


class ReplicaUnreachableError(ReplicaError):
    code = "unreachable"
    passes = True
    exit_code = 6
    remedy = (
        "Your work is safe on this machine and is sent when the replica answers again; "
        "`syncd config` shows where it is looked for."
    )


class LoginRefusedError(ReplicaError):
    """The password is wrong, or the login was revoked."""

    code = "login_refused"
    remedy = (
        "Ask an administrator for a new login (`syncd admin member reset`), then `syncd login`. "
        "What was not sent yet stays safe on this machine."
    )


class TLSRefusedError(ReplicaError):
    code = "tls"
    remedy = (
        "Use the server's full name, and its certificate authority with sslrootcert=FILE in the "
        "DSN, or reach it through an SSH tunnel."
    )


class ImpostorError(ReplicaError):
    """Whoever answers does not know what the replica knows of this login. Nothing was sent."""

    code = "impostor"
    remedy = (
        "Another program may have taken the server's port: see what listens there. If your own "
        "server asks nobody on this machine for a password (`trust` in pg_hba.conf), add "
        "require_auth=none to the DSN."
    )


class ReplicaReadOnlyError(ReplicaError):
    code = "replica_read_only"
    passes = True
    exit_code = 6
    remedy = "This server is a standby or set read-only: use the primary's address in the DSN."


class ReplicaFullError(ReplicaError):
    code = "replica_full"
    passes = True
    exit_code = 6
    remedy = "Free space on the server; your work is safe on this machine and is sent then."


class ReplicaOutdatedError(ReplicaError):
    code = "replica_outdated"
    remedy = "An administrator runs `syncd cloud migrate` against it, with this version of syncd."


class ReplicaRefusedError(ReplicaError):
    """The replica understood, and said no."""

    code = "replica_refused"


class DeviceTakenError(ReplicaRefusedError):
    """This device's id was first used by another login, and stays that one's."""

    code = "device_taken"


class DivergedError(ReplicaError):
    """Both sides remember different histories; the engine finds where they part."""

    code = "diverged"
    remedy = (
        "`syncd prove` names what one side lacks, `syncd prove --repair` sends and fetches it. "
        "Nothing was lost here."
    )


class TamperedError(ReplicaError):
    """The replica says of this device what its key denies. Nothing was sent, or changed here."""

    code = "replica_tampered"
    exit_code = 5
    remedy = (
        "Somebody has changed the replica: `syncd audit verify --cloud` names what, and its "
        "administrator has to bring it back from a backup. What is here stays as it is."
    )


class DaemonRunningError(SyncdError):
    code = "daemon_running"
    exit_code = 7
    remedy = "`syncd status` shows what it does, `syncd stop` ends it."


class DaemonError(SyncdError):
    """The daemon cannot do its work here."""

    code = "daemon"


class ServiceError(SyncdError):
    """The system's manager of services is not there, or said no."""

    code = "service"
    remedy = "`syncd service status` and `syncd logs` show more; `syncd start` needs no service."


class DemoError(SyncdError):
    """The story could not be played to its end."""

    code = "demo"
    remedy = (
        "Nothing of yours was touched, and what the demo had made is removed. `syncd doctor` "
        "checks this installation."
    )
