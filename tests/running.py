"""How tests start scripts in processes of their own, and whether these still run."""

import os
from pathlib import Path


def as_a_user(**changes: str | None) -> dict[str, str]:
    """The environment for a script, as a user would have it.

    What makes programs compile fast in tests stays; the number of devices does not.

    Args:
      **changes: variables to set, or None to leave out.
    """
    flags = os.environ.get("XLA_FLAGS", "").split()
    env: dict[str, str | None] = {
        **os.environ,
        "XLA_FLAGS": " ".join(f for f in flags if "device_count" not in f),
        "COLUMNS": None,
        "PYTHONIOENCODING": "utf-8",
        **changes,
    }
    return {name: value for name, value in env.items() if value is not None}


def is_running(pid: int | str) -> bool:
    """Whether there is such a process, and it has not ended unnoticed (zombie)."""
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] != "Z"
