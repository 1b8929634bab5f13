"""Trials for forecasts: what loading the script's own samples would cost from other shards."""

from dataclasses import replace

from feedline.profiling.recording import Recording


def with_trials(recording: Recording, *, size_px: int, raw_px: int | None) -> Recording:
    return replace(recording)
