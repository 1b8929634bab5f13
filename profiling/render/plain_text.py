"""A page as plain text for a terminal. Pure: returns a string, prints nothing, uses no colour.

Lines keep within `width` (a table's and a name's apart); bars are drawn with block characters, so it reads the same
in a log file. Charts over time are left to HTML.
"""

import textwrap
from collections.abc import Iterable

from feedline.pipeline.base.text import printable
from feedline.profiling.record import units
from feedline.profiling.render import sections

BAR_COLUMNS = 30
BLOCKS = " ▏▎▍▌▋▊▉█"
MOST_LINES = 12
LEAST_OF_TOP = 0.005  # of the hottest line's time: what took less is left to HTML
INDENT = "  "


def text(page: sections.Page, *, width: int = 88) -> str:
    """A terminal obeys nothing in it."""
    blocks: list[list[str]] = []
    if page.verdict is not None:
        proof = _stacks(page.verdict.proof, width) if page.verdict.proof else []
        evidence = [line for sentence in page.verdict.evidence for line in _wrapped(sentence, width)]
        figures = _pairs(page.verdict.figures, width)
        blocks = [textwrap.wrap(page.verdict.words, width), proof, evidence, figures]
    for section in [page.verdict and page.verdict.first, *page.sections]:
        parts = [lines for part in section.parts if (lines := _part(part, width))] if section else []
        if section and parts:  # the heading stands right above its first part
            blocks += [[section.heading.upper(), *parts[0]], *parts[1:]]
    whole = "\n\n".join("\n".join(line.rstrip() for line in block) for block in blocks if block)
    return printable(whole + "\n", "\n")


def _part(part: sections.Part, width: int) -> list[str]:
    match part:
        case sections.Prose():
            return _wrapped(part.words, width)
        case sections.Points():
            return [line for item in part.items for line in _wrapped(f"· {item}", width, 4)]
        case sections.Code():
            return [INDENT + line for line in part.words.splitlines()]
        case sections.Facts():
            return _pairs([(name, str(value)) for name, value in part.items.items()], width)
        case sections.Reasons():
            return [line for name, why in part.items for line in _wrapped(f"{name}: {why}", width, 4)]
        case sections.Table():
            return _table(part, width)
        case sections.Listing():
            return _listing(part, width)
        case sections.Bars():
            return _bars(part, width)
        case sections.Remedies():
            return _remedies(part, width)
        case sections.Stacks():
            return _stacks(part, width)
        case sections.Pictures() | sections.Curves() | sections.Columns() | sections.Coordinates():
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


def _title(title: str, *units_: str) -> str:
    words = ", ".join(filter(None, units_))
    return f"{INDENT}{title} ({words})" if words else f"{INDENT}{title}"


def _table(table: sections.Table, width: int) -> list[str]:
    """Columns as wide as their widest cell; a text in the last one is wrapped."""
    rows = [[str(cell) for cell in row] for row in (table.headers, *table.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [INDENT + table.caption] if table.caption else []
    for row in rows:
        *cells, last = [
            row[i].rjust(widths[i]) if i in table.numeric else row[i].ljust(widths[i]) for i in range(len(row))
        ]
        first, end = INDENT + "".join(f"{cell}  " for cell in cells), last if len(cells) in table.numeric else row[-1]
        lines += [first + end] if len(first) > width - 20 else _wrapped(end, width, len(first), first) or [first]
    return lines


def _bars(chart: sections.Bars, width: int) -> list[str]:
    """A figure, its interval (or a bar, where no row has one) and its name; a note on lines of its own."""
    top = max((row.value for row in chart.rows if row.value and units.known(row.value)), default=1.0)
    intervals = [units.spread(row.low, row.high) for row in chart.rows]
    lines = [_title(chart.title, chart.unit, chart.interval if any(intervals) else "")]
    for row, interval in zip(chart.rows, intervals, strict=True):
        beside = f"({interval})" if interval else "" if any(intervals) else bar((row.value or 0.0) / top)
        beside = "not measured" if row.value is None else beside
        predicted = f", predicted {units.number(row.predicted)}" if row.predicted is not None else ""
        lines.append(f"{INDENT}{units.number(row.value):>8}  {beside:<16} {row.label}{predicted}")
        lines += _wrapped(row.note, width, 12, " " * 12)
    if chart.reference is not None:
        lines.append(f"{INDENT}{units.number(chart.reference[1]):>8}  {'':<16} {chart.reference[0]}")
    return [*lines, *_wrapped(chart.note, width)]


def _remedies(chart: sections.Remedies, width: int) -> list[str]:
    """The gain and the name, and beneath them why, what it takes and the command, which is not wrapped."""
    lines = [_title("Times as fast", sections.PREDICTED)]
    if units.known(chart.ceiling):
        lines[0] += f"; {sections.CEILING}: {units.times(chart.ceiling)}"
    for best, *variants in chart.rows:
        lines += _wrapped(f"{chart.gain(best)}  {best.remedy}", width, 6)
        terms = [f"{name} {words}" for name, words in chart.terms(best).items()]
        lines += [line for said in (best.why, *terms) for line in _wrapped(said, width, 8, " " * 6)]
        lines += [f"{' ' * 10}{line}" for line in best.command.splitlines()]
        for variant in variants:
            lines += _wrapped(f"or {chart.gain(variant)}  {variant.remedy}", width, 9, " " * 6)
    return lines


def _stacks(chart: sections.Stacks, width: int) -> list[str]:
    """The total as bars, the rows as a table of shares."""
    lines = [_title(chart.title, chart.unit, chart.errors)]
    said = chart.said(chart.total) if chart.total else []
    column = max((len(name) for name, _, _ in said), default=0) + 2
    lines += [f"{INDENT}{name:<{column}}{bar(share)} {words}" for name, share, words in said]
    if chart.rows:
        shares = [{name: words.replace(" %", "") for name, _, words in chart.said(row)} for row in chart.rows]
        names = list(dict.fromkeys(name for row in shares for name in row))
        cells = [[row.label, *(own.get(n, "") for n in names)] for row, own in zip(chart.rows, shares, strict=True)]
        numeric = range(1, len(names) + 1)
        lines += _table(sections.Table(headers=["in %", *names], rows=cells, numeric=numeric), width)
    return [*lines, *_wrapped(chart.note, width)]


def _listing(listing: sections.Listing, width: int) -> list[str]:
    """The lines that took most, hottest first; a hint follows on a line of its own."""
    ranked = sorted(listing.lines, key=lambda line: -line.seconds)[:MOST_LINES]
    rows = [f"{INDENT}{'time':>9} {'share':>6} {'hits':>9}  {'line':<24}source"]
    for line in (line for line in ranked if line.seconds >= LEAST_OF_TOP * ranked[0].seconds):
        place = f"{line.file.rsplit('/', 1)[-1]}:{line.line}"
        place += "" if line.where == "trainer" else f" [{line.where}]"
        figures = f"{units.seconds(line.seconds):>9} {units.percent(line.fraction):>6} {line.hits:>9,}"
        cells, source = f"{INDENT}{figures}  {place:<23} ", line.source.strip()
        most = max(10, width - len(cells))
        rows.append(cells + (source if len(source) <= most else source[: most - 1] + "…"))
        if hint := listing.hints.get((line.file, line.line)):
            rows.append(" " * 29 + f"↑ {hint}")
    return rows if listing.lines else []
