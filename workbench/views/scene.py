"""One moment of an attack, as the panel and the report show it: its images, its order, its charts and their texts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from workbench.attack.attack import Reconstruction
from workbench.config import label_of
from workbench.data import Truth
from workbench.metrics import Score, label_errors, score
from workbench.session import AttackSession, Recording, Snapshot
from workbench.session.recording import Frame
from workbench.views import render

__all__ = ["Scene", "scene_at"]

# A session matches the epochs of every moment again, which takes up to a tenth of a second each.
_MOST_MOMENTS = 24
_READING = (
    "An image with a small span residual lies in the span of the update and is probably a true image, or a mixture of "
    "true images; noise and wrong images have a large one. The confidence is 1 minus the residual, and less for an "
    "image that repeats another one."
)


@dataclass(frozen=True, eq=False)
class Scene:
    """A moment to look at.

    Attributes:
        source: the session or recording.
        step: how many steps had been made.
        found: images, epochs, permutations and labels; a recording may lack the epochs.
        score: against the truth, None where it is not known.
        truth: the clients; empty where they are not known.
        labels: the estimated label counts by method, None until they are made.
    """

    source: AttackSession | Recording
    step: int
    found: Reconstruction | Frame
    score: Score | None
    truth: Truth
    labels: Mapping[str, Any] | None

    @property
    def epochs(self) -> NDArray[np.float32] | None:
        """[V, N, H, W, C] where there are several epochs to compare; None where there is one set of images."""
        epochs = self.found.epochs
        return epochs if epochs is not None and len(epochs) > 1 else None

    @property
    def matched_truth(self) -> NDArray[np.float32] | None:
        """[N, H, W, C] the true images in the order of the reconstructions; None where they are not known."""
        return None if self.score is None else self.truth.images[np.argsort(self.score.order)]

    def order(self, *, best_first: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[N] the true images as they are shown, and [N] the reconstruction that is matched to each.

        Best is the largest PSNR, or the largest confidence where there is no score.
        """
        in_order = np.arange(len(self.found.images))
        quality = None if not best_first else self.found.confidence if self.score is None else self.score.psnr
        shown = in_order if quality is None else np.argsort(-quality, kind="stable")
        return shown, shown if self.score is None else self.score.order[shown]

    def label_chart(self) -> tuple[Callable[..., Figure], str]:
        """A function that draws the label counts by every method, and a text that describes them."""
        counts = {name: found.whole for name, found in (self.labels or {}).items()}
        counts["used by the attack"] = np.asarray(self.source.label_counts).sum(0)
        if not self.truth:
            return partial(render.label_figure, counts), "Label counts, recovered from the weights alone."
        true = self.truth.label_counts.sum(0)
        wrong = ", ".join(f"{name} {label_errors(true, found):g}" for name, found in counts.items())
        text = f"Wrong labels of {true.sum()}: {wrong}."
        return partial(render.label_figure, counts, true, self.truth.class_names), text

    def span_chart(self, *, is_live: bool = False) -> tuple[Callable[..., Figure] | None, str]:
        """A function that draws the spectrum and the span residuals, None without a spectrum; and a text about them.

        Args:
            is_live: whether there is no time to compute the residuals of a session's earlier moments, because this is
                drawn again and again. A recording has them.
        """
        spectrum, residuals = self.source.spectrum, self.found.residuals
        if isinstance(spectrum, str):
            return None, spectrum
        text = f"{spectrum} {spectrum.image_count}"
        # A single image differs from no other, which the residuals are relative to.
        if residuals is None or not np.isfinite(residuals).all():
            return partial(render.span_figure, spectrum), text
        recovered = None if self.score is None else (self.score.psnr > self.score.threshold)[self.score.order.argsort()]
        history = {} if is_live and isinstance(self.source, AttackSession) else self._residual_history()
        text = f"Step {self.step}: median span residual {np.median(residuals):.2g}. {text} {_READING}"
        return partial(render.span_figure, spectrum, residuals, recovered, history, step=self.step), text

    def _residual_history(self) -> dict[int, NDArray[np.float32]]:
        """The residuals at kept moments, the last one always among them."""
        kept = sorted({*self.source.history.snapshot_steps, self.source.num_steps})
        shown = reversed(kept[:: -max(1, -(-len(kept) // _MOST_MOMENTS))])
        found = {step: self.source.reconstruction_at(step).residuals for step in shown}
        return {at: of for at, of in found.items() if of is not None and np.isfinite(of).all()}

    def loss_chart(self) -> tuple[Callable[..., Figure], str]:
        """A function that draws the whole history, whatever moment this is, and a text that describes it."""
        history, warm = self.source.history, self.source.config.warm_start_steps
        loss, steering, text = history.loss, "Nothing was steered.", "There are no steps yet."
        if history.steering:
            last, count = history.steering[-1], len(history.steering)
            steering = (
                f"{count} steering event{'s' * (count > 1)}, the last acting from step {last.step + 1} on: "
                f"{label_of(last.name)} = {last.value:g}."
            )
        if len(loss):
            text = f"Loss {loss[0]:.3g} at the first step, {loss[-1]:.3g} at step {len(loss)}. {steering}"
            text += f" The first {warm} steps are a warm start with a different loss." * (warm > 0)
        return partial(render.loss_figure, history, warm_start_steps=warm), text


def scene_at(
    source: AttackSession | Recording,
    step: int,
    truth: Truth,
    labels: Mapping[str, Any] | None = None,
    *,
    snapshot: Snapshot | None = None,
) -> Scene:
    """A kept moment of a session or of a recording, or a snapshot of a session that may be running."""
    if isinstance(source, AttackSession):
        found = source.reconstruction_at(step) if snapshot is None else source.reconstruction(snapshot)
        return Scene(source, step, found, score(found, truth) if truth else None, truth, labels)
    frame = source.reconstruction_at(step)
    return Scene(source, step, frame, frame.score, Truth() if frame.score is None else truth, labels)
