"""Prior knowledge about images: the order-invariant epoch prior, smoothness, pixel range.

The epoch prior (the paper's Section 4.4): every epoch uses the same images, so any function of an epoch that does not
depend on the order has the same value in all of them.

Letters in shapes: E epochs, N images, H, W, C.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

from workbench.training.layers import Window, convolution

__all__ = [
    "Summary",
    "epoch_prior",
    "pairwise_distance",
    "pixel_range",
    "random_filters",
    "summarize",
    "total_variation",
]

Summary = Callable[[Array], Array]
"""A custom g: the images of an epoch [N, H, W, C] to an array that does not depend on their order."""

_NUM_FILTERS = 96


def random_filters(key: Array, num_channels: int) -> Array:
    """[3, 3, C, 96] the random convolution of the ``conv+`` summaries: LeCun normal, drawn once per attack."""
    return jax.nn.initializers.lecun_normal()(key, (3, 3, num_channels, _NUM_FILTERS), jnp.float32)


def summarize(epochs: Array, summary: str | Summary, filters: Array | None = None) -> Array:
    """[E, N, H, W, C] to [E, ...]: g of every epoch."""
    if callable(summary):
        return jnp.stack([summary(images) for images in epochs])
    if summary == "mean":
        return epochs.mean(1)
    if summary == "max":
        return epochs.max(1)
    assert filters is not None, "the conv+ summaries need filters"
    if summary == "conv+mean":
        # The convolution is linear: convolving the mean gives the mean of the convolutions with far less work.
        return convolution(epochs.mean(1), filters, Window.padded(1))
    # One epoch at a time, recomputed in the backward pass: 96 channels of all images at once would fill the memory.
    return lax.map(jax.checkpoint(lambda images: convolution(images, filters, Window.padded(1)).max(0)), epochs)


def pairwise_distance(summaries: Array, distance: str) -> Array:
    """The mean over all ordered pairs of epochs of the mean squared (l2) or absolute (l1) difference; no E * E loop.

    For l2 the mean over pairs is twice the variance; for l1 it follows from the sorted values.
    """
    if distance == "l2":
        return 2 * summaries.var(0).mean()
    num_epochs = len(summaries)
    ranks = (2 * jnp.arange(num_epochs) - num_epochs + 1).astype(summaries.dtype)
    ordered = jnp.sort(summaries.reshape(num_epochs, -1), axis=0)
    return 2 * (ranks[:, None] * ordered).sum(0).mean() / num_epochs**2


def epoch_prior(epochs: Array, summary: str | Summary, distance: str, filters: Array | None = None) -> Array:
    """The paper's L_inv of [E, N, H, W, C]."""
    return pairwise_distance(summarize(epochs, summary, filters), distance)


def total_variation(images: Array) -> Array:
    """[..., H, W, C] to the mean over images of the summed squared differences of neighbours; the border wraps."""
    num_images = images[..., 0, 0, 0].size
    across, down = images - jnp.roll(images, 1, -2), images - jnp.roll(images, 1, -3)
    return ((across**2).sum() + (down**2).sum()) / num_images


def pixel_range(pixels: Array) -> Array:
    """[..., H, W, C] in pixel space to the mean over images of the summed squared excess over [0, 1]."""
    num_images = pixels[..., 0, 0, 0].size
    return ((pixels - jnp.clip(pixels, 0.0, 1.0)) ** 2).sum() / num_images
