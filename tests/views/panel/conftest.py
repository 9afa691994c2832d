"""Panels on an attack so small that it compiles and runs in a moment; every panel's threads end with its test."""

import time

import pytest

import workbench as wb
from workbench.views.panel.controls import Controls
from workbench.views.panel.scenarios import SCENARIOS
from workbench.views.panel.worker import PICTURES_PER_SECOND as REAL_PACE

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


PACE = "workbench.views.panel.worker.PICTURES_PER_SECOND"


@pytest.fixture(autouse=True)
def fast_painter(monkeypatch):
    """Draw more often than a page is sent pictures, so tests do not wait for the next one."""
    monkeypatch.setattr(PACE, 40.0)


@pytest.fixture
def real_pace(monkeypatch, fast_painter):
    """Draw as often as on a page."""
    monkeypatch.setattr(PACE, REAL_PACE)


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


SMALL = {"num_images": 4, "epochs": 2, "batch_size": 2, "model": "mlp", "steps": 6, "warm_start_steps": 3}


@pytest.fixture
def start_small(monkeypatch):
    """Let the controls of every panel start with a small client and a short attack."""

    def start(**values):
        class SmallControls(Controls):
            def __init__(self, *listeners):
                super().__init__(*listeners)
                self.show_scenario(next(one for one in SCENARIOS if one.label == "Characters"))
                with self.quietly():
                    for name, value in {**SMALL, **values}.items():
                        self.fields[name].value = value

        monkeypatch.setattr("workbench.views.panel.linked.Controls", SmallControls)

    return start


@pytest.fixture
def make_small(make_panel, start_small):
    """A panel of a small client that its controls name."""

    def make(**values):
        start_small(**values)
        return make_panel()

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


class Page:
    """What a page would receive from a picture grid, and would report to it."""

    def __init__(self, panel, grid, monkeypatch):
        self.panel, self.grid = panel, grid
        self.received = []
        monkeypatch.setattr(grid, "send", lambda content, buffers=(): self.received.append((content, buffers)))
        self.report("hello")

    def report(self, kind, **content):
        self.grid._handle_custom_msg({"kind": kind, **content}, [])
        assert self.panel.wait(60)

    def of_kind(self, kind):
        return [
            {**content, **dict(zip(content["buffers"], buffers, strict=True))}
            for content, buffers in self.received
            if content["kind"] == kind
        ]

    def frames(self):
        return {frame["frame"]["step"]: frame for frame in self.of_kind("frame")}


@pytest.fixture
def open_page(monkeypatch):
    """What a page shows of a panel, or of one of its grids."""
    return lambda panel, grid=None: Page(panel, grid or panel.grid, monkeypatch)
