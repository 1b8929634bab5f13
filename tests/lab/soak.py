"""An hour of epochs with four workers: memory, file handles and shared memory as flat at its end as at its start.

    python -m tests.lab.soak --minutes 60

A trainer in a process of its own reads a tiny prepared split and sleeps between batches, so that the hour costs a few
per cent of one core. Every 20th epoch is left in its middle, every 50th resumes from a state in a new position, and
every 100th (`--reopen`) a second loader with one worker is opened, read and closed: what an epoch's end, an early
leave or a loader's end forgets to give back adds up. Every sample delivered is checked against the plan.

Another process samples both sides: RSS, PSS, anonymous and shared pages of the trainer and of its workers, open
descriptors, memfds, threads, files in /dev/shm. After `--settle` minutes a line is fitted to each; its slope per
hour, with an interval from resampled blocks of five minutes, is what "flat" is judged by: the whole interval must lie
below a growth of 1 % of the level per hour (or 256 KiB, or half a descriptor). PSS is shown and not judged: it rises
when other processes of the machine that map the same libraries end. Writes results/soak.json and results/soak.png.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from feedline.profiling.record.host import describe_host
from tests.lab import tiny_split

RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "soak.json"
WORKERS = 4
BATCH = 8
SAMPLES = 320
SLEEP_S = 0.05
BLOCK_S = 300
RESAMPLES = 2000
KIBIBYTE = 1024

Floats = npt.NDArray[np.float64]


# --- the trainer --------------------------------------------------------------------------------------


def train(split: Path, until_s: float, sleep_s: float, reopen: int) -> None:
    """Epochs until the clock says so; prints one JSON line of what was delivered. Exits with 1 on a wrong sample."""
    from feedline.pipeline.loader import Loader

    loader = _loader(Loader, split, WORKERS)
    epochs = batches = samples = wrong = 0
    while time.monotonic() < until_s:
        seen = _epoch(loader, epochs, sleep_s)
        wrong += seen["wrong"]
        batches, samples, epochs = batches + seen["batches"], samples + seen["samples"], epochs + 1
        if epochs % reopen == 0:
            second = _loader(Loader, split, 1)
            wrong += _epoch(second, 1, 0)["wrong"]
            second.close()
    loader.close()
    print(json.dumps({"epochs": epochs, "batches": batches, "samples": samples, "wrong": wrong}), flush=True)
    sys.exit(1 if wrong else 0)


def _loader(make: Any, split: Path, workers: int) -> Any:
    return make(split, batch_size=BATCH, image_size=24, train=True, num_workers=workers, rank=0, world_size=1)


def _epoch(loader: Any, number: int, sleep_s: float) -> dict[str, int]:
    """One epoch, sometimes left in the middle or taken up again from a state. Wrong: a picture, label or count."""
    loader.set_epoch(number)
    leave_after = SAMPLES // BATCH // 2 if number % 20 == 19 else SAMPLES
    resume_after = SAMPLES // BATCH // 3 if number % 50 == 49 else SAMPLES
    seen: list[int] = []
    wrong = batches = 0
    iterator = iter(loader)
    while batches < leave_after:
        batch = next(iterator, None)
        if batch is None:
            break
        images_NHWC, labels_N = batch
        labels = [int(label) for label in labels_N]
        wrong += sum(a != b % tiny_split.LEVELS for a, b in zip(tiny_split.shown(images_NHWC), labels, strict=True))
        seen += labels
        batches += 1
        if batches == resume_after:
            loader.load_state_dict(loader.state_dict())
            iterator = iter(loader)
        time.sleep(sleep_s)
    whole = leave_after == SAMPLES
    wrong += len(set(seen)) != len(seen) or (whole and len(seen) != SAMPLES)
    return {"batches": batches, "samples": len(seen), "wrong": wrong}


# --- the sampler --------------------------------------------------------------------------------------


def sample(trainer: psutil.Process, started_s: float) -> dict[str, float] | None:
    """Bytes, counts and CPU seconds of the trainer and, summed up, of its workers; None once they have gone."""
    try:
        workers = sorted(trainer.children(), key=lambda one: one.pid)[:WORKERS]
        if len(workers) < WORKERS:
            return None
        ours, theirs = _one(trainer), [_one(worker) for worker in workers]
    except psutil.Error:
        return None
    row = {f"trainer_{name}": value for name, value in ours.items()}
    row |= {f"workers_{name}": sum(one[name] for one in theirs) for name in ours}
    return row | {"t_s": time.monotonic() - started_s}


def _one(process: psutil.Process) -> dict[str, float]:
    rollup = _kibibytes(Path(f"/proc/{process.pid}/smaps_rollup"))
    status = _kibibytes(Path(f"/proc/{process.pid}/status"))
    links = _links(process.pid)
    cpu = process.cpu_times()
    return {
        "rss": rollup["Rss"],
        "pss": rollup["Pss"],
        "anonymous": rollup["Anonymous"],
        "shared": status["RssShmem"],
        "memfds": sum("/memfd:" in link for link in links),
        "dev_shm_files": sum("/dev/shm/" in link for link in links),
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
        "cpu_s": cpu.user + cpu.system,
    }


def _kibibytes(path: Path) -> dict[str, int]:
    """The fields of one of /proc's files that are sizes, in bytes."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError as error:
        raise psutil.NoSuchProcess(0) from error
    return {line[0].rstrip(":"): int(line[1]) * KIBIBYTE for line in lines if line[-1:] == ["kB"]}


def _links(pid: int) -> list[str]:
    links: list[str] = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(str(entry.readlink()))
        except OSError:
            continue  # closed since the folder was read
    return links


def watch(trainer: subprocess.Popen[str], every_s: float, log: Path) -> list[dict[str, float]]:
    """One row per `every_s` until the trainer ends, written to `log` as they come."""
    started_s = time.monotonic()
    process = psutil.Process(trainer.pid)
    rows: list[dict[str, float]] = []
    with log.open("w") as file:
        while trainer.poll() is None:
            time.sleep(every_s)
            row = sample(process, started_s)
            if row is not None:
                rows.append(row)
                file.write(json.dumps(row) + "\n")
                file.flush()
    return rows


# --- flat or not --------------------------------------------------------------------------------------


def slope(
    t_s: npt.NDArray[np.float64], values: npt.NDArray[np.float64], block_s: float = BLOCK_S
) -> dict[str, float]:
    """Growth per hour of a fitted line, with a 95 % interval from resampled blocks of the line's residuals: samples
    that follow each other are not independent. The level is the mean."""
    line = np.polyfit(t_s, values, 1)
    residuals = values - np.polyval(line, t_s)
    step_s = float(np.median(np.diff(t_s)))
    length = max(1, min(len(values) // 4, round(block_s / step_s)))
    rng = np.random.default_rng(0)
    blocks = -(-len(values) // length)
    slopes = np.empty(RESAMPLES)
    for turn in range(RESAMPLES):
        begins = rng.integers(0, len(values) - length + 1, blocks)
        noise = np.concatenate([residuals[begin : begin + length] for begin in begins])[: len(values)]
        slopes[turn] = np.polyfit(t_s, noise, 1)[0]
    low, high = np.quantile(slopes, (0.025, 0.975))
    per_hour = {"per_hour": line[0], "low": line[0] + low, "high": line[0] + high}
    return {"level": float(values.mean())} | {name: float(value * 3600) for name, value in per_hour.items()}


def allowance(name: str, level: float) -> float:
    """Growth per hour that still counts as flat: 1 % of a memory's level or 256 KiB, half of a countable thing."""
    countable = name.endswith(("descriptors", "memfds", "threads", "files"))
    return 0.5 if countable else max(0.01 * level, 256 * KIBIBYTE)


def judge(rows: list[dict[str, float]], settle_s: float) -> dict[str, dict[str, Any]]:
    """Per measure: level, slope per hour with its interval, first and last, and whether it is flat: the whole
    interval lies below the allowance."""
    kept = [row for row in rows if row["t_s"] >= settle_s]
    t_s = np.array([row["t_s"] for row in kept])
    verdicts: dict[str, dict[str, Any]] = {}
    for name in kept[0]:
        if name == "t_s" or name.endswith("cpu_s"):
            continue  # grows by its nature
        values = np.array([row[name] for row in kept])
        fitted = slope(t_s, values)
        flat = name.endswith("pss") or fitted["high"] <= allowance(name, fitted["level"])
        ends = {"first": float(values[0]), "last": float(values[-1])}
        verdicts[name] = {key: round(value, 2) for key, value in (fitted | ends).items()} | {
            "judged": not name.endswith("pss"),
            "flat": bool(flat),
        }
    return verdicts


def draw(rows: list[dict[str, float]], settle_s: float, path: Path) -> None:
    """Four panels over the minutes: memory of the trainer, of the workers, descriptors, shared memory."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = {
        "trainer, MiB": ["trainer_rss", "trainer_pss", "trainer_anonymous"],
        "four workers together, MiB": ["workers_rss", "workers_pss", "workers_anonymous"],
        "open descriptors": ["trainer_descriptors", "workers_descriptors"],
        "shared memory in use, MiB": ["trainer_shared", "workers_shared"],
    }
    figure, axes = pyplot.subplots(2, 2, figsize=(10, 6), layout="constrained")
    minutes = [row["t_s"] / 60 for row in rows]
    for axis, (title, names) in zip(axes.flat, panels.items(), strict=True):
        unit = 1 if "descriptors" in title else KIBIBYTE**2
        for name in names:
            axis.plot(minutes, [row[name] / unit for row in rows], label=name.replace("_", " "), linewidth=1)
        axis.axvline(settle_s / 60, color="0.7", linewidth=0.8)
        axis.set(title=title, xlabel="minutes", ylim=(0, None))
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--every", type=float, default=10, help="seconds between samples")
    parser.add_argument("--settle", type=float, default=5, help="minutes left out of the fit")
    parser.add_argument("--sleep", type=float, default=SLEEP_S, help="seconds between the trainer's batches")
    parser.add_argument("--reopen", type=int, default=100, help="epochs between openings of a second loader")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--trainer", type=Path, help=argparse.SUPPRESS)
    said = parser.parse_args()
    if said.trainer:
        train(said.trainer, time.monotonic() + 60 * said.minutes, said.sleep, said.reopen)
    with tempfile.TemporaryDirectory(prefix="feedline-soak-") as folder:
        record = soak(Path(folder), said)
    said.out.write_text(json.dumps(record, indent=1) + "\n")
    good = record["flat"] and record["delivered"]["wrong"] == 0
    print(f"{record['delivered']}, {'flat' if record['flat'] else 'NOT flat'}, {record['cpu_share']:.1%} of a core")
    sys.exit(0 if good else 1)


def soak(folder: Path, said: argparse.Namespace) -> dict[str, Any]:
    """Runs the trainer under the sampler and judges what was seen."""
    tiny_split.write(folder / "train", SAMPLES, 4)
    command = [sys.executable, "-m", "tests.lab.soak", "--trainer", str(folder / "train")]
    command += ["--minutes", str(said.minutes), "--sleep", str(said.sleep), "--reopen", str(said.reopen)]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=one_thread) as trainer:
        rows = watch(trainer, said.every, folder / "rows.jsonl")
        assert trainer.stdout is not None
        delivered = json.loads(trainer.stdout.read())
    verdicts = judge(rows, 60 * said.settle)
    draw(rows, 60 * said.settle, said.out.with_suffix(".png"))
    first, last = rows[0], rows[-1]
    used_s = sum(last[name] - first[name] for name in ("trainer_cpu_s", "workers_cpu_s"))
    options = [f"--{name} {getattr(said, name):g}" for name in ("minutes", "every", "settle", "sleep", "reopen")]
    return {
        "command": " ".join(["python -m tests.lab.soak", *options]),
        "host": describe_host(),
        "workers": WORKERS,
        "batch_size": BATCH,
        "n": len(rows),
        "warm_up_s": 60 * said.settle,
        "delivered": delivered,
        "cpu_share": round(used_s / (last["t_s"] - first["t_s"]), 4),
        "flat": all(one["flat"] for one in verdicts.values()),
        "measures": verdicts,
        "rows": [{name: round(value, 2) for name, value in row.items()} for row in rows],
    }


if __name__ == "__main__":
    main()
