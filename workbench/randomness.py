"""Every random draw comes from a key with a name, derived from one seed."""

from __future__ import annotations

import zlib

import jax
from jax import Array

__all__ = ["named_key"]


def named_key(seed: int, name: str) -> Array:
    """The random key for one purpose, e.g. ``"client/batches"``: other names give independent draws."""
    return jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()))
