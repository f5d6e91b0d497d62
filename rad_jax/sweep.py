"""Seeds x noise rates x selection schemes as one program.

Every run of a sweep sees the same features, so they are stored, searched and gathered
once; labels, masks and models are the vmapped axis. Schemes are an index on that axis
(`rad_jax.selection.switch`). Runs with two models and runs with one (RAD Slim) are
two vmapped groups of the same program.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rad_jax import checks, stream
from rad_jax import noise as noises
from rad_jax import selection as selections
from rad_jax.memory import nbytes as memory_nbytes
from rad_jax.program import (
    Job,
    Runs,
    StreamArrays,
    compiled_bytes,
    execute,
    make_program,
)
from rad_jax.rad import rad
from rad_jax.statistics import HISTORY_METRICS, SweepResult
from rad_jax.types import (
    Expert,
    Keys,
    Learner,
    Noise,
    PRNGKey,
    SelectionScheme,
    Spec,
    as_arrays,
)

#: What differs between seeds, in the paper's words.
RANDOMNESS = ("fixed_model", "fixed_noise", "double_random")


_MAX_RUNS = 1 << 20


class Arm(NamedTuple):
    """One scheme of a comparison.

    Attributes:
      name: how reports call it.
      scheme: which rows to train on.
      one_model: the classifier judges labels too, and predicts alone (RAD Slim).
    """

    name: str
    scheme: SelectionScheme
    one_model: bool = False


class Sweep(NamedTuple):
    """A prepared sweep: what it will cost is known before it is run.

    Attributes:
      arms: the schemes compared.
      noise_rates: rates of label noise.
      num_seeds: repetitions.
      num_arrivals: T.
      num_steps: gradient steps of all runs together; those on the clean batch are
        taken once for all runs under "fixed_model".
      estimated_bytes: memory on the device, from the learners' own figures.
      compiled_bytes: ``() -> int``, the same as the compiler plans it: arguments,
        results and temporaries of the larger program, which it compiles first.
      run: ``(progress) -> SweepResult``; `progress(arrivals_done)` is called as it
        goes.
    """

    arms: tuple[Arm, ...]
    noise_rates: tuple[float, ...]
    num_seeds: int
    num_arrivals: int
    num_steps: int
    estimated_bytes: int
    compiled_bytes: Callable[[], int]
    run: Callable[..., SweepResult]


def _make_runs(
    arms: Sequence[Arm],
    scheme: SelectionScheme,
    noise: Noise,
    rates: Sequence[float],
    num_seeds: int,
    key: PRNGKey,
    randomness: str,
) -> Runs:
    """Lays out the runs of one group; seed s of every scheme has the same noise."""
    shape = (len(arms), len(rates), num_seeds)
    arm, rate, seed = (grid.ravel() for grid in np.indices(shape))
    num_runs = arm.size
    init_base, order_base, noise_base = (jax.random.fold_in(key, i) for i in range(3))
    seed_keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))

    def per_seed(base):
        return seed_keys(base, jnp.asarray(seed))

    fixed_noise = randomness == "fixed_noise"
    random_model = randomness != "fixed_model"

    def spread(params):
        return jax.tree.map(
            lambda x: jnp.broadcast_to(x, (num_runs, *x.shape)), as_arrays(params)
        )

    rates_of_runs = jnp.asarray(np.asarray(rates)[rate], jnp.float32)
    return Runs(
        selection={
            "index": jnp.asarray(arm, jnp.int32),
            "members": spread(scheme.params["members"]),
        },
        noise=spread(noise.params) | {"rate": rates_of_runs},
        noise_key=seed_keys(noise_base, jnp.asarray(seed * (not fixed_noise))),
        init_key=per_seed(init_base) if random_model else init_base,
        order_key=per_seed(order_base) if random_model else order_base,
    )


def _check(arms, rates, num_seeds, alpha, randomness) -> None:
    if not arms:
        raise ValueError("arms must name at least one scheme, got none")
    names = [arm.name for arm in arms]
    if len(set(names)) < len(names):
        raise ValueError(f"arms must have different names, got {names}")
    if not rates:
        raise ValueError("noise_rates must name at least one rate, got none")
    for rate in rates:
        noises.check_rate(rate, "noise_rates")
    if num_seeds < 1:
        raise ValueError(f"num_seeds must be at least 1, got {num_seeds}")
    num_runs = len(arms) * len(rates) * num_seeds
    if num_runs > _MAX_RUNS:
        raise ValueError(
            f"num_seeds={num_seeds} makes {num_runs:,} runs of {len(arms)} schemes and "
            f"{len(rates)} noise rates; at most {_MAX_RUNS:,} are allowed"
        )
    if alpha not in stream.ALPHA_SOURCES:
        raise ValueError(f"alpha must be one of {stream.ALPHA_SOURCES}, got {alpha!r}")
    if randomness not in RANDOMNESS:
        raise ValueError(f"randomness must be one of {RANDOMNESS}, got {randomness!r}")


def _check_data(data, num_classes: int) -> StreamArrays:
    """The arrays of a stream: finite features of one shape, true labels in range."""
    arrays = StreamArrays(
        *(np.asarray(getattr(data, name)) for name in StreamArrays._fields)  # type: ignore[arg-type]
    )
    labels = arrays.labels
    if labels.ndim != 2 or not labels.size:
        raise ValueError(
            f"labels must be [T, N] with at least one arrival, got {labels.shape}"
        )
    if arrays.features.shape[:2] != labels.shape:
        raise ValueError(
            f"features must be [T, N, ...] like labels {labels.shape}, got "
            f"{arrays.features.shape}"
        )
    row_shape = arrays.features.shape[2:]
    flat = arrays.features.reshape(-1, *row_shape)
    for prefix, x, y in (
        ("initial_", arrays.initial_features, arrays.initial_labels),
        ("test_", arrays.test_features, arrays.test_labels),
        ("", flat, labels.ravel()),
    ):
        checks.features(f"{prefix}features", x, row_shape=row_shape)
        missing = not prefix  # rows that arrive may lack a label
        checks.labels(f"{prefix}labels", y, len(x), num_classes, missing=missing)
    return arrays


def prepare(
    data,
    arms: Sequence[Arm],
    *,
    label_model: Learner,
    classifier: Learner,
    noise_rates: Sequence[float],
    num_seeds: int,
    noise: Noise | None = None,
    expert: Expert | None = None,
    alpha: str = "validation",
    validation_fraction: float = 0.2,
    calibrate: bool = False,
    cleaning_window: int = 0,
    memory_window: int | None = None,
    label_delay: int = 0,
    new_classes: str = "refuse",
    randomness: str = "fixed_model",
    seed: int = 0,
) -> Sweep:
    """Lays out a sweep and says what it costs; nothing is computed yet.

    Args:
      data: a `rad_jax.datasets.StreamData`, or anything with its fields. Rows that
        arrive with true label -1 have none: noise leaves them alone, an expert asked
        about them has no answer, and no figure but queries counts them.
      arms: the schemes compared.
      label_model: L of arms with two models.
      classifier: C; the only model of arms with one.
      noise_rates: in [0, 1].
      num_seeds: repetitions; seed s has the same noise under every scheme.
      noise: how labels go wrong, its rate replaced by `noise_rates`; symmetric by
        default.
      expert: a simulated one; the default never errs.
      alpha: where the accuracies that weigh the ensemble come from: "validation",
        rows of the clean batch held out; or "test", the test set, as in the paper
        (then no row is held out unless `calibrate` needs them).
      validation_fraction: share of the clean batch held out.
      calibrate: see `rad_jax.rad`.
      cleaning_window: see `rad_jax.rad`.
      memory_window: rows that are remembered, the oldest are forgotten; None for all.
        Counts of selection (kept, queries, purity, recall) are then of the rows
        remembered.
      label_delay: arrivals by which labels come late: the batch of arrival i is judged
        and learned at arrival ``i + label_delay``. Those of the last batches never
        come.
      new_classes: what to do where rows arrive of a class of which no clean row is:
        "refuse" them, or "admit" them, in which case only a scheme that asks an
        expert can come to know the class.
      randomness: what differs between seeds: "fixed_model" the noise only (then all
        seeds share minibatches), "fixed_noise" initialisation and order of
        minibatches, "double_random" both.
      seed: base of all keys.

    Returns:
      The sweep, to be run.

    Raises:
      ValueError: for a value out of range.
    """
    arms, rates = tuple(arms), tuple(float(rate) for rate in noise_rates)
    _check(arms, rates, num_seeds, alpha, randomness)
    if not 0.0 <= validation_fraction < 1.0:
        raise ValueError(
            f"validation_fraction must lie in [0, 1), got {validation_fraction}"
        )
    noise = noise or noises.symmetric(0.0)
    num_classes = int(data.num_classes)
    arrays = _check_data(data, num_classes)
    if new_classes not in checks.NEW_CLASSES:
        raise ValueError(
            f"new_classes must be one of {checks.NEW_CLASSES}, got {new_classes!r}"
        )
    if new_classes == "refuse":
        checks.no_new_classes(
            "labels",
            arrays.labels,
            arrays.initial_labels,
            'take more clean rows, or say new_classes="admit" and ask an expert',
            data.class_names,
        )
    num_arrivals = arrays.labels.shape[0]
    if not 0 <= label_delay < num_arrivals:
        raise ValueError(
            f"label_delay must be below the {num_arrivals} arrivals (else no label "
            f"ever comes) and at least 0, got {label_delay}"
        )
    if alpha == "test" and not calibrate:
        validation_fraction = 0.0
    initial = arrays.initial_labels.shape[0]
    trained = initial - round(validation_fraction * initial)
    if not trained:
        raise ValueError(
            f"validation_fraction={validation_fraction} of {initial} clean rows leaves "
            "none to train on"
        )
    capacity = trained + arrays.labels.size
    sliding = memory_window is not None and memory_window < capacity
    if memory_window is not None:
        least = max(trained, arrays.labels.shape[1] * (1 + label_delay))
        if memory_window < least:
            raise ValueError(
                f"memory_window={memory_window} rows is too short: a batch has "
                f"{arrays.labels.shape[1]} rows, labels are {label_delay} batches late "
                f"and {trained} clean rows are trained on, so at least {least}"
            )
        capacity = min(capacity, memory_window)

    spec = Spec(arrays.features.shape[2:], num_classes, capacity)
    for argument, learner in (("label_model", label_model), ("classifier", classifier)):
        if not learner.traceable:
            raise ValueError(
                f"{argument}: {learner.name} is no JAX learner: it cannot be vmapped "
                "over runs; use it step by step (rad_jax.rad, rad_jax.online)"
            )
        jax.eval_shape(  # what does not fit the data is found here
            functools.partial(learner.init, spec, learner.params), jax.random.key(0)
        )

    key = jax.random.key(seed)
    members = [
        [i for i, arm in enumerate(arms) if arm.one_model is one_model]
        for one_model in (False, True)
    ]
    groups = [group for group in members if group]
    algos, runs = [], []
    for group in groups:
        scheme = selections.switch([arms[i].scheme for i in group])
        one_model = arms[group[0]].one_model
        algos.append(
            rad(
                label_model=None if one_model else label_model,
                classifier=classifier,
                selection=scheme,
                num_classes=num_classes,
                memory_capacity=capacity,
                expert=expert,
                validation_fraction=validation_fraction,
                calibrate=calibrate,
                cleaning_window=cleaning_window,
                sliding_window=sliding,
            )
        )
        runs.append(
            _make_runs(
                [arms[i] for i in group],
                scheme,
                noise,
                rates,
                num_seeds,
                key,
                randomness,
            )
        )
    program = make_program(
        tuple(algo.engine for algo in algos),
        noise._replace(params=None),
        alpha,
        randomness != "fixed_model",
        label_delay,
    )
    params = tuple(as_arrays(algo.params._replace(selection=())) for algo in algos)
    keys = Keys(jax.random.fold_in(key, 0), jax.random.fold_in(key, 1))
    per_run = len(rates) * num_seeds
    num_steps = 0
    for group, algo in zip(groups, algos, strict=True):
        group_runs = len(group) * per_run
        starts = 1 if randomness == "fixed_model" else group_runs
        for learner in algo.engine.learners:
            steps = [learner.steps(i) for i in range(num_arrivals + 1)]
            num_steps += starts * steps[0] + group_runs * sum(steps[1:])
    estimate = _estimate(arrays, spec, groups, algos, per_run)

    job = Job(program, keys, arrays, params, tuple(runs))
    shape = (len(arms), len(rates), num_seeds)

    def run(progress: Callable[[int], None] | None = None) -> SweepResult:
        figures, confusions, seconds = execute(job, progress)
        compile_seconds, run_seconds = seconds
        commonest = np.bincount(np.asarray(arrays.test_labels)).max()
        return SweepResult(
            schemes=tuple(arm.name for arm in arms),
            noise_rates=rates,
            seeds=tuple(range(num_seeds)),
            class_names=tuple(data.class_names),
            history={
                name: _gather(groups, shape, [group[name].T for group in figures])
                for name in HISTORY_METRICS
            },
            confusion=_gather(groups, shape, [c[0] for c in confusions]),
            classifier_confusion=_gather(groups, shape, [c[1] for c in confusions]),
            majority_accuracy=float(commonest / arrays.test_labels.size),
            compile_seconds=compile_seconds,
            run_seconds=run_seconds,
            config={},
        )

    return Sweep(
        arms=arms,
        noise_rates=rates,
        num_seeds=num_seeds,
        num_arrivals=num_arrivals,
        num_steps=num_steps,
        estimated_bytes=estimate,
        compiled_bytes=functools.partial(compiled_bytes, job),
        run=run,
    )


def _gather(groups, shape, values) -> np.ndarray:
    """Puts the groups' runs ``[R, ...]`` in order: ``[scheme, rate, seed, ...]``."""
    rest = np.asarray(values[0]).shape[1:]
    out = np.empty((*shape, *rest), np.asarray(values[0]).dtype)
    for group, value in zip(groups, values, strict=True):
        out[group] = np.asarray(value).reshape(len(group), *shape[1:], *rest)
    return out


def _estimate(arrays: StreamArrays, spec: Spec, groups, algos, per_run: int) -> int:
    """Bytes on the device: features twice (stream, memory), lists, and the runs."""
    shared = sum(np.asarray(x).nbytes for x in arrays)
    shared += memory_nbytes(spec.capacity, spec.feature_shape)
    num_queries = arrays.test_labels.size
    preparations = {
        learner.preparation
        for algo in algos
        for learner in algo.engine.learners
        if learner.preparation is not None
    }
    shared += sum(p.bytes(spec, num_queries) for p in preparations)
    # Where several learners work in turns, the largest workspace is there at a time.
    shared += max(
        learner.workspace(spec, num_queries)
        for algo in algos
        for learner in algo.engine.learners
    )
    runs = 0
    for group, algo in zip(groups, algos, strict=True):
        one = spec.capacity * 5 + sum(
            learner.bytes(spec, num_queries) for learner in algo.engine.learners
        )
        runs += len(group) * per_run * one
    return shared + runs
