"""The command line: ``workbench demo``, ``attack``, ``table`` and ``sweep``.

Exit codes: 0 when all went well, 1 when an attack diverged, 2 when the input was wrong, 130 after Ctrl-C. A run that
Ctrl-C or a divergence ends still prints its table and writes its report and checkpoint.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench.attack.methods import METHODS
from workbench.cli import study as study_commands
from workbench.cli.common import advise, check_outputs, keep_compilations, parse_settings
from workbench.config import (
    COMBINATIONS,
    DEFENCES,
    DISTANCES,
    LABEL_ORDERS,
    MATCHINGS,
    PRESETS,
    PRIOR_DISTANCES,
    SUMMARIES,
    AttackConfig,
    ClientConfig,
    DefenceConfig,
)
from workbench.errors import ConfigError, WorkbenchError, check_choice, check_count
from workbench.target import DATASETS, LABEL_SOURCES, NETWORKS, Target, is_same_update

if TYPE_CHECKING:
    from workbench.data import ClientData
    from workbench.session.session import AttackSession

__all__ = ["app", "main"]

AUTOSAVE_SECONDS = 60.0

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Study what federated averaging gives away: attack one's own updates, and look at the result.",
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
    """An empty path would be the current folder: no one who writes --data "$FEMNIST" means that."""
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


# Options, and what they say of themselves


def _one_of(choices: Sequence[str]) -> str:
    return "One of: " + ", ".join(choices) + "."


def _client(*names: str, help: str, **more: Any) -> Any:  # noqa: A002 - typer's own name for it
    return typer.Option(*names, help=help, rich_help_panel="The client", **more)


def _attack(*names: str, help: str, **more: Any) -> Any:  # noqa: A002 - typer's own name for it
    return typer.Option(*names, help=help, rich_help_panel="The attack", **more)


def _run(*names: str, help: str, **more: Any) -> Any:  # noqa: A002 - typer's own name for it
    return typer.Option(*names, help=help, rich_help_panel="The run", **more)


NumImages = Annotated[int, _client("--num-images", "-n", help="Images of each client.")]
Epochs = Annotated[int, _client("--epochs", "-e", help="Passes over them in the local training.")]
BatchSize = Annotated[int, _client("--batch-size", "-b", help="Images in a local step.")]
Steps = Annotated[int | None, _attack("--steps", help="Optimisation steps after the warm start, if not the preset's.")]
Seed = Annotated[int, _run("--seed", help="Of the network, the client's batches and the attack.")]
Device = Annotated[str, _run("--device", help="auto, or a device of JAX's such as cpu or gpu:1.")]


@app.command()
def demo(
    method: Annotated[
        list[str] | None, _attack("--method", help="Give it several times to compare. " + _one_of(METHODS))
    ] = None,
    known_labels: Annotated[
        bool, _attack("--known-labels", help="Give the attack the label counts, instead of recovering them.")
    ] = False,
    steps: Steps = None,
    num_images: NumImages = 16,
    epochs: Epochs = 4,
    batch_size: BatchSize = 4,
    seed: Seed = 0,
    device: Device = "auto",
    report: Annotated[Path, _run("--report", help="Where the HTML report goes.")] = Path("report.html"),
) -> int:
    """Attack an embedded client: a minute at most, no browser and no download."""
    typer.echo(f"This rebuilds a client's {num_images} pictures from nothing but the weights it sends back.")
    target = Target(num_images=num_images, client=ClientConfig(epochs=epochs, batch_size=batch_size), seed=seed)
    configs = [_demo_config(target, one, steps) for one in method or ["ours_prior"]]
    return _attack_all(target, configs, is_known=known_labels, device=device, report=report)


def _demo_config(target: Target, method: str, steps: int | None) -> AttackConfig:
    config = target.config("demo", {"method": method} if steps is None else {"method": method, "steps": steps})
    if method in ("ours_prior", "ours_no_prior", "shared"):
        return config
    # A baseline that starts from somebody else's result would be none; it gets as many steps instead.
    return replace(config, warm_start_steps=0, steps=config.warm_start_steps + config.steps)


@app.command()
def attack(
    dataset: Annotated[str, _client("--dataset", help=_one_of(DATASETS))] = "glyphs",
    data: Annotated[
        Path | None, _client("--data", help="Its files; for 'folder' a folder with one sub-folder of pictures a class.")
    ] = None,
    client: Annotated[int, _client("--client", "-c", help="Which client, from 0.")] = 0,
    num_clients: Annotated[
        int, _client("--num-clients", help="Attack the aggregate of so many, from --client on.")
    ] = 1,
    num_images: NumImages = 16,
    epochs: Epochs = 4,
    batch_size: BatchSize = 4,
    learning_rate: Annotated[float, _client("--learning-rate", help="Of the local training.")] = 0.004,
    same_batches: Annotated[bool, _client("--same-batches", help="The first epoch's batches in every epoch.")] = False,
    model: Annotated[
        str | None, _client("--model", help="If not the one for the data set. " + _one_of(NETWORKS))
    ] = None,
    defence: Annotated[str, _client("--defence", help=_one_of(DEFENCES))] = "none",
    strength: Annotated[float, _client("--strength", help="Of the defence.")] = 0.0,
    clip_norm: Annotated[float | None, _client("--clip-norm", help="Of the defence dp_sgd.")] = None,
    repeated_draws: Annotated[
        bool, _client("--repeated-draws", help="The defence draws alike in every epoch, as in the paper's experiments.")
    ] = False,
    preset: Annotated[str | None, _attack("--preset", help="If not demo. " + _one_of(PRESETS))] = None,
    method: Annotated[str | None, _attack("--method", help=_one_of(METHODS))] = None,
    steps: Steps = None,
    distance: Annotated[str | None, _attack("--distance", help="Between updates. " + _one_of(DISTANCES))] = None,
    prior: Annotated[str | None, _attack("--prior", help="g, the summary of an epoch. " + _one_of(SUMMARIES))] = None,
    prior_distance: Annotated[
        str | None, _attack("--prior-distance", help="D, between two. " + _one_of(PRIOR_DISTANCES))
    ] = None,
    prior_weight: Annotated[float | None, _attack("--prior-weight", help="Of the epoch prior in the loss.")] = None,
    tv_weight: Annotated[float | None, _attack("--tv-weight", help="Of the total variation.")] = None,
    clip_weight: Annotated[float | None, _attack("--clip-weight", help="Of pixels outside [0, 1].")] = None,
    step_size: Annotated[float | None, _attack("--step-size", help="Of the optimiser.")] = None,
    warm_start_steps: Annotated[
        int | None, _attack("--warm-start-steps", help="Steps of the surrogate before the method; 0 for none.")
    ] = None,
    consensus_weight: Annotated[
        float | None, _attack("--consensus-weight", help="Of the pull to the median of the matched epochs.")
    ] = None,
    label_source: Annotated[
        str | None, _attack("--label-source", help="Where label counts come from. " + _one_of(LABEL_SOURCES))
    ] = None,
    label_order: Annotated[
        str | None, _attack("--label-order", help="How batches take them. " + _one_of(LABEL_ORDERS))
    ] = None,
    match: Annotated[str | None, _attack("--match", help="What epochs are matched by. " + _one_of(MATCHINGS))] = None,
    combine: Annotated[str | None, _attack("--combine", help="The matched epochs. " + _one_of(COMBINATIONS))] = None,
    believed_epochs: Annotated[
        int | None, _attack("--believed-epochs", help="As the attacker believes them, if not the true ones.")
    ] = None,
    believed_batch_size: Annotated[
        int | None, _attack("--believed-batch-size", help="As the attacker believes it, if not the true one.")
    ] = None,
    set_: Annotated[
        list[str] | None, _attack("--set", metavar="NAME=VALUE", help="Any other field of AttackConfig; repeatable.")
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    save: Annotated[Path | None, _run("--save", help="Write a checkpoint, every minute and at the end.")] = None,
    resume: Annotated[
        Path | None, _run("--resume", help="Go on from a checkpoint, with the client's options as it was saved with.")
    ] = None,
    report: Annotated[Path | None, _run("--report", help="Write an HTML report.")] = None,
) -> int:
    """Attack one update with the settings of your choice; without options, the demo's."""
    target = Target(
        dataset=dataset,
        data=data,
        index=client,
        num_clients=num_clients,
        num_images=num_images,
        client=ClientConfig(
            epochs,
            batch_size,
            learning_rate,
            same_batches,
            DefenceConfig(defence, strength, clip_norm, independent=not repeated_draws),
        ),
        network=model,
        seed=seed,
    )
    if label_source is not None:
        check_choice("label_source", label_source, LABEL_SOURCES)
    given = {
        "method": method,
        "steps": steps,
        "distance": distance,
        "prior": prior,
        "prior_distance": prior_distance,
        "prior_weight": prior_weight,
        "tv_weight": tv_weight,
        "clip_weight": clip_weight,
        "step_size": step_size,
        "warm_start_steps": warm_start_steps,
        "consensus_weight": consensus_weight,
        "label_method": None if label_source == "known" else label_source,
        "label_order": label_order,
        "match": match,
        "combine": combine,
        "epochs": believed_epochs,
        "batch_size": believed_batch_size,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    for name, value in parse_settings(set_ or []).items():
        if name in changes:
            raise ConfigError(f"--set {name}: there is an option for it too; give only one of them.")
        changes[name] = value
    is_known = label_source == "known"
    if resume is None:
        config = target.config(preset or "demo", changes)
        return _attack_all(target, [config], is_known=is_known, device=device, report=report, save=save)
    if preset is not None:
        raise ConfigError(f"--preset {preset}: {resume} has its own settings; leave it out to go on from there.")
    return _resume(target, resume, changes, is_known=is_known, device=device, report=report, save=save)


# Running


def _attack_all(
    target: Target,
    configs: Sequence[AttackConfig],
    *,
    is_known: bool,
    device: str,
    report: Path | None = None,
    save: Path | None = None,
) -> int:
    """Attack the target's update with every config in turn."""
    import numpy as np

    from workbench.session.session import AttackSession

    check_outputs(report, save)
    keep_compilations()
    advise()
    model, clients = target.load()
    typer.echo(f"Attacking {target.told}, {model.name}.")
    observation = target.observe(model, clients)
    counts = np.stack([client.label_counts for client in clients]) if is_known else None
    source = "given" if is_known else f"recovered from the weights ({configs[0].label_method})"
    typer.echo(f"Label counts: {source}.")
    sessions: list[AttackSession] = []
    for config in configs:
        session = AttackSession(model, observation, config, label_counts=counts, seed=target.seed, device=device)
        # All methods get the same labels, and these are recovered once.
        counts = session.label_counts
        sessions.append(session)
    return _run_all(target, sessions, clients, source, report, save)


def _resume(
    target: Target,
    path: Path,
    changes: dict[str, Any],
    *,
    is_known: bool,
    device: str,
    report: Path | None,
    save: Path | None,
) -> int:
    """Go on with a saved session; the target's options serve to find the truth, and must be those of the session."""
    from workbench.session.session import AttackSession

    check_outputs(report, save)
    keep_compilations()
    advise()
    session = AttackSession.load(path, device=device)
    steps = changes.pop("steps", session.config.steps)
    _check_same_settings(path, session.config, changes)
    model, clients = target.load()
    typer.echo(f"Attacking {target.told}, {model.name}.")
    if not is_same_update(target.observe(model, clients), session.observation):
        raise ConfigError(
            f"{path} holds the attack on another update than that of {target.told}, {model.name}, seed {target.seed}: "
            "give the client's options that it was saved with."
        )
    if is_known and (session.label_counts != [client.label_counts for client in clients]).any():
        raise ConfigError(f"label_source = 'known', but {path} has other counts; leave it out to go on from there.")
    typer.echo(f"Going on from {path}, step {session.num_steps}.")
    goal = session.config.warm_start_steps + check_count("steps", steps)
    return _run_all(target, [session], clients, f"those of {path}", report, save, goal)


def _check_same_settings(path: Path, saved: AttackConfig, changes: dict[str, Any]) -> None:
    for name, value in changes.items():
        there = asdict(saved)[check_choice("setting", name, asdict(saved))]
        if asdict(replace(saved, **{name: value}))[name] != there:
            raise ConfigError(f"{name} = {value!r} is {there!r} in {path}; leave it out to go on from there.")


def _run_all(
    target: Target,
    sessions: Sequence[AttackSession],
    clients: Sequence[ClientData],
    label_source: str,
    report: Path | None,
    save: Path | None,
    goal: int | None = None,
) -> int:
    """Run the sessions one after the other, then tell, save and report what there is; the exit code."""
    from workbench.session.session import Outcome

    typer.echo("The first step compiles for some seconds; the next start finds that done.")
    begun, seconds, is_stopped = [], [], False
    for session in sessions:
        if len(sessions) > 1:
            typer.echo(f"Method: {session.config.method}.")
        if save is not None:
            session.autosave(save, every_seconds=AUTOSAVE_SECONDS)
        started = time.monotonic()
        last = session.total_steps if goal is None else goal
        if last > session.num_steps:
            session.run(last - session.num_steps)
        begun.append(session)
        seconds.append(time.monotonic() - started)
        is_stopped = session.outcome is not Outcome.DIVERGED and session.num_steps < last
        if is_stopped:
            break
    typer.echo()
    typer.echo(_table(begun, clients, seconds))
    if is_stopped:
        typer.echo(f"Stopped by Ctrl-C after {begun[-1].num_steps} steps; this is what there was by then.")
    for session in begun:
        if session.outcome is Outcome.DIVERGED:
            typer.echo(f"{session.config.method} {Outcome.DIVERGED.value} (step {session.num_steps}).")
    if save is not None:
        begun[-1].save(save)
        typer.echo(f"Checkpoint: {save}")
    if report is not None:
        _report(report, begun, clients, target, label_source)
    if is_stopped:
        return 130
    return 1 if any(session.outcome is Outcome.DIVERGED for session in begun) else 0


def _report(
    path: Path, sessions: Sequence[AttackSession], clients: Sequence[ClientData], target: Target, label_source: str
) -> None:
    # Drawing takes a while to import, and nothing before needs it.
    from workbench.views.report import write_report

    settings = {"defence": target.defence_told, "label counts": label_source}
    command = shlex.join(["workbench", *sys.argv[1:]])
    write_report(path, sessions, clients, settings=settings, command=command)
    typer.echo(f"Report: {path}")


def _table(sessions: Sequence[AttackSession], clients: Sequence[ClientData], seconds: Sequence[float]) -> str:
    """The scores of every session as aligned text."""
    from workbench.metrics import label_errors, score

    true_counts = sum(client.label_counts for client in clients)
    rows = [("method", "recovered", "PSNR", "SSIM", "label errors", "steps", "time")]
    for session, took in zip(sessions, seconds, strict=True):
        quality = score(session.reconstruction(), clients)
        wrong = label_errors(true_counts, session.label_counts.sum(0))
        rows.append(
            (
                session.config.method,
                f"{quality.recovered_percent:.1f} %",
                f"{quality.psnr.mean():.2f} dB",
                f"{quality.ssim.mean():.3f}",
                f"{wrong:g} of {session.label_counts.sum()}",
                str(session.num_steps),
                f"{took:.1f} s",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


# Studies have their commands beside them.
app.command()(study_commands.table)
app.command()(study_commands.sweep)
