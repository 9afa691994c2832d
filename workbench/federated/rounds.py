"""The server's side of federated averaging: choose clients, collect their updates, average, evaluate."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from workbench.config import ClientConfig
from workbench.data.dataset import ClientData, check_labels
from workbench.errors import ConfigError, DataError, check_count, check_flag, check_kind, check_number, shown
from workbench.federated.client import check_training, client_update
from workbench.federated.observation import Observation
from workbench.files.weights import save_weights
from workbench.files.writing import make_folder
from workbench.progress import progress_bar
from workbench.randomness import named_generator
from workbench.training.model import Model
from workbench.weights import Weights, check_floats, check_shapes, shapes_of

__all__ = ["Round", "accuracy", "aggregate", "server_rounds"]


def mean_weights(weights: Sequence[Weights]) -> Weights:
    """The unweighted mean of several weights of one network."""
    return jax.tree.map(lambda *arrays: sum(arrays) / len(arrays), *weights)


def aggregate(observations: Sequence[Observation]) -> Observation:
    """The mean of several clients' updates, as secure aggregation would reveal it."""
    if not isinstance(observations, Sequence) or not observations:
        raise ConfigError(f"observations = {shown(observations)} must be a non-empty list of Observation.")
    first = check_kind("observations[0]", observations[0], Observation)
    known = (
        "image_shape",
        "num_classes",
        "normalization",
        "num_images",
        "epochs",
        "batch_size",
        "learning_rate",
        "training",
    )
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


class Round(NamedTuple):
    """The record of one communication round."""

    number: int  # from 1
    clients: tuple[int, ...]
    accuracy: float | None  # in [0, 1]; None if not evaluated


@partial(jax.jit, static_argnums=0)
def _num_correct(model: Model, weights: Weights, inputs: Array, labels: Array) -> Array:
    return (model.apply(weights, inputs).argmax(-1) == labels).sum()


def accuracy(model: Model, weights: Weights, inputs: ArrayLike, labels: ArrayLike, batch_size: int = 500) -> float:
    """The fraction of the normalised images [n, H, W, C] that the network classifies correctly.

    Args:
        labels: [n] classes.
        batch_size: how many images go through the network at once.
    """
    check_kind("model", model, Model)
    weights = model.check_weights(weights)
    batch_size = check_count("batch_size", batch_size)
    images = check_floats("inputs", inputs)
    if images.ndim != 4 or images.shape[1:] != model.image_shape or not len(images):
        raise DataError(f"inputs have shape {images.shape}; {model.name} takes at least one of {model.image_shape}.")
    classes = check_labels(labels, len(images), model.num_classes)
    # Rounded up to a power of two, so that different numbers of images share compilations.
    batch_size = min(batch_size, 1 << (len(images) - 1).bit_length())
    correct = 0
    for start in range(0, len(images), batch_size):
        x, y = images[start : start + batch_size], classes[start : start + batch_size]
        padding = (0, batch_size - len(x))
        # All batches have one shape, so there is one compilation; padded labels match no class.
        x, y = np.pad(x, [padding, (0, 0), (0, 0), (0, 0)]), np.pad(y, padding, constant_values=-1)
        correct += int(_num_correct(model, weights, jnp.asarray(x), jnp.asarray(y)))
    return correct / len(images)


def server_rounds(
    model: Model,
    weights: Weights,
    clients: Sequence[ClientData],
    config: ClientConfig | None = None,
    *,
    rounds: int = 10,
    clients_per_round: int = 10,
    seed: int = 0,
    evaluate: Callable[[Weights], float] | None = None,
    evaluate_every: int = 10,
    save_every: int | None = None,
    save_to: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> tuple[Weights, list[Round]]:
    """Federated averaging over a number of rounds, with equal weight for every chosen client.

    Args:
        model: the network.
        weights: the initial weights.
        clients: to choose from.
        config: how each client trains.
        rounds: the number of communication rounds.
        clients_per_round: how many clients are chosen at random in each round.
        seed: of the choice of clients, their batch orders and their defences' random numbers.
        evaluate: weights to accuracy in [0, 1], for instance a partial `accuracy`.
        evaluate_every: rounds between two evaluations; the last round is always evaluated.
        save_every: rounds between two saved files ``weights_after_round_<number>.safetensors``.
        save_to: the folder for the saved files.
        progress: show a progress bar.

    Returns:
        The final weights and a record of every round.
    """
    config = ClientConfig() if config is None else config
    rounds = check_count("rounds", rounds)
    evaluate_every = check_count("evaluate_every", evaluate_every)
    rng = named_generator(check_count("seed", seed, minimum=0), "server/rounds")
    check_flag("progress", progress)
    if not isinstance(clients, Sequence) or not clients:
        raise ConfigError(f"clients = {shown(clients)} must be a non-empty list of ClientData.")
    for index, client in enumerate(clients):
        check_training(model, client, config, f"clients[{index}]")
    clients_per_round = check_count("clients_per_round", clients_per_round, maximum=len(clients))
    if evaluate is not None and not callable(evaluate):
        raise ConfigError(f"evaluate = {shown(evaluate)} must be a function of the weights.")
    if (save_every is None) != (save_to is None):
        raise ConfigError(
            f"save_every = {shown(save_every)} and save_to = {shown(save_to)} belong together: give both or neither."
        )
    weights = model.check_weights(weights)
    save_every = check_count("save_every", rounds if save_every is None else save_every)
    folder = None if save_to is None else make_folder(save_to, "save_to")

    history: list[Round] = []
    with progress_bar(iterable=range(1, rounds + 1), desc="rounds", unit="round", disable=not progress) as bar:
        for number in bar:
            chosen = rng.choice(len(clients), clients_per_round, replace=False).tolist()
            seeds = rng.integers(2**31, size=clients_per_round).tolist()
            weights = mean_weights(
                [
                    client_update(model, weights, clients[index], config, client_seed).client_weights
                    for index, client_seed in zip(chosen, seeds, strict=True)
                ]
            )
            measured = None
            if evaluate is not None and (number % evaluate_every == 0 or number == rounds):
                measured = check_number("evaluate(weights)", evaluate(weights), minimum=0, maximum=1)
                bar.set_postfix(accuracy=f"{measured:.3f}")
            if folder is not None and number % save_every == 0:
                save_weights(folder / f"weights_after_round_{number}.safetensors", weights)
            history.append(Round(number, tuple(chosen), measured))
    return weights, history
