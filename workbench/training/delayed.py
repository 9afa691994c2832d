"""Delayed updates of large dense layers: low-rank factors are stored for a block of steps and then applied at once.

A batch of M images changes a dense layer's kernel [i, o] by a product of M rows, ``x.T @ dz``. Applying it in every
local step reads and writes the whole kernel each time, and differentiating through the steps needs every version of
it. Instead, a block of steps stores the rows and represents the kernel as ``base - left.T @ right``, whose products
with vectors need only a few more rows. The result is the same sum in another order.
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
    right: Array  # [R, o], zero in unused rows


class Outer(NamedTuple):
    """The kernel gradient ``left.T @ right``, represented by its factors."""

    left: Array  # [r, i]
    right: Array  # [r, o]


def _is_delayed(leaf: Any) -> bool:
    return isinstance(leaf, DelayedKernel)


def delay(kernel: Array, num_rows: int) -> DelayedKernel:
    """A kernel with space for the rows of a block of steps."""
    i, o = kernel.shape
    return DelayedKernel(kernel, jnp.zeros((num_rows, i), kernel.dtype), jnp.zeros((num_rows, o), kernel.dtype))


def append(kernel: DelayedKernel, gradient: Outer, rate: Array, position: Array) -> DelayedKernel:
    """The kernel after an SGD step, with the step's rows stored at the given position."""
    zero = jnp.zeros((), position.dtype)
    return DelayedKernel(
        kernel.base,
        lax.dynamic_update_slice(kernel.left, gradient.left, (position, zero)),
        lax.dynamic_update_slice(kernel.right, rate * gradient.right, (position, zero)),
    )


def rows_before(kernel: DelayedKernel, position: Array) -> DelayedKernel:
    """The kernel as it was when it had only the rows before the position."""
    used = jnp.arange(len(kernel.right)) < position
    return kernel._replace(right=jnp.where(used[:, None], kernel.right, jnp.zeros_like(kernel.right)))


def settle(weights: Any) -> Any:
    """Apply the delayed updates: every `DelayedKernel` in the tree becomes an array."""

    def settled(leaf: Any) -> Any:
        if not _is_delayed(leaf):
            return leaf
        return leaf.base - jnp.matmul(leaf.left.T, leaf.right, precision=lax.Precision.HIGHEST)

    return jax.tree.map(settled, weights, is_leaf=_is_delayed)
