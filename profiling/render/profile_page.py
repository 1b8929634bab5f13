"""What a recording says, as a page: the verdict first, then one function per section. Pure.

Two recordings beside each other and a line profile are pages of the same parts.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from feedline.profiling.explain.difference import Versus
from feedline.profiling.explain.hot_lines import LineProfile
from feedline.profiling.explain.measure.main_thread import parts_of
from feedline.profiling.explain.measure.situation import DATA_BOUND
from feedline.profiling.explain.measure.workers import Workers
from feedline.profiling.explain.predict import NOTABLE, Prediction
from feedline.profiling.explain.verdict import Diagnosis
from feedline.profiling.record import units
from feedline.profiling.record.recording import Gpu, Leg, LegName, Line
from feedline.profiling.render.report_time import resources, timeline
from feedline.profiling.render.sections import (
    Bar,
    Bars,
    Facts,
    Listing,
    Page,
    Points,
    Prose,
    Reasons,
    Section,
    Stack,
    Stacks,
    Table,
    Tone,
    Verdict,
    section,
)

LEG_NAMES: dict[LegName, str] = {
    "normal": "as it is", "cached": "cached batches", "crowded": "cached", "kept": "cached, memory kept",
    "laid_out": "cached, as from feedline",
    "loader_only": "the loader alone", "cold": "cold page cache",
}  # fmt: skip
GPU_SHARES = {
    "sm_active": "SM active", "sm_occupancy": "SM occupancy", "tensor_active": "tensor active",
    "dram_active": "DRAM active", "utilization": "utilisation (a kernel ran)",
}  # fmt: skip
"""Fields of `Gpu` between 0 and 1, and what they are called."""
OF_LOOP = "share of the loop's time"
SHARES_NOTE = "data: blocked on the next batch; trainer: the main thread's own Python."
MOST_REMEDIES = 12
MOST_TRANSFORMS = 10
MOST_WORKERS = 16


def report(diagnosis: Diagnosis) -> Page:
    recording = diagnosis.recording
    argv = recording.script.argv or ["recording"]
    started = recording.started.replace("T", " ").removesuffix("+00:00")
    return Page(
        title=argv[0].rsplit("/", 1)[-1],
        verdict=verdict(diagnosis),
        sections=sections(diagnosis),
        kicker="feedline profile",
        command=shlex.join(argv),
        subtitle=f"{started} UTC, {units.seconds(recording.seconds)} observed",
        footer=f"feedline {recording.feedline} · this page is one file and fetches nothing",
    )


def verdict(diagnosis: Diagnosis) -> Verdict:
    measured, ceiling = diagnosis.measured, diagnosis.measured.rates.ceiling
    now, over_epochs, figures = measured.now, measured.over_epochs, list[tuple[str, str]]()
    if now is not None and over_epochs is not None:
        whole = over_epochs.value
        free = units.rate(ceiling.value) if ceiling else "not measured (run with --legs)"
        figures = [
            ("now", f"{units.rate(now.value)} ({units.spread(now.low, now.high)})"),
            *([("over whole epochs", units.rate(whole))] if whole < 0.97 * now.value else []),
            ("ceiling, data for free", free),
            ("waiting for data", units.percent(measured.trainer.wait_fraction)),
            ("cost of profiling", units.percent(diagnosis.recording.overhead.fraction)),
        ]
    tone: Tone = "main" if diagnosis.bound is None else "good" if diagnosis.bound == "compute" else "bad"
    return Verdict(words=diagnosis.headline, evidence=diagnosis.evidence, figures=figures, tone=tone)


def sections(diagnosis: Diagnosis) -> list[Section | None]:
    """Everything below the verdict, for pages that put a recording among other things."""
    recording = diagnosis.recording
    return [
        _remedies(diagnosis),
        _in_vain(diagnosis.predictions),
        _where_time_goes(diagnosis),
        timeline(recording),
        resources(recording),
        _gpus(recording.gpus, recording.gpu_note),
        _legs(recording.legs),
        _listing(diagnosis.lines, {}),
        _about(diagnosis),
        section("Notes", Points(diagnosis.notes)) if diagnosis.notes else None,
    ]


def _remedies(diagnosis: Diagnosis) -> Section | None:
    rate, ceiling = diagnosis.measured.over_epochs, diagnosis.ceiling_samples_per_s
    if not diagnosis.predictions or rate is None:
        return None
    helpful: list[Bar] = []
    for p in [prediction for prediction in diagnosis.predictions if prediction.helps][:MOST_REMEDIES]:
        epochs = p.break_even_epochs
        paid = f"; paid back after {units.number(epochs, 2)} epochs" if epochs is not None else ""
        words = f"{units.times(p.gain)}: {p.why}. Cost: {p.cost}{paid}."
        helpful.append(Bar(label=p.remedy, value=p.samples_per_s, low=p.low, high=p.high, note=words))
    if not helpful:
        nothing = Prose("Nothing that can be predicted would make this run notably faster.")
        return section("What would help", nothing)
    now = Bar(label="as it is now", value=rate.value, low=rate.low, high=rate.high, tone="muted")
    reference = ("ceiling", ceiling) if ceiling else None
    chart = Bars(rows=[*helpful, now], title="Predicted throughput", reference=reference, value_name="predicted")
    lede = (
        "Predicted from this run, ranked; whiskers are the error bar. Check one by applying it and profiling again."
    )
    return section("What would help", chart, lede=lede)


def _in_vain(predictions: Iterable[Prediction]) -> Section | None:
    """What was considered, those with the same reason together."""
    by_reason: dict[str, list[str]] = {}
    for prediction in (prediction for prediction in predictions if not prediction.helps):
        gain, why = units.times(prediction.gain), prediction.why
        if not prediction.vain and prediction.gain > 1 + NOTABLE:
            why = f"{gain}, which this run is too short or too uneven to tell from none: {why}"
        elif not prediction.vain:
            why = f"little or no gain ({gain}): {why}"
        by_reason.setdefault(why, []).append(prediction.remedy)
    reasons = [("; ".join(names), why) for why, names in by_reason.items()]
    return section("What would not", Reasons(reasons)) if reasons else None


def _where_time_goes(diagnosis: Diagnosis) -> Section | None:
    recording, workers = diagnosis.recording, diagnosis.measured.workers
    if diagnosis.measured.rates.now is not None:
        loop = Stacks(total=_shares("the training loop", diagnosis), title="The step", unit=OF_LOOP, note=SHARES_NOTE)
        lede = "Each row is somebody's whole time."
        return section("Where the time goes", loop, _stages(workers), _transforms(workers), lede=lede)
    # Where no loader was seen, what is known of the loop all the same.
    parts = sorted(parts_of(recording).items(), key=lambda item: -item[1])
    if not parts or not recording.optimizer_steps:
        return None
    rows = [Bar(label=name, value=100 * share) for name, share in parts]
    title = f"The main thread, {units.count(recording.optimizer_steps, 'optimiser step')}"
    chart = Bars(rows=rows, title=title, unit="%", value_name="share")
    return section("Where the time goes", chart, lede="The batches come from no loader that can be watched.")


def _shares(label: str, diagnosis: Diagnosis) -> Stack:
    return Stack(label=label, parts=vars(diagnosis.measured.trainer.shares), note=units.rate(diagnosis.samples_per_s))


def _stages(workers: Workers) -> Stacks | None:
    if not workers.stages:
        return None
    rows: list[Stack] = []
    for worker, stages in workers.each:
        if not worker.in_trainer:
            rank = f"rank {worker.rank}, " if worker.rank else ""
            label = f"{rank}worker {worker.worker}" + (", killed" if worker.ended == "killed" else "")
            rows.append(Stack(label=label, parts=stages, note=f"{worker.samples:,} samples"))
    shown = rows[:MOST_WORKERS] if len(rows) > 1 else []
    more = f"{len(rows) - MOST_WORKERS} more workers are in the record." if len(rows) > MOST_WORKERS else ""
    who, title = ("all workers", "The workers") if workers.count else ("in the trainer itself", "Preparing batches")
    total = Stack(label=who, parts=workers.stages)
    return Stacks(total=total, rows=shown, title=title, unit="share of their time", note=more)


def _transforms(workers: Workers) -> Bars | None:
    seconds = workers.transforms
    if len(seconds) < 2 or not workers.samples:
        return None
    ranked = sorted(seconds, key=lambda name: -seconds[name])[:MOST_TRANSFORMS]
    rows = [Bar(label=name, value=1e3 * seconds[name] / workers.samples) for name in ranked]
    return Bars(rows=rows, title="By transform", unit="ms per sample", value_name="time")


def _legs(measured: Sequence[Leg]) -> Section | None:
    rows: list[Bar] = []
    for leg in measured:
        rates, label = sorted(leg.samples_per_s) or [None], LEG_NAMES[leg.name]
        if leg.num_workers is not None:
            busy = f"{leg.num_workers} busy beside"
            label += f", {busy if leg.name == 'crowded' else units.count(leg.num_workers, 'worker')}"
        rows.append(Bar(label=label, value=rates[len(rates) // 2], low=rates[0], high=rates[-1], note=leg.note))
    lede = "The same script with one thing taken away, in short windows that take turns."
    chart = Bars(rows=rows, title="Legs: median and range of the windows")
    return section("The proof", chart, lede=lede) if rows else None


def _gpus(gpus: Sequence[Gpu], note: str) -> Section | None:
    lede = (
        "Means over the training steps. Utilisation only says that some kernel ran: one busy thread gives 100 %. "
        "SM active is the share of time the multiprocessors had work."
    )
    tables: list[Table] = []
    for gpu in gpus:
        memory = units.part_of(gpu.memory_used_bytes, gpu.memory_total_bytes)
        rows = [[what, units.percent(getattr(gpu, name)), _source(gpu, name)] for name, what in GPU_SHARES.items()]
        rows.append(["memory", memory, _source(gpu, "memory_used_bytes")])
        rows.append(["power", units.rate(gpu.power_w, "W"), _source(gpu, "power_w")])
        if gpu.throttle_reasons:
            rows.append(["throttled by", ", ".join(gpu.throttle_reasons), gpu.source])
        caption = f"{gpu.name or ''} {gpu.uuid}".strip()
        tables.append(Table(headers=["", "mean", "source"], rows=rows, numeric=[1], caption=caption))
    words = Prose(f"{note[0].upper()}{note[1:]}.") if note else None
    return section("GPU", *tables, words, lede=lede if gpus else "")


def _source(gpu: Gpu, field: str) -> str:
    if getattr(gpu, field) is None:
        return gpu.unavailable.get(field, "not available")
    return gpu.sources.get(field) or gpu.source


def _listing(lines: Sequence[Line], hints: Mapping[tuple[str, int], str]) -> Section | None:
    lede = "Timed by line_profiler; shares are of the function."
    return section("Line by line", Listing(lines=lines, hints=hints), lede=lede) if lines else None


def _about(diagnosis: Diagnosis) -> Section | None:
    recording = diagnosis.recording
    loader, host = recording.train_loader, host_facts(recording.host)
    facts = {
        "device": recording.compute.device,
        "trained parameters": units.number(recording.compute.parameters),
        "steps measured": f"{diagnosis.measured.trainer.steps:,}",
        "warm-up left out": f"{recording.warm_up.steps} steps: {recording.warm_up.rule}",
        **host,
        "python": recording.script.python or host["python"],
    }
    if loader is not None:
        facts["loader"] = f"{loader.kind}, num_workers={loader.num_workers}, batch_size={loader.batch_size}"
    return section("About this recording", Facts(facts))


def host_facts(host: Mapping[str, Any]) -> dict[str, str]:
    """Of a record's `host`."""
    versions = ", ".join(f"{name} {number}" for name, number in (host.get("versions") or {}).items())
    return {
        "processor": str(host.get("cpu", units.UNKNOWN)),
        "usable cores": str(host.get("affinity", units.UNKNOWN)),
        "memory": units.size(host.get("memory_bytes")),
        "GPUs": ", ".join(map(str, host.get("gpus") or [])) or "none",
        "system": str(host.get("system", units.UNKNOWN)),
        "python": str(host.get("python", units.UNKNOWN)),
        **({"versions": versions} if versions else {}),
    }


# --- several recordings, and a line profile -----------------------------------------------------------


def comparison(recordings: Sequence[tuple[str, Diagnosis]], versus: Sequence[Versus]) -> Page:
    """Two or more: the statement first, then rates and shares side by side."""
    rows: list[Bar] = []
    for name, diagnosis in recordings:
        rate = diagnosis.measured.now
        low, high = (rate.low, rate.high) if rate else (None, None)
        rows.append(Bar(label=name, value=diagnosis.samples_per_s, low=low, high=high, note=diagnosis.headline))
    first, changes = versus[0], [change for compared in versus for change in compared.changes]
    tone: Tone = "main" if first.ratio is None or (first.low or 0) <= 1 <= (first.high or 0) else "good"
    if first.high is not None and first.high < 1:
        tone = "bad"
    stacks = [_shares(name, diagnosis) for name, diagnosis in recordings]
    shares = Stacks(rows=stacks, title="The step", unit=OF_LOOP, note=SHARES_NOTE)
    return Page(
        title=" and ".join(name for name, _ in recordings),
        verdict=Verdict(words=first.statement, evidence=[compared.statement for compared in versus[1:]], tone=tone),
        sections=[
            section("Rates", Bars(rows=rows, title="Measured throughput"), Points(changes) if changes else None),
            section("Where the time goes", shares),
        ],
        kicker="feedline report",
    )


def lprof_report(path: str, profile: LineProfile) -> Page:
    """A line profile: what its loop says, then every function."""
    loop, tries = profile.loader, None
    words = "The profile holds no lines: was any function marked with @profile?"
    if profile.lines:
        words = "No line of this profile looks like a loop over a loader: mark the training function with @profile."
    verdict = Verdict(words=words)
    if loop is not None:
        line, tries = loop.line, section("What to try", Points(loop.tries))
        figures = [
            ("the loop's line", f"{line.line}"), ("share of its function", units.percent(line.fraction)),
            ("batches", f"{loop.batches:,}"), ("waiting per batch", units.seconds(line.seconds / loop.batches)),
        ]  # fmt: skip
        evidence = [f"{line.file}:{line.line}: {line.source.strip()}", loop.why]
        tone: Tone = "bad" if line.fraction >= DATA_BOUND else "good"
        verdict = Verdict(words=loop.headline, evidence=evidence, figures=figures, tone=tone)
    lines = _listing(profile.lines, profile.hints)
    return Page(title=path, verdict=verdict, sections=[tries, lines], kicker="feedline report")
