"""The settings of a run: a value for each flag, its default, what it may be."""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from experiments import flags, names, noises, sources
from experiments.shared_settings import (
    DataSettings,
    OnlineSettings,
    SyntheticSettings,
)
from rad_jax import datasets
from rad_jax.datasets import scaling


@dataclasses.dataclass(frozen=True)
class Config(DataSettings, SyntheticSettings, OnlineSettings):
    """One value for each flag; None means the default that suits the data set."""

    order: str | None = None
    initial_size: int | None = None
    batch_size: int | None = None
    num_batches: int | None = None
    test_size: int | None = None
    noise_rates: tuple[float, ...] | None = None
    noise: str = "symmetric"
    noise_matrix: str | None = None
    noise_schedule: str | None = None
    num_seeds: int = 8
    seeds_per_chunk: int | None = None
    num_devices: int | None = None
    resume: bool = False
    randomness: str = "fixed_model"
    schemes: tuple[str, ...] = names.SCHEMES
    cleaning_window: int = 0
    memory_window: int | None = None
    label_delay: int = 0
    query_budget: int | None = None
    sweep_budget: tuple[float, ...] = ()
    total_budget: int | None = None
    min_per_class: int = 0
    dynamic_budget: bool = False
    budget_cap: int | None = None
    expert_error: float = 0.0
    new_classes: str = "refuse"
    uncertainty: str = "margin"
    sweep_uncertainty: tuple[str, ...] = ()
    uncertainty_source: str = "mean"
    alpha: str = "validation"
    seed: int = 0
    output_dir: str = "results/stream"


def config_from_flags() -> Config:
    """The flags as they were given.

    Raises:
      ValueError: for a list flag that does not hold numbers.
    """
    return Config(**flags.values(Config))


#: Flags with a fixed set of values that may be None until the data set is known.
_LATER = ("scaling", "order")
#: Flags that the data set bounds.
_SIZES = ("initial_size", "batch_size", "num_batches", "test_size")
#: The least that whole-number flags may be.
_LEAST = {
    "initial_size": 1,
    "batch_size": 1,
    "num_batches": 1,
    "test_size": 1,
    "image_size": 1,
    "num_people": 1,
    "num_seeds": 1,
    "seeds_per_chunk": 1,
    "num_devices": 1,
    "query_budget": 0,
    "total_budget": 0,
    "min_per_class": 0,
    "memory_window": 1,
    "label_delay": 0,
    "budget_cap": 1,
    "num_classes": 2,
    "width": 1,
    "late_from": 0,
    "steps_per_batch": 1,
    "initial_steps": 1,
    "minibatch_size": 1,
    "neighbours": 1,
    "num_landmarks": 1,
    "num_trees": 1,
    "max_depth": 1,
    "max_features": 1,
    "vgg_blocks": 1,
    "seed": 0,
}


def _fill(config: Config, sizes: sources.Sizes) -> Config:
    """Gives sizes that are None their defaults."""
    filled = {
        name: size
        for name, size in sizes._asdict().items()
        if getattr(config, name) is None
    }
    config = dataclasses.replace(config, **filled)
    if config.query_budget is None:
        tenth = max(1, round((config.batch_size or 0) / 10))
        config = dataclasses.replace(config, query_budget=tenth)
    return config


def complete(config: Config) -> Config:
    """Fills in what depends on the data set's name, and checks what needs no data.

    Raises:
      ValueError: naming the flag, what came and what is allowed.
    """
    for name, choices in names.CHOICES.items():
        value = getattr(config, name)
        if value not in choices and (name not in _LATER or value is not None):
            raise ValueError(
                f"--{name}={value} is unknown; known: {', '.join(choices)}"
            )
    source = sources.check(config)
    if config.order is None:
        config = dataclasses.replace(config, order=source.order)
    if source.sizes is not None:
        config = _fill(config, source.sizes)
    for name, least in _LEAST.items():
        value = getattr(config, name)
        if value is not None and value < least:
            raise ValueError(f"--{name} must be at least {least}, got {value}")
        if value is not None and value >= 2**31 and name not in _SIZES:
            raise ValueError(f"--{name} must be below 2^31, got {value}")
    for name, most in (("learning_rate", 1e3), ("svm_c", 1e6), ("vgg_width", 16.0)):
        value = getattr(config, name)
        if value is not None and not 0 < value <= most:
            raise ValueError(f"--{name} must be > 0 and <= {most:g}, got {value}")
    if not config.hidden or min(config.hidden) < 1:
        raise ValueError(f"--hidden must be widths of at least 1, got {config.hidden}")
    _check_selection(config)
    noises.check(config)
    if config.noise_rates is None:
        whole = config.noise_schedule is not None or config.noise_matrix is not None
        config = dataclasses.replace(config, noise_rates=(1.0 if whole else 0.4,))
    rates = config.noise_rates or ()
    if not rates:
        raise ValueError("--noise_rates is empty; give rates in [0, 1]")
    for rate in rates:
        if not 0 <= rate <= 1:
            raise ValueError(f"--noise_rates must lie in [0, 1], got {rate}")
    schemes = _with_baselines(config.schemes)
    if config.sweep_budget:
        wanted = (*names.BASELINES, *names.LIMITED)
        schemes = tuple(name for name in schemes if name in wanted)
    return dataclasses.replace(
        config,
        schemes=schemes,
        sweep_budget=tuple(sorted(set(config.sweep_budget))),
        sweep_uncertainty=tuple(dict.fromkeys(config.sweep_uncertainty)),
        noise_rates=tuple(dict.fromkeys(rates)),
    )


def _check_selection(config: Config) -> None:
    """Checks cleaning, budgets and the expert."""
    if config.cleaning_window < -1:
        raise ValueError(
            "--cleaning_window must be a number of arrivals, 0 for none or -1 for all, "
            f"got {config.cleaning_window}"
        )
    if not 0 <= config.expert_error <= 1:
        raise ValueError(
            f"--expert_error must lie in [0, 1], got {config.expert_error}"
        )
    if config.budget_cap is not None and not config.dynamic_budget:
        raise ValueError(f"--budget_cap={config.budget_cap} needs --dynamic_budget")
    shares = config.sweep_budget
    alike = len({f"{share:g}" for share in shares}) < len(set(shares))
    if alike:  # reports name runs so
        raise ValueError(
            "--sweep_budget must be shares that differ in six digits, got "
            f"{','.join(map(str, shares))}"
        )
    if config.dynamic_budget and (config.query_budget == 0 or 0 in shares):
        name = "sweep_budget" if 0 in shares else "query_budget"
        raise ValueError(
            f"--{name} must not be 0 with --dynamic_budget, which starts from it"
        )
    for share in shares:
        if not 0 <= share <= 1:
            raise ValueError(
                f"--sweep_budget must be shares of a batch in [0, 1], got {share}"
            )
    if shares and not set(config.schemes) & set(names.LIMITED):
        raise ValueError(
            f"--sweep_budget needs one of {', '.join(names.LIMITED)} among --schemes, "
            f"got {','.join(config.schemes)}"
        )

    scores = config.sweep_uncertainty
    unknown = [name for name in scores if name not in names.SCORES]
    if unknown:
        raise ValueError(
            f"--sweep_uncertainty has the unknown {', '.join(map(repr, unknown))}; "
            f"known: {', '.join(names.SCORES)}"
        )
    if scores and not shares:
        raise ValueError(f"--sweep_uncertainty={','.join(scores)} needs --sweep_budget")
    asking = ("active", *names.LIMITED)
    if config.new_classes == "expert" and not set(config.schemes) & set(asking):
        raise ValueError(
            f"--new_classes=expert needs one of {', '.join(asking)} among --schemes, "
            f"got {','.join(config.schemes)}"
        )


def _with_baselines(schemes: Sequence[str]) -> tuple[str, ...]:
    known = ", ".join(names.SCHEMES)
    if not schemes:
        raise ValueError(f"--schemes is empty; known: {known}")
    unknown = [name for name in schemes if name not in names.SCHEMES]
    if unknown:
        raise ValueError(
            f"--schemes has the unknown {', '.join(map(repr, unknown))}; known: {known}"
        )
    return tuple(dict.fromkeys((*names.BASELINES, *schemes)))


def suit(config: Config, dataset: datasets.Dataset) -> Config:
    """Fills in the scaling, and sizes that depend on the number of rows.

    Args:
      config: as `complete` returns it.
      dataset: as `read` returns it.
    """
    rows = len(dataset.labels)
    scale = config.scaling or scaling.default(dataset)
    config = dataclasses.replace(config, scaling=scale)
    return _fill(config, sources.suited(rows, config.initial_size, config.batch_size))


#: Scaled features beyond it are announced: one such row can undo a network's training.
_FAR_OUT = 1000.0


def scaling_note(
    config: Config, parts: Iterable[np.ndarray], columns: Sequence[str] = ()
) -> list[str]:
    """What to say of features that lie far out although they are scaled.

    Args:
      config: as `suit` returns it.
      parts: ``[..., D]`` each, scaled.
      columns: names of the D columns, if they are known.

    Returns:
      A line, or none.
    """
    if config.scaling != "standard":
        return []
    flat = (x.reshape(-1, x.shape[-1]) for x in parts)
    greatest = np.max(
        [np.maximum(x.max(axis=0), -x.min(axis=0)) for x in flat if len(x)], axis=0
    )
    column = int(np.argmax(greatest))
    if greatest[column] <= _FAR_OUT:
        return []
    where = f" (column {columns[column]!r})" if columns else ""
    return [
        f"note: features reach {greatest[column]:.2g} after scaling by the clean "
        f"rows{where}; --scaling=quantile or log may give better models"
    ]
