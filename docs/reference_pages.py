"""Writes the reference pages that follow from the code: environment, events and metrics, command line, Python.

    python docs/reference_pages.py

`tests/project/test_docs.py` fails when a page in docs/reference/ is not what this writes.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import typer

import svc
from svc import errors, events, metrics, settings
from svc.asking.requests import RecommendRequest, RelatedRequest, UsersRequest
from svc.cli.main import app
from svc.errors import ApiError, ArtifactError, SvcError, UsageError
from svc.events import Event
from svc.metrics import Metric
from svc.settings import GIB, KIB, MIB, Variable

FOLDER = Path(__file__).parent / "reference"
_COMMON = 3  # commands that have an option, from which on the page explains it once
_WIDTH = 86
NOTE = "<!-- Written by docs/reference_pages.py: change the code, then run it. -->\n"


def _value(value: Any, name: str) -> str:
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


def _groups(module: ModuleType) -> dict[str, str]:
    """Return the comment above each group of assignments, by the assigned name."""
    heading, groups = "", {}
    for line in inspect.getsource(module).splitlines():
        if found := re.fullmatch(r" *# ([A-Z][^.]*)\.", line):
            heading = found[1]
        elif found := re.match(r" *(\w+)(?:: [^=]+)? = ", line):
            groups[found[1]] = heading
    return groups


def _grouped(entries: Iterable[tuple[str, str, str]]) -> str:
    """Return sections of (group, name, text): each name is a heading, so that search and links find it."""
    parts, last = [], ""
    for group, name, text in entries:
        parts.append(f"\n## {group}\n" if group != last else "")
        parts.append(f"\n### {name}\n\n{text}\n")
        last = group
    return "".join(parts)


def _variable(default: Any, variable: Variable, meaning: str) -> str:
    """Return the meaning of a variable, then its default and bounds."""
    facts = [f"Default: {_value(default, variable.env)}"] if default not in (None, "", ()) else []
    if variable.low is not None and variable.high is not None:
        facts.append(f"{_value(variable.low, variable.env)} to {_value(variable.high, variable.env)}")
    return f"{meaning} {', '.join(facts)}." if facts else meaning


def environment() -> str:
    """docs/reference/environment.md."""
    meaning, groups = attribute_docs(settings), _groups(settings)
    return (
        f"# Environment\n\n{NOTE}\n"
        "A command reads its environment once, when it starts. An empty value counts as unset. A number outside its bounds "
        "is clamped. A negative time, a port or `SVC_WORKERS` outside its bounds, and a value that cannot be read end the command with exit code 8. Sizes are bytes, or a number with `KiB`, `MiB` or `GiB`. Switches are 1 or 0.\n\n"
        "`SVC_CLIENT_KEY` is the API key in the commands of the console and of these pages. A recipe reads any "
        "`SVC_RECIPE_*` as `${SVC_RECIPE_...}`.\n"
        + _grouped(
            (groups[name], variable.env, _variable(default, variable, meaning[name]))
            for name, default, variable in settings.variables()
        )
    )


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _rows(module: ModuleType, kind: type[Event] | type[Metric]) -> dict[str, str]:
    """Return the assigned name of each constant of the `kind`, and the name that it declares."""
    return {name: value.name for name, value in vars(module).items() if isinstance(value, kind)}


def _metric(metric: Metric) -> str:
    """Return the help of a metric, its kind and its labels."""
    labels = f" by {_codes(metric.labels)}" if metric.labels else ""
    return f"{metric.help} {metric.kind.capitalize()}{labels}."


def events_and_metrics() -> str:
    """docs/reference/events.md."""
    docs, of_events, of_metrics = attribute_docs(events), _groups(events), _groups(metrics)
    rows = _rows(events, Event)
    meaning = {event: docs[name] for name, event in rows.items()}
    groups = {event: of_events[name] for name, event in rows.items()}
    counted = {metric: of_metrics[name] for name, metric in _rows(metrics, Metric).items()}
    return (
        f"# Events and metrics\n\n{NOTE}\n"
        "svc logs these events to standard error, as JSON lines, or as readable lines on a terminal (`SVC_LOG_FORMAT`). Each "
        "record has `event`, `level`, `timestamp` (UTC), the fields behind the level below and, while a request is "
        "answered, its `request_id`. Fields whose names speak of secrets, such as `token` and `auth`, and texts that look "
        "like keys are `[REDACTED]`. URLs lose user-info and secret parameters. "
        "[Monitoring](../howto/operate.md#metrics) says how to alert on them.\n"
        + _grouped(
            (
                groups[event.name],
                event.name,
                f"{meaning[event.name]} {event.level.capitalize()}"
                + (f": {_codes(event.fields)}." if event.fields else "."),
            )
            for event in events.EVENTS.values()
        )
        + "\n## Metrics\n\n"
        "`GET /v1/metrics` answers in the Prometheus text format with `SVC_METRICS_ENABLED=1` and the extra `metrics`. It "
        "needs an API key if keys are configured. A [second port](environment.md#svc_metrics_port) needs none. Unknown recipes "
        f'have the label `recipe="{metrics.UNKNOWN_RECIPE}"`. The metrics `process_*` and `python_*` are included.\n'
        + _grouped((counted[metric.name], metric.name, _metric(metric)) for metric in metrics.METRICS.values())
    )


def _classes(family: type[SvcError]) -> list[type[SvcError]]:
    found = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, family)]
    return sorted(found, key=lambda c: (c.exit_code, inspect.getsourcelines(c)[1]))


_EXIT_CODES = {
    "0": "Success. Also `svc serve` after a signal, and a training that found the lock held and has neither "
    "`--fail-on-busy` nor `--lock-timeout`.",
    "1": "An unexpected error outside of training. Also a server of `svc demo` that fails.",
    "2": "Wrong usage, or a recipe that cannot be used.",
    "3": "Data could not be fetched.",
    "4": "Data or search gave no model, or an unexpected error ended a training (`internal_error`): "
    "[ways out](training.md#failures).",
    "5": "An artifact, export or report cannot be read, trusted, used or written. Also problems found by `svc history --verify`.",
    "6": "Another run holds the lock. `svc train` only with `--fail-on-busy` or after `--lock-timeout`.",
    "8": "The environment or the machine is set up wrongly.",
    "9": "`promotion.mode: enforce` refused the trained model: it is written, and not live.",
    "130, 143": "SIGINT (130) or SIGTERM (143) interrupted the command.",
}


def _exit_code(number: str, meaning: str) -> str:
    """Return the section of one exit code: its meaning, and the codes of errors with classes of other names."""
    classes: dict[str, list[str]] = {}
    for error in _classes(SvcError):
        is_listed = error.code != ArtifactError.code or error is ArtifactError
        if str(error.exit_code) == number and is_listed and error is not SvcError and not issubclass(error, ApiError):
            classes.setdefault(error.code, []).append(error.__name__)
    codes = [f"`{code}`{_other_names(code, names)}" for code, names in classes.items()]
    return f"\n### Exit code {number}\n\n{meaning}" + (f" Codes: {', '.join(codes)}.\n" if codes else "\n")


def _other_names(code: str, names: list[str]) -> str:
    same = code.title().replace("_", "")
    return "" if names == [same] else f" ({_codes(names)})"


def _load_failures() -> str:
    """Return the reasons that are counted when an artifact does not load, with their classes, by the stage."""
    stages: dict[str, dict[str, list[str]]] = {}
    for error in _classes(ArtifactError):
        if issubclass(error, ArtifactError) and error is not ArtifactError:
            stages.setdefault(error.stage, {}).setdefault(error.reason, []).append(error.__name__)
    return "".join(
        f"- {stage}: {', '.join(f'`{reason}` ({_codes(names)})' for reason, names in reasons.items())}\n"
        for stage, reasons in stages.items()
    )


def _exit_codes() -> str:
    return (
        "\n## Exit codes\n\n"
        "The last line on standard error says what happened: a sentence on a terminal, else the event `train_error` or "
        "`command_error` with `error` and `code`. `SVC_LOG_LEVEL=debug` adds the traceback of an unexpected error. The "
        "code `min_data_violation` has the class `svc.errors.MinDataViolation`. Other names are in brackets.\n"
        + "".join(_exit_code(number, meaning) for number, meaning in _EXIT_CODES.items())
        + "\n## Artifacts that do not load\n\n"
        "Commands end with 5, `artifact_error`. Servers count the reason in `svc_artifact_load_failures_total`, and log "
        "the [event](events.md#server-artifacts) of the stage at start. "
        "[Find the way out](../howto/recover.md#an-artifact) by the message. Stages with their reasons and classes:\n\n"
        + _load_failures()
    )


def _flags(parameter: Any) -> str:
    names = [*parameter.opts, *parameter.secondary_opts]
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    return _codes(names)


def _default(parameter: Any) -> str:
    shown = parameter.show_default if isinstance(getattr(parameter, "show_default", None), str) else parameter.default
    if parameter.required:
        return " (required)"
    if shown is None or shown is False or shown == "" or callable(shown):
        return ""
    if isinstance(shown, bool):
        return f" (default: `{parameter.opts[0]}`)"
    return f" (default: {getattr(shown, 'value', shown)})"


def _parameter_lines(command: Any) -> list[str]:
    return [
        f"- {_flags(p)}{_default(p)}: {(p.help or '').replace('<', '&lt;')}" for p in command.params if p.name != "help"
    ]


def _command(name: str, command: Any, common: list[str]) -> str:
    """Return the section of one command, without the options that have the same meaning in several."""
    lines = _parameter_lines(command)
    shared = [re.search("`.*?`", line)[0] for line in lines if line in common]  # type: ignore[index]
    notes = re.findall(r"^[^ \[\n].*", command.epilog.partition("[bold]Exit codes")[0], re.MULTILINE)
    parts = [
        f"\n## svc {name}",
        command.help,
        "\n".join(line for line in lines if line not in common),
        f"Also: {', '.join(shared)}." if shared else "",
        " ".join(notes).replace("<", "&lt;"),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def command_line() -> str:
    """docs/reference/cli.md."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    met = Counter(line for command in commands.values() for line in _parameter_lines(command))
    common = [line for line, times in met.items() if times >= _COMMON]
    return (
        f"# Command line and exit codes\n\n{NOTE}\n`svc <command> --help` adds examples and exit codes. `svc --version` prints the "
        "version. `svc --install-completion` completes commands and options in bash, zsh or fish from the next terminal on. "
        "`NO_COLOR` turns colours off.\n\n"
        "## Options of several commands\n\n"
        + "\n".join(common)
        + "\n"
        + "".join(_command(name, command, common) for name, command in commands.items())
        + _exit_codes()
    )


_SECTION = re.compile(r"(Args|Returns|Raises|Attributes):")
_AS_THE_API = frozenset({"recommend", "recommend_many", "related", "recommend_users", "popular"})
_FIELDS = {name for body in (RecommendRequest, RelatedRequest, UsersRequest) for name in body.model_fields}


def _is_told_elsewhere(function: str, section: str, name: str) -> bool:
    """Tell whether the page on the API, or the top of this one, says it for every function."""
    owner, _, method = function.rpartition(".")
    is_asking = owner == "svc.Recommender"
    error = getattr(errors, name, SvcError)
    return (section == "Args" and is_asking and method in _AS_THE_API and name in _FIELDS) or (
        section == "Raises" and (error in (SvcError, UsageError) or (is_asking and issubclass(error, ApiError)))
    )


def _paragraphs(text: str, function: str = "") -> str:
    """Return a docstring as Markdown: parameters, fields and errors as lists, the rest as it stands."""
    lines, section, is_left_out = [], "", False
    for line in text.splitlines():
        entry = re.fullmatch(r"    (\S[^:]*): (.*)", line)
        if heading := _SECTION.fullmatch(line):
            section = heading[1]
            lines += [f"**{section}**", ""] if section in ("Returns", "Raises") else []
        elif entry and section != "Returns":
            name = entry[1].removeprefix("svc.errors.")
            is_left_out = _is_told_elsewhere(function, section, name)
            if is_left_out:
                continue
            if lines and lines[-1].endswith(f"`: {entry[2]}"):
                lines[-1] = lines[-1].replace(": ", f", `{name}`: ", 1)
            else:
                lines.append(f"- `{name}`: {entry[2]}")
        elif line.startswith("        "):
            lines += [] if is_left_out else [f"  {line.strip()}"]
        else:
            lines.append(line.strip())
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip().removesuffix("**Raises**").strip()


def _parameter(parameter: inspect.Parameter) -> str:
    stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
    return f"{stars}{parameter.name}" + ("" if parameter.default is parameter.empty else f"={parameter.default!r}")


def _signature(name: str, called: Callable[..., Any]) -> str:
    """Return a block of names and defaults, or nothing if there are none. `...` stands for those of `recommend`."""
    found = [p for p in inspect.signature(called).parameters.values() if p.name != "self"]
    shared = inspect.signature(svc.Recommender.recommend).parameters.keys() - {"self", "user_id"}
    is_folded = called is not svc.Recommender.recommend and shared <= {p.name for p in found}
    found = [p for p in found if not (is_folded and p.name in shared)]
    parameters = [_parameter(p) for p in found] + ["..."] * is_folded
    by_name = [place for place, p in enumerate(found) if p.kind is p.KEYWORD_ONLY]
    if by_name:
        parameters.insert(by_name[0], "*")
    if not found:
        return ""
    lines = textwrap.wrap(f"{name}({', '.join(parameters)})", _WIDTH, subsequent_indent="    ")
    return "```text\n" + "\n".join(lines) + "\n```\n\n"


def _documented(name: str, called: Any, level: int) -> str:
    text = _paragraphs(inspect.getdoc(called) or "", name)
    return f"\n{'#' * level} {name}\n\n{_signature(name, called)}{text}\n"


def _members(owner: type) -> list[tuple[str, Any]]:
    """Public methods and properties, in the order of the code."""
    return [(name, member) for name, member in vars(owner).items() if not name.startswith("_")]


def _class(name: str, owner: type) -> str:
    """Return the section of a class: its fields and properties in a list, then its methods."""
    members = _members(owner)
    properties = [
        f"- `{member_name}`: {' '.join((inspect.getdoc(member) or '').split())}"
        for member_name, member in members
        if isinstance(member, property)
    ]
    parts = [f"\n## {name}\n\n{_paragraphs(inspect.getdoc(owner) or '')}\n"]
    if properties:
        parts.append(("\n" if "\n- " not in parts[0] else "") + "\n".join(properties) + "\n")
    for member_name, member in members:
        if inspect.isfunction(member):
            parts.append(_documented(f"{name}.{member_name}", member, 3))
    return "".join(parts)


def python() -> str:
    """docs/reference/python.md."""
    return (
        f"# Python\n\n{NOTE}\n"
        "Functions read the environment variables of the commands, log to the standard logger `svc`, and raise the "
        "[classes](cli.md#exit-codes) of `svc.errors`, `UsageError` for a wrong argument. The [notebook](../tutorial.ipynb) "
        "shows most functions, and the [page on the API](api.md#recommendations-for-a-user) explains the fields of "
        "requests.\n"
        + _documented("svc.train", svc.train, 2)
        + _class("svc.TrainResult", svc.TrainResult)
        + _documented("svc.load", svc.load, 2)
        + _class("svc.Recommender", svc.Recommender)
        + _documented("svc.compare", svc.compare, 2)
        + _class("svc.Comparison", svc.Comparison)
        + _documented("svc.experiment", svc.experiment, 2)
        + _class("svc.Experiment", svc.Experiment)
        + _documented("svc.evaluate", svc.evaluate, 2)
        + _class("svc.Evaluation", svc.Evaluation)
    )


PAGES: dict[str, Callable[[], str]] = {
    "environment.md": environment,
    "events.md": events_and_metrics,
    "cli.md": command_line,
    "python.md": python,
}

if __name__ == "__main__":
    for name, render in PAGES.items():
        (FOLDER / name).write_text(render(), encoding="utf-8")
