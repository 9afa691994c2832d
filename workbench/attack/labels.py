"""RecLabels: label counts from the two sets of weights alone (the paper's Section 4.5).

The gradient of the last layer reveals which classes a client has: summed over the local steps, class k's part is the
difference between how often the network expected k and how often k occurred. What the network expected is not known,
because the client's images are not; every method estimates it from random inputs, at different weights.

The paper's method interpolates the network's statistics between the server's and the client's weights. Here the first
local step has the server's statistics and the last step nearly the client's; the formula printed in the paper runs the
other way round. The counts are the mean over all steps, which is the same for both directions.
"""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from workbench.attack.attack import Attack
from workbench.attack.build import assign_labels, build_attack
from workbench.attack.simulate import believed_schedule, simulate
from workbench.config import LABEL_METHODS, AttackConfig
from workbench.errors import ConfigError, DataError, check_choice, check_count
from workbench.federated.observation import Observation
from workbench.randomness import named_key
from workbench.training.local import PLAIN, LocalTraining
from workbench.training.model import Model
from workbench.weights import Weights

__all__ = [
    "LabelEstimate",
    "Statistics",
    "dummy_inputs",
    "estimate_labels",
    "network_statistics",
    "real_counts",
    "split_counts",
    "whole_counts",
]

_NUM_DUMMIES = 3000
# Inputs that pass through the network together: all 3000 at once need gigabytes and fit no cache.
_TOGETHER = 25
_SHORT_STEPS = 60
_FIRST_STEPS = 30


class LabelEstimate(NamedTuple):
    """How many images of each class a client has, as estimated.

    Attributes:
        real: [K] real-valued counts.
        whole: [K] whole counts that sum to the number of images.
    """

    real: NDArray[np.float64]
    whole: NDArray[np.int64]


class Statistics(NamedTuple):
    """What the label formulas need of the network at some weights, averaged over inputs."""

    probabilities: NDArray[np.float64]  # [K] mean softmax
    feature_sum: float  # mean sum of what enters the last layer


@partial(jax.jit, static_argnums=0)
def _statistics(model: Model, weights: Weights, inputs: Array) -> tuple[Array, Array]:
    def of_one(image: Array) -> tuple[Array, Array]:
        batch = image[None]
        return jax.nn.softmax(model.apply(weights, batch)[0]), model.features(weights, batch).sum()

    def of_batch(images: Array) -> tuple[Array, Array]:
        def first_class(kernel: Array) -> tuple[Array, Array]:
            last = {**weights[model.last_layer], "kernel": kernel}
            logits, _ = model.train_logits({**weights, model.last_layer: last}, images, jnp.ones(len(images), bool))
            return logits[:, 0].mean(), logits

        # The logits of a class are linear in its column of the kernel: their slope is the features in training mode.
        features, logits = jax.grad(first_class, has_aux=True)(weights[model.last_layer]["kernel"])
        return jax.nn.softmax(logits).mean(0), features.sum()

    if model.mixes_images:
        # What the client's images meet in training is a batch, not running statistics.
        together = min(_TOGETHER, len(inputs))
        batches = inputs[: len(inputs) // together * together].reshape(-1, together, *inputs.shape[1:])
        probabilities, feature_sums = jax.lax.map(of_batch, batches)
    else:
        probabilities, feature_sums = jax.lax.map(of_one, inputs, batch_size=_TOGETHER)
    return probabilities.mean(0), feature_sums.mean()


def network_statistics(model: Model, weights: Weights, inputs: ArrayLike) -> Statistics:
    """The statistics on the given normalised inputs [n, H, W, C]."""
    probabilities, feature_sum = _statistics(model, weights, jnp.asarray(inputs, jnp.float32))
    return Statistics(np.asarray(probabilities, np.float64), float(feature_sum))


def dummy_inputs(model: Model, seed: int = 0) -> Array:
    """[3000, H, W, C] the random normalised inputs on which statistics are taken where there are no better ones."""
    return jax.random.normal(named_key(seed, "labels/dummies"), (_NUM_DUMMIES, *model.image_shape), jnp.float32)


def estimate_labels(
    model: Model,
    observation: Observation,
    method: str = "interpolated",
    *,
    seed: int = 0,
    images: ArrayLike | None = None,
    config: AttackConfig | None = None,
    statistics: tuple[Statistics, Statistics] | None = None,
) -> LabelEstimate:
    """The label counts of a client, or the sum of those of all clients of an aggregate.

    Args:
        model: the network.
        observation: what the server saw.
        method: ``interpolated`` (the paper's), ``geng_server`` or ``geng_client`` (Geng et al. with statistics at
            either end), ``bias``, which uses the last layer's bias and needs no feature sums, or ``refined``: the bias
            again, with statistics on images that a short surrogate attack reconstructed with the labels of the bias.
            An attack with one set of images and a span term then corrects the counts by a first reconstruction of its
            own.
        seed: of every random draw.
        images: [n, H, W, C] normalised inputs to take the statistics on, for instance images already reconstructed;
            None draws random ones.
        config: of the short attack of ``refined``.
        statistics: at the server's and the client's weights, where they were computed before; ``refined`` takes
            new ones.
    """
    check_choice("label method", method, LABEL_METHODS)
    if observation.training.is_adam:
        raise ConfigError(
            f"label method = {method!r} reads the update as a sum of gradients, which the steps of "
            f"{observation.training.optimizer!r} are not; give label_counts."
        )
    if method == "refined":
        images, statistics = _short_reconstruction(model, observation, config or AttackConfig(), seed), None
    if statistics is None:
        inputs = dummy_inputs(model, seed) if images is None else images
        statistics = (
            network_statistics(model, observation.server_weights, inputs),
            network_statistics(model, observation.client_weights, inputs),
        )
    last = jax.tree.map(lambda a: np.asarray(a, np.float64), observation.gradient_sum[model.last_layer])
    total = observation.num_images * observation.num_clients
    training, coefficients = observation.training, observation.response.coefficients
    real = real_counts(method, total, observation.local_steps, last, *statistics, coefficients, training)
    if method == "refined" and config is not None and config.method == "shared" and config.span_weight:
        factor = _clip_factor(statistics[1].probabilities, last["bias"] / coefficients.sum(), training)
        real = _corrected(model, observation, config, whole_counts(real, total), factor, seed)
    return LabelEstimate(real, whole_counts(real, total))


def _corrected(
    model: Model, observation: Observation, config: AttackConfig, counts: NDArray[np.int64], factor: float, seed: int
) -> NDArray[np.float64]:
    """[K] the counts by which the simulated training on a first reconstruction would have the observed bias.

    The simulation knows what the network expected in every step; a class with a larger bias gradient than the observed
    one is more frequent than it was assumed to be. Clipping has left the given factor of the gradients.
    """
    attack, images = _short_attack(model, observation, config, counts, _FIRST_STEPS, seed)
    problem, simulation = attack.phases[0].problem, attack.phases[0].objective.simulation
    simulated = jax.jit(simulate, static_argnums=0)(simulation, problem.known, images)[model.last_layer]["bias"]
    excess = np.asarray(simulated - observation.gradient_sum[model.last_layer]["bias"], np.float64)
    all_images = observation.response.coefficients.sum() * (1 - observation.training.label_smoothing) * factor
    return counts + excess * counts.sum() / all_images


def _short_reconstruction(model: Model, observation: Observation, config: AttackConfig, seed: int) -> Array:
    """[A * N, H, W, C] normalised: the client's images after a few steps of the surrogate."""
    config = replace(config, method="surrogate")
    counts = estimate_labels(model, observation, "bias", seed=seed).whole
    _, images = _short_attack(model, observation, config, counts, _SHORT_STEPS, seed)
    return images.reshape(-1, *model.image_shape)


def _short_attack(
    model: Model, observation: Observation, config: AttackConfig, counts: NDArray[np.int64], steps: int, seed: int
) -> tuple[Attack, Array]:
    """An attack with these counts in all, and its images [A, V, N, H, W, C] after a few steps from noise."""
    config = replace(config, steps=steps, warm_start_steps=0)
    split = split_counts(counts, observation.num_clients)
    labels, order = assign_labels(split, config, believed_schedule(config, observation.schedule), seed)
    attack = build_attack(model, observation, config, labels, order, seed=seed)
    state, _ = attack.advance(attack.start(), attack.steering, attack.total_steps)
    return attack, state.images


def split_counts(counts: NDArray[np.int64], num_clients: int) -> NDArray[np.int64]:
    """[K] counts of an aggregate to [A, K]: the update holds only their sum, so labels are distributed round-robin.

    >>> split_counts(np.array([2, 0, 2]), num_clients=2)
    array([[1, 0, 1],
           [1, 0, 1]])
    """
    labels = np.repeat(np.arange(len(counts)), counts)
    return np.stack([np.bincount(labels[index::num_clients], minlength=len(counts)) for index in range(num_clients)])


def real_counts(
    method: str,
    num_images: int,
    local_steps: int,
    last_layer: dict[str, NDArray[np.float64]],
    server: Statistics,
    client: Statistics,
    coefficients: NDArray[np.float64] | None = None,
    training: LocalTraining = PLAIN,
) -> NDArray[np.float64]:
    """[K] real-valued counts from the last layer's summed gradient.

    With U local steps, p and O the mean softmax and feature sum at step j, and dW_k and db_k class k's summed
    gradients: N * (p_k - dW_k / (O * U)) from the kernel and N * (p_k - db_k / U) from the bias, averaged over the
    steps. Where gradients count differently, their coefficients sum to what is U here, and weight the mean.

    Args:
        method: as in `estimate_labels`.
        num_images: N.
        local_steps: U.
        last_layer: the summed gradients.
        server: statistics at the server's weights.
        client: statistics at the client's weights.
        coefficients: [U] how much of every gradient is in the sum; None for all of it.
        training: label smoothing and clipping change what a gradient says.
    """
    coefficients = np.ones(local_steps) if coefficients is None else coefficients
    total = coefficients.sum()
    if method in ("bias", "refined"):
        if "bias" not in last_layer:
            raise ConfigError(
                f"label method = {method!r} needs a bias in the last layer, which this network does not have."
            )
        return num_images * _label_shares(client.probabilities, last_layer["bias"] / total, training)
    along = {
        "interpolated": (np.cumsum(coefficients) - coefficients) / total,
        "geng_server": np.zeros(1),
        "geng_client": np.ones(1),
    }[method]
    p = server.probabilities + along[:, None] * (client.probabilities - server.probabilities)
    feature_sum = server.feature_sum + along[:, None] * (client.feature_sum - server.feature_sum)
    if not (np.abs(feature_sum) > 0).all():
        raise DataError("the network's features are all zero on random inputs: its kernel gradient reveals no labels.")
    measured = last_layer["kernel"].sum(0) / (feature_sum * total)
    per_step = num_images * np.stack([_label_shares(*pair, training) for pair in zip(p, measured, strict=True)])
    weights = coefficients / coefficients.mean() if len(along) > 1 else np.ones(1)
    counts: NDArray[np.float64] = (weights[:, None] * per_step).mean(0)
    return counts


def _label_shares(
    expected: NDArray[np.float64], measured: NDArray[np.float64], training: LocalTraining
) -> NDArray[np.float64]:
    """[K] the share of every class, from its expected probability and its measured gradient."""
    measured = measured / _clip_factor(expected, measured, training)
    return (expected - training.label_smoothing / len(expected) - measured) / (1 - training.label_smoothing)


def _clip_factor(probabilities: NDArray[np.float64], measured: NDArray[np.float64], training: LocalTraining) -> float:
    """What clipping leaves of a gradient.

    It shrinks all classes alike. The gradient of a class that the client does not have is its expected probability, so
    these show by how much; a class that it has is measured below 0, or nearly so.
    """
    expected = probabilities - training.label_smoothing / len(probabilities)
    absent = (measured > 0) & (expected > 0)
    ratios = measured[absent] / expected[absent]
    return min(1.0, float(np.median(ratios))) if training.gradient_clip and ratios.size else 1.0


def whole_counts(real: ArrayLike, num_images: int) -> NDArray[np.int64]:
    """Whole counts that sum to ``num_images``.

    Floors, then one more for the largest remainders, or one less for the smallest where the floors are too many.

    >>> whole_counts([1.6, -0.2, 2.4], 4)
    array([2, 0, 2])
    """
    values = np.asarray(real, np.float64)
    num_images = check_count("num_images", num_images)
    if values.ndim != 1 or not values.size or not np.isfinite(values).all():
        raise DataError(f"real counts of shape {values.shape} must be one finite number for each class.")
    # Larger values cannot matter, and would not fit into whole numbers.
    values = np.minimum(values, 2.0 * num_images)
    counts = np.maximum(np.floor(values), 0).astype(np.int64)
    remainders = values - counts
    while (missing := num_images - counts.sum()) > 0:
        counts[np.argsort(-remainders, kind="stable")[:missing]] += 1
    present = np.flatnonzero(counts)
    surplus = counts.sum() - num_images
    counts[present[np.argsort(remainders[present], kind="stable")][:surplus]] -= 1
    while counts.sum() > num_images:
        counts[counts.argmax()] -= 1
    return counts
