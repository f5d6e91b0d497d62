"""On-line learning from streams whose labels are partly wrong, in JAX."""

__version__ = "0.1.0"

from rad_jax import ensemble, experts, learners, noise, selection, uncertainty
from rad_jax.learners import (
    Training,
    from_sklearn,
    knn,
    linear_svm,
    mlp,
    nearest_centroid,
    network,
    random_forest,
    rbf_svm,
    vgg,
)
from rad_jax.rad import Rad, rad
from rad_jax.selection import (
    active,
    active_limited,
    basic,
    no_selection,
    oracle_selection,
    voting,
)
from rad_jax.state import BATCH_AXES, STATE_AXES, State
from rad_jax.types import Batch, Keys, RowStatus

__all__ = [
    "BATCH_AXES",
    "STATE_AXES",
    "Batch",
    "Keys",
    "Rad",
    "RowStatus",
    "State",
    "Training",
    "active",
    "active_limited",
    "basic",
    "ensemble",
    "experts",
    "from_sklearn",
    "knn",
    "learners",
    "linear_svm",
    "mlp",
    "nearest_centroid",
    "network",
    "no_selection",
    "noise",
    "oracle_selection",
    "rad",
    "random_forest",
    "rbf_svm",
    "selection",
    "uncertainty",
    "vgg",
    "voting",
]
