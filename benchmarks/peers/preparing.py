"""feedline's prepare beside other tools that resize and pack images: same files, size, quality and cores.

    python -m feedline.benchmarks.peers.preparing SOURCE [--rounds 3] [--only ffcv …]

SOURCE: a folder of class folders. Every tool runs in an environment of its own, in rounds, in an order drawn anew for
each round; process starts are taken off for all. The limit is a bare pool of as many processes, which reads, runs
feedline's kernel and writes. Tools that leave the picture to the user's own function get the same one, with the
Pillow that `pip install` brings them and, as `_simd`, with this project's Pillow-SIMD. `webdataset` is the loop of
its documentation, one process; `webdataset_simd` has a pool in front of the writer, as MosaicML's documentation has
it: harder to beat than what either tool's users write.
"""

import json
import subprocess
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from feedline.benchmarks.experiments.harness import end_with, in_rounds, options, show, spread, write
from feedline.benchmarks.experiments.prepare_speed import bare_pool, spark_job, where_samples_are
from feedline.benchmarks.measure.fork_server import end_group
from feedline.benchmarks.peers.environments import PEERS as LOADERS
from feedline.benchmarks.peers.environments import SCRIPTS, STOCK_PILLOW, Peer, PeerError, environment, interpreter
from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.process import usable_cores
from feedline.preprocess.config import PrepareConfig
from feedline.preprocess.picture import Output
from feedline.preprocess.sources.reading import Where, read_all

PEERS = {
    "mosaicml": Peer(name="mosaicml_stock", packages=(*LOADERS["mosaicml"].packages, STOCK_PILLOW)),
    "mosaicml_simd": LOADERS["mosaicml"],
    "litdata": Peer(name="litdata_stock", packages=(*LOADERS["litdata"].packages, STOCK_PILLOW)),
    "litdata_simd": LOADERS["litdata"],
    "img2dataset": Peer(name="img2dataset", packages=("img2dataset==1.47.0", "setuptools<81"), with_torch=False),
    "webdataset": LOADERS["webdataset"],
    "webdataset_simd": LOADERS["webdataset_simd"],
    "ffcv": LOADERS["ffcv"],
}
"""By the name of the row; the Peer's own name is that of its environment, which the loading benchmark shares."""
ONE_PROCESS = ("webdataset",)
LIMIT, OURS = "limit: bare pool", "feedline"
STUCK_S = 600
WANTED = {"mosaicml": 1.4, "litdata": 3.0, "img2dataset": 3.0, "webdataset": 2.5}
"""How far ahead prepare should be, of each tool as its users install it; of FFCV nothing was asked."""


def main() -> None:
    given = options(__doc__, "prepare-peers.json", "source", rounds=3, only=tuple(PEERS))
    if (given.source / "train").is_dir():
        raise UsageError(f"{given.source} holds splits: give one of them, as {given.source}/train")
    source, cores = str(given.source), usable_cores()
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as scratch:
        places = where_samples_are(PrepareConfig(source=source, out=scratch))

        def run(name: str) -> float:
            with tempfile.TemporaryDirectory(prefix="feedline-bench-") as folder:
                return one_run(name, source, places, cores, Path(folder))

        cells = {name: partial(run, name) for name in (*given.only, LIMIT, OURS)}
        by_round = in_rounds(cells, given.rounds, "{:,.1f} samples/s".format, failed=failed, but=PeerError)
    figures = summary(source, by_round, failed)
    write(given.out, figures)
    ahead = figures["feedline_is_times_faster"]
    show(
        ("feedline beside", "median", "low", "high", "wanted"), [(name, *one.values()) for name, one in ahead.items()]
    )


def one_run(name: str, source: str, places: Sequence[Where], cores: int, folder: Path) -> float:
    """samples/s, starts apart. Raises PeerError when a peer fails."""
    python = interpreter(PEERS[name]) if name in PEERS else None
    for _ in read_all(places, {}, {}):  # so that nobody meets a cold disk
        pass
    if name == LIMIT:
        return float(bare_pool(places, cores, folder / "out")["samples_per_s"])
    if python is None:
        return float(spark_job(source, None, cores, folder / "out")["samples_per_s"])
    processes = 1 if name in ONE_PROCESS else cores
    script = SCRIPTS / f"peer_{name.removesuffix('_simd')}.py"
    command = [str(python), str(script), "write", source, str(folder / "out"), str(processes)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        start_new_session=True,
        env=environment(),
    ) as process:
        try:
            printed, complaints = process.communicate(timeout=STUCK_S)
        except subprocess.TimeoutExpired:
            raise PeerError(f"{name} did not end in {STUCK_S} s") from None
        finally:
            end_group(process.pid)  # a tool that waits for dead workers, with all that it started
    if process.returncode:
        raise PeerError(f"{name} failed: {(complaints.strip().splitlines() or ['no message'])[-1]}")
    figures = json.loads(printed.splitlines()[-1])
    return figures["samples"] / figures["seconds"]


def summary(source: str, by_round: Sequence[dict[str, float]], failed: dict[str, str]) -> dict[str, Any]:
    names = sorted({name for one in by_round for name in one} - {OURS, LIMIT})
    rates = {name: [one[name] for one in by_round if name in one] for name in (*names, OURS, LIMIT)}
    ratios = {name: [one[OURS] / one[name] for one in by_round if {name, OURS} <= one.keys()] for name in names}
    ahead = {name: {**spread(found, 2), "wanted": WANTED.get(name)} for name, found in ratios.items() if found}
    return {
        "what": f"{Path(source).name}: short side {Output.size_px}, bicubic (img2dataset: area), q{Output.quality}; "
        f"{usable_cores()} cores",
        "n": sum(1 for path in Path(source).rglob("*") if path.is_file()),
        "rounds": len(by_round),
        "warm_up_rounds": 0,
        "samples_per_s": {name: spread(values, 1)["median"] for name, values in rates.items() if values},
        "feedline_is_times_faster": ahead,
        "failed": failed,
        "by_round": list(by_round),
    }


if __name__ == "__main__":
    end_with(main)
