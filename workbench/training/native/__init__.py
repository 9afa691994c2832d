"""Forward and backward pass of local training, compiled for this processor: `simulation.cc`, called from within JAX.

XLA runs a simulated client as a few thousand small operations; one function in C++ does the same work in a half to a
third of the time. It is optional and automatic: ``python -m workbench.native`` (which ``make setup`` runs) compiles it
once with the installed C++ compiler and stores it in the user's cache. Without the library, on accelerators, for other
number types and for unsupported networks, `workbench.training.sgd` computes the same results, up to rounding, in JAX.
Set ``WORKBENCH_NATIVE=0`` in the environment to disable it.
"""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
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
from workbench.weights import Weights

__all__ = ["CannotCompileError", "advice", "backward", "build", "can_train", "forward", "kept_floats", "library_path"]

_SOURCE = Path(__file__).with_name("simulation.cc")
_ALL_SOURCES = (*sorted(_SOURCE.parent.glob("*.h")), _SOURCE)
_FLAGS = ("-std=c++20", "-O3", "-ffp-contract=fast", "-shared", "-fPIC", "-pthread")
# Optimise for this processor: the flag of most compilers, the flag of some on ARM, and no flag at all.
_PROCESSOR_FLAGS = (("-march=native",), ("-mcpu=native",), ())
_MOST_KERNEL_ROWS = 32
_UNIT = 16  # the number of channels must be a multiple of the vector size


def library_path() -> Path:
    """The path of the compiled library, which depends on the sources, the processor and the version of JAX."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        # Several machines may share a home folder, so each has its library.
        processor = platform.node()
    sources = (path.read_text() for path in _ALL_SOURCES)
    content = (*sources, *_FLAGS, platform.machine(), processor, jax.__version__, version("jaxlib"))
    fingerprint = hashlib.sha256(chr(0).join(content).encode()).hexdigest()[:16]
    return cache_folder() / "native" / f"simulation-{fingerprint}.so"


def _compiler() -> list[str]:
    """The command of the C++ compiler; empty if there is none."""
    found = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    return shlex.split(os.environ.get("CXX", "")) or ([found] if found else [])


def advice() -> str | None:
    """A hint for users whose attacks could be faster; None if the library is in use or cannot be built."""
    is_wanted = os.environ.get("WORKBENCH_NATIVE") != "0" and jax.default_backend() == "cpu"
    if not is_wanted or _library() is not None:
        return None
    if isinstance(problem := _open(), str) and problem:
        return f"The compiled library is not used: {problem}"
    if not _compiler():
        return None
    return "Run `python -m workbench.native` once to make attacks on this CPU two to three times as fast."


class CannotCompileError(WorkbenchError):
    """This machine has no C++ compiler that can compile the library; XLA is used instead."""


def build() -> Path:
    """Compile the library unless it exists, and return its path."""
    compiler = _compiler()
    try:
        path = library_path()
        if not isinstance(_open(), str):
            return path
        if not compiler:
            raise CannotCompileError("there is no C++ compiler.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o755)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / "simulation.so"
            # JAX's headers as system headers: warnings in them are not ours.
            rest = ["-isystem", jax.ffi.include_dir(), "-o", str(made), str(_SOURCE)]
            for flags in _PROCESSOR_FLAGS:
                command = [*compiler, *_FLAGS, *flags, *rest]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode == 0:
                    made.chmod(0o755)
                    made.replace(path)
                    break
    except OSError as error:
        raise CannotCompileError(f"{error}.") from None
    if done.returncode:
        raise CannotCompileError(f"{shlex.join(compiler)} fails: {done.stderr.strip() or 'no error message'}")
    if isinstance(problem := _open(), str):
        raise CannotCompileError(problem or f"{shlex.join(compiler)} wrote no library.")
    return path


def _open() -> ctypes.CDLL | str:
    """The compiled library, or a sentence about why the file cannot be used; an empty one if there is no file."""
    path = library_path()
    try:
        return _distrust(path) or ctypes.CDLL(str(path))
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{path} cannot be loaded: {error}."


def _distrust(path: Path) -> str:
    """Why the code in a file may be another user's; empty if only this user or root can have put it there."""
    path = path.resolve()
    for place in (path, *path.parents):
        status = place.stat()
        # Further up, a group may write, and in a folder such as /tmp nobody can replace what is another user's.
        is_near = place in (path, path.parent)
        forbidden = 0o022 if is_near else 0 if status.st_mode & stat.S_ISVTX else 0o002
        if status.st_uid not in (os.getuid(), 0) or status.st_mode & forbidden:
            return f"{place} is another user's or others can write it; set WORKBENCH_CACHE to a private folder."
    return ""


@cache
def _library() -> ctypes.CDLL | None:
    if os.environ.get("WORKBENCH_NATIVE") == "0":
        return None
    library = _open()
    if isinstance(library, str):
        return None
    library.workbench_slot.restype = ctypes.c_int64
    for name in ("workbench_forward", "workbench_backward"):
        target = jax.ffi.pycapsule(getattr(library, name))  # type: ignore[no-untyped-call]
        jax.ffi.register_ffi_target(name, target, platform="cpu")
    return library


def can_train(layers: tuple[Layer, ...], weights: Weights, images: Array) -> bool:
    """Whether the library exists, computations run on a CPU, and it supports this chain and these number types."""
    return (
        all(array.dtype == jnp.float32 for array in (*jax.tree.leaves(weights), images))
        and _supports(layers, images.shape[-3:])
        and jax.default_backend() == "cpu"
        # The stored trajectory has uninitialised padding, and bit masks that look like NaN or infinity.
        and not jax.config.jax_debug_nans  # type: ignore[attr-defined]
        and not jax.config.jax_debug_infs  # type: ignore[attr-defined]
        and _library() is not None
    )


def _supports(layers: tuple[Layer, ...], image_shape: tuple[int, ...]) -> bool:
    """Whether the layers fit together and are of the supported kinds."""
    height, width, channels = image_shape
    for index, layer in enumerate(layers):
        is_last = index == len(layers) - 1
        if layer.is_dense:
            inputs, outputs = layer.kernel_shape
            fits = inputs == height * width * channels and not layer.pool
            height, width, channels = 1, 1, outputs
        else:
            size, other_size, inputs, filters = layer.kernel_shape
            height, width = (side + 2 * layer.padding - size + 1 for side in (height, width))
            is_after_dense = index > 0 and layers[index - 1].is_dense
            pooled = 2 if layer.pool else 1
            fits = (
                not (is_last or is_after_dense)
                and inputs == channels
                and size == other_size
                and 0 < size <= _MOST_KERNEL_ROWS
                and filters % _UNIT == 0
                and layer.padding >= 0
                and min(height, width) > 0
                and height % pooled == width % pooled == 0
            )
            height, width, channels = height // pooled, width // pooled, filters
        if not fits or layer.relu == is_last:
            return False
    return True


def kept_floats(layers: tuple[Layer, ...], image_shape: tuple[int, ...], batch_size: int) -> int:
    """How many floats `forward` stores for each local step."""
    library = _library()
    assert library is not None, "call can_train first"
    shape = _shape(layers, image_shape)
    numbers = shape.ctypes.data_as(ctypes.POINTER(ctypes.c_int64))
    return int(library.workbench_slot(numbers, ctypes.c_int64(len(shape)), ctypes.c_int64(batch_size)))


def forward(
    layers: tuple[Layer, ...], weights: Weights, batches: Any, rate: Array, *, keep: bool
) -> tuple[Weights, Array]:
    """The weights after one SGD step on each batch, and, if ``keep``, what `backward` needs of every step."""
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
    """The adjoints of the initial weights and of the images, from the adjoint of the final weights."""
    shape = _shape(layers, batches.images.shape[2:])
    arrays = _arrays(layers, adjoint)
    made = jax.eval_shape(lambda: [*arrays, batches.images])
    call: Any = jax.ffi.ffi_call("workbench_backward", made, vmap_method="sequential")
    *before, images = call(*_given(batches, rate), trajectory, *_arrays(layers, final), *arrays, layers=shape)
    return _weights(layers, before), images


def _shape(layers: tuple[Layer, ...], image_shape: tuple[int, ...]) -> np.ndarray:
    """The chain as integers, in the order in which the library reads them."""
    numbers = list(image_shape)
    for layer in layers:
        *_, channels, outputs = layer.kernel_shape
        size = layer.kernel_shape[0]  # for a dense layer, the number of inputs
        numbers += [layer.is_dense, size, layer.padding, channels, outputs, layer.pool]
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
