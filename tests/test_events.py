"""The table of events."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from svc import events
from svc.events import EVENTS, Event, _event

SVC = Path(events.__file__).parent

SPECIFIED = """
training_started fetching_data data_fetched data_cleansed splitting_data split_done search_started search_done
training_final_model final_model_trained artifact_written train_done train_error recipe_lock_contended_skipping
recipe_lock_local_only csv_source_redirect metadata_source_redirect csv_source_size_exceeded
metadata_source_size_exceeded artifact_payload_exceeds_serve_cap feature_vocabulary_pruned
feature_empty_vocabulary_column feature_axis_coverage bigquery_storage_fallback security.posture serve_shutdown
recipe_discovered recipe_removed recipe_security_violation_skipped recipe_load_error_skipped
recipe_not_loaded_at_startup recipe_not_found size_cap_probe_failed auth_anonymous_bypass
auth_anonymous_bypass_first_seen auth_invalid_key kid_extraction_failed artifact_stat_timeout sidecar_disappeared
artifact_disappeared artifact_load_failed artifact_load_unexpected_error artifact_load_error_cleared
artifact_recipe_hash_mismatch irspack_version_skew_allowed initial_artifact_read_failed initial_artifact_read_error
initial_artifact_parse_failed initial_artifact_hmac_failed initial_artifact_deserialize_failed
initial_artifact_hmac_skipped_dev
"""


@pytest.mark.parametrize("name", SPECIFIED.split())
def test_every_specified_event_exists(name: str) -> None:
    """Dashboards and alerts are built on these names."""
    assert name in events.EVENTS


def test_constants_are_named_as_their_events() -> None:
    """Every event of the table is a constant of the module `events`, and every such constant is in the table."""
    constants = {value for value in vars(events).values() if isinstance(value, events.Event)}
    assert constants == set(events.EVENTS.values())


def test_no_field_has_a_name_that_is_redacted() -> None:
    """The redaction of secret names would hide the value of such a field."""
    from svc import logs

    for event in events.EVENTS.values():
        shown = logs.redact(None, "", dict.fromkeys(event.fields, "plain"))
        assert logs.REDACTED not in shown.values(), event.name


def test_every_event_is_emitted_somewhere() -> None:
    """The package uses every event of the table."""
    code = "\n".join(path.read_text(encoding="utf-8") for path in SVC.rglob("*.py"))
    names = {name for name, value in vars(events).items() if isinstance(value, events.Event)}
    assert names - set(re.findall(r"\bevents\.(\w+)", code)) == set()


def test_fields_of_calls_are_in_the_table() -> None:
    """Every call that emits an event passes only fields that the table lists, and `exc_info`."""
    unknown = [
        (f"{path.name}:{call.lineno}", keyword.arg)
        for path in SVC.rglob("*.py")
        if "emit(" in (text := path.read_text(encoding="utf-8"))
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("emit")
        if isinstance(name := call.args[0], ast.Attribute)
        if isinstance(event := getattr(events, name.attr, None), events.Event)
        for keyword in call.keywords
        if keyword.arg not in (None, "exc_info", *event.fields)
    ]
    assert unknown == []


def test_each_event_is_in_the_table_with_its_fields() -> None:
    """The table has each event under its name, with a tuple of its fields."""
    assert EVENTS is events.EVENTS
    assert EVENTS["train_done"] is events.TRAIN_DONE
    assert isinstance(events.TRAIN_DONE, Event)
    assert "exit_code" in events.TRAIN_DONE.fields
    assert events.FETCHING_DATA.fields == ()


def test_a_repeated_event_name_is_refused() -> None:
    """A second event of the same name would silently replace the first."""
    with pytest.raises(ValueError, match="train_done is declared twice"):
        _event("train_done", "info", "")
