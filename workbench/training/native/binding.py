"""The compiled library as functions of JAX: `forward` and `backward` of `workbench.training.chain`, in C++ on CPUs."""

import ctypes
import os
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from workbench.training import chain
from workbench.training.by_platform import by_platform, default_platform
from workbench.training.chain import Layer
from workbench.training.native.library import HANDLERS, find_compiler, open_library
from workbench.weights import Weights

__all__ = ["Trajectory", "advice", "backward", "can_train", "forward", "kept_floats"]


class Trajectory(NamedTuple):
    """What `backward` needs of every step; a program has only the one of its platform, and XLA drops the other.

    Attributes:
        compiled: [S, k] floats of the compiled library, on CPUs.
        in_jax: the arrays of `chain.forward`, on other devices.
    """

    compiled: Any
    in_jax: Any


def advice() -> str | None:
    """A hint for users whose attacks could be faster; None if the library is in use or cannot be built."""
    is_wanted = os.environ.get("WORKBENCH_NATIVE") != "0" and default_platform() == "cpu"
    if not is_wanted or _library() is not None:
        return None
    if isinstance(problem := open_library(), str) and problem:
        return f"The compiled library is not used: {problem}"
    if not find_compiler():
        return None
    return "Run `python -m workbench.native` once to make attacks on this CPU two to three times as fast."


@cache
def _library() -> ctypes.CDLL | None:
    if os.environ.get("WORKBENCH_NATIVE") == "0":
        return None
    library = open_library()
    if isinstance(library, str):
        return None
    library.workbench_slot.restype = ctypes.c_int64
    for name in HANDLERS:
        target = jax.ffi.pycapsule(getattr(library, name))  # type: ignore[no-untyped-call]
        jax.ffi.register_ffi_target(name, target, platform="cpu")
    return library


def can_train(layers: tuple[Layer, ...], weights: Weights, images: Array) -> bool:
    """Whether the library exists and supports these layers, images [..., M, H, W, C] and number types on CPUs."""
    return (
        all(array.dtype == jnp.float32 for array in (*jax.tree.leaves(weights), images))
        # The stored trajectory has uninitialised padding, and bit masks that look like NaN or infinity.
        and not jax.config.jax_debug_nans  # type: ignore[attr-defined]
        and not jax.config.jax_debug_infs  # type: ignore[attr-defined]
        and kept_floats(layers, images.shape[-3:], images.shape[-4]) > 0
    )


def kept_floats(layers: tuple[Layer, ...], image_shape: tuple[int, ...], batch_size: int) -> int:
    """How many floats `forward` stores for each local step; 0 for what the library does not support."""
    library = _library()
    if library is None:
        return 0
    network = _network(layers, image_shape)
    numbers = network.ctypes.data_as(ctypes.POINTER(ctypes.c_int64))
    return int(library.workbench_slot(numbers, ctypes.c_int64(len(network)), ctypes.c_int64(batch_size)))


def forward(
    layers: tuple[Layer, ...], weights: Weights, batches: Any, rate: Array, *, keep: bool
) -> tuple[Weights, Trajectory | None]:
    """As `chain.forward`: the weights after one SGD step on each batch, and, if ``keep``, what `backward` needs."""
    results = _shapes(weights), _kept(layers, batches.images.shape) if keep else None
    return by_platform(_forward_compiled, _forward_in_jax, results, weights, batches, rate, layers=layers, keep=keep)


def _forward_compiled(
    weights: Weights, batches: Any, rate: Array, *, layers: tuple[Layer, ...], keep: bool
) -> tuple[Weights, Trajectory | None]:
    arrays, shape = _arrays(layers, weights), batches.images.shape
    # Without a trajectory, every step overwrites the floats of the one before.
    results = [*_shapes(arrays), _slots(layers, shape, shape[0] if keep else 1)]
    call: Any = jax.ffi.ffi_call("workbench_forward", results, vmap_method="sequential")
    *final, floats = call(*_given(batches, rate), *arrays, network=_network(layers, shape[2:]), keep=keep)
    return _weights(layers, final), Trajectory(floats, _zeros(_kept_in_jax(layers, shape))) if keep else None


def _forward_in_jax(
    weights: Weights, batches: Any, rate: Array, *, layers: tuple[Layer, ...], keep: bool
) -> tuple[Weights, Trajectory | None]:
    shape = batches.images.shape
    final, arrays = chain.forward(layers, weights, batches, jnp.asarray(rate, jnp.float32), keep=keep)
    return final, Trajectory(_zeros(_slots(layers, shape, shape[0])), arrays) if keep else None


def backward(
    layers: tuple[Layer, ...], final: Weights, batches: Any, rate: Array, trajectory: Trajectory, adjoint: Weights
) -> tuple[Weights, Array]:
    """As `chain.backward`: the adjoints of the initial weights and of the images, from that of the final weights."""
    results = _shapes((adjoint, batches.images))
    return by_platform(
        _backward_compiled, _backward_in_jax, results, final, batches, rate, trajectory, adjoint, layers=layers
    )


def _backward_compiled(
    final: Weights, batches: Any, rate: Array, trajectory: Trajectory, adjoint: Weights, *, layers: tuple[Layer, ...]
) -> tuple[Weights, Array]:
    arrays = _arrays(layers, adjoint)
    call: Any = jax.ffi.ffi_call("workbench_backward", _shapes([*arrays, batches.images]), vmap_method="sequential")
    given = (*_given(batches, rate), trajectory.compiled, *_arrays(layers, final), *arrays)
    *before, images = call(*given, network=_network(layers, batches.images.shape[2:]))
    return _weights(layers, before), images


def _backward_in_jax(
    final: Weights, batches: Any, rate: Array, trajectory: Trajectory, adjoint: Weights, *, layers: tuple[Layer, ...]
) -> tuple[Weights, Array]:
    return chain.backward(layers, final, batches, jnp.asarray(rate, jnp.float32), trajectory.in_jax, adjoint)


def _kept(layers: tuple[Layer, ...], shape: tuple[int, ...]) -> Trajectory:
    """The shapes of the trajectory of images [S, M, H, W, C]."""
    return Trajectory(_slots(layers, shape, shape[0]), _kept_in_jax(layers, shape))


def _slots(layers: tuple[Layer, ...], shape: tuple[int, ...], count: int) -> jax.ShapeDtypeStruct:
    return _floats(count, kept_floats(layers, shape[2:], shape[1]))


@lru_cache(maxsize=64)
def _kept_in_jax(layers: tuple[Layer, ...], shape: tuple[int, ...]) -> Any:
    """The shapes of what `chain.forward` keeps of images [S, M, H, W, C]; found by tracing it, so only once."""
    weights = {
        layer.name: {"kernel": _floats(*layer.kernel_shape), "bias": _floats(layer.kernel_shape[-1])}
        for layer in layers
    }
    batches = (_floats(*shape), _shape(shape[:2], jnp.int32), _floats(*shape[:2]))
    return jax.eval_shape(partial(chain.forward, layers, keep=True), weights, batches, _floats())[1]


def _shape(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]


def _floats(*shape: int) -> jax.ShapeDtypeStruct:
    return _shape(shape, jnp.float32)


def _shapes(tree: Any) -> Any:
    return jax.tree.map(lambda array: _shape(array.shape, array.dtype), tree)


def _zeros(shapes: Any) -> Any:
    return jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)


def _network(layers: tuple[Layer, ...], image_shape: tuple[int, ...]) -> np.ndarray:
    """The chain as integers, in the order in which the library reads them."""
    numbers = list(image_shape)
    for layer in layers:
        *size, inputs, outputs = layer.kernel_shape
        numbers += [layer.is_dense, *(size or (1, 1)), inputs, outputs, layer.padding, layer.relu, layer.pool]
    return np.array(numbers, np.int64)


def _arrays(layers: tuple[Layer, ...], weights: Weights) -> list[Array]:
    return [weights[layer.name][name] for layer in layers for name in ("kernel", "bias")]


def _weights(layers: tuple[Layer, ...], arrays: list[Array]) -> Weights:
    pairs = zip(arrays[::2], arrays[1::2], strict=True)
    return {layer.name: {"kernel": k, "bias": b} for layer, (k, b) in zip(layers, pairs, strict=True)}


def _given(batches: Any, rate: Array) -> tuple[Array, ...]:
    # With JAX's 64-bit mode enabled, these arrays may have 64 bits.
    share, labels = batches.share.astype(jnp.float32), batches.labels.astype(jnp.int32)
    return batches.images, labels, share, jnp.asarray(rate, jnp.float32)
