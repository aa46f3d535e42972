"""Writes the reference pages that follow from the code: environment, events, metrics, exit codes, command line,
Python.

    python docs/reference_pages.py

`tests/project/test_docs.py` fails when a page in docs/reference/ is not what this writes.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import typer

import svc
from svc import errors, events, metrics, settings
from svc.cli.main import app
from svc.errors import ApiError, ArtifactError, SvcError
from svc.settings import GIB, KIB, MIB

_HEADINGS = {"Args": "Parameters", "Returns": "Returns", "Raises": "Raises", "Attributes": "Fields"}
FOLDER = Path(__file__).parent / "reference"
NOTE = "<!-- Written by docs/reference_pages.py: change the code, then run it. -->\n"


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(list(headings))]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _value(value: Any, name: str) -> str:
    if value in (None, "", ()):
        return "unset"
    if isinstance(value, bool):
        return "1" if value else "0"
    if name.endswith("_BYTES") and value >= KIB:
        unit, size = next((u, s) for u, s in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)) if value % s == 0)
        return f"{value // size:g} {unit}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def attribute_docs(module: ModuleType) -> dict[str, str]:
    """Return the docstring below each assignment of a module or of its classes, on one line, by the assigned name."""
    docs: dict[str, str] = {}
    for scope in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(scope, ast.Module | ast.ClassDef):
            for statement, text in pairwise(scope.body):
                match statement, text:
                    case (
                        ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)),
                        ast.Expr(value=ast.Constant(value=str(doc))),
                    ):
                        docs[name] = " ".join(doc.split())
    return docs


def environment() -> str:
    """docs/reference/environment.md."""
    rows = []
    meaning = attribute_docs(settings)
    for name, default, variable in settings.variables():
        bounds = ""
        if variable.low is not None and variable.high is not None:
            bounds = f"{_value(variable.low, variable.env)} to {_value(variable.high, variable.env)}"
        rows.append((f"`{variable.env}`", _value(default, variable.env), bounds, meaning[name]))
    return (
        f"# Environment\n\n{NOTE}\n"
        "Read once, when a command starts. An empty value counts as unset. A number outside its bounds is clamped; a value "
        "that cannot be read is a configuration error (exit code 8) that names the variable. Sizes are bytes, or a number "
        "with `KiB`, `MiB` or `GiB`.\n\n"
        + _table(("Variable", "Default", "Bounds", "Meaning"), rows)
        + "\nTwo more belong to clients and recipes: `SVC_CLIENT_KEY` is the API key in the commands that the console and these pages show, "
        "and every `SVC_RECIPE_*` can be named as `${SVC_RECIPE_...}` in a recipe.\n"
    )


def events_page() -> str:
    """docs/reference/events.md."""
    meaning = {getattr(events, name).name: text for name, text in attribute_docs(events).items() if name.isupper()}
    rows = [
        (f"`{event.name}`", event.level, ", ".join(f"`{field}`" for field in event.fields), meaning[event.name])
        for event in events.EVENTS.values()
    ]
    return (
        f"# Events\n\n{NOTE}\n"
        "Everything that svc logs is one of these, written to standard error: JSON lines, or readable lines on a terminal "
        "(`SVC_LOG_FORMAT`). Each record has `event`, `level` and `timestamp` (UTC), the fields below, and `request_id` while "
        "a request is answered. Values of fields whose name says secret, password, token, key, auth, bearer, cred or private "
        "are written as `[REDACTED]`, and URLs lose their user-info.\n\n"
        + _table(("Event", "Level", "Fields", "Meaning"), rows)
    )


def metrics_page() -> str:
    """docs/reference/metrics.md."""
    rows = [
        (f"`{metric.name}`", metric.kind, ", ".join(f"`{label}`" for label in metric.labels), metric.help)
        for metric in metrics.METRICS.values()
    ]
    return (
        f"# Metrics\n\n{NOTE}\n"
        "`GET /v1/metrics` answers in the Prometheus text format when `SVC_METRICS_ENABLED=1` and the extra `metrics` is "
        "installed; it needs an API key when keys are configured. A request for a name that is no recipe counts under "
        f"`{metrics.UNKNOWN_RECIPE}`. Metrics of the process (`process_*`, `python_*`) come along.\n\n"
        + _table(("Metric", "Kind", "Labels", "Meaning"), rows)
        + "\nOn a port of its own (`SVC_METRICS_PORT`) the same text is at `/metrics` and `/v1/metrics`, without a key.\n\n"
        "## Of trainings\n\n`svc train --metrics-file FILE.prom` writes these:\n\n"
        + _table(
            ("Metric", "Kind", "Labels", "Meaning"),
            [
                (f"`{metric.name}`", metric.kind, ", ".join(f"`{label}`" for label in metric.labels), metric.help)
                for metric in metrics.TRAINING_METRICS
            ],
        )
        + "\nHow to alert on them: [monitoring](../howto/monitor.md).\n"
    )


def _classes(family: type[SvcError]) -> list[type[SvcError]]:
    found = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, family)]
    return sorted(found, key=lambda c: (c.exit_code, inspect.getsourcelines(c)[1]))


def _meaning(error: type[SvcError]) -> str:
    return (error.__doc__ or "").partition("\n")[0] if "__doc__" in vars(error) else ""


def exit_codes() -> str:
    """docs/reference/exit-codes.md."""
    codes = [
        ("0", "Success; also a training that found the lock held, without `--fail-on-busy`"),
        ("1", "An error that svc does not know, outside training; a server that does not answer"),
        ("2", "Wrong usage, or a recipe that cannot be used"),
        ("3", "Data could not be fetched"),
        ("4", "Data or search gave no model; also any unexpected error while training (`internal_error`)"),
        ("5", "An artifact cannot be read, trusted, used or written"),
        ("6", "Another run holds the lock (`--fail-on-busy`), or `--lock-timeout` ran out"),
        ("8", "The environment or the machine is set up wrongly"),
        ("9", "The trained model was refused (`promotion.mode: enforce`): it is written, and not live"),
        ("130, 143", "Interrupted by SIGINT, SIGTERM; `svc serve` ends with 0 after either"),
    ]
    commands = [c for c in _classes(SvcError) if not issubclass(c, ApiError) and c is not SvcError]
    return (
        f"# Errors and exit codes\n\n{NOTE}\n## Exit codes\n\n"
        + _table(("Code", "Meaning"), codes)
        + "\nThe last line on standard error says what happened: on a terminal a sentence, else a JSON record with `error` "
        "and `code`. A failed training ends with `train_error`, other commands with `command_error`. "
        "`SVC_LOG_LEVEL=debug` adds the traceback of an unexpected error.\n\n## Codes of commands\n\n"
        + _table(("Error", "Code", "Exit code"), ((c.__name__, f"`{c.code}`", str(c.exit_code)) for c in commands))
        + "\n## Artifacts that do not load\n\n"
        "The reason is the label of `svc_artifact_load_failures_total`; the stage picks the event at start.\n\n"
        + _table(
            ("Error", "Reason", "Stage", "Meaning"),
            (
                (c.__name__, f"`{c.reason}`", c.stage, _meaning(c))
                for c in _classes(ArtifactError)
                if issubclass(c, ArtifactError) and c is not ArtifactError
            ),
        )
        + "\n## Answers over HTTP\n\n"
        'Every error body is `{"request_id", "detail", "code"}`; 422 adds `errors`.\n\n'
        + _table(
            ("Status", "Code", "Counted as"),
            (
                (str(c.http_status), f"`{c.code}`", f"`{c.metric_status}`")
                for c in sorted(_classes(ApiError), key=lambda c: (getattr(c, "http_status", 0), c.code))
                if issubclass(c, ApiError) and c is not ApiError
            ),
        )
    )


def _flags(parameter: Any) -> str:
    names = [*parameter.opts, *parameter.secondary_opts]
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    return ", ".join(f"`{name}`" for name in names)


def _default(parameter: Any) -> str:
    shown = parameter.show_default if isinstance(getattr(parameter, "show_default", None), str) else parameter.default
    if parameter.required:
        return "required"
    if shown is None or shown is False or callable(shown):
        return ""
    return f"`{getattr(shown, 'value', shown)}`" if not isinstance(shown, bool) else "on"


def command_line() -> str:
    """docs/reference/cli.md."""
    root = typer.main.get_command(app)
    parts = [
        f"# Command line\n\n{NOTE}\n`svc --help` and `svc <command> --help` say the same. `svc --version` prints the version; "
        "`svc --install-completion` teaches bash, zsh or fish to complete commands and options (`svc --show-completion` prints "
        "the script), from the next terminal on. `NO_COLOR` turns colours off. Exit codes: "
        "[errors and exit codes](exit-codes.md).\n"
    ]
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        rows = [(_flags(p), _default(p), p.help or "") for p in command.params if p.name != "help"]
        epilog = (command.epilog or "").replace("[bold]", "").replace("[/bold]", "").strip("\n")
        table = _table(("Argument or option", "Default", "Meaning"), rows) + "\n" if rows else ""
        parts.append(f"\n## svc {name}\n\n{command.help}\n\n{table}```text\n{epilog}\n```\n")
    return "".join(parts)


def _paragraphs(text: str) -> str:
    """A docstring as Markdown: its sections as lists, its text as it stands."""
    lines = []
    for line in text.splitlines():
        heading = re.fullmatch(r"(Args|Returns|Raises|Attributes):", line)
        entry = re.fullmatch(r"    (\S[^:]*): (.*)", line)
        if heading:
            lines += [f"**{_HEADINGS[heading[1]]}**", ""]
        elif entry and not line.startswith("     "):
            lines.append(f"- `{entry[1]}`: {entry[2]}")
        else:
            lines.append(f"  {line.strip()}" if line.startswith("        ") else line.strip())
    return "\n".join(lines)


def _parameter(parameter: inspect.Parameter) -> str:
    stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{stars}{parameter.name}: {parameter.annotation}{default}"


def _signature(name: str, called: Callable[..., Any]) -> str:
    """One parameter a line once the whole does not fit."""
    found = inspect.signature(called)
    parameters = [_parameter(p) for p in found.parameters.values() if p.name != "self"]
    for place, parameter in enumerate(p for p in found.parameters.values() if p.name != "self"):
        if parameter.kind is parameter.KEYWORD_ONLY:
            parameters.insert(place, "*")
            break
    end = f" -> {found.return_annotation}" if found.return_annotation is not found.empty else ""
    whole = f"{name}({', '.join(parameters)}){end}"
    if len(whole) > 100:
        whole = f"{name}(\n    " + ",\n    ".join(parameters) + f",\n){end}"
    return f"```text\n{whole}\n```\n"


def _documented(name: str, called: Any, level: int) -> str:
    return f"\n{'#' * level} {name}\n\n{_signature(name, called)}\n{_paragraphs(inspect.getdoc(called) or '')}\n"


def _members(owner: type) -> list[tuple[str, Any]]:
    """Public methods and properties, in the order of the code."""
    return [(name, member) for name, member in vars(owner).items() if not name.startswith("_")]


def _class(name: str, owner: type) -> str:
    parts = [f"\n## {name}\n\n{_paragraphs(inspect.getdoc(owner) or '')}\n"]
    for member_name, member in _members(owner):
        if isinstance(member, property):
            parts.append(f"\n### {name}.{member_name}\n\n{_paragraphs(inspect.getdoc(member) or '')}\n")
        elif inspect.isfunction(member):
            parts.append(_documented(f"{name}.{member_name}", member, 3))
    return "".join(parts)


def python() -> str:
    """docs/reference/python.md."""
    return (
        f"# Python\n\n{NOTE}\n"
        "`import svc` is light; what these functions need is imported with their first use. They read the same environment "
        "as the commands, and raise the classes of `svc.errors`, whose codes the page on [errors](exit-codes.md) lists. "
        "Log records go to the standard logger `svc`. A notebook that uses all of them: "
        "[docs/tutorial.ipynb](../tutorial.ipynb).\n"
        + _documented("svc.train", svc.train, 2)
        + _class("svc.TrainResult", svc.TrainResult)
        + _documented("svc.load", svc.load, 2)
        + _class("svc.Recommender", svc.Recommender)
        + _documented("svc.compare", svc.compare, 2)
        + _class("svc.Comparison", svc.Comparison)
        + _documented("svc.evaluate", svc.evaluate, 2)
        + _class("svc.Evaluation", svc.Evaluation)
    )


PAGES: dict[str, Callable[[], str]] = {
    "environment.md": environment,
    "events.md": events_page,
    "metrics.md": metrics_page,
    "exit-codes.md": exit_codes,
    "cli.md": command_line,
    "python.md": python,
}

if __name__ == "__main__":
    for name, render in PAGES.items():
        (FOLDER / name).write_text(render(), encoding="utf-8")
