"""What a panel does, without widgets: it builds, runs, steers, rewinds, saves and loads an attack, and knows its state.

Requests set flags and return. The `Worker` does what takes long (training the client, preparing an attack, files), the
session's `SessionRunner` makes the steps. The `View` is notified of every change, on the thread that makes it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec

from workbench.config import label_of
from workbench.data import Truth
from workbench.errors import WorkbenchError
from workbench.session import AttackSession, Outcome, Recording
from workbench.session.runner import RunnerState
from workbench.views.panel import files
from workbench.views.panel.scenarios import Scenario
from workbench.views.panel.status import Command, Job, Message, Situation, State, error_text, refusals
from workbench.views.panel.worker import Worker, wait_in_turn
from workbench.views.panel.workspace import Settings, Workspace

__all__ = ["Controller", "View"]

P = ParamSpec("P")

_BY_RUNNER = {
    RunnerState.RUNNING: State.RUNNING,
    RunnerState.PAUSED: State.PAUSED,
    RunnerState.FAILED: State.FAILED,
}
_BY_OUTCOME = {
    Outcome.NEW: State.READY,
    Outcome.IN_PROGRESS: State.STOPPED,
    Outcome.FINISHED: State.FINISHED,
    Outcome.DIVERGED: State.DIVERGED,
}


@dataclass(frozen=True)
class View:
    """What a controller asks of a view, and what it calls when something happens, on the thread where it does.

    Attributes:
        settings: returns what a person has set; it may raise a `WorkbenchError` that says what is wrong with it.
        viewed_step: returns the earlier step that is looked at; None where it is the newest.
        show_state: the state, the message, the cost or what is allowed has changed.
        draw: there is something new to draw.
        show_source: another session, recording or moment is shown.
        show_settings: the controls should show the settings of what is shown; `show_source` follows.
        show_scenario: the controls should show the settings of a scenario.
    """

    settings: Callable[[], Settings]
    viewed_step: Callable[[], int | None] = lambda: None
    show_state: Callable[[], None] = lambda: None
    draw: Callable[[], None] = lambda: None
    show_source: Callable[[], None] = lambda: None
    show_settings: Callable[[], None] = lambda: None
    show_scenario: Callable[[Scenario], None] = lambda _: None


def _request(method: Callable[Concatenate["Controller", P], None]) -> Callable[Concatenate["Controller", P], None]:
    """A person's request: refused with the reason where its command is not allowed; an error is reported."""
    command = Command.__members__.get(method.__name__.upper())

    @wraps(method)
    def request(self: "Controller", /, *arguments: P.args, **options: P.kwargs) -> None:
        reason = None if command is None else refusals(self.situation()).get(command)
        self._answered, self.message = self.message, Message(reason or "")
        try:
            if reason is None:
                method(self, *arguments, **options)
        except Exception as error:  # whatever it is, the person has to see it
            self.message = Message(error_text(error), is_error=True)
        self._view.show_state()

    return request


class Controller:
    """One attack and what is being done to it.

    Args:
        view: what shows it.
        truth: the clients behind a session that will be given, where they are known.

    Attributes:
        workspace: what is shown.
        worker: does the jobs.
        message: the last event worth reporting, until something else happens.
        cost: what an attack with the present settings costs, or what is wrong with them.
        has_changed: whether the settings are no longer those of the attack.
    """

    def __init__(self, view: View, truth: Truth) -> None:
        self._view = view
        self.workspace = Workspace(truth, self._stepped)
        self.worker = Worker(view.draw, self.report)
        self.message = self.cost = Message()
        self.has_changed = False
        self._built: Settings | None = None  # of the attack that is there or being built
        self._asked: Command | None = None  # of the run, last: RUN, STEP, PAUSE or STOP
        self._stepped_at = 0.0
        self._answered = Message()  # what stood on the status line before the last request

    # What it is doing

    @property
    def job(self) -> Job | None:
        """What the worker does or will do next, without what starts by itself."""
        return next((job for job in self.worker.jobs if not job.is_quiet), None)

    @property
    def state(self) -> State:
        """How the attack stands."""
        shown = self.workspace
        if shown.recording is not None:
            return State.REPLAYING
        by_runner = None if shown.runner is None else _BY_RUNNER.get(shown.runner.state)
        if by_runner is not State.RUNNING and self.job in (Job.BUILD, Job.START):
            return State.BUILDING
        if shown.session is None:
            return State.EMPTY
        return by_runner or _BY_OUTCOME[shown.session.outcome]

    def situation(self) -> Situation:
        """Everything that decides what is said and allowed."""
        shown = self.workspace
        with shown.lock:
            source, error = shown.source, shown.runner and shown.runner.error
            return Situation(
                state=self.state,
                job=self.job,
                stage=shown.stage,
                request=self._asked,
                message=self.message,
                failure=error_text(error) if error else "",
                step=source.num_steps if source else 0,
                total_steps=source.total_steps if source else 0,
                warm_start_steps=source.config.warm_start_steps if source else 0,
                seconds_waiting=time.monotonic() - self._stepped_at,
                has_session=shown.session is not None,
                has_changed=self.has_changed,
                is_newest=self._view.viewed_step() is None,
                is_given=shown.is_given,
            )

    def report(self, message: Message) -> None:
        """Put a message on the status line."""
        self.message = message
        self._view.show_state()

    def wait(self, timeout: float | None = None) -> bool:
        """Until nothing is being built, written or run; False where the time was not enough."""
        return wait_in_turn((self.worker.wait, self.workspace.wait_for_run), timeout)

    def close(self) -> None:
        """End the worker and the run after what they are doing."""
        self.worker.close()
        self.worker.cancel_waiting()
        self.workspace.stop_run()

    # Requests, which have the names of their commands. They set flags and return.

    @_request
    def build(self) -> None:
        """Make a new attack with the present settings."""
        self._asked = None
        self._submit_build()

    @_request
    def choose(self, scenario: Scenario) -> None:
        """Make a new attack with the settings of a scenario, which the view shows."""
        self._view.show_scenario(scenario)
        self._asked = None
        self._submit_build()

    @_request
    def run(self) -> None:
        """Make all steps, with a new attack where the settings have changed."""
        runner = self.workspace.runner
        if runner is not None and runner.is_active and not self.has_changed:
            self._asked = Command.RUN
            runner.resume()
            self._stepped_at = time.monotonic()
            self._view.draw()
        else:
            self._submit_start(Command.RUN)

    @_request
    def step(self) -> None:
        """Make one step."""
        self._submit_start(Command.STEP)

    @_request
    def pause(self) -> None:
        """Hold after the current step; an attack that is being built will not start."""
        self._asked = Command.PAUSE
        if self.workspace.runner is not None:
            self.workspace.runner.pause()

    @_request
    def stop(self) -> None:
        """End the run after the current step; an attack that is being built will not start."""
        self._asked = Command.STOP
        self.workspace.stop_run()

    @_request
    def reset(self) -> None:
        """Go back to the start, with the weights and the step size of the configuration."""
        self._asked = Command.STOP
        self.workspace.stop_run()
        self.worker.submit(Job.RESET, lambda: self._rewind(0, is_reset=True))

    @_request
    def rewind(self) -> None:
        """Discard what came after the step that is looked at, and go on from there."""
        step = self._view.viewed_step()
        self.worker.submit(Job.REWIND, lambda: self._rewind(step or 0))

    @_request
    def fork(self, show: Callable[[AttackSession], None]) -> None:
        """Give ``show`` an independent copy of the attack as it is now, on the worker's thread."""
        copy = self.workspace.attack.fork()
        self.worker.submit(
            Job.FORK,
            lambda: show(copy),
            lambda: f"Forked at step {copy.num_steps}: the copy is below and runs independently.",
        )

    @_request
    def save(self, name: str) -> None:
        """Write a checkpoint."""
        session, path = self.workspace.attack, files.path_of(name, files.CHECKPOINT_SUFFIX)
        self._submit_write(Job.SAVE, path, lambda: session.save(path))

    @_request
    def export(self, name: str, suffix: str, picture: Callable[[], bytes]) -> None:
        """Write a picture, an animation, a report or a recording, as the suffix says; see `files.export`."""
        source, truth = self.workspace.source or self.workspace.attack, self.workspace.truth
        path = files.path_of(name, suffix)
        self._submit_write(Job.EXPORT, path, lambda: files.export(path, source, truth, picture))

    @_request
    def load(self, name: str) -> None:
        """Read a checkpoint or a recording, and show it."""
        self.worker.submit(Job.LOAD, lambda: self._show_given(self.workspace.read(name)))

    @_request
    def steer(self, /, **changes: float) -> None:
        """Change weights or the step size of the attack from its next step on."""
        session = self.workspace.session
        if session is not None:
            session.steer(**changes)
            changed = ", ".join(f"{label_of(name)} = {value:g}" for name, value in changes.items())
            self.message = Message(f"{changed} from step {session.num_steps + 1} on.")
        self._view.draw()

    def settings_changed(self) -> None:
        """Find out whether the settings need a new attack, and estimate what it costs."""
        self.message = Message()  # it was about other settings
        recording = self.workspace.recording
        if recording is not None:
            self.has_changed, self.cost = False, Message(f"{len(recording.frames)} recorded moments")
        else:
            try:
                settings = self._view.settings().without_steering
                self.has_changed = self._built is None or settings != self._built.without_steering
            except WorkbenchError:
                self.has_changed = True
            self.worker.submit(Job.ESTIMATE_COST, self._estimate_cost)
        self._view.show_state()

    def estimate_labels(self) -> None:
        """Estimate the label counts by every formula, unless that has been done."""
        if self.workspace.labels is None:
            self.worker.submit(Job.ESTIMATE_LABELS, self.workspace.estimate_labels)

    def show(self, source: AttackSession | Recording) -> None:
        """Show a given session or recording from now on."""
        self.workspace.show(source)
        self._show_given()

    # Jobs. They run on the worker's thread, and may return a message.

    def _submit_write(self, job: Job, path: Path, write: Callable[[], None]) -> None:
        """Write a file; before one is replaced, the person is asked."""
        question = Message(f"{path} exists: {job.name.capitalize()} once more replaces it.")
        if path.exists() and self._answered != question:
            self.message = question
            return
        self.worker.submit(job, write, lambda: f"Wrote {path} ({max(1, round(path.stat().st_size / 1000))} kB).")

    def _submit_start(self, command: Command) -> None:
        """Begin a run or a step, with a new attack where the settings have changed."""
        self._asked = command
        if self._built is None or self.has_changed:
            self._submit_build()
        self.worker.submit(Job.START, self._start)

    def _submit_build(self) -> None:
        settings = self._view.settings()
        self.workspace.stop_run()
        self._built, self.has_changed = settings, False
        self.worker.submit(Job.BUILD, lambda: self._build(settings))

    def _build(self, settings: Settings) -> None:
        try:
            self.workspace.build(settings, self._view.show_state)
        except BaseException:
            self._built, self.has_changed = None, True
            self.worker.cancel_waiting()
            raise
        self._view.show_source()
        self.settings_changed()

    def _show_given(self, text: str = "") -> str:
        """Let the view show the settings of what is shown, and take those as its settings; return the message."""
        self._view.show_settings()
        self._view.show_source()
        if self.workspace.recording is None:
            self._built = self._view.settings()
        self.settings_changed()
        return text

    def _start(self) -> str | None:
        """Begin the run or the step, unless it was paused or stopped while the session was being built."""
        session, runner = self.workspace.attack, self.workspace.runner
        if self._asked is Command.RUN and session.outcome is Outcome.FINISHED:
            return f"All {session.total_steps} steps are done: Step makes one more, Reset starts over."
        if runner is not None and self._asked in (Command.RUN, Command.STEP):
            self._view.show_source()
            self.workspace.end_run()
            self._stepped_at = time.monotonic()
            runner.start(1 if self._asked is Command.STEP else None)
        return None

    def _rewind(self, step: int, *, is_reset: bool = False) -> str:
        self.workspace.rewind(step)
        if is_reset:
            self._view.show_settings()
        self._view.show_source()
        self.settings_changed()
        return f"Back at step {step}."

    def _estimate_cost(self) -> None:
        try:
            self.cost = Message(self.workspace.cost_text(self._view.settings()))
        except WorkbenchError as error:
            self.cost = Message(str(error), is_error=True)
        self._view.show_state()

    # What happens by itself

    def _stepped(self) -> None:
        """After every step, on the runner's thread."""
        self._stepped_at = time.monotonic()
        shown = self.workspace
        if shown.runner is not None and not shown.runner.is_active:
            shown.seconds_per_image = None  # known better at the end of a run than after its first steps
            if not self.message.is_error:
                self.message = Message()  # it was about the run
        if shown.seconds_per_image is None and shown.session is not None and shown.session.seconds_per_step:
            self.worker.submit(Job.ESTIMATE_COST, self._estimate_cost)
        self._view.draw()
