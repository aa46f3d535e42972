"""`python -m benchmarks NAME... [options]`: runs the named benchmarks, or lists them."""

from __future__ import annotations

import runpy
import sys
from itertools import takewhile
from pathlib import Path

SHARED = {
    "__init__",
    "__main__",
    "common",
    "http_servers",
    "hostile_clients",
    "probing",
    "order",
    "wide_model",
    "largest_requests",
}


def names() -> list[str]:
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in SHARED)


def main() -> None:
    wanted = list(takewhile(names().__contains__, sys.argv[1:]))
    options = sys.argv[1 + len(wanted) :]
    if not wanted:
        print("usage: python -m benchmarks NAME... [options]\nbenchmarks: " + ", ".join(names()))
        sys.exit(2 if options else 0)
    for name in wanted:
        sys.argv = [name, *options]
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")


if __name__ == "__main__":
    main()
