"""How many threads the linear algebra library uses, and how they wait."""

from __future__ import annotations

import os
import sys

VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")

_WAIT_CYCLES_LOG2 = 20


def shorten_blas_waits() -> None:
    """Let the threads of OpenBLAS sleep a fraction of a millisecond after an operation, and not 25 ms after it.

    Until they sleep they use their processors fully. Between two matrix products of a training there is mostly longer
    work of one thread: their waiting took a fifth of the processor time of a training without a search. OpenBLAS reads
    the variable when numpy is imported, so this has no effect afterwards.
    """
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", str(_WAIT_CYCLES_LOG2))


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
