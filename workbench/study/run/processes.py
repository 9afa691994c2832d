"""Many attacks at once: side by side on an accelerator, in processes with cores of their own on a CPU.

One attack's local steps are small, and its threads wait for each other between them; attacks with a core each need not.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from tqdm.auto import tqdm

from workbench.attack import step as engine
from workbench.attack.attack import Attack, Reconstruction
from workbench.attack.prepare import prepare
from workbench.config import AttackConfig
from workbench.errors import ConfigError, check_choice, check_count
from workbench.federated.observation import Observation
from workbench.training.model import Model

__all__ = ["attack_many", "own_cores", "process_pool"]

_WAYS = ("auto", "processes", "vmap", "one by one")


def attack_many(
    model: Model,
    observations: Sequence[Observation],
    config: AttackConfig | None = None,
    *,
    label_counts: Sequence[ArrayLike | None] | None = None,
    seed: int = 0,
    way: str = "auto",
    num_processes: int | None = None,
    progress: bool = True,
) -> list[Reconstruction]:
    """Attack several observations to the end and return their reconstructions, in order.

    Args:
        model: the network of all of them.
        observations: what the server saw of each client.
        config: how to attack.
        label_counts: for each observation the known counts, or None to recover them.
        seed: of every attack.
        way: ``processes`` (each with its own cores; what ``auto`` takes on a CPU), ``vmap`` (side by side on one
            device, where all have the same shapes; what ``auto`` takes on an accelerator), or ``one by one``.
        num_processes: None takes one for each core.
        progress: show a progress bar.
    """
    check_choice("way", way, _WAYS)
    observations = list(observations)
    if not observations:
        raise ConfigError("observations = [] must hold at least one Observation.")
    counts = [None] * len(observations) if label_counts is None else list(label_counts)
    if len(counts) != len(observations):
        raise ConfigError(
            f"label_counts has {len(counts)} entries for {len(observations)} observations; give one each."
        )
    jobs = [(model, observation, config, known, seed) for observation, known in zip(observations, counts, strict=True)]
    if way == "auto":
        way = "processes" if jax.default_backend() == "cpu" else "vmap"
    if way == "processes" and not _can_travel(jobs):
        # One's own functions, defined in a notebook, exist in this process only.
        way = "one by one"
    bar: Any = partial(tqdm, total=len(jobs), desc="attacks", unit="client", disable=not progress)
    if way == "vmap":
        return _side_by_side([_prepare(*job) for job in jobs])
    if way == "one by one" or len(jobs) == 1:
        return [_attack(job) for job in bar(jobs)]
    workers = min(check_count("num_processes", num_processes or len(own_cores())), len(jobs))
    with process_pool(workers) as pool:
        return list(bar(pool.map(_attack, jobs)))


def process_pool(num_processes: int, *, ignores_interrupts: bool = False) -> ProcessPoolExecutor:
    """Processes that share this one's cores among them; those that ignore Ctrl-C finish what they are at."""
    # Spawned, never forked: JAX's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    cores, shares = own_cores(), context.SimpleQueue()
    for index in range(num_processes):
        shares.put(cores[index::num_processes])
    return ProcessPoolExecutor(num_processes, context, _take_cores, (shares, ignores_interrupts))


def own_cores() -> list[int]:
    """The processor cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def _can_travel(jobs: list[Any]) -> bool:
    try:
        pickle.dumps(jobs[0][0])
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return True


def _take_cores(shares: Any, ignores_interrupts: bool) -> None:
    """Keep this process to its share of the cores, before JAX makes its threads."""
    if ignores_interrupts:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    cores = shares.get()
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def _prepare(
    model: Model, observation: Observation, config: AttackConfig | None, known: ArrayLike | None, seed: int
) -> Attack:
    return prepare(model, observation, config, label_counts=known, seed=seed)


def _attack(job: tuple[Any, ...]) -> Reconstruction:
    attack = _prepare(*job)
    state, _ = attack.advance(attack.start(), attack.steering, attack.total_steps)
    return attack.reconstruct(state)


def _side_by_side(attacks: list[Attack]) -> list[Reconstruction]:
    """All attacks in one computation, from one event of their common schedule to the next."""
    first = attacks[0]
    objectives = {tuple(phase.objective for phase in attack.phases) for attack in attacks}
    if len(objectives) > 1:
        raise ConfigError("way = 'vmap' needs observations of one shape; use way = 'processes'.")
    steering = jax.tree.map(np.float32, first.steering)
    states = [attack.start() for attack in attacks]
    going = list(range(len(attacks)))
    while going and (at := int(states[going[0]].step)) < first.total_steps:
        arrived = [attacks[i].prepare_step(states[i], steering) for i in going]
        index = int(arrived[0].phase)
        phase = first.phases[index]
        num_steps = min(first.next_event(phase, at, steering), first.total_steps) - at
        problems = [attacks[i].phases[index].problem for i in going]
        one = partial(engine.run, phase.objective, first.optimizer)
        stacked, history = jax.vmap(one, in_axes=(0, 0, None, None))(
            _stack(problems), _stack(arrived), steering, np.int32(num_steps)
        )
        for place, i in enumerate(going):
            states[i] = jax.tree.map(lambda a, place=place: a[place], stacked)
        # One that diverged keeps its last good state, and the others go on without it.
        going = [i for i, made in zip(going, history.num_steps.tolist(), strict=True) if made == num_steps]
    return [attack.reconstruct(state) for attack, state in zip(attacks, states, strict=True)]


def _stack(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
