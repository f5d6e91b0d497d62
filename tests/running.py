"""How tests start scripts in processes of their own."""

import os


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
