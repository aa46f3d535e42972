"""Coverage-guided fuzzing with atheris: `python -m tests.fuzz artifact|recipe|body|request [SECONDS]`.

Fuzzing starts from the kept inputs of `inputs.py`, which are written to `fuzz-<target>/` in the working folder. Inputs
that reach new code are added there. An input that breaks the rule of `targets.py` is written to `crash-*`, and the exit
code is then not 0.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

from tests.fuzz.inputs import unpack


def main() -> None:
    target, *more = sys.argv[1:]
    with atheris.instrument_imports(include=["svc"]):
        from tests.fuzz.targets import TARGETS
    bounds = [f"-max_total_time={more[0] if more else 60}", "-max_len=8192", "-timeout=10", "-rss_limit_mb=2048"]
    folder = Path(f"fuzz-{target}")
    unpack(target, folder)
    atheris.Setup([sys.argv[0], *bounds, str(folder)], TARGETS[target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
