"""The outcome of a training as a file of metrics, for the textfile collector of Prometheus' node_exporter."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from svc.errors import ConfigError, UsageError
from svc.metrics import TRAINING_METRICS, Metric

_EXIT_CODE, _ENDED, _SECONDS, _SUCCESS = TRAINING_METRICS
_SUCCESS_LINE = re.compile(rf"^{_SUCCESS.name}\{{[^}}\n]*\}} ([0-9.]+)$", re.MULTILINE)


def check_metrics_file(path: Path) -> None:
    """Raise before a training what would only be found after it."""
    if path.suffix != ".prom":
        raise UsageError(f"--metrics-file: {path} must end in .prom, or the textfile collector does not read it")
    folder = path.absolute().parent
    if path.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(f"--metrics-file: {path} cannot be written: {folder} is missing or closed")


def write_metrics_file(path: Path, recipe: str, exit_code: int, seconds: float) -> None:
    """Put the file in place, whole. A failed run keeps the time of the last success. Raises ConfigError."""
    now = time.time()
    success = now if exit_code == 0 else _last_success(path)
    values = {_EXIT_CODE: exit_code, _ENDED: now, _SECONDS: seconds, _SUCCESS: success}
    text = "".join(_lines(metric, recipe, value) for metric, value in values.items() if value is not None)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.chmod(0o644)  # the collector runs as somebody else
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ConfigError(f"--metrics-file: {path} cannot be written: {error.strerror}") from None


def _lines(metric: Metric, recipe: str, value: float) -> str:
    return (
        f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.kind}\n"
        f'{metric.name}{{recipe="{recipe}"}} {value:.3f}\n'
    )


def _last_success(path: Path) -> float | None:
    try:
        found = _SUCCESS_LINE.search(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None
    return float(found[1]) if found else None
