r"""What wrong labels do to a classifier: the study that motivates RAD (Figures 1-3).

  python -m experiments.motivation --study=offline --learners=knn,nearest_centroid,mlp
  python -m experiments.motivation --study=toy
  python -m experiments.motivation --study=randomness --dataset=google_cluster

offline: test accuracy for label noise from 0 to 100%, per learner; all runs and noise
rates of a learner are one compiled program. toy: the decision regions of a KNN in the
plane, on clean and on wrong labels. randomness: how far runs spread that differ in
noise, in the model, or in both.

Prints what it is about to do and tables; writes CSV files, config.json and a picture
to --output_dir.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

from absl import app
from absl import flags as absl_flags
from rich.console import Console

from experiments import (
    command,
    flags,
    names,
    offline_study,
    randomness_study,
    reference,
    sklearn_study,
    sources,
    toy_study,
)
from experiments.study import Config
from rad_jax.files import check_output_dir

STUDIES = ("offline", "toy", "randomness")
_TENTHS = tuple(i / 10 for i in range(11))
#: By study, defaults of the flags that have none for all of them.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "offline": {
        "learners": ("knn", "nearest_centroid", "mlp"),
        "noise_rates": _TENTHS,
        "neighbours": 4,
    },
    "toy": {"learners": ("knn",), "noise_rates": (1.0,), "neighbours": 5},
    "randomness": {
        "learners": ("mlp",),
        "noise_rates": (0.2, 0.4, 0.6, 0.8),
        "neighbours": 4,
    },
}
#: Flags that only some studies look at.
_ONLY: dict[str, tuple[str, ...]] = {
    "compare_sklearn": ("offline",),
    "reference_curves": ("offline",),
    "reference_dataset": ("offline",),
    "train_size": ("offline", "randomness"),
    "test_size": ("offline", "randomness"),
    "runs_per_chunk": ("offline", "randomness"),
}


def define_flags() -> None:
    """Defines the flags of this script beside the shared ones."""
    flags.define()
    absl_flags.DEFINE_enum("study", "offline", STUDIES, "Figure 1, 2 or 3.")
    absl_flags.DEFINE_list(
        "learners",
        None,
        f"Of {', '.join(names.LEARNERS)}; by default "
        "knn,nearest_centroid,mlp (randomness: mlp).",
    )
    absl_flags.DEFINE_integer("runs", 10, "Repetitions.")
    absl_flags.DEFINE_integer("epochs", 50, "Networks: passes over the training rows.")
    absl_flags.DEFINE_integer(
        "train_size",
        None,
        "Training rows; by default 14,000, or 70% of the rows if there are fewer than "
        "20,000.",
    )
    absl_flags.DEFINE_integer(
        "runs_per_chunk",
        None,
        "Runs computed at a time; by default as many as half of the free memory holds.",
    )
    absl_flags.DEFINE_bool(
        "compare_sklearn",
        False,
        "Do the same study in scikit-learn, on all cores, and print both times.",
    )
    absl_flags.DEFINE_string(
        "reference_curves", None, "JSON file of published curves, drawn dashed."
    )
    absl_flags.DEFINE_string(
        "reference_dataset",
        None,
        "What that file calls the data set; known for "
        + ", ".join(f"{k} ({v})" for k, v in reference.DATASETS.items())
        + ".",
    )
    defaults: dict[str, Any] = {
        "noise_rates": None,
        "neighbours": None,
        "minibatch_size": Config.minibatch_size,
        "output_dir": Config.output_dir,
    }
    for name, value in defaults.items():
        absl_flags.FLAGS.set_default(name, value)
    meaning = {
        "noise_rates": "Shares of wrong labels, in [0, 1]; by default 0,0.1,...,1 "
        "(toy: 1; randomness: 0.2,0.4,0.6,0.8).",
        "neighbours": "k of knn, whose votes weigh 1/distance; by default 4 (toy: 5, "
        "all votes alike).",
        "test_size": "Clean test rows; by default 3/7 of the training rows.",
        "dataset": f"What is learned: {sources.KNOWN}.",
        "noise": "symmetric: an exact share of the rows; independent: each row on its "
        "own; independent_any_class: likewise, and a flip may land on the true class; "
        "pair_flip: class k becomes k + 1.",
    }
    for name, text in meaning.items():
        absl_flags.FLAGS[name].help = text
    for field in dataclasses.fields(Config):
        absl_flags.declare_key_flag(field.name)


def config_from_flags() -> Config:
    """The flags as they were given.

    Raises:
      ValueError: for a list flag that does not hold numbers, or a flag of other
        experiments.
    """
    fields = [field.name for field in dataclasses.fields(Config)]
    for flag in flags.shared():
        if flag.present and flag.name not in fields:
            raise ValueError(f"--{flag.name} has no meaning for experiments.motivation")
    return Config(**flags.values(Config))


def complete(config: Config) -> Config:
    """Fills in what depends on the study, and checks what needs no data.

    Raises:
      ValueError: naming the flag, what came and what is allowed.
    """
    choices: dict[str, Any] = {
        "study": STUDIES,
        "noise": names.NOISES,
        "scaling": (*names.CHOICES["scaling"], None),
    }
    for name, allowed in choices.items():
        if getattr(config, name) not in allowed:
            raise ValueError(
                f"--{name}={getattr(config, name)} is unknown; known: "
                f"{', '.join(filter(None, allowed))}"
            )
    if config.study != "toy":
        sources.check(cast(Any, config))
    for name, only in _ONLY.items():
        if getattr(config, name) and config.study not in only:
            raise ValueError(f"--{name} is for --study={' or '.join(only)} only")
    if config.reference_dataset and not config.reference_curves:
        raise ValueError("--reference_dataset needs --reference_curves=FILE")
    if config.study == "toy" and config.learners not in (None, ("knn",)):
        raise ValueError("--study=toy is of knn; leave --learners out")
    missing = {
        name: value
        for name, value in _DEFAULTS[config.study].items()
        if getattr(config, name) is None
    }
    config = dataclasses.replace(config, **missing)
    assert config.learners is not None
    assert config.noise_rates is not None
    _check_numbers(config)
    if not config.learners or not config.noise_rates:
        empty = "noise_rates" if config.learners else "learners"
        raise ValueError(f"--{empty} is empty")
    unknown = [name for name in config.learners if name not in names.LEARNERS]
    if unknown:
        raise ValueError(
            f"--learners has the unknown {', '.join(map(repr, unknown))}; known: "
            f"{', '.join(names.LEARNERS)}"
        )
    if config.compare_sklearn:
        alone = [n for n in config.learners if n not in sklearn_study.COUNTERPARTS]
        if alone:
            raise ValueError(
                f"--compare_sklearn: scikit-learn has no counterpart of "
                f"{', '.join(alone)}; it has one of "
                f"{', '.join(sklearn_study.COUNTERPARTS)}"
            )
    return dataclasses.replace(
        config,
        learners=tuple(dict.fromkeys(config.learners)),
        noise_rates=tuple(sorted(set(config.noise_rates))),
    )


def _check_numbers(config: Config) -> None:
    assert config.noise_rates is not None
    least = {
        "runs": 1,
        "epochs": 1,
        "minibatch_size": 1,
        "neighbours": 1,
        "train_size": 1,
        "test_size": 1,
        "image_size": 1,
        "num_people": 1,
        "runs_per_chunk": 1,
        "num_landmarks": 1,
        "num_trees": 1,
        "max_depth": 1,
        "max_features": 1,
        "vgg_blocks": 1,
        "seed": 0,
    }
    for name, low in least.items():
        value = getattr(config, name)
        if value is not None and not low <= value < 2**31:
            raise ValueError(f"--{name} must lie in {low}..2^31-1, got {value}")
    for name, most in (("learning_rate", 1e3), ("svm_c", 1e6), ("vgg_width", 16.0)):
        value = getattr(config, name)
        if value is not None and not 0 < value <= most:
            raise ValueError(f"--{name} must be > 0 and <= {most:g}, got {value}")
    if not config.hidden or min(config.hidden) < 1:
        raise ValueError(f"--hidden must be widths of at least 1, got {config.hidden}")
    for rate in config.noise_rates:
        if not 0 <= rate <= 1:
            raise ValueError(f"--noise_rates must lie in [0, 1], got {rate}")
    if config.study == "toy" and len(config.noise_rates) > 1:
        raise ValueError(
            "--study=toy shows one of --noise_rates, got "
            f"{','.join(f'{rate:g}' for rate in config.noise_rates)}"
        )


def run(config: Config, console: Console | None = None) -> Any:
    """Runs a study and writes its tables and picture.

    Args:
      config: what to run; see the flags.
      console: where to print; nothing is printed without.

    Returns:
      `offline_study.Offline`, `toy_study.Toy` or `randomness_study.Randomness`.

    Raises:
      ValueError, OSError: for bad input, before any long work.
    """
    console = console or Console(quiet=True)
    output_dir = check_output_dir(config.output_dir)
    config = complete(config)
    study = {
        "offline": offline_study.run,
        "toy": toy_study.run,
        "randomness": randomness_study.run,
    }[config.study]
    result = study(config, output_dir, console)
    console.print(
        f"tables and pictures are in {output_dir}", highlight=False, soft_wrap=True
    )
    return result


def main(argv: Sequence[str]) -> None:
    """Runs the study that the flags describe."""
    command.call(argv, lambda: run(config_from_flags(), Console()))


if __name__ == "__main__":
    define_flags()
    app.run(main)
