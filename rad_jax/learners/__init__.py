"""Learners: one file per family, each a value of type `rad_jax.types.Learner`."""

from rad_jax.learners.centroid import nearest_centroid
from rad_jax.learners.neighbours import knn
from rad_jax.learners.neural import MLP, Training, mlp, network

__all__ = ["MLP", "Training", "knn", "mlp", "nearest_centroid", "network"]
