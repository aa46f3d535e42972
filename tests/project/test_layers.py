"""Imports go one way, and the light commands stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import svc

SVC = Path(svc.__file__).parent
BASE = {
    "atomic_write",
    "cores",
    "env_file",
    "errors",
    "events",
    "settings",
    "logs",
    "lru_cache",
    "metrics",
    "names",
    "net",
    "objects",
    "processes",
    "progress",
}
MAY_IMPORT = {
    "recipe": BASE,
    "sources": BASE | {"recipe"},
    "artifact": BASE,
    "model": BASE,
    "export": BASE | {"recipe", "sources", "artifact", "model"},
    "training": BASE | {"recipe", "sources", "artifact", "model"},
    "serving": BASE | {"recipe", "sources", "artifact", "model"},
    "library": BASE | {"recipe", "sources", "artifact", "model", "export", "training", "serving"},
    "cli": BASE | {"recipe", "sources", "artifact", "model", "export", "training", "serving"},
}
NOT_WHILE_SERVING = {"optuna", "irspack", "sklearn", "scipy"}


@cache
def imported(path: Path) -> list[str]:
    """Every module that the file names in an import, wherever it stands."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names


def rooms_named_by(path: Path) -> set[str]:
    """The rooms and base files of svc that the file imports from."""
    names = [name.split(".") for name in imported(path)]
    return {parts[1] for parts in names if parts[0] == "svc" and len(parts) > 1} & (BASE | MAY_IMPORT.keys())


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_lies_below_it(room: str) -> None:
    """Training and serving meet in files, never in imports."""
    allowed = MAY_IMPORT[room] | {room}
    for path in (SVC / room).rglob("*.py"):
        assert rooms_named_by(path) <= allowed, path


WINGS = {
    "svc.serving": {
        "models": {"admission"},
        "transport": {"admission"},
        "api": {"admission", "models", "precedence", "transport"},
        "workers": {"api", "models", "process", "transport"},
    },
    "svc.serving.api": {
        "bodies": set(),
        "pages": {"bodies", "endpoint", "endpoints", "failures", "request"},
    },
    "svc.model": {
        "columns": {"codec", "ids"},
        "ranking": {"columns", "explain", "features", "history", "ids"},
        "ranker": {"codec", "explain", "history", "ranking"},
        "recommenders": {"codec", "coldstart", "columns", "explain", "history", "ranking"},
    },
    "svc.training": {
        "data": set(),
        "fitting": {"data"},
        "judging": {"data", "fitting"},
        "search": {"data", "fitting", "judging"},
        "ranker": {"data", "fitting", "judging"},
        "publishing": {"data", "judging"},
        "report": {"fitting", "judging"},
    },
}
"""The rooms of a package, and what each may import of the same package beside itself."""
ROOMS = [(package, room) for package, rooms in WINGS.items() for room in rooms]


@pytest.mark.parametrize(("package", "room"), ROOMS)
def test_a_room_of_a_package_imports_only_what_lies_below_it(package: str, room: str) -> None:
    """Models know nothing of HTTP, and connections nothing of models; a search knows nothing of its report."""
    for path in SVC.parent.joinpath(*package.split("."), room).rglob("*.py"):
        named = {name for name in imported(path) if name.startswith(f"{package}.")}
        assert {name.removeprefix(f"{package}.").split(".")[0] for name in named} <= WINGS[package][room] | {room}, path


@pytest.mark.parametrize("package", WINGS)
def test_every_room_of_a_package_is_in_the_table(package: str) -> None:
    """A new room has to say where it stands."""
    folder = SVC.parent.joinpath(*package.split("."))
    assert {path.parent.name for path in folder.glob("*/__init__.py")} == WINGS[package].keys()


def test_imports_have_no_cycles() -> None:
    """Imports that only a type checker reads are counted too: whoever reads a module needs only those below it."""
    names = {path: ".".join(path.relative_to(SVC.parent).with_suffix("").parts) for path in SVC.rglob("*.py")}
    modules = {name.removesuffix(".__init__"): path for path, name in names.items()}
    below = {name: {*imported(path)} & (modules.keys() - {name}) for name, path in modules.items()}
    TopologicalSorter(below).prepare()  # raises CycleError, which names the modules


def test_the_base_imports_no_room() -> None:
    """Errors, events, settings, logs, metrics and what speaks to other hosts stand below everything."""
    for name in BASE:
        for path in (SVC / f"{name}.py", *(SVC / name).glob("*.py")):
            assert not path.exists() or rooms_named_by(path) <= BASE, path


def test_errors_of_commands_and_of_http_do_not_know_each_other() -> None:
    """They share the base class alone."""
    names = {room: {*imported(SVC / "errors" / f"{room}.py")} for room in ("commands", "http")}
    svc = {room: {name for name in names[room] if name.startswith("svc")} for room in names}
    assert svc == {"commands": set(), "http": {"svc.errors.commands", "svc.errors.commands.SvcError"}}


def test_no_serving_file_names_a_training_library() -> None:
    """The server starts fast and small because svc's own code scores."""
    for room in ("serving", "artifact", "model"):
        for path in (SVC / room).rglob("*.py"):
            assert not NOT_WHILE_SERVING & {name.partition(".")[0] for name in imported(path)}, path


def test_only_fitting_imports_irspack() -> None:
    """Whatever judges, searches or reports works with svc's own scorers and metrics."""
    users = [path for path in SVC.rglob("*.py") if "irspack" in {name.partition(".")[0] for name in imported(path)}]
    fitting = SVC / "training" / "fitting"
    assert users
    assert [path for path in users if not path.is_relative_to(fitting)] == []


def modules_after(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after `code`."""
    script = f"{code}\nimport sys\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=SVC.parent)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.system
def test_help_loads_nothing_heavy() -> None:
    """`svc --help` answers at once."""
    loaded = modules_after("from svc.cli.main import run\nassert run(['--help']) == 0")
    heavy = {
        "numpy",
        "pandas",
        "pyarrow",
        "optuna",
        "irspack",
        "trio",
        "quart",
        "h2",
        "pydantic",
        "sqlalchemy",
        "httpx",
    }
    assert loaded & heavy == set()


@pytest.mark.system
def test_the_library_loads_no_server() -> None:
    """It asks as requests do, and opens no connection."""
    assert (
        modules_after("import svc\nsvc.train, svc.load, svc.evaluate") & {"trio", "quart", "httptools", "h2"} == set()
    )


@pytest.mark.system
def test_the_server_loads_no_training_library() -> None:
    """Not even by way of another library."""
    assert modules_after("import svc.serving.run") & (NOT_WHILE_SERVING | {"pandas"}) == set()
