"""A network as a chain of linear maps, each followed by ReLU and pooling, with hand-written derivatives.

The attack differentiates through hundreds of local training steps, so its speed depends on what each step stores and
recomputes. The main functions:

- `logits`: the network.
- `loss_gradient`: the gradient of the batch loss with respect to the weights, and the arrays worth storing.
- `gradient_derivative`: the derivative of that gradient. With ``L`` the batch loss and ``v`` a direction in weight
  space, it computes both ``d/dw <v, dL/dw>`` (a Hessian-vector product) and ``d/dx <v, dL/dw>`` in one forward-mode
  pass over the gradient computation. This takes nine matrix products per layer and local step, the minimum.
- `forward` and `backward`: the two passes over a sequence of SGD steps, as `training.native` has them in C++.

Letters in shapes: M images, H, W, C, K classes.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from workbench.training.layers import (
    Window,
    average_pool,
    average_pool_transpose,
    convolution,
    convolution_input_gradient,
    convolution_kernel_gradient,
    dense,
)
from workbench.weights import Weights

__all__ = [
    "Layer",
    "Residuals",
    "backward",
    "dense_inputs",
    "descend",
    "features",
    "forward",
    "gradient_derivative",
    "logits",
    "loss_gradient",
]


@dataclass(frozen=True)
class Layer:
    """A linear map with bias, then optionally ReLU and 2 x 2 average pooling.

    Attributes:
        name: the key of its weights.
        kernel_shape: (k, k, C, F) for a convolution, (i, o) for a dense layer, which flattens its input.
        padding: of a convolution, with zeros.
    """

    name: str
    kernel_shape: tuple[int, ...]
    padding: int = 0
    relu: bool = True
    pool: bool = False

    @property
    def is_dense(self) -> bool:
        return len(self.kernel_shape) == 2

    @property
    def window(self) -> Window:
        return Window.padded(self.padding)

    def linear(self, inputs: Array, kernel: Array) -> Array:
        """The linear map without the bias."""
        if not self.is_dense:
            return convolution(inputs, kernel, self.window)
        return dense(inputs.reshape(len(inputs), -1), kernel)

    def outputs(self, inputs: Array, weights: dict[str, Array]) -> Array:
        bias = weights["bias"]
        z = self.linear(inputs, weights["kernel"])
        return z + bias.reshape((1,) * (z.ndim - 1) + bias.shape)

    def activate(self, outputs: Array) -> tuple[Array, Array]:
        """The input of the next layer, and where the ReLU is active."""
        active = outputs > 0
        return self.activation(active, outputs), active

    def activation(self, active: Array, outputs: Array) -> Array:
        """ReLU and pooling as a linear function, given where the ReLU is active."""
        if self.relu:
            outputs = jnp.where(active, outputs, jnp.zeros_like(outputs))
        return average_pool(outputs) if self.pool else outputs

    def activation_transpose(self, active: Array, gradient: Array) -> Array:
        gradient = gradient.reshape(active.shape) if not self.pool else average_pool_transpose(gradient)
        return jnp.where(active, gradient, jnp.zeros_like(gradient)) if self.relu else gradient

    def kernel_gradient(self, *products: tuple[Array, Array]) -> Array:
        """The sum of the kernel gradients of the given (inputs, output gradient) pairs."""
        if not self.is_dense:
            return sum(
                (convolution_kernel_gradient(x, dz, self.window) for x, dz in products[1:]),
                start=convolution_kernel_gradient(*products[0], self.window),
            )
        # A single product of all rows reads and writes the kernel only once.
        left = jnp.concatenate([x.reshape(len(x), -1) for x, _ in products])
        right = jnp.concatenate([dz for _, dz in products])
        return dense(left.T, right)

    def input_gradient(self, output_gradient: Array, kernel: Array, input_shape: tuple[int, ...]) -> Array:
        if not self.is_dense:
            return convolution_input_gradient(output_gradient, kernel, self.window)
        return dense(output_gradient, kernel.T).reshape(input_shape)


class Residuals(NamedTuple):
    """What `gradient_derivative` needs from `loss_gradient`, besides the images and weights.

    The gradient at a layer's output is stored after pooling, where it is four times smaller.
    """

    inputs: tuple[Array, ...]  # of every layer but the first
    active: tuple[Array, ...]  # of every layer but the last: where the ReLU is active
    gradients: tuple[Array, ...]  # of the loss with respect to `inputs`
    logit_gradient: Array  # [M, K]
    probabilities: Array  # [M, K]


def dense_inputs(layers: tuple[Layer, ...], weights: Weights, images: Array) -> dict[str, Array]:
    """[M, H, W, C] normalised images to the input [M, i] of every dense layer, from the first to the last."""
    x, found = images, {}
    for layer in layers:
        if layer.is_dense:
            x = found[layer.name] = x.reshape(len(x), -1)
        if layer is not layers[-1]:
            x, _ = layer.activate(layer.outputs(x, weights[layer.name]))
    return found


def features(layers: tuple[Layer, ...], weights: Weights, images: Array) -> Array:
    """[M, H, W, C] normalised images to [M, i], the input of the last layer."""
    return dense_inputs(layers, weights, images)[layers[-1].name]


def logits(layers: tuple[Layer, ...], weights: Weights, images: Array) -> Array:
    """[M, H, W, C] normalised images to [M, K]."""
    return layers[-1].outputs(features(layers, weights, images), weights[layers[-1].name])


def loss_gradient(
    layers: tuple[Layer, ...], weights: Weights, images: Array, labels: Array, share: Array, smoothing: float = 0.0
) -> tuple[Weights, Residuals]:
    """The gradient of ``sum_i share[i] * cross_entropy_i`` with respect to the weights, and its residuals.

    Args:
        images: [M, H, W, C] normalised.
        labels: [M] classes.
        share: [M] each image's weight in the loss: 1 / M in a full batch, 0 for padding.
        smoothing: the share of every label that is distributed evenly over all classes.
    """
    x = images
    inputs, active = [], []
    for layer in layers[:-1]:
        x, on = layer.activate(layer.outputs(x, weights[layer.name]))
        inputs.append(x)
        active.append(on)
    last = layers[-1]
    probabilities = jax.nn.softmax(last.outputs(x, weights[last.name]))
    targets = jax.nn.one_hot(labels, last.kernel_shape[-1], dtype=probabilities.dtype)
    if smoothing:
        targets = (1 - smoothing) * targets + smoothing / targets.shape[-1]
    dz = logit_gradient = (probabilities - targets) * share[:, None].astype(probabilities.dtype)

    gradient: Weights = {}
    gradients: list[Array] = []
    for index in reversed(range(len(layers))):
        layer = layers[index]
        if index < len(layers) - 1:
            dz = layer.activation_transpose(active[index], gradients[0])
        x = inputs[index - 1] if index else images
        gradient[layer.name] = {
            "kernel": layer.kernel_gradient((x, dz)),
            "bias": dz.sum(range(dz.ndim - 1)),
        }
        if index:
            gradients.insert(0, layer.input_gradient(dz, weights[layer.name]["kernel"], x.shape))
    return gradient, Residuals(tuple(inputs), tuple(active), tuple(gradients), logit_gradient, probabilities)


def gradient_derivative(
    layers: tuple[Layer, ...], weights: Weights, images: Array, share: Array, kept: Residuals, direction: Weights
) -> tuple[Weights, Array]:
    """The derivatives of ``<direction, loss_gradient>`` with respect to the weights and the images [M, H, W, C].

    Forward mode over the gradient computation: the suffix ``_dot`` marks a derivative along the direction.
    """
    x_dots: list[Array] = []
    x, z_dot = images, images
    for index, layer in enumerate(layers):
        z_dot = layer.outputs(x, direction[layer.name])
        if index:
            z_dot = z_dot + layer.linear(x_dots[-1], weights[layer.name]["kernel"])
        if index < len(layers) - 1:
            x = kept.inputs[index]
            x_dots.append(layer.activation(kept.active[index], z_dot))

    p = kept.probabilities
    dz, dz_dot = kept.logit_gradient, p * (z_dot - (p * z_dot).sum(-1, keepdims=True)) * share[:, None].astype(p.dtype)
    derivative: Weights = {}
    dx_dot = images
    for index in reversed(range(len(layers))):
        layer = layers[index]
        if index < len(layers) - 1:
            dz = layer.activation_transpose(kept.active[index], kept.gradients[index])
            dz_dot = layer.activation_transpose(kept.active[index], dx_dot)
        x = kept.inputs[index - 1] if index else images
        kernel, kernel_dot = weights[layer.name]["kernel"], direction[layer.name]["kernel"]
        products = [(x, dz_dot), (x_dots[index - 1], dz)] if index else [(x, dz_dot)]
        derivative[layer.name] = {
            "kernel": layer.kernel_gradient(*products),
            "bias": dz_dot.sum(range(dz_dot.ndim - 1)),
        }
        dx_dot = layer.input_gradient(dz_dot, kernel, x.shape) + layer.input_gradient(dz, kernel_dot, x.shape)
    return derivative, dx_dot


def descend(weights: Weights, gradient: Weights, rate: Array) -> Weights:
    """The weights after one step against the gradient."""
    return jax.tree.map(lambda weight, slope: weight - rate * slope, weights, gradient)


def forward(
    layers: tuple[Layer, ...], weights: Weights, batches: Any, rate: Array, *, keep: bool
) -> tuple[Weights, Any]:
    """The weights after one SGD step on each batch, and, if ``keep``, what `backward` needs of every step."""

    def step(weights: Weights, batch: Any) -> tuple[Weights, Any]:
        gradient, kept = loss_gradient(layers, weights, *batch)
        return descend(weights, gradient, rate), (weights, kept) if keep else None

    return lax.scan(step, weights, batches)


def backward(
    layers: tuple[Layer, ...], final: Weights, batches: Any, rate: Array, trajectory: Any, adjoint: Weights
) -> tuple[Weights, Array]:
    """The adjoints of the initial weights and of the images, from the adjoint of the final weights.

    With v the adjoint of the weights after a step w' = w - rate * g(w, x), the adjoint of the weights before it is
    v - rate * d<v, g>/dw and that of the images is -rate * d<v, g>/dx. The library needs the final weights; here the
    trajectory has the weights of every step.
    """

    def step(adjoint: Weights, xs: Any) -> tuple[Weights, Array]:
        batch, (weights, kept) = xs
        in_weights, in_images = gradient_derivative(layers, weights, batch.images, batch.share, kept, adjoint)
        return descend(adjoint, in_weights, rate), -rate * in_images

    return lax.scan(step, adjoint, (batches, trajectory), reverse=True)
