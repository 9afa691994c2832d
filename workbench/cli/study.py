"""The commands ``workbench table`` and ``workbench sweep``.

Exit codes: 0 when every unit is measured, 1 when units failed, 2 for wrong input, 130 after Ctrl-C.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from workbench.cli.common import advise, check_outputs, keep_compilations, parse_settings
from workbench.cli.options import Reader, study_options
from workbench.errors import ConfigError, check_choice
from workbench.study.options import RunOptions, TableOptions, split_options, with_parameters
from workbench.study.plan.cohort import DATASETS
from workbench.study.plan.plan import Plan
from workbench.study.plan.sweep import plan_sweep
from workbench.study.plan.tables import NUMBERS, plan_table
from workbench.study.show.results import FORMATS
from workbench.study.study import run_plan

__all__ = ["sweep", "table"]


def _seeds(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"seeds = {text!r} must be whole numbers such as 0,1,2.") from None


def _names(separator: str, texts: list[str]) -> list[str]:
    return [name.strip() for text in texts for name in text.split(separator)]


_READERS: dict[str, Reader] = {
    "clients": (str, str),
    "methods": (str | None, lambda text: _names(",", [text])),
    "settings": (list[str] | None, lambda texts: _names(";", texts)),
    "seeds": (str, _seeds),
    "changes": (list[str] | None, parse_settings),
}
_TABLE_OPTIONS = study_options(TableOptions, "The study", _READERS)
_RUN_OPTIONS = study_options(RunOptions, "The run", {})

Export = Annotated[
    list[Path] | None,
    typer.Option(
        "--export",
        help=f"Write the table; the ending gives the format: {', '.join(FORMATS)}; repeatable.",
        rich_help_panel="The run",
    ),
]
OverTime = Annotated[
    Path | None,
    typer.Option(
        "--over-time", help="Draw quality against seconds into a .png, .svg or .pdf file.", rich_help_panel="The run"
    ),
]


def table(
    number: Annotated[int, typer.Argument(help="One of: " + ", ".join(map(str, NUMBERS)) + ".")],
    dataset: Annotated[
        str, typer.Option("--dataset", help="One of: " + ", ".join(DATASETS) + ".", rich_help_panel="The study")
    ] = "femnist",
    export: Export = None,
    over_time: OverTime = None,
    **options: Any,
) -> int:
    """Measure the missing units of a table of the paper, and show its numbers beside the paper's."""
    chosen, run = split_options(options, TableOptions, RunOptions)
    for name, (_, read) in _READERS.items():
        text = chosen.pop(name)
        if text:
            chosen[name] = read(text)
    return _run(plan_table(number, dataset, **chosen), run, export or [], over_time)


def sweep(
    file: Annotated[Path, typer.Argument(help="A TOML file; every combination of the lists in it is measured.")],
    export: Export = None,
    over_time: OverTime = None,
    **run: Any,
) -> int:
    """Measure every combination of a custom grid from a TOML file."""
    return _run(plan_sweep(file), run, export or [], over_time)


with_parameters(table, [*_TABLE_OPTIONS, *_RUN_OPTIONS])
with_parameters(sweep, _RUN_OPTIONS)


def _run(plan: Plan, run: dict[str, Any], export: list[Path], over_time: Path | None) -> int:
    """Run a plan, print and write its results; the exit code."""
    for path in export:
        check_choice("the ending of --export", path.suffix, FORMATS)
    if over_time is not None:
        check_choice("the ending of --over-time", over_time.suffix, (".png", ".svg", ".pdf"))
    check_outputs(run["store"], run["out"], *export, over_time)
    keep_compilations()
    if not run["only_measured"]:
        advise()
        typer.echo(f"{plan.title}: {len(plan.units)} units, stored in {run['store']}.")
    try:
        results, report = run_plan(plan, **run)
    except KeyboardInterrupt:
        typer.echo("Stopped; finished units are stored, and the same command measures the rest.")
        return 130
    typer.echo(f"\n{results}\n\n{report.done} units measured now, {report.before} stored before.")
    for path in export:
        results.write(path)
    if over_time is not None:
        results.figure_over_time().savefig(over_time)
    for unit, why in report.failed[:5]:
        typer.echo(f"Failed: client {unit.clients[0]}, {unit.attack and unit.attack.method}: {why}", err=True)
    if len(report.failed) > 5:
        typer.echo(f"Failed: {len(report.failed) - 5} more units.", err=True)
    if report.is_stopped:
        typer.echo("Stopped by Ctrl-C; the same command measures the rest.")
        return 130
    return 1 if report.failed else 0
