"""A session on disk: one safetensors file, checked before anything in it is believed, never unpickled.

The metadata holds the settings as JSON, a format version, and a SHA-256 of settings and tensors together, so that no
bit of either can change unnoticed.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from workbench import models, session
from workbench.attack import step as engine
from workbench.attack.objective import Terms
from workbench.attack.step import StepInfo
from workbench.config import AttackConfig
from workbench.data.dataset import Normalization
from workbench.errors import CheckpointError, WorkbenchError
from workbench.federated.observation import Observation
from workbench.weights import write_atomically

__all__ = ["FORMAT_VERSION", "load", "save"]

FORMAT_VERSION = 1
_OBSERVED = ("image_shape", "num_classes", "num_images", "epochs", "batch_size", "learning_rate", "num_clients")


def save(attack_session: session.AttackSession, path: str | os.PathLike[str]) -> None:
    """Write the session: beside first, synced, then put in place."""
    s, observation = attack_session, attack_session.observation
    client = s._attack.phases[-1].problem.client
    tensors = {"labels": np.asarray(client.labels)}
    if client.order is not None:
        tensors["order"] = np.asarray(client.order)
    for side in ("server_weights", "client_weights"):
        for layer, arrays in getattr(observation, side).items():
            tensors |= {f"{side}/{layer}/{name}": np.asarray(array) for name, array in arrays.items()}
    tensors |= {f"state/{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(s._state))}
    history = s._all_infos()
    tensors |= {f"history/{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(history))}
    own = sorted(name for name, value in s._own.items() if value is not None)
    settings = {
        "config": asdict(s.config),
        "seed": s.seed,
        "model": {"name": s.model.name, "options": None if s.model.options is None else dict(s.model.options)},
        "own": own,
        "observation": {name: getattr(observation, name) for name in _OBSERVED},
        "normalization": asdict(observation.normalization),
        "steering": s.steering,
        "events": [asdict(event) for event in s._events],
        "has_diverged": s._has_diverged,
    }
    text = json.dumps(settings, sort_keys=True)
    metadata = {"format": str(FORMAT_VERSION), "settings": text, "sha256": _digest(text, tensors)}
    write_atomically(path, to_bytes(tensors, metadata))


def load(path: str | os.PathLike[str], own: dict[str, Any], device: str | jax.Device) -> session.AttackSession:
    """Read a session; whatever is wrong with the file ends in a `CheckpointError`."""
    file = Path(path)
    settings, tensors = _read(file)
    try:
        return _rebuild(file, settings, tensors, own, device)
    except CheckpointError:
        raise
    except (WorkbenchError, KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise CheckpointError(f"{file} does not hold a session that fits together: {error}") from None


def _digest(text: str, tensors: dict[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _read(file: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    if not file.is_file():
        raise CheckpointError(f"checkpoint {file} does not exist.")
    try:
        with safe_open(file, framework="numpy") as opened:
            metadata = opened.metadata() or {}
            version = metadata.get("format", "")
            if not version.isascii() or not version.isdigit() or not 1 <= int(version) <= FORMAT_VERSION:
                newer = version.isascii() and version.isdigit() and len(version) < 9 and int(version) > FORMAT_VERSION
                advice = (
                    "it was written by a newer workbench, which can read it" if newer else "it is not a saved session"
                )
                raise CheckpointError(
                    f"{file} has format {version!r}, this workbench reads {FORMAT_VERSION}: {advice}."
                )
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - not a dict
        text = metadata.get("settings", "")
        if _digest(text, tensors) != metadata.get("sha256"):
            raise CheckpointError(f"{file} is damaged: its content does not match its checksum.")
        settings = json.loads(text)
    except CheckpointError:
        raise
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{file} is not a whole checkpoint: {error}.") from None
    if not isinstance(settings, dict):
        raise CheckpointError(f"{file} is not a saved session: its settings are no JSON object.")
    return settings, tensors


def _rebuild(
    file: Path, settings: dict[str, Any], tensors: dict[str, NDArray[Any]], own: dict[str, Any], device: Any
) -> session.AttackSession:
    for name in settings["own"]:
        if own.get(name) is None:
            raise CheckpointError(f"{file} was saved with your own {name}: pass it again, load(path, {name}=...).")
    model = own["model"]
    if model is None:
        if settings["model"]["options"] is None:
            raise CheckpointError(f"{file} was saved with your own network: pass it again, load(path, model=...).")
        model = models.build(settings["model"]["name"], **settings["model"]["options"])
    observed = dict(settings["observation"])
    observed["image_shape"] = tuple(observed["image_shape"])
    normalization = {name: tuple(values) for name, values in settings["normalization"].items()}
    observation = Observation(
        _weights(tensors, "server_weights"),
        _weights(tensors, "client_weights"),
        normalization=Normalization(**normalization),
        **observed,
    )
    config = AttackConfig(**settings["config"])
    _check_sizes(file, observation, config, tensors)
    rebuilt = session.AttackSession(
        model,
        observation,
        config,
        batch_labels=tensors["labels"],
        image_order=tensors.get("order"),
        prior=own["prior"],
        regularizer=own["regularizer"],
        optimizer=own["optimizer"],
        seed=settings["seed"],
        device=device,
    )
    _restore(file, rebuilt, settings, tensors)
    return rebuilt


def _weights(tensors: dict[str, NDArray[Any]], side: str) -> dict[str, dict[str, Any]]:
    weights: dict[str, dict[str, Any]] = {}
    for path, array in tensors.items():
        head, _, rest = path.partition("/")
        layer, _, name = rest.rpartition("/")
        if head == side:
            weights.setdefault(layer, {})[name] = jnp.asarray(array)
    return weights


def _check_sizes(file: Path, observation: Observation, config: AttackConfig, tensors: dict[str, NDArray[Any]]) -> None:
    """The sizes in the settings must be those of the tensors, before anything of that size is made."""
    epochs = config.epochs or observation.epochs
    sizes = (observation.num_clients, epochs, observation.num_images)
    images = tensors["state/0"].shape
    fits = images[:1] == sizes[:1] and images[2:] == (sizes[2], *observation.image_shape) and images[1] in (1, epochs)
    if tensors["labels"].shape != sizes or not fits:
        raise CheckpointError(
            f"{file} does not hold a session that fits together: its images or labels have other sizes."
        )


def _restore(
    file: Path, rebuilt: session.AttackSession, settings: dict[str, Any], tensors: dict[str, NDArray[Any]]
) -> None:
    attack = rebuilt._attack
    template = jax.eval_shape(lambda: engine.init(jnp.zeros(tensors["state/0"].shape, jnp.float32), attack.optimizer))
    leaves, tree = jax.tree.flatten(template)
    saved = [tensors.get(f"state/{i}") for i in range(len(leaves))]
    for expected, array in zip(leaves, saved, strict=True):
        if array is None or array.shape != expected.shape or array.dtype != expected.dtype:
            raise CheckpointError(f"{file} does not hold the state of this attack: another optimiser or damaged.")
    state = jax.device_put(jax.tree.unflatten(tree, saved), rebuilt.device)
    step, phase = int(state.step), int(state.phase)
    terms = len(Terms._fields)
    history = [tensors[f"history/{i}"] for i in range(terms + 3)]
    if any(column.shape != (step,) for column in history) or not 0 <= phase < len(attack.phases):
        raise CheckpointError(f"{file} has a history that does not fit its step {step}.")
    infos = StepInfo(history[0], Terms(*history[1 : 1 + terms]), *history[1 + terms :])
    events = [session.SteeringEvent(int(e["step"]), str(e["name"]), float(e["value"])) for e in settings["events"]]
    rebuilt._resume(state, infos, events, dict(settings["steering"]), has_diverged=bool(settings["has_diverged"]))
