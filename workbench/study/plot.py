"""A table as a picture: measured means with their standard errors, crosses where the paper is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from workbench.study.present import Line, Results

__all__ = ["draw"]

_PANELS = {
    "images": (("recovered", "recovered (%)"), ("psnr", "PSNR (dB)")),
    "labels": (("errors", "wrong labels"),),
    "seconds": (("seconds", "seconds per client"),),
}


def draw(results: Results) -> Figure:
    """One panel for each measure; settings side by side, methods by colour."""
    panels = [*_PANELS[results.plan.measure]]
    lines = [line for line in results.lines if line.entry.method != "accuracy"]
    trained = [line for line in results.lines if line.entry.method == "accuracy"]
    if trained:
        panels.append(("accuracy", "accuracy (%)"))
    settings = list(dict.fromkeys(line.entry.setting for line in results.lines))
    figure = Figure(
        figsize=(max(6.0, 2.2 + 1.15 * len(settings)), 3.0 * len(panels) + 0.9), layout="constrained", dpi=130
    )
    FigureCanvasAgg(figure)
    for axes, (measure, label) in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True):
        _panel(axes, trained if measure == "accuracy" else lines, settings, measure)
        axes.set_ylabel(label)
        if measure == "seconds":
            axes.set_yscale("log")
        elif measure != "psnr":
            axes.set_ylim(0, max(axes.get_ylim()[1], 1))
    methods = list(dict.fromkeys(line.entry.method for line in lines))
    handles: list[Artist] = [Patch(color=f"C{number}", label=method) for number, method in enumerate(methods)]
    handles += [
        Line2D([], [], marker=marker, color="0.3", linestyle="none", label=label)
        for marker, label in (("o", "measured"), ("x", "paper"))
        if marker == "o" or any(line.entry.published for line in results.lines)
    ]
    figure.suptitle(results.plan.title, fontsize="medium")
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
    space = 0.8 / max(1, len(methods))
    for line in lines:
        number = methods.index(line.entry.method)
        at = settings.index(line.entry.setting) + (number - (len(methods) - 1) / 2) * space
        style: dict[str, Any] = {"color": f"C{number}", "linestyle": "none"}
        estimate = line.estimate(measure)
        if estimate is not None:
            axes.errorbar(at, estimate.mean, estimate.error, marker="o", markersize=5, capsize=3, **style)
        if measure in line.entry.published:
            axes.plot(at, line.entry.published[measure], marker="x", markersize=6, **style)
    axes.set_xticks(range(len(settings)), settings, rotation=20 if max(map(len, settings)) > 9 else 0)
    axes.set_xlim(-0.6, len(settings) - 0.4)
    axes.grid(axis="y", linewidth=0.4, alpha=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
