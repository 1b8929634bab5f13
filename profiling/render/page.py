"""One self-contained HTML page: sections of prose, tables and charts; style inline, no script, no network.

A content security policy in the page forbids it to fetch anything, so "works offline" is the browser's promise.
Everything that is not `Markup` is escaped.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from feedline.profiling.render.markup import Markup, join, tag

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(title: str, *body: object, kicker: str = "feedline", subtitle: object = "", footer: object = "") -> Markup:
    """A whole document. `kicker` is the small line above the title, `subtitle` the one below."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", f"{title} · {kicker}"),
        tag("style", Markup(_style())),
    )
    top = tag("header", tag("p", kicker, class_="kicker"), tag("h1", title), tag("p", subtitle, class_="subtitle"))
    bottom = tag("footer", footer) if footer else None
    return join(
        Markup("<!doctype html>\n"), tag("html", head, tag("body", tag("main", top, *body, bottom)), lang="en")
    )


def section(heading: str, *body: object, lede: object = "") -> Markup:
    """A heading, one sentence that says what to see, and what there is to see."""
    return tag("section", tag("h2", heading), tag("p", lede, class_="lede") if lede else None, *body)


def verdict(words: str, *, evidence: object, tone: str = "main", figures: Sequence[tuple[str, str]] = ()) -> Markup:
    """The first thing seen: the verdict in big words, its evidence in one paragraph, and the few numbers it rests
    on as (name, value). `tone`: main, good or bad."""
    cells = [tag("div", tag("dt", name), tag("dd", value)) for name, value in figures]
    numbers = tag("dl", *cells, class_="figures") if cells else None
    big = tag("p", together(words), class_="words")
    return tag("section", big, tag("p", together(evidence), class_="evidence"), numbers, class_=f"verdict {tone}")


def together(text: object) -> object:
    """A number and its per cent sign stay on one line."""
    return text if isinstance(text, Markup) else str(text).replace(" %", "\u00a0%")


def prose(*parts: object) -> Markup:
    return tag("p", *parts)


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    numeric: Sequence[int] = (),
    emphasised: Sequence[int] = (),
    caption: str = "",
) -> Markup:
    """A table that scrolls sideways inside itself on a narrow screen. `numeric` columns align right, `emphasised`
    rows stand out."""
    kind = dict.fromkeys(numeric, "number")
    head = tag("tr", *[tag("th", name, scope="col", class_=kind.get(i)) for i, name in enumerate(headers)])
    body = [
        tag(
            "tr",
            *[tag("td", cell, class_=kind.get(column)) for column, cell in enumerate(row)],
            class_="emphasised" if index in emphasised else None,
        )
        for index, row in enumerate(rows)
    ]
    inner = tag("table", tag("caption", caption) if caption else None, tag("thead", head), tag("tbody", *body))
    return tag("div", inner, class_="table", tabindex=0, role="region", aria_label=caption or " ".join(headers))


def facts(items: Mapping[str, object]) -> Markup:
    """Names and values in a compact grid."""
    return tag(
        "dl", *[tag("div", tag("dt", name), tag("dd", value)) for name, value in items.items()], class_="facts"
    )


def cards(items: Sequence[tuple[object, object, object]]) -> Markup:
    """Ranked advice: (heading, figure, words) each in its own box."""
    boxes = [
        tag(
            "li",
            tag("div", tag("strong", heading), tag("span", figure, class_="value"), class_="head"),
            tag("p", words),
        )
        for heading, figure, words in items
    ]
    return tag("ol", *boxes, class_="cards")


def code(text: str) -> Markup:
    """Preformatted text, scrolling inside itself."""
    return tag("pre", tag("code", text), tabindex=0)


def columns(*parts: object) -> Markup:
    """Side by side where there is room, one below the other where not."""
    return tag("div", *[tag("div", part) for part in parts], class_="columns")


def folded(summary: str, *body: object) -> Markup:
    """Details that open on demand; printed in full."""
    return tag("details", tag("summary", summary), *body)


@cache
def _style() -> str:
    return Path(__file__).with_name("page.css").read_text(encoding="utf-8")
