"""The numbers of one line of a table: means over clients with their standard errors."""

import math
from dataclasses import dataclass
from itertools import chain
from statistics import mean, stdev

from workbench.study.plan.plan import Entry, Row

__all__ = ["Estimate", "Line"]


@dataclass(frozen=True)
class Estimate:
    """A mean over clients, and its standard error where there are several."""

    mean: float
    error: float | None = None

    def text(self, digits: int) -> str:
        """E.g. ``21.50 ± 0.65``; a whole number is shown without its error."""
        return f"{self.mean:.{digits}f}" + (f" ± {self.error:.{digits}f}" if self.error is not None and digits else "")


@dataclass(frozen=True)
class Line:
    """One line of a table with the rows measured so far."""

    entry: Entry
    rows: tuple[Row, ...]

    def estimate(self, measure: str) -> Estimate | None:
        """The mean over clients of one measure; several seeds of a client count as one value, their mean.

        The measure ``deviation`` is the standard deviation of label errors over all units, as the paper reports it.
        What the paper reports for a measure is a measure too, ``paper_psnr`` for ``psnr``.
        """
        if measure.startswith("paper_"):
            number = self.entry.published.get(measure.removeprefix("paper_"))
            return None if number is None else Estimate(number)
        by_client: dict[tuple[int, ...], list[float]] = {}
        for row in self.rows:
            value = _value(row, measure, self.entry.method)
            if value is not None:
                by_client.setdefault(tuple(row["settings"]["clients"]), []).append(value)
        if measure == "deviation":
            values = list(chain(*by_client.values()))
            return Estimate(stdev(values)) if len(values) > 1 else None
        means = [mean(values) for values in by_client.values()]
        if not means:
            return None
        return Estimate(mean(means), stdev(means) / math.sqrt(len(means)) if len(means) > 1 else None)

    @property
    def units_text(self) -> str:
        """How many units are measured, e.g. ``3/4 (1 diverged)``."""
        diverged = sum(row["outcome"] != "finished" for row in self.rows)
        return f"{len(self.rows)}/{len(self.entry.units)}" + (f" ({diverged} diverged)" if diverged else "")


# Measures whose name in a row differs.
_ROW_NAMES = {
    "recovered": "recovered_percent",
    "accuracy": "accuracy_percent",
    "errors": "label_errors",
    "deviation": "label_errors",
}


def _value(row: Row, measure: str, method: str) -> float | None:
    value = row.get(_ROW_NAMES.get(measure, measure))
    if isinstance(value, dict):
        # The label errors of several methods.
        value = value.get(method)
    if isinstance(value, list):
        # One value for each image, None where it is not finite.
        finite = [one for one in value if one is not None]
        value = mean(finite) if finite else None
    return value
