"""What an attack costs, before it is made and as it is measured. Shapes are traced for it; nothing is compiled."""

from __future__ import annotations

from workbench.attack.needs import Needs, needs_of
from workbench.config import AttackConfig, ClientConfig
from workbench.federated import Observation
from workbench.session import AttackSession
from workbench.study.show.live import duration
from workbench.target import Target
from workbench.training import native
from workbench.training.model import Model

__all__ = ["cost_text", "measure_speed", "target_like"]


def target_like(observation: Observation) -> Target:
    """A target whose sizes are those of an observed update; its pictures are not known."""
    client = ClientConfig(observation.epochs, observation.batch_size, observation.learning_rate)
    return Target(num_images=observation.num_images, num_clients=observation.num_clients, client=client)


def cost_text(model: Model, config: AttackConfig, target: Target, seconds_per_image: float | None) -> str:
    """Work, memory and time of all steps; the time is unknown until a step was measured."""
    cost, client = _cost_of(model, config, target), target.client
    parts = [
        f"{client.batches_per_epoch(target.num_images)} batches an epoch",
        f"{client.local_steps(target.num_images)} local steps",
        f"{cost.steps} attack steps",
        f"about {max(1, round(cost.memory / 1e6))} MB",
        "time known after the first steps",
    ]
    if seconds_per_image is not None:
        images = sum(steps * images for steps, images in cost.phases)
        parts[-1] = f"about {duration(images * seconds_per_image)} in all"
    return "\n".join(filter(None, (" · ".join(parts), native.advice())))


def measure_speed(session: AttackSession) -> float | None:
    """The seconds that a step takes for each image that it sends through the network; None before the first steps."""
    if not session.seconds_per_step:
        return None
    cost = _cost_of(session.model, session.config, target_like(session.observation))
    is_warm = session.num_steps < session.config.warm_start_steps
    return session.seconds_per_step / cost.phases[0 if is_warm else -1][1]


def _cost_of(model: Model, config: AttackConfig, target: Target) -> Needs:
    return needs_of(
        model,
        config,
        num_images=target.num_images,
        epochs=target.client.epochs,
        batch_size=target.client.batch_size,
        num_clients=target.num_clients,
    )
