"""The client's local training (the paper's Algorithm 1), its defences, and what the server observes of it.

The defences are noise, pruning and clipping of each example's gradient (the paper's Appendix C.1).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from workbench.config import ClientConfig, DefenceConfig
from workbench.data.dataset import ClientData
from workbench.errors import ConfigError, DataError, check_count, check_kind
from workbench.federated.observation import Observation
from workbench.randomness import laplacian, named_generator, named_key, normal, signed_uniform
from workbench.training.local import LocalTraining, StepSizes
from workbench.training.model import Model
from workbench.training.sgd import Batches, LocalState, batch_gradient, batch_share, in_batches, local_steps, sgd
from workbench.weights import Weights

__all__ = [
    "ClientSecrets",
    "batch_order",
    "check_training",
    "client_update",
    "client_update_with_secrets",
    "clipped",
    "defended_gradient",
    "draw_like",
    "is_kept",
    "step_keys",
]

# The batch order of a longer training would not fit into memory, and the training would take days.
MOST_VISITS = 10**8


class ClientSecrets(NamedTuple):
    """What only the client knows about its training.

    Attributes:
        order: [E, N] the image indices in the order in which each epoch used them; batch b holds positions b * m to
            (b + 1) * m.
    """

    order: NDArray[np.int32]


def batch_order(num_images: int, epochs: int, seed: int, *, same_batches: bool = False) -> NDArray[np.int32]:
    """[E, N]: a random order of the images for each epoch."""
    rng = named_generator(seed, "client/batches")
    images = np.tile(np.arange(num_images, dtype=np.int32), (1 if same_batches else epochs, 1))
    return np.broadcast_to(rng.permuted(images, axis=1), (epochs, num_images))


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _train(
    model: Model,
    training: LocalTraining,
    defence: DefenceConfig,
    batch_size: int,
    weights: Weights,
    inputs: Array,
    labels: Array,
    order: Array,
    sizes: StepSizes,
    keys: Array,
) -> Weights:
    """Train on the images in the given order.

    Args:
        inputs: [N, H, W, C] normalised.
        labels: [N].
        order: [E, n] the images that every epoch uses.
        sizes: [E, B] of every step.
        keys: [E, B] random keys of the defence.
    """
    share = batch_share(1, order.shape[1], batch_size)

    def gradient_of(weights: Weights, batch: Batches, key: Array) -> tuple[Weights, Weights]:
        return defended_gradient(model, defence, weights, *batch, key, training.label_smoothing)

    # A scan over epochs, so that only one epoch's batches are in memory at a time.
    def epoch(state: LocalState, xs: tuple[Array, StepSizes, Array]) -> tuple[LocalState, None]:
        order, sizes, keys = xs
        chosen = in_batches(order[None], batch_size)
        batches = Batches(inputs[chosen], labels[chosen], share)
        if defence.name == "none" and training.is_plain:
            return state._replace(weights=sgd(model, state.weights, batches, sizes.rate[0])), None
        return local_steps(model, training, state, weights, batches, sizes, gradient_of, keys), None

    return lax.scan(epoch, LocalState.first(model, training, weights), (order, sizes, keys))[0].weights


def check_training(model: Model, client: ClientData, config: ClientConfig, field: str = "client") -> None:
    """Check that the network, the client's images and the settings fit together."""
    check_kind("model", model, Model)
    check_kind(field, client, ClientData)
    check_kind("config", config, ClientConfig)
    if client.image_shape != model.image_shape:
        raise DataError(f"{field} has images of {client.image_shape}; {model.name} takes {model.image_shape}.")
    if client.num_classes > model.num_classes:
        raise DataError(f"{field} has {client.num_classes} classes; {model.name} has only {model.num_classes} outputs.")
    schedule = config.schedule(client.num_images)
    # Before anything is computed for every step.
    if config.epochs * client.num_images > MOST_VISITS:
        raise ConfigError(
            f"epochs = {config.epochs} with {client.num_images} images is too much training; "
            f"epochs * num_images must be at most {MOST_VISITS}."
        )
    config.step_sizes(config.learning_rate, schedule)
    if model.mixes_images and config.defence.name in ("pruning", "dp_sgd"):
        raise ConfigError(
            f"defence = {config.defence.name!r} needs the gradient of every image, and {model.name} mixes the images "
            "of a batch; use another defence, or a network without batch normalisation."
        )


def client_update_with_secrets(
    model: Model, weights: Weights, client: ClientData, config: ClientConfig | None = None, seed: int = 0
) -> tuple[Observation, ClientSecrets]:
    """Like `client_update`, but also returns the client's batch order, for teaching and the label-order experiment."""
    config = ClientConfig() if config is None else config
    seed = check_count("seed", seed, minimum=0)
    check_training(model, client, config)
    weights = model.check_weights(weights)

    order = batch_order(client.num_images, config.epochs, seed, same_batches=config.same_batches)
    schedule, training = config.schedule(client.num_images), config.local
    steps = (schedule.epochs, schedule.batches_per_epoch)
    keys = step_keys(named_key(seed, "client/defence"), *steps, independent=config.defence.independent)
    sizes = StepSizes(*(size.reshape(steps) for size in training.step_sizes(config.learning_rate, schedule)))
    final = _train(
        model,
        training,
        config.defence,
        config.batch_size,
        weights,
        jnp.asarray(client.inputs),
        jnp.asarray(client.labels),
        jnp.asarray(order[:, : schedule.num_used]),
        jax.tree.map(jnp.float32, sizes),
        keys,
    )
    if not all(np.isfinite(array).all() for array in jax.tree.leaves(final)):
        raise ConfigError(
            f"learning_rate = {config.learning_rate} with defence = {config.defence} made the local training diverge; "
            "use a smaller rate or a weaker defence."
        )
    observation = Observation(
        server_weights=weights,
        client_weights=final,
        image_shape=client.image_shape,
        num_classes=model.num_classes,
        normalization=client.normalization,
        num_images=client.num_images,
        epochs=config.epochs,
        batch_size=config.batch_size,
        learning_rate=config.learning_rate,
        training=training,
    )
    return observation, ClientSecrets(order)


def client_update(
    model: Model, weights: Weights, client: ClientData, config: ClientConfig | None = None, seed: int = 0
) -> Observation:
    """Train on the client's images and return what the server observes.

    Args:
        model: the network.
        weights: the weights that the server sent.
        client: the private images and labels.
        config: how the client trains.
        seed: of the batch order and the defence's random numbers.
    """
    return client_update_with_secrets(model, weights, client, config, seed)[0]


def step_keys(key: Array, epochs: int, num_batches: int, *, independent: bool) -> Array:
    """[E, B] the random key of each local step; if not independent, every epoch uses those of the first epoch."""
    keys = jax.random.split(key, (epochs if independent else 1, num_batches))
    return jnp.broadcast_to(keys, (epochs, num_batches))


def draw_like(weights: Weights, key: Array, draw: Callable[[Array, tuple[int, ...]], Array]) -> Weights:
    """Random arrays with the shapes of the weights, each from ``draw(key, shape)`` with a different key."""
    leaves, structure = jax.tree.flatten(weights)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(structure, [draw(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)])


def is_kept(probability: float, key: Array, shape: tuple[int, ...]) -> Array:
    """Which entries pruning keeps: each is dropped with the given probability."""
    return signed_uniform(key, shape) > np.float32(2 * probability - 1)


def clipped(gradient: Weights, clip_norm: float) -> Weights:
    """One example's gradient, scaled down if its norm over all layers is above ``clip_norm``."""
    norm = jnp.sqrt(sum((jnp.vdot(g, g) for g in jax.tree.leaves(gradient)), start=jnp.float32(0)))
    scale = clip_norm / jnp.maximum(norm, clip_norm)
    return jax.tree.map(lambda g: g * scale, gradient)


def defended_gradient(
    model: Model,
    defence: DefenceConfig,
    weights: Weights,
    images: Array,
    labels: Array,
    share: Array,
    key: Array,
    smoothing: float = 0.0,
) -> tuple[Weights, Weights]:
    """The gradient of a batch with the defence applied, before the local step, and the new running statistics.

    Args:
        images: [M, H, W, C] normalised.
        labels: [M].
        share: [M] each image's weight in the batch mean: 1 / size for images, 0 for padding.
        key: the random key of this step.
        smoothing: of the labels.
    """

    def gradient_of(image: Array, label: Array) -> Weights:
        return batch_gradient(model, weights, image[None], label[None], jnp.ones(1), smoothing)[0]

    def with_noise(gradient: Weights, noise: Weights, scale: float | Array) -> Weights:
        return jax.tree.map(lambda g, n: g + scale * n, gradient, noise)

    if defence.name == "pruning":

        def pruned(image: Array, label: Array, key: Array) -> Weights:
            kept = draw_like(weights, key, partial(is_kept, defence.strength))
            return jax.tree.map(lambda g, k: jnp.where(k, g, jnp.zeros_like(g)), gradient_of(image, label), kept)

        return _batch_mean(weights, pruned, share, images, labels, jax.random.split(key, len(share))), {}

    if defence.name == "dp_sgd":
        assert defence.clip_norm is not None
        bound = defence.clip_norm
        gradient = _batch_mean(weights, lambda x, y: clipped(gradient_of(x, y), bound), share, images, labels)
        # DP-SGD adds the noise to the sum over the batch; here the gradient is the mean, so the noise is scaled too.
        return with_noise(gradient, draw_like(weights, key, normal), defence.strength * bound * share.max()), {}

    gradient, statistics = batch_gradient(model, weights, images, labels, share, smoothing)
    if defence.name == "gaussian":
        # Without clipping, the mean of one draw per example is a single draw of a smaller standard deviation.
        scale = defence.strength * jnp.sqrt((share**2).sum())
        gradient = with_noise(gradient, draw_like(weights, key, normal), scale)
    elif defence.name == "laplacian":
        keys = jax.random.split(key, len(share))
        noise = _batch_mean(weights, lambda k: draw_like(weights, k, laplacian), share, keys)
        gradient = with_noise(gradient, noise, defence.strength)
    return gradient, statistics


def _batch_mean(like: Weights, of_example: Callable[..., Weights], share: Array, *examples: Array) -> Weights:
    """The mean of ``of_example`` over the batch, one example at a time to avoid storing M gradients."""

    def add_example(total: Weights, example: tuple[Array, ...]) -> tuple[Weights, None]:
        part, *arrays = example
        return jax.tree.map(lambda t, g: t + part * g, total, of_example(*arrays)), None

    return lax.scan(add_example, jax.tree.map(jnp.zeros_like, like), (share, *examples))[0]
