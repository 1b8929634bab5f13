"""The demo's report: one self-contained page. Pure.

The profile's verdict, the ladder, what was prepared and trained, the training function line by line; then the
profile's own sections, and what each step cost.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from feedline.benchmarks.demo import IMAGE_PX, SHARDS_PX, Story
from feedline.benchmarks.ladder_page import ladder_section
from feedline.profiling.explain.verdict import diagnose
from feedline.profiling.record import units
from feedline.profiling.record.recording import Recording
from feedline.profiling.render import profile_page
from feedline.profiling.render.sections import (
    Code,
    Curve,
    Curves,
    Facts,
    Page,
    Section,
    Stack,
    Stacks,
    Table,
    section,
)


def story_page(story: Story) -> Page:
    recording = Recording.from_dict(story.record("profile")["recording"])
    diagnosis, ladder = diagnose(recording), story.record("ladder")
    return Page(
        title="From waiting to training",
        verdict=replace(profile_page.verdict(diagnosis), figures=figures(ladder)),
        sections=[
            ladder_section(ladder),
            prepared_section(story),
            training_section(story.record("train")),
            lines_section(story.done["kernprof"].text),
            *profile_page.sections(recording, diagnosis),
            steps_section(story),
        ],
        kicker="feedline demo",
        subtitle="A synthetic ImageNet, the training script everybody writes first, and what it takes to feed it.",
    )


def figures(ladder: Mapping[str, Any]) -> list[tuple[str, str]]:
    rungs = ladder["rungs"]
    return [
        ("as it is", units.rate(rungs[0]["samples_per_s"])),
        ("top of the ladder", units.rate(rungs[-1]["samples_per_s"])),
        ("gain", units.times(ladder["gain"])),
        ("if data were free", units.rate(ladder["ceiling_samples_per_s"])),
    ]


def prepared_section(story: Story) -> Section | None:
    prepared, checked = story.record("prepare"), story.record("verify")
    reasons = ", ".join(f"{count} {reason}" for reason, count in (prepared.get("reasons") or {}).items()) or "none"
    facts = {
        "samples": f"{units.number(prepared.get('output_samples'))} of {units.number(prepared.get('input_samples'))}",
        "in quarantine": f"{prepared.get('quarantined', 0)} ({reasons})",
        "shards": prepared.get("shards", units.UNKNOWN),
        "bytes": f"{units.size(prepared.get('bytes_in'))} → {units.size(prepared.get('bytes_out'))}",
        "speed": f"{units.rate(prepared.get('samples_per_s'))}, "
        f"{units.number(prepared.get('samples_per_s_per_core'))} per core",
        "verified": f"{units.number(checked.get('checked_samples'))} samples, "
        + ("every promise holds" if checked.get("ok") else "problems found"),
    }
    stages = {name: seconds for name, seconds in (prepared.get("stage_s") or {}).items() if seconds}
    total = Stack(label="all tasks", parts=stages)
    chart = Stacks(total=total, title="Where preparing spent its time") if stages else None
    lede = f"One Spark pass over the archives, in place: {SHARDS_PX} px JPEG and {IMAGE_PX} px raw."
    return section("The prepared shards", Facts(facts), chart, lede=lede)


def training_section(train: Mapping[str, Any]) -> Section | None:
    epochs = train.get("epochs") or []
    curves = [
        Curve(name=name, points=[(e["epoch"], 100 * e[key]) for e in epochs if e.get(key) is not None])
        for name, key in (("top-1", "top1"), ("top-5", "top5"))
    ]
    rows = [
        (
            str(e["epoch"]),
            units.number(e.get("train_loss")),
            units.percent(e.get("top1")),
            units.percent(e.get("top5")),
            units.number(e.get("samples_per_s")),
            units.percent(e.get("wait_fraction")),
        )
        for e in epochs
    ]
    accuracy = Curves(curves=curves, title="Accuracy on the validation split", y_unit="%", x_unit="epoch")
    headers = ("epoch", "loss", "top-1", "top-5", "samples/s", "waiting for data")
    return section(
        "Training on the shards",
        accuracy if curves[0].points else None,
        Table(headers=headers, rows=rows, numeric=range(6)),
        lede=f"The small CNN on {IMAGE_PX} px raw shards; every validation sample exactly once.",
    )


def lines_section(text: str) -> Section | None:
    """kernprof's own table of the training function."""
    shown = training_function(text)
    code = Code(shown) if shown else None
    return section("The training function, line by line", code, lede="As kernprof prints it.")


def training_function(text: str) -> str:
    """Of the functions that kernprof shows, the training loop's."""
    blocks = text.split("Total time:")[1:]
    chosen = next((block for block in blocks if "Function: fit " in block), None)
    return f"Total time:{chosen}".rstrip() if chosen else ""


def steps_section(story: Story) -> Section | None:
    rows = [
        (name, units.seconds(done.seconds), "kept from an earlier run" if done.reused else "")
        for name, done in story.done.items()
    ]
    return section("What it took", Table(headers=("step", "time", ""), rows=rows, numeric=(1,)))
