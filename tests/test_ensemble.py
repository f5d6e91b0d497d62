import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rad_jax import ensemble

SHAPES = [(1, 2), (1, 11), (3, 3), (8, 4), (7, 11)]
BATCHES = 24

# --- Algorithm 1 -------------------------------------------------------------------


@jax.jit
@jax.vmap
def _predict(*args):
    return (
        ensemble.combine(*args),
        ensemble.combine_proba(*args),
        ensemble.classifier_decides(*args),
    )


def random_inputs(rng, n, k):
    """Eighths: products of accuracy and confidence are exact, and often equal."""
    number = rng.choice([1, 4, 8])
    probs = rng.multinomial(number, np.ones(k) / k, (2, n)) / number
    if rng.random() < 0.2:
        probs[1] = probs[0]
    alphas = rng.integers(0, 9, 2) / 8
    return [np.float32(x) for x in (*probs, *alphas)]


@settings(max_examples=15)
@given(shape=st.sampled_from(SHAPES), seed=st.integers(0, 2**32 - 1))
def test_combine_equals_algorithm_1(shape, seed):
    rng = np.random.default_rng(seed)
    rows = [random_inputs(rng, *shape) for _ in range(BATCHES)]
    got, proba, decides = _predict(*(np.stack(x) for x in zip(*rows, strict=True)))
    assert got.dtype == jnp.int32
    for i, row in enumerate(rows):
        classes, from_c = oracles.algorithm_1(*row)
        assert got[i].tolist() == classes
        assert decides[i].tolist() == from_c
        for j, c_decides in enumerate(from_c):
            np.testing.assert_array_equal(proba[i, j], row[1 if c_decides else 0][j])
            assert oracles.argmax(proba[i, j]) == classes[j]


def test_random_inputs_hold_ties_and_disagreements():
    rng = np.random.default_rng(0)
    ties = from_l = from_c = 0
    for _ in range(200):
        row = random_inputs(rng, 8, 4)
        swapped = [row[1], row[0], row[3], row[2]]
        l_first, c_first = oracles.algorithm_1(*row), oracles.algorithm_1(*swapped)
        for j in range(8):
            # Where swapping the two models changes the class, they are equally sure.
            ties += l_first[0][j] != c_first[0][j]
            from_c += l_first[1][j]
            from_l += not l_first[1][j]
    assert min(ties, from_c, from_l) > 50


@given(seed=st.integers(0, 2**32 - 1))
def test_combine_on_any_probabilities(seed):
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.ones(4), (2, 8)).astype(np.float32)
    alphas = rng.random(2).astype(np.float32)
    got = ensemble.combine(*probs, *alphas)
    classes, _ = oracles.algorithm_1(*probs, *alphas)
    for j in range(8):
        l_weight, c_weight = (float(alphas[m]) * probs[m, j].max() for m in range(2))
        if abs(l_weight - c_weight) > 1e-6:  # else single precision may differ
            assert got[j] == classes[j]


def test_combine_by_hand():
    label_probs = jnp.array([[0.8, 0.2], [0.75, 0.25], [0.6, 0.4], [0.9, 0.1]])
    class_probs = jnp.array([[0.1, 0.9], [0.25, 0.75], [0.3, 0.7], [0.7, 0.3]])
    # Row 0: equal products, so L's. Row 1: L's by accuracy. Row 2: C's. Row 3: agree.
    got = ensemble.combine(label_probs, class_probs, 0.9, 0.8)
    assert got.tolist() == [0, 0, 1, 0]
    # Equal accuracies: C's where it is surer, L's where they are equally sure.
    got = ensemble.combine(label_probs, class_probs, 0.5, 0.5)
    assert got.tolist() == [1, 0, 1, 0]
    assert ensemble.combine(label_probs, class_probs, 0.0, 0.0).tolist() == [0] * 4


def test_combine_eager_jit_vmap_agree():
    rng = np.random.default_rng(1)
    rows = [random_inputs(rng, 8, 4) for _ in range(6)]
    stacked = [jnp.stack(x) for x in zip(*rows, strict=True)]
    for f in (ensemble.combine, ensemble.combine_proba, ensemble.classifier_decides):
        mapped, jitted = jax.vmap(f)(*stacked), jax.jit(f)
        for i, row in enumerate(rows):
            np.testing.assert_array_equal(mapped[i], f(*row))
            np.testing.assert_array_equal(mapped[i], jitted(*row))


def test_combine_row_by_row_equals_the_batch():
    rng = np.random.default_rng(2)
    label_probs, class_probs, *alphas = random_inputs(rng, 8, 4)
    whole = ensemble.combine(label_probs, class_probs, *alphas)
    for j in range(8):
        rows = label_probs[j : j + 1], class_probs[j : j + 1]
        assert ensemble.combine(*rows, *alphas).tolist() == [whole[j]]


fit = jax.jit(ensemble.fit_temperature)

# --- calibration -------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.3, 0.5, 1.0, 2.0, 8.0])
@pytest.mark.parametrize("k", [2, 5, 11])
def test_apply_temperature_equals_the_loop(temperature, k):
    rng = np.random.default_rng(3)
    probs = rng.dirichlet(np.ones(k), 20) + 1e-3
    probs = (probs / probs.sum(1, keepdims=True)).astype(np.float32)
    got = ensemble.apply_temperature(probs, temperature)
    np.testing.assert_allclose(
        got, oracles.tempered(probs, temperature), rtol=2e-5, atol=1e-7
    )


@given(
    seed=st.integers(0, 2**32 - 1), log_temperature=st.floats(np.log(0.02), np.log(50))
)
def test_temperature_keeps_the_argmax(seed, log_temperature):
    probs = oracles.random_probs(np.random.default_rng(seed), 9, 5)
    got = ensemble.apply_temperature(probs, np.float32(np.exp(log_temperature)))
    assert np.all(np.isfinite(got))
    np.testing.assert_allclose(got.sum(-1), 1, rtol=1e-5)
    expected = [oracles.argmax(p) for p in probs]
    assert [oracles.argmax(p) for p in np.asarray(got)] == expected


def test_temperature_of_one_changes_nothing():
    for seed in range(20):
        probs = oracles.random_probs(np.random.default_rng(seed), 9, 11)
        got = ensemble.apply_temperature(probs, 1.0)
        np.testing.assert_allclose(got, probs, atol=1.2e-5)  # floor of 1e-6, 11 times


def synthetic(temperature, k=5, n=4000, seed=4):
    """Probabilities, and labels drawn from them at another temperature."""
    rng = np.random.default_rng(seed)
    logits = 1.5 * rng.standard_normal((n, k))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    true = oracles.tempered(probs, temperature)
    label = (true.cumsum(1) < rng.random((n, 1))).sum(1).clip(0, k - 1)
    log_probs = np.log(probs)
    mean = (true * log_probs).sum(1)
    # Fisher information of 1/t: the variance of log p(y) under the true model.
    information = ((true * log_probs**2).sum(1) - mean**2).sum()
    return probs.astype(np.float32), label, 1 / np.sqrt(information)


@pytest.mark.parametrize("temperature", [0.4, 0.7, 1.0, 1.6, 3.0])
def test_fit_recovers_the_temperature(temperature):
    probs, label, error = synthetic(temperature)
    fitted = fit(probs, label, jnp.ones(len(label)))
    assert fitted.shape == ()
    assert fitted.dtype == jnp.float32
    assert abs(1 / fitted - 1 / temperature) <= 4 * error
    assert error < 0.1 / temperature  # the test is sharp enough to say something


@pytest.mark.parametrize("temperature", [0.3, 2.5])
def test_calibrating_twice_changes_nothing(temperature):
    probs, label, _ = synthetic(temperature)
    weight = jnp.ones(len(label))
    fitted = fit(probs, label, weight)
    again = fit(ensemble.apply_temperature(probs, fitted), label, weight)
    np.testing.assert_allclose(again, 1, rtol=2e-2)


def test_fit_without_weight_is_one():
    probs, label, _ = synthetic(2.0, n=10)
    assert ensemble.fit_temperature(probs, label, jnp.zeros(10)) == 1.0


def test_rows_of_weight_zero_do_not_count():
    probs, label, _ = synthetic(2.0, n=300)
    weight = np.ones(300, np.float32)
    weight[200:] = 0
    poisoned = label.copy()
    poisoned[200:250] = (label[200:250] + 1) % 5
    poisoned[250:] = -1
    alone = ensemble.fit_temperature(probs[:200], label[:200], jnp.ones(200))
    masked = ensemble.fit_temperature(probs, poisoned, weight)
    np.testing.assert_allclose(masked, alone, rtol=1e-3)
    whole = ensemble.fit_temperature(probs, label % 4, jnp.ones(300))
    assert abs(whole - alone) > 1e-2


def test_a_weight_of_two_is_a_row_twice():
    probs, label, _ = synthetic(2.0, n=200)
    weight = np.where(np.arange(200) < 80, 2, 1).astype(np.float32)
    weighted = ensemble.fit_temperature(probs, label, weight)
    repeated = ensemble.fit_temperature(
        np.concatenate([probs, probs[:80]]),
        np.concatenate([label, label[:80]]),
        jnp.ones(280),
    )
    np.testing.assert_allclose(weighted, repeated, rtol=1e-3)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.sampled_from([1, 2, 15]),
    accuracy=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
)
def test_fit_never_makes_the_likelihood_worse(seed, n, accuracy):
    rng = np.random.default_rng(seed)
    k = 4
    # KNN-like rows without exact zeros, so that the likelihood is finite.
    probs = (oracles.random_probs(rng, n, k) + 0.01) / (1 + 0.01 * k)
    probs = probs.astype(np.float32)
    label = np.where(
        rng.random(n) < accuracy,
        [oracles.argmax(p) for p in probs],
        rng.integers(0, k, n),
    )
    weight = rng.integers(0, 3, n).astype(np.float32)
    fitted = float(fit(probs, label, weight))
    assert 1 / 51 <= fitted <= 51

    def nll(temperature):
        return oracles.negative_log_likelihood(probs, label, weight, temperature)

    slack = 1e-5 * (1 + weight.sum())
    assert nll(fitted) <= nll(1.0) + slack
    for other in (0.02, 0.1, 0.5, 2.0, 10.0, 50.0):
        assert nll(fitted) <= nll(other) + slack


def test_fit_with_classes_that_had_no_vote():
    """A KNN gives p(y) = 0; the fit stays finite and flattens such a model."""
    probs = np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 1, 2]]
    label = np.array([0, 1, 2, 1, 1, 2])
    fitted = ensemble.fit_temperature(probs, label, jnp.ones(6))
    assert np.isfinite(fitted)
    assert fitted > 1
    calibrated = ensemble.apply_temperature(probs, fitted)
    # One wrong of six: the largest probability becomes 5/6.
    np.testing.assert_allclose(calibrated.max(-1), 5 / 6, rtol=1e-3)


def test_fit_jit_and_vmap_equal_eager():
    data = [synthetic(t, n=100, seed=s)[:2] for s, t in enumerate([0.5, 1.0, 3.0])]
    probs = jnp.stack([d[0] for d in data])
    label = jnp.stack([d[1] for d in data])
    weight = jnp.ones(label.shape)
    mapped = jax.jit(jax.vmap(ensemble.fit_temperature))(probs, label, weight)
    for i in range(3):
        eager = ensemble.fit_temperature(probs[i], label[i], weight[i])
        np.testing.assert_allclose(mapped[i], eager, rtol=1e-3)
        np.testing.assert_allclose(fit(probs[i], label[i], weight[i]), eager, rtol=1e-3)
