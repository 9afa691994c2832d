"""The panel's two threads: one does jobs that take long, in order; the other draws the newest state, not too often.

Both are daemon threads with an exit hook, like the runner's: a plain thread would hang the interpreter's exit, and one
that is cut off in the middle of a computation would abort it.
"""

import atexit
import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable

from workbench.views.panel.status import Job, Message, error_text

__all__ = ["DRAWING", "Painter", "Worker", "wait_in_turn"]

# Held by the thread that draws a figure: matplotlib is not made for two threads at once.
DRAWING = threading.RLock()

PICTURES_PER_SECOND = 8.0
_PATIENCE_SECONDS = 2.0
_alive: weakref.WeakSet["_Thread"] = weakref.WeakSet()


def wait_in_turn(waits: Iterable[Callable[[float | None], bool]], timeout: float | None) -> bool:
    """Wait for one after the other; False where the time was not enough for all."""
    deadline = None if timeout is None else time.monotonic() + timeout
    return all(wait(deadline and max(0.0, deadline - time.monotonic())) for wait in waits)


class _Thread:
    """A daemon thread that starts with its first task, and ends with the interpreter."""

    _current: Job | None = None  # a job cannot be cut short without aborting the process

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self._condition = threading.Condition()
        self._thread = threading.Thread(target=work, name=name, daemon=True)
        self._is_closing = False
        _alive.add(self)

    def close(self) -> None:
        """Begin nothing more."""
        with self._condition:
            self._is_closing = True
            self._condition.notify_all()

    def _wake(self) -> None:
        """Let the thread see that there is something to do; the caller holds the condition."""
        if self._thread.ident is None:
            self._thread.start()
        self._condition.notify_all()


class Worker(_Thread):
    """Does jobs one after the other.

    Args:
        changed: called whenever a job begins or ends, on the worker's thread.
        report: called with the message that a job returned, or with the error that it raised.
    """

    def __init__(self, changed: Callable[[], None], report: Callable[[Message], None]) -> None:
        super().__init__("panel jobs", self._work)
        self._changed, self._report = changed, report
        self._waiting: deque[tuple[Job, Callable[[], str | None], Callable[[], str]]] = deque()

    @property
    def jobs(self) -> list[Job]:
        """The job under way, and those that wait, in order."""
        with self._condition:
            waiting = [job for job, *_ in self._waiting]
            return [self._current, *waiting] if self._current else waiting

    def submit(self, job: Job, action: Callable[[], str | None], done: Callable[[], str] = str) -> None:
        """Queue a job; a quiet one takes the place of those of its kind that wait.

        Args:
            job: what it is.
            action: does it, and may return a message.
            done: returns the message of an action that returned none.
        """
        with self._condition:
            if self._is_closing:
                return
            if job.is_quiet:
                self._waiting = deque(one for one in self._waiting if one[0] is not job)
            self._waiting.append((job, action, done))
            self._wake()

    def cancel_waiting(self) -> None:
        """Drop the jobs that have not begun."""
        with self._condition:
            self._waiting.clear()
            self._condition.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Until there is nothing to do; False where the time was not enough."""
        if threading.current_thread() is self._thread:
            return True
        with self._condition:
            return self._condition.wait_for(lambda: not self.jobs, timeout)

    def _work(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._waiting or self._is_closing)
                if self._is_closing:
                    return
                self._current, action, done = self._waiting.popleft()
            self._changed()
            try:
                message = Message(action() or done())
            except BaseException as error:  # shown to a person, who can go on
                message = Message(error_text(error), is_error=True)
            if message.text:
                with contextlib.suppress(Exception):  # a widget that was closed must not end the work
                    self._report(message)
            with self._condition:
                self._current = None
                self._condition.notify_all()
            self._changed()


class Painter(_Thread):
    """Calls ``paint`` soon after every `request`, at most `PICTURES_PER_SECOND` times a second.

    Args:
        paint: draws the newest state; returns whether it wants to be called again soon without a request.
        report: called with the error that ``paint`` raised.
    """

    def __init__(self, paint: Callable[[], bool], report: Callable[[Message], None]) -> None:
        super().__init__("panel painter", self._work)
        self._paint, self._pause, self._report = paint, 1 / PICTURES_PER_SECOND, report
        self._wanted, self._drawn = 0, 0

    def request(self) -> None:
        """Draw soon."""
        with self._condition:
            if not self._is_closing:
                self._wanted += 1
                self._wake()

    def wait(self, timeout: float | None = None) -> bool:
        """Until the newest state is drawn; False where the time was not enough."""
        with self._condition:
            self.request()
            wanted = self._wanted
            return self._condition.wait_for(lambda: self._drawn >= wanted or self._is_closing, timeout)

    def _work(self) -> None:
        wants_more = False
        while True:
            with self._condition:
                self._condition.wait_for(
                    lambda: self._wanted > self._drawn or self._is_closing, 0.2 if wants_more else None
                )
                if self._is_closing:
                    return
                wanted = self._wanted
            began = time.monotonic()
            try:
                wants_more = self._paint()
            except Exception as error:  # a picture that fails must not end all others
                wants_more = False
                self._report(Message(f"This cannot be drawn: {error_text(error)}", is_error=True))
            with self._condition:
                self._drawn = wanted
                self._condition.notify_all()
                self._condition.wait_for(lambda: self._is_closing, max(0.0, began + self._pause - time.monotonic()))


# Hooks run in reverse order: a kernel's zmq, which registers one when it sends its first large picture, has to come
# after ours, or else the last pictures fail on their way out.
with contextlib.suppress(ImportError):
    import zmq.utils.garbage  # noqa: F401


@atexit.register
def _end_all() -> None:
    for one in list(_alive):
        one.close()
    patience = time.monotonic() + _PATIENCE_SECONDS
    for one in list(_alive):
        while one._thread.is_alive() and (one._current or time.monotonic() < patience):
            one._thread.join(0.05)
