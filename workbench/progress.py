"""Long runs in the foreground: a progress bar, and Ctrl-C that stops them in good order."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["duration", "interruptible", "progress_bar", "repeated_interrupts"]


def progress_bar(**options: Any) -> Any:
    """A tqdm bar that suits the terminal or the notebook; the options are those of `tqdm.tqdm`."""
    # In a Jupyter kernel tqdm.auto imports ipywidgets, which importing the workbench must not.
    from tqdm.auto import tqdm

    return tqdm(**options)


@contextmanager
def interruptible(message: str = "") -> Iterator[threading.Event]:
    """Within it Ctrl-C sets the event instead of raising; only in the main thread, where Python handles signals.

    Args:
        message: written at the first Ctrl-C; with it, the second one raises as usual.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def handle(number: int, frame: Any) -> None:
        if message and event.is_set():
            raise KeyboardInterrupt
        event.set()
        if message:
            # Not through sys.stderr, whose write the signal may have interrupted.
            os.write(2, f"\n{message}\n".encode())

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def repeated_interrupts(after: float = 2.0) -> Iterator[None]:
    """Within it a Ctrl-C that has not ended what runs is raised again, so that none is lost.

    Python drops what is raised inside a callback of its garbage collector, and JAX has such a callback.

    Args:
        after: seconds from one to the next.
    """
    timers: list[threading.Timer] = []

    def handle(number: int, frame: Any) -> None:
        timers.append(threading.Timer(after, signal.raise_signal, [number]))
        timers[-1].daemon = True
        timers[-1].start()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
        signal.signal(signal.SIGINT, before)


def duration(seconds: float) -> str:
    """For people.

    >>> duration(8), duration(100), duration(8000)
    ('8 s', '2 min', '2 h 13 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
