"""Attacks on clients that do not say how they trained (the paper's Appendix C.4).

The server knows how many local steps U a client made, but not in how many epochs. Every divisor of U is a belief that
can be tried. Do not expect much: while the weights move little, all beliefs predict the same update from the same
images, and the loss depends more on how easily each is optimised than on which is right (assets/results/README.md has
figures). A wrong belief costs little for the same reason.
"""

import math
from dataclasses import replace
from typing import Any, NamedTuple

from workbench.attack.prepare import prepare
from workbench.config import AttackConfig
from workbench.errors import ConfigError, check_count
from workbench.federated.observation import Observation
from workbench.training.model import Model
from workbench.training.schedule import Schedule

__all__ = ["Belief", "beliefs", "search_epochs"]


class Belief(NamedTuple):
    """Epochs and batch size that would give the observed number of local steps.

    Attributes:
        loss: update distance after a short attack with this belief, infinite if it diverged; None before the attack.
    """

    epochs: int
    batch_size: int
    loss: float | None = None


def beliefs(num_images: int, local_steps: int, *, drop_last: bool = False) -> list[Belief]:
    """Every number of epochs and batch size, equal batches as far as possible, that gives U local steps.

    A client that leaves out a ragged last batch (``drop_last``) has larger batches than one that makes it smaller.

    >>> [(b.epochs, b.batch_size) for b in beliefs(num_images=50, local_steps=50)]
    [(1, 1), (2, 2), (5, 5), (10, 10), (25, 25), (50, 50)]
    """
    num_images, local_steps = check_count("num_images", num_images), check_count("local_steps", local_steps)
    possible = []
    for epochs in range(1, local_steps + 1):
        num_batches = local_steps // epochs
        batch_size = num_images // num_batches if drop_last else math.ceil(num_images / num_batches)
        if batch_size and Schedule(num_images, epochs, batch_size, drop_last).local_steps == local_steps:
            possible.append(Belief(epochs, batch_size))
    return possible


def search_epochs(
    model: Model,
    observation: Observation,
    config: AttackConfig | None = None,
    *,
    candidates: list[Belief] | None = None,
    **options: Any,
) -> list[Belief]:
    """Try every belief with a short attack; the most likely first.

    Only the observation's number of images and of local steps is used, not its epochs and batch size.

    Args:
        model: the network.
        observation: what the server saw.
        config: the short attack; its ``epochs`` and ``batch_size`` are set to each belief in turn.
        candidates: None takes all `beliefs`.
        options: as for `prepare`: label counts, seed, device.
    """
    config = AttackConfig(steps=60) if config is None else config
    tried = []
    if candidates is None:
        drop_last = observation.training.drop_last
        candidates = beliefs(observation.num_images, observation.local_steps, drop_last=drop_last)
    for belief in candidates:
        believed = replace(config, epochs=belief.epochs, batch_size=belief.batch_size)
        attack = prepare(model, observation, believed, **options)
        _, infos = attack.advance(attack.start(), attack.steering, attack.total_steps)
        has_diverged = len(infos.loss) < attack.total_steps
        # Methods with one set of images divide by the batches of an epoch, whose number differs between beliefs.
        simulation = attack.phases[-1].objective.simulation
        parts = 1 if config.distance == "cosine" else simulation.num_variable_batches / simulation.schedule.local_steps
        tried.append(belief._replace(loss=math.inf if has_diverged else float(infos.terms.update[-1]) * parts))
    if not tried:
        raise ConfigError(
            f"no epochs and batch size give {observation.local_steps} steps on {observation.num_images} images."
        )
    return sorted(tried, key=lambda belief: belief.loss if belief.loss is not None else math.inf)
