"""The history of a session as plain data: its outcome, its steering, and what every step measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.errors import CheckpointError, check_choice, check_kind, check_number
from workbench.files.container import Tensors
from workbench.settings import settings_of
from workbench.training.local import LocalTraining

__all__ = [
    "OBSERVED",
    "STEERABLE",
    "Outcome",
    "SessionHistory",
    "SteeringEvent",
    "check_array",
    "observed_settings",
    "pack_history",
    "steering_field",
    "stored_training",
    "unpack_history",
]

STEERABLE = (
    "update_weight",
    "prior_weight",
    "tv_weight",
    "clip_weight",
    "consensus_weight",
    "custom_weight",
    "step_size",
    "span_weight",
)
"""What can be changed between steps. Files store the index of a name, so new names go at the end."""

OBSERVED = ("image_shape", "num_classes", "num_images", "epochs", "batch_size", "learning_rate", "num_clients")
"""The fields of an `Observation` that files store as settings; `observed_settings` adds its local training."""


class Outcome(Enum):
    """The outcome of a session so far, with a description for people."""

    NEW = "no step made yet"
    IN_PROGRESS = "in progress"
    FINISHED = "finished"
    DIVERGED = "diverged: the loss stopped being finite, the last good state is kept"


@dataclass(frozen=True)
class SteeringEvent:
    """A change of a weight or of the step size, and the step from which it acts."""

    step: int
    name: str
    value: float


@dataclass(frozen=True, eq=False)
class SessionHistory:
    """What every step measured, and every change of the steering.

    Attributes:
        loss: [n] before every step made.
        terms: [n] each, the weighted terms that sum to the loss.
        gradient_norm: [n].
        step_size: [n].
        steering: every change, in order.
        snapshot_steps: the steps whose images are kept: they can be shown, and rewound to, without computing.
    """

    loss: NDArray[np.float32]
    terms: dict[str, NDArray[np.float32]]
    gradient_norm: NDArray[np.float32]
    step_size: NDArray[np.float32]
    steering: tuple[SteeringEvent, ...]
    snapshot_steps: tuple[int, ...]


def observed_settings(observation: Any) -> dict[str, Any]:
    """What files store of an `Observation` as settings."""
    return {**{name: getattr(observation, name) for name in OBSERVED}, "training": observation.training.changes}


def stored_training(settings: dict[str, Any]) -> tuple[dict[str, Any], LocalTraining]:
    """The inverse: the fields in `OBSERVED`, and the local training; the first version knew plain SGD alone."""
    rest = dict(settings)
    changes = check_kind("training", rest.pop("training", {}), dict)
    for name in changes:
        check_choice("training", name, settings_of(LocalTraining))
    return rest, LocalTraining(**changes)


def steering_field(name: str) -> str:
    """The field of `Steering` that a steerable name changes.

    >>> steering_field("tv_weight"), steering_field("step_size")
    ('tv', 'step_size')
    """
    return name.removesuffix("_weight")


def pack_history(history: SessionHistory) -> Tensors:
    """The numbers of every step as one array [terms + 3, n], and the steering as three arrays."""
    events = history.steering
    return {
        "history": np.stack([history.loss, *history.terms.values(), history.gradient_norm, history.step_size]),
        "steering/step": np.array([event.step for event in events], np.int64),
        "steering/name": np.array([STEERABLE.index(event.name) for event in events], np.uint8),
        "steering/value": np.array([event.value for event in events], np.float64),
    }


def unpack_history(
    tensors: Tensors, terms: Sequence[str], num_steps: int, snapshot_steps: tuple[int, ...] = ()
) -> SessionHistory:
    """The inverse of `pack_history`; validates every field."""
    columns = check_array(tensors["history"], np.float32, (len(terms) + 3, num_steps))
    count = tensors["steering/step"].shape
    steps, names, values = (
        check_array(tensors[f"steering/{name}"], dtype, count).tolist()
        for name, dtype in (("step", np.int64), ("name", np.uint8), ("value", np.float64))
    )
    if steps != sorted(steps) or (steps and not 0 <= steps[0] <= steps[-1] <= num_steps):
        raise CheckpointError("its steering is not in order, or not within its steps.")
    events = tuple(
        SteeringEvent(step, STEERABLE[name], check_number(STEERABLE[name], value, minimum=0))
        for step, name, value in zip(steps, names, values, strict=True)
    )
    loss, *parts, gradient_norm, step_size = columns
    return SessionHistory(loss, dict(zip(terms, parts, strict=True)), gradient_norm, step_size, events, snapshot_steps)


def check_array(array: NDArray[Any], dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return the array if it has this type and shape."""
    if array.dtype != dtype or array.shape != shape:
        raise CheckpointError(f"an array is {array.dtype} {array.shape}; expected {np.dtype(dtype)} {shape}.")
    return array
