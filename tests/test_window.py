"""A sliding window over the stream, against plain loops that keep the last rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rad_jax
from rad_jax import memory, sweep
from rad_jax.datasets import StreamData
from rad_jax.online import OnlineRad
from rad_jax.types import Batch, RowStatus

K, CLEAN, SIZE, ARRIVALS, WINDOW = 3, 12, 8, 7, 21
TOTAL = CLEAN + SIZE * ARRIVALS


@functools.cache
def rows(seed=0):
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=(K, 3))
    true = rng.integers(0, K, TOTAL)
    x = (centre[true] + rng.normal(size=(TOTAL, 3))).astype(np.float32)
    wrong = (np.arange(TOTAL) >= CLEAN) & (rng.random(TOTAL) < 0.3)
    given = np.where(wrong, (true + 1) % K, true)
    return x, true.astype(np.int32), given.astype(np.int32)


def part(at, padding=0):
    x, _, given = rows()
    n = len(given[at])
    batch = Batch(
        jnp.asarray(x[at]),
        jnp.asarray(given[at]),
        jnp.ones(n, bool),
        jnp.arange(TOTAL)[at],
    )
    return jax.tree.map(
        lambda a: jnp.concatenate([a, jnp.zeros((padding, *a.shape[1:]), a.dtype)]),
        batch,
    )


def batches():
    for i in range(ARRIVALS):
        yield slice(CLEAN + i * SIZE, CLEAN + (i + 1) * SIZE)


def votes(stored, queries, k):
    """Shares of the k nearest kept rows: ``stored`` is a list of (row, label)."""
    x, _, _ = rows()
    near = np.array([x[row] for row, _ in stored], np.float64)
    label = np.array([label for _, label in stored])
    out = np.zeros((len(queries), K))
    for i, query in enumerate(queries.astype(np.float64)):
        chosen = np.argsort(((near - query) ** 2).sum(axis=1), kind="stable")[:k]
        for j in chosen:
            out[i, label[j]] += 1 / len(chosen)
    return out


def algorithm(learner, **options):
    return rad_jax.rad(
        classifier=learner,
        selection=rad_jax.basic(),
        num_classes=K,
        memory_capacity=WINDOW,
        sliding_window=True,
        **({"validation_fraction": 0.0} | options),
    )


@pytest.mark.parametrize("num_candidates", [3, 30])
@pytest.mark.parametrize("padding", [0, 3])
def test_neighbours_of_the_last_rows_alone(num_candidates, padding):
    """Also where shared lists do not suffice and all rows are searched."""
    algo = algorithm(rad_jax.knn(3, num_candidates=num_candidates))
    x, _, given = rows()
    state = jax.jit(algo.init)(jax.random.key(0), part(slice(CLEAN)))
    step, predict = jax.jit(algo.step), jax.jit(algo.predict_proba)
    window = list(range(CLEAN))
    kept = {row: int(given[row]) for row in window}
    queries = x[:5] + 0.1
    for at in batches():
        state, info = step(state, part(at, padding))
        new = list(range(TOTAL))[at]
        window = (window + new)[-WINDOW:]
        # Judged by what is still there once there is room for the new rows.
        stay = [(row, kept[row]) for row in window if row in kept]
        probs = votes(stay, x[at], 3)
        np.testing.assert_allclose(info.label_probs[:SIZE], probs, atol=1e-6)
        for row, p in zip(new, probs, strict=True):
            if p.argmax() == given[row]:
                kept[row] = int(given[row])
        stay = [(row, kept[row]) for row in window if row in kept]
        np.testing.assert_allclose(
            predict(state, queries), votes(stay, queries, 3), atol=1e-6
        )
        memory = state.shared.memory
        assert sorted(np.asarray(memory.row_id)[np.asarray(memory.valid)]) == window
        trained = np.asarray(state.per_seed.status) > RowStatus.DROPPED
        ids = np.asarray(memory.row_id)[trained & np.asarray(memory.valid)]
        assert sorted(ids) == sorted(row for row, _ in stay)
        assert int(info.overflow) == 0
    assert min(window) > CLEAN  # the clean rows are long forgotten


@pytest.mark.parametrize("num_candidates", [3, 30])
def test_labels_of_forgotten_rows_do_not_vote(num_candidates):
    """Neither before models learn of the new rows, nor where none of those is kept."""
    algo = algorithm(rad_jax.knn(3, num_candidates=num_candidates))
    x, _, given = rows()
    state = jax.jit(algo.init)(jax.random.key(0), part(slice(CLEAN)))
    judge, learn = jax.jit(algo.judge), jax.jit(algo.learn)
    for i, at in enumerate(list(batches())[:3]):
        batch = part(at)
        state, _ = judge(state, batch._replace(label=jnp.full_like(batch.label, -1)))
        stay = range(max(0, CLEAN + (i + 1) * SIZE - WINDOW), CLEAN)
        probs = np.full((9, K), 1 / K)
        if stay:
            probs = votes([(row, given[row]) for row in stay], x[:9], 3)
        np.testing.assert_allclose(algo.predict_proba(state, x[:9]), probs, atol=1e-6)
        if i != 1:  # one batch is learned late, together with the next
            state = learn(state)
        np.testing.assert_allclose(algo.predict_proba(state, x[:9]), probs, atol=1e-6)
    assert not stay


@pytest.mark.parametrize(
    "make", [rad_jax.nearest_centroid, rad_jax.linear_svm], ids=["centroid", "svm"]
)
def test_a_window_is_a_memory_of_the_last_rows(make):
    """Trained on what the window holds, as a fresh memory of those rows would be."""
    algo = algorithm(make())
    x, _, given = rows()
    state = jax.jit(algo.init)(jax.random.key(0), part(slice(CLEAN)))
    step = jax.jit(algo.step)
    for at in batches():
        state, _ = step(state, part(at))
    status = np.asarray(state.per_seed.status)
    ids = np.asarray(state.shared.memory.row_id)
    kept = np.sort(ids[status > RowStatus.DROPPED])
    fresh = rad_jax.rad(
        classifier=make(),
        selection=rad_jax.basic(),
        num_classes=K,
        memory_capacity=len(kept),
        validation_fraction=0.0,
    )
    alone = fresh.init(
        jax.random.key(0),
        Batch(
            jnp.asarray(x[kept]),
            jnp.asarray(given[kept]),
            jnp.ones(len(kept), bool),
            jnp.asarray(kept, jnp.int32),
        ),
    )
    np.testing.assert_allclose(
        algo.predict_proba(state, x[:9]), fresh.predict_proba(alone, x[:9]), atol=1e-3
    )


def test_cleaning_within_a_window_leaves_forgotten_rows_alone():
    algo = algorithm(rad_jax.nearest_centroid(), cleaning_window=-1)
    state = jax.jit(algo.init)(jax.random.key(0), part(slice(CLEAN)))
    step = jax.jit(algo.step)
    x, _, given = rows()
    for at in batches():
        before = state
        state, info = step(state, part(at))
        status = np.asarray(state.per_seed.status)
        ids = np.asarray(state.shared.memory.row_id)
        new = np.isin(ids, np.arange(TOTAL)[at])
        # The model of before says who of the others stays.
        predicted = np.asarray(algo.predict(before, x[ids]))
        others = ~new & (ids >= CLEAN)
        np.testing.assert_array_equal(
            (status > RowStatus.DROPPED)[others], (predicted == given[ids])[others]
        )
        np.testing.assert_array_equal(
            (status == RowStatus.KEPT)[new],
            np.asarray(info.keep)[np.argsort(np.argsort(ids[new]))],
        )


def stream_data():
    x, true, _ = rows()
    cut = slice(CLEAN, TOTAL)
    return StreamData(
        initial_features=x[:CLEAN],
        initial_labels=true[:CLEAN],
        features=x[cut].reshape(ARRIVALS, SIZE, 3),
        labels=true[cut].reshape(ARRIVALS, SIZE),
        test_features=x + 0.3,
        test_labels=true,
        num_classes=K,
        class_names=("a", "b", "c"),
    )


def prepare(window, scheme=rad_jax.basic, rate=0.3):
    return sweep.prepare(
        stream_data(),
        [sweep.Arm("scheme", scheme())],
        label_model=rad_jax.nearest_centroid(),
        classifier=rad_jax.knn(3),
        noise_rates=[rate],
        num_seeds=2,
        memory_window=window,
        validation_fraction=0.0,
    )


@pytest.mark.slow  # three sweeps compile
def test_a_sweep_with_a_window():
    everything, roomy, narrow = (prepare(w).run() for w in (None, TOTAL, WINDOW))
    for name, values in everything.history.items():
        np.testing.assert_array_equal(values, roomy.history[name])
    assert narrow.history["kept"].max() <= WINDOW
    assert everything.history["kept"].max() > WINDOW
    assert prepare(WINDOW).estimated_bytes < prepare(None).estimated_bytes


def test_neighbours_of_test_rows_in_a_sweep_are_those_of_the_window():
    x, true, _ = rows()
    result = prepare(WINDOW, rad_jax.no_selection, rate=0.0).run()
    for i in range(ARRIVALS + 1):
        last = CLEAN + i * SIZE
        stored = [(row, true[row]) for row in range(max(0, last - WINDOW), last)]
        right = votes(stored, x + 0.3, 3).argmax(axis=1) == true
        np.testing.assert_allclose(
            result.history["classifier_accuracy"][0, 0, :, i], right.mean(), atol=1e-6
        )


def test_online_use_never_fills_up():
    x, _, given = rows()
    online = OnlineRad(
        algorithm(rad_jax.nearest_centroid()), max_batch_size=SIZE, seed=0
    )
    online.start(x[:CLEAN], given[:CLEAN])
    for at in batches():
        online.step(x[at], given[at])
    known = set(range(TOTAL - WINDOW, TOTAL))
    assert set(online.suspects().row_id.tolist()) <= known


def test_online_use_forgets_ids_with_their_rows():
    """Ids of forgotten rows are free again; those remembered or validating are not."""
    x, _, given = rows()
    algo = algorithm(rad_jax.nearest_centroid(), validation_fraction=0.25)
    online = OnlineRad(algo, max_batch_size=SIZE)
    online.start(x[:CLEAN], given[:CLEAN])
    trained = set(np.asarray(online.state.shared.memory.row_id).tolist()) - {-1}
    validates = set(range(CLEAN)) - trained
    for at in batches():
        verdict = online.step(x[at], given[at])
    assert verdict.row_id.tolist() == list(range(TOTAL - SIZE, TOTAL))
    for used in (min(validates), TOTAL - 1, TOTAL - WINDOW):
        with pytest.raises(ValueError, match=rf"row_ids \[{used}\] have been used"):
            online.judge(x[:1], given[:1], row_ids=[used])
    gone = min(trained)
    with pytest.raises(ValueError, match=rf"\[{gone}\] are not stored: .*forgotten"):
        online.answer([gone], [0])
    assert online.judge(x[:1], given[:1], row_ids=[gone]).row_id.tolist() == [gone]
    online.answer([gone], [2])
    stored, label = online.state.shared.memory, online.state.per_seed.label
    assert np.asarray(label)[np.asarray(stored.row_id) == gone].tolist() == [2]


def test_default_ids_of_an_endless_stream_begin_anew():
    x, _, given = rows()
    online = OnlineRad(algorithm(rad_jax.nearest_centroid()), max_batch_size=SIZE)
    online.start(x[:CLEAN], given[:CLEAN])
    online.judge(x[:2], given[:2], row_ids=[2**31 - 1, CLEAN])
    ids = online.judge(x[:3], given[:3]).row_id
    assert ids.tolist() == [CLEAN + 1, CLEAN + 2, CLEAN + 3]


def test_a_ring_goes_on_where_int32_ends():
    """The count is taken back, by rounds; the oldest rows still make room."""
    ring = memory.empty(7, (1,))
    ring = ring._replace(count=jnp.int32(7 * ((2**30 - 4) // 7)))
    valid = jnp.ones(5, bool)
    for i in range(4):
        ids = jnp.arange(5 * i, 5 * i + 5)
        ring, _ = memory.write(ring, jnp.zeros((5, 1)), ids, valid, i, sliding=True)
        last = np.arange(max(0, 5 * i + 5 - 7), 5 * i + 5)
        stored = np.asarray(ring.row_id)
        assert sorted(stored[stored >= 0]) == last.tolist()
    assert 7 <= int(ring.count) < 100


@pytest.mark.parametrize(
    ("window", "message"),
    [
        (SIZE - 1, f"memory_window=7 rows is too short: .*at least {CLEAN}"),
        (CLEAN - 1, f"memory_window=11 rows is too short: .*at least {CLEAN}"),
    ],
)
def test_windows_that_are_too_short(window, message):
    with pytest.raises(ValueError, match=message):
        prepare(window)


def test_a_batch_longer_than_the_window():
    algo = algorithm(rad_jax.nearest_centroid())
    state = algo.init(jax.random.key(0), part(slice(CLEAN)))
    with pytest.raises(ValueError, match="window shorter than a batch of 40"):
        algo.step(state, part(slice(CLEAN, CLEAN + 40)))
