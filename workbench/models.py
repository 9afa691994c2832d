"""Networks as small records of pure functions: the paper's two, as used and as printed, an MLP, and one's own.

The paper's numbers were produced with networks that differ from the table in its appendix: here `femnist_cnn` and
`cifar100_cnn` are those really used, `femnist_cnn_printed` and `cifar100_cnn_printed` those of the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from workbench import chain
from workbench.chain import Layer, Weights
from workbench.errors import ConfigError, DataError, check_choice, check_count
from workbench.randomness import named_key

__all__ = [
    "Model",
    "Weights",
    "build",
    "cifar100_cnn",
    "cifar100_cnn_printed",
    "femnist_cnn",
    "femnist_cnn_printed",
    "mlp",
]


@dataclass(frozen=True, eq=False)
class Model:
    """A network as pure functions on a tree of weights.

    For one's own network give the functions; everything else in the workbench works with it as with the built-in ones.
    The last layer must be linear, with its ``kernel`` [i, K] (and ``bias`` [K], where it has one) in the weights under the
    last name of ``layer_names``: that is where label information sits.

    Attributes:
        name: for people and for saved files.
        image_shape: (H, W, C) of one input.
        num_classes: K.
        layer_names: the keys of the weights, from the input to the output.
        init: seed to weights, ``{layer name: {"kernel": ..., "bias": ...}}``.
        apply: (weights, normalised images [M, H, W, C]) to logits [M, K].
        features: (weights, normalised images [M, H, W, C]) to what enters the last layer [M, i].
        chain: the layers, where the network is a chain of them: gradients then come from hand-written code.
        options: the arguments that `build` needs to make this network again; None for one's own.
    """

    name: str
    image_shape: tuple[int, int, int]
    num_classes: int
    layer_names: tuple[str, ...]
    init: Callable[..., Weights] = field(repr=False)
    apply: Callable[[Weights, Array], Array] = field(repr=False)
    features: Callable[[Weights, Array], Array] = field(repr=False)
    chain: tuple[Layer, ...] | None = field(default=None, repr=False)
    options: tuple[tuple[str, Any], ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if len(self.image_shape) != 3:
            raise ConfigError(f"image_shape = {self.image_shape!r} must be (height, width, channels).")
        for size in self.image_shape:
            check_count("image_shape", size)
        check_count("num_classes", self.num_classes, minimum=2)
        for function in ("init", "apply", "features"):
            if not callable(getattr(self, function)):
                raise ConfigError(f"{function} = {getattr(self, function)!r} must be a function.")
        if not self.layer_names:
            raise ConfigError("layer_names = () must name at least the last layer.")

    @property
    def last_layer(self) -> str:
        return self.layer_names[-1]

    @property
    def shapes(self) -> dict[str, dict[str, tuple[int, ...]]]:
        """The shape of every array of the weights, without computing any."""
        tree = jax.eval_shape(lambda: self.init(0))
        return {layer: {name: leaf.shape for name, leaf in arrays.items()} for layer, arrays in tree.items()}

    def check_weights(self, weights: Any, field: str = "weights") -> Weights:
        """Return the weights as float32 arrays if they are this network's and finite."""
        shapes = self.shapes
        if not isinstance(weights, dict) or set(weights) != set(shapes):
            found = sorted(weights) if isinstance(weights, dict) else type(weights).__name__
            raise DataError(f"{field} has the layers {found}; {self.name} needs {sorted(shapes)}.")
        checked: Weights = {}
        for layer, arrays in shapes.items():
            if not isinstance(weights[layer], dict) or set(weights[layer]) != set(arrays):
                raise DataError(f"{field}['{layer}'] must hold the arrays {sorted(arrays)}.")
            checked[layer] = {}
            for name, shape in arrays.items():
                try:
                    array = jnp.asarray(weights[layer][name], jnp.float32)
                except (TypeError, ValueError):
                    raise DataError(f"{field}['{layer}']['{name}'] is not an array of numbers.") from None
                if array.shape != shape:
                    raise DataError(f"{field}['{layer}']['{name}'] has shape {array.shape}; {self.name} needs {shape}.")
                if not bool(jnp.isfinite(array).all()):
                    raise DataError(
                        f"{field}['{layer}']['{name}'] contains NaN or infinite values; all must be finite."
                    )
                checked[layer][name] = array
        return checked


def _initial_weights(layers: tuple[Layer, ...], seed: int = 0) -> Weights:
    """LeCun normal kernels, zero biases."""
    check_count("seed", seed, minimum=0)
    lecun_normal = jax.nn.initializers.lecun_normal()
    return {
        layer.name: {
            "kernel": lecun_normal(named_key(seed, f"weights/{layer.name}"), layer.kernel_shape, jnp.float32),
            "bias": jnp.zeros(layer.kernel_shape[-1], jnp.float32),
        }
        for layer in layers
    }


def _from_chain(name: str, image_shape: tuple[int, int, int], layers: tuple[Layer, ...], **options: Any) -> Model:
    return Model(
        name=name,
        image_shape=image_shape,
        num_classes=layers[-1].kernel_shape[-1],
        layer_names=tuple(layer.name for layer in layers),
        init=partial(_initial_weights, layers),
        apply=partial(chain.logits, layers),
        features=partial(chain.features, layers),
        chain=layers,
        options=tuple(sorted(options.items())),
    )


@lru_cache(maxsize=64)
def _cnn(name: str, image_shape: tuple[int, int, int], width: int, second_kernel: int, num_classes: int) -> Model:
    height, columns, channels = image_shape
    num_classes = check_count("num_classes", num_classes, minimum=2)
    # With padding 1 a 3 x 3 kernel keeps the size, a 1 x 1 kernel adds a border of 1.
    grown = 3 - second_kernel
    flat = ((height // 2 + grown) // 2) * ((columns // 2 + grown) // 2) * 2 * width
    hidden = {32: 100, 64: 200}[width]
    layers = (
        Layer("Conv_0", (3, 3, channels, width), padding=1, pool=True),
        Layer("Conv_1", (second_kernel, second_kernel, width, 2 * width), padding=1, pool=True),
        Layer("Dense_0", (flat, hidden)),
        Layer("last_layer", (hidden, num_classes), relu=False),
    )
    return _from_chain(name, image_shape, layers, num_classes=num_classes)


def femnist_cnn(num_classes: int = 62) -> Model:
    """The network of the paper's FEMNIST experiments, on 28 x 28 x 1 pictures.

    >>> femnist_cnn().shapes["Dense_0"]["kernel"]
    (3136, 100)
    """
    return _cnn("femnist_cnn", (28, 28, 1), 32, 3, num_classes)


def cifar100_cnn(num_classes: int = 100) -> Model:
    """The network of the paper's CIFAR100 experiments, on 32 x 32 x 3 pictures."""
    return _cnn("cifar100_cnn", (32, 32, 3), 64, 3, num_classes)


def femnist_cnn_printed(num_classes: int = 62) -> Model:
    """The FEMNIST network as the paper prints it (Table 5): 32 x 32 x 3 inputs, a 1 x 1 second convolution."""
    return _cnn("femnist_cnn_printed", (32, 32, 3), 32, 1, num_classes)


def cifar100_cnn_printed(num_classes: int = 100) -> Model:
    """The CIFAR100 network as the paper prints it (Table 5): a 1 x 1 second convolution with padding 1."""
    return _cnn("cifar100_cnn_printed", (32, 32, 3), 64, 1, num_classes)


@lru_cache(maxsize=64)
def _mlp(image_shape: tuple[int, int, int], widths: tuple[int, ...], num_classes: int) -> Model:
    sizes = (math.prod(image_shape), *widths, num_classes)
    names = [*(f"Dense_{i}" for i in range(len(widths))), "last_layer"]
    layers = tuple(
        Layer(name, shape, relu=name != "last_layer")
        for name, shape in zip(names, zip(sizes, sizes[1:], strict=False), strict=True)
    )
    return _from_chain("mlp", image_shape, layers, image_shape=image_shape, widths=widths, num_classes=num_classes)


def mlp(
    image_shape: tuple[int, int, int] = (28, 28, 1), widths: tuple[int, ...] = (100,), num_classes: int = 62
) -> Model:
    """A fully connected ReLU network with hidden layers of the given widths.

    >>> mlp(widths=(64, 32)).layer_names
    ('Dense_0', 'Dense_1', 'last_layer')
    """
    try:
        image_shape, widths = tuple(image_shape), tuple(widths)  # type: ignore[assignment]
    except TypeError:
        raise ConfigError(
            f"image_shape = {image_shape!r} and widths = {widths!r} must be sequences of numbers."
        ) from None
    if len(image_shape) != 3:
        raise ConfigError(f"image_shape = {image_shape!r} must be (height, width, channels).")
    height, width, channels = (check_count("image_shape", size) for size in image_shape)
    hidden = tuple(check_count("widths", width) for width in widths)
    return _mlp((height, width, channels), hidden, check_count("num_classes", num_classes, minimum=2))


_BUILDERS: dict[str, Callable[..., Model]] = {
    builder.__name__: builder for builder in (femnist_cnn, cifar100_cnn, femnist_cnn_printed, cifar100_cnn_printed, mlp)
}


def build(name: str, **options: Any) -> Model:
    """A built-in network by name.

    >>> build("femnist_cnn", num_classes=10).num_classes
    10
    """
    builder = _BUILDERS[check_choice("model", name, _BUILDERS)]
    try:
        return builder(**options)
    except TypeError:
        raise ConfigError(f"model options {sorted(options)} do not fit {name}.") from None
