"""A step in this checkout and in another one, in turn: for instance, what a change of the C++ code gains.

    git worktree add ../before main
    python -m benchmarks.versions ../before femnist 10 50 --method fedsgd_epoch

Both processes live to the end, and each waits while the other one computes, so that whatever else the machine does
delays both alike. The median of the ratios counts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve()


def serve(options: argparse.Namespace) -> None:
    """Make one step for every line of input, and answer with its seconds."""
    # From the checkout that PYTHONPATH names.
    from benchmarks.contender import ours
    from benchmarks.work import make_work
    from workbench.training import native

    native.build()
    clock = time.process_time if options.processor_time else time.perf_counter
    step = ours(make_work(options.network, options.epochs, options.batch_size, method=options.method))
    step()
    for _ in iter(lambda: print("ready", flush=True) or sys.stdin.readline(), ""):
        started = clock()
        step()
        print(clock() - started, flush=True)


class Version:
    """A checkout in a process of its own."""

    def __init__(self, folder: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        command = [sys.executable, "-P", str(HERE), *sys.argv[1:], "--serve"]
        self.process = subprocess.Popen(
            command, env=environment, cwd=folder, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.wait()

    def wait(self) -> None:
        if self.process.stdout.readline() != "ready\n":
            sys.exit("a version ended early")

    def seconds(self) -> float:
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        found = float(self.process.stdout.readline())
        self.wait()
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("network", choices=["femnist", "cifar100"])
    parser.add_argument("epochs", type=int)
    parser.add_argument("batch_size", type=int)
    parser.add_argument("--method", default="ours_prior")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--processor-time", action="store_true", help="for a busy machine, after `taskset -c 0`")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    serve(options) if options.serve else compare(options)


def compare(options: argparse.Namespace) -> None:
    before, now = Version(options.before.resolve()), Version(HERE.parents[1])
    pairs = [(before.seconds(), now.seconds()) for _ in range(options.rounds)]
    earlier, later = (statistics.median(seconds) for seconds in zip(*pairs, strict=True))
    ratios = sorted(was / is_now for was, is_now in pairs)
    quartiles = statistics.quantiles(ratios, n=4)
    print(
        f"before {earlier:.3f} s, now {later:.3f} s; before / now {quartiles[1]:.2f} "
        f"(half of the rounds {quartiles[0]:.2f} to {quartiles[2]:.2f})"
    )


if __name__ == "__main__":
    main()
