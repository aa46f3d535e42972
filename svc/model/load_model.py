"""From the verified parts of an artifact to a model that can answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from svc import events, logs
from svc.errors import ArtifactError, PayloadInvalid, RehearsalFailed
from svc.model.codec import decode
from svc.model.model import Model
from svc.model.skew import check_feature_version, check_version_skew, running_irspack_version

_SKEW_EVENTS = {"allowed": events.IRSPACK_VERSION_SKEW_ALLOWED, "unknown": events.IRSPACK_VERSION_UNKNOWN}


def load_model(header: Mapping[str, Any], payload: memoryview, *, name: str, allow_skew: bool) -> Model:
    """The model, ready to be rehearsed. Call it only on parts whose signature held.

    `name` stands in log records. The model's arrays are views of `payload`. Raises ArtifactError in one of its forms.
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
    """Compute what the payload does not store. Any failure is an ArtifactError: all values are the payload's."""
    try:
        model.check_features(header)
        model.ready()
    except (ArtifactError, MemoryError):
        raise
    except Exception as error:
        raise RehearsalFailed(
            f"rehearsal: the model cannot be made ready: {type(error).__name__}: {error!s:.100}"
        ) from error
