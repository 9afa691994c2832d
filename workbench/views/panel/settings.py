"""What a person has set: the client, the attack and its steering, as plain values without widgets."""

from __future__ import annotations

from dataclasses import dataclass, replace

from workbench.config import AttackConfig
from workbench.settings import settings_of
from workbench.target import Target

__all__ = ["STEERED", "Settings"]

STEERED = {name: known for name, known in settings_of(AttackConfig).items() if known.slider is not None}
"""The settings that sliders change on a running attack."""


@dataclass(frozen=True)
class Settings:
    """The settings of the panel's controls.

    Attributes:
        target: the client; None where the panel was given a session.
        config: the attack.
        label_source: ``known``, or the method that recovers the counts.
        update_weight: the factor on the weight of the update distance, 1 unless moved.
        seed: of every random draw.
    """

    target: Target | None
    config: AttackConfig
    label_source: str
    update_weight: float
    seed: int

    @property
    def without_steering(self) -> Settings:
        """What needs a new session when it changes: everything that no slider changes during the run."""
        fixed = {name: known.default for name, known in STEERED.items()}
        return replace(self, config=replace(self.config, **fixed), update_weight=1.0)
