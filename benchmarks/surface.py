"""What is known of settings from a few noisy windows: a Gaussian process over workers, batch size and prefetch.

Logarithms of rates: a count of workers, a batch size and a queue's depth each multiply the rate by a factor of their
own, settings close to each other by similar ones, and a little is left for what they do together. Its prior mean is
the throughput model's prediction. (Rasmussen and Williams, Gaussian Processes for Machine Learning, equations 2.23
and 2.24.)
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

NOISE = 0.05
"""Standard deviation of one window's logarithm, as seen between fresh processes on two shared cores."""
LEVEL, INLINE, TOGETHER = 1.0, 0.5, 0.03
"""Standard deviations of what is not predicted: of all rates alike, of those with workers against those without, and
of a cell by itself."""


class Prior(NamedTuple):
    """What is taken of one setting before anything was measured."""

    deviation: float = 0.10  # standard deviation of what is not predicted of it
    doublings: float = 1.0  # in which its settings are e times less alike
    least: int = 1  # of its values


PRIORS = {"num_workers": Prior(0.12, least=0), "batch_size": Prior(0.10, doublings=2), "prefetch_factor": Prior(0.05)}
"""By name; of another `Prior()`."""


class Posterior(NamedTuple):
    """Of the logarithm of a rate."""

    mean: float
    deviation: float


def surface(
    settings: Sequence[Mapping[str, Any]], prior: Sequence[float], seen: Mapping[int, tuple[float, int]]
) -> list[Posterior]:
    """What is known of each of `settings`, numbers by name, with their prior means, after windows of some: number of
    the setting -> mean logarithm and number of windows."""
    inline_C = np.array([float(setting["num_workers"] == 0) for setting in settings])
    inline = np.abs(inline_C[:, None] - inline_C)
    covariance, together = LEVEL**2 + INLINE**2 * (1 - inline), 1.0 - 0.5 * inline
    for name in settings[0]:
        of = PRIORS.get(name, Prior())
        at_C = np.array([math.log2(setting[name] + 1 - of.least) for setting in settings])
        near = np.exp(-np.abs(at_C[:, None] - at_C) / of.doublings)
        covariance += of.deviation**2 * near * (1.0 - 0.5 * inline if name == "num_workers" else 1.0)
        together *= near
    covariance += TOGETHER**2 * together
    at, prior_C = list(seen), np.asarray(prior)
    noise = np.diag([NOISE**2 / seen[number][1] for number in at])
    surprise = np.array([seen[number][0] for number in at]) - prior_C[at]
    gain = np.linalg.solve(covariance[np.ix_(at, at)] + noise, covariance[at]).T
    mean_C = prior_C + gain @ surprise
    variance_C = np.diag(covariance) - np.einsum("cs,sc->c", gain, covariance[at])
    deviation_C = np.sqrt(np.maximum(variance_C, 0.0))
    return [Posterior(*pair) for pair in zip(mean_C.tolist(), deviation_C.tolist(), strict=True)]
