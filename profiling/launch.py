"""Run a script as its author would, watched: `python script.py args` in a process of its own, with our probe in it.

The probe gets in through a `sitecustomize` module in a folder put first on PYTHONPATH, so the interpreter itself runs
the script: `__main__`, `sys.argv`, `sys.path`, stdin and stdout are untouched, and processes the script starts
(torchrun's ranks) are watched too. The probe's line hands over to a `sitecustomize` of the machine's own.

This process meanwhile samples resources, passes signals on (`interrupts`), and merges what the processes wrote down.
"""

import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.process import wait_or_kill
from feedline.pipeline.base.scratch import scratch_folder
from feedline.profiling.interrupts import PASSED_ON, hearing
from feedline.profiling.machine.resources import ResourceSampler
from feedline.profiling.record.diagnostic import progress
from feedline.profiling.record.journal import ENVIRONMENT, Journal, StudyConfig
from feedline.profiling.record.merge import merge, scopes
from feedline.profiling.record.recording import EndedBy, Recording, Script
from feedline.profiling.record.trainings import is_trainer
from feedline.profiling.watch.stop import ENDED

SITECUSTOMIZE = '''\
"""Starts feedline's probe, then the sitecustomize that would have run without it."""
import os, sys
_folder = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _folder]
_own = sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize
except ImportError:
    if _own is not None:
        sys.modules["sitecustomize"] = _own
_loaded = {*sys.modules}
try:
    from feedline.profiling.probe import start_from_environment
    start_from_environment()
except Exception:
    if os.environ.get("FEEDLINE_DEBUG"):
        raise
_first = next((word for word in sys.orig_argv[1:] if word in ("-m", "-c") or not word.startswith("-")), "")
_place = os.path.dirname(os.path.realpath(_first)) if os.path.isfile(_first) else ""
_place = os.getcwd() if _first == "-m" else _place
if _place and not sys.flags.safe_path and _place != os.path.dirname(os.__file__):
    for _name in [one for one in sys.modules if one in sys.stdlib_module_names and one not in _loaded]:
        if any(os.path.exists(os.path.join(_place, _name + end)) for end in (".py", "/__init__.py")):
            del sys.modules[_name]  # the script has a module of that name, which it would have found
'''
LEAVE_S = 20.0  # a script that was told to stop and trains on is terminated after this long
RECENT_S = 5.0
ENDING_MOST_S = 600.0  # so long may it take to end; what hangs longer is terminated, too
IDLE_MOST_S, IDLE_CPU_S, IDLE_BYTES = 60.0, 0.2, 1 << 20
"""What uses no more of a processor for so long, and writes no more, hangs."""
CRASHES = (signal.SIGABRT, signal.SIGSEGV)
"""What a process may die of as its interpreter ends, while threads of its own still compute."""
GRACE_S = 3.0  # its workers end by themselves within this

Report = Callable[[str], None]


@dataclass(frozen=True)
class Run:
    recording: Recording
    journal: Journal
    status: int
    """What the script ended with; 128 + n for signal n, to it or to this process. 0 once we ended its loop and nobody
    else sent it a signal: what was asked for has been seen."""
    exit_status: int = 0  # what the script itself ended with, in any case


@contextmanager
def launched(config: StudyConfig, report: Report = lambda _: None) -> Generator[Run]:
    """Run the script (or module) and its arguments to the end; the journal's folder exists inside the block."""
    command = command_line(config.argv, module=config.module)
    with hearing() as interrupts, scratch_folder("profile") as folder:
        (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
        journal = Journal(folder)
        # The script ends with this process; with another thread than the main one Linux would end it too early.
        in_main = threading.current_thread() is threading.main_thread()
        journal.write("config", asdict(replace(config, parent=os.getpid() if in_main else 0)))
        origin = time.perf_counter()
        child = subprocess.Popen(command, env=environment(folder))
        sampler = ResourceSampler(child.pid, origin=origin, scopes=lambda pids: scopes(journal, pids),
                                  tell_files=lambda files: journal.write("files", files))  # fmt: skip
        sampler.start()
        stopped = False
        try:
            with interrupts.passed_on_to(child, journal):
                code, stopped = _wait(child, journal, sampler, report)
        finally:
            sampler.stop()
            _end_processes(journal, child, everything=stopped)
        if (apart := journal.read("apart")) is not None:
            here = f"{apart['here']} of {apart['ranks']} ranks run on this machine"
            must = "and all must leave a timed or diagnostic run together"
            raise UsageError(f"{here}, {must}: give --steps, without --seconds, --legs and --lines")
        own_status, diagnosed = _status_of(code), progress(journal).ended_by
        ours = diagnosed is not None or ((code > 0 or -code in CRASHES) and _ended_by_us(journal))
        if code and ours and not interrupts.number and -code not in PASSED_ON:
            code, stopped = 0, True
        by, error = _how_it_ended(journal, code, stopped=stopped)
        if diagnosed and by == "itself":  # in a window of ours
            by = diagnosed
        script = Script(argv=list(config.argv), module=config.module, cwd=str(Path.cwd()), python=sys.executable,
                        exit_status=_status_of(code), ended_by=by, error=error)  # fmt: skip
        recording = merge(journal, origin=origin, script=script, sampler=sampler)
        yield Run(recording, journal, interrupts.status or _status_of(code), own_status)


def command_line(argv: Sequence[str], *, module: bool) -> list[str]:
    """Raises UsageError when there is nothing to run."""
    if not argv:
        raise UsageError("no script: feedline profile [options] SCRIPT [ARGS…]")
    if module:
        return [sys.executable, "-m", *argv]
    script = Path(argv[0])
    if script.is_file() or (script / "__main__.py").is_file():
        return [sys.executable, *argv]
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    program = shutil.which(argv[0], path=beside)  # torchrun, accelerate: Python programs of this environment
    if program is not None and os.sep not in argv[0]:
        with Path(program).open("rb") as file:
            first, second = file.readline(), file.readline()
            # Where Python's path is long, a shell starts it, in a line that Python itself takes for a text.
            if b"python" in (second if second.startswith(b"'''exec'") else first):
                return [sys.executable, program, *argv[1:]]
        raise UsageError(f"{argv[0]} is not a Python program: name the script itself")
    if script.is_dir():
        raise UsageError(f"{script} is a folder without __main__.py: name the script itself")
    raise UsageError(f"no script at {script} (for a module: feedline profile -m {shlex.quote(argv[0])})")


def environment(folder: Path) -> dict[str, str]:
    paths = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": paths, ENVIRONMENT: str(folder)}


def _wait(
    child: "subprocess.Popen[bytes]", journal: Journal, sampler: ResourceSampler, report: Report
) -> tuple[int, bool]:
    """(return code, negative for a signal; whether we had to end it). Ends sampling when there is no more to see."""
    leaving_s: float | None = None
    idle = Idle(child.pid)
    diagnosing = said = False
    while True:
        with suppress(subprocess.TimeoutExpired):
            return child.wait(timeout=0.5), False
        if not diagnosing and progress(journal).ended_by:
            diagnosing = True
            sampler.stop()
            report("the verdict's steps are over: other windows of the same loop follow, then the script is ended")
        ended = [trainer.get("ended_by") for trainer in journal.all("trainer-") if is_trainer(trainer)]
        if not ended or None in ended:
            continue
        if "running" in ended:
            sampler.stop()
        elif leaving_s is None:
            leaving_s = time.monotonic()
        elif time.monotonic() - leaving_s > LEAVE_S and ended[0] in ENDED:
            if why := _why_to_end(journal, time.monotonic() - leaving_s, idle.seconds()):
                report(f"{why}: it is terminated")
                journal.complain(f"{why}: it was terminated")
                child.terminate()
                wait_or_kill(child, patience_s=5.0)
                return 0, True
            if not said:
                report("the script is still ending; Ctrl-C ends it at once")
            said = True


class Idle:
    """How long a program and its children have used no processor to speak of, and written nothing to speak of."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._since, self._used = time.monotonic(), (-math.inf, 0)

    def seconds(self) -> float:
        used_s, written, stored = 0.0, 0, False
        with suppress(psutil.Error):
            program = psutil.Process(self._pid)
            for process in (program, *program.children(recursive=True)):
                with suppress(psutil.Error):
                    times = process.cpu_times()
                    used_s += times.user + times.system
                    written += process.io_counters().write_chars
                    stored = stored or process.status() == psutil.STATUS_DISK_SLEEP
        now = time.monotonic()
        before_s, before = self._used
        if stored or abs(used_s - before_s) > IDLE_CPU_S or abs(written - before) > IDLE_BYTES:
            self._since, self._used = now, (used_s, written)
        return now - self._since


def _why_to_end(journal: Journal, seconds: float, idle_s: float) -> str:
    """A script that was told to stop so long ago; "" where it may be saving, or handing over what it has seen."""
    trains_on = journal.read("trains-on")
    if trains_on is not None and time.monotonic() - trains_on["at"] < RECENT_S:
        return "the script was told to stop and trains on"
    over = seconds > ENDING_MOST_S or idle_s > IDLE_MOST_S
    return "the script was told to stop and has not ended" if over else ""


def _end_processes(journal: Journal, child: "subprocess.Popen[bytes]", *, everything: bool) -> None:
    """The script's loader workers end with it; one that hangs is killed, so that no process is left. Of a script that
    is still there, or was terminated (`everything`), nothing at all is left."""
    if child.poll() is None:
        _kill([psutil.Process(child.pid), *psutil.Process(child.pid).children(recursive=True)])
        child.wait()
        _kill(_of_run(journal.folder, psutil.pids()))
        return
    workers = [worker["pid"] for worker in journal.all("worker-")]
    alive = _of_run(journal.folder, _of_this_session() if everything else workers)
    _, left = psutil.wait_procs(list(alive), timeout=GRACE_S)
    _kill(left)


def _of_this_session() -> Generator[int]:
    """Numbers of processes. One that has left the session is meant to outlive what has started it."""
    for number in psutil.pids():
        with suppress(OSError):
            if os.getsid(number) == os.getsid(0):
                yield number


def _kill(processes: Iterable[psutil.Process]) -> None:
    """With the folders of their sockets, which multiprocessing removes where a process ends by itself."""
    killed, folders = list(processes), set[Path]()
    for process in killed:
        with suppress(psutil.Error):
            sockets = (Path(str(socket.laddr)) for socket in process.net_connections("unix") if socket.laddr)
            folders |= {path.parent for path in sockets if path.parent.name.startswith("pymp-")}
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(killed, timeout=GRACE_S)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _of_run(folder: Path, numbers: Iterable[int]) -> Generator[psutil.Process]:
    """Those of the processes that a run's script has started, whoever is their parent by now. A number alone may have
    passed to a stranger."""
    for number in numbers:
        with suppress(psutil.Error, OSError):
            process = psutil.Process(number)
            if process.environ().get(ENVIRONMENT) == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def _status_of(code: int) -> int:
    """As a shell tells it: 128 + n for signal n."""
    return 128 - code if code < 0 else code


def _ended_by_us(journal: Journal) -> bool:
    """Whether we ended the script's loop, and no error of its own came of that: what catches SystemExit may end with
    a status above 0."""
    trainers = [trainer for trainer in journal.all("trainer-") if is_trainer(trainer)]
    stopped = any(trainer.get("ended_by") in ("steps", "seconds") for trainer in trainers)
    return stopped and not any(trainer.get("error") for trainer in trainers)


def _how_it_ended(journal: Journal, code: int, *, stopped: bool) -> tuple[EndedBy, str | None]:
    """And the error that ended it, if one did."""
    trainers = list(journal.all("trainer-"))
    ended = [trainer.get("ended_by") for trainer in trainers if is_trainer(trainer)]
    by: EndedBy = "signal" if code < 0 else "error" if code else "itself"
    if code <= 0 or stopped:  # what a script we have stopped dies of on its way out takes nothing from what was seen
        by = "steps" if "steps" in ended else "seconds" if "seconds" in ended else by
    return by, next((trainer["error"] for trainer in trainers if trainer.get("error")), None)
