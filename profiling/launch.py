"""Run a script as its author would, watched: `python script.py args` in a process of its own, with our probe in it.

The probe gets in through a `sitecustomize` module in a folder put first on PYTHONPATH, so the interpreter itself runs
the script: `__main__`, `sys.argv`, `sys.path`, stdin and stdout are untouched, and processes the script starts
(torchrun's ranks) are watched too. The probe's line hands over to a `sitecustomize` of the machine's own.

This process meanwhile samples resources, passes signals on (`interrupts`), and merges what the processes wrote down.
"""

import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.scratch import scratch_folder
from feedline.profiling.interrupts import PASSED_ON, Interrupts, hearing
from feedline.profiling.machine.resources import ResourceSampler
from feedline.profiling.record.diagnostic import progress
from feedline.profiling.record.journal import ENVIRONMENT, Journal, Options
from feedline.profiling.record.measurements import scope_of
from feedline.profiling.record.merge import is_trainer, merge
from feedline.profiling.record.recording import EndedBy, Recording, Script

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
try:
    from feedline.profiling.probe import start_from_environment
    start_from_environment()
except Exception:
    if os.environ.get("FEEDLINE_DEBUG"):
        raise
'''
LEAVE_S = 20.0  # a script that was told to stop and does not is terminated after this long
GRACE_S = 3.0  # its workers end by themselves within this


Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What to run and how to watch it."""

    argv: Sequence[str]
    """The script (or module) and its arguments."""
    module: bool = False
    options: Options = field(default_factory=Options)


@dataclass(frozen=True)
class Run:
    recording: Recording
    journal: Journal
    status: int
    """What the script ended with; 128 + n for signal n, to it or to this process. 0 once its verdict was known in a
    diagnostic run and no signal ended it: what was asked for has been seen."""
    exit_status: int = 0
    """What the script itself ended with, in any case."""


@contextmanager
def launched(launch: Launch, report: Report = lambda _: None) -> Generator[Run]:
    """Run to the end; the journal's folder exists inside the block."""
    command = command_line(launch.argv, module=launch.module)
    with hearing() as interrupts, scratch_folder("profile") as folder:
        (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
        journal = Journal(folder)
        journal.set_options(replace(launch.options, parent=parent()))
        yield _run(launch, command, journal, interrupts, report)


def parent() -> int:
    """Whom the script ends with: this process. 0 outside its main thread, with which Linux would end it already."""
    return os.getpid() if threading.current_thread() is threading.main_thread() else 0


def profile(launch: Launch) -> Run:
    with launched(launch) as run:
        return run


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
            if b"python" in file.readline():
                return [sys.executable, program, *argv[1:]]
        raise UsageError(f"{argv[0]} is not a Python program: name the script itself")
    if script.is_dir():
        raise UsageError(f"{script} is a folder without __main__.py: name the script itself")
    raise UsageError(f"no script at {script} (for a module: feedline profile -m {shlex.quote(argv[0])})")


def _run(launch: Launch, command: list[str], journal: Journal, interrupts: Interrupts, report: Report) -> Run:
    origin = time.perf_counter()
    child: subprocess.Popen[bytes] = subprocess.Popen(command, env=environment(journal.folder))
    sampler = ResourceSampler(child.pid, origin=origin, roles=Roles(journal))
    sampler.start()
    try:
        with interrupts.passed_on_to(child, journal):
            code, stopped = _wait(child, journal, sampler, report)
    finally:
        sampler.stop()
        end_processes(journal, child)
    own_status = status_of(code)
    diagnosed = progress(journal).began
    if code and diagnosed and not interrupts.number and -code not in PASSED_ON:
        code, stopped = 0, True
    script = _script(launch, journal, code, stopped=stopped, diagnosed=diagnosed)
    recording = merge(journal, origin=origin, argv=launch.argv, sampler=sampler, script=script)
    return Run(recording, journal, interrupts.status or status_of(code), own_status)


def environment(folder: Path) -> dict[str, str]:
    path = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": f"{folder}{os.pathsep}{path}" if path else str(folder),
        ENVIRONMENT: str(folder),
    }


def _wait(
    child: "subprocess.Popen[bytes]", journal: Journal, sampler: ResourceSampler, report: Report
) -> tuple[int, bool]:
    """(return code, negative for a signal; whether we had to end it). Ends sampling when there is no more to see."""
    left: float | None = None
    diagnosing = False
    while True:
        try:
            return child.wait(timeout=0.5), False
        except subprocess.TimeoutExpired:
            pass
        if not diagnosing and progress(journal).began:
            diagnosing = True
            sampler.stop()
            report("the verdict's steps are over: other windows of the same loop follow, then the script is ended")
        ended = [said.get("ended_by") for said in journal.all("trainer-") if is_trainer(said)]
        if not ended or None in ended:
            continue
        if "running" in ended:
            sampler.stop()
        elif left is None:
            left = time.monotonic()
        elif time.monotonic() - left > LEAVE_S and ended[0] in ("steps", "seconds", "signal"):
            _terminate(child)
            return 0, True


def _terminate(child: "subprocess.Popen[bytes]") -> None:
    child.terminate()
    try:
        child.wait(timeout=5)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


class Roles:
    """Names of processes by id, as they introduced themselves in the journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._known: dict[str, dict[int, str]] = {}

    def __call__(self) -> dict[int, str]:
        for path in self._journal.folder.glob("*-*.json"):
            if path.name not in self._known:
                self._known[path.name] = self._role(path)
        return {pid: role for found in self._known.values() for pid, role in found.items()}

    def _role(self, path: Path) -> dict[int, str]:
        said = self._journal.read(path.stem)
        if said is None:
            return {}
        rank = said.get("rank", 0)
        if path.name.startswith("worker-"):
            return {said["pid"]: scope_of(rank, said["worker"])}
        return {said["pid"]: scope_of(rank)} if path.name.startswith("trainer-") else {}


def end_processes(journal: Journal, child: "subprocess.Popen[bytes]") -> None:
    """The script's loader workers end with it; one that hangs is killed, so that no process is left. Of a script that
    is still there nothing at all is left."""
    if child.poll() is None:
        _kill([psutil.Process(child.pid), *psutil.Process(child.pid).children(recursive=True)])
        child.wait()
        _kill(of_run(journal.folder))
        return
    alive = [_alive(said["pid"], said["created"]) for said in journal.all("worker-")]
    _, left = psutil.wait_procs([process for process in alive if process is not None], timeout=GRACE_S)
    _kill(left)


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(processes, timeout=GRACE_S)


def of_run(folder: Path) -> list[psutil.Process]:
    """All that a run's script has started, whoever is its parent by now."""
    processes: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(ENVIRONMENT) == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return processes


def _alive(pid: int, created: float) -> psutil.Process | None:
    """The process, unless its number has passed to another one meanwhile."""
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - created) < 60 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return None
    return process if same else None


def status_of(code: int) -> int:
    """As a shell tells it: 128 + n for signal n."""
    return 128 - code if code < 0 else code


def _script(launch: Launch, journal: Journal, code: int, *, stopped: bool, diagnosed: bool) -> Script:
    said = list(journal.all("trainer-"))
    ended = [one.get("ended_by") for one in said if is_trainer(one)]
    error = next((one["error"] for one in said if one.get("error")), None)
    by: EndedBy = "signal" if code < 0 else "error" if code else "itself"
    if code <= 0 or stopped:  # what a script we have stopped dies of on its way out takes nothing from what was seen
        by = "steps" if "steps" in ended else "seconds" if "seconds" in ended else by
    if diagnosed and by == "itself":  # in a window of ours
        by = "steps" if launch.options.steps else "seconds"
    return Script(
        argv=list(launch.argv),
        module=launch.module,
        cwd=str(Path.cwd()),
        python=sys.executable,
        exit_status=status_of(code),
        ended_by=by,
        error=error,
    )
