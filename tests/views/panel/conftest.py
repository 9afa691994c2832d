"""Panels on an attack so small that it compiles and runs in a moment; every panel's threads end with its test."""

import time

import pytest

import workbench as wb

CONFIG = wb.AttackConfig(
    steps=20,
    warm_start_steps=10,
    consensus_weight=3.0,
    consensus_start=4,
    consensus_every=5,
    combine="median",
    prior_weight=100.0,
)


@pytest.fixture(scope="package")
def make_session(model, observation, client):
    def make(config=CONFIG, **changes):
        options = {"label_counts": client.label_counts, "snapshot_every": 5, **changes}
        return wb.AttackSession(model, observation, config, **options)

    return make


@pytest.fixture
def make_panel():
    """A panel that is closed after the test; its threads must end."""
    panels = []

    def make(*arguments, **options):
        panels.append(wb.AttackPanel(*arguments, **options))
        return panels[-1]

    yield make
    for panel in panels:
        panel.close()
        assert panel.wait(60), "a panel's run did not end after it was closed"


@pytest.fixture
def panel(make_panel, make_session, client):
    """A panel on a session at its start."""
    panel = make_panel(make_session(), truth=client)
    assert panel.wait(60)
    return panel


@pytest.fixture
def make_small(make_panel):
    """A panel of its own client, made small by its controls before it is used."""

    def make(**values):
        panel = make_panel()
        small = {"num_images": 4, "epochs": 2, "batch_size": 2, "network": "mlp", "steps": 6, "warm_start_steps": 3}
        for name, value in {**small, **values}.items():
            panel.controls.fields[name].value = value
        return panel

    return make


@pytest.fixture
def until():
    """Wait for a condition; the message says what did not happen."""

    def wait(condition, what, timeout=60):
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
            time.sleep(0.01)

    return wait
