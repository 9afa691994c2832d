"""What the views draw from: one moment of a session or of a recording, with the truth where it is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from workbench.metrics import Score, score
from workbench.session.history import Outcome, SessionHistory
from workbench.session.recording import Frame, Recording
from workbench.session.session import AttackSession, Snapshot

if TYPE_CHECKING:
    from workbench.attack.attack import Reconstruction
    from workbench.data.dataset import ClientData

__all__ = ["Scene", "scene_at", "scene_now"]


@dataclass(frozen=True, eq=False)
class Scene:
    """A moment to look at.

    Attributes:
        source: the session or recording.
        step: how many steps had been made.
        found: images, epochs, permutations and labels; a recording may lack the epochs.
        score: against the truth, None where nobody knows it.
        truth: the clients.
    """

    source: AttackSession | Recording
    step: int
    found: Reconstruction | Frame
    score: Score | None
    truth: tuple[ClientData, ...]

    @property
    def num_images(self) -> int:
        return len(self.found.images)

    @property
    def true_images(self) -> NDArray[np.float32] | None:
        """[N, H, W, C] of all clients."""
        return np.concatenate([client.images for client in self.truth]) if self.truth else None

    @property
    def class_names(self) -> list[str]:
        """Of the classes assumed for the reconstructions, N of them."""
        if self.truth:
            return [self.truth[0].class_names[label] for label in self.found.labels]
        return [f"class {label}" for label in self.found.labels]

    def order(self, *, best_first: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[N] the true images as they are shown, and [N] the reconstruction that stands for each."""
        if self.score is None:
            either = np.arange(self.num_images)
            return either, either
        true = np.argsort(-self.score.psnr, kind="stable") if best_first else np.arange(self.num_images)
        return true, self.score.order[true]

    @property
    def history(self) -> SessionHistory:
        return self.source.history

    @property
    def outcome(self) -> Outcome:
        return self.source.outcome


def scene_now(session: AttackSession, snapshot: Snapshot, truth: tuple[ClientData, ...]) -> Scene:
    """The newest moment of a session."""
    found = session.reconstruction(snapshot)
    return Scene(session, snapshot.step, found, score(found, truth) if truth else None, truth)


def scene_at(source: AttackSession | Recording, step: int, truth: tuple[ClientData, ...]) -> Scene:
    """A kept moment of a session or of a recording."""
    found = source.reconstruction_at(step)
    if isinstance(found, Frame):
        return Scene(source, step, found, found.score, truth if found.score is not None else ())
    return Scene(source, step, found, score(found, truth) if truth else None, truth)
