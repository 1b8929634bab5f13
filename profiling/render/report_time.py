"""The parts of a report that run along the time axis: every step, and the resources beside them. Pure."""

from collections.abc import Sequence

from feedline.profiling.record import units
from feedline.profiling.record.recording import Recording, Series, Step
from feedline.profiling.render.sections import Columns, Curve, Curves, Section, Shade, section

MOST_CURVES = 6
TITLES = {
    "cpu_cores": "Processor",
    "rss_bytes": "Memory",
    "disk_read_bytes_per_s": "Read from disk",
    "net_receive_bytes_per_s": "Received from the network",
    "shm_bytes": "Shared memory",
    "psi_cpu_some": "Waiting for a core (PSI)",
    "psi_io_some": "Waiting for storage (PSI)",
    "psi_memory_some": "Waiting for memory (PSI)",
    "sm_active": "GPU: SM active",
    "utilization": "GPU: utilisation",
    "memory_available_bytes": "Memory available",
    "read_bytes_per_s": "Read, page cache included",
    "disk_write_bytes_per_s": "Written to disk",
    "net_send_bytes_per_s": "Sent to the network",
    "switches_voluntary_per_s": "Context switches, waiting",
    "switches_forced_per_s": "Context switches, pushed off a core",
    "major_faults_per_s": "Major page faults",
}
SCALED = {
    "bytes": (1e6, "MB"),
    "B": (1e6, "MB"),
    "bytes/s": (1e6, "MB/s"),
    "B/s": (1e6, "MB/s"),
    "fraction": (0.01, "%"),
}
"""Units of series that read better in another."""


def timeline(recording: Recording) -> Section | None:
    """The training steps of the first rank as stacked columns."""
    ranks = {step.rank for step in recording.steps}
    steps = sorted((s for s in recording.steps if s.rank == min(ranks, default=0)), key=lambda step: step.start_s)
    training = [step for step in steps if step.phase == "train"] or steps
    if len(training) < 2:
        return None
    parts = {
        "waiting": [1e3 * step.wait_s for step in training],
        "copying": [1e3 * step.copy_s for step in training],
        "computing": [1e3 * step.compute_s for step in training],
    }
    chart = Columns(
        parts={name: heights for name, heights in parts.items() if name != "copying" or any(heights)},
        starts=[step.start_s for step in training],
        title="Every training step",
        y_unit="ms",
        shades=_spans(steps),
    )
    of = f" Rank 0 of {len(ranks)}." if len(ranks) > 1 else ""
    lede = f"{len(training):,} steps; where there are more than a screen can show, neighbours are averaged.{of}"
    return section("Step by step", chart, lede=lede)


def _spans(steps: Sequence[Step]) -> list[Shade]:
    """Warm-up and evaluation as spans of time; neighbouring steps of a kind are one span."""
    spans: list[Shade] = []
    for step in steps:
        name = "warm-up" if step.warm_up and step.phase == "train" else "evaluation" if step.phase == "eval" else ""
        if not name:
            continue
        end = step.start_s + step.duration_s
        if spans and spans[-1].name == name and step.start_s - spans[-1].end < 1e-3 + step.duration_s:
            spans[-1] = Shade(start=spans[-1].start, end=end, name=name)
        else:
            spans.append(Shade(start=step.start_s, end=end, name=name))
    return spans


def resources(recording: Recording) -> Section | None:
    """One small chart per quantity, one curve per whose it is."""
    groups: dict[str, list[Series]] = {}
    for series in recording.series:
        if any(value for value in series.values):
            groups.setdefault(series.name, []).append(series)
    ranked = sorted(groups, key=lambda name: list(TITLES).index(name) if name in TITLES else len(TITLES))
    shades = _spans(sorted(recording.steps, key=lambda step: step.start_s))
    charts = [_resource(name, groups[name], shades) for name in ranked]
    return section("Resources", *charts, lede="Over the same time as the steps above.", side_by_side=True)


def _resource(name: str, group: Sequence[Series], shades: Sequence[Shade]) -> Curves:
    factor, unit = SCALED.get(group[0].unit, (1.0, group[0].unit))
    shown = sorted(group, key=lambda series: -_mean(series))[:MOST_CURVES]
    curves = [
        Curve(
            name=series.scope,
            points=[(t, _scaled(v, factor, unit)) for t, v in zip(series.t_s, series.values, strict=False)],
        )
        for series in shown
    ]
    left_out = f"{len(group) - MOST_CURVES} more in the record. " if len(group) > MOST_CURVES else ""
    sources = ", ".join(dict.fromkeys(series.source for series in shown))
    title, top = TITLES.get(name, name.replace("_", " ")), 100.0 if unit == "%" else None
    note = f"{left_out}Source: {sources}"
    return Curves(curves=curves, title=title, y_unit=unit, shades=shades, y_max=top, note=note)


def _scaled(value: float | None, factor: float, unit: str) -> float | None:
    """Shares of a short moment come out a little over 1 when the clock jitters."""
    if value is None:
        return None
    return min(value / factor, 100.0) if unit == "%" and value / factor < 110 else value / factor


def _mean(series: Series) -> float:
    known = [value for value in series.values if value is not None and units.known(value)]
    return sum(known) / len(known) if known else 0.0
