"""Measures the units of a study: in this process, in processes of this machine, or on a cluster; one loop for all."""

import multiprocessing
import os
import re
import signal
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from workbench.errors import ConfigError, DataError, check_count, shown
from workbench.progress import interruptible
from workbench.study.plan.plan import Place, Row, Unit
from workbench.study.run.measure import available_cores, measure
from workbench.study.run.store import Store

__all__ = ["Cluster", "Executor", "Processes", "Report", "execute", "process_pool"]

# A unit whose process ended this many times has failed; it is the likely cause, for instance by its size in memory.
ATTEMPTS = 3
_POLL_SECONDS = 0.5
_CONNECT_SECONDS = 15


class Executor:
    """Measures units one after the other in this process; subclasses measure them elsewhere."""

    _jobs = 1

    def width(self) -> int:
        """How many units can run at once."""
        return self._jobs

    def submit(self, unit: Unit, place: Place) -> futures.Future[Row]:
        """Start to measure a unit."""
        future: futures.Future[Row] = futures.Future()
        try:
            future.set_result(measure(unit, place))
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        """Stop everything that was started."""


def process_pool(num_processes: int, *, ignores_interrupts: bool = False) -> futures.ProcessPoolExecutor:
    """Processes that divide this process's cores; with ``ignores_interrupts`` Ctrl-C does not stop their work.

    The local steps of one attack are small, and its threads wait for each other between them; attacks that have one
    core each do not wait.
    """
    # Spawned, never forked: JAX's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    cores, shares = available_cores(), context.SimpleQueue()
    for index in range(num_processes):
        shares.put(cores[index::num_processes])
    return futures.ProcessPoolExecutor(num_processes, context, _take_cores, (shares, ignores_interrupts))


def _take_cores(shares: Any, ignores_interrupts: bool) -> None:
    """Restrict this process to its share of the cores, before JAX starts its threads."""
    if ignores_interrupts:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    cores = shares.get()
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


class Processes(Executor):
    """Spawned processes of this machine; each has its share of the cores."""

    def __init__(self, jobs: int) -> None:
        self._jobs = check_count("jobs", jobs)
        self._others = set(multiprocessing.active_children())
        self._pool = process_pool(self._jobs, ignores_interrupts=True)

    def submit(self, unit: Unit, place: Place) -> futures.Future[Row]:
        try:
            return self._pool.submit(measure, unit, place)
        except futures.BrokenExecutor:
            # If one process ends, the pool stops them all; the loop submits their units again.
            self._pool.shutdown(wait=True)
            self._pool = process_pool(self._jobs, ignores_interrupts=True)
            return self._pool.submit(measure, unit, place)

    def close(self) -> None:
        # The results of units that still run would be dropped.
        for process in set(multiprocessing.active_children()) - self._others:
            process.terminate()
        self._pool.shutdown(wait=True, cancel_futures=True)


class Cluster(Executor):
    """The workers of a running Dask scheduler; they need the workbench and the same files."""

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
            # A plain connection first: Dask's client needs long to report that it cannot connect, and to close.
            socket.create_connection((address[1], int(address[2])), timeout=_CONNECT_SECONDS).close()
            self._client = distributed.Client(scheduler, timeout=_CONNECT_SECONDS, set_as_default=False)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"{wrong}, and it cannot be reached: {error}.") from None
        self._pool: futures.Executor = self._client.get_executor(pure=False)

    def width(self) -> int:
        # The number of workers changes; with none, one unit waits for the first.
        return max(1, sum(self._client.nthreads().values()))

    def submit(self, unit: Unit, place: Place) -> futures.Future[Row]:
        if self._client.status != "running":
            raise DataError(
                "the Dask scheduler is gone; finished units are stored, and the same command measures the rest."
            )
        return self._pool.submit(measure, unit, place)

    def close(self) -> None:
        self._pool.shutdown(wait=False)
        self._client.close()


@dataclass
class Report:
    """What one call of `execute` did.

    Attributes:
        done: units measured by this call.
        before: units that were in the store already.
        failed: units that failed, each with the reason; they are not stored, so the next run tries them again.
        is_stopped: whether Ctrl-C ended the run early.
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
    """Measure the units that are not in the store; each result is stored before ``on_row`` is called with it.

    Args:
        units: in the order in which to measure them.
        place: where they find their files.
        store: where results are stored, and where processes claim units.
        executor: where units are measured.
        on_row: called with every finished unit, measured here or by another process.
        on_wait: called with the number of units that other processes are measuring, while none are left for this one.
    """
    finished = store.rows(units)
    report = Report(before=len(finished))
    todo = [unit for unit in units if unit.key not in finished]
    elsewhere: list[Unit] = []
    running: dict[futures.Future[Row], Unit] = {}
    attempts: Counter[str] = Counter()
    with interruptible("Stopping after the current unit; Ctrl-C again stops at once.") as stop:
        while running or ((todo or elsewhere) and not stop.is_set()):
            while todo and len(running) < executor.width() and not stop.is_set():
                unit = todo.pop(0)
                if store.claim(unit):
                    running[executor.submit(unit, place)] = unit
                else:
                    elsewhere.append(unit)
            if not running and not stop.is_set():
                todo, elsewhere = _still_missing(elsewhere, store, on_row), []
                if todo:
                    on_wait(len(todo))
                    stop.wait(_POLL_SECONDS)
            done, _ = futures.wait(running, timeout=_POLL_SECONDS, return_when=futures.FIRST_COMPLETED)
            for future in done:
                unit = running.pop(future)
                try:
                    row = future.result()
                except Exception as error:
                    store.release(unit)
                    attempts[unit.key] += 1
                    if isinstance(error, futures.BrokenExecutor) and attempts[unit.key] < ATTEMPTS:
                        todo.insert(0, unit)
                    else:
                        report.failed.append((unit, _reason(error)))
                else:
                    store.finish(unit, row)
                    report.done += 1
                    on_row(unit, {"key": unit.key, "settings": unit.settings, **row})
        report.is_stopped = stop.is_set()
    return report


def _still_missing(units: list[Unit], store: Store, on_row: Callable[[Unit, Row], None]) -> list[Unit]:
    """Report the units that other processes have finished; return the rest."""
    rows = store.rows(units)
    for unit in units:
        if unit.key in rows:
            on_row(unit, rows[unit.key])
    return [unit for unit in units if unit.key not in rows]


def _reason(error: Exception) -> str:
    if isinstance(error, futures.BrokenExecutor):
        return f"its process ended {ATTEMPTS} times, perhaps because memory ran out."
    return str(error) if isinstance(error, (ConfigError, DataError)) else f"{type(error).__name__}: {error}"
