"""Local training and the way back through it, compiled for this processor: `simulation.cc`, called from within JAX.

XLA runs a simulated client as a few thousand small operations; one function in C++ does the same work in half the time.
It is compiled once on the machine that runs it (``python -m workbench.native``, which ``make setup`` does), with
whatever C++ compiler there is, and kept in the user's cache. Where it is not there, on accelerators, in other number
types and for networks that it does not know, `workbench.training` goes on in JAX: the same results, to rounding.
``WORKBENCH_NATIVE=0`` in the environment leaves it out.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from workbench.cache import cache_folder
from workbench.chain import Layer, Weights

__all__ = ["backward", "build", "can_train", "forward", "kept_floats", "library_path"]

_SOURCE = Path(__file__).with_name("simulation.cc")
_FLAGS = ("-std=c++20", "-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC", "-pthread")
_MOST_KERNEL_ROWS = 32
_UNIT = 16  # channels come in whole vectors


def library_path() -> Path:
    """Where the compiled library is or would be: another source, processor or version of JAX has another."""
    processor = platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        lines = information.read_text().splitlines()
        processor += next((line for line in lines if line.startswith(("flags", "Features"))), "")
    told = "\n".join((_SOURCE.read_text(), *_FLAGS, processor, jax.__version__))
    return cache_folder() / "native" / f"simulation-{hashlib.sha256(told.encode()).hexdigest()[:16]}.so"


def build() -> Path | None:
    """Compile the library if it is not there; None where this machine cannot."""
    path = library_path()
    if path.exists():
        return path
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / "simulation.so"
        # The headers are another project's, and so are the warnings in them.
        command = [compiler, *_FLAGS, "-isystem", jax.ffi.include_dir(), "-o", str(made), str(_SOURCE)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return None
        made.replace(path)
    return path


@cache
def _library() -> ctypes.CDLL | None:
    path = library_path()
    if os.environ.get("WORKBENCH_NATIVE") == "0" or not path.exists():
        return None
    try:
        library = ctypes.CDLL(str(path))
    except OSError:
        return None
    library.workbench_slot.restype = ctypes.c_int64
    for name in ("workbench_forward", "workbench_backward"):
        target = jax.ffi.pycapsule(getattr(library, name))  # type: ignore[no-untyped-call]
        jax.ffi.register_ffi_target(name, target, platform="cpu")
    return library


def can_train(layers: tuple[Layer, ...], weights: Weights, images: Array) -> bool:
    """Whether the library is there, computations go to a CPU, and it knows this chain and these number types."""
    *hidden, last = layers
    convolutions = [layer for layer in layers if not layer.is_dense]
    return (
        all(array.dtype == jnp.float32 for array in (*jax.tree.leaves(weights), images))
        and last.is_dense
        and not last.relu
        and all(layer.relu for layer in hidden)
        and layers[: len(convolutions)] == tuple(convolutions)
        and all(layer.kernel_shape[3] % _UNIT == 0 for layer in convolutions)
        and all(layer.kernel_shape[0] <= _MOST_KERNEL_ROWS for layer in convolutions)
        and jax.default_backend() == "cpu"
        and _library() is not None
    )


def kept_floats(layers: tuple[Layer, ...], image_shape: tuple[int, ...], batch_size: int) -> int:
    """How much `forward` keeps of every local step."""
    library = _library()
    assert library is not None, "can_train says whether it is there"
    shape = _shape(layers, image_shape)
    numbers = shape.ctypes.data_as(ctypes.POINTER(ctypes.c_int64))
    return int(library.workbench_slot(numbers, ctypes.c_int64(len(shape)), ctypes.c_int64(batch_size)))


def forward(layers: tuple[Layer, ...], weights: Weights, batches: Any, rate: Array) -> tuple[Weights, Array]:
    """The weights after one SGD step on each batch, and what `backward` needs of every step."""
    num_steps, batch_size, *image_shape = batches.images.shape
    arrays = _arrays(layers, weights)
    num_kept = kept_floats(layers, tuple(image_shape), batch_size)
    made = jax.eval_shape(lambda: [*arrays, jnp.zeros((num_steps, num_kept), jnp.float32)])
    call: Any = jax.ffi.ffi_call("workbench_forward", made, vmap_method="sequential")
    *final, trajectory = call(*_given(batches, rate), *arrays, layers=_shape(layers, tuple(image_shape)))
    return _weights(layers, final), trajectory


def backward(
    layers: tuple[Layer, ...], final: Weights, batches: Any, rate: Array, trajectory: Array, adjoint: Weights
) -> tuple[Weights, Array]:
    """The adjoints of the weights before all steps and of the images, from that of the final weights."""
    shape = _shape(layers, batches.images.shape[2:])
    arrays = _arrays(layers, adjoint)
    made = jax.eval_shape(lambda: [*arrays, batches.images])
    call: Any = jax.ffi.ffi_call("workbench_backward", made, vmap_method="sequential")
    *before, images = call(*_given(batches, rate), trajectory, *_arrays(layers, final), *arrays, layers=shape)
    return _weights(layers, before), images


def _shape(layers: tuple[Layer, ...], image_shape: tuple[int, ...]) -> np.ndarray:
    """The chain as whole numbers, in the order that the library reads them in."""
    numbers = list(image_shape)
    for layer in layers:
        *_, channels, outputs = layer.kernel_shape
        size = layer.kernel_shape[0]  # of a dense layer, its inputs
        numbers += [layer.is_dense, size, layer.padding, channels, outputs, layer.relu, layer.pool]
    return np.array(numbers, np.int64)


def _arrays(layers: tuple[Layer, ...], weights: Weights) -> list[Array]:
    return [weights[layer.name][name] for layer in layers for name in ("kernel", "bias")]


def _weights(layers: tuple[Layer, ...], arrays: list[Array]) -> Weights:
    pairs = zip(arrays[::2], arrays[1::2], strict=True)
    return {layer.name: {"kernel": k, "bias": b} for layer, (k, b) in zip(layers, pairs, strict=True)}


def _given(batches: Any, rate: Array) -> tuple[Array, ...]:
    return batches.images, batches.labels.astype(jnp.int32), batches.share, jnp.asarray(rate, jnp.float32)
