"""One attack on screen: controls on the left, the run and its views on the right.

The panel shows what its `Controller` does, and passes clicks on to it. The panel's `Painter` draws figures, and sends
the picture grid what the visible tab shows.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ipywidgets as widgets

from workbench.data import ClientData, Truth
from workbench.errors import ConfigError, shown
from workbench.session import AttackSession, Recording, SessionRunner, Snapshot
from workbench.views.panel.compare import ComparePanel
from workbench.views.panel.files import EXPORTS
from workbench.views.panel.layout import (
    BUTTONS,
    STYLE,
    arranged,
    command_button,
    helped,
    legend_html,
    make_toggles,
    row,
)
from workbench.views.panel.linked import LinkedAttack
from workbench.views.panel.scenarios import SCENARIOS, Scenario
from workbench.views.panel.shell import Shell, answer_sender
from workbench.views.panel.status import Command, run_label
from workbench.views.panel.tabs import FigureTab, LabelsTab, Tab, make_tabs
from workbench.views.panel.worker import Painter, wait_in_turn
from workbench.views.scene import Scene, scene_at

__all__ = ["AttackPanel"]

CURVE_SECONDS = 0.5
_FILE_HELP = (
    "Name of the file that Save, Load and Export use, below the notebook's folder; an absolute path may be anywhere. "
    "The ending is added."
)
_EXPORT_HELP = (
    "What Export writes: the picture of the chosen tab, an animation of the run, a report that plays in a browser "
    "without Python, or a recording that a panel plays without computing."
)


class AttackPanel(widgets.VBox):  # type: ignore[misc]
    """An attack to look at and to steer, in a notebook.

    Args:
        source: a session to drive, or a recording to play; None attacks a client that the controls name.
        truth: the client, or all clients of an aggregate, to compare with.

    Every command has a button, by name: ``build_button``, ``run_button``, ``pause_button`` and so on.

    In a notebook, ``wb.AttackPanel()`` as the last line of a cell shows it. It can also be driven without one:

        >>> import workbench as wb
        >>> client = wb.load_dataset("glyphs").client(0, num_images=4)
        >>> model = wb.models.mlp(widths=(16,))
        >>> observation = wb.client_update(model, model.init(), client, wb.ClientConfig(epochs=2, batch_size=2))
        >>> panel = wb.AttackPanel(wb.AttackSession(model, observation, wb.AttackConfig(steps=5)), truth=client)
        >>> panel.run_button.click()
        >>> panel.runner.wait(timeout=60)
        True
        >>> panel.session.num_steps
        5
        >>> panel.close()
    """

    def __init__(
        self,
        source: AttackSession | Recording | None = None,
        truth: ClientData | Sequence[ClientData] | None = None,
    ) -> None:
        if source is not None and not isinstance(source, AttackSession | Recording):
            raise ConfigError(f"source = {shown(source)} must be an AttackSession or a Recording.")
        self.forks: list[AttackPanel] = []
        self._scene: Scene | None = None
        self._drawn_at = 0.0
        self._painter = Painter(
            self._paint,
            lambda message: self.controller.report(message),  # noqa: PLW0108 - the controller is made later
        )
        self._link = link = LinkedAttack(Truth.of(truth), self._painter.request, self._show_state, self._show_source)
        self.controller, self.controls, self.grid = link.controller, link.controls, link.grid
        self.progress, self.pace, self.status = link.progress, link.pace, link.status
        self._make_buttons()
        timeline = widgets.VBox([self.grid], layout={"flex": "1 1 320px", "min_width": "0"})
        timeline.add_class("wb-view-timeline")
        self.timeline = row(timeline, self.rewind_button)
        tabs = make_tabs(self.grid, self.controls.weights())
        self.tabs: list[Tab] = list(tabs.values())
        self.views = widgets.Tab(self.tabs, titles=tuple(tabs))
        self.views.observe(lambda _: self._tab_chosen(), "selected_index")
        self._forked = widgets.VBox()
        super().__init__([widgets.HTML(STYLE), Shell(), _arranged(self), self._forked])
        self.add_class("wb-panel")
        answer_sender(self)
        link.begin(source)

    def __repr__(self) -> str:
        return f"AttackPanel({self.controller.workspace.source or 'building its own client'})"

    @staticmethod
    def compare(
        first: AttackSession | None = None,
        second: AttackSession | None = None,
        truth: ClientData | Sequence[ClientData] | None = None,
        *,
        names: Sequence[str] = (),
    ) -> ComparePanel:
        """Two attacks on the same images, started together; without sessions, with and without prior.

        Args:
            first: a session; None attacks a client that the controls name, with the prior.
            second: another on the same images, for instance on an update with a defence; None attacks the same update
                without the prior.
            truth: the client, or all clients of an aggregate.
            names: of the two attacks; empty names them by their methods.
        """
        if len(names) not in (0, 2):
            raise ConfigError(f"names = {shown(names)} must be two, one for each attack.")
        if second is None and first is not None:
            second = AttackSession(
                first.model,
                first.observation,
                replace(first.config, method="ours_no_prior"),
                label_counts=first.label_counts,
                seed=first.seed,
            )
        return ComparePanel(first, second, Truth.of(truth), names)

    # What it shows

    @property
    def status_text(self) -> str:
        """What the status line says."""
        return self._link.status_text

    @property
    def session(self) -> AttackSession | None:
        """The session that is shown, once the one that is being built is ready; None for a recording."""
        self.controller.worker.wait()
        return self.controller.workspace.session

    @property
    def recording(self) -> Recording | None:
        """The recording that is played, if any."""
        self.controller.worker.wait()
        return self.controller.workspace.recording

    @property
    def runner(self) -> SessionRunner:
        """What drives the session, once it is ready."""
        self.controller.worker.wait()
        runner = self.controller.workspace.runner
        if runner is None:
            raise ConfigError(f"this panel drives no session: {self.status_text}")
        return runner

    @property
    def truth(self) -> tuple[ClientData, ...]:
        """The clients, where they are known."""
        return self.controller.workspace.truth.clients

    def wait(self, timeout: float | None = None) -> bool:
        """Until nothing is being built, written or run, and all of it is drawn; False where the time was not enough."""
        return wait_in_turn((self.controller.wait, self._painter.wait), timeout)

    def close(self) -> None:
        """End its threads after what they are doing, and remove it from the page."""
        # Also called for a panel whose arguments were refused before it had any of these.
        if hasattr(self, "controller"):
            self.controller.close()
            self._painter.close()
            for fork in self.forks:
                fork.close()
        super().close()

    # Parts

    def _make_buttons(self) -> None:
        control = self.controller
        actions: dict[Command, Callable[[], None]] = {
            Command.FORK: lambda: control.fork(self._show_fork),
            Command.SAVE: lambda: control.save(self.file.value),
            Command.LOAD: lambda: control.load(self.file.value),
            Command.EXPORT: self._export,
        }
        for command in BUTTONS:
            name = command.name.lower()
            action = actions.get(command) or getattr(control, name)
            setattr(self, f"{name}_button", command_button(command, action))
        self.file = widgets.Text(
            "attack",
            description="File",
            tooltip=_FILE_HELP,
            layout={"width": "190px"},
            style={"description_width": "30px"},
        )
        self.export = widgets.Dropdown(
            options=list(EXPORTS),
            description="Export as",
            tooltip=_EXPORT_HELP,
            layout={"width": "220px"},
            style={"description_width": "64px"},
        )
        self.scenario_buttons = {one.label: self._scenario_button(one) for one in SCENARIOS}
        self.present_button, self.drawer_button = make_toggles(self)
        self.legend = widgets.HTML().add_class("wb-note")

    def _scenario_button(self, scenario: Scenario) -> Any:
        button = widgets.Button(description=scenario.label, tooltip=scenario.help, layout={"width": "auto"})
        button.on_click(lambda _: self.controller.choose(scenario))
        return button

    # Clicks. They set flags and return.

    def _export(self) -> None:
        tab, title = self._tab, self.views.get_title(self.views.selected_index or 0)

        def picture() -> bytes:
            self._painter.wait(10)
            source, png = self.controller.workspace.source, None
            if source is not None:
                snapshot = source.snapshot() if isinstance(source, AttackSession) else None
                step = source.num_steps if snapshot is None else snapshot.step
                png = tab.picture(self._scene_of(source, step, snapshot))
            if png is None:
                raise ConfigError(f"the tab {title} shows no picture now; choose another one to export.")
            return png

        self.controller.export(self.file.value, EXPORTS[self.export.value], picture)

    def _tab_chosen(self) -> None:
        self._drawn_at = 0.0
        if isinstance(self._tab, LabelsTab):
            self.controller.estimate_labels()
        self._painter.request()

    @property
    def _tab(self) -> Tab:
        return self.tabs[self.views.selected_index or 0]

    # What the controller reports, on any thread.

    def _show_state(self) -> None:
        """Show the status line, the cost, and which buttons can be pressed or why not."""
        with self.controller.workspace.lock:
            situation, reasons = self._link.show_state()
            for command, (_, tip) in BUTTONS.items():
                button = getattr(self, f"{command.name.lower()}_button")
                button.disabled, button.tooltip = command in reasons, reasons.get(command, tip)
            for scenario in SCENARIOS:
                button = self.scenario_buttons[scenario.label]
                button.disabled = Command.CHOOSE in reasons
                button.tooltip = reasons.get(Command.CHOOSE, scenario.help)
            self.run_button.description = run_label(situation)
            (self.views.add_class if situation.is_stale else self.views.remove_class)("wb-stale")

    def _show_source(self) -> None:
        """Draw what is shown now."""
        self.legend.value = legend_html(self.controller.workspace.truth)
        self._scene = None
        self._tab_chosen()

    def _show_fork(self, session: AttackSession) -> None:
        panel = AttackPanel(session, self.truth)
        self.forks.append(panel)
        heading = widgets.HTML(f"<h3>Fork at step {session.num_steps}</h3>")
        self._forked.children = (*self._forked.children, heading, panel)

    # Drawing, on the painter's thread.

    def _paint(self) -> bool:
        """Draw the newest state; whether there is more to come without a request."""
        self._show_state()
        tab = self._tab
        source, step, snapshot, is_running, has_more = self._link.paint(tab.needs)
        is_due = not (is_running and time.monotonic() - self._drawn_at < CURVE_SECONDS)
        if source is not None and isinstance(tab, FigureTab) and is_due:
            tab.draw(self._scene_of(source, step, snapshot))
            self._drawn_at = time.monotonic()
        return has_more

    def _scene_of(self, source: AttackSession | Recording, newest: int, snapshot: Snapshot | None) -> Scene:
        """The moment that is looked at, made again only where it is another one."""
        viewed, scene, workspace = self.grid.step, self._scene, self.controller.workspace
        kept = {*source.history.snapshot_steps, newest}
        # The page keeps moments that the session does not: then the nearest one is shown.
        step = newest if viewed is None else min(kept, key=lambda one: abs(one - viewed))
        labels = workspace.labels
        if scene is None or scene.source is not source or scene.step != step or scene.labels is not labels:
            moment = snapshot if step == newest else None
            scene = self._scene = scene_at(source, step, workspace.truth, labels, snapshot=moment)
        return scene


def _arranged(panel: AttackPanel) -> Any:
    """The panel's parts in their places: controls left, the run and its views right."""
    run = [panel.build_button, panel.run_button, panel.pause_button, panel.step_button, panel.stop_button]
    files = [
        *(helped(panel.file, _FILE_HELP), panel.save_button, panel.load_button),
        *(helped(panel.export, _EXPORT_HELP), panel.export_button),
    ]
    return arranged(
        panel.controls.column(),
        [
            row(*panel.scenario_buttons.values()).add_class("wb-scenarios"),
            row(*run, panel.reset_button, panel.fork_button, panel.present_button, panel.drawer_button),
            widgets.HBox([panel.progress, panel.pace], layout={"align_items": "center"}),
            panel.status,
            panel.legend,
            panel.views,
            panel.timeline,
            row(*files).add_class("wb-files"),
        ],
    )
