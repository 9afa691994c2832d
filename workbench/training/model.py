"""The type of a network: a record of pure functions on a tree of weights."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from workbench.errors import ConfigError, check_count, shown
from workbench.training.chain import Layer
from workbench.weights import Shapes, Weights, check_shapes, check_weights, shapes_of

__all__ = ["Model", "check_image_shape"]


@dataclass(frozen=True, eq=False)
class Model:
    """A network as pure functions on a tree of weights.

    A custom network is defined by its functions; everything else in the workbench treats it like a built-in network.
    The last layer must be linear. Its ``kernel`` [i, K] (and ``bias`` [K], if it has one) is in the weights under the
    last name of ``layer_names``, where the label recovery reads it.

    Attributes:
        name: shown to people and stored in files.
        image_shape: (H, W, C) of one input.
        num_classes: K.
        layer_names: the keys of the weights, from the input to the output.
        init: seed to weights, ``{layer name: {"kernel": ..., "bias": ...}}``.
        apply: (weights, normalised images [M, H, W, C]) to logits [M, K].
        features: (weights, normalised images [M, H, W, C]) to the input of the last layer [M, i].
        dense_inputs: (weights, normalised images [M, H, W, C]) to ``{layer name: input [M, i]}`` for dense layers whose
            input depends on one image at a time; the attack reads the span of their updates (`workbench.attack.span`).
            None leaves the last layer, whose input is ``features``.
        chain: the layers, if the network is a chain of them; gradients then use hand-written code.
        options: the arguments with which `build` recreates this network; None for a custom network.
    """

    name: str
    image_shape: tuple[int, int, int]
    num_classes: int
    layer_names: tuple[str, ...]
    init: Callable[..., Weights] = field(repr=False)
    apply: Callable[[Weights, Array], Array] = field(repr=False)
    features: Callable[[Weights, Array], Array] = field(repr=False)
    dense_inputs: Callable[[Weights, Array], dict[str, Array]] | None = field(default=None, repr=False)
    chain: tuple[Layer, ...] | None = field(default=None, repr=False)
    options: tuple[tuple[str, Any], ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_shape", check_image_shape(self.image_shape))
        object.__setattr__(self, "num_classes", check_count("num_classes", self.num_classes, minimum=2))
        if not isinstance(self.layer_names, tuple | list) or not all(isinstance(n, str) for n in self.layer_names):
            raise ConfigError(f"layer_names = {shown(self.layer_names)} must be a sequence of layer names.")
        object.__setattr__(self, "layer_names", tuple(self.layer_names))
        for function in ("init", "apply", "features"):
            if not callable(getattr(self, function)):
                raise ConfigError(f"{function} = {shown(getattr(self, function))} must be a function.")
        if self.chain is None:
            self._check_functions()

    def _check_functions(self) -> None:
        """Check that custom functions fit together; too many logits, for instance, would train silently."""
        weights = _result_shape("init", partial(self.init, 0))
        if not isinstance(weights, dict) or not all(isinstance(arrays, dict) for arrays in weights.values()):
            raise ConfigError(f"init(0) = {shown(weights)} must be {{layer: {{name: array}}}}.")
        if set(self.layer_names) != set(weights) or not self.layer_names:
            raise ConfigError(f"layer_names = {self.layer_names} must be the layers of init(0), {tuple(weights)}.")
        kernel = weights[self.last_layer].get("kernel")
        if kernel is None or len(kernel.shape) != 2 or kernel.shape[1] != self.num_classes:
            raise ConfigError(
                f"init(0)['{self.last_layer}'] must have a kernel [i, {self.num_classes}]: the last layer must be "
                "linear with one output for each class."
            )
        images = jnp.zeros((2, *self.image_shape))
        results = [
            ("apply", _result_shape("apply", self.apply, weights, images), self.num_classes),
            ("features", _result_shape("features", self.features, weights, images), kernel.shape[0]),
        ]
        if self.dense_inputs is not None:
            inputs = _result_shape("dense_inputs", self.dense_inputs, weights, images)
            dense = {layer: arrays["kernel"].shape[0] for layer, arrays in weights.items() if _is_dense(arrays)}
            if not isinstance(inputs, dict) or not inputs or not set(inputs) <= set(dense):
                raise ConfigError(
                    f"dense_inputs = {shown(inputs)} must be {{layer: array}} for some of {tuple(dense)}."
                )
            results += [(f"dense_inputs, for {layer},", array, dense[layer]) for layer, array in inputs.items()]
        for name, result, width in results:
            found = getattr(result, "shape", None)
            if found != (2, width):
                raise ConfigError(f"{name} returns shape {found} for 2 images; it must return (2, {width}).")

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


def _is_dense(arrays: dict[str, Any]) -> bool:
    """Whether these are the arrays of a dense layer."""
    return "kernel" in arrays and len(arrays["kernel"].shape) == 2


def _result_shape(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The shapes of what a custom function returns, without computing it."""
    try:
        return jax.eval_shape(function, *arguments)
    # It may raise anything; the error names the function and keeps the cause.
    except Exception as error:
        raise ConfigError(f"{name} fails with {type(error).__name__}: {shown(str(error))}.") from error


def check_image_shape(image_shape: Any) -> tuple[int, int, int]:
    """Return the shape of one image if it is (height, width, channels)."""
    try:
        height, width, channels = (check_count("image_shape", size) for size in image_shape)
    except (TypeError, ValueError):
        raise ConfigError(
            f"image_shape = {shown(image_shape)} must be (height, width, channels), whole numbers of at least 1."
        ) from None
    return height, width, channels
