"""What `experiments.suspects` is given: its settings, a file, the rows it may trust."""

import dataclasses
from typing import NamedTuple

import numpy as np

from experiments import settings, stream
from experiments.shared_settings import OnlineSettings, TableSettings
from rad_jax import selection
from rad_jax.datasets import Dataset, table
from rad_jax.types import UNLABELLED, SelectionScheme

SCHEMES: dict[str, SelectionScheme] = {
    "basic": selection.basic(),
    "voting": selection.voting(),
}
#: The fewest trusted rows: a fifth of them validates.
LEAST_TRUSTED = 10
#: What says in --trusted_column that a row is trusted, and what that it isn't.
YES, NO = ("1", "true", "yes"), ("0", "false", "no", "")


@dataclasses.dataclass(frozen=True)
class Config(TableSettings, OnlineSettings):
    """One value for each flag; None means the default that suits the file."""

    dataset: str = ""
    trusted_column: str | None = None
    evaluate_column: str | None = None
    initial_size: int | None = None
    batch_size: int | None = None
    scheme: str = "basic"
    calibrate: bool = True
    seed: int = 0
    output_dir: str = "results/suspects"


class Rows(NamedTuple):
    """A file, read.

    Attributes:
      dataset: in the order of arrival.
      trusted: ``[n]`` bool.
      truth: ``[n]`` str, the true classes' names, '' where not known; or None.
    """

    dataset: Dataset
    trusted: np.ndarray
    truth: np.ndarray | None


def complete(config: Config) -> settings.Config:
    """Checks what needs no data.

    Returns:
      The flags that `experiments.stream` has too. Its labels are to be the given ones,
      and `drop_columns` names all columns that are no features.

    Raises:
      ValueError: naming the flag, what came and what is allowed.
    """
    if not table.is_table(config.dataset):
        raise ValueError(
            f"--dataset={config.dataset} is not the name of a file "
            f"*{', *'.join(table.SUFFIXES)}"
        )
    if config.scheme not in SCHEMES:
        raise ValueError(
            f"--scheme={config.scheme} is unknown; known: {', '.join(SCHEMES)}"
        )
    used = {"label_column": config.label_column, "time_column": config.time_column}
    extra = []
    for flag in ("trusted_column", "evaluate_column"):
        name = getattr(config, flag)
        if name is None:
            continue
        if config.dataset.lower().endswith(".npz"):
            raise ValueError(f"--{flag}={name} is for tables; an .npz has no columns")
        for other, column in used.items():
            if name == column:
                raise ValueError(f"--{flag}={name} is the --{other}")
        used[flag] = name
        extra.append(name)
    if config.trusted_column is not None and config.initial_size is not None:
        raise ValueError(
            f"--trusted_column={config.trusted_column} and --initial_size="
            f"{config.initial_size} both say which rows are trusted; give one of them"
        )
    if config.initial_size is not None and config.initial_size < LEAST_TRUSTED:
        raise ValueError(
            f"--initial_size must be at least {LEAST_TRUSTED}, got "
            f"{config.initial_size}"
        )
    given = dataclasses.asdict(config)
    shared = {
        field.name: given[field.name]
        for field in dataclasses.fields(settings.Config)
        if field.name in given
    }
    shared["drop_columns"] = tuple(dict.fromkeys((*config.drop_columns, *extra)))
    return settings.complete(settings.Config(**shared))


def read(config: Config, shared: settings.Config) -> Rows:
    """Reads the file and finds the trusted rows.

    Args:
      config: the flags.
      shared: from `complete`.

    Raises:
      ValueError: The file cannot be read, or does not hold enough trusted rows.
    """
    extra = {
        flag: table.column(
            config.dataset,
            getattr(config, flag),
            argument=flag,
            has_header=not (config.label_column or "").isdecimal(),
        )
        for flag in ("trusted_column", "evaluate_column")
        if getattr(config, flag) is not None
    }
    dataset = stream.read(shared)
    if dataset.source_row is not None:  # into the order of arrival
        place = np.argsort(np.argsort(dataset.source_row))
        extra = {flag: values[place] for flag, values in extra.items()}
    labelled = dataset.labels != UNLABELLED
    if config.trusted_column is not None:
        trusted = labelled & _is_yes(config.trusted_column, extra["trusted_column"])
        what = f"--trusted_column={config.trusted_column}"
    else:
        size = config.initial_size or max(
            LEAST_TRUSTED, settings.suit(shared, dataset).initial_size or 0
        )
        trusted = labelled & (np.cumsum(labelled) <= size)
        what = f"--initial_size={size}" + " (the default)" * (
            config.initial_size is None
        )
    _check_trusted(what, dataset, trusted, config.initial_size or 0)
    truth = extra.get("evaluate_column")
    if truth is not None and not set(truth) & set(dataset.class_names):
        raise ValueError(
            f"--evaluate_column={config.evaluate_column} holds none of the classes "
            f"{', '.join(dataset.class_names[:8])}"
        )
    return Rows(dataset, trusted, truth)


def _is_yes(column: str, values: np.ndarray) -> np.ndarray:
    """``[n]`` bool: which rows are trusted.

    Raises:
      ValueError: A value says neither yes nor no.
    """
    lower = np.char.lower(values)
    unknown = ~np.isin(lower, YES + NO)
    if unknown.any():
        raise ValueError(
            f"--trusted_column={column} holds {str(values[unknown][0])!r}; allowed: "
            f"{', '.join(YES)} for trusted rows, {', '.join(NO[:-1])} or nothing for "
            "the others"
        )
    return np.isin(lower, YES)


def _check_trusted(
    what: str, dataset: Dataset, trusted: np.ndarray, asked: int
) -> None:
    """Raises ValueError for too few trusted rows or classes, or no other row."""
    count, rows = int(trusted.sum()), len(trusted)
    classes = np.unique(dataset.labels[trusted])
    needed = max(LEAST_TRUSTED, asked)
    if count < needed:
        raise ValueError(
            f"{what}: {count} of the {rows:,} rows are trusted and have a label, where "
            f"{needed} are needed"
        )
    if len(classes) < 2:
        raise ValueError(
            f"{what}: all {count} trusted rows are of class "
            f"{dataset.class_names[classes[0]]!r}; at least two classes are needed "
            "among them"
        )
    if count == rows:
        raise ValueError(
            f"{what}: all {rows:,} rows are trusted; none is left to judge"
        )
