"""Processes that work for the comparisons with scikit-learn."""

import os
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
import threadpoolctl
from running import is_running

from experiments.worker_processes import Workers


def pid_and_threads(wait):
    time.sleep(wait)
    most = max(pool["num_threads"] for pool in threadpoolctl.threadpool_info())
    return os.getpid(), most


def die():
    os._exit(3)


def test_a_process_on_each_core_with_one_thread_and_a_death_is_noticed():
    with Workers(2) as workers:
        found = workers.map(pid_and_threads, [(0.5,)] * 2)
        assert len({pid for pid, _ in found} - {os.getpid()}) == 2
        assert [threads for _, threads in found] == [1, 1]
        assert workers.map(divmod, [(7, 2), (9, 4)]) == [(3, 1), (2, 1)]
        with pytest.raises(ZeroDivisionError):
            workers.map(divmod, [(7, 0)])
        with pytest.raises(BrokenProcessPool):
            workers.map(die, [()])


def test_workers_end_with_who_started_them():
    code = (
        "import os, test_worker_processes as t\n"
        "if __name__ == '__main__':\n"
        "    with t.Workers(1) as workers:\n"
        "        print(workers.map(t.pid_and_threads, [(0,)])[0][0], flush=True)\n"
        "        os.kill(os.getpid(), 9)\n"
    )
    root = Path(__file__).parents[1]
    path = os.pathsep.join([str(root), str(root / "tests")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    deadline = time.monotonic() + 60
    while is_running(done.stdout):
        assert time.monotonic() < deadline
        time.sleep(0.1)
