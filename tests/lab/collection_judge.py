"""What a profile said of a script of the collection, against what is true of it. Pure.

The truth is what truths.toml accepts, written before the first profile, and the laps of the script's own stopwatch in
the very run: from the first measured step to the end of the last one.
"""

import re
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from feedline.pipeline.base.errors import RecordingError
from feedline.profiling.explain.cause import KINDS
from feedline.profiling.record.recording import Recording
from tests.lab.collection_processes import LOOP, STEPS
from tests.lab.collection_runs import SETTLE_S, Lap, Ran, Script

SHARES = {"wait": "data", "own": "trainer", "compute": "compute"}
"""The profiler's share of each lap."""
THRESHOLDS = {"wait": 0.10, "own": 0.25}
CLOSE = 0.03
"""A true share this near to its threshold may go either way, if the verdict says that it is close."""
ERRORS_90 = 1.64
ALSO_CAUSES: Mapping[str, Collection[str]] = {
    "read": ("blocked", "lock"),
    "source": ("blocked",),
    "send": ("unpickle", "handover"),
}
"""Causes that are a finer word for one that truths.toml accepts; there `send` is pickling or handing over batches."""
ALSO_REMEDIES: Mapping[str, Collection[str]] = {
    "workers": ("dataloader",),
    "send": ("uint8",),
    "compute": ("layout", "memory", "autocast"),
}
"""`workers` of a script without DataLoader means one that has them, `compute` whatever makes the model faster."""
FAMILIES = (
    (r"^num_workers=", "workers"),
    (r"^prefetch_factor=", "prefetch"),
    (r"^persistent_workers", "persistent"),
    (r"^pin_memory", "pin"),
    (r"^mend worker", "slow-worker"),
    (r"^cheaper send", "send"),
    (r"^cheaper ", "stage"),
    (r"^uint8", "uint8"),
    (r"^prepared ", "shards"),
    (r"^your files", "loader"),
    (r"^cache in RAM", "cache"),
    (r"^faster storage", "storage"),
    (r"^less Python", "python"),
    (r"^no hidden", "sync"),
    (r"^channels_last", "layout"),
    (r"^freed memory", "memory"),
    (r"^autocast", "autocast"),
    (r"GPUs$", "gpus"),
)
"""Of the remedies of a profiler that names no families: what their words begin with."""
Verdict = Literal["right", "wrong", "close", "shown", "unknown"]
"""shown: not what was written down, but what the stopwatch of this very run shows, as beside busy processes; counted
apart."""


@dataclass(frozen=True, kw_only=True)
class Remedy:
    family: str
    target: str
    words: str

    def __str__(self) -> str:
        return f"{self.family}:{self.target}" if self.target else self.family


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One profiled run."""

    bound: str | None
    verdict: Verdict
    headline: str
    close: bool
    """It says that its bound is close to another."""
    is_close: bool
    """It is, by the stopwatch."""
    cause: str
    cause_right: bool | None
    """None: it names none, or there is none to name."""
    remedy: str
    remedy_right: bool
    found: float | None
    error: float | None
    truth: float | None
    overhead: float | None
    rate: float | None
    """Laps a second of the loop."""
    troubles: list[str] = field(default_factory=list)
    """Side effects."""

    @property
    def inside(self) -> bool | None:
        """None where a share, its error or its truth is missing."""
        if self.found is None or not self.error or self.truth is None:
            return None
        return abs(self.found - self.truth) <= ERRORS_90 * self.error

    @property
    def confidently_wrong(self) -> bool:
        return self.verdict == "wrong" or self.cause_right is False


def judge(script: Script, ran: Ran) -> Judged:
    profile = ran.profile
    said: dict[str, Any] = profile.get("verdict", {})
    name = SHARES[script.share]
    shares, rate = of_profiled(script, ran)
    truth = shares.get(script.share)
    is_close = truth is not None and abs(truth - THRESHOLDS.get(script.share, -1.0)) <= CLOSE
    verdict = _verdict(script, said, shares, is_close=is_close)
    cause, cause_right = _cause(script, profile)
    first = first_remedy(profile)
    seen = said.get("bound") is not None or said.get("errors")
    return Judged(
        bound=said.get("bound"),
        verdict=verdict,
        headline=said.get("headline") or last_line(ran),
        close=bool(said.get("close")),
        is_close=is_close,
        cause=cause,
        cause_right=cause_right if verdict in ("right", "close") else None,
        remedy=str(first or "nothing") if said else "",
        remedy_right=bool(said) and any(fits(first, accepted) for accepted in script.remedies),
        found=said.get("shares", {}).get(name) if seen else None,
        error=said.get("errors", {}).get(name),
        truth=truth,
        overhead=said.get("overhead_fraction"),
        rate=rate,
        troubles=_ending(ran),
    )


def _verdict(script: Script, said: Mapping[str, Any], shares: Mapping[str, float], *, is_close: bool) -> Verdict:
    bound, others = said.get("bound"), said.get("close") or []
    if bound is None:
        return "unknown"
    if bound in script.bound:
        return "right"
    if is_close and set(others) & set(script.bound):
        return "close"
    return "shown" if shares and bound == bound_of(shares) else "wrong"


def bound_of(shares: Mapping[str, float]) -> str:
    """By the laps: the largest share at or above its threshold, else compute."""
    above = [name for name in THRESHOLDS if shares.get(name, 0.0) >= THRESHOLDS[name]]
    return SHARES[max(above, key=lambda name: shares[name])] if above else "compute"


def _cause(script: Script, profile: Mapping[str, Any]) -> tuple[str, bool | None]:
    """In words, and whether it is among those accepted; None where none was named or is to be named."""
    said = profile.get("verdict", {})
    cause = said.get("cause") if "cause" in said else derived_cause(profile)
    if not cause or not (cause.get("kind") or cause.get("where")):
        return "", None
    kind, where = cause.get("kind") or "", cause.get("where") or ""
    words = " ".join(filter(None, (kind, where)))
    if said.get("bound") not in ("data", "trainer") or not script.cause:
        return words, None
    if said["bound"] == "trainer":
        return words, bool(names(where) & set(script.cause))
    accepted = {*script.cause, *(also for one in script.cause for also in ALSO_CAUSES.get(one, ()))}
    return words, bool({kind, cause.get("also"), *(names(where) - {*KINDS})} & accepted)


def derived_cause(profile: Mapping[str, Any]) -> dict[str, str] | None:
    """Of a profiler that names none: its slow worker, its lack of workers, its largest stage, its busiest place."""
    said = profile.get("verdict", {})
    evidence = " ".join(said.get("evidence", []))
    if said.get("bound") == "trainer":
        return {"kind": "python", "where": _busiest(evidence)}
    if said.get("bound") != "data":
        return None
    if re.search(r"[Ww]orker \d+ (takes|needs)", evidence):
        return {"kind": "slow-worker", "where": ""}
    if _workers(profile) == 0:
        return {"kind": "main", "where": ""}
    stages = {n: share for n, share in profile.get("stages", {}).items() if n not in ("idle", "other")}
    return {"kind": max(stages, key=lambda name: stages[name]), "where": ""} if any(stages.values()) else None


def first_remedy(profile: Mapping[str, Any]) -> Remedy | None:
    """What is said to help, or else to be tried first; None where nothing is."""
    offered, tried = profile.get("predictions", []), profile.get("verdict", {}).get("first")
    return remedy_of(offered[0], profile) if offered and (offered[0]["helps"] or tried) else None


def remedy_of(prediction: Mapping[str, Any], profile: Mapping[str, Any]) -> Remedy:
    words = prediction["remedy"]
    if family := prediction.get("family"):
        return Remedy(family=family, target=prediction.get("target") or "", words=words)
    family = next((family for pattern, family in FAMILIES if re.search(pattern, words)), words)
    target, workers = "", _workers(profile)
    if family == "workers" and workers is not None and prediction["settings"]["num_workers"] < workers:
        family = "fewer-workers"
    if family == "stage":
        target = words.removeprefix("cheaper ")
    if family == "python":
        target = _busiest(" ".join(profile["verdict"].get("evidence", [])))
    return Remedy(family=family, target=target, words=words)


def fits(remedy: Remedy | None, accepted: str) -> bool:
    """Whether it is the one that truths.toml calls so: `nothing`, a family, or `family:name`."""
    if remedy is None:
        return accepted == "nothing"
    family, _, name = accepted.partition(":")
    if name:
        return remedy.family == family and name in names(remedy.target)
    return remedy.family in (family, *ALSO_REMEDIES.get(family, ()))


def names(text: str) -> set[str]:
    """The identifiers in it: `transform Denoise`, `train.py:Scores.update:12`."""
    return set(re.findall(r"\w+", text))


def _busiest(evidence: str) -> str:
    found = re.search(r"own time is in (\S+)\.", evidence)
    return found[1] if found else ""


def _workers(profile: Mapping[str, Any]) -> int | None:
    loaders = profile.get("recording", {}).get("loaders", [])
    training = [one for one in loaders if one.get("phase") == "train"] or loaders
    return training[0].get("num_workers") if training else None


def last_line(ran: Ran) -> str:
    return (ran.printed.strip() or "nothing printed").splitlines()[-1]


# --- the stopwatch ------------------------------------------------------------------------------------


def of_plain(script: Script, ran: Ran) -> tuple[dict[str, float], float | None]:
    """Shares of the loop's laps, and laps a second, from a while behind the first step on."""
    loop, pids = _loop(script, ran)
    if not loop:
        return {}, None
    ends = sorted(lap.end_s for lap in loop if lap.name == script.share)
    start_s, end_s = ends[: STEPS * len(pids)][-1] + SETTLE_S, max(lap.end_s for lap in loop)
    if end_s <= start_s:
        return {}, None
    windows = dict.fromkeys(pids, (start_s, end_s))
    return {name: share_of(name, loop, windows) for name in LOOP}, _rate(script, loop, windows)


def of_profiled(script: Script, ran: Ran) -> tuple[dict[str, float], float | None]:
    """(shares of the loop's laps, laps a second) between the first measured step and the end of the last one."""
    loop, pids = _loop(script, ran)
    if not loop or not ran.profile or ran.origin_s is None:
        return {}, None
    try:
        recording = Recording.from_dict(ran.profile["recording"])
    except RecordingError:  # an old commit's: what it says can be judged, its windows are not known
        return {}, None
    by_rank = {one.rank: one.pid for one in recording.trainers if one.pid in pids}
    windows: dict[int, tuple[float, float]] = {}
    measured = [step for step in recording.steps if step.measured]
    for rank in {step.rank for step in measured}:
        steps = [step for step in measured if step.rank == rank]
        pid = by_rank.get(rank, min(pids)) if len(pids) > 1 else min(pids)
        end_s = max(step.start_s + step.duration_s for step in steps)
        windows[pid or 0] = (ran.origin_s + min(step.start_s for step in steps), ran.origin_s + end_s)
    if not windows:
        return {}, None
    return {name: share_of(name, loop, windows) for name in LOOP}, _rate(script, loop, windows)


def share_of(name: str, laps: Iterable[Lap], windows: Mapping[int, tuple[float, float]]) -> float:
    """Of the time of the processes' windows."""
    inside_s = sum(
        max(0.0, min(lap.end_s, windows[lap.pid][1]) - max(lap.start_s, windows[lap.pid][0]))
        for lap in laps
        if lap.name == name and lap.pid in windows
    )
    return inside_s / sum(end_s - start_s for start_s, end_s in windows.values())


def _loop(script: Script, ran: Ran) -> tuple[list[Lap], set[int]]:
    """The laps of the processes that train."""
    pids = {lap.pid for lap in ran.laps if lap.name == script.share}
    return [lap for lap in ran.laps if lap.pid in pids and lap.name in LOOP], pids


def _rate(script: Script, laps: Sequence[Lap], windows: Mapping[int, tuple[float, float]]) -> float | None:
    """Of a lap that is one a step; between the first and the last end, so that none is counted in part."""
    name = "compute" if any(lap.name == "compute" for lap in laps) else script.share
    rates: list[float] = []
    for pid, (start_s, end_s) in windows.items():
        ends = [lap.end_s for lap in laps if lap.pid == pid and lap.name == name and start_s <= lap.end_s <= end_s]
        if len(ends) > 2:
            rates.append((len(ends) - 1) / (ends[-1] - ends[0]))
    return statistics.mean(rates) if rates else None


# --- side effects -------------------------------------------------------------------------------------


def _ending(ran: Ran) -> list[str]:
    if ran.interrupted:
        return ["trained on behind --seconds"]
    if ran.status is None:
        return ["did not end"]
    return ([f"status {ran.status}"] if ran.status else []) + _processes(ran)


def _processes(ran: Ran) -> list[str]:
    return [f"leaves process {name}" for name in ran.processes]


def changed(whole: Ran, profiled: Ran) -> list[str]:
    """What differs in a run to the end that is profiled."""
    troubles: list[str] = []
    if whole.status != profiled.status:
        troubles.append(f"status {profiled.status} instead of {whole.status}")
    with_it, without = (Counter(map(kind_of, ran.files)) for ran in (profiled, whole))
    troubles += [f"leaves {kind}" for kind in sorted(with_it - without)]
    troubles += [f"does not leave {kind}" for kind in sorted(without - with_it)]
    more = kinds_of(profiled.temporary) - kinds_of(whole.temporary)
    troubles += [f"leaves {kind} among temporary files" for kind in sorted(more)]
    return troubles + ([] if whole.processes else _processes(profiled))


def more_left(ran: Ran, *others: Ran) -> list[str]:
    """Kinds of files in a run that was ended which no run without a profiler left."""
    known = set[str]().union(*(kinds_of(other.files) for other in others))
    return [f"leaves {file}" for file in sorted(kinds_of(ran.files) - known)]


def kinds_of(files: Iterable[str]) -> set[str]:
    return set(map(kind_of, files))


def kind_of(file: str) -> str:
    """Its name without numbers and random parts."""
    return re.sub(r"\d+", "N", re.sub(r"(?<=tmp|\w\w-|\w\w_)[a-z0-9_]{8}(?=/|$)", "*", file))
