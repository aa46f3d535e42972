"""Build a model that can answer from the verified parts of an artifact."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Literal

from svc import events, logs
from svc.errors import ArtifactError, FeatureVersionMismatch, PayloadInvalid, RehearsalFailed, VersionSkew
from svc.model.codec import decode
from svc.model.features import FEATURE_VERSION
from svc.model.model import Model

_SKEW_EVENTS = {"allowed": events.IRSPACK_VERSION_SKEW_ALLOWED, "unknown": events.IRSPACK_VERSION_UNKNOWN}
Minor = tuple[int, int]

_VERIFIED: Final = frozenset(
    {
        "CosineKNNRecommender",
        "TopPopRecommender",
        "RP3betaRecommender",
        "DenseSLIMRecommender",
        "TruncatedSVDRecommender",
    }
)
COMPATIBLE: Final[Mapping[frozenset[Minor], frozenset[str]]] = {frozenset({(0, 4), (0, 5)}): _VERIFIED}
_MINOR = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})(?![0-9])")


@dataclass(frozen=True, slots=True)
class SkewResult:
    """The reason for which a header's irspack version was accepted.

    The caller logs `irspack_version_skew_allowed` for "allowed", `irspack_version_unknown` for "unknown", and nothing
    for "compatible".
    """

    outcome: Literal["compatible", "allowed", "unknown"]
    artifact_version: str | None
    running_version: str


@cache
def running_irspack_version() -> str:
    """Return the installed irspack's version, or "" without one. Reads its metadata: importing irspack takes longer."""
    try:
        return version("irspack")
    except PackageNotFoundError:
        return ""


def check_version_skew(header: Mapping[str, Any], running: str, *, allow: bool) -> SkewResult:
    """Compare the header's `irspack_version` with the `running` one.

    A missing or unreadable version passes as "unknown". Raises VersionSkew for a combination that is not in
    `COMPATIBLE`, unless `allow`.
    """
    trained = header.get("irspack_version")
    theirs, ours = _minor(trained), _minor(running)
    shown = trained if isinstance(trained, str) else None
    if theirs is None or ours is None:
        return SkewResult("unknown", shown, running)
    if theirs == ours or all(_is_verified(name, theirs, ours) for name in _classes(header)):
        return SkewResult("compatible", shown, running)
    if allow:
        return SkewResult("allowed", shown, running)
    raise VersionSkew(
        f"irspack version skew: {_class(header)} was trained with {trained} and this server has {running}, "
        "a transition that is not verified for it; retrain with the serving host's version"
    )


def _classes(header: Mapping[str, Any]) -> list[object]:
    """Return the recommender classes in the payload: the classes of a blend's parts, or the best class."""
    parts = header.get("parts")
    names = [part.get("class") for part in parts if isinstance(part, Mapping)] if isinstance(parts, list) else []
    return names or [header.get("best_class")]


def _minor(text: object) -> Minor | None:
    match = _MINOR.match(text) if isinstance(text, str) else None
    return (int(match[1]), int(match[2])) if match else None


def _is_verified(best_class: object, theirs: Minor, ours: Minor) -> bool:
    return isinstance(best_class, str) and best_class in COMPATIBLE.get(frozenset({theirs, ours}), frozenset())


def _class(header: Mapping[str, Any]) -> str:
    best_class = header.get("best_class")
    return best_class if isinstance(best_class, str) else "a model of unnamed class"


def check_feature_version(header: Mapping[str, Any]) -> None:
    """Check that this build can read the encoder state, if there is one.

    Raises FeatureVersionMismatch if `features.version` is missing, not an integer, or another version.
    """
    features = header.get("features")
    if features is None:
        return
    trained = features.get("version") if isinstance(features, Mapping) else None
    if type(trained) is not int:
        raise FeatureVersionMismatch("feature version check failed: features.version is missing or not an integer")
    if trained != FEATURE_VERSION:
        raise FeatureVersionMismatch(
            f"feature version check failed: the artifact has version {trained}, this build implements {FEATURE_VERSION}"
        )


def load_model(header: Mapping[str, Any], payload: memoryview, *, name: str, allow_skew: bool) -> Model:
    """Return the decoded model, ready to be rehearsed. Call it only on parts with a verified signature.

    `name` appears in log records. The model's arrays are views of `payload`. Raises a subclass of ArtifactError.
    """
    _check_versions(name, header, allow_skew=allow_skew)
    model = decode(payload)
    if not isinstance(model, Model):
        raise PayloadInvalid(f"payload: holds {type(model).__name__}, not a model")
    _make_ready(model, header)
    return model


def _check_versions(name: str, header: Mapping[str, Any], *, allow_skew: bool) -> None:
    skew = check_version_skew(header, running_irspack_version(), allow=allow_skew)
    event = _SKEW_EVENTS.get(skew.outcome)
    if event is not None:
        logs.emit(event, name=name, artifact_version=skew.artifact_version, running_version=skew.running_version)
    check_feature_version(header)


def _make_ready(model: Model, header: Mapping[str, Any]) -> None:
    """Compute the derived data. Any failure becomes an ArtifactError: all values come from the payload."""
    try:
        model.check_features(header)
        model.ready()
    except (ArtifactError, MemoryError):
        raise
    except Exception as error:
        raise RehearsalFailed(
            f"rehearsal: the model cannot be made ready: {type(error).__name__}: {error!s:.100}"
        ) from error
