"""How every script begins, on all cores, and ends: well, or with what was wrong."""

import sys
from collections.abc import Callable, Sequence

from absl import logging

from experiments import devices


def call(argv: Sequence[str], work: Callable[[], object]) -> None:
    """Does the work of a script once absl has read its flags.

    Args:
      argv: what is left of the command line: the script's name.
      work: does it; what it raises for bad input, files or missing packages becomes one
        line on standard error, and exit status 1.
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
        sys.exit("interrupted")
