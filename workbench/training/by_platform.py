"""One computation with two implementations: one for CPUs, and one for every other device.

JAX traces a computation before it is known where it will run. So the choice is made where the program is lowered for a
platform, and a program for a GPU cannot contain what only CPUs have. `jax.lax.platform_dependent` does the same, but
traces both implementations, which takes 0.2 s for an attack.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

__all__ = ["by_platform", "default_platform"]


def by_platform(
    cpu: Callable[..., Any], default: Callable[..., Any], results: Any, *arguments: Any, **static: Hashable
) -> Any:
    """What ``cpu(*arguments, **static)`` returns in a program for CPUs, and ``default`` in any other.

    It has no derivative. Outside `jax.jit` it is compiled once for the same two functions and static arguments.

    Args:
        results: the shapes of what both return, as `jax.eval_shape` gives them: neither is traced to find out.
        arguments: trees of arrays.
    """
    leaves, structure = jax.tree.flatten(arguments)
    shapes, result_structure = jax.tree.flatten(results)
    types = tuple(ShapedArray(shape.shape, shape.dtype) for shape in shapes)
    call = _Call(cpu, default, structure, tuple(static.items()))
    return jax.tree.unflatten(result_structure, _BY_PLATFORM.bind(*leaves, call=call, types=types))


class _Call(NamedTuple):
    """What to call; equal calls share a compilation.

    Attributes:
        batches: the axes of the leaves and the size, for each `jax.vmap` around it.
    """

    cpu: Callable[..., Any]
    default: Callable[..., Any]
    structure: Any
    static: tuple[tuple[str, Hashable], ...]
    batches: tuple[tuple[tuple[int | None, ...], int], ...] = ()

    def run(self, function: Callable[..., Any], leaves: Sequence[Any]) -> list[Any]:
        def flat(*leaves: Any) -> list[Any]:
            return jax.tree.leaves(function(*jax.tree.unflatten(self.structure, leaves), **dict(self.static)))

        for axes, size in self.batches:
            flat = jax.vmap(flat, axes, axis_size=size)
        return flat(*leaves)


def default_platform() -> str:
    """The platform of JAX's default device, which `jax.default_device` can change, unlike `jax.default_backend`.

    For what must be decided while a program is traced.
    """
    device: Any = jax.config.jax_default_device  # type: ignore[attr-defined]
    return str(getattr(device, "platform", device) or jax.default_backend())


def _batched(arguments: Any, axes: Any, *, call: _Call, types: Any) -> tuple[list[Any], list[int]]:
    """Each implementation is batched in its own way."""
    size = next(array.shape[axis] for array, axis in zip(arguments, axes, strict=True) if axis is not None)
    call = call._replace(batches=(*call.batches, (tuple(axes), size)))
    types = tuple(ShapedArray((size, *one.shape), one.dtype) for one in types)
    return _BY_PLATFORM.bind(*arguments, call=call, types=types), [0] * len(types)


def _lowering(name: str) -> Any:
    return mlir.lower_fun(lambda *leaves, call, types: call.run(getattr(call, name), leaves))


_BY_PLATFORM: Any = Primitive("by_platform")
_BY_PLATFORM.multiple_results = True
# Outside `jax.jit` it is compiled by itself, for the device of its arguments.
_BY_PLATFORM.def_impl(jax.jit(_BY_PLATFORM.bind, static_argnames=("call", "types")))
_BY_PLATFORM.def_abstract_eval(lambda *_, types, **__: types)
mlir.register_lowering(_BY_PLATFORM, _lowering("cpu"), platform="cpu")
mlir.register_lowering(_BY_PLATFORM, _lowering("default"))
batching.primitive_batchers[_BY_PLATFORM] = _batched
