"""`svc report`: its requirements."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc.artifact.keys import parse_signing_keys
from svc.cli import main
from svc.cli.report import _trained_before
from svc.settings import Settings
from tests.cli.conftest import last_error
from tests.serving.artifacts import SIGNING_KEYS, header, popularity_model, write_artifact


def test_artifacts_are_verified_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 5 for a missing artifact, a wrong key or a header without a training.

    It is 8 without keys. No page is written.
    """
    path, page = tmp_path / "a.svc", tmp_path / "page.html"
    command = ["report", str(path), "--output", str(page)]
    assert main.run(command) == 5
    write_artifact(path, popularity_model())
    assert main.run(command) == 8
    monkeypatch.setenv("SVC_SIGNING_KEYS", SIGNING_KEYS)
    capsys.readouterr()
    assert main.run(command) == 5
    assert "there is nothing to report" in str(last_error(capsys)["error"])
    monkeypatch.setenv("SVC_SIGNING_KEYS", "k1:" + "33" * 32)
    assert main.run(command) == 5
    assert not page.exists()


def test_a_version_is_compared_with_the_last_one_before_it(tmp_path: Path) -> None:
    """Later versions and those of another recipe are left out."""
    made = {}
    for day, name in ((3, "a"), (1, "a"), (2, "a"), (4, "a"), (2, "b")):
        head = header(trained_at=f"2026-01-0{day}T00:00:00+00:00", recipe_name=name)
        sha8 = write_artifact(tmp_path / "a.svc", popularity_model(), head=head, versioning="append_sha")[:8]
        made[day, name] = (str(tmp_path / f"a.{sha8}.svc"), head)
    earlier = _trained_before(*made[3, "a"], parse_signing_keys(SIGNING_KEYS), Settings())
    assert earlier is not None
    assert (earlier["trained_at"], earlier["recipe_name"]) == ("2026-01-02T00:00:00+00:00", "a")
