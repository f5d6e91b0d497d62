"""How every script begins, on all cores, and ends: well, or with what was wrong."""

import os
import sys
from collections.abc import Callable, Sequence

from absl import logging

from experiments import devices

#: Exit status of a program that Ctrl-C has ended, as shells have it.
_INTERRUPTED = 130


def call(argv: Sequence[str], work: Callable[[], object]) -> None:
    """Does the work of a script once absl has read its flags.

    Args:
      argv: what is left of the command line: the script's name.
      work: does it; what it raises for bad input, files or missing packages becomes one
        line on standard error, and exit status 1. Ctrl-C ends the process at once,
        with status 130.
    """
    if len(argv) > 1:
        sys.exit(f"error: unknown arguments: {' '.join(argv[1:])}")
    logging.set_verbosity(logging.WARNING)  # JAX logs every backend it looks for
    try:
        devices.set_up()
        work()
    except (ValueError, OSError, ImportError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        # XLA, once interrupted while it compiled, crashes at an orderly end.
        sys.stdout.flush()
        print("interrupted", file=sys.stderr, flush=True)
        os._exit(_INTERRUPTED)
