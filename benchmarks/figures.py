"""PNG figures for papers and slides, from the same records as the pages. The only file that imports matplotlib."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from feedline.benchmarks.compare_page import heat_values, is_number
from feedline.benchmarks.grid import WORDS, phrase
from feedline.pipeline.base.errors import UsageError

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"
MARKERS = "osD^vPX*"
LINES = ("-", "--", ":", "-.")
AXIS_NAMES = {"num_workers": "worker processes", "image_size": "image side, px", "size": "side in the shards, px",
              "batch_size": "batch size, samples", "prefetch_factor": "prefetched batches per worker",
              "quality": "JPEG quality", "shards": "shards per split"}  # fmt: skip
"""What an axis counts, where its short name does not say it."""


def new_figure(width_in: float = 7.0, height_in: float = 4.2) -> tuple[Any, Any]:
    """(figure, axes) in one plain style that survives greyscale print."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("PNG figures need matplotlib: pip install matplotlib, or leave out --png") from error
    figure = Figure(figsize=(width_in, height_in), dpi=160, layout="constrained")
    axes: Any = figure.subplots()
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save(figure: Any, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Software": "feedline"})
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def compare_png(record: Mapping[str, Any], path: Path) -> None:
    """Curves over the first numeric axis, else bars; with a heat map beside them where two axes vary."""
    axes, cells = record["axes"], record["cells"]
    varied = [name for name, values in axes.items() if len(values) > 1]
    numeric = next((a for a in varied if all(map(is_number, axes[a])) and len(set(axes[a])) > 1), None)
    if numeric is None:
        figure, plot = new_figure(height_in=1.2 + 0.45 * len(cells))
        draw_bars(plot, cells)
    else:
        figure, plot = new_figure()
        draw_curves(plot, numeric, varied, cells)
    save(figure, path)
    if len(varied) > 1:
        heat_png(axes, varied, cells, path.with_name(f"{path.stem}-heat{path.suffix}"))


def draw_curves(plot: Any, axis: str, varied: Sequence[str], cells: Sequence[Mapping[str, Any]]) -> None:
    others = [name for name in varied if name != axis]
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for cell in cells:
        groups.setdefault(", ".join(phrase(other, cell[other]) for other in others), []).append(cell)
    for number, (name, members) in enumerate(groups.items()):
        members.sort(key=lambda cell: cell[axis])
        y = [cell["samples_per_s"] for cell in members]
        error = [[r - (c["low"] or r) for r, c in zip(y, members, strict=True)],
                 [(c["high"] or r) - r for r, c in zip(y, members, strict=True)]]  # fmt: skip
        x = [cell[axis] for cell in members]
        style = {"marker": MARKERS[number % len(MARKERS)], "linestyle": LINES[number % len(LINES)], "capsize": 3}
        plot.errorbar(x, y, error, label=name or None, **style)
    plot.set_xlabel(AXIS_NAMES.get(axis, WORDS[axis]))
    plot.set_ylabel("samples/s")
    plot.set_ylim(bottom=0)
    plot.set_xticks(sorted({cell[axis] for cell in cells}))
    if len(groups) > 1:
        plot.legend(frameon=False)


def draw_bars(plot: Any, cells: Sequence[Mapping[str, Any]], unit: str = "samples/s") -> None:
    """Horizontal, the first on top, with intervals."""
    values = [cell["samples_per_s"] for cell in cells]
    error = [[v - (c["low"] or v) for v, c in zip(values, cells, strict=True)],
             [(c["high"] or v) - v for v, c in zip(values, cells, strict=True)]]  # fmt: skip
    plot.barh(range(len(cells)), values, xerr=error, color=BLUE, ecolor=GREY, capsize=3)
    plot.set_yticks(range(len(cells)), [cell["name"] for cell in cells])
    plot.invert_yaxis()
    plot.set_xlabel(unit)
    plot.set_xlim(left=0)
    plot.grid(axis="x", color="#dddddd", linewidth=0.8)


def heat_png(
    axes: Mapping[str, Sequence[Any]], varied: Sequence[str], cells: Sequence[Mapping[str, Any]], path: Path
) -> None:
    rows, columns = axes[varied[0]], axes[varied[1]]
    values = heat_values(varied[0], varied[1], rows, columns, cells)
    figure, plot = new_figure(1.8 + 1.1 * len(columns), 1.4 + 0.55 * len(rows))
    known = [[float("nan") if value is None else value for value in row] for row in values]
    image = plot.imshow(known, cmap="Blues", aspect="auto", vmin=0)
    plot.grid(visible=False)
    middle = max(value for row in known for value in row if value == value) / 2
    for y, row in enumerate(known):
        for x, value in enumerate(row):
            if value == value:
                plot.text(
                    x, y, f"{value:,.0f}", ha="center", va="center", color="white" if value > middle else "black"
                )
    plot.set_xticks(range(len(columns)), [str(value) for value in columns])
    plot.set_yticks(range(len(rows)), [str(value) for value in rows])
    plot.set_xlabel(AXIS_NAMES.get(varied[1], WORDS[varied[1]]))
    plot.set_ylabel(AXIS_NAMES.get(varied[0], WORDS[varied[0]]))
    figure.colorbar(image, ax=plot, label="samples/s")
    save(figure, path)
