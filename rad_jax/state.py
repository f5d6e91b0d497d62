"""What the algorithm carries from one arrival to the next, and what it reports.

`Shared` exists once; `PerSeed` is what `jax.vmap` gives an axis of seeds.
"""

from typing import NamedTuple

from rad_jax.memory import Memory
from rad_jax.types import Array, Batch, PRNGKey, PyTree, Queries


class Params(NamedTuple):
    """Numbers that may differ between vmapped runs.

    Attributes:
      models: parameters of each learner, L before C.
      selection: of the selection scheme.
      expert: of the simulated expert.
    """

    models: tuple[PyTree, ...]
    selection: PyTree
    expert: PyTree


class Shared(NamedTuple):
    """State that follows from features and arrival order: once for all seeds.

    Attributes:
      memory: everything that arrived.
      prepared: by `Preparation.name`, what learners made of the clean batch and of the
        stored rows.
      arrival: int32 scalar, index of the latest arrival, 0 for the clean batch.
      times_learned: int32 scalar, how often `learn` was called at this arrival: it
        may be called again when late answers come, and then sees other minibatches.
      order_key: order of minibatches.
      validation: clean rows that are never trained on; V may be 0.
      validation_label: ``[V]`` int.
      validation_valid: ``[V]`` bool.
    """

    memory: Memory
    prepared: dict[str, PyTree]
    arrival: Array
    times_learned: Array
    order_key: PRNGKey
    validation: Queries
    validation_label: Array
    validation_valid: Array


class PerSeed(NamedTuple):
    """State that follows from labels: one for each seed.

    Attributes:
      given: ``[M]`` int16, labels as they arrived, -1 for none.
      label: ``[M]`` int16, labels to train on.
      status: ``[M]`` int8, `RowStatus`.
      models: states of the models, L before C; one entry if L and C are one model.
      alpha: ``[num_models]`` float32, accuracies at the arrival before: the ensemble
        weighs the models by them.
      alpha_latest: ``[num_models]`` float32, accuracies as trained now.
      temperature: ``[num_models]`` float32, 1 unless calibrated.
      selection: state of the selection scheme.
      init_key: initialisation of models.
      params: see `Params`.
    """

    given: Array
    label: Array
    status: Array
    models: tuple[PyTree, ...]
    alpha: Array
    alpha_latest: Array
    temperature: Array
    selection: PyTree
    init_key: PRNGKey
    params: Params


class State(NamedTuple):
    """All that the algorithm carries from one arrival to the next."""

    shared: Shared
    per_seed: PerSeed


#: `in_axes` and `out_axes` for a vmap over seeds. A write to `Shared` that depended
#: on a seed would be an error of vmap. `Rad.init` takes them too if seeds differ in
#: ``Keys.init`` only: ``in_axes=(Keys(init=0, order=None), None)``.
STATE_AXES = State(shared=None, per_seed=0)  # type: ignore[arg-type]
#: Seeds see the same rows under different labels.
BATCH_AXES = Batch(features=None, label=0, valid=None, row_id=None)  # type: ignore[arg-type]


class Revisited(NamedTuple):
    """The seed-free side of stored rows that are selected again.

    Attributes:
      queries: the rows, latest first, prepared against what was stored before the new
        batch.
      slots: ``[R]`` int32, where they are stored.
      valid: ``[R]`` bool: the slot holds a row of the window, not of the clean batch.
    """

    queries: Queries
    slots: Array
    valid: Array


class Arrival(NamedTuple):
    """The seed-free side of a batch that has been stored.

    Attributes:
      queries: its rows, prepared against what was stored before them.
      valid: ``[N]`` bool.
      slots: ``[N]`` int32, where they are stored.
      revisited: earlier rows that are to be selected again, None without cleaning.
    """

    queries: Queries
    valid: Array
    slots: Array
    revisited: Revisited | None = None


class Info(NamedTuple):
    """What was made of a batch; no part of the state.

    Attributes:
      label_probs: ``[N, K]``, of L before it saw the batch.
      class_probs: ``[N, K]``, of C likewise.
      keep: ``[N]`` bool, trained on with the given label.
      query: ``[N]`` bool, an expert is asked.
      label: ``[N]`` int, label to train on.
      row_id: ``[N]`` int32.
      overflow: int32 scalar, rows for which memory had no room (dropped).
    """

    label_probs: Array
    class_probs: Array
    keep: Array
    query: Array
    label: Array
    row_id: Array
    overflow: Array
