"""One selection scheme out of several, by an index that may be a vmapped axis."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from rad_jax.types import UNLABELLED, SelectionScheme, as_arrays


@functools.cache
def _switch(members: tuple[SelectionScheme, ...], kinds: tuple[int, ...]):
    """The pair of functions; members of one kind differ in numbers only."""
    first = [kinds.index(kind) for kind in range(max(kinds) + 1)]

    def own(params, kind):
        """Parameters of the member in charge, if it is of that kind."""
        alike = [p for p, k in zip(params["members"], kinds, strict=True) if k == kind]
        place = [kinds[:i].count(k) if k == kind else 0 for i, k in enumerate(kinds)]
        at = jnp.asarray(place)[params["index"]]
        return jax.tree.map(lambda *numbers: jnp.stack(numbers)[at], *alike)

    def init(params):
        return tuple(members[i].init(own(params, k)) for k, i in enumerate(first))

    def apply(params, state, evidence, *, key):
        blind = evidence._replace(
            true_label=jnp.full_like(evidence.true_label, UNLABELLED)
        )

        def branch(kind):
            member = members[first[kind]]

            def run(states):
                sees = evidence if member.uses_true_labels else blind
                chosen, new = member.apply(
                    own(params, kind), states[kind], sees, key=key
                )
                return chosen, (*states[:kind], new, *states[kind + 1 :])

            return run

        kind = jnp.asarray(kinds)[params["index"]]
        return jax.lax.switch(kind, [branch(k) for k in range(len(first))], state)

    return init, apply


def _kinds(schemes: Sequence[SelectionScheme]) -> tuple[int, ...]:
    """Numbers members so that those with equal numbers differ in parameters only."""

    def kind(scheme):
        leaves, tree = jax.tree.flatten(as_arrays(scheme.params))
        shapes = tuple((x.shape, x.dtype) for x in leaves)
        return scheme._replace(params=None), tree, shapes

    known: list = []
    for scheme in schemes:
        if kind(scheme) not in known:
            known.append(kind(scheme))
    return tuple(known.index(kind(scheme)) for scheme in schemes)


def switch(schemes: Sequence[SelectionScheme]) -> SelectionScheme:
    """One scheme out of several, chosen by the array parameter ``params["index"]``.

    With the index as a vmapped axis, one compiled program runs every scheme; masks
    cost nothing beside training. Members that differ in numbers only (budgets) are
    compiled once. True labels reach only members that declare them.

    Args:
      schemes: the members; parameters under ``params["members"]``, in this order.

    Returns:
      A scheme whose ``params`` are ``{"index": 0, "members": (...)}``.

    Raises:
      ValueError: without members.
    """
    if not schemes:
        raise ValueError("schemes must name at least one scheme, got none")
    bare = tuple(s._replace(params=None) for s in schemes)
    init, apply = _switch(bare, _kinds(schemes))
    return SelectionScheme(
        init,
        apply,
        {"index": 0, "members": tuple(s.params for s in schemes)},
        uses_true_labels=any(s.uses_true_labels for s in schemes),
        uses_class_counts=any(s.uses_class_counts for s in schemes),
    )
