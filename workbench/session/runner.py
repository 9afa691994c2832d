"""A worker thread that drives a session, so that a notebook stays responsive while the attack runs."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from enum import Enum

from workbench.errors import ConfigError, check_count, check_kind
from workbench.session.history import Outcome
from workbench.session.moment import Snapshot
from workbench.session.session import AttackSession

__all__ = ["RunnerState", "SessionRunner"]

_started: weakref.WeakSet[SessionRunner] = weakref.WeakSet()
_started_lock = threading.Lock()
_EXIT_SECONDS = 2.0


class RunnerState(Enum):
    """The state of a runner's worker."""

    IDLE = "idle"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    FINISHED = "finished"
    FAILED = "failed"


class SessionRunner:
    """Drives a session step by step in a worker thread.

    Control methods set a flag and return at once, from any thread; pause and stop take effect after the current step.
    Listeners get a `Snapshot` after every step, on the worker thread. An exception in a listener is kept in
    `listener_error` and does not stop the run.

    Attributes:
        session: the session that it drives.
        state: what the worker is doing.
        error: the exception that ended the run, if one did.
        listener_error: the last exception that a listener raised.

    Example:
        >>> import workbench as wb
        >>> client = wb.load_dataset("glyphs").client(0, num_images=4)
        >>> model = wb.models.mlp(widths=(16,))
        >>> observation = wb.client_update(model, model.init(), client, wb.ClientConfig(epochs=2, batch_size=2))
        >>> session = wb.AttackSession(model, observation, wb.AttackConfig(steps=5))
        >>> runner = wb.SessionRunner(session)
        >>> runner.start()
        >>> runner.wait(timeout=60)
        True
        >>> session.num_steps
        5
    """

    def __init__(self, session: AttackSession) -> None:
        self.session = check_kind("session", session, AttackSession)
        self.error: BaseException | None = None
        self.listener_error: BaseException | None = None
        self._listeners: list[Callable[[Snapshot], None]] = []
        self._changed = threading.Condition()
        self.state = RunnerState.IDLE
        self._is_pausing = self._is_stopping = self._is_computing = False
        # Used instead of Thread.join: up to Python 3.12 a thread counts as dead after Ctrl-C interrupts a join.
        self._has_ended = threading.Event()
        self._has_ended.set()

    @property
    def is_active(self) -> bool:
        """Whether the worker holds the session: running, or paused."""
        return self.state in (RunnerState.RUNNING, RunnerState.PAUSED)

    def add_listener(self, listener: Callable[[Snapshot], None]) -> None:
        """Call ``listener`` with a `Snapshot` after every step and at the end."""
        self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[Snapshot], None]) -> None:
        """Stop calling ``listener``; does nothing if it was not added."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def start(self, steps: int | None = None) -> None:
        """Start, or continue where the last run ended.

        Args:
            steps: how many; None goes to the last configured one.
        """
        session = self.session
        goal = session.total_steps if steps is None else session.num_steps + check_count("steps", steps)
        with self._changed, _started_lock:
            if self.is_active:
                raise ConfigError("this runner is running already; stop it first, or resume it if it is paused.")
            if any(other.is_active and other.session is session for other in _started):
                raise ConfigError("another runner drives this session; stop it first, or fork the session.")
            _started.add(self)
            self._is_pausing = self._is_stopping = False
            self.error = self.listener_error = None
            self.state = RunnerState.RUNNING
            # A daemon thread with an exit hook: a plain thread would hang the interpreter's exit, and a daemon
            # thread without the hook would abort it.
            self._has_ended = threading.Event()
            threading.Thread(target=self._work, args=(goal, self._has_ended), name="attack", daemon=True).start()

    def pause(self) -> None:
        """Pause after the current step."""
        with self._changed:
            self._is_pausing = True

    def resume(self) -> None:
        """Continue after a pause."""
        with self._changed:
            self._is_pausing = False
            self._changed.notify_all()

    def stop(self) -> None:
        """Stop after the current step; `start` continues from there."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the worker has ended, and raise its exception if it failed. False after the timeout."""
        if not self._has_ended.wait(timeout):
            return False
        if self.error is not None:
            raise self.error
        return True

    def wait_until_paused(self, timeout: float | None = None) -> bool:
        """Wait until a pause has taken effect or the run has ended. False after the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self.state is not RunnerState.RUNNING, timeout)

    def _work(self, goal: int, has_ended: threading.Event) -> None:
        ended = RunnerState.FINISHED
        try:
            while self.session.num_steps < goal and self.session.outcome is not Outcome.DIVERGED:
                if not self._may_go_on():
                    ended = RunnerState.STOPPED
                    break
                self._is_computing = True
                self.session.step()
                self._is_computing = False
                self._notify()
        except BaseException as error:  # raised again by wait(), on its caller's thread
            self.error, ended = error, RunnerState.FAILED
        finally:
            with self._changed:
                self._is_computing = False
                self.state = ended
                self._changed.notify_all()
        try:
            self._notify()
        finally:
            # The event of this run: a listener may have started the next run, with another event.
            has_ended.set()

    def _may_go_on(self) -> bool:
        with self._changed:
            if self._is_pausing and not self._is_stopping:
                self.state = RunnerState.PAUSED
                self._changed.notify_all()
                self._changed.wait_for(lambda: not self._is_pausing or self._is_stopping)
                self.state = RunnerState.RUNNING
            return not self._is_stopping

    def _notify(self) -> None:
        snapshot = self.session.snapshot()
        for listener in tuple(self._listeners):
            try:
                listener(snapshot)
            except BaseException as error:  # an error in a view must not stop the attack
                self.listener_error = error


@atexit.register
def _stop_all() -> None:
    with _started_lock:
        runners = list(_started)
    for runner in runners:
        runner.stop()
    # Exiting during a step would abort the process, so wait for it; a listener that hangs is abandoned.
    deadline = time.monotonic() + _EXIT_SECONDS
    for runner in runners:
        while not runner._has_ended.is_set() and (runner._is_computing or time.monotonic() < deadline):
            runner._has_ended.wait(0.05)
