"""`feedline inspect OUT`: what is inside a prepared dataset."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feedline.cli.common import OUTPUT, HtmlFile, Record, say, show, write
from feedline.cli.options import command

if TYPE_CHECKING:
    from feedline.preprocess.inspect import Thumbnail
    from feedline.profiling.render.sections import Page, Section

CLASSES_SHOWN = 20
BLOCKS = " ▁▂▃▄▅▆▇█"


@command
def inspect(
    out: Annotated[Path, typer.Argument(help="A prepared dataset, or one split of it.")],
    record: Record,
    html: HtmlFile = None,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a contact sheet."), OUTPUT] = None,
    samples: Annotated[int, typer.Option(help="Samples on page and sheet.", min=1, max=2000)] = 48,
    seed: Annotated[int, typer.Option(help="Which samples.", min=0)] = 0,
) -> None:
    """Show classes, histograms of sizes and bytes, and a contact sheet of samples.

    Example: feedline inspect OUT --html sheet.html
    """
    from feedline.preprocess.inspect import contact_sheet, thumbnails
    from feedline.preprocess.inspect import inspect as look

    splits = look(out)
    shown = thumbnails(out, samples, seed) if html or png else []
    show(page(str(out), splits, shown), html)
    if png:
        write(png, contact_sheet(shown))
        say(f"wrote {png}")
    record.write({"splits": splits})


def page(title: str, splits: Mapping[str, Mapping[str, Any]], shown: "Sequence[Thumbnail]") -> "Page":
    from feedline.preprocess.inspect import saved
    from feedline.profiling.render.sections import Page, Pictures, section

    drawn = Pictures([(sample.key, sample.class_name, saved(sample.image, "JPEG")) for sample in shown])
    return Page(
        title=title,
        sections=[
            *(about(name, split) for name, split in splits.items()),
            section(f"{len(shown)} samples, drawn at random", drawn if shown else None),
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
