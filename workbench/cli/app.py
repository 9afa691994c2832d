"""The command line: ``workbench demo``, ``attack``, ``audit``, ``export``, ``table`` and ``sweep``.

Exit codes: 0 when all went well, 1 when an attack diverged or units of a study failed, 2 when the input was wrong, 130
after Ctrl-C. A run that Ctrl-C or a divergence ends still prints its table and writes its report and checkpoint.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from workbench.cli.attack import attack, demo
from workbench.cli.audit import audit
from workbench.cli.common import given_settings, one_of, option, parse_settings, prepare_run, seed_list, setting_options
from workbench.cli.export import export
from workbench.errors import ConfigError, WorkbenchError, check_choice
from workbench.progress import repeated_interrupts
from workbench.settings import with_parameters
from workbench.study.plan.plan import DATASETS, Plan
from workbench.study.plan.tables import NUMBERS, TableOptions, plan_sweep, plan_table
from workbench.study.show.results import FORMATS, PICTURES
from workbench.study.study import RunOptions, run_plan

__all__ = ["app", "main"]

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Study what federated averaging gives away: attack your own updates, and look at the result.",
)


def main() -> None:
    """Run the command line; whatever is wrong with the input is one line on standard error, and exit code 2."""
    try:
        _check_nothing_is_empty(sys.argv)
        with repeated_interrupts():
            code = app(standalone_mode=False, prog_name="workbench")
        sys.exit(code)
    except (WorkbenchError, typer.TyperException) as error:
        message = str(error) if isinstance(error, WorkbenchError) else f"{error.format_message()} See workbench --help."
        typer.echo("workbench: " + " ".join(message.split()), err=True)
        sys.exit(2)


def _check_nothing_is_empty(arguments: Sequence[str]) -> None:
    """Refuse empty values: an empty path would be the current folder, which --data "$FEMNIST" never means."""
    for before, argument in pairwise(arguments):
        if not argument or (argument.startswith("--") and argument.endswith("=")):
            name = argument.rstrip("=") or before
            raise ConfigError(f"what follows {name} is empty; so is a shell variable that has not been set.")


@app.callback(invoke_without_command=True)
def _workbench(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if show_version:
        typer.echo(f"workbench {version('fedavg-leakage-workbench')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _names(separator: str, texts: list[str]) -> list[str]:
    return [name.strip() for text in texts for name in text.split(separator)]


# Options that the command line takes as text: their types there, and how to read them.
_READERS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "clients": (str, str),
    "methods": (str, lambda text: _names(",", [text])),
    "settings": (list[str], lambda texts: _names(";", texts)),
    "seeds": (str, seed_list),
    "changes": (list[str], parse_settings),
}
_TEXT_DEFAULTS = {"clients": "10", "seeds": "0"}
_STUDY, _RUN = "The study", "The run"
_RUN_OPTIONS = [one for one in setting_options(RunOptions, _RUN, defaults={}) if one.name != "progress"]
_RUN_OPTIONS += [
    option("export", list[Path] | None, None, _RUN, f"Write the table; repeatable. {one_of(FORMATS)}"),
    option("over_time", Path | None, None, _RUN, "Draw quality against seconds into a .png, .svg or .pdf file."),
]
_TABLE_OPTIONS = [
    option("dataset", str, "femnist", _STUDY, f"Data set: where the clients' images come from. {one_of(DATASETS)}"),
    *setting_options(
        TableOptions, _STUDY, defaults=_TEXT_DEFAULTS, kinds={name: kind for name, (kind, _) in _READERS.items()}
    ),
]


def table(number: Annotated[int, typer.Argument(help=one_of(list(map(str, NUMBERS))))], **values: Any) -> int:
    """Measure the missing units of a table of the paper, and show its numbers beside the paper's."""
    chosen = given_settings(TableOptions, values)
    for name, (_, read) in _READERS.items():
        if name in chosen:
            chosen[name] = read(chosen[name])
    return _run(plan_table(number, values["dataset"], **chosen), **values)


def sweep(
    file: Annotated[Path, typer.Argument(help="A TOML file; every combination of the lists in it is measured.")],
    **values: Any,
) -> int:
    """Measure every combination of a custom grid from a TOML file."""
    return _run(plan_sweep(file), **values)


def _run(plan: Plan, export: list[Path] | None, over_time: Path | None, **values: Any) -> int:
    """Run a plan, print and write its results; the exit code."""
    run, export = given_settings(RunOptions, values), export or []
    for path in export:
        check_choice("the ending of --export", path.suffix, FORMATS)
    if over_time is not None:
        check_choice("the ending of --over-time", over_time.suffix, PICTURES)
    prepare_run(values["store"], values["out"], *export, over_time, is_advised=not values["only_measured"])
    if not values["only_measured"]:
        typer.echo(f"{plan.title}: {len(plan.units)} units, stored in {values['store']}.")
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


for command in (
    demo,
    attack,
    audit,
    export,
    with_parameters(table, [*_TABLE_OPTIONS, *_RUN_OPTIONS]),
    with_parameters(sweep, _RUN_OPTIONS),
):
    app.command()(command)
