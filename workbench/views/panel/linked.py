"""An attack linked to its widgets: controls, status, progress and the picture grid, which a panel arranges."""

from collections.abc import Callable
from html import escape
from typing import Any, NamedTuple

import ipywidgets as widgets

from workbench.data import Truth
from workbench.session import AttackSession, Recording, Snapshot
from workbench.views.grid.widget import Grid
from workbench.views.panel.controller import Controller, View
from workbench.views.panel.controls import Controls
from workbench.views.panel.scenarios import Scenario
from workbench.views.panel.status import Command, Situation, State, pace_text, refusals, status_of

__all__ = ["LinkedAttack", "Painted"]


class Painted(NamedTuple):
    """What was sent to the page.

    Attributes:
        source: what is shown; None where there is nothing yet.
        step: the newest.
        snapshot: of a session, at that step.
        is_running: whether there will be newer ones.
        has_more: whether there is more to send or to come without a request.
    """

    source: AttackSession | Recording | None
    step: int = 0
    snapshot: Snapshot | None = None
    is_running: bool = False
    has_more: bool = False


class LinkedAttack:
    """The controller of one attack, and the widgets that belong to it.

    Args:
        truth: the clients behind a session that will be given, where they are known.
        draw: called when there is something to draw, on any thread.
        show_state: called when the state, the message, the cost or what is allowed has changed; it calls `show_state`.
        shown: called when another session, recording or moment is shown.
        share: as in `Grid`.
    """

    def __init__(
        self,
        truth: Truth,
        draw: Callable[[], None],
        show_state: Callable[[], None],
        shown: Callable[[], None],
        *,
        share: float = 1.0,
    ) -> None:
        self._shown = shown
        self.status_text = ""
        self.grid = Grid(draw, share)
        self.controls = Controls(
            lambda _: self.controller.settings_changed(),
            lambda name, value: self.controller.steer(**{name: value}),
        )
        self.progress = widgets.IntProgress(
            0,
            0,
            1,
            description="Progress",
            tooltip="Steps made of all steps",
            layout={"width": "auto", "flex": "1 1 auto"},
        )
        self.pace = widgets.HTML(layout={"min_width": "210px"})
        self.status = widgets.HTML().add_class("wb-status")
        view = View(
            settings=self.controls.settings,
            viewed_step=lambda: self.grid.step,
            show_state=show_state,
            draw=draw,
            show_source=self._show_source,
            show_settings=self._show_settings,
            show_scenario=self._show_scenario,
        )
        self.controller = Controller(view, truth)

    def begin(self, source: AttackSession | Recording | None) -> None:
        """Show a given source, or build what the controls name."""
        if source is None:
            self.controller.build()
        else:
            self.controller.show(source)

    def show_state(self) -> tuple[Situation, dict[Command, str]]:
        """Show the status line and the cost; return the situation, and why commands are not allowed in it."""
        with self.controller.workspace.lock:  # or a stale message could replace a newer one
            situation = self.controller.situation()
            self.status_text, is_error = status_of(situation)
            kind, mark = (" class='wb-error'", "⚠ ") if is_error else ("", "")
            self.status.value = f"<span role='status'{kind}>{mark}{escape(self.status_text)}</span>"
            cost = escape(self.controller.cost.text).replace("\n", "<br>")
            self.controls.derived.value = f"<b>⚠ {cost}</b>" if self.controller.cost.is_error else cost
            return situation, refusals(situation)

    def paint(self, parts: frozenset[str]) -> Painted:
        """Show the progress, and send the page what it lacks of these parts; see `Grid.paint`."""
        workspace, is_busy = self.controller.workspace, bool(self.controller.worker.jobs)
        source = workspace.source
        if source is None:
            return Painted(None, has_more=is_busy)
        is_running = self.controller.state is State.RUNNING
        snapshot, step, speed = None, source.num_steps, []
        if isinstance(source, AttackSession):
            snapshot, speed = source.snapshot(), [source.seconds_per_step, source.seconds_left]
            step = snapshot.step
        self.progress.max, self.progress.value = max(source.total_steps, step), step
        self.pace.value = pace_text(step, source.total_steps, *speed)
        self.grid.show(source, workspace.truth)
        kept = source.history.snapshot_steps
        is_behind = self.grid.paint(kept, step, set(parts), snapshot=snapshot, is_running=is_running)
        return Painted(source, step, snapshot, is_running, is_running or is_busy or is_behind)

    # What the controller reports, on any thread.

    def _show_source(self) -> None:
        """Look at the newest moment of what is shown now; the controls follow."""
        workspace, controls = self.controller.workspace, self.controls
        controls.locked = "" if workspace.session else "A recording plays without computing; Build makes a new attack."
        controls.knows_truth = bool(workspace.truth)
        is_named = workspace.session is not None and not workspace.is_given
        controls.describe_client("" if is_named else f"Whose update it is: {workspace.truth.name or 'not known'}.")
        if workspace.session is not None:
            controls.show_steering(workspace.session.steering)
        controls.update_abilities()
        self.grid.follow()
        self._shown()

    def _show_settings(self) -> None:
        """Set the controls to the settings of what is shown."""
        workspace, controls = self.controller.workspace, self.controls
        source: Any = workspace.source or workspace.attack
        controls.show_config(source.config, label_source=workspace.label_source)
        controls.show_values(source.client if isinstance(source, Recording) else {"seed": source.seed})
        if workspace.is_given and workspace.session is not None:
            controls.lock_client(workspace.session.observation)

    def _show_scenario(self, scenario: Scenario) -> None:
        """Set the controls to a scenario, also those of a recording, which is about to be replaced."""
        self.controls.locked = ""
        self.controls.show_scenario(scenario)
