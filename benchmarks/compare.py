"""`compare("OUT", {"num_workers": [0, 1, 2]})`: `feedline compare` as a function. The door."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from feedline.benchmarks.commands import check_work
from feedline.benchmarks.comparison import CompareConfig, run
from feedline.benchmarks.grid import Grid
from feedline.benchmarks.measure.rounds import Advance, Bench, check_devices
from feedline.benchmarks.statement import record_of
from feedline.benchmarks.variants import splits_of
from feedline.pipeline.base.status_line import status_line


def compare(
    dataset: Path | str,
    axes: Grid | Mapping[str, Any],
    *,
    device: str = "auto",
    work: Path | str = "compare-out",
    on_progress: Advance | None = None,
    on_note: Callable[[str], None] = lambda _: None,
    **settings: Any,
) -> dict[str, Any]:
    """The verb's record: `cells`, `statement` and more. `axes`: values by the names of `grid.AXES`. Results and shard
    variants are kept in `work`; a rerun continues. `settings`: `rounds`, `window_s`, as of CompareConfig.

    Raises UsageError before anything is measured; MeasureError where nothing can be; CommandError.
    """
    work, advance = Path(work), on_progress or status_line("compare", "windows")
    grid = axes if isinstance(axes, Grid) else Grid.of(axes)
    asked = grid.axes
    device = check_devices(asked.get("devices", [1]), device, asked.get("model", []), asked.get("pin_memory", []))
    check_work(work)
    splits = splits_of(grid.cells(), Path(dataset), work, on_note)
    config = CompareConfig(grid=grid, splits=splits, common={"device": device}, **settings)
    with Bench() as bench:
        return record_of(run(config, work / f"compare-{config.identity}.jsonl", bench.measure, advance))
