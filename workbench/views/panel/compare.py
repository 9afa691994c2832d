"""Two attacks on the same client side by side, started together."""

from typing import Any

import ipywidgets as widgets
import traitlets

__all__ = ["ComparePanel"]

_SHARED = ("run", "pause", "step", "reset")


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
        for name in _SHARED:
            setattr(self, f"{name}_button", self._button(name))
        buttons = widgets.HBox([getattr(self, f"{name}_button") for name in _SHARED])
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

    def _button(self, name: str) -> Any:
        """A button that presses the button of that name in both panels."""
        label, both = f"{name.capitalize()} both", [getattr(panel, f"{name}_button") for panel in self.panels]
        look = {"icon": both[0].icon, "button_style": both[0].button_style, "layout": {"width": "auto"}}
        button = widgets.Button(description=label, tooltip=label, **look)
        button.on_click(lambda _: [one.click() for one in both])
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
