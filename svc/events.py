"""The name, level and fields of every event that svc logs. `docs/reference/events.md` is made from this module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Event:
    """One kind of log record.

    Every record of this kind has the `fields`. A record may have further fields.
    """

    name: str
    level: Level
    fields: tuple[str, ...]


EVENTS: dict[str, Event] = {}


def _event(name: str, level: Level, fields: str) -> Event:
    """Add a row to the table. `fields` are separated by blanks. Raises ValueError for a repeated name."""
    if name in EVENTS:
        raise ValueError(f"the event {name} is declared twice")
    EVENTS[name] = Event(name, level, tuple(fields.split()))
    return EVENTS[name]


# Training, in the order of a run.
TRAINING_STARTED = _event("training_started", "info", "recipe run_id")
"""A training begins."""
RECIPE_LOCK_LOCAL_ONLY = _event("recipe_lock_local_only", "warning", "recipe output lock")
"""The output is remote, so the lock only excludes trainings on this host."""
RECIPE_LOCK_CONTENDED_SKIPPING = _event("recipe_lock_contended_skipping", "info", "recipe run_id lock")
"""Another training holds the lock. This one ends with exit code 0."""
FETCHING_DATA = _event("fetching_data", "info", "")
"""Reading of the source begins."""
DATA_FETCHED = _event("data_fetched", "info", "n_rows")
"""The source was read. `n_rows` counts rows before cleansing."""
DATA_CLEANSED = _event("data_cleansed", "info", "n_rows drop_count")
"""Cleansing ended. With `cleansing.where`, `hide`, `forget` and `min_interactions`, `dropped_by_where`,
`hidden_by_rule`, `forgotten` and `dropped_by_min_interactions` count their rows."""
USERS_SAMPLED = _event("users_sampled", "info", "n_users n_sampled n_rows")
"""Training uses `n_sampled` of the `n_users` users (`training.sample_users`)."""
SPLITTING_DATA = _event("splitting_data", "info", "scheme")
"""The split into training data and held-out interactions begins."""
SPLIT_DONE = _event("split_done", "info", "val_offset n_heldout_interactions")
"""The split ended. `val_offset` is the training row of the first validation user."""
SEARCH_STARTED = _event("search_started", "info", "algorithms n_trials workers")
"""The hyperparameter search begins, with `workers` trials at once."""
REFIT_STARTED = _event("refit_started", "info", "recipe reused_from vectors_from reason")
"""With --refit: the versions whose parameters and vectors are reused, or the `reason` to search."""
TRIAL_DONE = _event("trial_done", "info", "number algorithm state score best_score seconds")
"""A trial ended: `complete`, `pruned` or `fail`."""
TRIAL_PARAMETERS = _event("trial_parameters", "info", "number algorithm params")
"""With --verbose: a trial begins."""
SEARCH_DONE = _event("search_done", "info", "best_class best_score n_completed")
"""The search ended with a winner."""
SEARCH_ONLY_DONE = _event("search_only_done", "info", "run_id n_completed exit_code")
"""With --search-only: the search ended."""
BLEND_SEARCHED = _event("blend_searched", "info", "weights score seconds rank_ms")
"""A blend of the best trials was scored."""
RANKER_JUDGED = _event("ranker_judged", "info", "ships metric gain n_users seconds")
"""The learned order of the first page was compared with the winner's. It is used if `ships` is true."""
TRAINING_FINAL_MODEL = _event("training_final_model", "info", "recommender")
"""The training of the winner on all data begins."""
FINAL_MODEL_TRAINED = _event("final_model_trained", "info", "recommender")
"""The training of the winner on all data ended."""
WINNER_MEASURED = _event("winner_measured", "info", "best_class metric score interval n_scored_users n_users lead")
"""The interval of the winner's score and its lead over the second-best algorithm were computed."""
COLD_START_PART_TRAINED = _event("cold_start_part_trained", "info", "recommender score bytes")
"""The winner uses no features, so the best trial that does was trained on all data too, to answer for features."""
FEATURES_INACTIVE = _event("features_inactive", "warning", "reason")
"""No trial learned from features, so requests cannot use them."""
COLD_START_EVALUATED = _event("cold_start_evaluated", "info", "side metric score popularity_score")
"""For a report, held-out users or items were ranked by their features alone, and by popularity."""
ARTIFACT_WRITTEN = _event("artifact_written", "info", "versioning artifact kid artifact_bytes payload_bytes")
"""The artifact is written."""
ARTIFACT_PAYLOAD_EXCEEDS_SERVE_CAP = _event(
    "artifact_payload_exceeds_serve_cap",
    "warning",
    "artifact_bytes payload_bytes max_artifact_bytes max_payload_bytes setting",
)
"""Servers with this host's settings refuse the artifact. Raise the variable `setting` there."""
REPORT_WRITTEN = _event("report_written", "info", "path")
"""The HTML report is written."""
TRAIN_DONE = _event(
    "train_done",
    "info",
    "name run_id exit_code artifact best_class best_score rank_ms trials n_orphaned trained_at kid recipe_hash"
    " n_rows n_users n_items",
)
"""The training ended. `exit_code` is 9 if the model was refused."""
TRAIN_ERROR = _event("train_error", "error", "name run_id exit_code error code trained_at")
"""The training failed. This is its last event."""
TRAIN_INTERRUPTED = _event("train_interrupted", "warning", "name run_id exit_code kept")
"""SIGINT or SIGTERM ended the training. `kept` says what is written."""
ALGORITHM_DUPLICATE = _event("algorithm_duplicate_ignored", "warning", "algorithm")
"""An algorithm is listed twice. It counts once."""
ALGORITHM_SKIPPED = _event("algorithm_skipped", "warning", "algorithm reason")
"""A listed algorithm gets no trial, or no blend is made."""
RANKER_SKIPPED = _event("ranker_skipped", "warning", "reason")
"""No learned order of the first page is used."""
RANKER_METADATA_LEFT_OUT = _event("ranker_metadata_left_out", "warning", "recipe reason")
"""The order of the first page is learned without item_metadata, which cannot be read or encoded."""
RECIPE_WARNING = _event("recipe_warning", "warning", "code field message")
"""A part of the recipe works, but probably not as intended."""
INCUMBENT_NOT_COMPARABLE = _event("incumbent_not_comparable", "warning", "recipe reason")
"""No live model exists, or it cannot be verified or trained again. The training goes on."""
PROMOTION_DECIDED = _event("promotion_decided", "info", "recipe decision mode metric against guardrails")
"""The new model is promoted or refused. With mode `report` a refused model goes live too."""
PROMOTION_HELD = _event("promotion_held", "warning", "recipe artifact")
"""The new model does not go live: `svc rollback --hold` keeps an earlier one until `svc promote`."""
VERSION_LOG_LINES_IGNORED = _event("version_log_lines_ignored", "warning", "path count held reason")
"""The newest lines of a version log are invalid. `held` says whether a rollback's hold applies."""
DATA_LOST_ROWS = _event("rows_dropped", "info", "reason count")
"""Cleansing dropped rows for one reason."""
FUTURE_TIMES = _event("future_times", "warning", "count detail")
"""Rows are later than the start of the training. They count as if from this start."""
MANY_ROWS_DROPPED = _event("many_rows_dropped", "warning", "count n_rows detail")
"""More than 5% of rows lack an id or a readable time."""
IDS_HARDLY_MEANT = _event("ids_hardly_meant", "warning", "side reason count example message")
"""Ids of one column look wrong. `reason`: `too_long` for requests, `floating_point` (7.0), `exponent` (9.78E+12),
`quotes`, `bytes` (b'01'), `blanks` at an end or invisible characters, `case` (U1 and u1), `placeholder` (NULL), or
`dominant` (one id has more than a fifth of the rows)."""
TRIAL_TIMED_OUT = _event("trial_timed_out", "warning", "number algorithm seconds")
"""A trial took longer than `per_trial_timeout_seconds`."""
TRIAL_FAILED = _event("trial_failed", "warning", "number algorithm error")
"""A trial failed. The search goes on."""
# Sources.
CSV_SOURCE_REDIRECT = _event("csv_source_redirect", "info", "from_ to status")
"""A fetch of training data was redirected."""
CSV_SOURCE_SIZE_EXCEEDED = _event("csv_source_size_exceeded", "error", "path bytes_read cap")
"""Training data exceeds its `cap` (SVC_MAX_DOWNLOAD_BYTES), compressed or not."""
METADATA_SOURCE_REDIRECT = _event("metadata_source_redirect", "info", "from_ to status")
"""A fetch of item metadata or a list of items was redirected."""
METADATA_SOURCE_SIZE_EXCEEDED = _event("metadata_source_size_exceeded", "error", "path bytes_read cap")
"""Item metadata or a list of items exceeds its `cap`, compressed or not."""
DATABASE_NOT_ENCRYPTED = _event("database_not_encrypted", "warning", "database")
"""A connection to a remote database has no TLS. Require TLS in the database's URL."""
BIGQUERY_STORAGE_FALLBACK = _event("bigquery_storage_fallback", "warning", "reason")
"""Rows are read over REST, which is slower than the Storage Read API."""
# Features.
FEATURE_VOCABULARY_PRUNED = _event(
    "feature_vocabulary_pruned",
    "warning",
    "column min_frequency distinct_values kept_values rows_without_signal n_rows",
)
"""Rare values of a feature column are left out. At least 20% of the rows keep no value."""
FEATURE_EMPTY_VOCABULARY_COLUMN = _event("feature_empty_vocabulary_column", "warning", "column side")
"""A feature column has no effect: all values are missing, left out, or the same number."""
FEATURE_AXIS_COVERAGE = _event("feature_axis_coverage", "info", "side matched total")
"""`matched` of the `total` ids of the interactions are in the feature table."""
FEATURE_ROWS_DROPPED = _event("feature_rows_dropped", "warning", "side duplicates blank_ids")
"""Rows of a feature table without an id, or with the id of an earlier row, are dropped."""
# Server: start, keys and end.
SECURITY_POSTURE = _event(
    "security.posture", "info", "signing_keys api_keys_configured client_certificates env tls unsafe_modes"
)
"""The server starts with these signing keys (kid and fingerprint) and unsafe modes."""
SERVE_STARTED = _event("serve_started", "info", "host port recipes version workers")
"""The server accepts connections at this address."""
WORKER_RESTARTED = _event("worker_restarted", "warning", "pid exit reason pause_seconds")
"""The worker `pid` ended, or was killed because it stopped answering (`silent`). Another takes its place."""
WORKER_TEMPLATE_RESTARTED = _event("worker_template_restarted", "warning", "error")
"""The process from which workers are copied ended and restarts. Workers go on."""
MONITORING_STARTED = _event("monitoring_started", "info", "host port")
"""With SVC_METRICS_PORT: metrics and probes are served at this address too."""
SPANS_EXPORT_FAILED = _event("spans_export_failed", "warning", "spans error")
"""An export of spans failed. Logged once until an export succeeds."""
SPANS_EXPORT_RESUMED = _event("spans_export_resumed", "info", "lost")
"""Spans are exported again. `lost` counts the spans of failed exports."""
SERVE_DRAINING = _event("serve_draining", "info", "signal drain_seconds")
"""A signal ends the server. Requests in flight get `drain_seconds`."""
SERVE_SHUTDOWN = _event("serve_shutdown", "info", "drain_seconds")
"""The server ends, `drain_seconds` after the signal."""
VARIABLE_UNKNOWN = _event("variable_unknown", "warning", "variable did_you_mean")
"""`variable` is not read, and is probably misspelt."""
VARIABLE_CLAMPED = _event("variable_clamped", "warning", "variable value used")
"""`variable` is out of bounds. `used` replaces the number."""
VARIABLES_OVERRIDDEN = _event("variables_overridden", "info", "file variables")
"""The environment overrides these variables of the file (SVC_ENV_FILE, keys.env)."""
DENIED_FIELDS_UNKNOWN = _event("denied_fields_unknown", "warning", "fields")
"""SVC_METADATA_FIELD_DENY has names that no recipe declares. Check their spelling."""
RECIPES_END_IN_YML = _event("recipes_end_in_yml", "warning", "files way_out")
"""The recipes folder has only .yml files, which are not served."""
NO_RECIPES = _event("no_recipes", "warning", "folder way_out")
"""The recipes folder has no recipe at the start. Recipes that are added later are served."""
KEYS_RELOADED = _event("keys_reloaded", "info", "signing_keys api_keys_configured")
"""After SIGHUP: keys and certificate were read again."""
KEYS_RELOAD_FAILED = _event("keys_reload_failed", "error", "error")
"""After SIGHUP: keys or certificate cannot be used. Neither is replaced."""
KEY_POLICIES_LOADED = _event("key_policies_loaded", "info", "policies unknown_kids")
"""The file of SVC_API_KEY_POLICIES was read, at start or after a change."""
KEY_POLICIES_WITHOUT_KEY = _event("key_policies_without_key", "warning", "unknown_kids")
"""Policies name kids of no API key."""
KEY_POLICIES_FAILED = _event("key_policies_failed", "error", "error")
"""The file of SVC_API_KEY_POLICIES changed and is unreadable or invalid. The earlier policies stay."""
UNSAFE_MODE_ACTIVE = _event("unsafe_mode_active", "warning", "modes")
"""Logged every five minutes with --dev-allow-unsigned or --insecure-no-auth."""
# Server: recipes.
RECIPE_DISCOVERED = _event("recipe_discovered", "info", "name file")
"""A recipe file appeared after the start."""
RECIPE_REMOVED = _event("recipe_removed", "info", "name file")
"""A recipe file disappeared. Its model is no longer served."""
RECIPE_CHANGED = _event("recipe_changed", "info", "name file reload")
"""The file of a served recipe changed. `reload` says whether its model is loaded again."""
RECIPE_DUPLICATE_NAME = _event("recipe_duplicate_name", "warning", "name file kept")
"""Two recipe files have the same name. The first by file name is served."""
RECIPE_SECURITY_VIOLATION_SKIPPED = _event("recipe_security_violation_skipped", "error", "name file error")
"""A recipe file breaks a security rule and is not served."""
RECIPE_LOAD_ERROR_SKIPPED = _event("recipe_load_error_skipped", "warning", "name file error")
"""A recipe file cannot be parsed or validated and is not served."""
RECIPE_PARSE_FAILED = _event("recipe_parse_failed", "error", "name file error")
"""The file of a served recipe became invalid. Its model stays, but a restart would lose it."""
RECIPE_NOT_LOADED_AT_STARTUP = _event("recipe_not_loaded_at_startup", "warning", "name error")
"""The server started without a model for this recipe."""
RECIPES_DIR_SCAN_FAILED = _event("recipes_dir_scan_failed", "error", "error")
"""The recipes folder cannot be listed."""
# Server: artifacts.
ARTIFACT_REPLAYED = _event("artifact_replayed", "error", "name kid serial highest")
"""An older artifact than one served before (SVC_STATE_DIR) is refused, as no signed rollback or promotion names it."""
ARTIFACT_EXPIRED = _event("artifact_expired", "warning", "name expires_at")
"""The served model has expired. It stays, but a restart would lose it."""
REPLAY_STATE_UNUSABLE = _event("replay_state_unusable", "warning", "name path error")
"""The file of serials (SVC_STATE_DIR) is missing or unusable, so an older artifact may be accepted."""
ARTIFACT_REHEARSAL_FAILED = _event("artifact_rehearsal_failed", "error", "name kid reason")
"""A new model failed its [rehearsal](recipe.md#rehearsal). A served model stays."""
INITIAL_ARTIFACT_READ_FAILED = _event("initial_artifact_read_failed", "error", "name error")
"""At start: an artifact or its metadata cannot be read."""
INITIAL_ARTIFACT_READ_ERROR = _event("initial_artifact_read_error", "error", "name error")
"""At start: an artifact exceeds a size cap."""
INITIAL_ARTIFACT_PARSE_FAILED = _event("initial_artifact_parse_failed", "error", "name error")
"""At start: an artifact has a wrong magic, version or header, or is misplaced, replayed or expired."""
INITIAL_ARTIFACT_HMAC_FAILED = _event("initial_artifact_hmac_failed", "error", "name error kid")
"""At start: an artifact has an unknown kid or a wrong signature."""
INITIAL_ARTIFACT_DESERIALIZE_FAILED = _event("initial_artifact_deserialize_failed", "error", "name error")
"""At start: a payload is refused or broken, its versions do not match the server, or the model fails its rehearsal."""
INITIAL_ARTIFACT_HMAC_SKIPPED_DEV = _event("initial_artifact_hmac_skipped_dev", "warning", "name kid")
"""An artifact with the built-in key is accepted (--dev-allow-unsigned)."""
ARTIFACT_LOADED = _event("artifact_loaded", "info", "name model_version kid best_class seconds")
"""A model is served, at start or after a swap. `metadata_few_items` has `n_found` and `n_items` if fewer than half of
its items are in `item_metadata`."""
ARTIFACT_LOAD_FAILED = _event("artifact_load_failed", "error", "name error kid")
"""After the start: an artifact cannot be loaded. A served model stays."""
ARTIFACT_LOAD_UNEXPECTED_ERROR = _event("artifact_load_unexpected_error", "error", "name error")
"""Loading failed by a defect, or for lack of memory, threads or files."""
ARTIFACT_LOAD_ERROR_CLEARED = _event("artifact_load_error_cleared", "info", "name reason previous_error")
"""An error of a recipe file, a load or a poll no longer applies."""
ARTIFACT_RECIPE_HASH_MISMATCH = _event(
    "artifact_recipe_hash_mismatch", "warning", "name artifact_recipe_hash current_recipe_hash"
)
"""The recipe changed since the training. Serving goes on."""
ARTIFACT_OF_ANOTHER_RECIPE = _event("artifact_of_another_recipe", "warning", "name artifact_recipe")
"""The model was trained for a recipe of another name. It is served."""
IRSPACK_VERSION_SKEW_ALLOWED = _event(
    "irspack_version_skew_allowed", "warning", "name artifact_version running_version"
)
"""A model of another version of irspack is accepted (SVC_ALLOW_IRSPACK_VERSION_SKEW)."""
IRSPACK_VERSION_UNKNOWN = _event("irspack_version_unknown", "warning", "name artifact_version running_version")
"""A version of irspack is unknown, so versions are not compared."""
KID_EXTRACTION_FAILED = _event("kid_extraction_failed", "warning", "name error")
"""The kid of an artifact that does not load is unreadable."""
SIZE_CAP_PROBE_FAILED = _event("size_cap_probe_failed", "warning", "name error")
"""A store did not report the size of an artifact. The read itself is capped."""
ARTIFACT_STAT_TIMEOUT = _event("artifact_stat_timeout", "warning", "name timeout_s")
"""After the start: a store did not answer a poll within `timeout_s`."""
ARTIFACT_STAT_FAILED = _event("artifact_stat_failed", "warning", "name error")
"""After the start: a poll of a store failed, for example because the store cannot be reached."""
ARTIFACT_DISAPPEARED = _event("artifact_disappeared", "warning", "name")
"""After the start: a poll found no artifact. A served model stays."""
SIDECAR_DISAPPEARED = _event("sidecar_disappeared", "warning", "name")
"""The .sha256 file beside an artifact is gone."""
WATCHER_UNHANDLED_ERROR = _event("watcher_unhandled_error", "error", "error")
"""A scan or poll failed by a defect. Later ones still run."""
METADATA_FIELD_MISSING = _event("metadata_field_missing", "warning", "name fields")
"""With `on_field_missing: null`: item metadata lacks declared columns. Answers have null."""
AVAILABILITY_LOADED = _event("availability_loaded", "info", "name mode n_ids n_items")
"""A new or changed list of available items is used."""
AVAILABILITY_LOAD_FAILED = _event("availability_load_failed", "warning", "name error")
"""A list of available items cannot be read. The last list stays."""
AVAILABILITY_STALE = _event("availability_stale", "warning", "name mode age_seconds")
"""A list of available items is older than `max_stale_seconds` or was never read. With mode allow, requests get 503."""
NEW_ITEMS_LOADED = _event("new_items_loaded", "info", "name n_ids n_new")
"""A new or changed list of new items is used."""
NEW_ITEMS_LOAD_FAILED = _event("new_items_load_failed", "warning", "name error")
"""A list of new items cannot be read or used. The last list stays."""
SERVED_LOG_FAILED = _event("served_log_failed", "error", "name error lines")
"""Lines of the served log were lost. Said at most once a minute, with the number of lines since the last event."""
# Server: requests.
REQUEST_FAILED = _event("request_failed", "error", "error")
"""A request ended with 500."""
CONNECTION_FAILED = _event("connection_failed", "warning", "error")
"""A connection was closed because of a defect, or could not be accepted."""
REQUEST_ANSWERED = _event("request_answered", "info", "method recipe verb status ms client kid")
"""A line of the access log (SVC_ACCESS_LOG). `verb` is a recommendation verb, else the endpoint's name."""
REQUESTS_REFUSED = _event("requests_refused", "warning", "code kid count seconds")
"""`count` requests of a key (KEY_NOT_ALLOWED, RATE_LIMITED) or of any client (OVERLOADED) were refused."""
RECIPE_NOT_FOUND = _event("recipe_not_found", "info", "name")
"""A request named a recipe that does not exist."""
AUTH_ANONYMOUS_BYPASS = _event("auth_anonymous_bypass", "debug", "client")
"""A request passed without a key, because no keys are configured."""
AUTH_ANONYMOUS_BYPASS_FIRST_SEEN = _event("auth_anonymous_bypass_first_seen", "info", "client")
"""A client sent its first request to a server without keys."""
AUTH_INVALID_KEY = _event("auth_invalid_key", "warning", "client reason")
"""A request had a missing or wrong key."""
# Exports.
EXPORT_STARTED = _event("export_started", "info", "output model_version")
"""An export begins. Its artifact is verified."""
EXPORT_PROGRESS = _event("export_progress", "info", "done total rows rows_per_s seconds_left")
"""Progress, at most every ten seconds. `done` counts users, items or shards."""
EXPORT_DONE = _event("export_done", "info", "output rows skipped seconds rows_per_s")
"""The export and its manifest are written. `skipped` counts unknown ids."""
EXPORT_NOT_MERGED = _event("export_not_merged", "info", "output reason")
"""With --shard and --merge: a part is missing or belongs to another export."""
EXPORT_MERGED = _event("export_merged", "info", "output parts rows")
"""The manifest of all parts is written."""
# Commands and libraries.
COMMAND_ERROR = _event("command_error", "error", "command error code exit_code")
"""A command other than a training failed. This is its last event."""
PYTHON_WARNING = _event("python_warning", "warning", "category message")
"""A Python warning."""
LIBRARY_LOG = _event("library_log", "warning", "logger message library_level")
"""A warning or error of a library's logger."""
