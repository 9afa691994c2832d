"""What an attack would take, before it is made: memory, and how many images a step sends through the network."""

from __future__ import annotations

from typing import NamedTuple

from workbench.attack.attack import step_memory
from workbench.attack.simulate import Simulation
from workbench.config import AttackConfig
from workbench.errors import ConfigError, check_count
from workbench.training.model import Model

__all__ = ["Needs", "needs_of"]


class Needs(NamedTuple):
    """What a step takes at its peak, and how much work all steps are.

    Attributes:
        memory: bytes of the largest step.
        phases: for every phase its steps, and the images that each of them sends through the network: time grows
            about like their product.
    """

    memory: int
    phases: tuple[tuple[int, int], ...]

    @property
    def steps(self) -> int:
        """Of all phases."""
        return sum(steps for steps, _ in self.phases)


def needs_of(
    model: Model, config: AttackConfig, *, num_images: int, epochs: int, batch_size: int, num_clients: int = 1
) -> Needs:
    """What attacking such a client would take; nothing is compiled or computed.

    >>> from workbench import models
    >>> needs_of(models.mlp(), AttackConfig(steps=10), num_images=8, epochs=2, batch_size=4).phases
    ((10, 16),)
    """
    num_images, num_clients = check_count("num_images", num_images), check_count("num_clients", num_clients)
    epochs, batch_size = config.epochs or epochs, config.batch_size or batch_size
    if batch_size > num_images:
        raise ConfigError(f"batch_size = {batch_size} must be at most the number of images, {num_images}.")
    methods = [(config.method, config.steps)]
    if config.warm_start_steps:
        methods.insert(0, ("surrogate", config.warm_start_steps))
    memory, phases = 0, []
    for method, steps in methods:
        simulation = Simulation(model, method, epochs, batch_size, num_images, points=config.surrogate_points)
        local_steps, size = simulation.num_simulated_steps
        memory = max(memory, step_memory(simulation, num_clients))
        phases.append((steps, num_clients * local_steps * size))
    return Needs(memory, tuple(phases))
