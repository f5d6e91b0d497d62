"""Flags that experiments share, defined once, by `define`, in groups.

A flag that is None takes a default that suits the data set (`experiments.names`). A
group is a module of that name to absl, so that help lists each group by itself.
"""

import functools
import os
import typing
from collections.abc import Sequence
from typing import Any

from absl import flags

from experiments import devices, distributed, names, sources

#: The flags of `define`, which are also the fields of `experiments.settings.Config`.
FLAGS = flags.FLAGS

_DATA = "data"
_SYNTHETIC = "synthetic data"
_NOISE = "noise"
_SELECTION = "selection and prediction"
_EXPERT = "expert and budgets"
_LEARNERS = "learners"
_RUN = "run"
#: Groups of flags, in the order of the help.
GROUPS = (_DATA, _SYNTHETIC, _NOISE, _SELECTION, _EXPERT, _LEARNERS, _RUN)


def define() -> None:
    """Defines the flags of a simulated stream; a second call changes nothing."""
    if "num_seeds" in FLAGS:
        return
    _define_data()
    _define_synthetic()
    _define_noise()
    _define_selection()
    _define_expert()
    define_learners()
    group = _Group(_RUN)
    group.integer("num_seeds", 8, "Repetitions, run at once.")
    group.integer(
        "seeds_per_chunk",
        None,
        "Repetitions computed together; by default as many as half of the free memory "
        "holds, on CPU no more than are fast. Results differ in the last bits at most.",
    )
    group.integer(
        "num_devices", None, "Over which runs are spread; by default all there are."
    )
    group.bool(
        "resume", False, "Go on with the chunks that a killed run left in --output_dir."
    )
    group.choice("randomness", "fixed_model", "What seeds differ in.")
    group.integer("seed", 0, "Base of all random keys, and of the row order.")
    group.string(
        "output_dir", "results/stream", "Where tables and pictures are written."
    )
    devices.define_flags()


def numbers(name: str, texts: Sequence[str], kind: type) -> tuple:
    """The value of a list flag, as numbers.

    Raises:
      ValueError: a text is none.
    """
    try:
        return tuple(kind(text) for text in texts)
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise ValueError(f"--{name} must be {what}, got {','.join(texts)}") from None


def values(config: type) -> dict[str, Any]:
    """The flags as they were given, for the fields of a dataclass.

    Args:
      config: its types say what the texts of a list flag are.

    Raises:
      ValueError: a text is no number where numbers are asked for.
    """
    given: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(config).items():
        value = FLAGS[name].value
        if isinstance(value, list):
            hints = (hint, *typing.get_args(hint))
            (several,) = (h for h in hints if typing.get_origin(h) is tuple)
            kind = typing.get_args(several)[0]
            value = tuple(value) if kind is str else numbers(name, value, kind)
        given[name] = value
    return given


def shared() -> list[flags.Flag]:
    """The flags of `define`."""
    by_group = FLAGS.flags_by_module_dict()
    return [flag for group in GROUPS for flag in by_group[group]]


def help_text(*first: str) -> str:
    """The flags, group by group; a script appends it to its docstring for --help.

    Args:
      *first: groups of the script itself.
    """
    defined = FLAGS.flags_by_module_dict()
    groups = [
        group
        for group in (*first, *GROUPS, devices.GROUP, distributed.GROUP)
        if group in defined
    ]
    text = "\n".join(map(FLAGS.module_help, groups))
    return "\nflags:\n" + text.replace("%", "%%") + "\n"  # absl formats it


def _choice(group: str, name: str, default: str | None, text: str) -> None:
    flags.DEFINE_enum(name, default, names.CHOICES[name], text, module_name=group)


class _Group:
    """absl's definitions, all in one group."""

    def __init__(self, name: str) -> None:
        self.integer = functools.partial(flags.DEFINE_integer, module_name=name)
        self.float = functools.partial(flags.DEFINE_float, module_name=name)
        self.string = functools.partial(flags.DEFINE_string, module_name=name)
        self.list = functools.partial(flags.DEFINE_list, module_name=name)
        self.bool = functools.partial(flags.DEFINE_bool, module_name=name)
        self.choice = functools.partial(_choice, name)


def _define_data() -> None:
    group = _Group(_DATA)
    group.string("dataset", "digits", f"What arrives: {sources.KNOWN}.")
    group.string(
        "data_dir",
        os.environ.get("RAD_JAX_DATA"),
        "Folder of the raw files; by default the variable RAD_JAX_DATA.",
    )
    group.string("device", "all", "Of nbaiot: a device's name, or all.")
    group.integer("image_size", 32, "Of facescrub: height and width in pixels.")
    group.integer(
        "num_people",
        None,
        "Of facescrub: the people with the most images; by default all.",
    )
    group.bool(
        "skip_bad_images",
        False,
        "Of facescrub: count images that cannot be decoded and go on.",
    )
    define_file("--order=time goes by; by default rows arrive as in the file")
    group.choice(
        "order",
        None,
        "Order of arrival: shuffle, or time: as recorded (default of synthetic).",
    )
    group.integer("initial_size", None, "Clean rows at the start.")
    group.integer("batch_size", None, "Rows of an arrival.")
    group.integer("num_batches", None, "Arrivals.")
    group.integer(
        "test_size", None, "Test rows; by default the rows left, at most 3,000."
    )


def define_file(time_use: str) -> None:
    """Defines the flags of a file of one's own, and how its rows are kept and scaled.

    Args:
      time_use: what the column of times is for, in words.
    """
    group = _Group(_DATA)
    group.string(
        "label_column",
        None,
        "Of a file: the column of the classes; a number (from 1) says that a CSV has "
        "no header, its columns then have numbers for names.",
    )
    group.list("drop_columns", [], "Of a file: columns that are no features.")
    group.string(
        "time_column",
        None,
        f"Of a file: a column of numbers or ISO times that {time_use}.",
    )
    group.string(
        "cache_dir",
        None,
        "Where data sets are kept once parsed; by default $XDG_CACHE_HOME/rad_jax or "
        "~/.cache/rad_jax, nowhere if empty.",
    )
    group.choice(
        "scaling",
        None,
        "standard: mean 0, variance 1; log: sign(x) log(1+|x|) first, for counts; "
        "quantile: by rank, where values lie far out; unit: 0..255 to 0..1; none. By "
        "default standard for tables (nbaiot: quantile, unsw_nb15: log), unit for "
        "images. Fitted to the clean rows.",
    )


def _define_synthetic() -> None:
    group = _Group(_SYNTHETIC)
    group.integer("num_classes", 10, "Classes, each a normal cloud.")
    group.integer("width", 20, "Features of a row.")
    group.float("separation", 4.0, "Distance of two classes, in standard deviations.")
    group.choice(
        "drift",
        "none",
        "How classes move: abrupt, gradual (rows of the new place among those of the "
        "old), incremental (on the way) or recurring. The test rows are those of the "
        "arrival after the last.",
    )
    group.float("drift_period", 20.0, "Arrivals from one place to the next.")
    group.float("imbalance", 1.0, "Share of the commonest class over the rarest's.")
    group.integer("late_from", 0, "Arrival from which the last class occurs.")


def _define_noise() -> None:
    group = _Group(_NOISE)
    group.list(
        "noise_rates",
        None,
        "Shares of wrong labels, in [0, 1]; by default 0.4. What a matrix or schedule "
        "gives is multiplied by it, by default by 1.",
    )
    group.choice(
        "noise",
        "symmetric",
        "symmetric: an exact share of each batch; independent: each row on its own; "
        "independent_any_class: likewise, and a flip may land on the true class; "
        "pair_flip: class k becomes k + 1; asymmetric: by --noise_matrix; "
        "feature_dependent: rows near another class become that class.",
    )
    group.string(
        "noise_matrix",
        None,
        "Of asymmetric: .csv or .npy file, a row for each true class and a column for "
        "each given one; rows sum to 1.",
    )
    group.string(
        "noise_schedule",
        None,
        "The rate over time: constant(rate), uniform(lo,hi), gaussian(mean,sd), "
        "sin(mid,half_range,period) or linear(lo,hi,start,stop); or several, each with "
        "its batches: 1-30:constant(0.2);30-:sin(0.4,0.2,20). The first batch is 1, "
        "1-30 ends before batch 30.",
    )


def _define_selection() -> None:
    group = _Group(_SELECTION)
    group.list(
        "schemes",
        list(names.SCHEMES),
        f"Selection schemes, of {', '.join(names.SCHEMES)}; the two baselines are "
        "added where they lack, since gap closed is measured between them.",
    )
    group.integer(
        "cleaning_window",
        0,
        "Earlier arrivals whose rows are selected again at each arrival; -1 for all.",
    )
    group.integer(
        "memory_window",
        None,
        "Rows that are remembered, the oldest are forgotten; by default all.",
    )
    group.integer("label_delay", 0, "Arrivals by which labels come late.")
    group.integer(
        "min_per_class",
        0,
        "Rows of each given class that a batch keeps at least, where it has them.",
    )
    group.choice(
        "alpha",
        "validation",
        "Accuracies that weigh the ensemble: on clean rows held out, or (as in the "
        "paper; it leaks test labels into predictions) on the test set.",
    )
    group.bool("calibrate", False, "Fit a temperature to each model.")


def _define_expert() -> None:
    group = _Group(_EXPERT)
    group.integer(
        "query_budget",
        None,
        "Rows a batch that the limited schemes send to the expert; by default 10%.",
    )
    group.list(
        "sweep_budget",
        [],
        "Shares of a batch: the limited schemes are run once for each as their budget, "
        "beside the baselines, and accuracy is drawn against what was asked.",
    )
    group.integer("total_budget", None, "Rows that a limited scheme may send in all.")
    group.bool(
        "dynamic_budget",
        False,
        "Let the limited schemes ask more as predictions grow less sure; they start "
        "with --query_budget.",
    )
    group.integer("budget_cap", None, "Of a dynamic budget: the most rows a batch.")
    group.choice("uncertainty", "margin", "How the limited schemes choose.")
    group.list(
        "sweep_uncertainty",
        [],
        "With --sweep_budget: ways to choose that are compared, instead of that of "
        "--uncertainty.",
    )
    group.choice("uncertainty_source", "mean", "Whose probabilities they use.")
    group.float("expert_error", 0.0, "Share of the answers that are wrong.")
    group.choice(
        "new_classes",
        "refuse",
        "What to do where rows arrive of a class of which no clean row is: refuse the "
        "stream, or let the expert admit it: active asks about all doubted rows, and "
        f"the limited schemes ask about rows given such a class first, until "
        f"{names.NEW_CLASS_ROWS} are trained on.",
    )


def define_learners() -> None:
    """Defines the flags of L, of C and of both."""
    group = _Group(_LEARNERS)
    group.choice("label_model", "mlp", "L.")
    group.choice("classifier", "knn", "C, and the model of slim schemes.")
    group.choice("training", "continue", "Networks: go on, or start again.")
    group.integer("steps_per_batch", 100, "Gradient steps at an arrival.")
    group.integer("initial_steps", 500, "Gradient steps on the clean rows.")
    group.integer("minibatch_size", None, "Rows of a minibatch.")
    group.float(
        "learning_rate", None, "Of networks; by default 0.001 (mlp) or 0.01 (vgg)."
    )
    group.list("hidden", ["28", "28"], "Widths of the MLP's hidden layers.")
    group.integer("neighbours", 5, "k of knn.")
    group.float("svm_c", 1.0, "C of linear_svm and rbf_svm.")
    group.integer("num_landmarks", 512, "Of rbf_svm: rows that span its kernel.")
    group.integer("num_trees", 100, "Of random_forest.")
    group.integer("max_depth", 5, "Of random_forest.")
    group.integer("max_features", 10, "Of random_forest: candidates a split.")
    group.float("vgg_width", 1.0, "Of vgg: factor of all widths.")
    group.integer("vgg_blocks", 3, "Of vgg: each halves the image.")
    group.bool("augment", False, "Of vgg: move and mirror training images.")
