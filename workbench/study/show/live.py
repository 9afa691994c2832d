"""A study as it goes: units done, time left and the numbers so far, in a terminal, a log, or a notebook."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from statistics import mean
from typing import Any, Protocol

from workbench.errors import check_choice
from workbench.study.plan.tables import Plan
from workbench.study.run.store import Row
from workbench.study.show.results import Results

__all__ = ["Progress", "progress_for"]

WAYS = ("auto", "text", "widget", "none")
_EVERY_SECONDS = 0.5


class Progress(Protocol):
    """What is told of a study under way."""

    def update(self, row: Row) -> None:
        """A unit is finished."""

    def wait(self, others: int) -> None:
        """Other processes are at the units that are left."""

    def close(self) -> None:
        """The study is over."""


def progress_for(
    progress: str | Callable[[Plan, dict[str, Row], int], Progress], plan: Plan, rows: dict[str, Row], width: int
) -> Progress:
    """The way to show it: a table that redraws itself in a terminal, lines in a log, a widget in a notebook."""
    if not isinstance(progress, str):
        return progress(plan, rows, width)
    check_choice("progress", progress, WAYS)
    if progress == "auto":
        progress = "widget" if _in_notebook() else "text"
    if progress == "none":
        return _Nothing()
    state = _State(plan, rows, width)
    if progress == "widget":
        return _Widget(state)
    return _Terminal(state) if sys.stdout.isatty() else _Log(state)


def _in_notebook() -> bool:
    # Only where IPython runs already: importing it takes a while.
    shell = sys.modules.get("IPython")
    return shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"


class _State:
    """How far the study is, told in one line."""

    def __init__(self, plan: Plan, rows: dict[str, Row], width: int) -> None:
        self.plan = plan
        self.rows = rows
        self._width = width
        self._units = plan.units
        self._places = {
            unit.key: (entry.setting, entry.method) for entry in reversed(plan.entries) for unit in entry.units
        }
        self._before = self.num_done
        self._started = time.monotonic()

    @property
    def num_done(self) -> int:
        return sum(unit.key in self.rows for unit in self._units)

    def place(self, row: Row) -> str:
        setting, method = self._places.get(row["key"], ("", ""))
        clients = row["settings"]["clients"]
        who = f"client {clients[0]}" if len(clients) == 1 else f"{len(clients)} clients from {clients[0]}"
        return f"{setting}, {method}, {who}"

    def seconds_left(self) -> float | None:
        """What units like those that are left took, divided among the workers."""
        took: dict[tuple[str, str], list[float]] = {}
        for unit in self._units:
            if unit.key in self.rows:
                took.setdefault(self._places[unit.key], []).append(self.rows[unit.key]["seconds"])
        if not took:
            return None
        usual = mean(value for values in took.values() for value in values)
        left = [self._places[unit.key] for unit in self._units if unit.key not in self.rows]
        total = sum(mean(took[place]) if place in took else usual for place in left)
        spent, done = time.monotonic() - self._started, self.num_done - self._before
        if done and len(took) == 1:
            # Quick units: what is around them counts, too.
            total = max(total, spent / done * len(left) * self._width)
        return total / self._width

    def line(self) -> str:
        left = self.seconds_left()
        told = "" if left is None else f", about {duration(left)} left"
        return f"{self.num_done} of {len(self._units)} units{told if self.num_done < len(self._units) else ''}"

    def results(self) -> Results:
        return Results(self.plan, self.rows)


def duration(seconds: float) -> str:
    """For people.

    >>> duration(8), duration(100), duration(8000)
    ('8 s', '2 min', '2 h 13 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _numbers(row: Row) -> str:
    if "psnr" in row:
        psnr = mean(value for value in row["psnr"] if value is not None)
        return f"{row['recovered_percent']:.0f} % recovered, PSNR {psnr:.2f} dB, {row['seconds']:.0f} s"
    if "accuracy_percent" in row:
        return f"accuracy {row['accuracy_percent']:.2f} %, {row['seconds']:.0f} s"
    return ", ".join(f"{method} {errors:g}" for method, errors in row["label_errors"].items()) + " wrong labels"


class _Nothing:
    def update(self, row: Row) -> None:
        pass

    def wait(self, others: int) -> None:
        pass

    def close(self) -> None:
        pass


class _Log(_Nothing):
    """A line for every unit, or every few seconds where they are quick."""

    def __init__(self, state: _State) -> None:
        self._state = state
        self._last = 0.0
        self._is_waiting = False

    def update(self, row: Row) -> None:
        self._is_waiting = False
        if time.monotonic() - self._last < 4 * _EVERY_SECONDS:
            return
        self._last = time.monotonic()
        _write(f"{self._state.place(row)}: {_numbers(row)}; {self._state.line()}\n")

    def wait(self, others: int) -> None:
        if not self._is_waiting:
            _write(f"Waiting for {others} units that other processes are at.\n")
            self._is_waiting = True


class _Terminal(_Nothing):
    """The table so far, drawn over the one before."""

    def __init__(self, state: _State) -> None:
        self._state = state
        self._height = 0
        self._last = 0.0
        self._draw("")

    def update(self, row: Row) -> None:
        if time.monotonic() - self._last > _EVERY_SECONDS:
            self._draw(f"{self._state.place(row)}: {_numbers(row)}")

    def wait(self, others: int) -> None:
        if time.monotonic() - self._last > _EVERY_SECONDS:
            self._draw(f"waiting for {others} units that other processes are at")

    def close(self) -> None:
        self._erase()

    def _erase(self) -> None:
        if self._height:
            _write(f"\x1b[{self._height}A\x1b[J")
        self._height = 0

    def _draw(self, latest: str) -> None:
        columns, height = shutil.get_terminal_size()
        lines = str(self._state.results()).splitlines()
        # A line too long or too many would wrap or scroll, and could not be drawn over.
        if len(lines) > height - 4:
            lines = [*lines[: height - 5], "..."]
        lines += ["", self._state.line(), latest]
        self._erase()
        _write("".join(f"{line[: columns - 1]}\n" for line in lines))
        self._height = len(lines)
        self._last = time.monotonic()


class _Widget(_Nothing):
    """The table so far in a notebook."""

    def __init__(self, state: _State) -> None:
        import ipywidgets
        from IPython.display import display

        self._state = state
        self._last = 0.0
        self.widget: Any = ipywidgets.HTML()
        self._draw("")
        display(self.widget)  # type: ignore[no-untyped-call]

    def update(self, row: Row) -> None:
        if time.monotonic() - self._last > _EVERY_SECONDS:
            self._draw(f"{self._state.place(row)}: {_numbers(row)}")

    def wait(self, others: int) -> None:
        self._draw(f"waiting for {others} units that other processes are at")

    def close(self) -> None:
        self._draw("")

    def _draw(self, latest: str) -> None:
        line = f"{self._state.line()}{'; ' if latest else ''}{latest}"
        self.widget.value = f"{self._state.results()._repr_html_()}<p>{line}</p>"
        self._last = time.monotonic()


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
