"""VGG and networks with running statistics, against plain loops."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import rad_jax
from rad_jax.learners import (
    VGG,
    Training,
    convolutional,
    network,
    shift_and_flip,
    shuffling,
    vgg,
)
from rad_jax.types import Examples, Queries, Spec

K, SIDE, ROWS = 3, 8, 30
SPEC = Spec((SIDE, SIDE, 2), K, ROWS)
TRAINING = Training(steps=3, initial_steps=5, minibatch_size=8)


def key(number):
    return jax.random.key(number)


def images(seed=0, rows=ROWS):
    rng = np.random.default_rng(seed)
    label = rng.integers(0, K, rows)
    x = rng.random((rows, SIDE, SIDE, 2), np.float32)
    x[np.arange(rows), label * 2] += 1.5  # a bright line at a height of its own
    return x, label


def examples(x, label, weight, arrival=0):
    rows = len(x)
    return Examples(
        features=jnp.asarray(x),
        row_id=jnp.arange(rows),
        valid=jnp.ones(rows, bool),
        arrival=jnp.int32(arrival),
        label=jnp.asarray(label, jnp.int16),
        weight=jnp.asarray(weight, jnp.float32),
        prepared={},
    )


@functools.partial(jax.jit, static_argnums=0)
def init(learner, params, init_key):
    return learner.init(SPEC, params, init_key)


@functools.partial(jax.jit, static_argnums=0)
def fit(learner, params, model, data, init_key, order_key):
    return learner.fit(
        SPEC, params, model, data, init_key=init_key, order_key=order_key
    )


@functools.partial(jax.jit, static_argnums=0)
def predict(learner, params, model, x):
    return learner.predict_proba(SPEC, params, model, None, Queries(x, {}))


@functools.cache
def small(**options):
    return vgg(width=0.05, blocks=1, training=TRAINING, **options)


def static(learner):
    return learner._replace(params=None)


def trained(learner, data, start=0, order=1):
    model = init(static(learner), learner.params, key(start))
    return fit(static(learner), learner.params, model, data, key(start), key(order))


def assert_close(a, b, rtol=1e-4, atol=1e-5):
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=atol), a, b
    )


def count(tree):
    return sum(int(np.prod(x.shape)) for x in jax.tree.leaves(tree))


def test_the_papers_network_has_as_many_parameters_as_the_papers():
    module = VGG(20)
    shapes = jax.eval_shape(
        lambda k, x: module.init(k, x),
        jax.eval_shape(lambda: key(0)),
        jax.ShapeDtypeStruct((1, 128, 128, 3), jnp.float32),
    )
    assert count(shapes["params"]) == 13_684_604
    assert count(shapes) == 13_686_668


@pytest.mark.parametrize("train", [False, True])
def test_all_formulations_agree_in_values_and_gradients(train):
    x, _ = images()
    variables = jax.jit(VGG(K, (4, 6), 5, "native").init)(key(0), x)
    # Biases and statistics away from their initial values.
    variables = jax.tree.map(
        lambda v: v + 0.1 * jax.random.uniform(key(v.size), v.shape), variables
    )

    def outputs(formulation):
        module = VGG(K, (4, 6), 5, formulation)

        def loss(params):
            logits, _ = module.apply(
                {**variables, "params": params}, x, train=train, mutable=["batch_stats"]
            )
            return jnp.sum(jnp.sin(logits)), logits

        return jax.jit(jax.grad(loss, has_aux=True))(variables["params"])

    native = outputs("native")
    assert np.abs(native[1]).max() > 0.1
    assert_close(outputs("forward"), native, 1e-3, 2e-4)
    assert_close(outputs("auto"), native, 1e-3, 2e-4)


def test_statistics_leave_out_masked_rows():
    x, _ = images()
    module = VGG(K, (4,), 5)
    variables = jax.jit(module.init)(key(0), x)
    mask = np.arange(ROWS) % 3 > 0
    x = np.where(mask[:, None, None, None], x, 1e3)

    @jax.jit
    def apply(x, mask=None):
        return module.apply(variables, x, train=True, mask=mask, mutable="batch_stats")

    logits, changed = apply(x, mask)
    alone, expected = apply(x[mask])
    assert_close(logits[mask], alone)
    assert_close(changed, expected)
    # Without a mask the rows would have counted.
    _, other = apply(x)
    assert np.abs(other["batch_stats"]["BatchNormReLU_0"]["mean"]).max() > 1


def test_the_network_written_out():
    """Layer by layer, with statistics of its own and with those of the batch."""
    x, _ = images()
    module = VGG(K, (4,), 5)
    variables = jax.jit(module.init)(key(0), x)
    # Small variances, beside which 1e-3 counts.
    variables = jax.tree.map(
        lambda v: 0.05 * jax.random.uniform(key(v.size), v.shape) + 0.1 * v, variables
    )
    weights, stats = variables["params"], variables["batch_stats"]

    def forward(train):
        changed = {}

        def norm(x, name):
            axes = tuple(range(x.ndim - 1))
            mean, var = stats[name]["mean"], stats[name]["var"]
            if train:
                batch = x.mean(axes), x.var(axes)
                changed[name] = {
                    "mean": 0.99 * mean + 0.01 * batch[0],
                    "var": 0.99 * var + 0.01 * batch[1],
                }
                mean, var = batch
            scale, bias = weights[name]["scale"], weights[name]["bias"]
            out = (x - np.asarray(mean)) / np.sqrt(np.asarray(var) + 1e-3)
            return np.maximum(out * np.asarray(scale) + np.asarray(bias), 0)

        def convolve(x, name):
            kernel = np.asarray(weights[name]["kernel"])
            padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
            windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
            out = np.einsum("bhwcij,ijco->bhwo", windows, kernel)
            return out + np.asarray(weights[name]["bias"])

        h = norm(convolve(x, "Convolution_0"), "BatchNormReLU_0")
        h = norm(convolve(h, "Convolution_1"), "BatchNormReLU_1")
        h = h.reshape(ROWS, SIDE // 2, 2, SIDE // 2, 2, 4).max(axis=(2, 4))
        h = h.reshape(ROWS, -1) @ np.asarray(weights["hidden"]["kernel"])
        h = norm(h + np.asarray(weights["hidden"]["bias"]), "BatchNormReLU_2")
        h = h @ np.asarray(weights["output"]["kernel"])
        return h + np.asarray(weights["output"]["bias"]), changed

    assert_close(jax.jit(module.apply)(variables, x), forward(False)[0], 1e-3, 1e-4)
    apply = functools.partial(module.apply, train=True, mutable="batch_stats")
    logits, changed = jax.jit(apply)(variables, x)
    expected, statistics = forward(True)
    assert_close(logits, expected, 1e-3, 1e-4)
    assert_close(dict(changed["batch_stats"]), statistics, 1e-4, 1e-6)


def test_kernels_start_he_normal():
    x = jnp.zeros((1, 16, 16, 3))
    weights = jax.jit(VGG(K, (64, 64), 256).init)(key(0), x)["params"]
    for name in ("Convolution_0", "Convolution_3", "hidden"):
        kernel = np.asarray(weights[name]["kernel"])
        expected = np.sqrt(2 / np.prod(kernel.shape[:-1]))
        # Within four standard errors of a normal's deviation.
        np.testing.assert_allclose(
            kernel.std(), expected, rtol=4 / np.sqrt(2 * kernel.size)
        )
        np.testing.assert_array_equal(weights[name]["bias"], 0.0)


def test_after_10_000_steps_the_learning_rate_is_half():
    optimizer = convolutional._optimizer()
    weight = jnp.zeros(())
    state = optimizer.init(weight)
    still = jax.tree.map(jnp.asarray, state.hyperparams | {"momentum": 0.0})
    state = state._replace(hyperparams=still)

    def step(state, _):
        change, state = optimizer.update(jnp.ones(()), state, weight)
        return state, change

    changes = jax.jit(lambda s: jax.lax.scan(step, s, length=10_001))(state)[1]
    np.testing.assert_allclose(changes[jnp.array([0, 10_000])], [-0.01, -0.005], 1e-5)


@pytest.mark.slow  # compiles
def test_augmentation_is_an_option_of_vgg():
    x, label = images()
    data = examples(x, label, np.ones(ROWS))
    plain, augmented = (trained(small(augment=on), data) for on in (False, True))
    gap = jax.tree.map(
        lambda a, b: np.abs(a - b).max(), plain.weights, augmented.weights
    )
    assert max(jax.tree.leaves(gap)) > 1e-3


def minibatches(order_key, num_steps):
    """As learners draw them: an order of all rows for each epoch."""
    size = TRAINING.minibatch_size
    per_epoch = -(-ROWS // size)
    for step in range(num_steps):
        epoch_key = jax.random.fold_in(order_key, step // per_epoch)
        keys = shuffling.round_keys(epoch_key)
        order = np.asarray(shuffling.nth(keys, jnp.arange(ROWS), ROWS))
        yield order[step % per_epoch * size :][:size]


def test_training_is_a_plain_loop_over_the_kept_rows():
    """Momentum SGD with decaying rate, L2 on one kernel, statistics of kept rows."""
    learner = small()
    x, label = images()
    weight = (np.arange(ROWS) % 4 > 0).astype(np.float32)
    start = init(static(learner), learner.params, key(5))
    model = fit(
        static(learner),
        learner.params,
        start,
        examples(x, label, weight),
        key(5),
        key(1),
    )
    module = VGG(K, (3,), 13)
    params, stats = start.weights, start.collections
    velocity = jax.tree.map(jnp.zeros_like, params)

    @jax.jit
    def gradient(params, stats, x, y):
        def loss(params):
            logits, changed = module.apply(
                {"params": params, **stats}, x, train=True, mutable=["batch_stats"]
            )
            chosen = jax.nn.log_softmax(logits)[jnp.arange(len(y)), y]
            penalty = jnp.sum(params["hidden"]["kernel"] ** 2)
            return 0.01 * penalty - jnp.mean(chosen), changed

        return jax.grad(loss, has_aux=True)(params)

    for step, rows in enumerate(minibatches(key(1), 5)):
        rows = rows[weight[rows] > 0]
        slope, stats = gradient(params, stats, x[rows], label[rows])
        rate = 0.01 / (1 + 1e-4 * step)
        velocity = jax.tree.map(lambda v, g, r=rate: 0.9 * v - r * g, velocity, slope)
        params = jax.tree.map(jnp.add, params, velocity)
    assert int(model.steps) == 5
    assert_close(model.weights, params, 1e-3, 1e-5)
    assert_close(model.collections, stats, 1e-3, 1e-5)
    # 5 steps move the weights by far more than the tolerance.
    moved = jax.tree.map(lambda a, b: jnp.abs(a - b).max(), start.weights, params)
    assert max(jax.tree.leaves(moved)) > 1e-2


def test_garbage_in_rows_of_weight_zero_changes_nothing():
    learner = small()
    x, label = images()
    weight = np.arange(ROWS) % 3 > 0
    model = trained(learner, examples(x, label, weight))
    garbage = np.where(weight[:, None, None, None], x, 1e4)
    other = trained(learner, examples(garbage, np.where(weight, label, -1), weight))
    assert_close(model.weights, other.weights)
    assert_close(model.collections, other.collections)


@pytest.mark.parametrize("arrival", [0, 2])
def test_nothing_kept_changes_nothing(arrival):
    learner = small()
    x, label = images()
    model = trained(learner, examples(x, label, np.ones(ROWS)))
    after = fit(
        static(learner),
        learner.params,
        model,
        examples(x, label, np.zeros(ROWS), arrival),
        key(0),
        key(1),
    )
    jax.tree.map(np.testing.assert_array_equal, after, model)


def test_seeds_in_turn_are_seeds_one_by_one():
    learner = small(augment=True)
    x, label = images()
    rng = np.random.default_rng(1)
    weight = rng.random((3, ROWS)) < 0.7
    rates = jnp.asarray([0.01, 0.02, 0.05])
    queries = Queries(jnp.asarray(images(2)[0]), {})

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, 0, 0))
    def many(weight, rate, seed_key):
        params = {"learning_rate": rate}
        model = learner.init(SPEC, params, seed_key)
        model = learner.fit(
            SPEC,
            params,
            model,
            examples(x, label, weight),
            init_key=seed_key,
            order_key=key(1),
        )
        return learner.predict_proba(SPEC, params, model, None, queries)

    keys = jax.random.split(key(3), 3)
    probs = many(jnp.asarray(weight), rates, keys)
    for i in range(3):
        params = {"learning_rate": rates[i]}
        model = init(static(learner), params, keys[i])
        model = fit(
            static(learner),
            params,
            model,
            examples(x, label, weight[i]),
            keys[i],
            key(1),
        )
        alone = predict(static(learner), params, model, queries.features)
        np.testing.assert_allclose(probs[i], alone, atol=2e-4)
    assert np.abs(probs[0] - probs[2]).max() > 1e-2


@pytest.mark.slow  # compiles
def test_rad_with_vgg_learns_images():
    x, label = images(0, 130)
    rows = rad_jax.Batch(
        jnp.asarray(x), jnp.asarray(label), jnp.ones(130, bool), jnp.arange(130)
    )
    algo = rad_jax.rad(
        classifier=vgg(
            width=0.1,
            blocks=2,
            training=Training(steps=10, initial_steps=60, minibatch_size=16),
        ),
        selection=rad_jax.basic(),
        num_classes=K,
        memory_capacity=100,
        validation_fraction=0.0,
    )
    part = lambda *at: jax.tree.map(lambda a: a[slice(*at)], rows)  # noqa: E731
    state = jax.jit(algo.init)(key(0), part(60))
    state, info = jax.jit(algo.step)(state, part(60, 100))
    assert info.keep.mean() > 0.5
    right = jax.jit(algo.predict)(state, rows.features[100:]) == rows.label[100:]
    assert right.mean() > 0.8


def test_augmentation_moves_and_mirrors():
    image = np.arange(10 * 20, dtype=np.float32).reshape(1, 10, 20, 1)
    many = np.repeat(image, 200, axis=0)
    out = np.asarray(shift_and_flip(0.1)(key(0), jnp.asarray(many)))
    assert out.shape == many.shape
    seen = set()
    for one in out[..., 0]:
        mirrored = one[0, 0] > one[0, -1]
        plain = one[:, ::-1] if mirrored else one
        down = int(plain[5, 10] // 20) - 5
        right = int(plain[5, 10] % 20) - 10
        row = np.clip(np.arange(10) + down, 0, 9)
        column = np.clip(np.arange(20) + right, 0, 19)
        np.testing.assert_array_equal(plain, image[0, row][:, column, 0])
        seen.add((bool(mirrored), down, right))
    assert {s[0] for s in seen} == {False, True}
    assert {s[1] for s in seen} == {-1, 0, 1}
    assert {s[2] for s in seen} == {-2, -1, 0, 1, 2}
    same = shift_and_flip(0.0, flip=False)(key(1), jnp.asarray(many[:4]))
    np.testing.assert_array_equal(same, many[:4])


class Dropped(nn.Module):
    """A user's module with dropout."""

    @nn.compact
    def __call__(self, x, train):
        x = nn.Dropout(0.5, deterministic=not train)(x.reshape(x.shape[0], -1))
        return nn.Dense(K)(x)


def test_dropout_acts_in_training_only():
    sgd = optax.sgd(0.1)
    learner = network(Dropped(), sgd, training=TRAINING)
    x, label = images()
    data = examples(x, label, np.ones(ROWS))
    model = trained(learner, data)
    again = predict(static(learner), learner.params, model, jnp.asarray(x))
    np.testing.assert_array_equal(
        again, predict(static(learner), learner.params, model, jnp.asarray(x))
    )
    # By hand without dropout the weights come out elsewhere.
    weights = init(static(learner), learner.params, key(0)).weights
    for rows in minibatches(key(1), 5):

        def loss(w, rows=rows):
            flat = x[rows].reshape(len(rows), -1)
            logits = flat @ w["Dense_0"]["kernel"] + w["Dense_0"]["bias"][None]
            return -jnp.mean(
                jax.nn.log_softmax(logits)[np.arange(len(rows)), label[rows]]
            )

        weights = jax.tree.map(
            lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights)
        )
    gap = jnp.abs(
        weights["Dense_0"]["kernel"] - model.weights["Dense_0"]["kernel"]
    ).max()
    assert gap > 1e-3


@pytest.mark.parametrize(
    ("shape", "blocks", "message"),
    [
        ((64,), 3, r"must be images .*8x8.*3 blocks, got .*\[64\]"),
        ((8, 8), 3, r"must be images .*8x8.*got .*\[8, 8\]"),
        ((8, 7, 3), 3, r"at least 8x8 pixels for 3 blocks, got .*\[8, 7, 3\]"),
        ((16, 16, 1), 5, r"at least 32x32 pixels for 5 blocks, got .*\[16, 16, 1\]"),
    ],
)
def test_features_that_are_no_images_of_sufficient_size(shape, blocks, message):
    learner = vgg(width=0.1, blocks=blocks)
    with pytest.raises(ValueError, match=message):
        learner.init(Spec(shape, K, 5), learner.params, key(0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0.0}, "width must .* got 0.0"),
        ({"width": float("nan")}, "width must .* got nan"),
        ({"blocks": 0}, r"blocks must lie in 1..5, got 0"),
        ({"blocks": 6}, r"blocks must lie in 1..5, got 6"),
        ({"learning_rate": -1.0}, "learning_rate must .* got -1.0"),
        ({"formulation": "fft"}, "formulation must be one of .* got 'fft'"),
    ],
)
def test_arguments_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        vgg(**options)
    with pytest.raises(ValueError, match=r"shift must lie in \[0, 1\), got 1"):
        shift_and_flip(1.0)


# --- what every learner must do (tests/test_learners.py), on images -----------------


def test_probabilities_and_carried_types():
    learner = small()
    x, label = images()
    model = init(static(learner), learner.params, key(0))
    for state in (model, trained(learner, examples(x, label, np.ones(ROWS)))):
        probs = np.asarray(predict(static(learner), learner.params, state, x[:11]))
        assert probs.shape == (11, K)
        assert (probs >= 0).all()
        np.testing.assert_allclose(probs.sum(axis=1), 1.0, atol=1e-6)
        same = jax.tree.map(
            lambda a, b: (a.shape, a.dtype) == (b.shape, b.dtype), state, model
        )
        assert all(jax.tree.leaves(same))


def test_one_class_only_is_what_is_predicted():
    learner = small()
    x, label = images()
    only = examples(x, label, label == 2)
    model = trained(learner, only)
    for arrival in range(1, 6):
        again = examples(x, label, label == 2, arrival)
        model = fit(static(learner), learner.params, model, again, key(0), key(arrival))
    # Statistics are those of training only after many steps: predict as in training.
    module = VGG(K, (3,), 13)
    logits, _ = jax.jit(
        lambda v, x: module.apply(v, x, train=True, mutable=["batch_stats"])
    )({"params": model.weights, **model.collections}, x[label == 2])
    np.testing.assert_array_equal(logits.argmax(axis=1), 2)


def test_refit_is_the_first_fit_with_more_steps():
    x, label = images()
    first = small()
    refitting = vgg(width=0.05, blocks=1, training=TRAINING._replace(mode="refit"))
    data = examples(x, label, np.ones(ROWS))
    model = trained(first, data)
    assert_close(trained(refitting, data), model)
    later = examples(x, label, np.ones(ROWS), arrival=2)
    again = fit(static(refitting), refitting.params, model, later, key(0), key(1))
    assert int(again.steps) == refitting.steps(2) == 5 + 2 * 3
    other = trained(first, data, start=8)
    assert_close(
        fit(static(refitting), refitting.params, other, later, key(0), key(1)), again
    )
    # "continue" goes on from where it was.
    on = fit(static(first), first.params, model, later, key(0), key(1))
    assert int(on.steps) == 5 + 3


def test_another_learning_rate_compiles_nothing():
    x, label = images()
    data = examples(x, label, np.ones(ROWS))
    trained(small(), data)
    before = fit._cache_size()
    other = trained(small(learning_rate=0.002), data)
    assert fit._cache_size() == before
    same = trained(small(), data)
    assert (
        np.abs(
            other.weights["hidden"]["kernel"] - same.weights["hidden"]["kernel"]
        ).max()
        > 0
    )


def test_stated_memory_is_that_of_the_compiled_training():
    spec = Spec((16, 16, 3), 5, 100)
    learner = vgg(
        width=0.25,
        blocks=2,
        training=Training(initial_steps=2, minibatch_size=64),
    )
    rows = jnp.zeros((100, 16, 16, 3))
    data = examples(rows, np.zeros(100), np.ones(100))

    def train(data, seed_key):
        model = learner.init(spec, learner.params, seed_key)
        return learner.fit(
            spec, learner.params, model, data, init_key=seed_key, order_key=key(1)
        )

    planned = jax.jit(train).lower(data, key(0)).compile().memory_analysis()
    stated = learner.workspace(spec, 10) + learner.bytes(spec, 10)
    measured = planned.temp_size_in_bytes + planned.output_size_in_bytes
    assert 0.5 < stated / measured < 3
