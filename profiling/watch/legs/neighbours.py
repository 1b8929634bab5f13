"""How much of the cores processes have that do not belong to the run, while a window lasts.

What all cores did stands in /proc/stat, what the run's processes did in their own /proc/PID/stat: from the process
that started the script downwards, those that have ended being in their parents' sums. Time that the hypervisor took
(steal) is others' too. Two looks at a window, of some milliseconds each, outside of what is timed.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
PARENT, OWN_AND_CHILDRENS = 1, slice(11, 15)
"""Behind the name in /proc/PID/stat: its parent; utime, stime, cutime, cstime."""
IDLE, STEAL = (3, 4), 7
"""Of a core's fields in /proc/stat: idle and iowait; steal. Guests' time, behind these, is counted in user's."""
SHORTEST_S = 0.8  # of a window that is judged by a clock of hundredths of a second


class Ticks(NamedTuple):
    cores: int
    busy: int  # of the cores that the run may use, what the hypervisor took included
    idle: int
    ours: int


class Neighbours:
    def __init__(self, root: int, *, ranks: int = 1) -> None:
        """`root` has started the script; 0: nobody knows who has. Ranks may each have cores of their own: where there
        are several, all cores are looked at."""
        self.others: float | None = None
        """Share of the cores that other processes had; None where that cannot be told."""
        self.idle: float | None = None  # share of the cores that nobody had
        self._root = root or os.getppid()
        self._ranks = ranks
        self._before: Ticks | None = None

    def begin(self) -> None:
        self._before = self._look()

    def end(self) -> None:
        before, now = self._before, self._look()
        if before is None or now is None:
            return
        busy, idle, ours = (after - then for after, then in zip(now[1:], before[1:], strict=True))
        if now.cores == before.cores and busy + idle > 0:
            self.others = max(0.0, (busy - ours) / (busy + idle))
            self.idle = idle / (busy + idle)

    def _look(self) -> Ticks | None:
        with suppress(OSError, ValueError, IndexError, AttributeError):  # AttributeError: no Linux
            cores = os.sched_getaffinity(0)
            lines = (line.split() for line in (PROC / "stat").read_text().splitlines() if line.startswith("cpu"))
            fields = [list(map(int, line[1:])) for line in lines if line[0][3:].isdigit()
                      and (self._ranks > 1 or int(line[0][3:]) in cores)]  # fmt: skip
            idle = sum(core[place] for core in fields for place in IDLE)
            busy = sum(sum(core[: STEAL + 1]) for core in fields) - idle
            return Ticks(len(fields), busy, idle, run_ticks(self._root)) if fields else None
        return None


def run_ticks(root: int) -> int:
    """CPU time of a process and all its descendants, dead ones included."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                about = (folder / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(about[PARENT]), []).append(int(folder.name))
                ticks[int(folder.name)] = sum(map(int, about[OWN_AND_CHILDRENS]))
    pending, found = [root], 0
    while pending:
        one = pending.pop()
        found += ticks.get(one, 0)
        pending += children.get(one, ())
    return found
