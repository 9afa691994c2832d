"""The scenarios that a panel offers with one click: each a client and an attack that show one thing."""

from dataclasses import dataclass, replace

from workbench.config import ClientConfig, DefenceConfig
from workbench.target import LESSON, Target
from workbench.views.panel.workspace import Settings

__all__ = ["FIRST", "SCENARIOS", "Scenario"]


@dataclass(frozen=True)
class Scenario:
    """A client and an attack.

    Attributes:
        label: on its button.
        help: one sentence about what it shows.
        target: the client.
        preset: of the attack.
        label_source: where the label counts come from, if not from the preset's estimator.
    """

    label: str
    help: str
    target: Target
    preset: str
    label_source: str = ""

    @property
    def settings(self) -> Settings:
        """As the controls of a panel would give them."""
        config = self.target.config(self.preset, {})
        source = self.label_source or config.label_method
        return Settings(self.target, config, source, update_weight=1.0, seed=self.target.seed)


_CHARACTERS = Target(client=ClientConfig(epochs=4, batch_size=4))
_NOISE = DefenceConfig("gaussian", 0.1)

SCENARIOS = (
    Scenario(
        "Lesson",
        "Few classes, every epoch from its own noise: images change places, and matching and averaging both matter.",
        LESSON,
        "lesson",
        "known",
    ),
    Scenario(
        "Characters",
        "A writer's characters of many classes, with a warm start and a consensus: recovered in seconds.",
        _CHARACTERS,
        "demo",
    ),
    Scenario(
        "Photos",
        "Colour photographs and a larger network; the pictures are harder to recover.",
        replace(_CHARACTERS, dataset="photos"),
        "demo",
    ),
    Scenario(
        "With noise",
        "The characters again, from a client that adds Gaussian noise to its gradients.",
        replace(_CHARACTERS, client=replace(_CHARACTERS.client, defence=_NOISE)),
        "demo",
    ),
    Scenario(
        "Two clients",
        "The server sees only the mean of two clients' weights.",
        replace(_CHARACTERS, num_clients=2, num_images=8),
        "demo",
    ),
    Scenario(
        "Full attack",
        "The preset best: one set of images, guided by the span of a dense layer's update.",
        _CHARACTERS,
        "best",
    ),
)
FIRST = SCENARIOS[0]
"""What a panel opens on."""
