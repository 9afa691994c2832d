"""Plans: what each table of the paper measures, with the paper's numbers, and custom grids of settings."""

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from workbench.attack.methods import METHODS
from workbench.config import LABEL_FORMULAS, LABEL_METHODS, AttackConfig, ClientConfig, DefenceConfig
from workbench.errors import ConfigError, check_choice, check_count, check_flag, shown
from workbench.files.reading import reading
from workbench.files.weights import load_weights
from workbench.settings import make_options, setting, settings_of, takes
from workbench.study.plan.paper import PAPER_METHODS, published
from workbench.study.plan.plan import Cohort, Entry, Plan, digest_of_weights

__all__ = [
    "ALL_METHODS",
    "NUMBERS",
    "TITLES",
    "TableOptions",
    "TableSetting",
    "attack_task",
    "check_table",
    "measure_of",
    "plan_sweep",
    "plan_table",
    "table_settings",
]

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

# The paper's five methods, one more, and the project's presets.
OURS = ("warm", "best")
ALL_METHODS = (*METHODS, *OURS)
# The methods that a preset measures, of those that a table can show.
_USUAL_METHODS = {
    "paper": (*PAPER_METHODS, *LABEL_FORMULAS),
    "warm": ("warm", *LABEL_METHODS),
    "best": ("best", *LABEL_METHODS),
    "demo": (*METHODS, "demo", *LABEL_FORMULAS),
}

ROUNDS = 250
_DEMO_STEPS = 160
# Local steps times their rate, for several epochs. The few steps of a small client have larger rates, so that they move
# its weights somewhat further than those of the paper's clients do (0.4). Otherwise it hardly matters which images are
# in a batch, and methods that ignore it rank first.
_DEMO_TRAVEL = 0.6
# So few images and epochs are held together by less of the prior; with all of it, its methods would come last.
_DEMO_PRIOR = 0.1
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
class TableOptions:
    """What a table measures; each field's ``help`` describes it."""

    data: Path | None = setting(None, "Data", "Files of the data set.")
    clients: int | str | Sequence[int] = setting(
        10, "Clients", "Number of clients, counted from the first, or their indices, such as 3-5,9."
    )
    methods: Sequence[str] | None = setting(
        None, "Methods", f"Some of: {', '.join(ALL_METHODS)}; for Table 2: {', '.join(LABEL_METHODS)}."
    )
    settings: Sequence[str] | None = setting(
        None,
        "Settings",
        "Some of the table's settings, e.g. 10x5x50; repeat the option or separate them by ';'.",
        option="setting",
        aliases=("--settings",),
    )
    preset: str = setting(
        "paper", "Preset", "paper: as published; best: our best settings, same clients; demo: small clients, few steps."
    )
    seeds: Sequence[int] = setting((0,), "Seeds", "Seeds of the network, the batches and the attack, e.g. 0,1,2.")
    changes: Mapping[str, Any] | None = setting(
        None,
        "Changed settings",
        "Set a field of every attack's AttackConfig; repeatable.",
        option="set",
        metavar="NAME=VALUE",
    )
    weights: Path | None = setting(
        None, "Trained weights", "Folder with trained weights for Table 7; default: the folder of the data."
    )
    model: str | None = setting(None, "Network", "A built-in network; default: the data set's.")
    repeated_draws: bool = setting(
        False, "Repeated draws", "Table 6: repeat the defences' noise in every epoch, as the paper's experiments did."
    )
    accuracies: bool = setting(False, "Accuracies", "Table 6: also train 250 rounds and report test accuracies.")
    rounds: int | None = setting(None, "Rounds", "Number of rounds of that training; default: 250.")

    def __post_init__(self) -> None:
        check_choice("preset", self.preset, _USUAL_METHODS)
        check_flag("repeated_draws", self.repeated_draws)
        check_flag("accuracies", self.accuracies)


@dataclass(frozen=True)
class TableSetting:
    """A setting of a table: what the client does and what the attacker knows.

    Attributes:
        name: e.g. ``10x5x50``.
        num_images: N, the number of images of each client.
        client: how each client trains.
        labels: as in `Unit`.
        changes: fields of the attack's config that this setting changes.
        num_clients: clients in an aggregate.
        after_round: attack the network after this many rounds of training; None attacks fresh weights.
    """

    name: str
    num_images: int
    client: ClientConfig
    labels: str = "known"
    changes: tuple[tuple[str, Any], ...] = ()
    num_clients: int = 1
    after_round: int | None = None


@takes(TableOptions)
def plan_table(number: int, dataset: str = "glyphs", **options: Any) -> Plan:
    """The units of a table.

    Args:
        number: 1, 2, 3, 4, 6, 7, 8, 9, 10, or 11 for times.
        dataset: ``femnist``, ``cifar100``, ``glyphs`` or ``photos``.
        options: what to measure, the fields of `TableOptions`.
    """
    (chosen,) = make_options(options, TableOptions)
    check_table(number)
    if chosen.accuracies and number != 6:
        raise ConfigError(f"accuracies = True belongs to Table 6; leave it out for Table {number}.")
    settings = table_settings(number, is_demo=chosen.preset == "demo", repeated_draws=chosen.repeated_draws)
    if chosen.settings is not None:
        names = [check_choice("setting", name, [one.name for one in settings]) for name in chosen.settings]
        settings = [one for one in settings if one.name in names]
    cohort = Cohort(dataset, chosen.data, chosen.model, chosen.clients, chosen.seeds)
    weights = {
        one.after_round: _find_weights(one.after_round, cohort, chosen.weights)
        for one in settings
        if one.after_round is not None
    }
    digests: dict[int | None, str] = {
        after: digest_of_weights(load_weights(path, cohort.model)) for after, path in weights.items()
    }
    return Plan(
        title=f"Table {number}, {TITLES[number]}: {dataset}",
        measure=measure_of(number),
        entries=tuple(
            entry
            for setting in settings
            for entry in _entries(number, setting, cohort, chosen, digests.get(setting.after_round))
        ),
        place=replace(cohort.place, weights=tuple(map(str, weights.values()))),
        notes=_notes(number, chosen),
    )


def check_table(number: int) -> None:
    """Refuse a number that no table of the paper has."""
    if number not in NUMBERS:
        raise ConfigError(f"table = {shown(number)} must be one of: {', '.join(map(str, NUMBERS))}.")


def measure_of(number: int) -> str:
    """Which numbers a table shows."""
    return {2: "labels", 11: "seconds"}.get(number, "images")


def _entries(
    number: int, setting: TableSetting, cohort: Cohort, options: TableOptions, weights: str | None
) -> Iterator[Entry]:
    """The lines of a setting: one for each method, and one for the accuracy if it is asked for."""
    shown_methods, wanted = _methods(number, options)
    groups = cohort.groups(setting.num_clients)
    common: dict[str, Any] = {"num_images": setting.num_images, "client": setting.client, "weights": weights}
    for method in shown_methods:
        task = (
            _label_task(method, cohort, options) if number == 2 else attack_task(method, setting, cohort.twin, options)
        )
        reported = published(number, cohort.dataset, setting.name, method)
        yield Entry(setting.name, method, cohort.units(groups, **common, **task), reported, method in wanted)
    if options.accuracies:
        rounds = check_count("rounds", options.rounds or (_DEMO_ROUNDS if options.preset == "demo" else ROUNDS))
        units = cohort.units([tuple(range(cohort.num_clients))], **common, task="accuracy", rounds=rounds)
        yield Entry(setting.name, "accuracy", units, published(number, cohort.dataset, setting.name, "accuracy"))


def _label_task(method: str, cohort: Cohort, options: TableOptions) -> dict[str, Any]:
    """What a unit of Table 2 does: all formulas together, or the refined method alone."""
    if method in LABEL_FORMULAS:
        return {"task": "labels", "label_methods": LABEL_FORMULAS}
    attack = AttackConfig.preset("warm", cohort.twin, **(options.changes or {}))
    return {"task": "labels", "label_methods": (method,), "attack": attack}


def attack_task(method: str, setting: TableSetting, twin: str, options: TableOptions) -> dict[str, Any]:
    """An attack with the method's settings, changed by the table's line and then by the user."""
    changes, is_demo = dict(setting.changes), options.preset == "demo"
    if method in (*OURS, "demo"):
        # These settings choose how labels are assigned, so the paper's order does not apply to them.
        changes.pop("label_order", None)
        preset = method
    else:
        changes = {"method": method, **({"steps": _DEMO_STEPS} if is_demo else {}), **changes}
        preset = "paper"
    changes |= options.changes or {}
    attack = AttackConfig.preset(preset, twin, **changes)
    if is_demo and preset == "paper" and "prior_weight" not in changes:
        attack = replace(attack, prior_weight=_DEMO_PRIOR * attack.prior_weight)
    return {"task": "attack", "labels": setting.labels, "attack": attack}


def table_settings(number: int, *, is_demo: bool = False, repeated_draws: bool = False) -> list[TableSetting]:
    """The settings of a table, in the paper's order."""
    images, usual = (16, ClientConfig(4, 4)) if is_demo else (50, ClientConfig(10, 5))
    setting = partial(TableSetting, num_images=images, client=usual)
    if number in (1, 2, 3, 11):
        shapes = [(1, 4), (4, 4), (4, 2)] if is_demo else [(1, 5), (5, 5), (10, 10), (10, 5), (10, 1)]
        # The paper's experiments for Table 3 assigned labels in the order of their classes.
        more: dict[str, Any] = {"labels": "recovered", "changes": (("label_order", "sorted"),)} if number == 3 else {}
        clients = [ClientConfig(epochs, batch_size) for epochs, batch_size in shapes]
        if is_demo:
            clients = [
                replace(one, learning_rate=_DEMO_TRAVEL / one.schedule(images).local_steps) if one.epochs > 1 else one
                for one in clients
            ]
        return [setting(f"{one.epochs}x{one.batch_size}x{images}", client=one, **more) for one in clients]
    if number == 4:
        pairs = [(prior, distance) for distance in ("l1", "l2") for prior in ("mean", "conv+mean", "max", "conv+max")]
        return [setting(f"{g}, {d}", changes=(("prior", g), ("prior_distance", d))) for g, d in pairs]
    if number == 6:
        return [
            setting(
                name,
                client=replace(usual, defence=replace(defence, independent=not repeated_draws or name == "none")),
            )
            for name, defence in _DEFENCES.items()
        ]
    if number == 7:
        return [setting("round 1"), setting("round 6", after_round=5), setting("round 11", after_round=10)]
    if number == 8:
        return [
            setting(f"{known}, {batches}", labels=labels, client=replace(usual, same_batches=batches == "same"))
            for known, labels in (("per batch", "known_per_batch"), ("per client", "known"))
            for batches in ("random", "same")
        ]
    if number == 9:
        true, believed = (
            ((2, 4), [(2, 4), (4, 8), (8, 16)]) if is_demo else ((5, 5), [(5, 5), (10, 10), (25, 25), (50, 50)])
        )
        return [
            setting(
                f"{true[0]}x{true[1]} as {e}x{m}",
                client=ClientConfig(*true),
                changes=() if (e, m) == true else (("epochs", e), ("batch_size", m)),
            )
            for e, m in believed
        ]
    counts = (1, 2) if is_demo else (1, 2, 4)
    return [setting(f"{count} client{'s' * (count > 1)}", num_clients=count) for count in counts]


def _methods(number: int, options: TableOptions) -> tuple[tuple[str, ...], Sequence[str]]:
    """The methods that a table can show, in order, and those to measure."""
    if number == 4 and options.preset in OURS:
        raise ConfigError(f"preset = {options.preset!r} fixes the prior, and Table 4 compares priors; use 'paper'.")
    # A quick look has one set of quick settings in place of the project's presets.
    attacks = (*METHODS, "demo") if options.preset == "demo" else ALL_METHODS
    known = {2: LABEL_METHODS, 4: ("ours_prior",)}.get(number, attacks)
    if options.methods is None:
        return known, _USUAL_METHODS[options.preset]
    if isinstance(options.methods, str) or not options.methods:
        raise ConfigError(f"methods = {shown(options.methods)} must be a list of some of: {', '.join(known)}.")
    return known, [check_choice("method", method, known) for method in options.methods]


def _find_weights(after: int, cohort: Cohort, given: Path | None) -> Path:
    """The file with the weights after this many rounds, from the given folder or from that of the data."""
    data = cohort.place.data
    folder = Path(given) if given is not None else Path(data).absolute().parent if data else None
    if folder and folder.is_file():
        folder = folder.parent
    pattern = f"*weights_after_round_{after}"
    files = [file for file in folder.glob(f"{pattern}.*") if file.suffix in (".safetensors", ".npz")] if folder else []
    if files:
        # A file named after the data set comes first.
        return min(files, key=lambda file: (cohort.dataset not in file.name, file.suffix == ".npz", file.name))
    where = f"{folder} has no" if folder else "there is no"
    raise ConfigError(
        f"round {after + 1} attacks the network after {after} rounds of training, and {where} file "
        f"{pattern}.safetensors or .npz. Set weights to the folder that has it, or train: "
        f"workbench.server_rounds(..., rounds={after}, save_every=5, save_to=FOLDER). "
        "The setting that needs no training is settings = ['round 1']."
    )


_NOTES: dict[int, str] = {
    3: "The paper's recipe assigns labels to batches in the order of their classes here, as its experiments did.",
    8: "With labels known per batch, the shared method is also given the order of the images, as in the paper.",
    10: "An aggregate is a client and the next ones in the data set.",
    11: "Seconds per client on this machine; the paper's on an NVIDIA RTX 2080 Ti.",
}


def _notes(number: int, options: TableOptions) -> tuple[str, ...]:
    draws = "repeated in every epoch, as in the paper's experiments" if options.repeated_draws else "new in every step"
    notes = {
        _NOTES.get(number, ""): number in _NOTES,
        f"The defences' draws are {draws}.": number == 6,
        "Accuracies: trained on every client's first images, tested on the rest, mean over clients; the paper "
        "has a separate test set.": options.accuracies,
        f"Small clients, {_DEMO_STEPS} steps and a tenth of the prior for a quick look; not comparable with the "
        "paper. demo is the attack of workbench demo: a warm start and a consensus of the epochs.": options.preset
        == "demo",
    }
    return tuple(note for note, applies in notes.items() if applies)


# The settings of a custom grid: at the top of its file, and in sections.
_TOP = ("title", "dataset", "data", "clients", "num_clients", "num_images", "seeds", "labels", "preset", "model")
_SECTIONS = {
    "client": settings_of(ClientConfig),
    "defence": settings_of(DefenceConfig),
    "attack": settings_of(AttackConfig),
}


_LISTS = ("update_weight", "rates")


def plan_sweep(path: str | os.PathLike[str]) -> Plan:
    """The units of a grid.

    A single value applies to all units, a list is varied::

        dataset = "glyphs"      # data = "PATH" or "$VARIABLE" where it is not bundled
        clients = 2             # or "3-5,9"
        num_clients = 1         # how many clients the server averages, from each of these on
        num_images = 16
        labels = "known"        # or "recovered"
        preset = "paper"        # the settings that [attack] changes
        seeds = [0]

        [client]
        epochs = [1, 4]
        batch_size = 4

        [defence]
        name = "gaussian"
        strength = [0.0, 0.01]

        [attack]
        method = ["ours_prior", "shared"]
        steps = 50

    Args:
        path: of the file; a relative ``data`` in it starts from the file's folder.
    """
    file = Path(path)
    with reading(file, "a sweep in TOML"):
        grid = tomllib.loads(file.read_text(encoding="utf-8"))
    for name in grid:
        check_choice(f"{file.name}: setting", name, (*_TOP, *_SECTIONS))
    data = None if grid.get("data") is None else file.parent / os.path.expandvars(str(grid["data"]))
    seeds = _choices("seeds", grid.get("seeds", 0))
    cohort = Cohort(grid.get("dataset", "glyphs"), data, grid.get("model"), grid.get("clients", 1), seeds)
    axes = _axes(file, grid)
    varied = [axis for axis, values in axes.items() if len(values) > 1 and axis != ("attack", "method")]
    entries = []
    for values in product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        client, defence, attack = (
            {name: value for (of, name), value in chosen.items() if of == section} for section in _SECTIONS
        )
        config = AttackConfig.preset(grid.get("preset", "paper"), cohort.twin, **attack)
        units = cohort.units(
            cohort.groups(check_count("num_clients", chosen["", "num_clients"])),
            check_count("num_images", chosen["", "num_images"]),
            task="attack",
            client=ClientConfig(**client, defence=DefenceConfig(**defence)),
            labels=chosen["", "labels"],
            attack=config,
        )
        setting = ", ".join(f"{axis[1]} {_text(chosen[axis])}" for axis in varied)
        entries.append(Entry(setting or "all", config.method, units, {}))
    return Plan(str(grid.get("title", f"{file.stem}: {cohort.dataset}")), "images", tuple(entries), cohort.place)


def _axes(file: Path, grid: dict[str, Any]) -> dict[tuple[str, str], list[Any]]:
    """(Section, setting) to the values to combine; the section of settings at the top is empty."""
    axes: dict[tuple[str, str], list[Any]] = {
        ("", "num_clients"): _choices("num_clients", grid.get("num_clients", 1)),
        ("", "num_images"): _choices("num_images", grid.get("num_images", 50)),
        ("", "labels"): _choices("labels", grid.get("labels", "known")),
    }
    for section, known in _SECTIONS.items():
        settings = grid.get(section, {})
        if not isinstance(settings, dict):
            raise ConfigError(f"{file.name}: {section} = {shown(settings)} must be a section, [{section}].")
        for name, value in settings.items():
            check_choice(f"{file.name}: [{section}]", name, known)
            axes[section, name] = _choices(name, value)
    return axes


def _choices(setting: str, value: Any) -> list[Any]:
    """The values of a setting: those of a list, or of a list of lists for one that is a list itself."""
    if value == []:
        raise ConfigError(f"{setting} = [] in a sweep must hold at least one value.")
    is_single = not isinstance(value, list) or (setting in _LISTS and not isinstance(value[0], list))
    return [value] if is_single else value


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
