"""The records of compare, tune and ladder as pages of charts and tables. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from feedline.benchmarks.grid import AXES, phrase, phrases
from feedline.pipeline.base.text import count_of
from feedline.profiling.record import units
from feedline.profiling.render.report_time import GPU_SHARES
from feedline.profiling.render.sections import (
    CEILING,
    Bar,
    Bars,
    Curve,
    Curves,
    Facts,
    Page,
    Points,
    Section,
    Table,
    Tone,
    Verdict,
    section,
)

Row = Mapping[str, Any]
TONES: dict[str, Tone] = {"best": "good", "same": "good", "open": "open"}
"""By a cell's outcome; `outcome` says it in words."""


# --- compare ------------------------------------------------------------------------------------------


def compare_page(record: Row) -> Page:
    axes, cells, counts = record["axes"], record["cells"], sorted({cell["n"] for cell in record["cells"]})
    varied = [name for name, values in axes.items() if len(values) > 1]
    fixed = {AXES[name].word: values[0] for name, values in axes.items() if len(values) == 1}
    splits = {str(cell["split"]) for cell in cells}
    fixed |= {"split": splits.pop()} if len(splits) == 1 else {}
    first, _, rest = record["statement"].partition(". ")
    method = (
        f"Each cell was measured {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} times for "
        f"{record['window_s']:g} s, each time in a fresh process, in rounds of random order; differences are within "
        "rounds, their intervals share 5 % of error. Checksums are off, as behind a training's first epoch, and all "
        "windows of a cell read the same samples: from memory, as far as they fit."
    )
    bars = [
        Bar(label=cell["name"], value=cell["samples_per_s"], low=cell["low"], high=cell["high"], note=outcome(cell),
            tone=TONES.get(cell["outcome"], "main"))
        for cell in cells
    ]  # fmt: skip
    rows = [
        (cell["name"], *figures(cell), units.number(cell["cores_used"]), units.percent(cell["wait_fraction"]))
        for cell in cells
    ]
    headers = ("cell", "samples/s", "interval", "windows", "cores used", "waiting")
    numeric = next((name for name in varied if AXES[name].kind is int and len(set(axes[name])) > 1), None)
    word, over = AXES[numeric].word if numeric else "", None
    if numeric:
        curves = curves_over(numeric, [name for name in varied if name != numeric], cells)
        over = Curves(curves=curves, title=f"Throughput over {word}", y_unit="samples/s", x_unit=word)
    return Page(
        title="Which settings, and by how much",
        verdict=Verdict(words=first, evidence=[rest, method] if rest else [method]),
        sections=[
            section("Every cell", Bars(rows=bars, title="Throughput by cell"),
                    Table(headers=headers, rows=rows, numeric=range(1, 6))),
            section(f"Over {word}", over),
            section("What was the same for all", Facts({**fixed, "cores": record.get("usable_cores")})),
        ],
        kicker="feedline compare",
    )  # fmt: skip


def outcome(cell: Row) -> str:
    """In words, beside the best."""
    return {
        "best": "highest median",
        "same": "same as the best",
        "open": "not told apart from it",
        "slower": f"{units.percent(1 - cell['ratio_to_best'])} slower",
        "faster": f"{units.percent(cell['ratio_to_best'] - 1)} faster",
    }[cell["outcome"]]


def figures(row: Row) -> tuple[str, str, str]:
    return units.number(row["samples_per_s"]), units.spread(row["low"], row["high"]), str(row["n"])


def curves_over(axis: str, others: Sequence[str], cells: Sequence[Row]) -> list[Curve]:
    """One curve per combination of the other axes."""
    groups: dict[str, dict[float, Row]] = {}
    for cell in cells:
        name = ", ".join(phrase(other, cell[other]) for other in others) or "samples/s"
        groups.setdefault(name, {})[float(cell[axis])] = cell
    return [
        Curve(
            name=name,
            points=[(x, members[x]["samples_per_s"]) for x in sorted(members)],
            intervals=[(members[x]["low"], members[x]["high"]) for x in sorted(members)],
        )
        for name, members in groups.items()
    ]


# --- tune ---------------------------------------------------------------------------------------------


def tune_page(record: Row) -> Page:
    """The settings it chose, the curve over workers, every setting tried."""
    tried: Sequence[Row] = record["tried"]
    method = (
        f"{record['model']} at {record['image_size']} px, {record['seconds_used']:.0f} s of search; each window in a "
        "fresh process, the next one where a setting may be the best by most."
    )
    others = {name for name in tried[0] if name in AXES and len({row[name] for row in tried}) > 1} - {"num_workers"}
    curves = curves_over("num_workers", sorted(others), tried)
    if record["predicted_by_workers"]:
        points = sorted((float(workers), rate) for workers, rate in record["predicted_by_workers"].items())
        curves.append(Curve(name="predicted from one worker's costs", points=points))
    chart = Curves(
        curves=curves, title="Training throughput over workers", y_unit="samples/s", x_unit="workers",
        note="No whisker: measured once, or predicted.",
    )  # fmt: skip
    rows = [(phrases(row), *figures(row)) for row in tried]
    table = Table(headers=("setting", "samples/s", "interval", "windows"), rows=rows, numeric=range(1, 4))
    return Page(
        title="The settings that train fastest here",
        verdict=Verdict(words=record["statement"], evidence=[method]),
        sections=[
            section("Over workers", chart),
            section("Every setting tried", table),
            section("The storage under it", Facts(dict(record["storage"]["lines"]))),  # the windows read from memory
        ],
        kicker="feedline tune",
    )


# --- ladder -------------------------------------------------------------------------------------------

LADDER_HEADERS = ("rung", "samples/s", "interval", "predicted", "off by", "step", "of ceiling", "waiting")
COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven")


def ladder_section(record: Row) -> Section | None:
    rungs, notes = record["rungs"], record.get("notes") or []
    ends = ("low", "high", "predicted", "predicted_low", "predicted_high")
    bars = [
        Bar(label=rung["name"], value=rung["samples_per_s"], note=rung["words"], **{end: rung[end] for end in ends})
        for rung in rungs
    ]
    chart = Bars(
        rows=bars,
        title="Throughput by rung",
        reference=(CEILING, record["ceiling_samples_per_s"]),
        staircase=True,
        note=f"Median of {rungs[0].get('n')} windows, each in a fresh process, all rungs in random order by turns.",
    )
    numeric = range(1, len(LADDER_HEADERS))
    table = Table(headers=LADDER_HEADERS, rows=ladder_rows(record), numeric=numeric, emphasised=(len(rungs),))
    return section("The ladder", chart, table, Points(notes) if notes else None, lede=ladder_story(record))


def ladder_story(record: Row) -> str:
    """One sentence from the first rung to the ceiling."""
    rungs, ceiling = record["rungs"], record["ceiling_samples_per_s"]
    first, top = rungs[0]["samples_per_s"], rungs[-1]["samples_per_s"]
    predicted = sum(rung["predicted"] is not None for rung in rungs)
    which = "Each figure was" if predicted == len(rungs) else f"{COUNTS[predicted].capitalize()} of the figures were"
    ends = [rungs[0], rungs[-1], {"low": record.get("ceiling_low"), "high": record.get("ceiling_high")}]
    noisy = (
        any(units.spread(one["low"], one["high"]) == units.NOISY for one in ends)
        or top > units.FREE_AT_MOST * ceiling
    )
    story = (
        f"The same script and model, {COUNTS[len(rungs)]} ways of feeding it: from {units.rate(first)} to "
        f"{units.rate(top)}, {units.times(top / first)} as fast, {units.percent(min(1.0, top / ceiling))} of what it "
        "would do if data were free."
    )
    if noisy:
        story += " But these windows are too noisy to tell how much: run it alone, with more --rounds."
    return story + (f" {which} predicted before the rung was climbed." if predicted > 1 else "")


def ladder_rows(record: Row) -> list[tuple[str, ...]]:
    """One row per rung and one for the ceiling, as text."""
    ceiling, before = record["ceiling_samples_per_s"], None
    rows: list[tuple[str, ...]] = []
    for rung in record["rungs"]:
        rate, predicted = rung["samples_per_s"], rung["predicted"]
        off = f"{predicted / rate - 1:+.0%}".replace("%", " %").replace("-", "−") if predicted else units.UNKNOWN
        interval = units.spread(rung["low"], rung["high"]) or units.UNKNOWN
        step = units.times(rate / before) if before else ""
        share, waiting = units.percent(rate / ceiling), units.percent(rung.get("wait_fraction"))
        rows.append((rung["name"], units.number(rate), interval, units.number(predicted), off, step, share, waiting))
        before = rate
    interval = units.spread(record.get("ceiling_low"), record.get("ceiling_high"))
    free = units.percent(1.0), units.percent(0.0)
    return [*rows, ("data is free", units.number(ceiling), interval, "", "", "", *free)]


# --- gpu-check ----------------------------------------------------------------------------------------

SOURCES = {"slots": "feedline's slots, page-locked", "pinned": "pinned by torch", "pageable": "pageable memory"}
GPU_COLUMNS = {name: GPU_SHARES[name] for name in ("sm_active", "sm_occupancy", "tensor_active")}


def gpu_check_page(record: Row) -> Page:
    """What the GPU takes, what the cores deliver, what both give together, and the cores that each codec needs."""
    fed: Tone = "open" if record["fed_all"] is None else "good" if record["fed_all"] else "bad"
    method = (
        f"Batches of {record['batch_size']}, windows of {record['window_s']:g} s in fresh processes; the ceiling is "
        "the model's rate on cached batches, and checksums are off, as behind a training's first epoch."
    )
    return Page(
        title="Does this machine feed its GPU?",
        verdict=Verdict(words=record["statement"], evidence=[method, *record["notes"]], tone=fed),
        sections=[part(record) for part in (gpu_ceilings, gpu_loaders, gpu_fed, gpu_needs, gpu_copies)],
        kicker="feedline gpu-check",
        subtitle=gpu_words(record),
    )


def gpu_words(record: Row) -> str:
    cores = count_of(record["cores"], "usable core")
    if not record.get("gpu"):
        return cores
    memory, cuda = units.size(record["gpu_memory_bytes"]), record["cuda"]
    return f"{record['gpu']}, {memory}, {record['multiprocessors']} multiprocessors, CUDA {cuda}; {cores}"


def gpu_ceilings(record: Row) -> Section | None:
    rows = [
        (one["model"], one["image_size"], *figures(one), units.size(one["input_bytes_per_s"]) + "/s")
        for one in record["ceilings"]
    ]
    headers = ("model", "px", "samples/s", "interval", "windows", "uint8 pixels")
    return section("What it takes", Table(headers=headers, rows=rows, numeric=range(1, 6)) if rows else None)


def gpu_loaders(record: Row) -> Section | None:
    loaders = [{**one, "codec": one["way"], "num_workers": one["workers"]} for one in record["loaders"]]
    charts = [
        Curves(
            curves=curves_over("num_workers", ["codec"], [one for one in loaders if one["image_size"] == px]),
            title=f"The loader alone, {px} px", y_unit="samples/s", x_unit="workers",
        ) for px in dict.fromkeys(one["image_size"] for one in loaders)
    ]  # fmt: skip
    rows = [
        (one["way"], one["image_size"], one["workers"], *figures(one),
         units.number(one["samples_per_s"] / one["workers"]), units.number(one["worker_cpu_us"]))
        for one in loaders
    ]  # fmt: skip
    headers = ("from", "px", "workers", "samples/s", "interval", "windows", "per worker", "CPU µs a sample")
    return section("What the cores deliver", *charts, Table(headers=headers, rows=rows, numeric=range(1, 8)))


def gpu_fed(record: Row) -> Section | None:
    """With what a GPU did meanwhile, where there is one, and the source of that."""
    fed: Sequence[Row] = record["fed"]
    columns = GPU_COLUMNS if record.get("gpu") else {}
    rows = [
        (one["model"], one["image_size"], one["way"], *figures(one)[:2], units.percent(one["share"]),
         units.percent(one["wait_fraction"]), *(units.percent(one[name]) for name in columns))
        for one in fed
    ]  # fmt: skip
    if not rows:
        return None
    headers = ("model", "px", "from", "samples/s", "interval", "of ceiling", "waiting", *columns.values())
    told, why = fed[0]["sources"], fed[0]["unavailable"]
    sources = [f"{words}: {told.get(name) or why.get(name) or why.get('gpm', 'not known')}"
               for name, words in columns.items()]  # fmt: skip
    table = Table(headers=headers, rows=rows, numeric=(1, *range(3, len(headers))))
    return section("Both together", table, Points([f"Sources. {'; '.join(sources)}."]) if sources else None)


def gpu_needs(record: Row) -> Section | None:
    ways = list(dict.fromkeys(one["way"] for one in record["needs"]))
    cells: dict[tuple[str, int], dict[str, str]] = {}
    tried = max((one["workers"] for one in record["loaders"]), default=record["cores"])
    for one in record["needs"]:
        cells.setdefault((one["model"], one["image_size"]), {})[one["way"]] = needed(one["cores"], tried)
    rows = [(*key, *(of.get(way, units.UNKNOWN) for way in ways)) for key, of in cells.items()]
    table = Table(headers=("model", "px", *ways), rows=rows, numeric=range(1, 2 + len(ways)))
    lede = "Workers, each on a core, that deliver the ceiling by the rates above. The trainer itself needs one more."
    return section("Cores it needs", table if rows else None, lede=lede)


def needed(cores: float | None, tried: int) -> str:
    if cores is None:
        return "more do not help"
    return units.number(max(cores, 0.1), 2) + (" (estimated)" if cores > tried else "")


def gpu_copies(record: Row) -> Section | None:
    copies: Sequence[Row] = record.get("copies", [])
    bars = [
        Bar(label=SOURCES[one["source"]], value=sorted(one["bytes_per_s"])[len(one["bytes_per_s"]) // 2] / 1e9)
        for one in copies
    ]
    if not bars:
        return None
    title = f"Copies of {units.size(copies[0]['size_bytes'])} to the GPU"
    return section("Copies", Bars(rows=bars, title=title, unit="GB/s"))
