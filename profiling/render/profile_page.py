"""What a recording says, as a page: the verdict first, then one function per section. Pure.

Two recordings beside each other and a line profile are pages of the same parts.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from feedline.pipeline.base.text import count_of
from feedline.profiling.explain.difference import Versus, rates_of
from feedline.profiling.explain.hot_lines import LineProfile
from feedline.profiling.explain.measure.main_thread import parts_of
from feedline.profiling.explain.measure.rates import ERRORS_95, Rate, median_rate
from feedline.profiling.explain.measure.situation import DATA_BOUND, Measured
from feedline.profiling.explain.measure.workers import Workers, looked_error
from feedline.profiling.explain.verdict import Diagnosis, known_shares
from feedline.profiling.record import units
from feedline.profiling.record.journal import SWITCH_INTERVAL_S, LegName
from feedline.profiling.record.recording import Gpu, Leg, Line
from feedline.profiling.record.uncertainty import look_error
from feedline.profiling.render import report_time
from feedline.profiling.render.charts import OF_STEP
from feedline.profiling.render.report_remedies import first_to_do, in_vain, what_helps, what_may_help
from feedline.profiling.render.sections import (
    CEILING,
    Bar,
    Bars,
    Facts,
    Listing,
    Page,
    Points,
    Prose,
    Section,
    Stack,
    Stacks,
    Table,
    Tone,
    Verdict,
    section,
)

LEG_NAMES: dict[LegName, str] = {
    "normal": "as it is", "cached": "cached batches", "kept": "cached, memory kept",
    "laid_out": "cached, as from feedline", "loader_only": "the loader alone", "cold": "cold page cache",
}  # fmt: skip
OF_LOOP = "share of the loop's time"
MOST_TRANSFORMS = 10
MOST_ROWS = 16


def report(diagnosis: Diagnosis) -> Page:
    recording, script = diagnosis.recording, diagnosis.recording.script
    argv = script.argv or [script.name or "recording"]
    started = recording.started.replace("T", " ").removesuffix("+00:00")
    # Behind a launcher (torchrun, accelerate) comes what it launches.
    name = next((word for word in argv if word.endswith(".py")), argv[0])
    return Page(
        title=script.name or name.rsplit("/", 1)[-1],
        verdict=verdict(diagnosis),
        sections=sections(diagnosis),
        kicker="feedline profile",
        command=shlex.join(["-m", *argv] if script.module else argv),
        subtitle=f"{started} UTC, {units.seconds(recording.seconds)} observed",
        footer=f"feedline {recording.feedline} · this page is one file and fetches nothing",
    )


def verdict(diagnosis: Diagnosis) -> Verdict:
    measured, figures = diagnosis.measured, list[tuple[str, str]]()
    now, over_epochs, unit = measured.now, measured.over_epochs, measured.unit
    if now is not None and over_epochs is not None:
        whole = over_epochs.value
        figures = [
            ("now", _rate(now, unit)),
            *([("over whole epochs", units.rate(whole, unit))] if whole < 0.97 * now.value else []),
            (CEILING, _ceiling(measured)),
            ("cost of profiling", units.percent(diagnosis.recording.overhead.fraction)),
        ]
    step = _step("", diagnosis)
    proof = Stacks(total=step, title="The step", unit=OF_LOOP) if now and any(step.parts.values()) else None
    tone: Tone = "open" if diagnosis.bound is None else "good" if diagnosis.bound == "compute" else "bad"
    return Verdict(
        words=diagnosis.headline, proof=proof, evidence=diagnosis.evidence, figures=figures,
        first=first_to_do(diagnosis), tone=tone,
    )  # fmt: skip


def _ceiling(measured: Measured) -> str:
    """Where there is none, why; and what would measure it only where nobody has tried."""
    rates, recording = measured.rates, measured.recording
    if rates.ceiling:
        return _rate(rates.ceiling, measured.unit)
    if rates.doubt:
        return "not claimed (see the notes)"
    if recording.legs or any(note.startswith("no legs") for note in recording.notes):
        return "not measured (see the notes)"
    unwatched = measured.loader is not None and measured.loader.unwatched
    return units.UNKNOWN if unwatched else "not measured (legs measure it)"


def _rate(rate: Rate, unit: str) -> str:
    return f"{units.rate(rate.value, unit)} ({units.spread(rate.low, rate.high)})"


def sections(diagnosis: Diagnosis) -> list[Section | None]:
    """Everything below the verdict, for pages that put a recording among other things."""
    recording, unit, workers = diagnosis.recording, diagnosis.measured.unit, diagnosis.measured.workers
    return [
        what_helps(diagnosis),
        what_may_help(diagnosis),
        in_vain(diagnosis.predictions),
        # the step itself stands beside the verdict
        section("Where the time goes", _main_thread(diagnosis), _stages(workers), _transforms(workers)),
        _storage(diagnosis),
        report_time.timeline(recording),
        report_time.gpus(recording),
        report_time.resources(recording),
        _gpus(recording.gpus, recording.gpu_note),
        _legs(recording.legs, unit),
        _listing(diagnosis.lines, {}),
        _about(diagnosis),
        section("Notes", Points(diagnosis.notes)) if diagnosis.notes else None,
    ]


def _main_thread(diagnosis: Diagnosis) -> Stacks | None:
    """Where no loader was watched by the clock, it is all that is known of where data comes in."""
    recording, measured = diagnosis.recording, diagnosis.measured
    by_clock = measured.loader and measured.rates.now and not measured.trainer.sampled
    parts = parts_of(recording)
    if not parts or not recording.optimizer_steps or by_clock:
        return None
    whole_s = sum(trainer.seconds for trainer in recording.trainers)
    # A part's error adds up over ranks as independent ones do; it is not known where one of them does not tell.
    errors = {
        name: math.hypot(*(trainer.stages_error_s.get(name, math.nan) for trainer in recording.trainers)) / whole_s
        for name in parts
    }
    title = f"The main thread, {count_of(recording.optimizer_steps, 'optimiser step')}"
    return Stacks(total=Stack(label="", parts=parts, errors=errors), title=title, unit="share of its time")


def _step(label: str, diagnosis: Diagnosis) -> Stack:
    """The step's shares and the rate."""
    measured, now = diagnosis.measured, diagnosis.measured.now
    shares, errors = known_shares(measured), vars(measured.trainer.errors)
    shares = {name: share for name, share in shares.items() if name != "other" or share is not None}
    return Stack(
        label=label,
        parts={OF_STEP[name]: share for name, share in shares.items()},
        errors={OF_STEP[name]: error for name, error in errors.items()},
        note=_rate(now, diagnosis.measured.unit) if label and now else "",
    )


def _stages(workers: Workers) -> Stacks | None:
    if not workers.stages:
        return None
    rows: list[Stack] = []
    for worker, stages in workers.each:
        if not worker.in_trainer:
            rank = f"rank {worker.rank}, " if worker.rank else ""
            label = f"{rank}worker {worker.worker}" + (", killed" if worker.ended == "killed" else "")
            errors = {name: looked_error(worker, share, name) for name, share in stages.items()}
            rows.append(Stack(label=label, parts=stages, errors=errors, note=count_of(worker.samples, "sample")))
    shown = rows[:MOST_ROWS] if len(rows) > 1 else []
    more = f"{len(rows) - MOST_ROWS} more workers are in the record." if len(rows) > MOST_ROWS else ""
    who, title = ("all workers", "The workers") if workers.count else ("in the trainer itself", "Preparing batches")
    total = Stack(label=who, parts=workers.stages, errors=workers.stage_errors)
    each, unit = f"each of {count_of(len(rows), 'worker')}", "share of their time"
    return Stacks(total=total, rows=shown, rows_name=each, title=title, unit=unit, note=more)


def _storage(diagnosis: Diagnosis) -> Section | None:
    """What reads alone gave, by how many there were at once."""
    storage = diagnosis.measured.storage
    if (reads := storage.gives) is None:
        return None
    rows = [
        Bar(label=f"{count_of(count, 'read')} at once", value=rate / 1e6)
        for count, rate in zip(reads.at_once, reads.random_bytes_per_s, strict=True)
    ]
    if in_sequence := reads.sequential_bytes_per_s:
        rows.append(Bar(label="in sequence", value=in_sequence / 1e6))
    now, asked = diagnosis.measured.rates.now, storage.sample_bytes
    reference = ("what the run read (mapped files not counted)", now.value * asked / 1e6) if now and asked else None
    lede = f"Reads of {units.size(reads.piece_bytes)} of the script's own files, past the page cache, behind its end."
    return section("The storage", Bars(rows=rows, title="Reads alone", unit="MB/s", reference=reference), lede=lede)


def _transforms(workers: Workers) -> Bars | None:
    """With a core to itself. Their error is that of so many looks, and that a look falls on what gives Python's lock
    up next."""
    seconds, seen = workers.transforms, [worker for worker, _ in workers.each]
    whole_s, stage_s = sum(one.seconds for one in seen), sum(one.stages.get("transform", 0.0) for one in seen)
    if len(seconds) < 2 or not (workers.samples and stage_s and whole_s):
        return None
    alone = workers.stage_alone_s["transform"] * workers.samples / stage_s

    def bar(name: str) -> Bar:
        value, share = alone * seconds[name] / workers.samples, min(1.0, seconds[name] / whole_s)
        looks_s = ERRORS_95 * look_error(share, workers.looks) * alone * whole_s / workers.samples
        low, high = max(0.0, value - looks_s - SWITCH_INTERVAL_S), value + looks_s + SWITCH_INTERVAL_S
        return Bar(label=name, value=1e3 * value, low=1e3 * low, high=1e3 * high)

    rows = [bar(name) for name in sorted(seconds, key=lambda name: -seconds[name])[:MOST_TRANSFORMS]]
    if not any(row.low for row in rows):
        return None
    note = "Parts of the stage transform, with a core to itself."
    return Bars(rows=rows, title="By transform", unit="ms per sample", value_name="time", note=note)


def _legs(measured: Sequence[Leg], unit: str) -> Section | None:
    rows: list[Bar] = []
    for leg in measured:
        rate, label = median_rate(leg.samples_per_s), LEG_NAMES[leg.name]
        if leg.num_workers is not None:
            label += f", {count_of(leg.num_workers, 'worker')}"
        value, low, high = (rate.value, rate.low, rate.high) if rate else (None, None, None)
        windows, said = leg.samples_per_s, [leg.note]
        if rate is None and any(windows):
            said.append(f"windows too far apart to mean anything: {units.ends(min(windows), max(windows))}")
        if leg.disturbed:
            said.append(f"{count_of(leg.disturbed, 'window')} beside other programs left out")
        rows.append(Bar(label=label, value=value, low=low, high=high, note="; ".join(filter(None, said))))
    lede = "The same script with one thing taken away, in short windows that take turns."
    chart = Bars(rows=rows, title="Medians of the windows", unit=unit)
    return section("The legs", chart, lede=lede) if rows else None


def _gpus(gpus: Sequence[Gpu], note: str) -> Section | None:
    lede = (
        "Means over the training steps. Utilisation only says that some kernel ran: one busy thread gives 100 %. "
        "SM active is the share of time the multiprocessors had work."
    )
    tables: list[Table] = []
    for gpu in gpus:
        means = report_time.gpu_means(gpu).items()
        rows = [[title, words, _source(gpu, name)] for name, (title, words) in means]
        if gpu.throttle_reasons:
            rows.append(["Throttled by", ", ".join(gpu.throttle_reasons), gpu.source])
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
        "warm-up left out": f"{count_of(sum(s.warm_up for s in recording.steps), 'step')}: {recording.warm_up}",
        **host,
        "python": recording.script.python or host["python"],
    }
    if loader is not None:
        known = {"num_workers": loader.num_workers, "batch_size": loader.batch_size}
        settings = [f"{name}={value}" for name, value in known.items() if value is not None]
        facts["loader"] = ", ".join([loader.kind, *settings])
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
    known = rates_of([diagnosis for _, diagnosis in recordings])
    for (name, diagnosis), rate in zip(recordings, known, strict=True):
        low, high, value = (rate.low, rate.high, rate.value) if rate else (None, None, None)
        rows.append(Bar(label=name, value=value, low=low, high=high, note=diagnosis.headline))
    first, several = versus[0], len(versus) > 1
    changes = [
        f"{name}: {change}" if several else change
        for (name, _), compared in zip(recordings[1:], versus, strict=True)
        for change in compared.changes
    ]
    tone: Tone = "good" if first.low is not None and first.low > 1 else "open"
    if first.high is not None and first.high < 1:
        tone = "bad"
    shares = Stacks(rows=[_step(name, one) for name, one in recordings], title="The step", unit=OF_LOOP)
    unit = " or ".join(dict.fromkeys(diagnosis.measured.unit for _, diagnosis in recordings))
    rates = Bars(rows=rows, title="Measured throughput", unit=unit)
    return Page(
        title=" and ".join(name for name, _ in recordings),
        verdict=Verdict(words=first.statement, evidence=[compared.statement for compared in versus[1:]], tone=tone),
        sections=[
            section("Rates", rates, Points(changes) if changes else None),
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
