"""What a study found, beside what the paper reports: as text, files, a data frame, and plots."""

from __future__ import annotations

import csv
import html
import io
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from workbench.errors import ConfigError, check_choice
from workbench.files.writing import write_atomically
from workbench.study.plan.tables import Entry, Plan
from workbench.study.run.store import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "Line", "Results"]


@dataclass(frozen=True)
class Estimate:
    """A mean over clients, and its standard error where there are several."""

    mean: float
    error: float | None

    @staticmethod
    def of(values: Sequence[float]) -> Estimate | None:
        if not values:
            return None
        return Estimate(mean(values), stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None)

    def told(self, digits: int) -> str:
        return f"{self.mean:.{digits}f}" + ("" if self.error is None else f" ± {self.error:.{digits}f}")


@dataclass(frozen=True)
class Line:
    """One place of a table with the numbers so far."""

    entry: Entry
    rows: tuple[Row, ...]

    def estimate(self, measure: str) -> Estimate | None:
        """The mean over clients of one measure; several seeds of a client count as one value, their mean."""
        values: dict[tuple[int, ...], list[float]] = {}
        for row in self.rows:
            value = _value(row, measure, self.entry.method)
            if value is not None:
                values.setdefault(tuple(row["settings"]["clients"]), []).append(value)
        return Estimate.of([mean(of_client) for of_client in values.values()])

    def deviation(self, measure: str) -> float | None:
        """The standard deviation over all units, as the paper reports it for labels."""
        values = [value for row in self.rows if (value := _value(row, measure, self.entry.method)) is not None]
        return stdev(values) if len(values) > 1 else None

    @property
    def told_units(self) -> str:
        diverged = sum(row["outcome"] != "finished" for row in self.rows)
        return f"{len(self.rows)}/{len(self.entry.units)}" + (f" ({diverged} diverged)" if diverged else "")


def _value(row: Row, measure: str, method: str) -> float | None:
    if measure in ("psnr", "ssim"):
        # A diverged attack may have images without a number.
        values = [value for value in row.get(measure, ()) if value is not None]
        return mean(values) if values else None
    if measure == "recovered":
        return row.get("recovered_percent")
    if measure == "accuracy":
        return row.get("accuracy_percent")
    if measure == "errors":
        errors = row.get("label_errors")
        return errors.get(method) if isinstance(errors, dict) else errors
    value: float | None = row.get(measure)
    return value


# Measure, head of the column, digits.
_COLUMNS = {
    "images": (
        ("recovered", "recovered %", 1),
        ("psnr", "PSNR dB", 2),
        ("ssim", "SSIM", 3),
        ("errors", "label errors", 1),
    ),
    "labels": (("errors", "label errors", 2),),
    "seconds": (("seconds", "seconds", 1),),
}
_PAPER_HEADS = {
    "recovered": ("paper: %", 1),
    "psnr": ("paper: dB", 1),
    "errors": ("paper: errors", 1),
    "deviation": ("paper: sd", 2),
    "seconds": ("paper: seconds", 0),
    "accuracy": ("paper: accuracy", 2),
}


class Results:
    """The numbers of a table so far, ready to be looked at and written.

    In a notebook it shows itself; ``print`` gives plain text.
    """

    def __init__(self, plan: Plan, rows: Mapping[str, Row]) -> None:
        """Gather the rows (by key) that belong to the plan."""
        self.plan = plan
        lines = [
            Line(entry, tuple(rows[unit.key] for unit in entry.units if unit.key in rows)) for entry in plan.entries
        ]
        # What was neither asked for, nor measured before, nor reported by the paper, is no line.
        self.lines = [line for line in lines if line.entry.is_wanted or line.rows or line.entry.published]

    # As a table of texts, from which every format is made

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """The heads of the columns, and every line's texts."""
        columns = _COLUMNS[self.plan.measure]
        if self.plan.measure == "images" and not any(
            unit.labels == "recovered" for line in self.lines for unit in line.entry.units
        ):
            columns = tuple(column for column in columns if column[0] != "errors")
        if any(line.entry.method == "accuracy" for line in self.lines):
            columns = (*columns, ("accuracy", "accuracy %", 1))
        reported = [name for name in _PAPER_HEADS if any(name in line.entry.published for line in self.lines)]
        heads = ["setting", "method", "units", *(head for _, head, _ in columns)]
        if self.plan.measure == "labels":
            heads.append("sd")
        if self.plan.measure == "images":
            heads.append("seconds")
        heads += [_PAPER_HEADS[name][0] for name in reported]
        body = []
        for line in self.lines:
            cells = [line.entry.setting, line.entry.method, line.told_units]
            for measure, _, digits in columns:
                estimate = line.estimate(measure)
                cells.append("" if estimate is None else estimate.told(digits))
            if self.plan.measure == "labels":
                deviation = line.deviation("errors")
                cells.append("" if deviation is None else f"{deviation:.2f}")
            if self.plan.measure == "images":
                seconds = line.estimate("seconds")
                cells.append("" if seconds is None else f"{seconds.mean:.0f}")
            for name in reported:
                value = line.entry.published.get(name)
                cells.append("" if value is None else f"{value:.{_PAPER_HEADS[name][1]}f}")
            body.append(cells)
        filled = [index for index in range(len(heads)) if index < 3 or any(cells[index] for cells in body)]
        return [heads[index] for index in filled], [[cells[index] for index in filled] for cells in body]

    def __str__(self) -> str:
        heads, body = self.cells()
        widths = [max(map(len, column)) for column in zip(heads, *body, strict=True)]
        texts = [
            "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
            for cells in (heads, *body)
        ]
        rule = "-" * max(map(len, texts))
        return "\n".join([self.plan.title, "", texts[0], rule, *texts[1:], *self._footnotes("")])

    def _footnotes(self, before: str) -> list[str]:
        told = "Mean ± standard error over clients."
        return ["", *(f"{before}{note}" for note in (told, *self.plan.notes))]

    def markdown(self) -> str:
        """A table for a text such as a README."""
        heads, body = self.cells()
        lines = [heads, ["---"] * len(heads), *body]
        return "\n".join(
            [
                f"**{self.plan.title}**",
                "",
                *(f"| {' | '.join(cells)} |" for cells in lines),
                *self._footnotes(""),
                "",
            ]
        )

    def csv(self) -> str:
        """Numbers with full digits: one line for each place, with errors and the paper's values in columns."""
        records = self.records()
        text = io.StringIO()
        writer = csv.DictWriter(text, list(records[0]) if records else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        return text.getvalue()

    def records(self) -> list[dict[str, Any]]:
        """One flat record for each place."""
        measures = ["recovered", "psnr", "ssim", "errors", "accuracy", "seconds", "peak_memory"]
        records = []
        for line in self.lines:
            record: dict[str, Any] = {
                "setting": line.entry.setting,
                "method": line.entry.method,
                "units": len(line.rows),
                "planned": len(line.entry.units),
            }
            for measure in measures:
                estimate = line.estimate(measure)
                record[measure] = estimate and estimate.mean
                record[f"{measure}_error"] = estimate and estimate.error
            record |= {f"paper_{name}": line.entry.published.get(name) for name in _PAPER_HEADS}
            records.append(record)
        used = [name for name in (records[0] if records else {}) if any(r[name] is not None for r in records)]
        return [{name: record[name] for name in used} for record in records]

    def frame(self) -> Any:
        """A pandas data frame of the records."""
        try:
            pandas: Any = import_module("pandas")
        except ImportError:
            raise ConfigError(
                "a data frame needs pandas, which is not installed: pip install pandas; or use records()."
            ) from None
        return pandas.DataFrame(self.records())

    def latex(self) -> str:
        """A ``tabular`` with ``booktabs`` rules."""
        heads, body = self.cells()
        lines = [" & ".join(map(_latex, cells)) + r" \\" for cells in (heads, *body)]
        return "\n".join(
            [
                f"% {self.plan.title}",
                rf"\begin{{tabular}}{{ll{'r' * (len(heads) - 2)}}}",
                r"\toprule",
                lines[0],
                r"\midrule",
                *lines[1:],
                r"\bottomrule",
                r"\end{tabular}",
                *self._footnotes("% ")[1:],
                "",
            ]
        )

    def _repr_html_(self) -> str:
        heads, body = self.cells()
        head = "".join(f"<th style='text-align:left'>{html.escape(cell)}</th>" for cell in heads)
        lines = "".join(
            "<tr>" + "".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in cells) + "</tr>"
            for cells in body
        )
        notes = " ".join(self._footnotes("")[1:])
        return (
            f"<b>{html.escape(self.plan.title)}</b><table><thead><tr>{head}</tr></thead>"
            f"<tbody>{lines}</tbody></table><small>{html.escape(notes)}</small>"
        )

    def figure(self) -> Figure:
        """Bars with standard errors; crosses mark the paper's values."""
        from workbench.study.show.plot import draw

        return draw(self)

    def figure_over_time(self) -> Figure:
        """Quality against seconds, for every setting and method measured."""
        from workbench.study.show.plot import draw_over_time

        return draw_over_time(self)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a file in the format that its name ends with: .md, .csv, .tex, .txt, .html, .png, .svg or .pdf."""
        file = Path(path)
        kind = check_choice("the ending of the file", file.suffix, FORMATS)
        write_atomically(file, FORMATS[kind](self))


def _latex(text: str) -> str:
    for plain, written in (("%", r"\%"), ("_", r"\_"), ("±", r"$\pm$")):
        text = text.replace(plain, written)
    return text


def _text(make: Callable[[Results], str]) -> Callable[[Results], bytes]:
    return lambda results: make(results).encode()


def _picture(kind: str) -> Callable[[Results], bytes]:
    def make(results: Results) -> bytes:
        content = io.BytesIO()
        results.figure().savefig(content, format=kind)
        return content.getvalue()

    return make


FORMATS: dict[str, Callable[[Results], bytes]] = {
    ".md": _text(Results.markdown),
    ".csv": _text(Results.csv),
    ".tex": _text(Results.latex),
    ".txt": _text(lambda results: f"{results}\n"),
    ".html": _text(lambda results: f"<!doctype html><meta charset='utf-8'>{results._repr_html_()}"),
    ".png": _picture("png"),
    ".svg": _picture("svg"),
    ".pdf": _picture("pdf"),
}
