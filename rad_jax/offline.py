"""Training once on labels that are partly wrong, for many runs at once.

The motivation of on-line selection (Figures 1 and 3 of the paper): how test accuracy
falls as labels go wrong. Features, and what learners prepare from them, are held once;
runs differ in labels, and in the keys of the model if so wished.
"""

import functools
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from numpy.typing import ArrayLike

from rad_jax import checks, devices, memory
from rad_jax.compiled import Compiled
from rad_jax.devices import RUNS, SHARED, over_runs, put
from rad_jax.noise import corrupt
from rad_jax.types import (
    LABEL_DTYPE,
    UNLABELLED,
    Array,
    Examples,
    Learner,
    Noise,
    PRNGKey,
    Queries,
    Spec,
    as_arrays,
)


class Plan(NamedTuple):
    """What a study is going to take.

    Attributes:
      num_runs: R.
      runs_per_chunk: runs computed together; a multiple of the number of devices.
      num_chunks: how often.
      num_steps: gradient steps of all runs together.
      num_bytes: estimated memory of one chunk, and of what its runs share, which every
        device holds.
    """

    num_runs: int
    runs_per_chunk: int
    num_chunks: int
    num_steps: int
    num_bytes: int


class Result(NamedTuple):
    """What was predicted, and how long it took.

    Attributes:
      predictions: ``[R, Q]`` int16.
      compile_seconds: spent on compilation by this call, 0 if nothing was new.
      run_seconds: the rest.
    """

    predictions: np.ndarray
    compile_seconds: float
    run_seconds: float

    def accuracy(self, label: ArrayLike) -> np.ndarray:
        """Share of the rows predicted right, ``[R]`` float64.

        Args:
          label: ``[Q]`` int, the true classes.
        """
        return np.mean(self.predictions == np.asarray(label), axis=1)

    def balanced_accuracy(self, label: ArrayLike) -> np.ndarray:
        """Mean over the occurring classes of the share predicted right, ``[R]``.

        Args:
          label: ``[Q]`` int, the true classes.
        """
        label = np.asarray(label)
        right = self.predictions == label
        shares = [right[:, label == k].mean(axis=1) for k in np.unique(label)]
        return np.mean(shares, axis=0)


def noisy_labels(
    noise: Noise,
    rates: ArrayLike,
    keys: PRNGKey,
    label: ArrayLike,
    *,
    num_classes: int,
    features: ArrayLike | None = None,
) -> np.ndarray:
    """Labels as given, for every noise rate and every key.

    Args:
      noise: with a parameter "rate", which `rates` replace; none that varies over time.
      rates: ``[E]`` float in [0, 1].
      keys: ``[R]`` keys. One key serves all rates: rates then share what else is
        random, and comparing them is comparing like with like.
      label: ``[n]`` int, the true classes.
      num_classes: K.
      features: ``[n, *S]``, for a noise that depends on them.

    Returns:
      ``[E, R, n]`` int16.

    Raises:
      ValueError: for labels or rates out of range, features of another number of
        rows, or if the noise needs something that is not given.
    """
    y = checks.labels("label", label, np.size(label), num_classes, missing=False)
    rates = np.asarray(rates, np.float32)
    if rates.ndim != 1 or not ((rates >= 0) & (rates <= 1)).all():
        raise ValueError(f"rates must lie in [0, 1], got {rates.tolist()}")
    x = None if features is None else jnp.asarray(features)
    if x is not None and x.shape[:1] != y.shape:
        raise ValueError(
            f"features must have a row for each of the {len(y)} labels, got shape "
            f"{x.shape}"
        )
    valid = jnp.ones(len(y), bool)
    go_wrong = functools.partial(corrupt, noise, num_classes=num_classes, features=x)

    def one(rate: Array, key: PRNGKey) -> Array:
        params = {**noise.params, "rate": rate}
        return go_wrong(params, jnp.asarray(y), valid, key=key).astype(LABEL_DTYPE)

    over_keys = jax.vmap(one, in_axes=(None, 0))
    return np.asarray(jax.jit(jax.vmap(over_keys, in_axes=(0, None)))(rates, keys))


class _Shared(NamedTuple):
    """What every run sees."""

    memory: memory.Memory
    prepared: dict
    queries: Queries


@functools.cache
def _prepare_program(learner: Learner) -> Compiled:
    """``(train_features, test_features) -> shared``."""

    def prepare(train: Array, test: Array) -> _Shared:
        rows = jnp.arange(train.shape[0], dtype=jnp.int32)
        empty = memory.empty(train.shape[0], train.shape[1:], train.dtype)
        index = jnp.zeros((), jnp.int32)
        store, _ = memory.write(empty, train, rows, rows >= 0, index)
        preparation = learner.preparation
        if preparation is None:
            return _Shared(store, {}, Queries(test, {}))
        basis = preparation.start(store)
        prepared = preparation.build(basis, store, test)
        return _Shared(
            store,
            {preparation.name: basis},
            Queries(test, {preparation.name: prepared}),
        )

    return Compiled(prepare)


@functools.cache
def _runs_program(
    learner: Learner, num_classes: int, keys_batched: tuple[bool, bool], mesh: Mesh
) -> Compiled:
    """``(shared, params, given [R, n], init_key, order_key) -> predictions``."""

    def one(shared: _Shared, params, given: Array, init_key, order_key) -> Array:
        store = shared.memory
        spec = Spec(store.features.shape[1:], num_classes, store.capacity)
        examples = Examples(
            features=store.features,
            row_id=store.row_id,
            valid=store.valid,
            arrival=jnp.zeros((), jnp.int32),
            label=given,
            weight=(given != UNLABELLED).astype(jnp.float32),
            prepared=shared.prepared,
        )
        model = learner.fit(
            spec,
            params,
            learner.init(spec, params, init_key),
            examples,
            init_key=init_key,
            order_key=order_key,
        )
        probs = learner.predict_proba(spec, params, model, store, shared.queries)
        return jnp.argmax(probs, axis=-1).astype(LABEL_DTYPE)

    axes = tuple(0 if batched else None for batched in keys_batched)
    several = jax.vmap(one, in_axes=(None, None, 0, *axes))
    parts = tuple(RUNS if batched else SHARED for batched in keys_batched)
    function, options = over_runs(several, mesh, (SHARED, SHARED, RUNS, *parts), RUNS)
    return Compiled(function, **options)


def plan(
    learner: Learner,
    train_shape: tuple[int, ...],
    num_test: int,
    num_runs: int,
    *,
    num_classes: int,
    runs_per_chunk: int | None = None,
) -> Plan:
    """How many runs go together, and what that takes.

    Args:
      learner: as for `study`.
      train_shape: ``(n, *S)``.
      num_test: Q.
      num_runs: R.
      num_classes: K.
      runs_per_chunk: as for `study`.

    Raises:
      ValueError: for a number of runs below 1.
    """
    if num_runs < 1:
        raise ValueError(f"there must be at least 1 run, got {num_runs}")
    if runs_per_chunk is not None and runs_per_chunk < 1:
        raise ValueError(f"runs_per_chunk must be at least 1, got {runs_per_chunk}")
    spec = Spec(tuple(train_shape[1:]), num_classes, train_shape[0])
    width = math.prod(spec.feature_shape)
    shared = memory.nbytes(spec.capacity, spec.feature_shape) + 4 * num_test * width
    if learner.preparation is not None:
        shared += learner.preparation.bytes(spec, num_test)
    shared += learner.workspace(spec, num_test)
    labels_and_predictions = 2 * (spec.capacity + num_test) + 4 * spec.capacity
    per_run = learner.bytes(spec, num_test) + labels_and_predictions
    num_devices = devices.mesh().size
    shared *= num_devices
    if runs_per_chunk is None:
        free, runs_per_chunk = devices.free_bytes(), num_runs
        if free is not None:
            fitting = int((devices.MEMORY_SHARE * free - shared) // per_run)
            runs_per_chunk = max(num_devices, fitting // num_devices * num_devices)
    num_chunks = math.ceil(num_runs / min(runs_per_chunk, num_runs))
    size = len(devices.fill_up(math.ceil(num_runs / num_chunks), num_devices))
    return Plan(
        num_runs=num_runs,
        runs_per_chunk=size,
        num_chunks=math.ceil(num_runs / size),
        num_steps=num_runs * learner.steps(0),
        num_bytes=shared + size * per_run,
    )


def _keys(name: str, keys: PRNGKey, num_runs: int) -> bool:
    """Whether there is one key per run."""
    if not jnp.issubdtype(keys.dtype, jax.dtypes.prng_key):
        raise TypeError(f"{name} must be made by jax.random.key, got {keys.dtype}")
    if keys.shape not in ((), (num_runs,)):
        raise ValueError(
            f"{name} must be one key or one for each of {num_runs} runs, got shape "
            f"{keys.shape}"
        )
    return keys.ndim == 1


def study(
    learner: Learner,
    train_features: ArrayLike,
    given_labels: ArrayLike,
    test_features: ArrayLike,
    *,
    num_classes: int,
    init_key: PRNGKey,
    order_key: PRNGKey,
    runs_per_chunk: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Result:
    """Trains once per run on the rows with their given labels; predicts test rows.

    All runs are one vmapped program, spread over the devices there are, a chunk of
    runs at a time where memory would not hold them all. A network takes the
    ``initial_steps`` of its `Training`.

    Args:
      learner: any that JAX can trace.
      train_features: ``[n, *S]``, finite; scaled as the learner wants them.
      given_labels: ``[R, n]`` int in 0..K-1, or -1 for rows that a run leaves out.
      test_features: ``[Q, *S]``.
      num_classes: K, at least 2.
      init_key: initialisation of models, one key or ``[R]``.
      order_key: order of minibatches, one key (all runs then see the same
        minibatches, which is faster) or ``[R]``.
      runs_per_chunk: runs at a time, rounded up to a multiple of the number of
        devices; by default as many as half of the free memory holds.
      progress: called with the number of finished runs after each chunk.

    Returns:
      Predictions of each run, and the time they took.

    Raises:
      TypeError: for a learner that cannot be traced, or keys that are none.
      ValueError: for arrays that are not as above, naming what came.
    """
    if not learner.traceable:
        raise TypeError(
            f"{learner.name} is no JAX learner: it cannot be vmapped over runs"
        )
    if num_classes < 2:
        raise ValueError(f"num_classes must be at least 2, got {num_classes}")
    train = checks.features("train_features", train_features)
    test = checks.features("test_features", test_features, row_shape=train.shape[1:])
    given = np.asarray(given_labels)
    if given.ndim != 2 or given.shape[1:] != train.shape[:1]:
        raise ValueError(
            f"given_labels must have shape [R, {len(train)}], a label for every row "
            f"in every run, got {list(given.shape)}"
        )
    checks.labels("given_labels", given.ravel(), given.size, num_classes, missing=True)
    num_runs = len(given)
    batched = (
        _keys("init_key", init_key, num_runs),
        _keys("order_key", order_key, num_runs),
    )
    planned = plan(
        learner,
        train.shape,
        len(test),
        num_runs,
        num_classes=num_classes,
        runs_per_chunk=runs_per_chunk,
    )
    mesh = devices.mesh()
    bare = learner._replace(params=None)
    return _execute(
        (
            _prepare_program(bare),
            _runs_program(bare, num_classes, batched, mesh),
        ),
        mesh,
        planned,
        (train, test),
        as_arrays(learner.params),
        (given.astype(np.int16), init_key, order_key),
        progress,
    )


def _execute(programs, mesh, planned: Plan, rows, params, runs, progress) -> Result:
    prepare, predict = programs
    compiled_before = prepare.seconds + predict.seconds
    begin = time.perf_counter()
    shared = put(prepare(*map(jnp.asarray, rows)), mesh)
    params = put(params, mesh)
    parts = []
    for first in range(0, planned.num_runs, planned.runs_per_chunk):
        # The last chunk is filled up with the last run, so that shapes stay.
        index = np.arange(first, first + planned.runs_per_chunk)
        index = np.minimum(index, planned.num_runs - 1)
        chunk = [put(x[index], mesh, RUNS) if x.ndim else put(x, mesh) for x in runs]
        found = np.asarray(predict(shared, params, *chunk))
        parts.append(found[: planned.num_runs - first])
        if progress is not None:
            progress(min(first + planned.runs_per_chunk, planned.num_runs))
    elapsed = time.perf_counter() - begin
    compile_seconds = prepare.seconds + predict.seconds - compiled_before
    return Result(np.concatenate(parts), compile_seconds, elapsed - compile_seconds)
