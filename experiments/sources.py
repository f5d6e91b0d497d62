"""Data sets by their names on the command line, and files of one's own."""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from experiments.shared_settings import DataSettings, SyntheticSettings, defaults
from rad_jax import datasets, synthetic
from rad_jax.datasets import Dataset, cache, table

if TYPE_CHECKING:
    from experiments.settings import Config


class Sizes(NamedTuple):
    """Defaults of the flags of these names."""

    initial_size: int
    batch_size: int
    num_batches: int | None
    minibatch_size: int


class Source(NamedTuple):
    """A data set.

    Attributes:
      load: from the flags to the rows.
      sizes: that suit it; or None if `suited` finds them from the number of rows.
      flags: those that it obeys beside the ones of every data set.
      needs_data_dir: whether the directory must be given.
      order: of arrival, unless it is given.
    """

    load: Callable[["Config"], Dataset]
    sizes: Sizes | None
    flags: tuple[str, ...] = ()
    needs_data_dir: bool = True
    order: str = "shuffle"


#: Flags that every source obeys.
_GENERAL = ("dataset", "data_dir", "cache_dir", "scaling")
#: The others, and what they are unless given.
SPECIAL = {
    name: value
    for name, value in defaults(DataSettings, SyntheticSettings).items()
    if name not in _GENERAL
}


def _cached(
    config: "Config", name: str, files: Sequence, version: int, options: dict, build
) -> Dataset:
    """What `build` returns, from the cache that the flags name if it is there."""
    folder = config.cache_dir
    return cache.cached(
        name,
        files,
        build,
        version=version,
        options=options,
        cache_dir=cache.default_dir() if folder is None else folder,
    )


def _prepared(name: str, *load_flags: str, files_flags: Sequence[str] = ()):
    """A loader in `rad_jax.datasets`, through the cache.

    Args:
      name: of its module.
      *load_flags: the flags that its `load` takes.
      files_flags: those that its `files` takes.
    """

    def load(config: "Config") -> Dataset:
        module = getattr(datasets, name)
        data_dir = os.path.expanduser(config.data_dir or "")
        options = {flag: getattr(config, flag) for flag in load_flags}
        files = module.files(data_dir, *(options[flag] for flag in files_flags))
        return _cached(
            config,
            name,
            files,
            module.VERSION,
            options,
            lambda: module.load(data_dir, **options),
        )

    return load


def _file(config: "Config") -> Dataset:
    columns: dict = {
        "label_column": config.label_column,
        "drop_columns": config.drop_columns,
        "time_column": config.time_column,
    }
    path = os.path.expanduser(config.dataset)
    return _cached(
        config,
        "table",
        [path],
        table.VERSION,
        columns,
        lambda: table.load(path, **columns),
    )


def _made_up(config: "Config") -> synthetic.SyntheticStream:
    """The stream that the flags describe.

    Raises:
      ValueError: naming the flag.
    """
    try:
        return synthetic.stream(
            num_classes=config.num_classes,
            width=config.width,
            separation=config.separation,
            drift=config.drift,
            period=config.drift_period,
            imbalance=config.imbalance,
            late_from=config.late_from,
        )
    except ValueError as error:
        flag, _, rest = str(error).partition(" ")
        flag = "drift_period" if flag == "period" else flag
        raise ValueError(f"--{flag} {rest}") from None


def _synthetic(config: "Config") -> Dataset:
    """Its rows in the order of arrival: as long as the sizes ask."""
    if not getattr(config, "num_batches", None):
        raise ValueError("--dataset=synthetic is a stream: see experiments.stream")
    data = synthetic.arrays(
        _made_up(config),
        initial_size=config.initial_size or 0,
        batch_size=config.batch_size or 0,
        num_batches=config.num_batches or 0,
        test_size=config.test_size or _SYNTHETIC_TEST,
        seed=config.seed,
    )
    batches = data.features.reshape(-1, config.width)
    return Dataset(
        name="synthetic",
        features=np.concatenate(
            [data.initial_features, batches, data.test_features], dtype=np.float32
        ),
        labels=np.concatenate(
            [data.initial_labels, data.labels.ravel(), data.test_labels]
        ),
        class_names=data.class_names,
        feature_names=tuple(f"x{i}" for i in range(1, config.width + 1)),
    )


_SYNTHETIC = tuple(defaults(SyntheticSettings))
_SYNTHETIC_TEST = 1000  # test rows, unless their number is given
_LARGE = Sizes(6000, 600, 60, 200)
_FACES = ("image_size", "num_people", "skip_bad_images")
SOURCES: dict[str, Source] = {
    "digits": Source(
        lambda config: datasets.digits.load(),
        Sizes(200, 50, 24, 64),
        needs_data_dir=False,
    ),
    "google_cluster": Source(_prepared("google_cluster"), _LARGE),
    "nbaiot": Source(
        _prepared("nbaiot", "device", files_flags=["device"]), _LARGE, ("device",)
    ),
    "unsw_nb15": Source(_prepared("unsw_nb15"), _LARGE),
    "synthetic": Source(
        _synthetic,
        Sizes(500, 100, 50, 64),
        _SYNTHETIC,
        needs_data_dir=False,
        order="time",
    ),
    "facescrub": Source(
        _prepared("facescrub", *_FACES, files_flags=["num_people"]), None, _FACES
    ),
}
#: Every file.
FILE = Source(
    _file, None, ("label_column", "drop_columns", "time_column"), needs_data_dir=False
)
#: What `--dataset` may be, in words.
KNOWN = f"{', '.join(SOURCES)}, or a file *{', *'.join(table.SUFFIXES)}"


def find(dataset: str) -> Source:
    """The source of that name, or of a file with that path.

    Raises:
      ValueError: It is unknown.
    """
    if dataset in SOURCES:
        return SOURCES[dataset]
    if not table.is_table(dataset):
        raise ValueError(f"--dataset={dataset} is unknown; known: {KNOWN}")
    return FILE


def check(config: "Config") -> Source:
    """The source, if the flags are such as it obeys.

    Raises:
      ValueError: naming the flag, what came and what is allowed.
    """
    source = find(config.dataset)
    if source.needs_data_dir and not config.data_dir:
        raise ValueError(
            f"--dataset={config.dataset} needs --data_dir (or the variable "
            "RAD_JAX_DATA): the folder that holds its raw files"
        )
    for name, unless_given in SPECIAL.items():
        value = getattr(config, name, unless_given)  # other experiments lack some
        if value != unless_given and name not in source.flags:
            users = [known for known, s in SOURCES.items() if name in s.flags]
            raise ValueError(
                f"--{name}={value} is not for --dataset={config.dataset}, but for "
                f"{' and '.join(users) or 'files'}"
            )
    if config.dataset == "synthetic" and hasattr(config, "drift"):
        _made_up(config)
    return source


def suited(
    num_rows: int, initial_size: int | None = None, batch_size: int | None = None
) -> Sizes:
    """Sizes for a data set of which nothing else is known.

    Args:
      num_rows: n.
      initial_size: n0, if it is given; else a tenth, at most 6,000.
      batch_size: N, if it is given; else such that about 24 batches or more fit, at
        most 600. There are 60 batches, or as many as fit.
    """
    initial = initial_size or min(6000, max(1, num_rows // 10))
    stream = max(0, num_rows - initial) * 4 // 5
    batch = batch_size or min(600, max(1, stream // 24))
    num_batches = 60 if stream > 60 * batch else None
    return Sizes(initial, batch, num_batches, 64 if initial < 2000 else 200)
