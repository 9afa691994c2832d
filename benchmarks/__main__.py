"""Speed and memory of one optimisation step, beside its peers and its limit, as ratios measured in one run.

    python -m benchmarks                  everything (about 20 minutes on 2 cores)
    python -m benchmarks speed memory     some of it

Every contender runs in a process of its own, in turn and several times; the best time of each counts, because noise
only ever adds. The PyTorch peer needs the `bench` extra.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from functools import partial
from typing import Any

SETTINGS = {
    "FEMNIST 10x5x50": ("femnist", 10, 5),
    "FEMNIST 10x1x50": ("femnist", 10, 1),
    "CIFAR100 10x5x50": ("cifar100", 10, 5),
}


def measure(name: str, network: str, epochs: int, batch_size: int, repeats: int = 5, *flags: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.contender", name, network, str(epochs), str(batch_size), *flags]
    ended = subprocess.run([*command, "--repeats", str(repeats)], capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(f"{' '.join(command[2:])} failed:\n{ended.stderr}")
    return json.loads(ended.stdout.splitlines()[-1])


def in_turn(names: list[str], setting: tuple[str, int, int], rounds: int = 2) -> dict[str, dict[str, Any]]:
    """The best round of each, measured in turn so that a slow minute hits all alike."""
    best: dict[str, dict[str, Any]] = {}
    for _ in range(rounds):
        for name in names:
            now = measure(name, *setting)
            if name not in best or now["seconds"] < best[name]["seconds"]:
                best[name] = now
    return best


def speed() -> None:
    has_torch = importlib.util.find_spec("torch") is not None
    names = ["ours", "ours_xla", "products"] + (["torch"] if has_torch else [])
    print(
        "One step of ours (prior), seconds; ratios are times faster than the peer, and times the matrix products alone"
    )
    for label, setting in SETTINGS.items():
        best = in_turn(names, setting)
        own = best["ours"]["seconds"]
        limit = best["products"]["seconds"]
        alone = best["ours_xla"]["seconds"]
        line = f"  {label}: ours {own:.3f}, products {limit:.3f} ({own / limit:.2f} x)"
        line += f", XLA alone {alone:.3f} ({alone / own:.2f} x slower)"
        if has_torch:
            drift = abs(best["torch"]["values"][0] / best["ours"]["values"][0] - 1)
            line += f", PyTorch {best['torch']['seconds']:.3f} ({best['torch']['seconds'] / own:.2f} x slower"
            line += f"; first losses differ by {drift:.1e})"
        print(line, flush=True)
    if not has_torch:
        print("  PyTorch is not installed: pip install -e '.[bench]' -c constraints.txt")


def span() -> None:
    print("One step with and without the span term, seconds")
    for label, setting in SETTINGS.items():
        best = in_turn(["shared", "shared_span", "ours", "ours_span"], setting, rounds=3)
        costs = [
            f"{what} {best[name]['seconds']:.3f}, with it {best[f'{name}_span']['seconds']:.3f} "
            f"({100 * (best[f'{name}_span']['seconds'] / best[name]['seconds'] - 1):+.0f} %)"
            for what, name in (("shared", "shared"), ("separate epochs", "ours"))
        ]
        print(f"  {label}: {'; '.join(costs)}", flush=True)


def straightforward() -> None:
    setting = SETTINGS["FEMNIST 10x5x50"]
    peer, own = measure("straightforward", *setting, repeats=3), measure("ours", *setting)
    drift = abs(peer["values"][0] / own["values"][0] - 1)
    print(
        f"Straightforward JAX, FEMNIST 10x5x50: a step {peer['seconds'] / own['seconds']:.1f} x slower "
        f"({peer['seconds']:.1f} s), the first call {peer['first_call'] / own['first_call']:.1f} x longer "
        f"({peer['first_call']:.0f} s against {own['first_call']:.1f} s); first losses differ by {drift:.1e}"
    )


def compilation() -> None:
    # Both with a prior: the same program.
    rounds = [
        [measure("ours", "femnist", epochs, 10, 1, "--compile")["compile_seconds"] for epochs in (2, 100)]
        for _ in range(5)
    ]
    few, many = (min(found) for found in zip(*rounds, strict=True))
    print(f"Compile time, 10 to 500 local steps: {few:.2f} s to {many:.2f} s ({100 * (many / few - 1):+.0f} %)")


def memory() -> None:
    normal, low = (measure(name, "femnist", 10, 1, 2, "--compile") for name in ("ours", "ours_low_memory"))
    print(
        f"Peak memory of the process at 500 local steps (FEMNIST 10x1x50): {normal['peak_megabytes']:.0f} MB; "
        f"low_memory {low['peak_megabytes']:.0f} MB at {low['seconds'] / normal['seconds']:.2f} x the time.\n"
        f"What a step itself allocates: {normal['step_megabytes']:.0f} MB; low_memory {low['step_megabytes']:.0f} MB"
    )


def many() -> None:
    from benchmarks.work import make_work
    from workbench.study.run.measure import available_cores

    num_processes = min(4, len(available_cores()))
    print("Four clients, client-steps a second; medians of three rounds, and the ratio of every round")
    for label in ("FEMNIST 10x5x50", "FEMNIST 10x1x50"):
        work = make_work(*SETTINGS[label])
        rounds = [(_throughput(work, 1), _throughput(work, num_processes)) for _ in range(3)]
        alone, together = (statistics.median(found) for found in zip(*rounds, strict=True))
        ratios = ", ".join(f"{after / before:.2f}" for before, after in rounds)
        found = f"one by one {alone:.2f}, processes {together:.2f}; {together / alone:.2f} x ({ratios})"
        print(f"  {label}: {found}", flush=True)


def _throughput(work: Any, num_processes: int) -> float:
    """Client-steps a second; the difference of two runs leaves out set-up and compilation."""
    import jax

    from benchmarks.work import run_attack
    from workbench.study.run.execute import process_pool

    model, observation = work.attack.phases[-1].objective.simulation.model, work.attack.observation
    seconds, lengths = [], (2, 22)
    for length in lengths:
        jax.clear_caches()
        started = time.perf_counter()
        job = partial(run_attack, model, length)
        if num_processes == 1:
            list(map(job, [observation] * 4))
        else:
            with process_pool(num_processes) as pool:
                list(pool.map(job, [observation] * 4))
        seconds.append(time.perf_counter() - started)
    return 4 * (lengths[1] - lengths[0]) / (seconds[1] - seconds[0])


def session() -> None:
    from benchmarks import session as of_session

    of_session.main()


def page() -> None:
    from benchmarks import page as of_page

    of_page.main()


def networks() -> None:
    # The compiled library has only the built-in networks.
    environment = {**os.environ, "WORKBENCH_NATIVE": "0"}
    subprocess.run([sys.executable, "-m", "benchmarks.networks"], env=environment, check=True)


PARTS = {
    "speed": speed,
    "span": span,
    "networks": networks,
    "memory": memory,
    "compilation": compilation,
    "many": many,
    "session": session,
    "page": page,
    "straightforward": straightforward,
}

if __name__ == "__main__":
    wanted = sys.argv[1:] or list(PARTS)
    if unknown := sorted(set(wanted) - set(PARTS)):
        sys.exit(f"unknown benchmark {unknown[0]!r}; choose from: {', '.join(PARTS)}.")
    for part in wanted:
        PARTS[part]()
