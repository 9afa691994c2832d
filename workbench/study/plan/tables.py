"""What each table of the paper asks for: its settings and methods as units, with the paper's numbers beside them."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from workbench.attack.methods import METHODS, PAPER_METHODS
from workbench.config import SUMMARIES, AttackConfig, ClientConfig, DefenceConfig, real_twin
from workbench.errors import ConfigError, check_choice, check_count, check_flag, shown
from workbench.files.weights import load_weights
from workbench.study.plan.paper import Published, published
from workbench.study.plan.units import Unit, digest_of_pictures, digest_of_weights
from workbench.study.run.measure import Place, network
from workbench.training.model import Model

__all__ = ["NUMBERS", "TITLES", "Entry", "Plan", "parse_clients", "plan_table"]

TITLES = {
    1: "images from known label counts",
    2: "label counts",
    3: "images from recovered label counts",
    4: "the epoch prior",
    6: "defences",
    7: "trained networks",
    8: "labels known per batch, and batches that stay the same",
    9: "epochs and batch size unknown to the attacker",
    10: "aggregates of several clients",
    11: "time for each client",
}
NUMBERS = tuple(TITLES)
DATASETS = ("femnist", "cifar100", "glyphs", "photos")
PRESETS = ("paper", "best", "demo")

# The paper's five, one that it does not have, and the project's own best settings.
ALL_METHODS = (*METHODS, "best")
# These come from one look at the network; `refined` needs an attack of its own.
FORMULAS = ("interpolated", "geng_server", "geng_client", "bias")
ALL_LABEL_METHODS = (*FORMULAS, "refined")

ROUNDS = 250
_DEMO_STEPS = 80
_DEMO_ROUNDS = 3

_DEFENCES = {
    "none": DefenceConfig(),
    "gaussian 0.01": DefenceConfig("gaussian", 0.01),
    "gaussian 0.03": DefenceConfig("gaussian", 0.03),
    "laplacian 0.01": DefenceConfig("laplacian", 0.01),
    "laplacian 0.02": DefenceConfig("laplacian", 0.02),
    "pruning 0.2": DefenceConfig("pruning", 0.2),
    "pruning 0.5": DefenceConfig("pruning", 0.5),
}


@dataclass(frozen=True)
class Entry:
    """One place of a table: a method in a setting, measured on several clients.

    Attributes:
        setting: its name, e.g. ``10x5x50``.
        method: its name, e.g. ``ours_prior``.
        units: one for each client and seed.
        published: what the paper reports there.
        is_wanted: whether missing units shall be done, or only shown where they were done before.
    """

    setting: str
    method: str
    units: tuple[Unit, ...]
    published: Published
    is_wanted: bool = True


@dataclass(frozen=True)
class Plan:
    """A table to be measured.

    Attributes:
        title: for people.
        measure: ``images``, ``labels`` or ``seconds``: which numbers are shown.
        entries: in the order in which they are shown.
        place: where the units find their files.
        notes: what a reader should know.
    """

    title: str
    measure: str
    entries: tuple[Entry, ...]
    place: Place
    notes: tuple[str, ...] = ()

    @property
    def units(self) -> list[Unit]:
        """Those to be done, without repetition; every client's in turn, so that methods are compared early."""
        wanted = [entry.units for entry in self.entries if entry.is_wanted]
        longest = max(map(len, wanted), default=0)
        turns = [units[turn] for turn in range(longest) for units in wanted if turn < len(units)]
        return list({unit.key: unit for unit in turns}.values())

    def measured(self, keys: Container[str]) -> Plan:
        """The part of it whose units are among the keys: those that were done."""
        done = [replace(e, units=tuple(unit for unit in e.units if unit.key in keys)) for e in self.entries]
        return replace(self, entries=tuple(entry for entry in done if entry.units))


def parse_clients(clients: int | str | Sequence[int], most: int) -> list[int]:
    """Which clients: a number of them from the first on, a text such as ``3-5,9``, or their numbers.

    >>> parse_clients(3, most=100), parse_clients("3-5,9", most=100)
    ([0, 1, 2], [3, 4, 5, 9])
    """
    right = f"a number of clients up to {most}, or some of 0 to {most - 1} such as 3-5,9"
    chosen: list[int] = []
    if isinstance(clients, str):
        parts = [re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part) for part in clients.split(",")]
        if not all(parts):
            raise ConfigError(f"clients = {shown(clients)} must be {right}.")
        if len(parts) == 1 and parts[0] and parts[0][2] is None:
            return parse_clients(int(parts[0][1]), most)
        for part in parts:
            assert part is not None
            chosen += range(int(part[1]), int(part[2] or part[1]) + 1)
    elif isinstance(clients, Sequence):
        chosen = [check_count("client", client, minimum=0) for client in clients]
    else:
        chosen = list(range(check_count("clients", clients)))
    if not chosen or max(chosen) >= most or len(set(chosen)) < len(chosen):
        raise ConfigError(f"clients = {shown(clients)} must be {right}, each once.")
    return chosen


@dataclass(frozen=True)
class _Setting:
    """A line of a table, before its units are made."""

    name: str
    num_images: int
    client: ClientConfig
    labels: str = "known"
    changes: tuple[tuple[str, Any], ...] = ()
    num_clients: int = 1
    after_round: int | None = None


def plan_table(
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
) -> Plan:
    """The units of a table; see `workbench.study.table` for the arguments."""
    if number not in NUMBERS:
        raise ConfigError(f"table = {shown(number)} must be one of: {', '.join(map(str, NUMBERS))}.")
    check_choice("dataset", dataset, DATASETS)
    check_choice("preset", preset, PRESETS)
    check_flag("repeated_draws", repeated_draws)
    if check_flag("accuracies", accuracies) and number != 6:
        raise ConfigError(f"accuracies = True belongs to Table 6; leave it out for Table {number}.")
    if not isinstance(seeds, Sequence) or isinstance(seeds, str) or not seeds:
        raise ConfigError(f"seeds = {shown(seeds)} must be a list of whole numbers, such as [0, 1, 2].")
    seeds = [check_count("seed", seed, minimum=0) for seed in seeds]
    lines = _settings(number, is_demo=preset == "demo", repeated_draws=repeated_draws)
    if settings is not None:
        names = [check_choice("setting", name, [line.name for line in lines]) for name in settings]
        lines = [line for line in lines if line.name in names]
    shown_methods, wanted = _methods(number, methods, preset)

    place = Place(data=None if data is None else str(Path(data)), device=device)
    source = place.dataset(dataset)
    indices = parse_clients(clients, source.num_clients)
    like = real_twin(dataset)
    name = model or f"{like}_cnn"
    built = network(name, source.num_classes, source.image_shape)
    found = {
        after: _find_weights(after, dataset, place, weights, built)
        for after in sorted({line.after_round for line in lines if line.after_round is not None})
    }
    place = replace(place, weights=tuple(str(path) for path in found.values()))
    digests: dict[int | None, str] = {
        after: digest_of_weights(load_weights(path, built)) for after, path in found.items()
    }

    @cache
    def digest(group: tuple[int, ...], num_images: int) -> str:
        return digest_of_pictures([source.client(index, num_images) for index in group])

    def units(line: _Setting, groups: Sequence[tuple[int, ...]], **task: Any) -> tuple[Unit, ...]:
        return tuple(
            Unit(
                dataset=dataset,
                pictures=digest(group, line.num_images),
                clients=group,
                num_images=line.num_images,
                network=name,
                weights=digests.get(line.after_round),
                client=line.client,
                seed=seed,
                **task,
            )
            for seed in seeds
            for group in groups
        )

    def entry(line: _Setting, method: str, made: tuple[Unit, ...]) -> Entry:
        return Entry(line.name, method, made, published(number, dataset, line.name, method), method in wanted)

    entries: list[Entry] = []
    for line in lines:
        groups = _groups(indices, line.num_clients, source.num_clients)
        if number == 2:
            for method in shown_methods:
                together = ("refined",) if method == "refined" else FORMULAS
                config = AttackConfig.preset("best", like, **(changes or {})) if method == "refined" else None
                made = units(line, groups, task="labels", attack=config, label_methods=together)
                entries.append(entry(line, method, made))
            continue
        for method in shown_methods:
            config = _attack_config(method, like, preset, dict(line.changes), changes or {})
            made = units(line, groups, task="attack", labels=line.labels, attack=config)
            entries.append(entry(line, method, made))
        if accuracies:
            everyone = tuple(range(source.num_clients))
            made = units(
                line,
                [everyone],
                task="accuracy",
                rounds=check_count("rounds", rounds or (_DEMO_ROUNDS if preset == "demo" else ROUNDS)),
            )
            entries.append(replace(entry(line, "accuracy", made), is_wanted=True))
    return Plan(
        title=f"Table {number}, {TITLES[number]}: {dataset}",
        measure={2: "labels", 11: "seconds"}.get(number, "images"),
        entries=tuple(entries),
        place=place,
        notes=_notes(number, preset, accuracies, repeated_draws),
    )


def _settings(number: int, *, is_demo: bool, repeated_draws: bool) -> list[_Setting]:
    """The lines of a table, in the paper's order."""
    images, usual = (16, (4, 4)) if is_demo else (50, (10, 5))
    epochs, batch_size = usual

    def line(name: str, epochs: int = epochs, batch_size: int = batch_size, **more: Any) -> _Setting:
        client = {key: more.pop(key) for key in ("same_batches", "defence") if key in more}
        return _Setting(name, images, ClientConfig(epochs, batch_size, **client), **more)

    if number in (1, 2, 3, 11):
        shapes = [(1, 4), (4, 4), (4, 8)] if is_demo else [(1, 5), (5, 5), (10, 10), (10, 5), (10, 1)]
        # The labels of Table 3 stood in the order of their classes.
        more: dict[str, Any] = {"labels": "recovered", "changes": (("label_order", "sorted"),)} if number == 3 else {}
        return [line(f"{e}x{m}x{images}", e, m, **more) for e, m in shapes]
    if number == 4:
        pairs = [(prior, distance) for distance in ("l1", "l2") for prior in ("mean", "conv+mean", "max", "conv+max")]
        assert {prior for prior, _ in pairs} == set(SUMMARIES)
        return [line(f"{g}, {d}", changes=(("prior", g), ("prior_distance", d))) for g, d in pairs]
    if number == 6:
        return [
            line(name, defence=replace(defence, independent=not repeated_draws or name == "none"))
            for name, defence in _DEFENCES.items()
        ]
    if number == 7:
        return [line("round 1"), line("round 6", after_round=5), line("round 11", after_round=10)]
    if number == 8:
        return [
            line(f"{told}, {batches}", labels=labels, same_batches=batches == "same")
            for told, labels in (("per batch", "known_per_batch"), ("per client", "known"))
            for batches in ("random", "same")
        ]
    if number == 9:
        true, believed = (
            ((2, 4), [(2, 4), (4, 8), (8, 16)]) if is_demo else ((5, 5), [(5, 5), (10, 10), (25, 25), (50, 50)])
        )
        return [
            line(
                f"{true[0]}x{true[1]} as {e}x{m}",
                *true,
                changes=() if (e, m) == true else (("epochs", e), ("batch_size", m)),
            )
            for e, m in believed
        ]
    counts = (1, 2) if is_demo else (1, 2, 4)
    return [line(f"{count} client{'s' * (count > 1)}", num_clients=count) for count in counts]


def _methods(number: int, given: Sequence[str] | None, preset: str) -> tuple[tuple[str, ...], set[str]]:
    """The methods that a table can show, in order, and those that shall be measured."""
    if number == 2:
        usual: Sequence[str] = ALL_LABEL_METHODS if preset == "best" else FORMULAS
        known: tuple[str, ...] = ALL_LABEL_METHODS
    elif number == 4:
        usual = known = ("ours_prior",)
        if preset == "best":
            raise ConfigError("preset = 'best' has a prior of its own, and Table 4 compares priors; use 'paper'.")
    else:
        known = ALL_METHODS
        usual = {"paper": PAPER_METHODS, "best": ("best",), "demo": ALL_METHODS}[preset]
    if given is not None:
        if isinstance(given, str) or not given:
            raise ConfigError(f"methods = {shown(given)} must be a list of some of: {', '.join(known)}.")
        usual = [check_choice("method", method, known) for method in given]
    return known, set(usual)


def _attack_config(method: str, like: str, preset: str, asked: dict[str, Any], changes: dict[str, Any]) -> AttackConfig:
    """The method's settings, with what the line asks for, and with the user's changes."""
    if method == "best":
        # How labels are assigned is a choice of its own; what the attacker believes is not.
        asked = {name: value for name, value in asked.items() if name != "label_order"}
        return AttackConfig.preset("demo" if preset == "demo" else "best", like, **{**asked, **changes})
    if preset == "demo":
        asked = {"steps": _DEMO_STEPS, **asked}
    return AttackConfig.preset("paper", like, **{"method": method, **asked, **changes})


def _groups(indices: Sequence[int], size: int, num_clients: int) -> list[tuple[int, ...]]:
    """Every client with those that follow it, as many as an aggregate has; after the last comes the first."""
    if size > num_clients:
        raise ConfigError(f"an aggregate of {size} needs as many clients; the data set has {num_clients}.")
    return [tuple((index + step) % num_clients for step in range(size)) for index in indices]


def _find_weights(after: int, dataset: str, place: Place, given: str | os.PathLike[str] | None, model: Model) -> Path:
    """The file with the weights after so many rounds: in the folder that was given, or beside the data."""
    folder = Path(given) if given is not None else place.data and Path(place.data).absolute().parent
    if folder and folder.is_file():
        folder = folder.parent
    pattern = f"*weights_after_round_{after}"
    files = (
        [file for suffix in (".safetensors", ".npz") for file in sorted(folder.glob(pattern + suffix))]
        if folder
        else []
    )
    fitting = [file for file in files if dataset in file.name] or files
    if fitting:
        return fitting[0]
    where = f"{folder} has no" if folder else "there is no"
    raise ConfigError(
        f"round {after + 1} attacks the network after {after} rounds of training, and {where} file "
        f"{pattern}.safetensors or .npz. Name the folder that has it with weights, or train: "
        f"workbench.server_rounds(..., rounds={after}, save_every=5, save_to=FOLDER). "
        "Only what needs no training: settings = ['round 1']."
    )


_NOTES: dict[int, str] = {
    3: "The paper's recipe assigns labels to batches in the order of their classes here, as its experiments did.",
    8: "With labels known per batch, the shared method is also given the order of the images, as in the paper.",
    10: "An aggregate is a client with those that follow it in the data set.",
    11: "Time per client here beside the paper's on an NVIDIA RTX 2080 Ti.",
}


def _notes(number: int, preset: str, accuracies: bool, repeated_draws: bool) -> tuple[str, ...]:
    notes = [_NOTES[number]] if number in _NOTES else []
    if number == 6:
        draws = "repeated in every epoch, as in the paper's experiments" if repeated_draws else "new in every step"
        notes.append(f"The defences' draws are {draws}.")
    if accuracies:
        notes.append(
            "Accuracies: trained on every client's first images, tested on the rest, mean over clients; the paper "
            "has a test set of its own."
        )
    if preset == "demo":
        notes.append(f"Small clients and {_DEMO_STEPS} steps for a quick look: no numbers to compare with the paper's.")
    return tuple(notes)
