"""What there is to see: a `Scene` is one moment of an attack; seven tabs draw it, on the painter's thread."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import ipywidgets as widgets
import numpy as np
from numpy.typing import NDArray

from workbench.attack.attack import Reconstruction
from workbench.attack.confidence import predict_psnr
from workbench.attack.matching import psnr_matrix
from workbench.config import label_of
from workbench.data import Truth
from workbench.metrics import Score, averaging_curves, label_errors, score
from workbench.session import AttackSession, Recording, Snapshot
from workbench.session.history import SessionHistory
from workbench.session.recording import Frame
from workbench.views import render
from workbench.views.panel.parts import Picture
from workbench.views.report import fact_text

__all__ = [
    "AttackerTab",
    "AveragingTab",
    "EpochsTab",
    "LabelsTab",
    "LossTab",
    "MatchingTab",
    "ReconstructionTab",
    "Scene",
    "Tab",
    "scene_at",
]

# More columns of epochs than these are too small to see anything.
_MOST_COLUMNS = 12
_LARGE_PIXELS = 112


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
    def num_images(self) -> int:
        return len(self.found.images)

    @property
    def epochs(self) -> NDArray[np.float32] | None:
        """[V, N, H, W, C] where there are several epochs to compare; None where there is one set of images."""
        epochs = self.found.epochs
        return epochs if epochs is not None and len(epochs) > 1 else None

    def order(self, *, best_first: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[N] the true images as they are shown, and [N] the reconstruction that is matched to each."""
        in_order = np.arange(self.num_images)
        if self.score is None:
            return in_order, in_order
        true = np.argsort(-self.score.psnr, kind="stable") if best_first else in_order
        return true, self.score.order[true]


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


class Tab(widgets.VBox):  # type: ignore[misc]
    """What all tabs share: controls above, a picture below; ``changed`` is called when a control is moved."""

    title = ""

    def __init__(self, controls: Sequence[Any] = (), *more: Any) -> None:
        self.picture = Picture()
        self.changed: Callable[[], None] = lambda: None
        for control in controls:
            control.observe(lambda _: self.changed(), "value")
        row = widgets.HBox(list(controls), layout=widgets.Layout(flex_flow="row wrap", grid_gap="4px 16px"))
        super().__init__([*([row] if controls else []), self.picture, *more])

    def draw(self, scene: Scene, density: int) -> None:
        """Show the scene."""
        raise NotImplementedError

    @property
    def png(self) -> bytes | None:
        """The picture to export."""
        return self.picture.png


def _enable(control: Any, reason: str, tip: str) -> None:
    """Enable a control, or disable it and say why."""
    control.disabled, control.tooltip = bool(reason), reason or tip


class ReconstructionTab(Tab):
    """Truth above reconstruction, and one image large with its epochs."""

    title = "Reconstruction"

    def __init__(self) -> None:
        narrow, style = {"width": "210px"}, {"description_width": "40px"}
        self.truth = widgets.Checkbox(True, description="Show the truth", indent=False, layout={"width": "auto"})
        self.sort = widgets.Dropdown(
            options=["best first", "in order"],
            description="Sort",
            tooltip="By PSNR, predicted where the truth is not shown; or in the order of the images",
            layout=narrow,
            style=style,
        )
        self.image = widgets.IntSlider(
            1,
            1,
            1,
            description="Large",
            tooltip="Which image to show large, counted in the order above",
            layout=narrow,
            style=style,
        )
        self.large = Picture()
        super().__init__([self.truth, self.sort, self.image], self.large)

    def draw(self, scene: Scene, density: int) -> None:
        """Show the scene."""
        _enable(self.truth, "" if scene.truth else "The truth is not known.", "Without it, you see what a server sees")
        self.image.max = scene.num_images
        is_best_first = self.sort.value == "best first"
        true, order = scene.order(best_first=is_best_first)
        score = scene.score if self.truth.value else None
        if score is not None:
            truth, images, psnr = scene.truth.images[true], scene.found.images[order], score.psnr[true]
            num_recovered = (psnr > score.threshold).sum()
            self.picture.show_sheet(
                lambda **look: render.comparison_sheet(truth, images, psnr, score.threshold, **look),
                density,
                f"Step {scene.step}. Truth above, reconstruction below: {num_recovered} of {len(psnr)} above "
                f"{score.threshold:g} dB, mean {psnr.mean():.1f} dB.",
            )
        else:
            expected = predict_psnr(scene.found.images)
            order = np.argsort(-expected, kind="stable") if is_best_first else np.arange(scene.num_images)
            labels = scene.found.labels[order]
            classes = [scene.truth.class_names[label] if scene.truth else f"class {label}" for label in labels]
            names = [f"{name} ~{psnr:.0f} dB" for name, psnr in zip(classes, expected[order], strict=True)]
            self.picture.show_sheet(
                lambda **look: render.contact_sheet(scene.found.images[order], names, **look),
                density,
                f"Step {scene.step}. {len(order)} reconstructions as the attacker sees them: the assumed class, "
                "and the quality predicted without the truth.",
            )
        place = self.image.value - 1
        self._draw_large(scene, place, order[place], None if score is None else true[place], density)

    def _draw_large(self, scene: Scene, place: int, index: int, true: int | None, density: int) -> None:
        """Show reconstruction ``index`` with its epochs, and the true image where it is to be shown."""
        pictures, names, quality = [scene.found.images[index]], ["combined"], ""
        if true is not None and scene.score is not None:
            pictures.insert(0, scene.truth.images[true])
            names.insert(0, "truth")
            quality = f", {scene.score.psnr[true]:.1f} dB"
        if scene.epochs is not None:
            matched = zip(scene.epochs, scene.found.permutations, strict=True)
            pictures += [epoch[permutation[index]] for epoch, permutation in matched]
            names += [f"epoch {number}" for number in range(1, len(scene.epochs) + 1)]
        scale = max(1, round(_LARGE_PIXELS / max(pictures[0].shape[:2])))
        self.large.show_sheet(
            lambda **look: render.contact_sheet(np.stack(pictures), names, scale=scale, **look),
            density,
            f"Image {place + 1} large{quality}: {', '.join(names)}.",
        )


class EpochsTab(Tab):
    """One row for each epoch."""

    title = "Epochs"

    def __init__(self) -> None:
        self.matched = widgets.ToggleButtons(
            options=["matched", "as optimised"],
            description="Columns",
            tooltips=["A column shows one image in every epoch", "Every epoch in the order of its optimisation"],
            style={"button_width": "110px"},
        )
        self.first = widgets.IntSlider(1, 1, 1, description="From", layout={"width": "230px"})
        super().__init__([self.matched, self.first])

    def draw(self, scene: Scene, density: int) -> None:
        """Show the scene."""
        found, epochs, is_matched = scene.found, scene.epochs, self.matched.value == "matched"
        self.first.max = max(1, scene.num_images - _MOST_COLUMNS + 1)
        _enable(self.first, "" if self.first.max > 1 else "All columns fit.", "The first column, where not all fit")
        if epochs is None:
            self.picture.show_text(_why_single(scene))
            return
        _, order = scene.order(best_first=True)
        columns = order[self.first.value - 1 :][:_MOST_COLUMNS]
        truth = None if scene.score is None else scene.truth.images[np.argsort(scene.score.order)]
        permutations = found.permutations if is_matched else None
        moved = (found.permutations != found.permutations[:1]).any(0).sum()
        self.picture.show_sheet(
            lambda **look: render.epochs_sheet(
                epochs, found.images, permutations, order=columns, truth=truth, columns=len(columns), **look
            ),
            density,
            f"Step {scene.step}. {len(epochs)} epochs, {'matched' if is_matched else 'each in its own order'}, and "
            f"their combination. The matching moves {moved} of {scene.num_images} images.",
        )


def _why_single(scene: Scene) -> str:
    """Why there are no epochs to compare."""
    if scene.found.epochs is None:
        return f"Step {scene.step}: the recording holds only the combined images of this moment."
    return "There is one set of images for all epochs, because of the method or during the warm start."


class MatchingTab(Tab):
    """How similar two epochs are, and which image was matched to which."""

    title = "Matching"

    def __init__(self) -> None:
        self.epoch = widgets.IntSlider(2, 2, 2, description="Epoch", layout={"width": "260px"})
        self._seen: dict[int, NDArray[np.int64]] = {}
        super().__init__([self.epoch])

    def draw(self, scene: Scene, density: int) -> None:
        """Show the scene."""
        epochs = scene.epochs
        reason = "There are no epochs to match at this moment." if epochs is None else ""
        _enable(self.epoch, reason, "The epoch that is compared with epoch 1")
        if epochs is None:
            self.picture.show_text(_why_single(scene))
            return
        self.epoch.max = len(epochs)
        number = self.epoch.value
        assignment = scene.found.permutations[number - 1]
        similarity = psnr_matrix(epochs[0], epochs[number - 1])
        text = f"Step {scene.step}. Circles: the assignment of epoch {number}. {self._changes(scene)}"
        self.picture.show_figure(lambda: render.matching_figure(similarity, assignment, epoch=number), text)

    def _changes(self, scene: Scene) -> str:
        """How much all epochs' assignments differ from those of the last earlier moment that was looked at."""
        now = scene.found.permutations
        earlier = {step: seen for step, seen in self._seen.items() if step < scene.step and seen.shape == now.shape}
        last = max(earlier, default=None)
        # The last one is kept too, or drawing one step twice would forget what there was before it.
        self._seen = {scene.step: now} if last is None else {last: earlier[last], scene.step: now}
        if last is None:
            return "Nothing earlier to compare with."
        changed = (earlier[last] != now).sum()
        return f"Since step {last}, {changed} of {now[1:].size} assignments in all epochs changed."


class AveragingTab(Tab):
    """How much combining epochs improves the images."""

    title = "Averaging"

    def draw(self, scene: Scene, density: int) -> None:
        """Show the scene."""
        if scene.score is None or scene.epochs is None:
            unknown = "Without the truth the quality of a combination is not known."
            self.picture.show_text(unknown if scene.score is None else _why_single(scene))
            return
        curves = averaging_curves(scene.found, scene.truth)
        last = ", ".join(f"{how} {values[-1]:.1f} dB" for how, values in curves.items())
        text = f"Step {scene.step}. One epoch {curves['mean'][0]:.1f} dB; all {len(scene.epochs)} combined: {last}."
        self.picture.show_figure(lambda: render.averaging_figure(curves), text)


class LabelsTab(Tab):
    """True counts beside the estimates, which are made elsewhere because they take seconds."""

    title = "Labels"

    def draw(self, scene: Scene, density: int) -> None:
        """Show the scene."""
        if scene.labels is None:
            self.picture.show_text("The label counts are being estimated from the weights …")
            return
        used = np.asarray(scene.source.label_counts).sum(0)
        counts = {**{name: found.whole for name, found in scene.labels.items()}, "used by this attack": used}
        true, names, text = None, None, "Label counts, recovered from the weights alone."
        if scene.truth:
            true, names = scene.truth.label_counts.sum(0), scene.truth.class_names
            wrong = ", ".join(f"{name} {label_errors(true, found):g}" for name, found in counts.items())
            text = f"Wrong labels of {true.sum()}: {wrong}."
        self.picture.show_figure(lambda: render.label_figure(counts, true, names), text)


class LossTab(Tab):
    """Every term over the steps."""

    title = "Loss"

    def draw(self, scene: Scene, density: int) -> None:
        """Show the whole history, whatever moment is looked at."""
        history, warm = scene.source.history, scene.source.config.warm_start_steps
        self.picture.show_figure(lambda: render.loss_figure(history, warm_start_steps=warm), _loss_text(history))


def _loss_text(history: SessionHistory) -> str:
    if not len(history.loss):
        return "No step was made yet."
    text = f"Loss {history.loss[0]:.3g} at the first step, {history.loss[-1]:.3g} at step {len(history.loss)}."
    if not history.steering:
        return f"{text} Nothing was steered."
    last = history.steering[-1]
    change = f"{label_of(last.name)} = {last.value:g}"
    return f"{text} {len(history.steering)} steering events, the last at step {last.step}: {change}."


class AttackerTab(Tab):
    """What the server received, what it assumes, what it never sees."""

    title = "Attacker's view"

    def __init__(self) -> None:
        self.columns = widgets.HTML()
        super().__init__((), self.columns)

    def draw(self, scene: Scene, density: int) -> None:
        """Show the facts."""
        parts = []
        for side, facts in scene.source.attacker_view().items():
            rows = "".join(
                f"<tr><th scope='row'>{escape(name)}</th><td>{escape(fact_text(value))}</td></tr>"
                for name, value in facts.items()
            )
            parts.append(f"<table class='wb-facts'><caption>{escape(side.capitalize())}</caption>{rows}</table>")
        self.columns.value = f"<div class='wb-columns'>{''.join(parts)}</div>"
        self.picture.show_text("The server has the update alone; it has to guess everything in the last list.")
