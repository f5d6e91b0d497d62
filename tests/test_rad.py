"""The whole algorithm for one seed, against a loop written from SPEC 2 to 4.

Compiling takes far longer than running, so the tests share a few programs: `ensemble`
(KNN judges, nearest centroid classifies; the scheme is an array parameter) and `slim`
(nearest centroid alone, `active_limited`). Both learners are deterministic.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from sklearn.neighbors import KNeighborsClassifier

import rad_jax
from rad_jax import BATCH_AXES, STATE_AXES, Batch, Keys, RowStatus, State, selection
from rad_jax.rad import Rad
from rad_jax.types import (
    MAX_CLASSES,
    UNLABELLED,
    Expert,
    Learner,
    Selection,
    SelectionScheme,
)
from rad_jax.validation import stratified_split

K = 3
WIDTH = 3
NEIGHBOURS = 3
INITIAL = 30  # rows of D_0, of which a fifth validates
BATCH = 12
ARRIVALS = 4
CAPACITY = 24 + ARRIVALS * BATCH
BUDGET = 3
SCHEMES = (
    "no_selection",
    "oracle_selection",
    "basic",
    "voting",
    "active",
    "active_limited",
)
KEY = jax.random.key(7)

_compiled: list[str] = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, _, **kwargs: (
        _compiled.append(str(kwargs.get("fun_name")))
        if event == "/jax/core/compile/backend_compile_duration"
        else None
    )
)


def assert_compiles_nothing(function, *args):
    before = len(_compiled)
    out = function(*args)
    assert _compiled[before:] == []
    return out


# --- data --------------------------------------------------------------------------


class Stream:
    """Overlapping blobs of unequal size; labels partly wrong or missing."""

    def __init__(self, seed: int, *, noise: float = 0.4, spread: float = 1.0):
        self.rng = np.random.default_rng(seed)
        self.centres = self.rng.normal(size=(K, WIDTH)) * 1.3
        self.noise, self.spread = noise, spread
        self.next_id = 0

    def rows(self, n: int):
        true = self.rng.choice(K, n, p=[0.5, 0.3, 0.2])
        x = self.centres[true] + self.spread * self.rng.normal(size=(n, WIDTH))
        return x.astype(np.float32), true.astype(np.int32)

    def ids(self, n: int):
        self.next_id += n
        # Not the slots, and not ascending: ids are names.
        return (1000 + 7 * np.arange(self.next_id - n, self.next_id)[::-1]).astype(
            np.int32
        )

    def clean(self, n: int = INITIAL) -> Batch:
        x, true = self.rows(n)
        return Batch(x, true, np.ones(n, bool), self.ids(n))

    def batch(self, n: int = BATCH, *, padding: int = 0, missing: float = 0.1):
        """A batch of `n` slots, `padding` of them anywhere in it, and true labels."""
        x, true = self.rows(n)
        wrong = self.rng.random(n) < self.noise
        label = np.where(wrong, (true + self.rng.integers(1, K, n)) % K, true)
        label = np.where(self.rng.random(n) < missing, UNLABELLED, label)
        valid = np.ones(n, bool)
        valid[self.rng.permutation(n)[:padding]] = False
        x = np.where(valid[:, None], x, np.float32(1e6))
        ids = np.where(valid, self.ids(n), -1).astype(np.int32)
        return Batch(x, label.astype(np.int32), valid, ids), true


def only(batch: Batch, rows) -> Batch:
    return Batch(*(np.asarray(column)[rows] for column in batch))


# --- programs ----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Programs:
    algo: Rad
    init: Callable
    step: Callable
    judge: Callable
    answer: Callable
    learn: Callable
    predict: Callable
    predict_proba: Callable

    @classmethod
    def of(cls, algo: Rad) -> "Programs":
        names = [f.name for f in dataclasses.fields(cls)][1:]
        return cls(algo, *(jax.jit(getattr(algo, name)) for name in names))


def schemes():
    return [
        selection.active_limited(BUDGET)
        if name == "active_limited"
        else getattr(selection, name)()
        for name in SCHEMES
    ]


@functools.cache
def ensemble() -> Programs:
    return Programs.of(
        rad_jax.rad(
            label_model=rad_jax.knn(NEIGHBOURS, num_candidates=16),
            classifier=rad_jax.nearest_centroid(),
            selection=selection.switch(schemes()),
            num_classes=K,
            memory_capacity=CAPACITY,
        )
    )


@functools.cache
def slim_of_any_scheme() -> Programs:
    return Programs.of(
        rad_jax.rad(
            classifier=rad_jax.nearest_centroid(),
            selection=selection.switch(schemes()),
            num_classes=K,
            memory_capacity=CAPACITY,
        )
    )


def slim_algo(budget: int = BUDGET) -> Rad:
    return rad_jax.rad(
        classifier=rad_jax.nearest_centroid(),
        selection=selection.active_limited(budget),
        num_classes=K,
        memory_capacity=CAPACITY,
    )


@functools.cache
def slim() -> Programs:
    return Programs.of(slim_algo())


@functools.cache
def slim_start(seed: int = 0):
    """A state after the clean batch, some batches and their true labels."""
    stream = Stream(seed)
    state = slim().init(KEY, stream.clean())
    return state, [stream.batch() for _ in range(ARRIVALS)]


def params_of(algo: Rad, scheme: str):
    index = SCHEMES.index(scheme)
    return algo.params._replace(selection=algo.params.selection | {"index": index})


# --- looking at states -------------------------------------------------------------


@dataclasses.dataclass
class Row:
    features: np.ndarray
    given: int
    label: int
    status: int
    arrived: int


def table(state: State) -> dict[int, Row]:
    """What is stored, by row id."""
    memory, per_seed = state.shared.memory, state.per_seed
    columns = (
        memory.row_id,
        memory.features,
        per_seed.given,
        per_seed.label,
        per_seed.status,
        memory.arrived,
    )
    row_id, *columns = (np.asarray(column) for column in columns)
    stored = np.flatnonzero(np.asarray(memory.valid))
    assert len(set(row_id[stored].tolist())) == stored.size
    empty = np.flatnonzero(~np.asarray(memory.valid))
    assert (np.asarray(per_seed.status)[empty] == RowStatus.DROPPED).all()
    return {
        int(row_id[slot]): Row(
            columns[0][slot], *(int(column[slot]) for column in columns[1:])
        )
        for slot in stored
    }


def comparable(tree):
    return [
        np.asarray(jax.random.key_data(leaf))
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        else np.asarray(leaf)
        for leaf in jax.tree.leaves(tree)
    ]


def fitted(models):
    """Models without the arrival at which they were last fitted."""
    return tuple(
        model._replace(arrival=jnp.int32(0)) if hasattr(model, "arrival") else model
        for model in models
    )


def assert_equal_trees(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for left, right in zip(comparable(a), comparable(b), strict=True):
        np.testing.assert_array_equal(left, right)


def assert_close_trees(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for left, right in zip(comparable(a), comparable(b), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)


def differ(a, b) -> bool:
    pairs = zip(comparable(a), comparable(b), strict=True)
    return any(not np.array_equal(left, right) for left, right in pairs)


def trained_on(state: State) -> list[Row]:
    return [
        row
        for row in table(state).values()
        if row.status in (RowStatus.KEPT, RowStatus.VERIFIED)
    ]


def assert_model_is_of(state: State, rows: list[Row]):
    """The nearest-centroid model of a slim state was fitted on exactly these rows."""
    model = state.per_seed.models[-1]
    expected = CentroidModel.fit([r.features for r in rows], [r.label for r in rows])
    np.testing.assert_array_equal(model.count, expected.count)
    known = expected.count > 0
    np.testing.assert_allclose(
        np.asarray(model.mean)[known], expected.mean[known], rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(model.variance, expected.variance, rtol=1e-4)


# --- the loop from SPEC ------------------------------------------------------------


@dataclasses.dataclass
class CentroidModel:
    mean: np.ndarray
    count: np.ndarray
    variance: float

    @classmethod
    def fit(cls, features, labels):
        features, labels = np.asarray(features, float), np.asarray(labels)
        mean = np.full((K, WIDTH), np.nan)
        for k in range(K):
            if (labels == k).any():
                mean[k] = features[labels == k].mean(0)
        squares = [((x - mean[y]) ** 2).sum() for x, y in zip(features, labels)]  # noqa: B905
        count = np.array([(labels == k).sum() for k in range(K)])
        return cls(mean, count, float(np.mean(squares)))

    def predict_proba(self, features):
        out = np.zeros((len(features), K))
        for i, x in enumerate(np.asarray(features, float)):
            for k in range(K):
                if self.count[k]:
                    d2 = ((x - self.mean[k]) ** 2).sum()
                    out[i, k] = -d2 / (2 * self.variance)
            known = self.count > 0
            power = np.exp(out[i, known] - out[i, known].max())
            out[i] = 0.0
            out[i, known] = power / power.sum()
        return out


class NeighbourModel:
    @classmethod
    def fit(cls, features, labels):
        self = cls()
        neighbours = min(NEIGHBOURS, len(labels))
        self.model = KNeighborsClassifier(neighbours, algorithm="brute")
        self.model.fit(np.asarray(features, float), labels)
        return self

    def predict_proba(self, features):
        out = np.zeros((len(features), K))
        probs = self.model.predict_proba(np.asarray(features, float))
        out[:, self.model.classes_] = probs
        return out


class Reference:
    """SPEC 2, 'One arrival', and SPEC 4, row by row."""

    def __init__(self, scheme: str, *, one_model: bool):
        self.scheme = scheme
        models = (CentroidModel,) if one_model else (NeighbourModel, CentroidModel)
        self.kinds = models
        self.rows: dict[int, Row] = {}

    def start(self, clean: Batch, validation: set[int]):
        self.validation = []
        for x, y, _, row_id in zip(*clean, strict=True):
            if int(row_id) in validation:
                self.validation.append((x, int(y)))
            else:
                row = Row(x, int(y), int(y), RowStatus.VERIFIED, 0)
                self.rows[int(row_id)] = row
        self.arrival = 0
        self.fit()
        self.alpha_before = self.alpha

    def fit(self):
        kept = [
            row
            for row in self.rows.values()
            if row.status in (RowStatus.KEPT, RowStatus.VERIFIED)
        ]
        features, labels = [r.features for r in kept], [r.label for r in kept]
        self.models = [kind.fit(features, labels) for kind in self.kinds]
        self.alpha = []
        for model in self.models:
            probs = model.predict_proba([x for x, _ in self.validation])
            right = [
                oracles.argmax(p) == y
                for p, (_, y) in zip(probs, self.validation, strict=True)
            ]
            self.alpha.append(sum(right) / len(right))

    def step(self, batch: Batch, true_label):
        """Judge, ask and learn; returns what was asked."""
        self.arrival += 1
        there = np.flatnonzero(batch.valid)
        x, y, true = batch.features[there], batch.label[there], true_label[there]
        # 1. The models as trained through the arrival before score the batch.
        self.probs = [model.predict_proba(x) for model in self.models]
        decide = getattr(oracles, self.scheme)
        budget = {"budget": BUDGET} if self.scheme == "active_limited" else {}
        decision = decide(
            self.probs[0], self.probs[-1], y, np.ones(len(y), bool), true, **budget
        )
        # The scores have no ties here, so there is one way to choose queries.
        assert decision.must_query == decision.may_query
        # 2. Selection, and a perfect expert who answers at once.
        for i, row_id in enumerate(batch.row_id[there].tolist()):
            given = int(y[i])
            if decision.must_query[i]:
                row = Row(x[i], given, int(true[i]), RowStatus.VERIFIED, self.arrival)
            elif decision.keep[i]:
                row = Row(x[i], given, given, RowStatus.KEPT, self.arrival)
            else:
                row = Row(x[i], given, given, RowStatus.DROPPED, self.arrival)
            self.rows[row_id] = row
        # 5. Predictions at this arrival use the accuracies of the one before.
        self.alpha_before = self.alpha
        # 4. Everything kept so far.
        self.fit()
        return decision

    def predict(self, features):
        probs = [model.predict_proba(features) for model in self.models]
        if len(probs) == 1:
            return [oracles.argmax(p) for p in probs[0]]
        return oracles.algorithm_1(*probs, *self.alpha_before)[0]


def assert_state_is(state: State, reference: Reference):
    stored = table(state)
    assert set(stored) == set(reference.rows)
    for row_id, expected in reference.rows.items():
        got = stored[row_id]
        np.testing.assert_array_equal(got.features, expected.features)
        assert (got.given, got.status, got.arrived) == (
            expected.given,
            expected.status,
            expected.arrived,
        ), row_id
        if expected.status != RowStatus.DROPPED:
            assert got.label == expected.label, row_id
    per_seed = state.per_seed
    assert int(state.shared.arrival) == reference.arrival
    np.testing.assert_allclose(per_seed.alpha, reference.alpha_before, rtol=1e-6)
    np.testing.assert_allclose(per_seed.alpha_latest, reference.alpha, rtol=1e-6)
    np.testing.assert_array_equal(per_seed.temperature, np.ones(len(reference.models)))


class TestOneSeed:
    def check(self, programs: Programs, reference: Reference, params, seed: int):
        stream = Stream(seed)
        clean, (test, _) = stream.clean(), stream.rows(40)
        state = programs.init(KEY, clean, params)
        validation = set(clean.row_id.tolist()) - set(table(state))
        assert len(validation) == INITIAL // 5
        reference.start(clean, validation)
        assert_state_is(state, reference)
        predictions = programs.predict_proba(state, test).argmax(-1)
        np.testing.assert_array_equal(predictions, reference.predict(test))
        for i in range(ARRIVALS):
            batch, true = stream.batch(padding=(0, 2, 5, 1)[i])
            state, info = programs.step(state, batch, true)
            decision = reference.step(batch, true)
            valid = batch.valid
            probs = reference.probs
            np.testing.assert_allclose(info.label_probs[valid], probs[0], atol=1e-4)
            np.testing.assert_allclose(info.class_probs[valid], probs[-1], atol=1e-4)
            asked = np.array(decision.must_query)
            np.testing.assert_array_equal(info.query[valid], asked)
            np.testing.assert_array_equal(
                info.keep[valid], np.array(decision.keep) & ~asked
            )
            assert not np.asarray(info.keep | info.query)[~valid].any()
            np.testing.assert_array_equal(info.row_id, batch.row_id)
            assert int(info.overflow) == 0
            assert_state_is(state, reference)
            predictions = programs.predict_proba(state, test).argmax(-1)
            np.testing.assert_array_equal(predictions, reference.predict(test))

    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize("scheme", SCHEMES)
    def test_two_models_equal_the_loop(self, scheme, seed):
        programs = ensemble()
        reference = Reference(scheme, one_model=False)
        self.check(programs, reference, params_of(programs.algo, scheme), seed)

    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize("scheme", SCHEMES)
    def test_one_model_equals_the_loop(self, scheme, seed):
        programs = slim_of_any_scheme()
        reference = Reference(scheme, one_model=True)
        self.check(programs, reference, params_of(programs.algo, scheme), seed)

    @pytest.mark.parametrize("seed", range(4))
    def test_a_scheme_by_itself_equals_the_loop(self, seed):
        programs = slim()
        reference = Reference("active_limited", one_model=True)
        self.check(programs, reference, programs.algo.params, seed)

    def test_the_accuracies_of_the_arrival_before_matter_here(self):
        """Else the tests above could not tell which accuracies are used."""
        differences = 0
        for seed in range(4):
            stream = Stream(seed)
            clean, (test, _) = stream.clean(), stream.rows(40)
            reference = Reference("basic", one_model=False)
            reference.start(clean, set(clean.row_id[:6].tolist()))
            for _ in range(ARRIVALS):
                reference.step(*stream.batch())
                right = reference.predict(test)
                reference.alpha_before = reference.alpha
                differences += right != reference.predict(test)
        assert differences > 0

    def test_predict_is_the_most_probable_class(self):
        state, batches = slim_start()
        features = batches[0][0].features
        predictions = slim().predict(state, features)
        assert predictions.dtype == jnp.int32
        np.testing.assert_array_equal(
            predictions, slim().predict_proba(state, features).argmax(-1)
        )


# --- validation rows ---------------------------------------------------------------


class TestValidationRows:
    def split(self, label, seed=0, valid=None, fraction=0.2):
        """Which rows validate."""
        label = np.asarray(label, np.int32)
        valid = np.ones(len(label), bool) if valid is None else valid
        rows, validates = stratified_split(
            jax.random.key(seed), jnp.asarray(label), jnp.asarray(valid), fraction
        )
        assert rows.shape == validates.shape == (round(fraction * len(label)),)
        chosen = np.asarray(rows)[np.asarray(validates)]
        assert len(set(chosen.tolist())) == len(chosen) == round(fraction * valid.sum())
        assert valid[chosen].all()
        return chosen

    def test_classes_are_in_proportion(self):
        for seed in range(20):
            rng = np.random.default_rng(seed)
            label = rng.choice(5, 60, p=rng.dirichlet(np.ones(5)))
            valid = rng.random(60) < (1 if seed < 10 else 0.7)
            chosen = self.split(label, seed, valid)
            for k in range(5):
                share = (label[valid] == k).sum() * 0.2
                assert abs((label[chosen] == k).sum() - share) <= 1.0

    def test_exactly_in_proportion_where_that_is_possible(self):
        label = np.repeat(np.arange(4), [30, 15, 10, 5])
        for seed in range(5):
            chosen = self.split(label, seed)
            np.testing.assert_array_equal(np.bincount(label[chosen]), [6, 3, 2, 1])
            # Padding that claims to be of a class, between its rows, is none of it.
            padded, valid = np.repeat(label, 2), np.arange(120) % 2 == 0
            chosen = self.split(padded, seed, valid)
            np.testing.assert_array_equal(np.bincount(padded[chosen]), [6, 3, 2, 1])

    def test_a_class_of_one_or_two_rows_stays_in_training(self):
        label = np.array([0] * 57 + [1, 2, 2])
        for seed in range(10):
            chosen = self.split(label, seed)
            np.testing.assert_array_equal(label[chosen], 0)

    def test_the_key_chooses_the_rows_and_row_order_does_not(self):
        label = np.zeros(60, np.int32)
        chosen = [np.sort(self.split(label, seed)) for seed in range(40)]
        assert len({tuple(rows) for rows in chosen}) == 40
        # Each row is chosen with probability 1/5: 8 +- 2.5 times out of 40.
        times = np.bincount(np.concatenate(chosen), minlength=60)
        assert times.min() >= 1
        assert times.max() <= 18
        halves = times[:30].sum() - times[30:].sum()
        assert abs(halves) < 4 * np.sqrt(480)

    def test_never_trained_on(self):
        stream = Stream(1)
        clean = stream.clean()
        state = slim().init(KEY, clean)
        held_out = ~np.isin(clean.row_id, list(table(state)))
        assert held_out.sum() == INITIAL // 5
        moved = np.where(held_out[:, None], clean.features + 50, clean.features)
        other = slim().init(KEY, clean._replace(features=moved))
        assert_equal_trees(state.per_seed.models, other.per_seed.models)
        assert differ(state.per_seed.alpha, other.per_seed.alpha)
        batch, true = stream.batch()
        state, _ = slim().step(state, batch, true)
        other, _ = slim().step(other, batch, true)
        assert_equal_trees(state.per_seed.models, other.per_seed.models)
        assert_equal_trees(state.per_seed.status, other.per_seed.status)

    def test_none_at_all(self):
        algo = rad_jax.rad(
            classifier=rad_jax.nearest_centroid(),
            selection=selection.basic(),
            num_classes=K,
            memory_capacity=INITIAL + BATCH,
            validation_fraction=0,
        )
        stream = Stream(1)
        clean = stream.clean()
        state = jax.jit(algo.init)(KEY, clean)
        assert set(table(state)) == set(clean.row_id.tolist())
        np.testing.assert_array_equal(state.per_seed.alpha, [1.0])
        # The caller sets the weights of the next arrival, and they stay.
        weights = jnp.array([0.25])
        per_seed = state.per_seed._replace(alpha_latest=weights)
        batch, _ = stream.batch()
        state, _ = jax.jit(algo.step)(state._replace(per_seed=per_seed), batch)
        np.testing.assert_array_equal(state.per_seed.alpha, weights)
        np.testing.assert_array_equal(state.per_seed.alpha_latest, weights)


# --- judge, answer, learn ----------------------------------------------------------


class TestAnswers:
    def test_step_is_judge_answer_and_learn(self):
        state, batches = slim_start()
        by_parts = state
        asked = 0
        for batch, true in batches:
            state, info = slim().step(state, batch, true)
            by_parts, judged = slim().judge(by_parts, batch)
            assert_close_trees(info, judged)
            queried = np.asarray(judged.query)
            asked += queried.sum()
            labels = np.where(queried, true, UNLABELLED)
            by_parts, found = slim().answer(by_parts, judged.row_id, labels)
            np.testing.assert_array_equal(found, queried)
            by_parts = slim().learn(by_parts)
            assert_close_trees(state, by_parts)
        assert asked > 0

    def test_judge_trains_nothing_and_learn_changes_no_label(self):
        state, batches = slim_start()
        judged, _ = slim().judge(state, batches[0][0])
        assert_equal_trees(judged.per_seed.models, state.per_seed.models)
        assert_equal_trees(judged.per_seed.alpha, state.per_seed.alpha)
        learned = slim().learn(judged)
        assert_equal_trees(
            learned.shared._replace(times_learned=judged.shared.times_learned),
            judged.shared,
        )
        for name in ("given", "label", "status"):
            assert_equal_trees(
                getattr(learned.per_seed, name), getattr(judged.per_seed, name)
            )
        assert differ(learned.per_seed.models, judged.per_seed.models)

    def test_learning_again_keeps_the_accuracies_of_the_arrival_before(self):
        """They weigh the models as measured before this arrival, however often."""
        state, batches = slim_start()
        start = state.per_seed.alpha_latest
        state, _ = slim().judge(state, batches[0][0])
        wrong = (np.asarray(batches[0][1]) + 1) % K
        for _ in range(2):
            state = slim().learn(state)
            np.testing.assert_array_equal(state.per_seed.alpha, start)
            state, _ = slim().answer(state, batches[0][0].row_id, wrong)
        state = slim().learn(state)
        latest = state.per_seed.alpha_latest
        assert differ(latest, start)
        state, _ = slim().judge(state, batches[1][0])
        state = slim().learn(state)
        np.testing.assert_array_equal(state.per_seed.alpha, latest)

    def test_without_true_labels_the_queries_wait_and_are_not_trained_on(self):
        state, batches = slim_start()
        state, info = slim().judge(state, batches[0][0])
        state = slim().learn(state)
        rows = table(state)
        asked = np.asarray(info.row_id)[np.asarray(info.query)]
        assert len(asked) == BUDGET
        pending = {i for i, row in rows.items() if row.status == RowStatus.PENDING}
        assert pending == set(asked.tolist())
        assert_model_is_of(state, trained_on(state))

    def test_an_answer_may_come_arrivals_later(self):
        state, batches = slim_start()
        state, info = slim().judge(state, batches[0][0])
        asked = np.asarray(info.row_id)[np.asarray(info.query)]
        truth = dict(zip(batches[0][0].row_id.tolist(), batches[0][1], strict=True))
        for batch, _ in batches[1:3]:
            state, _ = slim().judge(slim().learn(state), batch)
        before = table(state)
        assert all(before[i].status == RowStatus.PENDING for i in asked.tolist())
        wanted = np.full(BATCH, -1, np.int32)
        wanted[: len(asked)] = asked[::-1]
        labels = np.array([truth.get(i, 0) for i in wanted.tolist()], np.int32)
        state, found = slim().answer(state, wanted, labels)
        np.testing.assert_array_equal(found, wanted >= 0)
        state = slim().learn(state)
        after = table(state)
        for row_id, row in after.items():
            if row_id in asked.tolist():
                assert row.status == RowStatus.VERIFIED
                assert row.label == truth[row_id]
                assert row.given == before[row_id].given
            else:
                assert (
                    dataclasses.astuple(row)[1:]
                    == (dataclasses.astuple(before[row_id])[1:])
                )
        assert_model_is_of(state, trained_on(state))
        assert len(trained_on(state)) == len(asked) + sum(
            row.status in (RowStatus.KEPT, RowStatus.VERIFIED)
            for row in before.values()
        )

    def test_verified_rows_stay_as_they_are(self):
        state, batches = slim_start()
        verified: dict[int, int] = {}
        for batch, true in batches:
            state, _ = slim().step(state, batch, true)
            rows = table(state)
            for row_id, label in verified.items():
                assert rows[row_id].status == RowStatus.VERIFIED
                assert rows[row_id].label == label
            verified |= {
                i: row.label
                for i, row in rows.items()
                if row.status == RowStatus.VERIFIED
            }
        assert len(verified) > INITIAL - INITIAL // 5

    def test_any_stored_row_may_be_answered_and_answered_again(self):
        state, batches = slim_start()
        state, _ = slim().judge(state, batches[0][0])
        rows = table(state)
        of_status = {
            status: next(i for i, r in rows.items() if r.status == status and r.arrived)
            for status in (RowStatus.DROPPED, RowStatus.KEPT, RowStatus.PENDING)
        }
        ids = np.array(list(of_status.values()), np.int32)
        for label in (2, 1):
            labels = np.full(len(ids), label, np.int32)
            state, found = slim().answer(state, ids, labels)
            assert np.asarray(found).all()
            after = table(state)
            for i in ids.tolist():
                assert after[i].status == RowStatus.VERIFIED
                assert after[i].label == label
                assert after[i].given == rows[i].given

    @pytest.mark.parametrize("what", ["unknown", "negative id", "negative label"])
    def test_answers_that_change_nothing(self, what):
        state, batches = slim_start()
        state, info = slim().judge(state, batches[0][0])
        ids = np.asarray(info.row_id)
        labels = np.ones(BATCH, np.int32)
        if what == "unknown":
            ids = ids + 1
        elif what == "negative id":  # as empty slots have
            ids = np.full(BATCH, -1, np.int32)
        else:
            labels = np.full(BATCH, UNLABELLED, np.int32)
        answered, found = slim().answer(state, ids, labels)
        assert not np.asarray(found).any()
        assert_equal_trees(answered, state)

    def test_the_experts_word_is_what_is_trained_on(self):
        """An expert who always says 2, and whose word is an array parameter."""
        expert = Expert(
            lambda params, true, *, key: jnp.full_like(true, params["says"]),
            {"says": 2},
        )
        algo = rad_jax.rad(
            classifier=rad_jax.nearest_centroid(),
            selection=selection.active(),
            num_classes=K,
            memory_capacity=CAPACITY,
            expert=expert,
        )
        stream = Stream(4)
        state = slim().init(KEY, stream.clean())
        # The state of another scheme fits but for the parameters.
        state = state._replace(
            per_seed=state.per_seed._replace(
                params=jax.tree.map(jnp.asarray, algo.params)
            )
        )
        batch, true = stream.batch()
        state, info = jax.jit(algo.step)(state, batch, true)
        asked = set(np.asarray(info.row_id)[np.asarray(info.query)].tolist())
        assert asked
        for row_id, row in table(state).items():
            if row_id in asked:
                assert (row.status, row.label) == (RowStatus.VERIFIED, 2)
            elif row.arrived:
                assert (row.status, row.label) == (RowStatus.KEPT, row.given)


class TestRowsWithoutLabel:
    def test_stored_but_never_trained_on(self):
        state, batches = slim_start()
        for batch, _ in batches:
            blank = batch._replace(label=np.full(BATCH, UNLABELLED, np.int32))
            models = state.per_seed.models
            state, info = slim().judge(state, blank)
            state = slim().learn(state)
            assert_close_trees(fitted(state.per_seed.models), fitted(models))
            assert int(np.asarray(info.query).sum()) == BUDGET
            assert not np.asarray(info.keep).any()
        rows = [row for row in table(state).values() if row.arrived]
        assert len(rows) == ARRIVALS * BATCH
        assert {row.given for row in rows} == {UNLABELLED}
        statuses = [row.status for row in rows]
        assert statuses.count(RowStatus.PENDING) == ARRIVALS * BUDGET
        assert statuses.count(RowStatus.DROPPED) == ARRIVALS * (BATCH - BUDGET)

    def test_trained_on_once_answered(self):
        state, batches = slim_start()
        batch, true = batches[0]
        blank = batch._replace(label=np.full(BATCH, UNLABELLED, np.int32))
        state, _ = slim().judge(state, blank)
        # The expert answers rows that were asked about and rows that were not.
        answers = np.where(np.arange(BATCH) < 6, true, UNLABELLED).astype(np.int32)
        state, _ = slim().answer(state, blank.row_id, answers)
        state = slim().learn(state)
        rows = table(state)
        for i, row_id in enumerate(blank.row_id.tolist()):
            if i < 6:
                assert rows[row_id].status == RowStatus.VERIFIED
                assert rows[row_id].label == true[i]
        assert_model_is_of(state, trained_on(state))
        assert len(trained_on(state)) == INITIAL - INITIAL // 5 + 6

    def test_do_not_validate(self):
        clean = Stream(5).clean()
        label = np.where(np.arange(INITIAL) < INITIAL // 2, clean.label, UNLABELLED)
        state = slim().init(KEY, clean._replace(label=label))
        assert_model_is_of(state, trained_on(state))
        shared = state.shared
        valid = np.asarray(shared.validation_valid)
        assert (np.asarray(shared.validation_label)[valid] != UNLABELLED).all()

    @pytest.mark.parametrize("scheme", SCHEMES)
    def test_under_every_scheme(self, scheme):
        programs = slim_of_any_scheme()
        stream = Stream(5)
        params = params_of(programs.algo, scheme)
        state = programs.init(KEY, stream.clean(), params)
        batch, true = stream.batch(missing=1.0)
        stepped, info = programs.step(state, batch, true)
        if "active" in scheme:
            asked = BATCH if scheme == "active" else BUDGET
            assert int(np.asarray(info.query).sum()) == asked
        else:
            assert_close_trees(
                fitted(stepped.per_seed.models), fitted(state.per_seed.models)
            )
        for row in table(stepped).values():
            assert row.status != RowStatus.KEPT
            assert row.label != UNLABELLED or row.status == RowStatus.DROPPED


# --- padding -----------------------------------------------------------------------


class TestPadding:
    def test_padded_equals_unpadded(self):
        state, batches = slim_start()
        padded = unpadded = state
        unpadded_step = jax.jit(slim().algo.step)
        stream = Stream(9)
        for (batch, true), (garbage, _) in zip(
            batches[:2], [stream.batch(), stream.batch()], strict=True
        ):
            rows = np.array([0, 2, 3, 5, 8, 9, 11])
            valid = np.isin(np.arange(BATCH), rows)
            mixed = Batch(
                np.where(valid[:, None], batch.features, 1e6 * garbage.features),
                np.where(valid, batch.label, garbage.label),
                valid,
                np.where(valid, batch.row_id, garbage.row_id),
            )
            padded, info = slim().step(padded, mixed, true)
            unpadded, expected = unpadded_step(unpadded, only(batch, rows), true[rows])
            assert_close_trees(padded, unpadded)
            info = info._replace(overflow=jnp.broadcast_to(info.overflow, BATCH))
            expected = expected._replace(
                overflow=jnp.broadcast_to(expected.overflow, len(rows))
            )
            assert_close_trees(jax.tree.map(lambda x: x[rows], info), expected)  # noqa: B023
            outside = ~valid
            assert not np.asarray(info.keep | info.query)[outside].any()
            assert (np.asarray(info.row_id)[outside] == -1).all()

    def test_a_batch_of_padding_alone_changes_nothing_but_the_index(self):
        state, batches = slim_start()
        batch, true = batches[0]
        empty = batch._replace(valid=np.zeros(BATCH, bool))
        after, _ = slim().step(state, empty, true)
        assert int(after.shared.arrival) == 1
        shared = after.shared._replace(
            arrival=state.shared.arrival, times_learned=state.shared.times_learned
        )
        assert_close_trees(after._replace(shared=shared), state)

    @pytest.mark.parametrize("what", ["keep", "query", "keep and query"])
    def test_a_careless_scheme_keeps_and_asks_about_none(self, what):
        """Rows that a scheme both keeps and asks about wait for the answer."""

        def apply(params, state, evidence, *, key):
            every = jnp.ones_like(evidence.valid)
            return Selection(
                every if "keep" in what else ~every,
                jnp.ones_like(evidence.label),
                every if "query" in what else ~every,
            ), state

        algo = rad_jax.rad(
            classifier=rad_jax.nearest_centroid(),
            selection=SelectionScheme(lambda params: (), apply, ()),
            num_classes=K,
            memory_capacity=CAPACITY,
        )
        state, batches = slim_start()
        batch = batches[0][0]._replace(valid=np.arange(BATCH) % 2 == 0)
        state, info = algo.judge(state, batch)
        expected = RowStatus.PENDING if "query" in what else RowStatus.KEPT
        np.testing.assert_array_equal(info.query, batch.valid & ("query" in what))
        np.testing.assert_array_equal(info.keep, batch.valid & (what == "keep"))
        came = [row for row in table(state).values() if row.arrived]
        assert len(came) == BATCH // 2
        assert {(row.status, row.label) for row in came} == {(expected, 1)}

    def test_no_other_number_of_valid_rows_compiles(self):
        stream = Stream(2)
        state = slim().init(KEY, stream.clean())
        batch, true = stream.batch()
        state, _ = slim().step(state, batch, true)
        size = slim().step._cache_size()
        for padding in (0, 1, 7, BATCH):
            batch, true = stream.batch(padding=padding)
            state, _ = assert_compiles_nothing(slim().step, state, batch, true)
        assert slim().step._cache_size() == size

    def test_padding_of_the_clean_batch(self):
        clean = Stream(3).clean()
        for valid in (np.arange(INITIAL) % 2 == 0, np.arange(INITIAL) < 5):
            state = slim().init(KEY, clean._replace(valid=valid))
            stored = set(table(state))
            assert stored <= set(clean.row_id[valid].tolist())
            # A fifth of the rows validates, not a fifth of the slots.
            validation = np.asarray(state.shared.validation_valid).sum()
            assert validation == valid.sum() // 5
            assert len(stored) == valid.sum() - validation
            assert_model_is_of(state, trained_on(state))


# --- true labels -------------------------------------------------------------------


class TestTrueLabels:
    """They reach training through an expert or `oracle_selection` only."""

    def run(self, scheme: SelectionScheme, poison, *, ask: bool):
        algo = rad_jax.rad(
            classifier=rad_jax.nearest_centroid(),
            selection=scheme,
            num_classes=K,
            memory_capacity=CAPACITY,
        )
        start, batches = slim_start()
        per_seed = start.per_seed._replace(
            params=jax.tree.map(jnp.asarray, algo.params),
            selection=scheme.init(scheme.params),
        )
        state = State(start.shared, per_seed)
        batch, true = batches[0]
        return (algo.step if ask else algo.judge)(state, batch, poison(true))

    @pytest.mark.parametrize("name", SCHEMES)
    def test_judging_sees_none(self, name):
        scheme = schemes()[SCHEMES.index(name)]
        state, _ = self.run(scheme, lambda true: true, ask=False)
        poisoned, _ = self.run(scheme, lambda true: (true + 1) % K, ask=False)
        if name == "oracle_selection":
            assert differ(state, poisoned)
        else:
            assert_equal_trees(state, poisoned)
            without, _ = self.run(scheme, lambda true: None, ask=False)
            assert_equal_trees(state, without)

    @pytest.mark.parametrize("name", ["no_selection", "basic", "voting"])
    def test_a_step_sees_none_where_nobody_is_asked(self, name):
        scheme = schemes()[SCHEMES.index(name)]
        state, info = self.run(scheme, lambda true: true, ask=True)
        poisoned, _ = self.run(scheme, lambda true: (true + 1) % K, ask=True)
        assert not np.asarray(info.query).any()
        assert_equal_trees(state, poisoned)

    def test_a_step_sees_those_of_queried_rows_alone(self):
        state, batches = slim_start()
        for batch, true in batches:
            honest, info = slim().step(state, batch, true)
            queried = np.asarray(info.query)
            poisoned, _ = slim().step(state, batch, np.where(queried, true, 99))
            assert_equal_trees(honest, poisoned)
            assert queried.any()
            wrong = np.where(queried, (true + 1) % K, true)
            assert differ(slim().step(state, batch, wrong)[0], honest)
            state = honest

    def test_a_scheme_that_does_not_declare_them_is_given_none(self):
        def apply(params, state, evidence, *, key):
            nothing = jnp.zeros_like(evidence.valid)
            seen = evidence.true_label
            return Selection(nothing, evidence.label, nothing), seen

        for declared in (False, True):
            scheme = SelectionScheme(
                lambda params: jnp.zeros(BATCH, jnp.int32), apply, (), declared
            )
            state, _ = self.run(scheme, lambda true: true, ask=True)
            seen = np.asarray(state.per_seed.selection)
            _, batches = slim_start()
            expected = batches[0][1] if declared else np.full(BATCH, UNLABELLED)
            np.testing.assert_array_equal(seen, expected)

    def test_oracle_selection_says_so_if_there_are_none(self):
        with pytest.raises(ValueError, match="true_label is needed"):
            self.run(selection.oracle_selection(), lambda true: None, ask=False)


# --- transformations ---------------------------------------------------------------


def stack(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def per_seed_at(state: State, i: int) -> State:
    return State(state.shared, jax.tree.map(lambda x: x[i], state.per_seed))


class TestTransformations:
    def test_vmap_over_seeds_equals_a_loop(self):
        seeds, budgets = 3, (0, 2, BUDGET)
        start, batches = slim_start()
        base = start.per_seed
        states = [
            State(
                start.shared,
                base._replace(
                    params=base.params._replace(
                        selection={"query_budget": jnp.array(b)}
                    )
                ),
            )
            for b in budgets
        ]
        together = State(start.shared, stack([s.per_seed for s in states]))
        step = jax.jit(
            jax.vmap(
                slim().algo.step,
                in_axes=(STATE_AXES, BATCH_AXES, None),
                out_axes=(STATE_AXES, 0),
            )
        )
        predict = jax.jit(
            jax.vmap(slim().algo.predict_proba, in_axes=(STATE_AXES, None))
        )
        rng = np.random.default_rng(0)
        for batch, true in batches[:3]:
            flips = rng.integers(1, K, (seeds, BATCH))
            noisy = np.where(rng.random(flips.shape) < 0.4, (true + flips) % K, true)
            noisy = noisy.astype(np.int32)
            together, info = step(together, batch._replace(label=noisy), true)
            assert together.shared.memory.features.shape == (CAPACITY, WIDTH)
            probs = predict(together, batch.features)
            for i in range(seeds):
                states[i], alone = slim().step(
                    states[i], batch._replace(label=noisy[i]), true
                )
                assert_close_trees(per_seed_at(together, i), states[i])
                assert_close_trees(jax.tree.map(lambda x: x[i], info), alone)  # noqa: B023
                expected = slim().predict_proba(states[i], batch.features)
                np.testing.assert_allclose(probs[i], expected, rtol=1e-4, atol=1e-6)
        queries = [
            sum(r.status == RowStatus.VERIFIED and r.arrived > 0 for r in rows)
            for rows in (table(s).values() for s in states)
        ]
        assert queries[0] == 0 < queries[1] < queries[2]

    def test_nothing_that_differs_between_seeds_is_written_to_shared(self):
        start, batches = slim_start()
        batch, _ = batches[0]
        two = State(start.shared, stack([start.per_seed] * 2))
        for name in ("features", "valid", "row_id"):
            axes = BATCH_AXES._replace(**{name: 0})
            column = np.stack([getattr(batch, name)] * 2)
            several = batch._replace(
                label=np.stack([batch.label] * 2), **{name: column}
            )
            step = jax.vmap(
                slim().algo.judge,
                in_axes=(STATE_AXES, axes),
                out_axes=(STATE_AXES, 0),
            )
            with pytest.raises(ValueError, match="out_axes"):
                jax.eval_shape(step, two, several)

    def test_the_order_of_data_is_shared_and_the_initialisation_is_not(self):
        clean = Stream(0).clean()
        algo = slim().algo
        several = jax.random.split(KEY, 2)
        init = functools.partial(jax.vmap, algo.init, out_axes=STATE_AXES)
        fine = init(in_axes=(Keys(0, None), None))
        state = jax.eval_shape(fine, Keys(several, KEY), clean)
        assert state.per_seed.init_key.shape == (2,)
        assert state.shared.order_key.shape == ()
        wrong = init(in_axes=(Keys(None, 0), None))
        with pytest.raises(ValueError, match="out_axes"):
            jax.eval_shape(wrong, Keys(KEY, several), clean)

    def test_scan_over_arrivals_equals_a_loop(self):
        state, batches = slim_start()
        batch, true = stack([b for b, _ in batches]), stack([t for _, t in batches])

        @jax.jit
        def scanned(state, batches):
            return jax.lax.scan(lambda s, x: slim().algo.step(s, *x), state, batches)

        at_once, infos = scanned(state, (batch, true))
        for i, (batch, true) in enumerate(batches):
            state, info = slim().step(state, batch, true)
            assert_close_trees(jax.tree.map(lambda x: x[i], infos), info)  # noqa: B023
        assert_close_trees(at_once, state)

    def test_the_second_call_compiles_nothing(self):
        programs = slim()
        batch, true = Stream(3).batch()

        def all_of_them(clean):
            state = programs.init(KEY, clean)
            state, _ = programs.step(state, batch, true)
            state, info = programs.judge(state, batch)
            state, _ = programs.answer(state, info.row_id, true)
            state = programs.learn(state)
            programs.predict(state, batch.features)
            programs.predict_proba(state, batch.features)
            return programs.step(state, batch, true)

        def sizes():
            names = [f.name for f in dataclasses.fields(Programs)][1:]
            return {name: getattr(programs, name)._cache_size() for name in names}

        all_of_them(Stream(0).clean())
        before = sizes()
        assert_compiles_nothing(all_of_them, Stream(1).clean())
        assert sizes() == before

    def test_states_of_all_functions_are_of_one_kind(self):
        """Else a `scan`, or the next call of a jitted function, would trip."""

        def kind(tree):
            return jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), tree)

        batch, true = Stream(3).batch()
        algo = slim().algo
        state = jax.eval_shape(algo.init, KEY, Stream(0).clean())
        expected = kind(state)
        for function, args in [
            (algo.step, (batch, true)),
            (algo.step, (batch,)),
            (algo.judge, (batch,)),
            (algo.answer, (batch.row_id, true)),
        ]:
            assert kind(jax.eval_shape(function, state, *args)[0]) == expected
        assert kind(jax.eval_shape(algo.learn, state)) == expected

    def test_other_numbers_share_the_compiled_step(self):
        """A budget, a learning rate: array parameters, not constants."""
        state, batches = slim_start()
        batch, true = batches[0]
        slim().step(state, batch, true)
        other = slim_algo(budget=1)
        assert other.step is slim().algo.step
        params = jax.tree.map(jnp.asarray, other.params)
        state = state._replace(per_seed=state.per_seed._replace(params=params))
        _, info = assert_compiles_nothing(jax.jit(other.step), state, batch, true)
        assert int(np.asarray(info.query).sum()) == 1

        def with_rate(learning_rate):
            return rad_jax.rad(
                label_model=rad_jax.mlp(
                    (4,),
                    learning_rate=learning_rate,
                    training=rad_jax.Training(steps=2),
                ),
                classifier=rad_jax.knn(),
                selection=selection.active_limited(2),
                num_classes=K,
                memory_capacity=CAPACITY,
            )

        one, two = with_rate(1e-3), with_rate(0.1)
        for name in ("step", "judge", "answer", "learn", "predict", "predict_proba"):
            assert getattr(one, name) is getattr(two, name)
        clean = Stream(0).clean()
        assert jax.eval_shape(one.init, KEY, clean) == (
            jax.eval_shape(two.init, KEY, clean)
        )


class TestKeys:
    """A learner that remembers the keys it was given."""

    @functools.cached_property
    def functions(self):
        def data(key):
            return jax.random.key_data(key)

        def init(spec, params, key):
            zero = jnp.zeros_like(data(key))
            return {"made": data(key), "init": zero, "order": zero}

        def fit(spec, params, model, examples, *, init_key, order_key):
            return model | {"init": data(init_key), "order": data(order_key)}

        def predict_proba(spec, params, model, memory, queries):
            return jnp.full((queries.features.shape[0], K), 1 / K)

        learner = Learner("keys", init, fit, predict_proba, lambda spec, n: 0)
        algo = rad_jax.rad(
            label_model=learner,
            classifier=learner,
            selection=selection.basic(),
            num_classes=K,
            memory_capacity=CAPACITY,
        )
        return tuple(map(jax.jit, (algo.init, algo.step, algo.learn)))

    def models(self, keys, arrivals=2):
        init, step, _ = self.functions
        stream = Stream(0)
        state = init(keys, stream.clean())
        out = [state.per_seed.models]
        for _ in range(arrivals):
            state, _ = step(state, stream.batch()[0])
            out.append(state.per_seed.models)
        return self.plain(out)

    def plain(self, keys):
        return jax.tree.map(lambda x: tuple(np.asarray(x).tolist()), keys)

    def test_learning_again_sees_other_minibatches(self):
        init, step, learn = self.functions
        stream = Stream(0)
        state = init(KEY, stream.clean())
        orders = []
        for _ in range(2):
            state, _ = step(state, stream.batch()[0])
            for _ in range(3):
                orders += [model["order"] for model in state.per_seed.models]
                state = learn(state)
        assert len(set(self.plain(orders))) == len(orders)
        made = self.plain([model["made"] for model in state.per_seed.models])
        assert made == self.plain([model["init"] for model in state.per_seed.models])

    def test_each_purpose_has_its_own(self):
        one, two = jax.random.split(KEY)
        runs = self.models(Keys(one, two))
        made = [model["made"] for model in runs[0]]
        assert len(set(made)) == 2
        for models in runs:
            # The key of the initialisation comes again at every fit, for a refit.
            assert [m["made"] for m in models] == [m["init"] for m in models] == made
        orders = [m["order"] for models in runs for m in models]
        assert len({*orders, *made}) == len(orders) + len(made)
        other_init = self.models(Keys(two, two))
        assert [m["order"] for models in other_init for m in models] == orders
        other_order = self.models(Keys(one, one))
        assert [m["made"] for m in other_order[0]] == made
        assert not {m["order"] for ms in other_order for m in ms} & set(orders)


# --- arrivals of an odd kind -------------------------------------------------------


class TestOddArrivals:
    def all_rejected(self, state, batch, programs):
        _, info = programs.step(state, batch, np.zeros(BATCH, np.int32))
        by_l, by_c = (
            np.asarray(p.argmax(-1)) for p in (info.label_probs, info.class_probs)
        )
        label = np.array([min({0, 1, 2} - {a, b}) for a, b in zip(by_l, by_c)])  # noqa: B905
        return batch._replace(label=label.astype(np.int32))

    @pytest.mark.parametrize("scheme", ["basic", "voting"])
    def test_everything_rejected(self, scheme):
        programs = ensemble()
        stream = Stream(0)
        state = programs.init(KEY, stream.clean(), params_of(programs.algo, scheme))
        batch, true = stream.batch()
        state, _ = programs.step(state, batch, true)
        for _ in range(2):
            batch, true = stream.batch()
            batch = self.all_rejected(state, batch, programs)
            after, info = programs.step(state, batch, true)
            assert not np.asarray(info.keep).any()
            before, now = state.per_seed, after.per_seed
            assert_close_trees(fitted(now.models), fitted(before.models))
            assert_close_trees(now.alpha_latest, before.alpha_latest)
            rows = table(after)
            for row_id in batch.row_id.tolist():
                assert rows[row_id].status == RowStatus.DROPPED
            state = after

    def test_of_one_class_only(self):
        programs = ensemble()
        stream = Stream(0, noise=0)
        state = programs.init(KEY, stream.clean(), params_of(programs.algo, "basic"))
        batch, _ = stream.batch()
        ones = np.ones(BATCH, np.int32)
        batch = batch._replace(label=ones)
        state, info = programs.step(state, batch, ones)
        kept = np.asarray(info.keep)
        assert kept.any()
        assert len(trained_on(state)) == INITIAL - INITIAL // 5 + kept.sum()
        assert_model_is_of(state, trained_on(state))

    def test_a_clean_batch_of_one_class_only(self):
        stream = Stream(0)
        clean = stream.clean()._replace(label=np.full(INITIAL, 2, np.int32))
        state = slim().init(KEY, clean)
        np.testing.assert_array_equal(state.per_seed.alpha, [1.0])
        batch, true = stream.batch()
        np.testing.assert_array_equal(slim().predict(state, batch.features), 2)
        state, info = slim().step(state, batch, true)
        kept = np.asarray(info.keep)
        np.testing.assert_array_equal(kept, batch.label == 2)

    def test_rows_without_room_are_counted_and_harm_nothing(self):
        stream = Stream(0)
        state = slim().init(KEY, stream.clean())
        stored = 24
        came = stored
        for i in range(ARRIVALS + 2):
            batch, true = stream.batch(padding=3 if i == 0 else 0)
            before = table(state)
            state, info = slim().step(state, batch, true)
            came += int(batch.valid.sum())
            room = min(CAPACITY - stored, int(batch.valid.sum()))
            stored += room
            assert int(info.overflow) == max(0, came - CAPACITY)
            homeless = np.flatnonzero(batch.valid)[room:]
            assert not np.asarray(info.keep | info.query)[homeless].any()
            after = table(state)
            assert len(after) == stored
            for row_id, row in before.items():
                assert (
                    dataclasses.astuple(after[row_id])[1:]
                    == (dataclasses.astuple(row)[1:])
                )
            fitting = batch.row_id[batch.valid][:room].tolist()
            assert set(after) == set(before) | set(fitting)
            assert_model_is_of(state, trained_on(state))
        assert stored == CAPACITY
        assert came > CAPACITY + BATCH


# --- calibration -------------------------------------------------------------------


class TestCalibration:
    def test_temperatures_lower_the_loss_on_validation_rows(self):
        algo = rad_jax.rad(
            classifier=rad_jax.nearest_centroid(),
            selection=selection.voting(),
            num_classes=K,
            memory_capacity=80,
            validation_fraction=0.5,
            calibrate=True,
        )
        stream = Stream(6, spread=1.2)
        state = jax.jit(algo.init)(KEY, stream.clean(60))
        step = jax.jit(algo.step)
        raw_probs = jax.jit(algo.engine.probabilities)
        temperatures = []
        for i in range(3):
            shared, per_seed = state
            label = np.asarray(shared.validation_label)
            assert len(label) == 30
            ones = per_seed._replace(temperature=jnp.ones(1))
            raw = raw_probs(shared, ones, shared.validation)
            tempered = raw_probs(shared, per_seed, shared.validation)
            for p, q, t in zip(raw, tempered, per_seed.temperature, strict=True):
                p = np.maximum(np.asarray(p, float), oracles.CLIP)

                loss = functools.partial(
                    oracles.negative_log_likelihood, p, label, np.ones(30)
                )

                t = float(t)
                temperatures.append(t)
                assert 0.02 < t < 50
                assert loss(t) < loss(1.0)
                assert loss(t) <= min(loss(t * 1.05), loss(t / 1.05))
                np.testing.assert_allclose(q, oracles.tempered(p, t), atol=1e-5)
            if i < 2:
                batch, true = stream.batch()
                before = raw_probs(
                    shared, per_seed, algo.engine.track(shared, jnp.asarray(batch[0]))
                )
                state, info = step(state, batch, true)
                # What is judged by, and predicted with, is calibrated too.
                np.testing.assert_allclose(info.label_probs, before[0], atol=1e-5)
                np.testing.assert_allclose(info.class_probs, before[0], atol=1e-5)
        assert len(set(temperatures)) == 3  # fitted again at every arrival


# --- bad input ---------------------------------------------------------------------


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"num_classes": 1}, r"num_classes .* 2\.\.32767, got 1"),
            ({"num_classes": MAX_CLASSES + 1}, "num_classes .* got 32768"),
            ({"memory_capacity": 0}, "memory_capacity .* at least 1 row, got 0"),
            ({"memory_capacity": -5}, "memory_capacity .* got -5"),
            ({"validation_fraction": -0.1}, r"validation_fraction .* \[0, 1\)"),
            ({"validation_fraction": 1.0}, r"validation_fraction .*, got 1\.0"),
            ({"validation_fraction": float("nan")}, "validation_fraction .* got nan"),
            (
                {"validation_fraction": 0.0, "calibrate": True},
                "calibrate needs validation rows",
            ),
        ],
    )
    def test_of_rad(self, arguments, message):
        fine = {"num_classes": K, "memory_capacity": CAPACITY}
        with pytest.raises(ValueError, match=message):
            rad_jax.rad(
                classifier=rad_jax.nearest_centroid(),
                selection=selection.basic(),
                **fine | arguments,
            )

    @pytest.mark.parametrize(
        "name", ["classifier", "label_model", "selection", "expert"]
    )
    def test_of_a_kind_that_cannot_be(self, name):
        fine = {
            "classifier": rad_jax.nearest_centroid(),
            "selection": selection.basic(),
            "num_classes": K,
            "memory_capacity": CAPACITY,
        }
        with pytest.raises(TypeError, match=f"{name} must be .*, got 'voting'"):
            rad_jax.rad(**fine | {name: "voting"})

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"features": np.zeros((BATCH, 2), np.float32)}, r"\[N, 3\].*\[12, 2\]"),
            ({"features": np.zeros((BATCH, WIDTH), np.int32)}, "float32 .* int32"),
            ({"features": np.zeros((5, WIDTH), np.float32)}, "5 rows, label 12"),
            ({"label": np.zeros(BATCH, np.float32)}, "integer dtype, got float32"),
        ],
    )
    @pytest.mark.parametrize("function", ["step", "judge"])
    def test_of_a_batch(self, function, change, message):
        state, batches = slim_start()
        batch = jax.tree.map(jnp.asarray, batches[0][0]._replace(**change))
        with pytest.raises(ValueError, match=message):
            getattr(slim().algo, function)(state, batch)

    def test_of_an_empty_batch(self):
        state, batches = slim_start()
        batch = only(batches[0][0], slice(0, 0))
        with pytest.raises(ValueError, match="batch has no rows"):
            slim().algo.judge(state, batch)
        with pytest.raises(ValueError, match="batch has no rows"):
            slim().algo.init(KEY, batch)

    def test_of_a_clean_batch(self):
        clean = Stream(0).clean()
        algo = slim().algo
        with pytest.raises(ValueError, match="integer dtype"):
            algo.init(KEY, clean._replace(label=clean.label.astype(np.float32)))
        with pytest.raises(ValueError, match="rows, label"):
            algo.init(KEY, clean._replace(features=clean.features[:3]))
        greedy = rad_jax.rad(
            classifier=rad_jax.nearest_centroid(),
            selection=selection.basic(),
            num_classes=K,
            memory_capacity=CAPACITY,
            validation_fraction=0.9,
        )
        with pytest.raises(ValueError, match="2 rows and all of them validate"):
            greedy.init(KEY, only(clean, slice(0, 2)))
