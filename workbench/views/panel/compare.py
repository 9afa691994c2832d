"""Two attacks on the same client side by side, started together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets as widgets
import traitlets

from workbench.data.dataset import ClientData
from workbench.session.session import AttackSession
from workbench.views.panel.controls import CLIENT
from workbench.views.panel.panel import AttackPanel

__all__ = ["ComparePanel"]


class ComparePanel(widgets.VBox):  # type: ignore[misc]
    """Two panels with common buttons; tabs are chosen for both.

    Args:
        first: a session; None attacks a client of the panel's own, with the prior.
        second: another on the same update; None attacks the same client without the prior.
        truth: the client, or all clients of an aggregate.
    """

    def __init__(
        self,
        first: AttackSession | None = None,
        second: AttackSession | None = None,
        truth: ClientData | Sequence[ClientData] | None = None,
    ) -> None:
        left = AttackPanel(first, truth, stacked=True)
        if second is None and first is not None:
            second = _without_prior(first)
        right = AttackPanel(second, truth, stacked=True)
        self.panels = (left, right)
        if first is None:
            self._share_client(left, right)
            right.controls.fields["method"].value = "ours_no_prior"
            right.build_button.click()
        traitlets.link((left.views, "selected_index"), (right.views, "selected_index"))
        side = {"flex": "1 1 0", "min_width": "0"}
        sides = [widgets.VBox([_heading(panel), panel], layout=side) for panel in self.panels]
        self.run_button = self._button("Run both", "play", lambda panel: panel.run_button.click())
        self.pause_button = self._button("Pause both", "pause", lambda panel: panel.pause_button.click())
        self.step_button = self._button("Step both", "step-forward", lambda panel: panel.step_button.click())
        self.reset_button = self._button("Reset both", "fast-backward", lambda panel: panel.reset_button.click())
        self.run_button.button_style = "primary"
        buttons = widgets.HBox([self.run_button, self.pause_button, self.step_button, self.reset_button])
        super().__init__([buttons, widgets.HBox(sides, layout={"grid_gap": "24px"})])

    def __repr__(self) -> str:
        return f"ComparePanel({self.panels[0]!r}, {self.panels[1]!r})"

    def wait(self, timeout: float | None = None) -> bool:
        """Until both have nothing more to do; False where the time was not enough."""
        left, right = self.panels
        return left.wait(timeout) and right.wait(timeout)

    def close(self) -> None:
        """End the threads of both, and remove them from the page."""
        for panel in self.panels:
            panel.close()
        super().close()

    def _button(self, label: str, icon: str, action: Callable[[AttackPanel], None]) -> Any:
        button = widgets.Button(description=label, icon=icon, tooltip=label, layout={"width": "auto"})

        def press(_: Any) -> None:
            for panel in self.panels:
                action(panel)

        button.on_click(press)
        return button

    @staticmethod
    def _share_client(left: AttackPanel, right: AttackPanel) -> None:
        """The left panel's client is the right one's too."""
        for name in CLIENT:
            traitlets.dlink((left.controls.fields[name], "value"), (right.controls.fields[name], "value"))
        right.controls.locked_client = "The left panel chooses the client for both."
        right.controls.update_abilities()


def _heading(panel: AttackPanel) -> Any:
    """The method that a panel attacks with, also after it was changed."""
    heading = widgets.HTML()
    traitlets.dlink((panel.controls.fields["method"], "value"), (heading, "value"), "<h3>{}</h3>".format)
    return heading


def _without_prior(session: AttackSession) -> AttackSession:
    """Another attack on the same update, with the same labels, that has no prior on the epochs."""
    from dataclasses import replace

    config = replace(session.config, method="ours_no_prior")
    return AttackSession(
        session.model, session.observation, config, label_counts=session.label_counts, seed=session.seed
    )
