"""How far the shard-window order is from a uniform shuffle. Pure arithmetic; of full random order both figures are
those that it is compared with.

    classes       expected number of distinct classes in a batch of B drawn from a window of W samples, of which n are
                  of class c, over the epoch's windows:  sum over c of 1 − C(W − n, B) / C(W, B)
    meets_again   how many times as likely as in full random order two samples of one batch share one in the next
                  epoch. Samples of a shard stay in one window; two shards share it by chance:
                  (B − 1) / (W − 1) × (p + (1 − p) (w − 1) / (K − 1)),  p = (S − 1) / (W − 1),
                  for K shards of S samples, w to a window of W = w S; over (B − 1) / (N − 1)

A sample's position in one epoch says nothing of its position in the next in either order: what is correlated from
epoch to epoch is who comes with whom.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from feedline.pipeline.draw.order import shuffled


class ShuffleQuality(NamedTuple):
    classes: float
    """Expected distinct classes in a batch …"""
    classes_at_random: float
    """… and in full random order."""
    meets_again: float
    """1 in full random order."""


def shuffle_quality(
    labels_N: npt.NDArray[np.int32],
    shards_N: npt.NDArray[np.int32],
    *,
    window_shards: int,
    batch_size: int,
    seed: int = 0,
) -> ShuffleQuality:
    """Of one epoch's windows of `window_shards` shards (0: full random order); `batch_size` is that of all ranks. A
    batch that is larger than a window is taken for the window."""
    samples, shards = len(labels_N), int(shards_N.max(initial=-1)) + 1
    whole = np.bincount(labels_N)[None]
    if not window_shards or window_shards >= shards or window_shards * samples <= shards:  # windows of one sample
        classes = _classes(whole, batch_size)
        return ShuffleQuality(classes, classes, 1.0)
    place_of_shard = np.empty(shards, np.int64)
    place_of_shard[shuffled(shards, seed, 0, stream=1)] = np.arange(shards)
    windows_N = place_of_shard[shards_N] // window_shards
    counts = np.zeros((int(windows_N.max()) + 1, whole.shape[1]), np.int64)
    np.add.at(counts, (windows_N, labels_N), 1)
    of_shard, of_window = samples / shards, window_shards * samples / shards
    same_shard = (of_shard - 1) / (of_window - 1)
    same_window = same_shard + (1 - same_shard) * (window_shards - 1) / (shards - 1)
    again = same_window * (samples - 1) / (of_window - 1)
    return ShuffleQuality(_classes(counts, batch_size), _classes(whole, batch_size), again)


def _classes(counts_WC: npt.NDArray[np.int64], batch_size: int) -> float:
    """Mean over windows, each by its samples."""
    sizes_W = counts_WC.sum(axis=1)
    log_factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, sizes_W.max() + 1)))))
    expected = 0.0
    for counts_C, size in zip(counts_WC, sizes_W.tolist(), strict=True):
        batch = min(batch_size, size)
        others_C = size - counts_C
        drawn_C = np.maximum(others_C - batch, 0)
        absent_C = np.exp(log_factorial[others_C] - log_factorial[drawn_C] - log_factorial[size]
                          + log_factorial[size - batch])  # fmt: skip
        expected += size * float((1.0 - np.where(others_C < batch, 0.0, absent_C)).sum())
    return expected / float(sizes_W.sum())
