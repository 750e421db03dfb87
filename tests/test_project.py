"""What holds for the project as a whole: its layers, its size, its wheel, its start."""

from __future__ import annotations

import ast
import json
import os
import statistics
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import syncd
from syncd import CheckpointService

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "syncd"
OUTSIDE = dict(os.environ)  # before any test changes it: pip needs its user's settings

# A module imports from the lines above its own, never from its own line or below. A package
# counts as one module. What is planned has its place already.
LAYERS = (
    ("errors", "version"),
    ("canonical", "entry", "clock", "compare", "rules", "account"),
    ("vocabulary", "redaction", "shapes", "mishaps"),
    ("part",),
    ("items",),
    ("checkpoint",),
    ("patch",),
    ("seal", "config", "workspace", "cluster", "osring"),
    ("sql", "refusals", "embedded", "endorsement", "triggers"),
    ("keychain",),
    ("vault", "delivery"),
    ("database", "fold", "bodies", "loss"),
    ("leases",),
    ("views",),
    ("purges", "writer"),
    ("store", "replica", "formats"),
    ("projection",),
    ("audit", "fallback"),
    ("backup", "exchange", "bundle"),
    ("examination",),
    ("arrival", "healing", "witness"),
    ("parting",),
    ("sync", "rotation"),
    ("proof", "credentials"),
    ("handoff",),
    ("discretion",),
    ("node", "breaker", "running", "unit"),
    ("disk", "retention", "trial"),
    ("sealing", "facts", "blobs"),
    ("graphs",),
    ("invocations", "threads"),
    ("presence",),
    ("agents",),
    ("messages",),
    ("service", "tasks"),
    ("tenure", "mending", "attempts", "lineage"),
    ("sources", "drafting", "tally"),
    ("offers", "intake", "outlet"),
    ("watching",),
    ("offering",),
    ("liveness", "verdict"),
    ("status", "demo", "resume"),
    ("recovery",),
    ("hooks",),
    (
        "diagnosis",
        "conflicts",
        "trail",
        "daemon",
        "loop",
        "mcp",
        "setup",
        "langgraph",
    ),
    ("ui",),
    ("__init__",),
    ("cli",),
    ("__main__",),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def module_of(file: Path) -> str:
    """The module's name in LAYERS: that of its package, if it is part of one."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


FILES = sorted(PACKAGE.rglob("*.py"))


# --- layers -------------------------------------------------------------------------------------


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and module of every import from syncd, wherever in the module it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top, _, inner = alias.name.partition(".")
                if top == "syncd":
                    yield node.lineno, inner.partition(".")[0] or "__init__"
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            top, _, inner = (node.module or "").partition(".")
            if top == "syncd" and inner:
                yield node.lineno, inner.partition(".")[0]
            elif top == "syncd":
                yield from ((node.lineno, _submodule(alias.name)) for alias in node.names)


def _submodule(name: str) -> str:
    """`from syncd import x`: a module of the package, else a name of the package itself."""
    there = (PACKAGE / f"{name}.py").exists() or (PACKAGE / name).is_dir()
    return name if there else "__init__"


def violations(module: str, source: str) -> list[str]:
    return [
        f"{module}, line {line}: imports {other}"
        for line, other in imported(ast.parse(source))
        if other != module and RANK[other] >= RANK[module]
    ]


def test_every_module_has_its_place() -> None:
    assert {module_of(file) for file in FILES} - RANK.keys() == set()


def test_modules_import_only_from_the_layers_below_them() -> None:
    found = [
        line for file in FILES for line in violations(module_of(file), file.read_text("utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import syncd.service",
        "from syncd.cli.app import main",
        "from syncd import node",
        "from syncd import CheckpointService",
        "def late():\n    from syncd.store import Store",
        "if TYPE_CHECKING:\n    from syncd.sync import push",
    ],
)
def test_the_search_for_violations_finds_each_way_to_import(source: str) -> None:
    assert len(violations("database", source)) == 1


def test_only_what_talks_to_postgresql_imports_psycopg() -> None:
    for file in FILES:
        names = _foreign(file)
        assert "psycopg" not in names or module_of(file) == "replica", file
        assert "apscheduler" not in names or module_of(file) == "daemon", file


def _foreign(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names


# --- size ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "file",
    FILES,
    ids=[str(file.relative_to(PACKAGE)) for file in FILES],
)
def test_a_module_has_at_most_400_lines(file: Path) -> None:
    assert len(file.read_text("utf-8").splitlines()) <= 400


def test_functions_are_short() -> None:
    lengths = [
        (node.end_lineno or 0) - node.lineno + 1
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert statistics.median(lengths) <= 8
    assert sum(length > 40 for length in lengths) <= len(lengths) // 100


# --- files --------------------------------------------------------------------------------------


def repository_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    files = [ROOT / os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
    return [file for file in files if file.is_file()]


def test_no_file_names_the_host_of_a_package_registry() -> None:
    """Where packages come from is the user's own setting."""
    hosts = [
        ".".join(parts).encode()
        for parts in (
            ("py" "pi", "org"), ("python" "hosted", "org"), ("npm" "js", "org"),
            ("npm" "js", "com"), ("yarn" "pkg", "com"), ("crates", "io"), ("ruby" "gems", "org"),
            ("ana" "conda", "org"),
        )
    ]  # fmt: skip
    files = repository_files()
    assert ROOT / "pyproject.toml" in files
    found = [(file, host) for file in files for host in hosts if host in file.read_bytes()]
    assert found == []


# --- start --------------------------------------------------------------------------------------

HEAVY = ("pydantic", "psycopg", "apscheduler", "sqlite_utils", "cryptography", "rich")


@pytest.mark.parametrize(
    "start",
    [
        "import syncd",
        "from syncd.store import Store",
        "import syncd.triggers",
        "import syncd.resume",
        "import syncd.presence",
        "import syncd.hooks.main",
        "import syncd.hooks.opening",
    ],
)
def test_the_light_start_imports_nothing_heavy(start: str) -> None:
    program = f"{start}\nimport sys\nprint([n for n in {HEAVY!r} if n in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


# What only who writes needs, or who speaks to a terminal.
UNNEEDED = ("logging", "difflib", "textwrap", "syncd.redaction", "syncd.messages")


def test_status_loads_nothing_that_it_does_not_need(service: CheckpointService, home: Path) -> None:
    service.create_checkpoint("t", "ann")
    program = f"""
import sys
from syncd.cli import main
sys.argv = ["syncd", "--home", {str(home)!r}, "status", "--json"]
try:
    main()
except SystemExit as ended:
    print([ended.code, *(n for n in {(*HEAVY, *UNNEEDED)!r} if n in sys.modules)])
"""
    assert ran(sys.executable, "-c", program, cwd=home).splitlines()[-1] == "[0]"


def test_the_package_offers_every_name_that_it_lists() -> None:
    for name in syncd.__all__:
        assert getattr(syncd, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = syncd.nonsense


# --- the wheel ----------------------------------------------------------------------------------


def ran(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=env or OUTSIDE, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def needed_by(installed: Distribution) -> list[Distribution]:
    """What it says it needs, what that needs, and so on: as they are here, in a version it takes.
    To fetch and unpack all of it takes many times as long."""
    found: dict[str, Distribution] = {}
    left = [(installed, "")]
    while left:
        one, extra = left.pop()
        for wanted in map(Requirement, one.requires or []):
            if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
                here = distribution(wanted.name)
                assert wanted.specifier.contains(here.version), (one.name, wanted, here.version)
                if wanted.name not in found:
                    left += [(here, name) for name in ("", *wanted.extras)]
                found[wanted.name] = here
    return list(found.values())


def give(packages: Path, wanted: list[Distribution]) -> None:
    for one in wanted:
        for top in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            link = packages / top
            if not link.exists():
                link.symlink_to(str(one.locate_file(top)))


def test_the_wheel_works_in_an_empty_environment_outside_the_checkout(tmp_path: Path) -> None:
    ran(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, ROOT, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for folder in ("schema", "migrations", "systemd"):
        for file in (ROOT / folder).rglob("*"):
            if file.is_file():
                assert f"syncd/{file.relative_to(ROOT).as_posix()}" in names
    assert {"syncd/py.typed", "syncd/setup/skill.md", "syncd/setup/opencode.js"} <= set(names)
    for folder in ("templates", "static"):
        for file in (PACKAGE / "ui" / folder).iterdir():
            assert file.relative_to(ROOT).as_posix() in names
    beside = ("tests/", "bench/", "chaos/", "scale/", "soak/")
    assert not [name for name in names if name.startswith(beside)]

    venv = tmp_path / "venv"
    ran(sys.executable, "-m", "venv", "--without-pip", venv, cwd=tmp_path)
    pip = (sys.executable, "-m", "pip", "--python", venv, "install", "--quiet", "--no-compile")
    ran(*pip, "--no-deps", "--no-index", wheel, cwd=tmp_path)
    (packages,) = venv.glob("lib/python3*/site-packages")
    (installed,) = distributions(name="syncd", path=[str(packages)])
    give(packages, needed_by(installed))

    python, command = venv / "bin" / "python", venv / "bin" / "syncd"
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SYNCD_HOME": str(tmp_path / "home")}
    where = ran(python, "-c", "import syncd; print(syncd.__file__)", cwd=tmp_path, env=env)
    assert Path(where.strip()).is_relative_to(venv), "the installed one, not the checkout's"
    assert syncd.__version__ in ran(command, "--version", cwd=tmp_path, env=env)
    program = "from syncd import CheckpointService as S; S().create_checkpoint('t', 'library')"
    ran(python, "-W", "error", "-c", program, cwd=tmp_path, env=env)
    create = ("checkpoint", "create", "--task", "t", "--agent", "command", "--completed", "built")
    written = json.loads(ran(command, *create, "--json", cwd=tmp_path, env=env))
    latest = json.loads(ran(command, "checkpoint", "latest", "t", "--json", cwd=tmp_path, env=env))
    assert latest["metadata"]["checkpoint_id"] == written["metadata"]["checkpoint_id"]
    assert latest["execution_state"]["completed_items"] == ["built"]
    assert latest["verified"] is True
    assert latest["recovery"]["last_successful_state"], "the library's checkpoint is its parent"
    assert (tmp_path / "home" / "context.db").is_file()
    refused = subprocess.run([command, "ui"], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "pip install -e '.[ui]'" in refused.stderr, "it was installed without the extra"
