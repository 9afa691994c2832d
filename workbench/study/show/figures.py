"""Figures of a study: plots of its numbers and the paper's, quality over time, and pictures like the paper's."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

from workbench.errors import ConfigError
from workbench.files.writing import write_atomically
from workbench.study.plan.plan import Line
from workbench.study.run.measure import Pictures, load_pictures
from workbench.views.figures import THEMES
from workbench.views.looks import looks_of
from workbench.views.render import comparison_sheet, contact_sheet, epochs_sheet

__all__ = ["draw", "draw_over_time", "write_figures"]

_PANELS = {
    "images": (("recovered", "recovered (%)"), ("psnr", "PSNR (dB)")),
    "labels": (("errors", "wrong labels"),),
    "seconds": (("seconds", "seconds per client"),),
}

# The images to show, as ranks by the PSNR of the figure's first method: from nearly the best to nearly the worst.
_SHOWN_RANKS = (0.1, 0.37, 0.63, 0.9)
_EPOCH_COLUMNS = 8
_COLOURS = THEMES["light"].lines


def draw(title: str, kind: str, lines: Sequence[Line]) -> Figure:
    """One panel for each measure; settings side by side, methods by colour.

    Args:
        title: of the figure.
        kind: ``images``, ``labels`` or ``seconds``: which numbers to draw.
        lines: of the table.
    """
    panels = [*_PANELS[kind]]
    attacks = [line for line in lines if line.entry.method != "accuracy"]
    trained = [line for line in lines if line.entry.method == "accuracy"]
    if trained:
        panels.append(("accuracy", "accuracy (%)"))
    settings = list(dict.fromkeys(line.entry.setting for line in lines))
    figure = Figure(
        figsize=(max(6.0, 2.2 + 1.15 * len(settings)), 3.0 * len(panels) + 0.9), layout="constrained", dpi=130
    )
    for axes, (measure, label) in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True):
        _panel(axes, trained if measure == "accuracy" else attacks, settings, measure)
        axes.set_ylabel(label)
        if measure == "seconds":
            axes.set_yscale("log")
        elif measure != "psnr":
            axes.set_ylim(0, max(axes.get_ylim()[1], 1))
    methods = list(dict.fromkeys(line.entry.method for line in attacks))
    looks = looks_of(methods, _COLOURS)
    handles: list[Artist] = [Patch(color=looks[method].colour, label=method) for method in methods]
    handles += [
        Line2D([], [], marker=marker, color="0.3", linestyle="none", label=label)
        for marker, label in (("o", "measured"), ("x", "paper"))
        if marker == "o" or any(line.entry.published for line in lines)
    ]
    figure.suptitle(title, fontsize="medium")
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=min(5, len(handles)),
        frameon=False,
        fontsize="small",
    )
    return figure


def _panel(axes: Axes, lines: list[Line], settings: list[str], measure: str) -> None:
    methods = list(dict.fromkeys(line.entry.method for line in lines))
    space, looks = 0.8 / max(1, len(methods)), looks_of(methods, _COLOURS)
    for line in lines:
        number = methods.index(line.entry.method)
        at = settings.index(line.entry.setting) + (number - (len(methods) - 1) / 2) * space
        style: dict[str, Any] = {"color": looks[line.entry.method].colour, "linestyle": "none"}
        estimate = line.estimate(measure)
        if estimate is not None:
            axes.errorbar(at, estimate.mean, estimate.error, marker="o", markersize=5, capsize=3, **style)
        if measure in line.entry.published:
            axes.plot(at, line.entry.published[measure], marker="x", markersize=6, **style)
    axes.set_xticks(range(len(settings)), settings, rotation=20 if max(map(len, settings)) > 9 else 0)
    axes.set(xlim=(-0.6, len(settings) - 0.4), axisbelow=True)
    axes.grid(axis="y", linewidth=0.4, alpha=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def draw_over_time(lines: Sequence[Line]) -> Figure:
    """Mean PSNR and percent recovered against seconds: one column for each setting, one line for each method.

    Seconds are those of the machine that measured. Values are means over clients at the same step, with a band of one
    standard error; a marker shows the last one.
    """
    lines = [line for line in lines if any(row.get("curve") for row in line.rows)]
    if not lines:
        raise ConfigError("no attack has been measured yet, so there is nothing to draw over time.")
    settings = list(dict.fromkeys(line.entry.setting for line in lines))
    looks = looks_of(dict.fromkeys(line.entry.method for line in lines), _COLOURS)
    figure = Figure(figsize=(max(6.5, 4.5 * len(settings)), 6.4), layout="constrained", dpi=130)
    grid = figure.subplots(2, len(settings), squeeze=False, sharex="col", subplot_kw={"xscale": "log"})
    for line in lines:
        means, errors, num_clients = _mean_curve(line)
        column = grid[:, settings.index(line.entry.setting)]
        color = looks[line.entry.method].colour
        label = f"{line.entry.method} ({num_clients})"
        for axes, values, error in zip(column, means[:0:-1], errors[:0:-1], strict=True):
            axes.plot(means[0], values, color=color, label=label)
            axes.fill_between(means[0], values - error, values + error, color=color, alpha=0.2, linewidth=0)
            axes.plot(means[0, -1], values[-1], color=color, marker="o", markersize=5)
    for column, setting in zip(grid.T, settings, strict=True):
        column[0].set_title(f"{setting} (clients in brackets)", fontsize="medium")
        column[0].set_ylabel("recovered (%)")
        column[1].set(ylabel="PSNR (dB)", xlabel="seconds per client")
        column[1].xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        column[1].xaxis.set_major_formatter(ScalarFormatter())
        column[1].xaxis.set_minor_formatter(NullFormatter())
        column[0].legend(frameon=False, fontsize="small")
        for axes in column:
            axes.grid(linewidth=0.4, alpha=0.6)
            axes.spines[["top", "right"]].set_visible(False)
    return figure


def _mean_curve(line: Line) -> tuple[Any, Any, int]:
    """Seconds, PSNR and percent recovered [3, steps] at the steps that all clients reached.

    Means, standard errors over clients (0 for a single one), and the number of clients.
    """
    curves = [row["curve"] for row in line.rows if row.get("curve")]
    steps = sorted(set.intersection(*({int(point[0]) for point in curve} for curve in curves)))
    points = np.array([[point[1:4] for point in curve if int(point[0]) in steps] for curve in curves], float)
    deviation = points.std(0, ddof=1) if len(points) > 1 else np.zeros_like(points[0])
    return points.mean(0).T, (deviation / np.sqrt(len(points))).T, len(curves)


def write_figures(lines: Sequence[Line], folder: str) -> None:
    """Draw the first client of every setting: some images by all methods, each method's epochs, and all its images.

    Args:
        lines: of the table.
        folder: of the pictures that the units stored; a method without them is left out. The figures go beside it.
    """
    pictures: dict[str, dict[str, Pictures]] = {}
    for line in lines:
        found = load_pictures(folder, line.entry.units[0].key)
        if found is not None:
            pictures.setdefault(line.entry.setting, {})[line.entry.method] = found
    for setting, by_method in pictures.items():
        stem = "_".join(setting.replace(",", " ").split())
        for name, png in _sheets(by_method).items():
            write_atomically(Path(folder).parent / f"{stem}_{name}.png", png)


def _sheets(pictures: dict[str, Pictures]) -> dict[str, bytes]:
    """The figures of one setting as PNG, by name."""
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
    first = next(iter(pictures.values()))
    ranks = [round(rank * (len(first.psnr) - 1)) for rank in _SHOWN_RANKS]
    shown = np.argsort(-first.psnr, kind="stable")[sorted(set(ranks))]
    rows = [first.truth, *(found.images for found in pictures.values())]
    names = ["truth", *(f"{method}, mean {found.psnr.mean():.1f} dB" for method, found in pictures.items())]
    return contact_sheet(np.stack([row[shown] for row in rows]) / 255, names=names, columns=len(shown), scale=3)
