import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rad_jax
from rad_jax import budgets, selection, sweep
from rad_jax.datasets.split import StreamData
from rad_jax.types import Evidence, Selection, as_arrays

NO_LIMIT = budgets.NO_LIMIT


def batches(seed, n, k, count):
    rng = np.random.default_rng(seed)
    return [oracles.random_evidence(rng, n, k) for _ in range(count)]


@functools.cache
def compiled(scheme):
    """Examples differ in numbers only: each kind of scheme is compiled once."""

    @jax.jit
    def run(params, batches, keys):
        def step(state, batch):
            chosen, state = scheme.apply(params, state, batch[0], key=batch[1])
            return state, chosen

        return jax.lax.scan(step, scheme.init(params), (batches, keys))[1]

    return run


def follow(scheme, rows, params=None, seed=0):
    """What a scheme decides on one batch after the other."""
    params = as_arrays(scheme.params if params is None else params)
    stacked = Evidence(
        **{name: np.stack([row[name] for row in rows]) for name in rows[0]}
    )
    keys = jax.random.split(jax.random.key(seed), len(rows))
    return compiled(scheme._replace(params=None))(params, stacked, keys)


def queries(scheme, rows, params=None, seed=0):
    return follow(scheme, rows, params, seed).query.sum(axis=1)


def doubted(row):
    return sum(oracles.active(**row).must_query)


# --- a total over the stream -------------------------------------------------------


@settings(max_examples=10)
@given(seed=st.integers(0, 2**31 - 1))
def test_total_budget_equals_the_loop(seed):
    rows = batches(seed, 12, 5, 8)
    rng = np.random.default_rng(seed)
    budget, total = int(rng.integers(0, 6)), int(rng.integers(0, 25))
    got = queries(selection.active_limited(budget, total_budget=total), rows)
    left, expected = total, []
    for row in rows:
        asked = min(budget, left, doubted(row))
        expected.append(asked)
        left -= asked
    assert got.tolist() == expected


def test_a_total_that_never_binds_changes_nothing():
    rows = batches(1, 12, 5, 6)
    plain = follow(selection.active_limited(3), rows)
    for options in (
        {"total_budget": 10_000},
        {"min_per_class": np.int32(0)},
        {"total_budget": NO_LIMIT},
    ):
        limited = follow(selection.active_limited(3, **options), rows)
        jax.tree.map(np.testing.assert_array_equal, limited, plain)


def test_a_sweep_over_budgets_is_one_program():
    """Budgets, totals and minima as vmapped parameters, as a loop, and in `switch`."""
    rows = batches(2, 12, 5, 6)
    scheme = selection.active_limited(1, total_budget=1)
    grid = [(2, 5, 0, NO_LIMIT), (0, 9, 1, NO_LIMIT), (9, 9, 2, NO_LIMIT)]
    names = ("query_budget", "total_budget", "min_per_class", "cap")
    params = dict(zip(names, jnp.asarray(grid, jnp.int32).T, strict=True))
    assert params.keys() == scheme.params.keys()
    mapped = jax.jit(jax.vmap(lambda p: follow(scheme, rows, p)))(params)
    members = []
    for i, (budget, total, minimum, _) in enumerate(grid):
        member = selection.active_limited(
            budget, total_budget=total, min_per_class=minimum
        )
        members.append(member)
        one = follow(member, rows)
        jax.tree.map(np.testing.assert_array_equal, one, at(mapped, i))
    members.append(selection.basic())
    either = selection.switch(members)

    def indexed(index):
        return follow(either, rows, {**either.params, "index": index})

    switched = jax.jit(jax.vmap(indexed))(jnp.arange(4))
    for i in range(3):
        jax.tree.map(np.testing.assert_array_equal, at(switched, i), at(mapped, i))
    assert not at(switched, 3).query.any()


def at(tree, i):
    return jax.tree.map(lambda x: x[i], tree)


# --- a dynamic budget --------------------------------------------------------------


def adapt_by_loop(n, before, now, cap):
    wanted = n * (1 - (before - now) / max(now, 1e-6))
    return min(max(math.ceil(wanted - 1e-9), 1), cap)


@pytest.mark.parametrize(
    ("n", "before", "now", "cap", "expected"),
    [
        (10, 1.0, 1.0, 99, 10),
        (10, 0.3, 0.3, 99, 10),
        (10, 0.5, 1.0, 99, 15),  # half as sure again: 10 (1 + .5)
        (10, 1.0, 0.8, 99, 8),  # 10 (1 - .25) = 7.5
        (10, 1.0, 0.5, 99, 1),  # 10 (1 - 1)
        (10, 1.0, 0.1, 99, 1),  # below 0
        (10, 0.5, 1.0, 12, 12),
        (10, 0.0, 1.0, 99, 20),
        (10, 0.0, 0.0, 99, 10),
        (10, 1.0, 0.0, 99, 1),
        (3, 0.7, 0.7, 2, 2),
    ],
)
def test_adapt_by_hand(n, before, now, cap, expected):
    assert adapt_by_loop(n, before, now, cap) == expected
    got = budgets.adapt(jnp.int32(n), jnp.float32(before), jnp.float32(now), cap)
    assert got.dtype == jnp.int32
    assert got == expected


@settings(max_examples=10)
@given(seed=st.integers(0, 2**31 - 1), source=st.sampled_from(oracles.SOURCES))
def test_dynamic_budget_equals_the_loop(seed, source):
    rows = batches(seed, 12, 5, 8)
    rng = np.random.default_rng(seed)
    rows[3]["valid"] = np.zeros(12, bool)  # padding only: nothing changes
    budget, total, cap = rng.integers(1, 6), rng.integers(5, 40), rng.integers(1, 9)
    budget, total, cap = int(budget), int(total), int(cap)
    scheme = selection.active_limited(
        budget, source=source, total_budget=total, dynamic=True, cap=cap
    )
    got = queries(scheme, rows)
    n, left, before, expected = min(budget, cap), total, None, []
    for row in rows:
        probs = {
            "label_model": row["label_probs"],
            "classifier": row["class_probs"],
            "mean": (row["label_probs"] + row["class_probs"]) / 2,
        }[source].astype(float)
        clipped = np.maximum(probs, 1e-6)
        each = -(clipped * np.log(clipped)).sum(1)
        if row["valid"].any():
            now = each[row["valid"]].mean()
            if before is not None:
                n = adapt_by_loop(n, before, now, cap)
            before = now
        asked = min(n, left, doubted(row))
        expected.append(asked)
        left -= asked
    assert got.tolist() == expected


# --- a minimum per class -----------------------------------------------------------


def fill_by_loop(row, keep, query, minimum):
    """Rows that must be kept, and rows that may be (ties), by given class."""
    probs = (row["label_probs"].astype(float) + row["class_probs"]) / 2
    must, may, counts = list(keep), list(keep), {}
    for k in range(probs.shape[1]):
        free = [
            i
            for i in range(len(keep))
            if row["valid"][i] and row["label"][i] == k and not query[i]
        ]
        kept = sum(bool(keep[i]) for i in free)
        wanted = max(kept, min(minimum, len(free)))
        counts[k] = wanted
        others = sorted((i for i in free if not keep[i]), key=lambda i: -probs[i, k])
        add = wanted - kept
        if add:
            edge = probs[others[add - 1], k]
            for i in others:
                must[i] = bool(probs[i, k] > edge + 1e-4)
                may[i] = bool(probs[i, k] > edge - 1e-4)
    return must, may, counts


@settings(max_examples=15)
@given(seed=st.integers(0, 2**31 - 1), minimum=st.integers(0, 4))
def test_minimum_per_class_equals_the_loop(seed, minimum):
    rows = batches(seed, 14, 4, 6)
    limited = selection.active_limited(2, min_per_class=np.int32(minimum))
    wrapped = selection.keep_per_class(selection.active_limited(2), minimum)
    for scheme in (limited, wrapped):
        chosen = follow(scheme, rows, seed=seed % 1000)
        plain = follow(selection.active_limited(2), rows, seed=seed % 1000)
        np.testing.assert_array_equal(chosen.query, plain.query)
        np.testing.assert_array_equal(chosen.label, plain.label)
        for i, row in enumerate(rows):
            keep, query = np.asarray(plain.keep[i]), np.asarray(plain.query[i])
            must, may, counts = fill_by_loop(row, keep, query, minimum)
            got = np.asarray(chosen.keep[i])
            assert np.all(got >= must)
            assert np.all(got <= may)
            free = row["valid"] & ~query
            for k, count in counts.items():
                assert np.sum(got & free & (row["label"] == k)) == count


def test_rows_of_equal_probability_are_saved_equally_often():
    evidence = Evidence(
        *2 * [jnp.tile(jnp.array([[1.0, 0.0]]), (6, 1))],
        label=jnp.array([1, 0, 1, 1, 1, -1]),
        valid=jnp.array([True, True, True, True, False, True]),
        true_label=jnp.full(6, -1),
    )
    nothing = Selection(
        jnp.array([False, True, False, False, False, False]),
        evidence.label,
        jnp.zeros(6, bool),
    )
    keys = jax.random.split(jax.random.key(3), 3000)
    fill = jax.vmap(lambda key: budgets.fill_classes(nothing, evidence, 1, key).keep)
    got = np.asarray(fill(keys))
    assert np.all(got.sum(1) == 2)
    assert got[:, 1].all()
    error = np.sqrt(2 / 9 / 3000)
    assert np.all(np.abs(got[:, [0, 2, 3]].mean(0) - 1 / 3) <= 4 * error)


def test_the_reference_still_declares_true_labels():
    oracle = selection.keep_per_class(selection.oracle_selection(), 1)
    assert oracle.uses_true_labels
    assert not selection.keep_per_class(selection.basic(), 1).uses_true_labels


# --- in a simulated stream ---------------------------------------------------------


def test_budgets_and_minima_in_a_sweep():
    """The smallest class of a hard stream survives, and totals hold for every seed."""
    k, n, arrivals = 3, 20, 5
    rng = np.random.default_rng(4)
    label = rng.integers(0, k, 24 + arrivals * n + 10).astype(np.int32)
    x = (np.eye(k, 4)[label] + rng.normal(size=(len(label), 4))).astype(np.float32)
    first, last = 24, 24 + arrivals * n
    data = StreamData(
        x[:first],
        label[:first],
        x[first:last].reshape(arrivals, n, 4),
        label[first:last].reshape(arrivals, n),
        x[last:],
        label[last:],
        k,
        ("a", "b", "c"),
    )
    schemes = {
        "plain": selection.active_limited(2),
        "total": selection.active_limited(2, total_budget=5),
        "none": selection.active_limited(2, total_budget=0),
        "dynamic": selection.active_limited(2, dynamic=True, cap=3, total_budget=8),
        "minimum": selection.keep_per_class(selection.basic(), 3),
    }
    result = sweep.prepare(
        data,
        [sweep.Arm(name, scheme) for name, scheme in schemes.items()],
        label_model=rad_jax.nearest_centroid(),
        classifier=rad_jax.nearest_centroid(),
        noise_rates=(0.6,),
        num_seeds=3,
    ).run()
    asked = dict(zip(schemes, result.history["queries"][:, 0], strict=True))
    assert np.all(asked["plain"][:, 1:] == 2 * np.arange(1, arrivals + 1))
    assert np.all(asked["total"][:, 1:] == np.minimum(asked["plain"][:, 1:], 5))
    assert not asked["none"].any()
    assert np.all(asked["dynamic"][:, -1] == 8)
    assert np.all(np.diff(asked["dynamic"], axis=1) <= 3)
    kept = dict(zip(schemes, result.history["kept"][:, 0], strict=True))
    given_classes = 3 * k * np.arange(1, arrivals + 1)
    assert np.all(kept["minimum"][:, 1:] >= given_classes - 2)


# --- errors ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"total_budget": -1}, r"total_budget must be a whole number of rows in 0\.\."),
        ({"total_budget": 1.5}, "total_budget must be a whole number .*, got 1.5"),
        ({"min_per_class": -2}, r"min_per_class must be .* in 0\.\.2"),
        ({"min_per_class": 0.5}, r"min_per_class must be a whole number"),
        ({"dynamic": True, "cap": 0}, r"cap must be .* in 1\.\..*, got 0"),
        ({"cap": 5}, "cap needs dynamic=True, got cap=5"),
        ({"query_budget": 0, "dynamic": True}, r"query_budget must be .* in 1\.\."),
    ],
)
def test_bad_budgets(options, message):
    with pytest.raises(ValueError, match=message):
        selection.active_limited(**{"query_budget": 3, **options})


def test_a_bad_minimum():
    with pytest.raises(ValueError, match="minimum must be a whole number"):
        selection.keep_per_class(selection.basic(), -1)
