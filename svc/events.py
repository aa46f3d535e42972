"""The name, level and fields of every event that svc logs. `docs/reference/events.md` is checked against this table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Event:
    """One kind of log record: `fields` are those that it always carries; others may join them."""

    name: str
    level: Level
    fields: tuple[str, ...]
    help: str


EVENTS: dict[str, Event] = {}


def _event(name: str, level: Level, fields: str, help: str) -> Event:
    event = Event(name, level, tuple(fields.split()), help)
    EVENTS[name] = event
    return event


# Training, in the order in which a run emits them.
TRAINING_STARTED = _event("training_started", "info", "recipe run_id", "A run begins.")
RECIPE_LOCK_LOCAL_ONLY = _event(
    "recipe_lock_local_only", "warning", "recipe output lock", "The lock of a remote output guards this host only."
)
RECIPE_LOCK_CONTENDED_SKIPPING = _event(
    "recipe_lock_contended_skipping", "info", "recipe run_id", "Another run holds the lock; this one ends with 0."
)
FETCHING_DATA = _event("fetching_data", "info", "", "The source is about to be read.")
DATA_FETCHED = _event("data_fetched", "info", "n_rows", "The source has been read.")
DATA_CLEANSED = _event("data_cleansed", "info", "n_rows drop_count", "Rows left after cleansing, and dropped by it.")
SPLITTING_DATA = _event("splitting_data", "info", "", "The validation split begins.")
SPLIT_DONE = _event("split_done", "info", "val_offset", "Row of the first validation user in the training matrix.")
SEARCH_STARTED = _event("search_started", "info", "algorithms n_trials", "The hyperparameter search begins.")
TRIAL_DONE = _event("trial_done", "info", "number algorithm state score best_score", "One trial ended.")
TRIAL_PARAMETERS = _event("trial_parameters", "info", "number algorithm params", "With --verbose: values of a trial.")
SEARCH_DONE = _event("search_done", "info", "best_class best_score n_completed", "The search ended with a winner.")
SEARCH_ONLY_DONE = _event(
    "search_only_done", "info", "run_id n_completed", "With --search-only: the budget is used, nothing is refitted."
)
TRAINING_FINAL_MODEL = _event("training_final_model", "info", "recommender", "The winner is refitted on all data.")
FINAL_MODEL_TRAINED = _event("final_model_trained", "info", "recommender", "The refit ended.")
COLD_START_EVALUATED = _event(
    "cold_start_evaluated",
    "info",
    "side metric score popularity_score",
    "Held-out ids were scored from features alone.",
)
ARTIFACT_WRITTEN = _event(
    "artifact_written", "info", "versioning artifact kid artifact_bytes payload_bytes", "The artifact is in place."
)
ARTIFACT_PAYLOAD_EXCEEDS_SERVE_CAP = _event(
    "artifact_payload_exceeds_serve_cap",
    "warning",
    "artifact_bytes payload_bytes max_artifact_bytes max_payload_bytes setting",
    "A server with this host's settings would refuse the file: raise SVC_MAX_PAYLOAD_BYTES there.",
)
REPORT_WRITTEN = _event("report_written", "info", "path", "The HTML report of the run is in place.")
TRAIN_DONE = _event(
    "train_done",
    "info",
    "name run_id exit_code artifact best_class best_score trials n_orphaned trained_at kid recipe_hash"
    " n_rows n_users n_items",
    "The run ended well.",
)
TRAIN_ERROR = _event(
    "train_error", "error", "error code name run_id exit_code trained_at", "The run failed; always the last line."
)
TRAIN_INTERRUPTED = _event(
    "train_interrupted", "warning", "name run_id exit_code kept", "A signal ended the run; says what was kept."
)
ALGORITHM_DUPLICATE = _event(
    "algorithm_duplicate_ignored", "warning", "algorithm", "An algorithm is listed twice; the second is ignored."
)
ALGORITHM_SKIPPED = _event(
    "algorithm_skipped",
    "warning",
    "algorithm reason",
    "A listed algorithm gets no trial: no budget, or no memory for it.",
)
RECIPE_WARNING = _event(
    "recipe_warning", "warning", "code field message", "Something in the recipe works, but hardly as meant."
)
DATA_LOST_ROWS = _event(
    "rows_dropped", "info", "reason count", "Cleansing dropped rows for one reason (null ids, duplicates, bad times)."
)
TRIAL_TIMED_OUT = _event(
    "trial_timed_out", "warning", "number algorithm seconds", "A trial went over its time and was left behind."
)
TRIAL_FAILED = _event("trial_failed", "warning", "number algorithm error", "One trial failed; the search goes on.")

# Sources.
CSV_SOURCE_REDIRECT = _event("csv_source_redirect", "info", "from_ to status", "A data fetch was redirected.")
CSV_SOURCE_SIZE_EXCEEDED = _event(
    "csv_source_size_exceeded", "error", "path bytes_read cap", "A data fetch reached its byte cap."
)
METADATA_SOURCE_REDIRECT = _event(
    "metadata_source_redirect", "info", "from_ to status", "A metadata fetch was redirected."
)
METADATA_SOURCE_SIZE_EXCEEDED = _event(
    "metadata_source_size_exceeded", "error", "path bytes_read cap", "A metadata fetch reached its byte cap."
)
BIGQUERY_STORAGE_FALLBACK = _event(
    "bigquery_storage_fallback", "warning", "reason", "The fast read path is unavailable; rows come over REST."
)

# Features.
FEATURE_VOCABULARY_PRUNED = _event(
    "feature_vocabulary_pruned",
    "warning",
    "column min_frequency distinct_values kept_values rows_without_signal n_rows",
    "Pruning left 20% or more of a column's rows without signal.",
)
FEATURE_EMPTY_VOCABULARY_COLUMN = _event(
    "feature_empty_vocabulary_column", "warning", "column side", "A declared column encodes to nothing."
)
FEATURE_AXIS_COVERAGE = _event(
    "feature_axis_coverage", "info", "side matched total", "How many ids of the interactions have features."
)
FEATURE_ROWS_DROPPED = _event(
    "feature_rows_dropped", "warning", "side duplicates blank_ids", "Rows of a feature table that cannot be used."
)

# Serving: life of the process.
SECURITY_POSTURE = _event(
    "security.posture", "info", "signing_keys", "At start: kid and fingerprint of each key, and what is open."
)
SERVE_STARTED = _event("serve_started", "info", "host port recipes", "The server accepts connections at this address.")
SERVE_DRAINING = _event("serve_draining", "info", "signal drain_seconds", "A signal began the drain.")
SERVE_SHUTDOWN = _event("serve_shutdown", "info", "drain_seconds", "The drain ended.")
UNSAFE_MODE_ACTIVE = _event("unsafe_mode_active", "warning", "modes", "Repeated while an unsafe mode is on.")

# Serving: recipes.
RECIPE_DISCOVERED = _event("recipe_discovered", "info", "name file", "A recipe file appeared.")
RECIPE_REMOVED = _event("recipe_removed", "info", "name", "A recipe file vanished.")
RECIPE_CHANGED = _event("recipe_changed", "info", "name file", "A served recipe file changed and was read again.")
RECIPE_DUPLICATE_NAME = _event(
    "recipe_duplicate_name", "warning", "name file kept", "Two files carry one name; the first by file name is served."
)
RECIPE_SECURITY_VIOLATION_SKIPPED = _event(
    "recipe_security_violation_skipped", "error", "name file error", "A recipe is refused for a security reason."
)
RECIPE_LOAD_ERROR_SKIPPED = _event(
    "recipe_load_error_skipped", "warning", "name file error", "A recipe cannot be parsed or validated."
)
RECIPE_NOT_LOADED_AT_STARTUP = _event(
    "recipe_not_loaded_at_startup", "warning", "name error", "A recipe starts without a model."
)
RECIPES_DIR_SCAN_FAILED = _event("recipes_dir_scan_failed", "error", "error", "The recipes folder cannot be listed.")

# Serving: artifacts.
INITIAL_ARTIFACT_READ_FAILED = _event(
    "initial_artifact_read_failed", "error", "name error", "At start: cannot be read."
)
INITIAL_ARTIFACT_READ_ERROR = _event(
    "initial_artifact_read_error", "error", "name error", "At start: refused by a size cap."
)
INITIAL_ARTIFACT_PARSE_FAILED = _event(
    "initial_artifact_parse_failed", "error", "name error", "At start: magic, version or header is wrong."
)
INITIAL_ARTIFACT_HMAC_FAILED = _event(
    "initial_artifact_hmac_failed", "error", "name error kid", "At start: unknown kid or wrong signature."
)
INITIAL_ARTIFACT_DESERIALIZE_FAILED = _event(
    "initial_artifact_deserialize_failed", "error", "name error", "At start: the payload is refused or broken."
)
INITIAL_ARTIFACT_HMAC_SKIPPED_DEV = _event(
    "initial_artifact_hmac_skipped_dev",
    "warning",
    "name kid",
    "Loaded in development mode without trust in its signature.",
)
ARTIFACT_LOADED = _event(
    "artifact_loaded",
    "info",
    "name model_version kid best_class seconds",
    "A model is published, at start or by a swap.",
)
ARTIFACT_LOAD_FAILED = _event(
    "artifact_load_failed", "error", "name error kid", "A changed artifact cannot be loaded; the old model stays."
)
ARTIFACT_LOAD_UNEXPECTED_ERROR = _event(
    "artifact_load_unexpected_error", "error", "name error", "Loading failed in a way that svc does not know."
)
ARTIFACT_LOAD_ERROR_CLEARED = _event(
    "artifact_load_error_cleared", "info", "name reason previous_error", "A load error is over."
)
ARTIFACT_RECIPE_HASH_MISMATCH = _event(
    "artifact_recipe_hash_mismatch",
    "warning",
    "name artifact_recipe_hash current_recipe_hash",
    "The recipe changed since the model was trained; serving goes on.",
)
ARTIFACT_OF_ANOTHER_RECIPE = _event(
    "artifact_of_another_recipe",
    "warning",
    "name artifact_recipe",
    "The model was trained for a recipe of another name: renamed, shared on purpose, or put in the wrong place.",
)
IRSPACK_VERSION_SKEW_ALLOWED = _event(
    "irspack_version_skew_allowed", "warning", "name artifact_version running_version", "A refusal was turned off."
)
IRSPACK_VERSION_UNKNOWN = _event(
    "irspack_version_unknown",
    "warning",
    "name artifact_version running_version",
    "The skew check had nothing to compare.",
)
KID_EXTRACTION_FAILED = _event("kid_extraction_failed", "warning", "name error", "The kid could not be parsed.")
SIZE_CAP_PROBE_FAILED = _event(
    "size_cap_probe_failed", "warning", "name error", "A store did not tell a size; the read itself is capped."
)
ARTIFACT_STAT_TIMEOUT = _event("artifact_stat_timeout", "warning", "name timeout_s", "A stat call went over its time.")
ARTIFACT_STAT_FAILED = _event("artifact_stat_failed", "warning", "name error", "A stat call failed.")
ARTIFACT_DISAPPEARED = _event("artifact_disappeared", "warning", "name", "The artifact is gone; the model stays.")
SIDECAR_DISAPPEARED = _event("sidecar_disappeared", "warning", "name", "The .sha256 file beside an artifact is gone.")
WATCHER_UNHANDLED_ERROR = _event("watcher_unhandled_error", "error", "error", "A tick failed; the next one runs.")
METADATA_FIELD_MISSING = _event(
    "metadata_field_missing", "warning", "name fields", "Metadata lacks declared fields; they are answered as null."
)

# Serving: requests.
REQUEST_FAILED = _event("request_failed", "error", "error", "A request ended with 500.")
CONNECTION_FAILED = _event(
    "connection_failed",
    "warning",
    "error",
    "A connection was closed over a defect in its handling, or could not be accepted; no other notices.",
)
RECIPE_NOT_FOUND = _event("recipe_not_found", "info", "name", "A request named no registered recipe.")
AUTH_ANONYMOUS_BYPASS = _event("auth_anonymous_bypass", "debug", "client", "No keys are configured: a request passed.")
AUTH_ANONYMOUS_BYPASS_FIRST_SEEN = _event(
    "auth_anonymous_bypass_first_seen", "info", "client", "First request of a client without a key."
)
AUTH_INVALID_KEY = _event("auth_invalid_key", "warning", "client", "A request came with a missing or wrong key.")

COMMAND_ERROR = _event(
    "command_error",
    "error",
    "command error code exit_code",
    "A command other than a training run failed; its last line.",
)
PYTHON_WARNING = _event("python_warning", "warning", "category message", "A Python warning, through the same log.")
LIBRARY_LOG = _event("library_log", "warning", "logger message", "A record of a library's logger.")
