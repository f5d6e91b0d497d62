"""How long networks are trained, and with what minibatches."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rad_jax import checks

#: Training goes on from the present weights, or starts again at every arrival.
MODES = ("continue", "refit")


class Training(NamedTuple):
    """How long and how a network is trained.

    Attributes:
      mode: "continue": at every arrival `steps` further gradient steps; "refit": from
        the initial weights again, with as many steps as "continue" would have taken
        by then.
      steps: gradient steps at an arrival.
      initial_steps: gradient steps on the clean batch.
      minibatch_size: rows of a minibatch. Minibatches are drawn from all stored
        rows, kept or not, so that every seed sees the same features; rows that a
        seed has not kept weigh nothing.
    """

    mode: str = "continue"
    steps: int = 100
    initial_steps: int = 500
    minibatch_size: int = 200

    def steps_at(self, arrival):
        """Gradient steps at an arrival (int or int32 scalar)."""
        first = arrival == 0
        if self.mode == "refit":
            return self.initial_steps + self.steps * arrival
        if isinstance(arrival, int):
            return self.initial_steps if first else self.steps
        return jnp.where(first, self.initial_steps, self.steps)

    def check(self) -> None:
        """Raises TypeError or ValueError unless fields are whole and in range."""
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {MODES}, got {self.mode!r}")
        for name in ("steps", "initial_steps", "minibatch_size"):
            checks.whole(name, getattr(self, name), 1, 2**31 - 1)


def check_learning_rate(value) -> None:
    """Raises ValueError unless all of it lies in (0, 1000]; traced values pass."""
    if isinstance(value, jax.core.Tracer):
        return
    rates = np.asarray(value, np.float64)
    if not np.all((rates > 0) & (rates <= 1e3)):
        raise ValueError(f"learning_rate must lie in (0, 1000], got {value}")
