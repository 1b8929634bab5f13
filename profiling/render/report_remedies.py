"""The parts of a report that say what would help, a row a family of predictions, and what would not. Pure."""

from collections.abc import Iterable
from dataclasses import replace

from feedline.profiling.explain.predict import NOTABLE, Prediction
from feedline.profiling.explain.verdict import Diagnosis
from feedline.profiling.record import units
from feedline.profiling.render.sections import Prose, Reasons, Remedies, Remedy, Section, section

MOST_FAMILIES = 10
MOST_VARIANTS = 6


def remedies(diagnosis: Diagnosis) -> Remedies | None:
    """A row a family, in their order; None where no rate was measured."""
    measured, ceiling = diagnosis.measured, diagnosis.ceiling_samples_per_s
    rate, unit = measured.over_epochs, measured.unit
    if not diagnosis.predictions or rate is None:
        return None
    families: dict[str, list[Prediction]] = {}
    for prediction in diagnosis.predictions:
        if prediction.helps:
            families.setdefault(prediction.family or prediction.remedy, []).append(prediction)
    rows = [
        replace(_remedy(best, unit), variants=[_remedy(one, unit) for one in others[:MOST_VARIANTS]])
        for best, *others in families.values()
    ]
    most = max((one.end for row in rows for one in (row, *row.variants)), default=1.0)
    return Remedies(rows=rows[:MOST_FAMILIES], most=most, ceiling=ceiling / rate.value if ceiling else None)


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
    open_ = [p for p in diagnosis.predictions if _in_doubt(p)]
    if open_:
        rows = [_remedy(p, diagnosis.measured.unit) for p in open_]
        narrowed = "a longer run on a machine without other programs narrows what was measured"
        if any(p.family == "layout" for p in open_) and not diagnosis.recording.legs:
            narrowed += ", --legs measure what channels_last gives"
        words = (
            "These gains are too small or too uncertain to be told from none: "
            f"{narrowed}; what is only typical is best tried."
        )
        return section("What may help", Prose(words), Remedies(rows=rows, most=max(row.end for row in rows)))
    if not diagnosis.predictions or any(prediction.helps for prediction in diagnosis.predictions):
        return None
    return section("What would help", Prose("Nothing that can be predicted would make this run notably faster."))


def _in_doubt(prediction: Prediction) -> bool:
    return not prediction.helps and not prediction.vain and prediction.gain > 1 + NOTABLE


def _epochs(count: float) -> str:
    number = units.number(count, 2)
    return f"{number} epoch{'' if number == '1' else 's'}"


def _remedy(prediction: Prediction, unit: str) -> Remedy:
    p, epochs = prediction, prediction.break_even_epochs
    rate = units.rate(p.samples_per_s, unit)
    terms = {
        "gives": f"at most {rate}" if p.at_most else f"{rate} ({units.spread(p.low, p.high)})",
        "takes": p.cost + (f", paid back after {_epochs(epochs)}" if epochs is not None else ""),
        "needs": p.needs,
        "changes": p.changes and f"the training: {p.changes}",
    }
    return Remedy(
        name=p.remedy, gain=p.gain, low=p.gain_low, high=p.gain_high, why=p.why, command=p.command, at_most=p.at_most,
        terms={name: words for name, words in terms.items() if words},
    )  # fmt: skip


def in_vain(predictions: Iterable[Prediction]) -> Section | None:
    """What was considered, those with the same reason together."""
    by_reason: dict[str, list[str]] = {}
    for prediction in (one for one in predictions if not one.helps and not _in_doubt(one)):
        why = prediction.why.removeprefix("this will not help, because ")
        why = why if prediction.vain else f"little or no gain ({units.times(prediction.gain)}): {why}"
        by_reason.setdefault(why, []).append(prediction.remedy)
    reasons = [("; ".join(names), why) for why, names in by_reason.items()]
    return section("What would not help", Reasons(reasons)) if reasons else None
