"""Set how many threads the linear algebra library uses, and how long they wait for work."""

from __future__ import annotations

import os
import sys

VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")

# 2^20 cycles. A refit on film ratings takes 6.4 instead of 8.3 s of processor time.
_WAIT_CYCLES_LOG2 = 20


def shorten_blas_waits() -> None:
    """Let the threads of OpenBLAS sleep after a fraction of a millisecond without work, instead of after 25 ms.

    Saves a fifth of the processor time of a training without a search: waiting threads use their processors fully, and
    between two matrix products there is mostly longer work of a single thread. OpenBLAS reads the variable when numpy
    is imported, so this has no effect afterwards.
    """
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", str(_WAIT_CYCLES_LOG2))


def limit_blas_threads(count: int) -> None:
    """Let each array operation use at most `count` threads, in the whole process from now on.

    A server runs several scoring threads and the event loop side by side, so it wants one thread per operation. Before
    numpy is imported, this sets the variables that its library reads. Afterwards it calls the library.
    """
    if "numpy" not in sys.modules:
        os.environ.update(dict.fromkeys(VARIABLES, str(count)))
        return
    from threadpoolctl import threadpool_limits

    threadpool_limits(limits=count, user_api="blas")
