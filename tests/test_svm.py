"""Support vector machines against scikit-learn's, and the kernel's features."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.svm import SVC, LinearSVC

import rad_jax
from rad_jax import memory
from rad_jax.learners import kernel, linear_svm, rbf_svm
from rad_jax.types import Batch, Examples, Keys, Queries, Spec, as_arrays

K = 3


@functools.cache
def digits(num_classes=K):
    """Standardised, a fifth of the labels wrong: 200 rows and 100 to classify."""
    data = load_digits(n_class=num_classes)
    order = np.random.default_rng(0).permutation(len(data.target))[:300]
    x, y = data.data[order], data.target[order]
    x = ((x - x.mean(axis=0)) / np.maximum(x.std(axis=0), 1.0)).astype(np.float32)
    rng = np.random.default_rng(1)
    wrong = rng.random(200) < 0.2
    label = np.where(wrong, rng.integers(0, num_classes, 200), y[:200])
    return x[:200], label.astype(np.int16), x[200:], y[200:]


def stored(rows, capacity=None):
    rows = jnp.asarray(rows, jnp.float32)
    n = len(rows)
    empty = memory.empty(capacity or n, rows.shape[1:])
    ids = jnp.arange(n, dtype=jnp.int32)
    return memory.write(empty, rows, ids, jnp.ones(n, bool), jnp.int32(0))[0]


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _basis(preparation, num_clean, capacity, rows):
    """Fitted on the first rows, before the others arrive."""
    clean = stored(rows[:num_clean], capacity)
    basis = preparation.start(clean)
    n = len(rows) - num_clean
    ids = jnp.arange(num_clean, len(rows), dtype=jnp.int32)
    store, slots = memory.write(
        clean, rows[num_clean:], ids, jnp.ones(n, bool), jnp.int32(1)
    )
    return preparation.store(basis, store, slots, jnp.ones(n, bool)), store


@functools.partial(jax.jit, static_argnums=(0, 1))
def _fit_predict(learner, spec, params, model, examples, queries):
    if model is None:
        model = learner.init(spec, params, jax.random.key(0))
    model = learner.fit(
        spec,
        params,
        model,
        examples,
        init_key=jax.random.key(0),
        order_key=jax.random.key(1),
    )
    return model, learner.predict_proba(spec, params, model, None, queries)


def run(
    learner, rows, label, kept, queries, *, num_clean=50, model=None, num_classes=K
):
    """The model and its probabilities for the queries."""
    bases, prepared = {}, {}
    if learner.preparation is None:
        store = stored(rows)
    else:
        name = learner.preparation.name
        basis, store = _basis(learner.preparation, num_clean, len(rows), rows)
        bases = {name: basis}
        prepared = {name: learner.preparation.build(basis, store, queries)}
    examples = Examples(
        store.features,
        store.row_id,
        store.valid,
        jnp.int32(0),
        jnp.asarray(label, jnp.int16),
        jnp.asarray(kept, jnp.float32),
        bases,
    )
    model, probs = _fit_predict(
        learner._replace(params=None),
        Spec(rows.shape[1:], num_classes, len(rows)),
        as_arrays(learner.params),
        model,
        examples,
        Queries(jnp.asarray(queries), prepared),
    )
    return jax.tree.map(np.asarray, model), np.asarray(probs)


def some(seed=0, share=0.6, num_clean=50):
    kept = np.random.default_rng(seed).random(200) < share
    kept[:num_clean] = True
    return kept


# --- linear -------------------------------------------------------------------------


@pytest.mark.parametrize("C", [0.01, 1.0, 100.0])
def test_linear_finds_the_optimum_of_scikit_learn(C):
    x, label, queries, _ = digits()
    kept = some()
    theirs = LinearSVC(C=C, dual=False, tol=1e-9, max_iter=10_000)
    theirs.fit(x[kept].astype(np.float64), label[kept])
    model, probs = run(linear_svm(C), x, label, kept, queries)
    # At C = 100 the optimum is flat.
    size = np.abs(theirs.coef_).max() * max(1.0, C / 20)
    np.testing.assert_allclose(model.weights, theirs.coef_, atol=1e-3 * size)
    np.testing.assert_allclose(model.bias, theirs.intercept_, atol=1e-3 * size)
    values = theirs.decision_function(queries)
    e = np.exp(values - values.max(axis=1, keepdims=True))
    np.testing.assert_allclose(probs, e / e.sum(axis=1, keepdims=True), atol=5e-3)


def gradient_by_hand(x, label, weights, bias, C):
    """Of one-vs-rest squared hinge, double precision: ``[K, D + 1]``."""
    x = np.hstack([x.astype(np.float64), np.ones((len(x), 1))])
    w = np.hstack([weights, bias[:, None]]).astype(np.float64)
    sign = np.where(label[None, :] == np.arange(len(w))[:, None], 1.0, -1.0)
    slack = np.maximum(1 - sign * (w @ x.T), 0)
    return w - 2 * C * (sign * slack) @ x


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_linear_converges_whatever_the_scale_of_features(scale):
    x, label, queries, _ = digits()
    x = x * np.float32(scale)
    kept = some(3)
    model, _ = run(linear_svm(), x, label, kept, queries)
    start = gradient_by_hand(x[kept], label[kept], 0 * model.weights, 0 * model.bias, 1)
    end = gradient_by_hand(x[kept], label[kept], model.weights, model.bias, 1)
    assert (np.linalg.norm(end, axis=1) < 1e-4 * np.linalg.norm(start, axis=1)).all()


@pytest.mark.parametrize(
    "learner",
    [
        linear_svm(),
        rbf_svm(num_landmarks=40, multiclass="one_vs_one"),
    ],
    ids=["linear", "rbf pairs"],
)
def test_the_answer_does_not_depend_on_where_it_starts(learner):
    x, label, queries, _ = digits()
    before, _ = run(learner, x, (label + 1) % K, some(1), queries)
    cold, expected = run(learner, x, label, some(2), queries)
    warm, probs = run(learner, x, label, some(2), queries, model=before)
    assert np.abs(before.weights - cold.weights).max() > 0.1
    np.testing.assert_allclose(warm.weights, cold.weights, atol=1e-3)
    np.testing.assert_allclose(probs, expected, atol=1e-4)


@pytest.mark.parametrize(
    "learner",
    [
        linear_svm(),
        rbf_svm(num_landmarks=40, multiclass="one_vs_one"),
    ],
    ids=["linear", "rbf pairs"],
)
def test_masked_is_the_subset(learner):
    """Also where a masked row has other features, so long as it is no clean row."""
    x, label, queries, _ = digits()
    kept = some(4)
    _, expected = run(learner, x[kept], label[kept], np.ones(kept.sum()), queries)
    _, probs = run(learner, x, label, kept, queries)
    np.testing.assert_allclose(probs, expected, atol=1e-4)
    garbage = np.where(kept[:, None], x, 100.0 * x[::-1])
    _, probs = run(learner, garbage, label, kept, queries)
    np.testing.assert_allclose(probs, expected, atol=1e-4)


def test_a_class_without_kept_rows_has_probability_0():
    x, label, queries, y = digits()
    pairs = rbf_svm(num_landmarks=40, multiclass="one_vs_one")
    for learner in (linear_svm(), rbf_svm(num_landmarks=40), pairs):
        _, probs = run(learner, x, label, some() & (label != 1), queries)
        np.testing.assert_array_equal(probs[:, 1], 0.0)
        known = y != 1
        assert (probs.argmax(axis=1) == y)[known].mean() > 0.9


# --- kernel features ----------------------------------------------------------------


def features_of(preparation, rows, queries, num_clean, capacity=None):
    rows, queries = jnp.asarray(rows), jnp.asarray(queries)
    basis, store = _basis(preparation, num_clean, capacity or len(rows), rows)
    return basis, np.asarray(preparation.build(basis, store, queries))


def test_features_reproduce_the_kernel_where_every_row_is_a_landmark():
    x, _, queries, _ = digits()
    basis, mapped = features_of(kernel.nystroem(0.01, 200), x, queries, 200)
    theirs = rbf_kernel(x, x, gamma=0.01)
    np.testing.assert_allclose(basis.mapped @ basis.mapped.T, theirs, atol=2e-3)
    across = rbf_kernel(queries, x, gamma=0.01)
    np.testing.assert_allclose(mapped @ basis.mapped.T, across, atol=2e-3)


def test_features_are_exact_between_any_row_and_a_landmark():
    x, _, queries, _ = digits()
    preparation = kernel.nystroem(0.02, 30)
    basis, mapped = features_of(preparation, x, queries, 60)
    # Every other clean row.
    np.testing.assert_allclose(
        np.asarray(basis.rows) + np.asarray(basis.centre), x[:60:2], atol=1e-5
    )
    landmarks = np.asarray(basis.mapped)[:60:2]
    for rows, theirs in ((x, basis.mapped), (queries, mapped)):
        exact = rbf_kernel(rows, x[:60:2], gamma=0.02)
        np.testing.assert_allclose(theirs @ landmarks.T, exact, atol=2e-3)


def test_more_landmarks_come_closer_to_the_kernel():
    x, _, _, _ = digits()
    exact = rbf_kernel(x, gamma=0.01)
    errors = []
    for size in (10, 80):
        basis, _ = features_of(kernel.nystroem(0.01, size), x, x[:1], 160)
        errors.append(np.abs(basis.mapped @ basis.mapped.T - exact).mean())
    assert errors[1] < 0.5 * errors[0]


def test_gamma_is_scaled_by_the_clean_rows_as_in_scikit_learn():
    x, label, queries, _ = digits()
    theirs = SVC(gamma="scale").fit(x[:50], label[:50])._gamma
    basis, _ = features_of(kernel.nystroem("scale", 20), x, queries, 50, capacity=230)
    np.testing.assert_allclose(basis.gamma, theirs, rtol=1e-5)
    constant = np.ones((7, 3), np.float32)
    basis, _ = features_of(kernel.nystroem("scale", 5), constant, constant, 7)
    assert basis.gamma == 1.0


def test_fewer_clean_rows_than_landmarks():
    """All of them are landmarks; room for others changes nothing."""
    x, _, queries, _ = digits()
    basis, mapped = features_of(kernel.nystroem(0.01, 100), x, queries, 50)
    exact, same = features_of(kernel.nystroem(0.01, 50), x, queries, 50)
    assert basis.mapped.shape == (200, 100)
    assert int(basis.used.sum()) == 50
    np.testing.assert_allclose(
        mapped @ basis.mapped.T, same @ exact.mapped.T, atol=2e-3
    )


def test_features_in_blocks(monkeypatch):
    x, _, queries, _ = digits()
    basis, mapped = features_of(kernel.nystroem(0.01, 30), x, queries, 50)
    monkeypatch.setattr(kernel, "_BLOCK_ROWS", 32)
    blocks = kernel._in_blocks(basis, jnp.asarray(queries))
    np.testing.assert_allclose(blocks, mapped, atol=1e-5)
    assert blocks.shape == mapped.shape


def test_padding_and_rows_without_a_slot_leave_the_features_alone():
    x, _, _, _ = digits()
    preparation = kernel.nystroem(0.01, 30)
    basis, store = _basis(preparation, 50, 200, jnp.asarray(x[:150]))
    slots = jnp.array([3, 200, 7, 200])
    after = preparation.store(basis, store, slots, jnp.zeros(4, bool))
    np.testing.assert_array_equal(after.mapped, basis.mapped)
    np.testing.assert_array_equal(basis.mapped[150:], 0.0)


# --- RBF ----------------------------------------------------------------------------


def test_rbf_classifies_as_scikit_learns_kernel_machine():
    """Rings around each other, which no hyperplane divides."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, K, 500)
    angle = rng.uniform(0, 2 * np.pi, 500)
    radius = y + rng.normal(0, 0.2, 500)
    x = (radius * np.stack([np.cos(angle), np.sin(angle)])).T.astype(np.float32)
    theirs = SVC(gamma="scale").fit(x[:200], y[:200]).score(x[200:], y[200:])
    _, probs = run(rbf_svm(num_landmarks=60), x[:200], y[:200], np.ones(200), x[200:])
    ours = (probs.argmax(axis=1) == y[200:]).mean()
    assert ours > theirs - 0.02 > 0.9
    _, probs = run(linear_svm(), x[:200], y[:200], np.ones(200), x[200:])
    assert (probs.argmax(axis=1) == y[200:]).mean() < 0.6


def test_pairs_vote_as_scikit_learns_machines():
    """Every row a landmark: the kernel is exact, only the rounded hinge differs."""
    x, label, queries, y = digits(10)
    theirs = SVC(gamma="scale").fit(x, label)
    learner = rbf_svm(num_landmarks=200, multiclass="one_vs_one")
    kept = np.ones(200)
    model, probs = run(learner, x, label, kept, queries, num_clean=200, num_classes=10)
    assert model.weights.shape == (45, 200)
    answer = probs.argmax(axis=1)
    assert (answer == theirs.predict(queries)).mean() > 0.9
    assert abs((answer == y).mean() - theirs.score(queries, y)) < 0.05
    votes = np.round(np.log(probs) - np.log(probs).mean(axis=1, keepdims=True) + 4.5)
    np.testing.assert_array_equal(votes.sum(axis=1), 45)


def test_rbf_in_a_stream_whose_rows_arrive_later():
    """Stored features grow with memory: the ensemble learns what only came later."""
    x, _, queries, y = digits()
    true = load_digits(n_class=K)
    order = np.random.default_rng(0).permutation(len(true.target))[:200]
    label = true.target[order].astype(np.int32)
    algo = rad_jax.rad(
        classifier=rbf_svm(num_landmarks=30),
        selection=rad_jax.no_selection(),
        num_classes=K,
        memory_capacity=200,
    )

    def batch(rows):
        n = len(rows)
        return Batch(
            jnp.asarray(x[rows]),
            jnp.asarray(label[rows]),
            jnp.ones(n, bool),
            jnp.asarray(rows, jnp.int32),
        )

    step, predict = jax.jit(algo.step), jax.jit(algo.predict)
    clean = np.flatnonzero(label[:60] != 2)
    state = jax.jit(algo.init)(Keys(jax.random.key(0), jax.random.key(1)), batch(clean))
    before = np.asarray(predict(state, jnp.asarray(queries)))
    assert not (before == 2).any()
    for start in (60, 130):
        state, _ = step(state, batch(np.arange(start, start + 70)))
    after = np.asarray(predict(state, jnp.asarray(queries)))
    assert (after == y).mean() > 0.9


# --- errors -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: linear_svm(0.0), r"C must lie in \(0, 10\^6\], got 0.0"),
        (lambda: linear_svm(-1.0), "C must .* got -1.0"),
        (lambda: rbf_svm(C=float("nan")), "C must .* got nan"),
        (lambda: linear_svm(max_newton=0), "max_newton must be at least 1.* got 0"),
        (lambda: rbf_svm(max_cg=0), "max_cg must be at least 1.* got 0"),
        (lambda: rbf_svm("auto"), "gamma must be 'scale' or a number > 0, got 'auto'"),
        (lambda: rbf_svm(0.0), "gamma must .* got 0.0"),
        (lambda: rbf_svm(float("inf")), "gamma must .* got inf"),
        (lambda: rbf_svm(float("nan")), "gamma must .* got nan"),
        (
            lambda: rbf_svm(multiclass="ovo"),
            "multiclass must be one of .*one_vs_rest.*one_vs_one.* got 'ovo'",
        ),
        (lambda: rbf_svm(num_landmarks=0), "num_landmarks must be at least 1, got 0"),
    ],
)
def test_arguments_out_of_range(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_memory_that_is_out_of_reason_is_refused():
    preparation = kernel.nystroem("scale", 50_000)
    message = r"num_landmarks=50000 with memory_capacity=50000 would take \d+\.\d GiB"
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda: preparation.start(memory.empty(50_000, (10,))))
    basis = jax.eval_shape(
        lambda: kernel.nystroem("scale", 512).start(memory.empty(50_000, (115,)))
    )
    stated = kernel.nystroem("scale", 512).bytes(Spec((115,), 11, 50_000), 0)
    taken = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(basis))
    assert taken <= stated <= 1.5 * taken
