"""`svc.load` trusts an artifact by the rules of a server, and leaves the logging of its program alone.

Signing keys in the forms that a caller may give.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

import svc
from svc import events, logs
from svc.errors import ArtifactReadError, ConfigError, SignatureMismatch, UnknownKid
from svc.library.load import keys_text, signing_keys
from svc.settings import Settings
from tests.export.conftest import MODELS
from tests.serving.artifacts import SIGNING_KEYS, header, write_artifact


def test_keys_come_in_three_forms(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text, a mapping and the environment work. Other values are an error that shows no key."""
    versions = {svc.load(artifact, keys=SIGNING_KEYS).model_version}
    versions.add(svc.load(str(artifact), keys={"k1": "11" * 32}).model_version)
    monkeypatch.setenv("SVC_SIGNING_KEYS", SIGNING_KEYS)
    versions.add(svc.load(artifact).model_version)
    assert len(versions) == 1
    monkeypatch.delenv("SVC_SIGNING_KEYS")
    for keys in (None, "", {}):
        with pytest.raises(ConfigError, match="no signing keys"):
            svc.load(artifact, keys=keys)
    with pytest.raises(ConfigError) as caught:
        svc.load(artifact, keys={"k1": "ab" * 31})
    assert "abab" not in caught.value.message


def test_artifacts_are_verified_as_by_a_server(artifact: Path) -> None:
    """Missing and changed artifacts, unknown keys and other signatures are refused."""
    with pytest.raises(ArtifactReadError):
        svc.load(artifact.parent / "none.svc", keys=SIGNING_KEYS)
    with pytest.raises(UnknownKid):
        svc.load(artifact, keys={"other": "11" * 32})
    with pytest.raises(SignatureMismatch):
        svc.load(artifact, keys={"k1": "22" * 32})
    whole = bytearray(artifact.read_bytes())
    whole[len(whole) // 2] ^= 1
    artifact.write_bytes(whole)
    with pytest.raises(SignatureMismatch):
        svc.load(artifact, keys=SIGNING_KEYS)


@pytest.mark.system
def test_a_program_keeps_its_own_logging(tmp_path: Path) -> None:
    """Loading neither prints nor touches handlers and warnings of the program. Records go to the logger `svc`."""
    import subprocess
    import sys

    path = tmp_path / "a.svc"
    write_artifact(path, MODELS["popularity"](), head={**header(), "irspack_version": None})
    script = (
        "import logging, warnings\n"
        "before = warnings.showwarning, list(logging.getLogger().handlers)\n"
        "records = []\n"
        "class Keep(logging.Handler):\n"
        "    def emit(self, record): records.append(record.getMessage())\n"
        "logging.getLogger('svc').addHandler(Keep())\n"
        f"import svc\nsvc.load({str(path)!r}, keys={SIGNING_KEYS!r})\n"
        "assert before == (warnings.showwarning, list(logging.getLogger().handlers))\n"
        "assert any('irspack_version_unknown' in record for record in records), records\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_records_go_to_the_logger_of_the_program(artifact: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Records go there unless a command has set up logging."""
    structlog.reset_defaults()
    try:
        svc.load(artifact, keys=SIGNING_KEYS)
        logs.emit(events.PYTHON_WARNING, category="a", message="b")
    finally:
        logs.configure(Settings())
    assert [(record.name, record.getMessage()) for record in caplog.records] == [
        ("svc", "event='python_warning' category='a' message='b'")
    ]


KEY, OTHER = "11" * 32, "22" * 32


def test_text_mapping_and_environment_give_the_same_keys() -> None:
    """In each form the first key signs."""
    for given in (f"a:{KEY},b:{OTHER}", {"a": KEY, "b": OTHER}):
        keys = signing_keys(given, Settings())
        assert keys.active == ("a", bytes.fromhex(KEY))
        assert keys.get("b") == bytes.fromhex(OTHER)
    assert keys_text(None, Settings(signing_keys=f"a:{KEY}")) == f"a:{KEY}"


@pytest.mark.parametrize("given", [None, "", "  ", {}])
def test_the_error_for_missing_keys_says_how_to_give_them(given: object) -> None:
    """The error comes before the first artifact is read."""
    with pytest.raises(ConfigError, match="SVC_SIGNING_KEYS"):
        keys_text(given, Settings())  # type: ignore[arg-type]


def test_the_error_for_a_broken_key_does_not_repeat_it() -> None:
    """Messages may reach people who must not know the key."""
    with pytest.raises(ConfigError) as caught:
        signing_keys({"a": "secret" * 9}, Settings())
    assert "secret" not in caught.value.message
    assert caught.value.message.startswith("keys: the key of entry 1 ")
