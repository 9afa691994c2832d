"""An attack built from checked input: the phases, and the arrays that each of them needs."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from workbench.attack import step as engine
from workbench.attack.attack import Attack, Phase
from workbench.attack.cost import planned_phases, step_memory
from workbench.attack.objective import Objective, Problem
from workbench.attack.priors import Summary, random_filters
from workbench.attack.simulate import ServerKnowledge, Simulation
from workbench.config import AttackConfig
from workbench.federated.observation import Observation
from workbench.randomness import named_generator, named_key
from workbench.training.model import Model

__all__ = ["Custom", "assign_labels", "build_attack"]


@dataclass(frozen=True, eq=False)
class Custom:
    """What a user may put in place of built-in parts; None keeps the built-in one.

    Attributes:
        prior: g, the images of an epoch to an array that does not depend on their order.
        regularizer: one more term of the loss, of normalised images [A, V, N, H, W, C].
        optimizer: any of optax's, whose updates are multiplied by the step size, in place of Adam.
    """

    prior: Summary | None = None
    regularizer: Callable[[Array], Array] | None = None
    optimizer: optax.GradientTransformation | None = None


def assign_labels(counts: NDArray[np.int64], config: AttackConfig, epochs: int, seed: int) -> NDArray[np.int64]:
    """RandOrder (line 4 of Algorithm 2): [A, K] counts to [A, E, N] labels, the same order in every epoch."""
    labels = np.stack([np.repeat(np.arange(len(row)), row) for row in counts])
    if config.label_order == "random":
        labels = named_generator(seed, "attack/labels").permuted(labels, axis=1)
    return np.repeat(labels[:, None], epochs, axis=1)


def build_attack(
    model: Model,
    observation: Observation,
    config: AttackConfig,
    labels: NDArray[np.int64],
    order: NDArray[np.int64] | None = None,
    custom: Custom | None = None,
    *,
    seed: int = 0,
    device: jax.Device | None = None,
) -> Attack:
    """The attack with the given labels; nothing is compiled yet.

    Args:
        model: the network.
        observation: what the server saw.
        config: how to attack.
        labels: [A, E, N] of every position.
        order: [A, E, N] which image stands where, for methods with one set of images; None for the same order always.
        custom: a custom prior, regulariser or optimiser.
        seed: of every random draw.
        device: None leaves it to JAX.
    """
    custom = custom or Custom()

    def put(tree: Any) -> Any:
        return jax.device_put(tree, device)

    filters = None
    if custom.prior is None and config.prior.startswith("conv"):
        filters = random_filters(named_key(seed, "attack/filters"), observation.image_shape[-1])
    known = ServerKnowledge(
        server_weights=observation.server_weights,
        client_weights=observation.client_weights,
        rate=jnp.float32(observation.learning_rate),
        labels=jnp.asarray(labels, jnp.int32),
        order=None if order is None else jnp.asarray(order, jnp.int32),
    )
    shared = put(
        Problem(
            known=known,
            gradient_sum=observation.gradient_sum,
            mean=jnp.asarray(observation.normalization.mean, jnp.float32),
            std=jnp.asarray(observation.normalization.std, jnp.float32),
            filters=filters,
            update_weight=jnp.asarray(config.update_weight, jnp.float32),
            update_weight_steps=jnp.float32(config.update_weight_steps),
            step_decay=jnp.float32(config.step_decay ** (1 / config.step_decay_every)),
            first_step=jnp.int32(0),
        )
    )
    phases: list[Phase] = []
    first_step = 0
    planned = planned_phases(model, config, observation.schedule)
    for index, (simulation, steps) in enumerate(planned):
        objective = Objective(
            _in_segments(simulation, config, observation.num_clients, device),
            config.distance,
            custom.prior or config.prior,
            config.prior_distance,
            custom.regularizer,
        )
        problem = replace(shared, first_step=put(jnp.int32(first_step)))
        last_step = None if index == len(planned) - 1 else first_step + steps
        phases.append(Phase(objective, problem, first_step, last_step))
        first_step += steps
    counts = np.stack([np.bincount(row, minlength=model.num_classes) for row in labels[:, 0]])
    return Attack(config, observation, counts, tuple(phases), custom.optimizer or engine.adam(), seed)


def _in_segments(
    simulation: Simulation, config: AttackConfig, num_clients: int, device: jax.Device | None
) -> Simulation:
    """The simulation with as many segments as epochs, where memory is to be saved."""
    low_memory = config.low_memory
    if low_memory is None:
        low_memory = step_memory(simulation, num_clients) > 0.8 * _free_memory(device)
    return replace(simulation, segments=simulation.schedule.epochs if low_memory and simulation.is_batched else 1)


def _free_memory(device: jax.Device | None) -> int:
    """Bytes that the device has left."""
    stats = (device or jax.devices()[0]).memory_stats() or {}
    if "bytes_limit" in stats:
        return int(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    # Known on Linux; not on macOS and Windows.
    is_known = "SC_AVPHYS_PAGES" in getattr(os, "sysconf_names", {})
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if is_known else 2**34
