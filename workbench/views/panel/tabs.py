"""Eight tabs that draw one moment of an attack, on the painter's thread."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape
from typing import Any

import ipywidgets as widgets
import numpy as np
import traitlets
from matplotlib.figure import Figure
from numpy.typing import NDArray

from workbench.attack.matching import psnr_matrix
from workbench.metrics import averaging_curves
from workbench.views import render
from workbench.views.panel.worker import DRAWING
from workbench.views.report import server_view
from workbench.views.scene import Scene

__all__ = ["TABS", "LabelsTab", "Tab"]

# Figures are drawn for light pages; the panel's style inverts them for dark ones.
_FIGURE_DPI = 144
# More columns of epochs than these are too small to see anything.
_MOST_COLUMNS = 12
_LARGE_PIXELS = 112


class _Image(widgets.Image):  # type: ignore[misc]
    """An image whose tooltip works: ipywidgets looks for a description first, which its own image does not have.

    A screen reader reads the tooltip.
    """

    description = traitlets.Unicode("").tag(sync=True)


class Picture(widgets.VBox):  # type: ignore[misc]
    """A picture with its caption. A sheet of images is drawn for both themes, and the page shows one; a figure once.

    Args:
        above: widgets above the picture.
        below: widgets below the caption.

    Attributes:
        is_figure: whether matplotlib draws it, which takes longer.
    """

    is_figure = False

    def __init__(self, above: Sequence[Any] = (), below: Sequence[Any] = ()) -> None:
        self.light, self.dark = (
            _Image(format="png", layout={"max_width": "100%", "display": "none"}) for _ in range(2)
        )
        self.caption = widgets.HTML().add_class("wb-note")
        super().__init__([*above, self.light, self.dark, self.caption, *below])

    def show_sheet(self, draw: Callable[..., bytes], density: int, text: str) -> None:
        """Draw a sheet of images for each theme; ``text`` describes it, also to people who cannot see it."""
        for image, theme in ((self.light, "light"), (self.dark, "dark")):
            image.add_class(f"wb-{theme}")
            self._put(image, draw(theme=theme, density=density), density, text)

    def show_figure(self, draw: Callable[[], Figure], text: str) -> None:
        """Draw a figure; ``text`` describes it."""
        with DRAWING:
            png = render.figure_png(draw(), dpi=_FIGURE_DPI)
        self.is_figure = True
        self.light.add_class("wb-figure")
        self._put(self.light, png, _FIGURE_DPI / 96, text)

    def show_text(self, text: str) -> None:
        """Say why there is nothing to see."""
        self.light.layout.display = self.dark.layout.display = "none"
        self.caption.value = escape(text)

    def _put(self, image: Any, png: bytes, density: float, text: str) -> None:
        width = str(round(int.from_bytes(png[16:20], "big") / density))
        # In one message: the page makes a new picture for every one.
        with image.hold_sync():
            image.width, image.tooltip, image.value = width, text, png
        image.layout.display = None
        self.caption.value = escape(text)

    @property
    def png(self) -> bytes | None:
        """As on a light page; None where there is only text."""
        return None if self.light.layout.display == "none" else bytes(self.light.value)


class Tab(Picture):
    """What all tabs share: controls above, a picture below.

    Args:
        changed: called when a control is moved.
        controls: the widgets above.
        below: widgets below the caption.
    """

    # Shows a scene, with so many pixels of a sheet for each CSS pixel.
    draw: Callable[[Scene, int], None]

    def __init__(self, changed: Callable[[], None], *controls: Any, below: Sequence[Any] = ()) -> None:
        for control in controls:
            control.observe(lambda _: changed(), "value")
        row = widgets.HBox(controls, layout=widgets.Layout(flex_flow="row wrap", grid_gap="4px 16px"))
        super().__init__([row] if controls else (), below)


def _enable(control: Any, reason: str, tip: str) -> None:
    """Enable a control, or disable it and say why."""
    control.disabled, control.tooltip = bool(reason), reason or tip


class ReconstructionTab(Tab):
    """Truth above reconstruction, and one image large with its epochs."""

    def __init__(self, changed: Callable[[], None]) -> None:
        narrow, style = {"width": "210px"}, {"description_width": "40px"}
        self.truth = widgets.Checkbox(True, description="Show the truth", indent=False, layout={"width": "auto"})
        self.sort = widgets.Dropdown(
            options=["best first", "in order"],
            description="Sort",
            tooltip="By PSNR, or by confidence where the truth is not shown; or in the order of the images",
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
        super().__init__(changed, self.truth, self.sort, self.image, below=(self.large,))

    def draw(self, scene: Scene, density: int) -> None:
        """Show the scene."""
        _enable(self.truth, "" if scene.truth else "The truth is not known.", "Without it, you see what a server sees")
        score = scene.score if self.truth.value else None
        true, order = replace(scene, score=score).order(best_first=self.sort.value == "best first")
        self.image.max = len(order)
        if score is not None:
            truth, images, psnr = scene.truth.images[true], scene.found.images[order], score.psnr[true]
            num_recovered = (psnr > score.threshold).sum()
            self.show_sheet(
                lambda **look: render.comparison_sheet(truth, images, psnr, score.threshold, **look),
                density,
                f"Step {scene.step}. Truth above, reconstruction below: {num_recovered} of {len(psnr)} above "
                f"{score.threshold:g} dB, mean {psnr.mean():.1f} dB.",
            )
        else:
            names = [
                scene.truth.class_names[label] if scene.truth else f"class {label}"
                for label in scene.found.labels[order]
            ]
            confidence, judged = scene.found.confidence, f". {scene.source.spectrum}"
            if confidence is not None:
                names = [f"{name}: {value:.2f}" for name, value in zip(names, confidence[order], strict=True)]
                judged = ", and the confidence, which needs no truth: 1 minus the span residual, from 0 to 1."
            self.show_sheet(
                lambda **look: render.contact_sheet(scene.found.images[order], names, **look),
                density,
                f"Step {scene.step}. {len(order)} reconstructions as the attacker sees them: the assumed class{judged}",
            )
        place = self.image.value - 1
        self._draw_large(scene, place, order[place], None if score is None else true[place], density)

    def _draw_large(self, scene: Scene, place: int, index: int, true: int | None, density: int) -> None:
        """Show reconstruction ``index`` with its epochs, and the true image where it is to be shown."""
        pictures, quality = {"combined": scene.found.images[index]}, ""
        if true is not None and scene.score is not None:
            pictures = {"truth": scene.truth.images[true], **pictures}
            quality = f", {scene.score.psnr[true]:.1f} dB"
        if scene.epochs is not None:
            matched = enumerate(zip(scene.epochs, scene.found.permutations, strict=True), 1)
            pictures |= {f"epoch {number}": epoch[columns[index]] for number, (epoch, columns) in matched}
        names, images = list(pictures), np.stack(list(pictures.values()))
        scale = max(1, round(_LARGE_PIXELS / max(images.shape[1:3])))
        self.large.show_sheet(
            lambda **look: render.contact_sheet(images, names, scale=scale, **look),
            density,
            f"Image {place + 1} large{quality}: {', '.join(names)}.",
        )


class EpochsTab(Tab):
    """One row for each epoch."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.matched = widgets.ToggleButtons(
            options=["matched", "as optimised"],
            description="Columns",
            tooltips=["A column shows one image in every epoch", "Every epoch in the order of its optimisation"],
            style={"button_width": "110px"},
        )
        self.first = widgets.IntSlider(1, 1, 1, description="From", layout={"width": "230px"})
        super().__init__(changed, self.matched, self.first)

    def draw(self, scene: Scene, density: int) -> None:
        """Show the scene."""
        found, epochs, is_matched = scene.found, scene.epochs, self.matched.value == "matched"
        self.first.max = max(1, len(found.images) - _MOST_COLUMNS + 1)
        _enable(self.first, "" if self.first.max > 1 else "All columns fit.", "The first column, where not all fit")
        if epochs is None:
            self.show_text(_why_single(scene))
            return
        _, order = scene.order(best_first=True)
        columns = order[self.first.value - 1 :][:_MOST_COLUMNS]
        moved = (found.permutations != found.permutations[:1]).any(0).sum()
        self.show_sheet(
            lambda **look: render.epochs_sheet(
                epochs,
                found.images,
                found.permutations if is_matched else None,
                order=columns,
                truth=scene.matched_truth,
                columns=len(columns),
                **look,
            ),
            density,
            f"Step {scene.step}. {len(epochs)} epochs, {'matched' if is_matched else 'each in its own order'}, and "
            f"their combination. The matching moves {moved} of {len(order)} images.",
        )


def _why_single(scene: Scene) -> str:
    """Why there are no epochs to compare."""
    if scene.found.epochs is None:
        return f"Step {scene.step}: the recording holds only the combined images of this moment."
    return "There is one set of images for all epochs, because of the method or during the warm start."


class MatchingTab(Tab):
    """How similar two epochs are, and which image was matched to which."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.epoch = widgets.IntSlider(2, 2, 2, description="Epoch", layout={"width": "260px"})
        self._seen: dict[int, NDArray[np.int64]] = {}
        super().__init__(changed, self.epoch)

    def draw(self, scene: Scene, density: int) -> None:
        """Show the scene."""
        epochs = scene.epochs
        reason = "There are no epochs to match at this moment." if epochs is None else ""
        _enable(self.epoch, reason, "The epoch that is compared with epoch 1")
        if epochs is None:
            self.show_text(_why_single(scene))
            return
        self.epoch.max = len(epochs)
        number = self.epoch.value
        matching = psnr_matrix(epochs[0], epochs[number - 1]), scene.found.permutations[number - 1]
        text = f"Step {scene.step}. Circles: the assignment of epoch {number}. {self._changes(scene)}"
        self.show_figure(lambda: render.matching_figure(*matching, epoch=number), text)

    def _changes(self, scene: Scene) -> str:
        """How much all epochs' assignments differ from those of the last earlier moment that was looked at."""
        now = scene.found.permutations
        earlier = {step: seen for step, seen in self._seen.items() if step < scene.step and seen.shape == now.shape}
        last = max(earlier, default=None)
        # The last one is kept too, or drawing one step twice would forget what there was before it.
        self._seen = {scene.step: now} if last is None else {last: earlier[last], scene.step: now}
        if last is None:
            return "Nothing earlier to compare with."
        return f"Since step {last}, {(earlier[last] != now).sum()} of {now[1:].size} assignments in all epochs changed."


class AveragingTab(Tab):
    """How much combining epochs improves the images."""

    def draw(self, scene: Scene, density: int) -> None:
        """Show the scene."""
        if scene.score is None or scene.epochs is None:
            unknown = "Without the truth the quality of a combination is not known."
            self.show_text(unknown if scene.score is None else _why_single(scene))
            return
        curves = averaging_curves(scene.found, scene.truth)
        last = ", ".join(f"{how} {values[-1]:.1f} dB" for how, values in curves.items())
        text = f"Step {scene.step}. One epoch {curves['mean'][0]:.1f} dB; all {len(scene.epochs)} combined: {last}."
        self.show_figure(lambda: render.averaging_figure(curves), text)


class LabelsTab(Tab):
    """True counts beside the estimates, which are made elsewhere because they take seconds."""

    def draw(self, scene: Scene, density: int) -> None:
        """Show the scene."""
        if scene.labels is None:
            self.show_text("The label counts are being estimated from the weights …")
        else:
            self.show_figure(*scene.label_chart())


class SpanTab(Tab):
    """The singular values of the update, and how far every image is from its span."""

    def draw(self, scene: Scene, density: int) -> None:
        """Show the scene."""
        draw, text = scene.span_chart(is_live=True)
        if draw is None:
            self.show_text(text)
        else:
            self.show_figure(draw, text)


class LossTab(Tab):
    """Every term over the steps."""

    def draw(self, scene: Scene, density: int) -> None:
        """Show the whole history, whatever moment is looked at."""
        self.show_figure(*scene.loss_chart())


class AttackerTab(Tab):
    """What the server received, what it assumes, what it never sees."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.columns = widgets.HTML()
        super().__init__(changed, below=(self.columns,))

    def draw(self, scene: Scene, density: int) -> None:
        """Show the facts."""
        self.columns.value = server_view(scene.source)
        self.show_text("The server has the update alone; it has to guess everything in the last list.")


# The tabs by their titles, in order.
TABS: dict[str, type[Tab]] = {
    "Reconstruction": ReconstructionTab,
    "Epochs": EpochsTab,
    "Matching": MatchingTab,
    "Averaging": AveragingTab,
    "Labels": LabelsTab,
    "Span": SpanTab,
    "Loss": LossTab,
    "Attacker's view": AttackerTab,
}
