"""One unit of a study measured: the client trains, the server attacks, and the result is told as plain values."""

from __future__ import annotations

import math
import os
import platform
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from workbench import models
from workbench.attack.labels import Statistics, dummy_inputs, estimate_labels, network_statistics
from workbench.attack.prepare import prepare
from workbench.data import ClientData, Dataset, load_dataset
from workbench.errors import DataError
from workbench.federated import Observation, accuracy, aggregate, client_update_with_secrets, server_rounds
from workbench.files.weights import load_weights
from workbench.metrics import label_errors, score
from workbench.session.session import find_device
from workbench.study.plan.units import Unit, digest_of_pictures, digest_of_weights
from workbench.study.run.processes import own_cores
from workbench.study.run.store import Row
from workbench.study.show.pictures import keep_pictures
from workbench.training.model import Model
from workbench.training.weights import Weights

__all__ = ["Place", "measure"]

# Between two scores, which take a moment themselves.
SCORE_EVERY = 25


@dataclass(frozen=True)
class Place:
    """Where a unit finds what it needs, on the machine that runs it; no part of what it is.

    Attributes:
        data: the files of the data set; None for a bundled one.
        weights: files with trained weights.
        device: as for `AttackSession`.
        pictures: a folder for the pictures that attacks find; None keeps none.
    """

    data: str | None = None
    weights: tuple[str, ...] = ()
    device: str = "auto"
    pictures: str | None = None

    def dataset(self, name: str) -> Dataset:
        return _dataset(name, self.data)


@lru_cache(maxsize=4)
def _dataset(name: str, path: str | None) -> Dataset:
    return load_dataset(name, path=path)


@lru_cache(maxsize=16)
def network(name: str, num_classes: int, image_shape: tuple[int, int, int]) -> Model:
    """A built-in network for a data set."""
    options = {"image_shape": image_shape} if name == "mlp" else {}
    return models.build(name, num_classes=num_classes, **options)


@lru_cache(maxsize=16)
def _server_weights(model: Model, seed: int, digest: str | None, files: tuple[str, ...]) -> Weights:
    if digest is None:
        return model.init(seed)
    for file in files:
        weights = load_weights(file, model)
        if digest_of_weights(weights) == digest:
            return weights
    raise DataError(f"weights {digest} are in none of the files given: {', '.join(files) or 'none'}.")


def measure(unit: Unit, place: Place | None = None) -> Row:
    """Do a unit: its result as plain JSON values, without its settings."""
    place = Place() if place is None else place
    dataset = place.dataset(unit.dataset)
    model = network(unit.network, dataset.num_classes, dataset.image_shape)
    task = {"attack": _attack, "labels": _labels, "accuracy": _accuracy}[unit.task]
    device = find_device(place.device)
    started = time.perf_counter()
    with _peak_memory(device) as memory, jax.default_device(device):
        result = task(unit, place, dataset, model)
    result.setdefault("seconds", round(time.perf_counter() - started, 3))
    return {
        **result,
        "peak_memory": memory["bytes"],
        "device": f"{device.platform}: {device.device_kind}, {len(own_cores())} of {os.cpu_count()} cores",
        "versions": _versions(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _clients(unit: Unit, dataset: Dataset) -> list[ClientData]:
    clients = [dataset.client(index, unit.num_images) for index in unit.clients]
    if digest_of_pictures(clients) != unit.pictures:
        raise DataError(
            f"the files of {unit.dataset} on this machine hold other pictures of client {unit.clients[0]} than those "
            "the study was planned with; give every machine the same files."
        )
    return clients


def _observe(
    unit: Unit, place: Place, model: Model, clients: list[ClientData]
) -> tuple[Observation, np.ndarray[Any, Any]]:
    """What the server sees, and [A, E, N] the order of images in every client's batches, which it does not."""
    weights = _server_weights(model, unit.seed, unit.weights, place.weights)
    updates = [
        client_update_with_secrets(model, weights, client, unit.client, seed=unit.seed + number)
        for number, client in enumerate(clients)
    ]
    seen = [observation for observation, _ in updates]
    return seen[0] if len(seen) == 1 else aggregate(seen), np.stack([hidden.order for _, hidden in updates])


def _attack(unit: Unit, place: Place, dataset: Dataset, model: Model) -> Row:
    assert unit.attack is not None
    clients = _clients(unit, dataset)
    observation, order = _observe(unit, place, model, clients)
    known: dict[str, Any] = {}
    if unit.labels == "known":
        known["label_counts"] = np.stack([client.label_counts for client in clients])
    elif unit.labels == "known_per_batch":
        known["batch_labels"] = np.stack([client.labels[o] for client, o in zip(clients, order, strict=True)])
        if unit.attack.method == "shared":
            # As in the paper's experiments: one set of images in many orders needs the order, more than counts tell.
            known["image_order"] = order
    started = time.perf_counter()
    attack = prepare(model, observation, unit.attack, seed=unit.seed, device=find_device(place.device), **known)
    state, seconds = attack.start(), time.perf_counter() - started
    curve: list[list[float | None]] = []
    outcome = "finished"
    while (at := int(state.step)) < attack.total_steps:
        steps = min(SCORE_EVERY, attack.total_steps - at)
        started = time.perf_counter()
        state, infos = attack.advance(state, attack.steering, steps)
        seconds += time.perf_counter() - started
        with np.errstate(over="ignore", invalid="ignore"):
            # Images on their way to infinity are scored like any others.
            found = attack.reconstruct(state)
            quality = score(found, clients)
        loss = float(infos.loss[-1]) if len(infos.loss) else math.nan
        numbers = (_finite(quality.psnr.mean(), 3), round(quality.recovered_percent, 4), _finite(loss, 9))
        curve.append([int(state.step), round(seconds, 2), *numbers])
        if len(infos.loss) < steps:
            outcome = "diverged"
            break
    if place.pictures is not None:
        keep_pictures(place.pictures, unit.key, found, quality, clients)
    true_counts = np.sum([client.label_counts for client in clients], axis=0)
    return {
        "outcome": outcome,
        "steps": int(state.step),
        "seconds": round(seconds, 2),
        "psnr": [_finite(value, 3) for value in quality.psnr],
        "ssim": [_finite(value, 4) for value in quality.ssim],
        # What the attacker would have predicted for each image, beside what it is.
        "confidence": [_finite(value, 2) for value in found.confidence[quality.order]],
        "recovered_percent": round(quality.recovered_percent, 4),
        "label_errors": label_errors(true_counts, attack.label_counts.sum(0)),
        # Step, seconds, mean PSNR, percent recovered and loss along the way.
        "curve": curve,
    }


def _finite(value: float, digits: int) -> float | None:
    """JSON has no other numbers."""
    return round(float(value), digits) if math.isfinite(value) else None


# The same for every client.
_dummy_inputs = lru_cache(maxsize=4)(dummy_inputs)


@lru_cache(maxsize=4)
def _server_statistics(model: Model, seed: int, digest: str | None, files: tuple[str, ...]) -> Statistics:
    weights = _server_weights(model, seed, digest, files)
    return network_statistics(model, weights, _dummy_inputs(model, seed))


def _labels(unit: Unit, place: Place, dataset: Dataset, model: Model) -> Row:
    clients = _clients(unit, dataset)
    observation, _ = _observe(unit, place, model, clients)
    ends = None
    if set(unit.label_methods) != {"refined"}:
        # The server's end is that of every client, and the client's that of every formula.
        ends = (
            _server_statistics(model, unit.seed, unit.weights, place.weights),
            network_statistics(model, observation.client_weights, _dummy_inputs(model, unit.seed)),
        )
    true_counts = np.sum([client.label_counts for client in clients], axis=0)
    errors = {}
    for method in unit.label_methods:
        found = estimate_labels(model, observation, method, seed=unit.seed, config=unit.attack, statistics=ends)
        errors[method] = label_errors(true_counts, found.whole)
    return {"outcome": "finished", "label_errors": errors}


def _accuracy(unit: Unit, place: Place, dataset: Dataset, model: Model) -> Row:
    """Train on every client's first images, test on the rest; the mean over clients."""
    clients = _clients(unit, dataset)
    rest = [dataset.client(index, None) for index in unit.clients]
    weights, history = server_rounds(
        model,
        _server_weights(model, unit.seed, unit.weights, place.weights),
        clients,
        unit.client,
        rounds=unit.rounds or 1,
        clients_per_round=min(10, len(clients)),
        seed=unit.seed,
        progress=False,
    )
    tested = [client for client in rest if client.num_images > unit.num_images]
    if not tested:
        raise DataError(
            f"no client of {unit.dataset} has more than {unit.num_images} images, so none is left to test on."
        )
    of_clients = [
        accuracy(model, weights, client.inputs[unit.num_images :], client.labels[unit.num_images :])
        for client in tested
    ]
    return {
        "outcome": "finished",
        "steps": len(history),
        "accuracy_percent": round(100 * float(np.mean(of_clients)), 3),
        "tested_clients": len(tested),
        "tested_images": sum(client.num_images - unit.num_images for client in tested),
    }


# What it took


@contextmanager
def _peak_memory(device: jax.Device) -> Any:
    """``memory["bytes"]`` afterwards: the most that was in use, on the device or of this process."""
    memory = {"bytes": 0}
    resets = Path("/proc/self/clear_refs")
    try:
        # Linux starts counting anew; elsewhere the peak is that of the process since it began.
        resets.write_text("5")
    except OSError:
        resets = None  # type: ignore[assignment]
    try:
        yield memory
    finally:
        memory["bytes"] = int((device.memory_stats() or {}).get("peak_bytes_in_use", 0)) or _process_peak(resets)


def _process_peak(resets: Path | None) -> int:
    if resets is not None:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024


def _versions() -> dict[str, str]:
    names = ("fedavg-leakage-workbench", "jax", "jaxlib", "numpy", "optax")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}
