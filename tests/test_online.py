"""RAD fed from Python: batches of any length, late answers, suspects, bad input."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rad_jax
from rad_jax import selection
from rad_jax.memory import MemoryFullError
from rad_jax.online import OnlineRad
from rad_jax.types import Batch, RowStatus

K, D, SIZE, CAPACITY = 3, 4, 12, 140

_compiled: list[str] = []
_listening = False


def _listen(event: str, seconds: float, **kwargs) -> None:
    if _listening and event.endswith("backend_compile_duration"):
        _compiled.append(event)


jax.monitoring.register_event_duration_secs_listener(_listen)


@contextlib.contextmanager
def compilations():
    """Yields a list that grows by one for every program that XLA compiles."""
    global _listening
    _compiled.clear()
    _listening = True
    try:
        yield _compiled
    finally:
        _listening = False


def toy(num_rows, seed, flipped=0.0):
    """Rows of K distant classes, true labels, and labels of which some are flipped."""
    random = np.random.default_rng(seed)
    true = random.integers(K, size=num_rows).astype(np.int32)
    x = np.eye(K, D, dtype=np.float32)[true] * 8
    x += random.normal(size=x.shape).astype(np.float32)
    wrong = random.random(num_rows) < flipped
    given = np.where(wrong, (true + random.integers(1, K, num_rows)) % K, true)
    return x, true, given.astype(np.int32)


@pytest.fixture(scope="module")
def algo():
    """Asks about at most two rows of a batch; drops the other doubted ones."""
    return rad_jax.rad(
        label_model=rad_jax.nearest_centroid(),
        classifier=rad_jax.knn(3),
        selection=selection.active_limited(2),
        num_classes=K,
        memory_capacity=CAPACITY,
    )


def make_slim(capacity, scheme=None):
    """RAD Slim with the model that compiles fastest."""
    return rad_jax.rad(
        classifier=rad_jax.nearest_centroid(),
        selection=scheme or selection.basic(),
        num_classes=K,
        memory_capacity=capacity,
    )


@pytest.fixture(scope="module")
def small():
    return make_slim(30)


@pytest.fixture
def online(algo):
    """Has learned 20 clean rows, ids 0..19 (of which 16 are stored)."""
    online = OnlineRad(algo, max_batch_size=SIZE)
    x, true, _ = toy(20, 0)
    online.start(x, true)
    return online


def leaves(state):
    def plain(x):
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return np.array(jax.random.key_data(x) if is_key else x)

    return [plain(x) for x in jax.tree.leaves(state)]


def assert_same_state(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(leaves(one), leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def rows_of(online):
    """What is stored: ``{row_id: (given, label, status)}``."""
    memory, seed = online.state.shared.memory, online.state.per_seed
    columns = (memory.row_id, seed.given, seed.label, seed.status, memory.valid)
    return {
        int(row): (int(given), int(label), RowStatus(int(status)))
        for row, given, label, status, there in zip(
            *map(np.array, columns), strict=True
        )
        if there
    }


# --- batches of changing length -------------------------------------------------------


def test_nothing_is_compiled_after_the_first_round(online):
    def one_round(num_rows, seed):
        x, true, given = toy(num_rows, seed, flipped=0.4)
        given[0] = -1  # doubted for sure
        verdict = online.judge(x, given)
        asked = verdict.queried
        assert asked.any()
        online.answer(verdict.row_id[asked], true[asked])
        online.learn()
        online.predict(x)
        online.predict_proba(toy(2 * SIZE + seed, seed)[0])

    one_round(SIZE, 1)
    functions = [
        getattr(online, f"_{name}")
        for name in ("init", "judge", "answer", "learn", "predict_proba")
    ]
    sizes = [function._cache_size() for function in functions]
    assert min(sizes) >= 1
    with compilations() as compiled:
        for seed, num_rows in enumerate([7, 1, SIZE, 3, 11], start=2):
            one_round(num_rows, seed)
    assert compiled == []
    assert [function._cache_size() for function in functions] == sizes


def test_suspects_compile_nothing_however_many_there_are(online):
    def one_round(num_rows, seed):
        x, _, given = toy(num_rows, seed, flipped=0.6)
        online.step(x, given)
        return len(online.suspects().row_id)

    found = [one_round(SIZE, 1), one_round(3, 2)]
    with compilations() as compiled:
        found += [one_round(8, 3), one_round(SIZE, 4), one_round(2, 5)]
    assert len(set(found)) > 2, "the test must see different numbers of suspects"
    assert compiled == []


def test_equal_algorithms_share_what_is_compiled(small):
    x, true, _ = toy(20, 0)

    def one_run(algo):
        online = OnlineRad(algo, max_batch_size=SIZE)
        online.start(x, true)
        online.step(x[:5], true[:5])
        online.predict(x)

    one_run(small)
    with compilations() as compiled:
        one_run(make_slim(30))
    # `init` closes over the default parameters, so it alone may be compiled again.
    assert len(compiled) <= 1


def test_equals_the_functions_fed_by_hand(algo, online):
    x, true, _ = toy(20, 0)
    init, judge, learn, answer, proba = map(
        jax.jit, (algo.init, algo.judge, algo.learn, algo.answer, algo.predict_proba)
    )
    state = init(
        jax.random.key(0),
        Batch(jnp.array(x), jnp.array(true), jnp.ones(20, bool), jnp.arange(20)),
    )
    assert_same_state(online.state, state)

    first = 20
    for seed, num_rows in enumerate([SIZE, 5, 1, 9], start=1):
        x, true, given = toy(num_rows, seed, flipped=0.5)
        given[::4] = -1
        verdict = online.judge(x, given)

        short = SIZE - num_rows
        state, info = judge(
            state,
            Batch(
                # What padding rows hold must not matter.
                jnp.array(np.pad(x, ((0, short), (0, 0)), constant_values=3)),
                jnp.array(np.pad(given, (0, short), constant_values=1)),
                jnp.arange(SIZE) < num_rows,
                jnp.arange(first, first + SIZE),
            ),
        )
        np.testing.assert_array_equal(verdict.row_id, first + np.arange(num_rows))
        np.testing.assert_array_equal(verdict.kept, info.keep[:num_rows])
        np.testing.assert_array_equal(verdict.queried, info.query[:num_rows])
        np.testing.assert_allclose(
            verdict.label_probs, info.label_probs[:num_rows], rtol=1e-6
        )
        np.testing.assert_allclose(
            verdict.class_probs, info.class_probs[:num_rows], rtol=1e-6
        )
        asked = np.flatnonzero(verdict.queried)
        online.answer(verdict.row_id[asked], true[asked])
        ids = jnp.full(SIZE, -1).at[: len(asked)].set(verdict.row_id[asked])
        labels = jnp.full(SIZE, -1).at[: len(asked)].set(true[asked])
        state, _ = answer(state, ids, labels)
        online.learn()
        state = learn(state)
        first += num_rows
        np.testing.assert_array_equal(
            online.state.per_seed.status, state.per_seed.status
        )
    assert_same_state(online.state, state)
    x = toy(SIZE, 99)[0]
    np.testing.assert_allclose(
        online.predict_proba(x), proba(state, jnp.array(x)), rtol=1e-6
    )


def test_the_largest_batch_is_padding_only(small):
    results = []
    for size in (SIZE, SIZE + 7):
        one = OnlineRad(small, max_batch_size=size)
        one.start(*toy(20, 0)[:2])
        x, _, given = toy(9, 3)
        given[2] = (given[2] + 1) % K
        verdict = one.step(x, given)
        results.append((verdict.kept, verdict.class_probs, one.predict_proba(x)))
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_step_is_judge_then_learn(algo, online):
    other = OnlineRad(algo, max_batch_size=SIZE)
    other.start(*toy(20, 0)[:2])
    x, _, given = toy(7, 1, flipped=0.5)
    verdict = online.step(x, given)
    judged = other.judge(x, given)
    other.learn()
    for a, b in zip(verdict, judged, strict=True):
        np.testing.assert_array_equal(a, b)
    assert_same_state(online.state, other.state)


def test_verdict_is_numpy_in_the_order_of_the_rows(online):
    x, true, given = toy(8, 1)
    given[5] = (true[5] + 1) % K
    verdict = online.step(x, given)
    assert all(type(field) is np.ndarray for field in verdict)
    assert verdict.row_id.dtype == np.int32
    assert verdict.kept.dtype == verdict.queried.dtype == bool
    assert verdict.label_probs.shape == verdict.class_probs.shape == (8, K)
    np.testing.assert_array_equal(verdict.kept, np.arange(8) != 5)
    np.testing.assert_array_equal(verdict.queried, np.arange(8) == 5)
    np.testing.assert_array_equal(np.argmax(verdict.label_probs, 1), true)


def test_seed_of_the_run_is_a_seed(algo):
    states = []
    for seed in (0, 0, 1):
        one = OnlineRad(algo, max_batch_size=SIZE, seed=seed)
        one.start(*toy(20, 0)[:2])
        states.append(sorted(rows_of(one)))
    assert states[0] == states[1]
    assert states[0] != states[2], "other rows validate"


def test_a_second_start_forgets_everything(algo, online):
    online.step(*toy(9, 1)[:2])
    online.start(*toy(20, 0)[:2])
    fresh = OnlineRad(algo, max_batch_size=SIZE)
    fresh.start(*toy(20, 0)[:2])
    assert_same_state(online.state, fresh.state)
    np.testing.assert_array_equal(online.judge(*toy(2, 1)[:2]).row_id, [20, 21])


# --- unlabelled rows, answers that come later -----------------------------------------


def test_unlabelled_rows_are_stored_and_not_trained_on():
    algo = make_slim(40, selection.no_selection())
    online = OnlineRad(algo, max_batch_size=SIZE)
    online.start(*toy(20, 0)[:2])
    x, true, given = toy(6, 1)
    given[[1, 4]] = -1
    verdict = online.step(x, given)
    np.testing.assert_array_equal(verdict.kept, given >= 0)
    assert not verdict.queried.any()
    rows = rows_of(online)
    for i, row in enumerate(verdict.row_id):
        expected = RowStatus.KEPT if given[i] >= 0 else RowStatus.DROPPED
        assert rows[row] == (given[i], given[i], expected)
    np.testing.assert_array_equal(online.predict(x), true)
    assert not set(online.suspects().row_id) & set(verdict.row_id[[1, 4]])


def test_rows_without_any_label_can_be_asked_about(online):
    x, true, _ = toy(5, 1)
    verdict = online.step(x, np.full(5, -1))
    assert not verdict.kept.any()
    assert verdict.queried.sum() == 2
    asked = verdict.row_id[verdict.queried]
    assert all(rows_of(online)[i] == (-1, -1, RowStatus.PENDING) for i in asked)
    online.answer(asked, true[verdict.queried])
    for i, label in zip(asked, true[verdict.queried], strict=True):
        assert rows_of(online)[i] == (-1, label, RowStatus.VERIFIED)
    assert len(online.suspects().row_id) == 0, "nothing given was wrong"


def test_answers_may_come_batches_later_and_change_what_is_predicted(online):
    """A fourth of feature space that the clean rows leave to the wrong class."""
    here = np.full((3, D), -30, np.float32)
    here += np.arange(3, dtype=np.float32)[:, None] / 10
    before = online.predict(here)
    assert len(set(before)) == 1
    label = online.predict_proba(here)[0].argmin()  # the class farthest away
    verdict = online.step(here, np.full(3, label))
    assert not verdict.kept.any()
    assert verdict.queried.sum() == 2
    for seed in (1, 2, 3):
        online.step(*toy(5, seed)[:2])

    def by_classifier():
        # Which model decides is Algorithm 1's affair; C (k = 3) changes its mind.
        queries = online._algo.engine.track(online.state.shared, jnp.array(here))
        probs = online._algo.engine.probabilities(*online.state, queries)
        return np.argmax(probs[-1], axis=1)

    assert (by_classifier() != label).all()
    online.answer(verdict.row_id, [label] * 3)  # the one not asked about as well
    assert all(
        rows_of(online)[i] == (label, label, RowStatus.VERIFIED) for i in verdict.row_id
    )
    online.learn()
    assert not set(online.suspects().row_id) & set(verdict.row_id)
    np.testing.assert_array_equal(by_classifier(), [label] * 3)


def test_answer_alone_trains_nothing(online):
    x, true, given = toy(6, 1)
    given[0] = (true[0] + 1) % K
    verdict = online.step(x, given)
    models = leaves(online.state.per_seed.models)
    online.answer(verdict.row_id[:1], true[:1])
    for a, b in zip(models, leaves(online.state.per_seed.models), strict=True):
        np.testing.assert_array_equal(a, b)
    online.learn()
    after = leaves(online.state.per_seed.models)
    assert any((a != b).any() for a, b in zip(models, after, strict=True))


def test_more_answers_than_a_batch_holds_in_any_order(online):
    ids, truth = [], []
    for seed in range(1, 4):
        x, true, _ = toy(SIZE, seed)
        ids += online.judge(x, np.full(SIZE, -1)).row_id.tolist()
        truth += true.tolist()
    order = np.random.default_rng(0).permutation(len(ids))
    assert len(ids) > 2 * SIZE
    online.answer(np.array(ids)[order], np.array(truth)[order])
    rows = rows_of(online)
    for row, label in zip(ids, truth, strict=True):
        assert rows[row] == (-1, label, RowStatus.VERIFIED)


def test_an_answer_can_be_revised(online):
    row = online.judge(*toy(1, 1)[:2]).row_id
    for label in (0, 2, 1):
        online.answer(row, [label])
        assert rows_of(online)[row[0]][1:] == (label, RowStatus.VERIFIED)


def test_no_answer_is_no_error(online):
    before = online.state
    online.answer([], [])
    online.answer(np.zeros(0, np.int32), np.zeros(0, np.int32))
    assert_same_state(online.state, before)


def test_everything_rejected_is_no_error(online):
    x, true, _ = toy(6, 1)
    before = online.predict(toy(30, 5)[0])
    verdict = online.step(x, (true + 1) % K)
    assert not verdict.kept.any()
    np.testing.assert_array_equal(online.predict(toy(30, 5)[0]), before)


def test_one_class_only_is_no_error(online):
    x, true, _ = toy(40, 1)
    x, true = x[true == 1][:SIZE], true[true == 1][:SIZE]
    assert online.step(x, true).kept.all()
    x, true, _ = toy(30, 5)
    np.testing.assert_array_equal(online.predict(x), true)


# --- suspects -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flipped(algo):
    """Eight batches with a third of the labels flipped, answers given to some."""
    online = OnlineRad(algo, max_batch_size=SIZE)
    online.start(*toy(20, 0)[:2])
    truth, given_labels = {}, {}
    for seed in range(1, 9):
        x, true, given = toy(SIZE, seed, flipped=0.35)
        if seed == 4:
            given[3] = -1
        verdict = online.step(x, given)
        truth |= dict(zip(verdict.row_id.tolist(), true.tolist(), strict=True))
        given_labels |= dict(zip(verdict.row_id.tolist(), given.tolist(), strict=True))
        if seed % 2:
            online.answer(verdict.row_id[verdict.queried], true[verdict.queried])
            online.learn()
    return online, truth, given_labels


def test_suspects_are_the_doubted_and_the_corrected_rows(flipped):
    online, _, _ = flipped
    memory = online.state.shared.memory
    predicted = dict(
        zip(
            np.array(memory.row_id).tolist(),
            online.predict(np.array(memory.features)).tolist(),
            strict=True,
        )
    )
    expected = set()
    statuses = []
    for row, (given, label, status) in rows_of(online).items():
        doubted = status in (RowStatus.DROPPED, RowStatus.PENDING)
        doubted &= predicted[row] != given  # it might have come to agree since
        corrected = status == RowStatus.VERIFIED and label != given
        if given >= 0 and (doubted or corrected):
            expected.add(row)
            statuses.append(status)
    assert set(statuses) == {RowStatus.DROPPED, RowStatus.PENDING, RowStatus.VERIFIED}
    found = online.suspects().row_id.tolist()
    assert len(found) == len(set(found))
    assert set(found) == expected


def test_suspects_find_most_flipped_labels_and_say_what_they_should_be(flipped):
    online, truth, given = flipped
    wrong = {row for row, label in given.items() if label not in (-1, truth[row])}
    assert len(wrong) > 15
    suspects = online.suspects()
    found = set(suspects.row_id.tolist())
    assert len(wrong & found) >= 0.9 * len(wrong)
    assert len(found - wrong) <= 0.1 * len(found)
    for row, label, suggested in zip(
        suspects.row_id.tolist(), suspects.given, suspects.suggested, strict=True
    ):
        assert label == given[row]
        if row in wrong:
            assert suggested == truth[row]


def test_suspects_come_surest_first(flipped):
    online, _, _ = flipped
    suspects = online.suspects()
    verified = suspects.verified
    assert 0 < verified.sum() < len(verified)
    assert (np.diff(verified.astype(int)) <= 0).all(), "corrected ones come first"
    np.testing.assert_array_equal(suspects.doubt[verified], 1)
    rows = rows_of(online)
    for row, label in zip(
        suspects.row_id[verified], suspects.suggested[verified], strict=True
    ):
        assert rows[row][1:] == (label, RowStatus.VERIFIED)
    memory = online.state.shared.memory
    slot = {row: i for i, row in enumerate(np.array(memory.row_id).tolist())}
    x = np.array(memory.features)[[slot[row] for row in suspects.row_id.tolist()]]
    probs = online.predict_proba(x)
    of_given = probs[np.arange(len(x)), suspects.given][~verified]
    assert (np.diff(of_given) >= -1e-6).all(), "least probable given label first"
    np.testing.assert_array_equal(
        suspects.suggested[~verified], probs.argmax(1)[~verified]
    )
    np.testing.assert_allclose(suspects.doubt[~verified], 1 - of_given, atol=1e-6)


def test_suspects_are_numpy_of_stated_dtypes(flipped):
    dtypes = [np.int32, np.int32, np.int32, np.float32, bool]
    for field, dtype in zip(flipped[0].suspects(), dtypes, strict=True):
        assert type(field) is np.ndarray
        assert field.dtype == dtype
        assert field.shape == flipped[0].suspects().row_id.shape


def test_without_suspects_the_arrays_are_empty(online):
    online.step(*toy(6, 1)[:2])
    for field, dtype in zip(
        online.suspects(), [np.int32, np.int32, np.int32, np.float32, bool], strict=True
    ):
        assert field.shape == (0,)
        assert field.dtype == dtype


def test_suspects_change_nothing(flipped):
    before = flipped[0].state
    flipped[0].suspects()
    assert_same_state(flipped[0].state, before)


def test_a_corrected_clean_row_is_a_suspect(online):
    row = sorted(rows_of(online))[0]
    label = (rows_of(online)[row][0] + 1) % K
    online.answer([row], [label])
    suspects = online.suspects()
    assert suspects.row_id.tolist() == [row]
    assert suspects.suggested.tolist() == [label]
    assert suspects.verified.tolist() == [True]


# --- prediction -----------------------------------------------------------------------


@pytest.mark.parametrize("num_rows", [1, SIZE - 1, SIZE, SIZE + 1, 5 * SIZE + 3])
def test_predict_takes_any_number_of_rows(online, num_rows):
    x, true, _ = toy(num_rows, 7)
    probs = online.predict_proba(x)
    assert type(probs) is np.ndarray
    assert probs.dtype == np.float32
    assert probs.shape == (num_rows, K)
    np.testing.assert_allclose(probs.sum(1), 1, rtol=1e-5)
    predicted = online.predict(x)
    assert predicted.dtype == np.int32
    np.testing.assert_array_equal(predicted, probs.argmax(1))
    np.testing.assert_array_equal(predicted, true)
    alone = np.concatenate([online.predict_proba(row[None]) for row in x[-2:]])
    np.testing.assert_allclose(probs[-2:], alone, rtol=1e-5, atol=1e-6)


def test_predict_changes_nothing(online):
    before = online.state
    online.predict(toy(30, 1)[0])
    assert_same_state(online.state, before)


@pytest.mark.parametrize("fraction", [0.0, 0.2])
def test_one_model_and_few_clean_rows(fraction):
    """RAD Slim; two clean rows of which none validates."""
    algo = rad_jax.rad(
        classifier=rad_jax.knn(1),
        selection=selection.basic(),
        num_classes=K,
        memory_capacity=10,
        validation_fraction=fraction,
    )
    online = OnlineRad(algo, max_batch_size=4, new_classes="admit")
    online.start([[0.0, 0.0], [5.0, 5.0]], [0, 2])
    verdict = online.step([[0.1, 0.0], [5.0, 4.0], [4.0, 4.0]], [0, 2, 1])
    np.testing.assert_array_equal(verdict.kept, [True, True, False])
    np.testing.assert_array_equal(verdict.label_probs, verdict.class_probs)
    np.testing.assert_array_equal(online.predict([[1.0, 0.0], [4.0, 5.0]]), [0, 2])
    assert online.suspects().suggested.tolist() == [2]


def test_images_of_bytes(small):
    online = OnlineRad(small, max_batch_size=5)
    random = np.random.default_rng(0)
    label = np.arange(18) % K
    images = random.integers(0, 20, (18, 2, 3, 1)) + 100 * label[:, None, None, None]
    images = images.astype(np.uint8)
    online.start(images[:12], label[:12])
    assert online.step(images[12:16], label[12:16]).kept.all()
    np.testing.assert_array_equal(online.predict(images[12:]), label[12:])
    with pytest.raises(ValueError, match="uint8"):
        online.predict(images.astype(np.float32))


# --- row ids --------------------------------------------------------------------------


def test_ids_count_up_by_default(online):
    assert online.judge(*toy(3, 1)[:2]).row_id.tolist() == [20, 21, 22]
    assert online.judge(*toy(2, 2)[:2]).row_id.tolist() == [23, 24]


def test_ids_of_the_user_are_kept(algo):
    online = OnlineRad(algo, max_batch_size=SIZE)
    x, true, _ = toy(20, 0)
    online.start(x, true, row_ids=1000 + 2 * np.arange(20))
    assert set(rows_of(online)) < set(range(1000, 1040, 2))
    x, true, given = toy(3, 1)
    given[1] = (true[1] + 1) % K
    verdict = online.step(x, given, row_ids=[7, 2**31 - 1, 0])
    assert verdict.row_id.tolist() == [7, 2**31 - 1, 0]
    assert online.suspects().row_id.tolist() == [2**31 - 1]
    online.answer([2**31 - 1, 0], [true[1], true[2]])
    assert rows_of(online)[2**31 - 1] == (given[1], true[1], RowStatus.VERIFIED)
    assert rows_of(online)[0] == (given[2], true[2], RowStatus.VERIFIED)
    assert rows_of(online)[7] == (given[0], given[0], RowStatus.KEPT)


def test_default_ids_go_on_after_those_of_the_user(online):
    online.judge(*toy(2, 1)[:2], row_ids=[500, 300])
    assert online.judge(*toy(2, 2)[:2]).row_id.tolist() == [501, 502]
    online.judge(*toy(1, 3)[:2], row_ids=[499])
    assert online.judge(*toy(1, 4)[:2]).row_id.tolist() == [503]


def test_default_ids_after_the_largest_id_are_free_ones_or_a_clear_error(online):
    online.judge(*toy(1, 1)[:2], row_ids=[2**31 - 1])
    used = set(range(20)) | {2**31 - 1}
    try:
        ids = online.judge(*toy(2, 2)[:2]).row_id
    except ValueError as error:
        assert "row_ids" in str(error)  # noqa: PT017
    else:
        assert not used & set(ids.tolist())
        assert min(ids) >= 0


# --- bad input: one clear error, and the state is as it was ---------------------------


def _x(num_rows=2, width=D, dtype=np.float32):
    return np.zeros((num_rows, width), dtype)


def _with(value):
    x = _x(3)
    x[1, 2] = value
    return x


BAD_BATCHES = {
    "nan": (_with(np.nan), [0, 1, 2], None, ["features", "finite", "rows 1 "]),
    "inf": (_with(-np.inf), [0, 1, 2], None, ["features", "finite", "rows 1 "]),
    "width": (_x(width=5), [0, 1], None, ["features", (D,), (5,)]),
    "image": (np.zeros((2, 2, 2), np.float32), [0, 1], None, ["features", (2, 2)]),
    "vector": (np.zeros(D, np.float32), [0], None, ["features", (D,)]),
    "dtype": (_x(dtype=np.float64), [0, 1], None, ["features", "float32", "float64"]),
    "integers": (_x(dtype=np.int32), [0, 1], None, ["features", "float32", "int32"]),
    "strings": (np.full((2, D), "a"), [0, 1], None, ["features", "numbers", "<U1"]),
    "empty": (_x(0), [], None, ["features", "no rows"]),
    "too many": (
        _x(SIZE + 1),
        [0] * (SIZE + 1),
        None,
        [SIZE + 1, f"max_batch_size={SIZE}"],
    ),
    "label -2": (_x(), [0, -2], None, ["labels", "0..2 or -1", "-2"]),
    "label K": (_x(), [0, K], None, ["labels", "0..2 or -1", K]),
    "label 1.5": (_x(), [0, 1.5], None, ["labels", "0..2 or -1", "1.5"]),
    "label nan": (_x(), [0, np.nan], None, ["labels", "0..2 or -1", "nan"]),
    "label strings": (_x(), ["a", "b"], None, ["labels", "0..2 or -1", "<U1"]),
    "label bool": (_x(), [True, False], None, ["labels", "0..2 or -1", "bool"]),
    "labels short": (_x(), [0], None, ["labels", "2 rows", (1,)]),
    "labels 2-d": (_x(), [[0], [1]], None, ["labels", "2 rows", (2, 1)]),
    "no labels": (_x(), None, None, ["labels", "2 rows"]),
    "id used": (_x(), [0, 1], [50, 3], ["row_ids", "3", "used"]),
    "id of a validation row": (_x(20)[:12], [0] * 12, range(12), ["row_ids", "used"]),
    "id twice": (_x(), [0, 1], [50, 50], ["row_ids", "50", "twice"]),
    "id negative": (_x(), [0, 1], [50, -1], ["row_ids", "-1", "0..2^31-1"]),
    "id large": (_x(), [0, 1], [50, 2**31], ["row_ids", 2**31, "0..2^31-1"]),
    "id float": (_x(), [0, 1], [50.0, 51.0], ["row_ids", "whole", "float64"]),
    "ids short": (_x(), [0, 1], [50], ["row_ids", "2 whole", (1,)]),
}


def rejected(function, *args, says, error=ValueError):
    with pytest.raises(error) as caught:
        function(*args)
    assert "\n" not in str(caught.value)
    for text in says:
        assert str(text) in str(caught.value), f"{text!r} is not in: {caught.value}"


def still_usable(online, before, next_id=20):
    """The state is `before`, bit for bit, and goes on as if nothing had happened."""
    assert_same_state(online.state, before)
    x, true, _ = toy(4, 1)
    verdict = online.step(x, true)
    assert verdict.row_id.tolist() == list(range(next_id, next_id + 4))
    assert verdict.kept.all()
    np.testing.assert_array_equal(online.predict(x), true)


@pytest.mark.parametrize("method", ["judge", "step"])
@pytest.mark.parametrize("name", BAD_BATCHES)
def test_bad_batch(online, name, method):
    x, y, ids, says = BAD_BATCHES[name]
    before = online.state
    rejected(getattr(online, method), x, y, ids, says=says)
    still_usable(online, before)


@pytest.mark.parametrize(
    "name", ["nan", "inf", "width", "image", "vector", "dtype", "strings", "empty"]
)
@pytest.mark.parametrize("method", ["predict", "predict_proba"])
def test_bad_rows_to_predict(online, name, method):
    x, _, _, says = BAD_BATCHES[name]
    before = online.state
    rejected(getattr(online, method), x, says=says)
    still_usable(online, before)


@pytest.mark.parametrize(
    ("ids", "labels", "says"),
    [
        ([9999], [0], ["row_ids", "9999", "not stored"]),
        ([20, 21], [0, K], ["labels", "0..2", K]),
        ([20, 21], [0, -1], ["labels", "0..2", "-1"]),
        ([20, 21], [0, 0.5], ["labels", "0..2", "0.5"]),
        ([20, 21], [0, np.nan], ["labels", "0..2", "nan"]),
        ([20, 21], ["a", "b"], ["labels", "0..2", "<U1"]),
        ([20, 21], [0], ["labels", "2 rows", (1,)]),
        ([20], [0, 1], ["labels", "1 rows", (2,)]),
        ([], [0, 1], ["labels", "0 rows", (2,)]),
        ([20, 20], [0, 1], ["row_ids", "20", "twice"]),
        ([20, -1], [0, 1], ["row_ids", "-1", "0..2^31-1"]),
        ([20.0], [0], ["row_ids", "whole", "float64"]),
        ([[20], [21]], [0, 1], ["row_ids", "2 whole", (2, 1)]),
        (20, 0, ["row_ids", "whole", "()"]),
    ],
)
def test_bad_answer(online, ids, labels, says):
    x, true, _ = toy(3, 2)
    online.step(x, true)
    before = online.state
    rejected(online.answer, ids, labels, says=says)
    still_usable(online, before, next_id=23)


def test_a_row_that_validates_is_not_stored_and_cannot_be_answered(online):
    held_out = sorted(set(range(20)) - set(rows_of(online)))
    assert len(held_out) == 4
    rejected(online.answer, held_out[:1], [0], says=["row_ids", held_out[0], "stored"])


def test_one_bad_answer_among_many_takes_none(online):
    ids = np.concatenate([online.judge(*toy(SIZE, seed)[:2]).row_id for seed in (1, 2)])
    before = online.state
    rejected(
        online.answer, [*ids, 9999], [0] * (len(ids) + 1), says=["row_ids", "9999"]
    )
    assert_same_state(online.state, before)


@pytest.mark.parametrize(
    ("x", "y", "ids", "says"),
    [
        (_with(np.nan), [0, 1, 2], None, ["features", "finite", "rows 1 "]),
        (_x(0), [], None, ["features", "no rows"]),
        (_x(3, 0), [0, 1, 2], None, ["features"]),
        (np.zeros(3, np.float32), [0, 1, 2], None, ["features", (3,)]),
        (np.full((2, D), "a"), [0, 1], None, ["features", "numbers"]),
        (_x(), [0, -1], None, ["labels", "0..2", "-1"]),
        (_x(), [0, K], None, ["labels", "0..2", K]),
        (_x(), [0, 1.5], None, ["labels", "0..2", "1.5"]),
        (_x(), [0], None, ["labels", "2 rows", (1,)]),
        (_x(), [0, 1], [3, 3], ["row_ids", "twice"]),
        (np.full((3, D), np.nan), [0, 1, 2], None, ["features", "finite"]),
        (_x(dtype=np.float64), [0, K], None, ["labels", "0..2", K]),
    ],
)
def test_bad_clean_batch(algo, online, x, y, ids, says):
    before = online.state
    rejected(online.start, x, y, ids, says=says)
    still_usable(online, before)

    fresh = OnlineRad(algo, max_batch_size=SIZE)
    rejected(fresh.start, x, y, ids, says=says)
    with pytest.raises(RuntimeError, match="start"):
        fresh.predict(_x())
    fresh.start(*toy(20, 0)[:2])
    assert_same_state(fresh.state, before)


def test_use_before_start_says_what_to_call(algo):
    online = OnlineRad(algo, max_batch_size=SIZE)
    for call in (
        lambda: online.state,
        lambda: online.predict(_x()),
        lambda: online.predict_proba(_x()),
        lambda: online.judge(_x(), [0, 1]),
        lambda: online.step(_x(), [0, 1]),
        lambda: online.answer([0], [1]),
        online.learn,
        online.suspects,
    ):
        with pytest.raises(RuntimeError, match=r"start\(features, labels\)"):
            call()


@pytest.mark.parametrize("size", [0, -3, 2.5])
def test_max_batch_size_out_of_range(algo, size):
    with pytest.raises(ValueError, match="max_batch_size") as caught:
        OnlineRad(algo, max_batch_size=size)
    assert str(size) in str(caught.value)


def test_schemes_that_see_true_labels_cannot_be_used():
    algo = make_slim(30, selection.oracle_selection())
    online = OnlineRad(algo, max_batch_size=SIZE)
    online.start(*toy(20, 0)[:2])
    before = online.state
    rejected(online.judge, *toy(3, 1)[:2], says=["oracle_selection"])
    assert_same_state(online.state, before)


# --- memory full ----------------------------------------------------------------------


def test_memory_full_names_memory_capacity_and_changes_nothing(small):
    online = OnlineRad(small, max_batch_size=SIZE)
    online.start(*toy(20, 0)[:2])  # 16 of them are stored
    assert online.step(*toy(10, 1)[:2]).kept.all()
    before = online.state
    rejected(
        online.step,
        *toy(5, 2)[:2],
        says=["memory_capacity=30", "26", "5 more"],
        error=MemoryFullError,
    )
    assert_same_state(online.state, before)
    x, true, _ = toy(4, 3)
    assert online.step(x, true).row_id.tolist() == [30, 31, 32, 33]  # fills it
    assert len(rows_of(online)) == 30
    assert int(online.state.shared.memory.overflow) == 0
    full = online.state
    rejected(
        online.judge,
        *toy(1, 4)[:2],
        says=["memory_capacity=30", "30 are stored"],
        error=MemoryFullError,
    )
    assert_same_state(online.state, full)
    online.answer([33], [(true[3] + 1) % K])
    online.learn()
    np.testing.assert_array_equal(online.predict(toy(30, 5)[0]), toy(30, 5)[1])
    assert online.suspects().row_id.tolist() == [33]


def test_unlabelled_rows_take_room_and_padding_does_not(small):
    online = OnlineRad(small, max_batch_size=SIZE)
    online.start(*toy(20, 0)[:2])
    for i in range(7):
        online.judge(toy(2, i)[0], [-1, -1])
    assert len(rows_of(online)) == 30
    with pytest.raises(MemoryFullError, match="memory_capacity=30"):
        online.judge(toy(1, 8)[0], [-1])


def test_clean_batch_larger_than_memory():
    online = OnlineRad(make_slim(15), max_batch_size=SIZE)
    rejected(
        online.start,
        *toy(20, 0)[:2],
        says=["memory_capacity=15"],
        error=MemoryFullError,
    )
    with pytest.raises(RuntimeError, match="start"):
        online.predict(_x())


def test_clean_batch_fills_memory_with_its_training_rows():
    """`rad_jax.rad`: the capacity counts the clean batch's training rows."""
    online = OnlineRad(make_slim(16), max_batch_size=SIZE)
    online.start(*toy(20, 0)[:2])
    assert len(rows_of(online)) == 16
