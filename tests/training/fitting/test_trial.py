"""Parameters and recencies of a trial."""

from __future__ import annotations

from dataclasses import replace

from svc.training.fitting.trial import TrialRecord

IALS = TrialRecord(0, "IALSRecommender", {"n_components": 4}, "complete", 0.1, {"ndcg": 0.1}, 7, 1.0, recency=0.2)
POPULARITY = TrialRecord(1, "TopPopRecommender", {}, "complete", 0.1, {"ndcg": 0.1}, None, 1.0)


def test_the_final_parameters_have_the_epochs_that_validation_chose() -> None:
    assert IALS.final_params == {"n_components": 4, "train_epochs": 7}
    assert POPULARITY.final_params == {}


def test_recency_by_part_ignores_popularity() -> None:
    """Popularity does not read the history of a user."""
    blend = replace(IALS, algorithm="Blend", parts=(IALS, replace(IALS, recency=0.5), POPULARITY), recency=0.5)
    assert blend.recency_by_part
    assert not replace(blend, parts=(IALS, POPULARITY)).recency_by_part
    alike = blend.at_recency(0.3)
    assert not alike.recency_by_part
    assert [part.recency for part in (alike, *alike.parts)] == [0.3] * 4
