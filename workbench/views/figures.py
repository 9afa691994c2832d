"""Curves, bars and matrices as matplotlib figures, and the light and dark colours of everything that is drawn.

They use `Figure` and never `pyplot`, whose global state is not thread-safe.
"""

import io
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from workbench.attack.spectrum import Spectrum
from workbench.config import label_of
from workbench.errors import ConfigError, DataError, check_choice
from workbench.metrics import label_errors
from workbench.session.history import SessionHistory
from workbench.views.looks import looks_of

__all__ = [
    "THEMES",
    "Theme",
    "averaging_figure",
    "bars_figure",
    "figure_png",
    "label_figure",
    "lines_figure",
    "loss_figure",
    "matching_figure",
    "span_figure",
    "theme_named",
]

_STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))


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


def figure_png(figure: Figure, dpi: float = 144) -> bytes:
    """A figure as PNG bytes."""
    buffer = io.BytesIO()
    figure.set_dpi(dpi)
    # `savefig` would draw everything twice.
    FigureCanvasAgg(figure).print_png(buffer)  # type: ignore[no-untyped-call]
    return buffer.getvalue()


def loss_figure(history: SessionHistory, *, warm_start_steps: int = 0, theme: str = "light") -> Figure:
    """The loss and its terms over the steps, with the steering events.

    Args:
        history: of a session.
        warm_start_steps: the length of the warm start, which is marked.
        theme: ``light`` or ``dark``.
    """
    colours, figure, axes = _themed_axes(theme, (7.5, 3.6), "Loss before every step", "step", "loss (logarithmic)")
    if not len(history.loss):
        axes.text(0.5, 0.5, "no steps yet", ha="center", va="center", transform=axes.transAxes, color=colours.ink)
        axes.set(xticks=[], yticks=[])
        return figure
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    few = len(history.loss) < 10
    curves = {"loss": history.loss, **history.terms}
    # Styles are assigned before empty terms are skipped, so a term has the same colour in every figure.
    looks = zip(curves.items(), itertools.cycle(colours.lines), itertools.cycle(_STYLES), strict=False)
    for (name, values), colour, style in looks:
        if not (values > 0).any():
            continue
        # A disabled term is 0, which a logarithmic axis cannot show.
        shown = np.where(values > 0, values, np.nan)
        width = 2.2 if name == "loss" else 1.4
        axes.plot(
            shown, label=label_of(name), color=colour, linestyle=style, linewidth=width, marker="o" if few else None
        )
    axes.set_xlim(0, max(1, len(history.loss) - 1))
    if warm_start_steps > 0:
        axes.axvspan(0, warm_start_steps, color=colours.faint, alpha=0.25, linewidth=0)
        corner = {"xy": (0, 1), "xycoords": "axes fraction", "xytext": (4, -4), "textcoords": "offset points"}
        axes.annotate("warm start", **corner, va="top", color=colours.ink, fontsize=8)
    _mark_steering(axes, history, colours)
    return _with_legend(figure, axes, colours, len(curves))


def _mark_steering(axes: Axes, history: SessionHistory, colours: Theme) -> None:
    changes = {
        step: ", ".join(f"{label_of(event.name)} = {event.value:g}" for event in events)
        for step, events in itertools.groupby(history.steering, lambda event: event.step)
    }
    for step, text in changes.items():
        axes.axvline(step, color=colours.accent, linewidth=1)
        # A slider causes many changes, whose texts would overlap.
        if len(changes) <= 8:
            axes.annotate(
                text,
                (step, 0.02),
                xycoords=("data", "axes fraction"),
                xytext=(3, 0),
                textcoords="offset points",
                rotation=90,
                fontsize=8,
                color=colours.ink,
            )


def label_figure(
    estimates: Mapping[str, ArrayLike],
    true_counts: ArrayLike | None = None,
    class_names: Sequence[str] | None = None,
    *,
    theme: str = "light",
) -> Figure:
    """Label counts as bars, one plot for each estimate, for the classes with a nonzero true or estimated count.

    Args:
        estimates: method to [K] counts.
        true_counts: [K], as wider bars in the background; None if not known.
        class_names: K names; None numbers the classes.
        theme: ``light`` or ``dark``.
    """
    if not estimates:
        raise ConfigError("estimates is empty; give at least one method's counts.")
    counts = {name: np.asarray(values) for name, values in estimates.items()}
    true = None if true_counts is None else np.asarray(true_counts)
    everything = np.stack([*counts.values(), *([] if true is None else [true])])
    present: list[int] = np.flatnonzero((everything > 0).any(0)).tolist()
    texts = [str(index) if class_names is None else _short(class_names[index]) for index in present]
    longest = max(map(len, texts), default=1)
    # Long names are written upwards, below the axis.
    height = 0.9 + 1.25 * len(counts) + (0.08 * longest if longest > 2 else 0)
    # At most as wide as a page; with more classes, names get smaller.
    size = (min(9.5, max(6.0, 1.2 + 0.24 * len(present))), height)
    colours, figure, *plots = _themed_axes(theme, size, "", "class", "images", rows=len(counts))
    x = np.arange(len(present))
    looks = looks_of(counts, colours.lines)
    for axes, (name, values) in zip(plots, counts.items(), strict=True):
        title = name
        if true is not None:
            axes.bar(x, true[present], width=0.8, color=colours.faint, label="true")
            title += f": {label_errors(true, values):g} of {true.sum()} labels wrong"
        axes.set_title(title, fontsize=9, loc="left", color=colours.ink)
        axes.bar(x, values[present], width=0.35, color=looks[name].colour, label="estimated")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
        axes.set_xlim(-0.7, len(present) - 0.3)
    size_of_text = min(10, 450 / max(1, len(texts)))
    plots[-1].set_xticks(x, texts, rotation=90 if longest > 2 else 0, fontsize=size_of_text, parse_math=False)

    if true is not None:
        figure.legend(
            *plots[0].get_legend_handles_labels(),
            loc="outside upper left",
            fontsize=8,
            ncols=2,
            frameon=False,
            labelcolor=colours.ink,
        )
    return figure


def _short(name: str) -> str:
    return name if len(name) <= 20 else f"{name[:19]}…"


def matching_figure(similarity: ArrayLike, assignment: ArrayLike, *, epoch: int = 2, theme: str = "light") -> Figure:
    """The similarity of two epochs' reconstructions, with the assignment marked.

    Args:
        similarity: [N, N] PSNR in dB; rows are images of epoch 1.
        assignment: [N] the column assigned to each row.
        epoch: the number of the epoch in the columns.
        theme: ``light`` or ``dark``.
    """
    matrix, chosen = np.asarray(similarity), np.asarray(assignment)
    if matrix.ndim != 2 or chosen.shape != matrix.shape[:1]:
        raise DataError(f"similarity has shape {matrix.shape} and assignment {chosen.shape}; expected [N, N] and [N].")
    title = f"Images of epoch {epoch} matched to images of epoch 1"
    colours, figure, axes = _themed_axes(theme, (5.2, 4.4), title, f"image of epoch {epoch}", "image of epoch 1")
    # Images are counted from 1, and every cell is centred on its number.
    end = len(matrix) + 0.5
    shown = axes.imshow(matrix, cmap="cividis", extent=(0.5, end, end, 0.5))
    size = max(2.0, 120 / len(matrix))
    axes.plot(
        chosen + 1,
        np.arange(1, len(chosen) + 1),
        "o",
        fillstyle="none",
        markersize=size,
        color="#ffffff",
        linestyle="none",
    )
    axes.grid(visible=False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    bar = figure.colorbar(shown, ax=axes, label="PSNR (dB)")
    bar.ax.yaxis.label.set_color(colours.ink)
    bar.ax.tick_params(colors=colours.ink)
    return figure


def span_figure(
    spectrum: Spectrum,
    residuals: ArrayLike | None = None,
    recovered: ArrayLike | None = None,
    history: Mapping[int, ArrayLike] | None = None,
    *,
    step: int = 0,
    theme: str = "light",
) -> Figure:
    """The singular values of an update, the span residual of every image, and the residuals over the steps.

    Args:
        spectrum: of the update.
        residuals: [N] of the images; None leaves them out.
        recovered: [N] which images are recovered; None if not known.
        history: step to [N] residuals; without at least two steps there is no curve.
        step: the one that ``residuals`` are of, which is marked in the curve.
        theme: ``light`` or ``dark``.
    """
    colours, moments = theme_named(theme), history or {}
    layout = "v" if residuals is None else "vr" if len(moments) < 2 else "vr\nss"
    figure = Figure(figsize=(7.5, 3.3 * len(layout.split())), layout="constrained", facecolor=colours.paper)
    plots = figure.subplot_mosaic(layout)
    _draw_values(plots["v"], colours, spectrum)
    if residuals is not None:
        _draw_residuals(plots["r"], colours, np.asarray(residuals), recovered)
    if "s" in plots:
        _draw_history(plots["s"], colours, moments)
        plots["s"].axvline(step, color=colours.lines[2], linewidth=1, linestyle=":", label=f"step {step}, shown above")
    for axes in plots.values():
        # Below the plot, where it hides nothing.
        axes.legend(
            loc="upper left", bbox_to_anchor=(0, -0.2), ncols=4, fontsize=8, frameon=False, labelcolor=colours.ink
        )
    return figure


def _draw_values(axes: Axes, colours: Theme, spectrum: Spectrum) -> None:
    _style(axes, colours, "Singular values of the update", "number, the largest first", "size (logarithmic)")
    # Smaller ones are zeros after rounding, and would squeeze the others together.
    values = spectrum.singular_values[spectrum.singular_values > 1e-8 * spectrum.singular_values[0]]
    axes.set_yscale("log")
    axes.plot(np.arange(1, len(values) + 1), values, "o", markersize=3, color=colours.ink, zorder=3)
    axes.axvline(spectrum.num_images, color=colours.lines[2], linewidth=2.5, label=f"{spectrum.num_images} images")
    axes.axvline(spectrum.rank, color=colours.accent, linewidth=1.5, linestyle="--", label=f"rank {spectrum.rank}")


def _draw_residuals(axes: Axes, colours: Theme, residuals: Any, recovered: ArrayLike | None) -> None:
    _style(axes, colours, "Span residual of every image", "image, the smallest residual first", "span residual")
    order, places = residuals.argsort(), np.arange(1, len(residuals) + 1)
    groups = {"images": (np.ones(len(residuals), bool), "o", colours.accent)}
    if recovered is not None:
        is_recovered = np.asarray(recovered)[order]
        groups = {
            "recovered": (is_recovered, "o", colours.accent),
            "not recovered": (~is_recovered, "x", colours.lines[2]),
        }
    for name, (shown, mark, colour) in groups.items():
        label = f"{shown.sum()} {name}"
        axes.plot(places[shown], residuals[order][shown], mark, markersize=4, color=colour, label=label)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _draw_history(axes: Axes, colours: Theme, history: Mapping[int, ArrayLike]) -> None:
    _style(axes, colours, "Span residuals over the steps", "step", "span residual")
    steps, values = list(history), np.stack([np.asarray(residuals) for residuals in history.values()])
    for low, high, alpha, name in ((0, 100, 0.25, "all images"), (25, 75, 0.45, "half of the images")):
        bounds = np.percentile(values, [low, high], axis=1)
        axes.fill_between(steps, *bounds, color=colours.accent, alpha=alpha, linewidth=0, label=name)
    axes.plot(steps, np.median(values, axis=1), color=colours.ink, label="median")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def averaging_figure(
    curves: Mapping[str, ArrayLike], levels: Mapping[str, float] | None = None, *, theme: str = "light"
) -> Figure:
    """Quality against the number of epochs combined.

    Args:
        curves: method of combination (``mean``, ``median``) to [E] mean PSNR in dB, for 1 to E epochs.
        levels: names and heights of reference lines: the threshold, and what images that show nothing reach.
        theme: ``light`` or ``dark``.
    """
    return lines_figure(
        {name: (np.arange(1, len(np.asarray(values)) + 1), values) for name, values in curves.items()},
        title="Quality by the number of epochs combined",
        x="epochs combined",
        y="mean PSNR (dB)",
        level=levels,
        theme=theme,
    )


def lines_figure(
    curves: Mapping[str, ArrayLike | tuple[ArrayLike, ArrayLike]],
    *,
    title: str,
    x: str,
    y: str,
    is_log: bool = False,
    is_map: bool = False,
    is_scatter: bool = False,
    y_range: tuple[float, float] | None = None,
    level: tuple[str, float] | Mapping[str, float] | None = None,
    theme: str = "light",
) -> Figure:
    """Curves as lines with a marker at every point.

    Args:
        curves: name to values, or to positions and values.
        title: of the chart.
        x: label with unit.
        y: label with unit.
        is_log: whether the y axis is logarithmic.
        is_map: whether both axes have the same scale, for paths in a plane.
        is_scatter: whether the points stay unconnected.
        y_range: that the y axis shows; None fits it to the values.
        level: the name and height of a horizontal reference line, or those of several.
        theme: ``light`` or ``dark``.
    """
    if not curves:
        raise ConfigError("curves is empty; give at least one.")
    colours, figure, axes = _themed_axes(theme, (6.4, 5.0) if is_map else (6.8, 3.5), title, x, y, grid="both")
    # Seven colours and five markers: 35 curves look different from each other.
    looks = looks_of(curves, colours.lines)
    points = {name: _points(name, values) for name, values in curves.items()}
    for name, (at, heights) in points.items():
        colour, mark, style = looks[name]
        line = "none" if is_scatter or len(at) == 1 else style
        size = 5 if is_scatter or len(at) <= 40 else 0
        axes.plot(at, heights, linestyle=line, marker=mark, markersize=size, color=colour, label=name)
    if is_log:
        axes.set_yscale("log")
    if y_range is not None:
        axes.set_ylim(*y_range)
    if is_map:
        axes.set_aspect("equal", adjustable="datalim")
    elif all((at == np.round(at)).all() for at, _ in points.values()):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return _with_legend(figure, axes, colours, len(curves), level)


def bars_figure(
    series: Mapping[str, ArrayLike],
    names: Sequence[str],
    *,
    title: str,
    x: str,
    y: str,
    level: tuple[str, float] | Mapping[str, float] | None = None,
    theme: str = "light",
) -> Figure:
    """Grouped bars, labelled with their heights.

    Args:
        series: name to one height for each group.
        names: of the groups.
        title: of the chart.
        x: label.
        y: label with unit.
        level: the name and height of a horizontal reference line, or those of several.
        theme: ``light`` or ``dark``.
    """
    if not series:
        raise ConfigError("series is empty; give at least one.")
    text = max((len(line) for name in names for line in name.split("\n")), default=1)
    width = 1.6 + len(names) * max(0.55 * len(series), 0.3 + 0.085 * text)
    colours, figure, axes = _themed_axes(theme, (min(9.0, max(6.0, width)), 3.4), title, x, y, grid="both")
    places, width = np.arange(len(names)), 0.8 / len(series)
    looks = looks_of(series, colours.lines)
    for index, (name, heights) in enumerate(series.items()):
        values = np.asarray(heights, np.float64)
        if values.shape != (len(names),):
            raise DataError(f"series {name!r} has shape {values.shape}; expected ({len(names)},), one for each group.")
        at = places + (index - (len(series) - 1) / 2) * width
        drawn = axes.bar(at, values, 0.92 * width, color=looks[name].colour, label=name)
        axes.bar_label(drawn, fmt="%.3g", fontsize=8, padding=2, color=colours.ink)
    axes.set_xticks(places, names)
    axes.margins(y=0.12)
    return _with_legend(figure, axes, colours, len(series), level)


def _points(name: str, values: Any) -> tuple[Any, Any]:
    at, heights = values if isinstance(values, tuple) else (np.arange(len(values)), values)
    if np.ndim(heights) != 1 or np.shape(at) != np.shape(heights):
        raise DataError(f"curve {name!r} has the shapes {np.shape(at)} and {np.shape(heights)}; expected [n] and [n].")
    return np.asarray(at), np.asarray(heights)


def _with_legend(
    figure: Figure,
    axes: Axes,
    colours: Theme,
    num_series: int,
    level: tuple[str, float] | Mapping[str, float] | None = None,
) -> Figure:
    """The figure with its reference lines, and with a legend if there is more than one thing to name."""
    levels = dict([level] if isinstance(level, tuple) else level or {})
    for (name, height), style in zip(levels.items(), itertools.cycle((":", "--", "-.", (0, (1, 4)))), strict=False):
        axes.axhline(height, color=colours.ink, linewidth=1, linestyle=style, label=name)
    if num_series > 1 or levels:
        figure.legend(loc="outside right upper", frameon=False, labelcolor=colours.ink)
    return figure


def _themed_axes(
    theme: str,
    size: tuple[float, float],
    title: str,
    x: str,
    y: str,
    *,
    rows: int = 1,
    grid: Literal["both", "x", "y"] = "y",
) -> tuple[Any, ...]:
    """A theme's colours, and in them a figure and its plots in one column with shared axes, titles and labels."""
    colours = theme_named(theme)
    figure = Figure(figsize=size, layout="constrained", facecolor=colours.paper)
    plots = figure.subplots(rows, 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for index, axes in enumerate(plots):
        _style(axes, colours, "" if index else title, x if index == rows - 1 else "", y, grid)
    return colours, figure, *plots


def _style(axes: Axes, colours: Theme, title: str, x: str, y: str, grid: Literal["both", "x", "y"] = "y") -> None:
    axes.set(facecolor=colours.paper, axisbelow=True)
    axes.grid(visible=True, axis=grid, color=colours.faint, linewidth=0.5, alpha=0.5)
    axes.tick_params(which="both", colors=colours.ink)
    axes.spines[:].set_color(colours.faint)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, color=colours.ink, loc="left", fontsize=11)
    axes.set_xlabel(x, color=colours.ink)
    axes.set_ylabel(y, color=colours.ink)
