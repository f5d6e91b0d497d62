"""The paper's three use cases as settings of `experiments.stream`."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from experiments import sources, stream
from rad_jax import datasets
from rad_jax.datasets import DataError, facescrub, nbaiot, unsw_nb15

#: Of the authors' script: clean rows, rows of an arrival, arrivals.
PAPER_SIZES = (6000, 300, 170)
_LEAST_TEST_ROWS = 1000  # with fewer, fewer rows arrive
#: Complete devices are looked for in this order; the first is the paper's.
_DEVICES = (
    "Ecobee_Thermostat",
    *(
        name
        for name in nbaiot.DEVICES
        if name != "Ecobee_Thermostat" and name not in nbaiot.WITHOUT_MIRAI
    ),
)
_SCHEMES = ("basic", "voting", "active", "active_limited")


@dataclasses.dataclass(frozen=True)
class Options:
    """One value for each flag of `experiments.use_cases`."""

    use_case: tuple[str, ...] = ("all",)
    data_dir: str | None = None
    cache_dir: str | None = None
    num_seeds: int = 5
    noise_rate: float | None = None
    num_people: int = 12
    vgg_width: float = 0.25
    quick: bool = False
    seed: int = 0
    resume: bool = False
    output_dir: str = "results/use_cases"


class Paper(NamedTuple):
    """What the paper reports of a use case, at the end of the stream.

    Attributes:
      setting: data and noise, in words.
      noise_rate: share of wrong labels.
      accuracy: by the name that the scheme has here; of the baseline C alone, else of
        the prediction a user gets.
    """

    setting: str
    noise_rate: float
    accuracy: dict[str, float]


class Plan(NamedTuple):
    """What is run for a use case.

    Attributes:
      configs: by name of the folder below the use case's own.
      data: what the rows are, in words.
      notes: how the set-up differs from the paper's.
      ensemble: whether the ensemble is of interest, or C alone (RAD Slim).
    """

    configs: dict[str, stream.Config]
    data: str
    notes: tuple[str, ...]
    ensemble: bool = True


class UseCase(NamedTuple):
    """A use case: its figures in the paper, and how to plan it here."""

    paper: Paper
    plan: Callable[[Options, Paper], Plan]


def _base(options: Options, paper: Paper, **changes: Any) -> stream.Config:
    rate = paper.noise_rate if options.noise_rate is None else options.noise_rate
    return stream.Config(
        data_dir=options.data_dir,
        cache_dir=options.cache_dir,
        num_seeds=options.num_seeds,
        order="shuffle",
        noise_rates=(rate,),
        new_classes="expert",  # rare classes must not keep a preset from running
        seed=options.seed,
        resume=options.resume,
        **changes,
    )


def _noise_note(options: Options, paper: Paper) -> tuple[str, ...]:
    if options.noise_rate in (None, paper.noise_rate):
        return ()
    return (f"noise: {options.noise_rate:.0%} instead of {paper.noise_rate:.0%}",)


# --- tables: Google cluster, IoT ------------------------------------------------------


def _table_sizes(num_rows: int, quick: bool) -> sources.Sizes:
    """The paper's sizes if there are enough rows, else such as suit so many."""
    initial, batch, batches = (1000, 100, 20) if quick else PAPER_SIZES
    if initial + batch * batches + _LEAST_TEST_ROWS <= num_rows:
        return sources.Sizes(initial, batch, batches, 200)
    sizes = sources.suited(num_rows)
    if sizes.num_batches is None:
        stream_rows = (num_rows - sizes.initial_size) * 4 // 5
        fitting = max(1, stream_rows // sizes.batch_size)
        sizes = sizes._replace(num_batches=fitting)
    return sizes


def _table_plan(
    options: Options,
    paper: Paper,
    pairs: tuple[tuple[str, str], ...],
    what: str,
    difference: str,
    **source: Any,
) -> Plan:
    """Plans one run for each pair of L and C.

    Args:
      options: the flags.
      paper: its figures.
      pairs: names of L and C.
      what: the data, in words.
      difference: how they differ from the paper's.
      **source: the flags of `experiments.stream` that name them.
    """
    base = _base(options, paper, schemes=_SCHEMES, **source)
    dataset = stream.read(stream.complete(base))
    sizes = _table_sizes(len(dataset.labels), options.quick)
    base = dataclasses.replace(base, **sizes._asdict())
    configs = {
        f"{label_model}_{classifier}": dataclasses.replace(
            base, label_model=label_model, classifier=classifier
        )
        for label_model, classifier in pairs
    }
    cut = (
        f"{sizes.initial_size:,} clean rows, then {sizes.num_batches} arrivals of "
        f"{sizes.batch_size}"
    )
    if sizes[:3] == PAPER_SIZES:
        size_note = f"stream: {cut}, as in the authors' script"
    else:
        initial, batch, batches = PAPER_SIZES
        why = "--quick" if options.quick else f"the {len(dataset.labels):,} rows"
        size_note = (
            f"stream: {cut} ({why}) instead of {initial:,}, then {batches} of {batch}"
        )
    used = "; ".join(f"L = {a}, C = {b}" for a, b in pairs)
    return Plan(
        configs=configs,
        data=f"{what}: {_describe(dataset)}",
        notes=(
            f"data: {difference}",
            size_note,
            f"learners: {used}, an mlp going on for {base.steps_per_batch} gradient "
            "steps at an arrival; the authors' script has L = knn, C = mlp, trained "
            "anew",
            "ensemble: weighed by accuracy on clean rows held out; in the paper on the "
            "test set",
            *_noise_note(options, paper),
        ),
    )


def _describe(dataset: datasets.Dataset) -> str:
    """Rows, features and classes that occur."""
    rows = len(dataset.labels)
    features = " x ".join(map(str, dataset.features.shape[1:]))
    there = len(set(dataset.labels[dataset.labels >= 0].tolist()))
    return f"{rows:,} rows, {features} features, {there} classes"


def _plan_cluster(options: Options, paper: Paper) -> Plan:
    return _table_plan(
        options,
        paper,
        (("mlp", "knn"), ("mlp", "mlp")),
        "Google trace 2011",
        "the same trace, but the paper's rows cannot be had",
        dataset="google_cluster",
    )


def _complete_device(data_dir: str) -> tuple[str | None, str]:
    """A device of N-BaIoT with all classes, or None; and what was found."""
    try:
        there = {part.device for part in nbaiot.find(data_dir)}
    except DataError as error:
        return None, str(error)
    lacking = []
    for device in (name for name in _DEVICES if name in there):
        missing = nbaiot.missing_classes(data_dir, device)
        if not missing:
            return device, "complete"
        lacking.append(f"{device} lacks {len(missing)}")
    without = [name for name in nbaiot.WITHOUT_MIRAI if name in there]
    lacking += [f"{name} was recorded without Mirai" for name in without]
    total = len(nbaiot.CLASS_NAMES)
    return None, f"no device has all {total} classes ({', '.join(lacking)})"


def _plan_iot(options: Options, paper: Paper) -> Plan:
    data_dir = options.data_dir or ""
    pairs = (("mlp", "knn"), ("knn", "mlp"))
    device, found = _complete_device(data_dir)
    if device:
        own = device == _DEVICES[0]
        return _table_plan(
            options,
            paper,
            pairs,
            f"N-BaIoT, {device}",
            "the same device, but other rows"
            if own
            else f"{device} instead of {_DEVICES[0]}",
            dataset="nbaiot",
            device=device,
        )
    try:
        unsw_nb15.files(data_dir)
    except DataError as error:
        raise DataError(f"N-BaIoT: {found}; instead of it: {error}") from error
    return _table_plan(
        options,
        paper,
        pairs,
        "UNSW-NB15",
        f"UNSW-NB15 stands in for N-BaIoT: {found}",
        dataset="unsw_nb15",
    )


# --- faces ----------------------------------------------------------------------------

_PAPER_PEOPLE, _PAPER_IMAGES = 100, 12_000
_IMAGE_SIZE, _MINIBATCH = 32, 64
#: Passes over the rows so far, on the clean ones and at an arrival.
_INITIAL_PASSES, _PASSES = 50, 2.5
# The paper's 0.01 is for long training: after as few steps as these BatchNorm's running
# statistics lag behind the weights, and accuracy leaps between .2 and .8 on the way.
_LEARNING_RATE = 0.003
# Seconds on two CPU cores for one image of 32 x 32 in one gradient step, at width 1/4.
_SECONDS_PER_IMAGE = 1.3e-3


def _plan_faces(options: Options, paper: Paper) -> Plan:
    data_dir = options.data_dir or ""
    people = min(options.num_people, len(facescrub.people(data_dir)))
    base = _base(
        options,
        paper,
        dataset="facescrub",
        num_people=people,
        image_size=16 if options.quick else _IMAGE_SIZE,
        label_model="nearest_centroid",  # of the baselines, which have two models
        classifier="vgg",
        vgg_width=options.vgg_width,
        augment=True,
        learning_rate=_LEARNING_RATE,
        minibatch_size=_MINIBATCH,
        schemes=("slim", "slim_limited"),
    )
    dataset = stream.read(stream.complete(base))
    rows = len(dataset.labels)
    arrivals = 3 if options.quick else 10
    initial = max(1, rows * 22 // 100)
    batch = max(1, rows * 55 // (100 * arrivals))
    passes = (2, 1) if options.quick else (_INITIAL_PASSES, _PASSES)
    mean_rows = initial + batch * (arrivals + 1) / 2
    base = dataclasses.replace(
        base,
        initial_size=initial,
        batch_size=batch,
        num_batches=arrivals,
        initial_steps=math.ceil(passes[0] * initial / _MINIBATCH),
        steps_per_batch=math.ceil(passes[1] * mean_rows / _MINIBATCH),
    )
    return Plan(
        configs={"vgg": base},
        data=f"FaceScrub: {_describe(dataset)}",
        notes=(
            f"people: {people}, {rows:,} images of {base.image_size} x "
            f"{base.image_size} pixels; in the paper {_PAPER_PEOPLE}, about "
            f"{_PAPER_IMAGES:,} images",
            f"stream: {initial:,} clean rows, then {arrivals} arrivals of {batch}",
            f"learner: the paper's VGG at {options.vgg_width:g} of its width, "
            f"minibatches of {_MINIBATCH}, learning rate {_LEARNING_RATE:g}, "
            f"{base.initial_steps} gradient steps on the clean rows and "
            f"{base.steps_per_batch} at each arrival; training images are moved and "
            "mirrored",
            *_noise_note(options, paper),
            *_cost_note(base),
        ),
        ensemble=False,
    )


def _cost_note(config: stream.Config) -> tuple[str, ...]:
    """What a VGG takes on CPU; nothing elsewhere."""
    if jax.default_backend() != "cpu":
        return ()
    num_runs = 4 * config.num_seeds  # with the two baselines
    later = config.steps_per_batch * (config.num_batches or 0) * num_runs
    steps = 2 * config.initial_steps + later
    size = (config.image_size / _IMAGE_SIZE) ** 2 * (4 * config.vgg_width) ** 2
    minutes = steps * _MINIBATCH * _SECONDS_PER_IMAGE * size / 60
    return (
        f"cost: {steps:,} gradient steps, about {max(1, round(minutes))} min on two "
        "CPU cores",
    )


#: By the name on the command line.
USE_CASES = {
    "iot": UseCase(
        Paper(
            "N-BaIoT, Ecobee thermostat, 115 features, 11 classes, 40% noise",
            0.4,
            {"no_selection": 0.9227, "basic": 0.9895},
        ),
        _plan_iot,
    ),
    "cluster": UseCase(
        Paper(
            "Google trace 2011, 4 final states of a task, 40% noise",
            0.4,
            {"no_selection": 0.7102, "basic": 0.8503, "active": 0.9077},
        ),
        _plan_cluster,
    ),
    "faces": UseCase(
        Paper(
            "FaceScrub, 100 people, about 12,000 images, 30% noise",
            0.3,
            {"no_selection": 0.3889, "slim": 0.7751},
        ),
        _plan_faces,
    ),
}


def plan(name: str, options: Options) -> Plan:
    """What to run for the use case of that name, from the data there is.

    Args:
      name: one of `USE_CASES`.
      options: the flags, checked.

    Raises:
      ValueError, OSError: for data that are not there or cannot be read.
    """
    if not options.data_dir:
        raise DataError(
            "--data_dir (or the variable RAD_JAX_DATA) is needed: the folder that "
            "holds the raw files"
        )
    use_case = USE_CASES[name]
    return use_case.plan(options, use_case.paper)
