"""A session on disk: one file, checked before anything in it is believed (`workbench.files.container`)."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from workbench import models
from workbench.attack import step as engine
from workbench.attack.objective import Terms
from workbench.attack.step import AttackState, StepInfo
from workbench.config import AttackConfig
from workbench.data.dataset import Normalization
from workbench.errors import CheckpointError, check_flag, check_kind
from workbench.federated.observation import Observation
from workbench.files import container
from workbench.files.container import Tensors
from workbench.session import session
from workbench.session.history import pack_history, unpack_history
from workbench.training.model import Model

__all__ = ["FORMAT_VERSION", "load", "save"]

FORMAT_VERSION = 1
KIND = "session"
_SETTINGS = (
    *("config", "seed", "model", "own", "observation", "normalization"),
    *("snapshot_every", "snapshot_bytes", "has_diverged"),
)
_OBSERVED = ("image_shape", "num_classes", "num_images", "epochs", "batch_size", "learning_rate", "num_clients")


def save(attack_session: session.AttackSession, path: str | os.PathLike[str]) -> None:
    """Write the session as it is now."""
    s = attack_session
    observation, moment = s.observation, s._current()
    client = s._attack.phases[-1].problem.known
    tensors = {"labels": np.asarray(client.labels), **pack_history(s._history(moment))}
    if client.order is not None:
        tensors["order"] = np.asarray(client.order)
    for side in ("server_weights", "client_weights"):
        for layer, arrays in getattr(observation, side).items():
            tensors |= {f"{side}/{layer}/{name}": np.asarray(array) for name, array in arrays.items()}
    tensors |= {f"state/{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(moment.state))}
    # Where it was left open, the free memory of the moment decided: the run goes on as it began.
    low_memory = s._attack.phases[-1].objective.simulation.segments > 1
    settings = {
        "config": {**asdict(s.config), "low_memory": low_memory},
        "seed": s.seed,
        "model": {"name": s.model.name, "options": None if s.model.options is None else dict(s.model.options)},
        "own": sorted(name for name, value in s._own.items() if value is not None),
        "observation": {name: getattr(observation, name) for name in _OBSERVED},
        "normalization": asdict(observation.normalization),
        "snapshot_every": s._snapshot_every,
        "snapshot_bytes": s._snapshot_bytes,
        "has_diverged": moment.has_diverged,
    }
    container.write(path, KIND, FORMAT_VERSION, settings, tensors)


def load(
    path: str | os.PathLike[str], model: Model | None, own: dict[str, Any], device: jax.Device
) -> session.AttackSession:
    """Read a session; whatever is wrong with the file ends in a `CheckpointError`."""
    settings, tensors = container.read(path, KIND, FORMAT_VERSION)
    with container.fitting_together(path, KIND):
        container.check_keys(settings, _SETTINGS)
        _check_own(settings, own)
        observation = _observation(settings, tensors, device)
        model = _model(observation, **settings["model"]) if model is None else check_kind("model", model, Model)
        config = AttackConfig(**settings["config"])
        _check_sizes(observation, config, tensors)
        rebuilt = session.AttackSession(
            model,
            observation,
            config,
            batch_labels=tensors["labels"],
            image_order=tensors.get("order"),
            seed=settings["seed"],
            device=device,
            snapshot_every=settings["snapshot_every"],
            snapshot_bytes=settings["snapshot_bytes"],
            **own,
        )
        _restore(rebuilt, settings, tensors)
    return rebuilt


def _check_own(settings: dict[str, Any], own: dict[str, Any]) -> None:
    """What was one's own must be given again, and nothing else, or the run would go on as another one."""
    for name, value in own.items():
        if name in settings["own"] and value is None:
            raise CheckpointError(f"it was saved with your own {name}; pass it again: load(path, {name}=...).")
        if name not in settings["own"] and value is not None:
            raise CheckpointError(f"it was saved without a {name} of your own; load it without one.")


def _observation(settings: dict[str, Any], tensors: Tensors, device: jax.Device) -> Observation:
    observed = dict(settings["observation"])
    observed["image_shape"] = tuple(observed["image_shape"])
    return Observation(
        _weights(tensors, "server_weights", device),
        _weights(tensors, "client_weights", device),
        normalization=Normalization(**{name: tuple(values) for name, values in settings["normalization"].items()}),
        **observed,
    )


def _weights(tensors: Tensors, side: str, device: jax.Device) -> dict[str, dict[str, Any]]:
    weights: dict[str, dict[str, Any]] = {}
    for path, array in tensors.items():
        head, _, rest = path.partition("/")
        layer, _, name = rest.rpartition("/")
        if head == side:
            weights.setdefault(layer, {})[name] = jax.device_put(array, device)
    return weights


def _model(observation: Observation, name: str, options: dict[str, Any] | None) -> Model:
    if options is None:
        raise CheckpointError("it was saved with your own network; pass it again: load(path, model=...).")
    model = models.build(name, **options)
    # By the layers, because a network of any size is easily named, and making its weights would fill the memory.
    shapes = {layer.name: layer.kernel_shape for layer in model.chain or ()}
    weights = observation.server_weights
    if {layer: arrays["kernel"].shape for layer, arrays in weights.items()} != shapes:
        raise CheckpointError(f"its weights are not those of the network {name} that it names.")
    return model


def _check_sizes(observation: Observation, config: AttackConfig, tensors: Tensors) -> None:
    """The sizes in the settings must be those of the tensors, before anything of that size is made."""
    sizes = (observation.num_clients, config.epochs or observation.epochs, observation.num_images)
    if tensors["labels"].shape != sizes:
        raise CheckpointError(f"its labels are {tensors['labels'].shape}, but its settings say {sizes}.")
    epochs = tensors["state/0"].shape[1]
    if tensors["state/0"].shape != (sizes[0], epochs, sizes[2], *observation.image_shape) or epochs > sizes[1]:
        raise CheckpointError(f"its images are {tensors['state/0'].shape}, which does not fit its settings.")


def _restore(rebuilt: session.AttackSession, settings: dict[str, Any], tensors: Tensors) -> None:
    attack = rebuilt._attack
    template = jax.eval_shape(lambda: engine.init(jnp.zeros(tensors["state/0"].shape), attack.optimizer))
    leaves, tree = jax.tree.flatten(template)
    saved = [tensors.get(f"state/{i}") for i in range(len(leaves))]
    for expected, array in zip(leaves, saved, strict=True):
        if array is None or array.shape != expected.shape or array.dtype != expected.dtype:
            raise CheckpointError("it does not hold the state of this attack: another optimiser, or damaged.")
    state = jax.tree.unflatten(tree, saved)
    _check_state(rebuilt, state)
    history = unpack_history(tensors, Terms._fields, int(state.step))
    infos = StepInfo(history.loss, Terms(**history.terms), history.gradient_norm, history.step_size)
    rebuilt._resume(
        jax.device_put(state, rebuilt.device),
        infos,
        history.steering,
        has_diverged=check_flag("has_diverged", settings["has_diverged"]),
    )


def _check_state(rebuilt: session.AttackSession, state: AttackState) -> None:
    step, index, phases = int(state.step), int(state.phase), rebuilt._attack.phases
    if not 0 <= index < len(phases):
        raise CheckpointError(f"its state is of phase {index}, of {len(phases)}.")
    phase = phases[index]
    if not phase.first_step <= step <= (step if phase.last_step is None else phase.last_step):
        raise CheckpointError(f"its step {step} is not one of its phase {index}.")
    if state.images.shape[1] != phase.objective.simulation.num_variable_epochs:
        raise CheckpointError(f"its images are {state.images.shape}, which are not those of its phase {index}.")
    if not np.isfinite(np.vdot(state.images, state.images)):
        raise CheckpointError("its images are not finite.")
