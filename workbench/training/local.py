"""How a client trains, as settings: the optimiser and everything around it; no JAX, so that recordings can keep it.

The meaning of every setting is PyTorch's: `torch.optim.SGD`, `Adam` and `AdamW`, `clip_grad_norm_`, the smoothing of
`CrossEntropyLoss`, `drop_last` of a loader.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workbench.errors import ConfigError, shown
from workbench.settings import check_settings, setting, settings_of
from workbench.training.schedule import Schedule

__all__ = ["PLAIN", "LocalTraining", "StepSizes"]

OPTIMIZERS = ("sgd", "adam", "adamw")
RATE_SCHEDULES = ("constant", "cosine", "step")
RATE_UNITS = ("step", "epoch")


@dataclass(frozen=True, kw_only=True, repr=False)
class LocalTraining:
    """How a client trains, besides epochs, batch size and learning rate; the defaults are the paper's plain SGD.

    >>> LocalTraining(momentum=0.9)
    LocalTraining(momentum=0.9)
    """

    optimizer: str = setting(
        "sgd", "Optimiser", "Optimiser of the client's local steps.", choices=OPTIMIZERS, since="0.2"
    )
    momentum: float = setting(0.0, "Momentum", "Momentum of SGD.", minimum=0, maximum=0.9999, since="0.2")
    nesterov: bool = setting(False, "Nesterov", "Use Nesterov's form of the momentum.", is_detail=True, since="0.2")
    weight_decay: float = setting(
        0.0,
        "Weight decay",
        "Multiple of the weights that is added to the gradient (sgd, adam) or subtracted from the weights in every "
        "step, times the learning rate (adamw).",
        minimum=0,
        since="0.2",
    )
    beta1: float = setting(
        0.9,
        "Adam's beta 1",
        "Decay of Adam's mean of gradients.",
        minimum=0,
        maximum=0.9999,
        is_detail=True,
        since="0.2",
    )
    beta2: float = setting(
        0.999,
        "Adam's beta 2",
        "Decay of Adam's mean of squared gradients.",
        minimum=0,
        maximum=0.999999,
        is_detail=True,
        since="0.2",
    )
    epsilon: float = setting(
        1e-8, "Adam's epsilon", "Added to the root of Adam's mean square.", above=0, is_detail=True, since="0.2"
    )
    rate_schedule: str = setting(
        "constant",
        "Rate schedule",
        "How the learning rate changes during local training: not at all, along half a cosine to 0, or by the factor "
        "rate_decay every rate_every.",
        choices=RATE_SCHEDULES,
        since="0.2",
    )
    rate_unit: str = setting(
        "step",
        "Schedule in",
        "Whether the rate schedule moves with every local step or with every epoch.",
        choices=RATE_UNITS,
        is_detail=True,
        since="0.2",
    )
    rate_decay: float = setting(
        0.1, "Rate decay", "Factor of the schedule 'step'.", above=0, maximum=1, is_detail=True, since="0.2"
    )
    rate_every: int = setting(
        1,
        "Rate decay every",
        "Local steps or epochs after which the schedule 'step' applies its factor.",
        minimum=1,
        is_detail=True,
        since="0.2",
    )
    warmup_steps: int = setting(
        0,
        "Warm-up",
        "Local steps in which the learning rate rises linearly; the first has 1 / warmup_steps of it.",
        minimum=0,
        is_detail=True,
        since="0.2",
    )
    rates: tuple[float, ...] | None = setting(
        None,
        "Rates",
        "Learning rate of every local step, in place of a schedule.",
        minimum=0,
        metavar="R1,R2,...",
        is_detail=True,
        since="0.2",
    )
    gradient_clip: float = setting(
        0.0,
        "Gradient clip",
        "Largest norm of a batch's gradient over all layers; 0 does not clip.",
        minimum=0,
        is_detail=True,
        since="0.2",
    )
    label_smoothing: float = setting(
        0.0,
        "Label smoothing",
        "Share of every label that is distributed evenly over all classes.",
        minimum=0,
        maximum=0.99,
        is_detail=True,
        since="0.2",
    )
    drop_last: bool = setting(
        False, "Drop last", "Leave out a ragged last batch of an epoch.", is_detail=True, since="0.2"
    )
    proximal_weight: float = setting(
        0.0,
        "Proximal term",
        "Weight mu of FedProx's term mu / 2 * |weights - server's weights|^2.",
        symbol="mu",
        minimum=0,
        is_detail=True,
        since="0.2",
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.nesterov and not self.momentum:
            raise ConfigError("nesterov = True needs a momentum greater than 0.")
        if self.momentum and self.is_adam:
            raise ConfigError(
                f"momentum = {self.momentum!r} belongs to optimizer = 'sgd'; that of {self.optimizer!r} is beta1."
            )
        if self.rates is not None and (self.rate_schedule != "constant" or self.warmup_steps or not any(self.rates)):
            raise ConfigError(
                f"rates = {shown(self.rates)} must hold a rate above 0 and replace rate_schedule and warmup_steps: "
                "leave those out."
            )

    def __repr__(self) -> str:
        # Settings of later versions at their defaults would hide what matters.
        kind: Any = type(self)
        known = settings_of(kind)
        by_name = [*known, *(field.name for field in fields(self) if field.name not in known)]
        values = {name: getattr(self, name) for name in by_name}
        left_out = {name for name, one in known.items() if one.since and values[name] == one.default}
        text = ", ".join(f"{name}={value!r}" for name, value in values.items() if name not in left_out)
        return f"{type(self).__name__}({text})"

    @property
    def local(self) -> LocalTraining:
        """These settings alone, without what a subclass adds."""
        return LocalTraining(**{name: getattr(self, name) for name in settings_of(LocalTraining)})

    @property
    def changes(self) -> dict[str, Any]:
        """Those of these settings that are not as for plain SGD."""
        known = settings_of(LocalTraining).items()
        return {name: getattr(self, name) for name, one in known if getattr(self, name) != one.default}

    @property
    def description(self) -> str:
        """In words.

        >>> LocalTraining(momentum=0.9, drop_last=True).description
        'sgd, momentum 0.9, drop last'
        """
        known = settings_of(LocalTraining)
        parts = [
            known[name].label.lower() + ("" if value is True else f" {value}")
            for name, value in self.changes.items()
            if name != "optimizer"
        ]
        return ", ".join([self.optimizer, *parts]) if self.changes else "plain SGD"

    @property
    def is_adam(self) -> bool:
        """Whether steps are not linear in the gradients: every entry is divided by the size of its own history."""
        return self.optimizer != "sgd"

    @property
    def is_linear(self) -> bool:
        """Whether a step is linear in the gradient and the moments."""
        return not self.is_adam and not self.gradient_clip

    @property
    def is_plain(self) -> bool:
        """Whether every step is the learning rate times the gradient of the mean cross-entropy."""
        extras = (self.momentum, self.weight_decay, self.gradient_clip, self.label_smoothing, self.proximal_weight)
        return self.optimizer == "sgd" and self.has_constant_rate and not any(extras)

    @property
    def has_constant_rate(self) -> bool:
        return self.rate_schedule == "constant" and not self.warmup_steps and self.rates is None

    @property
    def of_gradient(self) -> LocalTraining:
        """What decides the gradient of a batch, without what is made of it."""
        return LocalTraining(gradient_clip=self.gradient_clip, label_smoothing=self.label_smoothing)

    def step_sizes(self, learning_rate: float, schedule: Schedule) -> StepSizes:
        """The step sizes of all U local steps.

        >>> LocalTraining(warmup_steps=2).step_sizes(0.1, Schedule(num_images=4, epochs=1, batch_size=1)).rate
        array([0.05, 0.1 , 0.1 , 0.1 ])
        """
        number = np.arange(1, schedule.local_steps + 1)
        first, second = (1 - beta**number for beta in (self.beta1, self.beta2))
        return StepSizes(self._rates(learning_rate, schedule), first, np.sqrt(second))

    def _rates(self, learning_rate: float, schedule: Schedule) -> NDArray[np.float64]:
        steps = schedule.local_steps
        if self.rates is not None:
            if len(self.rates) != steps:
                raise ConfigError(f"rates has {len(self.rates)} numbers; it must have one for each of {steps} steps.")
            return np.array(self.rates)
        number = np.arange(steps)
        factor = np.minimum((number + 1) / max(self.warmup_steps, 1), 1.0)
        # A schedule begins when the warm-up has ended.
        unit = 1 if self.rate_unit == "step" else schedule.batches_per_epoch
        place = np.maximum(number - self.warmup_steps, 0) // unit
        if self.rate_schedule == "cosine":
            length = max(-(-(steps - self.warmup_steps) // unit), 1)
            factor = factor * (1 + np.cos(np.pi * place / length)) / 2
        elif self.rate_schedule == "step":
            factor = factor * self.rate_decay ** (place // self.rate_every)
        return learning_rate * factor


PLAIN = LocalTraining()


class StepSizes(NamedTuple):
    """What changes from step to step: numbers, or arrays over the S steps.

    Attributes:
        rate: the learning rate.
        first: 1 - beta1 ** t in step t, Adam's correction of its mean, computed in float64.
        second: the root of 1 - beta2 ** t.
    """

    rate: Any
    first: Any
    second: Any
