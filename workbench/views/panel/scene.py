"""What the views draw: one moment of a session or of a recording, with the truth where it is known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.attack.attack import Reconstruction
from workbench.data import Truth
from workbench.metrics import Score, score
from workbench.session import AttackSession, Recording, Snapshot
from workbench.session.recording import Frame

__all__ = ["Scene", "scene_at"]


@dataclass(frozen=True, eq=False)
class Scene:
    """A moment to look at.

    Attributes:
        source: the session or recording.
        step: how many steps had been made.
        found: images, epochs, permutations and labels; a recording may lack the epochs.
        score: against the truth, None where it is not known.
        truth: the clients; empty where they are not known.
    """

    source: AttackSession | Recording
    step: int
    found: Reconstruction | Frame
    score: Score | None
    truth: Truth

    @property
    def num_images(self) -> int:
        return len(self.found.images)

    @property
    def epochs(self) -> NDArray[np.float32] | None:
        """[V, N, H, W, C] where there are several epochs to compare; None where there is one set of images."""
        epochs = self.found.epochs
        return epochs if epochs is not None and len(epochs) > 1 else None

    @property
    def class_names(self) -> list[str]:
        """Of the classes assumed for the reconstructions, N of them."""
        return [self.truth.class_names[label] if self.truth else f"class {label}" for label in self.found.labels]

    def order(self, *, best_first: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[N] the true images as they are shown, and [N] the reconstruction that is matched to each."""
        in_order = np.arange(self.num_images)
        if self.score is None:
            return in_order, in_order
        true = np.argsort(-self.score.psnr, kind="stable") if best_first else in_order
        return true, self.score.order[true]


def scene_at(source: AttackSession | Recording, step: int, truth: Truth, *, snapshot: Snapshot | None = None) -> Scene:
    """A kept moment of a session or of a recording, or a snapshot of a session that may be running."""
    if isinstance(source, AttackSession):
        found = source.reconstruction_at(step) if snapshot is None else source.reconstruction(snapshot)
        return Scene(source, step, found, score(found, truth) if truth else None, truth)
    frame = source.reconstruction_at(step)
    return Scene(source, step, frame, frame.score, Truth() if frame.score is None else truth)
