"""`svc keygen --write`: keys go into a file that only its owner may read."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc.artifact.keys import parse_signing_keys
from svc.cli.main import run


def test_keys_are_added_and_those_that_are_there_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first signing key keeps signing; no signing key is shown; other lines stay as they are."""
    file = tmp_path / "keys.env"
    assert run(["keygen", "--kid", "a", "--write", str(file)]) == 0
    first = file.read_text(encoding="utf-8")
    assert file.stat().st_mode & 0o777 == 0o600
    assert run(["keygen", "--kid", "shop", "--type", "api", "--write", str(file)]) == 0
    assert run(["keygen", "--kid", "b", "--write", str(file)]) == 0
    lines = dict(line.split("=", 1) for line in file.read_text(encoding="utf-8").splitlines())
    assert list(lines) == ["SVC_SIGNING_KEYS", "SVC_API_KEYS"]
    assert lines["SVC_SIGNING_KEYS"].startswith(first.strip().split("=", 1)[1] + ",b:")
    assert parse_signing_keys(lines["SVC_SIGNING_KEYS"]).active[0] == "a"
    assert file.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["keys.env"]
    shown = capsys.readouterr().out
    assert all(entry.split(":")[1] not in shown for entry in lines["SVC_SIGNING_KEYS"].split(","))
    assert "plaintext=" in shown  # of the API key, which its client needs


@pytest.mark.parametrize(
    ("text", "mode", "code"),
    [("SVC_SIGNING_KEYS=a:00\n", 0o600, 2), ("# mine\n\nname: shop\n", 0o600, 8), ("", 0o660, 8), ("", 0o604, 8)],
)
def test_a_file_that_cannot_be_added_to_stays_as_it_is(tmp_path: Path, text: str, mode: int, code: int) -> None:
    """A kid that is there, another kind of file, one that others may read."""
    file = tmp_path / "keys.env"
    file.write_text(text, encoding="utf-8")
    file.chmod(mode)
    assert run(["keygen", "--kid", "a", "--write", str(file)]) == code
    assert file.read_text(encoding="utf-8") == text


def test_a_folder_that_is_missing_is_told(tmp_path: Path) -> None:
    """With the exit code of a machine that is set up wrongly."""
    assert run(["keygen", "--kid", "a", "--write", str(tmp_path / "nowhere" / "keys.env")]) == 8


def test_a_group_that_may_read_keeps_its_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root gave it to the service, which reads the file after each new key."""
    monkeypatch.setattr("svc.env_file._is_private", lambda _: True)
    file = tmp_path / "keys.env"
    file.touch()
    file.chmod(0o640)
    assert run(["keygen", "--kid", "a", "--write", str(file)]) == 0
    assert file.stat().st_mode & 0o777 == 0o640
