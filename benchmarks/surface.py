"""What is known of settings from a few noisy windows: a Gaussian process over workers, batch size and prefetch.

Logarithms of rates: a count of workers, a batch size and a queue's depth each multiply the rate by a factor of their
own, settings close to each other by similar ones, and a little is left for what they do together. Its prior mean is
the throughput model's prediction. (Rasmussen and Williams, Gaussian Processes for Machine Learning, equations 2.23
and 2.24.)
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

NOISE = 0.05
"""Standard deviation of one window's logarithm, as seen between fresh processes on two shared cores."""
LEVEL, INLINE, WORKERS, BATCH, PREFETCH, TOGETHER = 1.0, 0.5, 0.12, 0.10, 0.05, 0.03
"""Standard deviations of what is not predicted: of all rates alike, of those with workers against those without, by
axis, and of a cell by itself."""


class Posterior(NamedTuple):
    """Of the logarithm of a rate."""

    mean: float
    deviation: float


def surface(
    settings: Sequence[tuple[int, int, int]], prior: Sequence[float], seen: Mapping[int, tuple[float, int]]
) -> list[Posterior]:
    """What is known of each of `settings` (workers, prefetch, batch size), with their prior means, after windows of
    some: number of the setting -> mean logarithm and number of windows."""
    points = np.array(
        [[workers == 0, *np.log2([workers + 1, batch, prefetch])] for workers, prefetch, batch in settings]
    )
    inline, workers, batch, prefetch = np.moveaxis(np.abs(points[:, None] - points[None]), -1, 0)
    near_workers, near_batch, near_prefetch = (
        np.exp(-workers) * (1 - 0.5 * inline),
        np.exp(-batch / 2),
        np.exp(-prefetch),
    )
    covariance = (
        LEVEL**2
        + INLINE**2 * (1 - inline)
        + WORKERS**2 * near_workers
        + BATCH**2 * near_batch
        + PREFETCH**2 * near_prefetch
        + TOGETHER**2 * near_workers * near_batch * near_prefetch
    )
    at, prior_C = list(seen), np.asarray(prior)
    noise = np.diag([NOISE**2 / seen[number][1] for number in at])
    surprise = np.array([seen[number][0] for number in at]) - prior_C[at]
    gain = np.linalg.solve(covariance[np.ix_(at, at)] + noise, covariance[at]).T
    mean_C = prior_C + gain @ surprise
    variance_C = np.diag(covariance) - np.einsum("cs,sc->c", gain, covariance[at])
    deviation_C = np.sqrt(np.maximum(variance_C, 0.0))
    return [Posterior(*pair) for pair in zip(mean_C.tolist(), deviation_C.tolist(), strict=True)]
