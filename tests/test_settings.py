"""The environment becomes settings: defaults, parsing, bounds, errors."""

from __future__ import annotations

import pytest

from svc.errors import ConfigError
from svc.settings import GIB, MIB, Settings, misspelt_variables, variables


def test_an_empty_environment_gives_the_specified_defaults() -> None:
    """Every checked setting has its documented default if no variable is set."""
    settings = Settings.from_env({})
    assert settings.watch_interval_s == 5
    assert settings.drain_s == 30
    assert settings.max_artifact_bytes == 2 * GIB
    assert settings.max_payload_bytes == 512 * MIB
    assert settings.max_body_bytes == 128 * MIB
    assert settings.max_feature_dim == 32_768
    assert (settings.host, settings.port) == ("127.0.0.1", 8080)
    assert not settings.metrics_enabled


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("SVC_WATCH_INTERVAL", "0.1", "watch_interval_s", 1),
        ("SVC_WATCH_INTERVAL", "1e9", "watch_interval_s", 30),
        ("SVC_MAX_ARTIFACT_BYTES", "1", "max_artifact_bytes", MIB),
        ("SVC_MAX_ARTIFACT_BYTES", "64GiB", "max_artifact_bytes", 16 * GIB),
        ("SVC_MAX_BODY_BYTES", "3 GiB", "max_body_bytes", 2 * GIB),
        ("SVC_MAX_FEATURE_DIM", "3", "max_feature_dim", 16),
        ("SVC_MAX_FEATURE_DIM", "1000000", "max_feature_dim", 100_000),
    ],
)
def test_numbers_out_of_bounds_are_clamped(name: str, text: str, field: str, value: float) -> None:
    """A number beyond a bound becomes the bound, and is no error."""
    assert getattr(Settings.from_env({name: text}), field) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SVC_WATCH_INTERVAL", "soon"),
        ("SVC_WATCH_INTERVAL", "nan"),
        ("SVC_WATCH_INTERVAL", "-1"),
        ("SVC_PORT", "http"),
        ("SVC_METRICS_ENABLED", "perhaps"),
        ("SVC_PORT", "65536"),
        ("SVC_METRICS_PORT", "-1"),
        ("SVC_MAX_BODY_BYTES", "1.5"),
        ("SVC_LOG_FORMAT", "xml"),
    ],
)
def test_a_value_that_cannot_be_parsed_names_its_variable(name: str, text: str) -> None:
    """The server does not start with a default in place of a mistyped value."""
    with pytest.raises(ConfigError, match=name):
        Settings.from_env({name: text})


@pytest.mark.parametrize("port", [0, 1, 65535])
def test_port_zero_and_the_highest_port_are_ports(port: int) -> None:
    """Port 0 stands for any free port."""
    settings = Settings.from_env({"SVC_PORT": str(port), "SVC_METRICS_PORT": str(port)})
    assert (settings.port, settings.metrics_port) == (port, port)


@pytest.mark.parametrize(("text", "workers"), [("1", 1), ("08", 8), ("64", 64), ("auto", None)])
def test_workers_are_a_number_up_to_the_maximum_or_auto(text: str, workers: int | None) -> None:
    """`auto` becomes None, which stands for one worker for each core."""
    assert Settings.from_env({"SVC_WORKERS": text}).workers == workers


@pytest.mark.parametrize("text", ["0", "65", "0641", "1000", "-1", "1.0", "\u0663", "many", "9" * 5000])
def test_other_numbers_of_workers_are_refused(text: str) -> None:
    """Numbers out of bounds and other forms of numbers get an error with the bounds."""
    with pytest.raises(ConfigError, match="from 1 to 64"):
        Settings.from_env({"SVC_WORKERS": text})


def test_an_empty_value_counts_as_unset() -> None:
    """Compose files and Helm charts pass empty strings for unset values."""
    blank = {"SVC_PORT": "", "SVC_API_KEYS": "", "SVC_ALLOWED_HOSTS": " "}
    assert Settings.from_env(blank) == Settings.from_env({})


@pytest.mark.parametrize(
    ("text", "on"), [("1", True), ("Yes", True), ("on", True), ("TRUE", True), ("no", False), ("off", False)]
)
def test_a_flag_accepts_true_false_yes_no_on_off(text: str, on: bool) -> None:
    """The case of the value does not matter."""
    assert Settings.from_env({"SVC_METRICS_ENABLED": text}).metrics_enabled is on


def test_the_payload_cap_follows_a_smaller_artifact_cap_unless_set() -> None:
    """A larger payload cap that is set stays, so that the server can refuse the contradiction."""
    assert Settings.from_env({"SVC_MAX_ARTIFACT_BYTES": "100MiB"}).max_payload_bytes == 100 * MIB
    both = {"SVC_MAX_ARTIFACT_BYTES": "100MiB", "SVC_MAX_PAYLOAD_BYTES": "200MiB"}
    assert Settings.from_env(both).max_payload_bytes == 200 * MIB


def test_lists_are_split_at_commas_and_stripped() -> None:
    """Blanks around a comma and a comma at the end are ignored."""
    settings = Settings.from_env({"SVC_ALLOWED_HOSTS": "a.example, b.example,"})
    assert settings.allowed_hosts == ("a.example", "b.example")


def test_secrets_stay_out_of_the_representation() -> None:
    """The `repr` of settings shows neither signing keys nor hashes of API keys."""
    shown = repr(Settings.from_env({"SVC_SIGNING_KEYS": "k:" + "ab" * 32, "SVC_API_KEYS": "k:sha256:" + "cd" * 32}))
    assert "abab" not in shown
    assert "cdcd" not in shown


@pytest.mark.parametrize(
    ("env", "development", "closed"), [("dev", True, False), ("prod", False, True), ("", False, False)]
)
def test_development_admits_unsafe_modes_and_production_closes_extras(
    env: str, development: bool, closed: bool
) -> None:
    """Without SVC_ENV, unsafe modes are refused. The OpenAPI document and the console stay on."""
    settings = Settings.from_env({"SVC_ENV": env})
    assert (settings.is_development, settings.is_closed) == (development, closed)


@pytest.mark.parametrize("env", ["development", "dev", "test", "staging", "production", "prod"])
def test_the_environments_name_is_read_without_case(env: str) -> None:
    """`Production` has the same effect as `production`."""
    plain = Settings.from_env({"SVC_ENV": env})
    assert plain.is_development is not plain.is_closed
    for spelling in (env.upper(), env.capitalize(), env.swapcase(), env[:-1] + env[-1].upper()):
        assert Settings.from_env({"SVC_ENV": spelling}) == plain


@pytest.mark.parametrize(
    "env", ["prd", "live", "production ", " ", "productıon", "develop", "1", "prod,dev", "staging\n"]
)
def test_an_unknown_environment_is_refused(env: str) -> None:
    """A misspelt `production` would otherwise leave extras open."""
    with pytest.raises(
        ConfigError, match=r"SVC_ENV: .* is not one of development, dev, test, staging, production, prod"
    ):
        Settings.from_env({"SVC_ENV": env})


def test_every_setting_has_a_variable_of_its_own() -> None:
    """No two settings read the same variable."""
    names = [variable.env for _, _, variable in variables()]
    assert len(set(names)) == len(names)


def test_a_misspelt_variable_gets_the_nearest_name() -> None:
    """Variables of Kubernetes, recipes and clients that begin with SVC_ are not reported."""
    others = ("SVC_PORT_8080_TCP", "SVC_SERVICE_HOST", "SVC_RECIPE_DSN", "SVC_CLIENT_KEY", "SVC_PORT", "PATH")
    environ = dict.fromkeys(("SVC_SIGNING_KEY", "SVC_API_KEY", *others), "x")
    assert misspelt_variables(environ) == [("SVC_API_KEY", "SVC_API_KEYS"), ("SVC_SIGNING_KEY", "SVC_SIGNING_KEYS")]
