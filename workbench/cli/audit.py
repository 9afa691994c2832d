"""The command ``workbench audit``."""

import hashlib
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from workbench import models
from workbench.auditing.audit import audit as run_audit
from workbench.auditing.twin import TRIES, Calibration, calibrate
from workbench.auditing.work import best_settings
from workbench.cli.common import given_settings, one_of, option, parse_settings, prepare_run, seed_list, setting_options
from workbench.config import AttackConfig, ClientConfig
from workbench.data import ClientData, Dataset, dataset_from_arrays, dataset_from_folder
from workbench.errors import ConfigError, DataError, check_count
from workbench.federated import Observation
from workbench.federated.updates import SENDS
from workbench.files.reading import existing_path, read_npz
from workbench.settings import settings_of, with_parameters
from workbench.target import NETWORKS
from workbench.training.model import Model

__all__ = ["audit"]

_CLIENT, _IMAGES, _AUDIT = "The client", "Images", "The audit"
_IMAGES_HELP = "a folder with one sub-folder of images per class, or an .npz file with images and labels."
_FOLDERS_HELP = f"{_IMAGES_HELP[:-1]}; sub-folders with whole numbers as names are these labels."
_TRAINING = [name for name in settings_of(ClientConfig) if name != "same_batches"]
_NEEDED = ("epochs", "batch_size", "learning_rate")
_OPTIONS = (
    option(
        "model", str | None, None, _CLIENT, f"A .pt2 file of torch.export, or a built-in network. {one_of(NETWORKS)}"
    ),
    option("num_images", int | None, None, _CLIENT, "Images N; an audit file may have it.", "--num-images", "-n"),
    option("mean", str | None, None, _CLIENT, "Normalisation: the mean of every channel, such as 0.5,0.5,0.5."),
    option("std", str | None, None, _CLIENT, "Normalisation: the standard deviation of every channel."),
    option("sends", str, "weights", _CLIENT, f"What the client sends: its weights or their change. {one_of(SENDS)}"),
    option(
        "client",
        str,
        "0",
        _CLIENT,
        "Which client of an audit file: its id, or else its place from 0.",
    ),
    *setting_options(ClientConfig, _CLIENT, only=_TRAINING),
    option("truth", Path | None, None, _IMAGES, f"The client's images: {_FOLDERS_HELP}"),
    option("stand_in", Path | None, None, _IMAGES, f"Images for the twin; bundled ones if unset: {_IMAGES_HELP}"),
    option("pictures", Path | None, None, _IMAGES, f"Were these among the client's? {_IMAGES_HELP.capitalize()}"),
    option("controls", Path | None, None, _IMAGES, f"Pictures that were certainly not: {_IMAGES_HELP}"),
    option("test_set", Path | None, None, _IMAGES, f"To measure what a defence costs: {_IMAGES_HELP}"),
    option("defence", list[str] | None, None, _AUDIT, "A defence to try, such as 'gaussian 0.1'; repeatable."),
    option("schedule", list[str] | None, None, _AUDIT, "Another schedule to try, such as epochs=1; repeatable."),
    option("known_labels", bool, False, _AUDIT, "Give the attack the label counts of --truth."),
    option("tries", int, len(TRIES), _AUDIT, "Settings to try on the twin; 0 uses the preset best without a twin."),
    *setting_options(AttackConfig, _AUDIT, only=["steps"]),
    option("seeds", str, "0,1", _AUDIT, "Seeds of the attacks."),
    option("rounds", int, 1, _AUDIT, "Rounds in which the client takes part, for test accuracy and epsilon."),
    option("delta", float, 1e-5, _AUDIT, "Delta of epsilon."),
    option("report", Path, Path("audit.html"), _AUDIT, "Where to write the HTML report."),
    option("json", Path | None, None, _AUDIT, "Write the numbers as JSON."),
    option(
        "store", Path | None, None, _AUDIT, "A file that keeps finished parts, so that the command can be repeated."
    ),
    option("device", str, "auto", _AUDIT, "auto, or a JAX device such as cpu or gpu:1."),
)


def audit(
    files: Annotated[list[Path], typer.Argument(help="The weights before and after, or one audit file.")], **values: Any
) -> int:
    """Audit the update of a client: what would a curious server learn from it?"""
    tries, seeds = check_count("tries", values["tries"], minimum=0, maximum=len(TRIES)), seed_list(values["seeds"])
    schedules = [parse_settings(text.split(",")) for text in values["schedule"] or []]
    prepare_run(values["report"], values["json"], values["store"])
    model, seen = _target(files, values)
    paths = {name: values[name] for name in ("truth", "stand_in", "pictures", "controls", "test_set")}
    images: dict[str, Any] = {
        name: None if path is None else _images(path, model, seen, is_labelled=name not in ("pictures", "controls"))
        for name, path in paths.items()
    }
    truth, stand_in = images.pop("truth"), images.pop("stand_in")
    if values["known_labels"] and truth is None:
        raise ConfigError("--known-labels needs --truth, where the labels are.")
    run = {"store": values["store"], "device": values["device"]}
    changes = given_settings(AttackConfig, values)
    best = best_settings(seen, **changes)

    def settings() -> Calibration | AttackConfig:
        if not tries:
            return best
        known = {"known_labels": values["known_labels"]}
        chosen = calibrate(model, seen, stand_in, tries=tries, **known, **changes, **run)
        typer.echo(f"{chosen}\n")
        if not chosen.is_complete:
            raise KeyboardInterrupt
        return chosen

    try:
        found = run_audit(
            model,
            seen,
            settings,
            truth,
            defences=values["defence"] or [],
            schedules=schedules,
            label_counts=truth.label_counts if values["known_labels"] and truth else None,
            seeds=seeds,
            rounds=values["rounds"],
            delta=values["delta"],
            **images,
            **run,
        )
    except KeyboardInterrupt:
        kept = "nothing is kept; with --store, finished parts are."
        if values["store"]:
            kept = f"finished parts are kept in {values['store']}, and the same command continues there."
        typer.echo(f"Stopped; there is no report, and {kept}")
        return 130
    typer.echo(f"{found.checks}\n\n{found}")
    read = [*files, *(path for path in (Path(values["model"]), *paths.values()) if path and path.is_file())]
    hashes = {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in read}
    origin = {"command": shlex.join(["workbench", *sys.argv[1:]]), "files": hashes}
    found.report(values["report"], **origin)
    if values["json"] is not None:
        found.json(values["json"], **origin)
    typer.echo(f"Report: {values['report']}")
    return 0 if found.is_complete else 130


audit = with_parameters(audit, _OPTIONS)


def _target(files: list[Path], values: dict[str, Any]) -> tuple[Model, Observation]:
    """The network, and what the server saw of the client."""
    needed = ["model", "mean", "std", *_NEEDED, *["num_images"] * (len(files) == 2)]
    if missing := [f"--{name.replace('_', '-')}" for name in needed if values[name] is None]:
        raise ConfigError(f"{', '.join(missing)}: missing; the attack has to simulate the client's training.")
    if len(files) > 2:
        raise ConfigError(f"{len(files)} files: give the weights before and after, or one audit file.")
    name, training = values["model"], ClientConfig(**given_settings(ClientConfig, values))
    model = models.from_torch_export(name) if name.endswith(".pt2") else models.build(name)
    mean, std = (parse_settings([f"{name}=[{values[name]}]"])[name] for name in ("mean", "std"))
    known: dict[str, Any] = {"normalization": (mean, std), "sends": values["sends"], "num_images": values["num_images"]}
    if len(files) == 2:
        return model, Observation.from_updates(model, files[0], files[1], training, **known)
    return model, Observation.from_audit_file(model, files[0], training, client=values["client"], **known)


def _images(path: Path, model: Model, seen: Observation, *, is_labelled: bool) -> ClientData:
    """All images of a file or a folder, as one client's; labels matter only where they are used."""
    height, _, channels = seen.image_shape
    if existing_path(path, _IMAGES_HELP).is_dir():
        color = "grey" if channels == 1 else "rgb"
        data = dataset_from_folder(path, size=height, color=color, normalization=seen.normalization)
        if is_labelled:
            data = _with_labels_of(path, data, model.num_classes)
    else:
        arrays = read_npz(path, "images and labels", "images", "labels")
        names = [str(index) for index in range(model.num_classes)]
        named: dict[str, Any] = {"class_names": names, "normalization": seen.normalization, "name": path.name}
        data = dataset_from_arrays(arrays["images"], arrays["labels"], **named)
    if data.image_shape != seen.image_shape:
        raise DataError(f"'{path}' has images of {data.image_shape}; the client's are {seen.image_shape}.")
    return data.client(0, None)


def _with_labels_of(path: Path, data: Dataset, num_classes: int) -> Dataset:
    """The labels that the names of the sub-folders are; their order is the labels only if every class has one."""
    if all(re.fullmatch("[0-9]{1,9}", name) for name in data.class_names):
        numbers = np.array([int(name) for name in data.class_names])
        if numbers.max() < num_classes:
            names = tuple(map(str, range(num_classes)))
            changed = lambda index: (data.pictures(index)[0], numbers[data.pictures(index)[1]])  # noqa: E731
            return replace(data, class_names=names, pictures=changed)
    if data.num_classes != num_classes:
        raise DataError(
            f"'{path}' has {data.num_classes} sub-folders for the {num_classes} classes of the network: give one for "
            f"every class, or name them by their labels from 0 to {num_classes - 1}."
        )
    return data
