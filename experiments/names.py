"""Names on the command line, and the values that they stand for.

The only place where names exist: the library takes values.
"""

from collections.abc import Callable

from rad_jax import (
    Training,
    knn,
    mlp,
    nearest_centroid,
    noise,
    selection,
    sweep,
    uncertainty,
)
from rad_jax.datasets.scaling import SCALINGS
from rad_jax.datasets.split import ORDERS
from rad_jax.learners.neural import MODES
from rad_jax.statistics import LOWER_BASELINE, UPPER_BASELINE
from rad_jax.stream import ALPHA_SOURCES
from rad_jax.sweep import Arm
from rad_jax.types import Learner, Noise

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

LEARNERS = ("mlp", "knn", "nearest_centroid")

NOISES: dict[str, Callable[[float], Noise]] = {
    "symmetric": noise.symmetric,
    "independent": noise.independent,
    "independent_any_class": lambda rate: noise.independent(rate, include_true=True),
}


#: What each flag with a fixed set of values may be.
CHOICES: dict[str, tuple[str, ...]] = {
    "order": ORDERS,
    "scaling": SCALINGS,
    "noise": tuple(NOISES),
    "randomness": sweep.RANDOMNESS,
    "uncertainty": tuple(SCORES),
    "uncertainty_source": selection.SOURCES,
    "alpha": ALPHA_SOURCES,
    "label_model": LEARNERS,
    "classifier": LEARNERS,
    "training": MODES,
}


def arm(name: str, *, query_budget: int, score: str, source: str) -> Arm:
    """The scheme of that name.

    Args:
      name: one of `SCHEMES`.
      query_budget: of the limited ones, rows a batch.
      score: of the limited ones, one of `SCORES`.
      source: of the limited ones, one of `rad_jax.selection.SOURCES`.
    """

    def limited():
        return selection.active_limited(
            query_budget, score=SCORES[score], source=source
        )

    made = {
        LOWER_BASELINE: selection.no_selection,
        UPPER_BASELINE: selection.oracle_selection,
        "basic": selection.basic,
        "voting": selection.voting,
        "active": selection.active,
        "active_limited": limited,
        "slim": selection.basic,
        "slim_limited": limited,
    }
    return Arm(name, made[name](), one_model=name.startswith("slim"))


def learner(
    name: str,
    *,
    training: Training,
    learning_rate: float,
    hidden: tuple[int, ...],
    neighbours: int,
) -> Learner:
    """The learner of that name (one of `LEARNERS`), with what applies to it."""
    if name == "mlp":
        return mlp(hidden, learning_rate=learning_rate, training=training)
    if name == "knn":
        return knn(neighbours)
    return nearest_centroid()
