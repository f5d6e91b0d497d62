"""One contract for all learners; KNN, centroid and networks against oracles."""

import collections
import functools
from typing import Any, NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid

import rad_jax
from rad_jax import memory
from rad_jax.learners import (
    centroid,
    knn,
    linear_svm,
    mlp,
    nearest,
    nearest_centroid,
    network,
    random_forest,
    rbf_svm,
    vgg,
)
from rad_jax.learners.neural import weighted_cross_entropy
from rad_jax.learners.training import Training
from rad_jax.types import UNLABELLED, Examples, Queries, Spec

TRAINING = Training(steps=7, initial_steps=12, minibatch_size=16)


class TwoLayers(nn.Module):
    """A user's own network, for images, with its own names."""

    num_classes: int

    @nn.compact
    def __call__(self, x):
        x = x.reshape(x.shape[0], -1)
        x = nn.tanh(nn.Dense(6, name="inner", use_bias=False)(x))
        return nn.Dense(self.num_classes, name="outer")(x)


class Normalising(nn.Module):
    """A user's network with running statistics."""

    num_classes: int

    @nn.compact
    def __call__(self, x, train=False, mask=None):
        x = x.reshape(x.shape[0], -1)
        mask = None if mask is None else mask[:, None]
        x = nn.BatchNorm(use_running_average=not train, momentum=0.8)(x, mask=mask)
        return nn.Dense(self.num_classes)(nn.relu(nn.Dense(6)(x)))


K = 4
MODULE = TwoLayers(K)
NORMALISING = Normalising(K)
#: With decay and momentum, weights move even where the gradient is zero.
OPTIMIZER = optax.chain(
    optax.add_decayed_weights(0.02), optax.sgd(0.1, momentum=0.9, nesterov=True)
)

#: Functions, so that a test can build the same learner twice.
MAKERS = {
    "mlp": lambda: mlp([8, 5], learning_rate=0.01, training=Training(*TRAINING)),
    "knn": lambda: knn(3, num_candidates=8),
    "knn_distance": lambda: knn(3, weighting="distance", num_candidates=8),
    "nearest_centroid": nearest_centroid,
    "network": lambda: network(MODULE, OPTIMIZER, training=Training(*TRAINING)),
    "normalising": lambda: network(
        NORMALISING, OPTIMIZER, training=Training(*TRAINING), seeds_in_turn=True
    ),
    "svm": linear_svm,
    "svm_rbf": lambda: rbf_svm(num_landmarks=16),
    "forest": lambda: random_forest(20, max_depth=3, num_bins=8),
}
NETWORKS = ("mlp", "network", "normalising")
#: Learners that iterate until their answer changes no more.
SOLVED = ("svm", "svm_rbf")
every_learner = pytest.mark.parametrize("name", list(MAKERS))
every_network = pytest.mark.parametrize("name", NETWORKS)


@functools.cache
def learner_of(name):
    return MAKERS[name]()


# --- the learner's functions, compiled once for all tests ---------------------------


def basis_of(learner, store):
    """What a learner prepares: fitted on the first rows, then the others arrive."""
    if learner.preparation is None:
        return {}
    rows = jnp.arange(store.capacity, dtype=jnp.int32)
    first = rows < NUM_CLEAN
    clean = memory.Memory(
        features=jnp.where(
            first.reshape(-1, *[1] * (store.features.ndim - 1)), store.features, 0
        ),
        row_id=jnp.where(first, store.row_id, -1),
        arrived=jnp.where(first, store.arrived, -1),
        count=jnp.sum(first & store.valid, dtype=jnp.int32),
    )
    basis = learner.preparation.start(clean)
    later = store.valid & ~first
    slots = jnp.where(later, rows, store.capacity)
    return {
        learner.preparation.name: learner.preparation.store(basis, store, slots, later)
    }


def with_basis(learner, examples):
    """Examples as the engine hands them out."""
    store = memory.Memory(
        features=examples.features,
        row_id=examples.row_id,
        arrived=jnp.where(examples.valid, 0, -1),
        count=jnp.sum(examples.valid, dtype=jnp.int32),
    )
    return examples._replace(prepared=basis_of(learner, store))


def prepared_queries(learner, store, features):
    if learner.preparation is None:
        return Queries(features, {})
    name = learner.preparation.name
    basis = basis_of(learner, store)[name]
    return Queries(features, {name: learner.preparation.build(basis, store, features)})


@functools.partial(jax.jit, static_argnums=(0, 1))
def _init(learner, spec, params, key):
    return learner.init(spec, params, key)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _fit(learner, spec, params, model, examples, init_key, order_key):
    examples = with_basis(learner, examples)
    return learner.fit(
        spec, params, model, examples, init_key=init_key, order_key=order_key
    )


@functools.partial(jax.jit, static_argnums=(0, 1))
def _predict(learner, spec, params, model, store, features):
    queries = prepared_queries(learner, store, features)
    return learner.predict_proba(spec, params, model, store, queries)


def _train(learner, spec, params, examples, init_key, order_key):
    model = learner.init(spec, params, init_key)
    return learner.fit(
        spec, params, model, examples, init_key=init_key, order_key=order_key
    )


@functools.partial(jax.jit, static_argnums=(0, 1))
def _many(learner, spec, params, examples, store, features, init_key, order_key):
    """Models and probabilities of many seeds; features, arrival, order are shared."""
    queries = prepared_queries(learner, store, features)
    examples = with_basis(learner, examples)

    def one(params, label, weight, init_key):
        own = examples._replace(label=label, weight=weight)
        model = _train(learner, spec, params, own, init_key, order_key)
        return model, learner.predict_proba(spec, params, model, store, queries)

    return jax.vmap(one)(params, examples.label, examples.weight, init_key)


def static(learner):
    return learner._replace(params=None)


class Problem(NamedTuple):
    """Rows in memory, as one seed sees them, and rows to classify."""

    spec: Spec
    store: memory.Memory
    label: Any  # [M] int16
    weight: Any  # [M] float32
    queries: Any  # [Q, *S]

    def examples(self, arrival=0, **changes):
        label = changes.get("label", self.label)
        weight = changes.get("weight", self.weight)
        return Examples(
            features=changes.get("features", self.store.features),
            row_id=self.store.row_id,
            valid=changes.get("valid", self.store.valid),
            arrival=np.int32(arrival),
            label=np.asarray(label, np.int16),
            weight=np.asarray(weight, np.float32),
            prepared={},
        )


write = jax.jit(memory.write)


def problem_of(rows, label, kept, queries, *, num_classes=K, capacity=None):
    """All rows stored; only those of `kept` weigh anything."""
    rows = np.asarray(rows, np.float32)
    n = len(rows)
    capacity = capacity or n
    store = memory.empty(capacity, rows.shape[1:])
    store, _ = write(store, rows, np.arange(n, dtype=np.int32), np.ones(n, bool), 0)
    padded = np.full(capacity, UNLABELLED, np.int16)
    padded[:n] = label
    weight = np.zeros(capacity, np.float32)
    weight[:n] = kept
    spec = Spec(rows.shape[1:], num_classes, capacity)
    return Problem(spec, store, padded, weight, np.asarray(queries, np.float32))


# The last minibatch of an epoch (of 16) goes past the rows and past the capacity.
#: Rows of the clean batch, which every seed keeps.
NUM_CLEAN = 8
SHAPE, NUM_ROWS, CAPACITY, NUM_QUERIES = (2, 3), 40, 45, 11


def clusters(seed=0, keep=0.6):
    """40 of 45 slots filled: noisy clusters, 60% of the rows kept."""
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=(K, *SHAPE)) * 2
    true = rng.integers(0, K, NUM_ROWS + NUM_QUERIES)
    x = centre[true] + rng.normal(size=(len(true), *SHAPE))
    label = np.where(
        rng.random(NUM_ROWS) < 0.3, rng.integers(0, K, NUM_ROWS), true[:40]
    )
    kept = rng.random(NUM_ROWS) < keep
    if keep >= 0.5:
        kept[:NUM_CLEAN] = True
    return problem_of(x[:40], label, kept, x[40:], capacity=CAPACITY)


def key(number):
    return jax.random.key(number)


def init(name, problem, seed=0):
    learner = learner_of(name)
    return _init(static(learner), problem.spec, learner.params, key(seed))


def fit(name, problem, model, *, arrival=0, seed=0, order=1, learner=None, **changes):
    learner = learner or learner_of(name)
    return _fit(
        static(learner),
        problem.spec,
        learner.params,
        model,
        problem.examples(arrival, **changes),
        key(seed),
        key(order),
    )


def train(name, problem, **options):
    return fit(name, problem, init(name, problem, options.get("seed", 0)), **options)


def predict(name, problem, model):
    learner = learner_of(name)
    return np.asarray(
        _predict(
            static(learner),
            problem.spec,
            learner.params,
            model,
            problem.store,
            problem.queries,
        )
    )


def at(tree, i):
    return jax.tree.map(lambda x: x[i], tree)


def assert_identical(a, b):
    """Bit for bit."""
    jax.tree.map(np.testing.assert_array_equal, a, b)


def assert_close(a, b, rtol=1e-5, atol=1e-6):
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=atol), a, b
    )


def differ(a, b):
    return any(
        not np.array_equal(x, y)
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def assert_probabilities(probs, num_queries=NUM_QUERIES, num_classes=K):
    assert probs.shape == (num_queries, num_classes)
    assert probs.dtype == jnp.float32
    assert np.isfinite(probs).all()
    assert (probs >= 0).all()
    np.testing.assert_allclose(probs.sum(axis=1), 1.0, atol=1e-6)


# --- the contract ------------------------------------------------------------------


@every_learner
def test_probabilities_and_types(name):
    problem = clusters()
    untrained = init(name, problem)
    assert_probabilities(predict(name, problem, untrained))
    model = train(name, problem)
    assert differ(model, untrained)
    # A model must be fit to be carried through a scan.
    jax.tree.map(
        lambda a, b: (a.shape, a.dtype) == (b.shape, b.dtype) or pytest.fail(str(a)),
        model,
        untrained,
    )
    probs = predict(name, problem, model)
    assert_probabilities(probs)
    if name not in NETWORKS:  # those have taken a dozen steps
        own = problem._replace(queries=np.asarray(problem.store.features)[:40])
        kept = problem.weight[:40] > 0
        right = predict(name, own, model).argmax(1) == problem.label[:40]
        assert right[kept].mean() > 0.5


@every_learner
@pytest.mark.parametrize("trained", [False, True])
def test_nothing_kept_leaves_the_model_bit_for_bit(name, trained):
    problem = clusters()
    model = train(name, problem) if trained else init(name, problem)
    nothing = np.zeros(CAPACITY)
    for label in (problem.label, np.full(CAPACITY, -1)):
        for arrival in (0, 3):
            after = fit(
                name, problem, model, arrival=arrival, weight=nothing, label=label
            )
            assert_identical(after, model)
    # Nor is anything kept where no slot holds a row.
    after = fit(
        name, problem, model, weight=np.ones(CAPACITY), valid=np.zeros(CAPACITY, bool)
    )
    assert_identical(after, model)


@every_learner
def test_one_class_only(name):
    problem = clusters()
    weight = problem.weight * (problem.label == 2)
    assert 3 < weight.sum() < problem.weight.sum()
    if name in NETWORKS:  # far from these rows a network may say anything
        rows = np.asarray(problem.store.features)[weight > 0]
        problem = problem._replace(queries=np.resize(rows, problem.queries.shape))
    model = init(name, problem)
    for arrival in range(20 if name in NETWORKS else 1):
        model = fit(name, problem, model, arrival=arrival, weight=weight, order=arrival)
    probs = predict(name, problem, model)
    assert_probabilities(probs)
    np.testing.assert_array_equal(probs.argmax(axis=1), 2)


@every_learner
def test_rows_of_weight_zero_influence_nothing(name):
    """Whatever label or features they hold."""
    problem = clusters()
    rng = np.random.default_rng(1)
    out = problem.weight == 0
    assert out[:NUM_ROWS].sum() > 8
    model = train(name, problem)
    probs = predict(name, problem, model)
    label = problem.label.copy()
    for garbage in (-1, -32768, 32767, K, rng.integers(-32768, 32767, out.sum())):
        label[out] = garbage
        other = train(name, problem, label=label)
        assert_identical(other, model)
    # The last of them with other features too, some at the very queries.
    features = np.array(problem.store.features)
    features[out] = problem.queries[rng.integers(0, NUM_QUERIES, out.sum())]
    other = train(name, problem, label=label, features=features)
    # A solver goes another way to the same answer.
    tolerance = (1e-4, 1e-5) if name in SOLVED else (1e-5, 1e-6)
    assert_close(other, model, *tolerance)
    store = problem.store._replace(features=jnp.asarray(features))
    after = predict(name, problem._replace(store=store), other)
    assert_close(after, probs, *tolerance)


@every_learner
def test_slots_without_a_row_influence_nothing(name):
    """Not even if a weight were left there."""
    problem = clusters()
    label, weight = problem.label.copy(), problem.weight.copy()
    label[NUM_ROWS:], weight[NUM_ROWS:] = 1, 1.0
    assert_identical(
        train(name, problem, label=label, weight=weight), train(name, problem)
    )


@pytest.mark.parametrize("name", ["knn", "knn_distance", "nearest_centroid"])
def test_masked_is_the_subset(name):
    for seed in range(3):
        problem = clusters(seed, keep=0.3)
        kept = np.flatnonzero(problem.weight)
        subset = problem_of(
            np.asarray(problem.store.features)[kept],
            problem.label[kept],
            np.ones(len(kept)),
            problem.queries,
            capacity=CAPACITY,
        )
        expected = predict(name, subset, train(name, subset))
        probs = predict(name, problem, train(name, problem))
        np.testing.assert_allclose(probs, expected, rtol=1e-5, atol=1e-6)


def seeds_of(name, num=3):
    """Parameters, problem, labels, weights and keys of some seeds."""
    problem = clusters()
    rng = np.random.default_rng(2)
    label = np.stack([problem.label] * num)
    label[:, :NUM_ROWS] = rng.integers(0, K, (num, NUM_ROWS))
    weight = np.zeros((num, CAPACITY), np.float32)
    weight[:, :NUM_ROWS] = rng.random((num, NUM_ROWS)) < [[0.2], [0.6], [1.0]]
    factor = np.array([0.1, 1.0, 10.0], np.float32)
    params = jax.tree.map(lambda x: x * factor, learner_of(name).params)
    return params, problem, label, weight, jax.random.split(key(5), num)


def many(name, params, problem, label, weight, init_keys, arrival=0):
    return _many(
        static(learner_of(name)),
        problem.spec,
        params,
        problem.examples(arrival, label=label, weight=weight),
        problem.store,
        problem.queries,
        init_keys,
        key(1),
    )


@every_learner
def test_seeds_under_vmap_are_seeds_in_a_loop(name):
    params, problem, label, weight, init_keys = seeds_of(name)
    models, probs = many(name, params, problem, label, weight, init_keys)
    for i in range(3):
        arguments = (static(learner_of(name)), problem.spec, at(params, i))
        model = _fit(
            *arguments,
            _init(*arguments, init_keys[i]),
            problem.examples(0, label=label[i], weight=weight[i]),
            init_keys[i],
            key(1),
        )
        # Adam divides by the size of gradients, however small they are.
        assert_close(at(models, i), model, 1e-3, 1e-4)
        expected = predict(name, problem, model)
        np.testing.assert_allclose(probs[i], expected, rtol=1e-4, atol=1e-5)
    assert differ(probs[0], probs[1])


def test_learning_rates_under_one_vmap_are_separate_runs():
    """Same seed, same labels: only the rate differs."""
    params, problem, label, weight, init_keys = seeds_of("mlp")
    label, weight = np.stack([label[1]] * 3), np.stack([weight[1]] * 3)
    init_keys = jnp.stack([init_keys[0]] * 3)
    models, _ = many("mlp", params, problem, label, weight, init_keys)
    start = _init(
        static(learner_of("mlp")), problem.spec, {"learning_rate": 0.0}, init_keys[0]
    )
    moved = []
    for i, rate in enumerate(params["learning_rate"]):
        model = at(models, i)
        learner = mlp((8, 5), learning_rate=float(rate), training=TRAINING)
        alone = _fit(
            static(learner_of("mlp")),
            problem.spec,
            learner.params,
            _init(
                static(learner_of("mlp")), problem.spec, learner.params, init_keys[0]
            ),
            problem.examples(0, label=label[0], weight=weight[0]),
            init_keys[0],
            key(1),
        )
        assert_close(model, alone, 1e-3, 1e-4)
        steps = jax.tree.map(np.subtract, model.weights, start.weights)
        moved.append(sum(np.abs(x).sum() for x in jax.tree.leaves(steps)))
    assert moved[0] < 0.5 * moved[1] < 0.25 * moved[2]


# --- compilation -------------------------------------------------------------------

_compilations = collections.Counter()


def _count(event, duration, **_):
    del duration
    _compilations[event] += 1


@pytest.fixture
def compilations():
    """Counts, by event, what JAX traces and compiles."""
    _compilations.clear()
    jax.monitoring.register_event_duration_secs_listener(_count)
    yield _compilations
    jax.monitoring.unregister_event_duration_listener(_count)


@every_learner
def test_a_second_call_compiles_nothing(name, compilations):
    """Other data, masks, keys, arrival and rate; and the same learner built again."""
    params, problem, label, weight, init_keys = seeds_of(name)
    other = clusters(9)
    rates = jax.tree.map(lambda x: x * 2, params)
    keys = [key(i) for i in range(4)]

    def work(learner, params, problem, label, arrival, init_key, order_key):
        arguments = (static(learner), problem.spec, learner.params)
        examples = problem.examples(arrival)
        model = _init(*arguments, init_key)
        model = _fit(*arguments, model, examples, init_key, order_key)
        _predict(*arguments, model, problem.store, problem.queries)
        examples = problem.examples(arrival, label=label, weight=weight)
        data = (examples, problem.store, problem.queries, init_keys, order_key)
        return jax.block_until_ready(_many(*arguments[:2], params, *data))

    learner, again = learner_of(name), MAKERS[name]()
    if params:
        again = again._replace(params=jax.tree.map(lambda _: 0.5, again.params))
    work(learner, params, problem, label, 0, keys[0], keys[1])
    compilations.clear()
    work(learner, rates, other, label[::-1], 5, keys[2], keys[3])
    assert not compilations, "with other data"
    work(again, rates, other, label[::-1], 5, keys[2], keys[3])
    assert not compilations, "with an equal learner"


def test_the_counter_of_compilations_counts(compilations):
    jax.jit(lambda x: x * 3 + 1)(np.float32(2))
    assert any("compile" in event for event in compilations)


@every_learner
def test_equal_arguments_give_the_same_functions(name):
    first, second = MAKERS[name](), MAKERS[name]()
    for part in ("init", "fit", "predict_proba", "preparation"):
        assert getattr(first, part) is getattr(second, part), part
    # `jax.jit` and `rad_jax.rad` tell learners apart by all that is static of them.
    assert static(first) == static(second)
    assert hash(static(first)) == hash(static(second))


@every_learner
def test_equal_learners_make_the_same_algorithm(name):
    first, second = (
        rad_jax.rad(
            classifier=MAKERS[name](),
            selection=rad_jax.basic(),
            num_classes=K,
            memory_capacity=8,
        )
        for _ in range(2)
    )
    assert first.step is second.step


def test_different_arguments_give_different_functions():
    assert mlp((8,)).fit is not mlp((9,)).fit
    assert mlp(training=Training(steps=3)).fit is not mlp().fit
    assert knn(3).fit is not knn(4).fit
    assert knn(3).predict_proba is not knn(3, weighting="distance").predict_proba
    assert knn(3).preparation.name == knn(4).preparation.name
    assert knn(3).preparation.name != knn(3, num_candidates=9).preparation.name
    # A rate is a number like any other: no reason to compile again.
    assert mlp(learning_rate=0.1).fit is mlp(learning_rate=0.2).fit


# --- memory ------------------------------------------------------------------------


def taken(tree):
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


@pytest.mark.parametrize(
    ("num_rows", "width", "minibatch_size"),
    [(1000, 64, 64), (1000, 64, 200), (30_000, 20, 100)],
)
def test_stated_bytes_of_an_mlp_are_what_the_compiler_plans(
    num_rows, width, minibatch_size
):
    seeds = 16
    learner = mlp(training=Training(minibatch_size=minibatch_size))
    spec = Spec((width,), 11, num_rows)

    def train(model, features, label, kept, seed_key):
        data = Examples(
            features=features,
            row_id=jnp.arange(num_rows),
            valid=jnp.ones(num_rows, bool),
            arrival=jnp.ones((), jnp.int32),
            label=label,
            weight=kept.astype(jnp.float32),
            prepared={},
        )
        keys = {"init_key": seed_key, "order_key": seed_key}
        return learner.fit(spec, learner.params, model, data, **keys)

    def shape(dtype, *sizes):
        return jax.ShapeDtypeStruct(sizes, dtype)

    one_key = jax.eval_shape(lambda: jax.random.key(0))
    models = jax.eval_shape(
        lambda k: jax.vmap(lambda k: learner.init(spec, learner.params, k))(
            jax.random.split(k, seeds)
        ),
        one_key,
    )
    planned = (
        jax.jit(jax.vmap(train, (0, None, 0, 0, None)), donate_argnums=0)
        .lower(
            models,
            shape(jnp.float32, num_rows, width),
            shape(jnp.int16, seeds, num_rows),
            shape(jnp.bool_, seeds, num_rows),
            one_key,
        )
        .compile()
        .memory_analysis()
    )
    measured = planned.temp_size_in_bytes + planned.output_size_in_bytes
    assert 0.75 < seeds * learner.bytes(spec, 0) / measured < 1.25


@every_learner
@pytest.mark.parametrize(
    "spec", [Spec((115,), 11, 20_000), Spec((8, 8), 10, 1_000)], ids=["iot", "digits"]
)
@pytest.mark.parametrize("num_queries", [100, 3000])
def test_stated_bytes_are_within_reason(name, spec, num_queries):
    """At least model and answers; at most a few times that and a block of work."""
    learner = nearest_of = learner_of(name)
    if name in ("network", "normalising"):
        module = {"network": TwoLayers, "normalising": Normalising}[name]
        nearest_of = network(module(spec.num_classes), OPTIMIZER)
    stated = nearest_of.bytes(spec, num_queries)
    assert isinstance(stated, int)
    model = jax.eval_shape(
        lambda k: nearest_of.init(spec, learner.params, k), jax.random.key(0)
    )
    answers = num_queries * spec.num_classes * 4
    assert stated >= taken(model) + answers
    block = 4096 * 4 * (np.prod(spec.feature_shape) + spec.num_classes)
    assert stated <= 6 * (taken(model) + answers) + 2 * block


# --- networks ----------------------------------------------------------------------


class Plain(nn.Module):
    """No bias, weights 0 at first: a row moves only the weights of its features."""

    num_classes: int

    @nn.compact
    def __call__(self, x):
        zeros = nn.initializers.zeros
        return nn.Dense(self.num_classes, use_bias=False, kernel_init=zeros)(x)


PLAIN, SGD = Plain(K), optax.sgd(0.5)


def minibatches(num_steps, minibatch_size, *, weight=None, order=1, num_rows=NUM_ROWS):
    """Rows of each minibatch, found by training on rows that share no feature.

    Refitting at arrival t takes t + 1 steps from zero weights: what moves last in
    them belongs to the rows of the last minibatch.
    """
    learner = network(
        PLAIN, SGD, training=Training("refit", 1, 1, minibatch_size), name="probe"
    )
    rows = np.eye(CAPACITY)[:num_rows]
    label = np.arange(num_rows) % K
    kept = np.ones(num_rows) if weight is None else weight[:num_rows]
    problem = problem_of(rows, label, kept, rows[:1], capacity=CAPACITY)
    start = before = _init(static(learner), problem.spec, learner.params, key(0))
    found = []
    for t in range(num_steps):
        after = fit("", problem, start, arrival=t, order=order, learner=learner)
        change = jax.tree.map(np.subtract, after.weights, before.weights)
        found.append(np.flatnonzero(np.abs(change["Dense_0"]["kernel"]).sum(axis=1)))
        before = after
    return found


def test_minibatches_go_through_all_rows_in_a_new_order_each_epoch():
    found = minibatches(9, 16)
    assert [len(rows) for rows in found] == [16, 16, 8] * 3
    epochs = [np.concatenate(found[i : i + 3]) for i in (0, 3, 6)]
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch), np.arange(NUM_ROWS))
    assert set(found[0]) != set(found[3])
    assert set(found[3]) != set(found[6])
    assert set(minibatches(1, 16, order=2)[0]) != set(found[0])


@pytest.mark.parametrize("size", [40, 64])
def test_a_minibatch_may_hold_all_rows(size):
    for rows in minibatches(3, size):
        np.testing.assert_array_equal(rows, np.arange(NUM_ROWS))


def test_minibatches_do_not_depend_on_what_is_kept():
    weight = clusters().weight
    for rows, kept in zip(
        minibatches(6, 16), minibatches(6, 16, weight=weight), strict=True
    ):
        np.testing.assert_array_equal(kept, rows[weight[rows] > 0])


def forward(layers, x):
    """Activations before each layer, and logits."""
    inputs = []
    for i, (kernel, bias) in enumerate(layers):
        inputs.append(x)
        x = x @ kernel + bias
        if i < len(layers) - 1:
            x = np.maximum(x, 0.0)
    return inputs, x


def softmax(logits):
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def mlp_by_hand(layers, batches, x, y, rate):
    """ReLU network, mean cross-entropy, Adam; double precision, written out.

    `layers`: list of [kernel, bias]; the mean is over the rows of each batch.
    """
    first = [[np.zeros_like(w) for w in layer] for layer in layers]
    second = [[np.zeros_like(w) for w in layer] for layer in layers]
    layers = [list(layer) for layer in layers]
    for t, rows in enumerate(batches, start=1):
        inputs, logits = forward(layers, x[rows])
        delta = (softmax(logits) - np.eye(K)[y[rows]]) / len(rows)
        gradients = []
        for i in reversed(range(len(layers))):
            gradients.insert(0, [inputs[i].T @ delta, delta.sum(axis=0)])
            delta = (delta @ layers[i][0].T) * (inputs[i] > 0)
        for i, gradient in enumerate(gradients):
            for j, g in enumerate(gradient):
                first[i][j] = 0.9 * first[i][j] + 0.1 * g
                second[i][j] = 0.999 * second[i][j] + 0.001 * g**2
                m, v = first[i][j] / (1 - 0.9**t), second[i][j] / (1 - 0.999**t)
                layers[i][j] = layers[i][j] - rate * m / (np.sqrt(v) + 1e-8)
    return layers


def layers_of(weights):
    """[kernel [D, H], bias [H]] of each layer of an MLP."""
    layers = [weights[name] for name in sorted(weights)]
    return [
        [np.asarray(layer["kernel"].T, np.float64), np.asarray(layer["bias"], float)]
        for layer in layers
    ]


def kept_minibatches(num_steps, weight):
    batches = [rows[weight[rows] > 0] for rows in minibatches(num_steps, 16)]
    return [rows for rows in batches if len(rows)]


def flat_data(problem):
    x = np.asarray(problem.store.features, np.float64).reshape(CAPACITY, -1)
    return x, problem.label.astype(int)


@pytest.mark.parametrize("keep", [1.0, 0.6, 0.06])
def test_mlp_trains_as_written_out_over_the_kept_rows_alone(keep):
    problem = clusters(3, keep=keep)
    start = init("mlp", problem)
    model = fit("mlp", problem, start)
    batches = kept_minibatches(12, problem.weight)
    if keep < 0.1:
        assert 0 < len(batches) < 12  # steps without a kept row are no steps
    assert int(model.steps) == len(batches)
    expected = mlp_by_hand(
        layers_of(start.weights), batches, *flat_data(problem), rate=0.01
    )
    for layer, by_hand in zip(layers_of(model.weights), expected, strict=True):
        for weights, other in zip(layer, by_hand, strict=True):
            np.testing.assert_allclose(weights, other, atol=2e-4)
    x = problem.queries.reshape(NUM_QUERIES, -1)
    np.testing.assert_allclose(
        predict("mlp", problem, model), softmax(forward(expected, x)[1]), atol=1e-3
    )


def test_an_mlp_classifies_many_rows_as_it_does_few():
    """In pieces on CPU, the last of which is not full."""
    learner, spec = rad_jax.mlp((6,)), Spec((3,), 4, 10)
    keys = jax.random.split(jax.random.key(0), 2)
    models = jax.vmap(lambda key: learner.init(spec, {}, key))(keys)
    rows = np.random.default_rng(0).normal(size=(1300, 3)).astype(np.float32)

    def classify(rows):
        return jax.vmap(
            lambda m: learner.predict_proba(spec, {}, m, None, Queries(rows, {}))
        )(models)

    few = [classify(rows[i : i + 130]) for i in range(0, 1300, 130)]
    np.testing.assert_allclose(
        jax.jit(classify)(rows), np.concatenate(few, axis=1), rtol=1e-5
    )


def test_a_network_trains_alike_whichever_slots_hold_its_rows():
    """Slots without a row, anywhere, take no part in the order of minibatches."""
    rng = np.random.default_rng(0)
    held = np.sort(rng.choice(30, 13, replace=False))
    rows, label = rng.normal(size=(13, 3)), rng.integers(0, 4, 13)
    weight = rng.random(13) < 0.7
    learner = rad_jax.mlp((6,), training=Training(minibatch_size=5, initial_steps=9))
    spec = Spec((3,), 4, 30)
    start = learner.init(spec, learner.params, key(0))

    @jax.jit
    def weights(slots):
        examples = Examples(
            features=jnp.full((30, 3), 1e3).at[slots].set(rows),
            row_id=jnp.full(30, -1).at[slots].set(jnp.arange(13)),
            valid=jnp.zeros(30, bool).at[slots].set(True),
            arrival=jnp.zeros((), jnp.int32),
            label=jnp.zeros(30, jnp.int32).at[slots].set(label),
            weight=jnp.ones(30).at[slots].set(weight),
            prepared={},
        )
        return learner.fit(
            spec, learner.params, start, examples, init_key=key(0), order_key=key(1)
        ).weights

    scattered, together = weights(held), weights(np.arange(13))
    chex.assert_trees_all_equal(scattered, together)
    changed = jax.tree.map(lambda a, b: (a != b).any(), scattered, start.weights)
    assert all(jax.tree.leaves(changed))


@pytest.mark.parametrize("keep", [0.6, 0.06])
def test_network_trains_as_a_plain_optax_loop_over_the_kept_rows_alone(keep):
    problem = clusters(4, keep=keep)
    x, y = flat_data(problem)
    x = x.astype(np.float32)

    @jax.jit
    def step(weights, state, x, y):
        def loss(w):
            logits = jnp.tanh(x @ w["inner"]["kernel"]) @ w["outer"]["kernel"]
            logits = logits + w["outer"]["bias"][None, :]
            own = jnp.arange(len(y)), y
            return -jnp.mean(jax.nn.log_softmax(logits)[own])

        change, state = OPTIMIZER.update(jax.grad(loss)(weights), state, weights)
        return optax.apply_updates(weights, change), state

    model = init("network", problem)
    weights, state, steps = model.weights, OPTIMIZER.init(model.weights), 0
    for arrival in range(2):  # 12 steps, then 7 more
        model = fit("network", problem, model, arrival=arrival)
        for rows in kept_minibatches((12, 7)[arrival], problem.weight):
            weights, state = step(weights, state, x[rows], y[rows])
            steps += 1
        assert_close(model.weights, weights, 1e-4, 1e-5)
        assert_close(model.optimizer, state, 1e-4, 1e-5)
        assert int(model.steps) == steps


@every_network
def test_minibatches_without_a_kept_row_are_no_steps(name):
    problem = clusters()
    weight = np.zeros(CAPACITY)
    weight[17] = 1.0
    model = init(name, problem)
    # 40 rows in minibatches of 16: one in three holds the row, 12 steps, 4 epochs.
    model = fit(name, problem, model, weight=weight)
    assert int(model.steps) == 4


@every_network
def test_continue_takes_the_stated_steps_from_the_present_model(name):
    problem = clusters(keep=1.0)
    model, total = init(name, problem), 0
    for arrival in range(3):
        before = model
        model = fit(name, problem, model, arrival=arrival, order=arrival)
        total += learner_of(name).steps(arrival)
        assert int(model.steps) == total
        assert differ(model.weights, before.weights)
    assert total == 12 + 7 + 7
    assert differ(fit(name, problem, init(name, problem), arrival=2, order=2), model)


def refitting(name):
    training = TRAINING._replace(mode="refit")
    if name == "mlp":
        return mlp([8, 5], learning_rate=0.01, training=training)
    turn = {"seeds_in_turn": True} if name == "normalising" else {}
    module = {"network": MODULE, "normalising": NORMALISING}[name]
    return network(module, OPTIMIZER, training=training, **turn)


@every_network
def test_refit_starts_again_from_the_initial_weights(name):
    problem, learner = clusters(keep=1.0), refitting(name)
    start = init(name, problem, seed=6)
    first = fit(name, problem, start, seed=6, learner=learner)
    assert_identical(first, fit(name, problem, start, seed=6))  # as "continue" does
    other = train(name, clusters(5), seed=7)
    for arrival in range(3):
        after_first, after_other = (
            fit(name, problem, model, arrival=arrival, seed=6, learner=learner)
            for model in (first, other)
        )
        assert_identical(after_first, after_other)
        assert int(after_first.steps) == learner.steps(arrival) == 12 + 7 * arrival
    assert differ(fit(name, problem, first, seed=8, learner=learner), first)
    # With nothing to refit on, the model stays as it came.
    nothing = np.zeros(CAPACITY)
    after = fit(name, problem, other, arrival=1, learner=learner, weight=nothing)
    assert_identical(after, other)


def test_refit_trains_as_written_out_with_all_the_steps():
    problem, learner = clusters(3), refitting("mlp")
    other = train("mlp", clusters(5), seed=7)
    model = fit("mlp", problem, other, arrival=2, learner=learner)
    expected = mlp_by_hand(
        layers_of(init("mlp", problem).weights),
        kept_minibatches(12 + 2 * 7, problem.weight),
        *flat_data(problem),
        rate=0.01,
    )
    for layer, by_hand in zip(layers_of(model.weights), expected, strict=True):
        for weights, hand in zip(layer, by_hand, strict=True):
            np.testing.assert_allclose(weights, hand, atol=1e-3)


def test_steps_at_takes_ints_and_arrays():
    for mode, expected in (("continue", [9, 2, 2]), ("refit", [9, 11, 13])):
        training = Training(mode, steps=2, initial_steps=9)
        for arrival in range(3):
            assert training.steps_at(arrival) == expected[arrival]
            assert isinstance(training.steps_at(arrival), int)
            assert int(training.steps_at(jnp.int32(arrival))) == expected[arrival]


def test_cross_entropy_is_the_weighted_mean():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(9, K)).astype(np.float32)
    label = rng.integers(0, K, 9)
    weight = rng.random(9).astype(np.float32) * (rng.random(9) < 0.7)
    each = -np.log(softmax(logits.astype(np.float64))[np.arange(9), label])
    expected = (each * weight).sum() / weight.sum()
    got = weighted_cross_entropy(logits, label, weight)
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    assert float(weighted_cross_entropy(logits, label, 0 * weight)) == 0.0


cross_entropy_gradient = jax.jit(jax.grad(weighted_cross_entropy))


@pytest.mark.parametrize("scale", [1.0, 1e4, 1e30])
@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0])
def test_gradients_are_finite_and_those_of_the_subset(scale, keep):
    rng = np.random.default_rng(1)
    logits = (scale * rng.normal(size=(12, K))).astype(np.float32)
    weight = (np.arange(12) < 12 * keep).astype(np.float32)
    label = np.where(weight > 0, rng.integers(0, K, 12), -1)
    gradient = cross_entropy_gradient(logits, label, weight)
    assert np.isfinite(gradient).all()
    kept = weight > 0
    np.testing.assert_array_equal(gradient[~kept], 0.0)
    if keep:
        expected = (softmax(logits[kept]) - np.eye(K)[label[kept]]) / kept.sum()
        np.testing.assert_allclose(gradient[kept], expected, atol=1e-6)


@every_network
def test_far_features_train_to_finite_weights(name):
    problem = clusters()
    features = np.array(problem.store.features) * 1e6
    model = train(name, problem, features=features)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(model))


def test_a_function_can_make_the_module_for_any_number_of_classes():
    learner = network(TwoLayers, OPTIMIZER, training=TRAINING)
    for num_classes in (2, 5):
        spec = Spec(SHAPE, num_classes, CAPACITY)
        model = jax.eval_shape(lambda k: learner.init(spec, {}, k), key(0))  # noqa: B023
        assert model.weights["outer"]["kernel"].shape == (6, num_classes)


# --- nearest neighbours -------------------------------------------------------------


class Neighbours(NamedTuple):
    """What KNN must answer, and where other implementations may differ."""

    probs: np.ndarray  # [Q, K]
    tied_distance: np.ndarray  # [Q] the k-th and the next voter are equally far
    tied_votes: np.ndarray  # [Q] two classes have the most votes


def knn_by_hand(problem, k, weighting):
    """Row by row, in double precision: sorted by (distance, order of arrival)."""
    voters = np.flatnonzero((problem.weight > 0) & np.asarray(problem.store.valid))
    rows = np.asarray(problem.store.features, np.float64).reshape(
        len(problem.label), -1
    )
    num_classes = problem.spec.num_classes
    probs, tied_distance, tied_votes = [], [], []
    for query in problem.queries.reshape(len(problem.queries), -1).astype(np.float64):
        distance2 = ((rows[voters] - query) ** 2).sum(axis=1)
        order = np.lexsort((voters, distance2))
        nearest_, further = order[:k], order[k:]
        votes = np.zeros(num_classes)
        at_query = distance2[nearest_] == 0
        for i, here in zip(nearest_, at_query, strict=True):
            if weighting == "uniform":
                weight = 1.0
            elif at_query.any():
                weight = float(here)
            else:
                weight = 1.0 / np.sqrt(distance2[i])
            votes[problem.label[voters[i]]] += weight
        if not len(voters):
            votes += 1.0
        probs.append(votes / votes.sum())
        tied_distance.append(
            len(further) > 0
            and np.isclose(distance2[further[0]], distance2[nearest_[-1]], rtol=1e-5)
        )
        two = np.sort(votes)[-2:]
        tied_votes.append(np.isclose(two[0], two[1], rtol=1e-4))
    return Neighbours(*map(np.array, (probs, tied_distance, tied_votes)))


def knn_probs(learner, problem):
    """As `predict`, for a learner that isn't one of the contract's."""
    arguments = (static(learner), problem.spec, learner.params)
    model = _init(*arguments, key(0))
    model = _fit(*arguments, model, problem.examples(), key(0), key(1))
    probs = np.asarray(_predict(*arguments, model, problem.store, problem.queries))
    assert_probabilities(probs, len(problem.queries), problem.spec.num_classes)
    return probs


def digits_problem(keep, num_rows=400, seed=0):
    """Whole numbers 0..16 of 64 pixels: equal distances occur; 40% wrong labels."""
    rng = np.random.default_rng(seed)
    x, y = load_digits(return_X_y=True)
    rows = rng.permutation(len(x))[: num_rows + 150]
    stored, asked = rows[:num_rows], rows[num_rows:].copy()
    asked[:20] = stored[:20]  # queries at distance 0
    label = np.where(
        rng.random(num_rows) < 0.4, rng.integers(0, 10, num_rows), y[stored]
    )
    kept = rng.random(num_rows) < keep
    return problem_of(x[stored], label, kept, x[asked], num_classes=10)


def random_problem(keep, num_rows=400, seed=0):
    """64 real features, labels at random, some rows twice under other labels."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_rows, 64)).astype(np.float32)
    x[num_rows // 2 :: 4] = x[: num_rows // 2 : 4]
    queries = rng.normal(size=(150, 64)).astype(np.float32)
    queries[:20] = x[:20]
    kept = rng.random(num_rows) < keep
    label = rng.integers(0, 10, num_rows)
    return problem_of(x, label, kept, queries, num_classes=10)


def coarse_problem(keep, num_rows=400, seed=0):
    """A grid of few points: nearly all distances and votes are tied."""
    rng = np.random.default_rng(seed)
    x = np.zeros((num_rows, 64), np.float32)
    x[:, :3] = rng.integers(0, 4, (num_rows, 3))
    queries = np.zeros((150, 64), np.float32)
    queries[:, :3] = rng.integers(0, 8, (150, 3)) / 2
    kept = rng.random(num_rows) < keep
    label = rng.integers(0, 10, num_rows)
    return problem_of(x, label, kept, queries, num_classes=10)


KNN_CASES = [(1, "uniform"), (3, "uniform"), (5, "uniform"), (4, "distance")]


@pytest.mark.parametrize(("k", "weighting"), KNN_CASES)
@pytest.mark.parametrize("data", [digits_problem, random_problem, coarse_problem])
def test_knn_is_scikit_learns_and_its_ties_are_as_stated(data, k, weighting):
    learner = knn(k, weighting=weighting, num_candidates=16)
    compared = 0
    for keep in (1.0, 0.5, 0.1):
        problem = data(keep, seed=int(10 * keep))
        probs = knn_probs(learner, problem)
        expected = knn_by_hand(problem, k, weighting)
        np.testing.assert_allclose(probs, expected.probs, rtol=1e-4, atol=1e-5)
        clear = ~expected.tied_votes
        if weighting == "uniform":  # equal votes are exactly equal: the lowest class
            clear[:] = True
        np.testing.assert_array_equal(
            probs.argmax(axis=1)[clear], expected.probs.argmax(axis=1)[clear]
        )
        kept = problem.weight > 0
        theirs = KNeighborsClassifier(k, weights=weighting, algorithm="brute")
        theirs.fit(np.asarray(problem.store.features)[kept], problem.label[kept])
        clear = ~expected.tied_distance & ~expected.tied_votes
        compared += clear.sum()
        np.testing.assert_array_equal(
            probs.argmax(axis=1)[clear], theirs.predict(problem.queries)[clear]
        )
    if data is not coarse_problem:
        assert compared > 100  # of 450
    else:
        assert compared < 300


def test_knn_equal_votes_go_to_the_lowest_class():
    rows = np.array([[1.0], [-1.0], [2.0], [-2.0]])
    for weighting in ("uniform", "distance"):
        problem = problem_of(rows, [3, 1, 1, 3], np.ones(4), [[0.0]])
        probs = knn_probs(knn(4, weighting=weighting, num_candidates=4), problem)
        np.testing.assert_allclose(probs, [[0, 0.5, 0, 0.5]])
        assert probs.argmax() == 1


def test_knn_takes_equally_far_rows_in_order_of_arrival():
    rows = np.array([[1.0], [-1.0], [1.0], [-1.0], [1.0]])
    for label in ([0, 1, 2, 3, 3], [3, 2, 1, 0, 0]):
        problem = problem_of(rows, label, np.ones(5), [[0.0]])
        for k in (1, 2):
            probs = knn_probs(knn(k, num_candidates=3), problem)
            np.testing.assert_allclose(probs[0, label[:k]], 1 / k)
        dropped = problem._replace(weight=np.array([0, 1, 0, 1, 1], np.float32))
        probs = knn_probs(knn(1, num_candidates=3), dropped)
        assert probs[0].argmax() == label[1]


@pytest.mark.parametrize("weighting", ["uniform", "distance"])
def test_knn_with_fewer_kept_rows_than_k_lets_all_vote(weighting):
    learner = knn(9, weighting=weighting, num_candidates=16)
    for num_kept in (1, 2, 8):
        problem = random_problem(0.0)
        weight = problem.weight.copy()
        weight[np.random.default_rng(num_kept).permutation(400)[:num_kept]] = 1.0
        problem = problem._replace(weight=weight)
        expected = knn_by_hand(problem, 9, weighting).probs
        np.testing.assert_allclose(knn_probs(learner, problem), expected, rtol=1e-4)


@pytest.mark.parametrize("weighting", ["uniform", "distance"])
def test_knn_without_a_kept_row_finds_all_classes_equal(weighting):
    learner = knn(9, weighting=weighting, num_candidates=16)
    np.testing.assert_allclose(knn_probs(learner, random_problem(0.0)), 0.1)


@pytest.mark.parametrize(("capacity", "weighting"), [(1, "uniform"), (6, "distance")])
def test_knn_in_a_memory_smaller_than_k(capacity, weighting):
    """Or than the lists."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(capacity, 2))
    label = rng.integers(0, K, capacity)
    kept = np.arange(capacity) != 1
    problem = problem_of(rows, label, kept, rng.normal(size=(5, 2)))
    probs = knn_probs(knn(5, weighting=weighting), problem)
    expected = knn_by_hand(problem, 5, weighting).probs
    np.testing.assert_allclose(probs, expected, rtol=1e-4)


def voters_in_lists(problem, num_candidates):
    preparation = nearest.neighbour_lists(num_candidates)
    lists = jax.jit(preparation.build)((), problem.store, problem.queries)
    kept = np.append(problem.weight > 0, False)
    return kept[np.asarray(lists.slot)].sum(axis=0)


def guarded(seed, num_queries=30, num_near=12):
    """Each query is surrounded by dropped rows; those that are kept are far away."""
    rng = np.random.default_rng(seed)
    queries = 10 * rng.normal(size=(num_queries, 5))
    near = queries[:, None] + 0.1 * rng.normal(size=(num_queries, num_near, 5))
    far = 10 * rng.normal(size=(200, 5))
    rows = np.concatenate([near.reshape(-1, 5), far])
    kept = np.arange(len(rows)) >= len(rows) - 200
    order = rng.permutation(len(rows))
    label = rng.integers(0, K, len(rows))
    return problem_of(rows[order], label[order], kept[order], queries)


@pytest.mark.parametrize(
    ("k", "weighting", "num_queries"),  # of which 8 are searched at a time
    [(1, "uniform", 30), (4, "distance", 3)],
)
def test_knn_searches_on_where_a_list_is_exhausted(k, weighting, num_queries):
    problem = guarded(1, num_queries)
    length = 8
    # Also queries whose lists do: they are far from all others.
    problem.queries[0] = (
        np.asarray(problem.store.features)[problem.weight > 0][7] + 0.01
    )
    found = voters_in_lists(problem, length)
    assert (found < k).sum() > 0.6 * num_queries
    probs = knn_probs(knn(k, weighting=weighting, num_candidates=length), problem)
    expected = knn_by_hand(problem, k, weighting).probs
    np.testing.assert_allclose(probs, expected, rtol=1e-4, atol=1e-5)


def test_knn_needs_the_search(monkeypatch):
    """Without it the answers above would be wrong, so it is taken there."""
    problem = guarded(1)
    learner = knn(4, num_candidates=8)
    expected = knn_by_hand(problem, 4, "uniform").probs
    monkeypatch.setattr("rad_jax.learners.neighbours._complete", lambda *args: args[4])

    @jax.jit  # a program of its own
    def probabilities(examples, store, features):
        model = _train(learner, problem.spec, (), examples, key(0), key(1))
        lists = learner.preparation.build((), store, features)
        queries = Queries(features, {learner.preparation.name: lists})
        return learner.predict_proba(problem.spec, (), model, store, queries)

    probs = probabilities(problem.examples(), problem.store, problem.queries)
    assert (np.abs(probs - expected).max(axis=1) > 0.1).mean() > 0.5


@pytest.mark.parametrize("weighting", ["uniform", "distance"])
def test_knn_under_vmap_with_a_mask_per_seed(weighting):
    """None, some or all of the queries of a seed need the search; one keeps nothing."""
    k, length = 3, 8
    problem = guarded(2)
    rng = np.random.default_rng(0)
    n = problem.spec.capacity
    some = problem.weight.copy()
    some[: n // 2] = 1.0
    two = np.zeros(n, np.float32)
    two[[5, 77]] = 1.0
    weight = np.stack(
        [np.ones(n), problem.weight, np.zeros(n), some, two, rng.random(n) < 0.3]
    ).astype(np.float32)
    label = rng.integers(0, K, weight.shape).astype(np.int16)
    exhausted = [
        int((voters_in_lists(problem._replace(weight=w), length) < k).sum())
        for w in weight
    ]
    assert exhausted[0] == 0
    assert exhausted[1] > 25
    assert 0 < exhausted[3] < 25
    learner = knn(k, weighting=weighting, num_candidates=length)
    _, probs = _many(
        static(learner),
        problem.spec,
        (),
        problem.examples(label=label, weight=weight),
        problem.store,
        problem.queries,
        jax.random.split(key(0), 6),
        key(1),
    )
    for i in range(6):
        seed = problem._replace(label=label[i], weight=weight[i])
        expected = knn_by_hand(seed, k, weighting).probs
        np.testing.assert_allclose(probs[i], expected, rtol=1e-4, atol=1e-5)


def test_knn_under_vmaps_of_any_nesting():
    """Masks by features; features alone; all seeds' masks under one set of features."""
    k, length = 3, 8
    learner = knn(k, num_candidates=length)
    problems = [guarded(seed, num_queries=12) for seed in (3, 4)]
    n = problems[0].spec.capacity
    some = np.arange(n) < 20  # 3 of which are kept in some lists only
    weight = np.stack(
        [[p.weight, (p.weight + some > 0) * 1.0, 1.0 - p.weight] for p in problems]
    ).astype(np.float32)
    label = np.random.default_rng(0).integers(0, K, weight.shape).astype(np.int16)
    expected = [
        [
            knn_by_hand(problem._replace(label=a, weight=w), k, "uniform").probs
            for a, w in zip(label[i], weight[i], strict=True)
        ]
        for i, problem in enumerate(problems)
    ]

    def probabilities(store, features, label, weight):
        examples = problems[0].examples()
        examples = examples._replace(label=label, weight=weight)
        spec = problems[0].spec
        model = _train(learner, spec, (), examples, key(0), key(1))
        lists = learner.preparation.build((), store, features)
        queries = Queries(features, {learner.preparation.name: lists})
        return learner.predict_proba(spec, (), model, store, queries)

    first = problems[0].store, problems[0].queries
    both = jax.tree.map(
        lambda *x: jnp.stack(x), *((p.store, p.queries) for p in problems)
    )
    own = jax.vmap(probabilities, in_axes=(0, 0, 0, 0))
    masks = jax.vmap(probabilities, in_axes=(None, None, 0, 0))
    for function, arguments, answer in (
        (own, (*both, label[:, 0], weight[:, 0]), [e[0] for e in expected]),
        (jax.vmap(masks), (*both, label, weight), expected),
        (
            jax.vmap(masks, in_axes=(None, None, 0, 0)),
            (*first, label[:1].swapaxes(0, 1), weight[:1].swapaxes(0, 1)),
            [[e] for e in expected[0]],
        ),
    ):
        probs = jax.jit(function)(*arguments)
        np.testing.assert_allclose(probs, answer, rtol=1e-4, atol=1e-5)


def test_knn_searches_on_among_equal_rows_in_order_of_arrival():
    """In floating point, where equal rows must be at exactly equal distances."""
    rng = np.random.default_rng(0)
    distinct = rng.normal(size=(5, 37))
    rows = distinct[rng.integers(0, 5, 400)]
    kept = np.arange(400) >= 200
    label = rng.integers(0, K, 400)
    problem = problem_of(rows, label, kept, rng.normal(size=(21, 37)))
    assert (voters_in_lists(problem, 8) < 3).all()
    probs = knn_probs(knn(3, num_candidates=8), problem)
    expected = knn_by_hand(problem, 3, "uniform").probs
    np.testing.assert_allclose(probs, expected, rtol=1e-4)


def test_knn_weighs_equal_distances_far_below_one_alike():
    """Distances whose squares hardly exist in single precision."""
    rows = np.array([[1e-18], [2e-18], [-1e-18], [5.0]])
    problem = problem_of(rows, [2, 1, 2, 3], np.ones(4), [[0.0]])
    probs = knn_probs(knn(4, weighting="distance", num_candidates=4), problem)
    np.testing.assert_allclose(probs, [[0, 0.2, 0.8, 0]], atol=1e-5)


# --- nearest centroid ---------------------------------------------------------------


def centroid_by_hand(problem):
    """SPEC 7, double precision."""
    kept = problem.weight > 0
    rows = np.asarray(problem.store.features, np.float64).reshape(len(kept), -1)[kept]
    label = problem.label[kept]
    queries = problem.queries.astype(np.float64).reshape(len(problem.queries), -1)
    classes = sorted(set(label.tolist()))
    mean = {c: rows[label == c].mean(axis=0) for c in classes}
    own = [((x - mean[c]) ** 2).sum() for x, c in zip(rows, label, strict=True)]
    variance = np.mean(own)
    probs = np.zeros((len(queries), problem.spec.num_classes))
    for q, x in enumerate(queries):
        d2 = np.array([((x - mean[c]) ** 2).sum() for c in classes])
        e = np.exp(-(d2 - d2.min()) / (2 * variance))
        probs[q, classes] = e / e.sum()
    return probs


@pytest.mark.filterwarnings("ignore::Warning:sklearn")  # of its standard deviations
@pytest.mark.parametrize("data", [digits_problem, random_problem, coarse_problem])
def test_centroid_is_scikit_learns_and_its_probabilities_are_as_stated(data):
    for keep in (1.0, 0.3, 0.06):
        problem = data(keep, seed=int(10 * keep))
        probs = predict("nearest_centroid", problem, train("nearest_centroid", problem))
        assert_probabilities(probs, 150, 10)
        expected = centroid_by_hand(problem)
        np.testing.assert_allclose(probs, expected, rtol=1e-3, atol=1e-5)
        kept = problem.weight > 0
        theirs = NearestCentroid()
        theirs.fit(np.asarray(problem.store.features)[kept], problem.label[kept])
        two = np.sort(expected, axis=1)[:, -2:]
        clear = two[:, 1] - two[:, 0] > 1e-4
        assert clear.sum() > 100
        np.testing.assert_array_equal(
            probs.argmax(axis=1)[clear], theirs.predict(problem.queries)[clear]
        )


def test_centroid_far_from_the_origin():
    """Rows need not be centred."""
    problem = clusters()
    moved = problem_of(
        np.asarray(problem.store.features)[:NUM_ROWS] + 1000.0,
        problem.label[:NUM_ROWS],
        problem.weight[:NUM_ROWS],
        problem.queries + 1000.0,
        capacity=CAPACITY,
    )
    probs = predict("nearest_centroid", moved, train("nearest_centroid", moved))
    np.testing.assert_allclose(probs, centroid_by_hand(moved), atol=0.01)


def test_a_class_without_kept_rows_is_never_predicted():
    problem = clusters()
    weight = problem.weight * (problem.label != 1) * (problem.label != 3)
    model = train("nearest_centroid", problem, weight=weight)
    probs = predict("nearest_centroid", problem, model)
    assert_probabilities(probs)
    np.testing.assert_array_equal(probs[:, [1, 3]], 0.0)
    assert (probs[:, [0, 2]].max(axis=0) > 0).all()
    # Not even one whose mean, had it been 0, were the nearest.
    at_origin = problem._replace(queries=np.zeros_like(problem.queries))
    probs = predict("nearest_centroid", at_origin, model)
    np.testing.assert_array_equal(probs[:, [1, 3]], 0.0)
    # A class that is dropped later can't be predicted any longer.
    later = fit(
        "nearest_centroid", problem, train("nearest_centroid", problem), weight=weight
    )
    assert_identical(later, model)


def test_centroid_at_equal_distances_takes_the_lowest_class():
    rows = [[1.0], [1.0], [-1.0], [-1.0], [3.0]]
    problem = problem_of(rows, [3, 3, 1, 1, 0], [1, 1, 1, 1, 0], [[0.0]])
    probs = predict("nearest_centroid", problem, train("nearest_centroid", problem))
    np.testing.assert_allclose(probs, [[0, 0.5, 0, 0.5]])
    assert probs.argmax() == 1


def test_centroid_of_rows_without_spread_is_finite():
    problem = problem_of([[1.0], [2.0]], [2, 0], [1, 1], [[1.4], [1.6], [1.0]])
    probs = predict("nearest_centroid", problem, train("nearest_centroid", problem))
    assert_probabilities(probs, 3)
    np.testing.assert_array_equal(probs.argmax(axis=1), [2, 0, 2])


@pytest.mark.parametrize("block", [1, 7, 45, 100])
def test_centroid_in_blocks_of_any_size(monkeypatch, block):
    problem = clusters()
    expected = train("nearest_centroid", problem)
    monkeypatch.setattr(centroid, "_BLOCK_ROWS", block)
    learner = learner_of("nearest_centroid")
    model = jax.jit(
        lambda examples: _train(learner, problem.spec, (), examples, key(0), key(1))
    )(problem.examples())
    assert_close(model, expected)


# --- errors ------------------------------------------------------------------------


class Normalised(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.BatchNorm(use_running_average=True)(x.reshape(x.shape[0], -1))
        return nn.Dense(K)(x)


class OneLogit(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(K)(x.reshape(x.shape[0], -1))[:, 0]


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Normalised(), r"Normalised keeps the collections \['batch_stats'\]"),
        (TwoLayers(K + 1), r"TwoLayers maps .*to \[1, 5\].*\[1, 4\]"),
        (OneLogit(), r"OneLogit maps .*to \[1\].*\[1, 4\]"),
    ],
)
def test_modules_that_do_not_fit(module, message):
    learner = network(module, OPTIMIZER)
    spec = Spec(SHAPE, K, CAPACITY)
    with pytest.raises(ValueError, match=message):
        learner.init(spec, {}, key(0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: knn(0), "k must be at least 1.* got 0"),
        (lambda: knn(-2), "k must be at least 1.* got -2"),
        (lambda: knn(5, num_candidates=4), "num_candidates .*k=5.* got 4"),
        (lambda: knn(5, weighting="gauss"), "'uniform' or 'distance'.* got 'gauss'"),
        (lambda: mlp((28, 0)), r"hidden .*at least 1.* got \(28, 0\)"),
        (lambda: mlp((-1,)), r"hidden .*at least 1.* got \(-1,\)"),
        (lambda: mlp(learning_rate=0.0), "learning_rate must .* got 0.0"),
        (lambda: mlp(learning_rate=-0.1), "learning_rate must .* got -0.1"),
        (lambda: mlp(learning_rate=float("nan")), "learning_rate must .* got nan"),
        (lambda: mlp(learning_rate=float("inf")), "learning_rate must .* got inf"),
        (lambda: mlp(training=Training(steps=0)), r"\bsteps must .* got 0"),
        (
            lambda: mlp(training=Training(initial_steps=-1)),
            "initial_steps must .* got -1",
        ),
        (
            lambda: network(MODULE, OPTIMIZER, training=Training(minibatch_size=0)),
            "minibatch_size must .* got 0",
        ),
        (
            lambda: network(MODULE, OPTIMIZER, training=Training(mode="again")),
            "mode must be one of .*continue.*refit.* got 'again'",
        ),
    ],
)
def test_arguments_out_of_range(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: knn(2.0), "k"),
        (lambda: knn(5, num_candidates=64.5), "num_candidates"),
        (lambda: mlp((28, 28.5)), "hidden"),
        (lambda: mlp(training=Training(steps=1e3)), "steps"),
        (lambda: random_forest(max_depth=2.5), "max_depth"),
        (lambda: random_forest("9"), "num_trees"),
        (lambda: linear_svm(max_cg=True), "max_cg"),
        (lambda: rbf_svm(num_landmarks=12.5), "num_landmarks"),
        (lambda: vgg(blocks=2.5), "blocks"),
    ],
)
def test_numbers_of_things_are_whole(make, name):
    with pytest.raises(TypeError, match=f"^{name} must be a whole number, got "):
        make()


def test_numpys_whole_numbers_are_whole():
    assert knn(np.int64(3)).fit is knn(3).fit
    assert mlp(np.array([5, 4])).fit is mlp((5, 4)).fit


def test_the_least_that_is_allowed():
    knn(1, num_candidates=1)
    mlp((1,), training=Training("continue", 1, 1, 1))
    mlp(())
    # Lists are long enough for any k unless told otherwise.
    knn(500)
