"""What do hostile clients cost a server, and do the others notice?

    python -m benchmarks hostile                          # every attack, some four minutes
    python -m benchmarks hostile --attacks idle,bodies --seconds 20

For each attack, in one run: a quiet time, then as long under the attack, which comes from a process of its own. All the
while four clients with a key ask for recommendations and `/v1/health` is asked a hundred times a second. A row says
the 99th percentile of health quiet and attacked, the same of the others' answers, how many of those failed, the peak of
the server's memory above what it had before, and its open connections at their most. Before it stands what the machine
itself makes of a hundred requests a second: the 99th percentile of a bare ASGI application on the same HTTP library,
asked by nobody else. The program ends with 1 if a request of the others failed or a server did not end with 0.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.common import origin
from benchmarks.hostile_clients import ATTACKS, MANY, attack, most_files
from benchmarks.http import floor
from benchmarks.probing import PATIENCE_S, Address, probing
from svc.serving.api.authentication import hash_api_key, new_api_key
from tests.e2e.load import Load, only_200
from tests.e2e.server import Server, make_home
from tests.serving.artifacts import factor_model

ANSWER_BYTES = 40
"""About those of `/v1/health`."""
COLUMNS = (
    *("attack", "bare p99 ms", "health p99 ms, quiet", "attacked", "others p99 ms, quiet", "attacked"),
    *("others answered", "failed", "memory above before, MB", "files open"),
)


class Seen(NamedTuple):
    """Of one span of time: milliseconds at the 99th percentile, and requests of the others."""

    health_ms: float
    others_ms: float
    answered: int
    failed: int
    connections: int


class Watch:
    """A server with a key, clients that use it, and what becomes of both."""

    def __init__(self, server: Server, key: str) -> None:
        self.server = server
        self.key = key
        self.address = address_of(server.url)

    def look(self, seconds: float, connections: int = 0) -> Seen:
        """What is seen for that long, and until there are that many connections, if that takes longer."""
        asked = [("/v1/recipes/a:recommend", {"user_id": f"u{number}"}) for number in range(4)]
        headers = {"X-API-Key": self.key}
        load = Load(self.server.url, asked, clients=4, judge=only_200, headers=headers, pause_s=0.05)
        most = 0
        with probing(self.address) as health, load:
            ends = time.monotonic() + seconds
            late = ends + PATIENCE_S
            while time.monotonic() < ends or (most < connections and time.monotonic() < late):
                time.sleep(0.5)
                most = max(most, self._connections())
        tally = load.tally
        return Seen(p99(health), p99(tally.seconds), tally.answered, len(tally.failures) + tally.refused, most)

    def _connections(self) -> int:
        return len(list(Path(f"/proc/{self.server.process.pid}/fd").iterdir()))

    def attacked(self, name: str, seconds: float) -> tuple[Seen, int]:
        """What was seen under the attack, and the peak of memory above the state before, in bytes."""
        Path(f"/proc/{self.server.process.pid}/clear_refs").write_text("5")  # the peak begins anew
        before = self._memory("VmRSS")
        with attack(name, self.key, self.address):
            seen = self.look(seconds, MANY if name == "idle" else 0)
        return seen, self._memory("VmHWM") - before

    def _memory(self, name: str) -> int:
        status = Path(f"/proc/{self.server.process.pid}/status").read_text(encoding="ascii")
        return int(status.split(f"{name}:")[1].split()[0]) * 1024


def address_of(url: str) -> Address:
    host, port = url.removeprefix("http://").split(":")
    return host, int(port)


def p99(seconds: list[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.99)] * 1e3 if seconds else float("nan")


@contextmanager
def watched() -> Iterator[Watch]:
    """A server of one model, with its default limits."""
    key = new_api_key()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        recipes = make_home(folder, "a", factor_model(2_000, 5_000, 64))
        env = {"SVC_API_KEYS": f"hostile:{hash_api_key(key)}", "SVC_LOG_LEVEL": "info"}
        yield Watch(stack.enter_context(Server(recipes, env=env)), key)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attacks", default=",".join(ATTACKS), help="some of them, separated by commas")
    parser.add_argument("--seconds", type=float, default=8.0, help="of quiet, and of each attack")
    options = parser.parse_args()
    print("\n".join(origin()))
    print(f"open files: at most {most_files():,} a process\n")
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    failed = 0
    for name in options.attacks.split(","):
        with floor(ANSWER_BYTES) as bare, probing(address_of(bare.url)) as machine:
            time.sleep(options.seconds / 2)
        with watched() as watch:
            watch.look(1)
            quiet = watch.look(options.seconds)
            seen, peak = watch.attacked(name, options.seconds)
            failed += seen.failed + quiet.failed + (watch.server.stop() != 0)
        ms = (p99(machine), quiet.health_ms, seen.health_ms, quiet.others_ms, seen.others_ms)
        counts = (seen.answered, seen.failed, round(peak / 1e6), seen.connections)
        print(f"| {' | '.join([name, *(f'{one:.1f}' for one in ms), *map(str, counts)])} |", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
