"""What the server knows and what it does not, as tables for people."""

from __future__ import annotations

from typing import Any

import jax

from workbench.attack.attack import Attack

__all__ = ["attacker_view"]


def attacker_view(attack: Attack) -> dict[str, dict[str, Any]]:
    """What the server received, what it assumes, and what it never sees."""
    observation, schedule = attack.observation, attack.phases[-1].objective.simulation.schedule
    return {
        "received": {
            "server weights": sum(leaf.size for leaf in jax.tree.leaves(observation.server_weights)),
            "client weights": sum(leaf.size for leaf in jax.tree.leaves(observation.client_weights)),
            "clients in the update": observation.num_clients,
            "images per client": observation.num_images,
            "learning rate": observation.learning_rate,
            "epochs": observation.epochs,
            "batch size": observation.batch_size,
        },
        "assumed": {
            "epochs": schedule.epochs,
            "batch size": schedule.batch_size,
            "label counts": attack.label_counts,
            "label order": attack.config.label_order,
        },
        "never seen": {
            "images": (observation.num_clients * observation.num_images, *observation.image_shape),
            "label of each image": observation.num_clients * observation.num_images,
            "batch order": (observation.epochs, observation.num_images),
            "weights between the first and the last": observation.local_steps - 1,
        },
    }
