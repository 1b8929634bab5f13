"""A page as one self-contained HTML document: style inline, no script, no network. Pure.

A content security policy in the page forbids it to fetch anything, so "works offline" is the browser's promise.
Everything that is not `Markup` is escaped.
"""

from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path

from feedline.profiling.record import units
from feedline.profiling.record.recording import Line
from feedline.profiling.render import charts, plots, sections
from feedline.profiling.render.markup import Markup, join, tag

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
MOST_LINES = 40  # of one function


def document(page: sections.Page) -> Markup:
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
    body = [tag("header", tag("p", page.kicker, class_="kicker"), tag("h1", page.title), subtitle)]
    if (verdict := page.verdict) is not None:
        words = tag("p", together(verdict.words), class_="words")
        evidence = tag("p", together(" ".join(verdict.evidence)), class_="evidence")
        figures = _terms(verdict.figures, "figures") if verdict.figures else None
        body.append(tag("section", words, evidence, figures, class_=f"verdict {verdict.tone}"))
    for section in page.sections:
        if section is not None:
            parts = [part(shown) for shown in section.parts]
            lede = tag("p", section.lede, class_="lede") if section.lede else None
            if section.side_by_side:
                parts = [tag("div", [tag("div", markup) for markup in parts], class_="columns")]
            body.append(tag("section", tag("h2", section.heading), lede, parts))
    if page.footer:
        body.append(tag("footer", page.footer))
    return join(Markup("<!doctype html>\n"), tag("html", head, tag("body", tag("main", body)), lang="en"))


def style() -> str:
    return Path(__file__).with_name("page.css").read_text(encoding="utf-8")


def together(words: str) -> str:
    """A number and its per cent sign stay on one line."""
    return words.replace(" %", "\u00a0%")


def part(shown: sections.Part) -> Markup:
    """A fragment of the document."""
    match shown:
        case sections.Prose():
            return tag("p", shown.words)
        case sections.Points():
            return tag("ul", *[tag("li", item) for item in shown.items], class_="notes")
        case sections.Code():
            return tag("pre", tag("code", shown.words), tabindex=0)
        case sections.Facts():
            return _terms(shown.items.items(), "facts")
        case sections.Reasons():
            return _terms([(name, f"{why[:1].upper()}{why[1:]}.") for name, why in shown.items], "vain")
        case sections.Pictures():
            return tag("div", [_picture(*item) for item in shown.items], class_="pictures")
        case sections.Table():
            return _table(shown)
        case sections.Listing():
            return _listing(shown)
        case sections.Bars():
            return charts.bars(shown)
        case sections.Stacks():
            return charts.stacks(shown)
        case sections.Heat():
            return charts.heat(shown)
        case sections.Curves():
            return plots.curves(shown)
        case sections.Columns():
            return plots.columns(shown)


def _terms(items: Iterable[tuple[str, object]], kind: str) -> Markup:
    return tag("dl", *[tag("div", tag("dt", name), tag("dd", value)) for name, value in items], class_=kind)


def _picture(name: str, below: str, jpeg: bytes) -> Markup:
    source = f"data:image/jpeg;base64,{b64encode(jpeg).decode()}"
    return tag("figure", tag("img", alt=name, src=source), tag("figcaption", below, title=name))


def _table(table: sections.Table) -> Markup:
    """It scrolls sideways inside itself on a narrow screen."""
    kind = dict.fromkeys(table.numeric, "number")
    head = tag("tr", *[tag("th", name, scope="col", class_=kind.get(i)) for i, name in enumerate(table.headers)])
    body: list[Markup] = []
    for index, row in enumerate(table.rows):
        cells = [tag("td", cell, class_=kind.get(column)) for column, cell in enumerate(row)]
        body.append(tag("tr", *cells, class_="emphasised" if index in table.emphasised else None))
    caption = tag("caption", table.caption) if table.caption else None
    inner = tag("table", caption, tag("thead", head), tag("tbody", *body))
    label = table.caption or " ".join(table.headers)
    return tag("div", inner, class_="table", tabindex=0, role="region", aria_label=label)


def _listing(listing: sections.Listing) -> Markup:
    """One table per function, the function that took most first, its hottest line marked."""
    functions: dict[tuple[str, str, str], list[Line]] = {}
    for line in listing.lines:
        functions.setdefault((line.file, line.function, line.where), []).append(line)
    tables: list[Markup] = []
    for body in sorted(functions.values(), key=lambda body: -sum(line.seconds for line in body)):
        lines = sorted(body, key=lambda line: line.line)[:MOST_LINES]
        first, whole = lines[0], units.seconds(sum(line.seconds for line in lines))
        rows: list[list[object]] = []
        for line in lines:
            hint = listing.hints.get((line.file, line.line))
            source = join(tag("code", line.source), tag("span", hint, class_="hint") if hint else None)
            share, seconds = units.percent(line.fraction), units.seconds(line.seconds)
            rows.append([line.line, f"{line.hits:,}", seconds, share, source])
        who = "" if first.where == "trainer" else f", {first.where}"
        hottest = max(range(len(lines)), key=lambda index: lines[index].seconds)
        tables.append(
            _table(
                sections.Table(
                    headers=["line", "hits", "time", "share", "source"], rows=rows, numeric=range(4),
                    emphasised=[hottest], caption=f"{first.function} in {first.file}{who}: {whole}",
                )
            )
        )  # fmt: skip
    return join(tables)
