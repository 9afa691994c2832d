"""The server's side of honest training: choose clients, collect their updates, average, measure."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike
from tqdm.auto import tqdm

from workbench.chain import Weights
from workbench.config import ClientConfig
from workbench.data.dataset import ClientData
from workbench.errors import ConfigError, check_count
from workbench.federated.client import client_update
from workbench.models import Model
from workbench.weights import save_weights

__all__ = ["Round", "accuracy", "server_rounds"]


class Round(NamedTuple):
    """What one communication round left behind."""

    number: int  # from 1
    clients: tuple[int, ...]
    accuracy: float | None  # in [0, 1], where it was measured


@partial(jax.jit, static_argnums=0)
def _num_correct(model: Model, weights: Weights, inputs: Array, labels: Array) -> Array:
    return (model.apply(weights, inputs).argmax(-1) == labels).sum()


def accuracy(model: Model, weights: Weights, inputs: ArrayLike, labels: ArrayLike, batch_size: int = 500) -> float:
    """The part of the normalised images [n, H, W, C] that the network gives the right class."""
    inputs, labels = np.asarray(inputs, np.float32), np.asarray(labels, np.int32)
    if not len(inputs) or len(inputs) != len(labels):
        raise ConfigError(
            f"accuracy needs as many labels as images and at least one, not {len(labels)} and {len(inputs)}."
        )
    correct = 0
    for start in range(0, len(inputs), batch_size):
        x, y = inputs[start : start + batch_size], labels[start : start + batch_size]
        padding = [(0, batch_size - len(x))]
        # One shape for all batches, one compilation; padded labels match no class.
        x, y = np.pad(x, padding + [(0, 0)] * 3), np.pad(y, padding, constant_values=-1)
        correct += int(_num_correct(model, weights, jnp.asarray(x), jnp.asarray(y)))
    return correct / len(inputs)


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
    """Federated averaging over a number of rounds.

    Args:
        model: the network.
        weights: to start from.
        clients: to choose from.
        config: how each client trains.
        rounds: how many communication rounds.
        clients_per_round: how many clients each round chooses at random.
        seed: of the choices and of the clients' batch orders.
        evaluate: weights to accuracy in [0, 1], for instance a partial `accuracy`.
        evaluate_every: rounds between two evaluations; the last round is always evaluated.
        save_every: rounds between two saved files ``weights_after_round_<number>.safetensors``.
        save_to: the folder for them.
        progress: show a progress bar.

    Returns:
        The final weights and a record of every round.
    """
    config = ClientConfig() if config is None else config
    rounds = check_count("rounds", rounds)
    clients_per_round = check_count("clients_per_round", clients_per_round, maximum=max(len(clients), 1))
    evaluate_every = check_count("evaluate_every", evaluate_every)
    if not clients:
        raise ConfigError("clients = [] must hold at least one client.")
    if (save_every is None) != (save_to is None):
        raise ConfigError("save_every and save_to belong together: give both or neither.")
    if save_every is not None:
        check_count("save_every", save_every)
    rng = np.random.default_rng([check_count("seed", seed, minimum=0), 1])
    weights = model.check_weights(weights)

    history: list[Round] = []
    bar: Any = tqdm(range(1, rounds + 1), desc="rounds", unit="round", disable=not progress)
    for number in bar:
        chosen = rng.choice(len(clients), clients_per_round, replace=False)
        seeds = rng.integers(2**31, size=clients_per_round)
        updates = [
            client_update(model, weights, clients[c], config, int(s)).client_weights
            for c, s in zip(chosen, seeds, strict=True)
        ]
        weights = jax.tree.map(lambda *w: sum(w) / len(w), *updates)
        measured = None
        if evaluate is not None and (number % evaluate_every == 0 or number == rounds):
            measured = float(evaluate(weights))
            bar.set_postfix(accuracy=f"{measured:.3f}")
        if save_every is not None and save_to is not None and number % save_every == 0:
            save_weights(Path(save_to) / f"weights_after_round_{number}.safetensors", weights)
        history.append(Round(number, tuple(int(c) for c in chosen), measured))
    return weights, history
