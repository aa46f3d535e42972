"""`python -m benchmarks NAME [CASE] [options]`: runs a benchmark, or lists them.

Without a case the first one of the benchmark runs. `NAME... [options]` runs several.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from importlib import import_module
from itertools import takewhile
from pathlib import Path

SHARED = {"__init__", "__main__", "common", "servers"}


def names() -> list[str]:
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in SHARED)


def run(name: str, words: list[str]) -> None:
    """Run one benchmark with its options. Its first word may be a case."""
    module = import_module(f"benchmarks.{name}")
    cases = getattr(module, "CASES", None) or {"": module.main}
    case = words[0] if words[:1] and words[0] in cases else next(iter(cases))
    sys.argv = [f"{name} {case}".strip(), *words[words[:1] == [case] :]]
    about = inspect.cleandoc(cases[case].__doc__ or module.__doc__ or "")
    listed = f"cases: {', '.join(cases)}" if len(cases) > 1 else None
    parser = argparse.ArgumentParser(
        f"python -m benchmarks {sys.argv[0]}",
        description=about,
        epilog=listed,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cases[case](parser)


def main() -> None:
    wanted = list(takewhile(names().__contains__, sys.argv[1:]))
    words = sys.argv[1 + len(wanted) :]
    if not wanted:
        print("usage: python -m benchmarks NAME... [CASE] [options]\nbenchmarks: " + ", ".join(names()))
        sys.exit(2 if words else 0)
    for name in wanted:
        run(name, words)


if __name__ == "__main__":
    main()
