"""Updates from elsewhere: arrays with torch's names and layouts become the weights of a network.

A network that torch exported keeps torch's names; only the weight [o, i] of a linear layer is its kernel [i, o]. For
every other network, arrays may also have torch's layouts: [F, C, k, k] for convolutions, [o, i] for dense layers, and
rows in the order of torch's flattened feature map for the first dense layer after a convolution.
"""

import re
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from workbench.errors import DataError, check_choice, shown
from workbench.files.arrays import read_arrays
from workbench.training.model import Model
from workbench.weights import Weights, check_floats

__all__ = ["SENDS", "weights_of_update"]

SENDS = ("weights", "delta")
# What DistributedDataParallel and torch.compile put before every name.
_WRAPPERS = re.compile(r"^(module\.|_orig_mod\.)+")
_STATISTICS = ("running_mean", "running_var")
_COUNTER = "num_batches_tracked"

Place = tuple[str, str]
Arrays = dict[str, NDArray[Any]]


def weights_of_update(model: Model, before: Any, after: Any, sends: str) -> tuple[Weights, Weights]:
    """The weights before and after the client's training, checked and in the layouts of the network.

    Args:
        model: the network.
        before: the arrays that the server sent (`workbench.files.arrays`).
        after: the arrays that the client sent back.
        sends: whether these are its weights or what it adds to them.
    """
    check_choice("sends", sends, SENDS)
    given = {field: read_arrays(source, field) for field, source in (("before", before), ("after", after))}
    first, last = (_named(model, arrays, field) for field, arrays in given.items())
    first, buffers = _without_buffers(model, first)
    last, moved = _without_buffers(model, last)
    old, new = (
        _in_layout(model, arrays, field, has_names=isinstance(given[field], dict))
        for arrays, field in ((first, "before"), (last, "after"))
    )
    if sends == "delta":
        new = {place: old[place] + new[place] for place in old}
    for layer, name in old:
        is_fixed = name in _STATISTICS and not model.mixes_images
        if is_fixed and not np.array_equal(old[layer, name], new[layer, name]):
            raise DataError(
                f"after has another {layer}.{name} than before, so the client trained in training mode, and "
                f"{model.name} was exported in evaluation mode: call model.train() before torch.export.export."
            )
    if left_out := sorted({*buffers, *moved}):
        warnings.warn(
            f"{len(left_out)} buffers, such as {left_out[0]}, are not weights of {model.name}; the attack does not use "
            "them.",
            stacklevel=3,
        )
    return _nested(old), _nested(new)


def _nested(arrays: dict[Place, NDArray[np.float32]]) -> Weights:
    weights: Weights = {}
    for (layer, name), array in arrays.items():
        weights.setdefault(layer, {})[name] = array
    return weights


def _state_names(model: Model) -> list[str]:
    """The names of a state dict in its order: torch's for an imported network, the layers' for another."""
    if model.state_names is not None:
        return list(model.state_names)
    first = ("kernel", "weight", "scale")
    order: Callable[[str], tuple[bool, str]] = lambda name: (name not in first, name)  # noqa: E731 - a sort key
    return [f"{layer}/{name}" for layer in model.layer_names for name in sorted(model.shapes[layer], key=order)]


def _named(model: Model, arrays: dict[str, Any] | list[Any], field: str) -> Arrays:
    """The arrays by name, without what wraps a network; a list has the order of a state dict."""
    if isinstance(arrays, dict):
        bare = {name: name if _place(model, name) else _WRAPPERS.sub("", name) for name in arrays}
        return {bare[name]: array for name, array in arrays.items()}
    names = _state_names(model)
    parameters = [name for name in names if _place(model, name) is not None]
    for fitting in (names, parameters, [name for name in parameters if not name.endswith(_STATISTICS)]):
        if len(fitting) == len(arrays):
            return dict(zip(fitting, arrays, strict=True))
    raise DataError(
        f"{field} has {len(arrays)} arrays without names; {model.name} has {len(names)}: {shown(', '.join(names))}"
    )


def _place(model: Model, name: str) -> Place | None:
    """The layer and the array of the network that a name means; torch's weight may be a kernel here."""
    for separator in ("/", "."):
        layer, _, leaf = name.rpartition(separator)
        arrays = model.shapes.get(layer, {})
        if leaf in arrays:
            return layer, leaf
        if leaf == "weight" and "kernel" in arrays:
            return layer, "kernel"
    return (name, "value") if "value" in model.shapes.get(name, {}) else None


def _without_buffers(model: Model, arrays: Arrays) -> tuple[Arrays, list[str]]:
    """The arrays that are weights of the network, or should be, and the names of the others."""
    buffers = [
        name
        for name in arrays
        if _place(model, name) is None
        and (name.rpartition(".")[2] in (*_STATISTICS, _COUNTER) or name in (model.state_names or ()))
    ]
    return {name: array for name, array in arrays.items() if name not in buffers}, buffers


def _in_layout(model: Model, arrays: Arrays, field: str, *, has_names: bool) -> dict[Place, NDArray[np.float32]]:
    """The arrays as the network's weights."""
    found: dict[Place, NDArray[np.float32]] = {}
    sources: dict[Place, str] = {}
    for name, array in arrays.items():
        place = _place(model, name)
        if place is None:
            raise DataError(
                f"{field} has an array {shown(name)} of shape {np.shape(array)}; {model.name} has no such array, only "
                f"{shown(', '.join(_state_names(model)))}"
            )
        found[place], sources[place] = check_floats(f"{field}[{name!r}]", array), name
    for layer, expected in model.shapes.items():
        for leaf, shape in expected.items():
            if (layer, leaf) not in found:
                raise DataError(f"{field} has no array for {layer}/{leaf}; {model.name} has it, with shape {shape}.")
    converted = {place: _from_torch(model, place, array) for place, array in found.items()}
    is_fitting = [
        {place: array.shape == model.shapes[place[0]][place[1]] for place, array in candidate.items()}
        for candidate in (found, converted)
    ]
    is_torch = not all(is_fitting[0].values()) or any(
        name.endswith(".weight") and place[1] == "kernel" for place, name in sources.items()
    )
    for (layer, leaf), fits in is_fitting[is_torch].items():
        if not fits:
            shape = model.shapes[layer][leaf]
            torchs = f", in torch's layout {(*reversed(shape[-2:]), *shape[:-2])}" if leaf == "kernel" else ""
            raise DataError(
                f"{field}[{sources[layer, leaf]!r}] has shape {found[layer, leaf].shape}; {model.name} has "
                f"{layer}/{leaf} {shape}{torchs}."
            )
    if not is_torch and not has_names and all(is_fitting[1].values()):
        warnings.warn(
            f"{field}: arrays without names whose kernels are square fit the layouts of {model.name} and of torch; "
            "they are read as those of the network. Give their names if torch made them: {'layer.weight': array}.",
            stacklevel=5,
        )
    if is_torch and (flattened := _flattened(model, converted)):
        warnings.warn(
            f"{field}: whether {flattened[0]}/{flattened[1]} of {model.name} gets its inputs in torch's order "
            "(channel, row, column) is not known, and its rows are not reordered; if the network flattens a feature "
            "map in another order, reorder them, or export the network with torch.export.",
            stacklevel=5,
        )
    return converted if is_torch else found


def _flattened(model: Model, arrays: dict[Place, NDArray[np.float32]]) -> Place | None:
    """The first dense kernel after a convolution of a network whose feature maps are not known; None for the others."""
    is_known = model.chain is not None or model.state_names is not None
    kernels = [place for place in arrays if place[1] == "kernel"]
    ordered = sorted(kernels, key=lambda place: model.layer_names.index(place[0]))
    dense = [place for place in ordered if arrays[place].ndim == 2]
    has_convolution = any(array.ndim == 4 for array in arrays.values())
    return None if is_known or not has_convolution or not dense else dense[0]


def _from_torch(model: Model, place: Place, array: NDArray[np.float32]) -> NDArray[np.float32]:
    """An array in torch's layout as the network has it."""
    layer, leaf = place
    if leaf != "kernel" or array.ndim not in (2, 4):
        return array
    if array.ndim == 4:
        return array.transpose(2, 3, 1, 0)
    kernel = array.T
    shape = _shape_before(model, layer)
    if shape is None or np.prod(shape) != len(kernel):
        return kernel
    height, width, channels = shape
    by_channel = kernel.reshape(channels, height, width, -1)
    return by_channel.transpose(1, 2, 0, 3).reshape(kernel.shape)


def _shape_before(model: Model, layer: str) -> tuple[int, ...] | None:
    """(H, W, C) of the feature map that a built-in network flattens before this layer."""
    names = [each.name for each in model.chain or ()]
    if layer not in names or model.chain is None:
        return None
    parts = model.chain[: names.index(layer)]
    if any(part.is_dense for part in parts):
        return None

    def feature_map(weights: Weights, images: Any) -> Any:
        for part in parts:
            images = part.activate(part.outputs(images, weights[part.name]))[0]
        return images

    weights = jax.eval_shape(partial(model.init, 0))
    return tuple(jax.eval_shape(feature_map, weights, jnp.zeros((1, *model.image_shape))).shape[1:])
