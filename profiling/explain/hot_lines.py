"""What a line profile says: which line waits for the loader, and what the other hot lines are. Pure."""

import re
from dataclasses import dataclass

from feedline.profiling.record import units
from feedline.profiling.record.measurements import Line

LOADER_SHARE = 0.10
"""From this share of its function's time on, the loader's line is the verdict."""


@dataclass(frozen=True, kw_only=True)
class LoaderLine:
    """The loop that takes batches, and what its share means."""

    line: Line
    batches: int
    function_s: float
    headline: str
    why: str
    tries: list[str]


@dataclass(frozen=True, kw_only=True)
class LineProfile:
    lines: list[Line]
    """All lines, functions by their time, lines in order."""
    loader: LoaderLine | None
    """None: no line looks like a loop over a loader."""
    hints: dict[tuple[str, int], str]
    """What the hot lines are, by (file, line)."""


def line_profile(lines: list[Line]) -> LineProfile:
    """Of the lines of a run, as `record.lprof` reads them."""
    hints = {(line.file, line.line): hint for line in lines if (hint := hint_for(line))}
    return LineProfile(lines=lines, loader=find_loader_line(lines), hints=hints)


_LOOP = re.compile(r"^\s*(?:async\s+)?for\s+.+?\s+in\s+(.+?):")
_NEXT = re.compile(r"\bnext\(\s*\w*(?:iter|load|batch|data)\w*", re.IGNORECASE)
_LOADER_NAME = re.compile(r"load|batch|data|train|iter|enumerate|tqdm|progress", re.IGNORECASE)
_NO_LOADER = re.compile(r"\brange\(|parameters\(|modules\(|\.items\(|zip\(", re.IGNORECASE)

HINTS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\.item\(|\.cpu\(|\.tolist\(|\.numpy\("), "waits for the device to finish: hidden synchronisation"),
    (re.compile(r"\bprint\(|\.log\(|add_scalar|set_postfix"), "logging in the loop"),
    (re.compile(r"\.to\(|\.cuda\("), "copy to the device (and, without pinned memory, waiting for it)"),
    (re.compile(r"\.backward\("), "backward pass"),
    (re.compile(r"\.step\("), "optimiser step"),
    (re.compile(r"Image\.open|imread|decode_|read_image"), "opening or decoding an image"),
    (re.compile(r"transform"), "transforming a sample"),
    (re.compile(r"\bmodel\(|\bnet\(|self\.forward\("), "forward pass"),
)  # fmt: skip


def hint_for(line: Line, least: float = 0.05) -> str:
    """What a line that takes a notable share does, as far as its text tells."""
    if line.fraction < least or not line.source:
        return ""
    if is_loader_line(line.source):
        return "waiting for the next batch"
    return next((words for pattern, words in HINTS if pattern.search(line.source)), "")


def is_loader_line(source: str) -> bool:
    if _NEXT.search(source):
        return True
    loop = _LOOP.match(source)
    return bool(loop and _LOADER_NAME.search(loop[1]) and not _NO_LOADER.search(loop[1]))


def find_loader_line(lines: list[Line]) -> LoaderLine | None:
    """The loop over a loader that took most time."""
    loops = [line for line in lines if is_loader_line(line.source)]
    if not loops:
        return None
    line = max(loops, key=lambda one: one.seconds)
    function_s = sum(one.seconds for one in lines if (one.file, one.function) == (line.file, line.function))
    batches = max(1, line.hits - 1) if _LOOP.match(line.source) else max(1, line.hits)
    words = _data_bound if line.fraction >= LOADER_SHARE else _not_data_bound
    return words(line, batches, function_s)


def _data_bound(line: Line, batches: int, function_s: float) -> LoaderLine:
    share, each = units.percent(line.fraction), units.seconds(line.seconds / batches)
    return LoaderLine(
        line=line,
        batches=batches,
        function_s=function_s,
        headline=f"{line.function} spends {share} of its time waiting for batches, on line {line.line}.",
        why=(
            f"The loop asked for {batches:,} batches and stood still {each} for each, {units.seconds(line.seconds)} "
            f"of {units.seconds(function_s)}. A line profile sees only this side: with num_workers=0 the samples are "
            "read, decoded and transformed on this very line; with workers, they are too few or too slow."
        ),
        tries=[
            "`feedline profile SCRIPT` says which: per worker and stage, with a prediction for each remedy",
            "num_workers=1, 2, 4 … up to the cores the process really has",
            "prepared shards (`feedline prepare`), where decoding full-size images is the cost",
            "pin_memory=True and a higher prefetch_factor, where batches are copied to a GPU or come unevenly",
        ],
    )


def _not_data_bound(line: Line, batches: int, function_s: float) -> LoaderLine:
    share = units.percent(line.fraction)
    return LoaderLine(
        line=line,
        batches=batches,
        function_s=function_s,
        headline=f"{line.function} hardly waits for batches: {share} of its time, on line {line.line}.",
        why=(
            f"{batches:,} batches took {units.seconds(line.seconds)} of {units.seconds(function_s)}: a faster loader "
            "could give no more than that. On a GPU the waiting can hide in a line that synchronises."
        ),
        tries=["look at the hottest lines below; `feedline profile SCRIPT` separates waiting, copying and computing"],
    )
