import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rad_jax
from rad_jax import sweep, synthetic
from rad_jax.types import as_arrays

K, WIDTH, KEY = 3, 5, jax.random.key(0)


def make(**options):
    return synthetic.stream(**{"num_classes": K, "width": WIDTH, **options})


def rows(source, index, n=4000, params=None, key=KEY):
    params = source.params if params is None else params
    return source.rows(params, key, jnp.int32(index), n)


def class_means(source, index):
    x, y = map(np.asarray, rows(source, index))
    return np.stack([x[y == k].mean(0) for k in range(source.num_classes)])


def means(concept, separation=4.0):
    return np.asarray(
        synthetic.centroids(KEY, jnp.int32(concept), separation, K, WIDTH)
    )


def assert_means(got, expected, sd=1.0):
    """Class means of about 1,333 rows each, within 5 standard errors."""
    assert np.all(np.abs(got - expected) <= 5 * sd / np.sqrt(1200))


# --- what the rows are -------------------------------------------------------------


def test_rows_are_unit_normal_around_their_centroids():
    x, y = map(np.asarray, rows(make(), 3))
    assert x.dtype == np.float32
    assert y.dtype == np.int32
    noise = x - means(0)[y]
    assert np.all(np.abs(noise.mean(0)) <= 4 / np.sqrt(4000))
    covariance = np.cov(noise.T)
    assert np.all(np.abs(covariance - np.eye(WIDTH)) <= 5 * np.sqrt(2 / 4000))


def test_separation_is_the_root_mean_square_distance():
    many = jax.vmap(lambda c: synthetic.centroids(KEY, c, 4.0, K, WIDTH))(
        jnp.arange(2000)
    )
    squares = np.sum((np.asarray(many[:, 0]) - np.asarray(many[:, 1])) ** 2, axis=1)
    # 16 / (2 D) * 2 * chi2(D): mean 16, variance (16 / D)^2 * 2 D.
    error = 16 / WIDTH * np.sqrt(2 * WIDTH / 2000)
    assert abs(squares.mean() - 16) <= 4 * error


@pytest.mark.parametrize("imbalance", [1.0, 9.0])
def test_class_shares(imbalance):
    label = np.asarray(rows(make(imbalance=imbalance), 1)[1])
    weight = np.array([1, 1 / np.sqrt(imbalance), 1 / imbalance])
    share = weight / weight.sum()
    error = np.sqrt(share * (1 - share) / 4000)
    assert np.all(np.abs(np.bincount(label, minlength=K) / 4000 - share) <= 4 * error)


def test_a_class_that_appears_late():
    source = make(late_from=7, imbalance=2.0)
    for index in (0, 1, 6):
        assert set(np.asarray(rows(source, index)[1])) == {0, 1}
    for index in (7, 8, 50):
        assert set(np.asarray(rows(source, index)[1])) == {0, 1, 2}


# --- drift -------------------------------------------------------------------------


def test_no_drift():
    for index in (0, 1, 500):
        assert_means(class_means(make(period=2), index), means(0))


def test_abrupt_drift():
    source = make(drift="abrupt", period=10)
    for index, concept in ((0, 0), (9, 0), (10, 1), (19, 1), (20, 2), (1005, 100)):
        assert_means(class_means(source, index), means(concept))
    assert np.abs(means(0) - means(1)).max() > 1


def test_recurring_drift():
    source = make(drift="recurring", period=10, num_concepts=3)
    for index, concept in ((9, 0), (10, 1), (29, 2), (30, 0), (65, 0), (75, 1)):
        assert_means(class_means(source, index), means(concept))


def test_incremental_drift():
    source = make(drift="incremental", period=10)
    for index, part in ((0, 0), (2, 0.2), (9, 0.9)):
        expected = (1 - part) * means(0) + part * means(1)
        assert_means(class_means(source, index), expected)
    assert_means(class_means(source, 25), (means(2) + means(3)) / 2)


def test_gradual_drift():
    """Rows are of one concept or the other, none between."""
    source = make(drift="gradual", period=10, separation=40.0)
    old, new = means(0, 40.0), means(1, 40.0)
    for index, part in ((0, 0.0), (3, 0.3), (9, 0.9)):
        x, y = map(np.asarray, rows(source, index))
        to_old = np.linalg.norm(x - old[y], axis=1)
        to_new = np.linalg.norm(x - new[y], axis=1)
        assert np.minimum(to_old, to_new).max() < 8
        error = np.sqrt(part * (1 - part) / 4000)
        assert abs((to_new < to_old).mean() - part) <= 4 * error


# --- a pure function ---------------------------------------------------------------


def test_scan_equals_the_loop():
    source = make(drift="gradual", period=3, late_from=2)

    def step(seen, index):
        features, label = rows(source, index, 8)
        return seen + 8, (features, label)

    scanned = jax.lax.scan(step, 0, jnp.arange(6))[1]
    for i in range(6):
        features, label = rows(source, i, 8)
        np.testing.assert_allclose(scanned[0][i], features, atol=1e-5)
        np.testing.assert_array_equal(scanned[1][i], label)
    other = rows(source, 1, 8, key=jax.random.key(1))
    assert np.any(np.asarray(other[0]) != np.asarray(scanned[0][1]))
    assert np.any(np.asarray(scanned[0][0]) != np.asarray(scanned[0][1]))


def test_an_endless_stream_takes_the_memory_of_one_batch():
    source = make(drift="abrupt", width=64)

    @jax.jit
    def total(count):
        def body(i, carry):
            return carry + jnp.sum(rows(source, i, 256)[0])

        return jax.lax.fori_loop(1, count, body, 0.0)

    planned = total.lower(jnp.int32(10**9)).compile().memory_analysis()
    batch = 256 * 64 * 4
    assert 0 < planned.temp_size_in_bytes < 12 * batch


def test_parameters_can_be_vmapped():
    source = make(drift="recurring")
    params = jax.tree.map(
        lambda *x: jnp.stack(x),
        *(
            as_arrays(make(**options).params)
            for options in (
                {"separation": 1.0, "period": 2.0},
                {"separation": 9.0, "imbalance": 50.0},
                {"separation": 2.0, "late_from": 9},
            )
        ),
    )
    mapped = jax.vmap(lambda p: rows(source, 4, 50, p))(params)
    for i in range(3):
        one = rows(source, 4, 50, jax.tree.map(lambda x, i=i: x[i], params))
        np.testing.assert_allclose(mapped[0][i], one[0], atol=1e-5)
        np.testing.assert_array_equal(mapped[1][i], one[1])


def test_equal_kinds_share_code():
    assert make(period=3).rows is make(period=5, separation=1.0).rows


# --- as arrays ---------------------------------------------------------------------


SIZES = {"initial_size": 30, "batch_size": 12, "num_batches": 4, "test_size": 50}


def test_arrays_are_the_arrivals_of_the_stream():
    source = make(drift="abrupt", period=3)
    data = synthetic.arrays(source, **SIZES, seed=5)
    key = jax.random.key(5)
    parts = [(0, 30, data.initial_features, data.initial_labels)]
    parts += [(i + 1, 12, data.features[i], data.labels[i]) for i in range(4)]
    parts += [(5, 50, data.test_features, data.test_labels)]
    for index, size, features, label in parts:
        expected = rows(source, index, size, key=key)
        np.testing.assert_allclose(features, expected[0], atol=1e-5)
        np.testing.assert_array_equal(label, expected[1])
        assert isinstance(features, np.ndarray)
    assert (data.num_classes, data.class_names) == (K, ("0", "1", "2"))


def test_a_sweep_takes_them():
    data = synthetic.arrays(
        make(separation=8.0, width=8), **SIZES, class_names=["x", "y", "z"]
    )
    result = sweep.prepare(
        data,
        [sweep.Arm("basic", rad_jax.basic(), one_model=True)],
        label_model=rad_jax.nearest_centroid(),
        classifier=rad_jax.nearest_centroid(),
        noise_rates=(0.3,),
        num_seeds=2,
    ).run()
    assert result.class_names == ("x", "y", "z")
    assert np.all(result.history["accuracy"][..., -1] > 0.95)


# --- errors ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_classes": 1}, r"num_classes must be in 2\.\.32767, got 1"),
        ({"width": 0}, "width must be at least 1, got 0"),
        ({"num_concepts": 0}, "num_concepts must be at least 1, got 0"),
        ({"drift": "sudden"}, r"drift must be one of \('none', .*got 'sudden'"),
        ({"separation": -1.0}, "separation must be finite and at least 0, got -1"),
        ({"period": 0}, "period must be finite and above 0, got 0"),
        ({"imbalance": 0.5}, "imbalance must be finite and at least 1, got 0.5"),
        ({"late_from": -3}, "late_from must be finite and at least 0, got -3"),
        ({"period": float("inf")}, "period must be finite"),
    ],
)
def test_values_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


@pytest.mark.parametrize("name", SIZES)
def test_sizes_out_of_range(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        synthetic.arrays(make(), **{**SIZES, name: 0})


@pytest.mark.parametrize("change", [{"num_batches": 10**8}, {"test_size": 10**9}])
def test_more_numbers_than_can_be_stored(change):
    with pytest.raises(ValueError, match=r"at most 1,000,000,000 numbers are stored"):
        synthetic.arrays(make(), **SIZES | change)


def test_too_few_names():
    with pytest.raises(ValueError, match=r"class_names must be 3, .* got 1"):
        synthetic.arrays(make(), **SIZES, class_names=["a"])
