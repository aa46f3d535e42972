"""The outcome of a training as a file of metrics, for the textfile collector of Prometheus' node_exporter."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from svc.atomic_write import replace_file
from svc.errors import ConfigError, UsageError
from svc.metrics import TRAINING_METRICS, Metric

_EXIT_CODE, _ENDED, _SECONDS, _SUCCESS, _PROMOTIONS = TRAINING_METRICS
_DECISIONS = ("promoted", "refused")
_WELL = (0, 9)
"""Exit codes of trainings that did what they should: 9 wrote a model that was refused."""
_SUCCESS_LINE = re.compile(rf"^{_SUCCESS.name}\{{[^}}\n]*\}} ([0-9.]+)$", re.MULTILINE)
_PROMOTION_LINE = re.compile(
    rf'^{_PROMOTIONS.name}\{{recipe="[^"\n]*",decision="(promoted|refused)"\}} ([0-9.]+)$', re.MULTILINE
)


def check_metrics_file(path: Path) -> None:
    """Check before a training that the file of metrics can be written after it. Raises ConfigError."""
    if path.suffix != ".prom":
        raise UsageError(f"--metrics-file: {path} must end in .prom, or the textfile collector does not read it")
    folder = path.absolute().parent
    if path.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(f"--metrics-file: {path} cannot be written: {folder} is missing or closed")


def write_metrics_file(path: Path, recipe: str, exit_code: int, seconds: float, decision: str | None = None) -> None:
    """Put the file in place, whole.

    A failed run keeps the time of the last success. `decision` is added to the decisions that the file has counted so
    far. Raises ConfigError.
    """
    now, before = time.time(), _content(path)
    success = now if exit_code in _WELL else _last_success(before)
    values = {_EXIT_CODE: exit_code, _ENDED: now, _SECONDS: seconds, _SUCCESS: success}
    text = "".join(_lines(metric, {"recipe": recipe}, value) for metric, value in values.items() if value is not None)
    text += _promotions(recipe, decision, before)
    try:
        replace_file(path, text.encode(), mode=0o644, durable=False)  # the collector runs as another user
    except OSError as error:
        raise ConfigError(f"--metrics-file: {path} cannot be written: {error.strerror}") from None


def _lines(metric: Metric, labels: Mapping[str, str], value: float) -> str:
    return f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.kind}\n" + _line(metric, labels, value)


def _line(metric: Metric, labels: Mapping[str, str], value: float) -> str:
    shown = ",".join(f'{name}="{label}"' for name, label in labels.items())
    return f"{metric.name}{{{shown}}} {value:.3f}\n"


def _promotions(recipe: str, decision: str | None, before: str) -> str:
    """Return both counts once there was any decision.

    A series that begins at 1 has no increase, so the other decision starts at 0.
    """
    counted = {match[1]: float(match[2]) for match in _PROMOTION_LINE.finditer(before)}
    if decision is None and not counted:
        return ""
    first, second = (
        (_PROMOTIONS, {"recipe": recipe, "decision": name}, counted.get(name, 0.0) + (name == decision))
        for name in _DECISIONS
    )
    return _lines(*first) + _line(*second)


def _content(path: Path) -> str:
    """Return the text that the last run wrote, or "" if the file cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _last_success(before: str) -> float | None:
    match = _SUCCESS_LINE.search(before)
    return float(match[1]) if match else None
