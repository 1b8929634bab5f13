"""From a source to the columns a plan is made of."""

import os
from collections.abc import Callable
from pathlib import Path

from feedline.preprocess.config import PrepareConfig
from feedline.preprocess.plan import Columns
from feedline.preprocess.reading import Stat
from feedline.preprocess.selection import (
    Classes,
    in_class_order,
    seeded_subset,
    with_checked_labels,
    with_safe_keys,
    with_safe_names,
    with_val_split,
)
from feedline.preprocess.sources import Source, open_source

STATS_MAX = 10_000
"""Source files whose size and time are watched while they are read; a folder of loose images has more."""


def selected(columns: Columns, classes: Classes, config: PrepareConfig) -> tuple[Columns, Classes]:
    """The user's choices applied: class order, subset, val split; then keys and labels checked."""
    columns = with_safe_keys(columns)
    columns = with_checked_labels(columns, len(classes))
    if config.class_order is not None:
        columns, classes = in_class_order(columns, classes, config.class_order)
    if config.classes is not None:
        columns, classes = seeded_subset(columns, classes, config.classes, config.seed)
    if config.val_fraction is not None:
        columns = with_val_split(columns, config.val_fraction, config.seed)
    return columns, with_safe_names(classes)


def source_stats(paths: list[str]) -> dict[str, Stat]:
    """What the local files are now; empty when there are too many to watch."""
    local = [path for path in paths if "://" not in path]
    if len(local) > STATS_MAX:
        return {}
    found: dict[str, Stat] = {}
    for path in local:
        now = os.stat(path)  # noqa: PTH116
        found[path] = Stat(now.st_size, now.st_mtime_ns)
    return found


def open_configured(config: PrepareConfig) -> Source:
    """Only looks around. Raises UsageError for a source that is not there or is none of the known kinds."""
    options = dict(config.source_options)
    if storage_options := config.source_storage_options:
        options["storage_options"] = storage_options
    return open_source(config.source, **options)


def gather(
    config: PrepareConfig, staging: Path, on_note: Callable[[str], None]
) -> tuple[Columns, Classes, dict[str, Stat]]:
    """Indexes the source (unpacking it into `staging` first where its bytes cannot be addressed)."""
    source = open_configured(config)
    if source.needs_staging:
        staging.mkdir(parents=True, exist_ok=True)
        source = source.stage(staging)
    found = source.finish([task.run() for task in source.tasks()])
    for note in found.notes:
        on_note(note)
    columns, classes = selected(found.columns, list(found.classes), config)
    return columns, classes, source_stats(columns.paths)
