"""`feedline inspect OUT`: what is inside a prepared dataset."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feedline.cli.common import HtmlFile, Record, show
from feedline.cli.options import command

if TYPE_CHECKING:
    from feedline.profiling.render.sections import Page, Section

CLASSES_SHOWN = 20
BLOCKS = " ▁▂▃▄▅▆▇█"


@command
def inspect(
    out: Annotated[Path, typer.Argument(help="A prepared dataset, or one split of it.")],
    record: Record,
    html: HtmlFile = None,
    samples: Annotated[int, typer.Option(help="Samples on the page.", min=1, max=2000)] = 48,
    seed: Annotated[int, typer.Option(help="Which samples.", min=0)] = 0,
) -> None:
    """Show classes and histograms of sizes and bytes; on the page also samples.

    Example: feedline inspect OUT --html sheet.html
    """
    from feedline.preprocess.inspect import inspect as look
    from feedline.preprocess.inspect import thumbnails

    splits = look(out)
    show(page(str(out), splits, thumbnails(out, samples, seed) if html else []), html)
    record.write({"splits": splits})


def page(title: str, splits: Mapping[str, Mapping[str, Any]], shown: Sequence[tuple[str, str, bytes]]) -> "Page":
    from feedline.profiling.render.sections import Page, Pictures, section

    return Page(
        title=title,
        sections=[
            *(about(name, split) for name, split in splits.items()),
            section(f"{len(shown)} samples, drawn at random", Pictures(shown) if shown else None),
        ],
        kicker="feedline inspect",
    )


def about(name: str, split: Mapping[str, Any]) -> "Section | None":
    from feedline.profiling.render.sections import Facts, Table, section

    classes, mean = split["classes"], split["bytes"] / max(split["samples"], 1)
    counts = [entry["samples"] for entry in classes]
    facts = {
        "samples": f"{split['samples']:,} in {split['shards']} shards, {mean:,.0f} bytes each",
        "settings": ", ".join(f"{key} {value}" for key, value in split["settings"].items()),
        "plan": f"{split['plan_hash'][:16]}, seed {split['seed']}",
        **{what: bars(split[key]) for what, key in
           (("width", "width_px"), ("height", "height_px"), ("bytes", "sample_bytes"))},
    }  # fmt: skip
    more = f", the first {CLASSES_SHOWN} (all of them with --json)" if len(classes) > CLASSES_SHOWN else ""
    table = Table(
        headers=("label", "class", "samples"),
        rows=[(row["label"], row["name"], f"{row['samples']:,}") for row in classes[:CLASSES_SHOWN]],
        numeric=(0, 2),
        caption=f"{len(counts):,} classes of {min(counts, default=0):,} to {max(counts, default=0):,} samples{more}",
    )
    return section(name, Facts(facts), table)


def bars(values: Mapping[str, Any]) -> str:
    """A histogram in a line of text."""
    if not values["counts"]:
        return "no sample"
    top = max(values["counts"])
    blocks = "".join(BLOCKS[-(-count * (len(BLOCKS) - 1) // top)] for count in values["counts"])
    return f"{blocks} {values['min']:,} to {values['max']:,}, median {values['median']:,.0f}"
