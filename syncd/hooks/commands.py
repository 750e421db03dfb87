"""What a command is: one before which the work should be written down, or a run of tests, and what
that says. Pure."""

from __future__ import annotations

import re
from typing import Any

_LOOKED_AT, _TAIL = 10_000, 20_000
# What cannot easily be undone: history and branches of git, and what is in a database.
_RISKY = re.compile(
    r"""\bgit\b[^|;&\n]{0,200}?\s(?:am|apply|bisect|branch|checkout|cherry-pick|clean|commit|filter-\w+
        |gc|merge|mv|pull|push|rebase|reset|restore|revert|rm|stash|submodule|switch|tag
        |update-ref|worktree)\b
    |\bgh\s+(?:pr\s+merge|release|repo\s+delete)\b
    |\b(?:psql|pg_restore|createdb|dropdb|mysql|mysqladmin|mariadb|sqlite3|sqlite-utils|duckdb
        |mongosh?|mongorestore|redis-cli|cqlsh|sqlcmd|clickhouse-client|alembic|flyway|liquibase
        |dbmate|goose|diesel|knex|prisma|drizzle-kit|sequelize|typeorm)\b
    |\b(?:rails|rake|mix|artisan)\b[^|;&\n]{0,200}?\b(?:db|ecto|migrate)\b
    |\bmanage\.py\s+(?:flush|loaddata|migrate|sqlflush)\b""",
    re.VERBOSE,
)  # fmt: skip
_RUNS = re.compile(
    r"""\b(?:pytest|py\.test|unittest|nose2|tox|nox|jest|vitest|mocha|ava|karma|playwright\s+test
        |cypress\s+run|rspec|minitest|phpunit|pest|ctest|bats|behave|nextest
        |(?:npm|pnpm|yarn|bun|deno)\s+(?:run\s+|-\S+\s+)*test\S*|npm\s+t
        |(?:cargo|go|dotnet|swift|mix|flutter|dart|zig\s+build|rails|composer|lein|stack|cabal)\s+test
        |(?:mvn|mvnw|gradle|gradlew|sbt|bazel|ant|just|task|make|rake)\b[^|;&\n]{0,200}?\b(?:test\w*|check|verify|spec)
        |manage\.py\s+test)\b""",
    re.VERBOSE,
)  # fmt: skip
# How the runners write it; the last match of the first pattern that fits counts.
_COUNTS = (
    re.compile(r"\b(?P<n>\d+) (?P<what>passed|failed|skipped|errors?|xfailed|xpassed|ignored)\b"),
    re.compile(r"\b(?P<n>\d+) (?P<what>passing|failing|pending)\b"),
    re.compile(r"\b(?P<n>\d+) (?P<what>examples?|failures?|pending)\b"),
)
_NAMES = {
    "passed": "passed", "passing": "passed", "xpassed": "passed",
    "failed": "failed", "failing": "failed", "error": "failed", "errors": "failed",
    "failure": "failed", "failures": "failed",
    "skipped": "skipped", "xfailed": "skipped", "ignored": "skipped", "pending": "skipped",
}  # fmt: skip
_SUM = re.compile(r"^.*\b\d+ (?:passed|failed|skipped|errors?)\b.*$", re.M)
_CARGO = re.compile(r"^test result: .*$", re.M)
_GO = re.compile(r"^\s*--- (PASS|FAIL|SKIP): ", re.M)
_GO_PACKAGE = re.compile(r"^(ok|FAIL)\s+\S+\s+[\d.(]", re.M)
_UNITTEST = re.compile(r"^Ran (\d+) tests? in ", re.M)
_PARENTHESIS = re.compile(r"\b(failures|errors|skipped)=(\d+)")
_MAVEN = re.compile(r"Tests run: (\d+), Failures: (\d+), Errors: (\d+), Skipped: (\d+)")


def risky(command: str) -> bool:
    return bool(_RISKY.search(command[:_LOOKED_AT]))


def results(command: str, output: str, *, failed: bool) -> dict[str, Any]:
    """How many tests passed, failed and were skipped; nothing, if the command runs no tests."""
    run = _RUNS.search(command[:_LOOKED_AT])
    if not run:
        return {}
    counts = _counted(_plain(output[-_TAIL:]))
    passed = not failed and not counts.get("failed")
    return {"ran": run[0][:80], "status": "passed" if passed else "failed", **counts}


def _plain(output: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", output)


def _counted(output: str) -> dict[str, int]:
    if found := _MAVEN.findall(output):
        run, failures, errors, skipped = map(int, found[-1])
        bad = failures + errors
        return {"passed": run - bad - skipped, "failed": bad, "skipped": skipped}
    if found := _UNITTEST.findall(output):
        return _unittest(int(found[-1]), output)
    if lines := _CARGO.findall(output):  # one for each crate
        return _sum(lines)
    if found := _GO.findall(output) or _GO_PACKAGE.findall(output):
        bad, skipped = found.count("FAIL"), found.count("SKIP")
        return {"passed": len(found) - bad - skipped, "failed": bad, "skipped": skipped}
    if lines := _SUM.findall(output):
        # Jest counts suites and snapshots before and after the tests.
        tests = [line for line in lines if line.lstrip().startswith("Tests")]
        return _sum((tests or lines)[-1:])
    return _words(output)


def _unittest(run: int, output: str) -> dict[str, int]:
    said = {name: int(number) for name, number in _PARENTHESIS.findall(output[-2_000:])}
    bad, skipped = said.get("failures", 0) + said.get("errors", 0), said.get("skipped", 0)
    return {"passed": max(run - bad - skipped, 0), "failed": bad, "skipped": skipped}


def _sum(lines: list[str]) -> dict[str, int]:
    total = dict.fromkeys(("passed", "failed", "skipped"), 0)
    for line in lines:
        for match in _COUNTS[0].finditer(line):
            total[_NAMES[match["what"]]] += min(int(match["n"]), 10**9)
    return total


def _words(output: str) -> dict[str, int]:
    """Mocha and RSpec say it on lines of their own."""
    for pattern in _COUNTS[1:]:
        last = {match["what"].rstrip("s"): int(match["n"]) for match in pattern.finditer(output)}
        if "passing" in last or "failing" in last:
            counts = {_NAMES[what]: min(n, 10**9) for what, n in last.items()}
            return {"passed": 0, "failed": 0, "skipped": 0, **counts}
        if "example" in last:
            bad, skipped = last.get("failure", 0), last.get("pending", 0)
            return {"passed": max(last["example"] - bad - skipped, 0), "failed": bad,
                    "skipped": skipped}  # fmt: skip
    return {}
