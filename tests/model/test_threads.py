"""One thread an operation, whether numpy is there yet or not."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
{before}
from svc.model.threads import limit_blas_threads
limit_blas_threads(1)
import numpy
from threadpoolctl import threadpool_info
print([pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"])
"""


@pytest.mark.system
@pytest.mark.parametrize("before", ["assert 'numpy' not in sys.modules", "import numpy"])
def test_the_limit_holds_before_and_after_numpy_is_imported(before: str) -> None:
    """In a process of its own, as the server sets it."""
    program = PROGRAM.format(before=before)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout.strip() == "[1]"
