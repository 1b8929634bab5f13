"""Standard errors of shares, ratios and rates: over blocks of time, and by the number of looks. Pure arithmetic."""

import math
import statistics
from collections.abc import Sequence

UNKNOWN_ERROR = 0.1  # of what was measured too seldom to have a spread
OF_A_MEDIAN = 1.25  # the error of a median over that of a mean


def few(count: int) -> float:
    """What a standard error over so many blocks is widened by, so that twice it is still a 95 % interval: about
    Student's t over the normal distribution's; for two, of which t knows next to nothing, as for three."""
    return math.sqrt((count - 1) / (count - 3)) if count > 3 else 2.2


def ratio_error(parts: Sequence[float], wholes: Sequence[float]) -> float:
    """Standard error of sum(parts), by how the blocks' ratios to `wholes` differ (Cochran, 1977, chapter 6), widened
    for few; 0 for fewer than three."""
    count = len(parts)
    if count < 3 or not sum(wholes):
        return 0.0
    ratio = sum(parts) / sum(wholes)
    squares = sum((a - ratio * b) ** 2 for a, b in zip(parts, wholes, strict=True))
    return few(count) * math.sqrt(count / (count - 1) * squares)


def share_error(parts: Sequence[float], wholes: Sequence[float]) -> float:
    """Absolute standard error of the parts' share of the whole, over blocks; a half, the most it can be, where there
    are fewer than four."""
    return ratio_error(parts, wholes) / sum(wholes) if len(wholes) > 3 and sum(wholes) > 0 else 0.5


def look_error(share: float, looks: float) -> float:
    """Absolute standard error of a share by so many independent looks: what one in so many more would show."""
    if looks < 2:
        return 0.5
    share = min(max(share, 1.0 / looks), 1.0 - 1.0 / looks)
    return math.sqrt(share * (1.0 - share) / looks)


def spread_error(values: Sequence[float]) -> float:
    """Relative standard error of the mean of `values`, widened for few; a tenth or more when there are too few to
    tell."""
    if len(values) < 2 or statistics.fmean(values) <= 0:
        return UNKNOWN_ERROR
    error = few(len(values)) * statistics.stdev(values) / statistics.fmean(values) / math.sqrt(len(values))
    return error if len(values) > 2 else max(error, UNKNOWN_ERROR)
