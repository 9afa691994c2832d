"""The attack in a person's hands: step, steer, look back, go back, fork, save, resume and record.

There are no threads and no widgets here: every call returns when the device has finished. `SessionRunner` drives a
session in the background; steering and looking are safe meanwhile, from any thread.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import ArrayLike, NDArray
from tqdm.auto import tqdm

from workbench.attack import step as engine
from workbench.attack.attack import Reconstruction
from workbench.attack.build import Custom
from workbench.attack.labels import LabelEstimate, estimate_labels
from workbench.attack.objective import Steering, Terms
from workbench.attack.prepare import prepare
from workbench.attack.priors import Summary
from workbench.attack.step import AttackState, StepInfo
from workbench.config import LABEL_METHODS, AttackConfig
from workbench.data.dataset import ClientData
from workbench.errors import ConfigError, check_choice, check_count, check_kind, check_number, shown
from workbench.federated.observation import Observation
from workbench.session.history import STEERABLE, Outcome, SessionHistory, SteeringEvent
from workbench.session.recording import Recording
from workbench.training.model import Model

__all__ = ["AttackSession", "Outcome", "SessionHistory", "Snapshot", "SteeringEvent"]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A moment of a session, for views: immutable; `AttackSession.reconstruction` makes images of it."""

    step: int
    total_steps: int
    outcome: Outcome
    loss: float | None
    terms: dict[str, float]
    seconds_per_step: float | None
    state: AttackState


@dataclass(frozen=True, eq=False)
class _Moment:
    """Everything about a session that changes. It is replaced as a whole, so that no other thread sees half of one."""

    state: AttackState
    step: int
    phase: int
    infos: tuple[StepInfo, ...]  # of all steps made, in parts
    steering: Steering
    events: tuple[SteeringEvent, ...]
    snapshots: dict[int, AttackState]
    snapshot_every: int
    has_diverged: bool = False


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
        snapshot_bytes: int | None = None,
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
            regularizer: one's own term of the loss; ``steer(custom_weight=...)`` changes its weight.
            optimizer: any of optax's, in place of Adam.
            seed: of every random draw.
            device: ``auto`` takes a GPU or TPU where JAX sees one; else a `jax.Device` or a name like ``gpu:1``.
            snapshot_every: keep the state about every so many steps.
            snapshot_bytes: the most memory that kept states may take; beyond it every other one is dropped. None is
                enough for 48 of them, but at most 256 MB.
        """
        self._snapshot_every = check_count("snapshot_every", snapshot_every)
        if snapshot_bytes is not None:
            check_count("snapshot_bytes", snapshot_bytes)
        self.device = find_device(device)
        self.model = model
        self._own = {"prior": prior, "regularizer": regularizer, "optimizer": optimizer}
        # For what is made along the way; everything that is kept is committed to the device.
        with jax.default_device(self.device):
            self._attack = prepare(
                model,
                _placed(check_kind("observation", observation, Observation), self.device),
                config,
                seed=seed,
                label_counts=label_counts,
                batch_labels=batch_labels,
                image_order=image_order,
                custom=Custom(prior, regularizer, optimizer),
                device=self.device,
            )
            start = self._attack.start()
        first, last = (self._attack.phases[i].objective.simulation.num_variable_epochs for i in (0, -1))
        self._snapshot_bytes = snapshot_bytes or min(48 * _size(start) * max(1, last // first), 256 * 10**6)
        self._now = _Moment(start, 0, 0, (), self._attack.steering, (), {0: start}, self._snapshot_every)
        # Changes asked for since the last step began; the lock is only ever held for a moment.
        self._asked: list[dict[str, float]] = []
        self._lock = threading.Lock()
        self._stepping = threading.Lock()
        self._seconds: dict[int, float] = {}  # a step of each phase
        self._compiled_phases: set[int] = set()
        self._autosave: tuple[str | os.PathLike[str], int | None, float | None] | None = None
        self._saved_at = (0, time.monotonic())
        self._labels: dict[str, LabelEstimate] = {}

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
    def device_name(self) -> str:
        """As it can be passed for ``device``, e.g. ``gpu:1``."""
        return _name(self.device)

    @property
    def num_steps(self) -> int:
        """How many steps were made."""
        return self._now.step

    @property
    def total_steps(self) -> int:
        """How many steps the configuration asks for, warm start included."""
        return self._attack.total_steps

    @property
    def steering(self) -> dict[str, float]:
        """The weights of the loss terms and the step size as they act on the next step."""
        steering = self._current().steering
        return {name: float(getattr(steering, _field(name))) for name in STEERABLE}

    @property
    def outcome(self) -> Outcome:
        return self._outcome(self._now)

    def _outcome(self, moment: _Moment) -> Outcome:
        if moment.has_diverged:
            return Outcome.DIVERGED
        if moment.step == 0:
            return Outcome.NEW
        return Outcome.FINISHED if moment.step >= self.total_steps else Outcome.IN_PROGRESS

    @property
    def loss(self) -> float | None:
        """Before the last step made."""
        return self.snapshot().loss

    @property
    def seconds_per_step(self) -> float | None:
        """As measured, without first calls, which compile."""
        return self._seconds.get(self._now.phase)

    @property
    def seconds_left(self) -> float | None:
        """Until the configuration's last step, at the speed so far; None while a part to come was not measured yet."""
        step, left = self._now.step, 0.0
        for index, phase in enumerate(self._attack.phases):
            last = self.total_steps if phase.last_step is None else phase.last_step
            if last > max(step, phase.first_step):
                left += (last - max(step, phase.first_step)) * self._seconds.get(index, math.nan)
        return None if math.isnan(left) else left

    @property
    def memory_estimate(self) -> int:
        """The bytes that a step needs at its peak, by the shapes of what it keeps."""
        return self._attack.memory

    def needs(self) -> str:
        """What a run takes, in a sentence: memory at once, time after the first steps."""
        step, kept = _megabytes(self.memory_estimate), _megabytes(self._snapshot_bytes)
        left, remaining = self.seconds_left, max(0, self.total_steps - self.num_steps)
        time_needed = "known after the first ones" if left is None else f"about {left:.0f} s"
        return (
            f"A step needs about {step} on {self.device_name}, kept snapshots up to {kept}; "
            f"time for {remaining} more steps: {time_needed}."
        )

    @property
    def history(self) -> SessionHistory:
        return self._history(self._current())

    def _history(self, moment: _Moment) -> SessionHistory:
        infos = _joined(moment.infos)
        return SessionHistory(
            loss=infos.loss,
            terms=infos.terms._asdict(),
            gradient_norm=infos.gradient_norm,
            step_size=infos.step_size,
            steering=moment.events,
            snapshot_steps=tuple(sorted(moment.snapshots)),
        )

    @property
    def labels(self) -> dict[str, LabelEstimate]:
        """The label counts by every method that fits the network; ``refined`` makes a short attack of its own."""
        return self._estimates(LABEL_METHODS)

    @property
    def formula_labels(self) -> dict[str, LabelEstimate]:
        """Those of `labels` that take no attack."""
        return self._estimates([method for method in LABEL_METHODS if method != "refined"])

    def _estimates(self, methods: Sequence[str]) -> dict[str, LabelEstimate]:
        has_bias = "bias" in self.observation.server_weights[self.model.last_layer]
        fitting = [method for method in methods if has_bias or method not in ("bias", "refined")]
        for method in fitting:
            if method not in self._labels:
                with jax.default_device(self.device):
                    self._labels[method] = estimate_labels(
                        self.model, self.observation, method, seed=self.seed, config=self.config
                    )
        return {method: self._labels[method] for method in fitting}

    @property
    def label_counts(self) -> NDArray[np.int64]:
        """[A, K] the counts that the attack uses."""
        return self._attack.label_counts

    def reconstruction(self, snapshot: Snapshot | None = None) -> Reconstruction:
        """The images found so far, or those of a snapshot, matched and combined."""
        return self._attack.reconstruct(self._now.state if snapshot is None else snapshot.state)

    def reconstruction_at(self, step: int) -> Reconstruction:
        """The images as they were at a kept step (`history.snapshot_steps`), or are now."""
        kept = self._now.snapshots | {self._now.step: self._now.state}
        if step not in kept:
            raise ConfigError(f"step = {shown(step)} has no snapshot; kept are {sorted(kept)}.")
        return self._attack.reconstruct(kept[step])

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
                "epochs": simulation.schedule.epochs,
                "batch size": simulation.schedule.batch_size,
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
        moment = self._now
        last = moment.infos[-1] if moment.infos else None
        return Snapshot(
            step=moment.step,
            total_steps=self.total_steps,
            outcome=self._outcome(moment),
            loss=None if last is None else float(last.loss[-1]),
            terms={} if last is None else {name: float(term[-1]) for name, term in last.terms._asdict().items()},
            seconds_per_step=self._seconds.get(moment.phase),
            state=moment.state,
        )

    def __repr__(self) -> str:
        o, now = self.observation, self.snapshot()
        clients = "" if o.num_clients == 1 else f"{o.num_clients} clients of "
        loss = "" if now.loss is None else f", loss {now.loss:.4g}"
        return (
            f"AttackSession({clients}N={o.num_images} images {'x'.join(map(str, o.image_shape))}, E={o.epochs}, "
            f"m={o.batch_size}; {self.config.method} on {self.device_name}; "
            f"step {now.step} of {now.total_steps}{loss}; {now.outcome.value})"
        )

    # Going on

    def step(self, n: int = 1) -> None:
        """Make n steps; past the configuration's number is allowed. Returns when the device has finished.

        Nothing is kept or saved in between: many calls with few steps, or `run`, leave more snapshots.
        """
        n = check_count("n", n)
        with self._stepping:
            now = self._take_steering()
            self._check_can_go_on(now)
            started = time.perf_counter()
            state, infos = self._attack.advance(now.state, now.steering, n)
            _finish(state)
            phase = int(state.phase)
            self._measure(now.phase, phase, (time.perf_counter() - started) / n)
            after = self._after(now, state, phase, infos)
            is_good = self._is_good(state, now.steering, was_stopped=len(infos.loss) < n)
            if is_good and after.step == now.step + n:
                self._now = self._keep_snapshot(after)
            else:
                self._now = self._last_good(now, after, after.step if is_good else max(after.step - 1, 0))
            self._save_when_due()

    def _check_can_go_on(self, moment: _Moment) -> None:
        if moment.has_diverged:
            raise ConfigError(
                f"the session {Outcome.DIVERGED.value} (step {moment.step}); rewind, steer, and go on from there."
            )

    def _after(self, now: _Moment, state: AttackState, phase: int, infos: StepInfo) -> _Moment:
        made = len(infos.loss)
        parts = (*now.infos, infos) if made else now.infos
        # Joined now and then: a thousand little arrays take much more memory than their numbers.
        if len(parts) > _MOST_PARTS:
            parts = (_joined(parts),)
        return replace(now, state=state, step=now.step + made, phase=phase, infos=parts)

    def _is_good(self, state: AttackState, steering: Steering, *, was_stopped: bool) -> bool:
        """Whether the images can be worked with, and where a run was stopped, whether their loss is finite."""
        if not jnp.isfinite(jnp.vdot(state.images, state.images)):
            return False
        if not was_stopped:
            return True  # the next step will tell
        phase, traced = self._attack.phases[int(state.phase)], jax.tree.map(np.float32, steering)
        _, history = engine.run(phase.objective, self._attack.optimizer, phase.problem, state, traced, np.int32(1))
        return bool(np.isfinite(history.infos.loss[0]) and np.isfinite(history.infos.gradient_norm[0]))

    def _last_good(self, now: _Moment, after: _Moment, good: int) -> _Moment:
        """The diverged moment: back at the last step whose loss was finite."""
        state = self._state_at(now, good)
        events = tuple(event for event in now.events if event.step <= good)
        return replace(
            _cut(replace(now, infos=after.infos), state, good),
            events=events,
            steering=self._steering_at(events, good),
            has_diverged=True,
        )

    def _measure(self, phase_before: int, phase: int, seconds: float) -> None:
        if phase == phase_before and phase in self._compiled_phases:
            # The median would need memory; a decaying mean follows a machine that gets busy.
            self._seconds[phase] = 0.7 * self._seconds.get(phase, seconds) + 0.3 * seconds
        self._compiled_phases.add(phase)

    def run(self, steps: int | None = None, callback: Callable[[AttackSession], None] | None = None) -> AttackSession:
        """Make steps with a progress bar; Ctrl-C stops after the current one and leaves the session usable.

        Args:
            steps: how many; None goes to the configuration's last.
            callback: called with the session after every step.
        """
        goal = self.total_steps if steps is None else self.num_steps + check_count("steps", steps)
        self._check_can_go_on(self._now)
        with _interruptible() as interrupted, tqdm(total=goal, initial=self.num_steps, unit="step") as bar:
            bar.set_description("attack")
            while self.num_steps < goal and not interrupted.is_set() and self.outcome is not Outcome.DIVERGED:
                before = self.num_steps
                self.step(1 if callback else min(goal - before, self._pace()))
                now = self.snapshot()
                bar.update(now.step - before)
                if now.loss is not None:
                    terms = {name: f"{value:.3g}" for name, value in now.terms.items() if value}
                    bar.set_postfix({"loss": f"{now.loss:.4g}", **terms})
                if callback is not None:
                    callback(self)
            if interrupted.is_set():
                bar.set_description("stopped")
        return self

    def _pace(self) -> int:
        """How many steps to make at once: few enough to stop, show, keep and save in time."""
        now, every_steps = self._now, self._autosave[1] if self._autosave else None
        pace = int(0.1 / max(self._seconds.get(now.phase, math.inf), 1e-4))
        pace = min(pace, max(now.snapshots) + now.snapshot_every - now.step)
        if every_steps is not None:
            pace = min(pace, self._saved_at[0] + every_steps - now.step)
        return max(1, pace)

    def steer(self, **changes: float) -> None:
        """Change loss weights or the step size from the next step on; nothing is compiled again.

        While a step is being computed, it returns at once and acts on the step after.

        Args:
            changes: any of ``update_weight`` (a factor on its schedule), ``prior_weight``, ``tv_weight``,
                ``clip_weight``, ``consensus_weight``, ``custom_weight``, ``step_size``.
        """
        checked = {}
        for name, value in changes.items():
            check_choice("steer", name, STEERABLE)
            least = {"above": 0.0} if name == "step_size" else {"minimum": 0.0}
            checked[name] = check_number(name, value, **least)
        with self._lock:
            self._asked.append(checked)

    def _current(self) -> _Moment:
        """This moment, with the steering asked for since the last step began."""
        with self._lock:
            return _steered(self._now, self._asked)

    def _take_steering(self) -> _Moment:
        with self._lock:
            self._now, self._asked = _steered(self._now, self._asked), []
            return self._now

    # Going back

    def _keep_snapshot(self, moment: _Moment) -> _Moment:
        if moment.step - max(moment.snapshots) < moment.snapshot_every:
            return moment
        kept, every = {**moment.snapshots, moment.step: moment.state}, moment.snapshot_every
        while len(kept) > 1 and sum(map(_size, kept.values())) > self._snapshot_bytes:
            # The start stays, to go back to, and the newest, as long as there is room for two.
            every, steps = 2 * every, sorted(kept)
            kept = {step: kept[step] for step in (*steps[:-1:2], *steps[-1:] * (len(steps) > 2))}
        return replace(moment, snapshots=kept, snapshot_every=every)

    def rewind(self, step: int) -> None:
        """Return exactly to an earlier step, steering included; what came after is forgotten.

        Where there is no snapshot, the way from the nearest earlier one is computed again.
        """
        with self._stepping:
            now = self._take_steering()
            step = check_count("step", step, minimum=0, maximum=now.step)
            state = self._state_at(now, step)
            events = tuple(event for event in now.events if event.step < step)
            steering = self._steering_at(events, step)
            self._now = replace(_cut(now, state, step), events=events, steering=steering, has_diverged=False)
            self._saved_at = (step, time.monotonic())

    def _state_at(self, moment: _Moment, step: int) -> AttackState:
        kept = {at: state for at, state in (moment.snapshots | {moment.step: moment.state}).items() if at <= step}
        at = max(kept)
        state = kept[at]
        while at < step:
            following = min((event.step for event in moment.events if at < event.step < step), default=step)
            state, _ = self._attack.advance(state, self._steering_at(moment.events, at), following - at)
            at = following
        _finish(state)
        return state

    def _steering_at(self, events: Sequence[SteeringEvent], step: int) -> Steering:
        """What acts on the given step."""
        steering = self._attack.steering
        for event in events:
            if event.step <= step:
                steering = steering._replace(**{_field(event.name): event.value})
        return steering

    def fork(self) -> AttackSession:
        """An independent copy at this moment, so that two settings can be tried from the same point."""
        copy = object.__new__(AttackSession)
        copy.__dict__.update(self.__dict__)
        copy._now, copy._asked, copy._autosave = self._current(), [], None
        copy._lock, copy._stepping = threading.Lock(), threading.Lock()
        copy._seconds, copy._compiled_phases = dict(self._seconds), set(self._compiled_phases)
        return copy

    # Keeping

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything that is needed to go on bit for bit into one safetensors file."""
        from workbench.session import checkpoint

        checkpoint.save(self, path)
        self._saved_at = (self.num_steps, time.monotonic())

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
        from workbench.session import checkpoint

        own = {"prior": prior, "regularizer": regularizer, "optimizer": optimizer}
        return checkpoint.load(path, model, own, find_device(device))

    def autosave(
        self, path: str | os.PathLike[str], *, every_steps: int | None = None, every_seconds: float | None = None
    ) -> None:
        """Save by itself after `step`: every so many steps, or every so many seconds, whichever comes first."""
        if every_steps is None and every_seconds is None:
            raise ConfigError("autosave needs every_steps or every_seconds.")
        if every_steps is not None:
            every_steps = check_count("every_steps", every_steps)
        if every_seconds is not None:
            every_seconds = check_number("every_seconds", every_seconds, above=0)
        self._autosave = (path, every_steps, every_seconds)
        self._saved_at = (self.num_steps, time.monotonic())

    def _save_when_due(self) -> None:
        if self._autosave is None:
            return
        path, every_steps, every_seconds = self._autosave
        steps, seconds = self.num_steps - self._saved_at[0], time.monotonic() - self._saved_at[1]
        if (every_steps and steps >= every_steps) or (every_seconds and seconds >= every_seconds):
            self.save(path)

    def record(
        self,
        path: str | os.PathLike[str],
        truth: ClientData | Sequence[ClientData] | None = None,
        *,
        snapshots: int = 40,
        epoch_snapshots: int = 12,
    ) -> None:
        """Write a compact recording, which `workbench.replay` plays back without computing.

        Args:
            path: of the file.
            truth: the client, or all clients of an aggregate: its images and the scores are recorded too.
            snapshots: at most so many moments with combined images, the first and the last among them.
            epoch_snapshots: at most so many of these with the images of every epoch.
        """
        Recording.of(self, truth, snapshots=snapshots, epoch_snapshots=epoch_snapshots).save(path)

    def _resume(
        self, state: AttackState, infos: StepInfo, events: tuple[SteeringEvent, ...], *, has_diverged: bool
    ) -> None:
        """Take over what a checkpoint holds."""
        step = len(infos.loss)
        self._now = replace(
            self._now,
            state=state,
            step=step,
            phase=int(state.phase),
            infos=(infos,) if step else (),
            steering=self._steering_at(events, step),
            events=events,
            has_diverged=has_diverged,
        )
        self._saved_at = (step, time.monotonic())


_MOST_PARTS = 64


def _finish(state: AttackState) -> None:
    """Wait for the device: or a stop would not be one, and timings would lie."""
    for leaf in jax.tree.leaves(state):
        leaf.block_until_ready()


def _field(name: str) -> str:
    """The field of `Steering` that a steerable name stands for."""
    return name.removesuffix("_weight")


def _steered(moment: _Moment, asked: Sequence[dict[str, float]]) -> _Moment:
    """The moment with changes that act on its next step; of several for one name the last counts, and is recorded."""
    changes = {name: value for change in asked for name, value in change.items()}
    if not changes:
        return moment
    events = [event for event in moment.events if event.step < moment.step or event.name not in changes]
    events += [SteeringEvent(moment.step, name, value) for name, value in changes.items()]
    steering = moment.steering._replace(**{_field(name): value for name, value in changes.items()})
    return replace(moment, events=tuple(events), steering=steering)


def _joined(parts: Sequence[StepInfo]) -> StepInfo:
    if not parts:
        none = np.zeros(0, np.float32)
        return StepInfo(none, Terms(*[none] * len(Terms._fields)), none, none)
    return jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)


def _cut(moment: _Moment, state: AttackState, step: int) -> _Moment:
    """The moment as it was at an earlier step, but for the steering."""
    infos = jax.tree.map(lambda array: array[:step], _joined(moment.infos))
    return replace(
        moment,
        state=state,
        step=step,
        phase=int(state.phase),
        infos=(infos,) if step else (),
        snapshots={at: kept for at, kept in moment.snapshots.items() if at <= step},
    )


def _size(state: AttackState) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(state))


def _megabytes(size: int) -> str:
    return f"{max(1, round(size / 1e6))} MB"


def _placed(observation: Observation, device: jax.Device) -> Observation:
    server, client = jax.device_put((observation.server_weights, observation.client_weights), device)
    return replace(observation, server_weights=server, client_weights=client)


def _name(device: jax.Device) -> str:
    return f"{device.platform}:{device.id}"


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
        raise ConfigError(f"device = {shown(device)} must be 'auto', a jax.Device or a name such as 'gpu:1'.")
    platform, _, index = device.partition(":")
    try:
        found = {str(number): candidate for number, candidate in enumerate(jax.devices(platform or "none"))}
        return found[index or "0"]
    except (RuntimeError, KeyError):
        known = ", ".join(map(_name, jax.devices()))
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
