"""The layers that the networks use, and how a convolution is computed.

A convolution and its two gradients form a family: each is linear in two of (input, kernel, output), and its gradients
are the other two. They are three functions here whose derivatives are expressed by each other, each a plain
``NHWC x HWIO -> NHWC`` convolution. The form matters: inside a `lax.scan`, XLA's CPU backend has a fast path only for
this form, and the gradients that JAX derives (the same convolution with permuted dimensions) run an order of magnitude
slower. On accelerators, XLA folds the transpositions into the library call.

Letters in shapes: M images, H x W pixels (h x w after the convolution), C channels in, F channels out.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

__all__ = [
    "average_pool",
    "average_pool_transpose",
    "convolution",
    "convolution_input_gradient",
    "convolution_kernel_gradient",
    "dense",
]

_FEW_CHANNELS = 4


def _convolve(inputs: Array, kernel: Array, padding: int) -> Array:
    return lax.conv_general_dilated(
        inputs,
        kernel,
        window_strides=(1, 1),
        padding=((padding, padding), (padding, padding)),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        precision=lax.Precision.HIGHEST,
    )


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def convolution(inputs: Array, kernel: Array, padding: int) -> Array:
    """[M, H, W, C] with a [k, k, C, F] kernel and stride 1 to [M, h, w, F], h = H + 2 * padding - k + 1.

    Differentiable any number of times in reverse mode; forward mode is not defined.

    >>> import jax.numpy as jnp
    >>> convolution(jnp.ones((2, 28, 28, 1)), jnp.ones((3, 3, 1, 32)), 1).shape
    (2, 28, 28, 32)
    """
    return _convolve(inputs, kernel, padding)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def convolution_input_gradient(output_gradient: Array, kernel: Array, padding: int) -> Array:
    """[M, h, w, F] to [M, H, W, C]: the transpose of `convolution` with respect to its inputs."""
    if kernel.shape[2] <= _FEW_CHANNELS:
        return _add_overlaps(output_gradient, kernel, padding)
    flipped = jnp.flip(kernel, (0, 1)).swapaxes(2, 3)
    return _convolve(output_gradient, flipped, kernel.shape[0] - 1 - padding)


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
def convolution_kernel_gradient(inputs: Array, output_gradient: Array, padding: int) -> Array:
    """[M, H, W, C] and [M, h, w, F] to [k, k, C, F]: the transpose of `convolution` with respect to its kernel."""
    channels_as_images = inputs.transpose(3, 1, 2, 0)
    gradient_as_kernel = output_gradient.transpose(1, 2, 0, 3)
    return _convolve(channels_as_images, gradient_as_kernel, padding).transpose(1, 2, 0, 3)


# The transposes of each function: for z = conv(x, k), x' = input_gradient(z', k) and k' = kernel_gradient(x, z').
convolution.defvjp(
    lambda x, k, padding: (convolution(x, k, padding), (x, k)),
    lambda padding, xk, z: (
        convolution_input_gradient(z, xk[1], padding),
        convolution_kernel_gradient(xk[0], z, padding),
    ),
)
convolution_input_gradient.defvjp(
    lambda z, k, padding: (convolution_input_gradient(z, k, padding), (z, k)),
    lambda padding, zk, x: (
        convolution(x, zk[1], padding),
        convolution_kernel_gradient(x, zk[0], padding),
    ),
)
convolution_kernel_gradient.defvjp(
    lambda x, z, padding: (convolution_kernel_gradient(x, z, padding), (x, z)),
    lambda padding, xz, k: (
        convolution_input_gradient(xz[1], k, padding),
        convolution(xz[0], k, padding),
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
