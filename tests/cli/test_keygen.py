"""`svc keygen`: the printed lines, and keys that are added to a file."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from svc.artifact.keys import parse_signing_keys
from svc.cli.main import run
from svc.settings import Settings


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    assert run(["keygen", *arguments]) == 0
    return dict(line.split("=", 1) for line in capsys.readouterr().out.splitlines())


def test_a_signing_key_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    """The five lines are the kid, the key in hex, its fingerprint, and the entries for signing and for verifying."""
    lines = printed(capsys, "--kid", "2026-01")
    assert list(lines) == ["kid", "plaintext", "fingerprint", "env_entry", "verify_entry"]
    assert lines["kid"] == "2026-01"
    assert re.fullmatch("[0-9a-f]{64}", lines["plaintext"])
    assert lines["fingerprint"] == hashlib.sha256(bytes.fromhex(lines["plaintext"])).hexdigest()[:8]
    assert lines["env_entry"] == f"SVC_SIGNING_KEYS=2026-01:{lines['plaintext']}"
    assert re.fullmatch("SVC_VERIFY_KEYS=2026-01:ed25519:[0-9a-f]{64}", lines["verify_entry"])
    assert lines["plaintext"] not in lines["verify_entry"]


def test_an_api_key_comes_with_the_hash_for_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    """The client gets the plaintext. The server's entry has an scrypt digest with the prefix sha256."""
    lines = printed(capsys, "--type", "api", "--kid", "shop")
    assert list(lines) == ["kid", "plaintext", "hash", "env_entry"]
    assert re.fullmatch("[A-Za-z0-9_-]{43}", lines["plaintext"])
    digest = hashlib.scrypt(lines["plaintext"].encode(), salt=b"svc.api-key.v1", n=1024, r=8, p=1, dklen=32)
    assert lines["hash"] == f"sha256:{digest.hex()}"
    assert lines["env_entry"] == f"SVC_API_KEYS=shop:{lines['hash']}"


def test_printed_entries_are_valid_settings(capsys: pytest.CaptureFixture[str]) -> None:
    """The programs that use the entries accept them unchanged."""
    from svc.artifact.keys import load_signing_keys, parse_signing_keys
    from svc.serving.api.authentication import parse_api_keys

    signing = printed(capsys, "--kid", "a")
    kid, key = parse_signing_keys(signing["env_entry"].partition("=")[2]).active
    assert (kid, key.hex()) == ("a", signing["plaintext"])
    public = load_signing_keys(Settings(verify_keys=signing["verify_entry"].partition("=")[2]))
    assert public.public_of("a") == parse_signing_keys(f"a:{key.hex()}").public_of("a")
    api = printed(capsys, "--kid", "b", "--type", "api")
    assert list(parse_api_keys(api["env_entry"].partition("=")[2])) == ["b"]


def test_every_key_is_new(capsys: pytest.CaptureFixture[str]) -> None:
    """Keys are random and do not depend on the kid."""
    assert printed(capsys, "--kid", "a")["plaintext"] != printed(capsys, "--kid", "a")["plaintext"]


def test_the_default_kid_is_unique(capsys: pytest.CaptureFixture[str]) -> None:
    """Two keys of one day have different kids."""
    kids = {printed(capsys)["kid"] for _ in range(2)}
    assert len(kids) == 2
    assert all(re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}-[0-9a-f]{4}", kid) for kid in kids)


def test_a_kid_that_looks_like_a_key_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Such a kid may be a pasted key, so the error does not repeat it."""
    key = "ab" * 16
    assert run(["keygen", "--kid", key]) == 2
    shown = capsys.readouterr()
    assert "looks like a key" in shown.err
    assert key not in shown.out + shown.err


def test_keys_are_appended_to_the_existing_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first signing key keeps signing, other lines stay, and no signing key is printed."""
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
def test_an_unsuitable_file_is_refused_and_not_changed(tmp_path: Path, text: str, mode: int, code: int) -> None:
    """A file is unsuitable if it has this kid already, is of another kind, or is accessible to others."""
    file = tmp_path / "keys.env"
    file.write_text(text, encoding="utf-8")
    file.chmod(mode)
    assert run(["keygen", "--kid", "a", "--write", str(file)]) == code
    assert file.read_text(encoding="utf-8") == text


def test_a_missing_folder_is_a_configuration_error(tmp_path: Path) -> None:
    """The exit code is 8."""
    assert run(["keygen", "--kid", "a", "--write", str(tmp_path / "nowhere" / "keys.env")]) == 8


def test_the_mode_of_the_file_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service of the group may read the file after each new key."""
    monkeypatch.setattr("svc.env_file._is_private", lambda _: True)
    file = tmp_path / "keys.env"
    file.touch()
    file.chmod(0o640)
    assert run(["keygen", "--kid", "a", "--write", str(file)]) == 0
    assert file.stat().st_mode & 0o777 == 0o640
