"""The panel's parts: a picture with a caption, a timeline, and their look in both of JupyterLab's themes."""

from collections.abc import Callable, Sequence
from html import escape
from threading import RLock, local
from time import monotonic
from typing import Any

import ipywidgets as widgets
import traitlets
from matplotlib.figure import Figure

from workbench.views import render
from workbench.views.panel.worker import DRAWING

__all__ = ["STYLE", "Picture", "Timeline"]

# Figures are drawn for light pages; the panel's style inverts them for dark ones.
_FIGURE_DPI = 144
# After this time the page has received a person's move of the timeline.
_SETTLED_SECONDS = 0.4

# JupyterLab's variables for colours, and which pictures to show in which theme.
STYLE = """<style>
.wb-panel { color: var(--jp-ui-font-color1, #1f2328); }
.wb-panel .wb-dark { display: none !important; }
[data-jp-theme-light="false"] .wb-panel .wb-light { display: none !important; }
[data-jp-theme-light="false"] .wb-panel .wb-dark:not([style*="none"]) { display: inline-block !important; }
[data-jp-theme-light="false"] .wb-panel .wb-figure { filter: invert(0.93) hue-rotate(180deg); }
.wb-panel .widget-image { height: auto; object-fit: contain; align-self: flex-start; }
.wb-panel .wb-note { color: var(--jp-ui-font-color2, #57606a); line-height: 1.4; }
.wb-panel .wb-note .widget-html-content { white-space: normal; line-height: 1.4; font-size: 13px; }
.wb-panel .wb-status .widget-html-content { min-height: 1.6em; line-height: 1.4; white-space: normal; font-size: 14px; }
.wb-panel .wb-error { font-weight: bold; }
.wb-panel .wb-columns { display: flex; flex-wrap: wrap; gap: 8px 32px; }
.wb-panel .wb-facts { border-collapse: collapse; align-self: flex-start; }
.wb-panel .wb-facts caption { font-weight: bold; text-align: left; padding-bottom: 4px; }
.wb-panel .wb-facts th { font-weight: normal; text-align: left; padding: 2px 16px 2px 0; }
.wb-panel .wb-facts td { text-align: right; }
.wb-panel .widget-tab > .lm-TabBar .lm-TabBar-tab { flex: 0 0 auto; min-width: 0; padding: 0 7px; }
.wb-panel .widget-tab > .lm-TabBar .lm-TabBar-content { flex-wrap: wrap; }
.wb-panel .jupyter-button:disabled { opacity: 0.45; }
.wb-panel .lm-AccordionPanel-title, .wb-panel .p-Collapse-header { padding: 4px 8px; }
.wb-panel .p-Collapse-contents, .wb-panel .jupyter-widget-Collapse-contents { padding: 4px 8px; }
.wb-panel .jupyter-widget-Collapse-header { padding: 4px 8px; }
</style>"""


class _Image(widgets.Image):  # type: ignore[misc]
    """An image whose tooltip works: ipywidgets looks for a description first, which its own image does not have.

    A screen reader reads the tooltip.
    """

    description = traitlets.Unicode("").tag(sync=True)


class Picture(widgets.VBox):  # type: ignore[misc]
    """A picture with its caption. A sheet of images is drawn for both themes, and the page shows one; a figure once.

    Attributes:
        is_figure: whether matplotlib draws it, which takes longer.
    """

    is_figure = False

    def __init__(self) -> None:
        self.light, self.dark = (
            _Image(format="png", layout={"max_width": "100%", "display": "none"}) for _ in range(2)
        )
        self.caption = widgets.HTML().add_class("wb-note")
        super().__init__([self.light, self.dark, self.caption])

    def show_sheet(self, draw: Callable[..., bytes], density: int, text: str) -> None:
        """Draw a sheet of images for each theme; ``text`` describes it, also to people who cannot see it."""
        for image, theme in ((self.light, "light"), (self.dark, "dark")):
            image.add_class(f"wb-{theme}")
            self._put(image, draw(theme=theme, density=density), density, text)

    def show_figure(self, draw: Callable[[], Figure], text: str) -> None:
        """Draw a figure; ``text`` describes it."""
        with DRAWING:
            png = render.figure_png(draw(), dpi=_FIGURE_DPI)
        self.is_figure = True
        self.light.add_class("wb-figure")
        self._put(self.light, png, _FIGURE_DPI / 96, text)

    def show_text(self, text: str) -> None:
        """Say why there is nothing to see."""
        self.light.layout.display = self.dark.layout.display = "none"
        self.caption.value = escape(text)

    def _put(self, image: Any, png: bytes, density: float, text: str) -> None:
        width = str(round(int.from_bytes(png[16:20], "big") / density))
        # In one message: the page makes a new picture for every one.
        with image.hold_sync():
            image.width, image.tooltip, image.value = width, text, png
        image.layout.display = None
        self.caption.value = escape(text)

    @property
    def png(self) -> bytes | None:
        """As on a light page; None where there is only text."""
        return None if self.light.layout.display == "none" else bytes(self.light.value)


class Timeline(widgets.HBox):  # type: ignore[misc]
    """Which moment is looked at.

    Args:
        changed: called when a person scrubs.
        rewind_button: to go on from the moment that is looked at.

    Attributes:
        step: the kept step that is looked at; None follows the newest.
    """

    def __init__(self, changed: Callable[[], None], rewind_button: Any) -> None:
        self.play = widgets.Play(
            0, 0, 0, interval=150, show_repeat=False, tooltip="Play the kept moments; nothing is computed"
        )
        self.slider = widgets.IntSlider(
            0,
            0,
            0,
            description="Timeline",
            readout=False,
            tooltip="Earlier moments; the right end follows the newest",
            layout={"flex": "1 1 260px"},
            style={"description_width": "60px"},
        )
        self.text = widgets.HTML("no step yet", layout={"min_width": "130px"})
        self.rewind_button = rewind_button
        # In the browser: playing keeps its pace whatever the kernel does.
        widgets.jslink((self.play, "value"), (self.slider, "value"))
        self._steps: list[int] = [0]
        self.step: int | None = None
        self._moved_at: float | None = None  # until the page has received where the slider stands
        self._lock = RLock()  # a person moves the slider on one thread, the attack on another
        self._quiet = local()
        self._changed = changed
        self.slider.observe(self._moved, "value")
        super().__init__(
            [self.play, self.slider, self.text, self.rewind_button],
            layout={"align_items": "center", "flex_flow": "row wrap"},
        )

    @property
    def is_settling(self) -> bool:
        """Whether it was moved a moment ago, so that `show` has to be called once more."""
        return self._moved_at is not None

    def follow(self) -> None:
        """Look at the newest moment again."""
        with self._lock:
            self.step = None

    def show(self, steps: Sequence[int], newest: int, *, is_recording: bool) -> None:
        """Show the kept moments; ``newest`` is the step that is followed."""
        with self._lock:
            self._steps = sorted({*steps, newest})
            place, text = len(self._steps) - 1, f"step {newest}, {'the end' if is_recording else 'the newest'}"
            if self.step is not None:
                # A kept moment may have been dropped to make room: then the nearest one is looked at.
                place = min(range(len(self._steps)), key=lambda at: abs(self._steps[at] - (self.step or 0)))
                self.step = self._steps[place]
                text = f"step {self.step} of {newest}"
            self._quiet.now = True
            try:
                self.play.max = self.slider.max = len(self._steps) - 1
                self.slider.value = place
            finally:
                self._quiet.now = False
            if self._moved_at is not None and monotonic() - self._moved_at > _SETTLED_SECONDS:
                # A step of the attack may have moved the slider on the page while the person's move was under way.
                self.slider.send_state("value")
                self._moved_at = None
            self.text.value = text

    def _moved(self, change: dict[str, Any]) -> None:
        if getattr(self._quiet, "now", False):
            return
        with self._lock:
            place = min(change["new"], len(self._steps) - 1)
            self.step = None if place == len(self._steps) - 1 else self._steps[place]
            self._moved_at = monotonic()
        self._changed()
