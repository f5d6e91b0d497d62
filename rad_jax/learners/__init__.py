"""Learners: one file per family, each a value of type `rad_jax.types.Learner`."""

from rad_jax.learners.centroid import nearest_centroid
from rad_jax.learners.convolutional import VGG, shift_and_flip, vgg
from rad_jax.learners.neighbours import knn
from rad_jax.learners.neural import Training, network
from rad_jax.learners.perceptron import MLP, mlp

__all__ = [
    "MLP",
    "VGG",
    "Training",
    "knn",
    "mlp",
    "nearest_centroid",
    "network",
    "shift_and_flip",
    "vgg",
]
