"""The timeline: kept moments under a slider, with a play button; at its right end it follows the attack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import RLock, local
from time import monotonic
from typing import Any

import ipywidgets as widgets

__all__ = ["Timeline"]

_SETTLED_SECONDS = 0.4


class Timeline(widgets.HBox):  # type: ignore[misc]
    """Which moment is looked at.

    Args:
        changed: called when a person scrubs.
        go_on_here: called when a person asks to go on from the moment that is looked at.

    Attributes:
        step: the kept step that is looked at; None follows the newest.
    """

    def __init__(self, changed: Callable[[], None], go_on_here: Callable[[], None]) -> None:
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
        self.rewind_button = widgets.Button(description="Go on from here", icon="undo", layout={"width": "auto"})
        self.rewind_button.on_click(lambda _: go_on_here())
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
