"""The convolutions and pooling of a custom network, replaced inside its function by forms with fast gradients.

The gradients that JAX derives for a convolution are an order of magnitude slower on a CPU than they need to be
(`workbench.training.layers` says why), those of a pooling window too, and an attack differentiates a network twice in
every local step. So the function of a custom network is traced to its jaxpr, and the jaxpr is evaluated with other
convolutions and other pooling in it. This reaches into jitted functions, `jax.checkpoint`, `lax.scan` and `lax.cond`.
What cannot be replaced runs as it is. On an accelerator nothing is replaced: its library is right.
"""

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import Jaxpr, JaxprEqn, Literal, jaxprs_in_params

from workbench.training.by_platform import default_platform
from workbench.training.layers import Window, convolution

__all__ = ["WithFastConvolutions", "slow_convolutions"]

# Pooling and depthwise kernels are unrolled into as many terms as they have entries.
_MOST_TERMS = 128
# The equations whose inner functions are evaluated in the same way.
_ENTERED = ("jit", "remat2", "checkpoint", "scan", "cond")


@dataclass(frozen=True)
class WithFastConvolutions:
    """A function with its convolutions replaced; equal to one of the same function, and pickled as it is."""

    function: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        if default_platform() != "cpu":
            return self.function(*arguments)
        traced, shapes = jax.make_jaxpr(self.function, return_shape=True)(*arguments)
        results = _evaluate(traced.jaxpr, traced.consts, *jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)


def slow_convolutions(function: Callable[..., Any], *arguments: Any) -> list[str]:
    """Why each convolution and pooling that is not replaced stays as it is; nothing on an accelerator."""
    if default_platform() != "cpu":
        return []
    return list(_obstacles(jax.make_jaxpr(function)(*arguments).jaxpr))


def _evaluate(jaxpr: Jaxpr, consts: Any, *arguments: Any) -> list[Any]:
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, Literal) else values[variable]

    for equation in jaxpr.eqns:
        results = _run(equation, *map(read, equation.invars))
        values.update(zip(equation.outvars, results, strict=True))
    return list(map(read, jaxpr.outvars))


def _run(equation: JaxprEqn, *operands: Any) -> Any:
    """The results of one equation, with convolutions replaced in it."""
    name, settings = equation.primitive.name, equation.params
    if name == "conv_general_dilated" and _obstacle(equation) is None:
        return [_convolution(settings, *operands)]
    if name in _POOLS and _obstacle(equation) is None:
        return [_pooled(_POOLS[name], settings, *operands)]
    if any(map(_has_replaceable, jaxprs_in_params(settings))):
        match name:
            case "jit":
                return _evaluate(settings["jaxpr"].jaxpr, settings["jaxpr"].consts, *operands)
            case "remat2" | "checkpoint":
                kept = {"prevent_cse": settings["prevent_cse"], "policy": settings["policy"]}
                return jax.checkpoint(partial(_evaluate, settings["jaxpr"], ()), **kept)(*operands)
            case "scan":
                return _scan(settings, *operands)
            case "cond":
                branches = [partial(_evaluate, branch.jaxpr, branch.consts) for branch in settings["branches"]]
                return lax.switch(operands[0], branches, *operands[1:])
    primitive: Any = equation.primitive
    with equation.ctx.manager:
        results = primitive.bind(*operands, **primitive.get_bind_params(settings))
    return results if primitive.multiple_results else [results]


def _has_replaceable(jaxpr: Jaxpr) -> bool:
    return any(
        equation.primitive.name in ("conv_general_dilated", *_POOLS)
        or any(map(_has_replaceable, jaxprs_in_params(equation.params)))
        for equation in jaxpr.eqns
    )


def _obstacles(jaxpr: Jaxpr, inside: str = "") -> Iterator[str]:
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name in ("conv_general_dilated", *_POOLS) and (reason := inside or _obstacle(equation)):
            yield reason
        # The gradients of a custom_vjp are not derived, but written by its author.
        if not name.startswith("custom_vjp"):
            for inner in jaxprs_in_params(equation.params):
                yield from _obstacles(inner, inside or ("" if name in _ENTERED else f"it is inside a {name}"))


def _obstacle(equation: JaxprEqn) -> str | None:
    """Why this convolution or pooling cannot be replaced."""
    settings = equation.params
    if equation.primitive.name in _POOLS:
        terms = math.prod(settings["window_dimensions"])
        if terms > _MOST_TERMS:
            return f"it pools over {terms} numbers, more than {_MOST_TERMS}"
        return None if set(settings["base_dilation"]) == {1} else "it pools with a base_dilation"
    inputs, kernel, result = (_shape(variable) for variable in (*equation.invars, *equation.outvars))
    if inputs.ndim != 4:
        return f"it has {inputs.ndim - 2} spatial dimensions instead of 2"
    if settings["batch_group_count"] != 1:
        return "it has a batch_group_count"
    if not inputs.dtype == kernel.dtype == result.dtype == jnp.float32:
        return f"it computes in {inputs.dtype} instead of float32"
    return None if result.size else "its output is empty"


def _shape(variable: Any) -> Any:
    return variable.aval


def _scan(settings: dict[str, Any], *operands: Any) -> list[Any]:
    num_consts, num_carried, body = settings["num_consts"], settings["num_carry"], settings["jaxpr"]
    consts, carried = operands[:num_consts], operands[num_consts : num_consts + num_carried]

    def step(carried: Any, xs: Any) -> tuple[Any, Any]:
        results = _evaluate(body.jaxpr, body.consts, *consts, *carried, *xs)
        return tuple(results[:num_carried]), tuple(results[num_carried:])

    rest = {name: settings[name] for name in ("length", "reverse", "unroll")}
    carried, results = lax.scan(step, carried, operands[num_consts + num_carried :], **rest)
    return [*carried, *results]


def _convolution(settings: dict[str, Any], inputs: Array, kernel: Array) -> Array:
    (batch, channel, *sides), (out, into, *spots), (first, last, *places) = settings["dimension_numbers"]
    inputs, kernel = inputs.transpose(batch, *sides, channel), kernel.transpose(*spots, into, out)
    padding, strides, between, spread = (
        settings[name] for name in ("padding", "window_strides", "lhs_dilation", "rhs_dilation")
    )
    height, width = (
        ((inputs.shape[1 + i] - 1) * between[i] + sum(padding[i]) - (kernel.shape[i] - 1) * spread[i]) % strides[i]
        for i in range(2)
    )
    window = Window(padding, strides, between, spread, (height, width), settings["feature_group_count"])
    is_depthwise = window.groups > 1 and kernel.shape[2] == 1 and kernel.shape[0] * kernel.shape[1] <= _MOST_TERMS
    result = _depthwise(inputs, kernel, window) if is_depthwise else convolution(inputs, kernel, window)
    order = {first: 0, places[0]: 1, places[1]: 2, last: 3}
    return result.transpose([order[axis] for axis in range(4)])


def _depthwise(inputs: Array, kernel: Array, window: Window) -> Array:
    """Every channel with its own kernel: a sum of products, because a matrix product would have a single column."""
    inputs = jnp.repeat(inputs, kernel.shape[3] // inputs.shape[3], axis=3)
    edges = [(*sides, d - 1) for sides, d in zip(window.padding, window.input_dilation, strict=True)]
    shifted = _shifted(
        lax.pad(inputs, jnp.zeros((), inputs.dtype), [(0, 0, 0), *edges, (0, 0, 0)]),
        (1, *kernel.shape[:2], 1),
        (1, *window.strides, 1),
        (1, *window.kernel_dilation, 1),
    )
    entries = kernel.reshape(-1, 1, 1, 1, kernel.shape[3])
    return reduce(operator.add, (part * entry for part, entry in zip(shifted, entries, strict=True)))


def _pooled(combine: Callable[[Array, Array], Array], settings: dict[str, Any], inputs: Array) -> Array:
    fill = jnp.asarray(-jnp.inf if combine is larger else 0, inputs.dtype)
    padded = lax.pad(inputs, fill, [(*sides, 0) for sides in settings["padding"]])
    names = ("window_dimensions", "window_strides", "window_dilation")
    return reduce(combine, _shifted(padded, *(settings[name] for name in names)))


def larger(first: Array, second: Array) -> Array:
    """The larger of two arrays; the first has the gradient where they are equal, and NaN stays."""
    return jnp.where((second > first) | jnp.isnan(second), second, first)


def _shifted(inputs: Array, size: Sequence[int], strides: Sequence[int], dilation: Sequence[int]) -> Iterator[Array]:
    """For every entry of a window, what it sees at all places of the window."""
    for entry in product(*map(range, size)):
        starts = [position * d for position, d in zip(entry, dilation, strict=True)]
        ends = [
            length - (extent - 1) * d + start
            for length, extent, d, start in zip(inputs.shape, size, dilation, starts, strict=True)
        ]
        yield lax.slice(inputs, starts, ends, strides)


_POOLS = {"reduce_window_max": larger, "reduce_window_sum": operator.add}
