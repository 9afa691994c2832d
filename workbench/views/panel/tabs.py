"""The seven tabs: each draws a `Scene` into widgets, on the painter's thread, and knows nothing of runners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import ipywidgets as widgets
import numpy as np
import traitlets
from matplotlib.figure import Figure
from numpy.typing import NDArray

from workbench.attack.confidence import predict_psnr
from workbench.attack.matching import psnr_matrix
from workbench.metrics import averaging_curves, label_errors
from workbench.session.history import SessionHistory
from workbench.views import render
from workbench.views.panel.scene import Scene
from workbench.views.panel.worker import DRAWING
from workbench.views.report import fact_text

__all__ = [
    "AttackerTab",
    "AveragingTab",
    "EpochsTab",
    "LabelsTab",
    "LossTab",
    "MatchingTab",
    "Picture",
    "ReconstructionTab",
    "Tab",
]

# More columns of epochs than these are too small to see anything.
_MOST_COLUMNS = 12
_LARGE_PIXELS = 112
# Figures are drawn for light pages; the panel's style turns them for dark ones.
_FIGURE_DPI = 144


class _Image(widgets.Image):  # type: ignore[misc]
    """An image whose tooltip works: ipywidgets looks for a description first, which its own image does not have.

    The tooltip is what a screen reader tells of the image.
    """

    description = traitlets.Unicode("").tag(sync=True)


class Picture(widgets.VBox):  # type: ignore[misc]
    """A picture with a text alternative and a caption; a sheet is drawn for both themes, and the page shows one."""

    def __init__(self) -> None:
        self.light, self.dark = _Image(format="png"), _Image(format="png")
        self.caption = widgets.HTML()
        self.caption.add_class("wb-note")
        super().__init__([self.light, self.dark, self.caption])
        for image in (self.light, self.dark):
            image.layout.max_width, image.layout.display = "100%", "none"

    def show_sheet(self, draw: Callable[..., bytes], density: int, text: str, caption: str | None = None) -> None:
        """Draw a sheet of images for each theme; ``text`` says what is seen to those who do not see it."""
        for image, theme in ((self.light, "light"), (self.dark, "dark")):
            image.remove_class("wb-figure")
            image.add_class(f"wb-{theme}")
            self._put(image, draw(theme=theme, density=density), density, text)
        self._tell(text if caption is None else caption)

    def show_figure(self, draw: Callable[[], Figure], text: str, caption: str | None = None) -> None:
        """Draw a figure."""
        with DRAWING:
            png = render.figure_png(draw(), dpi=_FIGURE_DPI)
        self.light.remove_class("wb-light")
        self.light.add_class("wb-figure")
        self.dark.layout.display = "none"
        self._put(self.light, png, _FIGURE_DPI / 96, text)
        self._tell(text if caption is None else caption)

    def show_text(self, text: str) -> None:
        """Say why there is nothing to see."""
        self.light.layout.display = self.dark.layout.display = "none"
        self._tell(text)

    def _put(self, image: Any, png: bytes, density: float, text: str) -> None:
        width = str(round(int.from_bytes(png[16:20], "big") / density))
        # In one message: the page makes a new picture for every one.
        with image.hold_sync():
            image.width, image.tooltip, image.value = width, text, png
        image.layout.display = None

    def _tell(self, text: str) -> None:
        self.caption.value = escape(text)

    @property
    def png(self) -> bytes | None:
        """As on a light page; None where there is only text."""
        return None if self.light.layout.display == "none" else bytes(self.light.value)


class Tab(widgets.VBox):  # type: ignore[misc]
    """What all tabs share: controls above, a picture below, and a word to the panel when a control is moved."""

    title = ""
    is_curve = False  # drawn with matplotlib, and therefore less often

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


def _able(control: Any, reason: str, tip: str) -> None:
    """Enable a control, or disable it and say why."""
    for name, value in (("disabled", bool(reason)), ("tooltip", reason or tip)):
        if getattr(control, name) != value:
            setattr(control, name, value)


def _limit(slider: Any, most: int) -> None:
    if slider.max != most:
        slider.value = min(slider.value, most)
        slider.max = most


class ReconstructionTab(Tab):
    """Truth above reconstruction, and one image large with its epochs."""

    title = "Reconstruction"

    def __init__(self) -> None:
        self.truth = widgets.Checkbox(True, description="Show the truth", indent=False)
        self.sort = widgets.Dropdown(options=["best first", "in order"], description="Sort")
        self.image = widgets.IntSlider(
            1, 1, 1, description="Large", tooltip="Which image to show large, counted as they stand above"
        )
        for control in (self.truth, self.sort, self.image):
            control.layout.width = "auto" if control is self.truth else "210px"
            control.style.description_width = "40px"
        self.large = Picture()
        super().__init__([self.truth, self.sort, self.image], self.large)

    def draw(self, scene: Scene, density: int) -> None:
        """Show the scene."""
        knows = scene.score is not None
        _able(
            self.truth, "" if knows else "Nobody told this panel the truth.", "Without it, you see what a server sees"
        )
        shows = knows and self.truth.value
        _able(self.sort, "", "By PSNR, predicted where the truth is not shown; or as they are")
        _limit(self.image, scene.num_images)
        is_best_first = self.sort.value == "best first"
        true, order = scene.order(best_first=is_best_first)
        expected = predict_psnr(scene.found.images)
        if not shows:
            order = np.argsort(-expected, kind="stable") if is_best_first else np.arange(scene.num_images)
        images = scene.found.images[order]
        if shows and scene.score is not None and scene.true_images is not None:
            psnr, threshold, truth = scene.score.psnr[true], scene.score.threshold, scene.true_images[true]
            self.picture.show_sheet(
                lambda **look: render.comparison_sheet(truth, images, psnr, threshold, **look),
                density,
                f"Step {scene.step}. Truth above, reconstruction below: {_told(scene)}.",
            )
        else:
            names = [f"{scene.class_names[index]} ~{expected[index]:.0f} dB" for index in order]
            self.picture.show_sheet(
                lambda **look: render.contact_sheet(images, names, **look),
                density,
                f"Step {scene.step}. {len(order)} reconstructions as the attacker sees them: the assumed class, "
                "and the quality predicted without the truth.",
            )
        self._draw_large(scene, true, order, shows, density)

    def _draw_large(
        self, scene: Scene, true: NDArray[np.int64], order: NDArray[np.int64], shows: bool, density: int
    ) -> None:
        place = min(self.image.value, scene.num_images) - 1
        index = order[place]
        pictures, names = [scene.found.images[index]], ["combined"]
        if shows and scene.true_images is not None:
            pictures.insert(0, scene.true_images[true[place]])
            names.insert(0, "truth")
        epochs = scene.found.epochs
        if epochs is not None and len(epochs) > 1:
            pictures += [epochs[e][scene.found.permutations[e][index]] for e in range(len(epochs))]
            names += [f"epoch {number}" for number in range(1, len(epochs) + 1)]
        scale = max(1, round(_LARGE_PIXELS / max(pictures[0].shape[:2])))
        quality = "" if not shows or scene.score is None else f", {scene.score.psnr[true[place]]:.1f} dB"
        self.large.show_sheet(
            lambda **look: render.contact_sheet(np.stack(pictures), names, scale=scale, **look),
            density,
            f"Image {place + 1} large{quality}: {', '.join(names)}.",
        )


def _told(scene: Scene) -> str:
    """The score, in words."""
    if scene.score is None:
        return "not compared with the truth"
    psnr, threshold = scene.score.psnr, scene.score.threshold
    return f"{(psnr > threshold).sum()} of {len(psnr)} above {threshold:g} dB, mean {psnr.mean():.1f} dB"


class EpochsTab(Tab):
    """One row for each epoch."""

    title = "Epochs"

    def __init__(self) -> None:
        self.matched = widgets.ToggleButtons(
            options=["matched", "as optimised"],
            description="Columns",
            tooltips=["A column shows one image in every epoch", "Every epoch in its own order"],
            style={"button_width": "110px"},
        )
        self.first = widgets.IntSlider(1, 1, 1, description="From", tooltip="The first column, where not all fit")
        self.first.layout.width = "230px"
        super().__init__([self.matched, self.first])

    def draw(self, scene: Scene, density: int) -> None:
        """Show the scene."""
        found, epochs, is_matched = scene.found, scene.found.epochs, self.matched.value == "matched"
        _limit(self.first, max(1, scene.num_images - _MOST_COLUMNS + 1))
        _able(self.first, "" if self.first.max > 1 else "All columns fit.", "The first column, where not all fit")
        if epochs is None:
            self.picture.show_text(f"Step {scene.step}: this recording holds only the combined images of this moment.")
            return
        if len(epochs) == 1:
            self.picture.show_text(
                "There is one set of images for all epochs: nothing to match. So it is for this method, or in the "
                "warm start."
            )
            return
        _, order = scene.order(best_first=True)
        columns = order[self.first.value - 1 :][:_MOST_COLUMNS]
        truth = None
        if scene.score is not None and scene.true_images is not None:
            truth = np.empty_like(scene.true_images)
            truth[scene.score.order] = scene.true_images
        permutations = found.permutations if is_matched else None
        moved = (found.permutations != found.permutations[:1]).any(0).sum()
        order_told = "matched" if is_matched else "each in its own order"
        told = (
            f"Step {scene.step}. {len(epochs)} epochs, {order_told}, and what they combine to. "
            f"The matching moves {moved} of {scene.num_images} images."
        )
        self.picture.show_sheet(
            lambda **look: render.epochs_sheet(
                epochs, found.images, permutations, order=columns, truth=truth, columns=len(columns), **look
            ),
            density,
            told,
        )


class MatchingTab(Tab):
    """How similar two epochs are, and which image was taken for which."""

    title = "Matching"
    is_curve = True

    def __init__(self) -> None:
        self.epoch = widgets.IntSlider(2, 2, 2, description="Epoch", tooltip="Compared with epoch 1")
        self.epoch.layout.width = "260px"
        self._seen: dict[int, NDArray[np.int64]] = {}
        super().__init__([self.epoch])

    def draw(self, scene: Scene, density: int) -> None:
        """Show the scene."""
        found = scene.found
        is_single = found.epochs is None or len(found.epochs) < 2
        _able(self.epoch, "There are no epochs to match at this moment." if is_single else "", "Compared with epoch 1")
        if found.epochs is None or len(found.epochs) < 2:
            self.picture.show_text("There is one set of images at this moment, or only the combined one: no matching.")
            return
        _limit(self.epoch, len(found.epochs))
        number = min(self.epoch.value, len(found.epochs))
        assignment = found.permutations[number - 1]
        similarity = psnr_matrix(found.epochs[0], found.epochs[number - 1])
        told = f"Step {scene.step}. Circles: the assignment of epoch {number}. {self._changes(scene)}"
        self.picture.show_figure(lambda: render.matching_figure(similarity, assignment, epoch=number), told)

    def _changes(self, scene: Scene) -> str:
        """How much all epochs' assignments differ from those of the last moment that was looked at before this one."""
        now = scene.found.permutations
        self._seen = {step: seen for step, seen in self._seen.items() if step < scene.step and seen.shape == now.shape}
        last = max(self._seen, default=None)
        told = "Nothing earlier to compare with."
        if last is not None:
            changed = (self._seen[last] != now).sum()
            told = f"Since step {last}, {changed} of {now[1:].size} assignments in all epochs changed."
            # Kept for a moment, or two drawings of one step would forget what there was before it.
            self._seen = {last: self._seen[last]}
        self._seen[scene.step] = now
        return told


class AveragingTab(Tab):
    """What combining epochs is worth."""

    title = "Averaging"
    is_curve = True

    def draw(self, scene: Scene, density: int) -> None:
        """Show the scene."""
        if scene.score is None:
            self.picture.show_text("Without the truth nobody can tell how good a combination is.")
            return
        if scene.found.epochs is None or len(scene.found.epochs) < 2:
            self.picture.show_text("There is one set of images at this moment, or only the combined one: no averaging.")
            return
        curves = averaging_curves(scene.found, scene.truth)
        last = ", ".join(f"{how} {values[-1]:.1f} dB" for how, values in curves.items())
        told = (
            f"Step {scene.step}. One epoch {curves['mean'][0]:.1f} dB; all {len(scene.found.epochs)} combined: {last}."
        )
        self.picture.show_figure(lambda: render.averaging_figure(curves), told)


class LabelsTab(Tab):
    """True counts beside the estimates. The estimates are made elsewhere, because they take seconds."""

    title = "Labels"
    is_curve = True

    def __init__(self) -> None:
        self.estimates: Mapping[str, Any] | None = None
        self._drawn: object = None
        super().__init__()

    def draw(self, scene: Scene, density: int) -> None:
        """Show the scene."""
        key = (id(scene.source), id(scene.truth), self.estimates is None)
        if key == self._drawn:
            return  # labels do not change from step to step
        if self.estimates is None:
            self.picture.show_text("The label counts are being estimated from the weights …")
            self._drawn = key
            return
        used = np.asarray(scene.source.label_counts).sum(0)
        counts = {**{name: found.whole for name, found in self.estimates.items()}, "used by this attack": used}
        true = np.sum([client.label_counts for client in scene.truth], axis=0) if scene.truth else None
        names = scene.truth[0].class_names if scene.truth else None
        told = "Label counts, recovered from the weights alone."
        if true is not None:
            wrong = ", ".join(f"{name} {label_errors(true, found):g}" for name, found in counts.items())
            told = f"Wrong labels of {true.sum()}: {wrong}."
        self.picture.show_figure(lambda: render.label_figure(counts, true, names), told)
        self._drawn = key


class LossTab(Tab):
    """Every term over the steps."""

    title = "Loss"
    is_curve = True

    def draw(self, scene: Scene, density: int) -> None:
        """Show the whole history, whatever moment is looked at."""
        history, warm = scene.history, scene.source.config.warm_start_steps
        self.picture.show_figure(lambda: render.loss_figure(history, warm_start_steps=warm), _loss_told(history))


def _loss_told(history: SessionHistory) -> str:
    if not len(history.loss):
        return "No step was made yet."
    told = f"Loss {history.loss[0]:.3g} at the first step, {history.loss[-1]:.3g} at step {len(history.loss)}."
    if not history.steering:
        return f"{told} Nothing was steered."
    last = history.steering[-1]
    return (
        f"{told} {len(history.steering)} steering events, the last at step {last.step}: {last.name} = {last.value:g}."
    )


class AttackerTab(Tab):
    """What the server received, what it assumes, what it never sees."""

    title = "Attacker's view"

    def __init__(self) -> None:
        self.columns = widgets.HTML()
        self._drawn: object = None
        super().__init__((), self.columns)

    def draw(self, scene: Scene, density: int) -> None:
        """Show the facts, which do not change from step to step."""
        if self._drawn is scene.source:
            return
        self._drawn = scene.source
        parts = []
        for side, facts in scene.source.attacker_view().items():
            rows = "".join(
                f"<tr><th scope='row'>{escape(name)}</th><td>{escape(fact_text(value))}</td></tr>"
                for name, value in facts.items()
            )
            parts.append(f"<table class='wb-facts'><caption>{escape(side.capitalize())}</caption>{rows}</table>")
        self.columns.value = f"<div class='wb-columns'>{''.join(parts)}</div>"
        self.picture.show_text("The update is all that the server has; everything in the last list it has to guess.")
