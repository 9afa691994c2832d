"""Weights on disk: written as safetensors, read from safetensors or ``.npz``, never unpickled."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from workbench.chain import Weights
from workbench.data.files import existing_path, reading
from workbench.errors import DataError, check_kind, shown
from workbench.models import Model, check_weights

__all__ = ["load_weights", "make_folder", "save_weights", "write_atomically"]

RIGHT = "a .safetensors or .npz file with floating-point arrays named 'layer/array', e.g. 'Conv_0/kernel'"


def make_folder(path: str | os.PathLike[str], field: str = "path") -> Path:
    """The folder, made where it does not exist."""
    try:
        folder = Path(path)
    except TypeError:
        raise DataError(f"{field} = {shown(path)} must be the path of a folder.") from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise DataError(f"{field} = '{folder}' cannot be used as a folder: {_reason(error)}.") from None
    return folder


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write beside, sync, then replace: a reader finds the old file or the new one, never a part."""
    try:
        target = Path(path)
    except TypeError:
        raise DataError(f"path = {shown(path)} must be a path to write to.") from None
    make_folder(target.parent)
    beside = None
    try:
        handle, beside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(beside).chmod(0o644)
        os.replace(beside, target)  # noqa: PTH105 - os.replace is the documented atomic call
    except (OSError, ValueError) as error:
        raise DataError(f"{target} cannot be written: {_reason(error)}.") from None
    finally:
        if beside is not None:
            Path(beside).unlink(missing_ok=True)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def save_weights(path: str | os.PathLike[str], weights: Weights) -> None:
    """Save the weights as safetensors, named ``layer/array``."""
    checked = check_weights(weights)
    flat = {f"{layer}/{name}": np.asarray(array) for layer, arrays in checked.items() for name, array in arrays.items()}
    write_atomically(path, save(flat))


def load_weights(path: str | os.PathLike[str], model: Model | None = None) -> Weights:
    """Load weights whose arrays are named ``layer/array``.

    Args:
        path: a ``.safetensors`` or ``.npz`` file.
        model: where given, the weights must be this network's.
    """
    file = existing_path(path, RIGHT)
    if not file.is_file():
        raise DataError(f"path = '{file}' is not a file; right is {RIGHT}.")
    with reading(file, RIGHT):
        arrays = _read_npz(file) if file.suffix == ".npz" else load(file.read_bytes())
    weights: dict[str, dict[str, NDArray[Any]]] = {}
    for name, array in arrays.items():
        layer, _, leaf = name.rpartition("/")
        if not layer or not leaf:
            raise DataError(f"{file} holds an array named {name!r}; right is {RIGHT}.")
        weights.setdefault(layer, {})[leaf] = array
    if model is None:
        return check_weights(weights, field=str(file))
    return check_kind("model", model, Model).check_weights(weights, field=str(file))


def _read_npz(file: Path) -> dict[str, NDArray[Any]]:
    # Opened here: NumPy leaves a file open that it takes for a zip archive and cannot read.
    with file.open("rb") as opened, np.load(opened, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}
