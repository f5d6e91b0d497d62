"""Streams made up as they are needed: classes that drift, late and rare classes.

A stream is a value, `SyntheticStream`, whose batches are a pure function of a key and
of the index of the arrival (0 the clean batch, 1 the first batch after it). Under
`jax.lax.scan` an endless stream takes the memory of one batch.

Each class is a normal cloud of unit variance around its centroid. A *concept* is a set
of centroids, one for each class; drift is a change of concept.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rad_jax.datasets.split import StreamData
from rad_jax.types import MAX_CLASSES, Array, PRNGKey, PyTree, as_arrays

#: The most that `arrays` stores, 4 GB.
MAX_NUMBERS = 10**9

#: How concepts follow each other; see `stream`.
DRIFTS = ("none", "abrupt", "gradual", "incremental", "recurring")

_CONCEPTS = (1 << 30) + 3  # beside the indices of arrivals, none of which gets here


class SyntheticStream(NamedTuple):
    """A stream that is computed, not stored.

    Attributes:
      rows: ``(params, key, index, num_rows) -> (features [N, D] float32, label [N]
        int32)``, rows of arrival `index` and their true classes; `num_rows` is static.
      params: pytree of numbers that may be vmapped.
      num_classes: K.
      width: D.
    """

    rows: Callable[[PyTree, PRNGKey, Array, int], tuple[Array, Array]]
    params: PyTree
    num_classes: int
    width: int


def centroids(
    key: PRNGKey, concept: Array, separation: Array, num_classes: int, width: int
) -> Array:
    """``[K, D]``, the classes' means under a concept.

    Two classes are `separation` standard deviations apart, in root mean square over
    concepts.
    """
    own = jax.random.fold_in(jax.random.fold_in(key, _CONCEPTS), concept)
    directions = jax.random.normal(own, (num_classes, width), jnp.float32)
    return separation / jnp.sqrt(2.0 * width) * directions


def class_shares(
    imbalance: Array, late_from: Array, index: Array, num_classes: int
) -> Array:
    """``[K]``, shares of the classes at an arrival, from the commonest on.

    Args:
      imbalance: the first class's share over the last one's; the others lie between,
        at equal ratios.
      late_from: the arrival from which the last class occurs.
      index: the arrival.
      num_classes: K.
    """
    place = jnp.arange(num_classes) / (num_classes - 1)
    weight = jnp.asarray(imbalance, jnp.float32) ** -place
    absent = (jnp.arange(num_classes) == num_classes - 1) & (index < late_from)
    weight = jnp.where(absent, 0.0, weight)
    return weight / jnp.sum(weight)


@functools.cache
def _rows(num_classes: int, width: int, drift: str, num_concepts: int):
    def rows(params, key, index, num_rows: int):
        params = as_arrays(params)
        index = jnp.asarray(index, jnp.int32)
        to_class, to_noise, to_side = jax.random.split(
            jax.random.fold_in(key, index), 3
        )
        share = class_shares(
            params["imbalance"], params["late_from"], index, num_classes
        )
        label = jax.random.choice(
            to_class, num_classes, (num_rows,), p=share.astype(jnp.float32)
        )
        place = index / params["period"]
        concept = jnp.floor(place).astype(jnp.int32)
        part = place - concept

        def means(concept):
            return centroids(key, concept, params["separation"], num_classes, width)

        if drift == "none":
            centre = means(jnp.int32(0))[label]
        elif drift == "abrupt":
            centre = means(concept)[label]
        elif drift == "recurring":
            centre = means(concept % num_concepts)[label]
        elif drift == "gradual":
            ahead = jax.random.uniform(to_side, (num_rows,), jnp.float32) < part
            new, old = means(concept + 1)[label], means(concept)[label]
            centre = jnp.where(ahead[:, None], new, old)
        else:
            moved = (1 - part) * means(concept) + part * means(concept + 1)
            centre = moved[label]
        features = centre + jax.random.normal(to_noise, (num_rows, width), jnp.float32)
        return features.astype(jnp.float32), label.astype(jnp.int32)

    return rows


def stream(
    *,
    num_classes: int,
    width: int,
    separation=4.0,
    drift: str = "none",
    period=20.0,
    num_concepts: int = 2,
    imbalance=1.0,
    late_from=0,
) -> SyntheticStream:
    """A stream of normal clouds.

    | drift | at arrival i, with c = floor(i / period) |
    |---|---|
    | `none` | concept 0 |
    | `abrupt` | concept c |
    | `gradual` | each row of concept c + 1 with probability i / period - c, else of c |
    | `incremental` | centroids on the way from concept c to c + 1 |
    | `recurring` | concept c modulo `num_concepts` |

    Args:
      num_classes: K, at least 2.
      width: D, features of a row.
      separation: distance between two classes in standard deviations (root mean
        square); an array parameter, as are the following numbers but `num_concepts`.
      drift: one of `DRIFTS`.
      period: arrivals between two concepts.
      num_concepts: how many there are, if they recur.
      imbalance: share of the commonest class over that of the rarest, at least 1.
      late_from: arrival at which the last class first occurs; 0: from the clean batch
        on.

    Returns:
      The stream.

    Raises:
      ValueError: for a value out of range.
    """
    for name, value, least, most in (
        ("num_classes", num_classes, 2, MAX_CLASSES),
        ("width", width, 1, None),
        ("num_concepts", num_concepts, 1, None),
    ):
        if value < least or (most is not None and value > most):
            allowed = f"at least {least}" if most is None else f"in {least}..{most}"
            raise ValueError(f"{name} must be {allowed}, got {value}")
    if drift not in DRIFTS:
        raise ValueError(f"drift must be one of {DRIFTS}, got {drift!r}")
    for name, number, bound, strict in (
        ("separation", separation, 0.0, False),
        ("period", period, 0.0, True),
        ("imbalance", imbalance, 1.0, False),
        ("late_from", late_from, 0.0, False),
    ):
        _check_number(name, number, bound, strict)
    params = {
        "separation": separation,
        "period": period,
        "imbalance": imbalance,
        "late_from": late_from,
    }
    rows = _rows(int(num_classes), int(width), drift, int(num_concepts))
    return SyntheticStream(rows, params, int(num_classes), int(width))


def _check_number(name: str, number, bound: float, strict: bool) -> None:
    if isinstance(number, jax.core.Tracer):
        return
    values = np.asarray(number, np.float64)
    fits = values > bound if strict else values >= bound
    if not np.all(np.isfinite(values) & fits):
        wanted = "above" if strict else "at least"
        raise ValueError(f"{name} must be finite and {wanted} {bound:g}, got {number}")


def arrays(
    source: SyntheticStream,
    *,
    initial_size: int,
    batch_size: int,
    num_batches: int,
    test_size: int,
    seed: int = 0,
    class_names: Sequence[str] | None = None,
) -> StreamData:
    """A finite part of a stream as the arrays that `rad_jax.sweep.prepare` takes.

    Args:
      source: the stream.
      initial_size: rows of the clean batch, arrival 0.
      batch_size: rows of each of the arrivals 1 … `num_batches`.
      num_batches: T.
      test_size: rows of the arrival after the last.
      seed: of the stream's key.
      class_names: K names; numbers by default.

    Returns:
      The arrays; features are not scaled.

    Raises:
      ValueError: for a size below 1, more than `MAX_NUMBERS` numbers in all, or names
        that are not K.
    """
    sizes = {
        "initial_size": initial_size,
        "batch_size": batch_size,
        "num_batches": num_batches,
        "test_size": test_size,
    }
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
    rows_in_all = initial_size + batch_size * num_batches + test_size
    if rows_in_all * source.width > MAX_NUMBERS:
        raise ValueError(
            f"batch_size={batch_size} * num_batches={num_batches} with the clean and "
            f"test rows are {rows_in_all:,} rows of {source.width:,} features; at most "
            f"{MAX_NUMBERS:,} numbers are stored: for longer streams, scan `rows`"
        )
    if class_names is None:
        class_names = tuple(str(k) for k in range(source.num_classes))
    if len(class_names) != source.num_classes:
        raise ValueError(
            f"class_names must be {source.num_classes}, one for each class, got "
            f"{len(class_names)}"
        )
    key, params = jax.random.key(seed), as_arrays(source.params)
    rows = jax.jit(source.rows, static_argnums=3)

    def part(index: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        features, label = rows(params, key, jnp.int32(index), size)
        return np.asarray(features), np.asarray(label)

    initial, test = part(0, initial_size), part(num_batches + 1, test_size)
    batches = [part(i, batch_size) for i in range(1, num_batches + 1)]
    return StreamData(
        initial_features=initial[0],
        initial_labels=initial[1],
        features=np.stack([features for features, _ in batches]),
        labels=np.stack([label for _, label in batches]),
        test_features=test[0],
        test_labels=test[1],
        num_classes=source.num_classes,
        class_names=tuple(class_names),
    )
