"""The numbers of one line of a table: means over clients with their standard errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from workbench.study.plan.plan import Entry
from workbench.study.plan.units import Row

__all__ = ["Estimate", "Line"]


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

    def text(self, digits: int) -> str:
        return f"{self.mean:.{digits}f}" + ("" if self.error is None else f" ± {self.error:.{digits}f}")


@dataclass(frozen=True)
class Line:
    """One line of a table with the rows measured so far."""

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
    def units_text(self) -> str:
        """How many units are measured, e.g. ``3/4 (1 diverged)``."""
        diverged = sum(row["outcome"] != "finished" for row in self.rows)
        return f"{len(self.rows)}/{len(self.entry.units)}" + (f" ({diverged} diverged)" if diverged else "")


# Measures whose name in a row differs.
_ROW_NAMES = {"recovered": "recovered_percent", "accuracy": "accuracy_percent", "errors": "label_errors"}


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
