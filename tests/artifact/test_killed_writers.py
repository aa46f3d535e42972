"""Writers that are killed at random moments, of local files under a polling server and of objects in three stores."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from svc.artifact.keys import parse_signing_keys
from svc.artifact.store import open_store, read_verified
from svc.settings import Settings
from tests.artifact.conftest import Place
from tests.e2e.server import Server, write_recipe
from tests.serving.artifacts import SIGNING_KEYS, factor_model, header, popularity_model, write_artifact

KILLS = int(os.environ.get("SVC_TEST_KILLS", "10"))
ROOT = Path(__file__).parent.parent.parent
READING_FAILED = ("artifact_load_failed", "artifact_load_unexpected_error", "artifact_stat_failed")
WRITER = """
import sys
from tests.serving.artifacts import factor_model, header, write_artifact
model = factor_model(500, 12_000, 64)
print("ready", flush=True)
number = int(sys.argv[3])
while True:
    number += 1
    print(number, flush=True)
    write_artifact(sys.argv[1], model, versioning=sys.argv[2], head=header(number=number))
    print("done", flush=True)
"""


@pytest.mark.integration
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("versioning", ["append_sha", "always_overwrite"])
def test_readers_see_only_whole_artifacts_of_killed_writers(tmp_path: Path, versioning: str) -> None:
    """Each read returns a whole, signed artifact, and the server loads each one.

    The next writer removes the temporary files of a killed one. The variable SVC_TEST_KILLS sets the number of kills,
    and `-rP` prints the counts.
    """
    home, path, moments = tmp_path / "recipes", tmp_path / "out" / "m.svc", random.Random(7)
    home.mkdir()
    write_recipe(home, "m", path)
    write_artifact(path, factor_model(500, 12_000, 64), versioning=versioning)
    found: Counter[str] = Counter()
    with Server(home) as server:
        for number in range(KILLS // 2):
            kill_one(path, versioning, number * 1000, moments.uniform(0.0, 0.15), found)
            found["answers"] += server.recommend("m").status_code == 200
            tidy(path)
        last = write_artifact(path, popularity_model(1), versioning=versioning)
        server.wait_for("artifact_loaded", model_version=f"sha256:{last}")
        found["models loaded"] = len(server.said("artifact_loaded"))
        assert [server.said(event) for event in READING_FAILED] == [[], [], []]
    print(f"{versioning}: {KILLS // 2} kills, {dict(found)}")  # noqa: T201
    assert found["answers"] == KILLS // 2
    assert list(path.parent.glob(".m.svc.*.tmp")) == []
    assert found["leftovers"] > 0, "no kill hit a write: the test proves nothing"


@pytest.mark.integration
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("versioning", ["append_sha", "always_overwrite"])
@pytest.mark.parametrize("place", ["s3", "gcs", "azure"], indirect=True)
def test_object_stores_show_only_whole_artifacts_of_killed_writers(place: Place, versioning: str) -> None:
    """After each kill the store has either the last finished artifact or the interrupted one, whole."""
    uri, moments, interrupted = place.uri("m.svc"), random.Random(11), 0
    for kill in range(1, 1 + max(2, KILLS // 4)):
        began, done = killed(uri, versioning, kill * 1000, moments.uniform(0.0, 0.3))
        assert number_at(uri) in {done, began}
        interrupted += began > done
    print(f"{uri}: {versioning}: {kill} kills, {interrupted} of them in a write")  # noqa: T201
    assert interrupted > 0, "no kill hit a write: the test proves nothing"


def killed(uri: str, versioning: str, number: int, after_s: float) -> tuple[int, int]:
    """Return the numbers of a killed writer's last begun and last finished write.

    It is killed `after_s` after its first write.
    """
    command = [sys.executable, "-c", WRITER, uri, versioning, str(number)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as writer:
        assert writer.stdout is not None
        said = [writer.stdout.readline().strip() for _ in range(3)]
        time.sleep(after_s)
        writer.send_signal(signal.SIGKILL)
        said += writer.stdout.read().split()
    began = [int(word) for word in said[1:] if word != "done"]
    return began[-1], began[-1] if said[-1] == "done" else began[-2]


def number_at(uri: str) -> int:
    _, parsed = read_verified(uri, parse_signing_keys(SIGNING_KEYS), Settings(http_timeout_s=20))
    return int(parsed.header["number"])


def kill_one(path: Path, versioning: str, number: int, after_s: float, found: Counter[str]) -> None:
    """Start a writer and kill it `after_s` seconds after it is ready. Read the artifact during all of this time."""
    command = [sys.executable, "-c", WRITER, str(path), versioning, str(number)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        end = time.monotonic() + after_s
        while time.monotonic() < end:
            found["whole reads"] += whole(path)
        writer.send_signal(signal.SIGKILL)
    found["whole reads"] += whole(path)
    found["leftovers"] += len(list(path.parent.glob(".m.svc.*.tmp")))


def whole(path: Path) -> bool:
    """Return True if the artifact is whole. Reading a part of an artifact would raise an error."""
    _, parsed = read_verified(str(path), parse_signing_keys(SIGNING_KEYS), Settings())
    return parsed.header.keys() >= header().keys()


def tidy(path: Path) -> None:
    """Remove the versions that the pointer does not name, as an operator's cron job would."""
    current = open_store(str(path), Settings()).read(1 << 30).resolved
    for old in path.parent.glob("m.????????.svc"):
        if str(old) != current:
            old.unlink()
