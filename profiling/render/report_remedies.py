"""The parts of a report that say what would help, a row a family of predictions, and what would not. Pure."""

from collections.abc import Iterable
from dataclasses import replace

from feedline.profiling.explain.predict import Prediction
from feedline.profiling.explain.verdict import Diagnosis
from feedline.profiling.record import units
from feedline.profiling.render.sections import Prose, Reasons, Remedies, Section, section

MOST_FAMILIES = 10
MOST_VARIANTS = 6
OF_SHARDS = ("shards", "own-shards", "loader", "own-loader")
UNSURE = (
    "It mends what the loop waits for, but what it gains is too small or too uncertain to be told from none: try it, "
    "and profile again."
)


def remedies(diagnosis: Diagnosis, *, sure: bool = True) -> Remedies | None:
    """Those that help, or (not `sure`) may: a row a family, in their order; None where no rate was measured."""
    measured, ceiling = diagnosis.measured, diagnosis.ceiling_samples_per_s
    rate = measured.over_epochs
    if not diagnosis.predictions or rate is None:
        return None
    families: dict[str, list[Prediction]] = {}
    for prediction in diagnosis.predictions:
        if prediction.helps if sure else prediction.in_doubt:
            families.setdefault(prediction.family or prediction.remedy, []).append(prediction)
    rows = [family[: 1 + MOST_VARIANTS] for family in families.values()]
    times = ceiling / rate.value if ceiling else None
    return Remedies(rows=rows[:MOST_FAMILIES], unit=measured.unit, most=_most(rows), ceiling=times)


def _most(rows: Iterable[Iterable[Prediction]]) -> float:
    """The end of what is drawn of them."""
    return max((one.gain_high for row in rows for one in row), default=1.0)


def first_to_do(diagnosis: Diagnosis) -> Section | None:
    """For the verdict."""
    first = diagnosis.first
    found = remedies(diagnosis, sure=first.helps) if first else None
    if first is None or found is None:
        return None
    chart = replace(found, rows=found.rows[:1])
    return section("Do this first", chart) if first.helps else section("Try this first", Prose(UNSURE), chart)


def what_helps(diagnosis: Diagnosis) -> Section | None:
    """Beside the first thing to do, which stands in the verdict; all, where that cannot tell what bounds the loop."""
    found, told = remedies(diagnosis), diagnosis.bound is not None
    if found is None or not found.rows[told:]:
        return None
    heading = "What else would help" if told else "What would help, as far as it can be told"
    lede = "Predicted from this run, ranked. Check one by applying it and profiling again."
    return section(heading, replace(found, rows=found.rows[told:]), lede=lede)


def what_may_help(diagnosis: Diagnosis) -> Section | None:
    """Gains that cannot be told from none; where nothing at all helps, that it is so."""
    found, tried = remedies(diagnosis, sure=False), diagnosis.first is not None and not diagnosis.first.helps
    if found is not None and found.rows[tried:]:
        rows = found.rows[tried:]
        open_ = [row[0] for row in rows]
        narrowed = "a longer run on a machine without other programs narrows what was measured"
        if any(p.family == "layout" for p in open_) and not diagnosis.recording.legs:
            narrowed += ", --legs measure what channels_last gives"
        words = (
            "These gains are small, or too uncertain to be told from none: "
            f"{narrowed}; what is only typical is best tried"
            f"{', before hardware is bought' if any(p.bought for p in open_) else ''}."
        )
        chart = replace(found, rows=rows, most=_most(rows), ceiling=None)
        return section("What else may help" if tried else "What may help", Prose(words), chart)
    if tried or not diagnosis.predictions or any(prediction.helps for prediction in diagnosis.predictions):
        return None
    return section("What would help", Prose("Nothing that can be predicted would make this run notably faster."))


def in_vain(predictions: Iterable[Prediction]) -> Section | None:
    """What was considered, those with the same reason together: of shards what is then the limit."""
    by_reason: dict[str, list[str]] = {}
    for prediction in (one for one in predictions if not one.helps and not one.in_doubt):
        why = prediction.why.removeprefix("this will not help, because ")
        limit = why.partition("; ")[2] if prediction.family in OF_SHARDS else ""
        if not prediction.vain:
            gain = "" if limit else f" ({units.times(prediction.gain)})"
            why = f"little or no gain{gain}: {limit or why}"
        by_reason.setdefault(why, []).append(prediction.remedy)
    reasons = [("; ".join(names), why) for why, names in by_reason.items()]
    return section("What would not help", Reasons(reasons)) if reasons else None
