"""The parts of a report that run along the time axis: every step, the GPUs and the resources beside them. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from feedline.profiling.record import units
from feedline.profiling.record.recording import Gpu, Recording, Series, Step
from feedline.profiling.render.charts import OF_STEP, finite
from feedline.profiling.render.sections import Columns, Curve, Curves, Section, Shade, section

MOST_CURVES = 6
TITLES = {
    "cpu_cores": "Processor", "rss_bytes": "Memory", "disk_read_bytes_per_s": "Read from disk",
    "net_receive_bytes_per_s": "Received from the network", "shm_bytes": "Shared memory",
    "psi_cpu_some": "Waiting for a core (PSI)", "psi_io_some": "Waiting for storage (PSI)",
    "psi_memory_some": "Waiting for memory (PSI)", "memory_available_bytes": "Memory available",
    "read_bytes_per_s": "Read, page cache included", "disk_write_bytes_per_s": "Written to disk",
    "net_send_bytes_per_s": "Sent to the network", "switches_voluntary_per_s": "Context switches, waiting",
    "switches_forced_per_s": "Context switches, pushed off a core", "major_faults_per_s": "Major page faults",
}  # fmt: skip
"""In the order of the page; others follow."""
GPU_SHARES = {
    "sm_active": "SM active", "sm_occupancy": "SM occupancy", "tensor_active": "Tensor cores active",
    "dram_active": "Memory active", "utilization": "Utilisation (a kernel ran)",
}  # fmt: skip
"""Fields of `Gpu` between 0 and 1, and what every table and chart calls them."""
GPU_TITLES = {
    **GPU_SHARES, "memory_used_bytes": "Memory used",
    "pcie_rx_bytes_per_s": "PCIe, to the GPU", "pcie_tx_bytes_per_s": "PCIe, from the GPU", "power_w": "Power",
    "sm_clock_mhz": "SM clock",
}  # fmt: skip
"""The same of what a GPU tells; what is not here (the memory there is) does not change."""
GPU_UNITS = {"_bytes_per_s": (1e6, "MB/s"), "_per_s": (1.0, "a second"), "_mhz": (1.0, "MHz"), "_w": (1.0, "W")}
"""By how the name ends: what to divide by, and the unit then."""
OF_GPU = "gpu:"  # what scopes of a GPU's series begin with
SCALED = {"B": (1e6, "MB"), "B/s": (1e6, "MB/s"), "fraction": (0.01, "%")}
"""Units of series that read better in another."""


def gpu_means(gpu: Gpu) -> dict[str, tuple[str, str]]:
    """By field, its title and its mean in words."""
    found: dict[str, tuple[str, str]] = {}
    for name, title in GPU_TITLES.items():
        value: float | None = getattr(gpu, name)
        if name in GPU_SHARES:
            words = units.percent(value)
        elif name == "memory_used_bytes":
            both = (value, gpu.memory_total_bytes)
            words = " of ".join(map(units.size, both)) if any(map(units.known, both)) else units.UNKNOWN
        else:
            scale, unit = next((of for end, of in GPU_UNITS.items() if name.endswith(end)), (1.0, ""))
            words = units.rate(None if value is None else value / scale, unit)
        found[name] = title, words
    return found


def timeline(recording: Recording) -> Section | None:
    """The training steps of the first rank as stacked columns."""
    ranks = {step.rank for step in recording.steps}
    steps = sorted((s for s in recording.steps if s.rank == min(ranks, default=0)), key=lambda step: step.start_s)
    training = [step for step in steps if step.phase == "train"] or steps
    if len(training) < 2:
        return None
    parts = {OF_STEP["data"]: [1e3 * step.wait_s for step in training]}
    if any(step.copy_s for step in training):
        parts[OF_STEP["copy"]] = [1e3 * (step.copy_s or 0.0) for step in training]
    parts[OF_STEP["rest"]] = [1e3 * step.compute_s for step in training]
    starts = [step.start_s for step in training]
    chart = Columns(parts=parts, starts=starts, title="Every training step", y_unit="ms", shades=_spans(steps))
    of = f" Rank 0 of {len(ranks)}." if len(ranks) > 1 else ""
    lede = f"{len(training):,} steps; where there are more than a screen can show, neighbours are averaged.{of}"
    return section("Step by step", chart, lede=lede)


def gpus(recording: Recording) -> Section | None:
    """What the GPUs do over the time of the steps, beside what the loop waits meanwhile; each with its source."""
    names = {f"{OF_GPU}{gpu.uuid}": f"GPU {number if gpu.index is None else gpu.index}"
             for number, gpu in enumerate(recording.gpus)}  # fmt: skip
    told = [one for one in recording.series if one.scope.startswith(OF_GPU) and one.name in GPU_TITLES]
    starved = [step for step in recording.steps if step.starved_s is not None and step.duration_s > 0]
    if not told and not starved:
        return None
    charts = [_waits(starved, recording)] if len(starved) > 1 else []
    charts += _charts(told, GPU_TITLES, names, recording)
    lede = "Over the same time as the steps above. A GPU that waits for data has its multiprocessors idle meanwhile."
    return section("The GPU over time", *charts, lede=lede, side_by_side=True)


def _waits(steps: Sequence[Step], recording: Recording) -> Curves:
    """Shares of each step."""
    ordered = sorted(steps, key=lambda step: step.start_s)
    waited = [(step.start_s, min(100.0, 100 * step.wait_s / step.duration_s)) for step in ordered]
    starved = [(step.start_s, min(100.0, 100 * (step.starved_s or 0.0) / step.duration_s)) for step in ordered]
    return Curves(
        curves=[Curve(name="the GPU has run dry", points=starved), Curve(name="the loop waits", points=waited)],
        title="Waiting for data", y_unit="%", y_max=100.0, shades=_spans(recording.steps),
        note="Source: CUDA events around waits (of short steps, some); the loop's clock, which runs while it works",
    )  # fmt: skip


def resources(recording: Recording) -> Section | None:
    """One small chart per quantity, one curve per whose it is."""
    told = [series for series in recording.series if not series.scope.startswith(OF_GPU)]
    lede = "Over the same time as the steps above."
    return section("Resources", *_charts(told, TITLES, {}, recording), lede=lede, side_by_side=True)


def _charts(
    told: Iterable[Series], titles: Mapping[str, str], names: Mapping[str, str], recording: Recording
) -> list[Curves]:
    """Of those that say anything; `names` of scopes that have another."""
    groups: dict[str, list[Series]] = {}
    for series in told:
        if any(series.values):
            groups.setdefault(series.name, []).append(series)
    order, shades = list(titles), _spans(recording.steps)
    charts: list[Curves] = []
    for name in sorted(groups, key=lambda name: order.index(name) if name in order else len(order)):
        factor, unit = SCALED.get(groups[name][0].unit, (1.0, groups[name][0].unit))
        shown = sorted(groups[name], key=lambda series: -_mean(series))[:MOST_CURVES]
        curves = [
            Curve(name=names.get(series.scope, series.scope), points=_points(series, factor, unit))
            for series in shown
        ]
        more = len(groups[name]) - len(shown)
        sources = ", ".join(dict.fromkeys(series.source for series in shown))
        note = (f"{more} more in the record. " if more else "") + f"Source: {sources}"
        title, top = titles.get(name, name.replace("_", " ")), 100.0 if unit == "%" else None
        charts.append(Curves(curves=curves, title=title, y_unit=unit, shades=shades, y_max=top, note=note))
    return charts


def _points(series: Series, factor: float, unit: str) -> list[tuple[float, float | None]]:
    """Shares of a short moment come out a little over 1 when the clock jitters."""
    scaled = [None if value is None else value / factor for value in series.values]
    shown = [min(v, 100.0) if v is not None and unit == "%" and v < 110 else v for v in scaled]
    return list(zip(series.t_s, shown, strict=False))


def _mean(series: Series) -> float:
    known = finite(series.values)
    return sum(known) / len(known) if known else 0.0


def _spans(steps: Iterable[Step]) -> list[Shade]:
    """Warm-up and evaluation as spans of time; neighbouring steps of a kind are one span."""
    spans: list[Shade] = []
    for step in sorted(steps, key=lambda step: step.start_s):
        name = "warm-up" if step.warm_up and step.phase == "train" else "evaluation" if step.phase == "eval" else ""
        last = spans[-1] if spans else None
        if last and last.name == name and step.start_s - last.end < 1e-3 + step.duration_s:
            spans[-1] = Shade(start=last.start, end=step.start_s + step.duration_s, name=name)
        elif name:
            spans.append(Shade(start=step.start_s, end=step.start_s + step.duration_s, name=name))
    return spans
