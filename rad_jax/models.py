"""The models of one seed: made, trained, measured, asked."""

import chex
import jax
import jax.numpy as jnp

from rad_jax import ensemble
from rad_jax.state import Params, PerSeed, Shared
from rad_jax.types import Array, Examples, Learner, PRNGKey, Queries, RowStatus, Spec
from rad_jax.validation import accuracy

#: What keys of models are folded with. A single model is a classifier: it trains as
#: C would. (`rad_jax.engine` folds arrival keys with the numbers from 2 on.)
LABEL_MODEL, CLASSIFIER = 0, 1
_AGAIN = 1 << 20


def trained_on(per_seed: PerSeed) -> Array:
    """Which stored rows are trained on: ``[M]`` bool."""
    status = per_seed.status
    return (status == RowStatus.KEPT) | (status == RowStatus.VERIFIED)


def _traced_once(learner: Learner) -> Learner:
    """The same, each function traced once for arguments of the same shapes.

    A sweep predicts and trains in several places; tracing is what is left of its start
    once compiled programs are cached on disk.
    """
    return learner._replace(
        init=jax.jit(learner.init, static_argnums=0),
        fit=jax.jit(learner.fit, static_argnums=0),
        predict_proba=jax.jit(learner.predict_proba, static_argnums=0),
    )


def model_parts(
    learners: tuple[Learner, ...], num_classes: int, capacity: int, calibrate: bool
):
    """What the models of a seed do; see `rad_jax.engine.build` for the arguments.

    Returns:
      make: ``(shared, init_key, params) -> models``.
      probabilities: ``(shared, per_seed, queries) -> (probs [Q, K], ...)``, L's first.
      measure: ``(shared, per_seed) -> per_seed`` with accuracies (and temperatures) on
        the validation rows.
      fit: ``(shared, per_seed) -> per_seed`` trained on what is kept and verified.
    """
    if all(learner.traceable for learner in learners):  # else: `compile_apart`
        learners = tuple(map(_traced_once, learners))
    roles = (CLASSIFIER,) if len(learners) == 1 else (LABEL_MODEL, CLASSIFIER)

    def spec_of(shared: Shared) -> Spec:
        return Spec(shared.memory.features.shape[1:], num_classes, capacity)

    def make(shared: Shared, init_key: PRNGKey, params: Params) -> tuple:
        return tuple(
            learner.init(spec_of(shared), p, jax.random.fold_in(init_key, role))
            for learner, p, role in zip(learners, params.models, roles, strict=True)
        )

    def probabilities(
        shared: Shared, per_seed: PerSeed, queries: Queries
    ) -> tuple[Array, ...]:
        out = []
        for i, learner in enumerate(learners):
            probs = learner.predict_proba(
                spec_of(shared),
                per_seed.params.models[i],
                per_seed.models[i],
                shared.memory,
                queries,
            )
            chex.assert_shape(probs, (queries.features.shape[0], num_classes))
            if calibrate:
                probs = ensemble.apply_temperature(probs, per_seed.temperature[i])
            out.append(probs)
        return tuple(out)

    def measure(shared: Shared, per_seed: PerSeed) -> PerSeed:
        """Accuracies (and temperatures) on the validation rows."""
        label, valid = shared.validation_label, shared.validation_valid
        if not label.shape[0]:
            return per_seed
        if calibrate:
            raw = probabilities(
                shared,
                per_seed._replace(temperature=jnp.ones(len(learners))),
                shared.validation,
            )
            weight = valid.astype(jnp.float32)
            fitted = [ensemble.fit_temperature(p, label, weight) for p in raw]
            per_seed = per_seed._replace(temperature=jnp.stack(fitted))
        probs = probabilities(shared, per_seed, shared.validation)
        latest = jnp.stack([accuracy(p, label, valid) for p in probs])
        return per_seed._replace(alpha_latest=latest)

    def fit(shared: Shared, per_seed: PerSeed) -> PerSeed:
        examples = Examples(
            features=shared.memory.features,
            row_id=shared.memory.row_id,
            valid=shared.memory.valid,
            arrival=shared.arrival,
            label=per_seed.label,
            weight=trained_on(per_seed).astype(jnp.float32),
            prepared=shared.prepared,
        )
        arrival_key = jax.random.fold_in(shared.order_key, shared.arrival)
        again = jax.random.fold_in(arrival_key, _AGAIN + shared.times_learned)
        arrival_key = jax.lax.select(shared.times_learned > 0, again, arrival_key)
        models = tuple(
            learner.fit(
                spec_of(shared),
                params,
                model,
                examples,
                init_key=jax.random.fold_in(per_seed.init_key, role),
                order_key=jax.random.fold_in(arrival_key, role),
            )
            for learner, params, model, role in zip(
                learners, per_seed.params.models, per_seed.models, roles, strict=True
            )
        )
        return per_seed._replace(models=models)

    return make, probabilities, measure, fit
