"""The command line: ``workbench demo``, ``attack``, ``table`` and ``sweep``.

Exit codes: 0 when all went well, 1 when an attack diverged, 2 when the input was wrong, 130 after Ctrl-C. A run that
Ctrl-C or a divergence ends still prints its table and writes its report and checkpoint.
"""

import sys
from collections.abc import Sequence
from importlib.metadata import version
from itertools import pairwise
from typing import Annotated

import typer

from workbench.cli import attack, study
from workbench.errors import ConfigError, WorkbenchError

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
        sys.exit(app(standalone_mode=False, prog_name="workbench"))
    except WorkbenchError as error:
        _fail(str(error))
    except typer.TyperException as error:
        _fail(f"{error.format_message()} See workbench --help.")


def _check_nothing_is_empty(arguments: Sequence[str]) -> None:
    """Refuse empty values: an empty path would be the current folder, which --data "$FEMNIST" never means."""
    for before, argument in pairwise(arguments):
        if not argument or (argument.startswith("--") and argument.endswith("=")):
            name = argument.rstrip("=") or before
            raise ConfigError(f"what follows {name} is empty; so is a shell variable that has not been set.")


def _fail(message: str) -> None:
    typer.echo("workbench: " + " ".join(message.split()), err=True)
    sys.exit(2)


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


app.command()(attack.demo)
app.command()(attack.attack)
app.command()(study.table)
app.command()(study.sweep)
