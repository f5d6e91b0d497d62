"""Learners: one file per family, each a value of type `rad_jax.types.Learner`."""

from rad_jax.learners.centroid import nearest_centroid
from rad_jax.learners.convolutional import VGG, shift_and_flip, vgg
from rad_jax.learners.external import from_sklearn
from rad_jax.learners.forest import random_forest
from rad_jax.learners.neighbours import knn
from rad_jax.learners.neural import Training, network
from rad_jax.learners.perceptron import MLP, mlp
from rad_jax.learners.svm import linear_svm, rbf_svm

__all__ = [
    "MLP",
    "VGG",
    "Training",
    "from_sklearn",
    "knn",
    "linear_svm",
    "mlp",
    "nearest_centroid",
    "network",
    "random_forest",
    "rbf_svm",
    "shift_and_flip",
    "vgg",
]
