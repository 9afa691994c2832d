"""Processes that divide the processor cores among them.

The local steps of one attack are small, and its threads wait for each other between them; attacks that have one core
each do not wait.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor
from typing import Any

__all__ = ["available_cores", "process_pool"]


def process_pool(num_processes: int, *, ignores_interrupts: bool = False) -> ProcessPoolExecutor:
    """Processes that divide this process's cores; with ``ignores_interrupts`` Ctrl-C does not stop their work."""
    # Spawned, never forked: JAX's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    cores, shares = available_cores(), context.SimpleQueue()
    for index in range(num_processes):
        shares.put(cores[index::num_processes])
    return ProcessPoolExecutor(num_processes, context, _take_cores, (shares, ignores_interrupts))


def available_cores() -> list[int]:
    """The processor cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def _take_cores(shares: Any, ignores_interrupts: bool) -> None:
    """Restrict this process to its share of the cores, before JAX starts its threads."""
    if ignores_interrupts:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    cores = shares.get()
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
