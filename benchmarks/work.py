"""The common input of all contenders: one client's update, the initial images and their labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import workbench as wb
from workbench.attack.attack import Attack
from workbench.attack.prepare import prepare


@dataclass(frozen=True, eq=False)
class Work:
    weights: dict[str, dict[str, np.ndarray]]
    gradient_sum: dict[str, dict[str, np.ndarray]]
    layer_names: tuple[str, ...]
    image_shape: tuple[int, int, int]
    images: np.ndarray  # [E, N, H, W, C]
    labels: np.ndarray  # [N]
    mean: np.ndarray
    std: np.ndarray
    epochs: int
    batch_size: int
    num_images: int
    rate: float
    attack: Attack


def make_work(network: str, epochs: int, batch_size: int, num_images: int = 50, **settings: Any) -> Work:
    """A client of the bundled data that fits the network, and the paper's attack on it, with the mean / l2 prior."""
    dataset = wb.load_dataset({"femnist": "glyphs", "cifar100": "photos"}[network])
    client = dataset.client(0, num_images)
    model = wb.models.build(f"{network}_cnn")
    observation = wb.client_update(model, model.init(0), client, wb.ClientConfig(epochs, batch_size))
    config = wb.AttackConfig(**settings)
    attack = prepare(model, observation, config, label_counts=client.label_counts)
    state = attack.start()
    numpy = lambda tree: jax.tree.map(np.asarray, tree)  # noqa: E731 - used twice below
    return Work(
        weights=numpy(observation.server_weights),
        gradient_sum=numpy(observation.gradient_sum),
        layer_names=model.layer_names,
        image_shape=model.image_shape,
        images=np.asarray(state.images[0]),
        labels=np.asarray(attack.phases[-1].problem.known.labels[0, 0]),
        mean=np.asarray(observation.normalization.mean, np.float32),
        std=np.asarray(observation.normalization.std, np.float32),
        epochs=epochs,
        batch_size=batch_size,
        num_images=num_images,
        rate=observation.learning_rate,
        attack=attack,
    )


def run_attack(model: wb.models.Model, steps: int, observation: wb.Observation) -> np.ndarray:
    """The images [N, H, W, C] that the paper's attack finds after some steps."""
    attack = prepare(model, observation, wb.AttackConfig(steps=steps))
    state, _ = attack.advance(attack.start(), attack.steering, attack.total_steps)
    return attack.reconstruct(state).images
