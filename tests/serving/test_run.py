"""What `serve` refuses before it serves anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from svc.errors import ConfigError
from svc.serving.run import ServeOptions, serve
from svc.serving.transport.listener import bind, listen
from svc.settings import MIB, Settings
from tests.serving.artifacts import SIGNING_KEYS

SETTINGS = Settings(signing_keys=SIGNING_KEYS)


def options(folder: Path, host: str = "127.0.0.1", port: int = 0) -> ServeOptions:
    return ServeOptions(folder, host, port)


def test_a_payload_cap_above_the_artifact_cap_is_refused(tmp_path: Path) -> None:
    """It could never be reached."""
    settings = replace(SETTINGS, max_artifact_bytes=MIB, max_payload_bytes=2 * MIB)
    with pytest.raises(ConfigError, match="SVC_MAX_PAYLOAD_BYTES"):
        serve(options(tmp_path), settings, {})


def test_a_server_without_signing_keys_is_refused(tmp_path: Path) -> None:
    """It could load nothing."""
    with pytest.raises(ConfigError, match="SVC_SIGNING_KEYS"):
        serve(options(tmp_path), Settings(), {})


def test_strangers_are_not_served_without_keys(tmp_path: Path) -> None:
    """Only loopback is bound then."""
    with pytest.raises(ConfigError, match="SVC_API_KEYS"):
        serve(options(tmp_path, host="0.0.0.0"), SETTINGS, {})


def test_a_port_in_use_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    """One clear line, exit code 8."""
    with bind("127.0.0.1", 0, unread_timeout_s=1) as taken:
        _, port = listen(taken)
        with pytest.raises(ConfigError, match="address already in use") as caught:
            serve(options(tmp_path, port=port), SETTINGS, {})
    assert caught.value.exit_code == 8


def test_a_folder_that_cannot_be_listed_is_refused(tmp_path: Path) -> None:
    """The message names it."""
    with pytest.raises(ConfigError, match="nowhere"):
        serve(options(tmp_path / "nowhere"), SETTINGS, {})


def test_unsafe_modes_are_named() -> None:
    """What the recurring warning and the posture list."""
    assert ServeOptions(Path(), "", 0).unsafe_modes == ()
    assert ServeOptions(Path(), "", 0, insecure_no_auth=True, dev_allow_unsigned=True).unsafe_modes == (
        "dev_allow_unsigned",
        "insecure_no_auth",
    )
