"""What a person has set, and what a panel shows: an attack, its runner and what it costs; or a recording."""

import contextlib
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from workbench.attack.simulate import estimate_cost
from workbench.config import AttackConfig, ClientConfig
from workbench.data import Truth
from workbench.errors import ConfigError
from workbench.federated import Observation
from workbench.progress import duration
from workbench.session import AttackSession, Recording, SessionRunner
from workbench.settings import settings_of
from workbench.target import Target, is_same_update
from workbench.training import native
from workbench.training.model import Model
from workbench.views.panel import files
from workbench.views.panel.status import Stage

__all__ = ["STEERED", "Settings", "Workspace"]

# The settings that sliders change on a running attack.
STEERED = {name: known for name, known in settings_of(AttackConfig).items() if known.slider is not None}

# Which workspace drives a session: a cell that is run again makes a new panel, which takes over.
_driving: weakref.WeakValueDictionary[int, "Workspace"] = weakref.WeakValueDictionary()


@dataclass(frozen=True)
class Settings:
    """The settings of the panel's controls.

    Attributes:
        target: the client; None where the panel was given a session.
        config: the attack.
        label_source: ``known``, or the method that recovers the counts.
        update_weight: the factor on the weight of the update distance, 1 unless moved.
        seed: of every random draw.
    """

    target: Target | None
    config: AttackConfig
    label_source: str
    update_weight: float
    seed: int

    @property
    def without_steering(self) -> "Settings":
        """What needs a new session when it changes: everything that no slider changes during the run."""
        fixed = {name: known.default for name, known in STEERED.items()}
        return replace(self, config=replace(self.config, **fixed), update_weight=1.0)


class _Update(NamedTuple):
    """An update, and the client, the network and the truth behind it."""

    target: Target
    model: Model
    truth: Truth
    observation: Observation


class Workspace:
    """An attack or a recording, and what can be done with it, on the thread that calls. Methods may take long.

    Args:
        truth: the clients behind a session that will be given, where they are known.
        stepped: called after every step, on the runner's thread.

    Attributes:
        session: the attack; None for a recording, and before the first one is built.
        recording: what is played instead of an attack.
        runner: makes the session's steps.
        truth: the clients behind what is shown; empty where they are not known.
        is_given: whether the update was given, and is not that of a client which the settings name.
        label_source: where the label counts come from: ``known``, or the method that estimated them.
        labels: the estimated label counts, by method, once `estimate_labels` has made them.
        seconds_per_image: the measured speed of the attack's steps; None where it has to be measured (again).
        stage: of the build under way; None where there is none.
        lock: held while what is shown is exchanged.
    """

    def __init__(self, truth: Truth, stepped: Callable[[], None]) -> None:
        self.truth = truth
        self.session: AttackSession | None = None
        self.recording: Recording | None = None
        self.runner: SessionRunner | None = None
        self.is_given = False
        self.label_source = ""
        self.labels: Mapping[str, Any] | None = None
        self.seconds_per_image: float | None = None
        self.stage: Stage | None = None
        self.lock = threading.RLock()
        self._stepped = stepped
        self._update: _Update | None = None

    @property
    def source(self) -> AttackSession | Recording | None:
        """What is shown."""
        return self.recording or self.session

    @property
    def attack(self) -> AttackSession:
        """The session, which has to be there."""
        if self.session is None:
            raise ConfigError("there is no attack yet: build one first.")
        return self.session

    def show(self, source: AttackSession | Recording) -> None:
        """Show a given session or recording from now on."""
        if isinstance(source, AttackSession):
            # Of the client's target, only the sizes are known, not the pictures.
            seen, self.is_given = source.observation, True
            client = ClientConfig(seen.epochs, seen.batch_size, seen.learning_rate, **seen.training.changes)
            target = Target(num_images=seen.num_images, num_clients=seen.num_clients, client=client)
            self._update = _Update(target, source.model, self.truth, seen)
            is_known = bool(self.truth) and np.array_equal(source.label_counts, self.truth.label_counts)
            self._take(source, self.truth, "known" if is_known else source.config.label_method)
        else:
            with self.lock:
                self.session = self.runner = None
                self.recording, self.truth, self.labels = source, Truth.of(source.truth), source.labels
                self.label_source = source.config.label_method

    def build(self, settings: Settings, changed: Callable[[], None] = lambda: None) -> None:
        """Train the client, unless its update is known, and prepare the attack.

        Args:
            settings: of both.
            changed: called with every new `stage`.
        """
        self.end_run()
        target, update = self._target(settings), self._update
        try:
            if update is None or update.target != target:
                self.stage = Stage.TRAIN
                changed()
                model, clients = target.load()
                update = self._update = _Update(target, model, Truth.of(clients), target.observe(model, clients))
            self.stage = Stage.LABELS
            changed()
            self._prepare(update, settings)
        finally:
            self.stage = None

    def _prepare(self, update: _Update, settings: Settings) -> None:
        session = AttackSession(
            update.model,
            update.observation,
            settings.config,
            label_counts=update.truth.label_counts if settings.label_source == "known" else None,
            seed=settings.seed,
        )
        if settings.update_weight != 1:
            session.steer(update_weight=settings.update_weight)
        self._take(session, update.truth, settings.label_source)

    def _target(self, settings: Settings) -> Target:
        target = settings.target or (self._update and self._update.target)
        if target is None:
            raise ConfigError("there is no update to attack: choose a client.")
        return target

    def _take(self, session: AttackSession, truth: Truth, label_source: str) -> None:
        _driving.get(id(session), self).stop_run()
        _driving[id(session)] = self
        with self.lock:
            self.recording, self.truth, self.session, self.labels = None, truth, session, None
            self.label_source = label_source
            self._drive(session)

    def _drive(self, session: AttackSession) -> None:
        self.runner, self.seconds_per_image = SessionRunner(session), None
        self.runner.add_listener(lambda _: self._stepped())

    def stop_run(self) -> None:
        """Let the run end after the current step."""
        if self.runner is not None:
            self.runner.stop()

    def wait_for_run(self, timeout: float | None = None) -> bool:
        """Until the run has ended, however it did; False where the time was not enough."""
        with contextlib.suppress(Exception):
            return self.runner is None or self.runner.wait(timeout)
        return True

    def end_run(self) -> None:
        """Stop the run and wait for the step or the compilation under way."""
        self.stop_run()
        self.wait_for_run()

    def rewind(self, step: int) -> None:
        """Discard what came after a step."""
        self.end_run()
        self.attack.rewind(step)
        self._drive(self.attack)  # a run that failed is over

    def read(self, name: str) -> str:
        """Show a checkpoint or a recording from a file; return a message about it."""
        path, source = files.read(name)
        self.end_run()
        if isinstance(source, Recording):
            self.show(source)
            return f"Loaded {path}: {len(source.frames)} moments to play."
        if self.session is None or not is_same_update(self.session.observation, source.observation):
            self.truth = Truth()
        self.show(source)
        missing = "" if self.truth else " It does not hold the truth, so there is nothing to compare with."
        return f"Loaded {path} at step {source.num_steps}.{missing}"

    def estimate_labels(self) -> None:
        """Estimate the label counts by every formula."""
        if self.session is not None:
            self.labels = self.session.formula_labels

    def cost_text(self, settings: Settings) -> str:
        """Work, memory and time of an attack with these settings; the time is unknown until a step was measured."""
        if self.session is not None and self.seconds_per_image is None:
            self.seconds_per_image = _measure_speed(self.session)
        target, update = self._target(settings), self._update
        is_known = update is not None and _network(update.target) == _network(target)
        model = update.model if update and is_known else replace(target, num_images=1, num_clients=1).load()[0]
        schedule = target.client.schedule(target.num_images)
        cost = estimate_cost(model, settings.config, schedule, target.num_clients, target.client.local)
        parts = [
            f"{schedule.batches_per_epoch} batches an epoch",
            f"{schedule.local_steps} local steps",
            f"{cost.steps} attack steps",
            f"about {max(1, round(cost.memory / 1e6))} MB",
            "time known after the first steps",
        ]
        if self.seconds_per_image is not None:
            images = sum(steps * images for steps, images in cost.phases)
            parts[-1] = f"about {duration(images * self.seconds_per_image)} in all"
        return "\n".join(filter(None, (" · ".join(parts), native.advice())))


def _network(target: Target) -> tuple[object, ...]:
    """What decides which network a target has."""
    return target.dataset, target.data, target.network


def _measure_speed(session: AttackSession) -> float | None:
    """The seconds that a step takes for each image that it sends through the network; None before the first steps."""
    if not session.seconds_per_step:
        return None
    observed = session.observation
    cost = estimate_cost(session.model, session.config, observed.schedule, observed.num_clients, observed.training)
    is_warm = session.num_steps < session.config.warm_start_steps
    return session.seconds_per_step / cost.phases[0 if is_warm else -1][1]
