"""Settings as frozen records: checked when they are made, named as the paper names them in words."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.errors import ConfigError, check_choice, check_count, check_flag, check_kind, check_number, shown

__all__ = ["DEFENCES", "ClientConfig", "DefenceConfig"]

DEFENCES = ("none", "gaussian", "laplacian", "pruning", "dp_sgd")


@dataclass(frozen=True)
class DefenceConfig:
    """What a client does to its gradients before it uses them (the paper's Appendix C.1).

    Attributes:
        name: ``none``; ``gaussian`` or ``laplacian`` noise on each example's gradient; ``pruning`` of its entries; or
            ``dp_sgd``, which clips each example's gradient and adds Gaussian noise to the sum of the batch.
        strength: the standard deviation (gaussian), the scale b (laplacian), the probability that an entry is set to
            zero (pruning), or the noise multiplier (dp_sgd): the noise on the sum has standard deviation
            strength * clip_norm.
        clip_norm: the largest norm of one example's gradient, over all layers together (dp_sgd only).
        independent: new draws in every step, as a real client makes them. False repeats those of the first epoch in
            every epoch, as the paper's experiments did.
    """

    name: str = "none"
    strength: float = 0.0
    clip_norm: float | None = None
    independent: bool = True

    def __post_init__(self) -> None:
        check_choice("defence", self.name, DEFENCES)
        most = 1.0 if self.name == "pruning" else float("inf")
        object.__setattr__(self, "strength", check_number("defence.strength", self.strength, minimum=0, maximum=most))
        if self.name == "dp_sgd":
            object.__setattr__(self, "clip_norm", check_number("defence.clip_norm", self.clip_norm, above=0))
        elif self.clip_norm is not None:
            raise ConfigError(
                f"defence.clip_norm = {shown(self.clip_norm)} belongs to 'dp_sgd'; leave it out for {self.name!r}."
            )
        check_flag("defence.independent", self.independent)
        if self.name == "none" and self.strength:
            raise ConfigError(
                f"defence.strength = {self.strength!r} needs a defence; name one of: {', '.join(DEFENCES[1:])}."
            )


@dataclass(frozen=True)
class ClientConfig:
    """How a client trains (the paper's Algorithm 1).

    Attributes:
        epochs: E, passes over the client's images.
        batch_size: m; a ragged last batch is used as it is.
        learning_rate: of the local SGD steps.
        same_batches: True keeps the first epoch's batches in every epoch, False draws them anew.
        defence: what happens to the gradients.

    >>> ClientConfig(epochs=10, batch_size=5).local_steps(num_images=50)
    100
    """

    epochs: int = 10
    batch_size: int = 5
    learning_rate: float = 0.004
    same_batches: bool = False
    defence: DefenceConfig = DefenceConfig()

    def __post_init__(self) -> None:
        object.__setattr__(self, "epochs", check_count("epochs", self.epochs))
        object.__setattr__(self, "batch_size", check_count("batch_size", self.batch_size))
        object.__setattr__(self, "learning_rate", check_number("learning_rate", self.learning_rate, above=0))
        check_flag("same_batches", self.same_batches)
        check_kind("defence", self.defence, DefenceConfig)

    def batches_per_epoch(self, num_images: int) -> int:
        """B, counting a ragged last batch."""
        num_images = check_count("num_images", num_images)
        if self.batch_size > num_images:
            raise ConfigError(f"batch_size = {self.batch_size} must be at most the number of images, {num_images}.")
        return -(-num_images // self.batch_size)

    def local_steps(self, num_images: int) -> int:
        """U = E * B, the SGD steps that the client makes."""
        return self.epochs * self.batches_per_epoch(num_images)
