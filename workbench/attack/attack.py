"""One attack made ready: checked input, assigned labels, phases, and the functions that carry it from step to step."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import ArrayLike, NDArray

from workbench.attack import step as engine
from workbench.attack.confidence import predict_psnr
from workbench.attack.labels import estimate_labels
from workbench.attack.matching import combine_epochs, match_epochs
from workbench.attack.objective import Objective, Problem, Steering
from workbench.attack.priors import Summary, epoch_prior, random_filters
from workbench.attack.simulate import Client, Simulation, image_labels
from workbench.attack.step import HISTORY_LENGTH, AttackState, History, StepInfo
from workbench.config import AttackConfig
from workbench.errors import ConfigError, DataError, check_count
from workbench.federated.observation import Observation
from workbench.randomness import named_generator, named_key
from workbench.training.model import Model
from workbench.training.sgd import kept_bytes

__all__ = ["Attack", "Phase", "Reconstruction", "prepare"]


@dataclass(frozen=True, eq=False)
class Phase:
    """A part of an attack with one method: its computation, its arrays, and the steps that it covers."""

    objective: Objective
    problem: Problem
    first_step: int
    last_step: int | None  # exclusive; None for the last phase, which has no end

    @property
    def method(self) -> str:
        return self.objective.simulation.method


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """What an attack found, in pixel space.

    Attributes:
        images: [N, H, W, C] combined; of an aggregate of A clients, A * N images.
        epochs: [V, N, H, W, C] as optimised, every epoch in its own order; V is 1 for methods with one set of images.
        permutations: [V, N]: ``epochs[e][permutations[e]]`` is in the order of ``images``.
        labels: [N] the class assumed for every image.
    """

    images: NDArray[np.float32]
    epochs: NDArray[np.float32]
    permutations: NDArray[np.int64]
    labels: NDArray[np.int64]

    @property
    def confidence(self) -> NDArray[np.float64]:
        """[N] the PSNR in dB that every image probably has, predicted without the truth."""
        return predict_psnr(self.images)


@dataclass(frozen=True, eq=False)
class Attack:
    """An attack ready to run. `start` gives the first state, `advance` later ones, `reconstruct` the images of any."""

    config: AttackConfig
    observation: Observation
    label_counts: NDArray[np.int64]  # [A, K]
    phases: tuple[Phase, ...]
    optimizer: optax.GradientTransformation
    seed: int

    @property
    def total_steps(self) -> int:
        """Of all phases, as configured."""
        return self.config.steps + self.phases[-1].first_step

    @property
    def steering(self) -> Steering:
        """The weights of the loss terms and the step size, as configured."""
        config = self.config
        return Steering(
            update=1.0,
            prior=config.prior_weight,
            tv=config.tv_weight,
            clip=config.clip_weight,
            consensus=config.consensus_weight,
            custom=1.0,
            step_size=config.step_size,
        )

    def start(self) -> AttackState:
        """Normal noise, and no step made."""
        return self._init(self._noise(self.phases[0]))

    def matched_prior_weight(self, prior: str | Summary, prior_distance: str = "l2") -> float:
        """The weight at which another prior weighs as much at the first iteration as the configured one does.

        So the paper chose the weights of all its priors but one (Section 5.4). At N(0, 1) images, as at a cold start.
        """
        phase = self.phases[-1]
        images = self._noise(phase)
        filters = random_filters(named_key(self.seed, "attack/filters"), self.observation.image_shape[-1])

        def value(summary: str | Summary, distance: str) -> float:
            return sum(float(epoch_prior(epochs, summary, distance, filters)) for epochs in images)

        other = value(prior, prior_distance)
        if not other > 0:
            raise ConfigError(
                "the prior is zero on random images, so no weight makes it count: it needs several epochs."
            )
        return self.config.prior_weight * value(phase.objective.prior, phase.objective.prior_distance) / other

    def memory_estimate(self) -> int:
        """About the bytes that a step needs at its peak: what the way back keeps, and the state."""
        return max(step_memory(phase.objective.simulation, self.observation.num_clients) for phase in self.phases)

    def _shape(self, phase: Phase) -> tuple[int, ...]:
        simulation = phase.objective.simulation
        clients = self.observation.num_clients
        return (clients, simulation.num_variable_epochs, simulation.num_images, *self.observation.image_shape)

    def _noise(self, phase: Phase) -> Array:
        return jax.random.normal(named_key(self.seed, "attack/images"), self._shape(phase), jnp.float32)

    def _init(self, images: Array, step: int = 0, phase: int = 0) -> AttackState:
        # An optimiser makes new arrays, which begin on the default device, and that is not the same in every thread.
        with jax.default_device(self.phases[0].problem.mean.device):
            return self._place(engine.init(self._place(images), self.optimizer, step, phase))

    def _place(self, tree: Any) -> Any:
        """On the device where the problem is."""
        return jax.device_put(tree, self.phases[0].problem.mean.sharding)

    def advance(self, state: AttackState, steering: Steering, num_steps: int) -> tuple[AttackState, StepInfo]:
        """Make steps; fewer where the loss, the gradient or the images stop being finite.

        Phase changes and consensus matchings happen at fixed step numbers, so that the result does not depend on how
        the steps are divided among calls.

        Returns:
            The new state and the `StepInfo` of the steps made, stacked, as NumPy arrays.
        """
        num_steps = check_count("num_steps", num_steps)
        infos: list[StepInfo] = []
        while num_steps > 0:
            state = self.arrive(state, steering)
            phase = self.phases[int(state.phase)]
            at = int(state.step)
            chunk = min(num_steps, HISTORY_LENGTH, self.next_event(phase, at, steering) - at)
            state, history = self._run(phase, state, steering, chunk)
            made = int(history.num_steps)
            # Cut on the host: on the device every length would be a computation of its own, to be compiled.
            infos.append(jax.tree.map(lambda a, n=made: a[:n], jax.device_get(history.infos)))
            if made < chunk:
                break
            num_steps -= chunk
        return state, jax.tree.map(lambda *parts: np.concatenate(parts), *infos)

    def arrive(self, state: AttackState, steering: Steering) -> AttackState:
        """What is due before the next step: the change to a new phase, or a new consensus."""
        index, at = int(state.phase), int(state.step)
        phase = self.phases[index]
        if phase.last_step is not None and at >= phase.last_step:
            phase, index = self.phases[index + 1], index + 1
            starts = [self._init(images, at, index) for images in (self._warmed(state, phase), self._noise(phase))]
            # After very many local steps the surrogate leads astray: then it is better to start as if there were none.
            state = min(starts, key=lambda start: self._update_term(phase, start, steering))
        if float(steering.consensus) > 0 and self._is_consensus_step(phase, at):
            state = state._replace(
                consensus=self._place(self._consensus(state)), has_consensus=self._place(np.float32(1))
            )
        return state

    def _warmed(self, state: AttackState, phase: Phase) -> Array:
        """The images of the warm start for every epoch of a phase, a little apart from each other."""
        shape = self._shape(phase)
        noise = self._place(jax.random.normal(named_key(self.seed, "attack/warm start"), shape, jnp.float32))
        images, order = jnp.broadcast_to(state.images, shape), phase.problem.client.order
        if order is not None and phase.objective.simulation.is_separate:
            images = jnp.take_along_axis(images, order[..., None, None, None], axis=2)
        return images + self.config.warm_start_noise * noise

    def _update_term(self, phase: Phase, state: AttackState, steering: Steering) -> float:
        """How badly images explain the update: by a step from there, which needs no compilation of its own."""
        _, history = self._run(phase, state, steering, 1)
        return float(history.infos.terms.update[0]) if int(history.num_steps) else math.inf

    def _run(self, phase: Phase, state: AttackState, steering: Steering, num_steps: int) -> tuple[AttackState, History]:
        # NumPy's numbers go straight to the problem's device; JAX's would first go to the default one.
        traced = jax.tree.map(np.float32, steering)
        return engine.run(phase.objective, self.optimizer, phase.problem, state, traced, np.int32(num_steps))

    def _is_consensus_step(self, phase: Phase, at: int) -> bool:
        since = at - phase.first_step - self.config.consensus_start
        return self._has_epochs(phase) and since >= 0 and since % self.config.consensus_every == 0

    def _has_epochs(self, phase: Phase) -> bool:
        """Whether there is anything to agree about."""
        return phase.objective.simulation.num_variable_epochs > 1

    def next_event(self, phase: Phase, at: int, steering: Steering) -> int:
        """The next step number before which something is due."""
        ahead = [at + HISTORY_LENGTH]
        if phase.last_step is not None:
            ahead.append(phase.last_step)
        if float(steering.consensus) > 0 and self._has_epochs(phase):
            first = phase.first_step + self.config.consensus_start
            every = self.config.consensus_every
            ahead.append(first if at < first else first + ((at - first) // every + 1) * every)
        return min(ahead)

    def _consensus(self, state: AttackState) -> NDArray[np.float32]:
        """[A, V, N, H, W, C]: for every reconstruction the median of those matched to it."""
        targets = np.array(state.images)
        for index, client in enumerate(targets):
            permutations = self._matched(state, index, self._pixels(client))
            median = combine_epochs(client, permutations, "median")
            for epoch, order in zip(client, permutations, strict=True):
                epoch[order] = median
        return targets

    def _matched(self, state: AttackState, index: int, epochs: NDArray[np.float32]) -> NDArray[np.int64]:
        """[V, N] which reconstructions of one client show the same image, as configured."""
        if self.config.match == "images":
            return match_epochs(epochs)
        labels = self.phases[int(state.phase)].problem.client.labels[index]
        return match_epochs(epochs, np.asarray(labels)[: len(epochs)])

    def _pixels(self, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        return self.observation.normalization.denormalize(inputs)

    def reconstruct(self, state: AttackState) -> Reconstruction:
        """Match the epochs' reconstructions and combine them (the paper's Appendix A)."""
        images = self._pixels(np.asarray(state.images))
        phase = self.phases[int(state.phase)]
        client = phase.problem.client
        labels = client.labels[:, 0]
        if client.order is not None and not phase.objective.simulation.is_separate:
            labels = jax.vmap(image_labels)(client.labels, client.order)
        num_images = images.shape[2]
        combined, permutations = [], []
        for index, epochs in enumerate(images):
            order = self._matched(state, index, epochs)
            combined.append(combine_epochs(epochs, order, self.config.combine))
            permutations.append(order + index * num_images)
        return Reconstruction(
            images=np.concatenate(combined),
            epochs=np.concatenate(images, axis=1),
            permutations=np.concatenate(permutations, axis=1),
            labels=np.asarray(labels, np.int64).reshape(-1),
        )


def prepare(
    model: Model,
    observation: Observation,
    config: AttackConfig | None = None,
    *,
    seed: int = 0,
    label_counts: ArrayLike | None = None,
    batch_labels: ArrayLike | None = None,
    image_order: ArrayLike | None = None,
    prior: Summary | None = None,
    regularizer: Callable[[Array], Array] | None = None,
    optimizer: optax.GradientTransformation | None = None,
    device: jax.Device | None = None,
) -> Attack:
    """Check everything and make an attack ready; nothing is compiled yet, except to recover label counts.

    Args:
        model: the network.
        observation: what the server saw.
        config: how to attack.
        seed: of every random draw.
        label_counts: [K] known counts of a client, or [A, K] of an aggregate's clients; None recovers them.
        batch_labels: [E, N] or [A, E, N] known labels in the order of every epoch's batches, in place of counts.
        image_order: [E, N] or [A, E, N] with ``batch_labels``: which image stands where, for methods with one set of
            images; None takes an order in which every image keeps its label.
        prior: one's own g in place of the configured one.
        regularizer: one's own term of the loss, of normalised images [A, V, N, H, W, C].
        optimizer: any of optax's, whose updates are multiplied by the step size; None is Adam as published.
        device: None leaves it to JAX.
    """
    config = AttackConfig() if config is None else config
    for name, value, kind in (
        ("model", model, Model),
        ("observation", observation, Observation),
        ("config", config, AttackConfig),
    ):
        if not isinstance(value, kind):
            raise ConfigError(f"{name} = {value!r:.80} must be a {kind.__name__}.")
    seed = check_count("seed", seed, minimum=0)
    # Steps are counted in 32 bits; every point of the surrogate is a simulation of its own in the computation.
    for name, most in (("steps", 2**30), ("warm_start_steps", 2**30), ("surrogate_points", 64)):
        check_count(name, getattr(config, name), minimum=0, maximum=most)
    _check_observation(model, observation)
    epochs = config.epochs or observation.epochs
    batch_size = config.batch_size or observation.batch_size
    if batch_size > observation.num_images:
        raise ConfigError(f"batch_size = {batch_size} must be at most the number of images, {observation.num_images}.")

    order = None
    if batch_labels is None:
        if image_order is not None:
            raise ConfigError("image_order says which image stands where: give batch_labels too, its label there.")
        counts = _label_counts(model, observation, config, label_counts, seed)
        labels = np.repeat(_assign_labels(counts, config.label_order, seed)[:, None], epochs, axis=1)
    else:
        labels = _check_batch_labels(batch_labels, observation, epochs)
        counts = np.stack([np.bincount(row, minlength=model.num_classes) for row in labels[:, 0]])
        order = _order_by_label(labels) if image_order is None else _check_order(image_order, labels)

    def put(tree: Any) -> Any:
        return jax.device_put(tree, device)

    filters = None
    if prior is None and config.prior.startswith("conv"):
        filters = random_filters(named_key(seed, "attack/filters"), observation.image_shape[-1])
    gradient_sum = put(observation.gradient_sum)
    client = put(
        Client(
            server_weights=observation.server_weights,
            client_weights=observation.client_weights,
            rate=jnp.float32(observation.learning_rate),
            labels=jnp.asarray(labels, jnp.int32),
            order=None if order is None else jnp.asarray(order, jnp.int32),
        )
    )

    def phase(method: str, first_step: int, last_step: int | None) -> Phase:
        simulation = Simulation(
            model=model,
            method=method,
            epochs=epochs,
            batch_size=batch_size,
            num_images=observation.num_images,
            points=config.surrogate_points,
        )
        low_memory = config.low_memory
        if low_memory is None:
            low_memory = _needs_low_memory(simulation, observation.num_clients, device)
        if low_memory and simulation.is_batched:
            simulation = replace(simulation, segments=epochs)
        problem = Problem(
            client=client,
            gradient_sum=gradient_sum,
            mean=put(jnp.asarray(observation.normalization.mean, jnp.float32)),
            std=put(jnp.asarray(observation.normalization.std, jnp.float32)),
            filters=put(filters),
            update_weight=put(jnp.asarray(config.update_weight, jnp.float32)),
            update_weight_steps=put(jnp.float32(config.update_weight_steps)),
            step_decay=put(jnp.float32(config.step_decay ** (1 / config.step_decay_every))),
            first_step=put(jnp.int32(first_step)),
        )
        objective = Objective(simulation, config.distance, prior or config.prior, config.prior_distance, regularizer)
        return Phase(objective, problem, first_step, last_step)

    phases = [phase(config.method, config.warm_start_steps, None)]
    if config.warm_start_steps:
        phases.insert(0, phase("surrogate", 0, config.warm_start_steps))
    return Attack(config, observation, counts, tuple(phases), optimizer or engine.adam(), seed)


def step_memory(simulation: Simulation, num_clients: int) -> int:
    """About the bytes that a step of this simulation needs at its peak."""
    model = simulation.model
    num_pixels = num_clients * simulation.num_variable_epochs * simulation.num_images * math.prod(model.image_shape)
    # The images, Adam's two moments, the consensus, the gradient and the next state, as float32.
    state = 8 * 4 * num_pixels
    steps, size = simulation.num_simulated_steps
    return state + num_clients * kept_bytes(model, steps, size, simulation.segments)


def _needs_low_memory(simulation: Simulation, num_clients: int, device: jax.Device | None) -> bool:
    """Whether the simulation as it is would take most of what the device has left."""
    device = device or jax.devices()[0]
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        free = stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    else:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 2**34
    return step_memory(simulation, num_clients) > 0.8 * free


def _check_observation(model: Model, observation: Observation) -> None:
    """The update must be this network's, and there must be one."""
    model.check_weights(observation.server_weights, "server_weights")
    model.check_weights(observation.client_weights, "client_weights")
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


def _label_counts(
    model: Model, observation: Observation, config: AttackConfig, known: ArrayLike | None, seed: int
) -> NDArray[np.int64]:
    """[A, K] known counts, checked, or recovered ones."""
    clients, classes, images = observation.num_clients, observation.num_classes, observation.num_images
    if known is None:
        recovered = estimate_labels(model, observation, config.label_method, seed=seed, config=config).whole
        # The update tells the sum over the clients only: deal the labels out like cards.
        dealt = np.repeat(np.arange(classes), recovered)
        return np.stack([np.bincount(dealt[index::clients], minlength=classes) for index in range(clients)])
    counts = np.asarray(known)
    if counts.shape == (classes,) and clients == 1:
        counts = counts[None]
    if counts.shape != (clients, classes):
        right = f"({classes},)" if clients == 1 else f"({clients}, {classes})"
        raise DataError(f"label_counts has shape {counts.shape}; right is {right}.")
    if not np.issubdtype(counts.dtype, np.integer) or counts.min() < 0:
        raise DataError("label_counts must be whole numbers of at least 0.")
    if (wrong := counts.sum(1)[counts.sum(1) != images]).size:
        raise DataError(f"label_counts sums to {wrong[0]}; it must sum to the number of images, {images}.")
    return counts.astype(np.int64)


def _assign_labels(counts: NDArray[np.int64], order: str, seed: int) -> NDArray[np.int64]:
    """[A, K] counts to [A, N] labels in the order in which batches take them."""
    labels = np.stack([np.repeat(np.arange(len(row)), row) for row in counts])
    if order == "random":
        labels = named_generator(seed, "attack/labels").permuted(labels, axis=1)
    return labels


def _check_batch_labels(batch_labels: ArrayLike, observation: Observation, epochs: int) -> NDArray[np.int64]:
    labels = np.asarray(batch_labels)
    right = (observation.num_clients, epochs, observation.num_images)
    if labels.ndim == 2:
        labels = labels[None]
    if labels.shape != right:
        raise DataError(f"batch_labels has shape {labels.shape}; right is {right}: clients, epochs, images.")
    if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0 or labels.max() >= observation.num_classes:
        raise DataError(f"batch_labels must be whole numbers from 0 to {observation.num_classes - 1}.")
    if (np.sort(labels, axis=-1) != np.sort(labels[:, :1], axis=-1)).any():
        raise DataError("batch_labels must hold the same labels in every epoch: each uses every image once.")
    return labels.astype(np.int64)


def _order_by_label(labels: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """[A, E, N] an order of the first epoch's images that agrees with the labels; None where these never move."""
    if (labels == labels[:, :1]).all():
        return None
    images = np.broadcast_to(np.argsort(labels[:, :1], axis=-1, kind="stable"), labels.shape)
    ranks = np.argsort(np.argsort(labels, axis=-1, kind="stable"), axis=-1)
    return np.take_along_axis(images, ranks, axis=-1)


def _check_order(image_order: ArrayLike, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    order = np.asarray(image_order)
    if order.ndim == 2:
        order = order[None]
    if order.shape != labels.shape or not (np.sort(order, axis=-1) == np.arange(labels.shape[-1])).all():
        raise DataError(f"image_order must have the shape {labels.shape}, with every image once in every epoch.")
    order = order.astype(np.int64)
    by_image = np.take_along_axis(labels, np.argsort(order, axis=-1), axis=-1)
    if (by_image != by_image[:, :1]).any():
        raise DataError("image_order and batch_labels disagree: an image has different labels in different epochs.")
    return order
