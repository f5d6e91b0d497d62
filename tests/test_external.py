"""Classifiers that are not JAX: the learner contract, and RAD around them by hand."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier

from rad_jax import (
    basic,
    datasets,
    from_sklearn,
    knn,
    nearest_centroid,
    noise,
    oracle_selection,
    rad,
    sweep,
    voting,
)
from rad_jax.learners.external import ExternalModel
from rad_jax.online import OnlineRad
from rad_jax.types import Batch, Examples, Queries, Spec

K = 4
SPEC = Spec(feature_shape=(2, 3), num_classes=K, capacity=40)
KEYS = {"init_key": jax.random.key(5), "order_key": jax.random.key(6)}


def rows(seed=0, classes=(0, 1, 3)):
    """Features ``[40, 2, 3]`` that tell the classes apart, some labels, all of it."""
    rng = np.random.default_rng(seed)
    label = rng.choice(classes, SPEC.capacity)
    features = rng.normal(size=(SPEC.capacity, 2, 3)) + label[:, None, None]
    return features.astype(np.float32), label


def examples(features, label, weight=None, valid=None):
    size = len(label)
    every = np.ones(size)
    return Examples(
        features=jnp.asarray(features),
        row_id=jnp.arange(size) + 100,
        valid=jnp.asarray(every if valid is None else valid, bool),
        arrival=jnp.zeros((), jnp.int32),
        label=jnp.asarray(label, jnp.int16),
        weight=jnp.asarray(every if weight is None else weight, jnp.float32),
        prepared={},
    )


def start(learner):
    return learner.init(SPEC, learner.params, KEYS["init_key"])


def fit(learner, model, stored):
    return learner.fit(SPEC, learner.params, model, stored, **KEYS)


def predict(learner, model, features):
    probs = learner.predict_proba(
        SPEC, learner.params, model, None, Queries(jnp.asarray(features), {})
    )
    assert probs.dtype == jnp.float32
    assert probs.shape == (len(features), K)
    np.testing.assert_allclose(np.sum(probs, axis=1), 1, atol=1e-6)
    return np.asarray(probs)


ESTIMATORS = {
    "tree": DecisionTreeClassifier(max_depth=3, random_state=0),
    "knn": KNeighborsClassifier(3),
    "pipeline": make_pipeline(StandardScaler(), LogisticRegression()),
    "calibrated": CalibratedClassifierCV(LinearSVC(random_state=0), cv=3),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_probabilities_are_the_estimators_own_on_the_kept_rows(name):
    features, label = rows()
    queries, _ = rows(1)
    rng = np.random.default_rng(2)
    weight, valid = rng.random(40) < 0.7, rng.random(40) < 0.9
    learner = from_sklearn(ESTIMATORS[name])
    model = fit(learner, start(learner), examples(features, label, weight, valid))

    kept = weight & valid
    alone = ESTIMATORS[name].fit(features.reshape(40, 6)[kept], label[kept])
    expected = np.zeros((40, K))
    expected[:, [0, 1, 3]] = alone.predict_proba(queries.reshape(40, 6))
    np.testing.assert_allclose(predict(learner, model, queries), expected, atol=1e-6)


def test_the_estimator_handed_in_stays_unfitted_and_may_change_later():
    features, label = rows()
    mine = DecisionTreeClassifier(max_depth=1, random_state=0)
    learner = from_sklearn(mine)
    mine.set_params(max_depth=5)
    model = fit(learner, start(learner), examples(features, label))
    assert not hasattr(mine, "classes_")
    assert model.estimator.get_depth() == 1


def test_without_a_fit_every_class_is_equally_probable():
    features, label = rows()
    learner = from_sklearn(DecisionTreeClassifier())
    model = start(learner)
    np.testing.assert_array_equal(predict(learner, model, features), 1 / K)
    again = fit(learner, model, examples(features, label, weight=np.zeros(40)))
    assert again is model


@pytest.mark.parametrize("mode", ["refit", "continue"])
def test_nothing_kept_returns_the_model_as_it_came(mode):
    features, label = rows()
    learner = from_sklearn(SGDClassifier(loss="log_loss"), mode=mode)
    model = fit(learner, start(learner), examples(features, label))
    assert fit(learner, model, examples(features, label, weight=np.zeros(40))) is model


def test_one_class_only_is_predicted_though_the_estimator_would_refuse_it():
    features, _ = rows()
    learner = from_sklearn(LogisticRegression())
    model = fit(learner, start(learner), examples(features, np.full(40, 2)))
    np.testing.assert_array_equal(
        predict(learner, model, features), np.eye(K)[[2] * 40]
    )


def test_a_fit_leaves_the_model_before_as_it_was():
    features, label = rows()
    for mode in ("refit", "continue"):
        learner = from_sklearn(SGDClassifier(loss="log_loss"), mode=mode)
        first = examples(features, label, weight=np.arange(40) < 20)
        model = fit(learner, start(learner), first)
        before = predict(learner, model, features)
        later = fit(learner, model, examples(features, (label + 1) % K))
        assert not np.array_equal(predict(learner, later, features), before)
        np.testing.assert_array_equal(predict(learner, model, features), before)


def test_continue_shows_the_estimator_what_is_new():
    features, label = rows()
    flat = features.reshape(40, 6)
    learner = from_sklearn(
        SGDClassifier(loss="log_loss", random_state=0), mode="continue"
    )
    alone = SGDClassifier(loss="log_loss", random_state=0)

    model = fit(learner, start(learner), examples(features, label, np.arange(40) < 25))
    alone.partial_fit(flat[:25], label[:25], classes=np.arange(K))
    # Row 3 comes with another label, row 4 is dropped, 25.. are new.
    label[3] = (label[3] + 1) % K
    weight = np.arange(40) != 4
    model = fit(learner, model, examples(features, label, weight))
    new = np.r_[3, 25:40]
    alone.partial_fit(flat[new], label[new])
    np.testing.assert_allclose(
        predict(learner, model, features), alone.predict_proba(flat), atol=1e-6
    )
    assert fit(learner, model, examples(features, label, weight)) is model


def test_random_states_that_are_unset_follow_the_key():
    features, label = rows()

    def importances(estimator, key):
        learner = from_sklearn(estimator)
        keys = KEYS | {"init_key": jax.random.key(key)}
        stored = examples(features, label)
        model = learner.fit(SPEC, (), start(learner), stored, **keys)
        forest = model.estimator
        forest = forest[-1] if hasattr(forest, "steps") else forest
        return forest.feature_importances_

    forest = RandomForestClassifier(5)
    np.testing.assert_array_equal(importances(forest, 1), importances(forest, 1))
    assert not np.array_equal(importances(forest, 1), importances(forest, 2))
    nested = make_pipeline(StandardScaler(), forest)
    np.testing.assert_array_equal(importances(nested, 1), importances(nested, 1))
    assert not np.array_equal(importances(nested, 1), importances(nested, 2))
    fixed = RandomForestClassifier(5, random_state=3)
    np.testing.assert_array_equal(importances(fixed, 1), importances(fixed, 2))


class Duck:
    """Neither scikit-learn's nor with parameters; says always the same."""

    def __init__(self, probs):
        self.probs = np.asarray(probs)

    def fit(self, features, label):
        self.size = len(features)

    def predict_proba(self, features):
        return np.tile(self.probs, (len(features), 1))


def test_a_classifier_of_no_known_family_works():
    features, label = rows()
    learner = from_sklearn(Duck([0.5, 0.25, 0.25]), name="duck")
    assert learner.name == "duck"
    model = fit(learner, start(learner), examples(features, label))
    np.testing.assert_array_equal(
        predict(learner, model, features)[0], [0.5, 0.25, 0, 0.25]
    )


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        ([0.5, 0.5], r"Duck\.predict_proba must return shape \[40, 3\]"),
        ([0.5, 0.9, 0.1], "sum to 1"),
        ([1.5, -0.5, 0], "sum to 1"),
        ([np.nan, 0.5, 0.5], r"sum to 1.*row 0 \(40 of 40 rows\)"),
    ],
)
def test_probabilities_that_are_none(probs, message):
    features, label = rows()
    learner = from_sklearn(Duck(probs))
    model = fit(learner, start(learner), examples(features, label))
    with pytest.raises(ValueError, match=message):
        predict(learner, model, features)


@pytest.mark.parametrize(
    ("estimator", "options", "error", "message"),
    [
        (SVC(), {}, TypeError, r"SVC.*CalibratedClassifierCV\(SVC.*probability=True"),
        (SGDClassifier(), {}, TypeError, "SGDClassifier gives no class probabilities"),
        (GaussianNB, {}, TypeError, r"write GaussianNB\(\)"),
        ("mlp", {}, TypeError, "must have a method fit, got 'mlp'"),
        (GaussianNB(), {"mode": "again"}, ValueError, "mode must be one of .*'again'"),
        (SVC(probability=True), {"mode": "continue"}, TypeError, "partial_fit"),
    ],
)
@pytest.mark.filterwarnings("ignore:The `probability` parameter:FutureWarning")
def test_bad_arguments(estimator, options, error, message):
    with pytest.raises(error, match=message):
        from_sklearn(estimator, **options)


def test_classes_out_of_range():
    class Strange(Duck):
        classes_ = np.array(["a", "b", "c"])

    features, label = rows()
    learner = from_sklearn(Strange([1, 0, 0]))
    with pytest.raises(
        ValueError, match=r"Strange\.classes_ must hold classes in 0\.\.3"
    ):
        fit(learner, start(learner), examples(features, label))


def test_a_model_is_a_node_without_leaves_that_survives_a_copy():
    features, label = rows()
    learner = from_sklearn(DecisionTreeClassifier())
    model = fit(learner, start(learner), examples(features, label))
    assert jax.tree.leaves({"model": model}) == []
    assert jax.tree.map(jnp.copy, (model, jnp.ones(2)))[0] is model
    copied = pickle.loads(pickle.dumps(model))
    assert isinstance(copied, ExternalModel)
    np.testing.assert_array_equal(
        predict(learner, copied, features), predict(learner, model, features)
    )


# --- inside RAD -----------------------------------------------------------------------

NUM_CLEAN, SIZE, NUM_BATCHES, NUM_TEST = 60, 40, 3, 100
CAPACITY = NUM_CLEAN + SIZE * NUM_BATCHES


@pytest.fixture(scope="module")
def digits():
    bunch = load_digits()
    x, y = (bunch.data / 16).astype(np.float32), bunch.target.astype(np.int32)
    rng = np.random.default_rng(0)
    wrong = rng.random(len(y)) < 0.4
    given = np.where(wrong, (y + rng.integers(1, 10, len(y))) % 10, y)
    given[:NUM_CLEAN] = y[:NUM_CLEAN]
    return x, y, given.astype(np.int32)


def batch(x, y, lo, hi):
    return Batch(
        jnp.asarray(x[lo:hi]),
        jnp.asarray(y[lo:hi]),
        jnp.ones(hi - lo, bool),
        jnp.arange(lo, hi, dtype=jnp.int32),
    )


def label_estimator():
    return DecisionTreeClassifier(max_depth=6, random_state=1)


def class_estimator():
    return RandomForestClassifier(5, random_state=2)


def by_hand(x, given, scheme, one_model, training_rows, validation_rows):
    """RAD as SPEC 2 to 4 tell it, with scikit-learn in plain Python.

    Yields, per arrival, the rows kept; in the end what is predicted on test rows.
    """
    made = [class_estimator] if one_model else [label_estimator, class_estimator]

    def trained(kept):
        return [make().fit(x[kept], given[kept]) for make in made]

    def probs(model, rows):
        out = np.zeros((len(rows), 10), np.float32)
        out[:, model.classes_] = model.predict_proba(x[rows])
        return out

    def measured(models):
        return [
            np.mean(
                [
                    oracles.argmax(p) == given[i]
                    for p, i in zip(
                        probs(model, validation_rows), validation_rows, strict=True
                    )
                ]
            )
            for model in models
        ]

    kept = list(training_rows)
    models = trained(kept)
    alpha_before = alpha = measured(models)
    for arrival in range(NUM_BATCHES):
        lo = NUM_CLEAN + arrival * SIZE
        new = np.arange(lo, lo + SIZE)
        decision = scheme(
            probs(models[0], new),
            probs(models[-1], new),
            given[new],
            [True] * SIZE,
            [-1] * SIZE,
        )
        kept += new[decision.keep].tolist()
        models = trained(kept)
        alpha_before, alpha = alpha, measured(models)
        yield decision.keep
    test = np.arange(len(x) - NUM_TEST, len(x))
    all_probs = [probs(model, test) for model in models]
    if one_model:
        yield [oracles.argmax(p) for p in all_probs[0]]
    else:
        yield oracles.algorithm_1(*all_probs, *alpha_before)[0]


@pytest.mark.parametrize("one_model", [False, True])
@pytest.mark.parametrize("scheme", ["basic", "voting"])
def test_rad_equals_a_plain_python_loop(digits, scheme, one_model):
    x, _, given = digits
    algo = rad(
        label_model=None if one_model else from_sklearn(label_estimator()),
        classifier=from_sklearn(class_estimator()),
        selection={"basic": basic, "voting": voting}[scheme](),
        num_classes=10,
        memory_capacity=CAPACITY,
    )
    state = algo.init(jax.random.key(0), batch(x, given, 0, NUM_CLEAN))
    stored = np.asarray(state.shared.memory.row_id)
    training = stored[stored >= 0]
    validation = np.setdiff1d(np.arange(NUM_CLEAN), training)
    assert len(validation) == 12  # a fifth, which alpha is measured on
    expected = by_hand(
        x, given, getattr(oracles, scheme), one_model, training, validation
    )
    first = state
    before = np.asarray(algo.predict(first, x[-NUM_TEST:]))
    for arrival in range(NUM_BATCHES):
        lo = NUM_CLEAN + arrival * SIZE
        state, info = algo.step(state, batch(x, given, lo, lo + SIZE))
        np.testing.assert_array_equal(info.keep, next(expected))
    np.testing.assert_array_equal(algo.predict(state, x[-NUM_TEST:]), next(expected))
    # The state from before is still what it was.
    np.testing.assert_array_equal(algo.predict(first, x[-NUM_TEST:]), before)


def test_beside_a_jax_learner_in_online_rad(digits):
    """KNN of both houses decides alike, so one can take the other's place."""
    x, _, given = digits

    def run(**learners):
        algo = rad(
            selection=voting(), num_classes=10, memory_capacity=CAPACITY, **learners
        )
        online = OnlineRad(algo, max_batch_size=SIZE + 7)
        online.start(x[:NUM_CLEAN], given[:NUM_CLEAN])
        kept = []
        for lo in range(NUM_CLEAN, CAPACITY, SIZE):
            verdict = online.step(x[lo : lo + SIZE], given[lo : lo + SIZE])
            kept.append(verdict.kept)
        return np.concatenate(kept), online.predict(x[-NUM_TEST:])

    classifier = nearest_centroid()
    expected = run(label_model=knn(5), classifier=classifier)
    theirs = from_sklearn(KNeighborsClassifier(5))
    found = run(label_model=theirs, classifier=classifier)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])


def test_answers_of_an_expert_are_learned(digits):
    x, y, given = digits
    algo = rad(
        classifier=from_sklearn(KNeighborsClassifier(1)),
        selection=basic(),
        num_classes=10,
        memory_capacity=CAPACITY,
        validation_fraction=0,
    )
    online = OnlineRad(algo, max_batch_size=SIZE)
    online.start(x[:NUM_CLEAN], y[:NUM_CLEAN])
    new = slice(NUM_CLEAN, NUM_CLEAN + SIZE)
    verdict = online.judge(x[new], given[new])
    online.answer(verdict.row_id, y[new])
    online.learn()
    np.testing.assert_array_equal(online.predict(x[new]), y[new])


def test_the_jax_learner_beside_it_is_compiled_once(digits):
    x, _, given = digits
    algo = rad(
        label_model=knn(5),
        classifier=from_sklearn(GaussianNB(var_smoothing=1e-2)),
        selection=basic(),
        num_classes=10,
        memory_capacity=CAPACITY,
    )
    label_model = algo.engine.learners[0]
    state = algo.init(jax.random.key(0), batch(x, given, 0, NUM_CLEAN))
    for lo in range(NUM_CLEAN, CAPACITY, SIZE):
        state, _ = algo.step(state, batch(x, given, lo, lo + SIZE))
    assert label_model.fit._cache_size() == 1
    # Rows of a batch, and the rows that validate.
    assert label_model.predict_proba._cache_size() == 2


OUTSIDE = "outside jit, vmap, scan and sweeps"


def test_a_sweep_is_refused():
    data = datasets.split(
        datasets.digits.load(), initial_size=60, batch_size=40, num_batches=2
    )
    with pytest.raises(ValueError, match="classifier: GaussianNB is no JAX learner"):
        sweep.prepare(
            data,
            [sweep.Arm("basic", basic())],
            label_model=nearest_centroid(),
            classifier=from_sklearn(GaussianNB()),
            noise_rates=(0.4,),
            noise=noise.symmetric(0.0),
            num_seeds=2,
        )


def test_traced_use_is_refused(digits):
    x, _, given = digits
    algo = rad(
        classifier=from_sklearn(DecisionTreeClassifier(), name="my tree"),
        selection=oracle_selection(),
        num_classes=10,
        memory_capacity=CAPACITY,
    )
    clean = batch(x, given, 0, NUM_CLEAN)
    new = batch(x, given, NUM_CLEAN, NUM_CLEAN + SIZE)
    keys = jax.random.split(jax.random.key(0), 2)
    with pytest.raises(TypeError, match=f"my tree .*{OUTSIDE}"):
        jax.jit(algo.init)(keys[0], clean)
    with pytest.raises(TypeError, match=OUTSIDE):
        jax.vmap(algo.init, in_axes=(0, None))(keys, clean)
    state = algo.init(keys[0], clean)
    with pytest.raises(TypeError, match=OUTSIDE):
        jax.jit(algo.predict)(state, new.features)
    with pytest.raises(TypeError, match=OUTSIDE):
        jax.jit(algo.step)(state, new, new.label)
    with pytest.raises(TypeError, match=OUTSIDE):
        jax.lax.scan(lambda s, _: (algo.learn(s), None), state, jnp.arange(2))
    labels = jnp.stack([new.label, new.label])
    with pytest.raises(TypeError, match=OUTSIDE):
        jax.vmap(lambda y: algo.step(state, new._replace(label=y), y)[0])(labels)
