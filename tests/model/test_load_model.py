"""From the verified parts of an artifact to a model: what is refused, and what is only said."""

from __future__ import annotations

import numpy as np
import pytest
import structlog

from svc.errors import PayloadInvalid, VersionSkew
from svc.model.codec import encode
from svc.model.history import History
from svc.model.load_model import load_model
from tests.families import family
from tests.serving.artifacts import header


def payload(value: object) -> memoryview:
    return memoryview(b"".join(bytes(piece) for piece in encode(value)))


def test_an_opened_model_answers() -> None:
    """Ready and rehearsed, over the bytes that it was given."""
    model = family("neighbours")
    opened = load_model(header(), payload(model), name="a", allow_skew=False)
    query = model.prepare_recommend(user_id="u3", user_features=None, limit=5).query
    assert opened.rank([query])[0].items.tolist() == model.rank([query])[0].items.tolist()


def test_a_payload_that_is_no_model_is_refused() -> None:
    """A payload of any other allowed object is refused."""
    history = History(np.array([0, 0], dtype=np.int64), np.empty(0, dtype=np.int32))
    with pytest.raises(PayloadInvalid, match="holds History, not a model"):
        load_model(header(), payload(history), name="a", allow_skew=False)


def test_an_unverified_version_is_refused_or_said() -> None:
    """Refused before the payload is looked at; with the setting it is an event with both versions."""
    head = header(irspack_version="0.1.0", best_class="IALSRecommender")
    with pytest.raises(VersionSkew):
        load_model(head, memoryview(b"not decoded"), name="a", allow_skew=False)
    with structlog.testing.capture_logs() as records:
        load_model(head, payload(family("SVD")), name="a", allow_skew=True)
    assert [(record["event"], record["artifact_version"]) for record in records] == [
        ("irspack_version_skew_allowed", "0.1.0")
    ]
