"""What is known of settings from a few noisy windows: a Gaussian process over workers, batch size and prefetch.

Logarithms of rates: a count of workers, a batch size and a queue's depth each multiply the rate by a factor of their
own, settings close to each other by similar ones, and a little is left for what they do together. Its prior mean is
the throughput model's prediction. (Rasmussen and Williams, Gaussian Processes for Machine Learning, equations 2.23
and 2.24.)
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

NOISE = 0.05
"""Standard deviation of one window's logarithm, as seen between fresh processes on two shared cores."""
LEVEL, INLINE, WORKERS, BATCH, PREFETCH, TOGETHER = 1.0, 0.5, 0.12, 0.10, 0.05, 0.03
"""Standard deviations of what is not foretold: of all rates alike, of those with workers against those without, by
axis, and of a cell by itself."""

Floats = npt.NDArray[np.float64]


class Known(NamedTuple):
    """Of the logarithm of a rate."""

    mean: float
    deviation: float


def surface(
    cells: Sequence[Mapping[str, Any]],
    prior: Sequence[float],
    seen: Mapping[int, tuple[float, int]],
) -> list[Known]:
    """What is known of each of `cells` (with their prior means) after windows of some: number of the cell -> mean
    logarithm and number of windows."""
    covariance = kernel([coordinates(cell) for cell in cells])
    at, prior_C = list(seen), np.asarray(prior)
    noise = np.diag([NOISE**2 / seen[number][1] for number in at])
    found = np.array([seen[number][0] for number in at]) - prior_C[at]
    gain = np.linalg.solve(covariance[np.ix_(at, at)] + noise, covariance[at]).T
    mean_C = prior_C + gain @ found
    variance_C = np.diag(covariance) - np.einsum("cs,sc->c", gain, covariance[at])
    deviation_C = np.sqrt(np.maximum(variance_C, 0.0))
    return [Known(float(mean), float(deviation)) for mean, deviation in zip(mean_C, deviation_C, strict=True)]


def coordinates(cell: Mapping[str, Any]) -> list[float]:
    workers = cell["num_workers"]
    return [float(workers == 0), *np.log2([workers + 1, cell["batch_size"], cell["prefetch_factor"]])]


def kernel(places: Sequence[Sequence[float]]) -> Floats:
    apart = np.abs(np.asarray(places)[:, None] - np.asarray(places)[None])
    inline, workers, batch, prefetch = np.moveaxis(apart, -1, 0)
    own = np.exp(-workers) * (1 - 0.5 * inline)
    near_batch, near_prefetch = np.exp(-batch / 2), np.exp(-prefetch)
    return (
        LEVEL**2
        + INLINE**2 * (1 - inline)
        + WORKERS**2 * own
        + BATCH**2 * near_batch
        + PREFETCH**2 * near_prefetch
        + TOGETHER**2 * own * near_batch * near_prefetch
    )
