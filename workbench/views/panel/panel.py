"""One attack on screen: controls on the left, the run and its views on the right.

The panel shows what its `Controller` does, and passes clicks on to it. The panel's `Painter` draws figures, and sends
the picture grid what the visible tab shows.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape
from typing import Any

import ipywidgets as widgets

from workbench.data import ClientData, Truth
from workbench.errors import ConfigError, shown
from workbench.session import AttackSession, Recording, SessionRunner, Snapshot
from workbench.views.grid.widget import Grid
from workbench.views.legend import legend
from workbench.views.panel.compare import ComparePanel
from workbench.views.panel.controller import Controller, View
from workbench.views.panel.controls import Controls
from workbench.views.panel.files import EXPORTS
from workbench.views.panel.scenarios import SCENARIOS, Scenario
from workbench.views.panel.shell import Shell, answer_sender
from workbench.views.panel.status import Command, State, pace_text, refusals, run_label, status_of
from workbench.views.panel.tabs import FigureTab, LabelsTab, Tab, make_tabs
from workbench.views.panel.worker import Painter, wait_in_turn
from workbench.views.scene import Scene, scene_at

__all__ = ["AttackPanel"]

PICTURES_PER_SECOND = 8.0
CURVE_SECONDS = 0.5
# JupyterLab's variables for colours.
_STYLE = """<style>
.wb-panel { color: var(--jp-ui-font-color1, #1f2328); }
[data-jp-theme-light="false"] :is(.wb-panel, .wb-compare) .wb-figure { filter: invert(0.93) hue-rotate(180deg); }
.wb-panel .widget-image { height: auto; object-fit: contain; align-self: flex-start; }
.wb-panel .wb-note { color: var(--jp-ui-font-color2, #57606a); line-height: 1.4; }
.wb-panel .wb-note .widget-html-content { white-space: normal; line-height: 1.4; font-size: 13px; }
.wb-panel .wb-status .widget-html-content { min-height: 1.6em; line-height: 1.4; white-space: normal; font-size: 14px; }
.wb-panel .wb-error { font-weight: bold; }
.wb-panel .columns { display: flex; flex-wrap: wrap; gap: 8px 32px; }
.wb-panel .columns h3 { font-size: inherit; margin: 0 0 6px; }
.wb-panel .columns dl { display: grid; grid-template-columns: auto auto; gap: 4px 16px; margin: 0; }
.wb-panel .columns dt { font-weight: normal; }
.wb-panel .columns dd { margin: 0; text-align: right; }
.wb-panel .widget-tab > .lm-TabBar .lm-TabBar-tab { flex: 0 0 auto; min-width: 0; padding: 0 7px; }
.wb-panel .widget-tab > .lm-TabBar .lm-TabBar-content { flex-wrap: wrap; }
.wb-panel .jupyter-button:disabled { opacity: 0.45; }
.wb-panel .lm-AccordionPanel-title, .wb-panel .p-Collapse-header { padding: 4px 8px; }
.wb-panel .p-Collapse-contents, .wb-panel .jupyter-widget-Collapse-contents { padding: 4px 8px; }
.wb-panel .jupyter-widget-Collapse-header { padding: 4px 8px; }
.wb-panel { container-type: inline-size; position: relative; width: 100%; }
.wb-panel .wb-row { display: grid; grid-template-columns: minmax(0, 1fr) 24px; position: relative; overflow: visible; }
.wb-panel .wb-row > .widget-html { grid-column: 1 / 3; margin: 0; height: auto; min-height: 0; }
.wb-panel .wb-row .widget-html-content { line-height: 1.4; white-space: normal; min-height: 0; }
.wb-panel .wb-help { color: var(--jp-ui-font-color2, #57606a); font-size: 13px; }
.wb-panel .wb-help summary { list-style: none; cursor: pointer; position: absolute; right: 2px; top: 6px;
  width: 18px; height: 18px; line-height: 18px; text-align: center; border-radius: 50%;
  border: 1px solid var(--jp-border-color1, #8c959f); }
.wb-panel .wb-help summary::-webkit-details-marker { display: none; }
.wb-panel .wb-stale { opacity: 0.4; }
.wb-panel .wb-drawer { display: none; }
.wb-panel.wb-present .wb-settings, .wb-panel.wb-present .wb-files { display: none !important; }
.wb-panel.wb-present .widget-image { zoom: 2; }
@container (max-width: 900px) {
  .wb-panel .wb-drawer { display: inline-block; }
  .wb-panel .wb-settings { display: none !important; }
  .wb-panel.wb-open .wb-settings { display: flex !important; position: absolute; right: 0; top: 76px; z-index: 20;
    width: 340px; max-height: calc(100% - 80px); overflow: auto; padding: 8px; border: 1px solid #8c959f;
    background: var(--jp-layout-color1, #ffffff); }
}
.wb-panel.jupyter-widgets-disconnected::before { display: block; font-family: inherit; font-weight: bold;
  font-size: 14px; padding: 8px; color: inherit; float: none; border: 2px solid currentColor;
  content: "The kernel of this panel is gone. Run its cell again to start a new one."; }
</style>"""

# The icon and the tooltip of every button.
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


class AttackPanel(widgets.VBox):  # type: ignore[misc]
    """An attack to look at and to steer, in a notebook.

    Args:
        source: a session to drive, or a recording to play; None attacks a client that the controls name.
        truth: the client, or all clients of an aggregate, to compare with.
        stacked: controls above the views instead of beside them, for narrow places.

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
        *,
        stacked: bool = False,
    ) -> None:
        if source is not None and not isinstance(source, AttackSession | Recording):
            raise ConfigError(f"source = {shown(source)} must be an AttackSession or a Recording.")
        self.forks: list[AttackPanel] = []
        self._scene: Scene | None = None
        self._drawn_at = 0.0
        self._painter = Painter(
            self._paint,
            PICTURES_PER_SECOND,
            lambda message: self.controller.report(message),  # noqa: PLW0108 - the controller is made later
        )
        self.grid = Grid(self._painter.request)
        self.controls = Controls(
            lambda _: self.controller.settings_changed(),
            lambda name, value: self.controller.steer(**{name: value}),
        )
        view = View(
            settings=self.controls.settings,
            viewed_step=lambda: self.grid.step,
            show_state=self._show_state,
            draw=self._painter.request,
            show_source=self._show_source,
            show_settings=self._show_settings,
            show_scenario=self._show_scenario,
        )
        self.controller = Controller(view, Truth.of(truth))
        self._make_buttons()
        timeline = widgets.VBox([self.grid], layout={"flex": "1 1 320px", "min_width": "0"})
        timeline.add_class("wb-view-timeline")
        row = {"align_items": "center", "flex_flow": "row wrap"}
        self.timeline = widgets.HBox([timeline, self.rewind_button], layout=row)
        tabs = make_tabs(self.grid, self.controls.weights())
        self.tabs: list[Tab] = list(tabs.values())
        self.views = widgets.Tab(self.tabs, titles=tuple(tabs))
        self.views.observe(lambda _: self._tab_chosen(), "selected_index")
        self._forked = widgets.VBox()
        super().__init__([widgets.HTML(_STYLE), Shell(), _arranged(self, stacked=stacked), self._forked])
        self.add_class("wb-panel")
        answer_sender(self)
        if source is None:
            self.controller.build()
        else:
            self.controller.show(source)

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
            first: a session; None attacks a client that the left panel's controls name, with the prior.
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
        left, right = (AttackPanel(session, truth, stacked=True) for session in (first, second))
        return ComparePanel(left, right, shares_client=first is None, names=names)

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
        for command, (icon, tip) in _BUTTONS.items():
            name = command.name.lower()
            button = widgets.Button(description=name.capitalize(), icon=icon, tooltip=tip, layout={"width": "auto"})
            action = actions.get(command) or getattr(control, name)
            button.on_click(lambda _, action=action: action())
            setattr(self, f"{name}_button", button)
        self.run_button.button_style = "primary"
        self.rewind_button.description = "Go on from here"
        self.file = widgets.Text(
            "attack",
            description="File",
            tooltip="File name, relative to the notebook",
            layout={"width": "190px"},
            style={"description_width": "30px"},
        )
        self.export = widgets.Dropdown(
            options=list(EXPORTS),
            description="Export as",
            tooltip="What Export writes",
            layout={"width": "220px"},
            style={"description_width": "64px"},
        )
        self.progress = widgets.IntProgress(
            0,
            0,
            1,
            description="Progress",
            tooltip="Steps made of all steps",
            layout={"width": "auto", "flex": "1 1 auto"},
        )
        self.scenario_buttons = {one.label: self._scenario_button(one) for one in SCENARIOS}
        self.present_button = widgets.ToggleButton(
            False,
            description="Present",
            icon="desktop",
            tooltip="Hide the settings and double the pictures, for a projector",
            layout={"width": "auto"},
        )
        self.present_button.observe(lambda change: self._set_class("wb-present", is_on=change["new"]), "value")
        self.drawer_button = widgets.ToggleButton(
            False, description="Settings", icon="sliders", tooltip="Show the settings", layout={"width": "auto"}
        ).add_class("wb-drawer")
        self.drawer_button.observe(lambda change: self._set_class("wb-open", is_on=change["new"]), "value")
        self.pace = widgets.HTML(layout={"min_width": "210px"})
        self.status = widgets.HTML().add_class("wb-status")
        self.legend = widgets.HTML().add_class("wb-note")

    def _scenario_button(self, scenario: Scenario) -> Any:
        button = widgets.Button(description=scenario.label, tooltip=scenario.help, layout={"width": "auto"})
        button.on_click(lambda _: self.controller.choose(scenario))
        return button

    def _set_class(self, name: str, *, is_on: bool) -> None:
        (self.add_class if is_on else self.remove_class)(name)

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
        with self.controller.workspace.lock:  # or a stale message could replace a newer one
            situation = self.controller.situation()
            reasons = refusals(situation)
            for command, (_, tip) in _BUTTONS.items():
                button = getattr(self, f"{command.name.lower()}_button")
                button.disabled, button.tooltip = command in reasons, reasons.get(command, tip)
            for scenario in SCENARIOS:
                button = self.scenario_buttons[scenario.label]
                button.disabled = Command.CHOOSE in reasons
                button.tooltip = reasons.get(Command.CHOOSE, scenario.help)
            self.run_button.description = run_label(situation)
            (self.views.add_class if situation.is_stale else self.views.remove_class)("wb-stale")
            self.status_text, is_error = status_of(situation)
            kind, mark = (" class='wb-error'", "⚠ ") if is_error else ("", "")
            self.status.value = f"<span role='status'{kind}>{mark}{escape(self.status_text)}</span>"
            cost = escape(self.controller.cost.text).replace("\n", "<br>")
            self.controls.derived.value = f"<b>⚠ {cost}</b>" if self.controller.cost.is_error else cost

    def _show_source(self) -> None:
        """Look at the newest moment of what is shown now; the controls follow."""
        workspace, controls = self.controller.workspace, self.controls
        controls.locked = "" if workspace.session else "A recording plays without computing; Build makes a new attack."
        controls.knows_truth = bool(workspace.truth)
        is_named = workspace.session is not None and not workspace.is_given
        controls.describe_client("" if is_named else f"Whose update it is: {workspace.truth.name or 'not known'}.")
        meaning = escape(legend(workspace.truth))
        self.legend.value = f"<details><summary>What PSNR, SSIM and recovered mean here</summary>{meaning}</details>"
        if workspace.session is not None:
            controls.show_steering(workspace.session.steering)
        controls.update_abilities()
        self._scene = None
        self.grid.follow()
        self._tab_chosen()

    def _show_settings(self) -> None:
        """Set the controls to the settings of what is shown."""
        workspace, controls = self.controller.workspace, self.controls
        source = workspace.source or workspace.attack
        controls.show_config(source.config, label_source=workspace.label_source)
        controls.show_values(source.client if isinstance(source, Recording) else {"seed": source.seed})
        if workspace.is_given and workspace.session is not None:
            controls.lock_client(workspace.session.observation)

    def _show_scenario(self, scenario: Scenario) -> None:
        """Set the controls to a scenario, also those of a recording, which is about to be replaced."""
        self.controls.locked = ""
        self.controls.show_scenario(scenario)

    def _show_fork(self, session: AttackSession) -> None:
        panel = AttackPanel(session, self.truth)
        self.forks.append(panel)
        heading = widgets.HTML(f"<h3>Fork at step {session.num_steps}</h3>")
        self._forked.children = (*self._forked.children, heading, panel)

    # Drawing, on the painter's thread.

    def _paint(self) -> bool:
        """Draw the newest state; whether there is more to come without a request."""
        self._show_state()
        workspace, is_busy = self.controller.workspace, bool(self.controller.worker.jobs)
        source = workspace.source
        if source is None:
            return is_busy
        is_running = self.controller.state is State.RUNNING
        snapshot, step, speed = None, source.num_steps, []
        if isinstance(source, AttackSession):
            snapshot, speed = source.snapshot(), [source.seconds_per_step, source.seconds_left]
            step = snapshot.step
        self.progress.max, self.progress.value = max(source.total_steps, step), step
        self.pace.value = pace_text(step, source.total_steps, *speed)
        tab, steps = self._tab, source.history.snapshot_steps
        self.grid.show(source, workspace.truth)
        is_behind = self.grid.paint(steps, step, set(tab.needs), snapshot=snapshot, is_running=is_running)
        if isinstance(tab, FigureTab) and not (is_running and time.monotonic() - self._drawn_at < CURVE_SECONDS):
            tab.draw(self._scene_of(source, step, snapshot))
            self._drawn_at = time.monotonic()
        return is_running or is_busy or is_behind

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


def _arranged(panel: AttackPanel, *, stacked: bool) -> Any:
    """The panel's parts in their places: controls left or above, the run and its views right or below."""
    wrap = widgets.Layout(flex_flow="row wrap", align_items="center")
    run = [panel.build_button, panel.run_button, panel.pause_button, panel.step_button, panel.stop_button]
    files = [panel.file, panel.save_button, panel.load_button, panel.export, panel.export_button]
    right = widgets.VBox(
        [
            widgets.HBox([*panel.scenario_buttons.values()], layout=wrap).add_class("wb-scenarios"),
            widgets.HBox(
                [*run, panel.reset_button, panel.fork_button, panel.present_button, panel.drawer_button], layout=wrap
            ),
            widgets.HBox([panel.progress, panel.pace], layout={"align_items": "center"}),
            panel.status,
            panel.legend,
            panel.views,
            panel.timeline,
            widgets.HBox(files, layout=wrap).add_class("wb-files"),
        ]
    )
    left = panel.controls.column().add_class("wb-settings")
    if stacked:
        panel.controls.sections.selected_index = None
        return widgets.VBox([left, right])
    left.layout = {"flex": "1 1 290px", "max_width": "330px"}
    right.layout = {"flex": "4 1 520px", "min_width": "min(520px, 100%)"}
    return widgets.HBox([left, right], layout=widgets.Layout(flex_flow="row wrap", grid_gap="0 16px"))
