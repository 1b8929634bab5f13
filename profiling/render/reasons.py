"""Why a remedy would not help, and remedies that share a reason told together. Pure."""

from collections.abc import Iterable

from feedline.profiling.explain.predict import NOTABLE, Prediction
from feedline.profiling.record import units


def in_vain(predictions: Iterable[Prediction]) -> dict[str, list[Prediction]]:
    """Those that do not help, by reason."""
    found: dict[str, list[Prediction]] = {}
    for one in predictions:
        if not one.helps:
            found.setdefault(why_not(one), []).append(one)
    return found


def why_not(prediction: Prediction) -> str:
    if prediction.vain:
        return prediction.why
    gain = units.times(prediction.gain)
    if prediction.gain > 1 + NOTABLE:
        return f"{gain}, which this run is too short or too uneven to tell from none: {prediction.why}"
    return f"little or no gain ({gain}): {prediction.why}"
