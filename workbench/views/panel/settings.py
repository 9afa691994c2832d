"""What a person has set: the client, the attack and its steering, as plain values without widgets."""

from __future__ import annotations

from dataclasses import dataclass, replace

from workbench.config import AttackConfig
from workbench.target import Target

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """The settings of the panel's controls.

    Attributes:
        target: the client; None where the panel was given a session.
        config: the attack.
        label_source: ``known``, or the method that recovers the counts.
        update_weight: the factor of the update's weight, 1 unless moved.
        seed: of everything.
    """

    target: Target | None
    config: AttackConfig
    label_source: str
    update_weight: float
    seed: int

    @property
    def without_steering(self) -> Settings:
        """What needs a new session when it changes: everything that no slider changes during the run."""
        config = replace(
            self.config, prior_weight=0.0, tv_weight=0.0, clip_weight=0.0, consensus_weight=0.0, step_size=1.0
        )
        return replace(self, config=config, update_weight=1.0)
