"""Flags that experiments share, defined once, by `define`.

A flag that is None takes a default that suits the data set (`experiments.names`).
"""

import os

from absl import flags

from experiments import names, sources

#: The flags of `define`, which are also the fields of `experiments.stream.Config`.
FLAGS = flags.FLAGS


def define() -> None:
    """Defines the flags of a simulated stream; a second call changes nothing."""
    if "num_seeds" in FLAGS:
        return
    _define_data()
    _define_noise_and_schemes()
    _define_learners()
    flags.DEFINE_integer("seed", 0, "Base of all random keys, and of the row order.")
    flags.DEFINE_string(
        "output_dir", "results/stream", "Where tables and pictures are written."
    )


def _choice(name: str, default: str | None, text: str) -> None:
    flags.DEFINE_enum(name, default, names.CHOICES[name], text)


def _define_data() -> None:
    flags.DEFINE_string("dataset", "digits", f"What arrives: {sources.KNOWN}.")
    flags.DEFINE_string(
        "data_dir",
        os.environ.get("RAD_JAX_DATA"),
        "Folder of the raw files; by default the variable RAD_JAX_DATA.",
    )
    flags.DEFINE_string("device", "all", "Of nbaiot: a device's name, or all.")
    flags.DEFINE_integer("image_size", 32, "Of facescrub: height and width in pixels.")
    flags.DEFINE_integer(
        "num_people",
        None,
        "Of facescrub: the people with the most images; by default all.",
    )
    flags.DEFINE_bool(
        "skip_bad_images",
        False,
        "Of facescrub: count images that cannot be decoded and go on.",
    )
    flags.DEFINE_string(
        "label_column",
        None,
        "Of a file: the column of the classes; a number (from 1) says that a CSV has "
        "no header, its columns then have numbers for names.",
    )
    flags.DEFINE_list("drop_columns", [], "Of a file: columns that are no features.")
    flags.DEFINE_string(
        "time_column",
        None,
        "Of a file: a column of numbers or ISO times that --order=time goes by; by "
        "default rows arrive as in the file.",
    )
    flags.DEFINE_string(
        "cache_dir",
        None,
        "Where data sets are kept once parsed; by default $XDG_CACHE_HOME/rad_jax or "
        "~/.cache/rad_jax, nowhere if empty.",
    )
    _choice("order", "shuffle", "Order of arrival: random, or as recorded.")
    _choice(
        "scaling",
        None,
        "standard: mean 0, variance 1; log: sign(x) log(1+|x|) first, for counts; "
        "unit: 0..255 to 0..1; none. By default standard for tables, unit for images. "
        "Fitted to the clean rows.",
    )
    flags.DEFINE_integer("initial_size", None, "Clean rows at the start.")
    flags.DEFINE_integer("batch_size", None, "Rows of an arrival.")
    flags.DEFINE_integer("num_batches", None, "Arrivals.")
    flags.DEFINE_integer(
        "test_size", None, "Test rows; by default the rows left, at most 3,000."
    )


def _define_noise_and_schemes() -> None:
    flags.DEFINE_list("noise_rates", ["0.4"], "Shares of wrong labels, in [0, 1].")
    _choice(
        "noise",
        "symmetric",
        "symmetric: an exact share of each batch; independent: each row on its own; "
        "independent_any_class: likewise, and a flip may land on the true class.",
    )
    flags.DEFINE_integer("num_seeds", 8, "Repetitions, run at once.")
    _choice("randomness", "fixed_model", "What seeds differ in.")
    flags.DEFINE_list(
        "schemes",
        list(names.SCHEMES),
        f"Selection schemes, of {', '.join(names.SCHEMES)}; the two baselines are "
        "added where they lack, since gap closed is measured between them.",
    )
    flags.DEFINE_integer(
        "query_budget",
        None,
        "Rows a batch that the limited schemes send to the expert; by default 10%.",
    )
    _choice("uncertainty", "margin", "How the limited schemes choose.")
    _choice("uncertainty_source", "mean", "Whose probabilities they use.")
    _choice(
        "alpha",
        "validation",
        "Accuracies that weigh the ensemble: on clean rows held out, or (as in the "
        "paper; it leaks test labels into predictions) on the test set.",
    )
    flags.DEFINE_bool("calibrate", False, "Fit a temperature to each model.")


def _define_learners() -> None:
    _choice("label_model", "mlp", "L.")
    _choice("classifier", "knn", "C, and the model of slim schemes.")
    _choice("training", "continue", "Networks: go on, or start again.")
    flags.DEFINE_integer("steps_per_batch", 100, "Gradient steps at an arrival.")
    flags.DEFINE_integer("initial_steps", 500, "Gradient steps on the clean rows.")
    flags.DEFINE_integer("minibatch_size", None, "Rows of a minibatch.")
    flags.DEFINE_float(
        "learning_rate", None, "Of networks; by default 0.001 (mlp) or 0.01 (vgg)."
    )
    flags.DEFINE_list("hidden", ["28", "28"], "Widths of the MLP's hidden layers.")
    flags.DEFINE_integer("neighbours", 5, "k of knn.")
    flags.DEFINE_float("svm_c", 1.0, "C of linear_svm and rbf_svm.")
    flags.DEFINE_integer("num_landmarks", 512, "Of rbf_svm: rows that span its kernel.")
    flags.DEFINE_integer("num_trees", 100, "Of random_forest.")
    flags.DEFINE_integer("max_depth", 5, "Of random_forest.")
    flags.DEFINE_integer("max_features", 10, "Of random_forest: candidates a split.")
    flags.DEFINE_float("vgg_width", 1.0, "Of vgg: factor of all widths.")
    flags.DEFINE_integer("vgg_blocks", 3, "Of vgg: each halves the image.")
    flags.DEFINE_bool("augment", False, "Of vgg: move and mirror training images.")
