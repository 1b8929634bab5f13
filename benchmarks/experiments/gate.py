"""`make bench`: a short fixed set of ratios against the committed baseline. About three minutes.

    python -m feedline.benchmarks.experiments.gate            measure, compare, print; ends with 0: a person decides
    python -m feedline.benchmarks.experiments.gate --strict   ends with 1 where something got clearly slower
    python -m feedline.benchmarks.experiments.gate --update   write the baseline, benchmarks/results/gate.json

Absolute rates belong to a machine, ratios within one run hardly do: so the rungs of a small ladder are compared with
each other, round by round, and the ratios with those of the baseline.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from feedline.benchmarks import commands
from feedline.benchmarks.demo import IMAGE_PX, SHARDS_PX
from feedline.benchmarks.exit import end_with
from feedline.benchmarks.ladder import Climbed, LadderConfig, climb
from feedline.benchmarks.ladder_run import NAIVE, find_train
from feedline.benchmarks.measure.intervals import Estimate, compare
from feedline.pipeline.base.files import write_atomically
from feedline.profiling.record.host import describe_host

BASELINE = Path(__file__).parents[1] / "results" / "gate.json"
IMAGES = 900
ROUNDS = 5
WINDOW_S = 1.5
SLOWER = 0.85
"""A ratio below this share of its baseline, with intervals that do not meet, is called slower."""
RATIOS = (
    ("shards", "as-is", "prepared shards, stock reader, by the script as it is"),
    ("loader", "shards", "feedline's loader by stock webdataset, same shards"),
    ("raw", "loader", "raw shards by JPEG shards, feedline's loader"),
    ("raw", "ceiling", "the top rung by free data"),
)


@dataclass(frozen=True, kw_only=True)
class Ratio:
    name: str
    value: float
    low: float | None
    high: float | None
    n: int


def main() -> int:
    parser = argparse.ArgumentParser(description="Ratios of a small ladder against the committed baseline.")
    parser.add_argument("--update", action="store_true", help="write the baseline")
    parser.add_argument("--strict", action="store_true", help="end with 1 where something got clearly slower")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="feedline-gate-") as folder:
        ratios = measure(Path(folder))
    if args.update:
        write_baseline(ratios)
    baseline = read_baseline(BASELINE)
    slower = show(ratios, baseline)
    return 1 if slower and args.strict else 0


def measure(work: Path) -> list[Ratio]:
    """Synthesises, prepares and climbs in `work`."""
    photos, prepared = work / "photos", work / "prepared"
    outputs = ["--output", f"{SHARDS_PX}:jpeg", "--output", f"{IMAGE_PX}:raw:square"]
    for name, argv in (
        ("synth", ["synth", str(photos), "--layout", "folder", "--images", str(IMAGES)]),
        ("prepare", ["prepare", str(photos), str(prepared), *outputs]),
    ):
        commands.run(commands.Step(name=name, argv=argv), work / "records", keep_text=True)
    config = LadderConfig(
        argv=[str(NAIVE), str(photos), "--epochs", "1000"],
        shards=find_train(prepared, "jpeg"),
        raw=find_train(prepared, "raw", IMAGE_PX),
        rounds=ROUNDS,
        window_s=WINDOW_S,
    )
    ladder = climb(config, {}, lambda done, total: print(f"\rwindow {done + 1} of {total}", end="", file=sys.stderr))
    print(file=sys.stderr)
    by_key = {one.rung.key: one for one in [*ladder.rungs, ladder.ceiling]}
    return [ratio(name, by_key[a], by_key[b]) for a, b, name in RATIOS]


def ratio(name: str, a: Climbed, b: Climbed) -> Ratio:
    found: Estimate = compare(
        [window.samples_per_s for window in a.windows], [window.samples_per_s for window in b.windows]
    ).ratio
    return Ratio(name=name, value=found.value, low=found.low, high=found.high, n=found.n)


def write_baseline(ratios: list[Ratio]) -> None:
    said: dict[str, Any] = {
        "command": "python -m feedline.benchmarks.experiments.gate --update",
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": describe_host(),
        "images": IMAGES,
        "rounds": ROUNDS,
        "window_s": WINDOW_S,
        "ratios": [asdict(one) for one in ratios],
    }
    write_atomically(BASELINE, (json.dumps(said, indent=1) + "\n").encode())


def read_baseline(path: Path) -> dict[str, Ratio]:
    """{} where none was committed."""
    if not path.exists():
        return {}
    return {one["name"]: Ratio(**one) for one in json.loads(path.read_text())["ratios"]}


def show(ratios: list[Ratio], baseline: dict[str, Ratio]) -> list[str]:
    """Prints the table; the names of what got clearly slower."""
    slower = [one.name for one in ratios if one.name in baseline and is_slower(one, baseline[one.name])]
    print(f"{'ratio':<58} {'now':>18} {'baseline':>18}")
    for one in ratios:
        before = words(baseline[one.name]) if one.name in baseline else "none"
        print(f"{one.name:<58} {words(one):>18} {before:>18}{'  SLOWER' if one.name in slower else ''}")
    if not baseline:
        print("no baseline yet: python -m feedline.benchmarks.experiments.gate --update")
    return slower


def words(ratio: Ratio) -> str:
    interval = f" ({ratio.low:.2f}–{ratio.high:.2f})" if ratio.low is not None and ratio.high is not None else ""
    return f"{ratio.value:.2f}{interval}"


def is_slower(now: Ratio, before: Ratio) -> bool:
    apart = now.high is None or before.low is None or now.high < before.low
    return now.value < SLOWER * before.value and apart


if __name__ == "__main__":
    end_with(main)
