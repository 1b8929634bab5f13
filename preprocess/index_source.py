"""From a source to the columns a plan is made of."""

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from feedline.pipeline.base.errors import SourceError
from feedline.pipeline.base.text import count_of
from feedline.preprocess.config import PrepareConfig
from feedline.preprocess.plan import selected
from feedline.preprocess.sources.base import Classes, Columns, Part, Source, Task, open_source

OnNote = Callable[[str], None]

INDEX_THREADS = 16
"""Where headers are waited for (a store, a cold disk). On a warm disk so many cost up to a third of the speed."""
NEWS_S = 10.0
"""Between two lines on how far a long index is."""


def open_configured(config: PrepareConfig) -> Source:
    """Only looks around. Raises UsageError for a source that is not there or is none of the known kinds."""
    options = dict(config.source_options)
    if storage_options := config.source_storage_options:
        options["storage_options"] = storage_options
    return open_source(config.source, **options)


def gather(
    config: PrepareConfig, source: Source, staging: Path, on_note: OnNote
) -> tuple[Columns, Classes, npt.NDArray[np.int64]]:
    """Indexes the source (unpacking it into `staging` first where its bytes cannot be addressed).

    Returns columns, classes, and size and time of each of the columns' paths.
    """
    news = now_and_then(on_note)
    source = source.stage(staging, lambda done: news(f"unpacking: {count_of(done, 'sample')}"))
    found = source.finish(indexed(source.tasks(), INDEX_THREADS, on_note))
    for note in found.notes:
        on_note(note)
    here = os.getcwd()  # noqa: PTH109 executors have working folders of their own; there may be a million paths
    paths = [path if path.startswith("/") or "://" in path else f"{here}/{path}" for path in found.columns.paths]
    columns, classes = selected(replace(found.columns, paths=paths), list(found.classes), config)
    names = Counter(entry["name"] for entry in classes if "wnid" not in entry)
    for name in [name for name, count in names.items() if count > 1][:1]:
        on_note(f"several classes are called {name!r}: each keeps a label of its own")
    return columns, classes, source_stats(columns.paths)


def indexed(tasks: Sequence[Task], threads: int, on_note: OnNote) -> list[Part]:
    """The tasks' parts, in order."""
    news, parts, samples = now_and_then(on_note), list[Part](), 0
    with ThreadPoolExecutor(threads, "feedline-index") as pool:
        for part in pool.map(lambda task: task(), tasks):
            parts.append(part)
            samples += len(part)
            news(f"indexing: {len(parts):,} of {count_of(len(tasks), 'piece')}, {count_of(samples, 'sample')}")
    return parts


def now_and_then(on_note: OnNote) -> OnNote:
    """Passes on a line every NEWS_S while something goes on for long."""
    last_s = time.monotonic()

    def note(text: str) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= NEWS_S:
            on_note(text)
            last_s = time.monotonic()

    return note


def source_stats(paths: Sequence[str]) -> npt.NDArray[np.int64]:
    """Size and time (ns) of each file now; -1 for those that are not local and for broken links. Raises SourceError
    for one that is gone. 16 bytes a file, so that a million loose images are watched too.
    """
    stats_P2 = np.full((len(paths), 2), -1, np.int64)
    for number, path in enumerate(paths):
        if "://" not in path:
            try:
                now = os.stat(path)  # noqa: PTH116
            except OSError as error:
                if Path(path).is_symlink():
                    continue
                raise SourceError(f"{path} cannot be read any more: {error.strerror}") from error
            stats_P2[number] = now.st_size, now.st_mtime_ns
    return stats_P2
