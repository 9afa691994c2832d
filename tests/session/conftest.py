"""A small attack in which everything happens: a warm start, consensus matchings, ragged batches, all in few steps."""

import os
import subprocess
import sys
import textwrap

import jax
import numpy as np
import pytest

import workbench as wb

CONFIG = wb.AttackConfig(
    steps=80,
    warm_start_steps=20,
    consensus_weight=3.0,
    consensus_start=6,
    consensus_every=7,
    combine="median",
    prior_weight=100.0,
)

# The same attack, for processes that tests start.
PRELUDE = """
    import os, signal, sys, threading, time
    import numpy as np
    import workbench as wb

    client = wb.load_dataset("glyphs").client(0, num_images=5)
    model = wb.models.mlp(widths=(16,))
    observation = wb.client_update(model, model.init(), client, wb.ClientConfig(epochs=2, batch_size=2))
    config = wb.AttackConfig(
        steps=80, warm_start_steps=20, consensus_weight=3.0, consensus_start=6, consensus_every=7, combine="median",
        prior_weight=100.0,
    )

    def make_session(config=config, **changes):
        return wb.AttackSession(model, observation, config, label_counts=client.label_counts, **changes)
"""


@pytest.fixture(scope="session")
def prelude():
    return textwrap.dedent(PRELUDE)


@pytest.fixture(scope="session")
def make_session(client, model, observation):
    def make(config=CONFIG, **changes):
        return wb.AttackSession(model, observation, config, **{"label_counts": client.label_counts, **changes})

    return make


@pytest.fixture(scope="session")
def reference(make_session):
    """The states of an uninterrupted run with no steering, made one step at a time: [0], [1], ..., [100]."""
    session = make_session()
    states = [session.snapshot().state]
    for _ in range(100):
        session.step()
        states.append(session.snapshot().state)
    return states


@pytest.fixture(scope="session")
def assert_same():
    """Two states, sessions or histories must agree in every bit; the message says where they do not."""

    def leaves(value):
        if isinstance(value, wb.AttackSession):
            history = value.history
            numbers = (history.loss, history.terms, history.gradient_norm, history.step_size)
            steering = [(event.step, event.name, event.value) for event in history.steering]
            assert value.num_steps == int(value.snapshot().state.step), "the state is of another step than the session"
            return leaves((value.snapshot().state, numbers, steering, value.steering, value.outcome.name))
        return jax.tree_util.tree_leaves_with_path(value)

    def check(first, second):
        one, two = leaves(first), leaves(second)
        assert [path for path, _ in one] == [path for path, _ in two], "they do not have the same parts"
        for (path, left), (_, right) in zip(one, two, strict=True):
            where, a, b = jax.tree_util.keystr(path), np.asarray(left), np.asarray(right)
            assert (a.dtype, a.shape) == (b.dtype, b.shape), f"{where}: {a!r:.80} is not {b!r:.80}"
            assert a.tobytes() == b.tobytes(), f"{where} differs in {(a != b).sum()} of {a.size} values"

    return check


class Process(subprocess.Popen):
    """A Python process with the small attack; its code runs after `PRELUDE`."""

    def __init__(self, code, **environment):
        script = textwrap.dedent(PRELUDE) + textwrap.dedent(code)
        super().__init__(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
        )

    def finish(self, timeout=120):
        """Its output; the process must end by itself, well."""
        try:
            out, err = self.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            out, err = self.communicate()
            pytest.fail(f"the process did not end within {timeout} s; it wrote:\n{out}\n{err}")
        assert self.returncode == 0, f"the process ended with {self.returncode}:\n{out}\n{err}"
        return out, err


@pytest.fixture
def start_process():
    """Start code in a process of its own, which does not outlive the test."""
    started = []

    def start(code, **environment):
        started.append(Process(code, **environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()
