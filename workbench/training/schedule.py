"""How local training is divided: images, epochs, batches and steps."""

from dataclasses import dataclass

from workbench.errors import ConfigError, check_count

__all__ = ["Schedule"]


@dataclass(frozen=True)
class Schedule:
    """N images, E epochs and batches of m: how often a client steps (the paper's Algorithm 1).

    >>> Schedule(num_images=50, epochs=10, batch_size=5).local_steps
    100
    >>> Schedule(num_images=7, epochs=1, batch_size=3).batches_per_epoch
    3
    """

    num_images: int
    epochs: int
    batch_size: int
    drop_last: bool = False

    def __post_init__(self) -> None:
        check_count("num_images", self.num_images)
        check_count("epochs", self.epochs)
        check_count("batch_size", self.batch_size)
        if self.batch_size > self.num_images:
            raise ConfigError(
                f"batch_size = {self.batch_size} must be at most the number of images, {self.num_images}."
            )

    @property
    def batches_per_epoch(self) -> int:
        """B, counting a ragged last batch unless it is dropped."""
        return self.num_images // self.batch_size if self.drop_last else -(-self.num_images // self.batch_size)

    @property
    def num_used(self) -> int:
        """The images that an epoch uses: all, without those of a batch that is dropped."""
        return min(self.num_images, self.batches_per_epoch * self.batch_size)

    @property
    def local_steps(self) -> int:
        """U = E * B, the SGD steps that the client makes."""
        return self.epochs * self.batches_per_epoch
