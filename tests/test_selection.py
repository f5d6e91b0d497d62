import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rad_jax import noise, selection, uncertainty
from rad_jax.types import Evidence, Selection, SelectionScheme

SHAPES = [(1, 2), (1, 11), (2, 3), (12, 5), (9, 11)]  # N, K
PLAIN = ("no_selection", "oracle_selection", "basic", "voting", "active")
# Every score from every source; the odd shapes for one of them (time).
LIMITED = [
    *[(*pair, (12, 5)) for pair in itertools.product(oracles.SCORES, oracles.SOURCES)],
    *[("margin", "mean", shape) for shape in SHAPES if shape != (12, 5)],
]
BATCHES = 24  # random batches per example, under one vmap


def limited(budget, score="margin", source="mean"):
    return selection.active_limited(
        budget, score=getattr(uncertainty, score), source=source
    )


def decide(scheme, evidence, key):
    state = scheme.init(scheme.params)
    return scheme.apply(scheme.params, state, evidence, key=key)[0]


def decide_many(scheme, params, evidence, keys):
    """A decision per batch; parameters, evidence and keys have a leading axis.

    Without `jit`, so that all schemes share what is compiled for a shape.
    """

    def one(params, evidence, key):
        return decide(scheme._replace(params=params), evidence, key)

    evidence = jax.tree.map(jnp.asarray, evidence)
    return jax.tree.map(np.asarray, jax.vmap(one)(params, evidence, keys))


def at(tree, i):
    return jax.tree.map(lambda x: x[i], tree)


def evidences(seed, n, k, count=BATCHES):
    rng = np.random.default_rng(seed)
    rows = [oracles.random_evidence(rng, n, k) for _ in range(count)]
    stacked = {name: np.stack([r[name] for r in rows]) for name in rows[0]}
    return rows, Evidence(**stacked)


def keys_of(seed, count=BATCHES):
    return jax.random.split(jax.random.key(seed), count)


def evidence_of(label_probs, class_probs=None, label=None, valid=None, true_label=None):
    """An Evidence; by default one model and rows without label, all of them doubted."""
    label_probs = jnp.asarray(label_probs, jnp.float32)
    n = label_probs.shape[0]
    unlabelled = jnp.full(n, -1, jnp.int16)
    return Evidence(
        label_probs=label_probs,
        class_probs=label_probs if class_probs is None else jnp.asarray(class_probs),
        label=unlabelled if label is None else jnp.asarray(label, jnp.int16),
        valid=jnp.ones(n, bool) if valid is None else jnp.asarray(valid),
        true_label=(
            unlabelled if true_label is None else jnp.asarray(true_label, jnp.int16)
        ),
    )


def assert_same(got, expected):
    for a, b, name in zip(got, expected, Selection._fields, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)


# --- every scheme against the loop -------------------------------------------------


@pytest.mark.parametrize("name", PLAIN)
@settings(max_examples=12)
@given(shape=st.sampled_from(SHAPES), seed=st.integers(0, 2**31 - 1))
def test_plain_schemes_equal_the_oracle(name, shape, seed):
    rows, evidence = evidences(seed, *shape)
    got = decide_many(getattr(selection, name)(), (), evidence, keys_of(seed))
    for i, row in enumerate(rows):
        decision = getattr(oracles, name)(**row)
        oracles.check_selection(at(got, i), decision, row["label"])


@pytest.mark.parametrize(("score", "source", "shape"), LIMITED)
@settings(max_examples=5)
@given(seed=st.integers(0, 2**31 - 1))
def test_active_limited_equals_the_oracle(score, source, shape, seed):
    rows, evidence = evidences(seed, *shape)
    budgets = np.random.default_rng(seed).integers(0, shape[0] + 3, BATCHES)
    got = decide_many(
        limited(0, score, source),
        {"query_budget": jnp.asarray(budgets, jnp.int32)},
        evidence,
        keys_of(seed),
    )
    for i, row in enumerate(rows):
        decision = oracles.active_limited(
            **row, budget=int(budgets[i]), score=score, source=source
        )
        oracles.check_selection(at(got, i), decision, row["label"])


def test_random_batches_exercise_every_case():
    """The inputs above would show a wrong mask: all cases occur, and often."""
    rows, _ = evidences(0, 12, 5, 200)
    saved_by_c = doubts = tied_edges = unlabelled = padding = 0
    for row in rows:
        basic, voting = oracles.basic(**row), oracles.voting(**row)
        saved_by_c += sum(voting.keep) - sum(basic.keep)
        doubts += oracles.active(**row).num_queries
        unlabelled += np.sum(row["valid"] & (row["label"] == -1))
        padding += np.sum(~row["valid"])
        edge = oracles.active_limited(**row, budget=3)
        tied_edges += sum(edge.may_query) > edge.num_queries
    assert min(saved_by_c, doubts, unlabelled, padding) > 100
    assert 40 < tied_edges < 180


def test_doubted_and_agreement():
    rows, evidence = evidences(3, 12, 5)
    for i, row in enumerate(rows):
        one = jax.tree.map(jnp.asarray, at(evidence, i))
        by_l, by_c = selection.agreement(one)
        assert by_l.tolist() == oracles.basic(**row).keep
        swapped = {**row, "label_probs": row["class_probs"]}
        assert by_c.tolist() == oracles.basic(**swapped).keep
        assert selection.doubted(one).tolist() == oracles.active(**row).must_query


def test_argmax_ties_go_to_the_lowest_class():
    probs = [[0.4, 0.4, 0.2], [0.2, 0.4, 0.4], [0.4, 0.2, 0.4]]
    keep = decide(selection.basic(), evidence_of(probs, label=[0, 1, 0]), None).keep
    assert keep.all()
    keep = decide(selection.basic(), evidence_of(probs, label=[1, 2, 2]), None).keep
    assert not keep.any()


def test_a_row_without_label_is_asked_about_and_never_kept():
    """Also where the true label is unknown: -1 == -1 is no agreement."""
    evidence = evidence_of([[0.9, 0.1]], label=[-1], true_label=[-1])
    for name in PLAIN:
        got = decide(getattr(selection, name)(), evidence, None)
        assert not got.keep.any()
        assert bool(got.query[0]) == (name == "active")
    assert decide(limited(1), evidence, jax.random.key(0)).query.tolist() == [True]


# --- transformations ---------------------------------------------------------------


SCHEMES = {
    **{name: getattr(selection, name)() for name in PLAIN},
    "active_limited": limited(3),
    "active_limited_c": limited(2, "cross_entropy", "classifier"),
    "active_limited_l": limited(4, "margin", "label_model"),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_jit_and_vmap_equal_eager(name):
    scheme = SCHEMES[name]
    _, evidence = evidences(5, 12, 5, 4)
    evidence = jax.tree.map(jnp.asarray, evidence)
    keys = keys_of(5, 4)
    mapped = jax.vmap(functools.partial(decide, scheme))(evidence, keys)
    jitted = jax.jit(functools.partial(decide, scheme))
    for i in range(4):
        eager = decide(scheme, at(evidence, i), keys[i])
        assert_same(at(mapped, i), eager)
        assert_same(jitted(at(evidence, i), keys[i]), eager)


def test_labels_of_any_integer_dtype_give_the_same_masks():
    _, evidence = evidences(6, 12, 5, 1)
    one = at(evidence, 0)
    wide = one._replace(
        label=one.label.astype(np.int32), true_label=one.true_label.astype(np.int32)
    )
    for scheme in SCHEMES.values():
        key = jax.random.key(0)
        assert_same(decide(scheme, wide, key), decide(scheme, one, key))


def test_the_key_decides_nothing_but_ties():
    rng = np.random.default_rng(7)
    rows = {
        **oracles.random_evidence(rng, 12, 5),
        "label_probs": rng.dirichlet(np.ones(5), 12).astype(np.float32),
        "class_probs": rng.dirichlet(np.ones(5), 12).astype(np.float32),
    }
    for scheme in SCHEMES.values():
        first = decide(scheme, Evidence(**rows), jax.random.key(0))
        for seed in range(1, 6):
            again = decide(scheme, Evidence(**rows), jax.random.key(seed))
            assert_same(again, first)


def padded(row, k, extra, rng):
    """The same rows, then padding rows that hold anything."""
    garbage = oracles.random_evidence(rng, extra, k)
    garbage["valid"] = np.zeros(extra, bool)
    return {name: np.concatenate([row[name], garbage[name]]) for name in row}


@pytest.mark.parametrize("name", PLAIN)
def test_padding_changes_nothing(name):
    rng = np.random.default_rng(8)
    scheme = getattr(selection, name)()
    for _ in range(10):
        row = oracles.random_evidence(rng, 6, 4)
        more = padded(row, 4, 5, rng)
        alone = decide(scheme, Evidence(**row), None)
        got = decide(scheme, Evidence(**more), None)
        assert_same(jax.tree.map(lambda x: x[:6], got), alone)
        assert not np.any(got.keep[6:] | got.query[6:])


@pytest.mark.parametrize("score", ["margin", "cross_entropy"])
def test_padding_changes_only_random_ties_of_active_limited(score):
    rng = np.random.default_rng(9)
    rows = [oracles.random_evidence(rng, 6, 4) for _ in range(BATCHES)]
    more = [padded(row, 4, 5, rng) for row in rows]
    got = decide_many(
        limited(0, score),
        {"query_budget": jnp.full(BATCHES, 2, jnp.int32)},
        Evidence(**{n: np.stack([m[n] for m in more]) for n in more[0]}),
        keys_of(9),
    )
    for i, row in enumerate(rows):
        decision = oracles.active_limited(**row, budget=2, score=score)
        mine = jax.tree.map(lambda x, i=i: x[i, :6], got)
        oracles.check_selection(mine, decision, row["label"])
        assert not np.any(got.keep[i, 6:] | got.query[i, 6:])


# --- the budget --------------------------------------------------------------------


@pytest.mark.parametrize("budget", [0, 1, 4, 5, 7, 10_000])
def test_budget(budget):
    probs = np.full((7, 4), 0.25)
    label = [0, 1, 2, 0, -1, 3, 1]  # class 0 agrees: five rows are doubted
    evidence = evidence_of(probs, label=label)
    got = decide(limited(budget), evidence, jax.random.key(0))
    assert got.query.sum() == min(budget, 5)
    assert not np.any(got.query & got.keep)
    assert got.keep.tolist() == [y == 0 for y in label]


def test_budget_is_an_array_parameter():
    rows, evidence = evidences(10, 12, 5, 1)
    one = jax.tree.map(jnp.asarray, at(evidence, 0))
    budgets = jnp.arange(15)
    key = jax.random.key(1)

    def queries(budget):
        scheme = limited(0)._replace(params={"query_budget": budget})
        return decide(scheme, one, key).query

    got = jax.jit(jax.vmap(queries))(budgets)
    doubts = oracles.active(**rows[0]).num_queries
    assert got.sum(1).tolist() == [min(b, doubts) for b in range(15)]
    for smaller, larger in itertools.pairwise(got):  # one ranking, cut at the budget
        assert not np.any(smaller & ~larger)


def test_budget_must_not_be_negative():
    with pytest.raises(ValueError, match=r"query_budget.*-1"):
        selection.active_limited(-1)
    with pytest.raises(ValueError, match=r"query_budget.*2\.5"):
        selection.active_limited(2.5)


@pytest.mark.parametrize("integer", [np.int64, np.int32, np.array, jnp.asarray])
def test_budget_must_not_be_negative_as_an_array_either(integer):
    with pytest.raises(ValueError, match="query_budget"):
        selection.active_limited(integer(-3))


def test_unknown_source():
    with pytest.raises(ValueError, match=r"label_model.*classifier.*mean.*'both'"):
        selection.active_limited(1, source="both")


def test_a_score_of_ones_own():
    def last_class(probs, label):
        return probs[:, -1]

    probs = [[0.1, 0.9], [0.5, 0.5], [0.2, 0.8], [0.9, 0.1]]
    scheme = selection.active_limited(2, score=last_class)
    got = decide(scheme, evidence_of(probs), jax.random.key(0))
    assert got.query.tolist() == [True, False, True, False]


# --- ties of the score -------------------------------------------------------------


def query_frequencies(evidence, budget, draws=4000, **options):
    scheme = limited(budget, **options)

    @jax.jit  # the evidence is an argument: a constant might be folded otherwise
    def queries(evidence, keys):
        return jax.vmap(lambda key: decide(scheme, evidence, key).query)(keys)

    got = np.asarray(queries(evidence, keys_of(11, draws)))
    counts = got.sum(1)
    assert counts.min() == counts.max()
    return got


def assert_chance(got, chance):
    draws = len(got)
    error = np.sqrt(chance * (1 - chance) / draws)
    assert np.all(np.abs(got.mean(0) - chance) <= 4 * error), got.mean(0)


def test_tied_rows_are_chosen_equally_often():
    # Rows 0, 4 are padding; 2 is kept; 5 is more, 7 is less uncertain than the rest.
    n = 12
    probs = np.tile([0.5, 0.25, 0.25], (n, 1))
    probs[5] = [0.5, 0.5, 0]
    probs[7] = [0.875, 0.125, 0]
    label = np.full(n, 2)
    label[2] = 0
    valid = np.ones(n, bool)
    valid[[0, 4]] = False
    evidence = evidence_of(probs, label=label, valid=valid)
    got = query_frequencies(evidence, budget=3)
    assert got[:, 5].all()
    assert not got[:, [0, 2, 4, 7]].any()
    assert_chance(got[:, [1, 3, 6, 8, 9, 10, 11]], 2 / 7)


def test_every_set_of_tied_rows_is_equally_likely():
    got = query_frequencies(evidence_of(np.full((4, 2), 0.5)), budget=2)
    sets = [np.all(got[:, list(p)], 1) for p in itertools.combinations(range(4), 2)]
    assert_chance(np.stack(sets, 1), 1 / 6)


def test_rows_without_a_vote_for_their_label_are_tied():
    """A KNN gives p(y) = 0 to most doubted rows (SPEC 3)."""
    probs = np.array([[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0.75, 0.25, 0]] * 2)
    evidence = evidence_of(probs, label=[3, 2, 0, 1, 3, 3])
    got = query_frequencies(evidence, budget=2, score="cross_entropy")
    assert_chance(got, 2 / 6)


@pytest.mark.parametrize("score", ["margin", "entropy", "cent"])
def test_scores_that_differ_by_rounding_alone_are_tied(score):
    """The same votes of a KNN on other classes: which class must not decide."""
    votes = {tuple(v) for v in itertools.permutations([3, 1, 1, 0, 0])}
    probs = np.array(sorted(votes)) / 5
    evidence = evidence_of(probs)
    assert_chance(query_frequencies(evidence, budget=10, score=score), 1 / 3)


def test_margins_that_differ_by_rounding_alone_are_tied():
    """3/5 - 2/5 and 2/5 - 1/5 are the same margin of a KNN with k = 5."""
    probs = np.array([[3, 2, 0, 0], [2, 1, 1, 1]] * 3) / 5
    assert_chance(query_frequencies(evidence_of(probs), budget=2), 1 / 3)


def test_most_uncertain_by_hand():
    score = jnp.array([1.0, 5.0, 3.0, 9.0, 4.0])
    mask = jnp.array([True, True, True, False, True])
    key = jax.random.key(0)
    got = selection.most_uncertain(mask, score, jnp.int32(2), key)
    assert got.tolist() == [False, True, False, False, True]
    got = selection.most_uncertain(mask, -score, jnp.int32(1), key)
    assert got.tolist() == [True, False, False, False, False]


# --- switch ------------------------------------------------------------------------


MEMBERS = tuple(SCHEMES.values())
ORACLE = list(SCHEMES).index("oracle_selection")


def indexed(index, members=MEMBERS):
    scheme = selection.switch(members)
    return scheme._replace(params={**scheme.params, "index": index})


def test_switch_equals_each_member():
    _, evidence = evidences(12, 12, 5, 4)

    def choose(index, one, key):
        return decide(indexed(index), one, key)

    jitted = jax.jit(choose)
    mapped = jax.jit(jax.vmap(choose, in_axes=(0, None, None)))
    for b in range(4):
        one = jax.tree.map(jnp.asarray, at(evidence, b))
        key = jax.random.key(b)
        every = mapped(jnp.arange(len(MEMBERS)), one, key)
        for i, member in enumerate(MEMBERS):
            expected = decide(member, one, key)
            assert_same(at(every, i), expected)
            assert_same(jitted(i, one, key), expected)
            if b == i == 0:
                assert_same(choose(i, one, key), expected)


def test_switch_takes_array_parameters_of_its_members():
    evidence = evidence_of(np.full((6, 3), 1 / 3))
    scheme = selection.switch([limited(0), selection.active()])

    def queries(budget, index):
        params = {"index": index, "members": ({"query_budget": budget}, ())}
        return decide(scheme._replace(params=params), evidence, jax.random.key(0)).query

    got = jax.jit(jax.vmap(queries))(jnp.array([2, 4, 2]), jnp.array([0, 0, 1]))
    assert got.sum(1).tolist() == [2, 4, 6]


def counting(step):
    """A scheme with a state: keeps the first rows, more of them at each arrival."""

    def init(params):
        return jnp.int32(0)

    def apply(params, state, evidence, *, key):
        state = state + params
        keep = jnp.arange(evidence.label.shape[0]) < state
        return Selection(keep, evidence.label, jnp.zeros_like(keep)), state

    return SelectionScheme(init, apply, step)


def test_switch_carries_the_state_of_the_member_in_use():
    members = (counting(1), selection.basic(), counting(2))
    evidence = evidence_of(np.full((6, 2), 0.5))

    def kept(index):
        scheme = indexed(index, members)
        state, counts = scheme.init(scheme.params), []
        for _ in range(3):
            chosen, state = scheme.apply(
                scheme.params, state, evidence, key=jax.random.key(0)
            )
            counts.append(chosen.keep.sum())
        return jnp.stack(counts), state

    counts, states = jax.jit(jax.vmap(kept))(jnp.arange(3))
    assert counts.tolist() == [[1, 2, 3], [0, 0, 0], [2, 4, 6]]
    assert states[0].tolist() == [3, 0, 0]
    assert states[2].tolist() == [0, 0, 6]


def test_switch_within_switch():
    inner = selection.switch([selection.no_selection(), selection.basic()])
    inner = inner._replace(params={**inner.params, "index": 1})
    _, evidence = evidences(13, 6, 4, 1)
    one = jax.tree.map(jnp.asarray, at(evidence, 0))
    got = decide(indexed(1, (selection.active(), inner)), one, jax.random.key(0))
    assert_same(got, decide(selection.basic(), one, None))


def test_switch_needs_members():
    with pytest.raises(ValueError, match="at least one"):
        selection.switch([])


# --- true labels are seen by the reference alone -----------------------------------


def test_only_the_reference_declares_true_labels():
    for name, scheme in SCHEMES.items():
        assert scheme.uses_true_labels == (name == "oracle_selection")
    assert selection.switch(MEMBERS).uses_true_labels
    blind = MEMBERS[:ORACLE] + MEMBERS[ORACLE + 1 :]
    assert not selection.switch(blind).uses_true_labels


def test_poisoned_true_labels_change_nothing():
    _, evidence = evidences(14, 12, 5)
    poisoned = evidence._replace(true_label=(evidence.true_label + 1) % 5)
    keys = keys_of(14)

    @jax.jit
    def choose(index, evidence):
        return jax.vmap(functools.partial(decide, indexed(index)))(evidence, keys)

    for i in range(len(MEMBERS)):
        clean, poison = choose(i, evidence), choose(i, poisoned)
        if i == ORACLE:
            assert np.any(clean.keep != poison.keep)
        else:
            assert_same(poison, clean)


def _spy(params, state, evidence, *, key):
    keep = evidence.true_label >= 0
    return Selection(keep, evidence.true_label, keep), state


@pytest.mark.parametrize("declares", [False, True])
def test_a_member_that_does_not_declare_true_labels_sees_none(declares):
    spy = SelectionScheme(lambda params: (), _spy, (), uses_true_labels=declares)
    members = (spy, selection.oracle_selection())
    evidence = evidence_of(np.eye(3), label=[0, 1, 1], true_label=[0, 1, 2])
    got = decide(indexed(0, members), evidence, jax.random.key(0))
    assert got.keep.tolist() == [declares] * 3
    assert got.label.tolist() == ([0, 1, 2] if declares else [-1] * 3)
    reference = decide(indexed(1, members), evidence, jax.random.key(0))
    assert reference.keep.tolist() == [True, True, False]


# --- arithmetic --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("k", "rate", "accuracy", "stated"),
    [(11, 0.4, 0.8, 0.9836), (11, 0.4, 0.98, 0.9986), (4, 0.4, 0.8, 0.9474)],
)
def test_purity_of_basic(k, rate, accuracy, stated):
    expected = oracles.purity_of_basic(rate, accuracy, k)
    assert round(expected, 4) == stated
    n = 100_000
    rng = np.random.default_rng(15)
    true_label = rng.integers(0, k, n)
    wrong = (true_label + rng.integers(1, k, n)) % k
    predicted = np.where(rng.random(n) < accuracy, true_label, wrong)
    model = noise.symmetric(rate)
    given_label = model.apply(
        model.params,
        jnp.asarray(true_label, jnp.int16),
        jnp.ones(n, bool),
        num_classes=k,
        key=jax.random.key(16),
    )
    evidence = evidence_of(np.eye(k)[predicted], label=given_label)
    got = decide(selection.basic(), evidence, None)
    keep = np.asarray(got.keep)
    purity = np.mean(np.asarray(got.label)[keep] == true_label[keep])
    error = np.sqrt(expected * (1 - expected) / keep.sum())
    assert abs(purity - expected) <= 4 * error
    # How many rows it keeps is known as well.
    share = (1 - rate) * accuracy + rate * (1 - accuracy) / (k - 1)
    assert abs(keep.mean() - share) <= 4 * np.sqrt(share * (1 - share) / n)
