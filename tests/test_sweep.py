"""Sweeps: the same as single runs, one program, features held once.

Programs take long to compile and no time to run, so the sweeps are made once and
looked at by many tests.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

import rad_jax
from rad_jax import Batch, Keys, RowStatus, Training, noise, selection, stream, sweep
from rad_jax.datasets import StreamData
from rad_jax.statistics import HISTORY_METRICS, SweepResult
from rad_jax.sweep import Arm
from rad_jax.types import Learner, Noise

K = 3
WIDTH = 5
INITIAL = 40
BATCH = 20
ARRIVALS = 4
TEST = 200
SEED = 11
BUDGET = 4
RATES = (0.0, 0.33)
NUM_SEEDS = 3

SCHEMES = {
    "no_selection": selection.no_selection(),
    "oracle_selection": selection.oracle_selection(),
    "basic": selection.basic(),
    "voting": selection.voting(),
    "active": selection.active(),
    "active_limited": selection.active_limited(BUDGET),
}
SLIM = {
    "slim": selection.basic(),
    "slim_limited": selection.active_limited(BUDGET),
}
# Not sorted by group: the results must come back in this order.
ARMS = (
    Arm("slim", SLIM["slim"], one_model=True),
    *(Arm(name, scheme) for name, scheme in SCHEMES.items()),
    Arm("slim_limited", SLIM["slim_limited"], one_model=True),
)

_compiled: list[str] = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, _, **kwargs: (
        _compiled.append(str(kwargs.get("fun_name")))
        if event == "/jax/core/compile/backend_compile_duration"
        else None
    )
)


class Compilations:
    """How often the parts of a sweep are compiled inside a `with` block."""

    def __enter__(self):
        self.first = len(_compiled)
        return self

    def __exit__(self, *_):
        self.all = _compiled[self.first :]

    def of_parts(self):
        return {
            part: sum(part in name for name in self.all)
            for part in ("begin", "advance")
        }


ONCE = {"begin": 1, "advance": 1}


@functools.cache
def blobs(num_classes=K, initial=INITIAL, arrivals=ARRIVALS, batch=BATCH, test=TEST):
    """Overlapping blobs of unequal size; a shorter stream is a prefix of a longer."""
    rng = np.random.default_rng(5)
    centres = rng.normal(size=(num_classes, WIDTH)) * 1.1
    share = rng.dirichlet(np.full(num_classes, 5.0))

    def rows(seed, *shape):
        rng = np.random.default_rng(seed)
        size = math.prod(shape)
        label = rng.choice(num_classes, size, p=share).astype(np.int32)
        x = centres[label] + rng.normal(size=(size, WIDTH))
        return x.astype(np.float32).reshape(*shape, WIDTH), label.reshape(shape)

    batches = [rows(100 + i, batch) for i in range(arrivals)]
    clean, held_out = rows(1, initial), rows(2, test)
    return StreamData(
        *clean,
        *(np.stack(part) for part in zip(*batches, strict=True)),
        *held_out,
        num_classes=num_classes,
        class_names=tuple(f"class {k}" for k in range(num_classes)),
    )


def mlp(learning_rate=0.02):
    training = Training(steps=3, initial_steps=30, minibatch_size=16)
    return rad_jax.mlp((6,), learning_rate=learning_rate, training=training)


def toy(init, fit, predict) -> Learner:
    """A learner that takes no time to compile."""
    return Learner(
        "toy",
        lambda spec, params, key: init(key),
        lambda spec, params, model, examples, *, init_key, order_key: fit(
            model, examples, order_key
        ),
        lambda spec, params, model, memory, queries: predict(model, queries.features),
        lambda spec, num_queries: 1000,
    )


def projection(initial: float, drift: float) -> Learner:
    """Random weights that each fit moves at random, and the frequencies of classes.

    Args:
      initial: how much the key of the initialisation matters.
      drift: how much the key of the order of minibatches matters.
    """

    def fit(model, examples, order_key):
        member = examples.label[:, None] == jnp.arange(K)[None, :]
        count = jnp.sum(member * examples.weight[:, None], axis=0)
        step = drift * jax.random.normal(order_key, (WIDTH, K))
        bias = jnp.log1p(count) - jnp.log1p(jnp.sum(count))
        return {"weights": model["weights"] + step, "bias": bias}

    def init(key):
        weights = initial * jax.random.normal(key, (WIDTH, K))
        return {"weights": weights, "bias": jnp.zeros(K)}

    def predict(model, x):
        return jax.nn.softmax(x @ model["weights"] + model["bias"][None, :])

    return toy(init, fit, predict)


BY_INITIALISATION = projection(1, 0)
BY_ORDER = projection(0, 1)
#: Takes the first columns for class probabilities, and learns nothing.
OPINION = toy(lambda key: (), lambda model, *_: model, lambda model, x: x)


def prepare(data=None, arms=ARMS, **options):
    defaults = {
        "label_model": mlp(),
        "classifier": rad_jax.knn(3, num_candidates=16),
        "noise_rates": RATES,
        "num_seeds": NUM_SEEDS,
        "seed": SEED,
    }
    return sweep.prepare(blobs() if data is None else data, arms, **defaults | options)


@functools.cache
def main_sweep() -> tuple[SweepResult, dict[str, int], list[int]]:
    """All schemes, with what was compiled and the progress that was reported."""
    progress: list[int] = []
    with Compilations() as compilations:
        result = prepare().run(progress.append)
    return result, compilations.of_parts(), progress


def index_of(name):
    return [arm.name for arm in ARMS].index(name)


def assert_same_figures(got, expected, where=""):
    """To the grain of each figure: one row more or less.

    Runs that are vmapped together differ in the last bits from runs that are not,
    which may turn the most probable class of a row.
    """
    for name, value in expected.items():
        grain = {
            "purity": 1 / 20,
            "recall": 1 / 20,
            "kept": 1,
            "queries": 1,
            "wasted_queries": 1,
            "realised_noise": 0,
            "prequential_accuracy": 1 / BATCH,
            "classifier_prequential_accuracy": 1 / BATCH,
            "balanced_accuracy": 1 / 20,
            "classifier_balanced_accuracy": 1 / 20,
        }.get(name, 1 / TEST)
        np.testing.assert_allclose(
            got[name], value, rtol=1e-5, atol=1e-5 + grain, err_msg=f"{where} {name}"
        )


# --- single runs -------------------------------------------------------------------


@functools.cache
def single(one_model: bool):
    """The algorithm of one group, with its compiled functions."""
    members = SLIM if one_model else SCHEMES
    algo = rad_jax.rad(
        label_model=None if one_model else mlp(),
        classifier=rad_jax.knn(3, num_candidates=16),
        selection=selection.switch(list(members.values())),
        num_classes=K,
        memory_capacity=INITIAL - INITIAL // 5 + ARRIVALS * BATCH,
    )

    def probabilities(state, features):
        queries = algo.engine.track(state.shared, features)
        return algo.engine.probabilities(*state, queries)

    functions = (algo.init, algo.step, probabilities)
    return algo, list(members), *(jax.jit(f) for f in functions)


def recount(state, true_by_id):
    """Figures of selection, row by row, over the arrivals after the clean batch."""
    memory, per_seed = state.shared.memory, state.per_seed
    columns = (
        memory.row_id,
        memory.arrived,
        per_seed.given,
        per_seed.label,
        per_seed.status,
    )
    kept = pure = right = right_and_kept = queries = wasted = 0
    for row_id, arrived, given, label, status in zip(
        *(np.asarray(c).tolist() for c in columns), strict=True
    ):
        if arrived <= 0:
            continue
        true = true_by_id[row_id]
        trained_on = status in (RowStatus.KEPT, RowStatus.VERIFIED)
        asked = status in (RowStatus.PENDING, RowStatus.VERIFIED)
        kept += trained_on
        pure += trained_on and label == true
        right += given == true
        right_and_kept += trained_on and given == true
        queries += asked
        wasted += asked and given == true
    return {
        "kept": kept,
        "purity": pure / kept if kept else np.nan,
        "recall": right_and_kept / right if right else np.nan,
        "queries": queries,
        "wasted_queries": wasted,
    }


def accuracies(predicted, true):
    predicted, true = np.asarray(predicted), np.asarray(true)
    per_class = [np.mean(predicted[true == k] == k) for k in np.unique(true)]
    return np.mean(predicted == true), np.mean(per_class)


def measure(state, probs, alpha, data, true_by_id):
    """What a sweep records, in NumPy, and the user's predictions."""
    by_model = [[oracles.argmax(row) for row in p] for p in probs]
    predicted = by_model[0]
    if len(probs) == 2:
        predicted, _ = oracles.algorithm_1(*probs, *alpha)
    accuracy, balanced = accuracies(predicted, data.test_labels)
    by_classifier, classifier_balanced = accuracies(by_model[-1], data.test_labels)
    figures = {
        "accuracy": accuracy,
        "balanced_accuracy": balanced,
        "classifier_accuracy": by_classifier,
        "classifier_balanced_accuracy": classifier_balanced,
        "label_model_accuracy": accuracies(by_model[0], data.test_labels)[0],
        **recount(state, true_by_id),
    }
    return figures, predicted, by_model[-1]


def single_run(name, rate, seed):
    """One run as a user would write it, with the keys that a sweep documents."""
    data = blobs()
    one_model = name in SLIM
    algo, names, init, step, probabilities = single(one_model)
    chosen = algo.params.selection | {"index": names.index(name)}
    key = jax.random.key(SEED)
    noise_key = jax.random.fold_in(jax.random.fold_in(key, 2), seed)
    true_by_id = dict(enumerate(np.concatenate([data.initial_labels, *data.labels])))

    def batch(features, labels, first):
        ids = np.arange(first, first + len(labels), dtype=np.int32)
        return Batch(features, labels, np.ones(len(labels), bool), ids)

    state = init(
        key,
        batch(data.initial_features, data.initial_labels, 0),
        algo.params._replace(selection=chosen),
    )
    history = []

    def look(**more):
        probs = probabilities(state, data.test_features)
        alpha = np.asarray(state.per_seed.alpha)
        probs = [np.asarray(p) for p in probs]
        figures, *predicted = measure(state, probs, alpha, data, true_by_id)
        history.append(figures | more)
        return predicted

    def foresee(features, true):
        """Accuracies on rows whose labels the models have not seen."""
        probs = [np.asarray(p) for p in probabilities(state, features)]
        by_classifier = predicted = [oracles.argmax(row) for row in probs[-1]]
        if len(probs) == 2:
            alpha = np.asarray(state.per_seed.alpha)
            predicted, _ = oracles.algorithm_1(*probs, *alpha)
        right = {"prequential_accuracy": 0, "classifier_prequential_accuracy": 0}
        for label, user, alone in zip(true, predicted, by_classifier, strict=True):
            right["prequential_accuracy"] += user == label
            right["classifier_prequential_accuracy"] += alone == label
        return {name: count / len(true) for name, count in right.items()}

    before = {"prequential_accuracy": np.nan, "classifier_prequential_accuracy": np.nan}
    look(realised_noise=np.nan, **before)
    for i, (features, true) in enumerate(zip(data.features, data.labels, strict=True)):
        given = noise.symmetric(rate).apply(
            {"rate": jnp.float32(rate)},
            jnp.asarray(true),
            jnp.ones(BATCH, bool),
            num_classes=K,
            key=jax.random.fold_in(noise_key, i + 1),
        )
        here = batch(features, np.asarray(given), INITIAL + i * BATCH)
        before = foresee(features, true)
        state, _ = step(state, here, true)
        predicted = look(realised_noise=np.mean(np.asarray(given) != true), **before)
    return history, predicted


class TestAgainstSingleRuns:
    @pytest.mark.parametrize("seed", [0, 2])
    @pytest.mark.parametrize("name", [arm.name for arm in ARMS])
    def test_equals_a_loop_over_arrivals(self, name, seed):
        result, _, _ = main_sweep()
        assert result.schemes == tuple(arm.name for arm in ARMS)
        data = blobs()
        history, predicted = single_run(name, RATES[1], seed)
        cell = (index_of(name), 1, seed)
        for i, expected in enumerate(history):
            got = {m: result.history[m][(*cell, i)] for m in HISTORY_METRICS}
            assert set(expected) == set(HISTORY_METRICS)
            assert_same_figures(got, expected, f"{name}, arrival {i}")
        for counts, classes in zip(
            (result.confusion, result.classifier_confusion), predicted, strict=True
        ):
            expected = np.zeros((K, K), int)
            for true, guess in zip(data.test_labels, classes, strict=True):
                expected[true, guess] += 1
            assert np.abs(counts[cell] - expected).sum() <= 2  # one row moved

    def test_the_final_confusion_is_of_the_final_predictions(self):
        result, _, _ = main_sweep()
        for counts, metric in [
            (result.confusion, "accuracy"),
            (result.classifier_confusion, "classifier_accuracy"),
        ]:
            assert counts.shape == (len(ARMS), len(RATES), NUM_SEEDS, K, K)
            assert (counts.sum((-1, -2)) == TEST).all()
            right = np.trace(counts, axis1=-2, axis2=-1) / TEST
            np.testing.assert_allclose(
                right, result.history[metric][..., -1], atol=1e-5 + 1 / TEST
            )

    def test_facts(self):
        result, _, progress = main_sweep()
        data = blobs()
        for values in result.history.values():
            assert values.shape == (len(ARMS), len(RATES), NUM_SEEDS, ARRIVALS + 1)
        assert result.noise_rates == RATES
        assert result.seeds == (0, 1, 2)
        assert result.class_names == data.class_names
        majority = np.bincount(data.test_labels).max() / TEST
        np.testing.assert_allclose(result.majority_accuracy, majority)
        assert progress == [1, 2, 3, 4]
        assert result.run_seconds > 0


TOY_RATES = (0.5, 0.25)
TOY_ARMS = tuple(Arm(name, SCHEMES[name]) for name in ("basic", "active", "voting"))


def prepare_toy(randomness, **options):
    """Independent flips, since their number tells one noise from another."""
    defaults = {
        "arms": TOY_ARMS,
        "label_model": BY_INITIALISATION,
        "classifier": BY_ORDER,
        "noise": noise.independent(0.0),
        "noise_rates": TOY_RATES,
        "num_seeds": 4,
    }
    return prepare(randomness=randomness, **defaults | options)


@functools.cache
def toy_sweep(randomness) -> tuple[SweepResult, dict[str, int]]:
    with Compilations() as compilations:
        result = prepare_toy(randomness).run()
    return result, compilations.of_parts()


@functools.cache
def long_sweep() -> tuple[SweepResult, dict[str, int], list[int], int]:
    """Of 103 arrivals of 6 rows, after a look at the memory it needs."""
    progress: list[int] = []
    prepared = prepare(
        blobs(arrivals=103, batch=6, test=50),
        [Arm("slim_limited", selection.active_limited(1), one_model=True)],
        classifier=BY_ORDER,
        noise_rates=[0.5],
        num_seeds=2,
    )
    with Compilations() as compilations:
        planned = prepared.compiled_bytes()
        result = prepared.run(progress.append)
    return result, compilations.of_parts(), progress, planned


class TestSameRunWhateverElseRuns:
    @pytest.mark.parametrize(
        "randomness",
        [pytest.param("fixed_noise", marks=pytest.mark.slow), "double_random"],
    )
    def test_number_of_seeds_schemes_and_rates(self, randomness):
        """The main sweep and single runs show it for fixed models."""
        everything, _ = toy_sweep(randomness)
        few = prepare_toy(
            randomness,
            arms=TOY_ARMS[:0:-1],
            noise_rates=TOY_RATES[1:],
            num_seeds=2,
        ).run()
        assert few.schemes == ("voting", "active")
        for i, name in enumerate(few.schemes):
            for seed in range(2):
                cell = (everything.schemes.index(name), 1, seed)
                assert_same_figures(
                    {m: few.history[m][i, 0, seed] for m in HISTORY_METRICS},
                    {m: everything.history[m][cell] for m in HISTORY_METRICS},
                    f"{name}, seed {seed}",
                )

    def test_beyond_50_arrivals_several_make_a_segment(self):
        """The last one may be shorter than the others."""
        result, _, progress, _ = long_sweep()
        assert progress == [*range(2, 103, 2), 103]
        history = {name: values[0, 0] for name, values in result.history.items()}
        for values in history.values():
            assert values.shape == (2, 104)
        np.testing.assert_array_equal(history["realised_noise"][:, 1:], 0.5)
        # Three labels of six are wrong, so a row is asked about at most arrivals.
        steps = np.diff(history["queries"])
        assert set(np.unique(steps)) <= {0, 1}
        assert (steps.sum(1) > 90).all()
        assert (np.diff(history["kept"]) >= steps).all()
        right = np.trace(result.confusion[0, 0], axis1=-2, axis2=-1) / 50
        np.testing.assert_allclose(right, history["accuracy"][:, -1], atol=1e-5)


class TestCompilation:
    def test_one_program_for_all_schemes_rates_and_seeds(self):
        _, parts, _ = main_sweep()
        assert parts == ONCE

    def test_the_second_run_compiles_nothing_and_gives_the_same(self):
        first, _, _ = main_sweep()
        with Compilations() as compilations:
            again = prepare().run()
        assert compilations.all == []
        for name in HISTORY_METRICS:
            np.testing.assert_array_equal(again.history[name], first.history[name])
        np.testing.assert_array_equal(again.confusion, first.confusion)
        assert again.compile_seconds == 0

    def test_other_numbers_compile_nothing(self):
        """Rates, budgets, learning rates and seeds are data."""
        first, _, _ = main_sweep()
        arms = [
            arm._replace(scheme=selection.active_limited(1))
            if "limited" in arm.name
            else arm
            for arm in ARMS
        ]
        with Compilations() as compilations:
            other = prepare(arms=arms, noise_rates=(0.6, 1)).run()
        assert compilations.all == []
        queries = other.history["queries"][index_of("active_limited"), :, :, -1]
        assert (queries <= ARRIVALS).all()
        assert (first.history["queries"][index_of("active_limited")] > ARRIVALS).any()
        np.testing.assert_array_equal(other.history["realised_noise"][:, 1, :, 1:], 1)

        for rate in (0.5, np.float32(0.5), jnp.array(0.5)):
            with Compilations() as compilations:
                fast = prepare(label_model=mlp(rate)).run()
            assert compilations.of_parts() == dict.fromkeys(ONCE, 0), type(rate)
            name = "label_model_accuracy"
            assert (fast.history[name] != first.history[name]).any()

        with Compilations() as compilations:
            reseeded = prepare(seed=SEED + 1).run()
        assert compilations.all == []
        assert (reseeded.history["purity"] != first.history["purity"]).any()

    def test_asking_for_the_memory_compiles_what_will_run(self):
        _, parts, _, planned = long_sweep()
        assert parts == ONCE
        assert planned > 0


class TestMemory:
    """Features are held once, whatever the number of seeds."""

    ROWS, COLUMNS, CLASSES = 100_000, 115, 11
    FEATURES = ROWS * COLUMNS * 4  # bytes
    # Of one seed: labels, status, votes, weights and masks of a row; a small model.
    ONE_SEED = ROWS * 40

    def planned(self, num_seeds, **learners):
        """Bytes that the compiler plans for."""
        clean, size = 2_000, 100
        arrivals = (self.ROWS - clean) // size
        data = StreamData(
            np.zeros((clean, self.COLUMNS), np.float32),
            np.zeros(clean, np.int32),
            np.zeros((arrivals, size, self.COLUMNS), np.float32),
            np.zeros((arrivals, size), np.int32),
            np.zeros((size, self.COLUMNS), np.float32),
            np.zeros(size, np.int32),
            num_classes=self.CLASSES,
            class_names=tuple(f"class {k}" for k in range(self.CLASSES)),
        )
        prepared = prepare(
            data,
            [
                Arm(
                    "active_limited",
                    selection.active_limited(30),
                    one_model="label_model" not in learners,
                )
            ],
            noise_rates=[0.4],
            num_seeds=num_seeds,
            num_devices=1,  # each would hold the features
            **learners,
        )
        return prepared.compiled_bytes()

    @pytest.mark.slow
    def test_64_seeds_do_not_hold_64_copies(self):
        total = self.planned(64, classifier=rad_jax.mlp())
        assert total < 8 * self.FEATURES + 64 * self.ONE_SEED
        assert total < 64 * self.FEATURES / 4

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "learners",
        [
            {"label_model": rad_jax.mlp(), "classifier": rad_jax.knn()},
            {
                "label_model": rad_jax.nearest_centroid(),
                "classifier": rad_jax.nearest_centroid(),
            },
        ],
        ids=["mlp and knn", "nearest centroid"],
    )
    def test_more_seeds_add_labels_and_models_only(self, learners):
        total = self.planned(64, **learners)
        assert total < 8 * self.FEATURES + 64 * self.ONE_SEED
        growth = (total - self.planned(8, **learners)) / (64 - 8)
        assert growth < self.ONE_SEED
        assert growth < self.FEATURES / 10


class TestRandomness:
    def test_without_noise_all_seeds_of_a_fixed_model_agree(self):
        result, _, _ = main_sweep()
        for name, values in result.history.items():
            for seed in range(1, NUM_SEEDS):
                np.testing.assert_array_equal(
                    values[:, 0, seed], values[:, 0, 0], err_msg=name
                )
        np.testing.assert_array_equal(
            result.confusion[:, 0], result.confusion[:, 0, :1].repeat(NUM_SEEDS, 1)
        )

    def test_a_fixed_model_starts_alike_and_noise_tells_seeds_apart(self):
        result, _, _ = main_sweep()
        accuracy = result.history["accuracy"]
        assert (np.ptp(accuracy[..., 0], axis=-1) == 0).all()
        recall = result.history["recall"][index_of("basic"), 1]
        assert np.ptp(recall[:, -1]) > 0

    def test_all_schemes_see_the_same_noise(self):
        """Independent flips: their number would tell one noise from another."""
        result, _ = toy_sweep("fixed_model")
        realised = result.history["realised_noise"][..., 1:]
        for scheme in realised[1:]:
            np.testing.assert_array_equal(scheme, realised[0])
        assert (np.ptp(realised[0], axis=1) > 0).any(), "seeds differ"

    def test_opt_sel_keeps_the_right_rows_and_no_sel_all(self):
        result, _, _ = main_sweep()
        kept = result.history["kept"][index_of("oracle_selection")]
        recall = result.history["recall"]
        assert np.nanmin(recall[index_of("oracle_selection")]) == 1
        assert np.nanmin(result.history["purity"][index_of("oracle_selection")]) == 1
        np.testing.assert_array_equal(
            kept[1, :, -1], ARRIVALS * (BATCH - math.floor(RATES[1] * BATCH + 1e-3))
        )
        for name in ("no_selection", "active"):
            np.testing.assert_array_equal(recall[index_of(name)][..., 1:], 1)

    def test_realised_noise_is_exact(self):
        result, _, _ = main_sweep()
        realised = result.history["realised_noise"]
        assert np.isnan(realised[..., 0]).all()
        for r, rate in enumerate(RATES):
            count = oracles.symmetric_count(rate, BATCH)
            np.testing.assert_allclose(realised[:, r, :, 1:], count / BATCH, rtol=1e-6)

    def test_which_parts_differ_between_seeds(self):
        data = blobs()
        base = jax.random.fold_in(jax.random.key(SEED), 2)

        def realised(seed):
            key = jax.random.fold_in(base, seed)
            out = []
            for i, true in enumerate(data.labels):
                given = noise.independent(0.5).apply(
                    {"rate": jnp.float32(0.5)},
                    jnp.asarray(true),
                    jnp.ones(BATCH, bool),
                    num_classes=K,
                    key=jax.random.fold_in(key, i + 1),
                )
                out.append(np.mean(np.asarray(given) != true))
            return out

        by_seed = [realised(seed) for seed in range(4)]
        assert len({tuple(rates) for rates in by_seed}) == 4
        fixed, double = (
            {m: v[:, 0] for m, v in toy_sweep(name)[0].history.items()}
            for name in ("fixed_noise", "double_random")
        )
        for history, expected in ((fixed, [by_seed[0]] * 4), (double, by_seed)):
            rates = history["realised_noise"][:, :, 1:]
            np.testing.assert_allclose(rates, [expected] * len(TOY_ARMS), rtol=1e-6)
        # Initialisation shows in the label model, the order of data in the classifier.
        for name in ("label_model_accuracy", "classifier_accuracy"):
            start = fixed[name][:, :, 0]
            assert all(len(set(row.tolist())) > 2 for row in start), name
            # Seed s has the same model in both, so both start alike.
            np.testing.assert_array_equal(start, double[name][:, :, 0])
        # Seed 0 has the same noise, too; the others have not.
        for name in ("accuracy", "kept", "queries"):
            np.testing.assert_array_equal(fixed[name][:, 0], double[name][:, 0])
        for seed in range(1, 4):
            assert (fixed["kept"][:, seed] != double["kept"][:, seed]).any()

    def test_the_two_settings_of_random_models_share_a_program(self):
        both = [toy_sweep(name)[1] for name in ("fixed_noise", "double_random")]
        assert sorted(parts["advance"] for parts in both) == [0, 1]


def scripted(script) -> Learner:
    """Puts every row into the class of the script's n-th entry after n arrivals."""
    classes = jnp.array(script)

    def predict(model, x):
        likely = jnp.arange(K) == classes[model]
        return jnp.broadcast_to(jnp.where(likely, 0.6, 0.2), (x.shape[0], K))

    return toy(
        lambda key: jnp.zeros((), jnp.int32),
        lambda model, examples, order_key: examples.arrival,
        predict,
    )


class TestAlpha:
    """Whose accuracies weigh the ensemble; both are of the arrival before."""

    LABEL_MODEL = (1, 1, 2, 2, 1)
    CLASSIFIER = (0, 0, 0, 1, 2)

    def data(self):
        share = {"clean": (25, 10, 5), "test": (50, 40, 110)}
        data = blobs()
        return data._replace(
            initial_labels=np.repeat(np.arange(K, dtype=np.int32), share["clean"]),
            test_labels=np.repeat(np.arange(K, dtype=np.int32), share["test"]),
        )

    @pytest.mark.parametrize(
        ("alpha", "alpha_of_class"),
        # Of the 40 clean rows 8 validate, classes in proportion: 5, 2, 1.
        [("validation", (5 / 8, 2 / 8, 1 / 8)), ("test", (0.25, 0.2, 0.55))],
    )
    def test_source(self, alpha, alpha_of_class):
        result = prepare(
            self.data(),
            [Arm("basic", selection.basic())],
            label_model=scripted(self.LABEL_MODEL),
            classifier=scripted(self.CLASSIFIER),
            alpha=alpha,
            noise_rates=[0.4],
            num_seeds=1,
        ).run()
        accuracy_of_class = (0.25, 0.2, 0.55)
        history = {name: values[0, 0, 0] for name, values in result.history.items()}
        expected = []
        for i in range(ARRIVALS + 1):
            # Before arrival 1: as trained on D_0.
            before = max(i - 1, 0)
            label_alpha = alpha_of_class[self.LABEL_MODEL[before]]
            class_alpha = alpha_of_class[self.CLASSIFIER[before]]
            script = self.CLASSIFIER if class_alpha > label_alpha else self.LABEL_MODEL
            expected.append(accuracy_of_class[script[i]])
        np.testing.assert_allclose(history["accuracy"], expected, rtol=1e-5)
        np.testing.assert_allclose(
            history["label_model_accuracy"],
            [accuracy_of_class[k] for k in self.LABEL_MODEL],
            rtol=1e-5,
        )
        np.testing.assert_allclose(
            history["classifier_accuracy"],
            [accuracy_of_class[k] for k in self.CLASSIFIER],
            rtol=1e-5,
        )


class TestPurity:
    def test_of_basic_follows_the_formula(self):
        """On the first arrival, whose rows the label model has not seen."""
        num_classes, accuracy, size = 11, 0.8, 4000
        rates, seeds = (0.2, 0.4, 0.6), 4
        rng = np.random.default_rng(0)

        def rows(n):
            label = rng.integers(0, num_classes, n).astype(np.int32)
            right = np.arange(n) < accuracy * n
            wrong = (label + rng.integers(1, num_classes, n)) % num_classes
            opinion = np.where(right, label, wrong)
            return np.eye(num_classes, dtype=np.float32)[opinion], label

        (clean, batch, test) = rows(50), rows(size), rows(100)
        data = StreamData(
            *clean,
            *(part[None] for part in batch),
            *test,
            num_classes=num_classes,
            class_names=tuple(f"class {k}" for k in range(num_classes)),
        )
        result = prepare(
            data,
            [Arm("slim", selection.basic(), one_model=True)],
            classifier=OPINION,
            noise_rates=rates,
            num_seeds=seeds,
        ).run()
        history = {name: values[0, ..., 1] for name, values in result.history.items()}
        for r, rate in enumerate(rates):
            expected = oracles.purity_of_basic(rate, accuracy, num_classes)
            right = size - oracles.symmetric_count(rate, size)
            for seed in range(seeds):
                kept = history["kept"][r, seed]
                error = math.sqrt(expected * (1 - expected) / kept)
                assert abs(history["purity"][r, seed] - expected) < 4 * error
                # L agrees with right labels as often as it is right itself.
                error = math.sqrt(accuracy * (1 - accuracy) / right)
                assert abs(history["recall"][r, seed] - accuracy) < 4 * error

    def test_the_formula(self):
        """SPEC 3 gives these figures."""
        for num_classes, accuracy, purity in [
            (11, 0.8, 0.9836),
            (11, 0.98, 0.9986),
            (4, 0.8, 0.9474),
        ]:
            got = oracles.purity_of_basic(0.4, accuracy, num_classes)
            assert abs(got - purity) < 5e-5


class TestCost:
    def test_facts(self):
        prepared = prepare()
        assert prepared.arms == ARMS
        assert prepared.noise_rates == RATES
        assert prepared.num_seeds == NUM_SEEDS
        assert prepared.num_arrivals == ARRIVALS

    def test_steps(self):
        # The MLP takes steps, as label model of the runs with two models.
        runs = len(SCHEMES) * len(RATES) * NUM_SEEDS
        assert prepare().num_steps == 30 + runs * 3 * ARRIVALS
        random_models = prepare(randomness="double_random")
        assert random_models.num_steps == runs * (30 + 3 * ARRIVALS)

    def test_memory_grows_with_the_seeds(self):
        prepared, more = prepare(), prepare(num_seeds=10 * NUM_SEEDS)
        assert prepared.estimated_bytes < more.estimated_bytes
        assert more.estimated_bytes < 10 * prepared.estimated_bytes


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"arms": []}, "arms must name at least one scheme"),
            ({"arms": ARMS[:2] * 2}, "arms must have different names"),
            ({"noise_rates": []}, "noise_rates must name at least one rate"),
            ({"noise_rates": [0.2, 1.2]}, r"noise_rates must lie in \[0, 1\], got 1.2"),
            ({"noise_rates": [-0.1]}, r"noise_rates .* got -0\.1"),
            ({"noise_rates": [math.nan]}, "noise_rates .* got nan"),
            ({"num_seeds": 0}, "num_seeds must be at least 1, got 0"),
            ({"alpha": "train"}, "alpha must be one of .*validation.*got 'train'"),
            ({"randomness": "none"}, "randomness must be one of .*got 'none'"),
            ({"validation_fraction": 1.0}, "validation_fraction must lie in"),
            ({"validation_fraction": -0.5}, "validation_fraction must lie in"),
            (
                {"validation_fraction": 0.0, "calibrate": True},
                "calibrate needs validation rows",
            ),
        ],
    )
    def test_is_found_before_any_work(self, options, message):
        with pytest.raises(ValueError, match=message):
            prepare(**options)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                {"labels": np.zeros((0, BATCH), np.int32)},
                "labels must be .*one arrival",
            ),
            ({"labels": np.zeros((1, 7), np.int32)}, r"features must be .* \(1, 7\)"),
            ({"labels": np.full((ARRIVALS, BATCH), K)}, r"labels must lie in 0\.\.2"),
            ({"initial_labels": np.full(INITIAL, -1)}, "initial_labels must lie in"),
            (
                {"test_features": np.full((TEST, WIDTH), np.nan)},
                "test_features must be",
            ),
            ({"test_features": np.zeros((TEST, 2))}, "test_features must have rows"),
            ({"test_labels": np.zeros(3, np.int32)}, "test_labels must have one label"),
        ],
    )
    def test_of_the_data_too(self, change, message):
        with pytest.raises(ValueError, match=message):
            prepare(blobs()._replace(**change))


class TestOtherNoise:
    def test_parameters_beside_the_rate_reach_every_run_whole(self):
        """As many runs as classes: a matrix must not be dealt out row by row."""
        turn = np.roll(np.eye(K, dtype=np.float32), 1, axis=1)  # class k to k + 1

        def apply(params, label, valid, *, num_classes, key):
            assert params["matrix"].shape == (K, K)
            wrong = jax.random.uniform(key, label.shape) < params["rate"]
            other = jnp.argmax(params["matrix"][label], axis=-1).astype(label.dtype)
            return jnp.where(wrong & valid, other, label)

        pair = Noise(apply, {"rate": 0.0, "matrix": turn})
        result = prepare(
            arms=ARMS[:1],
            noise=pair,
            noise_rates=(1.0,),
            num_seeds=K,
            label_model=rad_jax.nearest_centroid(),
            classifier=rad_jax.nearest_centroid(),
        ).run()
        assert (result.history["realised_noise"][..., 1:] == 1).all()


class TestTrueLabels:
    def test_do_not_reach_a_simulated_run(self):
        """Poisoned true labels under fixed given ones change the figures alone."""
        data = blobs()
        algo = rad_jax.rad(
            label_model=rad_jax.nearest_centroid(),
            classifier=rad_jax.knn(3, num_candidates=16),
            selection=selection.switch(
                [selection.oracle_selection(), selection.basic(), selection.voting()]
            ),
            num_classes=K,
            memory_capacity=INITIAL + ARRIVALS * BATCH,
        )
        engine = algo.engine
        given = jnp.asarray((data.labels[0] + (np.arange(BATCH) % 3 == 0)) % K)
        fixed = Noise(lambda params, label, valid, *, num_classes, key: given, ())
        key = jax.random.key(3)
        clean = jnp.asarray(data.initial_labels)
        shared, first = engine.start(
            Keys(key, key),
            jnp.asarray(data.initial_features),
            jnp.ones(INITIAL, bool),
            jnp.arange(INITIAL, dtype=jnp.int32),
            clean,
        )
        world = stream.open_world(
            engine,
            shared,
            first,
            clean,
            jnp.asarray(data.test_features),
            jnp.asarray(data.test_labels),
        )
        params = algo.params._replace(selection=algo.params.selection | {"index": 1})

        @jax.jit
        def arrive(index, true):
            chosen = params._replace(selection=params.selection | {"index": index})
            per_seed = engine.init_seed(shared, first, clean, key, chosen)
            now, arrival = engine.observe(
                shared,
                jnp.asarray(data.features[0]),
                jnp.ones(BATCH, bool),
                INITIAL + jnp.arange(BATCH, dtype=jnp.int32),
            )
            seen = stream.extend_world(engine, world, now, arrival, true)
            return stream.arrive(
                engine,
                fixed,
                now,
                per_seed,
                arrival,
                seen,
                true,
                (),
                key,
                alpha="validation",
            )

        true = jnp.asarray(data.labels[0])
        for index, changes in ((0, True), (1, False), (2, False)):
            honest, figures, _ = arrive(index, true)
            poisoned, other, _ = arrive(index, (true + 1) % K)
            same = (np.array(honest.status) == np.array(poisoned.status)).all()
            assert same != changes
            if not changes:
                assert figures["purity"] != other["purity"]
                assert_same_trees(honest.models, poisoned.models)
                np.testing.assert_array_equal(
                    np.array(honest.alpha_latest), np.array(poisoned.alpha_latest)
                )


class TestRowsWithoutLabel:
    def test_are_stored_and_change_no_figure_but_queries(self):
        """As if they had not arrived: what their features are plays no part."""
        data = blobs()
        unlabelled = np.arange(BATCH) % 4 == 1
        data = data._replace(labels=np.where(unlabelled, -1, data.labels))
        other = data.features.copy()
        other[:, unlabelled] = 3.0
        first, second = (
            prepare(d).run() for d in (data, data._replace(features=other))
        )
        # Those with a budget choose by features whom to ask.
        same = [i for i, arm in enumerate(ARMS) if not arm.name.endswith("_limited")]
        for name, values in first.history.items():
            np.testing.assert_array_equal(
                values[same], second.history[name][same], err_msg=name
            )

        scheme = first.schemes.index
        labelled = BATCH - unlabelled.sum()
        arrivals = np.arange(ARRIVALS + 1)  # the first is the clean batch
        kept, purity, queries, noise_rate = (
            first.history[name]
            for name in ("kept", "purity", "queries", "realised_noise")
        )
        no_selection = scheme("no_selection")
        assert (kept[no_selection] == labelled * arrivals).all()
        wrong = (np.floor(np.array(RATES) * labelled + 1e-3) / labelled)[:, None]
        for seed in range(NUM_SEEDS):
            got = noise_rate[no_selection, :, seed, 1:]
            np.testing.assert_allclose(got, np.tile(wrong, ARRIVALS), rtol=1e-6)
            got = purity[no_selection, :, seed, 1:]
            np.testing.assert_allclose(got, 1 - np.tile(wrong, ARRIVALS), rtol=1e-6)
        assert (kept[scheme("active")] == labelled * arrivals).all()
        assert (purity[scheme("oracle_selection"), ..., 1:] == 1).all()
        # An expert is asked about each, and has no answer.
        assert (queries[scheme("active")] >= unlabelled.sum() * arrivals).all()


def assert_same_trees(a, b):
    for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(np.array(left), np.array(right))
