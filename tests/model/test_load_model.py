"""From the verified parts of an artifact to a model: refusals and warnings."""

from __future__ import annotations

from importlib.metadata import version

import numpy as np
import pytest
import structlog

from svc.errors import FeatureVersionMismatch, PayloadInvalid, VersionSkew
from svc.model.codec import encode
from svc.model.features import FEATURE_VERSION
from svc.model.history import History
from svc.model.load_model import (
    SkewResult,
    check_feature_version,
    check_version_skew,
    load_model,
    running_irspack_version,
)
from tests.families import family
from tests.serving.artifacts import header


def payload(value: object) -> memoryview:
    return memoryview(b"".join(bytes(piece) for piece in encode(value)))


def test_an_opened_model_answers() -> None:
    """The model is ready and rehearsed, and its arrays are views of the given bytes."""
    model = family("neighbours")
    opened = load_model(header(), payload(model), name="a", allow_skew=False)
    query = model.prepare_recommend(user_id="u3", user_features=None, limit=5).query
    assert opened.rank([query])[0].items.tolist() == model.rank([query])[0].items.tolist()


def test_a_payload_that_is_no_model_is_refused() -> None:
    """A payload of any other allowed object is refused."""
    history = History(np.array([0, 0], dtype=np.int64), np.empty(0, dtype=np.int32))
    with pytest.raises(PayloadInvalid, match="holds History, not a model"):
        load_model(header(), payload(history), name="a", allow_skew=False)


def test_an_unverified_version_is_refused_or_logged() -> None:
    """It is refused before the payload is decoded, or with the setting logged as an event with both versions."""
    head = header(irspack_version="0.1.0", best_class="IALSRecommender")
    with pytest.raises(VersionSkew):
        load_model(head, memoryview(b"not decoded"), name="a", allow_skew=False)
    with structlog.testing.capture_logs() as records:
        load_model(head, payload(family("SVD")), name="a", allow_skew=True)
    assert [(record["event"], record["artifact_version"]) for record in records] == [
        ("irspack_version_skew_allowed", "0.1.0")
    ]


VERIFIED = [
    "CosineKNNRecommender",
    "TopPopRecommender",
    "RP3betaRecommender",
    "DenseSLIMRecommender",
    "TruncatedSVDRecommender",
]


def header_of(version: object, best_class: object = "IALSRecommender") -> dict[str, object]:
    return {"irspack_version": version, "best_class": best_class}


@pytest.mark.parametrize("trained", ["0.5.0", "0.5.9", "0.5", "0.5.2rc1", "0.5.2.dev3+g1234"])
@pytest.mark.parametrize("best_class", ["IALSRecommender", "BPRFMRecommender", None])
def test_patch_versions_are_compatible(trained: str, best_class: object) -> None:
    """Every class loads within one major.minor version."""
    assert check_version_skew(header_of(trained, best_class), "0.5.2", allow=False).outcome == "compatible"


@pytest.mark.parametrize(("trained", "running"), [("0.4.7", "0.5.2"), ("0.5.2", "0.4.7")])
@pytest.mark.parametrize("best_class", VERIFIED)
def test_verified_transitions_load_both_ways(trained: str, running: str, best_class: str) -> None:
    """The five verified classes load between 0.4 and 0.5, in either direction."""
    assert check_version_skew(header_of(trained, best_class), running, allow=False).outcome == "compatible"


@pytest.mark.parametrize(("trained", "running"), [("0.4.7", "0.5.2"), ("0.5.2", "0.4.7")])
@pytest.mark.parametrize(
    "best_class", ["IALSRecommender", "BPRFMRecommender", "Unheard", "", None, 5, ["TopPopRecommender"]]
)
def test_unverified_classes_are_refused_between_minors(trained: str, running: str, best_class: object) -> None:
    """Known breaks, unverified classes and headers without a class are refused. The error names both versions."""
    with pytest.raises(VersionSkew, match=rf"^irspack version skew: .*{trained}.*{running}"):
        check_version_skew(header_of(trained, best_class), running, allow=False)


@pytest.mark.parametrize(
    ("trained", "running"), [("0.5.2", "0.6.0"), ("0.4.0", "0.6.0"), ("1.5.2", "0.5.2"), ("0.50.1", "0.5.0")]
)
@pytest.mark.parametrize("best_class", VERIFIED)
def test_other_transitions_are_refused(trained: str, running: str, best_class: str) -> None:
    """A class is verified only for its own transition."""
    with pytest.raises(VersionSkew):
        check_version_skew(header_of(trained, best_class), running, allow=False)


def test_a_refusal_can_be_turned_into_a_warning() -> None:
    """With `allow`, the check passes and returns the event to log."""
    result = check_version_skew(header_of("0.4.1"), "0.5.2", allow=True)
    assert result == SkewResult("allowed", "0.4.1", "0.5.2")


@pytest.mark.parametrize(
    ("trained", "running"),
    [(None, "0.5.2"), (5, "0.5.2"), ("", "0.5.2"), ("five", "0.5.2"), ("1", "0.5.2"), ("0.5.2", "")],
)
def test_versions_that_cannot_be_compared_pass_with_a_warning(trained: object, running: str) -> None:
    """Missing and unreadable versions load with a warning."""
    assert check_version_skew(header_of(trained), running, allow=False).outcome == "unknown"
    assert check_version_skew({}, "0.5.2", allow=False) == SkewResult("unknown", None, "0.5.2")


def test_the_running_version_is_that_of_the_installed_package() -> None:
    """The version comes from package metadata."""
    assert running_irspack_version() == version("irspack")


def test_without_features_there_is_no_version_to_check() -> None:
    """An artifact without encoder state passes, and so does one of this build's version."""
    check_feature_version({})
    check_feature_version({"features": None})
    check_feature_version({"features": {"version": FEATURE_VERSION}})


@pytest.mark.parametrize(
    "features", [{}, {"version": None}, {"version": "1"}, {"version": 1.0}, {"version": True}, [], "1", 1]
)
def test_a_features_version_that_is_no_integer_is_refused(features: object) -> None:
    """Missing, textual, fractional and boolean versions are refused, and so is a block that is no map."""
    with pytest.raises(FeatureVersionMismatch, match=r"^feature version check failed: "):
        check_feature_version({"features": features})


@pytest.mark.parametrize("found", [FEATURE_VERSION - 1, FEATURE_VERSION + 1, 1 << 70])
def test_another_features_version_is_refused(found: int) -> None:
    """Older and newer encoder states are refused alike."""
    with pytest.raises(FeatureVersionMismatch, match=f"version {found}, this build implements {FEATURE_VERSION}"):
        check_feature_version({"features": {"version": found}})


def test_every_part_must_be_verified() -> None:
    """A neighbour model with an iALS part for cold starts is refused if iALS is."""
    parts = [{"class": "CosineKNNRecommender"}, {"class": "IALSRecommender"}]
    head = {"irspack_version": "0.4.3", "best_class": "CosineKNNRecommender"}
    assert check_version_skew(head, "0.5.1", allow=False).outcome == "compatible"
    with pytest.raises(VersionSkew):
        check_version_skew({**head, "parts": parts}, "0.5.1", allow=False)
    assert check_version_skew({**head, "parts": parts[:1]}, "0.5.1", allow=False).outcome == "compatible"
