"""Two attacks on the same images: started together, on one timeline, the same pictures in the same places."""

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import ipywidgets as widgets
import numpy as np
import traitlets

from workbench.views import render
from workbench.views.figures import lines_figure
from workbench.views.panel.comparison import Attacks, Compared
from workbench.views.panel.controls import CLIENT
from workbench.views.panel.shell import Shell, answer_sender
from workbench.views.panel.status import State
from workbench.views.panel.tabs import DescribedImage
from workbench.views.panel.worker import DRAWING, Painter

__all__ = ["ComparePanel"]

_SHARED = ("run", "pause", "step", "reset")
_PER_SECOND = 4.0


class ComparePanel(widgets.VBox):  # type: ignore[misc]
    """Common buttons and one timeline, the attacks row by row, their difference, and below each attack's own panel.

    Args:
        left: an `AttackPanel`.
        right: another on the same images.
        shares_client: whether the left panel's controls choose the client for both; then the right one attacks it
            without the prior.
        names: of the two attacks; empty names them by their methods.
    """

    def __init__(self, left: Any, right: Any, *, shares_client: bool, names: Sequence[str] = ()) -> None:
        self.panels = (left, right)
        self._names = tuple(names)
        if shares_client:
            self._share_client()
        traitlets.link((left.views, "selected_index"), (right.views, "selected_index"))
        for name in _SHARED:
            setattr(self, f"{name}_button", self._button(name))
        buttons = widgets.HBox([getattr(self, f"{name}_button") for name in _SHARED])
        self.together = Together(self._attacks, lambda: any(panel.controller.worker.jobs for panel in self.panels))
        for panel in self.panels:
            # Every picture that a panel draws is a reason to look again.
            panel.progress.observe(lambda _: self.together.request(), ["value", "max"])
            panel.status.observe(lambda _: self.together.request(), "value")
        side = {"flex": "1 1 0", "min_width": "0"}
        sides = [widgets.VBox([self._heading(index), panel], layout=side) for index, panel in enumerate(self.panels)]
        self.sides = widgets.HBox(sides, layout={"grid_gap": "24px"})
        super().__init__([Shell(), buttons, self.together, self.sides])
        self.add_class("wb-compare")
        answer_sender(self)
        self.together.request()

    def __repr__(self) -> str:
        return f"ComparePanel({self.panels[0]!r}, {self.panels[1]!r})"

    def wait(self, timeout: float | None = None) -> bool:
        """Until both have nothing more to do and it is drawn; False where the time was not enough."""
        return all(panel.wait(timeout) for panel in self.panels) and self.together.wait(timeout)

    def close(self) -> None:
        """End the threads of both, and remove them from the page."""
        self.together.end()
        for panel in self.panels:
            panel.close()
        super().close()

    def _attacks(self) -> Attacks | None:
        """The attacks that the panels show now; None until both are there and have the same images."""
        found = {}
        for index, panel in enumerate(self.panels):
            source = panel.controller.workspace.source
            if source is None or panel.controller.state is State.BUILDING:
                return None
            name = self._names[index] if self._names else source.config.method
            found[f"{name} ({index + 1})" if name in found else name] = source
        held = self.together.attacks
        if held is not None and list(held.sources.items()) == list(found.items()):
            return held
        return Attacks(found, self.panels[0].controller.workspace.truth or None)

    def _button(self, name: str) -> Any:
        """A button that presses the button of that name in both panels, where it is enabled."""
        label, both = f"{name.capitalize()} both", [getattr(panel, f"{name}_button") for panel in self.panels]
        look = {"icon": both[0].icon, "button_style": both[0].button_style, "layout": {"width": "auto"}}
        button = widgets.Button(description=label, tooltip=label, **look)
        button.on_click(lambda _: [one.click() for one in both if not one.disabled])
        return button

    def _share_client(self) -> None:
        """The left panel's client is the right one's too, which attacks it without the prior."""
        left, right = (panel.controls for panel in self.panels)
        for name in CLIENT:
            traitlets.dlink((left.fields[name], "value"), (right.fields[name], "value"))
        right.locked_client = "The left panel chooses the client for both."
        right.update_abilities()
        right.fields["method"].value = "ours_no_prior"
        self.panels[1].build_button.click()

    def _heading(self, index: int) -> Any:
        """The name of an attack: as given, or its method, also after that was changed."""
        heading = widgets.HTML()
        if self._names:
            heading.value = f"<h3>{escape(self._names[index])}</h3>"
        else:
            method = self.panels[index].controls.fields["method"]
            traitlets.dlink((method, "value"), (heading, "value"), "<h3>{}</h3>".format)
        return heading


class Together(widgets.VBox):  # type: ignore[misc]
    """One timeline, a row for each attack and their difference, and their quality on shared axes.

    Args:
        current: returns the attacks to show; None where there are none now.
        is_busy: returns whether something is being built, so that there may be others soon.

    Attributes:
        attacks: what is shown.
        step: the kept step that is looked at; None follows the newest.
    """

    def __init__(self, current: Callable[[], Attacks | None], is_busy: Callable[[], bool]) -> None:
        self._current, self._is_busy = current, is_busy
        self.attacks: Attacks | None = None
        self.step: int | None = None
        self._steps: list[int] = [0]
        self._is_quiet = False
        self.timeline = widgets.IntSlider(
            0,
            0,
            0,
            description="Timeline",
            readout=False,
            tooltip="Earlier moments of both; the right end follows the newest",
            layout={"width": "min(100%, 640px)"},
        )
        self.timeline.observe(self._moved, "value")
        self.sheet, self.curves = (DescribedImage(format="png", layout={"max_width": "100%"}) for _ in range(2))
        self.sheet.tooltip = "The truth, a row for each attack, and how far apart the two are"
        self.curves.tooltip = "The mean PSNR of both attacks over the steps"
        self.curves.add_class("wb-figure")
        self.caption = widgets.HTML("The attacks are being built …")
        self._painter = Painter(self._paint, _PER_SECOND, lambda message: self._say(message.text))
        row = widgets.HBox([self.sheet, self.curves], layout={"flex_flow": "row wrap", "grid_gap": "16px"})
        super().__init__([self.timeline, self.caption, row])

    def request(self) -> None:
        """Draw soon."""
        self._painter.request()

    def wait(self, timeout: float | None = None) -> bool:
        """Until the newest state is drawn; False where the time was not enough."""
        return self._painter.wait(timeout)

    def end(self) -> None:
        """Draw nothing more."""
        self._painter.close()

    def _moved(self, change: dict[str, Any]) -> None:
        if not self._is_quiet:
            place = min(change["new"], len(self._steps) - 1)
            self.step = None if place == len(self._steps) - 1 else self._steps[place]
            self.request()

    def _say(self, text: str) -> None:
        self.caption.value = escape(text)

    # On the painter's thread.

    def _paint(self) -> bool:
        self.attacks = self._current()
        if self.attacks is None:
            return self._is_busy()
        self._steps = self.attacks.steps
        newest = self._steps[-1]
        self._is_quiet = True
        try:
            self.timeline.max = len(self._steps) - 1
            place = min(range(len(self._steps)), key=lambda at: abs(self._steps[at] - (self.step or 0)))
            self.timeline.value = self.timeline.max if self.step is None else place
        finally:
            self._is_quiet = False
        compared = self.attacks.at(newest if self.step is None else self.step)
        self.sheet.value = _sheet(compared)
        self._say(self.attacks.text(compared))
        if self.attacks.truth:
            with DRAWING:
                self.curves.value = _curves(self.attacks)
        return False


def _sheet(compared: Compared) -> bytes:
    """The truth, a row for each attack, and where the second differs from the first: the darker, the more."""
    rows = {} if compared.truth is None else {"truth": compared.truth}
    rows |= {row.name: row.images for row in compared.rows}
    [difference] = compared.differences().values()
    rows["difference"] = 1 - difference
    captions = [f"{gain:+.1f} dB" for gains in compared.gains().values() for gain in gains]
    return render.contact_sheet(np.stack(list(rows.values())), captions, names=list(rows))


def _curves(attacks: Attacks) -> bytes:
    figure = lines_figure(attacks.curves(), title="Mean PSNR of both", x="step", y="mean PSNR (dB)")
    steps, levels = attacks.limits()
    figure.axes[0].set(xlim=steps, ylim=levels)
    return render.figure_png(figure, dpi=96)
