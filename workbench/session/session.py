"""The attack in a person's hands: step, steer, look back, rewind, fork, save, resume and record.

There are no threads and no widgets here: every call returns when the device has finished. `SessionRunner` drives a
session in the background; steering it and reading from it are safe meanwhile, from any thread.
"""

from __future__ import annotations

import copy
import math
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import ArrayLike, NDArray

from workbench.attack.attack import Custom, Reconstruction
from workbench.attack.labels import LabelEstimate, estimate_labels
from workbench.attack.prepare import prepare
from workbench.attack.priors import Summary
from workbench.attack.spectrum import Membership, Spectrum
from workbench.config import LABEL_FORMULAS, AttackConfig
from workbench.data.dataset import ClientData, check_images_of
from workbench.errors import ConfigError, DataError, check_choice, check_count, check_kind, check_number, shown
from workbench.federated.observation import Observation
from workbench.files import container
from workbench.progress import interruptible, progress_bar
from workbench.session import checkpoint, moment
from workbench.session.device import find_device, name_of
from workbench.session.history import STEERABLE, Outcome, SessionHistory, SteeringEvent, steering_field
from workbench.session.moment import Moment, Snapshot
from workbench.session.recording import Recording
from workbench.training.model import Model
from workbench.weights import Weights

__all__ = ["AttackSession", "Outcome", "SessionHistory", "Snapshot", "SteeringEvent", "find_device"]

Path = str | os.PathLike[str]


@partial(jax.jit, static_argnums=0)
def _logits(model: Model, weights: Weights, inputs: Array) -> Array:
    return model.apply(weights, inputs)


class AttackSession:
    """A stepwise attack on one observed update.

    Attributes:
        model: the network.
        observation: what the server saw.
        config: how to attack.
        seed: of every random draw.
        label_counts: [A, K] the counts that the attack uses.
        total_steps: number of steps configured, warm start included.
        device: where the session computes.
        device_name: for example ``gpu:1``; can be passed as ``device``.

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
        """Check all arguments and place the arrays on the device; the first step compiles.

        Args:
            model: the network.
            observation: what the server saw.
            config: how to attack.
            label_counts: [K] known counts, or [A, K] for an aggregate; None recovers them.
            batch_labels: [E, N] or [A, E, N] known labels in the order of every epoch's batches.
            image_order: with ``batch_labels`` and the method ``shared``: which image stands where.
            prior: a custom g.
            regularizer: a custom term of the loss; ``steer(custom_weight=...)`` changes its weight.
            optimizer: any optax optimiser, in place of Adam.
            seed: of every random draw.
            device: ``auto`` takes a GPU or TPU where JAX sees one; else a `jax.Device` or a name like ``gpu:1``.
            snapshot_every: keep the state about every this many steps.
            snapshot_bytes: maximum memory of the kept states; above it every other one is dropped. None allows for 48
                states, but at most 256 MB.
        """
        self._snapshot_every = check_count("snapshot_every", snapshot_every)
        snapshot_bytes = None if snapshot_bytes is None else check_count("snapshot_bytes", snapshot_bytes)
        self.device = find_device(device)
        self.device_name = name_of(self.device)
        self.model = model
        self._custom = Custom(prior, regularizer, optimizer)
        # The default device is for temporary arrays; all arrays that stay are committed to the device.
        with jax.default_device(self.device):
            self._attack = prepare(
                model,
                _placed(check_kind("observation", observation, Observation), self.device),
                config,
                seed=seed,
                label_counts=label_counts,
                batch_labels=batch_labels,
                image_order=image_order,
                custom=self._custom,
                device=self.device,
            )
            self._now = moment.first_moment(self._attack, self._snapshot_every)
        self.observation = self._attack.observation
        self.config = self._attack.config
        self.seed = self._attack.seed
        self.label_counts = self._attack.label_counts
        self.total_steps = self._attack.total_steps
        first, last = (self._attack.phases[i].objective.simulation.num_variable_epochs for i in (0, -1))
        largest = moment.size_of(self._now.state) * max(1, last // first)
        self._snapshot_bytes = snapshot_bytes or min(48 * largest, 256 * 10**6)
        # Changes since the last step began, which act on the next one. The lock is never held during a computation.
        self._changes: dict[str, float] = {}
        self._lock = threading.Lock()
        self._stepping = threading.Lock()
        self._seconds: dict[int, float | None] = {}  # per step, by phase; None while only compiling was measured
        self._autosave: tuple[Path, float, float] = ("", math.inf, math.inf)  # path, steps and seconds in between
        self._saved_at = (0, time.monotonic())

    # Look

    @property
    def num_steps(self) -> int:
        """Number of steps made."""
        return self._now.step

    @property
    def steering(self) -> dict[str, float]:
        """The weights of the loss terms and the step size that act on the next step."""
        steering = self._steered().steering
        return {name: float(getattr(steering, steering_field(name))) for name in STEERABLE}

    @property
    def outcome(self) -> Outcome:
        return self._now.outcome(self.total_steps)

    @property
    def loss(self) -> float | None:
        """Before the last step made."""
        return self.snapshot().loss

    @property
    def history(self) -> SessionHistory:
        return self._steered().history

    @property
    def seconds_per_step(self) -> float | None:
        """As measured, without first calls, which compile."""
        return self._seconds.get(self._now.phase)

    @property
    def seconds_left(self) -> float | None:
        """Until the last configured step, at the measured speed; None while a phase to come was not measured yet."""
        step, left = self._now.step, 0.0
        for index, phase in enumerate(self._attack.phases):
            last = self.total_steps if phase.last_step is None else phase.last_step
            if last > max(step, phase.first_step):
                left += (last - max(step, phase.first_step)) * (self._seconds.get(index) or math.nan)
        return None if math.isnan(left) else left

    @property
    def memory_estimate(self) -> int:
        """The bytes that a step needs at its peak, estimated from the shapes of the arrays that it keeps."""
        return self._attack.memory

    def cost(self) -> str:
        """The memory and the remaining time of the run, as a sentence; the time is known after the first steps."""
        step, kept = (f"{max(1, round(size / 1e6))} MB" for size in (self.memory_estimate, self._snapshot_bytes))
        left, remaining = self.seconds_left, max(0, self.total_steps - self.num_steps)
        time_needed = "known after the first ones" if left is None else f"about {left:.0f} s"
        return (
            f"A step needs about {step} on {self.device_name}, kept snapshots up to {kept}; "
            f"time for {remaining} more steps: {time_needed}."
        )

    @cached_property
    def labels(self) -> dict[str, LabelEstimate]:
        """The label counts by every method that fits the network; ``refined`` runs a short attack."""
        return self.formula_labels | self._estimates(["refined"])

    @cached_property
    def formula_labels(self) -> dict[str, LabelEstimate]:
        """Those of `labels` that need no attack."""
        return self._estimates(LABEL_FORMULAS)

    def _estimates(self, methods: Iterable[str]) -> dict[str, LabelEstimate]:
        """The label counts by those of the methods that fit: some need a bias in the last layer, none fits Adam."""
        if self.observation.training.is_adam:
            return {}
        has_bias = "bias" in self.observation.server_weights[self.model.last_layer]
        with jax.default_device(self.device):
            return {
                method: estimate_labels(self.model, self.observation, method, seed=self.seed, config=self.config)
                for method in methods
                if has_bias or method not in ("bias", "refined")
            }

    @property
    def spectrum(self) -> Spectrum | str:
        """What the span of a dense layer's update is worth, or a sentence about why there is none."""
        return self._attack.spectrum

    def membership(
        self, images: ArrayLike, controls: ArrayLike | None = None, *, false_positive_rate: float = 0.01
    ) -> Membership:
        """Whether pictures were among the client's, by how far they are from the span of its update.

        Args:
            images: [n, H, W, C] pixels in [0, 1].
            controls: [k, H, W, C] similar pictures that were certainly not the client's; without them there are
                residuals but no threshold.
            false_positive_rate: the share of the controls that may count as the client's.
        """
        rate = check_number("false_positive_rate", false_positive_rate, minimum=0, maximum=1)
        asked = check_images_of("images", images, self.observation.image_shape)
        others = (
            np.zeros((0, *asked.shape[1:]), np.float32)
            if controls is None
            else check_images_of("images", controls, self.observation.image_shape)
        )
        found = self._attack.membership(asked, others, rate)
        if isinstance(found, str):
            raise DataError(f"this update does not show whether a picture is of this client. {found}")
        return found

    def read(self, images: ArrayLike) -> NDArray[np.int64]:
        """[n, H, W, C] pixels to [n]: the class that the network, as the client trained it, sees in each image."""
        pixels = check_images_of("images", np.clip(np.asarray(images, np.float32), 0, 1), self.observation.image_shape)
        inputs = jnp.asarray(self.observation.normalization.normalize(pixels))
        return np.asarray(_logits(self.model, self.observation.client_weights, inputs)).argmax(-1)

    def reconstruction(self, snapshot: Snapshot | None = None) -> Reconstruction:
        """The current images, or those of a snapshot, matched and combined."""
        return self._attack.reconstruct(self._now.state if snapshot is None else snapshot.state)

    def reconstruction_at(self, step: int) -> Reconstruction:
        """The images at a kept step (`history.snapshot_steps`) or at the current one."""
        states = self._now.states
        if step not in states:
            raise ConfigError(f"step = {shown(step)} has no snapshot; kept are {sorted(states)}.")
        return self._attack.reconstruct(states[step])

    def attacker_view(self) -> dict[str, dict[str, Any]]:
        """What the server received, what it assumes, and what it never sees."""
        return self._attack.server_view()

    def snapshot(self) -> Snapshot:
        """The current state, for views."""
        now = self._now
        return now.snapshot(self.total_steps, self._seconds.get(now.phase))

    def __repr__(self) -> str:
        o, now = self.observation, self.snapshot()
        clients = "" if o.num_clients == 1 else f"{o.num_clients} clients of "
        loss = "" if now.loss is None else f", loss {now.loss:.4g}"
        return (
            f"AttackSession({clients}N={o.num_images} images {'x'.join(map(str, o.image_shape))}, E={o.epochs}, "
            f"m={o.batch_size}; {self.config.method} on {self.device_name}; "
            f"step {now.step} of {now.total_steps}{loss}; {now.outcome.value})"
        )

    # Step and steer

    def step(self, n: int = 1) -> None:
        """Make n steps; more than the configured ones are allowed. Returns when the device has finished.

        No state is kept or saved in between: for more snapshots use many calls with few steps, or `run`.
        """
        n = check_count("n", n)
        with self._stepping:
            before = self._take_steering()
            self._check_can_step(before)
            started = time.perf_counter()
            state, infos = self._attack.advance(before.state, before.steering, n)
            # Without waiting, a stop would not stop the device, and the measured time would be too short.
            jax.block_until_ready(state)  # type: ignore[no-untyped-call]
            self._measure(before.phase, int(state.phase), (time.perf_counter() - started) / n)
            after = moment.advanced(self._attack, before, state, infos, n)
            self._now = after if after.has_diverged else after.with_snapshot(self._snapshot_bytes)
            self._save_when_due()

    def _check_can_step(self, now: Moment) -> None:
        if now.has_diverged:
            raise ConfigError(f"the session {Outcome.DIVERGED.value} (step {now.step}); rewind and steer, then go on.")

    def _measure(self, phase_before: int, phase: int, seconds: float) -> None:
        if phase == phase_before and phase in self._seconds:
            # A decaying mean follows a machine that gets busy and needs no memory, unlike a median.
            self._seconds[phase] = 0.7 * (self._seconds[phase] or seconds) + 0.3 * seconds
        self._seconds.setdefault(phase, None)

    def run(self, steps: int | None = None, callback: Callable[[AttackSession], None] | None = None) -> AttackSession:
        """Make steps with a progress bar; Ctrl-C stops after the current one and leaves the session usable.

        Args:
            steps: how many; None goes to the last configured one.
            callback: called with the session after every step.
        """
        goal = self.total_steps if steps is None else self.num_steps + check_count("steps", steps)
        self._check_can_step(self._now)
        with (
            interruptible() as interrupted,
            progress_bar(total=goal, initial=self.num_steps, desc="attack", unit="step") as bar,
        ):
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
        """How many steps to make at once: about 0.1 s of them, up to the next snapshot or autosave."""
        now, (_, every_steps, _) = self._now, self._autosave
        until_snapshot = max(now.snapshots) + now.snapshot_every - now.step
        until_autosave = self._saved_at[0] + every_steps - now.step
        return max(1, int(min(0.1 / (self.seconds_per_step or 0.1), until_snapshot, until_autosave)))

    def steer(self, **changes: float) -> None:
        """Change loss weights or the step size from the next step on; nothing is compiled again.

        Returns at once. A change during the computation of a step acts on the step after it.

        Args:
            changes: any of ``update_weight`` (a factor on its schedule), ``prior_weight``, ``tv_weight``,
                ``clip_weight``, ``consensus_weight``, ``custom_weight``, ``step_size``.
        """
        checked = {}
        for name, value in changes.items():
            check_choice("steer", name, STEERABLE)
            bound = {"above": 0.0} if name == "step_size" else {"minimum": 0.0}
            checked[name] = check_number(name, value, **bound)
        with self._lock:
            self._changes |= checked

    def _steered(self) -> Moment:
        """The current moment with the changes that act on the next step."""
        with self._lock:
            return self._now.steered(self._changes)

    def _take_steering(self) -> Moment:
        with self._lock:
            self._now, self._changes = self._now.steered(self._changes), {}
            return self._now

    # Rewind and fork

    def rewind(self, step: int) -> None:
        """Return exactly to an earlier step, steering included; later steps are forgotten.

        Without a snapshot of that step, the session computes it again from the nearest earlier one.
        """
        with self._stepping:
            now = self._take_steering()
            self._now = moment.rewound(self._attack, now, check_count("step", step, minimum=0, maximum=now.step))
            self._saved_at = (step, time.monotonic())

    def fork(self) -> AttackSession:
        """An independent copy, to try two settings from the same step. It does not save automatically."""
        fork = copy.copy(self)
        fork._now, fork._changes, fork._autosave = self._steered(), {}, ("", math.inf, math.inf)
        fork._lock, fork._stepping, fork._seconds = threading.Lock(), threading.Lock(), dict(self._seconds)
        return fork

    # Save and record

    def save(self, path: Path) -> None:
        """Write everything that is needed to go on bit for bit into one safetensors file."""
        now = self._steered()
        checkpoint.Checkpoint.of(
            self._attack,
            self.model,
            self._custom,
            now.state,
            now.history,
            snapshot_every=self._snapshot_every,
            snapshot_bytes=self._snapshot_bytes,
            has_diverged=now.has_diverged,
        ).write(path)
        self._saved_at = (now.step, time.monotonic())

    @staticmethod
    def load(
        path: Path,
        *,
        model: Model | None = None,
        prior: Summary | None = None,
        regularizer: Callable[[Array], Array] | None = None,
        optimizer: optax.GradientTransformation | None = None,
        device: str | jax.Device = "auto",
    ) -> AttackSession:
        """Read a saved session; a custom network, g, regulariser or optimiser must be passed again."""
        with jax.default_device(find_device(device)):
            saved = checkpoint.read(path)
        with container.fitting_together(path, checkpoint.KIND):
            saved.check_custom(Custom(prior, regularizer, optimizer))
            session = AttackSession(
                saved.build_model() if model is None else model,
                saved.observation,
                saved.config,
                batch_labels=saved.labels,
                image_order=saved.order,
                prior=prior,
                regularizer=regularizer,
                optimizer=optimizer,
                seed=saved.seed,
                device=device,
                snapshot_every=saved.snapshot_every,
                snapshot_bytes=saved.snapshot_bytes,
            )
            state = jax.device_put(saved.attack_state(session._attack), session.device)
            session._now = moment.resumed(session._attack, session._now, state, saved.history, saved.has_diverged)
            session._saved_at = (session.num_steps, time.monotonic())
        return session

    def autosave(self, path: Path, *, every_steps: int | None = None, every_seconds: float | None = None) -> None:
        """Save automatically after `step`, at the given interval in steps or seconds, whichever comes first."""
        if every_steps is None and every_seconds is None:
            raise ConfigError("autosave needs every_steps or every_seconds.")
        self._autosave = (
            path,
            math.inf if every_steps is None else check_count("every_steps", every_steps),
            math.inf if every_seconds is None else check_number("every_seconds", every_seconds, above=0),
        )
        self._saved_at = (self.num_steps, time.monotonic())

    def _save_when_due(self) -> None:
        path, every_steps, every_seconds = self._autosave
        steps, seconds = self.num_steps - self._saved_at[0], time.monotonic() - self._saved_at[1]
        if steps >= every_steps or seconds >= every_seconds:
            self.save(path)

    def record(
        self,
        path: Path,
        truth: ClientData | Iterable[ClientData] | None = None,
        *,
        snapshots: int = 40,
        epoch_snapshots: int = 12,
    ) -> None:
        """Write a compact recording, which `workbench.replay` plays back without computing.

        Args:
            path: of the file.
            truth: the client, or all clients of an aggregate: their images and the scores are recorded too.
            snapshots: maximum number of moments with combined images; the first and the last are always included.
            epoch_snapshots: maximum number of these that also have the images of every epoch.
        """
        Recording.of(self, truth, snapshots=snapshots, epoch_snapshots=epoch_snapshots).save(path)


def _placed(observation: Observation, device: jax.Device) -> Observation:
    server, client = jax.device_put((observation.server_weights, observation.client_weights), device)
    return replace(observation, server_weights=server, client_weights=client)
