"""The span of a dense layer's update: where every image of the client must lie when it enters that layer.

**Derivation.** A dense layer computes z = W'f + b of its input f. The gradient of its kernel W [i, o] is the sum of the
outer products f d' over all images and local steps, with d the gradient of the loss at z, and that of its bias is the
sum of the d. So for any number c, the columns of the stacked update [dW; c db] are linear combinations of the vectors
[f; c]. Where the d of the images are linearly independent, these columns span all of the vectors: each image of the
client lies in that space by itself, whatever its batch, its label and the order were. The *span residual* of an image
is the distance of its [f; c] to the space, relative to how much the images' f differ from one another.

**Conditions.**

- It is exact after one local step, with f at the weights of that step, and approximate after many, because f moves with
  the weights; weights half way between the server's and the client's are then best.
- There are at most as many distinct images as the numerical rank of the update, which is at most o.
- The update is a linear combination of the client's gradients: with momentum, a rate schedule, clipping, label
  smoothing or a proximal term it is; of weight decay, the known multiple of the server's kernel is subtracted; with
  Adam it is not. Images that `drop_last` left out of every epoch are not in it.
- Noise hides the span, because the noise of one column is
  not a combination of the other columns: `Spectrum.unexplained` measures that.
- The input of the layer depends on one image at a time (no batch normalisation before the layer, no dropout).

The bias row c db is what sees an image's contrast: without it t f is in the span with f for every t.

Letters in shapes: A clients, V sets of variables, N images, i inputs and o outputs of the layer, j rows of the stacked
update (i + 1, or i without a bias), r its rank.
"""

from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import ArrayLike, NDArray

from workbench.attack.spectrum import ROUNDING, Spectrum
from workbench.federated.observation import Observation
from workbench.training.model import Model
from workbench.weights import Weights

__all__ = [
    "Span",
    "SpanArrays",
    "find_span",
    "half_way",
    "membership_residuals",
    "mutual_distances",
    "span_residuals",
    "span_term",
    "update_span",
    "wrong_images",
]

# Two images that differ by less than this share of the usual difference show the same picture.
_SAME_PICTURE = 0.3
# An image whose residual is this many times the median, and no rounding, has found none of the client's.
_OUTSIDE = 1.6
_CLOSE = 0.05


@dataclass(frozen=True, eq=False)
class Span:
    """The span of one dense layer's update.

    Attributes:
        spectrum: its singular values and what they say.
        basis: [j, r] orthonormal, float64.
        bias_scale: c, the size of the kernel's update relative to the bias's; 0 for a layer without a bias.
    """

    spectrum: Spectrum
    basis: NDArray[np.float64]
    bias_scale: float


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class SpanArrays:
    """What the residual of an image needs on the device: a JAX pytree.

    Attributes:
        layer: the name of the layer.
        basis: [j, r].
        bias_scale: scalar c.
        weights: at which images enter the layer.
        share: scalar, the share of its configured weight that the term gets.
    """

    layer: str = field(metadata={"static": True})
    basis: Array
    bias_scale: Array
    weights: Weights
    share: Array

    @staticmethod
    def of(span: Span, weights: Weights) -> "SpanArrays":
        numbers = (span.basis, span.bias_scale, span.spectrum.share)
        basis, scale, share = (jnp.asarray(number, jnp.float32) for number in numbers)
        return SpanArrays(span.spectrum.layer, basis, scale, weights, share)


def update_span(
    layer: str, kernel: ArrayLike, bias: ArrayLike | None, num_images: int, *, rounding: float = 0.0
) -> Span:
    """The span of the update of a kernel [i, o], with that of the bias [o] as one more row where there is one.

    Args:
        layer: the name of the layer.
        kernel: its kernel's update.
        bias: its bias's update; None for a layer without one.
        num_images: how many images should lie in the span.
        rounding: the standard deviation of the update's rounding errors.

    >>> inputs, gradients = np.random.default_rng(0).normal(size=(2, 3, 20))
    >>> spectrum = update_span("Dense_0", inputs.T @ gradients, gradients.sum(0), num_images=3).spectrum
    >>> spectrum.rank, spectrum.share
    (3, 1.0)
    """
    rows, scale = np.asarray(kernel, np.float64), 0.0
    if bias is not None and np.any(bias):
        below = np.asarray(bias, np.float64)
        scale = float(np.linalg.norm(rows) / np.linalg.norm(below))
        rows = np.vstack([rows, scale * below])
    # The column of an output that was never active is zero and says nothing.
    rows = rows[:, rows.any(0)]
    left, values, right = np.linalg.svd(rows, full_matrices=False)
    # The largest singular value of random errors is about their size times (sqrt(rows) + sqrt(columns)).
    is_kept = values > max(ROUNDING * values[0], rounding * sum(np.sqrt(rows.shape)))
    spectrum = Spectrum(layer, values, int(is_kept.sum()), _unexplained(rows, values, right), num_images)
    return Span(spectrum, left[:, is_kept], scale)


def _unexplained(rows: NDArray[np.float64], values: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """How much of the columns their regression on all other columns leaves, in the mean over their squared sizes.

    Column k leaves 1 / (R'R)^-1_kk, with R the rows. A combination of fewer images than columns leaves nothing; noise
    stays, because a column has far more rows than there are other columns to fit it with.
    """
    squares = (rows**2).sum(0)
    inverse = (right**2 / np.maximum(values, np.finfo(float).tiny ** 0.25)[:, None] ** 2).sum(0)
    left_over = np.minimum(1 / inverse, squares)
    return float(np.sqrt(left_over.sum() / squares.sum()))


def find_span(model: Model, observation: Observation) -> Span | str:
    """The span of the first dense layer that can tell all images apart, or of the one that can tell most of them.

    Returns:
        The span, or a sentence about why there is none.
    """
    if why_not := _why_no_span(model, observation):
        return why_not
    num_images = observation.num_clients * observation.num_images
    spans = []
    for name in _dense_layers(model):
        weights, update = observation.server_weights[name]["kernel"], observation.gradient_sum[name]
        # Every local step rounds the weights; the update is their difference divided by the learning rate.
        size = float(np.sqrt((np.asarray(weights, np.float64) ** 2).mean()))
        rounding = 2**-24 * size * np.sqrt(observation.local_steps) / observation.learning_rate
        if np.any(update["kernel"]):
            spans.append(update_span(name, update["kernel"], update.get("bias"), num_images, rounding=rounding))
    if not spans:
        return f"No dense layer of {model.name} has an update, so there is no span to use."
    return max(spans, key=lambda span: min(span.spectrum.rank, num_images))


def _why_no_span(model: Model, observation: Observation) -> str:
    """Why the update of such a client has no span; empty where it has one."""
    if observation.training.is_adam:
        return (
            f"The client trains with {observation.training.optimizer}, which divides every entry of a gradient by the "
            "size of its own history: that destroys the span, so the attack goes on without it."
        )
    if model.has_dropout and model.dense_inputs is None:
        return "The client trains with dropout, which changes the inputs of layers at random: there is no span to use."
    if model.mixes_images:
        return (
            f"{model.name} mixes the images of a batch, so the input of a layer does not depend on one image alone: "
            "there is no span to use."
        )
    return ""


def _dense_layers(model: Model) -> list[str]:
    """The layers whose inputs are known, from the input to the output."""
    if model.dense_inputs is None:
        return [model.last_layer]
    weights, images = jax.eval_shape(partial(model.init, 0)), np.zeros((1, *model.image_shape), np.float32)
    inputs = jax.eval_shape(model.dense_inputs, weights, images)
    return [name for name in model.layer_names if name in inputs]


def half_way(observation: Observation) -> Weights:
    """The weights half way between the server's and the client's."""
    return jax.tree.map(lambda s, c: (s + c) / 2, observation.server_weights, observation.client_weights)


def _layer_inputs(model: Model, span: SpanArrays, images: Array) -> tuple[Array, Array]:
    """[N, i] what enters the layer for normalised images [N, H, W, C], and the mean square by which they differ."""
    if model.dense_inputs is None:
        inputs = model.features(span.weights, images)
    else:
        inputs = model.dense_inputs(span.weights, images)[span.layer]
    # A single image differs from nothing: it is compared with none at all.
    centre = inputs.mean(0, keepdims=True) if len(inputs) > 1 else jnp.zeros_like(inputs)
    differences = ((inputs - centre) ** 2).sum(1).mean()
    return inputs, differences


def _squared_residuals(model: Model, span: SpanArrays, images: Array) -> tuple[Array, Array]:
    """[N] squared distances of normalised images [N, H, W, C] to the span, and the mean square by which they differ."""
    inputs, differences = _layer_inputs(model, span, images)
    num_rows = span.basis.shape[0] - inputs.shape[1]
    below = jnp.broadcast_to(span.bias_scale, (len(inputs), num_rows))
    rows = jnp.concatenate([inputs, below], axis=1)
    # The small difference of two large numbers: the weak matrix products of accelerators would lose it.
    inside = jnp.matmul(rows, span.basis, precision=lax.Precision.HIGHEST)
    outside = rows - jnp.matmul(inside, span.basis.T, precision=lax.Precision.HIGHEST)
    return (outside**2).sum(1), differences


@partial(jax.jit, static_argnums=0)
def span_residuals(model: Model, span: SpanArrays, images: Array, among: Array) -> Array:
    """[n] the span residuals of normalised images [n, H, W, C], relative to how much images [N, H, W, C] differ."""
    squares, _ = _squared_residuals(model, span, images)
    _, differences = _squared_residuals(model, span, among)
    return jnp.sqrt(squares / differences)


@partial(jax.jit, static_argnums=0)
def membership_residuals(model: Model, span: SpanArrays, images: Array, flat: Array) -> Array:
    """[n] distances of normalised images [n, H, W, C] to the span, relative to how much each differs from a flat one.

    Relative to how much images usually differ, an image with little ink would be near every span.
    """
    squares, _ = _squared_residuals(model, span, images)
    inputs, _ = _layer_inputs(model, span, images)
    contents = ((inputs - _layer_inputs(model, span, flat)[0]) ** 2).sum(1)
    # An image that is flat itself has no contents: a large number, but a finite one.
    least = 1e-6 * (inputs**2).sum(1) + np.finfo(np.float32).tiny
    return jnp.sqrt(squares / jnp.maximum(contents, least))


def span_term(model: Model, span: SpanArrays, images: Array, shares: Array) -> Array:
    """The mean squared span residual of normalised images [A, V, N, H, W, C], weighted by shares [A, V, N].

    The difference that residuals are relative to has no gradient, or the term would push images apart.
    """

    def of_set(one: tuple[Array, Array]) -> Array:
        images, shares = one
        squares, differences = _squared_residuals(model, span, images)
        return (shares * squares).mean() / lax.stop_gradient(differences)

    sets = images.reshape(-1, *images.shape[2:]), shares.reshape(-1, shares.shape[-1])
    # One set after another, recomputed in the backward pass: the activations of all sets would fill the memory.
    if len(sets[0]) == 1:
        return of_set((sets[0][0], sets[1][0]))
    return lax.map(jax.checkpoint(of_set), sets).mean()


@partial(jax.jit, static_argnums=0)
def mutual_distances(model: Model, span: SpanArrays, images: Array) -> Array:
    """[N, N] how far the inputs of the layer are apart for every two of the images [N, H, W, C], as residuals are."""
    inputs, differences = _layer_inputs(model, span, images)
    squares = (inputs**2).sum(1)
    products = jnp.matmul(inputs, inputs.T, precision=lax.Precision.HIGHEST)
    return jnp.sqrt(jnp.maximum(squares[:, None] + squares[None] - 2 * products, 0) / differences)


def wrong_images(model: Model, span: SpanArrays, images: Array, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[N] which normalised images [N, H, W, C] cannot all be right: several of one picture, or outside the span.

    Of several images with one label that show the same picture, the one nearest to the span is kept. With different
    labels none is, because the span does not see labels.
    """
    residuals = np.asarray(span_residuals(model, span, images, images))
    is_same = np.asarray(mutual_distances(model, span, images)) < _SAME_PICTURE
    is_kept = (labels[:, None] == labels[None]) & (residuals[:, None] <= residuals[None])
    return (is_same & ~is_kept).any(1) | (residuals > max(_OUTSIDE * np.median(residuals), _CLOSE))
