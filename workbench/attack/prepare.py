"""From an observation to an attack ready to run: input checked, label counts known or recovered."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.attack.attack import Attack, Custom
from workbench.attack.build import assign_labels, build_attack
from workbench.attack.labels import estimate_labels, split_counts
from workbench.attack.methods import METHODS, Simulated
from workbench.attack.simulate import believed_schedule
from workbench.attack.span import Span, find_span
from workbench.config import AttackConfig
from workbench.errors import ConfigError, DataError, check_count, check_kind
from workbench.federated.observation import Observation
from workbench.training.model import Model
from workbench.weights import check_shapes

__all__ = ["check_label_counts", "prepare"]


def prepare(
    model: Model,
    observation: Observation,
    config: AttackConfig | None = None,
    *,
    seed: int = 0,
    label_counts: ArrayLike | None = None,
    batch_labels: ArrayLike | None = None,
    image_order: ArrayLike | None = None,
    custom: Custom | None = None,
    device: jax.Device | None = None,
) -> Attack:
    """Check everything and make an attack ready (lines 2 to 5 of the paper's Algorithm 2).

    Nothing is compiled yet, except to recover label counts.

    Args:
        model: the network.
        observation: what the server saw.
        config: how to attack.
        seed: of every random draw.
        label_counts: [K] known counts of a client, or [A, K] of an aggregate's clients; None recovers them.
        batch_labels: [E, N] or [A, E, N] known labels in the order of every epoch's batches, in place of counts.
        image_order: [E, N] or [A, E, N] with ``batch_labels``: which image stands where, for methods with one set of
            images; None takes an order in which every image keeps its label.
        custom: a custom prior, regulariser or optimiser.
        device: None leaves it to JAX.
    """
    config = check_kind("config", AttackConfig() if config is None else config, AttackConfig)
    check_kind("model", model, Model)
    check_kind("observation", observation, Observation)
    seed = check_count("seed", seed, minimum=0)
    _check_observation(model, observation)
    if config.noisy_method is not None:
        config = _settle_method(config, observation, find_span(model, observation))
    _check_method(config, observation)
    schedule = believed_schedule(config, observation.schedule)
    if batch_labels is not None:
        labels = _check_batch_labels(batch_labels, observation, schedule.epochs)
        order = _order_by_label(labels) if image_order is None else _check_order(image_order, labels)
    elif image_order is not None:
        raise ConfigError("image_order says which image stands where: give batch_labels too, its label there.")
    else:
        counts = _label_counts(model, observation, config, label_counts, seed)
        labels, order = assign_labels(counts, config, schedule, seed)
    return build_attack(model, observation, config, labels, order, custom, seed=seed, device=device)


def _settle_method(config: AttackConfig, observation: Observation, span: Span | str) -> AttackConfig:
    """The settings for an update with this span: the method, or the one for noise with its warm start."""
    if not isinstance(span, str) and span.spectrum.is_clear:
        return replace(config, noisy_method=None, warm_start_steps=0)
    # The surrogate cannot simulate Adam.
    warm_start = 0 if observation.training.is_adam else config.warm_start_steps
    method = config.noisy_method or config.method
    return replace(config, method=method, noisy_method=None, warm_start_steps=warm_start)


def _check_observation(model: Model, observation: Observation) -> None:
    """The update must be this network's, and must not be zero."""
    # The observation has checked that both sets of weights have the same shapes.
    check_shapes(observation.server_weights, "server_weights", model.shapes, model.name)
    if observation.image_shape != model.image_shape:
        raise DataError(
            f"the observation's images are {observation.image_shape} but {model.name} takes {model.image_shape}."
        )
    if observation.num_classes != model.num_classes:
        raise DataError(
            f"the observation has {observation.num_classes} classes but {model.name} {model.num_classes} outputs."
        )
    if not any(bool(jnp.any(leaf != 0)) for leaf in jax.tree.leaves(observation.gradient_sum)):
        raise DataError(
            "the update is all zeros: server_weights and client_weights are equal, so there is nothing to attack."
        )


def _check_method(config: AttackConfig, observation: Observation) -> None:
    """A method that does not simulate every step reads the update as a sum of gradients, which Adam's is not."""
    is_batched = METHODS[config.method].simulated is Simulated.BATCHES
    if observation.training.is_adam and (config.warm_start_steps or not is_batched):
        setting = f"warm_start_steps = {config.warm_start_steps}" if is_batched else f"method = {config.method!r}"
        raise ConfigError(
            f"{setting} reads the update as a sum of gradients, which the steps of {observation.training.optimizer!r} "
            "are not; use ours_prior, ours_no_prior or shared with warm_start_steps = 0."
        )


def _label_counts(
    model: Model, observation: Observation, config: AttackConfig, known: ArrayLike | None, seed: int
) -> NDArray[np.int64]:
    """[A, K] known counts, checked, or recovered ones."""
    if known is None:
        recovered = estimate_labels(model, observation, config.label_method, seed=seed, config=config).whole
        return split_counts(recovered, observation.num_clients)
    return check_label_counts(observation, known)


def check_label_counts(observation: Observation, known: ArrayLike) -> NDArray[np.int64]:
    """[A, K] label counts that the observation can have."""
    counts = _whole_numbers("label_counts", known, clients=observation.num_clients, classes=observation.num_classes)
    images = observation.num_images
    if (wrong := counts.sum(1)[counts.sum(1) != images]).size:
        raise DataError(f"label_counts sums to {wrong[0]}; it must sum to the number of images, {images}.")
    return counts


def _whole_numbers(field: str, given: ArrayLike, **axes: int) -> NDArray[np.int64]:
    """The given array if it has these axes and no negative number; a single client may leave out the first axis."""
    values, expected = np.asarray(given), tuple(axes.values())
    if values.shape == expected[1:] and expected[0] == 1:
        values = values[None]
    if values.shape != expected:
        raise DataError(f"{field} has shape {values.shape}; expected {expected}: {', '.join(axes)}.")
    if not np.issubdtype(values.dtype, np.integer) or values.min() < 0:
        raise DataError(f"{field} must be whole numbers of at least 0.")
    return values.astype(np.int64)


def _check_batch_labels(batch_labels: ArrayLike, observation: Observation, epochs: int) -> NDArray[np.int64]:
    clients, images = observation.num_clients, observation.num_images
    labels = _whole_numbers("batch_labels", batch_labels, clients=clients, epochs=epochs, images=images)
    if labels.max() >= observation.num_classes:
        raise DataError(f"batch_labels must be whole numbers from 0 to {observation.num_classes - 1}.")
    if (np.sort(labels, axis=-1) != np.sort(labels[:, :1], axis=-1)).any():
        raise DataError("batch_labels must hold the same labels in every epoch: each uses every image once.")
    return labels


def _order_by_label(labels: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """[A, E, N] an order of the first epoch's images that agrees with the labels; None where these never move."""
    if (labels == labels[:, :1]).all():
        return None
    images = np.broadcast_to(np.argsort(labels[:, :1], axis=-1, kind="stable"), labels.shape)
    ranks = np.argsort(np.argsort(labels, axis=-1, kind="stable"), axis=-1)
    return np.take_along_axis(images, ranks, axis=-1)


def _check_order(image_order: ArrayLike, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    clients, epochs, images = labels.shape
    order = _whole_numbers("image_order", image_order, clients=clients, epochs=epochs, images=images)
    if not (np.sort(order, axis=-1) == np.arange(images)).all():
        raise DataError(f"image_order must hold every image from 0 to {images - 1} once in every epoch.")
    by_image = np.take_along_axis(labels, np.argsort(order, axis=-1), axis=-1)
    if (by_image != by_image[:, :1]).any():
        raise DataError("image_order and batch_labels disagree: an image has different labels in different epochs.")
    return order
