"""What the process that workers are copied from may know."""

from __future__ import annotations

from svc.serving.workers.template import environment
from svc.settings import variables

SECRETS = {
    "SVC_SIGNING_KEYS": "k1:00",
    "SVC_VERIFY_KEYS": "k1:ed25519:00",
    "SVC_SIGNING_KEYS_FILE": "/keys",
    "SVC_API_KEYS": "shop:sha256:00",
    "SVC_RECIPE_DSN": "postgresql://me:secret@db",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "GOOGLE_APPLICATION_CREDENTIALS": "/credentials",
}


def test_no_key_and_no_store_is_named_to_workers() -> None:
    """Only settings, what spans need, and how programs start."""
    kept = environment({**SECRETS, "SVC_MAX_QUEUE_SECONDS": "3", "OTEL_SERVICE_NAME": "shop", "PATH": "/bin"}, 1)
    assert not SECRETS.keys() & kept.keys()
    assert not any(value in kept.values() for value in SECRETS.values())
    assert kept["SVC_MAX_QUEUE_SECONDS"] == "3"
    assert (kept["OTEL_SERVICE_NAME"], kept["PATH"]) == ("shop", "/bin")


def test_every_secret_setting_is_left_out() -> None:
    """A setting that is marked as secret never reaches a worker."""
    named = {variable.env: "x" for _, _, variable in variables()}
    kept = environment(named, 1)
    assert not {variable.env for _, _, variable in variables() if variable.secret} & kept.keys()


def test_workers_share_the_scoring_threads_of_the_machine() -> None:
    """Unless a number is given, which then holds for each."""
    assert environment({}, 2)["SVC_SCORING_THREADS"] == "2"
    assert environment({"SVC_SCORING_THREADS": "5"}, 2)["SVC_SCORING_THREADS"] == "5"
