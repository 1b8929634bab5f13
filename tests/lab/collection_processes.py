"""A training script in its own process: watched until it has trained for long enough, ended with all it started."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil

STARTS_S, REPORTS_S = 300.0, 120.0
"""Until it trains, or a run to the end; a profiler's end beyond the time it has."""
LEAVES_S = 3.0
"""In which what a program has started ends behind it."""
LOOK_S = 0.1
LOOP = ("wait", "compute", "own")
STEPS = 3
"""So many laps of the loop, and it trains: the first step may compile for a minute."""


def watch(
    process: "subprocess.Popen[bytes]", laps: Path, *, trains_s: float | None, profiles: str
) -> tuple[int | None, bool, float | None]:
    """Until it has ended or trained for long enough (None: to its end): (exit status, interrupted, when the profiler
    started it). `profiles` is the script that this process profiles, "" for none."""
    began, first_s, origin_s, interrupted = time.monotonic(), None, None, False
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(LOOK_S), interrupted, origin_s
        now = time.monotonic()
        if origin_s is None and profiles:
            origin_s = _started_s(process, profiles)
        if first_s is None and any(f"\n{text_of(laps)}".count(f"\n{name} ") >= STEPS for name in LOOP):
            first_s = now
        since_s, limit_s = now - began, STARTS_S
        if first_s is not None and trains_s is not None:
            since_s, limit_s = now - first_s, trains_s
        trains = first_s is not None and time.time() - laps.stat().st_mtime < 1.0
        if profiles and trains_s is not None and trains and since_s > limit_s and not interrupted:
            interrupted = True
            process.send_signal(signal.SIGINT)
        if since_s > limit_s + (REPORTS_S if profiles else 0.0):
            return None, interrupted, origin_s


def _started_s(parent: "subprocess.Popen[bytes]", script: str) -> float | None:
    """When the profiler's child began, in seconds of the monotonic clock; the kernel's ticks are 10 ms."""
    with suppress(psutil.Error, OSError):
        for child in psutil.Process(parent.pid).children():
            if any(word.endswith(script) for word in child.cmdline()):
                fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
                since_boot_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
                return since_boot_s - (time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic())
    return None


def left(session: int) -> list[str]:
    """The processes of an ended program's session that are still there after a while."""
    until = time.monotonic() + LEAVES_S
    while True:
        there: list[str] = []
        for one in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if os.getsid(one.pid) == session and one.status() != psutil.STATUS_ZOMBIE:
                    there.append(one.name())
        if not there or time.monotonic() > until:
            return sorted(there)
        time.sleep(LOOK_S)


def end(process: "subprocess.Popen[bytes]") -> None:
    """And all that it started."""
    family: list[psutil.Process] = []
    with suppress(psutil.Error):
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for one in family:
        with suppress(psutil.Error):
            one.terminate()
    _, alive = psutil.wait_procs(family, timeout=5)
    for one in alive:
        with suppress(psutil.Error):
            one.kill()
    with suppress(ProcessLookupError):  # what has lost its parent
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def text_of(path: Path) -> str:
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
    return text[: text.rfind("\n") + 1] if path.name == "laps" else text
