"""The weights of a network: a dictionary of layers, each a dictionary of named arrays."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from workbench.errors import DataError, shown

__all__ = ["Shapes", "Weights", "check_floats", "check_shapes", "check_weights", "shapes_of"]

# Layer name to its arrays, usually ``kernel`` and ``bias``.
Weights = dict[str, dict[str, Any]]

# Layer name to the shapes of its arrays.
Shapes = dict[str, dict[str, tuple[int, ...]]]


def shapes_of(weights: Any) -> Shapes:
    """The shape of every array of the weights."""
    return {layer: {name: array.shape for name, array in arrays.items()} for layer, arrays in weights.items()}


def check_weights(weights: Any, field: str = "weights") -> Weights:
    """Return the weights as float32 arrays if they are ``{layer: {name: array}}`` with finite numbers only."""
    if not isinstance(weights, dict) or not weights:
        raise DataError(f"{field} = {shown(weights)} must be {{layer: {{name: array}}}} with at least one layer.")
    for layer, arrays in weights.items():
        if not isinstance(layer, str) or not layer:
            raise DataError(f"{field} has a layer named {shown(layer)}; a name must be a non-empty string.")
        if not isinstance(arrays, dict) or not arrays:
            raise DataError(f"{field}['{layer}'] = {shown(arrays)} must be {{name: array}} with at least one array.")
        for name in arrays:
            # Files name arrays 'layer/array'.
            if not isinstance(name, str) or not name or "/" in name:
                raise DataError(
                    f"{field}['{layer}'] has an array named {shown(name)}; a name must be a string without '/'."
                )
    return {
        layer: {name: _as_jax(array, f"{field}['{layer}']['{name}']") for name, array in arrays.items()}
        for layer, arrays in weights.items()
    }


def _as_jax(array: Any, field: str) -> Array:
    numbers = check_floats(field, array)
    # A JAX array stays on its device; any other is copied, because the caller may change it.
    return array if isinstance(array, Array) and array.dtype == jnp.float32 else jnp.array(numbers)


def check_floats(field: str, array: Any) -> NDArray[np.float32]:
    """Return the array as float32 if it has finite floating-point numbers only."""
    try:
        numbers = np.asarray(array)
    except (TypeError, ValueError):
        raise DataError(f"{field} = {shown(array)} must be an array of numbers.") from None
    if not jnp.issubdtype(numbers.dtype, jnp.floating):
        raise DataError(f"{field} with dtype {numbers.dtype} must be floating-point numbers.")
    with np.errstate(over="ignore"):
        numbers = numbers.astype(np.float32, copy=False)
    if not np.isfinite(numbers).all():
        raise DataError(f"{field} with NaN or infinite values must be finite.")
    return numbers


def check_shapes(weights: Weights, field: str, right: Shapes, owner: str) -> None:
    """Check that the weights have the arrays and shapes of ``owner``."""
    found, expected = (
        {(layer, name): shape for layer, arrays in shapes.items() for name, shape in arrays.items()}
        for shapes in (shapes_of(weights), right)
    )
    for layer, name in sorted(found.keys() | expected.keys()):
        here, there = (shapes.get((layer, name)) for shapes in (found, expected))
        if here is None:
            raise DataError(f"{field}['{layer}']['{name}'] is missing; {owner} has it, with shape {there}.")
        if there is None:
            raise DataError(f"{field}['{layer}']['{name}'] is unexpected; {owner} has no such array.")
        if here != there:
            raise DataError(f"{field}['{layer}']['{name}'] has shape {here}; {owner} has {there}.")
