"""Random forest: trees grown level by level over binned features, with masked rows."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rad_jax import checks
from rad_jax.learners.nearest import flat
from rad_jax.memory import Memory
from rad_jax.types import Array, Examples, Learner, Preparation, Queries, Spec

#: P(Poisson(1) <= i): a row stands in a tree's sample as often as draws exceed these.
_POISSON = (0.36787944, 0.73575888, 0.91969860, 0.98101184, 0.99634015, 0.99940582)


class Bins(NamedTuple):
    """The basis: quantiles of the clean batch, and the bins of every stored row.

    Attributes:
      edges: ``[B - 1, D]`` float32, ascending, inf where a feature has fewer. The bin
        of a value is the number of edges below it.
      rows: ``[M, D]`` uint8.
    """

    edges: Array
    rows: Array


class ForestModel(NamedTuple):
    """T trees of N = 2^depth - 1 inner nodes; node i has children 2i + 1 and 2i + 2.

    Attributes:
      feature: ``[T, N]`` int32, the feature that a node looks at.
      bin: ``[T, N]`` uint8: rows of a greater bin go to the right; the last bin where
        a node does not split.
      probability: ``[T, N + 1, K]`` float32, of each leaf.
    """

    feature: Array
    bin: Array
    probability: Array


def _edges(column: Array, valid: Array, num_bins: int) -> Array:
    """``[B - 1]`` edges of one feature ``[M]``, halfway between values that occur."""
    size = column.shape[0]
    count = jnp.sum(valid, dtype=jnp.int32)
    ordered = jnp.sort(jnp.where(valid, column, jnp.inf))
    first = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]])
    first = first & (jnp.arange(size) < count)
    distinct = jnp.sort(jnp.where(first, ordered, jnp.inf))
    num_distinct = jnp.sum(first, dtype=jnp.int32)
    # Between every two values where they are few, else at quantiles.
    steps = jnp.arange(1, num_bins, dtype=jnp.int32)
    whole, rest = jnp.divmod(count, num_bins)
    rank = steps * whole + steps * rest // num_bins
    quantile = jnp.searchsorted(distinct, ordered[jnp.minimum(rank, size - 1)])
    upper = jnp.where(num_distinct <= num_bins, steps, quantile.astype(jnp.int32))
    exists = (upper > 0) & (upper < num_distinct)
    above = distinct[jnp.clip(upper, 0, size - 1)]
    below = distinct[jnp.clip(upper - 1, 0, size - 1)]
    middle = below / 2 + above / 2
    middle = jnp.where(middle < above, middle, below)  # of neighbours in single
    return jnp.sort(jnp.where(exists, middle, jnp.inf))


def _assign(edges: Array, rows: Array) -> Array:
    """Bins ``[N, D]`` uint8 of rows ``[N, D]``."""

    def count(total, edge):
        return total + (rows > edge[None, :]).astype(jnp.uint8), None

    return jax.lax.scan(count, jnp.zeros(rows.shape, jnp.uint8), edges)[0]


@functools.cache
def binning(num_bins: int) -> Preparation:
    """Bins of stored rows and queries, at quantiles of the clean batch."""

    def start(memory: Memory) -> Bins:
        rows = flat(memory.features)
        edges = jax.lax.map(
            lambda column: _edges(column, memory.valid, num_bins), rows.T
        ).T
        return Bins(edges, _assign(edges, rows))

    def store(basis: Bins, memory: Memory, slots: Array, valid: Array) -> Bins:
        rows = flat(memory.features.at[slots].get(mode="fill", fill_value=0))
        slots = jnp.where(valid, slots, memory.capacity)
        bins = _assign(basis.edges, rows)
        return basis._replace(rows=basis.rows.at[slots].set(bins, mode="drop"))

    def build(basis: Bins, memory: Memory, features: Array) -> Array:
        del memory
        return _assign(basis.edges, flat(features))

    def extend(basis, prepared: Array, features, memory, slots, valid) -> Array:
        del basis, features, memory, slots, valid
        return prepared

    def nbytes(spec: Spec, num_queries: int) -> int:
        width = math.prod(spec.feature_shape)
        return width * (spec.capacity + num_queries + 4 * (num_bins - 1))

    return Preparation(
        name=f"bins_{num_bins}",
        start=start,
        store=store,
        build=build,
        extend=extend,
        bytes=nbytes,
    )


def _mix(bits: Array) -> Array:
    """Scrambles uint32 (the finaliser of MurmurHash3)."""
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 13)) * jnp.uint32(0xC2B2AE35)
    return bits ^ (bits >> 16)


def row_bits(key: jax.Array, row_id: Array) -> Array:
    """``[M]`` uint32, a number of each row, the same wherever it is stored."""

    def bits(number):
        return jax.random.bits(jax.random.fold_in(key, number), (), jnp.uint32)

    return jax.vmap(bits)(row_id.astype(jnp.uint32))


def bootstrap(bits: Array, tree_bits: Array) -> Array:
    """How often each row stands in a tree's sample: ``[M]`` float32, Poisson(1)."""
    draw = _mix(bits ^ tree_bits)
    at_least = [
        (draw >= jnp.uint32(round(limit * 2**32))).astype(jnp.float32)
        for limit in _POISSON
    ]
    return functools.reduce(jnp.add, at_least)


def feature_subsets(key: jax.Array, num_nodes: int, width: int, size: int) -> Array:
    """``[N, F]`` int32: the features that a node may split on, drawn at random."""
    if size == width:
        every = jnp.arange(width, dtype=jnp.int32)
        return jnp.broadcast_to(every, (num_nodes, width))
    draw = jax.random.uniform(key, (num_nodes, width), jnp.float32)
    return jax.lax.top_k(draw, size)[1].astype(jnp.int32)


def _best_splits(histogram: Array, subset: Array):
    """The split of each node that leaves the least Gini impurity.

    Args:
      histogram: ``[B, K, n, F]``, weight of rows by bin, class, node and candidate
        feature (bins first, so that the sums below run over whole vectors).
      subset: ``[n, F]``, the candidates.

    Returns:
      ``[n]`` feature and ``[n]`` bin (the last where no candidate divides the rows;
      of equal splits the first candidate's lowest bin), and class weights ``[n, K]``
      to the left and to the right.
    """
    num_bins, num_classes, num_nodes = histogram.shape[:3]

    def add(total, layer):
        total = total + layer
        return total, total

    total, left = jax.lax.scan(add, jnp.zeros_like(histogram[0]), histogram)
    right = total[None] - left
    num_left, num_right = jnp.sum(left, axis=1), jnp.sum(right, axis=1)
    divides = (num_left > 0) & (num_right > 0)
    # Minus the sum of both impurities, weighted, but for a constant.
    score = jnp.sum(jnp.square(left), axis=1) / jnp.where(divides, num_left, 1.0)
    score += jnp.sum(jnp.square(right), axis=1) / jnp.where(divides, num_right, 1.0)
    score = jnp.where(divides, score, -1.0)  # [B, n, F]
    of_feature = jnp.max(score, axis=0)
    position = jnp.argmax(of_feature, axis=1)[:, None]
    node = jnp.arange(num_nodes)[:, None]
    best = of_feature[node, position][:, 0]
    threshold = jnp.argmax(score[:, node, position][:, :, 0], axis=0)
    threshold = jnp.where(best >= 0, threshold, num_bins - 1)
    at = threshold[:, None], jnp.arange(num_classes)[None, :], node, position
    feature = subset[node, position][:, 0]
    return feature, threshold.astype(jnp.uint8), left[at], right[at]


def _frequencies(counts: Array, otherwise: Array) -> Array:
    """``[n, K]`` counts as frequencies; `otherwise` where there are none."""
    total = jnp.sum(counts, axis=-1, keepdims=True)
    return jnp.where(total > 0, counts / jnp.where(total > 0, total, 1.0), otherwise)


def _grow(
    bins: Array,
    label: Array,
    weight: Array,
    subsets: Array,
    prior: Array,
    max_depth: int,
    num_bins: int,
):
    """One tree.

    Args:
      bins: ``[M, D]`` uint8.
      label: ``[M]`` int32 in 0..K-1, also where the weight is 0.
      weight: ``[M]`` float32.
      subsets: ``[N, F]`` int32.
      prior: ``[K]``, frequencies of a tree without a row.
      max_depth: levels of inner nodes.
      num_bins: B.

    Returns:
      ``[N]`` features, ``[N]`` bins, ``[N + 1, K]`` probabilities of the leaves.
    """
    num_classes, size = prior.shape[0], subsets.shape[1]
    width = bins.shape[1]
    start = jnp.arange(bins.shape[0], dtype=jnp.int32) * width
    flat_bins = bins.reshape(-1)
    node = jnp.zeros(bins.shape[0], jnp.int32)
    probability = prior[None, :]
    features, thresholds = [], []
    for level in range(max_depth):
        num_nodes = 2**level
        subset = subsets[num_nodes - 1 : 2 * num_nodes - 1]
        seen = flat_bins[start[:, None] + subset[node]].astype(jnp.int32)
        offset = (label * num_nodes + node) * size
        layer = num_classes * num_nodes * size  # cells of one bin
        cell = offset[:, None] + jnp.arange(size, dtype=jnp.int32)[None, :]
        cell = cell + seen * layer
        histogram = (
            jnp.zeros(num_bins * layer, jnp.float32)
            .at[cell]
            .add(
                jnp.broadcast_to(weight[:, None], cell.shape), mode="promise_in_bounds"
            )
            .reshape(num_bins, num_classes, num_nodes, size)
        )
        feature, threshold, left, right = _best_splits(histogram, subset)
        features.append(feature)
        thresholds.append(threshold)
        children = jnp.stack([left, right], axis=1).reshape(-1, num_classes)
        probability = _frequencies(children, jnp.repeat(probability, 2, axis=0))
        above = flat_bins[start + feature[node]] > threshold[node]
        node = 2 * node + above.astype(jnp.int32)
    return jnp.concatenate(features), jnp.concatenate(thresholds), probability


@functools.cache
def _functions(num_trees: int, max_depth: int, max_features: int, num_bins: int):
    preparation = binning(num_bins)
    num_nodes = 2**max_depth - 1

    def init(spec: Spec, params, key) -> ForestModel:
        del params, key
        if num_nodes + 1 > spec.capacity:
            raise ValueError(
                f"max_depth={max_depth} makes {num_nodes + 1} leaves of the "
                f"{spec.capacity} rows that memory_capacity allows; lower max_depth"
            )
        leaves = (num_trees, num_nodes + 1, spec.num_classes)
        return ForestModel(
            feature=jnp.zeros((num_trees, num_nodes), jnp.int32),
            bin=jnp.full((num_trees, num_nodes), num_bins - 1, jnp.uint8),
            probability=jnp.full(leaves, 1.0 / spec.num_classes, jnp.float32),
        )

    def fit(
        spec: Spec, params, model, examples: Examples, *, init_key, order_key
    ) -> ForestModel:
        del params, order_key
        bins = examples.prepared[preparation.name].rows
        kept = jnp.where(examples.valid, examples.weight, 0.0)
        label = jnp.where(kept > 0, examples.label, 0).astype(jnp.int32)
        counts = jnp.zeros(spec.num_classes, jnp.float32).at[label].add(kept)
        prior = _frequencies(counts, jnp.full_like(counts, 1.0 / spec.num_classes))
        bits = row_bits(jax.random.fold_in(init_key, num_trees), examples.row_id)
        size = min(max_features, bins.shape[1])

        def tree(index):
            key = jax.random.fold_in(init_key, index)
            of_rows, of_nodes = jax.random.split(key)
            times = bootstrap(bits, jax.random.bits(of_rows, (), jnp.uint32))
            subsets = feature_subsets(of_nodes, num_nodes, bins.shape[1], size)
            return _grow(bins, label, kept * times, subsets, prior, max_depth, num_bins)

        grown = ForestModel(*jax.lax.map(tree, jnp.arange(num_trees)))
        any_kept = jnp.any(kept > 0)
        return jax.tree.map(lambda n, o: jnp.where(any_kept, n, o), grown, model)

    def predict_proba(spec, params, model: ForestModel, memory, queries: Queries):
        del params, memory
        bins = queries.prepared[preparation.name]
        num_queries, width = bins.shape
        start = jnp.arange(num_queries, dtype=jnp.int32) * width
        flat_bins = bins.reshape(-1)

        def add(total, tree: ForestModel):
            node = jnp.zeros(num_queries, jnp.int32)
            for _ in range(max_depth):
                above = flat_bins[start + tree.feature[node]] > tree.bin[node]
                node = 2 * node + 1 + above.astype(jnp.int32)
            return total + tree.probability[node - num_nodes], None

        zero = jnp.zeros((num_queries, spec.num_classes), jnp.float32)
        total = jax.lax.scan(add, zero, model)[0]
        return total / jnp.sum(total, axis=-1, keepdims=True)

    def nbytes(spec: Spec, num_queries: int) -> int:
        width = math.prod(spec.feature_shape)
        size = min(max_features, width)
        model = num_trees * (num_nodes * 5 + (num_nodes + 1) * spec.num_classes * 4)
        histogram = 4 * 2 ** (max_depth - 1) * size * num_bins * spec.num_classes
        # A row's cells of the histogram, and what it adds to each of them.
        rows = spec.capacity * (5 * 4 + 2 * size * 4)
        answers = num_queries * (2 * spec.num_classes + 2) * 4
        return 2 * model + 3 * histogram + rows + answers

    return init, fit, predict_proba, preparation, nbytes


def random_forest(
    num_trees: int = 100,
    *,
    max_depth: int = 5,
    max_features: int = 10,
    num_bins: int = 32,
) -> Learner:
    """Random forest: bootstrapped trees of Gini splits; the mean of their leaves.

    Grown anew at every arrival, all nodes of a level at once. Differs from
    scikit-learn's `RandomForestClassifier`:

    - Features are put into `num_bins` bins by the quantiles of the clean batch (of
      few distinct values each has its bin); splits lie between bins. Values beyond
      those of the clean batch share the outermost bins.
    - The bootstrap draws how often each row stands in a sample from Poisson(1), so
      that a row's draw does not depend on what other rows are kept. Draws and
      candidate features follow from the initialisation key alone: growing again on
      the same rows gives the same trees.
    - If no candidate feature divides a node's rows, the node passes them on to its
      left child, which draws others; scikit-learn draws on at once, without going
      deeper.
    - `max_features` beyond the number of features means all of them.

    A class without a kept row has probability 0.

    Args:
      num_trees: at least 1.
      max_depth: levels of splits, 1 to 16.
      max_features: candidates at a split, at least 1.
      num_bins: 2 to 256.

    Returns:
      The learner.

    Raises:
      TypeError: for an argument that is no whole number.
      ValueError: for one out of range; when initialised, for a depth with
        more leaves than memory has rows.
    """
    init, fit, predict_proba, preparation, nbytes = _functions(
        checks.whole("num_trees", num_trees, 1, 100_000),
        checks.whole("max_depth", max_depth, 1, 16),
        checks.whole("max_features", max_features, 1, 2**31 - 1),
        checks.whole("num_bins", num_bins, 2, 256),
    )
    return Learner(
        name="random_forest",
        init=init,
        fit=fit,
        predict_proba=predict_proba,
        bytes=nbytes,
        preparation=preparation,
    )
