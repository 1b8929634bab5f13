"""A page as plain text for a terminal. Pure: returns a string, prints nothing, uses no colour.

Lines keep within `width` (a table's and a name's apart); bars are drawn with block characters, so it reads the same
in a log file. Charts over time and grids are left to HTML.
"""

import textwrap
from collections.abc import Iterable

from feedline.profiling.record import units
from feedline.profiling.render.sections import (
    Bars,
    Code,
    Columns,
    Curves,
    Facts,
    Heat,
    Listing,
    Page,
    Part,
    Points,
    Prose,
    Reasons,
    Section,
    Stack,
    Stacks,
    Table,
    Verdict,
)

BAR_COLUMNS = 30
BLOCKS = " ▏▎▍▌▋▊▉█"
MOST_LINES = 12
LEAST_OF_TOP = 0.005
"""Of the hottest line's time: what took less is left to HTML."""
INDENT = "  "


def text(page: Page, *, width: int = 88) -> str:
    """Control characters (a terminal would obey them) are shown as U+FFFD."""
    blocks = [
        *(_verdict(page.verdict, width) if page.verdict else []),
        *(block for section in page.sections if section for block in _section(section, width)),
    ]
    whole = "\n\n".join("\n".join(line.rstrip() for line in block) for block in blocks if block) + "\n"
    return "".join(char if char.isprintable() or char in "\n\u00a0" else "\ufffd" for char in whole)


def _verdict(verdict: Verdict, width: int) -> list[list[str]]:
    evidence = [line for sentence in verdict.evidence for line in _wrapped(sentence, width)]
    return [textwrap.wrap(verdict.words, width), evidence, _pairs(verdict.figures, width)]


def _section(section: Section, width: int) -> list[list[str]]:
    """Its heading stands right above its first block."""
    blocks = [block for part in section.parts if (block := _part(part, width))]
    return [[section.heading.upper(), *blocks[0]], *blocks[1:]] if blocks else []


def _part(part: Part, width: int) -> list[str]:
    match part:
        case Prose():
            return _wrapped(part.words, width)
        case Points():
            return [line for item in part.items for line in _wrapped(f"· {item}", width)]
        case Code():
            return [INDENT + line for line in part.words.splitlines()]
        case Facts():
            return _pairs([(name, str(value)) for name, value in part.items.items()], width)
        case Reasons():
            return [line for name, why in part.items for line in _wrapped(f"{name}: {why}", width, 4)]
        case Table():
            return _table(part, width)
        case Listing():
            return _listing(part, width)
        case Bars():
            return _bars(part, width)
        case Stacks():
            return _stacks(part, width)
        case Heat() | Curves() | Columns():
            return []


def bar(fraction: float, columns: int = BAR_COLUMNS) -> str:
    """Eighths of a column: 0.5 of 4 -> "██  "."""
    eighths = round(min(1.0, max(0.0, fraction)) * columns * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (BLOCKS[rest] if rest else "")).ljust(columns)


def _wrapped(sentence: str, width: int, hanging: int = 2, first: str = INDENT) -> list[str]:
    return textwrap.wrap(sentence, width - 2, initial_indent=first, subsequent_indent=" " * hanging)


def _pairs(pairs: Iterable[tuple[str, str]], width: int) -> list[str]:
    known = list(pairs)
    column = max((len(name) for name, _ in known), default=0) + 4
    return [line for name, value in known for line in _wrapped(value, width, column, f"{INDENT}{name}".ljust(column))]


def _title(title: str, unit: str) -> str:
    return f"{INDENT}{title} ({unit})" if unit else f"{INDENT}{title}"


def _table(table: Table, width: int) -> list[str]:
    """Columns as wide as their widest cell; a text in the last one is wrapped."""
    rows = [[str(cell) for cell in row] for row in (table.headers, *table.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    drawn = [INDENT + table.caption] if table.caption else []
    for *cells, last in rows:
        aligned = [
            cell.rjust(size) if index in table.numeric else cell.ljust(size)
            for index, (cell, size) in enumerate(zip(cells, widths, strict=False))
        ]
        first = INDENT + "".join(f"{cell}  " for cell in aligned)
        end = last.rjust(widths[-1]) if len(cells) in table.numeric else last
        drawn += [first + end] if len(first) > width - 20 else _wrapped(end, width, len(first), first) or [first]
    return drawn


def _bars(chart: Bars, width: int) -> list[str]:
    """A figure, its interval (or a bar, where no row has one) and its name; a note on lines of its own."""
    top = max((row.value for row in chart.rows if row.value and units.known(row.value)), default=1.0)
    intervals = [units.spread(row.low, row.high) for row in chart.rows]
    rows = [_title(chart.title, chart.unit)]
    for row, interval in zip(chart.rows, intervals, strict=True):
        beside = f"({interval})" if interval else "" if any(intervals) else bar((row.value or 0.0) / top)
        beside = "not measured" if row.value is None else beside
        predicted = f", predicted {units.number(row.predicted)}" if row.predicted is not None else ""
        rows.append(f"{INDENT}{units.number(row.value):>8}  {beside:<16} {row.label}{predicted}")
        rows += _wrapped(row.note, width, 12, " " * 12)
    if chart.reference is not None:
        rows.append(f"{INDENT}{units.number(chart.reference[1]):>8}  {'':<16} {chart.reference[0]}")
    return [*rows, *_wrapped(chart.note, width)]


def _stacks(chart: Stacks, width: int) -> list[str]:
    """The total as bars, the rows as a table of shares."""
    rows = [_title(chart.title, chart.unit)]
    if chart.total is not None:
        shares = _shares(chart.total)
        rows += [f"{INDENT}{name:<18}{bar(share)} {units.percent(share):>6}" for name, share in shares.items()]
    if chart.rows:
        names = list(dict.fromkeys(name for row in chart.rows for name in row.parts))
        cells = [[row.label, *(units.percent(_shares(row).get(name)) for name in names)] for row in chart.rows]
        numeric = range(1, len(names) + 1)
        rows += _table(Table(headers=["", *names], rows=cells, numeric=numeric), width)
    return [*rows, *_wrapped(chart.note, width)]


def _shares(stack: Stack) -> dict[str, float]:
    whole = sum(stack.parts.values()) or 1.0
    return {name: value / whole for name, value in stack.parts.items()}


def _listing(listing: Listing, width: int) -> list[str]:
    """The lines that took most, hottest first; a hint follows on a line of its own."""
    ranked = sorted(listing.lines, key=lambda line: -line.seconds)[:MOST_LINES]
    rows = [f"{INDENT}{'time':>9} {'share':>6} {'hits':>9}  {'line':<24}source"]
    for line in (line for line in ranked if line.seconds >= LEAST_OF_TOP * ranked[0].seconds):
        place = f"{line.file.rsplit('/', 1)[-1]}:{line.line}"
        place += "" if line.where == "trainer" else f" [{line.where}]"
        figures = f"{units.seconds(line.seconds):>9} {units.percent(line.fraction):>6} {line.hits:>9,}"
        cells = f"{INDENT}{figures}  {place:<23} "
        rows.append(cells + _cut(line.source.strip(), max(10, width - len(cells))))
        if hint := listing.hints.get((line.file, line.line)):
            rows.append(" " * 29 + f"↑ {hint}")
    return rows if listing.lines else []


def _cut(words: str, most: int) -> str:
    return words if len(words) <= most else words[: most - 1] + "…"
