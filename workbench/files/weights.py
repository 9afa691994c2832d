"""Files of weights: written as safetensors, read from safetensors or ``.npz``, never unpickled."""

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from workbench.errors import ConfigError, DataError, shown
from workbench.files.reading import existing_path, read_npz, reading
from workbench.files.writing import write_atomically
from workbench.weights import Weights, check_weights

__all__ = ["load_weights", "save_weights"]

EXPECTED = "a .safetensors or .npz file with floating-point arrays named 'layer/array', e.g. 'Conv_0/kernel'"


def save_weights(path: str | os.PathLike[str], weights: Weights) -> None:
    """Save the weights as safetensors, named ``layer/array``."""
    checked = check_weights(weights)
    flat = {f"{layer}/{name}": np.asarray(array) for layer, arrays in checked.items() for name, array in arrays.items()}
    write_atomically(path, save(flat))


def load_weights(path: str | os.PathLike[str], model: Any = None) -> Weights:
    """Load weights whose arrays are named ``layer/array``.

    Args:
        path: a ``.safetensors`` or ``.npz`` file.
        model: a `Model`; if given, the weights must fit this network.
    """
    file = existing_path(path, EXPECTED)
    if not file.is_file():
        raise DataError(f"path = '{file}' is not a file; expected {EXPECTED}.")
    if file.suffix == ".npz":
        arrays = read_npz(file, EXPECTED)
    else:
        with reading(file, EXPECTED):
            arrays = load(file.read_bytes())
    weights: dict[str, dict[str, NDArray[Any]]] = {}
    for name, array in arrays.items():
        layer, _, leaf = name.rpartition("/")
        if not layer or not leaf:
            raise DataError(f"{file} holds an array named {name!r}; expected {EXPECTED}.")
        weights.setdefault(layer, {})[leaf] = array
    if model is None:
        return check_weights(weights, field=str(file))
    # By what it can do: files know nothing of networks.
    if not hasattr(model, "check_weights"):
        raise ConfigError(f"model = {shown(model)} must be a Model.")
    return model.check_weights(weights, field=str(file))
