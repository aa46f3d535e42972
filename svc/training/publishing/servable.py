"""The last check of a training, before anything is written: load and rehearse the model as a server would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from svc.errors import ArtifactError, ModelNotServable
from svc.model.load_model import load_model, rehearse


def require_servable(header: Mapping[str, Any], payload: Sequence[bytes | memoryview], *, name: str) -> None:
    """Raise ModelNotServable if a server would not load an artifact with this header and payload.

    `payload` is in pieces, as `codec.encode` returns it. The check needs memory for a second copy of it.
    """
    try:
        rehearse(load_model(header, memoryview(b"".join(payload)), name=name, allow_skew=False))
    except ArtifactError as error:
        raise ModelNotServable(
            f"the trained model is not written, as no server would load it: {error.message}. "
            "Look for extreme values among the weights and the features"
        ) from error
