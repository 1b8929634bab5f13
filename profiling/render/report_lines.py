"""Lines in HTML: the tables of a report, and the page of a `.lprof` file. Pure."""

from collections.abc import Mapping, Sequence

from feedline.profiling.explain.hot_lines import LOADER_SHARE, LineProfile
from feedline.profiling.record import units
from feedline.profiling.record.recording import Line
from feedline.profiling.render import page
from feedline.profiling.render.markup import Markup, join, tag
from feedline.profiling.render.report_text import profile_headline

MOST_LINES = 40
"""Of one function."""


def lprof_report(path: str, profile: LineProfile) -> Markup:
    """The page of a line profile: what its loop says, then every function."""
    loop = profile.loader
    tone = "main" if loop is None else "bad" if loop.line.fraction >= LOADER_SHARE else "good"
    evidence = loop.why if loop else "Nothing was measured but the lines below."
    figures = [
        ("the loop's line", f"{loop.line.line}"), ("share of its function", units.percent(loop.line.fraction)),
        ("batches", f"{loop.batches:,}"), ("waiting per batch", units.seconds(loop.line.seconds / loop.batches)),
    ] if loop else []  # fmt: skip
    tries = tag("ul", *[tag("li", one) for one in loop.tries], class_="notes") if loop else None
    return page.page(
        path,
        page.verdict(profile_headline(profile), evidence=evidence, tone=tone, figures=figures),
        page.section("What to try", tries) if tries else None,
        line_tables(profile.lines, profile.hints),
        kicker="feedline report",
    )


def line_tables(lines: Sequence[Line], hints: Mapping[tuple[str, int], str] | None = None) -> Markup | None:
    """One table per function, the function that took most first, its hottest line marked."""
    groups: dict[tuple[str, str, str], list[Line]] = {}
    for line in lines:
        groups.setdefault((line.file, line.function, line.where), []).append(line)
    if not groups:
        return None
    ranked = sorted(groups.items(), key=lambda item: -sum(line.seconds for line in item[1]))
    in_order = [(name, sorted(body, key=lambda line: line.line)[:MOST_LINES]) for name, body in ranked]
    tables = [_function_table(name, body, hints or {}) for name, body in in_order]
    return page.section("Line by line", *tables, lede="Timed by line_profiler; shares are of the function.")


def _function_table(name: tuple[str, str, str], body: Sequence[Line], hints: Mapping[tuple[str, int], str]) -> Markup:
    file, function, where = name
    rows = [_line_row(line, hints.get((line.file, line.line), "")) for line in body]
    hottest = max(range(len(body)), key=lambda index: body[index].seconds)
    whole = units.seconds(sum(line.seconds for line in body))
    who = "" if where == "trainer" else f", {where}"
    return page.table(["line", "hits", "time", "share", "source"], rows, numeric=[0, 1, 2, 3], emphasised=[hottest],
                      caption=f"{function} in {file}{who}: {whole}")  # fmt: skip


def _line_row(line: Line, hint: str) -> list[object]:
    share, seconds = units.percent(line.fraction), units.seconds(line.seconds)
    source = join(tag("code", line.source), tag("span", hint, class_="hint") if hint else None)
    return [line.line, f"{line.hits:,}", seconds, share, source]
