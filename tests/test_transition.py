import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import gammaln
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from rad_jax import noise, transition

K = 4
STRENGTHS = (0.3, 1, 3, 10, 30, 100, 300, 1000)


def symmetric(rate, k=K):
    return (1 - rate) * np.eye(k) + rate * (1 - np.eye(k)) / (k - 1)


def posteriors(rng, n, k=K, sharp=2.0):
    """True classes and calibrated probabilities: what Bayes' rule makes of a signal."""
    true = rng.integers(0, k, n)
    centres = sharp * np.eye(k)
    signal = centres[true] + rng.normal(size=(n, k))
    log_p = -((signal[:, None] - centres[None]) ** 2).sum(-1) / 2
    p = np.exp(log_p - log_p.max(1, keepdims=True))
    return true, (p / p.sum(1, keepdims=True)).astype(np.float32)


def draw_given(rng, true, matrix):
    return np.array([rng.choice(len(matrix), p=matrix[t]) for t in true])


def estimate(probs, given, counted=None, **options):
    counted = np.ones(len(given), bool) if counted is None else counted
    return transition.estimate(
        jnp.asarray(probs), jnp.asarray(given), jnp.asarray(counted), **options
    )


# --- the arithmetic ----------------------------------------------------------------


def by_loop(probs, given, counted, known, clean_probs, clean_label, steps):
    """The docstring in double precision, row by row."""
    probs = np.asarray(probs, float)
    matrix, sharpness = symmetric(0.3), 1.0
    rows = [
        (p, y, truth)
        for p, y, counts_it, truth in zip(probs, given, counted, known, strict=True)
        if counts_it and y >= 0
    ]
    clean = [(p, None, t) for p, t in zip(clean_probs, clean_label, strict=True)]
    share = 20 / (len(rows) + len(clean_label))
    for step in range(steps):
        counts, slope, curvature = np.zeros((K, K)), 0.0, 0.0
        for p, y, truth in [*rows, *clean]:
            log_p = np.log(np.maximum(p, 1e-6))
            now = np.exp(sharpness * log_p)
            now /= now.sum()
            if truth >= 0:
                row = np.eye(K)[truth]
            else:
                row = (0.999 * now + 0.001 / K) * matrix[:, y]
                row /= row.sum()
            if y is not None:
                counts[:, y] += row
            slope += (1 + share) * now @ log_p - (row + share * p) @ log_p
            curvature += (1 + share) * (now @ log_p**2 - (now @ log_p) ** 2)
        moved = sharpness - slope / curvature
        sharpness = min(max(moved, sharpness / 2), sharpness * 2)
        rate = 1 - np.trace(counts) / counts.sum()
        prior = symmetric(rate)
        evidence = [
            np.sum(gammaln(s * prior + counts) - gammaln(s * prior))
            + np.sum(gammaln(s) - gammaln(s + counts.sum(1)))
            for s in STRENGTHS
        ]
        strength = STRENGTHS[int(np.argmax(evidence))] if step >= 5 else 10
        matrix = (counts + strength * prior) / (counts.sum(1)[:, None] + strength)
    return matrix, rate, strength, 1 / sharpness


@pytest.mark.parametrize("clean", [0, 30])
@pytest.mark.parametrize("truth", [symmetric(0.4), np.roll(np.eye(K), 1, 1)])
def test_equals_the_loop(truth, clean):
    rng = np.random.default_rng(0)
    true, probs = posteriors(rng, 200)
    given = draw_given(rng, true, 0.5 * truth + 0.5 * np.eye(K))
    given[::9] = -1
    counted = rng.random(200) < 0.8
    known = np.where(rng.random(200) < 0.1, true, -1)
    clean_label, clean_probs = posteriors(rng, clean)
    beside = {
        "clean_probs": jnp.asarray(clean_probs),
        "clean_label": jnp.asarray(clean_label),
    }
    got = estimate(
        probs,
        given,
        counted,
        known=jnp.asarray(known),
        num_steps=9,
        **(beside if clean else {}),
    )
    matrix, rate, strength, temperature = by_loop(
        probs, given, counted, known, clean_probs, clean_label, 9
    )
    np.testing.assert_allclose(got.matrix, matrix, atol=1e-4)
    np.testing.assert_allclose(got.error_rate, rate, atol=1e-4)
    np.testing.assert_allclose(got.strength, strength, rtol=1e-6)
    np.testing.assert_allclose(got.temperature, temperature, rtol=1e-3)


def test_rows_that_do_not_count_influence_nothing():
    rng = np.random.default_rng(1)
    true, probs = posteriors(rng, 60)
    given = draw_given(rng, true, symmetric(0.4))
    counted = rng.random(60) < 0.6
    some = estimate(probs[counted], given[counted])
    garbled = np.where(counted, given, (given + 1) % K)
    np.testing.assert_allclose(
        estimate(probs, garbled, counted).matrix, some.matrix, atol=1e-6
    )
    unlabelled = np.where(counted, given, -1)
    np.testing.assert_allclose(
        estimate(probs, unlabelled).matrix, some.matrix, atol=1e-6
    )


def test_without_rows_nothing_goes_wrong():
    got = estimate(np.full((3, K), 1 / K), np.array([0, 1, -1]), np.zeros(3, bool))
    np.testing.assert_allclose(got.matrix, np.eye(K), atol=1e-5)
    assert got.error_rate == 0
    assert got.temperature == 1


def test_a_class_nobody_saw_is_taken_to_go_wrong_like_the_rest():
    rng = np.random.default_rng(2)
    true, probs = posteriors(rng, 3000)
    given = draw_given(rng, true, symmetric(0.4))
    probs[:, 3] = 0
    probs /= probs.sum(1, keepdims=True)
    got = estimate(probs[true < 3], given[true < 3])
    np.testing.assert_allclose(got.matrix[3], symmetric(0.4)[3], atol=0.03)


def test_vmap_over_seeds_equals_the_loop():
    rng = np.random.default_rng(3)
    true, probs = posteriors(rng, 80)
    given = np.stack([draw_given(rng, true, symmetric(r)) for r in (0.1, 0.4, 0.7)])
    mapped = jax.vmap(lambda y: estimate(probs, y))(jnp.asarray(given))
    for i in range(3):
        np.testing.assert_allclose(
            mapped.matrix[i], estimate(probs, given[i]).matrix, atol=1e-5
        )


def test_known_classes_are_believed():
    """With every true class known, the estimate is a count."""
    rng = np.random.default_rng(4)
    truth = 0.7 * np.eye(K) + 0.3 * np.roll(np.eye(K), 1, 1)
    true, _ = posteriors(rng, 4000)
    given = draw_given(rng, true, truth)
    ignorant = np.full((4000, K), 1 / K, np.float32)
    got = estimate(ignorant, given, known=jnp.asarray(true))
    counts = np.zeros((K, K))
    np.add.at(counts, (true, given), 1)
    expected = counts / counts.sum(1, keepdims=True)
    np.testing.assert_allclose(got.matrix, expected, atol=2e-3)


# --- how good it is ----------------------------------------------------------------


CASES = {
    "symmetric .2": symmetric(0.2),
    "symmetric .4": symmetric(0.4),
    "symmetric .6": symmetric(0.6),
    "pair .3": 0.7 * np.eye(K) + 0.3 * np.roll(np.eye(K), 1, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_calibrated_probabilities_give_the_matrix_back(name):
    rng = np.random.default_rng(5)
    true, probs = posteriors(rng, 6000)
    got = estimate(probs, draw_given(rng, true, CASES[name]))
    # Were the true classes known, an entry would have this standard error; that they
    # are uncertain does not double it. A zero cannot be told from 1%.
    error = np.sqrt(CASES[name] * (1 - CASES[name]) / 1500)
    assert np.all(np.abs(got.matrix - CASES[name]) <= 2 * 4 * error + 0.01)
    # Where classes go wrong alike and evenly, one figure is estimated instead of K^2.
    assert (got.strength >= 100) == name.startswith("symmetric")


@pytest.mark.parametrize("clean", [0, 400])
@pytest.mark.parametrize("power", [0.4, 2.5])
def test_calibration_repairs_flat_and_sharp_probabilities(power, clean):
    rng = np.random.default_rng(6)
    true, probs = posteriors(rng, 4400, sharp=3.0)
    distorted = probs**power
    distorted /= distorted.sum(1, keepdims=True)
    noisy = slice(400, None)
    given = draw_given(rng, true[noisy], symmetric(0.3))
    beside = {}
    if clean:
        # Rows of weight 0 are labelled with nonsense.
        some = np.arange(400) < 200
        beside = {
            "clean_probs": jnp.asarray(distorted[:400]),
            "clean_label": jnp.asarray(np.where(some, true[:400], 0)),
            "clean_weight": jnp.asarray(some, jnp.float32),
        }
    got = estimate(distorted[noisy], given, **beside)
    assert abs(got.error_rate - 0.3) < 0.03
    # The temperature undoes most of the power.
    assert abs(np.log(got.temperature) - np.log(power)) < abs(np.log(power)) / 2


def confident_joint(probs, given):
    """Northcutt et al. 2021: counts of rows confidently of a class, by given label."""
    k = probs.shape[1]
    threshold = np.array([probs[given == j, j].mean() for j in range(k)])
    confident = probs >= threshold
    counted = confident.any(1)
    guess = np.where(confident, probs, -1).argmax(1)
    counts = np.zeros((k, k))
    np.add.at(counts, (guess[counted], given[counted]), 1)
    counts *= np.bincount(given, minlength=k) / counts.sum(0)
    return counts / counts.sum(1, keepdims=True)


@pytest.fixture(scope="module")
def digits():
    """Probabilities of 200 clean rows (out of fold) and of the others."""
    features, label = load_digits(return_X_y=True)
    order = np.random.default_rng(7).permutation(len(label))
    features, label = features[order] / 16, label[order]
    clean = np.zeros((200, 10), np.float32)
    for fold in range(2):
        out = np.arange(200) % 2 == fold
        model = LogisticRegression(max_iter=60, tol=1e-2)
        model.fit(features[:200][~out], label[:200][~out])
        clean[out] = model.predict_proba(features[:200][out])
    model = LogisticRegression(max_iter=60, tol=1e-2).fit(features[:200], label[:200])
    probs = model.predict_proba(features[200:]).astype(np.float32)
    return probs, label[200:], clean, label[:200]


def test_beats_the_confident_joint_on_digits(digits):
    probs, true, clean_probs, clean_label = digits
    rng = np.random.default_rng(8)
    kinds = [symmetric(r, 10) for r in (0.2, 0.4, 0.6)]
    kinds.append(0.7 * np.eye(10) + 0.3 * np.roll(np.eye(10), 1, 1))
    given = np.stack([draw_given(rng, true, kind) for kind in kinds])

    @jax.jit
    @jax.vmap
    def run(given):
        return transition.estimate(
            jnp.asarray(probs),
            given,
            jnp.ones(given.shape, bool),
            clean_probs=jnp.asarray(clean_probs),
            clean_label=jnp.asarray(clean_label),
        )

    got = run(jnp.asarray(given))
    ours = np.abs(np.asarray(got.matrix) - kinds).mean((1, 2))
    joint = [confident_joint(probs, y) for y in given]
    theirs = np.abs(np.asarray(joint) - kinds).mean((1, 2))
    assert np.all(ours[:3] < theirs[:3] / 2), (ours, theirs)
    assert ours[3] < 1.05 * theirs[3], (ours, theirs)
    assert np.all(np.abs(got.error_rate - np.array([0.2, 0.4, 0.6, 0.3])) < 0.05)


def test_half_of_a_clean_sample_is_not_enough_to_ask_for():
    with pytest.raises(ValueError, match="clean_probs and clean_label go together"):
        estimate(np.ones((2, K)) / K, np.zeros(2, int), clean_label=jnp.zeros(2, int))


PROBS = np.full((3, K), 1 / K)


@pytest.mark.parametrize(
    ("probs", "given", "options", "message"),
    [
        (np.where(np.eye(3, K) > 0, np.nan, PROBS), [0, 1, 2], {}, "row 0 .*3 of 3"),
        (PROBS - 1, [0, 1, 2], {}, "probs must be finite and at least 0"),
        (PROBS, [0, K, 2], {}, r"given must lie in -1\.\.3, got 4 \(1 of 3"),
        (PROBS, [0, -2, 2], {}, "given must lie in .*, got -2"),
        (PROBS, [0.0, 1.0, 2.0], {}, "given must have an integer dtype"),
        (PROBS, [0, 1], {}, r"probs must be \[M, K\] .* \(3, 4\) and \(2,\)"),
        (np.ones((3, 1)), [0, 0, 0], {}, "K >= 2 classes"),
        (PROBS, [0, 1, 2], {"clean_probs": np.ones((1, 3))}, "clean_probs must have 4"),
        (PROBS, [0, 1, 2], {"clean_label": [K]}, "clean_label must lie in"),
    ],
)
def test_bad_rows_are_named(probs, given, options, message):
    if options:
        options = {"clean_probs": np.ones((1, K)) / K, "clean_label": [0]} | options
    with pytest.raises(ValueError, match=message):
        estimate(probs, given, np.ones(len(given), bool), **options)


def test_lists_and_float64_will_do():
    """What scikit-learn's predict_proba returns, and without rows the identity."""
    rng = np.random.default_rng(0)
    probs, given = rng.dirichlet(np.ones(K), 9), rng.integers(0, K, 9)
    counted = np.ones(9, bool)
    expected = estimate(probs.astype(np.float32), given).matrix
    for form in (lambda x: x, np.ndarray.tolist):
        got = transition.estimate(form(probs), form(given), form(counted)).matrix
        np.testing.assert_allclose(got, expected, atol=1e-5)
    none = transition.estimate(probs[:0], given[:0], counted[:0])
    np.testing.assert_allclose(none.matrix, np.eye(K), atol=1e-5)


def test_it_is_exported_beside_the_noise():
    assert noise.estimate_transition_matrix is transition.estimate
