"""What a search saw, as a page: the settings it chose, the curve over workers, every setting tried. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from feedline.benchmarks.compare_page import curves_over
from feedline.benchmarks.grid import phrase
from feedline.profiling.record import units
from feedline.profiling.render.sections import Curve, Curves, Page, Table, Verdict, section

AXES = ("num_workers", "batch_size", "prefetch_factor")


def tune_page(record: Mapping[str, Any]) -> Page:
    return Page(
        title="Workers, prefetch and batch size for this machine",
        verdict=Verdict(words=record["statement"], evidence=[method(record)]),
        sections=[
            section("Over workers", curve(record)),
            section("Every setting tried", tried_table(record["tried"])),
        ],
        kicker="feedline tune",
    )


def method(record: Mapping[str, Any]) -> str:
    return (
        f"{record['model']} at {record['image_size']} px, {record['seconds_used']:.0f} s of search; each window in a "
        "fresh process, the next one where a setting may be the best by most."
    )


def curve(record: Mapping[str, Any]) -> Curves:
    tried: Sequence[Mapping[str, Any]] = record["tried"]
    varied = ["num_workers", *(axis for axis in AXES[1:] if len({one[axis] for one in tried}) > 1)]
    points = sorted((float(workers), rate) for workers, rate in record["predicted_by_workers"].items())
    curves = curves_over("num_workers", varied, tried)
    if points:
        curves.append(Curve(name="predicted from one worker's costs", points=points))
    return Curves(
        curves=curves, title="Training throughput over workers", y_unit="samples/s", x_unit="workers",
        note="whiskers: 95 % intervals, where a setting was measured more than once",
    )  # fmt: skip


def tried_table(tried: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        (
            ", ".join(phrase(axis, one[axis]) for axis in AXES),
            units.number(one["samples_per_s"]),
            units.spread(one["low"], one["high"]),
            str(one["n"]),
        )
        for one in tried
    ]
    return Table(headers=("setting", "samples/s", "interval", "windows"), rows=rows, numeric=range(1, 4))
