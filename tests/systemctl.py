"""A stand-in for `systemctl --user`, since nothing here runs systemd: the one allowed in the tests.

It notes what it is asked, keeps the links that systemd keeps, and starts and stops what the unit's
ExecStart names, with little more in the environment than systemd would give it.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ["FAKE_SYSTEMD"])
UNITS = Path(os.environ.get("XDG_CONFIG_HOME", Path.home() / ".config")) / "systemd" / "user"


def main(words: list[str]) -> int:
    with (FOLDER / "asked").open("a") as asked:
        asked.write(shlex.join(words) + "\n")
    if (FOLDER / "away").exists():
        sys.stderr.write("Failed to connect to bus: No medium found\n")
        return 1
    verb, *rest = words
    now, name = "--now" in rest, rest[-1] if rest else ""
    link = UNITS / "default.target.wants" / name
    if verb in ("enable", "disable") and not (UNITS / name).exists():
        sys.stderr.write(f"Unit file {name} does not exist.\n")
        return 1
    if verb == "enable":
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(UNITS / name)
    elif verb == "disable":
        link.unlink(missing_ok=True)
    elif verb == "is-enabled":
        return 0 if link.exists() else 1
    elif verb == "is-active":
        return 0 if alive(name) else 3
    if verb == "stop" or (verb == "disable" and now):
        stop(name)
    if verb == "enable" and now and not alive(name):
        start(name)
    return 0


def alive(name: str) -> int:
    """Its process, or 0. Nobody waits for it here, so that dead it may still be listed."""
    file = FOLDER / f"{name}.pid"
    pid = int(file.read_text()) if file.exists() else 0
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return 0
    return 0 if state == "Z" else pid


def start(name: str) -> None:
    (line,) = [
        line.removeprefix("ExecStart=")
        for line in (UNITS / name).read_text().splitlines()
        if line.startswith("ExecStart=")
    ]
    doubled = str.maketrans({"\0": "\\", "\1": "%", "\2": "$"})
    words = [
        word.replace("\\\\", "\0").replace("%%", "\1").replace("$$", "\2").translate(doubled)
        for word in shlex.split(line)
    ]
    kept = {n: os.environ[n] for n in ("HOME", "PYTHON_KEYRING_BACKEND") if n in os.environ}
    process = subprocess.Popen(
        words, env={**kept, "PATH": "/usr/bin:/bin"}, cwd="/", start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    (FOLDER / f"{name}.pid").write_text(str(process.pid))


def stop(name: str) -> None:
    if pid := alive(name):
        os.kill(pid, 15)
    while alive(name):
        time.sleep(0.02)


if __name__ == "__main__":
    if Path(sys.argv[1]).name == "systemd-run":
        sys.exit(0 if (FOLDER / "namespaces").exists() else 1)
    assert sys.argv[2] == "--user"
    sys.exit(main(sys.argv[3:]))
