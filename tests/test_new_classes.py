"""Classes that the clean batch lacked: refused, or admitted through the expert."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rad_jax import knn, nearest_centroid, rad, selection, sweep, synthetic
from rad_jax.online import OnlineRad
from rad_jax.types import Batch, Evidence, RowStatus

N, K = 12, 5


def loop(evidence, budget, least):
    """Which rows go to the expert, row by row; scores without ties."""
    predicted = [np.argmax(evidence[f"{m}_probs"], axis=1) for m in ("label", "class")]
    mean = (evidence["label_probs"] + evidence["class_probs"]) / 2
    score = oracles.uncertainty("margin", mean, evidence["label"])
    doubted = [
        i
        for i in range(N)
        if evidence["valid"][i] and all(p[i] != evidence["label"][i] for p in predicted)
    ]
    doubted.sort(key=lambda i: -score[i])
    new = [
        i
        for i in doubted
        if evidence["label"][i] >= 0
        and evidence["class_counts"][evidence["label"][i]] < least
    ]
    first = new[: -(-budget // 2)]
    others = [i for i in doubted if i not in first]
    asked = (first + others)[:budget]
    return [i in asked for i in range(N)]


@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**31 - 1),
    budget=st.integers(0, N + 2),
    least=st.integers(1, 4),
)
def test_rows_of_new_classes_are_asked_about_first(seed, budget, least):
    rng = np.random.default_rng(seed)
    evidence = oracles.random_evidence(rng, N, K)
    for name in ("label_probs", "class_probs"):  # no ties
        evidence[name] = rng.dirichlet(np.ones(K), N).astype(np.float32)
    evidence["class_counts"] = rng.integers(0, 5, K).astype(np.int32)
    scheme = selection.active_limited(budget, new_class_rows=least)
    got, _ = scheme.apply(
        scheme.params,
        scheme.init(scheme.params),
        jax.tree.map(jnp.asarray, Evidence(**evidence)),
        key=jax.random.key(seed),
    )
    np.testing.assert_array_equal(got.query, loop(evidence, budget, least))
    plain = selection.active_limited(budget)
    without, _ = plain.apply(
        plain.params, (), Evidence(**evidence), key=jax.random.key(seed)
    )
    np.testing.assert_array_equal(got.keep, without.keep)
    assert int(got.query.sum()) == int(without.query.sum())


def test_a_scheme_is_shown_how_many_rows_of_each_class_are_trained_on():
    seen = []

    def apply(params, state, evidence, *, key):
        seen.append(np.asarray(evidence.class_counts))
        scheme = selection.basic()
        return scheme.apply(params, state, evidence, key=key)

    algo = rad(
        classifier=nearest_centroid(),
        selection=selection.SelectionScheme(
            lambda params: (), apply, (), uses_class_counts=True
        ),
        num_classes=3,
        memory_capacity=5,
        validation_fraction=0.0,
        sliding_window=True,
    )

    def batch(first, labels):
        labels = np.asarray(labels, np.int32)
        x = np.stack([10.0 * labels, np.zeros(len(labels))], axis=1)
        return Batch(
            jnp.asarray(x, jnp.float32),
            jnp.asarray(labels),
            jnp.ones(len(labels), bool),
            jnp.arange(first, first + len(labels), dtype=jnp.int32),
        )

    state = algo.init(jax.random.key(0), batch(0, [0, 0, 1]))
    state, _ = algo.step(state, batch(3, [1, 2]))  # 2 is dropped: unknown
    state, _ = algo.answer(state, jnp.asarray([4]), jnp.asarray([2]))
    # In the window 0 0 1 1 2 the oldest two are forgotten before the next are judged.
    algo.step(state, batch(5, [0, 0]))
    assert [list(counts) for counts in seen] == [[2, 1, 0], [0, 2, 1]]


def late_stream(batches=8, size=60):
    """Three classes far apart; the last one comes with arrival 3."""
    source = synthetic.stream(num_classes=3, width=4, separation=12.0, late_from=3)
    return synthetic.arrays(
        source, initial_size=40, batch_size=size, num_batches=batches, test_size=150
    )


def prepare(data, arms, **kwargs):
    options = {"label_model": knn(3), "classifier": knn(3), "num_seeds": 3}
    return sweep.prepare(data, arms, noise_rates=[0.3], **(options | kwargs))


def test_a_class_without_clean_row_is_refused_by_default():
    data = late_stream()
    with pytest.raises(
        ValueError, match=r"labels: .* rows are of class 2, of which no"
    ):
        prepare(data, [sweep.Arm("basic", selection.basic())])
    with pytest.raises(ValueError, match=r"new_classes must be one of .* got 'ask'"):
        prepare(data, [sweep.Arm("b", selection.basic())], new_classes="ask")


def test_the_expert_admits_a_class_that_filters_lock_out():
    arms = [
        sweep.Arm("voting", selection.voting()),
        sweep.Arm("limited", selection.active_limited(6, new_class_rows=5)),
    ]
    planned = prepare(late_stream(), arms, new_classes="admit")
    result = planned.run()
    recall = result.confusion[:, 0, :, 2, 2] / result.confusion[:, 0, :, 2].sum(axis=-1)
    assert (recall[0] == 0).all()
    assert (recall[1] > 0.9).all()
    # Never beyond the budget, whatever is new.
    asked = result.history["queries"][1, 0]
    assert np.all(np.diff(asked, axis=-1) <= 6)


def labelled(rng, classes, n=30):
    y = rng.choice(classes, n)
    return rng.normal(size=(n, 2)) + 10.0 * y[:, None], y


def online(**kwargs):
    algo = rad(
        label_model=nearest_centroid(),
        classifier=knn(3),
        selection=selection.active_limited(3, new_class_rows=4),
        num_classes=3,
        memory_capacity=200,
    )
    one = OnlineRad(algo, max_batch_size=30, **kwargs)
    one.start(*labelled(np.random.default_rng(0), [0, 1]))
    return one


def test_online_refuses_an_unknown_class_until_an_expert_has_named_it():
    rng = np.random.default_rng(1)
    one = online()
    x, y = labelled(rng, [0, 2])
    with pytest.raises(ValueError, match=r"labels: .* class 2, of which .*admit"):
        one.judge(x, y)
    assert int(one.state.shared.memory.count) == 24  # of the clean rows; nothing came
    verdict = one.judge(x, np.full(30, -1))
    of_two = verdict.row_id[y == 2][:4]
    one.answer(of_two, np.full(4, 2))
    one.learn()
    verdict = one.step(*labelled(rng, [2]))
    assert verdict.kept.all()
    with pytest.raises(ValueError, match="new_classes must be one of"):
        online(new_classes="expert")


def test_online_admits_an_unknown_class_and_asks_about_it():
    one = online(new_classes="admit")
    x, y = labelled(np.random.default_rng(1), [0, 2])
    verdict = one.judge(x, y)
    assert not verdict.kept[y == 2].any()
    assert verdict.queried.sum() == 3
    assert (y[verdict.queried] == 2).all()
    statuses = np.asarray(one.state.per_seed.status)
    assert (statuses == RowStatus.PENDING).sum() == 3


@pytest.mark.slow  # compiles four arms
def test_budgets_and_new_class_rows_are_one_program():
    pairs = list(itertools.product((2, 6), (1, 5)))
    arms = [
        sweep.Arm(f"{b}-{r}", selection.active_limited(b, new_class_rows=r))
        for b, r in pairs
    ]
    planned = prepare(late_stream(3, 20), arms, new_classes="admit")
    result = planned.run()
    for i, (budget, _) in enumerate(pairs):
        assert (np.diff(result.history["queries"][i, 0], axis=-1) <= budget).all()
    with pytest.raises(ValueError, match="new_class_rows must be a whole number"):
        selection.active_limited(3, new_class_rows=-1)
