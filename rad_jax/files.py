"""Writing to disk whole or not at all, and modules that come with an extra."""

import contextlib
import importlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class OutputError(OSError):
    """Nothing can be written where the user asked for it."""


def check_output_dir(path: str | os.PathLike[str]) -> Path:
    """Creates the directory and proves, by writing, that files can be made in it.

    To be called before any work. Permission bits are not consulted: they do not bind
    root, and a read-only mount has the usual ones.

    Args:
      path: value of ``--output_dir``; parents are created too.

    Returns:
      The directory.

    Raises:
      OutputError: empty, or no file can be made in it.
    """
    if not os.fspath(path):
        raise OutputError("--output_dir is empty; give a directory to write to")
    try:
        directory = Path(path).expanduser()
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory) as probe:
            probe.write(b"probe")
            probe.flush()
    except (OSError, ValueError, RuntimeError) as error:  # null byte; ~nobody
        reason = getattr(error, "strerror", None) or error
        raise OutputError(
            f"--output_dir={os.fspath(path)} cannot be written to ({reason}); give a "
            "directory in which files can be created"
        ) from error
    return directory


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside `path`, renamed to it at the end if all went well.

    Args:
      path: the file to make or to replace.

    Yields:
      Where to write, with the same suffix.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.stem}_{os.getpid()}{path.suffix}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def require(module: str, what: str = "reports") -> Any:
    """Imports a module of the extra ``experiments``, which is needed for something."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{module.split('.')[0]} is needed for {what}: "
            "pip install 'rad-jax[experiments]'"
        ) from error
