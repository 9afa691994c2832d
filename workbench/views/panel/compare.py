"""Two attacks on the same client side by side, started together."""

from dataclasses import replace
from typing import Any

import ipywidgets as widgets
import traitlets

from workbench.session import AttackSession

__all__ = ["ComparePanel", "without_prior"]


class ComparePanel(widgets.VBox):  # type: ignore[misc]
    """Two panels with common buttons; tabs are chosen for both.

    Args:
        left: an `AttackPanel`.
        right: another on the same update.
        shares_client: whether the left panel's controls choose the client for both; then the right one attacks it
            without the prior.
    """

    def __init__(self, left: Any, right: Any, *, shares_client: bool) -> None:
        self.panels = (left, right)
        if shares_client:
            self._share_client()
        traitlets.link((left.views, "selected_index"), (right.views, "selected_index"))
        side = {"flex": "1 1 0", "min_width": "0"}
        sides = [widgets.VBox([_heading(panel), panel], layout=side) for panel in self.panels]
        self.run_button = self._button("Run both", "play", "run_button")
        self.pause_button = self._button("Pause both", "pause", "pause_button")
        self.step_button = self._button("Step both", "step-forward", "step_button")
        self.reset_button = self._button("Reset both", "fast-backward", "reset_button")
        self.run_button.button_style = "primary"
        buttons = widgets.HBox([self.run_button, self.pause_button, self.step_button, self.reset_button])
        super().__init__([buttons, widgets.HBox(sides, layout={"grid_gap": "24px"})])

    def __repr__(self) -> str:
        return f"ComparePanel({self.panels[0]!r}, {self.panels[1]!r})"

    def wait(self, timeout: float | None = None) -> bool:
        """Until both have nothing more to do; False where the time was not enough."""
        return all(panel.wait(timeout) for panel in self.panels)

    def close(self) -> None:
        """End the threads of both, and remove them from the page."""
        for panel in self.panels:
            panel.close()
        super().close()

    def _button(self, label: str, icon: str, name: str) -> Any:
        """A button that presses the button of that name in both panels."""
        button = widgets.Button(description=label, icon=icon, tooltip=label, layout={"width": "auto"})
        button.on_click(lambda _: [getattr(panel, name).click() for panel in self.panels])
        return button

    def _share_client(self) -> None:
        """The left panel's client is the right one's too, which attacks it without the prior."""
        left, right = (panel.controls for panel in self.panels)
        for ours, theirs in zip(*(panel.sections.children[0].children for panel in (left, right)), strict=True):
            traitlets.dlink((ours, "value"), (theirs, "value"))
        right.locked_client = "The left panel chooses the client for both."
        right.update_abilities()
        right.fields["method"].value = "ours_no_prior"
        self.panels[1].build_button.click()


def _heading(panel: Any) -> Any:
    """The method of a panel's attack, also after it was changed."""
    heading = widgets.HTML()
    traitlets.dlink((panel.controls.fields["method"], "value"), (heading, "value"), "<h3>{}</h3>".format)
    return heading


def without_prior(session: AttackSession) -> AttackSession:
    """Another attack on the same update, with the same labels, that has no prior on the epochs."""
    config = replace(session.config, method="ours_no_prior")
    return AttackSession(
        session.model, session.observation, config, label_counts=session.label_counts, seed=session.seed
    )
