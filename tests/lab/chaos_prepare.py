"""Kills a running prepare at random moments and checks that a rerun gives the very bytes of an undisturbed one.

    python -m tests.lab.chaos_prepare SOURCE --kills 10
    python -m tests.lab.chaos_prepare SOURCE --kills 10 --place processes --more
    python -m tests.lab.chaos_prepare SOURCE --kills 3 --place cluster --more

The driver, an executor's JVM (where there is one) and a Python worker are each killed (SIGKILL), and a Python worker
stopped for some seconds (SIGSTOP), that many times, at a moment drawn between their first appearance and the job's
end; then the same command runs again, at once. Every file but report.json must have the same SHA-256, no file may be
left over in the output or the temporary folder, and no process may be left. `--place`: on Spark's `local[2]`, on a
standalone cluster of two workers with speculation on, or by the processes engine. `--more` adds what is missing to
the results there are.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from feedline.profiling.record.host import describe_host
from tests.lab.spark_cluster import SPECULATION, WORKERS, Cluster, alive, family_of, wait_until

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "chaos-prepare.json"
VICTIMS = ("driver", "jvm", "worker", "stopped worker")
STOPPED_S = 4.0
GONE_S, HANGS_S = 60, 300
LOOK_S = 0.25
TRIES = 20
"""Draws of a moment: a run may be faster than the undisturbed one, and over by then."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.chaos_prepare", description=__doc__)
    parser.add_argument("source", help="raw images, as for feedline prepare")
    parser.add_argument("--kills", type=int, default=10, help="of each victim in this place")
    parser.add_argument("--victims", nargs="*", choices=VICTIMS, help="all that the place has")
    parser.add_argument("--place", choices=("local", "cluster", "processes"), default="local")
    parser.add_argument("--more", action="store_true", help="add to the results that are there")
    parser.add_argument("--shards", type=int, default=48)
    parser.add_argument("--out", type=Path, default=RESULTS)
    said = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a stretch cut short cleans up too
    before = json.loads(said.out.read_text())["kills"] if said.more and said.out.exists() else []
    with (
        tempfile.TemporaryDirectory(prefix="feedline-chaos-") as name,
        place(said.place, Path(name)) as where,
        contextlib.closing(Chaos(Path(name), said.source, said.shards, where)) as chaos,
    ):
        chaos.undisturbed()
        for victim in missing(before, where.name, said.victims or where.victims, said.kills):
            kill = chaos.kill(victim, random.Random(f"{where.name} {victim} {len(before)}"))
            before.append(asdict(kill))
            write(said.out, before, chaos)
            print(kill, file=sys.stderr, flush=True)
    bad = [kill for kill in before if kill["problems"]]
    print(f"{len(before) - len(bad)} of {len(before)}: byte-identical after a rerun, nothing left over")
    sys.exit(1 if bad else 0)


def missing(kills: Sequence[Mapping[str, Any]], where: str, victims: Sequence[str], count: int) -> list[str]:
    """The victims still to be struck, in turn, until there are `count` of each in this place."""
    struck = Counter(kill["victim"] for kill in kills if kill["where"] == where)
    return [victim for number in range(count) for victim in victims if struck[victim] <= number]


@dataclass(frozen=True)
class Where:
    """What a prepare runs on."""

    name: str
    options: tuple[str, ...]
    cluster: Cluster | None = None
    victims: tuple[str, ...] = VICTIMS

    def executors(self, driver: int) -> list[psutil.Process]:
        """The processes that do the work: JVMs, and Python processes."""
        if self.cluster is None:
            return family_of(driver)
        return [one for host in WORKERS for one in self.cluster.family(host)]


@contextlib.contextmanager
def place(name: str, folder: Path) -> Generator[Where]:
    if name == "processes":
        yield Where(name, ("--engine", name), victims=tuple(victim for victim in VICTIMS if victim != "jvm"))
        return
    if name == "local":
        yield Where("local[2]", ("--master", "local[2]"))
        return
    (folder / "cluster").mkdir()
    cluster = Cluster(folder / "cluster")
    try:
        cluster.start()
        settings = [text for key, value in SPECULATION.items() for text in ("--conf", f"{key}={value}")]
        yield Where("two workers", ("--master", cluster.master, *settings), cluster)
    finally:
        cluster.stop()


@dataclass
class Kill:
    """One blow and what came of it."""

    where: str
    victim: str
    moment_s: float
    """After the start of the command."""
    receipts: int
    """Shards that were done at that moment."""
    status: int = 0
    """Of the command that was struck."""
    result_sha256: str = ""
    problems: list[str] = field(default_factory=list[str])


class Chaos:
    """One source, one place: the undisturbed result, and blows to runs that should end with the same."""

    def __init__(self, folder: Path, source: str, shards: int, where: Where) -> None:
        self.folder, self.source, self.shards, self.where = folder, source, shards, where
        self.scratch = folder / "tmp"
        self.scratch.mkdir()
        self.calm: dict[str, str] = {}
        self.born_s: dict[str, float] = {}
        self.gone_s: dict[str, float] = {}
        self._runs = 0
        self._running: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        """Ends what still runs."""
        if self._running is not None and self._running.poll() is None:
            self._running.terminate()
            self._running.wait()

    def undisturbed(self) -> None:
        """Learns the result, and when each victim comes and goes. Raises RuntimeError when prepare fails."""
        started, process, out = self._start()
        while process.poll() is None:
            for victim in self._victims(process.pid):
                self.gone_s[victim] = time.monotonic() - started
                self.born_s.setdefault(victim, self.gone_s[victim])
            time.sleep(LOOK_S)
        self.calm = digests(out)
        if process.returncode or not self.born_s.keys() >= set(self.where.victims):
            raise RuntimeError(f"an undisturbed prepare ended with {process.returncode}, seen: {self.born_s}")

    def kill(self, victim: str, rng: random.Random) -> Kill:
        """One that struck: a moment at which the victim is gone already becomes the end of those to draw from."""
        for _ in range(TRIES):
            moment_s = rng.uniform(self.born_s[victim], self.gone_s[victim])
            struck = self._strike(victim, moment_s, rng)
            if struck is not None:
                return struck
            self.gone_s[victim] = moment_s
        raise RuntimeError(f"the {victim} was gone at each of {TRIES} moments: is the source too small?")

    def _strike(self, victim: str, moment_s: float, rng: random.Random) -> Kill | None:
        started, process, out = self._start()
        family: list[psutil.Process] = []
        while time.monotonic() < started + moment_s and process.poll() is None:
            family = family_of(process.pid)
            time.sleep(max(0.0, min(LOOK_S, started + moment_s - time.monotonic())))
        there = self._victims(process.pid).get(victim, []) if process.poll() is None else []
        kill = Kill(self.where.name, victim, round(time.monotonic() - started, 2), receipts(out))
        struck = bool(there) and strike(rng.choice(there), stop=victim == "stopped worker")
        kill.status = self._end(process, kill.problems)
        if not struck:
            return None
        self._check(kill, out, family)
        return kill

    def _check(self, kill: Kill, out: Path, family: list[psutil.Process]) -> None:
        """Runs the command again, while what is left of the struck run may still be there."""
        _, rerun, _ = self._start(out)
        if status := self._end(rerun, kill.problems):
            kill.problems.append(f"the rerun ended with {status}")
        found = digests(out)
        kill.result_sha256 = hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()
        if found != self.calm:
            wrong = sorted(name for name in found.keys() | self.calm.keys() if found.get(name) != self.calm.get(name))
            kill.problems.append(f"{len(wrong)} files differ or are left over: {', '.join(wrong[:5])}")
        folders = sorted(path.name for path in out.iterdir() if path.is_dir())
        if folders != sorted({name.partition("/")[0] for name in self.calm}):
            kill.problems.append(f"folders: {', '.join(folders)}")
        if left := [path.name for path in self.scratch.iterdir()]:
            kill.problems.append(f"left in the temporary folder: {', '.join(left[:5])}")
        executors = [] if self.where.cluster is None else self.where.executors(0)
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: not alive([*family, *executors]), GONE_S)
        if left := alive([*family, *executors]):
            kill.problems.append(f"{len(left)} processes left")

    def _start(self, out: Path | None = None) -> tuple[float, subprocess.Popen[bytes], Path]:
        self._runs += 1
        out = out or self.folder / f"out-{self._runs}"
        command = [str(Path(sys.executable).with_name("feedline")), "prepare", self.source, str(out)]
        options = ["--shards", str(self.shards), "--max-bad", "1", *self.where.options]
        environment = os.environ | {"TMPDIR": str(self.scratch)}
        with (self.folder / "said.txt").open("w") as said:
            process = subprocess.Popen([*command, *options], env=environment, stdout=said, stderr=said)
        self._running = process
        return time.monotonic(), process, out

    def _end(self, process: subprocess.Popen[bytes], problems: list[str]) -> int:
        """The status; adds to the problems when it hangs or says a trace."""
        try:
            process.wait(HANGS_S)
        except subprocess.TimeoutExpired:
            problems.append("it hung")
            process.kill()
            process.wait()
        if "Traceback" in (self.folder / "said.txt").read_text():
            problems.append("it said a trace")
            print((self.folder / "said.txt").read_text(), file=sys.stderr)
        return process.returncode

    def _victims(self, driver: int) -> dict[str, list[psutil.Process]]:
        """Those that are there, by kind."""
        family = self.where.executors(driver)
        workers = [one for one in family if holds(is_worker, one)]
        found = {
            "jvm": [one for one in family if holds(is_executor, one)],
            "worker": workers,
            "stopped worker": workers,
        }
        with contextlib.suppress(psutil.Error):
            found["driver"] = [psutil.Process(driver)]
        return {victim: those for victim, those in found.items() if those}


def holds(which: Callable[[psutil.Process], bool], one: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return which(one)
    return False


def is_executor(one: psutil.Process) -> bool:
    return one.name() == "java"


def is_worker(one: psutil.Process) -> bool:
    """A forked child of pyspark's daemon, or a process of ours."""
    if "feedline.preprocess.processes" in one.cmdline():
        return True
    parent = one.parent()
    return "pyspark.daemon" in one.cmdline() and parent is not None and "pyspark.daemon" in parent.cmdline()


def strike(target: psutil.Process, *, stop: bool) -> bool:
    """Whether it was still there."""
    try:
        if not stop:
            target.kill()
            return True
        target.suspend()
        time.sleep(STOPPED_S)
        target.resume()
    except psutil.Error:
        return stop  # it was stopped, and Spark ended it meanwhile
    return True


def write(out: Path, kills: Sequence[Mapping[str, Any]], chaos: Chaos) -> None:
    names = sorted({(kill["where"], kill["victim"]) for kill in kills})
    fine = [kill for kill in kills if not kill["problems"]]
    figures = {
        "command": "python -m tests.lab.chaos_prepare SOURCE --more, with each --place",
        "host": describe_host(),
        "source": {"files_out": len(chaos.calm), "shards_per_split": chaos.shards},
        "n": len(kills),
        "identical_after_rerun": len(fine),
        "different_results": len({kill["result_sha256"] for kill in fine}),
        "by_victim": {
            f"{victim}, {where}": sum((kill["where"], kill["victim"]) == (where, victim) for kill in kills)
            for where, victim in names
        },
        "kills": kills,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(figures, indent=1) + "\n")


def receipts(out: Path) -> int:
    return len(list(out.glob(".feedline/receipts-*/*.receipt")))


def digests(out: Path) -> dict[str, str]:
    files = (path for path in sorted(out.rglob("*")) if path.is_file() and path.name != "report.json")
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


if __name__ == "__main__":
    main()
