"""Read the environment once into frozen settings.

One field, one variable: name, default, bounds and help stand together, and `docs/reference/environment.md` is checked
against them. A value that cannot be parsed, a negative time, and a port or number of workers out of bounds raise a
`ConfigError` that names the variable. Other numbers out of bounds are clamped.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from svc.errors import ConfigError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_SIZE = re.compile(r"([0-9]{1,30})\s*([KMG]iB)?", re.IGNORECASE)
_UNITS = {"": 1, "kib": KIB, "mib": MIB, "gib": GIB}
DEVELOPMENT_ENVS = frozenset({"development", "dev", "test"})
CLOSED_ENVS = frozenset({"production", "prod", "staging"})
_ENVS = ("development", "dev", "test", "staging", "production", "prod")


@dataclass(frozen=True, slots=True)
class Variable:
    """The environment variable of one setting. `low` and `high` bound numbers, in the setting's unit."""

    env: str
    parse: Callable[[str], Any]
    low: float | None = None
    high: float | None = None
    secret: bool = False

    def read(self, text: str) -> Any:
        try:
            value = self.parse(text)
        except ValueError as error:
            shown = "its value" if self.secret else repr(text)
            raise ConfigError(f"{self.env}: {shown} {error}") from None
        return self.within_bounds(value)

    def within_bounds(self, value: Any) -> Any:
        """Return `value`, or the nearest bound."""
        if self.low is not None and value is not None:
            value = max(type(value)(self.low), value)
        if self.high is not None and value is not None:
            value = min(type(value)(self.high), value)
        return value


def _flag(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError("is not 1 or 0")


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("is not a whole number") from None


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("is not a number") from None
    # NaN would pass all bounds, because its comparisons are false.
    if math.isnan(value) or value < 0:
        raise ValueError("is not a number of zero or more")
    return value


def _port(text: str) -> int:
    port = _integer(text)
    if not 0 <= port <= 65535:
        raise ValueError("is not a port: 0 to 65535")
    return port


MOST_WORKERS = 64


def parse_workers(text: str) -> int | None:
    """Return a number of workers, or None for `auto`. Raises ValueError."""
    if text == "auto":
        return None
    # `int` also takes signs, blanks, underscores and digits of other scripts.
    is_short_number = text.isascii() and text.isdigit() and len(text) <= len(str(MOST_WORKERS))
    if not is_short_number or not 1 <= int(text) <= MOST_WORKERS:
        raise ValueError(f"is neither a whole number from 1 to {MOST_WORKERS} nor auto")
    return int(text)


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError("is not a size: give bytes, or a number with KiB, MiB or GiB")
    return int(match[1]) * _UNITS[(match[2] or "").lower()]


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _hosts(text: str) -> tuple[str, ...] | None:
    return _names(text) or None


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in allowed:
            raise ValueError(f"is not one of {', '.join(allowed)}")
        return text.lower()

    return parse


def _var(env: str, default: Any, parse: Callable[[str], Any], **bounds: Any) -> Any:
    metadata = {"variable": Variable(env, parse, **bounds)}
    return field(default=default, metadata=metadata, repr=not bounds.get("secret", False))


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the environment. Names that end in `_s` have seconds, in `_bytes` bytes.

    The reference page is made from the docstrings of the fields, and its headings from the comments.
    """

    # Keys and trust.
    signing_keys: str = _var("SVC_SIGNING_KEYS", "", str, secret=True)
    """Signing keys, `<kid>:<hex64>` separated by commas. The first one signs."""
    signing_keys_file: str | None = _var("SVC_SIGNING_KEYS_FILE", None, str)
    """A file of signing keys instead of SVC_SIGNING_KEYS. A server reads it again on SIGHUP."""
    verify_keys: str = _var("SVC_VERIFY_KEYS", "", str)
    """Public keys that verify and cannot sign, `<kid>:ed25519:<hex64>` separated by commas."""
    artifact_signature: Literal["hmac", "ed25519"] = _var("SVC_ARTIFACT_SIGNATURE", "hmac", _choice("hmac", "ed25519"))
    """How trainings sign: `hmac` (format version 1) or `ed25519` (version 2)."""
    api_keys: str = _var("SVC_API_KEYS", "", str, secret=True)
    """API keys of clients, `<kid>:sha256:<hex64>` separated by commas. Unset: clients need no key."""
    api_keys_file: str | None = _var("SVC_API_KEYS_FILE", None, str)
    """A file of API keys instead of SVC_API_KEYS. A server reads it again on SIGHUP."""
    api_key_policies: str | None = _var("SVC_API_KEY_POLICIES", None, str)
    """A YAML file that limits the requests of each API key, by kid. A server reads it again when it changes."""
    artifact_root: str | None = _var("SVC_ARTIFACT_ROOT", None, str)
    """The folder that must contain every local `output.path`."""
    state_dir: str | None = _var("SVC_STATE_DIR", None, str)
    """Folder of serials. Trainings number their artifacts, and servers refuse older ones than they served."""
    allow_version_skew: bool = _var("SVC_ALLOW_IRSPACK_VERSION_SKEW", False, _flag)
    """1 loads models of another minor version of irspack, with a warning."""

    # Kind of environment, and its log.
    env: str = _var("SVC_ENV", "", _choice(*_ENVS))
    """`development` permits --dev-allow-unsigned and, like `dev` and `test`, --insecure-no-auth. `production`, `prod`
    and `staging` close OpenAPI and the console. Case does not count."""
    env_file: str | None = _var("SVC_ENV_FILE", None, str)
    """A file of `SVC_...=value` lines that others may not read. Variables of the environment win. Unset: `keys.env` in
    the recipe's folder (for artifacts, the working folder) or its parent, unless SVC_ENV closes OpenAPI."""
    log_format: str = _var("SVC_LOG_FORMAT", "auto", _choice("auto", "json", "console"))
    """`json`, `console`, or `auto`: `console` on a terminal, else `json`."""
    log_level: str = _var("SVC_LOG_LEVEL", "info", _choice("debug", "info", "warning", "error"))
    """Lowest level that is logged: `debug`, `info`, `warning` or `error`."""
    access_log: str = _var("SVC_ACCESS_LOG", "errors", _choice("off", "errors", "all"))
    """Answers to log: none (`off`), `all`, or failures (`errors`) except those of probes and those that
    `requests_refused` counts."""

    # Address and recipes of a server.
    host: str = _var("SVC_HOST", "127.0.0.1", str)
    """Address to bind."""
    port: int = _var("SVC_PORT", 8080, _port, low=0, high=65535)
    """Port to bind. 0 takes any free one."""
    workers: int | None = _var("SVC_WORKERS", 1, parse_workers)
    """Processes that answer, 1 to 64, or `auto`: one per usable core. Above 1, another process loads models for all."""
    yml_recipes: bool = _var("SVC_YML_RECIPES", False, _flag)
    """1 serves `.yml` files of the recipes folder like `.yaml` ones."""
    watch_interval_s: float = _var("SVC_WATCH_INTERVAL", 5.0, _number, low=1, high=30)
    """Seconds between two polls for changed recipes and artifacts, ±10%."""
    startup_parallelism: int | None = _var("SVC_STARTUP_PARALLELISM", None, _integer, low=1, high=64)
    """Artifacts loaded at once. Unset: 8."""
    load_timeout_s: float = _var("SVC_LOAD_TIMEOUT_SECONDS", 120.0, _number, low=1, high=3600)
    """Seconds that loading one artifact may take. A slower load is abandoned and tried again."""
    drain_s: float = _var("SVC_DRAIN_SECONDS", 30.0, _number, low=0, high=3600)
    """Seconds that running requests get after SIGTERM or SIGINT."""

    # Load and waiting.
    scoring_threads: int | None = _var("SVC_SCORING_THREADS", None, _integer, low=1, high=64)
    """Threads that score. Unset: all cores but one, in exports all cores. Servers add one for expensive requests."""
    max_queue_s: float = _var("SVC_MAX_QUEUE_SECONDS", 2.0, _number, low=0, high=3600)
    """Longest wait. A request that would wait for over 80% of it, or a batch for over 40%, gets 503. 0: no limit."""
    cached_answers: int = _var("SVC_CACHED_ANSWERS", 4096, _integer, low=0, high=1_000_000)
    """Answers of at most 4 KiB that each worker keeps for repeated requests to the same model. 0: none."""
    cached_answers_bytes: int = _var("SVC_CACHED_ANSWERS_BYTES", 16 * MIB, _size, low=0, high=GIB)
    """Memory of each worker for kept answers and their requests. 0: none."""
    client_timeout_s: float = _var("SVC_CLIENT_TIMEOUT_SECONDS", 30.0, _number, low=1, high=600)
    """Seconds that a client may take to send a body or to read an answer. Each MiB adds a second."""
    keep_alive_s: float = _var("SVC_KEEP_ALIVE_SECONDS", 75.0, _number, low=1, high=3600)
    """Seconds that an idle connection stays open, or a request's head may take. Set more than the load
    balancer's timeout."""

    # Sizes.
    max_artifact_bytes: int = _var("SVC_MAX_ARTIFACT_BYTES", 2 * GIB, _size, low=MIB, high=16 * GIB)
    """Largest artifact file that is loaded."""
    max_payload_bytes: int = _var("SVC_MAX_PAYLOAD_BYTES", 512 * MIB, _size, low=MIB, high=16 * GIB)
    """Largest payload that is decoded. By default and in servers, at most SVC_MAX_ARTIFACT_BYTES."""
    max_body_bytes: int = _var("SVC_MAX_BODY_BYTES", 128 * MIB, _size, low=MIB, high=2 * GIB)
    """Largest request body."""
    max_answer_bytes: int = _var("SVC_MAX_ANSWER_BYTES", 128 * MIB, _size, low=MIB, high=2 * GIB)
    """Largest answer of a verb, and largest page of popular items. Above: 422 ANSWER_TOO_LARGE."""
    max_unsent_bytes: int = _var("SVC_MAX_UNSENT_BYTES", 256 * MIB, _size, low=MIB, high=64 * GIB)
    """Bytes of answers that each worker encodes and sends at once, over all connections. An answer of more than 64 KiB
    that exceeds them gets 503."""
    max_feature_dim: int = _var("SVC_MAX_FEATURE_DIM", 32_768, _integer, low=16, high=100_000)
    """Maximum length of the encoded features of a user, and of an item."""
    max_download_bytes: int = _var("SVC_MAX_DOWNLOAD_BYTES", 256 * MIB, _size, low=MIB, high=16 * GIB)
    """Largest table that is read over http(s). Decompressed, it may have eight times as much."""
    max_sql_rows: int = _var("SVC_MAX_SQL_ROWS", 50_000_000, _integer, low=1, high=10**12)
    """Maximum rows of a SQL or BigQuery source."""

    # TLS, browsers and hidden fields.
    tls_cert_file: str | None = _var("SVC_TLS_CERT_FILE", None, str)
    """A certificate with its chain, in PEM. The port then speaks TLS alone, with HTTP/1.1 or HTTP/2. Read again on
    SIGHUP."""
    tls_key_file: str | None = _var("SVC_TLS_KEY_FILE", None, str)
    """The private key of SVC_TLS_CERT_FILE, in PEM, which only its owner may read."""
    tls_client_ca_file: str | None = _var("SVC_TLS_CLIENT_CA_FILE", None, str)
    """Certificates of authorities, in PEM. Clients must show a certificate that one of these signed."""
    console: bool | None = _var("SVC_CONSOLE", None, _flag)
    """1 serves the console at `/`, 0 does not. Unset: 1, unless SVC_ENV closes it."""
    allowed_hosts: tuple[str, ...] | None = _var("SVC_ALLOWED_HOSTS", None, _hosts)
    """Host names of requests, separated by commas: `shop.com`, `*.shop.com` or `*`. Unset: all with API keys, else
    loopback names."""
    allowed_origins: tuple[str, ...] = _var("SVC_ALLOWED_ORIGINS", (), _names)
    """Origins whose pages may call the API (CORS), separated by commas, or `*`."""
    metadata_field_deny: tuple[str, ...] = _var("SVC_METADATA_FIELD_DENY", (), _names)
    """Item fields that no answer shows, whatever a recipe says, separated by commas. Case does not count."""

    # Metrics and spans.
    metrics_enabled: bool = _var("SVC_METRICS_ENABLED", False, _flag)
    """1 enables `/v1/metrics` (extra `metrics`)."""
    metrics_port: int | None = _var("SVC_METRICS_PORT", None, _port, low=0, high=65535)
    """A second port for metrics and probes alone, without a key. 0 takes any free one. Needs SVC_METRICS_ENABLED=1."""
    otel_enabled: bool = _var("SVC_OTEL_ENABLED", False, _flag)
    """1 exports spans of requests by OTLP over HTTP (extra `otel`). OpenTelemetry's OTEL_* variables configure it."""

    # Data and training.
    http_timeout_s: float = _var("SVC_HTTP_TIMEOUT_SECONDS", 30.0, _number, low=1, high=600)
    """Seconds for one step of an http(s) fetch, or for one call of an object store or BigQuery."""
    http_allow_private: bool = _var("SVC_HTTP_ALLOW_PRIVATE", False, _flag)
    """1 lets http(s) fetches reach private, loopback and link-local addresses."""
    bq_require_storage_api: bool = _var("SVC_BQ_REQUIRE_STORAGE_API", False, _flag)
    """1 turns BigQuery's fallback to REST into an error."""
    lock_dir: str | None = _var("SVC_LOCK_DIR", None, str)
    """Folder for the locks of remote outputs. Unset: in the user's cache folder."""
    training_threads: int | None = _var("LIB_NUM_THREADS_DEFAULT", None, _integer, low=1, high=1024)
    """Threads of a trial. Unset: 1 for iALS, BPR and SLIM, so that results can be repeated, else all free cores."""

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read all settings. An empty value counts as unset. Raises ConfigError for a value that cannot be parsed."""
        environ = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        for item in fields(cls):
            variable: Variable = item.metadata["variable"]
            text = environ.get(variable.env, "")
            if text:
                values[item.name] = variable.read(text)
        if "max_payload_bytes" not in values:
            # A server refuses a payload cap above the artifact cap, so the default follows a lower one.
            artifact_cap = values.get("max_artifact_bytes", 2 * GIB)
            values["max_payload_bytes"] = min(512 * MIB, artifact_cap)
        return cls(**values)

    def is_denied(self, field: str) -> bool:
        """Return whether SVC_METADATA_FIELD_DENY names `field`, in any case of letters."""
        return field.casefold() in {name.casefold() for name in self.metadata_field_deny}

    @property
    def is_development(self) -> bool:
        return self.env in DEVELOPMENT_ENVS

    @property
    def is_closed(self) -> bool:
        """Return whether the OpenAPI document is off, and the console unless it is requested."""
        return self.env in CLOSED_ENVS

    @property
    def has_console(self) -> bool:
        return not self.is_closed if self.console is None else self.console


def variables() -> list[tuple[str, Any, Variable]]:
    """Return (field name, default, variable) of every setting, in order, for the reference page."""
    return [(item.name, item.default, item.metadata["variable"]) for item in fields(Settings)]


def clamped_variables(environ: Mapping[str, str]) -> list[tuple[str, str, Any]]:
    """Return (variable, its text, the bound used instead) for each number out of bounds. Skip unreadable values."""
    clamped = []
    for _, _, variable in variables():
        if text := environ.get(variable.env, ""):
            try:
                value = variable.parse(text)
            except ValueError:
                continue
            if (used := variable.within_bounds(value)) != value:
                clamped.append((variable.env, text, used))
    return clamped


_MISSPELT_FROM = 0.85
"""Similarity to a setting's name, from 0 to 1, from which a variable counts as misspelt.

It is high because Kubernetes sets variables such as SVC_PORT_8080_TCP for a service called svc."""


def misspelt_variables(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return (variable, likely setting) for each variable with svc's prefix that is almost the name of a setting."""
    names = [item.metadata["variable"].env for item in fields(Settings)]
    strangers = sorted(name for name in environ if name.startswith("SVC_") and name not in names)
    near = ((name, difflib.get_close_matches(name, names, n=1, cutoff=_MISSPELT_FROM)) for name in strangers)
    return [(name, meant[0]) for name, meant in near if meant]
