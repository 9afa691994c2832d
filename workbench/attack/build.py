"""An attack from checked input: labels for every position, phases, and the arrays of each on the device."""

import os
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from workbench.attack.attack import Attack, Custom, Phase
from workbench.attack.objective import Objective, Problem, update_size
from workbench.attack.priors import random_filters
from workbench.attack.simulate import ServerKnowledge, Simulation, believed_schedule, planned_phases
from workbench.attack.step import adam
from workbench.config import AttackConfig
from workbench.federated.observation import Observation
from workbench.randomness import named_generator, named_key
from workbench.training.model import Model
from workbench.training.optimizer import response
from workbench.training.schedule import Schedule

__all__ = ["assign_labels", "build_attack"]


def assign_labels(
    counts: NDArray[np.int64], config: AttackConfig, schedule: Schedule, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """RandOrder (line 4 of Algorithm 2): [A, K] counts to [A, E, N] labels by position, and the order of the images.

    The order is the same in every epoch, and None, unless epochs drop some images.
    """
    labels = np.stack([np.repeat(np.arange(len(row)), row) for row in counts])
    if config.label_order == "random":
        labels = named_generator(seed, "attack/labels").permuted(labels, axis=1)
    labels = np.repeat(labels[:, None], schedule.epochs, axis=1)
    num_images, num_used = schedule.num_images, schedule.num_used
    if num_used == num_images:
        return labels, None
    # Every epoch leaves out other images, as the client's do, or some would never be simulated.
    turns = np.arange(schedule.epochs)[:, None] * (num_images - num_used)
    order = np.broadcast_to((np.arange(num_images) + turns) % num_images, labels.shape)
    return np.take_along_axis(labels, order, axis=-1), order


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
    filters = None
    if custom.prior is None and config.prior.startswith("conv"):
        filters = random_filters(named_key(seed, "attack/filters"), observation.image_shape[-1])
    believed = believed_schedule(config, observation.schedule)
    sizes = observation.training.step_sizes(observation.learning_rate, believed)
    expected = response(observation.training, observation.learning_rate, believed)
    known = ServerKnowledge(
        server_weights=observation.server_weights,
        client_weights=observation.client_weights,
        rate=jnp.float32(observation.learning_rate),
        sizes=jax.tree.map(jnp.float32, sizes),
        coefficients=jnp.asarray(expected.coefficients, jnp.float32),
        # As in `Observation.gradient_sum`, whatever schedule is believed.
        kept=jnp.float32(observation.response.kept),
        labels=jnp.asarray(labels, jnp.int32),
        order=None if order is None else jnp.asarray(order, jnp.int32),
    )
    gradient_sum = model.trained(observation.gradient_sum)
    shared = jax.device_put(
        Problem(
            known=known,
            gradient_sum=gradient_sum,
            mean=jnp.asarray(observation.normalization.mean, jnp.float32),
            std=jnp.asarray(observation.normalization.std, jnp.float32),
            filters=filters,
            update_weight=jnp.asarray(config.update_weight, jnp.float32),
            update_weight_steps=jnp.float32(config.update_weight_steps),
            step_decay=jnp.float32(config.step_decay ** (1 / config.step_decay_every)),
            first_step=jnp.int32(0),
            scale=jnp.float32(1),
            span_schedule=jnp.zeros(4),
            span=None,
        ),
        device,
    )
    phases: list[Phase] = []
    first_step = 0
    planned = planned_phases(model, config, observation.schedule, observation.training)
    for index, (simulation, steps) in enumerate(planned):
        objective = Objective(
            _in_segments(simulation, config, observation.num_clients, device),
            config.distance,
            custom.prior or config.prior,
            config.prior_distance,
            custom.regularizer,
        )
        size = update_size(objective, gradient_sum)
        scale = jnp.ones_like(size) if config.weights == "absolute" else size
        rises = (config.span_start, config.span_rise, max(config.restart_every, 1))
        schedule = jnp.stack([size, *map(jnp.float32, rises)])
        changed = jax.device_put((jnp.int32(first_step), scale, schedule), device)
        problem = replace(shared, **dict(zip(("first_step", "scale", "span_schedule"), changed, strict=True)))
        last_step = None if index == len(planned) - 1 else first_step + steps
        phases.append(Phase(objective, problem, first_step, last_step))
        first_step += steps
    counts = np.stack([np.bincount(row, minlength=model.num_classes) for row in labels[:, 0]])
    return Attack(config, observation, counts, tuple(phases), custom.optimizer or adam(), seed)


def _in_segments(
    simulation: Simulation, config: AttackConfig, num_clients: int, device: jax.Device | None
) -> Simulation:
    """The simulation with as many segments as epochs, where memory is to be saved."""
    low_memory = config.low_memory
    if low_memory is None:
        low_memory = simulation.memory(num_clients, device) > 0.8 * _free_memory(device)
    return replace(simulation, segments=simulation.schedule.epochs if low_memory and simulation.is_batched else 1)


def _free_memory(device: jax.Device | None) -> int:
    """Bytes that the device has left."""
    stats = (device or jax.devices()[0]).memory_stats() or {}
    if "bytes_limit" in stats:
        return int(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    # Known on Linux; not on macOS and Windows.
    is_known = "SC_AVPHYS_PAGES" in getattr(os, "sysconf_names", {})
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if is_known else 2**34
