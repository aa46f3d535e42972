"""The provenance of a model as an in-toto statement with the SLSA predicate, made from its verified header."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

STATEMENT: Final = "https://in-toto.io/Statement/v1"
PREDICATE: Final = "https://slsa.dev/provenance/v1"
BUILD_TYPE: Final = "urn:svc:training:v1"
BUILDER: Final = "urn:svc:train"
_PACKAGES: Final = {"irspack_version": "irspack", "sklearn_version": "scikit-learn", "numpy_version": "numpy"}
_CHOSEN: Final = ("algorithms", "metric", "cutoff", "best_class", "best_params", "best_score", "data_stats")


def statement(header: Mapping[str, Any], *, name: str, sha256: str) -> dict[str, Any]:
    """Return the statement about the artifact `name`. Fields that the header lacks are omitted."""
    versions = _renamed_fields(header, svc="svc_version", python="python_version")
    return {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": sha256}}],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": _selected_fields(header, "recipe_name", "recipe_hash", "recipe"),
                "internalParameters": _selected_fields(header, *_CHOSEN),
                "resolvedDependencies": list(_dependencies(header)),
            },
            "runDetails": {
                "builder": {"id": BUILDER, "version": {name: str(text) for name, text in versions.items()}},
                "metadata": _renamed_fields(header, invocationId="run_id", finishedOn="trained_at"),
                "byproducts": _byproducts(header),
            },
        },
    }


def _selected_fields(header: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: header[name] for name in names if name in header}


def _renamed_fields(header: Mapping[str, Any], **names: str) -> dict[str, Any]:
    """Return the fields that the header has, under new names. `names` are the old names by the new ones."""
    return {new: header[name] for new, name in names.items() if name in header}


def _dependencies(header: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the input files with their sha256, then the packages whose versions affect the results."""
    inputs = header.get("inputs")
    for item in inputs if isinstance(inputs, list) else ():
        if isinstance(item, Mapping):  # a signed header may come from a later version of svc
            yield {"name": str(item.get("name")), "digest": {"sha256": str(item.get("sha256"))}}
    for field, package in _PACKAGES.items():
        if field in header:
            yield {"uri": f"pkg:pypi/{package}@{header[field]}"}


def _byproducts(header: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the evaluation and the promotion decision if the header has them."""
    return [{"name": name, "annotations": header[name]} for name in ("evaluation", "promotion") if name in header]
