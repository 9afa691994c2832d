"""The picture grid in a notebook: sends the page what the visible tab shows, and knows which moment is looked at."""

import itertools
import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import anywidget
import ipywidgets as widgets
import traitlets

from workbench.data import Truth
from workbench.errors import ConfigError
from workbench.session import AttackSession, Recording, Snapshot
from workbench.session.recording import Frame, frame_of
from workbench.views.grid import packets

__all__ = ["Comparison", "Grid"]

BYTES_PER_SECOND = 1e6
# Earlier moments are sent while an attack runs too, but their images have to be computed.
_EARLIER_SECONDS = 1.0
_HISTORY_SECONDS = 0.5
# Messages of the page have to wait for as long.
_PAINT_SECONDS = 0.1

_DARK = ('[data-jp-theme-light="false"] .wb-panel',)
_keys = itertools.count()


class Grid(anywidget.AnyWidget):
    """One model that several places of a panel show; the class ``wb-view-NAME`` around a place names its view.

    The page keeps the frames that it has received, so scrubbing and playing need no message. It reports which step is
    looked at once that has settled, and asks for frames that it lacks. Nothing is sent before a page has asked.

    Args:
        changed: called when the page has reported something, on any thread.
        share: of the bytes that a page is sent in a second, where several grids are shown together.

    Attributes:
        step: the step that is looked at; None follows the newest.
        moments: the key of the source, its kept steps and the newest step.
        followed: counts how often the page has to follow the newest step again.
    """

    _esm = packets.SCRIPT
    _css = packets.style(".wb-panel", _DARK)
    moments: traitlets.List[Any] = traitlets.List([]).tag(sync=True)
    followed = traitlets.Int(0).tag(sync=True)

    def __init__(self, changed: Callable[[], None], share: float = 1.0) -> None:
        super().__init__()
        self.step: int | None = None
        self._changed, self._share = changed, share
        self._source: AttackSession | Recording | None = None
        self._truth = Truth()
        self._key = ""
        self._is_connected = False
        self._has_source = False  # whether the page has
        self._sent: dict[int, set[str]] = {}  # by step, the parts that the page has
        self._num_rewinds = 0  # of the source, that the page knows of
        self._wanted: dict[int, bool] = {}  # by step, whether with its epochs
        self._history_at: tuple[object, ...] | None = None  # what the page has of it
        self._free_at = self._earlier_at = self._curves_at = 0.0
        self._lock = threading.RLock()  # messages come on one thread, frames are sent on another
        self.on_msg(self._receive)

    def __repr__(self) -> str:
        return f"Grid({self._source})"

    def follow(self) -> None:
        """Look at the newest moment again."""
        with self._lock:
            if self.step is not None:
                self.step = None
                self.followed += 1

    def show(self, source: AttackSession | Recording, truth: Truth) -> None:
        """Show another source from now on; the one that is shown already is left as it is."""
        with self._lock:
            if source is self._source and truth is self._truth:
                return
            self._source, self._truth, self._key = source, truth, f"source{next(_keys)}"
            self._num_rewinds = 0
            self._forget()
            self.follow()

    def paint(
        self,
        steps: Sequence[int],
        newest: int,
        parts: set[str],
        *,
        snapshot: Snapshot | None = None,
        is_running: bool = False,
    ) -> bool:
        """Send the page what it lacks, within the limit; whether something is left to send.

        Args:
            steps: the kept ones.
            newest: the step that is followed.
            parts: what the visible tab needs of a frame: ``score``, ``pixels``, ``epochs``; and ``history``. Empty
                sends nothing but the steps.
            snapshot: of a session that may be running, at ``newest``.
            is_running: whether there will be newer ones.
        """
        with self._lock:
            source = self._source
            if source is None or not self._is_connected:
                return False
            rewinds = snapshot.rewinds[self._num_rewinds :] if snapshot else ()
            last = min((newest, *rewinds))
            self._sent = {step: sent for step, sent in self._sent.items() if step <= last}
            if not self._has_source:
                self._send_source(source)
            if rewinds:  # as many steps may have been made since: the page drops what came after the last one in common
                self.moments = [self._key, [step for step in steps if step <= last], last]
                self._num_rewinds += len(rewinds)
            self.moments = [self._key, sorted({*steps, newest}), newest]
            if "history" in parts:
                self._send_history(source, newest, is_running=is_running)
            needed = parts - {"history"}
            if not needed:
                return False
            missing = self._missing(steps, newest, needed, is_running=is_running)
            pause_at = time.monotonic() + _PAINT_SECONDS
            for step in missing:
                if not self._free_at <= time.monotonic() <= pause_at:
                    return True
                self._send_frame(source, step, needed, snapshot if step == newest else None)
            return is_running

    def _missing(self, steps: Sequence[int], newest: int, needed: set[str], *, is_running: bool) -> list[int]:
        """The steps to send: what the page asked for, the newest, and then others, the latest first.

        The limit may leave room for one frame only, and in a fast run there is always a newer one.
        """
        latest = [newest] if needed - self._sent.get(newest, set()) else []
        self._wanted = {step: epochs for step, epochs in self._wanted.items() if step in steps or step == newest}
        wanted = list(self._wanted)
        others = [step for step in reversed(steps) if needed - self._sent.get(step, set())]
        if is_running and time.monotonic() < self._earlier_at:
            others = []
        if is_running:
            others = others[:1]
        return list(dict.fromkeys([*wanted, *latest, *others]))

    def _send_frame(
        self,
        source: AttackSession | Recording,
        step: int,
        needed: set[str],
        snapshot: Snapshot | None,
    ) -> None:
        if snapshot is None:
            self._earlier_at = time.monotonic() + _EARLIER_SECONDS
        is_wanted = step in self._wanted
        has_epochs = self._wanted.pop(step, False) or "epochs" in needed
        has_pixels = is_wanted or needed != {"score"}
        try:
            # Residuals take time. Without the truth they are all that judges an image.
            has_residuals = is_wanted or not self._truth
            frame = _frame(source, step, snapshot, self._truth, has_residuals=has_residuals, is_read=has_pixels)
        except ConfigError:  # the session has dropped this moment to make room
            return
        buffers = {}
        if has_pixels:
            buffers["pixels"] = frame.pixels.tobytes()
        if has_epochs and frame.epoch_pixels is not None and len(frame.permutations) > 1:
            buffers["epochs"] = frame.epoch_pixels.tobytes()
        described = {**packets.describe_frame(frame, self._truth), "isWhole": is_wanted}
        self._post({"kind": "frame", "frame": described}, buffers)
        # A frame that has no epochs will never have any.
        has = {"score": True, "pixels": has_pixels, "epochs": has_epochs}
        self._sent.setdefault(step, set()).update(name for name, is_there in has.items() if is_there)

    def _send_source(self, source: AttackSession | Recording) -> None:
        described = packets.describe_source(source, self._truth, self._key)
        self._post(
            {"kind": "source", "source": described}, {"truth": packets.truth_pixels(self._truth)} if self._truth else {}
        )
        self._has_source = True

    def _send_history(self, source: AttackSession | Recording, newest: int, *, is_running: bool) -> None:
        history = source.history
        now = self._num_rewinds, newest, *history.steering
        if now == self._history_at or (is_running and time.monotonic() < self._curves_at):
            return
        described = packets.describe_history(history, source.config.warm_start_steps)
        self._post({"kind": "history", "history": described}, {})
        self._history_at, self._curves_at = now, time.monotonic() + _HISTORY_SECONDS

    def _post(self, content: dict[str, Any], buffers: dict[str, bytes]) -> None:
        self.send({**content, "key": self._key, "buffers": list(buffers)}, list(buffers.values()))
        size = len(json.dumps(content)) + sum(map(len, buffers.values()))
        self._free_at = max(self._free_at, time.monotonic()) + size / (BYTES_PER_SECOND * self._share)

    def _receive(self, _: Any, content: Any, __: Any) -> None:
        """What the page reports; whatever else it sends is ignored."""
        kind, step = (content.get("kind"), content.get("step")) if isinstance(content, dict) else (None, None)
        with self._lock:
            if kind == "hello":
                self._is_connected, self.step = True, None
                self._forget()
            elif kind == "look" and (step is None or isinstance(step, int)):
                self.step = step
            elif kind == "want" and isinstance(step, int):
                # Earlier wishes were passed on the way.
                self._wanted = {step: bool(content.get("epochs"))}
        self._changed()

    def _forget(self) -> None:
        """The page has nothing of what is shown."""
        self._has_source, self._sent, self._wanted, self._history_at = False, {}, {}, None


class Comparison(anywidget.AnyWidget):
    """Grids whose sources have the same images, in one view: a row for each, their difference, and one timeline.

    Args:
        grids: that are shown nowhere else.

    Attributes:
        names: of the rows.
        colours: of their curves, numbers of the script's lines.
    """

    _esm = packets.SCRIPT
    _css = packets.style(".wb-panel", _DARK)
    grids: traitlets.List[Any] = traitlets.List([]).tag(sync=True, **widgets.widget_serialization)
    names: traitlets.List[str] = traitlets.List([]).tag(sync=True)
    colours: traitlets.List[int] = traitlets.List([]).tag(sync=True)

    def __init__(self, grids: Sequence[Grid]) -> None:
        super().__init__(grids=list(grids))


def _frame(
    source: AttackSession | Recording,
    step: int,
    snapshot: Snapshot | None,
    truth: Truth,
    *,
    has_residuals: bool,
    is_read: bool,
) -> Frame:
    if isinstance(source, Recording):
        return source.reconstruction_at(step)
    found = source.reconstruction_at(step) if snapshot is None else source.reconstruction(snapshot)
    return frame_of(step, found, truth, source.read if is_read else None, has_residuals=has_residuals)
