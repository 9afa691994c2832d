"""The progress of a study: units done, time left and the numbers so far, in a terminal, a log, or a notebook."""

import shutil
import sys
import time
from functools import cached_property, partial
from statistics import mean
from typing import Any

from workbench.progress import duration
from workbench.study.plan.plan import Plan, Row
from workbench.study.show.results import Results

__all__ = ["Progress", "progress_for"]

_write = partial(print, end="", flush=True)


def _numbers(row: Row) -> str:
    if "psnr" in row:
        psnr = mean(value for value in row["psnr"] if value is not None)
        return f"{row['recovered_percent']:.0f} % recovered, PSNR {psnr:.2f} dB, {row['seconds']:.0f} s"
    if "accuracy_percent" in row:
        return f"accuracy {row['accuracy_percent']:.2f} %, {row['seconds']:.0f} s"
    return ", ".join(f"{method} {errors:g}" for method, errors in row["label_errors"].items()) + " wrong labels"


class Progress:
    """How far a study is; this class shows nothing, its subclasses draw.

    Args:
        plan: of the study.
        rows: the finished rows by key; the caller adds to them.
        width: how many units run at once.

    Attributes:
        interval: seconds between two drawings; what comes sooner is not drawn.
    """

    interval = 0.5

    def __init__(self, plan: Plan, rows: dict[str, Row], width: int) -> None:
        self._plan = plan
        self._rows = rows
        self._width = width
        self._units = plan.units
        self._names = {
            unit.key: f"{entry.setting}, {entry.method}" for entry in reversed(plan.entries) for unit in entry.units
        }
        self._before = self._num_done
        self._started = time.monotonic()
        self._last = 0.0
        self._draw("")

    @property
    def _num_done(self) -> int:
        return sum(unit.key in self._rows for unit in self._units)

    def update(self, row: Row) -> None:
        """Show that a unit has finished."""
        clients = row["settings"]["clients"]
        who = f"client {clients[0]}" if len(clients) == 1 else f"{len(clients)} clients from {clients[0]}"
        self._show(f"{self._names[row['key']]}, {who}: {_numbers(row)}")

    def seconds_left(self) -> float | None:
        """The mean time of similar units for each missing one, divided by the number of workers."""
        took: dict[str, list[float]] = {}
        for unit in self._units:
            if unit.key in self._rows:
                took.setdefault(self._names[unit.key], []).append(self._rows[unit.key]["seconds"])
        if not took:
            return None
        usual = mean(value for values in took.values() for value in values)
        left = [self._names[unit.key] for unit in self._units if unit.key not in self._rows]
        total = sum(mean(took[name]) if name in took else usual for name in left)
        spent, done = time.monotonic() - self._started, self._num_done - self._before
        if done and len(took) == 1:
            # For quick units the time around them, such as that of the store, counts too.
            total = max(total, spent / done * len(left) * self._width)
        return total / self._width

    def line(self) -> str:
        """E.g. ``3 of 8 units, about 2 min left``."""
        done, all_units, left = self._num_done, len(self._units), self.seconds_left()
        rest = "" if left is None or done == all_units else f", about {duration(left)} left"
        return f"{done} of {all_units} units{rest}"

    def wait(self, others: int) -> None:
        """Show that only units which other processes are measuring are left."""
        self._show(f"waiting for {others} units that other processes are measuring")

    def close(self) -> None:
        """The study has ended."""

    def _show(self, latest: str) -> None:
        if time.monotonic() - self._last > self.interval:
            self._draw(latest)
            self._last = time.monotonic()

    def _draw(self, latest: str) -> None:
        """Draw the state and the latest message, which is empty at the start."""


class _Log(Progress):
    """A line for every unit, or one every two seconds where they are quick."""

    interval = 2.0
    _waits_for = 0

    def wait(self, others: int) -> None:
        if others != self._waits_for:
            _write(f"Waiting for {others} units that other processes are measuring.\n")
        self._waits_for = others

    def _draw(self, latest: str) -> None:
        if latest:
            _write(f"{latest}; {self.line()}\n")


class _Terminal(Progress):
    """The table so far, drawn over the previous one."""

    _height = 0

    def close(self) -> None:
        if self._height:
            _write(f"\x1b[{self._height}A\x1b[J")
        self._height = 0

    def _draw(self, latest: str) -> None:
        columns, height = shutil.get_terminal_size()
        lines = str(Results(self._plan, self._rows)).splitlines()
        # Lines that wrap or scroll could not be drawn over.
        if len(lines) > height - 4:
            lines = [*lines[: height - 5], "..."]
        lines += ["", self.line(), latest]
        self.close()
        _write("".join(f"{line[: columns - 1]}\n" for line in lines))
        self._height = len(lines)


class _Widget(Progress):
    """The table so far in a notebook."""

    @cached_property
    def widget(self) -> Any:
        """On the page from the first drawing on."""
        import ipywidgets
        from IPython.display import display

        shown = ipywidgets.HTML()
        display(shown)  # type: ignore[no-untyped-call]
        return shown

    def close(self) -> None:
        self._draw("")

    def _draw(self, latest: str) -> None:
        line = f"{self.line()}{'; ' if latest else ''}{latest}"
        self.widget.value = f"{Results(self._plan, self._rows)._repr_html_()}<p>{line}</p>"


def progress_for(progress: str, plan: Plan, rows: dict[str, Row], width: int) -> Progress:
    """A table that redraws itself in a terminal, lines in a log, a widget in a notebook, or nothing.

    Args:
        progress: as in `RunOptions`.
        plan: as for `Progress`; so are the rest.
    """
    if progress == "auto":
        progress = "widget" if _in_notebook() else "text"
    text = _Terminal if sys.stdout.isatty() else _Log
    return {"none": Progress, "widget": _Widget, "text": text}[progress](plan, rows, width)


def _in_notebook() -> bool:
    # Looked up, not imported: importing IPython takes long, and without it this is no notebook.
    shell = sys.modules.get("IPython")
    return shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"
