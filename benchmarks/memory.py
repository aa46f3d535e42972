"""How much memory does a served model take, while it serves, while it is swapped, and after many swaps?

    python -m benchmarks memory            # artifacts of about 1 and 56 MB, 20 swaps each
    python -m benchmarks memory --full     # also 650 MB, and 100 swaps

Models are random factors: their size is that of trained ones. `ratio` is (resident − 0.15 GiB) / artifact, to be
held against 1.3 while serving and 2.4 at the peak of a swap; a small artifact leaves it below zero.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from benchmarks.common import origin
from tests.e2e.server import Server, write_recipe
from tests.serving.artifacts import factor_model, write_artifact

BASE_BYTES = 0.15 * (1 << 30)
MB = 1e6
ENV = {"SVC_MAX_PAYLOAD_BYTES": "2GiB", "SVC_LOG_LEVEL": "info"}
SHAPES = {"1 MB": (1_000, 1_000), "56 MB": (50_000, 50_000), "650 MB": (700_000, 450_000)}
COMPONENTS = 128


def peak_bytes(server: Server) -> int:
    for line in Path(f"/proc/{server.process.pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) << 10
    raise RuntimeError("the kernel does not tell the peak")


def forget_peak(server: Server) -> None:
    """Let the kernel count the peak from now on."""
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5", encoding="ascii")


def swap(server: Server, folder: Path, number: int) -> None:
    """Put the other artifact in place and wait until it is served."""
    link = folder / "next"
    os.link(folder / f"{number % 2}.svc", link)
    link.rename(folder / "a.svc")
    server.wait_for("artifact_loaded", times=number + 1)
    server.recommend("a", "u1").raise_for_status()


def measure(name: str, swaps: int) -> None:
    n_users, n_items = SHAPES[name]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        recipes = folder / "recipes"
        recipes.mkdir()
        write_recipe(recipes, "a", folder / "a.svc")
        for seed in (0, 1):
            write_artifact(folder / f"{seed}.svc", factor_model(n_users, n_items, COMPONENTS, seed=seed))
        os.link(folder / "0.svc", folder / "a.svc")
        size = (folder / "a.svc").stat().st_size
        with Server(recipes, env=ENV) as server:
            server.recommend("a", "u1").raise_for_status()
            row("artifact", name, size, size)
            row("serving", name, server.resident_bytes(), size)
            forget_peak(server)
            for number in range(1, swaps + 1):
                swap(server, folder, number)
                if number in (1, 10, 20, 50, 100):
                    row(f"after {number} swaps", name, server.resident_bytes(), size)
            row("peak of swaps", name, peak_bytes(server), size)


def row(what: str, name: str, found: float, size: int) -> None:
    print(f"{name:8} {what:18} {found / MB:9.1f} MB   ratio {(found - BASE_BYTES) / size:6.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="also 650 MB, and 100 swaps")
    full = parser.parse_args().full
    print("\n".join(origin()))
    for name in SHAPES if full else ("1 MB", "56 MB"):
        measure(name, (20 if name == "650 MB" else 100) if full else 20)


if __name__ == "__main__":
    main()
