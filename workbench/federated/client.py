"""The client's local training (the paper's Algorithm 1) and what the server observes of it."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from workbench.config import ClientConfig, DefenceConfig
from workbench.data.dataset import ClientData
from workbench.errors import ConfigError, DataError, check_count, check_kind, shown
from workbench.federated.defences import defended_gradient, step_keys
from workbench.federated.observation import Observation
from workbench.randomness import named_generator, named_key
from workbench.training.model import Model
from workbench.training.sgd import Batches, batch_share, in_batches, sgd
from workbench.weights import Weights, check_shapes, shapes_of

__all__ = [
    "ClientSecrets",
    "aggregate",
    "batch_order",
    "check_training",
    "client_update",
    "client_update_with_secrets",
    "mean_weights",
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


@partial(jax.jit, static_argnums=(0, 1, 2))
def _train(
    model: Model,
    defence: DefenceConfig,
    batch_size: int,
    weights: Weights,
    inputs: Array,
    labels: Array,
    order: Array,
    rate: Array,
    keys: Array,
) -> Weights:
    """Train on the images in the given order.

    Args:
        inputs: [N, H, W, C] normalised.
        labels: [N].
        order: [E, N].
        rate: the step size.
        keys: [E, B] random keys of the defence.
    """
    share = batch_share(1, len(labels), batch_size)

    def step(weights: Weights, xs: tuple[Batches, Array]) -> tuple[Weights, None]:
        batch, key = xs
        gradient = defended_gradient(model, defence, weights, *batch, key)
        return jax.tree.map(lambda w, g: w - rate * g, weights, gradient), None

    # A scan over epochs, so that only one epoch's batches are in memory at a time.
    def epoch(weights: Weights, xs: tuple[Array, Array]) -> tuple[Weights, None]:
        order, keys = xs
        chosen = in_batches(order[None], batch_size)
        batches = Batches(inputs[chosen], labels[chosen], share)
        if defence.name == "none":
            return sgd(model, weights, batches, rate), None
        return lax.scan(step, weights, (batches, keys))[0], None

    return lax.scan(epoch, weights, (order, keys))[0]


def check_training(model: Model, client: ClientData, config: ClientConfig, field: str = "client") -> None:
    """Check that the network, the client's images and the settings fit together."""
    check_kind("model", model, Model)
    check_kind(field, client, ClientData)
    check_kind("config", config, ClientConfig)
    if client.image_shape != model.image_shape:
        raise DataError(f"{field} has images of {client.image_shape}; {model.name} takes {model.image_shape}.")
    if client.num_classes > model.num_classes:
        raise DataError(f"{field} has {client.num_classes} classes; {model.name} has only {model.num_classes} outputs.")
    config.schedule(client.num_images)
    if config.epochs * client.num_images > MOST_VISITS:
        raise ConfigError(
            f"epochs = {config.epochs} with {client.num_images} images is too much training; "
            f"epochs * num_images must be at most {MOST_VISITS}."
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
    keys = step_keys(
        named_key(seed, "client/defence"),
        config.epochs,
        config.schedule(client.num_images).batches_per_epoch,
        independent=config.defence.independent,
    )
    final = _train(
        model,
        config.defence,
        config.batch_size,
        weights,
        jnp.asarray(client.inputs),
        jnp.asarray(client.labels),
        jnp.asarray(order),
        jnp.float32(config.learning_rate),
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


def mean_weights(weights: Sequence[Weights]) -> Weights:
    """The unweighted mean of several weights of one network."""
    return jax.tree.map(lambda *arrays: sum(arrays) / len(arrays), *weights)


def aggregate(observations: Sequence[Observation]) -> Observation:
    """The mean of several clients' updates, as secure aggregation would reveal it."""
    if not isinstance(observations, Sequence) or not observations:
        raise ConfigError(f"observations = {shown(observations)} must be a non-empty list of Observation.")
    first = check_kind("observations[0]", observations[0], Observation)
    known = ("image_shape", "num_classes", "normalization", "num_images", "epochs", "batch_size", "learning_rate")
    for index, other in enumerate(observations):
        field = f"observations[{index}]"
        check_kind(field, other, Observation)
        if other.num_clients != 1:
            raise ConfigError(
                f"{field}.num_clients = {other.num_clients} must be 1: only single clients' updates can be aggregated."
            )
        for name in known:
            here, there = getattr(other, name), getattr(first, name)
            if here != there:
                raise ConfigError(f"{field}.{name} = {here!r} must equal that of observations[0], {there!r}.")
        check_shapes(
            other.server_weights, f"{field}.server_weights", shapes_of(first.server_weights), "observations[0]"
        )
        if not all(jax.tree.leaves(jax.tree.map(np.array_equal, other.server_weights, first.server_weights))):
            raise ConfigError(f"{field}.server_weights must equal those of observations[0]: all are from one round.")
    mean = mean_weights([observation.client_weights for observation in observations])
    return replace(first, client_weights=mean, num_clients=len(observations))
