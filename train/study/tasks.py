"""The tasks of a study that many processes and hosts share: who has which, and what became of it.

There is no server and no lock. All that is relied on is that a file can be made once only, which holds on shared file
systems too.

    STUDY/study.json            what the study is (identity.py)
    STUDY/tasks/0007.1.lease    attempt 1 of task 7 has begun: host, process; its mtime is renewed while that lives
    STUDY/tasks/0007.1.json     what became of this attempt: its record, written whole and once
    STUDY/runs/NAME/            the run folder of the task with that name

Whoever takes a task makes the next attempt's lease; of two, one succeeds. A lease is stale when its process was on
this host and is gone, when it is of an earlier start of this Slurm job, or when it was not renewed for LEASE_S;
whoever finds it so writes the attempt's record (`lost`) and may make the next lease. An owner that was only slow
finds that record where its own should go: its claim is lost, and what it would have said is dropped. Ages are
differences of mtimes that the file system itself has set, so the hosts' clocks need not agree.

    while (claim := tasks.take(all_tasks)) is not None:
        with claim:                                       # renewed by a thread; left by an exception it is recorded
            claim.finish("complete", value=top1, …)

`work.py` has this loop, for every kind of study.
"""

import errno
import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from feedline.pipeline.base.errors import BusyError, FeedlineError, first_line
from feedline.pipeline.base.files import temporary_beside, write_atomically, written_beside
from feedline.pipeline.base.process import from_environment, read_text

LEASE_S, RENEW_S = 90.0, 10.0
"""A shared file system may show a file's times a minute late."""
FAILURES, ATTEMPTS = 2, 5
"""A task is given up after so many failures of its own, or so many attempts (processes that were killed included)."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
NAME = re.compile(r"(\d+)\.(\d+)\.(?:lease|json)")

State = Literal["complete", "pruned", "failed", "lost"]
"""Of an attempt. The first two end the task; `lost`: its process was killed or could not be heard of any more."""
Standing = Literal["open", "running", "done", "failed"]
"""Of a task: to be taken, held by a living process, done with, given up."""
Record = dict[str, Any]
"""Of an attempt that has ended: `number`, `name`, `params`, `attempt`, `state`, `value` (None where there is none),
`run` (its folder, below the study's), `seconds`, `host`, `error` (one line, where it failed), and what `finish` was
told."""
Attempts = list[Record | None]
"""Of one task, from the first; None: being worked on, or was by a process that is gone."""


class LeaseLost(FeedlineError):
    """Another process has taken the task over, since this one was not heard of in time."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One independent piece of work. Tasks need not be written down: the processes of a study name the same ones."""

    number: int
    name: str
    """Of its run folder too: letters, digits, `.`, `_` and `-`."""
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What it is to be done with, as JSON knows it; empty where that is only drawn once the task is taken."""


def this_process() -> dict[str, Any]:
    """Who we are in a lease. `place` tells hosts, their boots and containers apart: process numbers mean something
    only in the same one."""
    namespace = ""
    with suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").readlink())
    host = socket.gethostname()
    place = f"{host} {read_text('/proc/sys/kernel/random/boot_id')} {namespace}"
    job = {"job": os.environ.get("SLURM_JOB_ID"), "restart": from_environment("SLURM_RESTART_COUNT", 0)}
    return {"host": host, "place": place, "pid": os.getpid(), "started": started_s(), **job}


def started_s(pid: int | str = "self") -> float:
    """Seconds from the host's boot to a process's start, whatever its clock is set to meanwhile; -1 where it has
    ended."""
    with suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()  # its field 3 on
        return -1.0 if stat[0] == "Z" else int(stat[19]) / TICKS_PER_S
    return -1.0


def lives(pid: int, started: float) -> bool:
    """Whether that process, and not another one of its number, is there on this host."""
    return started_s(pid) == started


def make_once(path: Path, content: Mapping[str, Any]) -> bool:
    """The file, whole, unless it is there already; returns whether we made it. Raises OSError (a full disk)."""
    data = (json.dumps(content, default=str) + "\n").encode()
    with suppress(FileExistsError), written_beside(path, data) as temporary:
        os.link(temporary, path)
        return True
    return False


def disk_is_full(error: BaseException | None) -> bool:
    """Whether that is behind an error, at whatever remove."""
    while error is not None and not (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
        error = error.__cause__ or error.__context__
    return error is not None


class Tasks:
    """Those of one study folder, which is there."""

    def __init__(self, study: Path, *, renew_s: float = RENEW_S) -> None:
        self.study, self.folder, self.renew_s = study, study / "tasks", renew_s
        self.me = this_process()
        self._records: dict[tuple[int, int], Record] = {}
        self._now = (-1.0, 0.0)

    def path(self, number: int, attempt: int, kind: str) -> Path:
        return self.folder / f"{number:04d}.{attempt}.{kind}"

    # --- what there is ------------------------------------------------------------------------------------

    def attempts(self) -> dict[int, Attempts]:
        """By task. Records do not change, so each is read once."""
        last: dict[int, int] = {}
        with suppress(FileNotFoundError):
            for found in filter(None, (NAME.fullmatch(entry.name) for entry in os.scandir(self.folder))):
                number, attempt = map(int, found.groups())
                last[number] = max(attempt, last.get(number, 0))
        return {task: [self._record(task, attempt + 1) for attempt in range(last[task])] for task in sorted(last)}

    def _record(self, number: int, attempt: int) -> Record | None:
        if (number, attempt) not in self._records:
            with suppress(FileNotFoundError):
                self._records[number, attempt] = json.loads(self.path(number, attempt, "json").read_text())
        return self._records.get((number, attempt))

    def standing(self, number: int, attempts: Attempts) -> Standing:
        states = [record["state"] for record in attempts if record is not None]
        if not attempts:
            return "open"
        if attempts[-1] is None:
            return "open" if self._is_stale(number, len(attempts)) else "running"
        if states[-1] in ("complete", "pruned"):
            return "done"
        return "failed" if states.count("failed") >= FAILURES or len(attempts) >= ATTEMPTS else "open"

    def records(self) -> dict[int, Record]:
        """By task, of those that are done with or given up: the last attempt's."""
        return {
            number: attempts[-1]
            for number, attempts in self.attempts().items()
            if attempts[-1] is not None and self.standing(number, attempts) != "open"
        }

    def running(self) -> dict[int, dict[str, Any]]:
        """By task, of those that a living process holds: its lease, with what it has shown as `progress`."""
        held: dict[int, dict[str, Any]] = {}
        for number, attempts in self.attempts().items():
            if self.standing(number, attempts) == "running":
                with suppress(OSError, ValueError):
                    held[number] = json.loads(self.path(number, len(attempts), "lease").read_text())
        return held

    def told(self, total: int) -> list[Record]:
        """Of each task from 0 on: its record, or what there is instead (`state` is then its standing), and how many
        `attempts` have been begun."""
        every, rows = self.attempts(), list[Record]()
        for number in range(total):
            attempts = every.get(number, [])
            row: Record = {"number": number, "params": {}, "value": None, "run": None, "seconds": 0.0}
            row |= next((record for record in reversed(attempts) if record), {})
            standing = self.standing(number, attempts)
            rows.append(row | {"attempts": len(attempts)} | ({} if standing == "done" else {"state": standing}))
        return rows

    # --- leases -------------------------------------------------------------------------------------------

    def _is_stale(self, number: int, attempt: int) -> bool:
        try:
            with self.path(number, attempt, "lease").open() as file:  # opened: its times are then asked for anew
                owner, renewed_s = json.load(file), os.fstat(file.fileno()).st_mtime
        except (FileNotFoundError, ValueError):
            return False  # given back, or just now ended
        if owner["place"] == self.me["place"]:
            return not lives(owner["pid"], owner["started"])
        restarted = owner["job"] == self.me["job"] is not None and owner["restart"] < self.me["restart"]
        return restarted or self._now_s() - renewed_s > LEASE_S

    def _now_s(self) -> float:
        """As the file system's own clock has it, to a second."""
        if time.monotonic() - self._now[0] >= 1:
            probe = temporary_beside(self.folder / "now")
            try:
                probe.touch()
                self._now = time.monotonic(), probe.stat().st_mtime
            finally:
                probe.unlink(missing_ok=True)
        return self._now[1]

    def take(self, tasks: Iterable[Task]) -> "Claim | None":
        """The first of these that is open, now ours; None: each is done with, given up or being worked on.

        Raises OSError where the study's folder cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        every = self.attempts()
        for task in tasks:
            attempts = every.get(task.number, [])
            if attempts and attempts[-1] is None and self._is_stale(task.number, len(attempts)):
                self._say_lost(task, len(attempts))
                attempts = self.attempts().get(task.number, [])
            if self.standing(task.number, attempts) == "open":
                claim = Claim(self, task, len(attempts) + 1)
                if make_once(claim.lease, self.me):
                    return claim
        return None

    def _say_lost(self, task: Task, attempt: int) -> None:
        with suppress(FileNotFoundError, ValueError):
            owner = json.loads(self.path(task.number, attempt, "lease").read_text())
            error = f"process {owner['pid']} on {owner['host']} ended, or was not heard of for {LEASE_S:.0f} s"
            Claim(self, task, attempt).write("lost", host=owner["host"], seconds=0.0, error=error)


class Claim:
    """A task that is ours, for as long as this process renews its lease. `with` it.

    Left by an exception it is recorded as failed, with the exception's first line; left by Ctrl-C, SystemExit, a full
    disk, or since who was not heard of still works on it, it is given back and does not count as an attempt.
    """

    def __init__(self, tasks: Tasks, task: Task, attempt: int) -> None:
        self.task, self.attempt, self.run = task, attempt, tasks.study / "runs" / task.name
        self.lease, self._result = (tasks.path(task.number, attempt, kind) for kind in ("lease", "json"))
        self._tasks, self._params, self._finished = tasks, task.params, False
        self._began_s, self._ended = time.monotonic(), threading.Event()
        self._renewer = threading.Thread(target=self._renew, daemon=True, name="feedline lease")

    def _renew(self) -> None:
        while not self._ended.wait(self._tasks.renew_s):
            with suppress(OSError):  # the next time; a disk that is away too long makes the lease stale
                os.utime(self.lease)

    def show(self, **progress: Any) -> None:
        """How far it is, as JSON knows it, for whoever looks at the study meanwhile (`Tasks.running`); with `params`,
        what it is done with, where that was drawn. Raises LeaseLost: a task that was taken over should end here."""
        self.check()
        self._params = progress.get("params", self._params)
        with suppress(OSError):
            write_atomically(self.lease, json.dumps({**self._tasks.me, "progress": progress}, default=str).encode())

    @property
    def is_told(self) -> bool:
        """Whether there is a record of this attempt."""
        return self._result.exists()

    def check(self) -> None:
        """Raises LeaseLost."""
        if self.is_told and not self._finished:
            raise LeaseLost(f"{self.task.name} was taken over by another process, since this one was not heard of")

    def finish(self, state: State, *, value: float | None = None, **facts: Any) -> None:
        """The record of this attempt, with `facts` as further keys. Raises LeaseLost, and OSError where it cannot be
        written."""
        if not self.write(state, value=value, **facts):
            self.check()
        self._finished = True

    def write(self, state: State, **facts: Any) -> bool:
        """The record, unless there is one. Whoever holds the claim calls `finish`."""
        task = self.task
        return make_once(self._result, {
            "number": task.number, "name": task.name, "params": self._params, "attempt": self.attempt,
            "state": state, "value": None, "run": str(self.run.relative_to(self._tasks.study)),
            "seconds": round(time.monotonic() - self._began_s, 3), "host": self._tasks.me["host"], **facts,
        })  # fmt: skip

    def __enter__(self) -> "Claim":
        self._renewer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._ended.set()
        self._renewer.join()
        if self._finished or isinstance(error, LeaseLost):
            return
        if isinstance(error, Exception) and not disk_is_full(error) and not isinstance(error, BusyError):
            self.finish("failed", error=first_line(error))
        else:
            self.lease.unlink(missing_ok=True)
