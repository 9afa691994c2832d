"""Figures like the paper's, drawn from a study's pictures."""

from pathlib import Path

import numpy as np

from workbench.files.writing import write_atomically
from workbench.study.run.pictures import Pictures, load_pictures, pictures_folder
from workbench.study.show.results import Results

__all__ = ["write_figures"]

# The images to show, as ranks by the PSNR of the figure's first method: from nearly the best to nearly the worst.
_SHOWN_RANKS = (0.1, 0.37, 0.63, 0.9)
_EPOCH_COLUMNS = 8


def write_figures(results: Results, folder: Path) -> None:
    """Draw the first client of every setting: some images by all methods, each method's epochs, and all its images.

    A method whose pictures were not stored is left out.
    """
    pictures: dict[str, dict[str, Pictures]] = {}
    for line in results.lines:
        found = load_pictures(pictures_folder(folder), line.entry.units[0].key)
        if found is not None:
            pictures.setdefault(line.entry.setting, {})[line.entry.method] = found
    for setting, by_method in pictures.items():
        stem = "_".join(setting.replace(",", " ").split())
        for name, png in _sheets(by_method).items():
            write_atomically(folder / f"{stem}_{name}.png", png)


def _sheets(pictures: dict[str, Pictures]) -> dict[str, bytes]:
    """The figures of one setting as PNG, by name."""
    from workbench.views.render import comparison_sheet, epochs_sheet

    sheets = {"methods": _by_methods(pictures)} if len(pictures) > 1 else {}
    for method, found in pictures.items():
        order = np.argsort(-found.psnr, kind="stable")
        if len(found.epochs) > 1:
            some = order[np.linspace(0, len(order) - 1, min(_EPOCH_COLUMNS, len(order))).round().astype(int)]
            sheets[f"{method}_epochs"] = epochs_sheet(
                found.epochs / 255,
                found.images / 255,
                order=some,
                truth=found.truth / 255,
                captions=[f"{value:.1f} dB" for value in found.psnr[some]],
                columns=len(some),
            )
        sheets[f"{method}_all"] = comparison_sheet(
            found.truth[order] / 255, found.images[order] / 255, found.psnr[order], columns=10
        )
    return sheets


def _by_methods(pictures: dict[str, Pictures]) -> bytes:
    """A sheet with some images in columns, and the truth and every method in rows."""
    from workbench.views.render import contact_sheet

    first = next(iter(pictures.values()))
    ranks = [round(rank * (len(first.psnr) - 1)) for rank in _SHOWN_RANKS]
    shown = np.argsort(-first.psnr, kind="stable")[sorted(set(ranks))]
    rows = [first.truth, *(found.images for found in pictures.values())]
    names = ["truth", *(f"{method}, mean {found.psnr.mean():.1f} dB" for method, found in pictures.items())]
    return contact_sheet(np.stack([row[shown] for row in rows]) / 255, names=names, columns=len(shown), scale=3)
