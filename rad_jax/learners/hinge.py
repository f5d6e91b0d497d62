"""Hyperplanes of least (rounded) hinge loss: many at once, to convergence.

References:
  S. Keerthi, D. DeCoste, A modified finite Newton method for fast solution of large
  scale linear SVMs, JMLR 2005.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rad_jax.types import Array

#: Done where the gradient has shrunk to this fraction of that at 0, …
_GRADIENT = 1e-6
#: … or where a step is below this fraction of the plane: single precision ends there.
_STEP = 3e-7
#: Residual of a Newton step's conjugate gradients, as a fraction of the gradient.
_RESIDUAL = 1e-2


class Plane(NamedTuple):
    """A point, gradient or direction: P hyperplanes."""

    weights: Array  # [P, W]
    bias: Array  # [P]


def _combine(a: Plane, factor: Array, b: Plane) -> Plane:
    """``a + factor b`` with one factor a plane."""
    return Plane(a.weights + factor[:, None] * b.weights, a.bias + factor * b.bias)


def _dot(a: Plane, b: Plane) -> Array:
    return jnp.sum(a.weights * b.weights, axis=1) + a.bias * b.bias


def values_at(plane: Plane, rows: Array) -> Array:
    """``[P, M]`` values of the hyperplanes at the rows ``[M, W]``."""
    product = jnp.matmul(plane.weights, rows.T, precision=jax.lax.Precision.HIGHEST)
    return product + plane.bias[:, None]


def _back(coefficient: Array, rows: Array) -> Plane:
    """Sum of the rows (and the 1 that the bias multiplies), weighted ``[P, M]``."""
    return Plane(
        jnp.matmul(coefficient, rows, precision=jax.lax.Precision.HIGHEST),
        jnp.sum(coefficient, axis=1),
    )


def _where(condition: Array, a: Plane, b: Plane) -> Plane:
    return Plane(
        jnp.where(condition[:, None], a.weights, b.weights),
        jnp.where(condition, a.bias, b.bias),
    )


def _newton_direction(
    gradient: Plane,
    curvature: Array,
    rows: Array,
    size2: Array,
    tolerance: float,
    max_iterations: int,
) -> Plane:
    """Solves ``H d = -gradient`` by preconditioned conjugate gradients.

    Args:
      gradient: of each plane.
      curvature: ``[P, M]``, cost of the rows in the quadratic part of the loss.
      rows: ``[M, W]``.
      size2: ``[W]``, mean square of each column.
      tolerance: on the residual, as a fraction of the gradient.
      max_iterations: of all planes together.
    """
    total = jnp.sum(curvature, axis=1)
    scale = Plane(1.0 + total[:, None] * size2[None, :], 1.0 + total)

    def precondition(x: Plane) -> Plane:
        return Plane(x.weights / scale.weights, x.bias / scale.bias)

    limit = tolerance**2 * _dot(gradient, gradient)

    def unfinished(carry):
        step, _, residual, _, _ = carry
        return (step < max_iterations) & jnp.any(_dot(residual, residual) > limit)

    def iterate(carry):
        step, x, residual, direction, product = carry
        active = _dot(residual, residual) > limit
        image = _back(curvature * values_at(direction, rows), rows)
        image = Plane(image.weights + direction.weights, image.bias + direction.bias)
        along = _dot(direction, image)
        length = jnp.where(active & (along > 0), product / along, 0.0)
        x = _combine(x, length, direction)
        residual = _combine(residual, -length, image)
        turned = precondition(residual)
        new = _dot(residual, turned)
        ratio = jnp.where(active, new / jnp.where(active, product, 1.0), 0.0)
        turned_on = _combine(turned, ratio, direction)
        direction = _where(active, turned_on, direction)
        return step + 1, x, residual, direction, jnp.where(active, new, product)

    zero = Plane(jnp.zeros_like(gradient.weights), jnp.zeros_like(gradient.bias))
    residual = Plane(-gradient.weights, -gradient.bias)
    direction = precondition(residual)
    carry = (0, zero, residual, direction, _dot(residual, direction))
    return jax.lax.while_loop(unfinished, iterate, carry)[1]


def _step_length(
    slack, change, cost, cap: float, slope, square, max_iterations: int = 30
) -> Array:
    """Exact minimum along a direction, one length a plane.

    The objective along it is convex and piecewise quadratic: Newton's method on its
    derivative, kept within a bracket.

    Args:
      slack: ``[P, M]``, 1 - y f(x).
      change: ``[P, M]``, by what y f(x) grows per unit of length.
      cost: ``[P or 1, M]``, of a row.
      cap: slack beyond which the loss is linear.
      slope: ``[P]``, of the regulariser at length 0.
      square: ``[P]``, squared length of the direction.
      max_iterations: bound.
    """

    def derivatives(length):
        left = slack - length[:, None] * change
        weighted = change * cost
        curved = jnp.where((left > 0) & (left < cap), change, 0.0)
        first = jnp.sum(weighted * jnp.clip(left, 0.0, cap), axis=1)
        first = slope + length * square - first
        return first, square + jnp.sum(weighted * curved, axis=1)

    start = jnp.abs(derivatives(jnp.zeros_like(slope))[0])

    def unfinished(carry):
        step, _, _, _, first, _ = carry
        return (step < max_iterations) & jnp.any(jnp.abs(first) > 1e-3 * start)

    def iterate(carry):
        step, low, high, length, first, second = carry
        low = jnp.where(first < 0, length, low)
        high = jnp.where(first < 0, high, length)
        guess = length - first / jnp.where(second > 0, second, 1.0)
        middle = jnp.where(jnp.isinf(high), 2.0 * length, (low + high) / 2)
        inside = (guess > low) & (guess < high)
        found = jnp.abs(first) <= 1e-3 * start
        length = jnp.where(found, length, jnp.where(inside, guess, middle))
        return step + 1, low, high, length, *derivatives(length)

    one = jnp.ones_like(slope)
    carry = (0, 0.0 * one, jnp.inf * one, one, *derivatives(one))
    return jax.lax.while_loop(unfinished, iterate, carry)[3]


def minimise(
    rows: Array,
    valid: Array,
    sign: Array,
    cost: Array,
    cap: float,
    start: Plane,
    max_newton: int,
    max_cg: int,
) -> Plane:
    """Minimum of ``|w|^2/2 + b^2/2 + sum_i cost_i loss(1 - y_i f(x_i))``.

    The loss of a slack r is 0 below 0, r^2 / 2 up to `cap`, linear beyond.

    Args:
      rows: ``[M, W]``.
      valid: ``[M]`` bool.
      sign: ``[P, M]``, y: 1 or -1.
      cost: ``[P or 1, M]``, 0 for rows that a plane is not trained on.
      cap: slack beyond which the loss is linear; inf: nowhere.
      start: where to begin.
      max_newton: bound on Newton steps.
      max_cg: bound on the inner iterations of one step.
    """
    num_rows = jnp.maximum(jnp.sum(valid), 1)
    size2 = jnp.sum(jnp.where(valid[:, None], jnp.square(rows), 0.0), axis=0) / num_rows
    origin = _back(sign * cost, rows)
    limit = _GRADIENT * jnp.sqrt(_dot(origin, origin))

    def unfinished(carry):
        return (carry[0] < max_newton) & ~jnp.all(carry[2])

    def iterate(carry):
        step, plane, done, slack = carry
        pull = _back(sign * jnp.clip(slack, 0.0, cap) * cost, rows)
        gradient = Plane(plane.weights - pull.weights, plane.bias - pull.bias)
        done = done | (_dot(gradient, gradient) <= jnp.square(limit))
        gradient = _where(done, Plane(0 * pull.weights, 0 * pull.bias), gradient)
        direction = _newton_direction(
            gradient,
            jnp.where((slack > 0) & (slack < cap), cost, 0.0),
            rows,
            size2,
            _RESIDUAL,
            max_cg,
        )
        change = sign * values_at(direction, rows)
        square = _dot(direction, direction)
        length = _step_length(slack, change, cost, cap, _dot(plane, direction), square)
        length = jnp.where(done, 0.0, length)
        plane = _combine(plane, length, direction)
        slack = 1.0 - sign * values_at(plane, rows)
        # Single precision goes no further.
        stalled = jnp.square(length) * square <= _STEP**2 * _dot(plane, plane)
        return step + 1, plane, done | stalled, slack

    done = jnp.zeros(sign.shape[0], bool)
    carry = (0, start, done, 1.0 - sign * values_at(start, rows))
    return jax.lax.while_loop(unfinished, iterate, carry)[1]
