"""The in-toto statement of an artifact."""

from __future__ import annotations

import json

from svc.artifact.provenance import statement

HEADER = {
    "recipe_name": "movies",
    "recipe_hash": "0123456789ab",
    "recipe": {"name": "movies"},
    "inputs": [{"name": "ratings.csv", "sha256": "ab" * 32}],
    "irspack_version": "0.5.2",
    "numpy_version": "2.4.6",
    "sklearn_version": "1.9.1",
    "svc_version": "2.2.0",
    "python_version": "3.11.7",
    "run_id": "r1",
    "trained_at": "2026-11-22T00:00:00+00:00",
    "best_class": "TopPopRecommender",
    "evaluation": {"ndcg": 0.5},
    "promotion": {"decision": "promoted"},
    "serial": 5,
}


def test_the_statement_has_inputs_builder_and_decision() -> None:
    """The statement has the form of in-toto's v1 with the SLSA predicate."""
    found = statement(HEADER, name="movies.svc", sha256="cd" * 32)
    assert found["_type"] == "https://in-toto.io/Statement/v1"
    assert found["predicateType"] == "https://slsa.dev/provenance/v1"
    assert found["subject"] == [{"name": "movies.svc", "digest": {"sha256": "cd" * 32}}]
    build, run = found["predicate"]["buildDefinition"], found["predicate"]["runDetails"]
    assert build["externalParameters"]["recipe_hash"] == "0123456789ab"
    assert build["resolvedDependencies"] == [
        {"name": "ratings.csv", "digest": {"sha256": "ab" * 32}},
        {"uri": "pkg:pypi/irspack@0.5.2"},
        {"uri": "pkg:pypi/scikit-learn@1.9.1"},
        {"uri": "pkg:pypi/numpy@2.4.6"},
    ]
    assert run["builder"]["version"] == {"svc": "2.2.0", "python": "3.11.7"}
    assert run["metadata"] == {"invocationId": "r1", "finishedOn": "2026-11-22T00:00:00+00:00"}
    assert {"name": "promotion", "annotations": {"decision": "promoted"}} in run["byproducts"]
    json.dumps(found, allow_nan=False)


def test_missing_and_invalid_fields_are_left_out() -> None:
    """Old artifacts have no digests and no decision. Values of an unexpected type are ignored."""
    for header in ({}, {"inputs": None}, {"inputs": 5}, {"inputs": ["x", None]}, {"evaluation": {}}):
        found = statement(header, name="a.svc", sha256="cd" * 32)
        build = found["predicate"]["buildDefinition"]
        assert (build["externalParameters"], build["internalParameters"], build["resolvedDependencies"]) == ({}, {}, [])
        assert found["subject"][0]["digest"] == {"sha256": "cd" * 32}
