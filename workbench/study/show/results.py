"""What a study measured, and what the paper reports: as text, files, a data frame, and plots."""

from __future__ import annotations

import csv
import html
import io
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import ConfigError, check_choice, shown
from workbench.files.writing import write_atomically
from workbench.study.plan.plan import Estimate, Line, Plan, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "PICTURES", "Results", "text_table"]


# For each kind of table, the columns' heads, each with its measure (see `Line.estimate`) and the number of digits.
_COLUMNS = {
    "images": {
        "recovered %": ("recovered", 1),
        "PSNR dB": ("psnr", 2),
        "SSIM": ("ssim", 3),
        "label errors": ("errors", 1),
        "accuracy %": ("accuracy", 1),
        "seconds": ("seconds", 0),
    },
    "labels": {"label errors": ("errors", 2), "sd": ("deviation", 2)},
    "seconds": {"seconds": ("seconds", 1)},
}
# The columns of the paper's numbers.
_PAPER_COLUMNS = {
    "paper: %": ("paper_recovered", 1),
    "paper: dB": ("paper_psnr", 1),
    "paper: errors": ("paper_errors", 1),
    "paper: sd": ("paper_deviation", 2),
    "paper: seconds": ("paper_seconds", 0),
    "paper: accuracy": ("paper_accuracy", 2),
}
_LATEX = str.maketrans({"%": r"\%", "_": r"\_", "±": r"$\pm$"})
_MEASURES = (
    *("recovered", "psnr", "ssim", "errors", "accuracy", "seconds", "peak_memory"),
    *(measure for measure, _ in _PAPER_COLUMNS.values()),
)


class Results:
    """The numbers of a table so far.

    A notebook shows them as a table; ``print`` gives plain text.
    """

    def __init__(self, plan: Plan, rows: Mapping[str, Row]) -> None:
        """Collect the plan's rows; ``rows`` are by key."""
        self.plan = plan
        self._notes = ("Mean ± standard error over clients.", *plan.notes)
        lines = [
            Line(entry, tuple(rows[unit.key] for unit in entry.units if unit.key in rows)) for entry in plan.entries
        ]
        # A line that is neither wanted, nor measured, nor in the paper is not shown.
        self.lines = [line for line in lines if line.entry.is_wanted or line.rows or line.entry.published]

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """The heads of the columns, and the cells of every line; columns without any value are left out."""
        columns = {
            "setting": [line.entry.setting for line in self.lines],
            "method": [line.entry.method for line in self.lines],
            "units": [line.units_text for line in self.lines],
        }
        numbers = {
            head: _cells([line.estimate(measure) for line in self.lines], digits)
            for head, (measure, digits) in (_COLUMNS[self.plan.measure] | _PAPER_COLUMNS).items()
        }
        if self.plan.measure == "images" and all(unit.labels != "recovered" for unit in self.plan.shown_units.values()):
            # Known labels have no errors.
            del numbers["label errors"]
        columns |= {head: cells for head, cells in numbers.items() if any(cells)}
        return list(columns), [list(cells) for cells in zip(*columns.values(), strict=True)]

    def __str__(self) -> str:
        heads, body = self.cells()
        return "\n".join([self.plan.title, "", text_table([heads, *body]), "", *self._notes])

    def markdown(self) -> str:
        """The table in Markdown."""
        heads, body = self.cells()
        lines = [heads, ["---"] * len(heads), *body]
        return "\n".join(
            [
                f"**{self.plan.title}**",
                "",
                *(f"| {' | '.join(cells)} |" for cells in lines),
                "",
                *self._notes,
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
            records.append(record)
        used = [name for name in (records[0] if records else {}) if any(r[name] is not None for r in records)]
        return [{name: record[name] for name in used} for record in records]

    def values(self, setting: str, method: str, measure: str = "recovered") -> dict[tuple[int, ...], float]:
        """What was measured in one line, by clients and seed: for (3, 0), writer 3 with seed 0.

        Args:
            setting: e.g. ``10x5x50``.
            method: e.g. ``best``.
            measure: ``recovered``, ``psnr``, ``ssim``, ``errors``, ``accuracy`` or ``seconds``.
        """
        check_choice("measure", measure, _MEASURES)
        lines = {(line.entry.setting, line.entry.method): line for line in self.lines}
        if (setting, method) not in lines:
            known = "; ".join(f"{one}, {other}" for one, other in lines)
            raise ConfigError(f"the table has no line {shown(setting)}, {shown(method)}; it has: {known}.")
        return lines[setting, method].values(measure)

    def frame(self) -> Any:
        """A pandas data frame of the records."""
        try:
            import pandas as pd
        except ImportError:
            raise ConfigError(
                "a data frame needs pandas, which is not installed: pip install pandas; or use records()."
            ) from None
        return pd.DataFrame(self.records())

    def latex(self) -> str:
        """A ``tabular`` with ``booktabs`` rules."""
        heads, body = self.cells()
        lines = [" & ".join(cells).translate(_LATEX) + r" \\" for cells in (heads, *body)]
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
                *(f"% {note}" for note in self._notes),
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
        return (
            f"<b>{html.escape(self.plan.title)}</b><table><thead><tr>{head}</tr></thead>"
            f"<tbody>{lines}</tbody></table><small>{html.escape(' '.join(self._notes))}</small>"
        )

    def figure(self) -> Figure:
        """Means with standard errors; crosses mark the paper's values."""
        from workbench.study.show.figures import draw

        return draw(self.plan.title, self.plan.measure, self.lines)

    def figure_over_time(self) -> Figure:
        """Quality against seconds, for every setting and method measured."""
        from workbench.study.show.figures import draw_over_time

        return draw_over_time(self.lines)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a file; its ending gives the format: .md, .csv, .tex, .txt, .html, .png, .svg or .pdf."""
        file = Path(path)
        kind = check_choice("the ending of the file", file.suffix, FORMATS)
        if kind in _TEXTS:
            content = _TEXTS[kind](self).encode()
        else:
            picture = io.BytesIO()
            self.figure().savefig(picture, format=kind[1:])
            content = picture.getvalue()
        write_atomically(file, content)


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as aligned text, with a line below the first one.

    >>> print(text_table([("method", "PSNR"), ("fedsgd", "21.50 dB")]))
    method  PSNR
    ----------------
    fedsgd  21.50 dB
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def _cells(estimates: Sequence[Estimate | None], digits: int) -> list[str]:
    return ["" if estimate is None else estimate.text(digits) for estimate in estimates]


_TEXTS: dict[str, Callable[[Results], str]] = {
    ".md": Results.markdown,
    ".csv": Results.csv,
    ".tex": Results.latex,
    ".txt": lambda results: f"{results}\n",
    ".html": lambda results: f"<!doctype html><meta charset='utf-8'>{results._repr_html_()}",
}
PICTURES = (".png", ".svg", ".pdf")
FORMATS = (*_TEXTS, *PICTURES)
