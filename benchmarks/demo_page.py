"""The demo's report: one self-contained page. Pure.

Verdict, ladder and training; where the workers' time went; resources over time; the training function line by line;
what each step cost.
"""

from collections.abc import Sequence
from typing import Any

from feedline.benchmarks.demo import IMAGE_PX, SHARDS_PX, Story
from feedline.benchmarks.ladder_page import ladder_section
from feedline.profiling.explain.verdict import Diagnosis, diagnose
from feedline.profiling.record import units
from feedline.profiling.record.recording import Recording
from feedline.profiling.render import plots
from feedline.profiling.render.charts import Bar, Stack, bars, stacked
from feedline.profiling.render.markup import Markup, join, tag
from feedline.profiling.render.page import code, facts, page, section, table, verdict

LOOP_HUES = {"waiting for data": "c4", "copies": "c2", "own Python": "c3", "model": "c1"}
WORKER_STAGES = ("read", "decode", "transform", "collate", "send", "idle", "other")


def story_page(story: Story) -> Markup:
    recording = Recording.from_dict(story.record("profile")["recording"])
    diagnosis = diagnose(recording)
    ladder, train = story.record("ladder"), story.record("train")
    return page(
        "From waiting to training",
        opening(diagnosis, ladder),
        ladder_section(ladder),
        attribution_section(diagnosis),
        remedies_section(diagnosis),
        resources_section(recording),
        prepared_section(story),
        training_section(train),
        lines_section(story.done["kernprof"].text),
        steps_section(story),
        host_section(story.record("ladder").get("host") or recording.host),
        kicker="feedline demo",
        subtitle="A synthetic ImageNet, the training script everybody writes first, and what it takes to feed it.",
    )


def opening(diagnosis: Diagnosis, ladder: dict[str, Any]) -> Markup:
    rungs, ceiling = ladder["rungs"], ladder["ceiling_samples_per_s"]
    figures = [
        ("as it is", units.rate(rungs[0]["samples_per_s"])),
        ("top of the ladder", units.rate(rungs[-1]["samples_per_s"])),
        ("gain", units.times(ladder["gain"])),
        ("if data were free", units.rate(ceiling)),
    ]
    return verdict(diagnosis.headline, evidence=" ".join(diagnosis.evidence), tone="bad", figures=figures)


def attribution_section(diagnosis: Diagnosis) -> Markup:
    shares, stages = diagnosis.measured.trainer.shares, diagnosis.measured.workers.stages
    loop = Stack(
        label="the training loop",
        parts={
            "waiting for data": shares.data,
            "copies": shares.copy,
            "own Python": shares.trainer,
            "model": shares.compute,
        },
    )
    rows = [Stack(label="where a sample's preparation goes", parts=busy(stages))] if stages else []
    return section(
        "Where the time goes",
        stacked([loop], title="The training loop's time", hues=LOOP_HUES),
        stacked(rows, title="Preparing the samples") if rows else None,
        lede="The script as it is: what its loop waits for, and what the waiting is made of.",
    )


def busy(stages: dict[str, float]) -> dict[str, float]:
    return {name: stages.get(name, 0.0) for name in WORKER_STAGES if stages.get(name, 0.0) > 0.001}


def remedies_section(diagnosis: Diagnosis) -> Markup:
    rows = [
        Bar(label=one.remedy, value=one.samples_per_s, low=one.low, high=one.high, note=one.why,
            tone="main" if one.helps else "muted")
        for one in diagnosis.predictions[:8]
    ]  # fmt: skip
    ceiling = diagnosis.ceiling_samples_per_s
    return section(
        "What each remedy would give",
        bars(rows, title="Predicted from the profile alone", value_name="predicted",
             reference=("data is free", ceiling) if ceiling else None),
        lede="Said by the profiler before anything was changed; the ladder above shows what came true.",
    )  # fmt: skip


def resources_section(recording: Recording) -> Markup:
    """CPU, memory, disk and GPU of the profiled script over time."""
    drawn = [plot for name, title, scale, unit in SERIES if (plot := over_time(recording, name, title, scale, unit))]
    note = recording.gpu_note or "no GPU was seen"
    return section("Resources over time", *drawn, tag("p", f"GPU: {note}", class_="note"),
                   lede="The profiled script and its workers, as sampled while it ran.")  # fmt: skip


SERIES = (
    ("cpu_cores", "CPU", 1.0, "cores"),
    ("rss_bytes", "Memory", 1e-6, "MB"),
    ("disk_read_bytes_per_s", "Read from disk", 1e-6, "MB/s"),
    ("sm_active", "GPU: SMs active", 100.0, "%"),
)


def over_time(recording: Recording, name: str, title: str, scale: float, unit: str) -> Markup | None:
    curves = [
        plots.Series(
            name=one.scope,
            points=[(t, v * scale) for t, v in zip(one.t_s, one.values, strict=False) if v is not None],
        )
        for one in recording.series
        if one.name == name
    ]
    curves = [curve for curve in curves if curve.points]
    return plots.lines(curves, title=title, y_unit=unit) if curves else None


def prepared_section(story: Story) -> Markup:
    said, checked = story.record("prepare"), story.record("verify")
    reasons = ", ".join(f"{count} {reason}" for reason, count in (said.get("reasons") or {}).items()) or "none"
    return section(
        "The prepared shards",
        facts(
            {
                "samples": f"{units.number(said.get('output_samples'))} of {units.number(said.get('input_samples'))}",
                "in quarantine": f"{said.get('quarantined', 0)} ({reasons})",
                "shards": said.get("shards", units.UNKNOWN),
                "bytes": f"{units.size(said.get('bytes_in'))} → {units.size(said.get('bytes_out'))}",
                "speed": f"{units.rate(said.get('samples_per_s'))}, "
                f"{units.number(said.get('samples_per_s_per_core'))} per core",
                "verified": f"{units.number(checked.get('checked_samples'))} samples, "
                + ("every promise holds" if checked.get("ok") else "problems found"),
            }
        ),
        stage_chart(said.get("stage_s") or {}),
        lede=f"One Spark pass over the archives, in place: {SHARDS_PX} px JPEG and {IMAGE_PX} px raw.",
    )


def stage_chart(stage_s: dict[str, float]) -> Markup | None:
    parts = {name: seconds for name, seconds in stage_s.items() if seconds}
    return stacked([Stack(label="all tasks", parts=parts)], title="Where preparing spent its time") if parts else None


def training_section(train: dict[str, Any]) -> Markup:
    epochs = train.get("epochs") or []
    top1 = [(e["epoch"], 100 * e["top1"]) for e in epochs if e.get("top1") is not None]
    top5 = [(e["epoch"], 100 * e["top5"]) for e in epochs if e.get("top5") is not None]
    curves = [plots.Series(name="top-1", points=top1), plots.Series(name="top-5", points=top5)]
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
    return section(
        "Training on the shards",
        plots.lines(curves, title="Accuracy on the validation split", y_unit="%", x_unit="epoch") if top1 else None,
        table(("epoch", "loss", "top-1", "top-5", "samples/s", "waiting for data"), rows, numeric=range(6)),
        lede=f"The small CNN on {IMAGE_PX} px raw shards; every validation sample exactly once.",
    )


def lines_section(text: str) -> Markup | None:
    """kernprof's own table of the training function."""
    shown = training_function(text)
    if not shown:
        return None
    return section("The training function, line by line", code(shown), lede="As kernprof prints it.")


def training_function(text: str) -> str:
    """Of the functions that kernprof shows, the training loop's."""
    blocks = text.split("Total time:")[1:]
    chosen = next((block for block in blocks if "Function: fit " in block), None)
    return f"Total time:{chosen}".rstrip() if chosen else ""


def steps_section(story: Story) -> Markup:
    rows: list[Sequence[object]] = [
        (name, units.seconds(done.seconds), "kept from an earlier run" if done.reused else "")
        for name, done in story.done.items()
    ]
    return section("What it took", table(("step", "time", ""), rows, numeric=(1,)))


def host_section(host: dict[str, Any]) -> Markup:
    versions = host.get("versions") or {}
    return section(
        "The machine",
        facts(
            {
                "processor": host.get("cpu", units.UNKNOWN),
                "cores usable": host.get("affinity", units.UNKNOWN),
                "memory": units.size(host.get("memory_bytes")),
                "GPUs": ", ".join(host.get("gpus") or []) or "none",
                "Python": host.get("python", units.UNKNOWN),
                "versions": join(", ".join(f"{name} {version}" for name, version in versions.items())),
            }
        ),
    )
