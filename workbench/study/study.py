"""A study from its plan to its results: measures what is missing, stores it, shows its progress, and exports it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workbench.errors import ConfigError
from workbench.settings import check_settings, make_options, setting, takes
from workbench.study.plan.plan import Plan, Row, Unit
from workbench.study.plan.stored import plan_stored
from workbench.study.plan.tables import TableOptions, plan_sweep, plan_table
from workbench.study.run.execute import Cluster, Executor, Processes, Report, execute
from workbench.study.run.store import Store, read_rows, write_rows
from workbench.study.show.live import progress_for
from workbench.study.show.results import Results

__all__ = ["RunOptions", "results", "run_plan", "sweep", "table"]

# Often enough to look at the file, seldom enough for thousands of quick units.
_EXPORT_SECONDS = 20.0


@dataclass(frozen=True)
class RunOptions:
    """Where a study runs and what it writes; no option changes a result. Each field's ``help`` describes it."""

    store: Path = setting(
        Path("study.sqlite"),
        "Store",
        "SQLite file that stores every finished unit; a second run measures only what is missing.",
    )
    out: Path | None = setting(
        None, "Export of rows", "File of JSON lines to export the rows to; rows already in it are imported first."
    )
    figures: Path | None = setting(
        None,
        "Figures",
        "Draw each setting's first client into this folder: all methods, epochs, all images.",
        metavar="FOLDER",
    )
    jobs: int | None = setting(None, "Processes", "Number of processes on this machine; default: only this one.")
    scheduler: str | None = setting(
        None, "Dask scheduler", "Run on a Dask cluster, e.g. tcp://host:8786.", metavar="ADDRESS"
    )
    only_measured: bool = setting(
        False, "Only measured results", "Measure nothing; show and export the stored results."
    )
    device: str = setting("auto", "Device", "auto, or a JAX device such as cpu or gpu:1.")
    progress: str = setting(
        "auto",
        "Progress",
        "How progress is shown; auto is a widget in a notebook and text elsewhere.",
        choices=("auto", "text", "widget", "none"),
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.jobs is not None and self.scheduler is not None:
            raise ConfigError(f"jobs = {self.jobs} and scheduler = {self.scheduler!r}: give only one of them.")


@takes(TableOptions, RunOptions)
def table(number: int, dataset: str = "glyphs", **options: Any) -> Results:
    """Measure a table of the paper, or the part of it that is missing.

    Args:
        number: 1, 2, 3, 4, 6, 7, 8, 9, 10, or 11 for times.
        dataset: ``femnist``, ``cifar100``, ``glyphs`` or ``photos``.
        options: what to measure, the fields of `TableOptions`; and how to run it, the fields of `RunOptions`.
    """
    chosen, run = make_options(options, TableOptions, RunOptions)
    return _complete(*run_plan(plan_table(number, dataset, **vars(chosen)), **vars(run)))


@takes(RunOptions)
def sweep(path: str | os.PathLike[str], **run: Any) -> Results:
    """Measure a custom grid from a TOML file, which `plan_sweep` describes.

    Args:
        path: of the file.
        run: how to run it, the fields of `RunOptions`.
    """
    (chosen,) = make_options(run, RunOptions)
    return _complete(*run_plan(plan_sweep(path), **vars(chosen)))


def results(number: int, *files: str | os.PathLike[str]) -> Results:
    """A table of the paper from measured rows, without the data that they were measured on; computes nothing.

    Args:
        number: of the table.
        files: JSON lines that ``workbench table --out`` or ``sweep --out`` wrote. A unit in several of them counts
            once, as in the first.
    """
    rows = [(Unit.from_settings(row["settings"]), row) for file in reversed(files) for row in read_rows(file)]
    units = {unit.key: unit for unit, _ in rows}
    return Results(plan_stored(number, list(units.values())), {unit.key: row for unit, row in rows})


def _complete(results: Results, report: Report) -> Results:
    if report.failed:
        unit, why = report.failed[0]
        raise ConfigError(f"{len(report.failed)} units failed; client {unit.clients[0]}: {why}")
    return results


@takes(RunOptions)
def run_plan(plan: Plan, **run: Any) -> tuple[Results, Report]:
    """Measure the missing units of a plan; the results, and what this run did.

    Args:
        plan: of `plan_table` or `plan_sweep`.
        run: how to run it, the fields of `RunOptions`.
    """
    (options,) = make_options(run, RunOptions)
    pictures = None if options.figures is None else str(Path(options.figures, "pictures").absolute())
    plan = replace(plan, place=replace(plan.place, device=options.device, pictures=pictures))
    with Store(options.store) as store:
        exported = read_rows(options.out) if options.out is not None and Path(options.out).exists() else []
        store.add_rows(exported)
        rows = store.rows(plan.shown_units.values())
        export = _Export(options.out, exported, plan, rows)
        export.write()
        if options.only_measured:
            plan = plan.measured(rows)
        report = _measure_missing(plan, rows, store, export, options)
    results = Results(plan, rows)
    if pictures is not None:
        # matplotlib takes a while to import, and nothing before needs it.
        from workbench.study.show.figures import write_figures

        write_figures(results.lines, pictures)
    return results, report


def _measure_missing(plan: Plan, rows: dict[str, Row], store: Store, export: _Export, options: RunOptions) -> Report:
    """Measure the plan's units that are not in ``rows``, and add them there."""
    units = plan.units
    if all(unit.key in rows for unit in units):
        return Report(before=len(units))
    executor = _executor(options)
    progress = progress_for(options.progress, plan, rows, executor.width())

    def on_row(unit: Unit, row: Row) -> None:
        rows[unit.key] = row
        progress.update(row)
        export.write(_EXPORT_SECONDS)

    try:
        return execute(units, plan.place, store, executor, on_row, progress.wait)
    finally:
        progress.close()
        executor.close()
        export.write()


def _executor(options: RunOptions) -> Executor:
    if options.scheduler is not None:
        return Cluster(options.scheduler)
    return Executor() if options.jobs is None else Processes(options.jobs)


@dataclass
class _Export:
    """The rows of a table as a file of JSON lines, in the table's order.

    Attributes:
        out: the file; None writes nothing.
        exported: rows that the file has already; those of other plans stay in it.
        plan: of the table.
        rows: the finished rows by key.
        last: when it was written last.
    """

    out: Path | None
    exported: list[Row]
    plan: Plan
    rows: Mapping[str, Row]
    last: float = 0.0

    def write(self, after_seconds: float = 0.0) -> None:
        """Write the file if the last time was so many seconds ago."""
        if self.out is None or time.monotonic() - self.last < after_seconds:
            return
        ours = {key: self.rows[key] for key in self.plan.shown_units if key in self.rows}
        write_rows(self.out, [*(row for row in self.exported if row["key"] not in ours), *ours.values()])
        self.last = time.monotonic()
