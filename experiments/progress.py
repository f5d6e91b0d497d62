"""How far a run has come: a bar on a terminal, lines in a log file."""

import contextlib
import sys
import time

import jax
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


def say(console: Console, *lines: str) -> None:
    """Prints lines as they are."""
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


class Reporter:
    """A bar on a terminal; ten lines in a log file."""

    def __init__(self, total: int, console: Console) -> None:
        self._total, self._console = total, console
        self._begin, self._printed = time.monotonic(), 0
        self._bar = Progress(
            TextColumn("arrivals"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("arrivals", total=total)

    def __enter__(self):
        self._bar.__enter__()
        return self._report

    def __exit__(self, *exception):
        self._bar.__exit__(*exception)

    def _report(self, done: int) -> None:
        self._bar.update(self._task, completed=done)
        tenth = 10 * done // self._total
        if not self._console.is_terminal and tenth > self._printed:
            self._printed = tenth
            seconds = time.monotonic() - self._begin
            with contextlib.suppress(OSError):  # a full log must not end the run
                self._console.print(
                    f"arrival {done}/{self._total}, {seconds:.0f} s", highlight=False
                )


def peak_memory() -> str:
    """The most memory that this process has held, as the end of a sentence.

    On an accelerator the device's own figure; empty where nobody knows.
    """
    stats = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        return f", at most {stats['peak_bytes_in_use'] / 1e9:.2f} GB on the device"
    try:
        import resource
    except ImportError:  # not on Windows
        return ""
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return f", at most {peak / 1e9:.2f} GB held"
