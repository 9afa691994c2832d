"""Light and dark colours of all images and figures."""

from dataclasses import dataclass

from workbench.errors import check_choice

__all__ = ["THEMES", "Theme", "theme_named"]


@dataclass(frozen=True)
class Theme:
    """Colours on one background that are distinguishable with any colour vision.

    Attributes:
        paper: the background.
        ink: text and axes.
        faint: grid lines and other background elements.
        accent: highlighted elements.
        lines: one for each term of the loss and each label method; line styles differ too.
    """

    paper: str
    ink: str
    faint: str
    accent: str
    lines: tuple[str, ...]


THEMES = {
    "light": Theme(
        paper="#ffffff",
        ink="#1f2328",
        faint="#b6bcc4",
        accent="#0072b2",
        lines=("#1f2328", "#0072b2", "#d55e00", "#009e73", "#b0568a", "#b07a00", "#3a8fc4"),
    ),
    "dark": Theme(
        paper="#15181c",
        ink="#e6e8eb",
        faint="#555c66",
        accent="#56b4e9",
        lines=("#e6e8eb", "#56b4e9", "#f08a3c", "#2fc79a", "#e29bc4", "#e6b43c", "#9ad4f5"),
    ),
}


def theme_named(name: str) -> Theme:
    """The theme ``light`` or ``dark``."""
    return THEMES[check_choice("theme", name, THEMES)]
