"""svc turns a recipe into a recommendation API: `svc train` writes one signed file, `svc serve` answers from it.

Python programs and notebooks use `svc.train`, `svc.load` and `svc.evaluate`. Their libraries are imported on first
use, so that `svc --help` stays light.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from typing import Any

__version__ = "2.1.2"
DISTRIBUTION = "svc-recommender"
"""The name of the distribution. It is on no package index, and `svc` is the name of another project there."""


def install_command(extra: str) -> str:
    """Return the way to install an extra, for messages. The single-file build of svc takes no packages."""
    if getattr(sys, "frozen", False):
        return f"this one file lacks the extra {extra}; run svc from its Python package or container with it"
    return f"python -m pip install '.[{extra}]' in a copy of svc's repository"


_OFFERED = {
    "train": "svc.library.training",
    "TrainResult": "svc.library.training",
    "load": "svc.library.recommender",
    "Recommender": "svc.library.recommender",
    "compare": "svc.library.comparison",
    "Comparison": "svc.library.comparison",
    "evaluate": "svc.library.evaluation",
    "Evaluation": "svc.library.evaluation",
    "experiment": "svc.library.experiment",
    "Experiment": "svc.library.experiment",
}
__all__ = [*sorted(_OFFERED), "errors"]  # noqa: PLE0604 - every key is text


_ELSEWHERE = {
    "fit": "svc.train(table) trains a model",
    **dict.fromkeys(
        ("predict", "recommend", "transform"), "svc.train(table).recommender.recommend(user_id) recommends"
    ),
    **dict.fromkeys(
        ("similar", "related", "recommend_related"),
        "svc.train(table).recommender.similar_items(item_id) has similar items",
    ),
    "evaluate": "svc.evaluate(recommender, table) judges a model",
    "save": "svc.train(table, output={'path': 'shop.svc'}) writes the model",
}
"""svc's way to do what other libraries do by a method, by the name of the method."""


def lacks(owner: str, name: str) -> AttributeError:
    """Return the error for an attribute that `owner` lacks, with svc's way if another library has it."""
    hint = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
    return AttributeError(f"{owner} has no attribute {name!r}{hint}")


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("svc.errors")
    if name not in _OFFERED:
        raise lacks("module 'svc'", name)
    with warnings.catch_warnings():  # optuna imports tqdm, which warns in notebooks without widgets
        warnings.filterwarnings("ignore", "IProgress not found")
        return getattr(import_module(_OFFERED[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
