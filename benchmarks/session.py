"""The overhead of the session over the bare jitted step, and the latency of a pause.

    python -m benchmarks.session

Bare steps and session steps alternate, so that a slow minute affects both. The best time of each counts, because noise
only adds time. Processor time is measured too, for busy machines.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import jax
import numpy as np

import workbench as wb
from workbench.attack import step as engine

SIZES = {"demo": (16, 4, 4), "10x5x50": (50, 10, 5)}  # N, E, m
OVERHEAD_LIMITS = {"demo": "2 ms", "10x5x50": "3 %"}
PAUSE_LIMIT_MS = 50


def make_session(num_images: int, epochs: int, batch_size: int) -> wb.AttackSession:
    """The paper's attack, in which every step is the same work, without matching in between."""
    client, model = wb.load_dataset("glyphs").client(0, num_images), wb.models.femnist_cnn()
    observation = wb.client_update(model, model.init(), client, wb.ClientConfig(epochs, batch_size))
    config = wb.AttackConfig.preset("paper", "glyphs", steps=100_000)
    return wb.AttackSession(model, observation, config, label_counts=client.label_counts)


def overhead(session: wb.AttackSession, repeats: int) -> dict[str, dict[str, float]]:
    """Wall-clock and processor seconds of a bare step, and of a session's step with history and snapshots."""
    phase, optimizer = session._attack.phases[-1], session._attack.optimizer
    steering = jax.tree.map(np.float32, session._attack.steering)
    state = session.snapshot().state

    def bare() -> None:
        nonlocal state
        state, _ = jax.block_until_ready(engine.step(phase.objective, optimizer, phase.problem, state, steering))

    steps = {"bare": bare, "session": session.step}
    best = {name: {"clock": np.inf, "processor": np.inf} for name in steps}
    for make_step in steps.values():
        make_step()
    for _ in range(repeats):
        for name, make_step in steps.items():
            clock, processor = time.perf_counter(), time.process_time()
            make_step()
            taken = {"clock": time.perf_counter() - clock, "processor": time.process_time() - processor}
            best[name] = {kind: min(best[name][kind], seconds) for kind, seconds in taken.items()}
    return best


def pause_latency(session: wb.AttackSession, repeats: int) -> dict[str, float]:
    """Seconds from the request of a pause until it takes effect, and how far that exceeds the running step."""
    ends: list[float] = []
    runner = wb.SessionRunner(session)
    runner.add_listener(lambda _: ends.append(time.perf_counter()))
    runner.start()
    latencies, beyond = [], []
    for number in range(repeats):
        at = len(ends)
        while len(ends) < at + 2:
            time.sleep(1e-3)
        time.sleep((ends[-1] - ends[-2]) * number / repeats)  # at a different point of the step each time
        asked = time.perf_counter()
        runner.pause()
        runner.wait_until_paused()
        latencies.append(time.perf_counter() - asked)
        beyond.append(latencies[-1] - (ends[-1] - ends[-2]))
        runner.resume()
    runner.stop()
    runner.wait()
    return {"median": statistics.median(latencies), "longest": max(latencies), "beyond_a_step": max(beyond)}


def measure() -> dict[str, dict[str, Any]]:
    """For each size: seconds of a bare step, of a session's step, and of a pause."""
    found = {}
    for name, size in SIZES.items():
        session = make_session(*size)
        repeats = 200 if name == "demo" else 20
        found[name] = {**overhead(session, repeats), "pause": pause_latency(session, 20)}
    return found


def main() -> None:
    for name, found in measure().items():
        print(f"{name}: N, E, m = {SIZES[name]}")
        for kind in ("clock", "processor"):
            bare, full = found["bare"][kind], found["session"][kind]
            print(
                f"  a step by the {kind:9}  bare {1e3 * bare:7.1f} ms, in a session {1e3 * full:7.1f} ms: "
                f"{1e3 * (full - bare):+.2f} ms, {100 * (full / bare - 1):+.2f} % (below {OVERHEAD_LIMITS[name]})"
            )
        pause = {kind: f"{1e3 * seconds:.0f} ms" for kind, seconds in found["pause"].items()}
        print(
            f"  a pause takes effect after {pause['median']} (longest {pause['longest']}), "
            f"at most {pause['beyond_a_step']} longer than the running step (limit {PAUSE_LIMIT_MS} ms)"
        )


if __name__ == "__main__":
    main()
