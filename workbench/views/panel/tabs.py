"""Eight tabs that show one moment of an attack: views of the picture grid, figures and facts."""

from collections.abc import Callable, Mapping
from html import escape
from typing import Any

import ipywidgets as widgets
import traitlets
from matplotlib.figure import Figure

from workbench.attack.matching import psnr_matrix
from workbench.attack.objective import Terms
from workbench.metrics import averaging_curves
from workbench.views import render
from workbench.views.grid.packets import LEVELS, quality_levels
from workbench.views.grid.widget import Grid
from workbench.views.panel.worker import DRAWING
from workbench.views.report import server_view
from workbench.views.scene import Scene

__all__ = ["DescribedImage", "FigureTab", "LabelsTab", "Tab", "make_tabs"]

# Figures are drawn for light pages; the panel's style inverts them for dark ones.
_FIGURE_DPI = 144
# More columns of epochs than these are too small to see anything in an exported picture.
_MOST_COLUMNS = 12
_DENSITY = 2


class DescribedImage(widgets.Image):  # type: ignore[misc]
    """An image whose tooltip works: ipywidgets looks for a description first, which its own image does not have.

    A screen reader reads the tooltip.
    """

    description = traitlets.Unicode("").tag(sync=True)


class Tab(widgets.VBox):  # type: ignore[misc]
    """What can be seen of an attack.

    Attributes:
        needs: what the picture grid has to get of every moment while this tab is visible; see `Grid.paint`.
    """

    needs: frozenset[str] = frozenset()

    def draw(self, scene: Scene) -> None:
        """Show a moment; a tab that the picture grid draws needs nothing more."""

    def picture(self, scene: Scene) -> bytes | None:
        """A PNG to export; None where there is nothing to see."""
        raise NotImplementedError


class GridTab(Tab):
    """A view of the picture grid, which the page draws.

    Args:
        grid: shown in several tabs.
        view: its name in the grid's script.
        needs: as in `Tab`.
        export: draws the picture to export from a moment.
        above: widgets above it.
    """

    def __init__(
        self, grid: Grid, view: str, needs: frozenset[str], export: Callable[[Scene], bytes | None], *above: Any
    ) -> None:
        super().__init__([*above, grid])
        self.add_class(f"wb-view-{view}")
        self.needs, self._export = needs, export

    def picture(self, scene: Scene) -> bytes | None:
        """A PNG to export."""
        with DRAWING:
            return self._export(scene)


def _reconstruction_png(scene: Scene) -> bytes:
    images, quality = scene.found.images, scene.score
    if quality is None:
        return render.contact_sheet(images, [f"class {label}" for label in scene.found.labels], density=_DENSITY)
    return render.comparison_sheet(
        scene.truth.images, images[quality.order], quality.psnr, quality.threshold, density=_DENSITY
    )


def _epochs_png(scene: Scene) -> bytes | None:
    if scene.epochs is None:
        return None
    found = scene.found
    columns = scene.order(best_first=True)[1][:_MOST_COLUMNS]
    truth = scene.matched_truth
    return render.epochs_sheet(
        scene.epochs, found.images, found.permutations, order=columns, truth=truth, density=_DENSITY
    )


def _matching_png(scene: Scene) -> bytes | None:
    if scene.epochs is None:
        return None
    similarity = psnr_matrix(scene.epochs[0], scene.epochs[-1])
    figure = render.matching_figure(similarity, scene.found.permutations[-1], epoch=len(scene.epochs))
    return render.figure_png(figure)


def _averaging_png(scene: Scene) -> bytes | None:
    if scene.epochs is None or scene.score is None:
        return None
    found = quality_levels(scene.source, scene.truth)
    levels = {"recovered above": scene.truth.psnr_threshold}
    levels |= {text: found[name] for name, text in LEVELS.items() if name in found}
    named = {f"{text} {value:.1f}": value for text, value in levels.items()}
    return render.figure_png(render.averaging_figure(averaging_curves(scene.found, scene.truth), named))


def _loss_png(scene: Scene) -> bytes:
    return render.figure_png(scene.loss_chart()[0]())


class FigureTab(Tab):
    """A figure that matplotlib draws, with its caption."""

    def __init__(self, *below: Any) -> None:
        self.image = DescribedImage(format="png", layout={"max_width": "100%", "display": "none"}).add_class(
            "wb-figure"
        )
        self.caption = widgets.HTML().add_class("wb-note")
        super().__init__([self.image, self.caption, *below])

    def show_figure(self, draw: Callable[[], Figure], text: str) -> None:
        """Draw a figure; ``text`` describes it, also to people who cannot see it."""
        with DRAWING:
            png = render.figure_png(draw(), dpi=_FIGURE_DPI)
        width = str(round(int.from_bytes(png[16:20], "big") * 96 / _FIGURE_DPI))
        # In one message: the page makes a new picture for every one.
        with self.image.hold_sync():
            self.image.width, self.image.tooltip, self.image.value = width, text, png
        self.image.layout.display = None
        self.caption.value = escape(text)

    def show_text(self, text: str) -> None:
        """Say why there is nothing to see."""
        self.image.layout.display = "none"
        self.caption.value = escape(text)

    def picture(self, scene: Scene) -> bytes | None:
        """What is shown."""
        return None if self.image.layout.display == "none" else bytes(self.image.value)


class LabelsTab(FigureTab):
    """True counts beside the estimates, which are made elsewhere because they take seconds."""

    def draw(self, scene: Scene) -> None:
        """Show the scene."""
        if scene.labels is None:
            self.show_text("The label counts are being estimated from the weights …")
        else:
            self.show_figure(*scene.label_chart())


class SpanTab(FigureTab):
    """The singular values of the update, and how far every image is from its span."""

    def draw(self, scene: Scene) -> None:
        """Show the scene."""
        draw, text = scene.span_chart(is_live=True)
        if draw is None:
            self.show_text(text)
        else:
            self.show_figure(draw, text)


class AttackerTab(FigureTab):
    """What the server received, what it assumes, what it never sees."""

    def __init__(self) -> None:
        self.columns = widgets.HTML()
        super().__init__(self.columns)

    def draw(self, scene: Scene) -> None:
        """Show the facts."""
        self.columns.value = server_view(scene.source)
        self.show_text("The server has the update alone; it has to guess everything in the last list.")


def _formula(grid: Grid, weights: Mapping[str, Any]) -> Any:
    """The loss as a formula: a row for every term, with its value at the timeline's step and its slider."""

    def term(name: str, *beside: Any) -> Any:
        value = widgets.VBox([grid]).add_class("wb-view-term").add_class(f"wb-term-{name}")
        return widgets.HBox([value, *beside]).add_class("wb-term")

    # A custom term has no slider, and is last.
    terms = [*(term(*one) for one in weights.items()), *(term(name) for name in Terms._fields if name not in weights)]
    return widgets.VBox([term("loss"), widgets.HBox(terms).add_class("wb-terms")])


def make_tabs(grid: Grid, weights: Mapping[str, Any]) -> dict[str, Tab]:
    """The tabs by their titles, in order; ``weights`` are the sliders of the terms of the loss, by their names."""
    pictures, epochs = frozenset({"pixels"}), frozenset({"pixels", "epochs"})
    return {
        "Reconstruction": GridTab(grid, "reconstruction", pictures, _reconstruction_png),
        "Epochs": GridTab(grid, "epochs", epochs, _epochs_png),
        "Matching": GridTab(grid, "matching", epochs, _matching_png),
        "Averaging": GridTab(grid, "averaging", epochs, _averaging_png),
        "Labels": LabelsTab(),
        "Span": SpanTab(),
        "Loss": GridTab(grid, "loss", frozenset({"score", "history"}), _loss_png, _formula(grid, weights)),
        "Attacker's view": AttackerTab(),
    }
