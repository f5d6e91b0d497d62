"""Seeds x noise rates x selection schemes as one program.

Every run of a sweep sees the same features, so they are stored, searched and gathered
once; labels, masks and models are the vmapped axis. Schemes are an index on that axis
(`rad_jax.selection.switch`). Runs with two models and runs with one (RAD Slim) are
two vmapped groups of the same program. Runs are spread over devices; seeds that memory
does not hold at once are run in chunks, one after the other.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from rad_jax import checks, chunk_size, chunks, devices
from rad_jax import noise as noises
from rad_jax import runs as layout
from rad_jax import selection as selections
from rad_jax.memory import nbytes as memory_nbytes
from rad_jax.program import (
    Ends,
    Job,
    StreamArrays,
    compiled_bytes,
    execute,
    make_program,
    segment_of,
)
from rad_jax.rad import rad
from rad_jax.runs import RANDOMNESS as RANDOMNESS
from rad_jax.statistics import HISTORY_METRICS, SweepResult
from rad_jax.sweep_checks import check_data, check_options
from rad_jax.types import (
    Expert,
    Keys,
    Learner,
    Noise,
    SelectionScheme,
    Spec,
    as_arrays,
)


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
        taken once for all runs of a chunk under "fixed_model".
      num_devices: over which the runs of a chunk are spread.
      seeds_per_chunk: seeds computed together.
      num_chunks: chunks, one after the other.
      estimated_bytes: memory on all devices together, from the learners' own figures.
      compiled_bytes: ``() -> int``, the same as the compiler plans it: arguments,
        results and temporaries of the larger program, which it compiles first.
      run: ``(progress=None, store=None) -> SweepResult``; `progress(done)` is called
        with the number of arrivals done, of ``num_arrivals * num_chunks``. In a
        `rad_jax.chunks.Store` each chunk is kept as it is finished, and those found
        there are not computed again.
    """

    arms: tuple[Arm, ...]
    noise_rates: tuple[float, ...]
    num_seeds: int
    num_arrivals: int
    num_steps: int
    num_devices: int
    seeds_per_chunk: int
    num_chunks: int
    estimated_bytes: int
    compiled_bytes: Callable[[], int]
    run: Callable[..., SweepResult]


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
    first_seed: int = 0,
    seeds_per_chunk: int | None = None,
    num_devices: int | None = None,
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
      cleaning_window: see `rad_jax.rad`; where labels are late, of the arrivals before
        the one whose labels come.
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
      first_seed: id of the first repetition; repetition s is the same in every sweep
        that has it.
      seeds_per_chunk: repetitions computed together; by default all, or as many as
        half of the free memory holds, on CPU no more than `devices.CPU_BYTES` a device
        (or what they share, if that is more; up to twice that where chunks then come
        out even), which is faster. Results differ by rounding only.
      num_devices: over which runs are spread; by default all of this process, but no
        more than there are runs.

    Returns:
      The sweep, to be run.

    Raises:
      TypeError: for something that is no noise, or no whole number.
      ValueError: for a value out of range.
    """
    arms, rates = tuple(arms), tuple(float(rate) for rate in noise_rates)
    check_options(arms, rates, num_seeds, first_seed, alpha, randomness)
    if not 0.0 <= validation_fraction < 1.0:
        raise ValueError(
            f"validation_fraction must lie in [0, 1), got {validation_fraction}"
        )
    noise = noises.check_noise(noises.symmetric(0.0) if noise is None else noise)
    num_classes = int(data.num_classes)
    arrays = check_data(data, num_classes)
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
    algos = []
    schemes = [selections.switch([arms[i].scheme for i in group]) for group in groups]
    for group, scheme in zip(groups, schemes, strict=True):
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
                cleaning_window=cleaning_window
                + (label_delay if cleaning_window > 0 else 0),
                sliding_window=sliding,
            )
        )
    size = chunk_size.size(
        num_seeds,
        *_estimate(
            arrays, label_delay, cleaning_window, spec, groups, algos, len(rates)
        ),
        seeds_per_chunk=seeds_per_chunk,
        num_devices=num_devices,
    )
    mesh = devices.mesh(size.num_devices)
    program = make_program(
        tuple(algo.engine for algo in algos),
        noise._replace(params=None),
        alpha,
        randomness != "fixed_model",
        label_delay,
        mesh,
    )
    params = tuple(as_arrays(algo.params._replace(selection=())) for algo in algos)
    keys = Keys(jax.random.fold_in(key, 0), jax.random.fold_in(key, 1))
    num_steps = 0
    for group, algo in zip(groups, algos, strict=True):
        group_runs = len(group) * len(rates) * num_seeds
        starts = size.num_chunks if randomness == "fixed_model" else group_runs
        for learner in algo.engine.learners:
            steps = [learner.steps(i) for i in range(num_arrivals + 1)]
            num_steps += starts * steps[0] + group_runs * sum(steps[1:])
    ends = Ends(*(getattr(arrays, name) for name in Ends._fields))
    job = Job(program, mesh, keys, ends, params, arrays, label_delay)
    seeds = tuple(range(first_seed, first_seed + num_seeds))

    def make_runs(chunk: Sequence[int]) -> tuple[layout.Runs, ...]:
        return tuple(
            layout.make(
                len(group), scheme, noise, rates, chunk, key, randomness, mesh.size
            )
            for group, scheme in zip(groups, schemes, strict=True)
        )

    def run_chunk(placed: Job, chunk: Sequence[int], progress):
        figures, confusions, seconds = execute(placed, make_runs(chunk), progress)
        shape = (len(arms), len(rates), len(chunk))
        history = {
            name: layout.gather(groups, shape, [group[name].T for group in figures])
            for name in HISTORY_METRICS
        }
        if label_delay:  # the noise of a batch stands where the batch arrived
            noise_then = history["realised_noise"][..., 1:]
            noise_then[...] = np.roll(noise_then, -label_delay, axis=-1)
            noise_then[..., -label_delay:] = np.nan
        both = (
            layout.gather(groups, shape, [c[i] for c in confusions]) for i in range(2)
        )
        return chunks.Part(tuple(chunk), history, *both), seconds

    def run(
        progress: Callable[[int], None] | None = None,
        store: chunks.Store | None = None,
    ) -> SweepResult:
        placed = job.placed()
        everything, seconds = chunks.run(
            seeds,
            size.seeds_per_chunk,
            functools.partial(run_chunk, placed),
            num_arrivals,
            progress,
            store,
        )
        commonest = np.bincount(np.asarray(arrays.test_labels)).max()
        return SweepResult(
            schemes=tuple(arm.name for arm in arms),
            noise_rates=rates,
            class_names=tuple(data.class_names),
            majority_accuracy=float(commonest / arrays.test_labels.size),
            compile_seconds=seconds[0],
            run_seconds=seconds[1],
            config={},
            **everything._asdict(),
        )

    return Sweep(
        arms=arms,
        noise_rates=rates,
        num_seeds=num_seeds,
        num_arrivals=num_arrivals,
        num_steps=num_steps,
        num_devices=size.num_devices,
        seeds_per_chunk=size.seeds_per_chunk,
        num_chunks=size.num_chunks,
        estimated_bytes=size.num_bytes,
        compiled_bytes=lambda: compiled_bytes(
            job, make_runs(seeds[: size.seeds_per_chunk])
        ),
        run=run,
    )


#: Bytes that judging takes for each row of a batch and class, as the compiler plans it:
#: probabilities of both models, and what schemes make of them.
_JUDGING = 28


def _estimate(
    arrays: StreamArrays,
    label_delay: int,
    cleaning_window: int,
    spec: Spec,
    groups,
    algos,
    num_rates: int,
) -> tuple[int, list[tuple[int, int]]]:
    """Bytes that a device holds for all runs; by group, a seed's runs and their bytes.

    The former: the memory, two segments of the stream, lists, the largest workspace.
    """
    ends = [np.asarray(getattr(arrays, name)) for name in Ends._fields]
    arrival = np.asarray(arrays.features[0]).nbytes
    segment = label_delay + segment_of(len(arrays.labels))
    shared = sum(x.nbytes for x in ends) + 2 * segment * arrival
    shared += memory_nbytes(spec.capacity, spec.feature_shape)
    again = cleaning_window * arrays.labels.shape[1]
    again = spec.capacity if again < 0 else min(again, spec.capacity)
    num_queries = arrays.test_labels.size + again
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
    of_groups = []
    for group, algo in zip(groups, algos, strict=True):
        judged = (arrays.labels.shape[1] + again) * spec.num_classes
        one = (
            spec.capacity * 5
            + _JUDGING * judged
            + 8 * spec.num_classes**2  # two confusion matrices
            + sum(learner.bytes(spec, num_queries) for learner in algo.engine.learners)
        )
        of_groups.append((len(group) * num_rates, one))
    return shared, of_groups
