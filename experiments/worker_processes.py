"""A process on each core, each with one thread: how scikit-learn uses a machine best.

Plain `concurrent.futures` and not joblib's loky: there a worker ended (probably since
the import of JAX passes for a leak of memory), the thread that manages workers was gone
(where warnings are errors, a warning of that ends it), and the caller waited for ever.
Here a worker that dies ends the work with `BrokenProcessPool`.
"""

import concurrent.futures
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable
from multiprocessing.synchronize import Barrier
from typing import Any

from experiments.devices import num_cores
from rad_jax.files import require

#: Seconds for all workers to start; they import scikit-learn and JAX.
_START = 300


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


def _start(everyone: Barrier) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    require("sklearn")  # first: only libraries that are there are limited
    require("threadpoolctl").threadpool_limits(1)
    everyone.wait(_START)


class Workers:
    """Processes for the time of a ``with``; none has work before all have started.

    Attributes:
      number: of processes.
    """

    def __init__(self, number: int | None = None) -> None:
        """Starts nothing yet.

        Args:
          number: of processes; by default one for each core.

        Raises:
          ImportError: without scikit-learn.
        """
        require("sklearn", "the comparison with scikit-learn")
        self.number = number or num_cores()
        context = multiprocessing.get_context("spawn")  # a fork of JAX's threads hangs
        self._pool = concurrent.futures.ProcessPoolExecutor(
            self.number, context, _start, (context.Barrier(self.number),)
        )

    def __enter__(self) -> "Workers":
        self.map(abs, [(1,)] * self.number)
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def map(self, function: Callable[..., Any], arguments: Iterable[tuple]) -> list:
        """The function of each tuple of arguments, as many at a time as processes.

        Args:
          function: of a module, to be found there by the processes.
          arguments: for each call.

        Returns:
          What it returned, in order.

        Raises:
          BrokenProcessPool: a process died.
        """
        return [
            future.result()
            for future in [self._pool.submit(function, *args) for args in arguments]
        ]
