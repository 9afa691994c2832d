"""Measure one contender in this process and print the result as one JSON line.

python -m benchmarks.contender ours femnist 10 5 --repeats 5
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from benchmarks.work import Work, make_work
from workbench.attack import step as engine

OURS = {
    "ours": {},
    "ours_xla": {},
    "ours_low_memory": {"low_memory": True},
    "ours_span": {"span_weight": 1.0},
    "shared": {"method": "shared"},
    "shared_span": {"method": "shared", "span_weight": 1.0},
}
"""Our contenders, and the attack settings of each."""


def ours(work: Work) -> Callable[[], float]:
    attack = work.attack
    phase = attack.phases[-1]
    carried = [attack.start()]
    steering = jax.tree.map(np.float32, attack.steering)
    problem = attack.problem_of(phase, attack.steering)

    def step() -> float:
        carried[0], info = engine.step(phase.objective, attack.optimizer, problem, carried[0], steering)
        jax.block_until_ready(carried[0])
        return float(info.loss)

    return step


def products(work: Work) -> Callable[[], float]:
    """Only the matrix products that a step needs, in sequence because each local step depends on the previous one.

    A local step needs three products per layer in the forward pass (output, kernel gradient, input gradient) and twice
    as many in the backward pass; the first layer's input has no tangent, and no gradient in the forward pass. A
    convolution counts as one product of its patches. Every product uses the clipped result of the previous one,
    because XLA removes unused results.
    """
    size = work.batch_size
    height = work.image_shape[0]
    operands, times = [], []
    for index, name in enumerate(work.layer_names):
        kernel = work.weights[name]["kernel"]
        rows = size * (height >> index) ** 2 if kernel.ndim == 4 else size
        columns = kernel.reshape(-1, kernel.shape[-1])
        operands.append((jax.random.normal(jax.random.key(index), (rows, columns.shape[0])), jnp.asarray(columns)))
        times.append(3 if index else 2)

    def local_step(operands: list[tuple[Array, Array]], _: None) -> tuple[list[tuple[Array, Array]], None]:
        after = []
        for pair, repeats in zip(operands, times, strict=True):
            x, w = pair
            for _ in range(repeats):
                z = jnp.clip(x @ w, -1, 1)
                w = x.T @ z
                x = jnp.clip(z @ w.T, -1, 1)
            after.append((x, w))
        return after, None

    num_steps = work.epochs * -(-work.num_images // size)
    run = jax.jit(lambda start: lax.scan(local_step, start, None, length=num_steps)[0])
    return lambda: float(sum(jnp.sum(x) + jnp.sum(w) for x, w in run(operands)))


def contender(name: str, work: Work) -> Callable[[], float]:
    if name in OURS:
        return ours(work)
    if name == "products":
        return products(work)
    if name == "torch":
        from benchmarks import torch_peer

        return torch_peer.make_step(work)
    from benchmarks import jax_peer

    return jax_peer.make_step(work)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=[*OURS, "torch", "straightforward", "products"])
    parser.add_argument("network", choices=["femnist", "cifar100"])
    parser.add_argument("epochs", type=int)
    parser.add_argument("batch_size", type=int)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--compile", action="store_true", help="compile once more, and report the time and the memory")
    options = parser.parse_args()
    if options.name == "ours_xla":
        os.environ["WORKBENCH_NATIVE"] = "0"
    work = make_work(options.network, options.epochs, options.batch_size, **OURS.get(options.name, {}))
    step = contender(options.name, work)
    started = time.perf_counter()
    values = [step()]
    first = time.perf_counter() - started
    seconds = []
    for _ in range(options.repeats):
        started = time.perf_counter()
        values.append(step())
        seconds.append(time.perf_counter() - started)
    result = {
        "first_call": first,
        "seconds": min(seconds),
        "median": float(np.median(seconds)),
        "mean": float(np.mean(seconds)),
        "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "values": values,
    }
    if options.compile:
        result |= compiled_anew(work)
    print(json.dumps(result))


def compiled_anew(work: Work) -> dict[str, float]:
    """The time to compile one step of ours, and the memory that the step allocates in addition to its input."""
    attack = work.attack
    phase = attack.phases[-1]
    steering = jax.tree.map(np.float32, attack.steering)
    state = attack.start()
    jax.clear_caches()
    started = time.perf_counter()
    compiled = engine.step.lower(phase.objective, attack.optimizer, phase.problem, state, steering).compile()
    seconds = time.perf_counter() - started
    memory = compiled.memory_analysis()
    megabytes = (memory.temp_size_in_bytes + memory.output_size_in_bytes) / 2**20
    return {"compile_seconds": seconds, "step_megabytes": megabytes}


if __name__ == "__main__":
    main()
