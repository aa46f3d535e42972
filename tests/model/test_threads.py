"""One thread for each array operation, before and after numpy is imported, and short waits of OpenBLAS."""

from __future__ import annotations

import os
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
    """The limit is set in a new process, as the server does."""
    program = PROGRAM.format(before=before)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout.strip() == "[1]"


WAITS = """
import os, sys
assert 'numpy' not in sys.modules
from svc.model.threads import shorten_blas_waits
shorten_blas_waits()
print(os.environ.get("OPENBLAS_THREAD_TIMEOUT"))
"""


@pytest.mark.system
@pytest.mark.parametrize(("given", "expected"), [(None, "20"), ("26", "26")])
def test_openblas_waits_are_short_unless_the_environment_sets_them(given: str | None, expected: str) -> None:
    """The variable holds the logarithm of a number of cycles. A variable of the environment stays."""
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_THREAD_TIMEOUT"}
    environment |= {} if given is None else {"OPENBLAS_THREAD_TIMEOUT": given}
    command = [sys.executable, "-c", WAITS]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=environment)
    assert run.stdout.strip() == expected
