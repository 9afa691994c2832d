"""The layers that the networks use, and how a convolution is computed.

A convolution and its two gradients form a family: each is linear in two of (input, kernel, output), and its gradients
are the other two. They are three functions here whose derivatives are expressed by each other, each a plain
``NHWC x HWIO -> NHWC`` convolution. The form matters: inside a `lax.scan`, XLA's CPU backend has a fast path only for
this form, and the gradients that JAX derives (the same convolution with permuted dimensions) run an order of magnitude
slower. On accelerators, XLA folds the transpositions into the library call.

Letters in shapes: M images, H x W pixels (h x w after the convolution), C channels in, F channels out, g groups.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

__all__ = [
    "Window",
    "average_pool",
    "average_pool_transpose",
    "batch_norm",
    "batch_statistics",
    "convolution",
    "convolution_input_gradient",
    "convolution_kernel_gradient",
    "dense",
]

_FEW_CHANNELS = 4

Pair = tuple[int, int]


class Window(NamedTuple):
    """How a convolution's kernel moves over its input; height before width in every pair.

    Attributes:
        padding: zeros before and after; a negative number crops.
        strides: pixels from one output to the next.
        input_dilation: distance of the input's pixels from one another, with zeros between them.
        kernel_dilation: distance of the kernel's entries from one another.
        unused: pixels after the last place of the kernel, where the strides do not divide the input.
        groups: the channels are in this many groups, each of which is convolved by itself.
    """

    padding: tuple[Pair, Pair] = ((0, 0), (0, 0))
    strides: Pair = (1, 1)
    input_dilation: Pair = (1, 1)
    kernel_dilation: Pair = (1, 1)
    unused: Pair = (0, 0)
    groups: int = 1

    @staticmethod
    def padded(size: int) -> "Window":
        """Only padding, equal on all sides."""
        return Window(((size, size), (size, size)))

    def gradient_padding(self, kernel: Array) -> tuple[Pair, Pair]:
        """The padding of the output gradient that makes the input gradient."""
        sides = []
        for axis, (before, after) in enumerate(self.padding):
            reach = (kernel.shape[axis] - 1) * self.kernel_dilation[axis]
            sides.append((reach - before, reach - after + self.unused[axis]))
        return sides[0], sides[1]

    @property
    def kernel_padding(self) -> tuple[Pair, Pair]:
        """The padding of the input that makes the kernel gradient: the output gradient is the kernel then."""
        (top, bottom), (left, right) = self.padding
        return (top, bottom - self.unused[0]), (left, right - self.unused[1])


def _convolve(
    inputs: Array, kernel: Array, padding: tuple[Pair, Pair], strides: Pair, between: Pair, spread: Pair, groups: int
) -> Array:
    """The library's convolution in its fast form; ``between`` dilates the input, ``spread`` the kernel."""
    if min(min(padding)) < 0:
        # The fast path takes no negative padding.
        sides = [(min(a, 0), min(b, 0), d - 1) for (a, b), d in zip(padding, between, strict=True)]
        inputs = lax.pad(inputs, jnp.zeros((), inputs.dtype), [(0, 0, 0), *sides, (0, 0, 0)])
        (top, bottom), (left, right) = padding
        padding, between = ((max(top, 0), max(bottom, 0)), (max(left, 0), max(right, 0))), (1, 1)
    return lax.conv_general_dilated(
        inputs,
        kernel,
        window_strides=strides,
        padding=padding,
        lhs_dilation=between,
        rhs_dilation=spread,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
        precision=lax.Precision.HIGHEST,
    )


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def convolution(inputs: Array, kernel: Array, window: Window) -> Array:
    """[M, H, W, C] with a [k, l, C / g, F] kernel to [M, h, w, F].

    Differentiable any number of times in reverse mode; forward mode is not defined.

    >>> import jax.numpy as jnp
    >>> convolution(jnp.ones((2, 28, 28, 1)), jnp.ones((3, 3, 1, 32)), Window.padded(1)).shape
    (2, 28, 28, 32)
    """
    w = window
    return _convolve(inputs, kernel, w.padding, w.strides, w.input_dilation, w.kernel_dilation, w.groups)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def convolution_input_gradient(output_gradient: Array, kernel: Array, window: Window) -> Array:
    """[M, h, w, F] to [M, H, W, C]: the transpose of `convolution` with respect to its inputs."""
    height, width, channels, filters = kernel.shape
    if channels <= _FEW_CHANNELS and height == width and window == Window.padded(size := window.padding[0][0]):
        return _add_overlaps(output_gradient, kernel, size)
    groups = window.groups
    by_group = jnp.flip(kernel, (0, 1)).reshape(height, width, channels, groups, filters // groups)
    flipped = by_group.swapaxes(2, 4).reshape(height, width, filters // groups, groups * channels)
    padding = window.gradient_padding(kernel)
    return _convolve(
        output_gradient, flipped, padding, window.input_dilation, window.strides, window.kernel_dilation, groups
    )


def _add_overlaps(output_gradient: Array, kernel: Array, padding: int) -> Array:
    """The same as one matrix product for all k * k offsets, whose results are shifted and added.

    A convolution with few output channels leaves most of a vector unit idle; this is twice as fast at 1 to 3 channels.
    """
    k, _, channels, _ = kernel.shape
    images, height, width, filters = output_gradient.shape
    products = lax.dot_general(
        kernel.reshape(-1, filters),
        output_gradient.reshape(-1, filters),
        (((1,), (1,)), ((), ())),
        precision=lax.Precision.HIGHEST,
    ).reshape(k, k, channels, images, height, width)
    whole = jnp.zeros((channels, images, height + k - 1, width + k - 1), output_gradient.dtype)
    for row in range(k):
        for column in range(k):
            edges = ((0, 0), (0, 0), (row, k - 1 - row), (column, k - 1 - column))
            whole = whole + jnp.pad(products[row, column], edges)
    inside = slice(padding, -padding or None)
    return whole[:, :, inside, inside].transpose(1, 2, 3, 0)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def convolution_kernel_gradient(inputs: Array, output_gradient: Array, window: Window) -> Array:
    """[M, H, W, C] and [M, h, w, F] to [k, l, C / g, F]: the transpose of `convolution` with respect to its kernel."""
    images, height, width, channels = inputs.shape
    groups = window.groups
    by_group = inputs.reshape(images, height, width, groups, channels // groups)
    channels_as_images = by_group.transpose(4, 1, 2, 3, 0).reshape(channels // groups, height, width, groups * images)
    gradient_as_kernel = output_gradient.transpose(1, 2, 0, 3)
    return _convolve(
        channels_as_images,
        gradient_as_kernel,
        window.kernel_padding,
        window.kernel_dilation,
        window.input_dilation,
        window.strides,
        groups,
    ).transpose(1, 2, 0, 3)


# The transposes of each function: for z = conv(x, k), x' = input_gradient(z', k) and k' = kernel_gradient(x, z').
convolution.defvjp(
    lambda x, k, window: (convolution(x, k, window), (x, k)),
    lambda window, xk, z: (
        convolution_input_gradient(z, xk[1], window),
        convolution_kernel_gradient(xk[0], z, window),
    ),
)
convolution_input_gradient.defvjp(
    lambda z, k, window: (convolution_input_gradient(z, k, window), (z, k)),
    lambda window, zk, x: (
        convolution(x, zk[1], window),
        convolution_kernel_gradient(x, zk[0], window),
    ),
)
convolution_kernel_gradient.defvjp(
    lambda x, z, window: (convolution_kernel_gradient(x, z, window), (x, z)),
    lambda window, xz, k: (
        convolution_input_gradient(xz[1], k, window),
        convolution(xz[0], k, window),
    ),
)


def dense(inputs: Array, kernel: Array) -> Array:
    """[M, i] and [i, o] to [M, o], in full float32 precision (accelerators default to less)."""
    return jnp.matmul(inputs, kernel, precision=lax.Precision.HIGHEST)


def average_pool(inputs: Array) -> Array:
    """[M, H, W, C] to [M, H/2, W/2, C]: the mean of each 2 x 2 square."""
    m, h, w, c = inputs.shape
    return inputs.reshape(m, h // 2, 2, w // 2, 2, c).mean((2, 4))


def average_pool_transpose(gradient: Array) -> Array:
    """[M, h, w, C] to [M, 2h, 2w, C]: the transpose of `average_pool`."""
    m, h, w, c = gradient.shape
    spread = jnp.broadcast_to((gradient * 0.25)[:, :, None, :, None, :], (m, h, 2, w, 2, c))
    return spread.reshape(m, 2 * h, 2 * w, c)


def batch_norm(
    inputs: Array, mask: Array, weights: dict[str, Array], momentum: float = 0.1, epsilon: float = 1e-5
) -> tuple[Array, dict[str, Array]]:
    """Batch normalisation in training, as PyTorch's, and its new running statistics.

    Args:
        inputs: [M, ..., C].
        mask: [M] False for padding, which does not count.
        weights: ``scale``, ``bias`` and the running ``mean`` and ``variance``, [C] each.
        momentum: the share of this batch in the new running statistics.
        epsilon: added to the variance.
    """
    mean, variance, unbiased = batch_statistics(inputs, mask, tuple(range(inputs.ndim - 1)))
    scale, bias = (weights[name].reshape(mean.shape) for name in ("scale", "bias"))
    # The running variance is the unbiased one.
    found = {"mean": mean.reshape(-1), "variance": unbiased.reshape(-1)}
    new = {name: (1 - momentum) * weights[name] + momentum * value for name, value in found.items()}
    return (inputs - mean) * (scale / jnp.sqrt(variance + epsilon)) + bias, new


def batch_statistics(inputs: Array, mask: Array, axes: tuple[int, ...]) -> tuple[Array, Array, Array]:
    """The mean, the variance and the unbiased variance of a batch, with axes of length 1 where they are taken over.

    Args:
        inputs: [M, ...].
        mask: [M] False for padding, which does not count.
        axes: all but that of the channels.
    """
    counts = mask.reshape(-1, *(1,) * (inputs.ndim - 1)).astype(inputs.dtype)
    number = counts.sum() * math.prod(inputs.shape[axis] for axis in axes if axis)
    mean = (counts * inputs).sum(axes, keepdims=True) / number
    variance = (counts * (inputs - mean) ** 2).sum(axes, keepdims=True) / number
    return mean, variance, variance * number / jnp.maximum(number - 1, 1)
