"""The figures of `loading` and `footprint`, from their result files: nothing is measured here.

python -m feedline.benchmarks.peers.loading_figures          writes results/loading-*.png
"""

import json
from pathlib import Path
from typing import Any

from feedline.benchmarks.figures import draw_bars, new_figure, save

RESULTS = Path(__file__).parents[1] / "results"
TITLES = {
    "jpeg": "256 px JPEG shards, two cores",
    "planes": "256 px planes, two cores",
    "keep": "unprepared 500×375 JPEG, two cores",
    "raw": "raw 64 px",
}


def main() -> None:
    record = json.loads((RESULTS / "loading.json").read_text())
    for name, title in TITLES.items():
        if rows := [row for row in record["tables"].get(name, []) if row["samples_per_s"] is not None]:
            bars(sorted(rows, key=lambda row: -row["samples_per_s"]), title, RESULTS / f"loading-{name}.png")
    if rows := record["tables"].get("scaling"):
        scaling(rows, RESULTS / "loading-scaling.png")
    if (footprint := RESULTS / "footprint.json").exists():
        sizes(json.loads(footprint.read_text())["sizes"], RESULTS / "loading-sizes.png")


def bars(rows: list[dict[str, Any]], title: str, path: Path) -> None:
    figure, plot = new_figure(height_in=1.2 + 0.32 * len(rows))
    draw_bars(plot, rows)
    plot.set_title(title)
    save(figure, path)


def scaling(rows: list[dict[str, Any]], path: Path) -> None:
    """Rows are named "feedline, N workers"."""
    figure, plot = new_figure()
    workers = [int(row["name"].split()[1]) for row in rows]
    values = [row["samples_per_s"] for row in rows]
    error = [
        [row["samples_per_s"] - row["low"] for row in rows],
        [row["high"] - row["samples_per_s"] for row in rows],
    ]
    plot.errorbar(workers, values, error, marker="o", capsize=3)
    plot.set_xticks(workers)
    plot.set_xlabel("workers (0: in the trainer), two cores")
    plot.set_ylabel("samples/s")
    plot.set_ylim(bottom=0)
    save(figure, path)


def sizes(rows: list[dict[str, Any]], path: Path) -> None:
    name = "cpu_us_per_sample"
    cells = [
        {"name": f"{row['samples']:,} samples", "samples_per_s": row[f"{name}_median"], "low": row[f"{name}_low"],
         "high": row[f"{name}_high"]}
        for row in rows
    ]  # fmt: skip
    figure, plot = new_figure(height_in=2.0)
    draw_bars(plot, cells, "workers' CPU µs per sample")
    save(figure, path)


if __name__ == "__main__":
    main()
