"""The units of a study done: in this process, in processes of this machine, or on a cluster; one loop for all."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol

from workbench.errors import ConfigError, DataError, check_count, shown
from workbench.study.plan.units import Unit
from workbench.study.run.measure import Place, measure
from workbench.study.run.processes import process_pool
from workbench.study.run.store import Row, Store

__all__ = ["Cluster", "Executor", "InProcess", "Processes", "Report", "execute"]

# A unit that ended so many workers is left alone: it is likely the reason, for instance too large for their memory.
ATTEMPTS = 3
_POLL_SECONDS = 0.5
_CONNECT_SECONDS = 15


class Executor(Protocol):
    """Where units are done."""

    def width(self) -> int:
        """How many units can be under way at once."""

    def submit(self, unit: Unit, place: Place) -> Future[Row]:
        """Have a unit done."""

    def close(self) -> None:
        """Leave nothing running behind."""


class InProcess:
    """One unit after the other, here."""

    def width(self) -> int:
        return 1

    def submit(self, unit: Unit, place: Place) -> Future[Row]:
        future: Future[Row] = Future()
        try:
            future.set_result(measure(unit, place))
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        pass


class Processes:
    """Processes of this machine, spawned, each with cores of its own."""

    def __init__(self, jobs: int) -> None:
        self._jobs = check_count("jobs", jobs)
        self._others = set(multiprocessing.active_children())
        self._pool = process_pool(self._jobs, ignores_interrupts=True)

    def width(self) -> int:
        return self._jobs

    def submit(self, unit: Unit, place: Place) -> Future[Row]:
        try:
            return self._pool.submit(measure, unit, place)
        except BrokenProcessPool:
            # One process that dies ends them all; the loop gives their units out again.
            self._pool.shutdown(wait=True)
            self._pool = process_pool(self._jobs, ignores_interrupts=True)
            return self._pool.submit(measure, unit, place)

    def close(self) -> None:
        # Nobody waits for what is still running by now.
        for process in set(multiprocessing.active_children()) - self._others:
            process.terminate()
        self._pool.shutdown(wait=True, cancel_futures=True)


class Cluster:
    """The workers of a Dask scheduler that is already running; they need the workbench and the same files."""

    def __init__(self, scheduler: str) -> None:
        try:
            distributed: Any = import_module("distributed")
        except ImportError:
            raise ConfigError(
                f"scheduler = {scheduler!r} needs Dask, which is not installed: "
                "pip install 'fedavg-leakage-workbench[cluster]'."
            ) from None
        wrong = (
            f"scheduler = {shown(scheduler)} must be the address of a running Dask scheduler such as tcp://host:8786"
        )
        address = re.fullmatch(r"(?:tcp|tls)://\[?([^/\[\]]+)\]?:(\d{1,5})", scheduler)
        if address is None:
            raise ConfigError(f"{wrong}.")
        try:
            # Dask's client takes long to give up, and longer to go away.
            socket.create_connection((address[1], int(address[2])), timeout=_CONNECT_SECONDS).close()
            self._client = distributed.Client(scheduler, timeout=_CONNECT_SECONDS, set_as_default=False)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"{wrong}, and it cannot be reached: {error}.") from None
        self._pool = self._client.get_executor(pure=False)

    def width(self) -> int:
        # Workers come and go; with none there, one unit waits for the first to come.
        return max(1, sum(self._client.nthreads().values()))

    def submit(self, unit: Unit, place: Place) -> Future[Row]:
        if self._client.status != "running":
            raise DataError(
                "the Dask scheduler is gone; what was finished is kept, and the same command goes on from there."
            )
        future: Future[Row] = self._pool.submit(measure, unit, place)
        return future

    def close(self) -> None:
        self._pool.shutdown(wait=False)
        self._client.close()


@dataclass
class Report:
    """How far a study came.

    Attributes:
        done: units finished here.
        before: units that were finished already.
        failed: units that could not be done, and why; they are tried again the next time.
        is_stopped: whether Ctrl-C ended it early.
    """

    done: int = 0
    before: int = 0
    failed: list[tuple[Unit, str]] = field(default_factory=list)
    is_stopped: bool = False


def execute(
    units: Sequence[Unit],
    place: Place,
    store: Store,
    executor: Executor,
    on_row: Callable[[Unit, Row], None] = lambda unit, row: None,
    on_wait: Callable[[int], None] = lambda others: None,
) -> Report:
    """Do what is missing of the units; each result is in the store before ``on_row`` hears of it.

    Args:
        units: in the order in which to do them.
        place: where they find their files.
        store: where results go, and where other processes tell what they are at.
        executor: where units are done.
        on_row: called with every unit that is finished, here or by another process.
        on_wait: called with the number of units that other processes are at, while nothing is left to do here.
    """
    finished = set(store.rows(units))
    report = Report(before=len(finished))
    todo = [unit for unit in units if unit.key not in finished]
    elsewhere: list[Unit] = []
    running: dict[Future[Row], Unit] = {}
    deaths: Counter[str] = Counter()
    with _stopping_softly() as stop:
        while (todo or running or elsewhere) and not (stop.is_set() and not running):
            while todo and len(running) < executor.width() and not stop.is_set():
                unit = todo.pop(0)
                if store.claim(unit):
                    running[executor.submit(unit, place)] = unit
                else:
                    elsewhere.append(unit)
            if not running:
                if not stop.is_set() and elsewhere:
                    todo, elsewhere = _look_again(elsewhere, store, on_row, on_wait, stop)
                continue
            done, _ = wait(running, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
            for future in done:
                unit = running.pop(future)
                _take(future, unit, store, report, todo, deaths, on_row)
        report.is_stopped = stop.is_set()
    return report


def _look_again(
    elsewhere: list[Unit],
    store: Store,
    on_row: Callable[[Unit, Row], None],
    on_wait: Callable[[int], None],
    stop: threading.Event,
) -> tuple[list[Unit], list[Unit]]:
    """What others were at: finished ones are told, the rest is tried again after a moment."""
    rows = store.rows(elsewhere)
    for unit in elsewhere:
        if unit.key in rows:
            on_row(unit, rows[unit.key])
    left = [unit for unit in elsewhere if unit.key not in rows]
    if left:
        on_wait(len(left))
        stop.wait(_POLL_SECONDS)
    return left, []


def _take(
    future: Future[Row],
    unit: Unit,
    store: Store,
    report: Report,
    todo: list[Unit],
    deaths: Counter[str],
    on_row: Callable[[Unit, Row], None],
) -> None:
    try:
        row = future.result()
    except Exception as error:
        deaths[unit.key] += 1
        if isinstance(error, BrokenProcessPool) and deaths[unit.key] < ATTEMPTS:
            todo.insert(0, unit)
            store.release(unit)
            return
        store.release(unit)
        why = str(error) or type(error).__name__
        if isinstance(error, BrokenProcessPool):
            why = f"its process ended {ATTEMPTS} times, perhaps for lack of memory"
        report.failed.append(
            (unit, why if isinstance(error, (ConfigError, DataError)) else f"{type(error).__name__}: {why}")
        )
        return
    store.finish(unit, row)
    report.done += 1
    on_row(unit, {"key": unit.key, "settings": unit.settings, **row})


@contextmanager
def _stopping_softly() -> Iterator[threading.Event]:
    """The event is set by the first Ctrl-C; the second one interrupts as usual."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        # Past Python's own files, which the signal may have interrupted.
        os.write(2, b"\nStopping after the unit under way; Ctrl-C again stops at once.\n")

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
