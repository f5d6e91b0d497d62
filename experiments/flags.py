"""Flags that experiments share, defined once, by `define`.

A flag that is None takes a default that suits the data set (`experiments.names`).
"""

import os

from absl import flags

from experiments import names

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


def _choice(name: str, default: str, text: str) -> None:
    flags.DEFINE_enum(name, default, names.CHOICES[name], text)


def _define_data() -> None:
    _choice("dataset", "digits", "What arrives.")
    flags.DEFINE_string(
        "data_dir",
        os.environ.get("RAD_JAX_DATA"),
        "Folder of the raw files; by default the variable RAD_JAX_DATA.",
    )
    _choice("order", "shuffle", "Order of arrival: random, or as recorded.")
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
    flags.DEFINE_float("learning_rate", 1e-3, "Adam's.")
    flags.DEFINE_list("hidden", ["28", "28"], "Widths of the MLP's hidden layers.")
    flags.DEFINE_integer("neighbours", 5, "k of knn.")
