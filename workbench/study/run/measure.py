"""Measures one unit: the client trains, the server attacks, and the result is a row of plain values.

The pictures behind the row are stored as a file where the study asks for them.
"""

import io
import math
import os
import platform
import re
import resource
import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from workbench.attack.attack import Reconstruction
from workbench.attack.labels import Statistics, dummy_inputs, estimate_labels, network_statistics
from workbench.attack.prepare import prepare
from workbench.config import LABEL_FORMULAS
from workbench.data import Truth
from workbench.data.dataset import eight_bits
from workbench.errors import DataError
from workbench.federated import Observation, accuracy, aggregate, client_update_with_secrets, server_rounds
from workbench.files.reading import read_npz
from workbench.files.weights import load_weights
from workbench.files.writing import write_atomically
from workbench.metrics import Score, label_errors, score
from workbench.session.session import find_device
from workbench.study.plan.plan import Place, Row, Unit, digest_of_pictures, digest_of_weights, network
from workbench.training.model import Model
from workbench.weights import Weights

__all__ = ["Pictures", "available_cores", "load_pictures", "measure"]

# Steps between two scores; scoring takes time too.
SCORE_EVERY = 25

_PACKAGES = ("fedavg-leakage-workbench", "jax", "jaxlib", "numpy", "optax")


@lru_cache(maxsize=16)
def _server_weights(model: Model, seed: int, digest: str | None, files: tuple[str, ...]) -> Weights:
    if digest is None:
        return model.init(seed)
    for file in files:
        weights = load_weights(file, model)
        if digest_of_weights(weights) == digest:
            return weights
    raise DataError(f"weights {digest} are in none of the files given: {', '.join(files) or 'none'}.")


def measure(unit: Unit, place: Place = Place()) -> Row:
    """Measure a unit; the result as plain JSON values, without key and settings."""
    dataset = place.dataset(unit.dataset)
    model = network(unit.network, dataset.num_classes, dataset.image_shape)
    task = {"attack": _attack, "labels": _labels, "accuracy": _accuracy}[unit.task]
    device = find_device(place.device)
    started = time.perf_counter()
    with suppress(OSError):
        # Only Linux can count the peak of memory from here.
        Path("/proc/self/clear_refs").write_text("5")
    with jax.default_device(device):
        truth = Truth(dataset.client(index, unit.num_images) for index in unit.clients)
        if digest_of_pictures(truth) != unit.pictures:
            raise DataError(
                f"the files of {unit.dataset} on this machine hold other pictures of client {unit.clients[0]} than "
                "those the study was planned with; give every machine the same files."
            )
        result = task(unit, place, truth, model)
    result.setdefault("seconds", round(time.perf_counter() - started, 3))
    return {
        **result,
        "peak_memory": _peak_memory(device),
        "device": f"{device.platform}: {device.device_kind}, {len(available_cores())} of {os.cpu_count()} cores",
        "versions": {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _observe(unit: Unit, place: Place, model: Model, truth: Truth) -> tuple[Observation, np.ndarray[Any, Any]]:
    """What the server sees, and the order of images in every client's batches [A, E, N], which it does not see."""
    weights = _server_weights(model, unit.seed, unit.weights, place.weights)
    seen, hidden = zip(
        *(
            client_update_with_secrets(model, weights, client, unit.client, seed=unit.seed + number)
            for number, client in enumerate(truth)
        ),
        strict=True,
    )
    return aggregate(seen), np.stack([secrets.order for secrets in hidden])


def _attack(unit: Unit, place: Place, truth: Truth, model: Model) -> Row:
    assert unit.attack is not None
    observation, order = _observe(unit, place, model, truth)
    known: dict[str, Any] = {}
    if unit.labels == "known":
        known["label_counts"] = truth.label_counts
    elif unit.labels == "known_per_batch":
        known["batch_labels"] = np.stack([client.labels[o] for client, o in zip(truth, order, strict=True)])
        if unit.attack.method == "shared":
            # As in the paper's experiments: with one set of images for all epochs, the attack also needs their order.
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
            # The images of a diverging attack may overflow; they are scored all the same.
            found = attack.reconstruct(state)
            quality = score(found, truth)
        loss = float(infos.loss[-1]) if len(infos.loss) else math.nan
        numbers = (_finite(quality.psnr.mean(), 3), round(quality.recovered_percent, 4), _finite(loss, 9))
        curve.append([int(state.step), round(seconds, 2), *numbers])
        if len(infos.loss) < steps:
            outcome = "diverged"
            break
    if place.pictures is not None:
        _save_pictures(place.pictures, unit.key, found, quality, truth)
    return {
        "outcome": outcome,
        "steps": int(state.step),
        "seconds": round(seconds, 2),
        "psnr": [_finite(value, 3) for value in quality.psnr],
        "ssim": [_finite(value, 4) for value in quality.ssim],
        # What the attacker can judge each image by; rows before version 0.2 have "confidence", in dB, instead.
        "residuals": _rounded(found.residuals, quality.order),
        "confidence_by_span": _rounded(found.confidence, quality.order),
        "recovered_percent": round(quality.recovered_percent, 4),
        "label_errors": label_errors(truth.label_counts.sum(0), attack.label_counts.sum(0)),
        # Step, seconds, mean PSNR, percent recovered and loss at every score.
        "curve": curve,
    }


def _rounded(values: NDArray[np.float32] | None, order: NDArray[np.int64]) -> list[float | None] | None:
    """The values of the images in the order of the true ones."""
    return None if values is None else [_finite(value, 4) for value in values[order]]


def _finite(value: float, digits: int) -> float | None:
    """The rounded value; None for NaN and infinity, which JSON does not have."""
    return round(float(value), digits) if math.isfinite(value) else None


# The same for every client.
_dummy_inputs = lru_cache(maxsize=4)(dummy_inputs)


@lru_cache(maxsize=4)
def _server_statistics(model: Model, seed: int, digest: str | None, files: tuple[str, ...]) -> Statistics:
    weights = _server_weights(model, seed, digest, files)
    return network_statistics(model, weights, _dummy_inputs(model, seed))


def _labels(unit: Unit, place: Place, truth: Truth, model: Model) -> Row:
    observation, _ = _observe(unit, place, model, truth)
    ends = None
    if set(unit.label_methods) & set(LABEL_FORMULAS):
        # All clients share the statistics of the server's weights, and all formulas those of the client's.
        ends = (
            _server_statistics(model, unit.seed, unit.weights, place.weights),
            network_statistics(model, observation.client_weights, _dummy_inputs(model, unit.seed)),
        )
    errors = {}
    for method in unit.label_methods:
        found = estimate_labels(model, observation, method, seed=unit.seed, config=unit.attack, statistics=ends)
        errors[method] = label_errors(truth.label_counts.sum(0), found.whole)
    return {"outcome": "finished", "label_errors": errors}


def _accuracy(unit: Unit, place: Place, truth: Truth, model: Model) -> Row:
    """Train on every client's first images and test on the rest; the mean accuracy over clients."""
    rest = [place.dataset(unit.dataset).client(index, None) for index in unit.clients]
    weights, history = server_rounds(
        model,
        _server_weights(model, unit.seed, unit.weights, place.weights),
        list(truth),
        unit.client,
        rounds=unit.rounds or 1,
        clients_per_round=min(10, len(truth)),
        seed=unit.seed,
        progress=False,
    )
    tested = [client for client in rest if client.num_images > unit.num_images]
    if not tested:
        raise DataError(
            f"no client of {unit.dataset} has more than {unit.num_images} images, so no images are left to test on."
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


def _peak_memory(device: jax.Device) -> int:
    """The most bytes that were in use, on the device where it reports them and by this process otherwise."""
    if on_device := (device.memory_stats() or {}).get("peak_bytes_in_use", 0):
        return int(on_device)
    status = Path("/proc/self/status")
    if since_reset := re.search(r"VmHWM:\s*(\d+)", status.read_text() if status.exists() else ""):
        return int(since_reset[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024


def available_cores() -> list[int]:
    """The processor cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


class Pictures(NamedTuple):
    """What one attack reconstructed and the truth, in the order of the true images; 8-bit pixels.

    Attributes:
        truth: [N, H, W, C] of all clients.
        images: [N, H, W, C] the reconstruction.
        epochs: [V, N, H, W, C] the reconstruction of every epoch, matched to each other.
        psnr: [N] in dB.
    """

    truth: NDArray[np.uint8]
    images: NDArray[np.uint8]
    epochs: NDArray[np.uint8]
    psnr: NDArray[np.float32]


def _save_pictures(folder: str, key: str, found: Reconstruction, quality: Score, truth: Truth) -> None:
    """Write what the unit with this key reconstructed."""
    matched = np.stack([epoch[order] for epoch, order in zip(found.epochs, found.permutations, strict=True)])
    pictures = Pictures(
        truth=eight_bits(truth.images),
        images=eight_bits(found.images[quality.order]),
        epochs=eight_bits(matched[:, quality.order]),
        psnr=np.asarray(quality.psnr, np.float32),
    )
    content = io.BytesIO()
    np.savez_compressed(content, **pictures._asdict())
    write_atomically(Path(folder, f"{key}.npz"), content.getvalue())


def load_pictures(folder: str, key: str) -> Pictures | None:
    """What a unit reconstructed; None where it was measured without storing pictures."""
    path = Path(folder, f"{key}.npz")
    return Pictures(**read_npz(path, "a study's pictures", *Pictures._fields)) if path.exists() else None
