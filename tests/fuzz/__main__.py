"""Coverage-guided fuzzing with atheris: `python -m tests.fuzz artifact|recipe|body [SECONDS]`.

Starts from the files in `corpus/<target>` and adds those that reach new code. An input that breaks the rule of
`targets.py` is written to `crash-*` in the working folder, and the exit code is not 0.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

CORPUS = Path(__file__).parent / "corpus"


def main() -> None:
    target, *more = sys.argv[1:]
    with atheris.instrument_imports(include=["svc"]):
        from tests.fuzz.targets import TARGETS
    bounds = [f"-max_total_time={more[0] if more else 60}", "-max_len=8192", "-timeout=20", "-rss_limit_mb=2048"]
    atheris.Setup([sys.argv[0], *bounds, str(CORPUS / target)], TARGETS[target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
