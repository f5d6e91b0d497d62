"""Aliases, containers and the protocols that the rest of the package speaks.

Shapes are written for ONE noise seed: N rows of a batch, M rows of memory, Q rows
to classify, K classes, ``*S`` the shape of one row's features. Seeds, noise rates and
schemes are axes that ``jax.vmap`` adds.

Two kinds of state are kept apart throughout. What is *shared* follows from features
and arrival order alone and exists once, whatever the number of seeds. What is *per
seed* follows from labels, or from the initialisation of models.
"""

import enum
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array
PRNGKey = jax.Array
PyTree = Any

#: A row that arrived without a label.
UNLABELLED = -1
#: Labels are stored by the million, once per seed: two bytes each.
LABEL_DTYPE = jnp.int16
MAX_CLASSES = 32_767


def as_arrays(params: PyTree) -> PyTree:
    """Numbers of any kind as arrays of a settled dtype (no weak types)."""
    return jax.tree.map(
        lambda x: x if isinstance(x, jax.Array) else jnp.asarray(np.asarray(x)), params
    )


class RowStatus(enum.IntEnum):
    """What the algorithm has made of a stored row (int8 in memory)."""

    DROPPED = 0  #: not trained on (or the slot is empty)
    KEPT = 1  #: trained on
    PENDING = 2  #: an expert was asked and has not answered: not trained on
    VERIFIED = 3  #: labelled by an expert, or clean from the start: trained on


class Batch(NamedTuple):
    """Rows that arrive together.

    Attributes:
      features: ``[N, *S]`` float32, finite.
      label: ``[N]`` int, the given label in ``0..K-1``, or -1 for none.
      valid: ``[N]`` bool, False marks padding.
      row_id: ``[N]`` int32, the name under which an expert can answer later.
    """

    features: Array
    label: Array
    valid: Array
    row_id: Array


class Keys(NamedTuple):
    """The two keys that a run holds; the noise has a third, outside.

    Attributes:
      init: initialisation of models.
      order: order of data: validation split, minibatches, ties.
    """

    init: PRNGKey
    order: PRNGKey


class Examples(NamedTuple):
    """What a learner is fitted on: every slot of memory, and what weighs how much.

    Attributes:
      features: ``[M, *S]``, shared.
      row_id: ``[M]`` int32, shared.
      valid: ``[M]`` bool, shared: the slot holds a row.
      arrival: int32 scalar, shared: index of the arrival (0 for the clean batch).
      label: ``[M]`` int, per seed: the label to train on.
      weight: ``[M]`` float32, per seed: 0 for rows that must influence nothing.
      prepared: shared: by `Preparation.name`, its basis (bins, kernel features).
    """

    features: Array
    row_id: Array
    valid: Array
    arrival: Array
    label: Array
    weight: Array
    prepared: dict[str, PyTree]


class Queries(NamedTuple):
    """Rows to be classified, with what learners prepared for them once for all seeds.

    Attributes:
      features: ``[Q, *S]``.
      prepared: by `Preparation.name`, e.g. lists of nearest stored rows.
    """

    features: Array
    prepared: dict[str, PyTree]


class Preparation(NamedTuple):
    """Work on features alone that a learner wants done once for all seeds.

    Two learners whose preparations have the same name share the result, so the name
    states every parameter that defines it. There are two kinds of work. The *basis* is
    fitted on the clean batch (bins, landmarks of a kernel) and then holds what it makes
    of every stored row; fits find it in `Examples.prepared`. Rows to be classified are
    *prepared* one by one; predictions find that in `Queries.prepared`.

    Attributes:
      name: unique key.
      start: ``(memory) -> basis``, once the clean batch, and nothing else, is stored.
      store: ``(basis, memory, slots [N], valid [N]) -> basis``, after rows have been
        written to `slots` of `memory`.
      build: ``(basis, memory, features [Q, *S]) -> prepared``, against every stored
        row.
      extend: ``(basis, prepared, features [Q, *S], memory, slots [N], valid [N]) ->
        prepared``, after `store`.
      bytes: ``(spec, num_queries) -> int``, memory that basis and `prepared` take.
    """

    name: str
    start: Callable[["Any"], PyTree]
    store: Callable[[PyTree, "Any", Array, Array], PyTree]
    build: Callable[[PyTree, "Any", Array], PyTree]
    extend: Callable[[PyTree, PyTree, Array, "Any", Array, Array], PyTree]
    bytes: Callable[["Spec", int], int]


class Spec(NamedTuple):
    """The static sizes of a problem; hashable.

    Attributes:
      feature_shape: ``S``, shape of one row.
      num_classes: K.
      capacity: M, slots of memory.
    """

    feature_shape: tuple[int, ...]
    num_classes: int
    capacity: int


class LearnerInit(Protocol):
    """Makes a model that knows nothing yet."""

    def __call__(self, spec: Spec, params: PyTree, key: PRNGKey) -> PyTree:
        """Returns the model state.

        Args:
          spec: static sizes.
          params: arrays that may be vmapped (a learning rate, say).
          key: initialisation.
        """
        ...


class LearnerFit(Protocol):
    """Trains on what is stored."""

    def __call__(
        self,
        spec: Spec,
        params: PyTree,
        model: PyTree,
        examples: Examples,
        *,
        init_key: PRNGKey,
        order_key: PRNGKey,
    ) -> PyTree:
        """Returns the model trained on the rows of positive weight.

        Rows of weight 0 influence nothing. With no row of positive weight the model
        returns as it came.

        Args:
          spec: static sizes.
          params: as in init.
          model: state of the previous arrival.
          examples: all of memory.
          init_key: the key that init was given, for a refit from the start.
          order_key: order of minibatches at this arrival.
        """
        ...


class LearnerPredict(Protocol):
    """Class probabilities."""

    def __call__(
        self, spec: Spec, params: PyTree, model: PyTree, memory: Any, queries: Queries
    ) -> Array:
        """Returns ``[Q, K]`` float32, each row summing to 1."""
        ...


def no_workspace(spec: Spec, num_queries: int) -> int:
    """Memory taken once of a learner that takes none beside each seed's."""
    del spec, num_queries
    return 0


def no_steps(arrival: int) -> int:
    """Gradient steps of a learner that takes none."""
    del arrival
    return 0


class Learner(NamedTuple):
    """A supervised classifier as pure functions; can be label model or classifier.

    Attributes:
      name: how reports call it.
      init: see `LearnerInit`.
      fit: see `LearnerFit`.
      predict_proba: see `LearnerPredict`.
      bytes: ``(spec, num_queries) -> int``: memory that ONE seed takes, state and
        temporaries.
      params: pytree of numbers that may be vmapped.
      preparation: shared work on features, or None.
      steps: ``(arrival) -> int``: gradient steps at an arrival, for cost estimates.
      workspace: ``(spec, num_queries) -> int``: memory taken once beside, whatever the
        number of seeds.
      traceable: its functions are JAX's and can be put under `jit` and `vmap`.
    """

    name: str
    init: LearnerInit
    fit: LearnerFit
    predict_proba: LearnerPredict
    bytes: Callable[[Spec, int], int]
    params: PyTree = ()
    preparation: Preparation | None = None
    steps: Callable[[int], int] = no_steps
    workspace: Callable[[Spec, int], int] = no_workspace
    traceable: bool = True


class Evidence(NamedTuple):
    """What a selection scheme sees of a batch.

    Attributes:
      label_probs: ``[N, K]``, from the label model L as trained before this batch.
      class_probs: ``[N, K]``, from the classifier C likewise (with one model, the
        same array).
      label: ``[N]`` int, the given label, -1 for none.
      valid: ``[N]`` bool, False for padding.
      true_label: ``[N]`` int; -1 throughout unless the scheme declares
        `uses_true_labels` (the reference that must not be had in practice).
      class_counts: ``[K]`` int32, rows of each class trained on before this batch;
        None unless the scheme declares `uses_class_counts`.
      batch: ``[N]`` int32, the arrivals that brought the rows, where those of several
        are selected again and nobody is asked; None for a new batch.
    """

    label_probs: Array
    class_probs: Array
    label: Array
    valid: Array
    true_label: Array
    class_counts: Array | None = None
    batch: Array | None = None


class Selection(NamedTuple):
    """What a scheme decides on a batch.

    Attributes:
      keep: ``[N]`` bool, train on this row with `label`.
      label: ``[N]`` int, label to train on.
      query: ``[N]`` bool, ask an expert; trained on with the answer once it comes.
    """

    keep: Array
    label: Array
    query: Array


class SelectionScheme(NamedTuple):
    """Decides which rows of a batch to train on, as a pair of pure functions.

    Attributes:
      init: ``(params) -> state``.
      apply: ``(params, state, evidence, *, key) -> (Selection, state)``; `key` breaks
        ties.
      params: pytree of numbers that may be vmapped (a budget, a threshold).
      uses_true_labels: only for the upper reference `oracle_selection`.
      uses_class_counts: whether it looks at `Evidence.class_counts`.
    """

    init: Callable[[PyTree], PyTree]
    apply: Callable[..., tuple[Selection, PyTree]]
    params: PyTree
    uses_true_labels: bool = False
    uses_class_counts: bool = False


class Expert(NamedTuple):
    """Someone who can be asked for the label of a row, simulated.

    Attributes:
      answer: ``(params, true_label [N], *, key) -> label [N]``; in a sweep the key
        differs between seeds as the noise does.
      params: pytree of numbers that may be vmapped.
    """

    answer: Callable[..., Array]
    params: PyTree


class Noise(NamedTuple):
    """How labels go wrong; `rad_jax.noise.corrupt` runs it.

    Attributes:
      apply: ``(params, label [N], valid [N], *, num_classes, key) -> given [N]``,
        a pure function of its arguments; unlabelled and padding rows are untouched.
      params: pytree of numbers that may be vmapped; by convention ``{"rate": ...}``
        where there is one.
      needs: what `apply` takes beside, as keywords: "features" ``[N, *S]`` and
        "arrival", int32 scalar, index of the batch (1 for the first after the clean
        batch).
    """

    apply: Callable[..., Array]
    params: PyTree
    needs: tuple[str, ...] = ()
