"""Random forest against one written out in NumPy, and its parts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier

import rad_jax
from rad_jax import memory
from rad_jax.learners import forest, random_forest
from rad_jax.types import Batch, Examples, Keys, Queries, Spec

K = 4


@functools.cache
def digits(num_classes=K, num_rows=200):
    """A fifth of the labels wrong: rows, and 100 to classify."""
    data = load_digits(n_class=num_classes)
    order = np.random.default_rng(0).permutation(len(data.target))[: num_rows + 100]
    x, y = data.data[order].astype(np.float32), data.target[order]
    rng = np.random.default_rng(1)
    wrong = rng.random(num_rows) < 0.2
    label = np.where(wrong, rng.integers(0, num_classes, num_rows), y[:num_rows])
    return x[:num_rows], label.astype(np.int16), x[num_rows:], y[num_rows:]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _prepare(preparation, capacity, rows, row_id, num_clean, queries):
    """The basis fitted on the first rows, before the others arrive."""
    n = rows.shape[0]
    clean = jnp.arange(n) < num_clean
    empty = memory.empty(capacity, rows.shape[1:])
    store, _ = memory.write(empty, rows, row_id, clean, jnp.int32(0))
    basis = preparation.start(store)
    store, slots = memory.write(store, rows, row_id, ~clean, jnp.int32(1))
    basis = preparation.store(basis, store, slots, ~clean)
    return store, basis, preparation.build(basis, store, queries)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _fit_predict(learner, spec, examples, queries, init_key):
    model = learner.init(spec, (), init_key)
    model = learner.fit(
        spec, (), model, examples, init_key=init_key, order_key=jax.random.key(1)
    )
    return model, learner.predict_proba(spec, (), model, None, queries)


def run(learner, rows, label, kept, queries, *, num_clean=60, seed=0, row_id=None):
    """The model, its probabilities for the queries, and the bins of both."""
    n = len(rows)
    row_id = np.arange(n) if row_id is None else row_id
    store, basis, prepared = _prepare(
        learner.preparation,
        n,
        jnp.asarray(rows),
        jnp.asarray(row_id, jnp.int32),
        num_clean,
        jnp.asarray(queries),
    )
    name = learner.preparation.name
    examples = Examples(
        store.features,
        store.row_id,
        store.valid,
        jnp.int32(0),
        jnp.asarray(label, jnp.int16),
        jnp.asarray(kept, jnp.float32),
        {name: basis},
    )
    model, probs = _fit_predict(
        learner._replace(params=None),
        Spec(rows.shape[1:], K, n),
        examples,
        Queries(jnp.asarray(queries), {name: prepared}),
        jax.random.key(seed),
    )
    return (*jax.tree.map(np.asarray, (model, probs, basis.rows, prepared)),)


def some(seed=0, share=0.6, num_rows=200, num_clean=60):
    kept = np.random.default_rng(seed).random(num_rows) < share
    kept[:num_clean] = True
    return kept


# --- against a forest written out ---------------------------------------------------


def gini_score(counts):
    """The weight of rows times (1 - Gini impurity)."""
    total = counts.sum()
    return np.float32((counts**2).sum()) / np.float32(total) if total else 0.0


def grow_by_hand(bins, label, weight, subsets, prior, max_depth, num_bins):
    """Node by node: ``{node: (feature, bin)}`` and ``{leaf: frequencies}``."""
    splits, leaves = {}, {}

    def grow(node, depth, rows, frequencies):
        counts = np.bincount(label[rows], weight[rows], minlength=K)
        if counts.sum():
            frequencies = counts / counts.sum()
        if depth == max_depth:
            leaves[node] = frequencies
            return
        best, split = -1.0, (None, num_bins - 1)
        for feature in subsets[node]:
            for threshold in range(num_bins):
                left = rows & (bins[:, feature] <= threshold)
                right = rows & ~left
                if not (weight[left].sum() and weight[right].sum()):
                    continue
                score = sum(
                    gini_score(np.bincount(label[part], weight[part], minlength=K))
                    for part in (left, right)
                )
                if score > best:
                    best, split = score, (feature, threshold)
        splits[node] = split
        goes_left = rows if split[0] is None else rows & (bins[:, split[0]] <= split[1])
        grow(2 * node + 1, depth + 1, goes_left, frequencies)
        grow(2 * node + 2, depth + 1, rows & ~goes_left, frequencies)

    grow(0, 0, np.ones(len(label), bool), prior)
    return splits, leaves


def forest_by_hand(
    bins, label, kept, queries, *, trees, max_depth, max_features, num_bins, key
):
    """Splits of every tree, and probabilities of the queries."""
    num_nodes = 2**max_depth - 1
    label = np.where(kept, label, 0).astype(int)
    prior = np.bincount(label[kept], minlength=K) / kept.sum()
    bits = forest.row_bits(jax.random.fold_in(key, trees), jnp.arange(len(label)))
    all_splits, total = [], 0.0
    for tree in range(trees):
        of_rows, of_nodes = jax.random.split(jax.random.fold_in(key, tree))
        times = forest.bootstrap(bits, jax.random.bits(of_rows, (), jnp.uint32))
        subsets = forest.feature_subsets(
            of_nodes, num_nodes, bins.shape[1], max_features
        )
        weight = np.asarray(times, np.float64) * kept
        splits, leaves = grow_by_hand(
            bins, label, weight, np.asarray(subsets), prior, max_depth, num_bins
        )
        all_splits.append(splits)
        answers = []
        for query in queries:
            node = 0
            while node in splits:
                feature, threshold = splits[node]
                right = feature is not None and query[feature] > threshold
                node = 2 * node + 1 + right
            answers.append(leaves[node])
        total = total + np.array(answers)
    return all_splits, total / trees


#: For all tests that can share compiled code.
SMALL = {"max_depth": 3, "max_features": 10, "num_bins": 32}
FOREST = random_forest(10, **SMALL)


@pytest.mark.parametrize(
    ("share", "options"),
    [(0.6, SMALL), (0.0, {"max_depth": 4, "max_features": 3, "num_bins": 8})],
    ids=["many rows", "few rows"],
)
def test_it_is_the_forest_written_out(share, options):
    """The same splits, and so the same probabilities."""
    x, label, queries, _ = digits()
    kept = some(1, share, num_clean=12)
    learner = random_forest(10, **options)
    model, probs, bins, seen = run(learner, x, label, kept, queries)
    key = jax.random.key(0)
    splits, expected = forest_by_hand(
        bins, label, kept, seen, trees=10, key=key, **options
    )
    nothing = 0
    for tree, by_hand in enumerate(splits):
        for node, (feature, threshold) in by_hand.items():
            assert model.bin[tree, node] == threshold
            if feature is None:
                nothing += 1
            else:
                assert model.feature[tree, node] == feature
    if share == 0.0:  # few rows, few candidates: some nodes divide nothing
        assert nothing > 0
    np.testing.assert_allclose(probs, expected, atol=1e-5)


# --- masks --------------------------------------------------------------------------


def test_masked_is_the_subset():
    """Samples and candidates follow rows by their id, wherever these are stored."""
    x, label, queries, _ = digits()
    kept = some(2, 0.5)
    learner = FOREST
    ids = np.arange(200) * 7 + 3
    model, probs, *_ = run(learner, x, label, kept, queries, row_id=ids)
    subset, expected, *_ = run(
        learner,
        x[kept],
        label[kept],
        np.ones(kept.sum()),
        queries,
        row_id=ids[kept],
    )
    jax.tree.map(np.testing.assert_array_equal, model, subset)
    np.testing.assert_allclose(probs, expected, atol=1e-6)
    # Other features in a masked row (no clean one), and any label.
    garbage = np.where(kept[:, None], x, 100 - x[::-1])
    other, *_ = run(
        learner, garbage, np.where(kept, label, 99), kept, queries, row_id=ids
    )
    jax.tree.map(np.testing.assert_array_equal, model, other)


def test_seeds_draw_other_trees_and_the_same_seed_the_same():
    x, label, queries, _ = digits()
    learner = FOREST
    first, *_ = run(learner, x, label, some(), queries, seed=0)
    again, *_ = run(learner, x, label, some(), queries, seed=0)
    other, *_ = run(learner, x, label, some(), queries, seed=1)
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert (first.feature != other.feature).mean() > 0.5
    # Trees of one forest differ, too.
    assert len(np.unique(first.feature, axis=0)) == 10


def test_with_one_kept_row_every_tree_says_its_class():
    """Also those whose sample it is not in."""
    x, label, queries, _ = digits()
    for row in (0, 5):
        kept = np.arange(200) == row
        _, probs, *_ = run(FOREST, x, label, kept, queries)
        np.testing.assert_allclose(probs, np.eye(K)[[label[row]] * 100], atol=1e-6)


# --- parts --------------------------------------------------------------------------


_edges = jax.jit(forest._edges, static_argnums=2)


def edges_of(column, num_bins, capacity=None):
    column = np.asarray(column, np.float32)
    padded = np.full(capacity or len(column), -7.0, np.float32)
    padded[: len(column)] = column
    valid = np.arange(len(padded)) < len(column)
    edges = np.asarray(_edges(padded, valid, num_bins))
    return edges[np.isfinite(edges)]


def test_few_values_have_a_bin_each():
    column = np.repeat([3.0, -1.0, 0.5, 10.0], [50, 1, 2, 1])
    for capacity in (None, 80):
        np.testing.assert_allclose(edges_of(column, 8, capacity), [-0.25, 1.75, 6.5])
        np.testing.assert_allclose(edges_of(column, 4, capacity), [-0.25, 1.75, 6.5])
    assert not edges_of(np.ones(9), 8).size


def test_many_values_are_binned_at_quantiles():
    column = np.random.default_rng(0).normal(size=1000)
    edges = edges_of(column, 16, 1300)
    assert len(edges) == 15
    counts = np.histogram(column, [-np.inf, *edges, np.inf])[0]
    np.testing.assert_allclose(counts, 1000 / 16, atol=1.01)
    # No edge is at a value, so that none depends on how values compare with it.
    assert not np.isin(edges, column.astype(np.float32)).any()


def test_bins_count_the_edges_below():
    x, _, queries, _ = digits()
    preparation = forest.binning(8)
    _, basis, seen = _prepare(
        preparation,
        230,
        jnp.asarray(x),
        jnp.arange(200, dtype=jnp.int32),
        60,
        jnp.asarray(queries),
    )
    edges = np.asarray(basis.edges)
    for bins, rows in ((basis.rows[:200], x), (seen, queries)):
        expected = (rows[:, None, :] > edges[None]).sum(axis=1)
        np.testing.assert_array_equal(bins, expected)
    # Of the clean rows alone, whatever arrives later.
    other = np.concatenate([x[:60], 50 - x[60:]])
    _, same, _ = _prepare(
        preparation,
        230,
        jnp.asarray(other),
        jnp.arange(200, dtype=jnp.int32),
        60,
        jnp.asarray(queries),
    )
    np.testing.assert_array_equal(same.edges, edges)


def test_samples_are_poisson_and_differ_between_trees():
    ids = jnp.arange(40_000, dtype=jnp.int32)
    bits = forest.row_bits(jax.random.key(3), ids)
    trees = jax.random.bits(jax.random.key(4), (2,), jnp.uint32)
    a, b = (np.asarray(forest.bootstrap(bits, tree)) for tree in trees)
    share = [np.exp(-1), np.exp(-1), np.exp(-1) / 2, np.exp(-1) / 6, np.exp(-1) / 24]
    for times in (a, b):
        for i, p in enumerate(share):
            error = np.sqrt(p * (1 - p) / len(ids))
            assert abs((times == i).mean() - p) < 4 * error
        assert abs(times.mean() - 1) < 4 / np.sqrt(len(ids))
    assert abs(np.corrcoef(a, b)[0, 1]) < 4 / np.sqrt(len(ids))
    # A row's draw depends on no other row.
    order = jax.random.permutation(jax.random.key(5), ids)
    mixed = forest.row_bits(jax.random.key(3), order)
    np.testing.assert_array_equal(forest.bootstrap(mixed, trees[0]), a[order])


def test_candidates_are_drawn_without_repetition():
    subsets = np.asarray(forest.feature_subsets(jax.random.key(0), 2000, 6, 4))
    assert all(len(set(row)) == 4 for row in subsets.tolist())
    counts = np.bincount(subsets.reshape(-1), minlength=6) / 2000
    np.testing.assert_allclose(counts, 4 / 6, atol=4 * np.sqrt(2 / 9 / 2000))


def test_more_candidates_than_features_means_all():
    x, label, queries, _ = digits()
    few = random_forest(5, max_depth=1, max_features=64)
    many = random_forest(5, max_depth=1, max_features=1000)
    first = run(few, x, label, some(), queries)
    second = run(many, x, label, some(), queries)
    jax.tree.map(np.testing.assert_array_equal, first, second)


# --- as a classifier ----------------------------------------------------------------


def test_it_is_as_accurate_as_scikit_learns():
    x, label, queries, y = digits(num_rows=500)
    ours, theirs = [], []
    for seed in range(3):
        learner = random_forest(40)
        _, probs, *_ = run(
            learner, x, label, np.ones(500), queries, num_clean=200, seed=seed
        )
        ours.append((probs.argmax(axis=1) == y).mean())
        other = RandomForestClassifier(
            40, max_depth=5, max_features=10, random_state=seed
        )
        theirs.append(other.fit(x, label).score(queries, y))
    assert np.mean(ours) > np.mean(theirs) - 0.02 > 0.9


def test_in_a_stream_whose_rows_arrive_later():
    x, label, queries, y = digits()
    true = load_digits(n_class=K)
    order = np.random.default_rng(0).permutation(len(true.target))[:200]
    label = true.target[order].astype(np.int32)
    algo = rad_jax.rad(
        classifier=random_forest(30, max_depth=3),
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
    assert (after == y).mean() > 0.8


# --- errors -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_trees": 0}, r"num_trees must lie in 1\.\.100000, got 0"),
        ({"max_depth": 0}, r"max_depth must lie in 1\.\.16, got 0"),
        ({"max_depth": 17}, r"max_depth must lie in 1\.\.16, got 17"),
        ({"max_features": 0}, "max_features must .* got 0"),
        ({"num_bins": 1}, r"num_bins must lie in 2\.\.256, got 1"),
        ({"num_bins": 257}, "num_bins must .* got 257"),
    ],
)
def test_arguments_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        random_forest(**options)


def test_a_forest_deeper_than_memory_has_rows():
    learner = random_forest(3, max_depth=5)
    key = jax.random.key(0)
    learner.init(Spec((2,), K, 32), (), key)
    message = "max_depth=5 makes 32 leaves of the 31 rows that memory_capacity allows"
    with pytest.raises(ValueError, match=message):
        learner.init(Spec((2,), K, 31), (), key)
