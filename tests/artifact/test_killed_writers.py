"""Writers that are killed at random moments while somebody reads."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from svc.artifact.keys import development_keys
from svc.artifact.store import open_store, read_verified
from svc.settings import Settings

ROUNDS = int(os.environ.get("SVC_TEST_KILLS", "200"))
WRITER = """
import sys
from svc.artifact import layout
from svc.artifact.keys import development_keys
from svc.artifact.store import open_store
from svc.settings import Settings
kid, key = development_keys().active
store = open_store(sys.argv[1], Settings())
print("ready", flush=True)
number = 0
while True:
    number += 1
    payload = [bytes([number % 256]) * (1 << 20)] * 4
    write = lambda out: layout.write(out, kid=kid, key=key, header={"number": number}, payload=payload)
    store.publish(write, sys.argv[2])
"""


@pytest.mark.integration
@pytest.mark.timeout(600)
@pytest.mark.parametrize("versioning", ["append_sha", "always_overwrite"])
def test_no_reader_ever_sees_a_part(tmp_path: Path, versioning: str) -> None:
    """A reader that never stops finds a whole, signed artifact each time, however often the writer dies.

    The next writer removes what the dead one left, so that no temporary file stays in the end.
    """
    path, moments = tmp_path / "m.svc", random.Random(7)
    reads = leftovers = 0
    for _ in range(ROUNDS // 2):
        command = [sys.executable, "-c", WRITER, str(path), versioning]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            end = time.monotonic() + moments.uniform(0.0, 0.06)
            while time.monotonic() < end or not path.exists():
                reads += path.exists() and whole(path)
            writer.send_signal(signal.SIGKILL)
        reads += whole(path)
        leftovers += len(list(tmp_path.glob(".m.svc.*.tmp")))
        for old in tmp_path.glob("m.????????.svc"):
            if old.name not in path.read_bytes()[:100].decode("utf-8", "replace"):
                old.unlink()
    print(f"{versioning}: {ROUNDS // 2} kills, {reads} whole reads, {leftovers} leftovers found and removed")  # noqa: T201
    open_store(str(path), Settings()).publish(_last, "always_overwrite")  # type: ignore[arg-type]
    assert list(tmp_path.glob(".m.svc.*.tmp")) == []
    assert leftovers > 0, "no kill hit a write: the test proves nothing"


def whole(path: Path) -> bool:
    """Read once; any part of an artifact would raise."""
    _, parsed = read_verified(str(path), development_keys(), Settings())
    assert parsed.header["number"] % 256 == parsed.payload[0] == parsed.payload[-1]
    return True


def _last(out: object) -> object:
    from svc.artifact import layout

    kid, key = development_keys().active
    return layout.write(out, kid=kid, key=key, header={"number": 0}, payload=[bytes(1)])  # type: ignore[arg-type]
