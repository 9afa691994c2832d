"""Networks as small records of pure functions: the paper's two, as used and as printed, an MLP, and one's own.

The paper's numbers were produced with networks that differ from the table in its appendix: here `femnist_cnn` and
`cifar100_cnn` are those really used, `femnist_cnn_printed` and `cifar100_cnn_printed` those of the table.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.special import ndtr, ndtri

from workbench import chain
from workbench.chain import Layer, Weights
from workbench.errors import ConfigError, DataError, check_choice, check_count, shown
from workbench.randomness import named_generator

__all__ = [
    "Model",
    "Weights",
    "build",
    "check_image_shape",
    "check_shapes",
    "check_weights",
    "cifar100_cnn",
    "cifar100_cnn_printed",
    "femnist_cnn",
    "femnist_cnn_printed",
    "mlp",
    "shapes_of",
]

Shapes = dict[str, dict[str, tuple[int, ...]]]
"""Layer name to the shapes of its arrays."""


@dataclass(frozen=True, eq=False)
class Model:
    """A network as pure functions on a tree of weights.

    For one's own network give the functions; everything else in the workbench works with it as with the built-in ones.
    The last layer must be linear, with its ``kernel`` [i, K] (and ``bias`` [K], where it has one) in the weights under
    the last name of ``layer_names``: that is where label information sits.

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
        object.__setattr__(self, "image_shape", check_image_shape(self.image_shape))
        object.__setattr__(self, "num_classes", check_count("num_classes", self.num_classes, minimum=2))
        if not isinstance(self.layer_names, tuple | list) or not all(isinstance(n, str) for n in self.layer_names):
            raise ConfigError(f"layer_names = {shown(self.layer_names)} must be the names of the layers.")
        object.__setattr__(self, "layer_names", tuple(self.layer_names))
        for function in ("init", "apply", "features"):
            if not callable(getattr(self, function)):
                raise ConfigError(f"{function} = {shown(getattr(self, function))} must be a function.")
        if self.chain is None:
            self._check_functions()

    def _check_functions(self) -> None:
        """One's own functions must fit each other: too many logits, say, would train without a word."""
        weights = _result_shape("init", partial(self.init, 0))
        if not isinstance(weights, dict) or not all(isinstance(arrays, dict) for arrays in weights.values()):
            raise ConfigError(f"init(0) = {shown(weights)} must be {{layer: {{name: array}}}}.")
        if set(self.layer_names) != set(weights) or not self.layer_names:
            raise ConfigError(f"layer_names = {self.layer_names} must be the layers of init(0), {tuple(weights)}.")
        kernel = weights[self.last_layer].get("kernel")
        if kernel is None or len(kernel.shape) != 2 or kernel.shape[1] != self.num_classes:
            raise ConfigError(
                f"init(0)['{self.last_layer}'] must have a kernel [i, {self.num_classes}]: the last layer is linear, "
                "with one output for each class."
            )
        images = jnp.zeros((2, *self.image_shape))
        for name, function, width in (
            ("apply", self.apply, self.num_classes),
            ("features", self.features, kernel.shape[0]),
        ):
            found = getattr(_result_shape(name, function, weights, images), "shape", None)
            if found != (2, width):
                raise ConfigError(f"{name} makes {found} of 2 images; it must make (2, {width}).")

    @property
    def last_layer(self) -> str:
        return self.layer_names[-1]

    @cached_property
    def shapes(self) -> Shapes:
        """The shape of every array of the weights, without computing any."""
        return shapes_of(jax.eval_shape(partial(self.init, 0)))

    def check_weights(self, weights: Any, field: str = "weights") -> Weights:
        """Return the weights as float32 arrays if they are this network's and finite."""
        checked = check_weights(weights, field)
        check_shapes(checked, field, self.shapes, self.name)
        return checked


def _result_shape(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The shapes of what somebody's function returns, without computing it."""
    try:
        return jax.eval_shape(function, *arguments)
    # Whatever it raises, the error says which function it was and keeps the cause.
    except Exception as error:
        raise ConfigError(f"{name} fails with {type(error).__name__}: {shown(str(error))}.") from error


def shapes_of(weights: Any) -> Shapes:
    """The shape of every array of the weights."""
    return {layer: {name: array.shape for name, array in arrays.items()} for layer, arrays in weights.items()}


def check_weights(weights: Any, field: str = "weights") -> Weights:
    """Return the weights as float32 arrays if they are ``{layer: {name: array}}`` with finite numbers only."""
    if not isinstance(weights, dict) or not weights:
        raise DataError(f"{field} = {shown(weights)} must be {{layer: {{name: array}}}} with at least one layer.")
    for layer, arrays in weights.items():
        if not isinstance(layer, str) or not layer:
            raise DataError(f"{field} has a layer named {shown(layer)}; a name must be text.")
        if not isinstance(arrays, dict) or not arrays:
            raise DataError(f"{field}['{layer}'] = {shown(arrays)} must be {{name: array}} with at least one array.")
        for name in arrays:
            # Files name arrays 'layer/array'.
            if not isinstance(name, str) or not name or "/" in name:
                raise DataError(f"{field}['{layer}'] has an array named {shown(name)}; a name is text without '/'.")
    return {
        layer: {name: _check_array(array, f"{field}['{layer}']['{name}']") for name, array in arrays.items()}
        for layer, arrays in weights.items()
    }


def _check_array(array: Any, field: str) -> Array:
    try:
        numbers = np.asarray(array)
    except (TypeError, ValueError):
        raise DataError(f"{field} = {shown(array)} must be an array of numbers.") from None
    if not jnp.issubdtype(numbers.dtype, jnp.floating):
        raise DataError(f"{field} has dtype {numbers.dtype}; weights must be floating-point numbers.")
    with np.errstate(over="ignore"):
        numbers = numbers.astype(np.float32, copy=False)
    if not np.isfinite(numbers).all():
        raise DataError(f"{field} contains NaN or infinite values; all weights must be finite.")
    # An array of JAX's stays on its device; any other is copied, for its owner may change it.
    return array if isinstance(array, Array) and array.dtype == jnp.float32 else jnp.array(numbers)


def check_shapes(weights: Weights, field: str, right: Shapes, owner: str) -> None:
    """The weights must have the arrays, and these the shapes, that ``owner`` has."""
    found = shapes_of(weights)
    if found == right:
        return
    for layer in sorted(found.keys() | right.keys()):
        for name in sorted(found.get(layer, {}).keys() | right.get(layer, {}).keys()):
            here, there = (shapes.get(layer, {}).get(name) for shapes in (found, right))
            if here is None:
                raise DataError(f"{field}['{layer}']['{name}'] is missing; {owner} has it, with shape {there}.")
            if there is None:
                raise DataError(f"{field}['{layer}']['{name}'] is one too many; {owner} has no such array.")
            if here != there:
                raise DataError(f"{field}['{layer}']['{name}'] has shape {here}; {owner} has {there}.")


def _initial_weights(layers: tuple[Layer, ...], seed: int = 0) -> Weights:
    """LeCun normal kernels, zero biases; drawn on the host, where nothing needs compiling."""
    seed = check_count("seed", seed, minimum=0)
    return {
        layer.name: {
            "kernel": _lecun_normal(named_generator(seed, f"weights/{layer.name}"), layer.kernel_shape),
            "bias": jnp.zeros(layer.kernel_shape[-1], jnp.float32),
        }
        for layer in layers
    }


def _lecun_normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Normal draws without those beyond two standard deviations, of variance 1 / (inputs of an output)."""
    inside = ndtr(2) - ndtr(-2)
    draws = ndtri(rng.uniform(ndtr(-2), ndtr(2), shape))
    variance = 1 - 4 * math.exp(-2) / (math.sqrt(2 * math.pi) * inside)
    return jnp.asarray(draws / math.sqrt(variance * math.prod(shape[:-1])), jnp.float32)


def _from_chain(
    name: str, image_shape: tuple[int, int, int], layers: tuple[Layer, ...], options: dict[str, Any]
) -> Model:
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


def _cnn(
    name: str, image_shape: tuple[int, int, int], channels: int, second_kernel: int, hidden: int, num_classes: int
) -> Model:
    # Before the cache, which takes 62.0 for 62.
    return _cached_cnn(
        name, image_shape, channels, second_kernel, hidden, check_count("num_classes", num_classes, minimum=2)
    )


@lru_cache(maxsize=64)
def _cached_cnn(
    name: str, image_shape: tuple[int, int, int], channels: int, second_kernel: int, hidden: int, num_classes: int
) -> Model:
    height, width, input_channels = image_shape
    # With padding 1 a 3 x 3 kernel keeps the size, a 1 x 1 kernel adds a border of 1.
    grown = 3 - second_kernel
    flat = ((height // 2 + grown) // 2) * ((width // 2 + grown) // 2) * 2 * channels
    layers = (
        Layer("Conv_0", (3, 3, input_channels, channels), padding=1, pool=True),
        Layer("Conv_1", (second_kernel, second_kernel, channels, 2 * channels), padding=1, pool=True),
        Layer("Dense_0", (flat, hidden)),
        Layer("last_layer", (hidden, num_classes), relu=False),
    )
    return _from_chain(name, image_shape, layers, {"num_classes": num_classes})


def femnist_cnn(num_classes: int = 62) -> Model:
    """The network of the paper's FEMNIST experiments, on 28 x 28 x 1 pictures.

    >>> femnist_cnn().shapes["Dense_0"]["kernel"]
    (3136, 100)
    """
    return _cnn("femnist_cnn", (28, 28, 1), 32, 3, 100, num_classes)


def cifar100_cnn(num_classes: int = 100) -> Model:
    """The network of the paper's CIFAR100 experiments, on 32 x 32 x 3 pictures."""
    return _cnn("cifar100_cnn", (32, 32, 3), 64, 3, 200, num_classes)


def femnist_cnn_printed(num_classes: int = 62) -> Model:
    """The FEMNIST network as the paper prints it (Table 5): 32 x 32 x 3 inputs, a 1 x 1 second convolution."""
    return _cnn("femnist_cnn_printed", (32, 32, 3), 32, 1, 100, num_classes)


def cifar100_cnn_printed(num_classes: int = 100) -> Model:
    """The CIFAR100 network as the paper prints it (Table 5): a 1 x 1 second convolution with padding 1."""
    return _cnn("cifar100_cnn_printed", (32, 32, 3), 64, 1, 200, num_classes)


@lru_cache(maxsize=64)
def _cached_mlp(image_shape: tuple[int, int, int], widths: tuple[int, ...], num_classes: int) -> Model:
    sizes = (math.prod(image_shape), *widths, num_classes)
    names = [*(f"Dense_{i}" for i in range(len(widths))), "last_layer"]
    layers = tuple(
        Layer(name, shape, relu=name != "last_layer") for name, shape in zip(names, pairwise(sizes), strict=True)
    )
    options = {"image_shape": image_shape, "widths": widths, "num_classes": num_classes}
    return _from_chain("mlp", image_shape, layers, options)


def mlp(
    image_shape: tuple[int, int, int] = (28, 28, 1), widths: tuple[int, ...] = (100,), num_classes: int = 62
) -> Model:
    """A fully connected ReLU network with hidden layers of the given widths.

    >>> mlp(widths=(64, 32)).layer_names
    ('Dense_0', 'Dense_1', 'last_layer')
    """
    try:
        hidden = tuple(widths)
    except TypeError:
        raise ConfigError(f"widths = {shown(widths)} must be the widths of the hidden layers.") from None
    return _cached_mlp(
        check_image_shape(image_shape),
        tuple(check_count("widths", width) for width in hidden),
        check_count("num_classes", num_classes, minimum=2),
    )


def check_image_shape(image_shape: Any) -> tuple[int, int, int]:
    """Return the shape of one image if it is (height, width, channels)."""
    try:
        height, width, channels = (check_count("image_shape", size) for size in image_shape)
    except (TypeError, ValueError):
        raise ConfigError(
            f"image_shape = {shown(image_shape)} must be (height, width, channels), whole numbers of at least 1."
        ) from None
    return height, width, channels


_BUILDERS: dict[str, Callable[..., Model]] = {
    builder.__name__: builder for builder in (femnist_cnn, cifar100_cnn, femnist_cnn_printed, cifar100_cnn_printed, mlp)
}


def build(name: str, **options: Any) -> Model:
    """A built-in network by name.

    >>> build("femnist_cnn", num_classes=10).num_classes
    10
    """
    builder = _BUILDERS[check_choice("model", name, _BUILDERS)]
    known = inspect.signature(builder).parameters
    for option in options:
        check_choice(f"option of {name}", option, known)
    return builder(**options)
