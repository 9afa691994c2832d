"""The attack in a person's hands: step, steer, look back, go back, fork, save and resume.

No threads and no widgets live here: a session does what it is told, when it is told, and returns when the device has
finished. `workbench.runner` drives one in the background.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

import jax
import numpy as np
import optax
from jax import Array
from numpy.typing import ArrayLike, NDArray
from tqdm.auto import tqdm

from workbench.attack.attack import Reconstruction, prepare
from workbench.attack.labels import LabelEstimate, estimate_labels
from workbench.attack.objective import Steering, Terms
from workbench.attack.priors import Summary
from workbench.attack.step import AttackState, StepInfo
from workbench.config import LABEL_METHODS, AttackConfig
from workbench.errors import ConfigError, check_choice, check_count, check_number
from workbench.federated.observation import Observation
from workbench.models import Model

__all__ = ["AttackSession", "Outcome", "SessionHistory", "Snapshot", "SteeringEvent"]


class Outcome(Enum):
    """How a session stands, with a sentence for people."""

    NEW = "no step made yet"
    IN_PROGRESS = "in progress"
    FINISHED = "all steps of the configuration made"
    DIVERGED = "diverged: the loss stopped being finite, the last good state is kept"


@dataclass(frozen=True)
class SteeringEvent:
    """A change of a weight or of the step size, and the step from which it acts."""

    step: int
    name: str
    value: float


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A moment of a session, for views: immutable, and with no claim on the device once read."""

    step: int
    total_steps: int
    outcome: Outcome
    loss: float | None
    terms: dict[str, float]
    seconds_per_step: float | None
    state: AttackState


@dataclass(frozen=True, eq=False)
class SessionHistory:
    """What happened so far.

    Attributes:
        loss: [n] before every step made.
        terms: every term's weighted part in it, [n] each.
        gradient_norm: [n].
        step_size: [n].
        steering: every change, in order.
        snapshot_steps: the steps whose state is kept, for looking and for going back without computing again.
    """

    loss: NDArray[np.float32]
    terms: dict[str, NDArray[np.float32]]
    gradient_norm: NDArray[np.float32]
    step_size: NDArray[np.float32]
    steering: tuple[SteeringEvent, ...]
    snapshot_steps: tuple[int, ...]


_STEERABLE = {
    "update_weight": "update",
    "prior_weight": "prior",
    "tv_weight": "tv",
    "clip_weight": "clip",
    "consensus_weight": "consensus",
    "own_weight": "own",
    "step_size": "step_size",
}


class AttackSession:
    """A stepwise attack on one observed update.

    Example:
        >>> import workbench as wb
        >>> client = wb.load_dataset("glyphs").client(0, num_images=4)
        >>> model = wb.models.mlp(widths=(32,))
        >>> observation = wb.client_update(model, model.init(), client, wb.ClientConfig(epochs=2, batch_size=2))
        >>> session = wb.AttackSession(model, observation, wb.AttackConfig(steps=20), label_counts=client.label_counts)
        >>> session.step(3)
        >>> session.steer(prior_weight=300.0)
        >>> session.step(2)
        >>> session.num_steps
        5
        >>> session.reconstruction().images.shape
        (4, 28, 28, 1)
    """

    def __init__(
        self,
        model: Model,
        observation: Observation,
        config: AttackConfig | None = None,
        *,
        label_counts: ArrayLike | None = None,
        batch_labels: ArrayLike | None = None,
        image_order: ArrayLike | None = None,
        prior: Summary | None = None,
        regularizer: Callable[[Array], Array] | None = None,
        optimizer: optax.GradientTransformation | None = None,
        seed: int = 0,
        device: str | jax.Device = "auto",
        snapshot_every: int = 10,
        snapshot_bytes: int = 256 * 2**20,
    ) -> None:
        """Check everything and place the arrays; nothing is compiled before the first step.

        Args:
            model: the network.
            observation: what the server saw.
            config: how to attack.
            label_counts: [K] known counts, or [A, K] for an aggregate; None recovers them.
            batch_labels: [E, N] or [A, E, N] known labels in the order of every epoch's batches.
            image_order: with ``batch_labels`` and the method ``shared``: which image stands where.
            prior: one's own g.
            regularizer: one's own term of the loss; ``steer(own_weight=...)`` changes its weight.
            optimizer: any of optax's, in place of Adam.
            seed: of every random draw.
            device: ``auto`` takes a GPU or TPU where JAX sees one; else a `jax.Device` or a name like ``gpu:1``.
            snapshot_every: keep the state about every so many steps.
            snapshot_bytes: the most memory that kept states may take; beyond it every other one is dropped.
        """
        self.device = find_device(device)
        self.model = model
        self._own = {"prior": prior, "regularizer": regularizer, "optimizer": optimizer}
        self._attack = prepare(
            model,
            observation,
            config,
            seed=seed,
            label_counts=label_counts,
            batch_labels=batch_labels,
            image_order=image_order,
            prior=prior,
            regularizer=regularizer,
            optimizer=optimizer,
            device=self.device,
        )
        self._snapshot_every = self._first_snapshot_every = check_count("snapshot_every", snapshot_every)
        self._snapshot_bytes = check_count("snapshot_bytes", snapshot_bytes)
        self._state = self._attack.start()
        self._step = 0
        self._steering = self._attack.steering
        self._events: list[SteeringEvent] = []
        self._infos: list[StepInfo] = []
        self._snapshots: dict[int, AttackState] = {0: self._state}
        self._has_diverged = False
        self._seconds_per_step: float | None = None
        self._autosave: tuple[str | os.PathLike[str], int | None, float | None] | None = None
        self._saved_at = (0, time.monotonic())
        self._labels: dict[str, LabelEstimate] | None = None

    # Looking

    @property
    def observation(self) -> Observation:
        return self._attack.observation

    @property
    def config(self) -> AttackConfig:
        return self._attack.config

    @property
    def seed(self) -> int:
        return self._attack.seed

    @property
    def num_steps(self) -> int:
        """How many steps were made."""
        return self._step

    @property
    def total_steps(self) -> int:
        """How many steps the configuration asks for, warm start included."""
        return self._attack.total_steps

    @property
    def steering(self) -> dict[str, float]:
        """The weights of the loss terms and the step size as they act on the next step."""
        return {name: float(getattr(self._steering, field)) for name, field in _STEERABLE.items()}

    @property
    def outcome(self) -> Outcome:
        if self._has_diverged:
            return Outcome.DIVERGED
        if self._step == 0:
            return Outcome.NEW
        return Outcome.FINISHED if self._step >= self.total_steps else Outcome.IN_PROGRESS

    @property
    def loss(self) -> float | None:
        """Before the last step made."""
        return float(self._infos[-1].loss[-1]) if self._infos else None

    @property
    def seconds_per_step(self) -> float | None:
        """As measured, without the first call, which compiles."""
        return self._seconds_per_step

    @property
    def seconds_left(self) -> float | None:
        """Until the configuration's last step, at the speed so far."""
        if self._seconds_per_step is None:
            return None
        return max(0, self.total_steps - self._step) * self._seconds_per_step

    @property
    def memory_estimate(self) -> int:
        """The bytes that a step needs at its peak, by the shapes of what it keeps."""
        return self._attack.memory_estimate()

    @property
    def history(self) -> SessionHistory:
        infos = self._all_infos()
        return SessionHistory(
            loss=infos.loss,
            terms=infos.terms._asdict(),
            gradient_norm=infos.gradient_norm,
            step_size=infos.step_size,
            steering=tuple(self._events),
            snapshot_steps=tuple(sorted(self._snapshots)),
        )

    def _all_infos(self) -> StepInfo:
        if not self._infos:
            none = np.zeros(0, np.float32)
            return StepInfo(none, Terms(*[none] * len(Terms._fields)), none, none)
        if len(self._infos) > 1:
            self._infos = [jax.tree.map(lambda *parts: np.concatenate(parts), *self._infos)]
        return self._infos[0]

    @property
    def labels(self) -> dict[str, LabelEstimate]:
        """The label counts by every method that fits the network."""
        if self._labels is None:
            has_bias = "bias" in self.observation.server_weights[self.model.last_layer]
            methods = [method for method in LABEL_METHODS if has_bias or method != "bias"]
            self._labels = {
                method: estimate_labels(self.model, self.observation, method, seed=self.seed) for method in methods
            }
        return self._labels

    @property
    def label_counts(self) -> NDArray[np.int64]:
        """[A, K] the counts that the attack uses."""
        return self._attack.label_counts

    def reconstruction(self) -> Reconstruction:
        """The images found so far, matched and combined."""
        return self._attack.reconstruct(self._state)

    def reconstruction_at(self, step: int) -> Reconstruction:
        """The images as they were at a kept snapshot (`history.snapshot_steps`)."""
        if step not in self._snapshots:
            raise ConfigError(f"step = {step!r} has no snapshot; kept are {sorted(self._snapshots)}.")
        return self._attack.reconstruct(self._snapshots[step])

    def attacker_view(self) -> dict[str, dict[str, Any]]:
        """What the server received, what it assumes, and what it never sees."""
        observation, simulation = self.observation, self._attack.phases[-1].objective.simulation
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
                "epochs": simulation.epochs,
                "batch size": simulation.batch_size,
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

    def snapshot(self) -> Snapshot:
        """This moment, for a view."""
        last = self._infos[-1] if self._infos else None
        return Snapshot(
            step=self._step,
            total_steps=self.total_steps,
            outcome=self.outcome,
            loss=self.loss,
            terms={} if last is None else {name: float(term[-1]) for name, term in last.terms._asdict().items()},
            seconds_per_step=self._seconds_per_step,
            state=self._state,
        )

    def __repr__(self) -> str:
        o, shape = self.observation, "x".join(map(str, self.observation.image_shape))
        loss = "" if self.loss is None else f", loss {self.loss:.4g}"
        clients = "" if o.num_clients == 1 else f"{o.num_clients} clients of "
        return (
            f"AttackSession({clients}N={o.num_images} images {shape}, E={o.epochs}, m={o.batch_size}; "
            f"{self.config.method} on {self.device}; step {self._step} of {self.total_steps}{loss}; "
            f"{self.outcome.value})"
        )

    # Going on

    def step(self, n: int = 1) -> None:
        """Make n steps; past the configuration's number is allowed. Returns when the device has finished."""
        n = check_count("n", n)
        if self._has_diverged:
            raise ConfigError(f"the session {Outcome.DIVERGED.value} (step {self._step}); rewind or fork from earlier.")
        is_first = not self._infos
        started = time.perf_counter()
        state, infos = self._attack.advance(self._state, self._steering, n)
        _finish(state)
        elapsed = (time.perf_counter() - started) / n
        made = len(infos.loss)
        self._state, self._step, self._has_diverged = state, self._step + made, made < n
        if made:
            self._infos.append(infos)
        if not is_first:
            # The median would need memory; a decaying mean forgets a compilation soon enough.
            before = self._seconds_per_step
            self._seconds_per_step = elapsed if before is None else 0.7 * before + 0.3 * elapsed
        self._keep_snapshot()
        self._save_when_due()

    def run(self, steps: int | None = None, callback: Callable[[AttackSession], None] | None = None) -> AttackSession:
        """Make steps with a progress bar; Ctrl-C stops after the current one and leaves the session usable.

        Args:
            steps: how many; None goes to the configuration's last.
            callback: called with the session after every step.
        """
        goal = self.total_steps if steps is None else self._step + check_count("steps", steps)
        with _interruptible() as interrupted, tqdm(total=goal, initial=self._step, unit="step", desc="attack") as bar:
            while self._step < goal and not interrupted.is_set() and not self._has_diverged:
                before = self._step
                # Several steps at a time where they are short, so that showing progress costs nothing.
                pace = 1 if callback or not self._seconds_per_step else int(0.2 / max(self._seconds_per_step, 1e-4))
                self.step(max(1, min(pace, goal - self._step)))
                bar.update(self._step - before)
                if self._infos:
                    terms = {name: float(term[-1]) for name, term in self._infos[-1].terms._asdict().items()}
                    shown = {name: f"{value:.3g}" for name, value in terms.items() if value}
                    bar.set_postfix(loss=f"{self.loss:.4g}", **shown)
                if callback is not None:
                    callback(self)
            if interrupted.is_set():
                bar.set_description("stopped")
        return self

    def steer(self, **changes: float) -> None:
        """Change loss weights or the step size from the next step on; nothing is compiled again.

        Args:
            changes: any of ``update_weight`` (a factor on its schedule), ``prior_weight``, ``tv_weight``,
                ``clip_weight``, ``consensus_weight``, ``own_weight``, ``step_size``.
        """
        checked = {}
        for name, value in changes.items():
            check_choice("steer", name, _STEERABLE)
            least = {"above": 0.0} if name == "step_size" else {"minimum": 0.0}
            checked[name] = check_number(name, value, **least)
        for name, value in checked.items():
            self._steering = self._steering._replace(**{_STEERABLE[name]: value})
            self._events.append(SteeringEvent(self._step, name, value))

    # Going back

    def _keep_snapshot(self) -> None:
        if self._step - max(self._snapshots) < self._snapshot_every:
            return
        self._snapshots[self._step] = self._state
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(self._state))
        while len(self._snapshots) > 2 and len(self._snapshots) * size > self._snapshot_bytes:
            self._snapshot_every *= 2
            steps = sorted(self._snapshots)
            # The start and the newest stay: one to go back to, one to look at.
            for step in steps[1:-1:2]:
                del self._snapshots[step]

    def rewind(self, step: int) -> None:
        """Return exactly to an earlier step, steering included; what came after is forgotten."""
        step = check_count("step", step, minimum=0, maximum=self._step)
        start = max(kept for kept in self._snapshots if kept <= step)
        state, steering = self._snapshots[start], self._steering_at(start)
        while start < step:
            following = min([event.step for event in self._events if start < event.step < step], default=step)
            state, _ = self._attack.advance(state, steering, following - start)
            start, steering = following, self._steering_at(following, including=following < step)
        _finish(state)
        infos = self._all_infos()
        self._infos = [jax.tree.map(lambda a: a[:step], infos)] if step else []
        self._state, self._step, self._has_diverged = state, step, False
        self._steering = self._steering_at(step, including=False)
        self._events = [event for event in self._events if event.step < step]
        self._snapshots = {kept: state for kept, state in self._snapshots.items() if kept <= step}

    def _steering_at(self, step: int, *, including: bool = True) -> Steering:
        """What acts on the given step; without the changes made just before it, where asked."""
        steering = self._attack.steering
        for event in self._events:
            if event.step < step or (including and event.step == step):
                steering = steering._replace(**{_STEERABLE[event.name]: event.value})
        return steering

    def fork(self) -> AttackSession:
        """An independent copy at this moment, so that two settings can be tried from the same point."""
        copy = object.__new__(AttackSession)
        copy.__dict__.update(self.__dict__)
        copy._events, copy._infos, copy._snapshots = list(self._events), list(self._infos), dict(self._snapshots)
        copy._autosave = None
        return copy

    # Keeping

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything that is needed to go on bit for bit into one safetensors file."""
        from workbench import checkpoint

        checkpoint.save(self, path)
        self._saved_at = (self._step, time.monotonic())

    @staticmethod
    def load(
        path: str | os.PathLike[str],
        *,
        model: Model | None = None,
        prior: Summary | None = None,
        regularizer: Callable[[Array], Array] | None = None,
        optimizer: optax.GradientTransformation | None = None,
        device: str | jax.Device = "auto",
    ) -> AttackSession:
        """Read a saved session; one's own network, g, regulariser or optimiser is passed again."""
        from workbench import checkpoint

        own = {"model": model, "prior": prior, "regularizer": regularizer, "optimizer": optimizer}
        return checkpoint.load(path, own, device)

    def autosave(
        self, path: str | os.PathLike[str], *, every_steps: int | None = None, every_seconds: float | None = None
    ) -> None:
        """Save by itself while stepping: every so many steps, or every so many seconds, whichever comes first."""
        if every_steps is None and every_seconds is None:
            raise ConfigError("autosave needs every_steps or every_seconds.")
        if every_steps is not None:
            every_steps = check_count("every_steps", every_steps)
        if every_seconds is not None:
            every_seconds = check_number("every_seconds", every_seconds, above=0)
        self._autosave = (path, every_steps, every_seconds)

    def _save_when_due(self) -> None:
        if self._autosave is None:
            return
        path, every_steps, every_seconds = self._autosave
        steps, seconds = self._step - self._saved_at[0], time.monotonic() - self._saved_at[1]
        if (every_steps and steps >= every_steps) or (every_seconds and seconds >= every_seconds):
            self.save(path)

    def _resume(
        self,
        state: AttackState,
        infos: StepInfo,
        events: list[SteeringEvent],
        steering: dict[str, float],
        *,
        has_diverged: bool,
    ) -> None:
        """Take over what a checkpoint holds."""
        self._state, self._step, self._has_diverged = state, int(state.step), has_diverged
        self._infos = [infos] if self._step else []
        self._events = events
        for name, value in steering.items():
            check_choice("steering", name, _STEERABLE)
            self._steering = self._steering._replace(**{_STEERABLE[name]: check_number(name, value)})
        self._snapshots[self._step] = state


def _finish(state: AttackState) -> None:
    """Wait for the device: or a stop would not be one, and timings would lie."""
    for leaf in jax.tree.leaves(state):
        leaf.block_until_ready()


def find_device(device: str | jax.Device) -> jax.Device:
    """A JAX device by name.

    >>> find_device("cpu:0").platform
    'cpu'
    """
    if isinstance(device, jax.Device):
        return device
    if device == "auto":
        return jax.devices()[0]
    if not isinstance(device, str):
        raise ConfigError(f"device = {device!r} must be 'auto', a jax.Device or a name such as 'gpu:1'.")
    platform, _, index = device.partition(":")
    try:
        return jax.devices(platform)[int(index or 0)]
    except (RuntimeError, ValueError, IndexError):
        known = ", ".join(f"{d.platform}:{d.id}" for d in jax.devices())
        raise ConfigError(f"device = {device!r} is not there; JAX sees: {known}.") from None


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """Ctrl-C sets the event instead of raising in the middle of something; only the main thread can see it."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = signal.signal(signal.SIGINT, lambda *_: event.set())
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)
