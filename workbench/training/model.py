"""The type of a network: a record of pure functions on a tree of weights."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from workbench.errors import ConfigError, check_count, shown
from workbench.training.chain import Layer, logits
from workbench.training.convolutions import WithFastConvolutions, slow_convolutions
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
            input depends on one image at a time and on no dropout; the attack reads the span of their updates
            (`workbench.attack.span`). None leaves the last layer, whose input is ``features``.
        train: (weights, normalised images [M, H, W, C], mask [M]) to logits [M, K] as in training, and the new running
            statistics ``{layer: {name: array}}``, which are part of the weights; for a network whose images influence
            each other, as in batch normalisation. Images where the mask is False are padding and must not count.
        has_dropout: whether the client trains with dropout; the attack simulates it as off.
        chain: the layers, if the network is a chain of them; gradients then use hand-written code.
        options: the arguments with which `build` recreates this network; None for a custom network.
        state_names: the names in torch's state dict, buffers included and in its order, for a network that torch
            exported.
        statistics: (layer, name) of the weights that are running statistics, which `train` returns anew.
        mixes_images: whether the logits of an image depend on its batch in training.
    """

    name: str
    image_shape: tuple[int, int, int]
    num_classes: int
    layer_names: tuple[str, ...]
    init: Callable[..., Weights] = field(repr=False)
    apply: Callable[[Weights, Array], Array] = field(repr=False)
    features: Callable[[Weights, Array], Array] = field(repr=False)
    dense_inputs: Callable[[Weights, Array], dict[str, Array]] | None = field(default=None, repr=False)
    train: Callable[[Weights, Array, Array], tuple[Array, Weights]] | None = field(default=None, repr=False)
    has_dropout: bool = field(default=False, repr=False)
    chain: tuple[Layer, ...] | None = field(default=None, repr=False)
    options: tuple[tuple[str, Any], ...] | None = field(default=None, repr=False)
    state_names: tuple[str, ...] | None = field(default=None, repr=False)
    statistics: tuple[tuple[str, str], ...] = field(default=(), init=False, repr=False)
    mixes_images: bool = field(default=False, init=False, repr=False)

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
            self._check_values()
            self._replace_convolutions()
        else:
            self._check_chain(self.chain)

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
        images = jnp.zeros((2, *self.image_shape), jnp.float32)
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
        if self.train is not None:
            logits, statistics = self._check_train(weights, images)
            results.append(("train", logits, self.num_classes))
            object.__setattr__(
                self, "statistics", tuple((layer, name) for layer in statistics for name in statistics[layer])
            )
        for name, result, width in results:
            found = getattr(result, "shape", None)
            if found != (2, width):
                raise ConfigError(f"{name} returns shape {found} for 2 images; it must return (2, {width}).")

    def _check_chain(self, layers: Any) -> None:
        """Check that a chain of layers fits the weights, the images and the classes; compiled code relies on it."""
        if not isinstance(layers, tuple) or not layers or not all(isinstance(layer, Layer) for layer in layers):
            raise ConfigError(f"chain = {shown(layers)} must be a tuple of layers.")
        if tuple(layer.name for layer in layers) != self.layer_names or len(set(self.layer_names)) < len(layers):
            raise ConfigError(f"layer_names = {self.layer_names} must be the names of the layers of chain.")
        needed = {layer.name: {"kernel": layer.kernel_shape, "bias": layer.kernel_shape[-1:]} for layer in layers}
        float32 = partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
        weights = {name: {key: float32(shape) for key, shape in shapes.items()} for name, shapes in self.shapes.items()}
        check_shapes(weights, "init(0)", needed, "chain")
        found = _result_shape("chain", partial(logits, layers), weights, jnp.zeros((2, *self.image_shape)))
        if found.shape != (2, self.num_classes):
            raise ConfigError(f"chain returns shape {found.shape} for 2 images; it must be (2, {self.num_classes}).")

    def _check_train(self, weights: Any, images: Array) -> tuple[Any, Shapes]:
        """The shapes of what `train` returns, if its statistics are arrays of the weights."""
        assert self.train is not None
        result = _result_shape("train", self.train, weights, images, jnp.ones(2, bool))
        try:
            logits, statistics = result
            found = shapes_of(statistics)
            fits = all(shape == weights[layer][name].shape for layer in found for name, shape in found[layer].items())
        except (TypeError, ValueError, KeyError, AttributeError):
            fits = False
        if not fits:
            raise ConfigError(
                f"train returns {shown(result)}; it must return logits and {{layer: {{name: array}}}} with new running "
                "statistics in the shapes that init(0) gives them."
            )
        return logits, found

    def _check_values(self) -> None:
        """Check with numbers what shapes cannot tell: the last layer, and whether images influence each other."""
        rng, weights = np.random.default_rng(0), self.init(0)
        images = jnp.asarray(rng.normal(size=(3, *self.image_shape)), jnp.float32)
        two, mask = images[:2], jnp.array([True, True, False])
        # A last layer may start with zeros, which would hide everything.
        last = weights[self.last_layer]
        drawn = jnp.asarray(rng.normal(size=last["kernel"].shape, scale=last["kernel"].shape[0] ** -0.5), jnp.float32)
        weights = {**weights, self.last_layer: {**last, "kernel": drawn}}

        def values(weights: Weights) -> dict[str, Any]:
            last = weights[self.last_layer]
            linear = jnp.matmul(self.features(weights, images), last["kernel"], precision=lax.Precision.HIGHEST)
            found = {
                "apply": self.apply(weights, images),
                "alone": self.apply(weights, images[:1]),
                "linear": linear + last.get("bias", jnp.zeros(self.num_classes))[None],
            }
            if self.train is not None:
                logits, statistics = self.train(weights, images, mask)
                found["padded"] = (logits[:2], statistics)
                found["pair"] = self.train(weights, two, mask[:2])
                found["single"] = self.train(weights, two[:1], mask[:1])
            return found

        found = jax.device_get(_result(f"{self.name}, on batches of 1 to 3 images,", jax.jit(values), weights))
        if not _agree(found["apply"], found["linear"]):
            raise ConfigError(
                f"features @ kernel + bias of the layer {self.last_layer} must be what apply returns; on random images "
                "they differ: give features as the input of the last layer, and its layer last in layer_names."
            )
        if not _agree(found["apply"][:1], found["alone"]):
            raise ConfigError(
                "apply gives an image other logits beside other images; it must treat every image alone. Pass the "
                "network in training mode as train(weights, images, mask), and let apply use running statistics."
            )
        if self.train is not None:
            if not all(jax.tree.leaves(jax.tree.map(_agree, found["padded"], found["pair"]))):
                raise ConfigError(
                    "train lets an image with mask = False change the logits of others or the running statistics; "
                    "such an image is padding and must not count."
                )
            object.__setattr__(self, "mixes_images", not _agree(found["pair"][0][:1], found["single"][0]))

    def trained(self, weights: Weights) -> Weights:
        """The weights that an optimiser moves: all but the running statistics."""
        if not self.statistics:
            return weights
        return {
            layer: {name: array for name, array in arrays.items() if (layer, name) not in self.statistics}
            for layer, arrays in weights.items()
        }

    def train_logits(self, weights: Weights, images: Array, mask: Array) -> tuple[Array, Weights]:
        """The logits [M, K] in training, and the new running statistics; padding has a mask of False."""
        return (self.apply(weights, images), {}) if self.train is None else self.train(weights, images, mask)

    def _replace_convolutions(self) -> None:
        """Give the functions convolutions with fast gradients, and warn about those that cannot be replaced."""
        weights = jax.eval_shape(partial(self.init, 0))
        if reasons := slow_convolutions(self.apply, weights, jnp.zeros((2, *self.image_shape))):
            warnings.warn(
                f"{self.name}: {len(reasons)} of its convolutions and pools will be slow on this CPU; the first "
                f"because {reasons[0]}.",
                stacklevel=4,
            )
        for name in ("apply", "features", "dense_inputs", "train"):
            function = getattr(self, name)
            if function is not None and not isinstance(function, WithFastConvolutions):
                object.__setattr__(self, name, WithFastConvolutions(function))

    @property
    def last_layer(self) -> str:
        return self.layer_names[-1]

    @cached_property
    def shapes(self) -> Shapes:
        """The shape of every array of the weights, without computing any."""
        return shapes_of(_result_shape("init", partial(self.init, 0)))

    def check_weights(self, weights: Any, field: str = "weights") -> Weights:
        """Return the weights as float32 arrays if they are this network's and finite."""
        checked = check_weights(weights, field)
        check_shapes(checked, field, self.shapes, self.name)
        return checked


def _agree(first: Any, second: Any) -> bool:
    """Equal but for rounding, which grows with the depth of a network."""
    return np.allclose(first, second, rtol=0, atol=1e-3 * max(1.0, float(np.abs(first).max())))


def _is_dense(arrays: dict[str, Any]) -> bool:
    """Whether these are the arrays of a dense layer."""
    return "kernel" in arrays and len(arrays["kernel"].shape) == 2


def _result_shape(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The shapes of what a custom function returns, without computing it."""
    return _result(name, partial(jax.eval_shape, function), *arguments)


def _result(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a custom function returns."""
    try:
        return function(*arguments)
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
