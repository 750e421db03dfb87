"""What a home may lose. Without its database it begins anew, and says so until somebody has
decided; without its signing key it goes on under another.
"""

from __future__ import annotations

from pathlib import Path

from syncd import clock

# In the device's own state: since when; empty once somebody has said that it may stay so.
BEGUN_ANEW = "begun_anew"


def is_gone(home: Path) -> bool:
    """Whoever has a signing key has had a database. The key is looked for first: in a new home it
    is what is made last."""
    if not (home / "keys" / "signing.pem").exists():
        return False
    database = home / "context.db"
    return not (database.exists() and database.stat().st_size)


def noted(home: Path) -> tuple[str, str]:
    """What the new database keeps of it."""
    _warn(
        f"the database of {home} is gone: a new one is begun, without what was in it; "
        "`syncd status` says what can be brought back"
    )
    return BEGUN_ANEW, clock.iso(clock.wall_ms())


def tell_of_key(home: Path) -> None:
    _warn(
        f"the signing key of {home} is gone: it goes on with a new one, under a new id; whoever "
        "relies on its fingerprint needs the new one (`syncd keys show`)"
    )


def _warn(text: str) -> None:
    import logging  # takes time, and this is rare

    logging.getLogger("syncd").warning(text)
