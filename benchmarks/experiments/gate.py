"""`make bench`: a short fixed set of ratios against the committed baseline. About three minutes.

    python -m feedline.benchmarks.experiments.gate            measure, compare, print; ends with 0: a person decides
    python -m feedline.benchmarks.experiments.gate --strict   ends with 1 where something got clearly slower
    python -m feedline.benchmarks.experiments.gate --update   write the baseline: `--out`, else results/gate.json

Absolute rates belong to a machine, ratios within one run hardly do: so the rungs of a small ladder are compared with
each other, round by round, and the ratios with those of the baseline.
"""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from feedline.benchmarks import commands
from feedline.benchmarks.demo import IMAGE_PX, SHARDS_PX
from feedline.benchmarks.experiments.harness import end_with, options, say, show, write
from feedline.benchmarks.ladder import NAIVE, climb, rungs_of
from feedline.benchmarks.measure.intervals import Estimate, compare
from feedline.benchmarks.measure.window import Window
from feedline.benchmarks.variants import find_train

IMAGES, ROUNDS, WINDOW_S = 900, 5, 1.5
SLOWER = 0.85
"""A ratio below this share of its baseline, with intervals that do not meet, is called slower."""
RATIOS = (
    ("shards", "as-is", "prepared shards, stock reader, by the script as it is"),
    ("loader", "shards", "feedline's loader by stock webdataset, same shards"),
    ("raw", "loader", "raw shards by JPEG shards, feedline's loader"),
    ("raw", "ceiling", "the top rung by free data"),
)
Ratios = dict[str, Estimate]


def main() -> int:
    given = options(__doc__, "gate.json", update=False, strict=False)
    with tempfile.TemporaryDirectory(prefix="feedline-gate-") as folder:
        ratios = measure(Path(folder))
    if given.update:
        made = datetime.now(UTC).isoformat(timespec="seconds")
        listed = [{"name": name, **asdict(ratio)} for name, ratio in ratios.items()]
        write(given.out, {"made": made, "images": IMAGES, "rounds": ROUNDS, "window_s": WINDOW_S, "ratios": listed})
    if not given.out.exists():
        say("no baseline yet: python -m feedline.benchmarks.experiments.gate --update")
    listed = json.loads(given.out.read_text())["ratios"] if given.out.exists() else []
    baseline = {one.pop("name"): Estimate(**one) for one in listed}
    slower = [name for name, now in ratios.items() if name in baseline and is_slower(now, baseline[name])]
    rows = [(name, words(now), words(baseline[name]) if name in baseline else "none",
             "SLOWER" if name in slower else "") for name, now in ratios.items()]  # fmt: skip
    show(("ratio", "now", "baseline", ""), rows)
    return 1 if slower and given.strict else 0


def measure(work: Path) -> Ratios:
    """Synthesises, prepares and climbs in `work`."""
    photos, prepared = work / "photos", work / "prepared"
    outputs = ["--output", f"{SHARDS_PX}:jpeg", "--output", f"{IMAGE_PX}:raw:square"]
    for argv in (
        ["synth", str(photos), "--layout", "folder", "--images", str(IMAGES)],
        ["prepare", str(photos), str(prepared), *outputs],
    ):
        commands.run(commands.Step(name=argv[0], argv=argv), work / "records", keep_text=True)
    rungs = rungs_of(2, find_train(prepared, "jpeg"), find_train(prepared, "raw", IMAGE_PX))
    script = [str(NAIVE), str(photos), "--epochs", "1000"]
    windows = climb(script, rungs, ROUNDS, WINDOW_S, lambda done, total: say(f"window {done + 1} of {total}"))
    return {name: ratio(windows[a], windows[b]) for a, b, name in RATIOS}


def ratio(a: Sequence[Window], b: Sequence[Window]) -> Estimate:
    return compare([window.samples_per_s for window in a], [window.samples_per_s for window in b]).ratio


def words(ratio: Estimate) -> str:
    interval = f" ({ratio.low:.2f}–{ratio.high:.2f})" if ratio.low is not None and ratio.high is not None else ""
    return f"{ratio.value:.2f}{interval}"


def is_slower(now: Estimate, before: Estimate) -> bool:
    apart = now.high is None or before.low is None or now.high < before.low
    return now.value < SLOWER * before.value and apart


if __name__ == "__main__":
    end_with(main)
