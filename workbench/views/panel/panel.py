"""One attack on screen: controls on the left, the run and its views on the right.

The panel shows what its `Controller` does, and passes clicks on to it. All pictures are drawn by the panel's `Painter`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import ipywidgets as widgets

from workbench.data import ClientData, Truth
from workbench.errors import ConfigError
from workbench.session import AttackSession, Recording, SessionRunner, Snapshot
from workbench.views.panel.compare import ComparePanel, without_prior
from workbench.views.panel.controller import Controller, Event
from workbench.views.panel.controls import Controls
from workbench.views.panel.files import EXPORTS
from workbench.views.panel.scene import Scene, scene_at, scene_now
from workbench.views.panel.settings import Settings
from workbench.views.panel.state import Command, State
from workbench.views.panel.status import error_text, pace_text, refusals, run_label, status_of
from workbench.views.panel.style import STYLE
from workbench.views.panel.tabs import (
    AttackerTab,
    AveragingTab,
    EpochsTab,
    LabelsTab,
    LossTab,
    MatchingTab,
    ReconstructionTab,
    Tab,
)
from workbench.views.panel.timeline import Timeline
from workbench.views.panel.worker import Painter

__all__ = ["AttackPanel"]

PICTURES_PER_SECOND = 8.0
CURVE_SECONDS = 0.5
_OBSERVED = ("num_images", "epochs", "batch_size", "learning_rate", "num_clients")
_BUTTONS = {
    Command.BUILD: ("cogs", "Train the client and prepare the attack"),
    Command.RUN: ("play", "Make all steps"),
    Command.PAUSE: ("pause", "Pause after the current step"),
    Command.STEP: ("step-forward", "Make one step"),
    Command.STOP: ("stop", "End the run after the current step"),
    Command.RESET: ("fast-backward", "Go back to the initial noise"),
    Command.FORK: ("code-fork", "Continue from this moment in a second panel"),
    Command.SAVE: ("save", "Save a checkpoint to continue from"),
    Command.LOAD: ("folder-open", "Load a checkpoint or a recording"),
    Command.EXPORT: ("download", "Export the selected format"),
    Command.REWIND: ("undo", "Discard the later steps and continue from this one"),
}
"""The icon and the tooltip of every button."""


class AttackPanel(widgets.VBox):  # type: ignore[misc]
    """An attack to look at and to steer, in a notebook.

    Args:
        source: a session to drive, or a recording to play; None attacks a client that the controls name.
        truth: the client, or all clients of an aggregate, to compare with.
        stacked: controls above the views instead of beside them, for narrow places.

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
        *,
        stacked: bool = False,
    ) -> None:
        self.forks: list[AttackPanel] = []
        self._scene: Scene | None = None
        self._curve_drawn = 0.0
        self._painter = Painter(self._paint, PICTURES_PER_SECOND, self._paint_failed)
        self.controller = Controller(self._settings, Truth.of(truth))
        self.controls = Controls(lambda _: self.controller.settings_changed(), self.controller.steer)
        self.timeline = Timeline(self._painter.request, lambda: self.controller.rewind(self.timeline.step))
        self._make_buttons()
        self._make_tabs()
        self._forked = widgets.VBox()
        super().__init__([widgets.HTML(STYLE), self._arranged(stacked), self._forked])
        self.add_class("wb-panel")
        listeners = {
            Event.STATE: self._show_state,
            Event.NEWS: self._painter.request,
            Event.SOURCE: self._show_source,
            Event.SETTINGS: self._show_settings,
        }
        for event, listener in listeners.items():
            self.controller.add_listener(event, listener)
        if source is None:
            self.controller.build()
        else:
            self.controller.show(source)
        self._painter.request()

    def __repr__(self) -> str:
        return f"AttackPanel({self.controller.workspace.source or 'building its own client'})"

    @staticmethod
    def compare(
        first: AttackSession | None = None,
        second: AttackSession | None = None,
        truth: ClientData | Sequence[ClientData] | None = None,
    ) -> ComparePanel:
        """Two panels on the same client side by side, started together; without sessions, with and without prior.

        Args:
            first: a session; None attacks a client that the left panel's controls name, with the prior.
            second: another on the same update; None attacks the same client without the prior.
            truth: the client, or all clients of an aggregate.
        """
        if second is None and first is not None:
            second = without_prior(first)
        left, right = (AttackPanel(session, truth, stacked=True) for session in (first, second))
        return ComparePanel(left, right, shares_client=first is None)

    # What it shows

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

    @property
    def status_text(self) -> str:
        """What the status line says."""
        return self._status_text

    def wait(self, timeout: float | None = None) -> bool:
        """Until nothing is being built, written or run, and all of it is drawn; False where the time was not enough."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self.controller.wait(timeout):
            return False
        self._painter.request()
        return self._painter.wait(deadline and max(0.0, deadline - time.monotonic()))

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
        self._buttons: dict[Command, Any] = {Command.REWIND: self.timeline.rewind_button}
        self.build_button = self._button(Command.BUILD, control.build)
        self.run_button = self._button(Command.RUN, control.run)
        self.pause_button = self._button(Command.PAUSE, control.pause)
        self.step_button = self._button(Command.STEP, control.step)
        self.stop_button = self._button(Command.STOP, control.stop)
        self.reset_button = self._button(Command.RESET, control.reset)
        self.fork_button = self._button(Command.FORK, lambda: control.fork(self._show_fork))
        self.save_button = self._button(Command.SAVE, lambda: control.save(self.file.value))
        self.load_button = self._button(Command.LOAD, lambda: control.load(self.file.value))
        self.export_button = self._button(Command.EXPORT, self._export)
        self.run_button.button_style = "primary"
        self.file = widgets.Text("attack", description="File", tooltip="File name, relative to the notebook")
        self.export = widgets.Dropdown(options=list(EXPORTS), description="Export as", tooltip="What Export writes")
        for field, label_width, width in ((self.file, "30px", "190px"), (self.export, "64px", "220px")):
            field.style.description_width, field.layout.width = label_width, width
        self.progress = widgets.IntProgress(
            0, 0, 1, description="Progress", layout={"width": "auto", "flex": "1 1 auto"}
        )
        self.progress.tooltip = "Steps made of all steps"
        self.pace = widgets.HTML(layout={"min_width": "210px"})
        self.status = widgets.HTML()
        self.status.add_class("wb-status")
        self._status_text = ""

    def _button(self, command: Command, action: Callable[[], None]) -> Any:
        icon, tip = _BUTTONS[command]
        button = widgets.Button(description=command.name.capitalize(), icon=icon, tooltip=tip, layout={"width": "auto"})
        button.on_click(lambda _: action())
        self._buttons[command] = button
        return button

    def _make_tabs(self) -> None:
        self._labels_tab = LabelsTab()
        self.tabs: list[Tab] = [
            ReconstructionTab(),
            EpochsTab(),
            MatchingTab(),
            AveragingTab(),
            self._labels_tab,
            LossTab(),
            AttackerTab(),
        ]
        for tab in self.tabs:
            tab.changed = self._painter.request
        self.views = widgets.Tab(self.tabs, titles=tuple(tab.title for tab in self.tabs))
        self.views.observe(lambda _: self._tab_chosen(), "selected_index")

    def _arranged(self, stacked: bool) -> Any:
        wrap = widgets.Layout(flex_flow="row wrap", align_items="center")
        run = [self.build_button, self.run_button, self.pause_button, self.step_button, self.stop_button]
        files = [self.file, self.save_button, self.load_button, self.export, self.export_button]
        right = widgets.VBox(
            [
                widgets.HBox([*run, self.reset_button, self.fork_button], layout=wrap),
                widgets.HBox([self.progress, self.pace], layout={"align_items": "center"}),
                self.status,
                self.views,
                self.timeline,
                widgets.HBox(files, layout=wrap),
            ]
        )
        left = self.controls.column()
        if stacked:
            self.controls.sections.selected_index = None
            return widgets.VBox([left, right])
        left.layout.flex, right.layout.flex = "1 1 290px", "4 1 520px"
        left.layout.max_width = "330px"
        right.layout.min_width = "min(520px, 100%)"
        return widgets.HBox([left, right], layout=widgets.Layout(flex_flow="row wrap", grid_gap="0 16px"))

    # Clicks. They set flags and return.

    def _export(self) -> None:
        tab = self._tab

        def picture() -> bytes:
            self._painter.request()
            self._painter.wait(10)
            if tab.png is None:
                raise ConfigError(f"the tab {tab.title} shows no picture now; choose another one to export.")
            return tab.png

        self.controller.export(self.file.value, EXPORTS[self.export.value], picture)

    def _tab_chosen(self) -> None:
        self._curve_drawn = 0.0
        if self._tab is self._labels_tab:
            self.controller.estimate_labels()
        self._painter.request()

    def _settings(self) -> Settings:
        return self.controls.settings()

    @property
    def _tab(self) -> Tab:
        return self.tabs[self.views.selected_index or 0]

    # What the controller reports, on any thread.

    def _show_state(self) -> None:
        """Show the status line, the cost, and which buttons can be pressed or why not."""
        with self.controller.workspace.lock:  # or a stale message could replace a newer one
            situation = self.controller.situation(is_newest=self.timeline.step is None)
            reasons = refusals(situation)
            for command, button in self._buttons.items():
                reason = reasons.get(command)
                button.disabled, button.tooltip = reason is not None, reason or _BUTTONS[command][1]
            self.run_button.description = run_label(situation)
            self._status_text, is_error = status_of(situation)
            kind, mark = (" class='wb-error'", "⚠ ") if is_error else ("", "")
            self.status.value = f"<span role='status'{kind}>{mark}{escape(self._status_text)}</span>"
            cost = escape(self.controller.cost.text).replace("\n", "<br>")
            self.controls.derived.value = f"<b>⚠ {cost}</b>" if self.controller.cost.is_error else cost

    def _show_source(self) -> None:
        """Look at the newest moment of what is shown now; the controls follow."""
        shown, controls = self.controller.workspace, self.controls
        controls.locked, controls.knows_truth = "", bool(shown.truth)
        if shown.recording is not None:
            controls.locked = "A recording plays without computing; Build makes a new attack."
        if shown.session is not None:
            controls.show_steering(shown.session.steering)
        controls.update_abilities()
        self._scene = None
        self.timeline.follow()
        self._tab_chosen()

    def _show_settings(self) -> None:
        """Set the controls to the settings of what is shown."""
        shown, controls = self.controller.workspace, self.controls
        source = shown.source
        if source is None:
            return
        controls.show_config(source.config, label_source=shown.label_source)
        if isinstance(source, Recording):
            with controls.quietly():
                for name in _OBSERVED:
                    controls.fields[name].value = source.client[name]
        else:
            if shown.is_given:
                controls.show_observation(source.observation)
                controls.locked_client = "This panel was given an update; wb.AttackPanel() lets you choose the client."
            with controls.quietly():
                controls.fields["seed"].value = source.seed
            controls.show_steering(source.steering)
        controls.update_abilities()

    def _show_fork(self, session: AttackSession) -> None:
        panel = AttackPanel(session, self.truth)
        self.forks.append(panel)
        heading = widgets.HTML(f"<h3>Fork at step {session.num_steps}</h3>")
        self._forked.children = (*self._forked.children, heading, panel)

    # Drawing, on the painter's thread.

    def _paint(self) -> bool:
        """Draw the newest state; whether there is more to come without a request."""
        self._show_state()
        shown, is_busy = self.controller.workspace, bool(self.controller.worker.jobs)
        source = shown.source
        if source is None:
            return is_busy
        is_running = self.controller.state is State.RUNNING
        snapshot = source.snapshot() if isinstance(source, AttackSession) else None
        step = source.num_steps if snapshot is None else snapshot.step
        self._show_progress(source, step)
        self.timeline.show(source.history.snapshot_steps, step, is_recording=snapshot is None)
        self._labels_tab.estimates = shown.labels
        tab = self._tab
        if tab.is_curve and is_running and time.monotonic() - self._curve_drawn < CURVE_SECONDS:
            return True
        tab.draw(self._scene_of(source, snapshot), 1 if is_running else 2)
        if tab.is_curve:
            self._curve_drawn = time.monotonic()
        return is_running or is_busy or self.timeline.is_settling

    def _scene_of(self, source: AttackSession | Recording, snapshot: Snapshot | None) -> Scene:
        """The moment that the timeline stands at, made again only where it is another one."""
        truth, viewed, kept = self.controller.workspace.truth, self.timeline.step, self._scene
        newest = source.num_steps if snapshot is None else snapshot.step
        step = newest if viewed is None else viewed
        if kept is not None and kept.source is source and kept.step == step:
            return kept
        if isinstance(source, AttackSession) and snapshot is not None and viewed is None:
            self._scene = scene_now(source, snapshot, truth)
        else:
            self._scene = scene_at(source, step, truth)
        return self._scene

    def _show_progress(self, source: AttackSession | Recording, step: int) -> None:
        self.progress.max, self.progress.value = max(source.total_steps, step), step
        if isinstance(source, AttackSession):
            self.pace.value = pace_text(step, source.total_steps, source.seconds_per_step, source.seconds_left)
        else:
            self.pace.value = pace_text(step, source.total_steps, None, None)

    def _paint_failed(self, error: BaseException) -> None:
        self.controller.report(f"This cannot be drawn: {error_text(error)}", is_error=True)
