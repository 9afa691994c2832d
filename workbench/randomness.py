"""Random numbers: every random key has a name and is derived from one seed."""

import math
import zlib

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

__all__ = ["laplacian", "named_generator", "named_key", "normal", "random_words", "signed_uniform"]

IMPLEMENTATION = "threefry2x32"


def _entropy(seed: int, name: str) -> np.random.SeedSequence:
    return np.random.SeedSequence([zlib.crc32(name.encode()), seed])


def named_key(seed: int, name: str) -> Array:
    """The random key for one purpose, e.g. ``"client/defence"``; different names give independent random numbers."""
    return jax.random.wrap_key_data(jnp.asarray(_entropy(seed, name).generate_state(2)), impl=IMPLEMENTATION)


def named_generator(seed: int, name: str) -> np.random.Generator:
    """Like `named_key`, for random numbers on the host."""
    return np.random.default_rng(_entropy(seed, name))


def random_words(key: Array, shape: tuple[int, ...]) -> Array:
    """Random uint32 numbers: Threefry-2x32 with 20 rounds (Salmon et al., 2011), the same as `jax.random.bits`.

    Unrolled by hand because random numbers dominate the run time of a defended client: on the CPU `jax.random` loops
    over the rounds, which prevents XLA from fusing them, and takes several times as long.
    """
    first, second = jax.random.key_data(key)
    schedule = (first, second, first ^ second ^ np.uint32(0x1BD11BDA))
    counter = lax.iota(np.uint32, math.prod(shape)).reshape(shape)
    left, right = jnp.full_like(counter, first), counter + second
    for group in range(5):
        for distance in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            left = left + right
            right = left ^ ((right << np.uint32(distance)) | (right >> np.uint32(32 - distance)))
        left = left + schedule[(group + 1) % 3]
        right = right + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return left ^ right


def signed_uniform(key: Array, shape: tuple[int, ...]) -> Array:
    """Uniform on (-1, 1): 2**24 equally likely values, symmetric around 0, without -1, 0 and 1."""
    whole = lax.bitcast_convert_type(random_words(key, shape), np.int32) >> np.int32(8)
    return (whole.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)


def normal(key: Array, shape: tuple[int, ...]) -> Array:
    """Gaussian of standard deviation 1."""
    return np.float32(math.sqrt(2)) * lax.erf_inv(signed_uniform(key, shape))


def laplacian(key: Array, shape: tuple[int, ...]) -> Array:
    """Laplacian of scale 1 (standard deviation sqrt(2))."""
    uniform = signed_uniform(key, shape)
    return -jnp.sign(uniform) * jnp.log(jnp.abs(uniform))
