"""Names on the command line, and the values that they stand for.

The only place where names exist: the library takes values.
"""

from collections.abc import Callable
from typing import Any

from rad_jax import (
    Training,
    knn,
    linear_svm,
    mlp,
    nearest_centroid,
    noise,
    random_forest,
    rbf_svm,
    selection,
    sweep,
    synthetic,
    uncertainty,
    vgg,
)
from rad_jax.datasets.scaling import SCALINGS
from rad_jax.datasets.split import ORDERS
from rad_jax.learners.training import MODES
from rad_jax.statistics import LOWER_BASELINE, UPPER_BASELINE
from rad_jax.stream import ALPHA_SOURCES
from rad_jax.sweep import Arm
from rad_jax.types import Learner, Noise, SelectionScheme

BASELINES = (LOWER_BASELINE, UPPER_BASELINE)

SCHEMES = (
    *BASELINES,
    "basic",
    "voting",
    "active",
    "active_limited",
    "slim",
    "slim_limited",
)

SCORES: dict[str, uncertainty.Score] = {
    "margin": uncertainty.margin,
    "cross_entropy": uncertainty.cross_entropy,
    "entropy": uncertainty.entropy,
    "least_confidence": uncertainty.least_confidence,
    "cent": uncertainty.cent,
}

#: Schemes that ask an expert about so many rows a batch.
LIMITED = ("active_limited", "slim_limited")

#: Rows of a class that the limited schemes ask about first where a class is new.
NEW_CLASS_ROWS = 5

LEARNERS = (
    "mlp",
    "knn",
    "nearest_centroid",
    "linear_svm",
    "rbf_svm",
    "random_forest",
    "vgg",
)

NOISES: dict[str, Callable[[float], Noise]] = {
    "symmetric": noise.symmetric,
    "independent": noise.independent,
    "independent_any_class": lambda rate: noise.independent(rate, include_true=True),
    "pair_flip": noise.pair_flip,
}

#: Kinds of noise that need more than a rate: a matrix, features (`experiments.noises`).
STREAM_NOISES = (*NOISES, "asymmetric", "feature_dependent")


#: The flags that `learner` takes by name.
LEARNER_FLAGS = (
    "learning_rate",
    "hidden",
    "neighbours",
    "svm_c",
    "num_landmarks",
    "num_trees",
    "max_depth",
    "max_features",
    "vgg_width",
    "vgg_blocks",
    "augment",
)

#: What each flag with a fixed set of values may be.
CHOICES: dict[str, tuple[str, ...]] = {
    "drift": synthetic.DRIFTS,
    "order": ORDERS,
    "scaling": SCALINGS,
    "noise": STREAM_NOISES,
    "randomness": sweep.RANDOMNESS,
    "uncertainty": tuple(SCORES),
    "uncertainty_source": selection.SOURCES,
    "new_classes": ("refuse", "expert"),
    "alpha": ALPHA_SOURCES,
    "label_model": LEARNERS,
    "classifier": LEARNERS,
    "training": MODES,
}


def arm(
    name: str,
    *,
    query_budget: int,
    score: str,
    source: str,
    total_budget: int | None = None,
    min_per_class: int = 0,
    dynamic: bool = False,
    cap: int | None = None,
    new_classes: bool = False,
    label: str | None = None,
) -> Arm:
    """The scheme of that name.

    Args:
      name: one of `SCHEMES`.
      query_budget: of the limited ones, rows a batch.
      score: of the limited ones, one of `SCORES`.
      source: of the limited ones, one of `rad_jax.selection.SOURCES`.
      total_budget: of the limited ones, rows in all.
      min_per_class: of all that drop rows on purpose, rows kept of each given class.
      dynamic: of the limited ones, see `rad_jax.selection.active_limited`.
      cap: likewise.
      new_classes: of the limited ones: whether they ask about new classes first.
      label: how reports call it, by default its name.
    """

    def limited():
        return selection.active_limited(
            query_budget,
            score=SCORES[score],
            source=source,
            total_budget=total_budget,
            min_per_class=min_per_class,
            dynamic=dynamic,
            cap=cap,
            new_class_rows=NEW_CLASS_ROWS if new_classes else 0,
        )

    def filtering(scheme: SelectionScheme):
        return (
            selection.keep_per_class(scheme, min_per_class) if min_per_class else scheme
        )

    made: dict[str, Callable[[], SelectionScheme]] = {
        LOWER_BASELINE: selection.no_selection,
        UPPER_BASELINE: selection.oracle_selection,
        "basic": lambda: filtering(selection.basic()),
        "voting": lambda: filtering(selection.voting()),
        "active": selection.active,
        "active_limited": limited,
        "slim": lambda: filtering(selection.basic()),
        "slim_limited": limited,
    }
    return Arm(label or name, made[name](), one_model=name.startswith("slim"))


def learner(
    name: str,
    *,
    training: Training,
    learning_rate: float | None = None,
    hidden: tuple[int, ...] = (28, 28),
    neighbours: int = 5,
    svm_c: float = 1.0,
    num_landmarks: int = 512,
    num_trees: int = 100,
    max_depth: int = 5,
    max_features: int = 10,
    vgg_width: float = 1.0,
    vgg_blocks: int = 3,
    augment: bool = False,
) -> Learner:
    """The learner of that name (one of `LEARNERS`), with what applies to it.

    Args:
      name: of the learner.
      training: of networks.
      learning_rate: of networks; None is each network's own default.
      hidden: of mlp.
      neighbours: of knn.
      svm_c: of both SVMs.
      num_landmarks: of rbf_svm.
      num_trees: of random_forest, like `max_depth` and `max_features`.
      max_depth: of its trees.
      max_features: candidates at a split.
      vgg_width: of vgg, like `vgg_blocks` and `augment`.
      vgg_blocks: its depth.
      augment: whether its training images are moved and mirrored.
    """
    rate: dict[str, Any] = (
        {} if learning_rate is None else {"learning_rate": learning_rate}
    )
    makers: dict[str, Callable[[], Learner]] = {
        "mlp": lambda: mlp(hidden, training=training, **rate),
        "knn": lambda: knn(neighbours),
        "nearest_centroid": nearest_centroid,
        "linear_svm": lambda: linear_svm(svm_c),
        "rbf_svm": lambda: rbf_svm(C=svm_c, num_landmarks=num_landmarks),
        "random_forest": lambda: random_forest(
            num_trees, max_depth=max_depth, max_features=max_features
        ),
        "vgg": lambda: vgg(
            width=vgg_width,
            blocks=vgg_blocks,
            training=training,
            augment=augment,
            **rate,
        ),
    }
    return makers[name]()
