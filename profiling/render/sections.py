"""What a page says, as plain data: a `Page` is a verdict and sections, a section is a heading and parts.

`html.document` and `plain_text.text` render the same page, each a pure function: a new section or number is written
once and shown by both. Pictures and charts over time need room: they are for HTML alone.

Marks mean the same on every page, and legends take their words from here: a filled bar was measured, a hollow one and
a diamond were predicted; a whisker is the interval named below; a dashed line is a ceiling. The tone `open` is for
what cannot be told: neither good nor bad.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from feedline.profiling.explain.predict import Prediction
from feedline.profiling.record import units
from feedline.profiling.record.recording import Line

Tone = Literal["main", "muted", "good", "bad", "open"]
MEASURED = "95 % interval"
PREDICTED = "predicted, 90 % interval"
POINTS = "± points: 95 % interval"
CEILING = "ceiling, data for free"
LEAST_SHARE = 0.0005  # less of a whole is nothing


@dataclass(frozen=True)
class Prose:
    words: str  # one paragraph


@dataclass(frozen=True)
class Points:
    items: Sequence[str]  # sentences that stand side by side


@dataclass(frozen=True)
class Code:
    words: str  # preformatted text


@dataclass(frozen=True)
class Facts:
    items: Mapping[str, object]  # names and short values


@dataclass(frozen=True)
class Reasons:
    items: Sequence[tuple[str, str]]  # names, each with a sentence


@dataclass(frozen=True)
class Pictures:
    items: Sequence[tuple[str, str, bytes]]  # (name, what is written below, JPEG)


@dataclass(frozen=True, kw_only=True)
class Table:
    headers: Sequence[str]
    rows: Sequence[Sequence[object]]
    numeric: Collection[int] = ()  # columns that align right
    emphasised: Collection[int] = ()  # rows that stand out
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Lines of source with what they took; `hints` say what a hot line is, by (file, line)."""

    lines: Sequence[Line]
    hints: Mapping[tuple[str, int], str]


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One row of `Bars`: a value (None: not measured, and shown as a dash) with its interval, drawn as a whisker, and
    what was said before it was measured: a diamond with its own, thinner whisker. `note` is a line under the bar."""

    label: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    predicted: float | None = None
    predicted_low: float | None = None
    predicted_high: float | None = None
    note: str = ""
    tone: Tone = "main"


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Horizontal bars with intervals."""

    rows: Sequence[Bar]
    title: str
    unit: str = "samples/s"
    reference: tuple[str, float] | None = None  # (name, value) of a dashed line through all of them
    value_name: str = "measured"  # what the legend calls the bars
    interval: str = MEASURED  # and their whiskers
    staircase: bool = False  # each bar shows what it adds to the one before, and its factor over the first
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Remedies:
    """What would help, ranked: a row is one way, and behind it others to do the same. Drawn from 0 to `most` times as
    fast; of an upper bound (`at_most`) no interval is shown."""

    rows: Sequence[Sequence[Prediction]]
    unit: str
    most: float
    ceiling: float | None = None  # times as fast, with data for free

    def gain(self, one: Prediction) -> str:
        return units.gain(one.gain, one.gain_low, one.gain_high, at_most=one.at_most)

    def terms(self, one: Prediction) -> dict[str, str]:
        """What it gives, takes, needs, changes. Of a bound, as many samples/s as its gain makes of the rate now."""
        most = one.gain_high / one.gain if one.at_most and one.gain else 1.0
        rate, epochs = units.rate(one.samples_per_s * most, self.unit), one.break_even_epochs
        terms = {
            "gives": f"at most {rate}" if one.at_most else f"{rate} ({units.spread(one.low, one.high)})",
            "takes": one.cost + (f", paid back after {_epochs(epochs)}" if epochs is not None else ""),
            "needs": one.needs,
            "changes": one.changes and f"the training: {one.changes}",
        }
        return {name: words for name, words in terms.items() if words}


def _epochs(count: float) -> str:
    number = units.number(count, 2)
    return f"{number} epoch{'' if number == '1' else 's'}"


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Named parts of one whole, all in one unit (None: not measured); `errors` are the standard errors of their
    shares, None or absent where one is not known."""

    label: str
    parts: Mapping[str, float | None]
    errors: Mapping[str, float | None] = field(default_factory=dict[str, float | None])
    note: str = ""

    @property
    def shares(self) -> dict[str, float]:
        """They sum to 1; but where a part was not measured, the others are shares already, and it is the rest."""
        known = {name: max(part, 0.0) if units.known(part) else 0.0 for name, part in self.parts.items()}
        least = 1.0 if None in self.parts.values() else 0.0
        whole = max(sum(known.values()), least) or 1.0
        return {name: part / whole for name, part in known.items()}


@dataclass(frozen=True, kw_only=True)
class Stacks:
    """Rows of parts that add up, each drawn to its own whole. `total` is the sum or mean of the `rows`, and first;
    HTML folds the rows beneath it, under `rows_name`."""

    total: Stack | None = None
    rows: Sequence[Stack] = ()
    rows_name: str = "each"
    title: str
    unit: str = "share of time"
    note: str = ""

    @property
    def stacks(self) -> list[Stack]:
        return [*([self.total] if self.total else []), *self.rows]

    @property
    def errors(self) -> str:
        """What the legend says of them."""
        known = [units.known(stack.errors.get(name)) for stack in self.stacks for name, *_ in _parts(stack)]
        return POINTS + ("" if all(known) else ", ?: not known") if any(known) else "errors not known"

    def said(self, stack: Stack) -> list[tuple[str, float, str]]:
        """(name, share, the share in words with its error) of every part that is something."""
        said = [
            (name, share, units.share(share, error) if self.errors.startswith(POINTS) else units.percent(share))
            for name, share, error in _parts(stack)
        ]
        return said + [(name, 0.0, "not known") for name, part in stack.parts.items() if part is None]


def _parts(stack: Stack) -> list[tuple[str, float, float | None]]:
    """(name, share, error) of those that are something."""
    return [(name, share, stack.errors.get(name)) for name, share in stack.shares.items() if share >= LEAST_SHARE]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Points (x, y) in order of x; y None is a gap, never a zero. `intervals` are (low, high) of each point, drawn as
    whiskers, and the points as marks; for few points: none is thinned. A `faint` one is one of many: behind the
    others, and not in the legend."""

    name: str
    points: Sequence[tuple[float, float | None]]
    intervals: Sequence[tuple[float | None, float | None]] = ()
    faint: bool = False


@dataclass(frozen=True, kw_only=True)
class Shade:
    """A span of x with a meaning: warm-up, evaluation."""

    start: float
    end: float
    name: str


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Curves over a common x axis; the y axis starts at zero and holds at least `y_max`."""

    curves: Sequence[Curve]
    title: str
    y_unit: str
    x_unit: str = "s"
    shades: Sequence[Shade] = ()
    interval: str = MEASURED  # what the legend calls the whiskers
    y_max: float | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Stacked columns, one per step: the height of each part at each of `starts`."""

    parts: Mapping[str, Sequence[float]]
    starts: Sequence[float]
    title: str
    y_unit: str
    x_unit: str = "s"
    shades: Sequence[Shade] = ()
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Axis:
    name: str
    ticks: Sequence[tuple[float, str]]  # the place, from 0 to 1, and its label


@dataclass(frozen=True, kw_only=True)
class Coordinates:
    """Parallel coordinates: a line across all axes for each of many things, drawn the stronger the heavier it is. The
    last line stands out."""

    axes: Sequence[Axis]
    lines: Sequence[tuple[str, float, Sequence[float | None]]]
    """Name, weight and places, all from 0 to 1; None: a gap."""
    title: str
    note: str = ""


Part: TypeAlias = (
    Prose | Points | Code | Facts | Reasons | Pictures | Table | Listing
    | Bars | Remedies | Stacks | Curves | Columns | Coordinates
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The first thing seen: big words, what proves them at a glance, the sentences and the few numbers behind it, and
    the first thing to do."""

    words: str
    proof: Stacks | None = None
    first: "Section | None" = None
    evidence: Sequence[str] = ()
    figures: Sequence[tuple[str, str]] = ()
    tone: Tone = "main"


@dataclass(frozen=True, kw_only=True)
class Section:
    heading: str
    parts: Sequence[Part]
    lede: str = ""  # how to read what HTML draws
    side_by_side: bool = False  # parts may stand beside each other where there is room


@dataclass(frozen=True, kw_only=True)
class Page:
    """`kicker` is the small line above the title; `command`, what was run, stands below it, then `subtitle`. A
    section that is None has nothing to say of this run."""

    title: str
    sections: Sequence[Section | None]
    verdict: Verdict | None = None
    kicker: str = "feedline"
    command: str = ""
    subtitle: str = ""
    footer: str = ""


def section(heading: str, *parts: Part | None, lede: str = "", side_by_side: bool = False) -> Section | None:
    """Of the parts that there are; None without any."""
    there = [part for part in parts if part is not None]
    return Section(heading=heading, parts=there, lede=lede, side_by_side=side_by_side) if there else None
