"""The client's local training (the paper's Algorithm 1) and what the server gets to see of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from workbench.chain import Weights
from workbench.config import ClientConfig, DefenceConfig
from workbench.data.dataset import ClientData
from workbench.errors import ConfigError, DataError, check_count
from workbench.federated.defences import defended_gradient
from workbench.federated.observation import Observation
from workbench.models import Model
from workbench.randomness import named_key
from workbench.training import Batches, sgd

__all__ = ["ClientSecrets", "aggregate", "batch_order", "client_update", "client_update_with_secrets"]


class ClientSecrets(NamedTuple):
    """What the client alone knows of its training.

    Attributes:
        order: [E, N] the images in the order in which each epoch used them; batch b holds the positions b * m to
            (b + 1) * m.
    """

    order: NDArray[np.int32]


def batch_order(num_images: int, epochs: int, seed: int, *, same_batches: bool = False) -> NDArray[np.int32]:
    """[E, N]: each epoch's random order of the images, every image exactly once."""
    rng = np.random.default_rng([seed, 0])
    first = rng.permutation(num_images)
    orders = [first] + [first if same_batches else rng.permutation(num_images) for _ in range(epochs - 1)]
    return np.stack(orders).astype(np.int32)


def in_batches(values: Array, batch_size: int) -> Array:
    """[E, N, ...] to [E * B, M, ...], the last batch of each epoch padded with zeros where N is not a multiple of M."""
    epochs, num_images = values.shape[:2]
    num_batches = -(-num_images // batch_size)
    padding = [(0, 0), (0, num_batches * batch_size - num_images)] + [(0, 0)] * (values.ndim - 2)
    return jnp.pad(values, padding).reshape(epochs * num_batches, batch_size, *values.shape[2:])


def batch_share(num_images: int, batch_size: int, epochs: int) -> Array:
    """[E * B, M]: 1 / (size of the batch) for every image, 0 for padding."""
    present = in_batches(jnp.ones((epochs, num_images)), batch_size)
    return present / present.sum(1, keepdims=True)


@partial(jax.jit, static_argnums=(0, 1))
def _train(
    model: Model,
    defence: DefenceConfig,
    weights: Weights,
    inputs: Array,
    labels: Array,
    order: Array,
    share: Array,
    rate: Array,
    keys: Array,
) -> Weights:
    """Train on the given order [S, M] of the images."""
    batches = Batches(inputs[order], labels[order], share)
    if defence.name == "none":
        return sgd(model, weights, batches, rate)

    def step(weights: Weights, xs: tuple[Batches, Array]) -> tuple[Weights, None]:
        batch, key = xs
        gradient = defended_gradient(model, defence, weights, *batch, key)
        return jax.tree.map(lambda w, g: w - rate * g, weights, gradient), None

    return lax.scan(step, weights, (batches, keys))[0]


def client_update_with_secrets(
    model: Model, weights: Weights, client: ClientData, config: ClientConfig | None = None, seed: int = 0
) -> tuple[Observation, ClientSecrets]:
    """As `client_update`, with the client's batch order beside it: for teaching and for the label-order experiment."""
    config = ClientConfig() if config is None else config
    seed = check_count("seed", seed, minimum=0)
    _check_kinds(model, client, config)
    if client.image_shape != model.image_shape:
        raise DataError(f"the client's images are {client.image_shape} but {model.name} takes {model.image_shape}.")
    if client.num_classes > model.num_classes:
        raise DataError(
            f"the client has {client.num_classes} classes but {model.name} only {model.num_classes} outputs."
        )
    weights = model.check_weights(weights)
    num_batches = config.batches_per_epoch(client.num_images)

    order = batch_order(client.num_images, config.epochs, seed, same_batches=config.same_batches)
    positions = np.arange(config.epochs * num_batches)
    key = named_key(seed, "client/defence")
    keys = jax.vmap(partial(jax.random.fold_in, key))(
        positions if config.defence.independent else positions % num_batches
    )
    final = _train(
        model,
        config.defence,
        weights,
        jnp.asarray(client.inputs),
        jnp.asarray(client.labels),
        in_batches(jnp.asarray(order), config.batch_size),
        batch_share(client.num_images, config.batch_size, config.epochs),
        jnp.float32(config.learning_rate),
        keys,
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
    """Train on the client's images and return what the server sees of it.

    Args:
        model: the network.
        weights: what the server sent.
        client: the private images and labels.
        config: how the client trains.
        seed: of the batch order and the defence's draws.
    """
    return client_update_with_secrets(model, weights, client, config, seed)[0]


def aggregate(observations: Sequence[Observation]) -> Observation:
    """The mean of several clients' updates, as secure aggregation would reveal it."""
    observations = list(observations)
    if not observations or not all(isinstance(o, Observation) for o in observations):
        raise ConfigError("observations must be a non-empty sequence of Observation.")
    first = observations[0]
    known = ("image_shape", "num_classes", "normalization", "num_images", "epochs", "batch_size", "learning_rate")
    for index, other in enumerate(observations):
        for name in known:
            if getattr(other, name) != getattr(first, name):
                raise ConfigError(
                    f"observations[{index}].{name} = {getattr(other, name)!r} must equal that of the first, "
                    f"{getattr(first, name)!r}."
                )
        if other.num_clients != 1:
            raise ConfigError(f"observations[{index}] is an aggregate already; give single clients' updates.")
        same = jax.tree.map(np.array_equal, other.server_weights, first.server_weights)
        if not all(jax.tree.leaves(same)):
            raise ConfigError(
                f"observations[{index}].server_weights must equal those of the first: one round, one server."
            )
    mean = jax.tree.map(lambda *w: sum(w) / len(w), *(o.client_weights for o in observations))
    return Observation(first.server_weights, mean, *(getattr(first, name) for name in known), len(observations))


def _check_kinds(model: Any, client: Any, config: Any) -> None:
    for name, value, kind in (
        ("model", model, Model),
        ("client", client, ClientData),
        ("config", config, ClientConfig),
    ):
        if not isinstance(value, kind):
            raise ConfigError(f"{name} = {value!r:.80} must be a {kind.__name__}.")
