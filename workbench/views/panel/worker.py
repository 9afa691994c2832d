"""The panel's two threads: one does what takes long, in order; the other draws the newest state, not too often.

Both are daemon threads with an exit hook, like the runner's: a plain thread would hang the interpreter's exit, and one
that is cut off in the middle of a computation would abort it.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

__all__ = ["DRAWING", "Painter", "Worker"]

# Held by whoever draws a figure: matplotlib is not made for two threads at once.
DRAWING = threading.RLock()

_PATIENCE_SECONDS = 2.0
_alive: weakref.WeakSet[Worker | Painter] = weakref.WeakSet()


class Worker:
    """Does jobs one after the other, in a thread of its own that starts with the first.

    Args:
        changed: called whenever a job begins or ends, on the worker's thread.
        failed: called with what a job raised.
    """

    def __init__(self, changed: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
        self._changed, self._failed = changed, failed
        self._waiting: deque[tuple[str, Callable[[], None]]] = deque()
        self._current: str | None = None
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closing = False
        _alive.add(self)

    @property
    def current(self) -> str | None:
        """What is being done, in words; None where there is nothing to do."""
        with self._condition:
            return self._current or (self._waiting[0][0] if self._waiting else None)

    @property
    def is_busy(self) -> bool:
        return self.current is not None

    def submit(self, name: str, job: Callable[[], None], *, replaces: bool = False) -> None:
        """Queue a job under a name for people; with ``replaces`` it takes the place of waiting ones of that name."""
        with self._condition:
            if self._is_closing:
                return
            if replaces:
                self._waiting = deque(one for one in self._waiting if one[0] != name)
            self._waiting.append((name, job))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="panel jobs", daemon=True)
                self._thread.start()
            self._condition.notify_all()

    def cancel_waiting(self) -> None:
        """Forget what has not begun."""
        with self._condition:
            self._waiting.clear()
            self._condition.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Until there is nothing to do; False where the time was not enough."""
        if threading.current_thread() is self._thread:
            return True
        with self._condition:
            return self._condition.wait_for(lambda: self._current is None and not self._waiting, timeout)

    def close(self) -> None:
        """Begin nothing more."""
        with self._condition:
            self._is_closing = True
            self._waiting.clear()
            self._condition.notify_all()

    def _work(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._waiting or self._is_closing)
                if self._is_closing:
                    return
                self._current, job = self._waiting.popleft()
            self._tell(self._changed)
            try:
                job()
            except BaseException as error:  # shown to a person, who can go on
                self._tell(lambda error=error: self._failed(error))  # type: ignore[misc]
            finally:
                with self._condition:
                    self._current = None
                    self._condition.notify_all()
            self._tell(self._changed)

    def _tell(self, listener: Callable[[], None]) -> None:
        # A widget that is gone must not end the work.
        with contextlib.suppress(Exception):
            listener()

    def _join(self, patience: float) -> None:
        # A computation cannot be cut short without aborting the process.
        while self._thread is not None and self._thread.is_alive() and (self._current or time.monotonic() < patience):
            self._thread.join(0.05)


class Painter:
    """Calls ``paint`` soon after every `request`, at most ``per_second`` times a second, in a thread of its own.

    Args:
        paint: draws the newest state; returns whether it wants to be called again soon without a request.
        per_second: the most often.
        failed: called with what ``paint`` raised.
    """

    def __init__(self, paint: Callable[[], bool], per_second: float, failed: Callable[[BaseException], None]) -> None:
        self._paint, self._pause, self._failed = paint, 1 / per_second, failed
        self._wanted, self._drawn = 0, 0
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closing = False
        _alive.add(self)

    def request(self) -> None:
        """Draw soon."""
        with self._condition:
            if self._is_closing:
                return
            self._wanted += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="panel painter", daemon=True)
                self._thread.start()
            self._condition.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Until what was requested by now is drawn; False where the time was not enough."""
        with self._condition:
            wanted = self._wanted
            return self._condition.wait_for(lambda: self._drawn >= wanted or self._is_closing, timeout)

    def close(self) -> None:
        """Draw nothing more."""
        with self._condition:
            self._is_closing = True
            self._condition.notify_all()

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
                self._failed(error)
            with self._condition:
                self._drawn = wanted
                self._condition.notify_all()
                self._condition.wait_for(lambda: self._is_closing, max(0.0, began + self._pause - time.monotonic()))

    def _join(self, patience: float) -> None:
        while self._thread is not None and self._thread.is_alive() and time.monotonic() < patience:
            self._thread.join(0.05)


# Hooks run in reverse order: a kernel's zmq, which registers one when it sends its first large picture, has to come
# after ours, or else the last pictures fail on their way out.
with contextlib.suppress(ImportError):
    import zmq.utils.garbage  # noqa: F401


@atexit.register
def _end_all() -> None:
    alive = list(_alive)
    for one in alive:
        one.close()
    patience = time.monotonic() + _PATIENCE_SECONDS
    for one in alive:
        one._join(patience)
