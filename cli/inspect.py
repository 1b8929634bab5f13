"""`feedline inspect`: what is inside a prepared dataset; what the weights of a run's checkpoints are like."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from feedline.cli.common import HtmlFile, Record, show
from feedline.cli.options import Settings, command, fields
from feedline.pipeline.base.process import signals_held
from feedline.pipeline.base.text import count_of
from feedline.profiling.record import units
from feedline.profiling.render.sections import Curve, Curves, Facts, Page, Pictures, Prose, Section, Table, section
from feedline.train.config import is_run

CLASSES_SHOWN = 20
LAYERS_DRAWN = 8
BLOCKS = " ▁▂▃▄▅▆▇█"


@command
def inspect(
    out: Annotated[
        Path, typer.Argument(help="A prepared dataset, or one split of it; a run, or one of its checkpoints.")
    ],
    weights: Annotated[Settings, fields("train.weights.WeightsConfig")],
    record: Record,
    html: HtmlFile = None,
    samples: Annotated[int, typer.Option(help="Samples on the page.", min=1, max=2000)] = 48,
    seed: Annotated[int, typer.Option(help="Which samples.", min=0)] = 0,
) -> None:
    """Show classes and histograms of sizes and bytes, on the page also samples; of a run's weights, their statistics.
    Ends with status 1 where a shard is not there or not whole; `verify` checks all else.

    Examples:

      feedline inspect OUT --html sheet.html

      feedline inspect RUN --quantiles 0.6,0.9,0.99     # of |w|, by layer and in all, of every kept epoch
    """
    if is_run(out):
        with signals_held():  # torch, while it is imported, takes a Ctrl-C for a module that is missing
            from feedline.train.checkpoint import by_name
            from feedline.train.weights import WeightsConfig, describe

        found = {name: describe(where, WeightsConfig(**weights)) for name, where in by_name(out).items()}
        show(weights_page(str(out), found), html)
        record.write({"checkpoints": found})
        return
    from feedline.preprocess.inspect import inspect as look
    from feedline.preprocess.inspect import thumbnails

    splits = look(out)
    show(page(str(out), splits, thumbnails(out, samples, seed) if html else []), html)
    record.write({"splits": splits})
    if any(split["problems"] for split in splits.values()):
        raise typer.Exit(1)


def page(title: str, splits: Mapping[str, Mapping[str, Any]], shown: Sequence[tuple[str, str, bytes]]) -> Page:
    return Page(
        title=title,
        sections=[
            *(about(name, split) for name, split in splits.items()),
            section(f"{count_of(len(shown), 'sample')}, drawn at random", Pictures(shown) if shown else None),
        ],
        kicker="feedline inspect",
    )


def about(name: str, split: Mapping[str, Any]) -> Section | None:
    classes, mean = split["classes"], split["bytes"] / max(split["samples"], 1)
    counts = [entry["samples"] for entry in classes]
    facts = {
        "samples": f"{split['samples']:,} in {count_of(split['shards'], 'shard')}, {mean:,.0f} bytes each",
        "settings": ", ".join(f"{key} {value}" for key, value in split["settings"].items()),
        "plan": f"{split['plan_hash'][:16]}, seed {split['seed']}",
        **({"not whole": "; ".join(split["problems"])} if split["problems"] else {}),
        **{what: bars(split[key]) for what, key in
           (("width", "width_px"), ("height", "height_px"), ("bytes", "sample_bytes"))},
    }  # fmt: skip
    more = f", the first {CLASSES_SHOWN} (all of them with --json)" if len(classes) > CLASSES_SHOWN else ""
    table = Table(
        headers=("label", "class", "samples"),
        rows=[(row["label"], row["name"], f"{row['samples']:,}") for row in classes[:CLASSES_SHOWN]],
        numeric=(0, 2),
        caption=f"{count_of(len(counts), 'class')} of {_from_to(counts)} samples{more}",
    )
    return section(name, Facts(facts), table)


def _from_to(counts: Sequence[int]) -> str:
    least, most = min(counts, default=0), max(counts, default=0)
    return f"{least:,}" + (f" to {most:,}" if most > least else "")


def bars(values: Mapping[str, Any]) -> str:
    """A histogram in a line of text."""
    if not values["counts"]:
        return "no sample"
    top = max(values["counts"])
    blocks = "".join(BLOCKS[-(-count * (len(BLOCKS) - 1) // top)] for count in values["counts"])
    return f"{blocks} {values['min']:,} to {values['max']:,}, median {values['median']:,.0f}"


# --- a run's weights ----------------------------------------------------------------------------------


def weights_page(title: str, checkpoints: Mapping[str, Mapping[str, Any]]) -> Page:
    """Of `train.weights.describe`'s words on each; the layers are the last one's."""
    name, last = list(checkpoints.items())[-1]
    whole = {name: {"epoch": one["epoch"], **one["all"]} for name, one in checkpoints.items()}
    largest = sorted(last["layers"], key=lambda layer: -last["layers"][layer]["count"])[:LAYERS_DRAWN]
    drawn = {layer: last["layers"][layer] for layer in last["layers"] if layer in largest}
    return Page(
        title=title,
        sections=[
            section("Weights", statistics_table("checkpoint", whole), magnitudes(whole, "All weights"),
                    lede="Of all parameters with more than one dimension: what is pruned."),
            section("Thresholds", Prose(f"Of {name}."), thresholds_table(last["thresholds"])),
            section("Layers", Prose(f"Of {name}."), magnitudes(drawn, "The largest layers"),
                    statistics_table("layer", last["layers"])),
        ],
        kicker="feedline inspect",
    )  # fmt: skip


def statistics_table(what: str, rows: Mapping[str, Mapping[str, Any]]) -> Table:
    quantiles = list(next(iter(rows.values()))["quantiles"])
    more = [key for key in ("epoch", "shape") if key in next(iter(rows.values()))]
    headers = (what, *more, "count", "zeros", "min", "max", "mean", *(f"|w| {float(q):.4g}" for q in quantiles))
    cells = [
        (
            name,
            *("×".join(map(str, row[key])) if key == "shape" else row[key] for key in more),
            f"{row['count']:,}",
            f"{row['zeros']:,}",
            *(units.number(row[key]) for key in ("min", "max", "mean")),
            *(units.number(row["quantiles"][q]) for q in quantiles),
        )
        for name, row in rows.items()
    ]
    return Table(headers=headers, rows=cells, numeric=range(1, len(headers)))


def thresholds_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    cells = [
        (units.percent(row["quantile"]), units.number(row["threshold"]), f"{row['below']:,}",
         ", ".join(row["empty_layers"]) or "–")
        for row in rows
    ]  # fmt: skip
    headers = ("quantile", "|w|", "weights below it", "layers without any other")
    return Table(headers=headers, rows=cells, numeric=(0, 1, 2))


def magnitudes(rows: Mapping[str, Mapping[str, Any]], title: str) -> Curves:
    curves = [
        Curve(name=name, points=sorted((100 * float(q), value) for q, value in row["quantiles"].items()))
        for name, row in rows.items()
    ]
    title = f"{title}: magnitude by quantile"
    return Curves(curves=curves, title=title, y_unit="|w|", x_unit="% of the weights below")
