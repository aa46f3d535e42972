"""How many threads the linear algebra library uses."""

from __future__ import annotations

import os
import sys

VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


def limit_blas_threads(count: int) -> None:
    """Let each array operation use at most `count` threads, in the whole process from now on.

    A server runs several scoring threads and the event loop side by side, so it wants one thread per operation. Before
    numpy is imported this sets the variables that its library reads; after, it speaks to the library.
    """
    if "numpy" not in sys.modules:
        os.environ.update(dict.fromkeys(VARIABLES, str(count)))
        return
    from threadpoolctl import threadpool_limits

    threadpool_limits(limits=count, user_api="blas")
