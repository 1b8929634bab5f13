"""Every head-to-head in one command: loaders and preparing tools, each in an environment of its own, one page.

    python -m feedline.benchmarks.peers.peers_report [--images 2000 --rounds 3 --work DIR]

Makes a synthetic image folder, runs `benchmarks.peers.loading` and `benchmarks.peers.preparing` over it (their
records are results/loading.json and results/prepare-peers.json), and writes results/heads.html from the two.
`--page` only writes the page from the records that are there.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feedline.benchmarks.commands import FEEDLINE
from feedline.benchmarks.experiments.harness import RESULTS, end_with, options
from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.files import write_atomically
from feedline.profiling.record import units
from feedline.profiling.render.html import document
from feedline.profiling.render.sections import Bar, Bars, Page, Section, Table, Tone, Verdict, section

LIMIT = "limit: bare kernel"
PREPARING_LIMIT = "limit: bare pool"
RANGE = "range of the rounds"
TITLES = {
    "jpeg": ("From 256 px JPEG", "RandomResizedCrop 224 and flip, batches of 64, the same JPEG bytes for all"),
    "planes": (
        "Without entropy decoding",
        "feedline's planes beside FFCV's raw pixels, RandomResizedCrop 224 and flip",
    ),
    "keep": ("From the original files", "unprepared JPEGs around 500 × 375 px, RandomResizedCrop 224 and flip"),
    "scaling": ("More workers", "feedline over the same JPEG shards, its workers varied"),
    "raw": ("64 px raw pixels", "a batch is a copy: beside a plain NumPy gather of the same bytes"),
}


def main() -> None:
    given = options(__doc__, "heads.html", images=2000, rounds=3, work=Path, page=False)
    if given.images < 1 or given.rounds < 1:
        raise UsageError("--images and --rounds: at least 1")
    if not given.page:
        with tempfile.TemporaryDirectory(prefix="feedline-heads-") as scratch:
            measure(given.images, given.rounds, given.work or Path(scratch))
    page = heads_page(record("loading.json"), record("prepare-peers.json"))
    write_atomically(given.out, document(page).encode())
    print(given.out)


def measure(images: int, rounds: int, work: Path) -> None:
    """Raises CalledProcessError when a part cannot be measured at all; a peer that fails is a row that says so."""
    photos, count = work / "photos", ["--rounds", str(rounds)]
    peers = [sys.executable, "-m", "feedline.benchmarks.peers"]
    synth = [*FEEDLINE, "synth", str(photos), "--layout", "folder", "--images", str(images)]
    train = str(photos / "train")
    for command in (
        *([] if photos.exists() else [synth]),
        [*peers[:2], f"{peers[2]}.loading", train, "--work", str(work / "loading"), *count],
        [*peers[:2], f"{peers[2]}.preparing", train, *count],
    ):
        subprocess.run(command, check=True)


def record(name: str) -> Mapping[str, Any]:
    """Raises UsageError where it has not been measured yet."""
    try:
        return json.loads((RESULTS / name).read_text())
    except OSError as error:
        raise UsageError(f"results/{name} is not there: run without --page first") from error


def heads_page(loading: Mapping[str, Any], preparing: Mapping[str, Any]) -> Page:
    """Pure."""
    host = loading["host"]
    method = (
        f"{host['cores']} cores of {host['cpu']}; every tool in an environment of its own, the same images, fresh "
        "processes in rounds of random order, medians with the range of the rounds, page cache warm."
    )
    tables = [loading_section(name, rows) for name, rows in loading["tables"].items()]
    return Page(
        title="Head to head",
        verdict=Verdict(words=headline(loading, preparing), evidence=[method]),
        sections=[*tables, preparing_section(preparing)],
        kicker="feedline benchmarks",
    )


def headline(loading: Mapping[str, Any], preparing: Mapping[str, Any]) -> str:
    rows = loading["tables"]["jpeg"]
    ours = next(row["samples_per_s"] for row in rows if row["name"] == "feedline")
    peers = {row["name"]: row["samples_per_s"] for row in rows if is_peer(row) and row["samples_per_s"]}
    best = max(peers, key=lambda name: peers[name])
    ahead = preparing["feedline_is_times_faster"]
    nearest = min(ahead, key=lambda name: ahead[name]["median"])
    return (
        f"Loading JPEG: {units.times(ours / peers[best])} the rate of {best}, the best of {len(peers)} others. "
        f"Preparing: {units.times(ahead[nearest]['median'])} that of {nearest}, the best of {len(ahead)}."
    )


def is_peer(row: Mapping[str, Any]) -> bool:
    return not row["name"].startswith(("feedline", "limit", "bare", "NumPy"))


def tone(name: str) -> Tone:
    return "good" if name.startswith("feedline") else "main" if is_peer({"name": name}) else "muted"


def loading_section(name: str, rows: list[Mapping[str, Any]]) -> Section | None:
    title, lede = TITLES.get(name, (name, ""))
    limit = next((row["samples_per_s"] for row in rows if row["name"] == LIMIT), None)
    bars = [
        Bar(label=row["name"], value=row["samples_per_s"], low=row["low"], high=row["high"], tone=tone(row["name"]),
            note=row["problem"] or (f"hands over {row['batch']}" if row["batch"] != "none" else ""))
        for row in rows
    ]  # fmt: skip
    reference = ("a bare loop of the same kernel", limit) if limit else None
    return section(title, Bars(rows=bars, title=title, reference=reference, interval=RANGE), lede=lede)


def preparing_section(preparing: Mapping[str, Any]) -> Section | None:
    rates, ahead = preparing["samples_per_s"], preparing["feedline_is_times_faster"]
    bars: list[Bar] = []
    for name, rate in sorted(rates.items(), key=lambda item: -item[1]):
        of_rounds = [one[name] for one in preparing["by_round"] if name in one]
        bars.append(Bar(label=name, value=rate, low=min(of_rounds), high=max(of_rounds), tone=tone(name)))
    bars += [Bar(label=name, note=reason, tone="bad") for name, reason in preparing["failed"].items()]
    limit = rates.get(PREPARING_LIMIT)
    reference = ("a bare pool of the same kernel", limit) if limit else None
    chart = Bars(rows=bars, title="Preparing", reference=reference, interval=RANGE, note="Process starts apart.")
    rows = [(name, *(units.times(one[end]) for end in ("low", "median", "high"))) for name, one in ahead.items()]
    table = Table(headers=["feedline beside", "lowest", "median", "highest"], rows=rows, numeric=(1, 2, 3))
    return section("Preparing", chart, table, lede=preparing["what"])


if __name__ == "__main__":
    end_with(main)
