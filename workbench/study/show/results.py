"""What a study measured, and what the paper reports: as text, files, a data frame, and plots."""

from __future__ import annotations

import csv
import html
import io
import os
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import ConfigError, check_choice
from workbench.files.writing import write_atomically
from workbench.study.plan.plan import Plan
from workbench.study.plan.units import Row
from workbench.study.show.lines import Line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "Results"]


def _mean(measure: str, digits: int) -> Callable[[Line], str]:
    def text(line: Line) -> str:
        estimate = line.estimate(measure)
        return "" if estimate is None else estimate.text(digits)

    return text


def _deviation(line: Line) -> str:
    deviation = line.deviation("errors")
    return "" if deviation is None else f"{deviation:.2f}"


def _seconds(line: Line) -> str:
    seconds = line.estimate("seconds")
    return "" if seconds is None else f"{seconds.mean:.0f}"


def _published(measure: str, digits: int) -> Callable[[Line], str]:
    return lambda line: f"{line.entry.published[measure]:.{digits}f}" if measure in line.entry.published else ""


# For each kind of table, the columns' heads and how to write a line's cell.
_COLUMNS: dict[str, dict[str, Callable[[Line], str]]] = {
    "images": {
        "recovered %": _mean("recovered", 1),
        "PSNR dB": _mean("psnr", 2),
        "SSIM": _mean("ssim", 3),
        "label errors": _mean("errors", 1),
        "accuracy %": _mean("accuracy", 1),
        "seconds": _seconds,
    },
    "labels": {"label errors": _mean("errors", 2), "sd": _deviation},
    "seconds": {"seconds": _mean("seconds", 1)},
}
# The paper's numbers: measure to head and digits.
_PAPER_HEADS = {
    "recovered": ("paper: %", 1),
    "psnr": ("paper: dB", 1),
    "errors": ("paper: errors", 1),
    "deviation": ("paper: sd", 2),
    "seconds": ("paper: seconds", 0),
    "accuracy": ("paper: accuracy", 2),
}
_MEASURES = ("recovered", "psnr", "ssim", "errors", "accuracy", "seconds", "peak_memory")


class Results:
    """The numbers of a table so far.

    A notebook shows them as a table; ``print`` gives plain text.
    """

    def __init__(self, plan: Plan, rows: Mapping[str, Row]) -> None:
        """Collect the plan's rows; ``rows`` are by key."""
        self.plan = plan
        lines = [
            Line(entry, tuple(rows[unit.key] for unit in entry.units if unit.key in rows)) for entry in plan.entries
        ]
        # A line that is neither wanted, nor measured, nor in the paper is not shown.
        self.lines = [line for line in lines if line.entry.is_wanted or line.rows or line.entry.published]

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """The heads of the columns, and the cells of every line; columns without any value are left out."""
        columns: dict[str, Callable[[Line], str]] = {
            "setting": lambda line: line.entry.setting,
            "method": lambda line: line.entry.method,
            "units": lambda line: line.units_text,
            **_COLUMNS[self.plan.measure],
            **{head: _published(measure, digits) for measure, (head, digits) in _PAPER_HEADS.items()},
        }
        if self.plan.measure == "images" and all(unit.labels != "recovered" for unit in self.plan.shown_units.values()):
            # Known labels have no errors.
            del columns["label errors"]
        filled = {head: [write(line) for line in self.lines] for head, write in columns.items()}
        filled = {head: cells for head, cells in filled.items() if head in ("setting", "method", "units") or any(cells)}
        return list(filled), [list(cells) for cells in zip(*filled.values(), strict=True)]

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
        return ["", *(f"{before}{note}" for note in ("Mean ± standard error over clients.", *self.plan.notes))]

    def markdown(self) -> str:
        """The table in Markdown."""
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
        """The records with full precision, one a line."""
        records = self.records()
        text = io.StringIO()
        writer = csv.DictWriter(text, list(records[0]) if records else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        return text.getvalue()

    def records(self) -> list[dict[str, Any]]:
        """One flat record for each line: means, standard errors and the paper's values."""
        records = []
        for line in self.lines:
            record: dict[str, Any] = {
                "setting": line.entry.setting,
                "method": line.entry.method,
                "units": len(line.rows),
                "planned": len(line.entry.units),
            }
            for measure in _MEASURES:
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
        """Means with standard errors; crosses mark the paper's values."""
        from workbench.study.show.plot import draw

        return draw(self.plan.title, self.plan.measure, self.lines)

    def figure_over_time(self) -> Figure:
        """Quality against seconds, for every setting and method measured."""
        from workbench.study.show.plot import draw_over_time

        return draw_over_time(self.lines)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a file; its ending gives the format: .md, .csv, .tex, .txt, .html, .png, .svg or .pdf."""
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
