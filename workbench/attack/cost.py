"""What an attack costs, before it is made: memory, and how many images a step sends through the network."""

from __future__ import annotations

import math
from typing import NamedTuple

from workbench.attack.methods import METHODS
from workbench.attack.simulate import Simulation
from workbench.config import AttackConfig
from workbench.training.model import Model
from workbench.training.schedule import Schedule
from workbench.training.sgd import kept_bytes

__all__ = ["Cost", "believed_schedule", "estimate_cost", "planned_phases", "step_memory"]


class Cost(NamedTuple):
    """The memory of the largest step, and the work of all steps.

    Attributes:
        memory: bytes.
        phases: for every phase its steps, and the images that each of them sends through the network; time grows about
            in proportion to their product.
    """

    memory: int
    phases: tuple[tuple[int, int], ...]

    @property
    def steps(self) -> int:
        """Of all phases."""
        return sum(steps for steps, _ in self.phases)


def believed_schedule(config: AttackConfig, schedule: Schedule) -> Schedule:
    """The client's schedule with E and m as the attacker believes them."""
    return Schedule(schedule.num_images, config.epochs or schedule.epochs, config.batch_size or schedule.batch_size)


def planned_phases(model: Model, config: AttackConfig, schedule: Schedule) -> list[tuple[Simulation, int]]:
    """What every phase simulates, and its steps: the method, and before it the warm start if there is one."""
    schedule = believed_schedule(config, schedule)
    methods = [(config.method, config.steps)]
    if config.warm_start_steps:
        methods.insert(0, ("surrogate", config.warm_start_steps))
    return [(Simulation(model, METHODS[name], schedule, config.surrogate_points), steps) for name, steps in methods]


def step_memory(simulation: Simulation, num_clients: int) -> int:
    """About the bytes that a step of this simulation needs at its peak: what the backward pass keeps, and the state."""
    model, num_images = simulation.model, simulation.schedule.num_images
    num_pixels = num_clients * simulation.num_variable_epochs * num_images * math.prod(model.image_shape)
    # The images, Adam's two moments, the consensus, the gradient and the next state, as float32.
    state = 8 * 4 * num_pixels
    steps, size = simulation.num_simulated_steps
    return state + num_clients * kept_bytes(model, steps, size, simulation.segments)


def estimate_cost(model: Model, config: AttackConfig, schedule: Schedule, num_clients: int = 1) -> Cost:
    """What an attack on such a client costs; nothing is compiled or computed.

    >>> from workbench import models
    >>> estimate_cost(models.mlp(), AttackConfig(steps=10), Schedule(num_images=8, epochs=2, batch_size=4)).phases
    ((10, 16),)
    """
    phases = planned_phases(model, config, schedule)
    work = [(steps, num_clients * math.prod(simulation.num_simulated_steps)) for simulation, steps in phases]
    return Cost(max(step_memory(simulation, num_clients) for simulation, _ in phases), tuple(work))
