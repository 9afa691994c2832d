"""One computation with two implementations: one for CPUs, and one for every other device.

JAX traces a computation before it is known where it will run. So the choice is made where the program is lowered for a
platform, and a program for a GPU cannot contain what only CPUs have. `jax.lax.platform_dependent` does the same, but
traces both implementations, which takes 0.2 s for an attack.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

__all__ = ["by_platform"]


def by_platform(cpu: Callable[..., Any], default: Callable[..., Any], results: Any, *arguments: Any) -> Any:
    """What ``cpu(*arguments)`` returns in a program for CPUs, and ``default(*arguments)`` in any other.

    It has no derivative.

    Args:
        results: the shapes of what both return, as `jax.eval_shape` gives them: neither is traced to find out.
        arguments: trees of arrays.
    """
    leaves, structure = jax.tree.flatten(arguments)
    shapes, result_structure = jax.tree.flatten(results)

    def flat(function: Callable[..., Any]) -> Callable[..., list[Any]]:
        return lambda *leaves: jax.tree.leaves(function(*jax.tree.unflatten(structure, leaves)))

    types = tuple(ShapedArray(shape.shape, shape.dtype) for shape in shapes)
    found = _BY_PLATFORM.bind(*leaves, cpu=flat(cpu), default=flat(default), types=types)
    return jax.tree.unflatten(result_structure, found)


def _batched(arguments: Any, axes: Any, *, types: Any, **functions: Any) -> tuple[list[Any], list[int]]:
    """Each implementation is batched in its own way."""
    size = next(array.shape[axis] for array, axis in zip(arguments, axes, strict=True) if axis is not None)
    functions = {name: jax.vmap(function, axes, axis_size=size) for name, function in functions.items()}
    types = tuple(ShapedArray((size, *one.shape), one.dtype) for one in types)
    return _BY_PLATFORM.bind(*arguments, types=types, **functions), [0] * len(types)


def _lowering(name: str) -> Any:
    return mlir.lower_fun(lambda *leaves, types, **functions: functions[name](*leaves))


_BY_PLATFORM: Any = Primitive("by_platform")
_BY_PLATFORM.multiple_results = True
# Outside `jax.jit` it is compiled by itself, for the device of its arguments.
_BY_PLATFORM.def_impl(lambda *leaves, **settings: jax.jit(partial(_BY_PLATFORM.bind, **settings))(*leaves))
_BY_PLATFORM.def_abstract_eval(lambda *_, types, **__: types)
mlir.register_lowering(_BY_PLATFORM, _lowering("cpu"), platform="cpu")
mlir.register_lowering(_BY_PLATFORM, _lowering("default"))
batching.primitive_batchers[_BY_PLATFORM] = _batched
