"""A loader that is ended at random moments: what is left of it?

    python -m tests.lab.endings SPLIT [--starts 30] [--seed 0]        two minutes

Each start is a fresh script with two workers in a session of its own. Somewhere in its first four seconds, drawn at
random, the whole session gets Ctrl-C as in a terminal, or the trainer alone SIGTERM or
SIGKILL. Ten seconds later at most nobody of the session may be alive, and /dev/shm must be as it was. Writes
benchmarks/results/endings.json; exit status 1 if anything was left.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from feedline.profiling.record.host import describe_host

RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "endings.json"
LATEST_S = 4.0
"""torch's import takes about 2 s of it, so half of the ends fall into a running epoch, the rest into the start."""
PATIENCE_S = 10.0
SCRIPT = """
import sys
from feedline.pipeline.loader import Loader
loader = Loader(sys.argv[1], batch_size=32, image_size=64, num_workers=2, rank=0, world_size=1)
while True:
    for batch in loader:
        print("batch", flush=True)
"""
ENDS = {"Ctrl-C": signal.SIGINT, "SIGTERM": signal.SIGTERM, "SIGKILL": signal.SIGKILL}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("split", type=Path)
    parser.add_argument("--starts", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--result", type=Path, default=RESULT)
    said = parser.parse_args()
    draw = random.Random(said.seed)
    kinds = list(ENDS) * -(-said.starts // len(ENDS))
    shared_before = _shared_memory()
    ended = [one(said.split, kind, draw.uniform(0.05, LATEST_S)) for kind in kinds[: said.starts]]
    left = sorted(_shared_memory() - shared_before)
    figures = {
        "command": "python -m tests.lab.endings SPLIT",
        "host": describe_host(),
        "starts": len(ended),
        "ended_while_delivering": sum(start["batches"] > 0 for start in ended),
        "processes_left": sum(start["left"] for start in ended),
        "files_left_in_dev_shm": len(left),
        "slowest_end_s": max(start["gone_after_s"] for start in ended),
        "ends": ended,
    }
    said.result.parent.mkdir(exist_ok=True)
    said.result.write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps({name: value for name, value in figures.items() if name not in ("host", "ends")}, indent=1))
    sys.exit(bool(figures["processes_left"] or left))


def one(split: Path, kind: str, after_s: float) -> dict[str, Any]:
    """One start and its end; whoever is left afterwards is counted and killed."""
    with tempfile.TemporaryFile("w+") as output:
        command = [sys.executable, "-c", SCRIPT, str(split)]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL, start_new_session=True)
        time.sleep(after_s)
        sent_s = time.monotonic()
        if kind == "Ctrl-C":
            os.killpg(process.pid, ENDS[kind])
        else:
            process.send_signal(ENDS[kind])
        process.wait()
        while (left := _session(process.pid)) and time.monotonic() - sent_s < PATIENCE_S:
            time.sleep(0.01)
        gone_after_s = round(time.monotonic() - sent_s, 2)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        output.seek(0)
        batches = output.read().count("batch")
    return {"end": kind, "after_s": round(after_s, 2), "batches": batches, "left": len(left),
            "gone_after_s": gone_after_s}  # fmt: skip


def _session(leader: int) -> list[int]:
    """Everybody alive in the session that `leader` began."""
    found: list[int] = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            pass
    return found


def _shared_memory() -> set[str]:
    folder = Path("/dev/shm")
    return {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()


if __name__ == "__main__":
    main()
