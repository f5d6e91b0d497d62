import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rad_jax
from rad_jax import experts, noise, schedules, selection, sweep
from rad_jax.datasets.split import StreamData

K, INITIAL, BATCH, ARRIVALS, TEST, WIDTH = 3, 24, 40, 3, 30, 4


def answers(expert, true, key, **params):
    return expert.answer({**expert.params, **params}, jnp.asarray(true), key=key)


# --- the expert alone --------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("k", [2, 5])
def test_errs_at_the_rate_and_evenly(rate, k):
    n = 20_000
    true = np.random.default_rng(0).integers(0, k, n).astype(np.int16)
    got = answers(experts.erring(rate, k), true, jax.random.key(0))
    assert got.dtype == true.dtype
    shift = np.bincount((np.asarray(got) - true) % k, minlength=k) / n
    chance = np.array([1 - rate] + [rate / (k - 1)] * (k - 1))
    error = np.sqrt(chance * (1 - chance) / n)
    assert np.all(np.abs(shift - chance) <= 4 * error)


def test_rows_whose_class_nobody_knows_stay_without_answer():
    got = answers(experts.erring(1.0, 4), [-1, 2, -1], jax.random.key(0))
    assert (np.asarray(got) == [-1, 2, -1]).tolist() == [True, False, True]


def test_rate_and_seed_can_be_vmapped():
    true, expert, key = jnp.arange(60) % K, experts.erring(0.5, K), jax.random.key(1)
    rates, seeds = jnp.array([0.0, 0.5, 0.5, 1.0]), jnp.arange(4)
    mapped = jax.vmap(lambda r, s: answers(expert, true, key, rate=r, seed=s))(
        rates, seeds
    )
    for i in range(4):
        one = answers(expert, true, key, rate=rates[i], seed=seeds[i])
        np.testing.assert_array_equal(mapped[i], one)
    wrong = (np.asarray(mapped) != np.asarray(true)).sum(1)
    assert wrong[0] == 0
    assert wrong[3] == 60
    assert np.any(mapped[1] != mapped[2])


def test_equal_experts_share_code():
    one, other = experts.erring(0.1, K), experts.erring(0.4, K, seed=3)
    assert one._replace(params=None) == other._replace(params=None)


@pytest.mark.parametrize("rate", [-0.1, 1.5, float("nan")])
def test_rates_out_of_range(rate):
    with pytest.raises(ValueError, match=r"rate must lie in \[0, 1\]"):
        experts.erring(rate, K)


def test_too_few_classes():
    with pytest.raises(ValueError, match="num_classes must be at least 2, got 1"):
        experts.erring(0.1, 1)


# --- in a simulated stream ---------------------------------------------------------


def blobs():
    rng = np.random.default_rng(2)
    size = INITIAL + ARRIVALS * BATCH + TEST
    label = rng.integers(0, K, size).astype(np.int32)
    x = (4 * np.eye(K, WIDTH)[label] + rng.normal(size=(size, WIDTH))).astype("f4")
    first, last = INITIAL, INITIAL + ARRIVALS * BATCH
    return StreamData(
        x[:first],
        label[:first],
        x[first:last].reshape(ARRIVALS, BATCH, WIDTH),
        label[first:last].reshape(ARRIVALS, BATCH),
        x[last:],
        label[last:],
        K,
        ("a", "b", "c"),
    )


def run(expert, model=None, schemes=None, rates=(0.4,), seeds=3):
    schemes = schemes or {"active": selection.active()}
    return sweep.prepare(
        blobs(),
        [sweep.Arm(name, scheme) for name, scheme in schemes.items()],
        label_model=rad_jax.nearest_centroid(),
        classifier=rad_jax.nearest_centroid(),
        noise_rates=rates,
        num_seeds=seeds,
        noise=model,
        expert=expert,
    ).run()


def last(result, name):
    return result.history[name][0, 0, :, -1]


def test_figures_of_an_expert_who_errs():
    """Counts go by what was given, purity by what the expert said."""
    right, wrong = (run(experts.erring(rate, K)) for rate in (0.0, 1.0))
    first = [r.history["queries"][0, 0, :, 1] for r in (right, wrong)]
    np.testing.assert_array_equal(*first)  # before any answer was learned from
    wasted = [r.history["wasted_queries"][0, 0, :, 1] for r in (right, wrong)]
    np.testing.assert_array_equal(*wasted)
    assert np.all(wasted[0] < first[0])
    # `active` keeps all rows: those not asked about as given, the others as answered.
    kept = last(wrong, "kept")
    assert np.all(kept == ARRIVALS * BATCH)
    impure = kept * (1 - last(wrong, "purity"))
    assert np.all(impure >= last(wrong, "queries") - 1e-3)
    assert np.all(last(wrong, "wasted_queries") <= last(wrong, "queries"))
    assert np.all(last(wrong, "purity") < last(right, "purity"))


def test_experts_of_seeds_differ_where_all_else_is_one():
    """No noise but one and the same for all seeds: what differs is the expert."""

    def apply(params, label, valid, *, num_classes, key):
        return jnp.where(jnp.arange(BATCH) % 2 == 0, (label + 1) % num_classes, label)

    same = noise.Noise(apply, {"rate": 0.0})
    result = run(experts.erring(0.5, K), same)
    for figure in ("queries", "wasted_queries", "realised_noise"):
        assert len(set(result.history[figure][0, 0, :, 1])) == 1
    assert len(set(result.history["purity"][0, 0, :, 1])) > 1


def test_noise_that_needs_features_and_time_in_a_stream():
    """The realised rate of an arrival follows the schedule and the swept rate."""
    data = blobs()
    centroids = noise.class_centroids(
        data.features.reshape(-1, WIDTH), data.labels.ravel(), K
    )
    schedule = schedules.piecewise(
        [(1, 2, schedules.constant(0.0)), (2, None, schedules.constant(1.0))]
    )
    near = noise.scheduled(noise.feature_dependent(0.0, centroids), schedule)
    got = run(None, near, rates=(0.3, 0.6), seeds=8).history["realised_noise"][0]
    assert np.all(got[:, :, 1] == 0)
    for rate, seeds in zip((0.3, 0.6), got[:, :, 2:], strict=True):
        error = np.sqrt(rate * (1 - rate) / (8 * 2 * BATCH))
        assert abs(seeds.mean() - rate) < 4 * error


def test_an_expert_for_other_classes_is_refused():
    """Its answers would be classes that there are none of."""
    with pytest.raises(ValueError, match="must know the 3 classes, got one for 9"):
        rad_jax.rad(
            classifier=rad_jax.nearest_centroid(),
            selection=rad_jax.active(),
            num_classes=3,
            memory_capacity=10,
            expert=experts.erring(0.5, 9),
        )


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (schedules.constant(0.1), TypeError, "noise must be a value such as symmetric"),
        (noise.symmetric(0.1)._replace(params=()), ValueError, 'a parameter "rate"'),
    ],
)
def test_what_is_no_noise_is_found_before_a_sweep(bad, error, message):
    with pytest.raises(error, match=message):
        run(None, bad)
