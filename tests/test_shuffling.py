"""A random order that is looked up: every row once, anywhere as often.

Not all orders of a handful of rows are as likely as each other; of 60 no difference is
seen.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from rad_jax.learners import shuffling

nth = jax.jit(shuffling.nth)
CAPACITY = 3000


def order(seed, num_rows):
    keys = shuffling.round_keys(jax.random.key(seed))
    position = jnp.arange(CAPACITY, dtype=jnp.int32)
    return np.asarray(nth(keys, position, num_rows))


@given(num_rows=st.integers(1, CAPACITY), seed=st.integers(0, 99))
@example(num_rows=1, seed=0)
@example(num_rows=2, seed=0)
@example(num_rows=CAPACITY, seed=0)
def test_every_row_once(num_rows, seed):
    found = order(seed, num_rows)
    np.testing.assert_array_equal(np.sort(found[:num_rows]), np.arange(num_rows))
    assert found.min() >= 0  # beyond the rows too
    assert found.max() < num_rows


def test_no_rows():
    assert (order(0, 0) == 0).all()


@pytest.mark.parametrize("num_rows", [2**31 - 1, 2**31 - 2**16, 46_340**2 + 1])
def test_as_many_rows_as_int32_counts(num_rows):
    keys = shuffling.round_keys(jax.random.key(1))
    spread = np.linspace(0, num_rows - 1, CAPACITY).astype(np.int32)
    found = np.asarray(nth(keys, spread, num_rows))
    assert len(np.unique(found)) == CAPACITY
    assert found.min() >= 0
    assert stats.kstest(found / num_rows, "uniform").pvalue > 1e-3


@pytest.fixture(scope="module")
def orders():
    """``[20000, 60]``: orders of 60 rows by many keys."""
    keys = jax.vmap(shuffling.round_keys)(jax.random.split(jax.random.key(3), 20_000))
    position = jnp.arange(60, dtype=jnp.int32)
    return np.asarray(
        jax.jit(jax.vmap(shuffling.nth, (0, None, None)))(keys, position, 60)
    )


def test_a_row_is_anywhere_as_often(orders):
    count = np.zeros((60, 60))
    np.add.at(count, (np.arange(60)[None, :], orders), 1)
    expected = len(orders) / 60
    chi2 = np.sum((count - expected) ** 2 / expected)
    assert 1e-3 < stats.chi2(59 * 59).sf(chi2) < 1 - 1e-3


@pytest.mark.parametrize(("i", "j"), [(0, 1), (0, 8), (7, 59)])
def test_two_rows_are_together_no_more_often_than_by_chance(orders, i, j):
    apart = (orders[:, i] - orders[:, j]) % 60
    assert stats.chisquare(np.bincount(apart, minlength=60)[1:]).pvalue > 1e-3


def test_keys_give_other_orders(orders):
    assert len(np.unique(orders, axis=0)) == len(orders)
