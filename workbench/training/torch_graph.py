"""An exported torch network as JAX functions: every operator of the graph, in torch's layout.

Images enter as [M, H, W, C] and are transposed to torch's [M, C, H, W] once, so that a flattened feature map has
torch's order. Parameters keep torch's names and layouts, except that the ``weight`` [o, i] of a linear layer is a
``kernel`` [i, o], where label recovery and span look for it.

Dropout is simulated as off. Batch normalisation that was exported in training mode normalises with the statistics of
the batch where `run` gets a mask of the images that count, which then returns the new running statistics, and with the
running statistics otherwise.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from workbench.errors import DataError, shown
from workbench.files.torch_export import Name, Node, TorchExport
from workbench.training.layers import batch_statistics
from workbench.weights import Weights

__all__ = ["OPERATORS", "TorchGraph", "Traced"]


class Traced(NamedTuple):
    """What a run of the graph found.

    Attributes:
        logits: [M, K].
        statistics: the new running statistics of batch normalisation in training mode, by their names in the weights.
        linear_inputs: the input of every linear layer.
    """

    logits: Array
    statistics: Weights
    linear_inputs: dict[str, Array]


def _split(name: str) -> tuple[str, str]:
    """A name of torch's state dict as layer and array."""
    layer, _, leaf = name.rpartition(".")
    return (layer, leaf) if layer else (leaf, "value")


@dataclass(frozen=True, eq=False)
class TorchGraph:
    """The functions of an exported network."""

    export: TorchExport

    def __post_init__(self) -> None:
        for node in self._nodes:
            if node.operator.rstrip("_") not in OPERATORS:
                raise DataError(
                    f"uses the operator {shown(node.operator)}, which is not supported; rewrite that part of the "
                    f"network with supported ones ({', '.join(OPERATORS)}), or write it as a Model in JAX."
                )
        if self._layer_of(self._last) is None:
            raise DataError(
                f"ends in {shown(self._last.operator)}; it must end in a linear layer with parameters, whose outputs "
                "are the logits (a log_softmax after it is left out)."
            )
        self._check_memory()

    def _check_memory(self) -> None:
        """An operator in place changes all values in the same memory, but here only the one that it is given."""
        owners: dict[Name, Name] = {}
        changed: dict[Name, str] = {}
        for node in self._nodes:
            if read := changed.keys() & set(_names(node)):
                operator = changed[read.pop()]
                raise DataError(
                    f"reads a value that the operator {shown(operator)} changed in place through a view of it, which "
                    "is not supported; use the operator that is not in place."
                )
            is_in_place = node.operator.endswith("_")
            if is_in_place or node.operator in _VIEWS:
                first = _names(node)[0]
                owner = owners.setdefault(first, first)
                owners.update(dict.fromkeys(node.results, owner))
                if is_in_place:
                    others = {name for name in owners if owners[name] == owner} - {first, *node.results}
                    changed.update(dict.fromkeys(others, node.operator))

    @cached_property
    def _nodes(self) -> tuple[Node, ...]:
        """The nodes up to the logits: cross-entropy applies a last log_softmax itself, and assertions do nothing."""
        nodes = [node for node in self.export.nodes if not node.operator.startswith("_assert")]
        while nodes and (self.export.output not in nodes[-1].results or "log_softmax" in nodes[-1].operator):
            is_output = self.export.output in nodes.pop().results
            if is_output:
                break
        if not nodes:
            raise DataError("computes nothing from images; it must return logits.")
        return tuple(nodes)

    @property
    def _last(self) -> Node:
        return self._nodes[-1]

    @cached_property
    def _origins(self) -> dict[Name, Name]:
        """Parameters by the names of themselves and of their transposes, which decomposed linear layers multiply."""
        transposes = {
            node.results[0]: node.arguments["self"]
            for node in self._nodes
            if node.operator in ("t", "permute", "transpose") and node.arguments["self"] in self.export.parameters
        }
        return {name: name for name in self.export.parameters} | transposes

    def _linear_parts(self, node: Node) -> tuple[Name, Name] | None:
        """The input and the weight of a linear layer, also of one that is decomposed."""
        given = node.arguments
        match node.operator:
            case "linear":
                return given["input"], given["weight"]
            case "addmm":
                return given["mat1"], given["mat2"]
            case "mm":
                return given["self"], given["mat2"]
        return None

    def _layer_of(self, node: Node) -> str | None:
        """The name of the layer, if the node is a linear layer with a kernel."""
        parts = self._linear_parts(node)
        name = self.export.parameters.get(self._origins.get(parts[1], parts[1])) if parts else None
        return _split(name)[0] if name in self._kernels and name else None

    @cached_property
    def _kernels(self) -> set[str]:
        """The parameters that are weights of linear layers and nothing else."""
        kernels: set[str] = set()
        others: set[str] = set()
        for node in self._nodes:
            parts = self._linear_parts(node)
            for value in _names(node):
                if value in self._origins and node.results[0] not in self._origins:
                    name = self.export.parameters[self._origins[value]]
                    (kernels if parts and value == parts[1] else others).add(name)
        return {name for name in kernels - others if name.endswith(".weight") and self.export.tensors[name].ndim == 2}

    def place(self, name: str) -> tuple[str, str]:
        """The layer and the array where the weights hold a parameter or buffer of torch's state dict."""
        layer, leaf = _split(name)
        return (layer, "kernel") if name in self._kernels else (layer, leaf)

    @cached_property
    def _statistics(self) -> list[str]:
        """The running statistics by their names in the state dict."""
        values = [node.arguments.get(name) for node in self._nodes for name in ("running_mean", "running_var")]
        return [self.export.buffers[value] for value in values if value is not None]

    @property
    def layer_names(self) -> tuple[str, ...]:
        """From the input to the output."""
        used = dict.fromkeys(value for node in self._nodes for value in _names(node))
        statistics = {value: name for value, name in self.export.buffers.items() if name in self._statistics}
        owners = self.export.parameters | statistics
        names = [owners[value] for value in used if value in owners]
        last = self._layer_of(self._last)
        layers = dict.fromkeys(self.place(name)[0] for name in names)
        return (*(layer for layer in layers if layer != last), str(last))

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names of torch's state dict in its order: module by module, each parameters first, then buffers."""
        names = [*self.export.parameters.values(), *self.export.stored_buffers]
        modules = dict.fromkeys(["", *self.export.modules, *(name.rpartition(".")[0] for name in names)])
        return tuple(name for module in modules for name in names if name.rpartition(".")[0] == module)

    def init(self, seed: int = 0) -> Weights:
        """The exported weights, whatever the seed: how torch drew them is not in the file."""
        weights: Weights = {}
        layers = self.layer_names
        for name in (*self.export.parameters.values(), *self._statistics):
            layer, leaf = self.place(name)
            if layer in layers:
                array = jnp.asarray(self.export.tensors[name], jnp.float32)
                weights.setdefault(layer, {})[leaf] = array.T if leaf == "kernel" else array
        return weights

    def logits(self, weights: Weights, images: Array) -> Array:
        """[M, H, W, C] normalised images to [M, K]."""
        return self.run(weights, images).logits

    def train(self, weights: Weights, images: Array, mask: Array) -> tuple[Array, Weights]:
        """Likewise in training mode, with the new running statistics; images whose mask is False do not count."""
        found = self.run(weights, images, mask)
        return found.logits, found.statistics

    @property
    def has_statistics(self) -> bool:
        """Whether some of the weights are running statistics, which no optimiser moves."""
        return bool(self._statistics)

    @property
    def has_dropout(self) -> bool:
        return any("dropout" in node.operator and node.arguments.get("train") for node in self._nodes)

    def features(self, weights: Weights, images: Array) -> Array:
        """[M, H, W, C] normalised images to the input [M, i] of the last layer."""
        return self.run(weights, images).linear_inputs[self.layer_names[-1]]

    def dense_inputs(self, weights: Weights, images: Array) -> dict[str, Array]:
        """[M, H, W, C] normalised images to the input [M, i] of every layer of `dense_layers`."""
        inputs = self.run(weights, images).linear_inputs
        return {layer: inputs[layer] for layer in self.dense_layers}

    @cached_property
    def dense_layers(self) -> list[str]:
        """The linear layers that run once on [M, i], before which neither dropout nor a batch's statistics act."""
        found: list[str] = []
        mixed = {
            result
            for node in self._nodes
            if node.arguments.get("training") or node.arguments.get("train")
            for result in node.results
        }
        for node in self._nodes:
            parts = self._linear_parts(node)
            if mixed.intersection(_names(node)):
                mixed |= set(node.results)
            elif parts and (layer := self._layer_of(node)) and len(self.export.sizes[parts[0]]) == 2:
                found.append(layer)
        return [layer for layer in found if found.count(layer) == 1]

    def run(self, weights: Weights, images: Array, mask: Array | None = None) -> Traced:
        """Evaluate the graph.

        Args:
            weights: as `init` returns them.
            images: [M, H, W, C] normalised.
            mask: [M] which images count in the statistics of a batch, in training mode; None for evaluation.
        """
        values = self._inputs(weights) | {self.export.image: images.transpose(0, 3, 1, 2)}
        statistics: Weights = {}
        linear_inputs: dict[str, Array] = {}
        for node in self._nodes:
            given = {name: _resolved(value, values) for name, value in node.arguments.items()}
            if (parts := self._linear_parts(node)) and (layer := self._layer_of(node)):
                linear_inputs[layer] = values[parts[0]]
            for size in {"size", "shape"} & set(given):
                given[size] = self._with_batch_size(node, given[size], len(images))
            first, *others = given
            rest = {name: given[name] for name in others}
            if mask is not None and given.get("training"):
                result, new = _batch_norm_training(given[first], mask=mask, **rest)
                for argument, statistic in new.items():
                    layer, leaf = _split(self.export.buffers[node.arguments[argument]])
                    statistics.setdefault(layer, {})[leaf] = statistic
            else:
                result = OPERATORS[node.operator.rstrip("_")](given[first], **rest)
            results = result if isinstance(result, list) else [result]
            values.update(zip(node.results, results, strict=False))
            if node.operator.endswith("_"):
                # In torch, an operator with this ending replaces its first argument.
                values[node.arguments["self"]] = results[0]
        if mask is not None:
            for name in self._statistics:
                # Those of batch normalisation in evaluation mode stay as they are.
                layer, leaf = self.place(name)
                statistics.setdefault(layer, {}).setdefault(leaf, weights[layer][leaf])
        return Traced(values[self._last.results[0]], statistics, linear_inputs)

    def _inputs(self, weights: Weights) -> dict[str, Any]:
        """The values of the graph that are there before it runs, except the images."""
        values: dict[str, Any] = dict(self.export.tensors)
        for value, name in self.export.parameters.items():
            layer, leaf = self.place(name)
            if layer in weights:
                values[value] = weights[layer][leaf].T if leaf == "kernel" else weights[layer][leaf]
        for value, name in self.export.buffers.items():
            layer, leaf = _split(name)
            values[value] = lax.stop_gradient(weights.get(layer, {}).get(leaf, _as_jax(self.export.tensors[name])))
        return values

    def _with_batch_size(self, node: Node, size: Sequence[int], num_images: int) -> list[int]:
        """A size with this batch's number of images first, where the network was exported for a fixed number."""
        exported = self.export.image_sizes[0]
        before = self.export.sizes[node.arguments["self"]]
        is_fixed = exported is not None and before[:1] == [exported] and list(size[:1]) == [exported]
        return [num_images, *size[1:]] if is_fixed else list(size)


def _names(node: Node) -> list[Name]:
    """The values that a node reads."""
    lists = [value if isinstance(value, list) else [value] for value in node.arguments.values()]
    return [value for values in lists for value in values if isinstance(value, Name)]


def _as_jax(array: Any) -> Array:
    """A constant; whole numbers in 32 bits, as everything else."""
    kind = jnp.float32 if jnp.issubdtype(array.dtype, jnp.floating) else jnp.int32
    return jnp.asarray(array.astype(kind))


def _resolved(value: Any, values: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [_resolved(one, values) for one in value]
    found = values[value] if isinstance(value, Name) else value
    return _as_jax(found) if isinstance(found, np.ndarray) else found


def _binary(combine: Callable[[Any, Any], Array]) -> Callable[..., Array]:
    """An operator of two values, broadcast from the last dimension as in torch."""

    def operator(one: Any, other: Any, alpha: float = 1) -> Array:
        rank = max(jnp.ndim(one), jnp.ndim(other))
        left, right = (
            value.reshape((1,) * (rank - value.ndim) + value.shape) if isinstance(value, Array) else value
            for value in (one, other)
        )
        return combine(left, right if alpha == 1 else right * alpha)

    return operator


def _per_channel(values: Array | None, rank: int) -> Any:
    """[C] so that it broadcasts to [M, C, ...]."""
    return None if values is None else values.reshape((1, -1) + (1,) * (rank - 2))


def _affine(normal: Array, weight: Array | None, bias: Array | None) -> Array:
    if weight is not None:
        normal = normal * weight
    return normal if bias is None else normal + bias


def _normal(inputs: Array, axes: tuple[int, ...], eps: float) -> Array:
    mean = inputs.mean(axes, keepdims=True)
    variance = ((inputs - mean) ** 2).mean(axes, keepdims=True)
    return (inputs - mean) * lax.rsqrt(variance + eps)


def _pair(value: Any) -> tuple[int, int]:
    one, two = value if len(value) == 2 else (value[0], value[0])
    return one, two


def _convolution(
    inputs: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] | str = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    transposed: bool = False,
    output_padding: Sequence[int] = (0, 0),
) -> Array:
    if transposed or weight.ndim != 4:
        raise DataError("uses a convolution that is transposed or not over two dimensions, which is not supported.")
    # Torch pads "same" one more at the end, as JAX does.
    edges = padding.upper() if isinstance(padding, str) else [(side, side) for side in _pair(padding)]
    result = lax.conv_general_dilated(
        inputs,
        weight,
        _pair(stride),
        edges,
        rhs_dilation=_pair(dilation),
        feature_group_count=groups,
        precision=lax.Precision.HIGHEST,
    )
    return _affine(result, None, _per_channel(bias, 4))


def _linear(inputs: Array, weight: Array, bias: Array | None = None) -> Array:
    result = jnp.matmul(inputs, weight.T, precision=lax.Precision.HIGHEST)
    return _affine(result, None, None if bias is None else bias.reshape((1,) * (result.ndim - 1) + bias.shape))


def _addmm(inputs: Array, mat1: Array, mat2: Array, beta: float = 1, alpha: float = 1) -> Array:
    product = jnp.matmul(mat1, mat2, precision=lax.Precision.HIGHEST)
    return alpha * product + beta * inputs.reshape((1,) * (2 - inputs.ndim) + inputs.shape)


def _windows(
    inputs: Array, size: Sequence[int], stride: Sequence[int], padding: Sequence[int], *, ceil_mode: bool
) -> tuple[tuple[int, ...], tuple[int, ...], list[tuple[int, int]]]:
    """Size, strides and padding of a pooling window; a rounded-up output pads more at the end."""
    sizes, sides = _pair(size), _pair(padding)
    strides = _pair(stride) if stride else sizes
    edges = []
    for length, window, step, side in zip(inputs.shape[2:], sizes, strides, sides, strict=True):
        rest = (length + 2 * side - window) % step
        # A window that begins in the padding at the end is left out.
        begins = length + 2 * side - window - rest + step
        more = step - rest if ceil_mode and rest and begins < length + side else 0
        edges.append((side, side + more))
    return (1, 1, *sizes), (1, 1, *strides), [(0, 0), (0, 0), *edges]


def _max_pool(
    inputs: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    ceil_mode: bool = False,
) -> Array:
    size, strides, edges = _windows(inputs, kernel_size, stride, padding, ceil_mode=ceil_mode)
    if _pair(dilation) != (1, 1):
        raise DataError("uses max pooling with a dilation, which is not supported.")
    return lax.reduce_window(inputs, -jnp.inf, lax.max, size, strides, edges)


def _average_pool(
    inputs: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Array:
    size, strides, edges = _windows(inputs, kernel_size, stride, padding, ceil_mode=ceil_mode)
    total = lax.reduce_window(inputs, 0.0, lax.add, size, strides, edges)
    if divisor_override:
        return total / divisor_override
    # Counted on the host: padding counts where torch says so, but never what a rounded-up output adds.
    side = [p if count_include_pad else 0 for p in (0, 0, *_pair(padding))]
    ones = np.pad(np.ones((1, 1, *inputs.shape[2:]), np.float32), [(p, p) for p in side])
    rest = [(before - p, after - p) for (before, after), p in zip(edges, side, strict=True)]
    with jax.ensure_compile_time_eval():
        counts = lax.reduce_window(jnp.asarray(ones), 0.0, lax.add, size, strides, rest)
    return total / counts


def _adaptive_average_pool(inputs: Array, output_size: Sequence[int]) -> Array:
    for axis, size in zip((2, 3), _pair(output_size), strict=True):
        length = inputs.shape[axis]
        ends = [(i * length // size, -(-(i + 1) * length // size)) for i in range(size)]
        parts = [lax.slice_in_dim(inputs, a, b, axis=axis).mean(axis, keepdims=True) for a, b in ends]
        inputs = jnp.concatenate(parts, axis)
    return inputs


def _batch_norm_training(
    inputs: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    momentum: float,
    eps: float,
    mask: Array,
    **_: Any,
) -> tuple[Array, dict[str, Array]]:
    """Normalised with the statistics of the batch's images, and the new running statistics by their argument."""
    mean, variance, unbiased = batch_statistics(inputs, mask, (0, *range(2, inputs.ndim)))
    normal = (inputs - mean) * lax.rsqrt(variance + eps)
    # Torch corrects the variance that it keeps, but not the one that it normalises with.
    kept = {"running_mean": mean, "running_var": unbiased}
    old = {"running_mean": running_mean, "running_var": running_var}
    new = {
        name: (1 - momentum) * before + momentum * kept[name].reshape(-1)
        for name, before in old.items()
        if before is not None
    }
    return _affine(normal, _per_channel(weight, inputs.ndim), _per_channel(bias, inputs.ndim)), new


def _batch_norm(
    inputs: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    eps: float = 1e-5,
    **_: Any,
) -> Array:
    """With running statistics."""
    if running_mean is None or running_var is None:
        raise DataError("uses batch normalisation with track_running_stats=False, which is not supported; set it True.")
    mean, variance = (_per_channel(statistic, inputs.ndim) for statistic in (running_mean, running_var))
    weight, bias = (_per_channel(v, inputs.ndim) for v in (weight, bias))
    return _affine((inputs - mean) * lax.rsqrt(variance + eps), weight, bias)


def _group_norm(
    inputs: Array,
    num_groups: int = 0,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    group: int = 0,
    **_: Any,
) -> Array:
    by_group = inputs.reshape(inputs.shape[0], num_groups or group, -1)
    normal = _normal(by_group, (2,), eps).reshape(inputs.shape)
    weight, bias = (_per_channel(v, inputs.ndim) for v in (weight, bias))
    return _affine(normal, weight, bias)


def _layer_norm(
    inputs: Array,
    normalized_shape: Sequence[int],
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    **_: Any,
) -> Array:
    rank = len(normalized_shape)
    lead = (1,) * (inputs.ndim - rank)
    weight, bias = (None if v is None else v.reshape(lead + v.shape) for v in (weight, bias))
    return _affine(_normal(inputs, tuple(range(inputs.ndim - rank, inputs.ndim)), eps), weight, bias)


def _flatten(inputs: Array, start_dim: int = 0, end_dim: int = -1) -> Array:
    start, end = start_dim % inputs.ndim, end_dim % inputs.ndim
    return inputs.reshape(*inputs.shape[:start], -1, *inputs.shape[end + 1 :])


def _expand(inputs: Array, size: Sequence[int], **_: Any) -> Array:
    lead = inputs.reshape((1,) * (len(size) - inputs.ndim) + inputs.shape)
    return jnp.broadcast_to(lead, [there if here < 0 else here for here, there in zip(size, lead.shape, strict=True)])


def _slice(inputs: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    chosen = [slice(None)] * inputs.ndim
    chosen[dim] = slice(start, end, step)
    return inputs[tuple(chosen)]


def _pad(inputs: Array, pad: Sequence[int], value: float = 0, mode: str = "constant") -> Array:
    if mode != "constant":
        raise DataError(f"pads in mode {shown(mode)}, which is not supported; only 'constant' is.")
    edges = [(0, 0, 0)] * inputs.ndim
    for axis in range(len(pad) // 2):
        edges[-1 - axis] = (pad[2 * axis], pad[2 * axis + 1], 0)
    return lax.pad(inputs, jnp.asarray(value or 0, inputs.dtype), edges)


def _split_sections(inputs: Array, split_size: int | Sequence[int], dim: int = 0) -> list[Array]:
    length = inputs.shape[dim]
    sizes = list(split_size) if not isinstance(split_size, int) else [split_size] * -(-length // split_size)
    return jnp.split(inputs, [int(end) for end in np.cumsum(sizes)[:-1]], dim)


def _axes(dim: Any) -> tuple[int, ...] | None:
    return None if not dim and dim != 0 else tuple(dim) if isinstance(dim, list) else (dim,)


def _unchanged(inputs: Array, **_: Any) -> Array:
    return inputs


OPERATORS: dict[str, Callable[..., Any]] = {
    # Layers with parameters.
    "conv2d": _convolution,
    "convolution": _convolution,
    "linear": _linear,
    "addmm": _addmm,
    "mm": lambda x, mat2: jnp.matmul(x, mat2, precision=lax.Precision.HIGHEST),
    "batch_norm": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "_native_batch_norm_legit_functional": _batch_norm,
    "group_norm": _group_norm,
    "native_group_norm": _group_norm,
    "layer_norm": _layer_norm,
    "native_layer_norm": _layer_norm,
    # Activations.
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "leaky_relu": lambda x, negative_slope=0.01: jax.nn.leaky_relu(x, negative_slope),
    "elu": lambda x, alpha=1.0: jax.nn.elu(x, alpha),
    "gelu": lambda x, approximate="none": jax.nn.gelu(x, approximate=approximate == "tanh"),
    "silu": jax.nn.silu,
    "mish": jax.nn.mish,
    "sigmoid": jax.nn.sigmoid,
    "softplus": jax.nn.softplus,
    "tanh": jnp.tanh,
    "hardswish": jax.nn.hard_swish,
    "hardsigmoid": jax.nn.hard_sigmoid,
    "hardtanh": lambda x, min_val=-1.0, max_val=1.0: jnp.clip(x, min_val, max_val),
    "clamp": lambda x, min=None, max=None: jnp.clip(x, min, max),  # noqa: A006 - torch's names
    # Pooling.
    "max_pool2d": _max_pool,
    "max_pool2d_with_indices": _max_pool,
    "avg_pool2d": _average_pool,
    "adaptive_avg_pool2d": _adaptive_average_pool,
    "_adaptive_avg_pool2d": _adaptive_average_pool,
    # Arithmetic.
    "add": _binary(lambda a, b: a + b),
    "sub": _binary(lambda a, b: a - b),
    "mul": _binary(lambda a, b: a * b),
    "div": _binary(lambda a, b: a / b),
    "neg": jnp.negative,
    "pow": lambda x, exponent: x**exponent,
    "sqrt": jnp.sqrt,
    "exp": jnp.exp,
    "mean": lambda x, dim=None, keepdim=False, **_: x.mean(_axes(dim), keepdims=keepdim),
    "sum": lambda x, dim=None, keepdim=False, **_: x.sum(_axes(dim), keepdims=keepdim),
    # Shapes.
    "cat": lambda tensors, dim=0: jnp.concatenate(tensors, dim),
    "flatten": _flatten,
    "view": lambda x, size: x.reshape(size),
    "reshape": lambda x, shape: x.reshape(shape),
    "_unsafe_view": lambda x, size: x.reshape(size),
    "permute": lambda x, dims: x.transpose(dims),
    "transpose": lambda x, dim0, dim1: x.swapaxes(dim0, dim1),
    "t": lambda x: x.T,
    "squeeze": lambda x, dim=None: x.squeeze(_axes(dim)),
    "unsqueeze": lambda x, dim: jnp.expand_dims(x, (dim,)),
    "expand": _expand,
    "slice": _slice,
    "select": lambda x, dim, index: x.take(index, dim),
    "split": _split_sections,
    "chunk": lambda x, chunks, dim=0: _split_sections(x, -(-x.shape[dim] // chunks), dim),
    "pad": _pad,
    "constant_pad_nd": _pad,
    "sym_size": lambda x, dim: x.shape[dim],
    # What changes nothing here; dropout is simulated as off.
    **dict.fromkeys(("dropout", "feature_dropout", "native_dropout"), _unchanged),
    **dict.fromkeys(("alias", "clone", "contiguous", "lift_fresh_copy", "to"), _unchanged),
    "detach": lax.stop_gradient,
}

# Their results may share the memory of their first argument.
_VIEWS = (
    *("view", "reshape", "flatten", "permute", "transpose", "t", "squeeze", "unsqueeze", "expand", "slice", "select"),
    *("split", "chunk", "alias", "contiguous", "detach", "to"),
)
