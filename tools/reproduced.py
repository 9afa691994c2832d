"""Draw two figures from the rows of assets/results.

    python tools/reproduced.py

`recovered.png` has the images recovered in the paper's settings, in the paper and here; a line that was measured on
fewer clients than LEAST is left out. `quality_over_time.png` has the quality of Table 11's attacks against their time.
"""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

import workbench as wb
from workbench.files.writing import write_atomically
from workbench.study.plan.paper import published
from workbench.study.plan.plan import Line
from workbench.views.figures import THEMES, figure_png
from workbench.views.looks import looks_of

RESULTS = Path(__file__).parents[1] / "assets" / "results"
TABLES = (
    (1, "femnist", "known label counts", ("table1_femnist", "table1_span_femnist")),
    (3, "femnist", "label counts recovered too", ("table3_femnist", "table3_span_femnist")),
    (6, "femnist", "defences (10x5x50)", ("table6_femnist", "table6_span_femnist")),
    (7, "femnist", "trained networks (10x5x50)", ("table7_femnist", "table7_span_femnist")),
    (10, "femnist", "aggregates (10x5x50)", ("table10_femnist",)),
    (1, "cifar100", "known label counts", ("table1_cifar100", "table1_span_cifar100")),
)
METHODS = {"ours_prior": "published recipe, here", "best": "best, here"}
LEAST = 3
THEME = THEMES["light"]
LOOKS = looks_of(METHODS, THEME.lines)


def main() -> None:
    groups = []
    for number, dataset, subject, names in TABLES:
        files = [file for file in (RESULTS / f"{name}.jsonl" for name in names) if file.exists()]
        settings: dict[str, dict[str, Line]] = {}
        for line in wb.study.results(number, *files).lines:
            if line.entry.method in METHODS and num_clients(line) >= LEAST:
                settings.setdefault(line.entry.setting, {})[line.entry.method] = line
        if settings:
            reported = {name: published(number, dataset, name, "ours_prior").get("recovered") for name in settings}
            groups.append((f"Table {number}: {dataset.upper()}, {subject}", settings, reported))
    over_time = wb.study.results(11, RESULTS / "table11_femnist.jsonl").figure_over_time()
    for name, figure in {"recovered.png": draw(groups), "quality_over_time.png": over_time}.items():
        write_atomically(RESULTS / name, figure_png(figure))
        print(f"Wrote {RESULTS / name}.")


def num_clients(line: Line) -> int:
    return len({tuple(place[:-1]) for place in line.values("recovered")})


def draw(groups: list[tuple[str, dict[str, dict[str, Line]], dict[str, float | None]]]) -> Figure:
    """One row for each setting, from top to bottom, below the name of its table."""
    height = sum(1 + len(settings) for _, settings, _ in groups)
    figure = Figure(figsize=(7.5, 0.27 * height + 1.1), layout="constrained")
    axes = figure.subplots()
    ticks, row = {}, 0
    for title, settings, reported in groups:
        axes.text(0, row, title, ha="left", va="center", fontsize="small", fontweight="bold", color=THEME.ink)
        for setting, lines in settings.items():
            row += 1
            ticks[row] = setting
            draw_row(axes, row, lines, reported[setting])
        row += 1
    axes.set(xlim=(-1, 112), ylim=(row - 0.3, -0.7), xlabel="images recovered (%)", xticks=range(0, 101, 20))
    axes.set_yticks(list(ticks), list(ticks.values()), fontsize="small")
    axes.text(112, -0.6, "clients", ha="right", va="bottom", fontsize="x-small", color=THEME.ink)
    axes.grid(axis="x", linewidth=0.4, alpha=0.6)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.plot([], [], "x", color=THEME.ink, label="the paper (100 clients)")
    for method, name in METHODS.items():
        axes.plot([], [], LOOKS[method].mark, color=LOOKS[method].colour, label=f"{name}, with standard error")
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    return figure


def draw_row(axes: Axes, row: int, lines: dict[str, Line], reported: float | None) -> None:
    """One setting: what the paper reports of its own method, and what each method has here."""
    if reported is not None:
        axes.plot(reported, row, "x", color=THEME.ink)
    for method, line in lines.items():
        look, found = LOOKS[method], line.estimate("recovered")
        if found is not None:
            axes.errorbar(found.mean, row, xerr=found.error, fmt=look.mark, color=look.colour, markersize=5, capsize=2)
    counts = " / ".join(str(num_clients(lines[method])) for method in METHODS if method in lines)
    axes.text(112, row, counts, ha="right", va="center", fontsize="x-small", color=THEME.ink)


if __name__ == "__main__":
    main()
