"""A picture on the page, with a text alternative and a caption."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

import ipywidgets as widgets
import traitlets
from matplotlib.figure import Figure

from workbench.views import render
from workbench.views.panel.worker import DRAWING

__all__ = ["Picture"]

# Figures are drawn for light pages; the panel's style inverts them for dark ones.
_FIGURE_DPI = 144


class _Image(widgets.Image):  # type: ignore[misc]
    """An image whose tooltip works: ipywidgets looks for a description first, which its own image does not have.

    A screen reader reads the tooltip.
    """

    description = traitlets.Unicode("").tag(sync=True)


class Picture(widgets.VBox):  # type: ignore[misc]
    """A picture with its caption. A sheet of images is drawn for both themes, and the page shows one; a figure once."""

    def __init__(self) -> None:
        self.light, self.dark = (
            _Image(format="png", layout={"max_width": "100%", "display": "none"}) for _ in range(2)
        )
        self.caption = widgets.HTML()
        self.caption.add_class("wb-note")
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
