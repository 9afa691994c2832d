"""A study from its plan to its results: what is missing is done, kept, shown as it comes, and exported."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.errors import ConfigError
from workbench.study.plan.sweep import plan_sweep
from workbench.study.plan.tables import Plan, plan_table
from workbench.study.plan.units import Unit
from workbench.study.run.execute import Cluster, Executor, InProcess, Processes, Report, execute
from workbench.study.run.store import Row, Store, read_rows, write_rows
from workbench.study.show.live import Progress, progress_for
from workbench.study.show.pictures import pictures_folder, write_figures
from workbench.study.show.results import Results

__all__ = ["DEFAULT_STORE", "run_plan", "sweep", "table"]

DEFAULT_STORE = "study.sqlite"
# Often enough to look at, seldom enough for thousands of quick units.
_EXPORT_SECONDS = 20.0


def table(
    number: int,
    dataset: str = "glyphs",
    *,
    data: str | os.PathLike[str] | None = None,
    clients: int | str | Sequence[int] = 10,
    methods: Sequence[str] | None = None,
    settings: Sequence[str] | None = None,
    preset: str = "paper",
    seeds: Sequence[int] = (0,),
    changes: dict[str, Any] | None = None,
    weights: str | os.PathLike[str] | None = None,
    model: str | None = None,
    repeated_draws: bool = False,
    accuracies: bool = False,
    rounds: int | None = None,
    device: str = "auto",
    store: str | os.PathLike[str] = DEFAULT_STORE,
    out: str | os.PathLike[str] | None = None,
    figures: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    scheduler: str | None = None,
    only_measured: bool = False,
    progress: str = "auto",
) -> Results:
    """Measure a table of the paper, or what is missing of it.

    Args:
        number: 1, 2, 3, 4, 6, 7, 8, 9, 10, or 11 for times.
        dataset: ``femnist``, ``cifar100``, ``glyphs`` or ``photos``.
        data: the data set's files.
        clients: how many, from the first on; or which, as ``"3-5,9"`` or a list.
        methods: some of the table's methods; ``surrogate`` and ``best`` go beyond the paper's five.
        settings: some of the table's settings by name, e.g. ``["10x5x50"]``.
        preset: ``paper`` measures the paper's methods as published, ``best`` the project's best settings on the same
            clients, ``demo`` everything on small clients with few steps.
        seeds: of the network, the clients' batches and the attack.
        changes: other settings of every attack, as for `AttackConfig.preset`.
        weights: the folder with trained weights for Table 7; None looks beside the data.
        model: a built-in network, if not the data set's own.
        repeated_draws: defences repeat their draws in every epoch, as in the paper's experiments.
        accuracies: train for the accuracies of Table 6, too.
        rounds: of that training, 250 if not given.
        device: as for `AttackSession`.
        store: the file that keeps every finished unit; started again, only what is missing is done.
        out: a file of JSON lines to export the table's rows to; rows that are in it are taken over first.
        figures: a folder for pictures like the paper's, of every setting's first client, and for what they are made
            of; what was measured before without it has none.
        jobs: how many processes of this machine; None does everything in this one.
        scheduler: the address of a Dask scheduler to do it there.
        only_measured: do nothing, and show what there is.
        progress: ``text``, ``widget``, ``none``, or ``auto``.
    """
    plan = plan_table(
        number,
        dataset,
        data=data,
        clients=clients,
        methods=methods,
        settings=settings,
        preset=preset,
        seeds=seeds,
        changes=changes,
        weights=weights,
        model=model,
        repeated_draws=repeated_draws,
        accuracies=accuracies,
        rounds=rounds,
        device=device,
    )
    return _results(
        *run_plan(
            plan,
            store=store,
            out=out,
            figures=figures,
            jobs=jobs,
            scheduler=scheduler,
            only_measured=only_measured,
            progress=progress,
        )
    )


def sweep(
    path: str | os.PathLike[str],
    *,
    device: str = "auto",
    store: str | os.PathLike[str] = DEFAULT_STORE,
    out: str | os.PathLike[str] | None = None,
    figures: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    scheduler: str | None = None,
    only_measured: bool = False,
    progress: str = "auto",
) -> Results:
    """Measure a grid of one's own from a TOML file (`plan_sweep` says how it looks); the rest as for `table`."""
    plan = plan_sweep(path, device=device)
    return _results(
        *run_plan(
            plan,
            store=store,
            out=out,
            figures=figures,
            jobs=jobs,
            scheduler=scheduler,
            only_measured=only_measured,
            progress=progress,
        )
    )


def _results(results: Results, report: Report) -> Results:
    if report.failed:
        unit, why = report.failed[0]
        raise ConfigError(f"{len(report.failed)} units could not be done; client {unit.clients[0]}: {why}")
    return results


def run_plan(
    plan: Plan,
    *,
    store: str | os.PathLike[str] = DEFAULT_STORE,
    out: str | os.PathLike[str] | None = None,
    figures: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    scheduler: str | None = None,
    only_measured: bool = False,
    progress: str | Callable[[Plan, dict[str, Row], int], Progress] = "auto",
) -> tuple[Results, Report]:
    """Do what is missing of a plan, or nothing; the results, and how it went."""
    if jobs is not None and scheduler is not None:
        raise ConfigError(f"jobs = {jobs} and scheduler = {scheduler!r}: give only one of them.")
    if figures is not None:
        plan = replace(plan, place=replace(plan.place, pictures=pictures_folder(figures)))
    results, report = _run_plan(plan, store, out, jobs, scheduler, only_measured, progress)
    if figures is not None:
        write_figures(results, Path(figures))
    return results, report


def _run_plan(
    plan: Plan,
    store: str | os.PathLike[str],
    out: str | os.PathLike[str] | None,
    jobs: int | None,
    scheduler: str | None,
    only_measured: bool,
    progress: str | Callable[[Plan, dict[str, Row], int], Progress],
) -> tuple[Results, Report]:
    shown_units = [unit for entry in plan.entries for unit in entry.units]
    with Store(store) as kept:
        if out is not None and Path(out).exists():
            kept.add_rows(read_rows(out))
        rows = kept.rows(shown_units)
        export = _Export(plan, rows, out)
        export(is_due=True)
        if only_measured:
            plan = plan.measured(rows)
        units = plan.units
        if all(unit.key in rows for unit in units):
            return Results(plan, rows), Report(before=len(units))
        executor = _executor(jobs, scheduler)
        show = progress_for(progress, plan, rows, executor.width())

        def on_row(unit: Unit, row: Row) -> None:
            rows[unit.key] = row
            show.update(row)
            export()

        try:
            report = execute(units, plan.place, kept, executor, on_row, show.wait)
        finally:
            show.close()
            executor.close()
            export(is_due=True)
    return Results(plan, rows), report


def _executor(jobs: int | None, scheduler: str | None) -> Executor:
    if scheduler is not None:
        return Cluster(scheduler)
    return InProcess() if jobs is None else Processes(jobs)


class _Export:
    """The rows of a table as JSON lines, in the table's order, written anew from time to time."""

    def __init__(self, plan: Plan, rows: dict[str, Row], out: str | os.PathLike[str] | None) -> None:
        self._keys = list(dict.fromkeys(unit.key for entry in plan.entries for unit in entry.units))
        self._rows = rows
        self._out = out
        self._last = -_EXPORT_SECONDS
        # Rows in the file that this plan does not have are kept.
        self._others = [] if out is None or not Path(out).exists() else read_rows(out)

    def __call__(self, *, is_due: bool = False) -> None:
        if self._out is None or not (is_due or time.monotonic() - self._last > _EXPORT_SECONDS):
            return
        ours = {key: self._rows[key] for key in self._keys if key in self._rows}
        write_rows(self._out, [*(row for row in self._others if row["key"] not in ours), *ours.values()])
        self._last = time.monotonic()
