"""Updates of large dense layers that are written down first and carried out later.

A batch of M images changes a dense layer's kernel [i, o] by a product of M rows, ``x.T @ dz``. Carrying that out in
every local step moves the whole kernel through memory each time, and differentiating through the steps needs every
version of it. Instead, a block of steps keeps the rows, and the kernel stands as ``base - left.T @ right``; its
products with vectors need only a few more rows. The result is the same sum in another order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

__all__ = ["DelayedKernel", "Outer", "append", "delay", "rows_before", "settle"]


class DelayedKernel(NamedTuple):
    """The kernel ``base - left.T @ right``."""

    base: Array  # [i, o]
    left: Array  # [R, i]
    right: Array  # [R, o], zero in rows that are not used yet


class Outer(NamedTuple):
    """The kernel gradient ``left.T @ right`` as its rows."""

    left: Array  # [r, i]
    right: Array  # [r, o]


def _is_delayed(leaf: Any) -> bool:
    return isinstance(leaf, DelayedKernel)


def delay(kernel: Array, num_rows: int) -> DelayedKernel:
    """A kernel with room for the rows of a block of steps."""
    i, o = kernel.shape
    return DelayedKernel(kernel, jnp.zeros((num_rows, i), kernel.dtype), jnp.zeros((num_rows, o), kernel.dtype))


def append(kernel: DelayedKernel, gradient: Outer, rate: Array, position: Array) -> DelayedKernel:
    """The kernel after a step of SGD, whose rows go to the given position."""
    zero = jnp.zeros((), position.dtype)
    return DelayedKernel(
        kernel.base,
        lax.dynamic_update_slice(kernel.left, gradient.left, (position, zero)),
        lax.dynamic_update_slice(kernel.right, rate * gradient.right, (position, zero)),
    )


def rows_before(kernel: DelayedKernel, position: Array) -> DelayedKernel:
    """The kernel as it was when only the rows before the position were there."""
    used = jnp.arange(len(kernel.right)) < position
    return kernel._replace(right=jnp.where(used[:, None], kernel.right, jnp.zeros_like(kernel.right)))


def settle(weights: Any) -> Any:
    """Carry out what is written down: every `DelayedKernel` in the tree becomes an array."""

    def carry_out(leaf: Any) -> Any:
        if not _is_delayed(leaf):
            return leaf
        return leaf.base - jnp.matmul(leaf.left.T, leaf.right, precision=lax.Precision.HIGHEST)

    return jax.tree.map(carry_out, weights, is_leaf=_is_delayed)
