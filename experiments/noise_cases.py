"""The noise of `experiments.noise_study`: what is asked for, and how it comes out.

Nothing is learned here.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments import noises
from experiments.settings import Config
from rad_jax import noise, schedules, transition
from rad_jax.datasets import StreamData
from rad_jax.types import UNLABELLED, Array, Noise, PRNGKey, PyTree, as_arrays

#: What is run unless a flag says which noise: that of the paper's figures, and pairs.
STANDARD = (
    ("symmetric", 0.2),
    ("symmetric", 0.4),
    ("symmetric", 0.6),
    ("pair_flip", 0.3),
)


class Case(NamedTuple):
    """One kind of noise at one rate.

    Attributes:
      name: how reports call it.
      config: its flags, `noise_rates` the one rate.
    """

    name: str
    config: Config

    @property
    def rate(self) -> float:
        """What a matrix or schedule is multiplied by."""
        assert self.config.noise_rates is not None
        return self.config.noise_rates[0]


def case(config: Config, kind: str, rate: float, schedule: str | None = None) -> Case:
    """The case of that kind, rate and schedule; everything else is of `config`."""
    config = dataclasses.replace(
        config, noise=kind, noise_rates=(rate,), noise_schedule=schedule
    )
    name = kind if schedule is not None and rate == 1 else f"{kind} {rate:g}"
    return Case(name if schedule is None else f"{name} x {schedule}", config)


def examples(config: Config, num_batches: int) -> list[Case]:
    """A schedule of each kind, and a mix of them, with symmetric noise.

    Args:
      config: completed.
      num_batches: that the schedules stretch over; a mix needs three.
    """
    end, period = num_batches + 1, max(2, num_batches // 2)
    texts = [
        "constant(0.4)",
        "uniform(0.2,0.6)",
        "gaussian(0.4,0.1)",
        f"sin(0.4,0.2,{period})",
        f"linear(0.1,0.7,1,{end})",
    ]
    a, b = 1 + num_batches // 3, 1 + 2 * num_batches // 3
    if num_batches >= 3:
        texts.append(
            f"1-{a}:constant(0.2);{a}-{b}:sin(0.4,0.2,{period});"
            f"{b}-:linear(0.2,0.6,{b},{end})"
        )
    return [case(config, "symmetric", 1.0, text) for text in texts]


# --- noise alone ----------------------------------------------------------------------


class Realised(NamedTuple):
    """Noise as it was asked for and as it came out, by seed.

    Attributes:
      given: ``[S, T, N]`` int, -1 where a row has no label.
      asked_rate: ``[S, T]`` expected share of wrong labels of each arrival.
      rate: ``[S, T]`` the share that came out wrong, NaN without labelled rows.
      asked: ``[S, K, K]`` expected ``T[true, given]`` of all arrivals together; NaN for
        noise of which no matrix is known (feature_dependent).
      matrix: ``[S, K, K]`` as it came out; rows of classes that never come are NaN.
      counts: ``[S, K, K]`` rows by true and given class.
    """

    given: np.ndarray
    asked_rate: np.ndarray
    rate: np.ndarray
    asked: np.ndarray
    matrix: np.ndarray
    counts: np.ndarray

    def deviation(self) -> float:
        """The largest distance of an entry, over all seeds, from what was asked.

        Returns:
          In standard errors of as many independent rows; infinite where a label came
          that should never come; NaN where no matrix is known.
        """
        if np.isnan(self.asked).all():
            return float("nan")
        size = self.counts.sum(-1, keepdims=True)
        off = np.abs((self.counts - size * self.asked).sum(0))
        variance = (size * self.asked * (1 - self.asked)).sum(0)
        certain = variance < 1e-6 * np.maximum(size.sum(0), 1)  # asked for 0 or 1
        impossible = np.where(off > 0.5, np.inf, 0.0)
        errors = off / np.sqrt(np.where(certain, 1.0, variance))
        return float(np.max(np.where(certain, impossible, errors)))


def noise_keys(seed: int, num_seeds: int) -> PRNGKey:
    """``[S]``: the keys that `rad_jax.sweep` gives the same seeds."""
    base = jax.random.fold_in(jax.random.key(seed), 2)
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(base, np.arange(num_seeds))


def realise(wanted: Case, data: StreamData, keys: PRNGKey) -> Realised:
    """Makes labels wrong, without learning anything.

    Args:
      wanted: which noise.
      data: what arrives.
      keys: ``[S]`` noise keys.

    Raises:
      ValueError: naming the flag, for noise that does not fit the data.
    """
    made = noises.make(wanted.config, data)
    num_batches, num_classes = len(data.labels), data.num_classes
    given = np.asarray(
        _corrupt(
            made._replace(params=None),
            num_classes,
            as_arrays({**made.params, "rate": wanted.rate}),
            keys,
            jnp.asarray(data.features),
            jnp.asarray(data.labels),
        )
    )
    factor = np.ones(given.shape[:2])
    if wanted.config.noise_schedule is not None:
        schedule = noises.parse_schedule(wanted.config.noise_schedule)
        factor = np.asarray(
            jax.vmap(lambda key: schedules.rates(schedule, key, num_batches))(keys),
            np.float64,
        )
    labelled = data.labels != UNLABELLED
    known = np.maximum(labelled.sum(-1), 1)
    wrong = (labelled & (given != data.labels)).sum(-1)
    of_class = (data.labels[..., None] == np.arange(num_classes)).sum(1)  # [T, K]
    asked_rate, asked = _expected(wanted, factor, of_class)
    cell = np.where(labelled, data.labels * num_classes + given, num_classes**2)
    counts = np.stack(
        [np.bincount(one.ravel(), minlength=num_classes**2 + 1)[:-1] for one in cell]
    ).reshape(-1, num_classes, num_classes)
    size = counts.sum(-1, keepdims=True)
    return Realised(
        given,
        asked_rate,
        np.where(labelled.any(-1), wrong / known, np.nan),
        asked,
        np.where(size > 0, counts / np.maximum(size, 1), np.nan),
        counts,
    )


@functools.partial(jax.jit, static_argnums=(0, 1))
def _corrupt(
    made: Noise,
    num_classes: int,
    params: PyTree,
    keys: PRNGKey,
    features: Array,
    labels: Array,
) -> Array:
    """Given labels ``[S, T, N]``."""

    def one_batch(key: PRNGKey, index: Array, features: Array, label: Array) -> Array:
        return noise.corrupt(
            made,
            params,
            label,
            jnp.ones(label.shape, bool),
            num_classes=num_classes,
            key=schedules.batch_key(key, index),
            features=features,
            arrival=index,
        )

    index = jnp.arange(1, labels.shape[0] + 1)
    of_stream = jax.vmap(one_batch, in_axes=(None, 0, 0, 0))
    return jax.vmap(lambda key: of_stream(key, index, features, labels))(keys)


def _expected(wanted: Case, factor: np.ndarray, of_class: np.ndarray):
    """Expected rates ``[S, T]`` and matrices ``[S, K, K]``.

    Args:
      wanted: which noise.
      factor: ``[S, T]`` of the schedule.
      of_class: ``[T, K]`` rows of each true class.
    """
    num_classes = of_class.shape[1]
    rate = wanted.rate * factor
    eye = np.eye(num_classes)
    matrix = _at_rate_one(wanted.config, num_classes)
    if matrix is None:
        return rate, np.full((len(rate), num_classes, num_classes), np.nan)
    change = matrix - eye
    share = of_class / np.maximum(of_class.sum(1, keepdims=True), 1)
    wrong = rate * (share @ -np.diag(change))
    # A class goes wrong at the rates of the arrivals that it comes with.
    weight = np.where(of_class.any(0), of_class, 1.0)
    mean = np.einsum("st,tk->sk", rate, weight / weight.sum(0))
    return wrong, eye + mean[..., None] * change


def _at_rate_one(config: Config, num_classes: int) -> np.ndarray | None:
    if config.noise == "feature_dependent":
        return None
    if config.noise == "asymmetric":
        return np.asarray(noises.read_matrix(config.noise_matrix or ""), np.float64)
    if config.noise == "pair_flip":
        return np.asarray(transition.pair(1.0, num_classes), np.float64)
    lands_on_true = config.noise == "independent_any_class"
    wrong = (num_classes - 1) / num_classes if lands_on_true else 1.0
    eye = np.eye(num_classes)
    return (1 - wrong) * eye + wrong * (1 - eye) / (num_classes - 1)
