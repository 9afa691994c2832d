"""All images and figures in one place: pure functions from arrays to PNG bytes (`sheets`) or figures (`figures`)."""

from workbench.views.figures import averaging_figure, figure_png, label_figure, loss_figure, matching_figure
from workbench.views.sheets import comparison_sheet, contact_sheet, epochs_sheet, picture
from workbench.views.theme import THEMES, Theme

__all__ = [
    "THEMES",
    "Theme",
    "averaging_figure",
    "comparison_sheet",
    "contact_sheet",
    "epochs_sheet",
    "figure_png",
    "label_figure",
    "loss_figure",
    "matching_figure",
    "picture",
]
