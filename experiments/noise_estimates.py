"""From a stream to estimates of ``T[true, given]``: ours, and two ways of counting.

A stream is run, and every row's probabilities are kept as they were when it arrived
(`judge_stream`); from these and the given labels each method estimates (`compare`).
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rad_jax.datasets import StreamData
from rad_jax.noise import estimate_transition_matrix
from rad_jax.program import Compiled
from rad_jax.rad import Rad
from rad_jax.state import BATCH_AXES, STATE_AXES, State
from rad_jax.types import UNLABELLED, Array, Batch, Keys


class Judged(NamedTuple):
    """Probabilities of rows that no model was trained on: means of L's and C's.

    Attributes:
      probs: ``[R, T, N, K]``, of each row when it arrived.
      clean_probs: ``[R, V, K]``, of the rows held out, after the last arrival.
      clean_label: ``[V]`` int.
      clean_valid: ``[V]`` bool.
      compile_seconds: of it.
      run_seconds: of the rest.
    """

    probs: np.ndarray
    clean_probs: np.ndarray
    clean_label: np.ndarray
    clean_valid: np.ndarray
    compile_seconds: float
    run_seconds: float


def judge_stream(
    algo: Rad,
    data: StreamData,
    given: np.ndarray,
    seed: int,
    progress: Callable[[int], None] | None = None,
) -> Judged:
    """Runs a stream once for each row of labels, all of them at once.

    Runs differ in given labels only; models start alike and see the same minibatches.

    Args:
      algo: with room for the stream.
      data: what arrives.
      given: ``[R, T, N]`` int, given labels of each run.
      seed: base of the keys, as in `rad_jax.sweep`.
      progress: called with the number of arrivals done.
    """
    num_runs, num_batches, size = given.shape
    key = jax.random.key(seed)
    keys = Keys(jax.random.fold_in(key, 0), jax.random.fold_in(key, 1))

    def begin(keys: Keys, features: Array, label: Array) -> State:
        rows = jnp.arange(label.shape[0], dtype=jnp.int32)
        clean = Batch(features, label, jnp.ones(label.shape, bool), rows)
        start = jax.vmap(algo.init, (None, None), STATE_AXES, axis_size=num_runs)
        return start(keys, clean)

    def arrive(state: State, batch: Batch) -> tuple[State, Array]:
        state, info = algo.step(state, batch)
        return state, (info.label_probs + info.class_probs) / 2

    def finish(state: State) -> Array:
        if not state.shared.validation_label.shape[0]:
            return jnp.zeros((0, data.num_classes))
        probs = algo.engine.probabilities(*state, state.shared.validation)
        return (probs[0] + probs[-1]) / 2

    begin_time = time.perf_counter()
    start = Compiled(begin)
    step = Compiled(jax.vmap(arrive, (STATE_AXES, BATCH_AXES), (STATE_AXES, 0)))
    end = Compiled(jax.vmap(finish, (STATE_AXES,)))
    state = start(keys, data.initial_features, data.initial_labels)
    probs = []
    for i in range(num_batches):
        first = len(data.initial_labels) + i * size
        batch = Batch(
            jnp.asarray(data.features[i]),
            jnp.asarray(given[:, i], jnp.int32),
            jnp.ones(size, bool),
            jnp.arange(first, first + size, dtype=jnp.int32),
        )
        state, here = step(state, batch)
        probs.append(np.asarray(here))
        if progress is not None:
            progress(i + 1)
    clean_probs = end(state)
    compiling = start.seconds + step.seconds + end.seconds
    return Judged(
        np.stack(probs, axis=1),
        np.asarray(clean_probs),
        np.asarray(state.shared.validation_label),
        np.asarray(state.shared.validation_valid),
        compiling,
        time.perf_counter() - begin_time - compiling,
    )


# --- methods --------------------------------------------------------------------------


class Found(NamedTuple):
    """What a method makes of probabilities and given labels.

    Attributes:
      matrix: ``[K, K]``, ``T[true, given]``, rows sum to 1.
      rate: scalar, share of wrong labels.
    """

    matrix: Array
    rate: Array


class Clean(NamedTuple):
    """Rows whose class is known, and which no model was trained on.

    Attributes:
      probs: ``[V, K]``.
      label: ``[V]`` int.
      weight: ``[V]`` float.
    """

    probs: Array
    label: Array
    weight: Array


def estimate(probs: Array, given: Array, clean: Clean) -> Found:
    """`rad_jax.noise.estimate_transition_matrix`, with all rows that have a label.

    Args:
      probs: ``[M, K]``, of models that were not trained on the row.
      given: ``[M]`` int, -1 for none.
      clean: rows beside, for the temperature.
    """
    every = jnp.ones(given.shape, bool)
    found = estimate_transition_matrix(
        probs,
        given,
        every,
        clean_probs=clean.probs,
        clean_label=clean.label,
        clean_weight=clean.weight,
    )
    return Found(found.matrix, found.error_rate)


def confident_joint(probs: Array, given: Array, clean: Clean | None = None) -> Found:
    """Counts rows that are confidently of a class, by given label.

    A row counts for the most probable of the classes k with ``p(k)`` of at least the
    mean ``p(k)`` of the rows given as k. Counts are then scaled to the number of rows
    of each given label. Every class has one row on the diagonal at least.

    Args:
      probs: ``[M, K]``.
      given: ``[M]`` int, -1 for none.
      clean: not used.

    References:
      Northcutt et al., "Confident learning", JAIR 2021.
    """
    del clean
    of_given = _one_hot(given, probs)
    size = jnp.sum(of_given, axis=0)
    threshold = jnp.sum(probs * of_given, axis=0) / jnp.maximum(size, 1)
    threshold = jnp.where(size > 0, threshold, jnp.inf)
    confident = probs >= threshold[None] - 1e-6  # means are rounded
    guess = jnp.argmax(jnp.where(confident, probs, -1), axis=1)
    sure = jnp.any(confident, axis=1)[:, None]
    counts = _count(guess, of_given * sure, probs)
    counts = jnp.maximum(counts, jnp.eye(len(size), dtype=counts.dtype))
    return _normalise(counts * (size / jnp.sum(counts, axis=0))[None])


def counting(probs: Array, given: Array, clean: Clean | None = None) -> Found:
    """Takes the most probable class for the true one.

    Args:
      probs: ``[M, K]``.
      given: ``[M]`` int, -1 for none.
      clean: not used.
    """
    del clean
    guess = jnp.argmax(probs, axis=1)
    return _normalise(_count(guess, _one_hot(given, probs), probs))


#: All methods by name; the first is the library's.
METHODS: dict[str, Callable[[Array, Array, Clean], Found]] = {
    "estimate": estimate,
    "confident_joint": confident_joint,
    "counting": counting,
}


def _one_hot(given: Array, probs: Array) -> Array:
    """``[M, K]``; a row without label is all 0."""
    chex.assert_rank((probs, given), (2, 1))
    chex.assert_equal_shape_prefix((probs, given), 1)
    labelled = (given != UNLABELLED)[:, None]
    return labelled * jax.nn.one_hot(given, probs.shape[1], dtype=probs.dtype)


def _count(guess: Array, of_given: Array, probs: Array) -> Array:
    of_guess = jax.nn.one_hot(guess, probs.shape[1], dtype=probs.dtype)
    return jnp.matmul(of_guess.T, of_given, precision=jax.lax.Precision.HIGHEST)


def _normalise(counts: Array) -> Found:
    """Shares of each true class; one without rows is taken to be never wrong."""
    total = jnp.sum(counts, axis=1, keepdims=True)
    eye = jnp.eye(counts.shape[0], dtype=counts.dtype)
    matrix = jnp.where(total > 0, counts / jnp.maximum(total, 1e-9), eye)
    rows = jnp.sum(counts)
    wrong = 1 - jnp.trace(counts) / jnp.maximum(rows, 1e-9)
    return Found(matrix, jnp.where(rows > 0, wrong, 0.0))


_vmapped = jax.jit(
    lambda probs, given, clean: {
        name: jax.vmap(method, in_axes=(0, 0, Clean(0, None, None)))(  # type: ignore[arg-type]
            probs, given, clean
        )
        for name, method in METHODS.items()
    }
)


def compare(judged: Judged, given: np.ndarray, part: slice) -> dict[str, Found]:
    """Every method on some runs.

    Args:
      judged: of all runs.
      given: ``[R, T, N]`` int, of all runs.
      part: which runs.

    Returns:
      By name of the method, matrices ``[len(part), K, K]`` and rates ``[len(part)]``,
      in NumPy and double precision.
    """
    probs, labels = judged.probs[part], given[part]
    found = _vmapped(
        jnp.asarray(probs.reshape(len(probs), -1, probs.shape[-1])),
        jnp.asarray(labels.reshape(len(labels), -1)),
        Clean(
            jnp.asarray(judged.clean_probs[part]),
            jnp.asarray(judged.clean_label),
            jnp.asarray(judged.clean_valid, jnp.float32),
        ),
    )
    found = jax.tree.map(lambda x: np.asarray(x, np.float64), found)
    return {name: found[name] for name in METHODS}  # jit sorts the names
