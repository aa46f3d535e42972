"""Scales of weights: their values, and the weights of requests."""

from __future__ import annotations

import numpy as np
import pytest

from svc.model.weight_scale import scale_of, scale_request, scale_weights

WEIGHTS = np.array([1.0, 400.0, 20.0, 20.0, 7.0, 3.0, 3.0, 3.0], np.float32)
OFFSETS = np.array([0, 4, 4, 5, 8])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none", [1, 1, 1, 1, 1, 1, 1, 1]),
        ("rank", [0.5, 1.5, 1, 1, 1, 1, 1, 1]),
        ("mean", WEIGHTS / WEIGHTS.mean()),
        ("log", np.maximum(1, 1 + np.log(WEIGHTS / np.percentile(WEIGHTS, 1)))),
    ],
)
def test_the_weights_of_several_users_are_scaled(name: str, expected: list[float]) -> None:
    """The second user has no item, the third one, and all of the fourth have one weight."""
    scaled = scale_weights(WEIGHTS, scale_of(name, WEIGHTS), OFFSETS)
    np.testing.assert_allclose(scaled, expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["none", "log", "rank", "mean"])
def test_scaled_weights_are_above_zero(name: str) -> None:
    """The least and the largest weights of a model count, since a weight of 0 is no interaction."""
    extreme = np.array([1.4e-45, 3e38], np.float32)
    scaled = scale_weights(extreme, scale_of(name, extreme), np.array([0, 2])).astype(np.float32)
    assert np.isfinite(scaled).all()
    assert (scaled > 0).all()
    assert len(scale_weights(extreme[:0], scale_of(name, extreme[:0]), np.array([0]))) == 0


def test_a_request_is_scaled_like_one_user() -> None:
    """Without a scale its weights stay, and without weights there is nothing to scale."""
    given = np.array([2.0, 8.0, 4.0])
    assert scale_request(given, None) is given
    assert scale_request(None, ("mean", 4.0)) is None
    assert scale_request(given, ("none", 1.0)) is None
    scaled = {name: scale_request(given, (name, 4.0)) for name in ("mean", "rank", "log")}
    np.testing.assert_allclose(scaled["mean"], [0.5, 2, 1])
    np.testing.assert_allclose(scaled["rank"], [0.5, 1.5, 1])
    np.testing.assert_allclose(scaled["log"], [1, 1 + np.log(2), 1])
