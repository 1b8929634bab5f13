"""Is `feedline profile` right about training scripts whose truth was written down before? The whole collection of
tests/scripts, and what it scored.

    python -m tests.lab.collection --work DIR [--held-out] [--only NAME…] [--runs 3] [--busy 2] [--feedline PATH]

Of each script: one plain run with its own stopwatch; profiled runs of 20 s, and one with --legs; a short run to the
end with and without the profiler, which must leave the same files; and two of its remedies that an argument or the
environment carries out, against the script as it is. Beside busy processes (`--busy`) only the profiled runs.
Every run is kept in the work folder under a name that holds what it depends on: the same command again goes on where
it was ended, and judges what is there. A recording depends on the code that makes it; its verdict is told anew
(`feedline report`) where that code has changed. The frameworks' packages are what `make test-frameworks` installs.

Prints a table and a summary, and writes benchmarks/results/collection.json (collection-busy.json beside busy
processes).
"""

import argparse
import math
import statistics
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from feedline.benchmarks.experiments.harness import RESULTS, beside, end_with, say, show, write
from feedline.pipeline.base.errors import UsageError
from tests.lab.collection_gains import Gain, carried_out_by, gain_of, scored
from tests.lab.collection_judge import Judged, changed, judge, last_line, more_left, of_plain
from tests.lab.collection_runs import ROOT, Kind, Lab, Ran, Script, scripts

FRAMEWORKS = ROOT / ".frameworks"
KINDS = ("plain", "profiled", "legs", "whole", "gains")
PAIRS = 2
"""Of runs with and without a remedy, in turns."""


@dataclass(frozen=True, kw_only=True)
class Studied:
    """One script and what came of its runs."""

    script: Script
    shares: dict[str, float] = field(default_factory=dict)
    """Of the loop's laps in the plain run."""
    rate: float | None = None
    others_cores: float | None = None
    """Taken by other programs beside the plain run, whose rate then says little."""
    runs: list[Judged] = field(default_factory=list)
    legs: list[Judged] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    """Side effects in the run to the end."""
    gains: list[Gain] = field(default_factory=list)
    not_carried_out: str = ""
    """The first remedy, where it takes a person."""

    @property
    def overhead(self) -> float | None:
        """The median share of the loop's rate that profiling costs."""
        if self.rate is None or not (rates := [run.rate for run in self.runs if run.rate]):
            return None
        return 1 - statistics.median(rates) / self.rate


def main() -> int:
    args = arguments()
    found = sorted((args.frameworks / "lib").glob("python*/site-packages"))
    if not found:
        raise UsageError(f"no packages in {args.frameworks}: run make test-frameworks")
    work = args.work.resolve()
    lab = Lab(work=work, feedline=args.feedline.absolute(), frameworks=found[0], busy=args.busy, say=say)
    lab.make_data()
    studied: list[Studied] = []
    for script in scripts(args.only or (), held_out=args.held_out):
        studied.append(study(lab, script, args))
        say(words_of(studied[-1]))
    table(studied)
    figures = summary(studied)
    for name, value in figures.items():
        print(f"{name.replace('_', ' ')}: {value}")
    out = args.out or RESULTS / f"collection{'-held-out' * args.held_out}{'-busy' * bool(args.busy)}.json"
    write(
        out,
        {
            "n": len(studied),
            "recorded_by": lab.recorder,
            "told_by": lab.reader,
            "busy": args.busy,
            "summary": figures,
            "scripts": rows(studied),
        },
    )
    return 0


def arguments() -> argparse.Namespace:
    kind = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m tests.lab.collection", description=__doc__, formatter_class=kind)
    parser.add_argument("--work", type=Path, required=True, help="data, runs and caches; one collection at a time")
    parser.add_argument("--held-out", action="store_true", help="the scripts that no rule was written for")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--runs", type=int, default=3, help="profiled runs of each script (3)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, help="all; beside busy processes: profiled")
    parser.add_argument("--gains", type=int, default=2, help="remedies of a script that are carried out (2)")
    parser.add_argument("--busy", type=int, default=0, help="processes that burn CPU beside the profiled runs")
    parser.add_argument(
        "--feedline", type=Path, default=ROOT / ".venv" / "bin" / "feedline", help="another checkout's"
    )
    parser.add_argument("--frameworks", type=Path, default=FRAMEWORKS, help="their environment")
    parser.add_argument("--out", type=Path, help="where the figures go")
    args = parser.parse_args()
    args.kinds = args.kinds or (["profiled"] if args.busy else list(KINDS))
    return args


# --- the runs -----------------------------------------------------------------------------------------


def study(lab: Lab, script: Script, args: argparse.Namespace) -> Studied:
    shares, rate, known, troubles, gains, left = {}, None, list[Ran](), list[str](), list[Gain](), ""
    if "plain" in args.kinds:
        known.append(run(lab, "plain", script))
        shares, rate = of_plain(script, known[0])
        if known[0].status:
            troubles.append(f"fails by itself: {last_line(known[0])}")
    if "whole" in args.kinds:
        whole, profiled = run(lab, "whole", script), run(lab, "whole_profiled", script)
        known.append(whole)
        troubles += changed(whole, profiled)
    runs = [run(lab, "profiled", script, number) for number in range(args.runs if "profiled" in args.kinds else 0)]
    legs = [run(lab, "legs", script)] if "legs" in args.kinds else []
    if "gains" in args.kinds:
        gains, left = measured_gains(lab, script, (legs or runs)[:1], args.gains)
    if "whole" in args.kinds:
        troubles += [trouble for ran in (*runs, *legs) for trouble in more_left(ran, *known)]
    return Studied(
        script=script,
        shares=shares,
        rate=rate,
        others_cores=known[0].others_cores if known else None,
        runs=[judge(script, ran) for ran in runs],
        legs=[judge(script, ran) for ran in legs],
        troubles=sorted(set(troubles)),
        gains=gains,
        not_carried_out=left,
    )


def run(lab: Lab, kind: Kind, script: Script, number: int = 0, **more: Any) -> Ran:
    say(f"{script.name}: {kind} {number + 1}")
    with beside(lab.busy) if lab.busy and kind in ("profiled", "legs") else nullcontext():
        return lab.run(kind, script, number, **more)


def measured_gains(lab: Lab, script: Script, profiles: Sequence[Ran], most: int) -> tuple[list[Gain], str]:
    """Of the first remedies that can be carried out, so many, those too that are said not to help; and the first of
    all, if it cannot."""
    offered = [one for ran in profiles for one in ran.profile.get("predictions", [])]
    ways = [carried_out_by(script, one) for one in offered]
    applied = [rank for rank, way in enumerate(ways) if way is not None][:most]
    logs: dict[int, list[float]] = {rank: [] for rank in applied}
    for number in range(PAIRS if applied else 0):
        before = of_plain(script, run(lab, "without", script, number))[1]
        for rank in applied:
            words, environment = ways[rank] or ([], {})
            after = of_plain(script, run(lab, "with", script, number, more=words, env=environment))[1]
            if before and after:
                logs[rank].append(math.log(after / before))
    measured = {rank: math.exp(statistics.mean(each)) for rank, each in logs.items() if each}
    gains = [gain_of(script, offered[rank], gain, rank=rank + 1) for rank, gain in measured.items()]
    return gains, offered[0]["remedy"] if offered and offered[0]["helps"] and ways[0] is None else ""


# --- what came out ------------------------------------------------------------------------------------


def table(studied: Sequence[Studied]) -> None:
    headers = ("script", "stopwatch", "verdict", "cause", "first remedy", "share inside", "overhead", "side effects")
    show(headers, [row(one) for one in studied])


def row(one: Studied) -> tuple[str, ...]:
    runs, script = [*one.runs, *one.legs], one.script
    truths = [run.truth for run in runs if run.truth is not None] or list(
        filter(None, [one.shares.get(script.share)])
    )
    stopwatch = f"{script.share} {statistics.median(truths):.1%}" if truths else f"{script.share} ?"
    inside = [run.inside for run in runs if run.inside is not None]
    troubles = [*one.troubles, *(trouble for run in runs for trouble in run.troubles)]
    return (
        script.name,
        stopwatch,
        tally([(run.bound or "?", run.verdict in ("right", "close", "shown")) for run in runs]),
        tally([(run.cause, run.cause_right is not False) for run in runs if run.cause]),
        tally([(run.remedy, run.remedy_right) for run in runs]),
        f"{sum(inside)}/{len(inside)}" if inside else "",
        f"{one.overhead:+.1%}" if one.overhead is not None else "",
        "; ".join(sorted(set(troubles))) or "none",
    )


def tally(said: Sequence[tuple[str, bool]]) -> str:
    """How many were right, and what was said, most often first; what was wrong is marked."""
    if not said:
        return ""
    answers = sorted(set(said), key=lambda answer: -said.count(answer))
    return f"{sum(right for _, right in said)}/{len(said)} " + ", ".join(
        f"{w}{'' if ok else ' !'}" for w, ok in answers
    )


def words_of(one: Studied) -> str:
    return "  ".join(filter(None, row(one)))


def summary(studied: Sequence[Studied]) -> dict[str, Any]:
    runs = [run for one in studied for run in one.runs]
    cells = [(one.script.name, run) for one in studied for run in one.runs]
    figures = counts(cells)
    of_legs = counts([(one.script.name, run) for one in studied for run in one.legs])
    inside = [run.inside for run in runs if run.inside is not None]
    errors = [run.error for run in runs if run.error]
    return {
        **figures,
        "share_inside": f"{sum(inside)}/{len(inside)}",
        "share_half_width_median": 1.64 * statistics.median(errors) if errors else None,
        "overhead_said_median": middle(run.overhead for run in runs),
        "overhead_of_the_rate_median": middle(one.overhead for one in studied),
        "others_cores_median": middle(one.others_cores for one in studied),
        "side_effects": sorted(
            one.script.name for one in studied if one.troubles or any(r.troubles for r in one.runs)
        ),
        "with_legs": of_legs,
        "gains": scored([gain for one in studied for gain in one.gains]),
        "gains_of_first_remedies": scored([gain for one in studied for gain in one.gains if gain.rank == 1]),
        "gains_of_those_said_to_help": scored([gain for one in studied for gain in one.gains if gain.helps]),
        "first_remedies_that_take_a_person": sum(bool(one.not_carried_out) for one in studied),
    }


def counts(cells: Sequence[tuple[str, Judged]]) -> dict[str, Any]:
    runs = [run for _, run in cells]
    with_cause = [run for run in runs if run.cause_right is not None]
    return {
        "verdict_right": f"{sum(run.verdict in ('right', 'close') for run in runs)}/{len(runs)}",
        "cannot_tell": [f"{name}: {run.headline}" for name, run in cells if run.verdict == "unknown"],
        "otherwise_in_the_run": [f"{name}: {run.bound}" for name, run in cells if run.verdict == "shown"],
        "confidently_wrong": [f"{name}: {run.bound} {run.cause}" for name, run in cells if run.confidently_wrong],
        "close_and_not_said": [name for name, run in cells if run.is_close and not run.close and run.bound],
        "cause_right": f"{sum(bool(run.cause_right) for run in with_cause)}/{len(with_cause)}",
        "first_remedy_right": f"{sum(run.remedy_right for run in runs)}/{len(runs)}",
    }


def middle(values: Iterable[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return round(statistics.median(there), 4) if there else None


def rows(studied: Sequence[Studied]) -> dict[str, Any]:
    return {
        one.script.name: {
            "stopwatch": {name: round(share, 4) for name, share in one.shares.items()},
            "laps_per_s": one.rate,
            "others_cores": one.others_cores,
            "runs": [of_run(run) for run in one.runs],
            "legs": [of_run(run) for run in one.legs],
            "side_effects": one.troubles,
            "gains": [{**asdict(gain), "inside": gain.inside} for gain in one.gains],
            "takes_a_person": one.not_carried_out,
        }
        for one in studied
    }


def of_run(run: Judged) -> dict[str, Any]:
    return {**asdict(run), "inside": run.inside}


if __name__ == "__main__":
    end_with(main)
