"""How much memory does a served model take, while it serves, while it is swapped, and after many swaps?

    python -m benchmarks memory            # artifacts of about 1 and 56 MB, 20 swaps each
    python -m benchmarks memory --full     # also 650 MB, and 100 swaps

Models are random factors: their size is that of trained ones. `ratio` is (resident − 0.15 GiB) / artifact, to be
held against 1.3 while serving and 2.4 at the peak of a swap; a small artifact leaves it below zero. The rows with
metadata are of a recipe that joins a title and a year, read from a csv file, to every item. Last, what a body of
64 MiB costs at its peak, for what such bodies may hold.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import origin
from tests.e2e.server import Server, write_recipe
from tests.serving.artifacts import factor_model, write_artifact

BASE_BYTES = 0.15 * (1 << 30)
MB = 1e6
ENV = {"SVC_MAX_PAYLOAD_BYTES": "2GiB", "SVC_LOG_LEVEL": "info"}
SHAPES = {"1 MB": (1_000, 1_000), "56 MB": (50_000, 50_000), "650 MB": (700_000, 450_000)}
COMPONENTS = 128
BODY_BYTES = 64 << 20
BODIES = {
    "blanks": b'{"user_id":"u1"' + b" " * (BODY_BYTES - 16) + b"}",
    "one text": b'{"user_id":"' + b"u" * (BODY_BYTES - 14) + b'"}',
    "texts": b'{"requests":["' + b'","'.join([b"t" * 60_000] * (BODY_BYTES // 60_003)) + b'"]}',
    "features": b'{"requests":['
    + b",".join([b'{"user_features":{' + b",".join(b'"f%d":"%b"' % (n, b"t" * 8_000) for n in range(32)) + b"}}"] * 256)
    + b"]}",
    "numbers": b'{"requests":[' + b"1," * (BODY_BYTES // 2 - 8) + b"1]}",
}


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


def measure(name: str, swaps: int, *, metadata: bool = False) -> None:
    n_users, n_items = SHAPES[name]
    label = f"{name} + metadata" if metadata else name
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        recipes = folder / "recipes"
        recipes.mkdir()
        write_recipe(recipes, "a", folder / "a.svc", **(_metadata(folder, n_items) if metadata else {}))
        for seed in (0, 1):
            write_artifact(folder / f"{seed}.svc", factor_model(n_users, n_items, COMPONENTS, seed=seed))
        os.link(folder / "0.svc", folder / "a.svc")
        size = (folder / "a.svc").stat().st_size
        with Server(recipes, env=ENV) as server:
            server.recommend("a", "u1").raise_for_status()
            row("artifact", label, size, size)
            row("serving", label, server.resident_bytes(), size)
            forget_peak(server)
            for number in range(1, swaps + 1):
                swap(server, folder, number)
                if number in (1, 10, 20, 50, 100):
                    row(f"after {number} swaps", label, server.resident_bytes(), size)
            row("peak of swaps", label, peak_bytes(server), size)


def _metadata(folder: Path, n_items: int) -> dict[str, Any]:
    lines = [f"i{number},The title of item {number},{1900 + number % 120}" for number in range(n_items)]
    (folder / "items.csv").write_text("\n".join(["item_id,title,year", *lines]), encoding="utf-8")
    source = {"type": "csv", "path": str(folder / "items.csv")}
    return {"item_metadata": {"source": source, "id_column": "item_id", "fields": ["title", "year"]}}


def bodies() -> None:
    """What the server needs more at its peak while it answers a large body, beside the size of that body."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_recipe(folder, "a", folder / "a.svc")
        write_artifact(folder / "a.svc", factor_model(*SHAPES["1 MB"], COMPONENTS))
        for name, body in BODIES.items():
            with Server(folder, env=ENV) as server:
                server.recommend("a", "u1").raise_for_status()
                before = server.resident_bytes()
                forget_peak(server)
                verb = "batch-recommend" if name in {"texts", "numbers", "features"} else "recommend"
                status = server.client.post(f"/v1/recipes/a:{verb}", content=body).status_code
                cost = peak_bytes(server) - before
                size = len(body)
                found = f"status {status}, peak +{cost / MB:.0f} MB = {cost / size:.2f} times its size"
                print(f"body of {size / MB:.0f} MB, {name:9} {found}", flush=True)


def row(what: str, name: str, peak: float, size: int) -> None:
    print(f"{name:18} {what:18} {peak / MB:9.1f} MB   ratio {(peak - BASE_BYTES) / size:6.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="also 650 MB, and 100 swaps")
    full = parser.parse_args().full
    print("\n".join(origin()))
    for name in SHAPES if full else ("1 MB", "56 MB"):
        measure(name, (20 if name == "650 MB" else 100) if full else 20)
    for name in ("1 MB", "56 MB"):
        measure(name, 20, metadata=True)
    bodies()


if __name__ == "__main__":
    main()
