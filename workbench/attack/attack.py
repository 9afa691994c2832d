"""An attack as phases, and the functions that carry it from step to step (the paper's Algorithm 2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from workbench.attack import step as engine
from workbench.attack.confidence import predict_psnr
from workbench.attack.cost import step_memory
from workbench.attack.matching import combine_epochs, match_epochs
from workbench.attack.objective import Objective, Problem, Steering
from workbench.attack.simulate import image_labels
from workbench.attack.step import HISTORY_LENGTH, AttackState, History, StepInfo
from workbench.config import AttackConfig
from workbench.errors import check_count
from workbench.federated.observation import Observation
from workbench.randomness import named_key

__all__ = ["Attack", "Phase", "Reconstruction"]


@dataclass(frozen=True, eq=False)
class Phase:
    """A part of an attack with one method: its computation, its arrays, and the steps that it covers."""

    objective: Objective
    problem: Problem
    first_step: int
    last_step: int | None  # exclusive; None for the last phase, which has no end


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """What an attack found, in pixel space.

    Attributes:
        images: [N, H, W, C] combined; of an aggregate of A clients, A * N images.
        epochs: [V, N, H, W, C] as optimised, each epoch in the order of its batches; V is 1 for methods with one set of
            images.
        permutations: [V, N]: ``epochs[e][permutations[e]]`` is in the order of ``images``.
        labels: [N] the class assumed for every image.
    """

    images: NDArray[np.float32]
    epochs: NDArray[np.float32]
    permutations: NDArray[np.int64]
    labels: NDArray[np.int64]

    @property
    def confidence(self) -> NDArray[np.float64]:
        """[N] the PSNR of every image in dB, predicted without the truth."""
        return predict_psnr(self.images)


@dataclass(frozen=True, eq=False)
class Attack:
    """An attack ready to run (the paper's Algorithm 2).

    `start` gives the first state, `advance` the states after further steps, `reconstruct` the images of any state.
    """

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
        """RandInit: normal noise, and no step made (line 5 of Algorithm 2)."""
        return self._init(self._noise(self.phases[0]))

    @property
    def memory(self) -> int:
        """About the bytes that its largest step needs at its peak."""
        return max(step_memory(phase.objective.simulation, self.observation.num_clients) for phase in self.phases)

    def server_view(self) -> dict[str, dict[str, Any]]:
        """What the server received, what it assumes, and what it never sees, as tables for people."""
        observation, schedule = self.observation, self.phases[-1].objective.simulation.schedule
        return {
            "received": {
                "server weights": sum(leaf.size for leaf in jax.tree.leaves(observation.server_weights)),
                "client weights": sum(leaf.size for leaf in jax.tree.leaves(observation.client_weights)),
                "clients in the update": observation.num_clients,
                "images per client": observation.num_images,
                "learning rate": observation.learning_rate,
                "epochs": observation.epochs,
                "batch size": observation.batch_size,
            },
            "assumed": {
                "epochs": schedule.epochs,
                "batch size": schedule.batch_size,
                "label counts": self.label_counts,
                "label order": self.config.label_order,
            },
            "never seen": {
                "images": (observation.num_clients * observation.num_images, *observation.image_shape),
                "label of each image": observation.num_clients * observation.num_images,
                "batch order": (observation.epochs, observation.num_images),
                "weights between the first and the last": observation.local_steps - 1,
            },
        }

    def _shape(self, phase: Phase) -> tuple[int, ...]:
        simulation = phase.objective.simulation
        clients = self.observation.num_clients
        return (clients, simulation.num_variable_epochs, simulation.schedule.num_images, *self.observation.image_shape)

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
            state = self.prepare_step(state, steering)
            phase = self.phases[int(state.phase)]
            at = int(state.step)
            chunk = min(num_steps, HISTORY_LENGTH, self.next_event(phase, at, steering) - at)
            state, history = self._run(phase, state, steering, chunk)
            made = int(history.num_steps)
            # Cut on the host: on the device every length would need a compilation.
            infos.append(jax.tree.map(lambda a, n=made: a[:n], jax.device_get(history.infos)))
            if made < chunk:
                break
            num_steps -= chunk
        return state, jax.tree.map(lambda *parts: np.concatenate(parts), *infos)

    def prepare_step(self, state: AttackState, steering: Steering) -> AttackState:
        """Before the next step: change to the next phase or match the epochs for a new consensus, if it is time."""
        index, at = int(state.phase), int(state.step)
        phase = self.phases[index]
        if phase.last_step is not None and at >= phase.last_step:
            phase, index = self.phases[index + 1], index + 1
            starts = [self._init(images, at, index) for images in (self._warmed(state, phase), self._noise(phase))]
            # After very many local steps the surrogate can be worse than noise.
            state = min(starts, key=lambda start: self._update_term(phase, start, steering))
        if float(steering.consensus) > 0 and self._is_consensus_step(phase, at):
            state = state._replace(
                consensus=self._place(self._consensus(state)), has_consensus=self._place(np.float32(1))
            )
        return state

    def _warmed(self, state: AttackState, phase: Phase) -> Array:
        """The images of the warm start for every epoch of a phase, with different noise for each epoch."""
        shape = self._shape(phase)
        noise = self._place(jax.random.normal(named_key(self.seed, "attack/warm start"), shape, jnp.float32))
        images, order = jnp.broadcast_to(state.images, shape), phase.problem.known.order
        if order is not None and phase.objective.simulation.method.is_separate:
            images = jnp.take_along_axis(images, order[..., None, None, None], axis=2)
        return images + self.config.warm_start_noise * noise

    def _update_term(self, phase: Phase, state: AttackState, steering: Steering) -> float:
        """The update term of the images, from one step with them, which needs no further compilation."""
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
        """Whether there are several epochs to match."""
        return phase.objective.simulation.num_variable_epochs > 1

    def next_event(self, phase: Phase, at: int, steering: Steering) -> int:
        """The next step number at which the phase changes or the epochs are matched."""
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
        labels = self.phases[int(state.phase)].problem.known.labels[index]
        return match_epochs(epochs, np.asarray(labels)[: len(epochs)])

    def _pixels(self, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        return self.observation.normalization.denormalize(inputs)

    def reconstruct(self, state: AttackState) -> Reconstruction:
        """MatchEpoch: match the epochs' reconstructions and combine them (line 12 of Algorithm 2, Appendix A)."""
        images = self._pixels(np.asarray(state.images))
        phase = self.phases[int(state.phase)]
        known = phase.problem.known
        labels = known.labels[:, 0]
        if known.order is not None and not phase.objective.simulation.method.is_separate:
            labels = jax.vmap(image_labels)(known.labels, known.order)
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
