"""A session as one file. Reading validates every field before it is used (`workbench.files.container`)."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from workbench import models
from workbench.attack import step as engine
from workbench.attack.attack import Attack, Custom
from workbench.attack.objective import Terms
from workbench.attack.step import AttackState
from workbench.config import AttackConfig
from workbench.data.dataset import Normalization
from workbench.errors import CheckpointError, check_flag
from workbench.federated.observation import Observation
from workbench.files import container
from workbench.files.container import Tensors
from workbench.session.history import SessionHistory, observed_settings, pack_history, stored_training, unpack_history
from workbench.training.model import Model

__all__ = ["FORMAT_VERSION", "KIND", "Checkpoint", "read"]

FORMAT_VERSION = 1
KIND = "session"
_SETTINGS = (
    *("config", "seed", "model", "own", "observation", "normalization"),
    *("snapshot_every", "snapshot_bytes", "has_diverged"),
)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Everything that a session needs to go on bit for bit.

    Attributes:
        config: how to attack.
        seed: of every random draw.
        model: name of the network, and the options that `models.build` needs; None for a custom network.
        custom: which of prior, regularizer and optimizer were custom.
        observation: what the server saw.
        labels: [A, E, N] in the order of every epoch's batches.
        order: [A, E, N] which image stands where; None where every image stays in its place.
        snapshot_every: as the session was asked to keep states.
        snapshot_bytes: the memory for kept states.
        state: the leaves of the `AttackState`, whose structure depends on the optimiser.
        history: every step's numbers and the steering.
        has_diverged: whether the next step would have no finite loss.
    """

    config: AttackConfig
    seed: int
    model: dict[str, Any]
    custom: list[str]
    observation: Observation
    labels: NDArray[Any]
    order: NDArray[Any] | None
    snapshot_every: int
    snapshot_bytes: int
    state: tuple[NDArray[Any], ...]
    history: SessionHistory
    has_diverged: bool

    @staticmethod
    def of(
        attack: Attack,
        model: Model,
        custom: Custom,
        state: AttackState,
        history: SessionHistory,
        *,
        snapshot_every: int,
        snapshot_bytes: int,
        has_diverged: bool,
    ) -> Checkpoint:
        """The checkpoint of an attack in this state."""
        known = attack.phases[-1].problem.known
        # A config can leave this choice to the free memory; the loaded session must make the same choice.
        low_memory = attack.phases[-1].objective.simulation.segments > 1
        return Checkpoint(
            config=replace(attack.config, low_memory=low_memory),
            seed=attack.seed,
            model={"name": model.name, "options": None if model.options is None else dict(model.options)},
            custom=sorted(name for name, value in vars(custom).items() if value is not None),
            observation=attack.observation,
            labels=np.asarray(known.labels),
            order=None if known.order is None else np.asarray(known.order),
            snapshot_every=snapshot_every,
            snapshot_bytes=snapshot_bytes,
            state=tuple(np.asarray(leaf) for leaf in jax.tree.leaves(state)),
            history=history,
            has_diverged=has_diverged,
        )

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file."""
        observation = self.observation
        tensors: Tensors = {"labels": self.labels, **pack_history(self.history)}
        if self.order is not None:
            tensors["order"] = self.order
        for side in ("server_weights", "client_weights"):
            for layer, arrays in getattr(observation, side).items():
                tensors |= {f"{side}/{layer}/{name}": np.asarray(array) for name, array in arrays.items()}
        tensors |= {f"state/{index}": leaf for index, leaf in enumerate(self.state)}
        settings = {
            "config": asdict(self.config),
            "seed": self.seed,
            "model": self.model,
            "own": self.custom,
            "observation": observed_settings(observation),
            "normalization": asdict(observation.normalization),
            "snapshot_every": self.snapshot_every,
            "snapshot_bytes": self.snapshot_bytes,
            "has_diverged": self.has_diverged,
        }
        container.write(path, KIND, FORMAT_VERSION, settings, tensors)

    def check_custom(self, custom: Custom) -> None:
        """The caller must pass exactly the custom functions of the saved run, or it would go on as another one."""
        for name, value in vars(custom).items():
            if name in self.custom and value is None:
                raise CheckpointError(f"it was saved with a custom {name}; pass it again: load(path, {name}=...).")
            if name not in self.custom and value is not None:
                raise CheckpointError(f"it was saved without a custom {name}; load it without {name}=.")

    def build_model(self) -> Model:
        """The built-in network that the file names, if the weights belong to it."""
        container.check_keys(self.model, ("name", "options"))
        name, options = self.model["name"], self.model["options"]
        if options is None:
            raise CheckpointError("it was saved with a custom network; pass it again: load(path, model=...).")
        model = models.build(name, **options)
        # Compared by shapes alone: the weights of a network that a hostile file names could fill the memory.
        shapes = {layer.name: layer.kernel_shape for layer in model.chain or ()}
        if {layer: arrays["kernel"].shape for layer, arrays in self.observation.server_weights.items()} != shapes:
            raise CheckpointError(f"its weights are not those of the network {name} that it names.")
        return model

    def attack_state(self, attack: Attack) -> AttackState:
        """The saved state, if it is one of this attack."""
        images = self.state[0]
        template = jax.eval_shape(lambda: engine.init(jnp.zeros(images.shape), attack.optimizer))
        leaves, tree = jax.tree.flatten(template)
        if len(self.state) == len(leaves) - 1:
            # The first version could not start images again: all of them started at the beginning.
            return replace(self, state=(*self.state, np.zeros(images.shape[:3], np.int32))).attack_state(attack)
        if [(leaf.shape, leaf.dtype) for leaf in leaves] != [(leaf.shape, leaf.dtype) for leaf in self.state]:
            raise CheckpointError("it does not hold a state of this attack: another optimiser, or a damaged file.")
        state: AttackState = jax.tree.unflatten(tree, self.state)
        step, index = int(state.step), int(state.phase)
        if step != len(self.history.loss):
            raise CheckpointError(f"its state is at step {step}, but its history has {len(self.history.loss)} steps.")
        phase = dict(enumerate(attack.phases)).get(index)
        if phase is None or not phase.first_step <= step <= (step if phase.last_step is None else phase.last_step):
            raise CheckpointError(f"its step {step} is not a step of its phase {index}.")
        if images.shape[1] != phase.objective.simulation.num_variable_epochs:
            raise CheckpointError(f"its images have shape {images.shape}, which is not that of its phase {index}.")
        if not np.isfinite(np.vdot(images, images)):
            raise CheckpointError("its images are not finite.")
        return state


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint; any file that is not a valid one raises a `CheckpointError`."""
    settings, tensors = container.read(path, KIND, FORMAT_VERSION)
    with container.fitting_together(path, KIND):
        container.check_keys(settings, _SETTINGS)
        count = sum(name.startswith("state/") for name in tensors)
        checkpoint = Checkpoint(
            config=AttackConfig(**settings["config"]),
            seed=settings["seed"],
            model=settings["model"],
            custom=settings["own"],
            observation=_observation(settings, tensors),
            labels=tensors["labels"],
            order=tensors.get("order"),
            snapshot_every=settings["snapshot_every"],
            snapshot_bytes=settings["snapshot_bytes"],
            state=tuple(tensors[f"state/{index}"] for index in range(count)),
            history=_history(tensors, has_span="span_weight" in settings["config"]),
            has_diverged=check_flag("has_diverged", settings["has_diverged"]),
        )
        _check_sizes(checkpoint)
    return checkpoint


def _history(tensors: Tensors, *, has_span: bool) -> SessionHistory:
    """The history; of the first version, whose loss had no span term, with zeros for it."""
    num_steps = tensors["history"].shape[-1]
    history = unpack_history(tensors, Terms._fields if has_span else Terms._fields[:-1], num_steps)
    return replace(history, terms={"span": np.zeros(num_steps, np.float32), **history.terms})


def _observation(settings: dict[str, Any], tensors: Tensors) -> Observation:
    weights: dict[str, Any] = {"server_weights": {}, "client_weights": {}}
    for path, array in tensors.items():
        side, _, rest = path.partition("/")
        layer, _, name = rest.rpartition("/")
        if side in weights:
            weights[side].setdefault(layer, {})[name] = array
    observed, training = stored_training(settings["observation"])
    observed["image_shape"] = tuple(observed["image_shape"])
    normalization = Normalization(**{name: tuple(values) for name, values in settings["normalization"].items()})
    return Observation(**weights, **observed, normalization=normalization, training=training)


def _check_sizes(checkpoint: Checkpoint) -> None:
    """The settings must give the sizes of the tensors, before anything of these sizes is allocated."""
    observation, images = checkpoint.observation, checkpoint.state[0].shape
    sizes = (observation.num_clients, checkpoint.config.epochs or observation.epochs, observation.num_images)
    if checkpoint.labels.shape != sizes:
        raise CheckpointError(f"its labels have shape {checkpoint.labels.shape}, but its settings say {sizes}.")
    if images != (sizes[0], images[1], sizes[2], *observation.image_shape) or images[1] > sizes[1]:
        raise CheckpointError(f"its images have shape {images}, which does not fit its settings.")
