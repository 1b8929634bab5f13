"""A recording and its diagnosis as plain text for a terminal. Pure: returns a string, prints nothing, uses no colour.

Lines keep within `width`; bars are drawn with block characters, so it reads the same in a log file.
"""

import textwrap
from collections.abc import Iterable, Mapping, Sequence

from feedline.profiling.explain.difference import Versus
from feedline.profiling.explain.hot_lines import LineProfile
from feedline.profiling.explain.measure.trainer import parts_of
from feedline.profiling.explain.predict import Prediction
from feedline.profiling.explain.verdict import Diagnosis
from feedline.profiling.record import units
from feedline.profiling.record.recording import Gpu, Leg, LegName, Line, Recording
from feedline.profiling.render.reasons import in_vain

BAR_COLUMNS = 30
BLOCKS = " ▏▎▍▌▋▊▉█"
MOST_LINES = 12
LEAST_OF_TOP = 0.005
"""Of the hottest line's time: what took less is left to the other renderings."""
MOST_WORKERS = 8
LEG_NAMES: dict[LegName, str] = {
    "normal": "as it is", "cached": "cached batches", "crowded": "cached", "kept": "cached, memory kept",
    "laid_out": "cached, as from feedline",
    "loader_only": "the loader alone", "cold": "cold page cache",
}  # fmt: skip


def leg_name(leg: Leg) -> str:
    """What was measured, with the number of workers or of busy processes where that was chosen."""
    if leg.num_workers is None:
        return LEG_NAMES[leg.name]
    what = f"{leg.num_workers} busy beside" if leg.name == "crowded" else units.count(leg.num_workers, "worker")
    return f"{LEG_NAMES[leg.name]}, {what}"


def text(recording: Recording, diagnosis: Diagnosis, *, width: int = 88) -> str:
    """The whole report: verdict, evidence, legs, shares, stages, remedies, what will not help, GPUs, lines, notes."""
    parts = [
        [diagnosis.headline],
        _paragraphs(diagnosis.evidence, width),
        _figures(diagnosis),
        _legs(recording.legs, width),
        _shares(diagnosis) or _main_thread(recording),
        _stages(diagnosis),
        _remedies(diagnosis, width),
        _in_vain(diagnosis, width),
        _gpus(recording.gpus, recording.gpu_note),
        line_table(diagnosis.lines, width=width),
        _notes(diagnosis.notes, width),
    ]
    return _joined(parts)


def comparison_text(named: Sequence[tuple[str, Diagnosis]], compared: Sequence[Versus], *, width: int = 88) -> str:
    """The statements, what else changed, and the recordings side by side."""
    statements = [[line for one in compared for line in textwrap.wrap(one.statement, width)]]
    changes = [f"· {change}" for one in compared for change in one.changes]
    rows = [f"  {'':<24}{'samples/s':>12}  {'interval':<18}{'waiting':>8}  bound"]
    for name, one in named:
        rate = one.measured.rates.now
        interval = units.spread(rate.low, rate.high) if rate else ""
        waiting = units.percent(one.measured.trainer.wait_fraction)
        cells = f"{units.number(one.samples_per_s):>12}  {interval:<18}{waiting:>8}"
        rows.append(f"  {name[:23]:<24}{cells}  {one.bound or units.UNKNOWN}")
    return _joined([*statements, _paragraphs(changes, width), rows])


def lprof_text(profile: LineProfile, *, width: int = 88) -> str:
    """What a line profile says of its loop, and its hottest lines."""
    loop = profile.loader
    parts = [[profile_headline(profile)]]
    if loop is not None:
        source = f"{loop.line.file}:{loop.line.line}: {loop.line.source.strip()}"
        parts += [[f"  {source}"], _paragraphs([loop.why], width)]
        parts.append(["WHAT TO TRY", *_paragraphs((f"· {one}" for one in loop.tries), width)])
    parts.append(line_table(profile.lines, width=width, hints=profile.hints))
    return _joined(parts)


def profile_headline(profile: LineProfile) -> str:
    if profile.loader is not None:
        return profile.loader.headline
    if not profile.lines:
        return "The profile holds no lines: was any function marked with @profile?"
    return "No line of this profile looks like a loop over a loader: mark the training function with @profile."


def _joined(parts: Sequence[Sequence[str]]) -> str:
    """Blocks with an empty line between; control characters (a terminal would obey them) are shown as U+FFFD."""
    lines = (line.rstrip() for part in parts if part for line in (*part, ""))
    whole = "\n".join(lines).rstrip() + "\n"
    return "".join(char if char.isprintable() or char in "\n\u00a0" else "\ufffd" for char in whole)


def bar(fraction: float, columns: int = BAR_COLUMNS) -> str:
    """Eighths of a column: 0.5 of 4 -> "██  "."""
    eighths = round(min(1.0, max(0.0, fraction)) * columns * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (BLOCKS[rest] if rest else "")).ljust(columns)


def _paragraphs(sentences: Iterable[str], width: int) -> list[str]:
    return [line for sentence in sentences for line in textwrap.wrap(sentence, width - 2, initial_indent="  ",
                                                                     subsequent_indent="  ")]  # fmt: skip


def _figures(diagnosis: Diagnosis) -> list[str]:
    rates = diagnosis.measured.rates
    if rates.now is None or rates.over_epochs is None:
        return []
    now, whole = rates.now, rates.over_epochs.value
    ceiling = units.rate(rates.ceiling.value) if rates.ceiling else "not measured (run with --legs)"
    epochs = [f"  {'epochs':<12}{units.rate(whole)} with what each begins and ends with"]
    return [
        f"  {'now':<12}{units.rate(now.value)}  ({units.spread(now.low, now.high)})",
        *(epochs if whole < 0.97 * now.value else []),
        f"  {'ceiling':<12}{ceiling}",
        f"  {'waiting':<12}{units.percent(diagnosis.measured.trainer.wait_fraction)}",
        f"  {'profiling':<12}cost {units.percent(diagnosis.overhead_fraction)} of the run",
    ]


def _shares(diagnosis: Diagnosis) -> list[str]:
    shares = diagnosis.measured.trainer.shares
    if diagnosis.measured.rates.now is None:
        return []
    rows = [("data", shares.data), ("copy", shares.copy), ("trainer", shares.trainer), ("compute", shares.compute)]
    return ["THE STEP", *(f"  {name:<12}{bar(share)} {units.percent(share):>6}" for name, share in rows)]


def _main_thread(recording: Recording) -> list[str]:
    """Where no loader was seen, what is known of the loop all the same."""
    parts = sorted(parts_of(recording).items(), key=lambda item: -item[1])
    if not parts or not recording.optimizer_steps:
        return []
    rows = [f"  {name:<12}{bar(share)} {units.percent(share):>6}" for name, share in parts]
    return [f"THE MAIN THREAD ({units.count(recording.optimizer_steps, 'optimiser step')})", *rows]


def _legs(legs: Sequence[Leg], width: int) -> list[str]:
    """One line each: the median and range of its windows, and what qualifies it."""
    rows: list[str] = []
    for leg in legs:
        rates = sorted(leg.samples_per_s)
        figures = "not measured"
        if rates:
            figures = f"{units.rate(rates[len(rates) // 2])}  ({units.spread(rates[0], rates[-1])})"
        told = f"{leg_name(leg):<28}{figures}" + (f"; {leg.note}" if leg.note else "")
        rows += textwrap.wrap(told, width - 2, initial_indent="  ", subsequent_indent=" " * 30)
    return ["THE PROOF", *rows] if rows else []


def _stages(diagnosis: Diagnosis) -> list[str]:
    stages = diagnosis.measured.workers.stages
    if not stages:
        return []
    who = "THE WORKERS" if diagnosis.measured.workers.count else "PREPARING IN THE TRAINER"
    rows = [f"  {name:<12}{bar(share)} {units.percent(share):>6}" for name, share in stages.items()]
    return [who, *rows, *_per_worker(diagnosis)]


def _per_worker(diagnosis: Diagnosis) -> list[str]:
    workers = [one for one in diagnosis.measured.workers.each if not one[0].in_trainer]
    if len(workers) < 2:
        return []
    names = list(diagnosis.measured.workers.stages)
    rows = ["", "  " + "worker".ljust(10) + "".join(name.rjust(11) for name in names)]
    for worker, stages in workers[:MOST_WORKERS]:
        label = f"{worker.worker}" if worker.rank == 0 else f"{worker.rank}/{worker.worker}"
        rows.append("  " + label.ljust(10) + "".join(units.percent(stages.get(name)).rjust(11) for name in names))
    if len(workers) > MOST_WORKERS:
        rows.append(f"  … and {len(workers) - MOST_WORKERS} more")
    return rows


def _remedies(diagnosis: Diagnosis, width: int) -> list[str]:
    helpful = [prediction for prediction in diagnosis.predictions if prediction.helps]
    if not diagnosis.predictions:
        return []
    if not helpful:
        return ["WHAT WOULD HELP", "  Nothing we can predict: see below for what was considered."]
    return ["WHAT WOULD HELP (predicted samples/s)", *(line for one in helpful for line in _remedy(one, width))]


def _remedy(prediction: Prediction, width: int) -> list[str]:
    gain = units.times(prediction.gain)
    rate = f"{units.number(prediction.samples_per_s):>8}  ({units.spread(prediction.low, prediction.high)})"
    lines = [f"  {gain:>6}  {rate:<28}{prediction.remedy}"]
    epochs = prediction.break_even_epochs
    paid = f"; paid back after {units.number(epochs, 2)} epochs" if epochs is not None else ""
    lines += textwrap.wrap(f"{prediction.why}. Cost: {prediction.cost}{paid}.", width - 10, initial_indent=" " * 10,
                           subsequent_indent=" " * 10)  # fmt: skip
    return lines


def _in_vain(diagnosis: Diagnosis, width: int) -> list[str]:
    """What was considered, those with the same reason together."""
    wrapped = [
        line
        for why, ones in in_vain(diagnosis.predictions).items()
        for line in textwrap.wrap(
            f"{'; '.join(one.remedy for one in ones)}: {why}",
            width - 2,
            initial_indent="  ",
            subsequent_indent="    ",
        )
    ]
    return ["WHAT WOULD NOT", *wrapped] if wrapped else []


def _gpus(gpus: Sequence[Gpu], note: str) -> list[str]:
    if not gpus:
        return [f"{note[0].upper()}{note[1:]}."] if note else []
    rows = ["GPUS"]
    for gpu in gpus:
        values = [
            ("SM active", units.percent(gpu.sm_active)),
            ("SM occupancy", units.percent(gpu.sm_occupancy)),
            ("tensor active", units.percent(gpu.tensor_active)),
            ("utilisation (a kernel ran)", units.percent(gpu.utilization)),
            ("memory", units.part_of(gpu.memory_used_bytes, gpu.memory_total_bytes)),
        ]
        rows.append(f"  {gpu.name or gpu.uuid} (source: {gpu.source})")
        rows += [f"    {name:<28}{value}" for name, value in values]
    return rows


def line_table(
    lines: Sequence[Line],
    *,
    width: int = 88,
    most: int = MOST_LINES,
    hints: Mapping[tuple[str, int], str] | None = None,
) -> list[str]:
    """The lines that took most, hottest first; `hints` follow on a line of their own."""
    if not lines:
        return []
    rows = ["LINES", f"  {'time':>9} {'share':>6} {'hits':>9}  {'line':<24}source"]
    ranked = sorted(lines, key=lambda line: -line.seconds)[:most]
    for line in (one for one in ranked if one.seconds >= LEAST_OF_TOP * ranked[0].seconds):
        place = f"{line.file.rsplit('/', 1)[-1]}:{line.line}" + (
            "" if line.where == "trainer" else f" [{line.where}]"
        )
        cells = f"  {units.seconds(line.seconds):>9} {units.percent(line.fraction):>6} {line.hits:>9,}  {place:<23} "
        source, room = line.source.strip(), max(10, width - len(cells))
        rows.append(cells + (source if len(source) <= room else source[: room - 1] + "…"))
        if hint := (hints or {}).get((line.file, line.line)):
            rows.append(" " * 29 + f"↑ {hint}")
    return rows


def _notes(notes: Sequence[str], width: int) -> list[str]:
    return ["NOTES", *_paragraphs((f"· {note}" for note in notes), width)] if notes else []
