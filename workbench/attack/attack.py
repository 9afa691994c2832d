"""An attack as phases, and how it goes on from state to state (the paper's Algorithm 2)."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from workbench.attack.matching import combine_epochs, match_epochs
from workbench.attack.objective import Objective, Problem, Steering
from workbench.attack.priors import Summary
from workbench.attack.simulate import image_labels
from workbench.attack.span import (
    Span,
    SpanArrays,
    find_span,
    half_way,
    membership_residuals,
    span_residuals,
    wrong_images,
)
from workbench.attack.spectrum import Membership, Spectrum, confidence_of, judge_membership
from workbench.attack.step import HISTORY_LENGTH, AttackState, History, StepInfo, init, run
from workbench.config import AttackConfig
from workbench.errors import check_count
from workbench.federated.observation import Observation
from workbench.randomness import named_key
from workbench.training.model import Model

__all__ = ["Attack", "Custom", "Phase", "Reconstruction"]


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
        residuals_of: (images, images to compare their differences with) to span residuals, or to None where the update
            has no span; called when they are asked for, because the first call decomposes the update.
    """

    images: NDArray[np.float32]
    epochs: NDArray[np.float32]
    permutations: NDArray[np.int64]
    labels: NDArray[np.int64]
    residuals_of: Callable[..., NDArray[np.float32] | None] = field(repr=False)

    @cached_property
    def residuals(self) -> NDArray[np.float32] | None:
        """[N] the span residual of every image at the server's weights, which the loss does not use."""
        return self.residuals_of(self.images, self.images)

    @property
    def confidence(self) -> NDArray[np.float32] | None:
        """[N] from 0 to 1, by span residual and repetition (`confidence_of`); None where the update has no span."""
        return confidence_of(self.residuals, self.images)


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
        return Steering(
            update=1.0,
            prior=self.config.prior_weight,
            tv=self.config.tv_weight,
            clip=self.config.clip_weight,
            consensus=self.config.consensus_weight,
            custom=1.0,
            step_size=self.config.step_size,
            span=self.config.span_weight,
        )

    @property
    def model(self) -> Model:
        return self.phases[0].objective.simulation.model

    @cached_property
    def _found_span(self) -> Span | str:
        return find_span(self.model, self.observation)

    @property
    def spectrum(self) -> Spectrum | str:
        """What the span of a dense layer's update is worth, or a sentence about why there is none."""
        return self._found_span if isinstance(self._found_span, str) else self._found_span.spectrum

    @cached_property
    def _spans(self) -> tuple[SpanArrays, SpanArrays] | None:
        """The span on the device at two sets of weights; None where it cannot help.

        Half way between the server's and the client's weights it is part of the loss; at the server's it judges the
        result, because a loss also fits what is wrong.
        """
        span = self._found_span
        if isinstance(span, str) or not span.spectrum.share:
            return None
        of_loss, of_result = half_way(self.observation), self.observation.server_weights
        spans: tuple[SpanArrays, SpanArrays] = self._place(
            (SpanArrays.of(span, of_loss), SpanArrays.of(span, of_result))
        )
        return spans

    def membership(self, images: NDArray[np.float32], controls: NDArray[np.float32], rate: float) -> Membership | str:
        """Whether images [n, H, W, C] in pixel space were the client's, beside controls [k, H, W, C] that were not.

        Each is compared with a flat image of its median colour.

        Returns:
            The membership, or a sentence about why the update cannot tell.
        """
        if self._spans is None:
            return str(self.spectrum)
        judged = np.concatenate([images, controls])
        flat = np.broadcast_to(np.median(judged, axis=(1, 2), keepdims=True), judged.shape)
        normalize = self.observation.normalization.normalize
        placed = self._place((normalize(judged), normalize(flat)))
        residuals = np.asarray(membership_residuals(self.model, self._spans[0], *placed))
        return judge_membership(residuals[: len(images)], residuals[len(images) :], rate)

    def _server_residuals(self, pixels: NDArray[np.float32], among: NDArray[np.float32]) -> NDArray[np.float32] | None:
        """[n] the span residuals of images in pixel space at the server's weights, relative to how much others differ.

        None without a span.
        """
        if self._spans is None:
            return None
        normalize = self.observation.normalization.normalize
        images, others = self._place((normalize(pixels), normalize(among)))
        return np.asarray(span_residuals(self.model, self._spans[1], images, others))

    def start(self) -> AttackState:
        """RandInit: normal noise, and no step made (line 5 of Algorithm 2)."""
        return self._init(self._noise(self.phases[0], "attack/images"))

    @property
    def memory(self) -> int:
        """About the bytes that its largest step needs at its peak."""
        num_clients, device = self.observation.num_clients, self.phases[0].problem.mean.device
        return max(phase.objective.simulation.memory(num_clients, device) for phase in self.phases)

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
                "local training": observation.training.description,
                "epochs": observation.epochs,
                "batch size": observation.batch_size,
            },
            "assumed": {
                "epochs": schedule.epochs,
                "batch size": schedule.batch_size,
                "label counts": self.label_counts,
                "label order": self.config.label_order,
                **({"dropout": "simulated as off"} if self.model.has_dropout else {}),
                **({"running statistics": "simulated, not compared"} if self.model.statistics else {}),
            },
            "never seen": {
                "images": (observation.num_clients * observation.num_images, *observation.image_shape),
                "label of each image": observation.num_clients * observation.num_images,
                "batch order": (observation.epochs, observation.num_images),
                "weights between the first and the last": observation.local_steps - 1,
            },
        }

    def _noise(self, phase: Phase, name: str) -> Array:
        """[A, V, N, H, W, C] normal noise: the draw with this name."""
        simulation, observation = phase.objective.simulation, self.observation
        images = (observation.num_clients, simulation.num_variable_epochs, observation.num_images)
        noise = jax.random.normal(named_key(self.seed, name), (*images, *observation.image_shape), jnp.float32)
        return self._place(noise)

    def _init(self, images: Array, step: int = 0, phase: int = 0) -> AttackState:
        # An optimiser makes new arrays, which begin on the default device, and that is not the same in every thread.
        with self._on_its_device():
            return self._place(init(images, self.optimizer, step, phase))

    def _on_its_device(self) -> AbstractContextManager[Any]:
        return jax.default_device(self.phases[0].problem.mean.device)

    def _place(self, tree: Any) -> Any:
        """On the device where the problem is."""
        return jax.device_put(tree, self.phases[0].problem.mean.sharding)

    def advance(self, state: AttackState, steering: Steering, num_steps: int) -> tuple[AttackState, StepInfo]:
        """Make steps; fewer where the loss, the gradient or the images stop being finite.

        Phase changes, restarts and consensus matchings happen at fixed step numbers, so that the result does not depend
        on how the steps are divided among calls.

        Returns:
            The new state and the `StepInfo` of the steps made, stacked, as NumPy arrays.
        """
        num_steps = check_count("num_steps", num_steps)
        infos: list[StepInfo] = []
        while num_steps > 0:
            state = self.prepare_step(state, steering)
            phase = self.phases[int(state.phase)]
            at = int(state.step)
            chunk = min(num_steps, self._next_event(phase, at, steering) - at)
            state, history = self._run(phase, state, steering, chunk)
            made = int(history.num_steps)
            # Cut on the host: on the device every length would need a compilation.
            infos.append(jax.tree.map(lambda a, n=made: a[:n], jax.device_get(history.infos)))
            if made < chunk:
                break
            num_steps -= chunk
        return state, jax.tree.map(lambda *parts: np.concatenate(parts), *infos)

    def prepare_step(self, state: AttackState, steering: Steering) -> AttackState:
        """Before the next step, if it is time: change the phase, restart images, match the epochs for a consensus."""
        index, at = int(state.phase), int(state.step)
        phase = self.phases[index]
        if phase.last_step is not None and at >= phase.last_step:
            phase, index = self.phases[index + 1], index + 1
            noise = self._noise(phase, "attack/images")
            starts = [self._init(images, at, index) for images in (self._warmed(state, phase), noise)]
            # After very many local steps the surrogate can be worse than noise.
            state = min(starts, key=lambda start: self._update_term(phase, start, steering))
        if self._restarts(phase, steering) and at > phase.first_step and self._is_restart(phase, at):
            state = self._restarted(state, phase)
        since = at - phase.first_step - self.config.consensus_start
        if self._has_consensus(phase, steering) and since >= 0 and since % self.config.consensus_every == 0:
            state = state._replace(
                consensus=self._place(self._consensus(state)), has_consensus=self._place(np.float32(1))
            )
        return state

    def _warmed(self, state: AttackState, phase: Phase) -> Array:
        """The images of the warm start for every epoch of a phase, with different noise for each epoch."""
        noise = self._noise(phase, "attack/warm start")
        images, order = jnp.broadcast_to(state.images, noise.shape), phase.problem.known.order
        if order is not None and phase.objective.simulation.method.is_separate:
            images = jnp.take_along_axis(images, order[..., None, None, None], axis=2)
        return images + self.config.warm_start_noise * noise

    def _update_term(self, phase: Phase, state: AttackState, steering: Steering) -> float:
        """The update term of the images, from one step with them, which needs no further compilation."""
        _, history = self._run(phase, state, steering, 1)
        return float(history.infos.terms.update[0]) if int(history.num_steps) else math.inf

    def has_finite_loss(self, state: AttackState, steering: Steering) -> bool:
        """Whether the loss of the images and its gradient are finite."""
        _, history = self._run(self.phases[int(state.phase)], state, steering, 1)
        return bool(np.isfinite(history.infos.loss[0]) and np.isfinite(history.infos.gradient_norm[0]))

    def problem_of(self, phase: Phase, steering: Steering) -> Problem:
        """The arrays of a phase, with the span if it has a weight: at a weight of 0 its term would cost time, too."""
        if not self._uses_span(steering):
            return phase.problem
        return replace(phase.problem, span=self._spans and self._spans[0])

    def _uses_span(self, steering: Steering) -> bool:
        # Also while it is steered to 0, so that steering compiles nothing.
        return max(self.config.span_weight, float(steering.span)) > 0

    def _run(self, phase: Phase, state: AttackState, steering: Steering, num_steps: int) -> tuple[AttackState, History]:
        # NumPy's numbers go straight to the problem's device; JAX's would first go to the default one.
        traced = jax.tree.map(np.float32, steering)
        problem = self.problem_of(phase, steering)
        # What is decided while the step is traced follows the default device.
        with self._on_its_device():
            return run(phase.objective, self.optimizer, problem, state, traced, np.int32(num_steps))

    def _has_consensus(self, phase: Phase, steering: Steering) -> bool:
        """Whether there are several epochs, and they are to agree."""
        return float(steering.consensus) > 0 and phase.objective.simulation.num_variable_epochs > 1

    def _restarts(self, phase: Phase, steering: Steering) -> bool:
        """Whether images of this phase may start again."""
        is_asked = bool(self.config.restart_every) and self._uses_span(steering)
        is_clear = not isinstance(self._found_span, str) and self._found_span.spectrum.is_clear
        return is_asked and is_clear and phase.objective.simulation.num_variable_epochs == 1

    def _is_restart(self, phase: Phase, at: int) -> bool:
        """Whether images may start again at this step: once their weight has risen, with time for it to rise again."""
        since = at - phase.first_step - self.config.span_rise
        is_time = since >= 0 and since % self.config.restart_every == 0
        return is_time and at + self.config.restart_every <= self.total_steps

    def _restarted(self, state: AttackState, phase: Phase) -> AttackState:
        """With noise in place of images that cannot be right.

        Each image of the client lies in the span, so an image that has found one of them stays there, although another
        image found it too. Two images with different labels that show the same picture cannot both be right, and one
        that is further from the span than the others has found none.
        """
        assert self._spans is not None
        labels = self._image_labels(phase)
        is_wrong = np.stack(
            [wrong_images(self.model, self._spans[1], *one) for one in zip(state.images[:, 0], labels, strict=True)]
        )[:, None]
        mask = self._place(is_wrong)[..., None, None, None]
        noise = self._noise(phase, f"attack/restart {int(state.step)}")
        optimizer = jax.tree.map(
            lambda leaf: jnp.where(mask, 0, leaf) if leaf.shape == state.images.shape else leaf, state.optimizer
        )
        started = jnp.where(self._place(is_wrong), state.step, state.started)
        return state._replace(images=jnp.where(mask, noise, state.images), optimizer=optimizer, started=started)

    def _next_event(self, phase: Phase, at: int, steering: Steering) -> int:
        """The next step number at which `prepare_step` has something to do, or where a run must end."""
        ahead = [at + HISTORY_LENGTH]
        if phase.last_step is not None:
            ahead.append(phase.last_step)
        if self._restarts(phase, steering):
            ahead.append(self._next_of(phase.first_step + self.config.span_rise, self.config.restart_every, at))
        if self._has_consensus(phase, steering):
            first, every = phase.first_step + self.config.consensus_start, self.config.consensus_every
            ahead.append(self._next_of(first, every, at))
        return min(ahead)

    @staticmethod
    def _next_of(first: int, every: int, at: int) -> int:
        """The next step number after ``at`` of those that begin with ``first``."""
        return max(first, at + every - (at - first) % every)

    def _consensus(self, state: AttackState) -> NDArray[np.float32]:
        """[A, V, N, H, W, C]: for every reconstruction the median of those matched to it."""
        targets = np.array(state.images)
        for client, permutations in zip(targets, self._match(state)[1], strict=True):
            median = combine_epochs(client, permutations, "median")
            for epoch, order in zip(client, permutations, strict=True):
                epoch[order] = median
        return targets

    def _match(self, state: AttackState) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """[A, V, N, H, W, C] in pixel space, and [A, V, N] which of them show the same image, as configured."""
        pixels = self.observation.normalization.denormalize(np.asarray(state.images))
        if self.config.match == "images":
            return pixels, np.stack([match_epochs(epochs) for epochs in pixels])
        labels = np.asarray(self.phases[int(state.phase)].problem.known.labels)[:, : pixels.shape[1]]
        return pixels, np.stack([match_epochs(*client) for client in zip(pixels, labels, strict=True)])

    def _image_labels(self, phase: Phase) -> NDArray[np.int64]:
        """[A, N] the class assumed for every image, of the first epoch where epochs have separate ones."""
        known, is_separate = phase.problem.known, phase.objective.simulation.method.is_separate
        labels = known.labels[:, 0] if is_separate else jax.vmap(image_labels)(known.labels, known.order)
        return np.asarray(labels, np.int64)

    def reconstruct(self, state: AttackState) -> Reconstruction:
        """MatchEpoch: match the epochs' reconstructions and combine them (line 12 of Algorithm 2, Appendix A)."""
        images, permutations = self._match(state)
        num_clients, _, num_images = permutations.shape
        first_of_client = num_images * np.arange(num_clients)[:, None, None]
        labels = self._image_labels(self.phases[int(state.phase)])
        combined = [combine_epochs(*client, self.config.combine) for client in zip(images, permutations, strict=True)]
        return Reconstruction(
            images=np.concatenate(combined),
            epochs=np.concatenate(images, axis=1),
            permutations=np.concatenate(permutations + first_of_client, axis=1),
            labels=labels.reshape(-1),
            residuals_of=self._server_residuals,
        )
