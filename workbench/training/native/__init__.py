"""Local training and the way back through it, compiled for this processor: `simulation.cc`, called from within JAX.

XLA runs a simulated client as a few thousand small operations; one function in C++ does the same work in a half to a
third of the time. It is compiled once on the machine that runs it (``python -m workbench.native``, which ``make setup``
does), with whatever C++ compiler there is, and kept in the user's cache. Where it is not there, on accelerators, in
other number types and for networks that it does not know, `workbench.training.sgd` goes on in JAX: the same results, to
rounding.
``WORKBENCH_NATIVE=0`` in the environment leaves it out.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from workbench.errors import WorkbenchError
from workbench.files.cache import cache_folder
from workbench.training.chain import Layer
from workbench.training.weights import Weights

__all__ = ["CannotCompileError", "advice", "backward", "build", "can_train", "forward", "kept_floats", "library_path"]

_SOURCE = Path(__file__).with_name("simulation.cc")
_ALL_SOURCES = (*sorted(_SOURCE.parent.glob("*.h")), _SOURCE)
_FLAGS = ("-std=c++20", "-O3", "-ffp-contract=fast", "-shared", "-fPIC", "-pthread")
# For this processor: what most compilers call it, what some on ARM do, and for any.
_PROCESSOR_FLAGS = (("-march=native",), ("-mcpu=native",), ())
_MOST_KERNEL_ROWS = 32
_UNIT = 16  # channels come in whole vectors


def library_path() -> Path:
    """Where the compiled library is or would be: another source, processor or version of JAX has another."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        # A home that machines share may have one for each.
        processor = platform.node()
    sources = (path.read_text() for path in _ALL_SOURCES)
    told = (*sources, *_FLAGS, platform.machine(), processor, jax.__version__, version("jaxlib"))
    return cache_folder() / "native" / f"simulation-{hashlib.sha256(chr(0).join(told).encode()).hexdigest()[:16]}.so"


def _compiler() -> list[str]:
    """The command of the C++ compiler; empty where there is none."""
    found = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    return shlex.split(os.environ.get("CXX", "")) or ([found] if found else [])


def advice() -> str | None:
    """What to tell people whose attacks could be faster; None where nothing can be done, or all is done."""
    is_wanted = os.environ.get("WORKBENCH_NATIVE") != "0" and jax.default_backend() == "cpu"
    if not is_wanted or _library() is not None or not _compiler():
        return None
    return "`python -m workbench.native`, once, makes attacks on this CPU two to three times as fast."


class CannotCompileError(WorkbenchError):
    """This machine has no C++ compiler that can compile the library; XLA does the work then."""


def build() -> Path:
    """Compile the library if it is not there."""
    compiler = _compiler()
    try:
        path = library_path()
        if _open(path) is not None:
            return path
        if not compiler:
            raise CannotCompileError("there is no C++ compiler.")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / "simulation.so"
            # The headers are another project's, and so are the warnings in them.
            rest = ["-isystem", jax.ffi.include_dir(), "-o", str(made), str(_SOURCE)]
            for flags in _PROCESSOR_FLAGS:
                command = [*compiler, *_FLAGS, *flags, *rest]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode == 0:
                    made.replace(path)
                    break
    except OSError as error:
        raise CannotCompileError(f"{error}.") from None
    if _open(path) is None:
        raise CannotCompileError(f"{shlex.join(compiler)} fails: {done.stderr.strip() or 'it does not say why'}")
    return path


def _open(path: Path) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(str(path)) if path.exists() else None
    except OSError:
        return None


@cache
def _library() -> ctypes.CDLL | None:
    if os.environ.get("WORKBENCH_NATIVE") == "0":
        return None
    try:
        library = _open(library_path())
    except OSError:
        return None
    if library is not None:
        library.workbench_slot.restype = ctypes.c_int64
        for name in ("workbench_forward", "workbench_backward"):
            target = jax.ffi.pycapsule(getattr(library, name))  # type: ignore[no-untyped-call]
            jax.ffi.register_ffi_target(name, target, platform="cpu")
    return library


def can_train(layers: tuple[Layer, ...], weights: Weights, images: Array) -> bool:
    """Whether the library is there, computations go to a CPU, and it knows this chain and these number types."""
    return (
        all(array.dtype == jnp.float32 for array in (*jax.tree.leaves(weights), images))
        and _knows(layers, images.shape[-3:])
        and jax.default_backend() == "cpu"
        # What is kept between the two ways has places that nobody writes, and flags that look like NaN or infinity.
        and not jax.config.jax_debug_nans  # type: ignore[attr-defined]
        and not jax.config.jax_debug_infs  # type: ignore[attr-defined]
        and _library() is not None
    )


def _knows(layers: tuple[Layer, ...], image_shape: tuple[int, ...]) -> bool:
    """Whether the layers fit each other and are of the kinds that there is code for."""
    height, width, channels = image_shape
    for index, layer in enumerate(layers):
        is_last = index == len(layers) - 1
        if layer.relu == is_last:
            return False
        if layer.is_dense:
            inputs, channels = height * width * channels, layer.kernel_shape[1]
            if layer.kernel_shape[0] != inputs or layer.pool:
                return False
            height = width = 1
            continue
        size, other_size, inputs, filters = layer.kernel_shape
        is_after_dense = index > 0 and layers[index - 1].is_dense
        if is_last or is_after_dense or inputs != channels or size != other_size or not 0 < size <= _MOST_KERNEL_ROWS:
            return False
        height, width, channels = height + 2 * layer.padding - size + 1, width + 2 * layer.padding - size + 1, filters
        if filters % _UNIT or layer.padding < 0 or min(height, width) < 1:
            return False
        if layer.pool:
            if height % 2 or width % 2:
                return False
            height, width = height // 2, width // 2
    return True


def kept_floats(layers: tuple[Layer, ...], image_shape: tuple[int, ...], batch_size: int) -> int:
    """How much `forward` keeps of every local step."""
    library = _library()
    assert library is not None, "can_train says whether it is there"
    shape = _shape(layers, image_shape)
    numbers = shape.ctypes.data_as(ctypes.POINTER(ctypes.c_int64))
    return int(library.workbench_slot(numbers, ctypes.c_int64(len(shape)), ctypes.c_int64(batch_size)))


def forward(
    layers: tuple[Layer, ...], weights: Weights, batches: Any, rate: Array, *, keep: bool
) -> tuple[Weights, Array]:
    """The weights after one SGD step on each batch, and what `backward` needs of every step, if that shall be kept."""
    num_steps, batch_size, *image_shape = batches.images.shape
    arrays = _arrays(layers, weights)
    num_kept = kept_floats(layers, tuple(image_shape), batch_size)
    made = jax.eval_shape(lambda: [*arrays, jnp.zeros((num_steps if keep else 1, num_kept), jnp.float32)])
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
        numbers += [layer.is_dense, size, layer.padding, channels, outputs, layer.pool]
    return np.array(numbers, np.int64)


def _arrays(layers: tuple[Layer, ...], weights: Weights) -> list[Array]:
    return [weights[layer.name][name] for layer in layers for name in ("kernel", "bias")]


def _weights(layers: tuple[Layer, ...], arrays: list[Array]) -> Weights:
    pairs = zip(arrays[::2], arrays[1::2], strict=True)
    return {layer.name: {"kernel": k, "bias": b} for layer, (k, b) in zip(layers, pairs, strict=True)}


def _given(batches: Any, rate: Array) -> tuple[Array, ...]:
    # Where somebody has turned on 64-bit numbers, whatever is not asked for in 32 bits is not.
    share, labels = batches.share.astype(jnp.float32), batches.labels.astype(jnp.int32)
    return batches.images, labels, share, jnp.asarray(rate, jnp.float32)
