"""The seed-free half of the algorithm: what follows from features and order alone."""

import jax
import jax.numpy as jnp

from rad_jax import memory
from rad_jax.state import Arrival, Revisited, Shared
from rad_jax.types import UNLABELLED, Array, Keys, Learner, Queries
from rad_jax.validation import stratified_split

# What the order key is folded with: beside the indices of arrivals.
_SPLIT = 2**31 - 1


def shared_parts(
    learners: tuple[Learner, ...],
    capacity: int,
    validation_fraction: float,
    cleaning_window: int,
    sliding: bool,
):
    """`start`, `observe`, `track` and `extend` of `rad_jax.engine.Engine`.

    Args:
      learners: whose preparations are made.
      capacity: M.
      validation_fraction: share of the clean batch held out.
      cleaning_window: see `rad_jax.engine.build`, also for `sliding`.
      sliding: whether the oldest rows make room.
    """
    preparations = {
        learner.preparation.name: learner.preparation
        for learner in learners
        if learner.preparation is not None
    }

    def track(shared: Shared, features: Array) -> Queries:
        return _prepare(shared.memory, shared.prepared, features)

    def _prepare(store: memory.Memory, bases: dict, features: Array) -> Queries:
        if not features.shape[0]:
            return Queries(features, {})  # no validation rows
        prepared = {
            name: p.build(bases[name], store, features)
            for name, p in preparations.items()
        }
        return Queries(features, prepared)

    def extend(queries: Queries, shared: Shared, arrival: Arrival) -> Queries:
        if sliding:  # what was forgotten may have stood in any list
            return track(shared, queries.features)
        extended = {
            name: preparations[name].extend(
                shared.prepared[name],
                prepared,
                queries.features,
                shared.memory,
                arrival.slots,
                arrival.valid,
            )
            for name, prepared in queries.prepared.items()
        }
        return queries._replace(prepared=extended)

    def start(
        keys: Keys, features: Array, valid: Array, row_id: Array, label: Array
    ) -> tuple[Shared, Arrival]:
        held_out, validates = stratified_split(
            jax.random.fold_in(keys.order, _SPLIT),
            label,
            valid & (label != UNLABELLED),
            validation_fraction,
        )
        if held_out.shape[0] >= features.shape[0]:
            raise ValueError(
                f"the clean batch has {features.shape[0]} rows and all of them "
                "validate: none is left to train on"
            )
        to_store = features.shape[0] - held_out.shape[0]
        if to_store > capacity:
            raise memory.MemoryFullError(
                f"memory_capacity={capacity} rows: {to_store} clean rows are to be "
                "stored; raise memory_capacity"
            )
        slot = jnp.where(validates, held_out, features.shape[0])
        trains = valid.at[slot].set(False, mode="drop")
        empty = memory.empty(capacity, features.shape[1:], features.dtype)
        index = jnp.zeros((), jnp.int32)
        store, slots = memory.write(empty, features, row_id, trains, index)
        bases = {name: p.start(store) for name, p in preparations.items()}
        shared = Shared(
            memory=store,
            prepared=bases,
            arrival=index,
            times_learned=jnp.zeros((), jnp.int32),
            order_key=keys.order,
            validation=_prepare(store, bases, features[held_out]),
            validation_label=label[held_out],
            validation_valid=validates,
        )
        return shared, Arrival(Queries(features, {}), trains, slots)

    def revisit(shared: Shared, num_new: int) -> Revisited | None:
        """The rows of the last arrivals, before a batch of `num_new` is stored."""
        if not cleaning_window:
            return None
        store = shared.memory
        size = capacity
        if cleaning_window > 0:
            size = min(capacity, cleaning_window * num_new)
        position = store.count - 1 - jnp.arange(size, dtype=jnp.int32)
        slots = position % capacity if sliding else position
        stored = (position >= 0) & (slots < capacity)
        slots = jnp.where(stored, slots, capacity)
        arrived = store.arrived.at[slots].get(mode="fill", fill_value=0)
        oldest = shared.arrival - cleaning_window + 1 if cleaning_window > 0 else 1
        valid = stored & (arrived >= jnp.maximum(oldest, 1))
        features = store.features.at[slots].get(mode="fill", fill_value=0)
        return Revisited(track(shared, features), slots, valid)

    def observe(
        shared: Shared, features: Array, valid: Array, row_id: Array
    ) -> tuple[Shared, Arrival]:
        if sliding:
            if features.shape[0] > capacity:
                raise ValueError(
                    f"memory_capacity={capacity} rows is a window shorter than a batch "
                    f"of {features.shape[0]}"
                )
            slots = memory.next_slots(shared.memory, valid, sliding)
            shared = shared._replace(memory=memory.vacate(shared.memory, slots))
        queries = track(shared, features)  # against what was there before
        revisited = revisit(shared, features.shape[0])
        index = shared.arrival + 1
        store, slots = memory.write(
            shared.memory, features, row_id, valid, index, sliding
        )
        arrival = Arrival(queries, valid, slots, revisited)
        shared = shared._replace(
            memory=store,
            prepared={
                name: p.store(shared.prepared[name], store, slots, valid)
                for name, p in preparations.items()
            },
            arrival=index,
            times_learned=jnp.zeros_like(shared.times_learned),
        )
        validation = extend(shared.validation, shared, arrival)
        return shared._replace(validation=validation), arrival

    return start, observe, track, extend
