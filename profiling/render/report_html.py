"""A recording and its diagnosis as one self-contained HTML page, verdict first. Pure: returns the document."""

import shlex
from collections.abc import Sequence

from feedline.profiling.explain.difference import Versus
from feedline.profiling.explain.measure.trainer import parts_of
from feedline.profiling.explain.predict import Prediction
from feedline.profiling.explain.verdict import Diagnosis
from feedline.profiling.record import units
from feedline.profiling.record.recording import Gpu, Recording, WorkerTime
from feedline.profiling.render import charts, page
from feedline.profiling.render.charts import Bar, Stack
from feedline.profiling.render.markup import Markup, join, tag
from feedline.profiling.render.reasons import in_vain
from feedline.profiling.render.report_lines import line_tables
from feedline.profiling.render.report_text import leg_name
from feedline.profiling.render.report_time import resources, timeline

STAGE_HUES = {
    "read": "c5", "decode": "c1", "transform": "c3", "collate": "c2", "send": "c4", "idle": "c8", "other": "c6",
}  # fmt: skip
SHARE_HUES = {"data": "c4", "copy": "c6", "trainer": "c2", "compute": "c3"}
MOST_REMEDIES = 12
MOST_WORKERS = 16


def report(recording: Recording, diagnosis: Diagnosis) -> Markup:
    """The whole page of one recording."""
    argv = recording.script.argv or ["recording"]
    command = tag("code", shlex.join(argv))
    started = recording.started.replace("T", " ").removesuffix("+00:00")
    return page.page(
        argv[0].rsplit("/", 1)[-1],
        verdict(diagnosis),
        *sections(recording, diagnosis),
        kicker="feedline profile",
        subtitle=join(command, f" · {started} UTC, {units.seconds(recording.seconds)} observed"),
        footer=f"feedline {recording.feedline} · this page is one file and fetches nothing",
    )


def sections(recording: Recording, diagnosis: Diagnosis) -> list[Markup]:
    """Everything below the verdict, for pages that put a recording among other things."""
    parts = [
        _remedies(diagnosis),
        _attribution(recording, diagnosis),
        timeline(recording),
        resources(recording),
        _gpus(recording.gpus, recording.gpu_note),
        _legs(recording),
        line_tables(diagnosis.lines),
        _about(recording, diagnosis),
    ]
    return [part for part in parts if part]


def verdict(diagnosis: Diagnosis) -> Markup:
    measured = diagnosis.measured
    ceiling = units.rate(diagnosis.ceiling_samples_per_s) if measured.rates.ceiling else "not measured"
    figures = [
        ("now", units.rate(diagnosis.samples_per_s)),
        ("ceiling, data for free", ceiling),
        ("waiting for data", units.percent(measured.trainer.wait_fraction)),
        ("cost of profiling", units.percent(diagnosis.overhead_fraction)),
    ]
    tone = {"data": "bad", "copy": "bad", "trainer": "bad", "compute": "good"}.get(diagnosis.bound or "", "main")
    return page.verdict(diagnosis.headline, evidence=" ".join(diagnosis.evidence), tone=tone, figures=figures)


def comparison(recordings: Sequence[tuple[str, Diagnosis]], versus: Sequence[Versus]) -> Markup:
    """The page of two or more recordings: the statement first, then rates and shares side by side."""
    rows = [
        Bar(label=name, value=one.samples_per_s, low=rate.low if rate else None,
            high=rate.high if rate else None, note=one.headline)
        for name, one in recordings
        for rate in [one.measured.rates.now]
    ]  # fmt: skip
    first, words = versus[0], [one.statement for one in versus]
    tone = "main" if first.ratio is None or (first.low or 0) <= 1 <= (first.high or 0) else "good"
    if first.high is not None and first.high < 1:
        tone = "bad"
    said = [tag("p", f"{', '.join(one.changes)}.".capitalize()) for one in versus if one.changes]
    return page.page(
        " and ".join(name for name, _ in recordings),
        page.verdict(words[0], evidence=join(*[tag("span", text, " ") for text in words[1:]]), tone=tone),
        page.section("Rates", charts.bars(rows, title="Measured throughput"), *said),
        page.section("The step", _share_chart([(name, one) for name, one in recordings])),
        kicker="feedline report",
    )


# --- remedies -----------------------------------------------------------------------------------------


def _remedies(diagnosis: Diagnosis) -> Markup | None:
    rate = diagnosis.measured.rates.over_epochs
    if not diagnosis.predictions or rate is None:
        return None
    helpful = [one for one in diagnosis.predictions if one.helps][:MOST_REMEDIES]
    now = Bar(label="as it is now", value=rate.value, low=rate.low, high=rate.high, tone="muted")
    ceiling = diagnosis.ceiling_samples_per_s
    chart = charts.bars(
        [*(_remedy_bar(one) for one in helpful), now],
        title="Predicted throughput",
        reference=("ceiling", ceiling) if ceiling else None,
        value_name="predicted",
    )
    lede = (
        "Predicted from this run, ranked; whiskers are the error bar. Check one by applying it and profiling again."
    )
    nothing = page.prose("Nothing that can be predicted would make this run notably faster.")
    return page.section("What would help", chart if helpful else nothing, _vain(diagnosis.predictions), lede=lede)


def _remedy_bar(one: Prediction) -> Bar:
    epochs = one.break_even_epochs
    paid = f" Paid back after {units.number(epochs, 2)} epochs." if epochs is not None else ""
    words = f"{units.times(one.gain)} — {one.why}. Cost: {one.cost}.{paid}"
    return Bar(label=one.remedy, value=one.samples_per_s, low=one.low, high=one.high, note=words)


def _vain(predictions: Sequence[Prediction]) -> Markup | None:
    """What was considered, by reason."""
    members = [
        tag("div", tag("dt", "; ".join(one.remedy for one in ones)), tag("dd", f"{why[:1].upper()}{why[1:]}."))
        for why, ones in in_vain(predictions).items()
    ]
    return join(tag("h3", "What would not"), tag("dl", *members, class_="vain")) if members else None


# --- attribution --------------------------------------------------------------------------------------


def _main_thread(recording: Recording) -> Markup | None:
    """Where no loader was seen, what is known of the loop all the same."""
    parts = dict(sorted(parts_of(recording).items(), key=lambda item: -item[1]))
    if not parts or not recording.optimizer_steps:
        return None
    seen = units.count(recording.optimizer_steps, "optimiser step")
    rows = [Bar(label=name, value=100 * share) for name, share in parts.items()]
    chart = charts.bars(rows, title="The main thread", unit="%", value_name="share")
    lede = f"{seen} seen; their batches come from no loader that can be watched."
    return page.section("Where the time goes", chart, lede=lede)


def _attribution(recording: Recording, diagnosis: Diagnosis) -> Markup | None:
    if diagnosis.measured.rates.now is None:
        return _main_thread(recording)
    loop = _share_chart([("the training loop", diagnosis)])
    stages = _stage_chart(diagnosis) if diagnosis.measured.workers.stages else None
    transforms = _transform_chart(diagnosis.measured.workers.each)
    return page.section("Where the time goes", loop, stages, transforms, lede="Each row is somebody's whole time.")


def _share_chart(rows: Sequence[tuple[str, Diagnosis]]) -> Markup:
    stacks: list[Stack] = []
    for name, one in rows:
        shares = one.measured.trainer.shares
        parts = {"data": shares.data, "copy": shares.copy, "trainer": shares.trainer, "compute": shares.compute}
        stacks.append(Stack(label=name, parts=parts, note=units.rate(one.samples_per_s)))
    return charts.stacked(stacks, title="The step", hues=SHARE_HUES, unit="share of the loop's time",
                          note="data: blocked on the next batch; trainer: the main thread's own Python.")  # fmt: skip


def _stage_chart(diagnosis: Diagnosis) -> Markup:
    measured = diagnosis.measured.workers
    everyone = "in the trainer itself" if measured.count == 0 else "all workers"
    stacks = [Stack(label=everyone, parts=measured.stages)]
    workers = [pair for pair in measured.each if not pair[0].in_trainer]
    if len(workers) > 1:
        stacks += [
            Stack(label=_worker_name(worker), parts=stages, note=f"{worker.samples:,} samples")
            for worker, stages in workers[:MOST_WORKERS]
        ]
    more = f"{len(workers) - MOST_WORKERS} more workers are in the record." if len(workers) > MOST_WORKERS else ""
    return charts.stacked(stacks, title="Preparing batches", hues=STAGE_HUES, unit="share of worker time", note=more)


def _worker_name(worker: WorkerTime) -> str:
    rank = f"rank {worker.rank}, " if worker.rank else ""
    killed = ", killed" if worker.ended == "killed" else ""
    return f"{rank}worker {worker.worker}{killed}"


def _transform_chart(per_worker: Sequence[tuple[WorkerTime, dict[str, float]]]) -> Markup | None:
    totals: dict[str, float] = {}
    samples = sum(worker.samples for worker, _ in per_worker)
    for worker, _ in per_worker:
        for name, seconds in worker.transforms.items():
            totals[name] = totals.get(name, 0.0) + seconds
    if len(totals) < 2 or not samples:
        return None
    ranked = sorted(totals, key=lambda name: -totals[name])[:10]
    rows = [Bar(label=name, value=1e3 * totals[name] / samples) for name in ranked]
    return charts.bars(rows, title="By transform", unit="ms per sample", value_name="time")


# --- legs, GPUs, lines, about -------------------------------------------------------------------------


def _legs(recording: Recording) -> Markup | None:
    if not recording.legs:
        return None
    rows: list[Bar] = []
    for leg in recording.legs:
        rates = sorted(leg.samples_per_s)
        middle = rates[len(rates) // 2] if rates else None
        rows.append(Bar(label=leg_name(leg), value=middle, low=rates[0] if rates else None,
                        high=rates[-1] if rates else None, note=leg.note))  # fmt: skip
    lede = "The same script run again with one thing taken away, in short windows that take turns."
    return page.section("The proof", charts.bars(rows, title="Legs: median and range of the windows"), lede=lede)


_GPU_FIELDS = (
    ("SM active", "sm_active"), ("SM occupancy", "sm_occupancy"), ("tensor active", "tensor_active"),
    ("DRAM active", "dram_active"), ("utilisation", "utilization"),
)  # fmt: skip


def _gpus(gpus: Sequence[Gpu], note: str) -> Markup | None:
    if not gpus:
        return page.section("GPU", page.prose(note)) if note else None
    lede = (
        "Means over the training steps. Utilisation only says that some kernel ran: one busy thread gives 100 %. "
        "SM active is the share of time the multiprocessors had work."
    )
    tables = [
        page.table(["", "", "source"], _gpu_rows(gpu), numeric=[1], caption=f"{gpu.name or ''} {gpu.uuid}".strip())
        for gpu in gpus
    ]
    return page.section("GPU", *tables, page.prose(note) if note else None, lede=lede)


def _gpu_rows(gpu: Gpu) -> list[list[str]]:
    rows = [[what, units.percent(getattr(gpu, field)), _source(gpu, field)] for what, field in _GPU_FIELDS]
    memory = units.part_of(gpu.memory_used_bytes, gpu.memory_total_bytes)
    rows.append(["memory", memory, _source(gpu, "memory_used_bytes")])
    rows.append(["power", units.rate(gpu.power_w, "W"), _source(gpu, "power_w")])
    if gpu.throttle_reasons:
        rows.append(["throttled by", ", ".join(gpu.throttle_reasons), gpu.source])
    return rows


def _source(gpu: Gpu, field: str) -> str:
    if getattr(gpu, field) is None:
        return gpu.unavailable.get(field, "not available")
    return gpu.sources.get(field) or gpu.source


def _about(recording: Recording, diagnosis: Diagnosis) -> Markup:
    host, loader = recording.host, recording.train_loader
    facts: dict[str, object] = {
        "processor": host.get("cpu", units.UNKNOWN),
        "usable cores": host.get("affinity", units.UNKNOWN),
        "memory": units.size(host.get("memory_bytes")),
        "device": recording.compute.device,
        "trained parameters": units.number(recording.compute.parameters),
        "steps measured": f"{diagnosis.measured.trainer.steps:,}",
        "warm-up left out": f"{recording.warm_up.steps} steps: {recording.warm_up.rule}",
        "python": recording.script.python or host.get("python", units.UNKNOWN),
    }
    if loader is not None:
        facts["loader"] = f"{loader.kind}, num_workers={loader.num_workers}, batch_size={loader.batch_size}"
    notes = tag("ul", *[tag("li", note) for note in diagnosis.notes], class_="notes") if diagnosis.notes else None
    versions = ", ".join(f"{name} {number}" for name, number in (host.get("versions") or {}).items())
    return page.section("About this recording", page.facts(facts), notes, page.prose(versions) if versions else None)
