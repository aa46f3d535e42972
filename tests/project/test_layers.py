"""Packages import in one direction, and light commands load few modules."""

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
    "late_imports",
    "local_paths",
    "errors",
    "fork_server",
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
    "stable_sort",
}
MAY_IMPORT = {
    "recipe": BASE,
    "sources": BASE | {"recipe"},
    "artifact": BASE,
    "model": BASE,
    "asking": BASE | {"recipe", "sources", "model"},
    "export": BASE | {"recipe", "sources", "artifact", "model", "asking"},
    "training": BASE | {"recipe", "sources", "artifact", "model", "asking"},
    "serving": BASE | {"recipe", "sources", "artifact", "model", "asking"},
    "experiments": BASE | {"recipe", "asking", "training"},
    "library": BASE
    | {"recipe", "sources", "artifact", "model", "asking", "export", "experiments", "training", "serving"},
    "cli": BASE | {"recipe", "sources", "artifact", "model", "asking", "export", "experiments", "training", "serving"},
}
NOT_WHILE_SERVING = {"optuna", "irspack", "sklearn", "scipy"}


@cache
def imported(path: Path) -> list[str]:
    """Return every module that the file imports, at its top or inside functions."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names


def rooms_named_by(path: Path) -> set[str]:
    """Return the packages and base modules of svc that the file imports from."""
    names = [name.split(".") for name in imported(path)]
    return {parts[1] for parts in names if parts[0] == "svc" and len(parts) > 1} & (BASE | MAY_IMPORT.keys())


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_package_imports_only_packages_below_it(room: str) -> None:
    """Training and serving exchange files and never import each other."""
    allowed = MAY_IMPORT[room] | {room}
    for path in (SVC / room).rglob("*.py"):
        assert rooms_named_by(path) <= allowed, path


WINGS = {
    "svc.serving": {
        "models": {"admission", "turns"},
        "transport": {"admission", "turns"},
        "api": {"admission", "models", "precedence", "served_log", "transport"},
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
"""The parts of each package, and the other parts of it that each may import."""
ROOMS = [(package, room) for package, rooms in WINGS.items() for room in rooms]


@pytest.mark.parametrize(("package", "room"), ROOMS)
def test_a_part_of_a_package_imports_only_parts_below_it(package: str, room: str) -> None:
    """Models do not depend on HTTP, connections on models, or a search on its report."""
    for path in SVC.parent.joinpath(*package.split("."), room).rglob("*.py"):
        named = {name for name in imported(path) if name.startswith(f"{package}.")}
        assert {name.removeprefix(f"{package}.").split(".")[0] for name in named} <= WINGS[package][room] | {room}, path


@pytest.mark.parametrize("package", WINGS)
def test_every_subpackage_is_in_the_table(package: str) -> None:
    """A new subpackage must be added to the table."""
    folder = SVC.parent.joinpath(*package.split("."))
    assert {path.parent.name for path in folder.glob("*/__init__.py")} == WINGS[package].keys()


def test_imports_have_no_cycles() -> None:
    """Imports under TYPE_CHECKING count too, so a reader of a module needs only the modules below it."""
    names = {path: ".".join(path.relative_to(SVC.parent).with_suffix("").parts) for path in SVC.rglob("*.py")}
    modules = {name.removesuffix(".__init__"): path for path, name in names.items()}
    below = {name: {*imported(path)} & (modules.keys() - {name}) for name, path in modules.items()}
    TopologicalSorter(below).prepare()  # raises CycleError, which names the modules


def test_base_modules_import_only_base_modules() -> None:
    """Errors, events, settings, logs, metrics and network access stand below all packages."""
    for name in BASE:
        for path in (SVC / f"{name}.py", *(SVC / name).glob("*.py")):
            assert not path.exists() or rooms_named_by(path) <= BASE, path


def test_errors_of_http_import_only_the_base_class_of_errors_of_commands() -> None:
    """Errors of commands import no module of svc."""
    names = {room: {*imported(SVC / "errors" / f"{room}.py")} for room in ("commands", "http")}
    svc = {room: {name for name in names[room] if name.startswith("svc")} for room in names}
    assert svc == {"commands": set(), "http": {"svc.errors.commands", "svc.errors.commands.SvcError"}}


def test_no_serving_file_names_a_training_library() -> None:
    """svc ranks with its own code, so the server starts fast and needs little memory."""
    for room in ("serving", "artifact", "model", "asking"):
        for path in (SVC / room).rglob("*.py"):
            assert not NOT_WHILE_SERVING & {name.partition(".")[0] for name in imported(path)}, path


def test_only_fitting_imports_irspack() -> None:
    """Evaluation, search and reports use svc's own scorers and metrics."""
    users = [path for path in SVC.rglob("*.py") if "irspack" in {name.partition(".")[0] for name in imported(path)}]
    fitting = SVC / "training" / "fitting"
    assert users
    assert [path for path in users if not path.is_relative_to(fitting)] == []


def modules_after(code: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has loaded after `code`."""
    script = f"{code}\nimport sys\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=SVC.parent)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.system
def test_help_loads_nothing_heavy() -> None:
    """`svc --help` must answer fast."""
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
    """A recommender in Python needs no event loop and no HTTP library."""
    assert (
        modules_after("import svc\nsvc.train, svc.load, svc.evaluate") & {"trio", "quart", "httptools", "h2"} == set()
    )


@pytest.mark.system
def test_the_server_loads_no_training_library() -> None:
    """The server imports no library for training and no pandas, directly or through other libraries."""
    assert modules_after("import svc.serving.run") & (NOT_WHILE_SERVING | {"pandas"}) == set()


OF_COMMANDS = ("cli", "export", "library", "training", "progress.py")
"""Rooms whose imports inside functions run in the main thread of a command or a program."""
KNOWS_MODULES = {"late_imports.py", "cores.py"}
"""`late_imports` looks for a name, and `cores` counts the modules. Neither reads a module there."""


def test_threads_of_a_server_import_modules_in_turns() -> None:
    """Imports in functions go through `svc.late_imports`, and no module is taken from `sys.modules`.

    `sys.modules` also holds the modules that another thread is importing. Import statements of two threads give one of
    them such a module if the modules import each other.
    """
    for path in SVC.rglob("*.py"):
        name = str(path.relative_to(SVC))
        if name.startswith(OF_COMMANDS):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        late = [node for function in functions for node in ast.walk(function)]
        assert not [node.lineno for node in late if isinstance(node, ast.Import | ast.ImportFrom)], name
        known = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
        assert "sys.modules" not in known or name in KNOWS_MODULES, name
