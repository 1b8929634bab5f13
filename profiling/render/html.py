"""A page as one self-contained HTML document: style inline, no script, no network. Pure.

A content security policy in the page forbids it to fetch anything, so "works offline" is the browser's promise.
Everything that is not `Markup` is escaped.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from feedline.profiling.record import units
from feedline.profiling.record.recording import Line
from feedline.profiling.render import charts, plots
from feedline.profiling.render.markup import Markup, join, tag
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
    Stacks,
    Table,
    Verdict,
)

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
MOST_LINES = 40
"""Of one function."""


def document(page: Page) -> Markup:
    """The whole document."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", f"{page.title} · {page.kicker}"),
        tag("style", Markup(style())),
    )
    below = join(tag("code", page.command), " · ") if page.command else ""
    subtitle = tag("p", below, page.subtitle, class_="subtitle")
    top = tag("header", tag("p", page.kicker, class_="kicker"), tag("h1", page.title), subtitle)
    body = [_section(section) for section in page.sections if section]
    verdict = _verdict(page.verdict) if page.verdict else None
    bottom = tag("footer", page.footer) if page.footer else None
    whole = tag("html", head, tag("body", tag("main", top, verdict, *body, bottom)), lang="en")
    return join(Markup("<!doctype html>\n"), whole)


@cache
def style() -> str:
    return Path(__file__).with_name("page.css").read_text(encoding="utf-8")


def _verdict(verdict: Verdict) -> Markup:
    cells = [tag("div", tag("dt", name), tag("dd", value)) for name, value in verdict.figures]
    return tag(
        "section",
        tag("p", together(verdict.words), class_="words"),
        tag("p", together(" ".join(verdict.evidence)), class_="evidence"),
        tag("dl", *cells, class_="figures") if cells else None,
        class_=f"verdict {verdict.tone}",
    )


def together(words: str) -> str:
    """A number and its per cent sign stay on one line."""
    return words.replace(" %", "\u00a0%")


def _section(section: Section) -> Markup:
    parts = [part(one) for one in section.parts]
    lede = tag("p", section.lede, class_="lede") if section.lede else None
    beside = tag("div", *[tag("div", one) for one in parts], class_="columns") if section.side_by_side else parts
    return tag("section", tag("h2", section.heading), lede, beside)


def part(one: Part) -> Markup:
    """A fragment of the document."""
    match one:
        case Prose():
            return tag("p", one.words)
        case Points():
            return tag("ul", *[tag("li", item) for item in one.items], class_="notes")
        case Code():
            return tag("pre", tag("code", one.words), tabindex=0)
        case Facts():
            return _terms([(name, value) for name, value in one.items.items()], "facts")
        case Reasons():
            return _terms([(name, f"{why[:1].upper()}{why[1:]}.") for name, why in one.items], "vain")
        case Table():
            return _table(one)
        case Listing():
            return _listing(one)
        case Bars():
            return charts.bars(one)
        case Stacks():
            return charts.stacks(one)
        case Heat():
            return charts.heat(one)
        case Curves():
            return plots.curves(one)
        case Columns():
            return plots.columns(one)


def _terms(items: Sequence[tuple[str, object]], kind: str) -> Markup:
    return tag("dl", *[tag("div", tag("dt", name), tag("dd", value)) for name, value in items], class_=kind)


def _table(table: Table) -> Markup:
    """It scrolls sideways inside itself on a narrow screen."""
    kind = dict.fromkeys(table.numeric, "number")
    head = tag("tr", *[tag("th", name, scope="col", class_=kind.get(i)) for i, name in enumerate(table.headers)])
    body = [
        tag(
            "tr",
            *[tag("td", cell, class_=kind.get(column)) for column, cell in enumerate(row)],
            class_="emphasised" if index in table.emphasised else None,
        )
        for index, row in enumerate(table.rows)
    ]
    caption = tag("caption", table.caption) if table.caption else None
    inner = tag("table", caption, tag("thead", head), tag("tbody", *body))
    label = table.caption or " ".join(table.headers)
    return tag("div", inner, class_="table", tabindex=0, role="region", aria_label=label)


def _listing(listing: Listing) -> Markup:
    """One table per function, the function that took most first, its hottest line marked."""
    groups: dict[tuple[str, str, str], list[Line]] = {}
    for line in listing.lines:
        groups.setdefault((line.file, line.function, line.where), []).append(line)
    ranked = sorted(groups.values(), key=lambda body: -sum(line.seconds for line in body))
    in_order = [sorted(body, key=lambda line: line.line)[:MOST_LINES] for body in ranked]
    return join(*[_function_table(body, listing.hints) for body in in_order])


def _function_table(body: Sequence[Line], hints: Mapping[tuple[str, int], str]) -> Markup:
    first, whole = body[0], units.seconds(sum(line.seconds for line in body))
    who = "" if first.where == "trainer" else f", {first.where}"
    return _table(
        Table(
            headers=["line", "hits", "time", "share", "source"],
            rows=[_line_row(line, hints.get((line.file, line.line), "")) for line in body],
            numeric=range(4),
            emphasised=[max(range(len(body)), key=lambda index: body[index].seconds)],
            caption=f"{first.function} in {first.file}{who}: {whole}",
        )
    )


def _line_row(line: Line, hint: str) -> list[object]:
    share, seconds = units.percent(line.fraction), units.seconds(line.seconds)
    source = join(tag("code", line.source), tag("span", hint, class_="hint") if hint else None)
    return [line.line, f"{line.hits:,}", seconds, share, source]
