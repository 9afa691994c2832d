"""Weights on disk: written as safetensors, read from safetensors or ``.npz``, never unpickled."""

from __future__ import annotations

import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from workbench.chain import Weights
from workbench.errors import DataError
from workbench.models import Model

__all__ = ["load_weights", "save_weights", "write_atomically"]


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write beside, sync, then replace: a reader finds the old file or the new one, never a part."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise DataError(f"cannot write {target}: {error.strerror or error}.") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(beside).chmod(0o644)
        os.replace(beside, target)  # noqa: PTH105 - os.replace is the documented atomic call
    except OSError as error:
        raise DataError(f"cannot write {target}: {error.strerror or error}.") from None
    finally:
        Path(beside).unlink(missing_ok=True)


def save_weights(path: str | os.PathLike[str], weights: Weights) -> None:
    """Save the weights as safetensors, named ``layer/array``."""
    flat = {f"{layer}/{name}": np.asarray(array) for layer, arrays in weights.items() for name, array in arrays.items()}
    if not flat:
        raise DataError("weights = {} holds no arrays to save.")
    write_atomically(path, save(flat))


def load_weights(path: str | os.PathLike[str], model: Model | None = None) -> Weights:
    """Load weights whose arrays are named ``layer/array``.

    Args:
        path: a ``.safetensors`` or ``.npz`` file.
        model: where given, the weights must be this network's.
    """
    file = Path(path)
    if not file.is_file():
        raise DataError(f"weights file {file} does not exist.")
    weights: Weights = {}
    for name, array in (_read_npz(file) if file.suffix == ".npz" else _read_safetensors(file)).items():
        layer, slash, leaf = name.rpartition("/")
        if not slash or not layer or not leaf:
            raise DataError(
                f"{file} holds an array named {name!r}; weights are named 'layer/array', e.g. 'Conv_0/kernel'."
            )
        if not np.issubdtype(array.dtype, np.floating):
            raise DataError(f"{file}: {name} has dtype {array.dtype}; weights must be floating-point numbers.")
        weights.setdefault(layer, {})[leaf] = jnp.asarray(array, jnp.float32)
    if not weights:
        raise DataError(f"{file} holds no arrays.")
    return weights if model is None else model.check_weights(weights, field=str(file))


def _read_safetensors(file: Path) -> dict[str, NDArray[Any]]:
    try:
        return load_file(file)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{file} is not a whole safetensors file: {error}.") from None


def _read_npz(file: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (ValueError, OSError, EOFError, KeyError, AttributeError, zipfile.BadZipFile) as error:
        raise DataError(f"{file} is not a whole .npz file of plain arrays: {error}.") from None
