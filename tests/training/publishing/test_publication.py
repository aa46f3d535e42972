"""The last step of a training: writing the artifact, and its warnings."""

from __future__ import annotations

from typing import Any

from svc.settings import Settings
from tests.training.test_run import Make, run, small_training


def test_an_artifact_above_the_size_limit_of_servers_causes_a_warning(
    make_recipe: Make, log: list[dict[str, Any]]
) -> None:
    """The artifact is written all the same."""
    result = run(make_recipe(training=small_training()), Settings(max_payload_bytes=1000))
    warning = next(record for record in log if record["event"] == "artifact_payload_exceeds_serve_cap")
    assert result.exit_code == 0
    assert warning["setting"] == "SVC_MAX_PAYLOAD_BYTES"
