"""What a line profile says: which line waits for the loader, and what the other hot lines are. Pure."""

import re
from dataclasses import dataclass

from feedline.pipeline.base.text import count_of
from feedline.profiling.explain.measure.situation import DATA_BOUND
from feedline.profiling.record import units
from feedline.profiling.record.measurements import Line

NOTABLE = 0.05  # a line below this share of its function's time gets no hint
_LOOP = re.compile(r"^\s*(?:async\s+)?for\s+.+?\s+in\s+(.+?):")
_NEXT = re.compile(r"\bnext\(\s*\w*(?:iter|load|batch|data)\w*", re.IGNORECASE)
_LOADER_NAME = re.compile(r"load|batch|data|train|iter|enumerate|tqdm|progress", re.IGNORECASE)
_NO_LOADER = re.compile(r"\brange\(|parameters\(|modules\(|\.items\(|zip\(", re.IGNORECASE)
HINTS = (
    (r"\.item\(|\.cpu\(|\.tolist\(|\.numpy\(", "waits for the device to finish: hidden synchronisation"),
    (r"\bprint\(|\.log\(|add_scalar|set_postfix", "logging in the loop"),
    (r"\.to\(|\.cuda\(", "copy to the device (and, without pinned memory, waiting for it)"),
    (r"\.backward\(", "backward pass"),
    (r"\.step\(", "optimiser step"),
    (r"Image\.open|imread|decode_|read_image", "opening or decoding an image"),
    (r"transform", "transforming a sample"),
    (r"\bmodel\(|\bnet\(|self\.forward\(", "forward pass"),
)
"""What a hot line does, as far as its text tells."""


@dataclass(frozen=True, kw_only=True)
class LoaderLine:
    """The loop that takes batches, and what its share means."""

    line: Line
    batches: int
    headline: str
    why: str
    tries: list[str]


@dataclass(frozen=True, kw_only=True)
class LineProfile:
    lines: list[Line]  # all lines, functions by their time, lines in order
    loader: LoaderLine | None  # None: no line looks like a loop over a loader
    hints: dict[tuple[str, int], str]  # what the hot lines are, by (file, line)


def line_profile(lines: list[Line]) -> LineProfile:
    """Of the lines of a run, as `record.lprof` reads them."""
    hints: dict[tuple[str, int], str] = {}
    for line in lines:
        if line.fraction >= NOTABLE and is_loader_line(line.source):
            hints[line.file, line.line] = "waiting for the next batch"
        elif line.fraction >= NOTABLE and (hint := next((h for p, h in HINTS if re.search(p, line.source)), "")):
            hints[line.file, line.line] = hint
    return LineProfile(lines=lines, loader=_loader_line(lines), hints=hints)


def is_loader_line(source: str) -> bool:
    if _NEXT.search(source):
        return True
    loop = _LOOP.match(source)
    return bool(loop and _LOADER_NAME.search(loop[1]) and not _NO_LOADER.search(loop[1]))


def _loader_line(lines: list[Line]) -> LoaderLine | None:
    """The loop over a loader that took most time."""
    line = max((line for line in lines if is_loader_line(line.source)), key=lambda line: line.seconds, default=None)
    if line is None:
        return None
    inside = [one for one in lines if (one.file, one.function) == (line.file, line.function) and one.line > line.line]
    first = min(inside, key=lambda one: one.line, default=line)
    # A loop's line is hit once more in each pass than its body, which may stand on the very line.
    body = first.hits if line.hits <= 2 * first.hits else line.hits
    batches = max(1, min(line.hits - 1, body)) if _LOOP.match(line.source) else max(1, line.hits)
    function_s = sum(other.seconds for other in lines if (other.file, other.function) == (line.file, line.function))
    share, took, whole = units.percent(line.fraction), units.seconds(line.seconds), units.seconds(function_s)
    asked = count_of(batches, "batch")
    if line.fraction >= DATA_BOUND:
        headline = f"{line.function} spends {share} of its time waiting for batches, on line {line.line}."
        why = (
            f"The loop asked for {asked} and stood still {units.seconds(line.seconds / batches)} for each, "
            f"{took} of {whole}. A line profile sees only this side: with num_workers=0 the samples are "
            "read, decoded and transformed on this very line; with workers, they are too few or too slow."
        )
        tries = [
            "`feedline profile SCRIPT` says which: per worker and stage, with a prediction for each remedy",
            "num_workers=1, 2, 4 … up to the cores the process really has",
            "prepared shards (`feedline prepare`), where decoding full-size images is the cost",
            "pin_memory=True and a higher prefetch_factor, where batches are copied to a GPU or come unevenly",
        ]
    else:
        headline = f"{line.function} hardly waits for batches: {share} of its time, on line {line.line}."
        why = (
            f"{asked} took {took} of {whole}: a faster loader could give no more than that. On a GPU the "
            "waiting can hide in a line that synchronises."
        )
        tries = [
            "look at the hottest lines below; `feedline profile SCRIPT` separates waiting, copying and computing"
        ]
    return LoaderLine(line=line, batches=batches, headline=headline, why=why, tries=tries)
