"""Plant faults in svc by lot, and count those that the tests notice.

`python -m tests.mutation SEED COUNT FOLDER` draws COUNT modules with SEED, and one fault for each. FOLDER keeps two
copies of the project, and which test runs which line (delete it after changes of tests). The module's own test file is
run, and at most MOST_TESTS others by lot that run the line of the fault. The own file is run whole, because the lines
of a shared fixture count only for the test that used it first. A line that runs at the import belongs to the tests that
run a line with the name that its statement defines.
"""

from __future__ import annotations

import ast
import collections
import copy
import os
import queue
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import coverage

ROOT = Path(__file__).parents[1]
COPIES = 2
MOST_TESTS = 100
LONGEST_S = 600
SELECTED = "not integration"
COMPARISONS = {ast.Lt: ast.LtE, ast.Gt: ast.GtE, ast.Eq: ast.NotEq, ast.Is: ast.IsNot, ast.In: ast.NotIn}
PAIRS: dict[type[ast.AST], Any] = {**COMPARISONS, ast.And: ast.Or, ast.Add: ast.Sub, ast.Mult: ast.Div}
TURNED = {**PAIRS, **{turned: kind for kind, turned in PAIRS.items()}}


class Fault(NamedTuple):
    """A piece of a module's source, and the text that replaces it."""

    path: Path
    node: ast.expr | ast.stmt
    text: str

    def planted(self) -> str:
        """Return the source of the module with the fault."""
        lines = self.path.read_bytes().splitlines(keepends=True)
        first, last = self.node.lineno - 1, (self.node.end_lineno or 0) - 1
        before = b"".join(lines[:first]) + lines[first][: self.node.col_offset]
        after = lines[last][self.node.end_col_offset or 0 :] + b"".join(lines[last + 1 :])
        return (before + self.text.encode() + after).decode()


def changed(node: ast.AST) -> Iterator[ast.AST | str]:
    """Yield the replacements of a node, or of its condition."""
    other: Any = copy.deepcopy(node)
    match node:
        case ast.Compare(ops=[op, *_]) if type(op) in TURNED:
            other.ops[0] = TURNED[type(op)]()
            yield other
        case ast.BoolOp(op=op) | ast.BinOp(op=op) if type(op) in TURNED:
            other.op = TURNED[type(op)]()
            yield other
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield str(not value)
        case ast.Constant(value=int(value)):
            yield str(value + 1)
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield "return None"
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield "pass"
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield ast.UnaryOp(ast.Not(), test)
        case ast.Call():
            for keyword in other.keywords:
                if keyword.arg == "strict" or (isinstance(keyword.value, ast.Constant) and not keyword.value.value):
                    continue
                value, keyword.value = keyword.value, ast.Constant(None)
                yield copy.deepcopy(other)
                keyword.value = value


def faults(path: Path) -> Iterator[Fault]:
    """Yield each possible fault, except in f-strings: before Python 3.12 their parts have no exact position."""
    nodes: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop()
        match node:
            case ast.JoinedStr() | ast.pattern() | ast.keyword(arg="strict") | ast.Call(func=ast.Name(id="dataclass")):
                continue  # changes of the last two hardly change what a program does
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                continue
        nodes += ast.iter_child_nodes(node)
        for other in changed(node):
            text = other if isinstance(other, str) else f"({ast.unparse(other)})"
            target: Any = node.test if isinstance(node, ast.If | ast.While | ast.IfExp) else node
            yield Fault(path, target, text)


def lines_of_tests(folder: Path) -> coverage.CoverageData:
    """Return which test runs which line, measured once for a folder."""
    file = folder / "coverage"
    if not file.exists():
        command = ["-m", "pytest", "-q", "-n2", "--dist=worksteal", f"-m{SELECTED}", "--cov=svc", "--cov-context=test"]
        environment = os.environ | {"COVERAGE_FILE": str(file)}
        subprocess.run([sys.executable, *command, "--cov-report="], cwd=ROOT, env=environment, check=False)
    data = coverage.CoverageData(str(file))
    data.read()
    return data


def draw(lot: random.Random, count: int, data: coverage.CoverageData) -> Iterator[tuple[Fault, list[str]]]:
    """Yield random faults, one for each of `count` modules, with the tests that run their lines."""
    modules = sorted((ROOT / "svc").rglob("*.py"))
    runs = {path: data.contexts_by_lineno(str(path)) for path in modules}
    for path in lot.sample(modules, min(count, len(modules))):
        for fault in lot.sample(every := list(faults(path)), min(1, len(every))):
            line = max((line for line in runs[path] if line <= fault.node.lineno), default=0)
            names = set(runs[path].get(line, ()))
            if "" in names:
                names.update(*(runs[reader].get(line, ()) for reader, line in readers(fault, modules)))
            tests = sorted({name.rpartition("|")[0] for name in names if name})
            mirror = Path("tests", path.relative_to(ROOT / "svc").parent, f"test_{path.stem}.py").as_posix()
            others = [name for name in lot.sample(tests, len(tests)) if not name.startswith(mirror)]
            yield fault, [*([mirror] if (ROOT / mirror).exists() else []), *others[:MOST_TESTS]]


def readers(fault: Fault, modules: list[Path]) -> Iterator[tuple[Path, int]]:
    """Yield each line that has the name that the statement of a fault defines, or its first word if it defines none."""
    line, source = fault.node.lineno, fault.path.read_text(encoding="utf-8")
    statements = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    inner = [node for node in statements if node.lineno <= line <= (node.end_lineno or 0)]
    inner = inner or [node for node in statements if node.lineno > line][:1]  # the statement below a decorator
    name = re.findall(r"^(?:async def |def |class )?(\w+)", ast.unparse(inner[-1]), re.MULTILINE)[0]
    for path in modules:
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if re.search(rf"\b{name}\b", text):
                yield path, number


def is_noticed(fault: Fault, tests: list[str], project: Path) -> bool:
    """Return whether one of the tests fails, or does not end, in a copy of the project with the fault."""
    place = project / fault.path.relative_to(ROOT)
    place.write_text(fault.planted(), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-pno:cacheprovider", f"-m{SELECTED}", *tests]
    # Cached bytecode saves 10 to 20 s for each fault. It is never stale: Python compares the seconds of sources, and
    # each fault is in place for longer than one.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = str(project)
    silent: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        return subprocess.call(command, cwd=project, env=environment, timeout=LONGEST_S, **silent) != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        shutil.copy(fault.path, place)


def main(seed: int, count: int, folder: Path) -> None:
    """Print the share of noticed faults for each package, and each fault that no test noticed."""
    folder.mkdir(parents=True, exist_ok=True)
    copies: queue.Queue[Path] = queue.Queue()
    skipped = shutil.ignore_patterns(".git", ".nox", ".mypy_cache", ".ruff_cache", "__pycache__", "site")
    for number in range(COPIES):
        shutil.rmtree(folder / f"copy{number}", ignore_errors=True)
        copies.put(shutil.copytree(ROOT, folder / f"copy{number}", ignore=skipped))

    def attempt(drawn: tuple[Fault, list[str]]) -> bool:
        project = copies.get()
        try:
            return bool(drawn[1]) and is_noticed(*drawn, project)
        finally:
            copies.put(project)

    drawn = list(draw(random.Random(seed), count, lines_of_tests(folder)))
    rooms: dict[str, list[bool]] = collections.defaultdict(list)
    with ThreadPoolExecutor(COPIES) as threads:
        for (fault, tests), noticed in zip(drawn, threads.map(attempt, drawn), strict=True):
            name = fault.path.relative_to(ROOT)
            rooms[name.parts[1]].append(noticed)
            if not noticed:
                said = f"{name}:{fault.node.lineno}: {ast.unparse(fault.node)} -> {fault.text} ({len(tests)} tests)"
                print(said, flush=True)  # noqa: T201 - this is its output
    for room, results in sorted(rooms.items()):
        print(f"{room}: {sum(results)} of {len(results)} noticed")  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]).resolve())
