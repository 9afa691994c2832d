"""The commands ``workbench demo`` and ``workbench attack``."""

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import typer

from workbench.attack.methods import METHODS
from workbench.cli.common import given_settings, one_of, option, parse_settings, prepare_run, setting_options
from workbench.config import PRESETS, AttackConfig, ClientConfig, DefenceConfig
from workbench.data import ClientData, Truth
from workbench.errors import ConfigError, check_choice, check_count
from workbench.metrics import label_errors, score
from workbench.session import AttackSession, Outcome
from workbench.settings import settings_of, with_parameters
from workbench.study.show.results import text_table
from workbench.target import Target, is_same_update

__all__ = ["attack", "demo"]

AUTOSAVE_SECONDS = 60.0

# Small enough for a first look; the paper's clients have 50 images, 10 epochs and batches of 5.
_SMALL = {"epochs": 4, "batch_size": 4}
_CLIENT, _ATTACK, _RUN = "The client", "The attack", "The run"
_DEVICE = option("device", str, "auto", _RUN, "auto, or a JAX device such as cpu or gpu:1.")


_DEMO_OPTIONS = (
    option(
        "method",
        list[str] | None,
        None,
        _ATTACK,
        f"Method to attack with; repeat the option to compare several. {one_of(list(METHODS))}",
    ),
    option("known_labels", bool, False, _ATTACK, "Give the attack the label counts instead of recovering them."),
    *setting_options(AttackConfig, _ATTACK, only=["steps"]),
    *setting_options(Target, _CLIENT, only=["num_images"], defaults={}),
    *setting_options(ClientConfig, _CLIENT, only=["epochs", "batch_size"], defaults=_SMALL),
    *setting_options(Target, _RUN, only=["seed"], defaults={}),
    _DEVICE,
    option("report", Path, Path("report.html"), _RUN, "Where to write the HTML report."),
)
_ATTACK_OPTIONS = (
    *setting_options(Target, _CLIENT, defaults={}),
    *setting_options(ClientConfig, _CLIENT, defaults=_SMALL),
    *setting_options(DefenceConfig, _CLIENT, defaults={}),
    option("preset", str | None, None, _ATTACK, f"Settings to start from, if not demo. {one_of(PRESETS)}"),
    *setting_options(AttackConfig, _ATTACK),
    option(
        "set_",
        list[str] | None,
        None,
        _ATTACK,
        "A field of AttackConfig; repeatable.",
        "--set",
        metavar="NAME=VALUE",
    ),
    _DEVICE,
    option("save", Path | None, None, _RUN, "Write a checkpoint, every minute and at the end."),
    option(
        "resume", Path | None, None, _RUN, "Continue from a checkpoint, with the client's options it was saved with."
    ),
    option("report", Path | None, None, _RUN, "Write an HTML report."),
)


@partial(with_parameters, parameters=_DEMO_OPTIONS)
def demo(**values: Any) -> int:
    """Attack a bundled client: a minute at most, no browser and no download."""
    target = Target(**given_settings(Target, values), client=ClientConfig(**given_settings(ClientConfig, values)))
    typer.echo(f"This rebuilds a client's {target.num_images} pictures from nothing but the weights it sends back.")
    attacks = {
        _name("demo", config): config
        for config in (_demo_config(target, name, values["steps"]) for name in values["method"] or ["ours_prior"])
    }
    for name, config in attacks.items():
        typer.echo(f"Attack {name}: {config.description}; {config.warm_start_steps + config.steps} steps.")
    return _attack_all(
        target, attacks, is_known=values["known_labels"], device=values["device"], report=values["report"]
    )


def _name(preset: str, config: AttackConfig) -> str:
    """What a table calls an attack: a method alone is the paper's, from noise and without what the workbench adds."""
    is_papers = not (config.warm_start_steps or config.consensus_weight or config.span_weight)
    return config.method if preset == "paper" or is_papers else f"{preset} ({config.method})"


def _demo_config(target: Target, method: str, steps: int | None) -> AttackConfig:
    config = target.config("demo", {"method": method} if steps is None else {"method": method, "steps": steps})
    if METHODS[config.method].can_warm_start:
        return config
    # A baseline gets as many steps instead of the warm start, and has no epochs to bring to a consensus.
    steps = config.warm_start_steps + config.steps
    return replace(config, warm_start_steps=0, consensus_weight=0.0, steps=steps)


@partial(with_parameters, parameters=_ATTACK_OPTIONS)
def attack(**values: Any) -> int:
    """Attack one update with the settings of your choice; without options, those of the demo."""
    defence = DefenceConfig(**given_settings(DefenceConfig, values))
    client = ClientConfig(**given_settings(ClientConfig, values), defence=defence)
    target = Target(**given_settings(Target, values), client=client)
    changes = given_settings(AttackConfig, values)
    sources = settings_of(AttackConfig)["label_method"].offered
    check_choice("label_source", changes.get("label_method", "known"), sources)
    is_known = changes.get("label_method") == "known"
    if is_known:
        del changes["label_method"]
    for name, value in parse_settings(values["set_"] or []).items():
        if name in changes:
            raise ConfigError(f"--set {name}: there is an option for it too; give only one of them.")
        changes[name] = value
    run = {"is_known": is_known, "device": values["device"], "report": values["report"], "save": values["save"]}
    if values["resume"] is None:
        preset = values["preset"] or "demo"
        config = target.config(preset, changes)
        return _attack_all(target, {_name(preset, config): config}, **run)
    if values["preset"] is not None:
        raise ConfigError(f"--preset {values['preset']}: {values['resume']} has its own settings; leave it out.")
    return _resume(target, values["resume"], changes, **run)


def _attack_all(
    target: Target,
    attacks: Mapping[str, AttackConfig],
    *,
    is_known: bool,
    device: str,
    report: Path | None = None,
    save: Path | None = None,
) -> int:
    """Attack the target's update with every config in turn; ``attacks`` has them by name."""
    prepare_run(report, save)
    model, clients = target.load()
    typer.echo(f"Attacking {target.description}, {model.name}.")
    observation = target.observe(model, clients)
    counts = Truth.of(clients).label_counts if is_known else None
    source = "given" if is_known else f"recovered from the weights ({next(iter(attacks.values())).label_method})"
    typer.echo(f"Label counts: {source}.")
    sessions: dict[str, AttackSession] = {}
    for name, config in attacks.items():
        session = AttackSession(model, observation, config, label_counts=counts, seed=target.seed, device=device)
        # All methods get the same labels, and these are recovered once.
        counts = session.label_counts
        sessions[name] = session
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
    """Continue a saved session; the client's options serve to find the truth, and must be those of the session."""
    prepare_run(report, save)
    session = AttackSession.load(path, device=device)
    steps = changes.pop("steps", session.config.steps)
    _check_same_settings(path, session.config, changes)
    model, clients = target.load()
    typer.echo(f"Attacking {target.description}, {model.name}.")
    if not is_same_update(target.observe(model, clients), session.observation):
        raise ConfigError(
            f"{path} holds an attack on another update than that of {target.description}, {model.name}, seed "
            f"{target.seed}: give the options of the client that it was saved with."
        )
    if is_known and (session.label_counts != [client.label_counts for client in clients]).any():
        raise ConfigError(f"label_source = 'known', but {path} has other counts; leave it out to continue.")
    typer.echo(f"Continuing from {path}, step {session.num_steps}.")
    goal = session.config.warm_start_steps + check_count("steps", steps)
    return _run_all(target, {session.config.method: session}, clients, f"those of {path}", report, save, goal)


def _check_same_settings(path: Path, saved: AttackConfig, changes: dict[str, Any]) -> None:
    for name, value in changes.items():
        there = asdict(saved)[check_choice("setting", name, asdict(saved))]
        if asdict(replace(saved, **{name: value}))[name] != there:
            raise ConfigError(f"{name} = {value!r} is {there!r} in {path}; leave it out to continue.")


def _run_all(
    target: Target,
    sessions: Mapping[str, AttackSession],
    clients: Sequence[ClientData],
    label_source: str,
    report: Path | None,
    save: Path | None,
    goal: int | None = None,
) -> int:
    """Run the sessions one after the other, then print, save and report what there is; return the exit code."""
    typer.echo("The first step compiles, which takes some seconds; the compilation is cached for the next start.")
    begun, scores, is_stopped = [], [], False
    for name, session in sessions.items():
        if len(sessions) > 1:
            typer.echo(f"Now: {name}.")
        if save is not None:
            session.autosave(save, every_seconds=AUTOSAVE_SECONDS)
        started = time.monotonic()
        last = session.total_steps if goal is None else goal
        if last > session.num_steps:
            session.run(last - session.num_steps)
        begun.append(session)
        scores.append({"method": name, **_scores(session, clients, time.monotonic() - started)})
        is_stopped = session.outcome is not Outcome.DIVERGED and session.num_steps < last
        if is_stopped:
            break
    typer.echo(f"\n{text_table([list(scores[0]), *(list(cells.values()) for cells in scores)])}")
    if is_stopped:
        typer.echo(f"Stopped by Ctrl-C after {begun[-1].num_steps} steps; this is the result so far.")
    diverged = [session for session in begun if session.outcome is Outcome.DIVERGED]
    for session in diverged:
        typer.echo(f"{session.config.method} {Outcome.DIVERGED.value} (step {session.num_steps}).")
    if save is not None:
        begun[-1].save(save)
        typer.echo(f"Checkpoint: {save}")
    if report is not None:
        # matplotlib takes a while to import, and nothing before needs it.
        from workbench.views.report import write_report

        settings = {"Defence": target.client.defence, "Label counts": label_source}
        write_report(report, begun, clients, settings=settings, command=shlex.join(["workbench", *sys.argv[1:]]))
        typer.echo(f"Report: {report}")
    if is_stopped:
        return 130
    return 1 if diverged else 0


def _scores(session: AttackSession, clients: Sequence[ClientData], seconds: float) -> dict[str, str]:
    """The cells of a session in the printed table, by the heads of their columns."""
    quality = score(session.reconstruction(), clients)
    wrong = label_errors(Truth.of(clients).label_counts.sum(0), session.label_counts.sum(0))
    return {
        "recovered": f"{quality.recovered_percent:.1f} %",
        "PSNR": f"{quality.psnr.mean():.2f} dB",
        "SSIM": f"{quality.ssim.mean():.3f}",
        "label errors": f"{wrong:g} of {session.label_counts.sum()}",
        "steps": str(session.num_steps),
        "time": f"{seconds:.1f} s",
    }
