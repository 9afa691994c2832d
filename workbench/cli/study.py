"""The commands ``workbench table`` and ``workbench sweep``.

Exit codes as for the other commands: 0 when all is done, 1 when units failed, 2 for wrong input, 130 after Ctrl-C.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from workbench.cli.common import advise, check_outputs, keep_compilations, parse_settings
from workbench.config import LABEL_METHODS
from workbench.errors import ConfigError, check_choice
from workbench.study.plan.sweep import plan_sweep
from workbench.study.plan.tables import ALL_METHODS, DATASETS, NUMBERS, PRESETS, Plan, plan_table
from workbench.study.run.run import DEFAULT_STORE, run_plan
from workbench.study.show.results import FORMATS

__all__ = ["sweep", "table"]


def _study(*names: str, help: str, **more: Any) -> Any:  # noqa: A002 - typer's own name for it
    return typer.Option(*names, help=help, rich_help_panel="The study", **more)


def _run(*names: str, help: str, **more: Any) -> Any:  # noqa: A002 - typer's own name for it
    return typer.Option(*names, help=help, rich_help_panel="The run", **more)


StoreFile = Annotated[Path, _run("--store", help="Keeps every finished unit; started again, only the rest is done.")]
Out = Annotated[Path | None, _run("--out", help="Export the rows as JSON lines; rows that are in it are taken over.")]
Export = Annotated[
    list[Path] | None,
    _run("--export", help=f"Write the table, in the format of the ending: {', '.join(FORMATS)}; repeatable."),
]
OverTime = Annotated[
    Path | None, _run("--over-time", help="Draw quality against seconds, into a .png, .svg or .pdf file.")
]
Figures = Annotated[
    Path | None,
    _run("--figures", metavar="FOLDER", help="Draw every setting's first client there: methods, epochs, all images."),
]
Jobs = Annotated[int | None, _run("--jobs", help="Processes of this machine, if not this one alone.")]
Scheduler = Annotated[
    str | None, _run("--scheduler", metavar="ADDRESS", help="Have it done by a Dask cluster, e.g. tcp://host:8786.")
]
OnlyMeasured = Annotated[bool, _run("--only-measured", help="Do nothing: show and export what there is.")]
Device = Annotated[str, _run("--device", help="auto, or a device of JAX's such as cpu or gpu:1.")]


def table(
    number: Annotated[int, typer.Argument(help="One of: " + ", ".join(map(str, NUMBERS)) + ".")],
    dataset: Annotated[str, _study("--dataset", help="One of: " + ", ".join(DATASETS) + ".")] = "femnist",
    data: Annotated[Path | None, _study("--data", help="The data set's files.")] = None,
    clients: Annotated[str, _study("--clients", help="How many, from the first on; or which, such as 3-5,9.")] = "10",
    methods: Annotated[
        str | None,
        _study(
            "--methods",
            help="Some of: " + ", ".join(ALL_METHODS) + "; for Table 2: " + ", ".join(LABEL_METHODS) + ".",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        _study("--setting", "--settings", help="One of the table's settings, e.g. 10x5x50; repeatable, or with ';'."),
    ] = None,
    preset: Annotated[
        str,
        _study(
            "--preset", help="paper: as published; best: our best settings on the same clients; demo: a quick look."
        ),
    ] = "paper",
    seeds: Annotated[str, _study("--seeds", help="Of the network, the batches and the attack, e.g. 0,1,2.")] = "0",
    set_: Annotated[
        list[str] | None, _study("--set", metavar="NAME=VALUE", help="A field of every AttackConfig; repeatable.")
    ] = None,
    weights: Annotated[
        Path | None, _study("--weights", help="The folder of trained weights (Table 7), if not that of the data.")
    ] = None,
    model: Annotated[str | None, _study("--model", help="A built-in network, if not the data set's.")] = None,
    repeated_draws: Annotated[
        bool, _study("--repeated-draws", help="Table 6: defences draw alike in every epoch, as in the paper.")
    ] = False,
    accuracies: Annotated[
        bool, _study("--accuracies", help="Table 6: train 250 rounds for the accuracies, too.")
    ] = False,
    rounds: Annotated[int | None, _study("--rounds", help="Of that training, if not 250.")] = None,
    store: StoreFile = Path(DEFAULT_STORE),
    out: Out = None,
    export: Export = None,
    over_time: OverTime = None,
    figures: Figures = None,
    jobs: Jobs = None,
    scheduler: Scheduler = None,
    only_measured: OnlyMeasured = False,
    device: Device = "auto",
) -> int:
    """Measure a table of the paper: what is missing is done, and the paper's numbers stand beside ours."""
    check_choice("preset", preset, PRESETS)
    chosen = [name.strip() for text in settings or [] for name in text.split(";")]
    plan = plan_table(
        number,
        dataset,
        data=data,
        clients=clients,
        methods=None if methods is None else [name.strip() for name in methods.split(",")],
        settings=chosen or None,
        preset=preset,
        seeds=_whole_numbers("seeds", seeds),
        changes=parse_settings(set_ or []),
        weights=weights,
        model=model,
        repeated_draws=repeated_draws,
        accuracies=accuracies,
        rounds=rounds,
        device=device,
    )
    return _do(
        plan,
        store=store,
        out=out,
        export=export or [],
        over_time=over_time,
        figures=figures,
        jobs=jobs,
        scheduler=scheduler,
        only_measured=only_measured,
    )


def sweep(
    file: Annotated[Path, typer.Argument(help="A TOML file; every list in it is a choice.")],
    store: StoreFile = Path(DEFAULT_STORE),
    out: Out = None,
    export: Export = None,
    over_time: OverTime = None,
    figures: Figures = None,
    jobs: Jobs = None,
    scheduler: Scheduler = None,
    only_measured: OnlyMeasured = False,
    device: Device = "auto",
) -> int:
    """Measure every combination of a grid of one's own, from a TOML file."""
    plan = plan_sweep(file, device=device)
    return _do(
        plan,
        store=store,
        out=out,
        export=export or [],
        over_time=over_time,
        figures=figures,
        jobs=jobs,
        scheduler=scheduler,
        only_measured=only_measured,
    )


def _whole_numbers(field: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{field} = {text!r} must be whole numbers such as 0,1,2.") from None


def _do(
    plan: Plan,
    *,
    store: Path,
    out: Path | None,
    export: list[Path],
    over_time: Path | None,
    figures: Path | None,
    jobs: int | None,
    scheduler: str | None,
    only_measured: bool,
) -> int:
    for path in export:
        check_choice("the ending of --export", path.suffix, FORMATS)
    if over_time is not None:
        check_choice("the ending of --over-time", over_time.suffix, (".png", ".svg", ".pdf"))
    check_outputs(store, out, *export, over_time)
    keep_compilations()
    if not only_measured:
        advise()
        typer.echo(f"{plan.title}: {len(plan.units)} units, kept in {store}.")
    try:
        results, report = run_plan(
            plan,
            store=store,
            out=out,
            figures=figures,
            jobs=jobs,
            scheduler=scheduler,
            only_measured=only_measured,
        )
    except KeyboardInterrupt:
        typer.echo("Stopped at once; what was finished is kept, and the same command goes on from there.")
        return 130
    typer.echo(f"\n{results}\n\n{report.done} units done here, {report.before} were done before.")
    for path in export:
        results.write(path)
    if over_time is not None:
        results.figure_over_time().savefig(over_time)
    for unit, why in report.failed[:5]:
        typer.echo(f"Not done: client {unit.clients[0]}, {unit.attack and unit.attack.method}: {why}", err=True)
    if len(report.failed) > 5:
        typer.echo(f"Not done: {len(report.failed) - 5} more.", err=True)
    if report.is_stopped:
        typer.echo("Stopped by Ctrl-C; the same command goes on from here.")
        return 130
    return 1 if report.failed else 0
