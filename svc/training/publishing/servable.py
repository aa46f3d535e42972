"""The last check of a training: open and rehearse the model as a server would, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from svc.errors import ArtifactError, ModelNotServable
from svc.model.load_model import load_model
from svc.model.rehearsal import rehearse


def require_servable(header: Mapping[str, Any], payload: Sequence[bytes | memoryview], *, name: str) -> None:
    """Return if a server would load an artifact of this header and payload, else raise ModelNotServable.

    `payload` is in pieces, as `codec.encode` returns it. The check holds a second copy in memory for a moment.
    """
    try:
        rehearse(load_model(header, memoryview(b"".join(payload)), name=name, allow_skew=False))
    except ArtifactError as error:
        raise ModelNotServable(
            f"the trained model is not written, as no server would load it: {error.message}. "
            "Look for extreme values among the weights and the features"
        ) from error
