import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rad_jax import noise, schedules, transition
from rad_jax.types import as_arrays

EVERY = {
    "constant": schedules.constant(0.3),
    "uniform": schedules.uniform(0.1, 0.5),
    "gaussian": schedules.gaussian(0.4, 0.1),
    "sin": schedules.sin(0.4, 0.3, 8),
    "linear": schedules.linear(0.6, 0.2, 3, 8),
    "piecewise": schedules.piecewise(
        [
            (0, 4, schedules.constant(0.1)),
            (4, 9, schedules.uniform(0.2, 0.4)),
            (9, None, schedules.sin(0.5, 0.5, 6)),
        ]
    ),
}


def rates(schedule, count=12, seed=0):
    return np.asarray(schedules.rates(schedule, jax.random.key(seed), count))


# --- the forms ---------------------------------------------------------------------


def test_constant():
    np.testing.assert_allclose(rates(EVERY["constant"]), 0.3, rtol=1e-6)


def test_sin_equals_the_formula():
    expected = [0.4 + 0.3 * math.sin(2 * math.pi * i / 8) for i in range(1, 13)]
    np.testing.assert_allclose(rates(EVERY["sin"]), expected, atol=1e-6)


def test_linear_equals_the_formula():
    # Batches 3, …, 7 are 4 steps from .6 to .2; batches before and after stay.
    expected = [0.6, 0.6, 0.6, 0.5, 0.4, 0.3, 0.2, 0.2, 0.2]
    np.testing.assert_allclose(rates(EVERY["linear"], 9), expected, atol=1e-6)
    one = schedules.linear(0.6, 0.2, 3, 4)
    np.testing.assert_allclose(rates(one, 4), [0.6, 0.6, 0.6, 0.2], atol=1e-6)


def test_uniform_is_uniform():
    drawn = rates(EVERY["uniform"], 2000)
    assert drawn.min() >= 0.1
    assert drawn.max() <= 0.5
    share, _ = np.histogram(drawn, bins=4, range=(0.1, 0.5))
    error = np.sqrt(2000 * 0.25 * 0.75)
    assert np.all(np.abs(share - 500) <= 4 * error)


def test_gaussian_is_gaussian_and_clipped():
    drawn = rates(EVERY["gaussian"], 2000)
    assert abs(drawn.mean() - 0.4) <= 4 * 0.1 / np.sqrt(2000)
    assert abs(drawn.std(ddof=1) / 0.1 - 1) <= 4 / np.sqrt(2 * 1999)
    wide = rates(schedules.gaussian(0.9, 0.5), 2000)
    above = 0.5 * math.erfc(0.2 / math.sqrt(2))  # P(Z > .1 / .5)
    assert wide.min() >= 0
    error = np.sqrt(above * (1 - above) / 2000)
    assert abs(np.mean(wide == 1) - above) <= 4 * error


def test_piecewise_is_each_piece_where_it_holds():
    got = rates(EVERY["piecewise"])
    np.testing.assert_allclose(got[:3], 0.1, rtol=1e-6)
    np.testing.assert_array_equal(got[3:8], rates(schedules.uniform(0.2, 0.4))[3:8])
    np.testing.assert_allclose(got[8:], rates(schedules.sin(0.5, 0.5, 6))[8:])


def test_piecewise_within_piecewise():
    inner = schedules.piecewise(
        [(2, 4, schedules.constant(0.2)), (4, 6, schedules.constant(0.4))]
    )
    whole = schedules.piecewise([(1, 2, schedules.constant(1.0)), (2, 6, inner)])
    np.testing.assert_allclose(rates(whole, 5), [1, 0.2, 0.2, 0.4, 0.4], rtol=1e-6)


# --- pure functions ----------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_rates_do_not_depend_on_the_number_of_batches(name):
    np.testing.assert_array_equal(rates(EVERY[name], 12)[:5], rates(EVERY[name], 5))


@pytest.mark.parametrize("name", EVERY)
def test_random_schedules_differ_between_keys_and_only_they(name):
    same = np.array_equal(rates(EVERY[name]), rates(EVERY[name], seed=1))
    assert same == (name not in ("uniform", "gaussian", "piecewise"))


@pytest.mark.parametrize("name", EVERY)
def test_parameters_can_be_vmapped(name):
    schedule = EVERY[name]
    params = as_arrays(schedule.params)
    stacked = jax.tree.map(lambda x: jnp.stack([x, x // 2 + x % 2, x]), params)
    key = jax.random.key(3)

    def one(p):
        return schedules.rate_at(schedule, p, jnp.int32(5), key)

    mapped = jax.vmap(one)(stacked)
    looped = [one(jax.tree.map(lambda x, i=i: x[i], stacked)) for i in range(3)]
    np.testing.assert_allclose(mapped, jnp.stack(looped), rtol=1e-6)
    assert mapped.dtype == jnp.float32


# --- a noise that follows one --------------------------------------------------------


N, K = 40, 5


def given(model, index, noise_key, params=None):
    label = jnp.arange(N, dtype=jnp.int16) % K
    return label, noise.corrupt(
        model,
        model.params if params is None else params,
        label,
        jnp.ones(N, bool),
        num_classes=K,
        key=schedules.batch_key(noise_key, index),
        features=label[:, None].astype(jnp.float32),
        arrival=jnp.int32(index),
    )


@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.parametrize("kind", [noise.symmetric, noise.pair_flip])
def test_scheduled_counts_are_those_of_the_rate(kind, rate):
    """The noise's rate multiplies the schedule's."""
    model = noise.scheduled(kind(rate), EVERY["piecewise"])
    key = jax.random.key(4)
    asked = rate * schedules.rates(EVERY["piecewise"], key, 12)
    flips = [
        (lambda pair: (pair[0] != pair[1]).sum())(given(model, i, key))
        for i in range(1, 13)
    ]
    assert flips == [noise.exact_count(r, jnp.int32(N)) for r in asked]
    assert len(set(map(int, flips))) > 3


def test_a_constant_schedule_of_one_changes_nothing():
    key = jax.random.key(5)
    for plain in (
        noise.symmetric(0.4),
        noise.independent(0.4),
        noise.asymmetric(transition.pair(0.3, K)),
        noise.feature_dependent(0.4, np.arange(K)[:, None]),
    ):
        model = noise.scheduled(plain, schedules.constant(1.0))
        np.testing.assert_array_equal(given(model, 3, key)[1], given(plain, 3, key)[1])


def test_schedules_and_rates_can_be_vmapped_together():
    model = noise.scheduled(noise.symmetric(1.0), schedules.constant(1.0))
    half, key = jnp.array([0.0, 0.5, 1.0]), jax.random.key(6)

    def flips(rate, level):
        params = {"rate": rate, "schedule": {"rate": level}}
        label, got = given(model, 1, key, params)
        return (got != label).sum()

    got = jax.vmap(jax.vmap(flips, (None, 0)), (0, None))(half, half)
    np.testing.assert_array_equal(got, N * np.outer(half, half))


def test_equal_schedules_share_compiled_code():
    one = noise.scheduled(noise.symmetric(1.0), schedules.sin(0.4, 0.2, 5))
    other = noise.scheduled(noise.symmetric(0.3), schedules.sin(0.5, 0.1, 9))
    assert one._replace(params=None) == other._replace(params=None)
    short, long = (
        noise.scheduled(noise.symmetric(1.0), pieces((start, 4), (4, stop)))
        for start, stop in ((0, 9), (1, 20))
    )
    assert short._replace(params=None) == long._replace(params=None)


# --- errors --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: schedules.constant(1.2), r"rate must lie in \[0, 1\], got 1.2"),
        (lambda: schedules.uniform(-0.1, 0.5), r"lo must lie in \[0, 1\], got -0.1"),
        (lambda: schedules.uniform(0.1, 1.5), r"hi must lie in \[0, 1\], got 1.5"),
        (lambda: schedules.uniform(0.5, 0.1), "lo must not be above hi, got lo=0.5"),
        (lambda: schedules.gaussian(2.0, 0.1), r"mean must lie in \[0, 1\], got 2.0"),
        (lambda: schedules.gaussian(0.2, -0.1), "sd must be finite and at least 0"),
        (lambda: schedules.gaussian(0.2, 1e39), r"sd must be finite .*, got 1e\+39"),
        (lambda: schedules.sin(0.5, 0.3, np.inf), "period must be .*, got inf"),
        (lambda: schedules.sin(0.5, 0.3, 1e-60), "period must be .*, got 1e-60"),
        (lambda: schedules.linear(0, 1, 0, 2**31), "at most 2.31-1, got 2147483648"),
        (lambda: schedules.constant("0.2"), r"rate must lie in \[0, 1\], got 0.2"),
        (lambda: schedules.gaussian(0.2, math.nan), "sd must be finite"),
        (lambda: schedules.sin(0.8, 0.3, 5), r"mid ± half_range must lie in \[0, 1\]"),
        (lambda: schedules.sin(0.2, 0.3, 5), r"mid ± half_range must lie in \[0, 1\]"),
        (lambda: schedules.sin(0.5, 0.3, 0), "period must be above 0 batches, got 0"),
        (lambda: schedules.linear(0.1, 1.1, 0, 5), r"hi must lie in \[0, 1\]"),
        (lambda: schedules.linear(0.1, 0.2, 5, 5), "0 <= start < stop, got 5 and 5"),
        (lambda: schedules.linear(0.1, 0.2, -1, 5), "0 <= start < stop, got -1 and 5"),
    ],
)
def test_values_out_of_range(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def pieces(*intervals):
    return schedules.piecewise([(*i, schedules.constant(0.1)) for i in intervals])


@pytest.mark.parametrize(
    ("intervals", "message"),
    [
        ((), "at least one"),
        (((0, 5), (6, 9)), r"pieces\[1\] must start .* at 5; got 6, which makes a gap"),
        (((0, 5), (4, 9)), "at 5; got 4, which makes an overlap"),
        (((0, 5), (5, 9), (0, 5)), r"pieces\[2\] .* at 9; got 0.* an overlap"),
        (((0, 0),), r"pieces\[0\] must be batches with 0 <= start < stop"),
        (((0, 5), (5, 3)), r"pieces\[1\] must be batches with 0 <= start < stop"),
        (((-2, None),), "0 <= start < stop"),
    ],
)
def test_gaps_overlaps_and_empty_pieces(intervals, message):
    with pytest.raises(ValueError, match=message):
        pieces(*intervals)


@pytest.mark.parametrize("bounds", [(0, None), (0.0, 5), (0, "5"), (True, 5)])
def test_bounds_that_are_no_whole_numbers(bounds):
    with pytest.raises(TypeError, match="whole numbers"):
        pieces(bounds, (5, 9))


def test_a_piece_that_is_no_schedule():
    with pytest.raises(TypeError, match=r"pieces\[0\] must be .*, got 0.4"):
        schedules.piecewise([(0, 5, 0.4)])


def test_a_piece_without_its_bounds():
    with pytest.raises(TypeError, match=r"pieces\[0\] must be \(start, stop, sch"):
        schedules.piecewise([(0, schedules.constant(0.1))])
    with pytest.raises(TypeError, match="whole numbers"):
        schedules.piecewise([("1", None, schedules.constant(0.1))])


@pytest.mark.parametrize("bounds", [(0, 3), (1, 6), (1, None)])
def test_a_nested_schedule_must_cover_its_piece(bounds):
    with pytest.raises(ValueError, match="defined from 1 to 5"):
        schedules.piecewise([(*bounds, pieces((1, 5)))])


@pytest.mark.parametrize(("start", "stop", "count"), [(2, 9, 3), (1, 3, 3)])
def test_batches_without_a_rate(start, stop, count):
    with pytest.raises(
        ValueError, match=rf"every batch 1\.\.{count}, got one for batc"
    ):
        schedules.check_covers(pieces((start, stop)), count)
    schedules.check_covers(pieces((1, count + 1)), count)
    schedules.check_covers(pieces((0, None)), count)


def test_only_a_noise_with_a_rate_can_be_scheduled():
    bare = noise.Noise(noise.symmetric(0.1).apply, ())
    with pytest.raises(ValueError, match="rate"):
        noise.scheduled(bare, schedules.constant(0.1))


def test_a_noise_follows_one_schedule():
    model = noise.scheduled(noise.symmetric(0.1), schedules.constant(0.1))
    with pytest.raises(ValueError, match=r"no schedule yet, got .*piecewise joins"):
        noise.scheduled(model, schedules.constant(0.2))


def test_a_scheduled_noise_needs_the_index():
    model = noise.scheduled(noise.symmetric(0.1), schedules.constant(0.1))
    run = functools.partial(
        noise.corrupt, model, model.params, jnp.zeros(3, int), jnp.ones(3, bool)
    )
    with pytest.raises(ValueError, match="arrival is needed by this noise"):
        run(num_classes=2, key=jax.random.key(0))
