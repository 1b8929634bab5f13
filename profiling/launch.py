"""Run a script as its author would, watched: `python script.py args` in a process of its own, with our probe in it.

The probe gets in through a `sitecustomize` module in a folder put first on PYTHONPATH, so the interpreter itself runs
the script: `__main__`, `sys.argv`, `sys.path`, stdin and stdout are untouched, and processes the script starts
(torchrun's ranks) are watched too. The probe's line hands over to a `sitecustomize` of the machine's own.

This process meanwhile samples resources, passes signals on (`Interrupts`), and merges what the processes wrote down.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.scratch import scratch_folder
from feedline.profiling.machine.resources import ResourceSampler
from feedline.profiling.record.journal import ENVIRONMENT, Journal, Options
from feedline.profiling.record.merge import is_trainer, merge
from feedline.profiling.record.recording import EndedBy, Recording, Script
from feedline.profiling.record.series import scope_of

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

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_S = 0.25  # signals this close are one: `timeout` sends to its child, then to the whole group


class Interrupted(BaseException):
    """A signal breaks off what `Interrupts.breaking_off` holds."""


class Interrupts:
    """Ctrl-C and its like, from before the script starts until the report is written.

    The first signal goes to the script, whose own handlers decide how it ends. Nothing new begins after it (whoever
    starts something asks `number`), and the report of what was seen is written. A second one ends everything at once
    with SystemExit.
    """

    def __init__(self, witness: "subprocess.Popen[bytes]") -> None:
        self.number = 0
        """Of the first signal; 0 while there was none."""
        self._witness = witness
        self._heard_s = 0.0
        self._ending = False
        self._breaks_off = False
        self._script: tuple[subprocess.Popen[bytes], Journal] | None = None
        self._told = False

    @property
    def status(self) -> int:
        """Exit status after a signal, as a shell tells it; 0 without one."""
        return self.number and 128 + self.number

    @contextmanager
    def passed_on_to(self, child: "subprocess.Popen[bytes]", journal: Journal) -> Generator[None]:
        self._told, self._script = False, (child, journal)
        try:
            if self.number and not self._told:  # it came before the script was there
                self._pass_on(heard_too=False)
            yield
        finally:
            self._script = None

    @contextmanager
    def breaking_off(self) -> Generator[None]:
        """Work of our own: the first signal raises Interrupted in it."""
        self._breaks_off = True
        try:
            if self.number:
                raise Interrupted
            yield
        finally:
            self._breaks_off = False

    def hear(self, number: int, _frame: FrameType | None) -> None:
        if not self.number:
            self.number, self._heard_s = number, time.monotonic()
            if self._script is not None:
                self._pass_on(heard_too=True)
            if self._breaks_off:
                raise Interrupted
        elif time.monotonic() - self._heard_s > SAME_S and not self._ending:
            self._ending = True
            raise SystemExit(128 + number)

    def _pass_on(self, *, heard_too: bool) -> None:
        """`heard_too`: the script has had it as well if the whole group has."""
        assert self._script is not None
        child, journal = self._script
        self._told = True
        with suppress(ProcessLookupError):
            if not (heard_too and self._had_by_all(os.getpgid(child.pid))):
                child.send_signal(self.number)
        journal.interrupt()

    def _had_by_all(self, group: int) -> bool:
        if group != os.getpgrp():
            return False
        with suppress(subprocess.TimeoutExpired):
            self._witness.wait(SAME_S)
        return bool(self._witness.returncode)


_hearing: list[Interrupts] = []


@contextmanager
def hearing() -> Generator[Interrupts]:
    """From here on signals are `Interrupts`: those of the longer piece of work that this one is part of, else new."""
    if _hearing:
        yield _hearing[0]
        return
    # A signal to the whole process group ends this process too. Without it nobody could tell whether the script has
    # had a signal already, and its handlers must not run twice. It ends with us, since its input does.
    command = [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"]
    nowhere = subprocess.DEVNULL
    witness: subprocess.Popen[bytes] = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere
    )
    interrupts = Interrupts(witness)
    before: dict[signal.Signals, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():  # nobody sends signals to other threads
            heard = [number for number in PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]  # nohup
            before = {number: signal.signal(number, interrupts.hear) for number in heard}
        _hearing.append(interrupts)
        yield interrupts
    finally:
        _hearing.clear()
        witness.kill()
        witness.communicate()
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What to run and how to watch it."""

    argv: Sequence[str]
    """The script (or module) and its arguments."""
    module: bool = False
    options: Options = field(default_factory=Options)
    silent: bool = False
    """Standard output and error go nowhere (legs)."""
    environment: dict[str, str] | None = None
    """Added to the script's environment."""


@dataclass(frozen=True)
class Run:
    recording: Recording
    journal: Journal
    status: int
    """What the script ended with; 128 + n for signal n."""
    stderr_tail: str = ""
    interrupted: bool = False
    """This process had a signal."""


@contextmanager
def launched(launch: Launch) -> Generator[Run]:
    """Run to the end; the journal's folder exists inside the block."""
    command = command_line(launch.argv, module=launch.module)
    with hearing() as interrupts, scratch_folder("profile") as folder:
        (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
        journal = Journal(folder)
        journal.set_options(replace(launch.options, parent=parent()))
        yield _run(launch, command, journal, interrupts)


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


def _run(launch: Launch, command: list[str], journal: Journal, interrupts: Interrupts) -> Run:
    origin = time.perf_counter()
    errors = journal.folder / "stderr.txt"
    with errors.open("wb") as sink:
        nowhere = subprocess.DEVNULL if launch.silent else None
        child: subprocess.Popen[bytes] = subprocess.Popen(
            command,
            env=environment(journal.folder, launch.environment),
            stdin=nowhere,
            stdout=nowhere,
            stderr=sink if launch.silent else None,
        )
        sampler = ResourceSampler(child.pid, origin=origin, roles=Roles(journal))
        sampler.start()
        try:
            with interrupts.passed_on_to(child, journal):
                code, stopped = _wait(child, journal, sampler)
        finally:
            sampler.stop()
            end_processes(launch, journal, child)
    script = _script(launch, journal, code, stopped=stopped)
    recording = merge(journal, origin=origin, argv=launch.argv, sampler=sampler, script=script)
    return Run(
        recording, journal, status_of(code), errors.read_text(errors="replace")[-2000:], bool(interrupts.number)
    )


def environment(folder: Path, more: dict[str, str] | None = None) -> dict[str, str]:
    path = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": f"{folder}{os.pathsep}{path}" if path else str(folder),
        ENVIRONMENT: str(folder),
        **(more or {}),
    }


def _wait(child: "subprocess.Popen[bytes]", journal: Journal, sampler: ResourceSampler) -> tuple[int, bool]:
    """(return code, negative for a signal; whether we had to end it). Ends sampling when there is no more to see."""
    left: float | None = None
    while True:
        try:
            return child.wait(timeout=0.5), False
        except subprocess.TimeoutExpired:
            pass
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


def end_processes(launch: Launch, journal: Journal, child: "subprocess.Popen[bytes]") -> None:
    """The script's loader workers end with it; one that hangs is killed, so that no process is left. Of a script that
    is still there, and of one that we ran for ourselves, nothing at all is left."""
    if child.poll() is None:
        _kill([psutil.Process(child.pid), *psutil.Process(child.pid).children(recursive=True)])
        child.wait()
        _kill(of_run(journal.folder))
        return
    workers = [found for said in journal.all("worker-") if (found := _alive(said["pid"], said["created"]))]
    _, left = psutil.wait_procs(of_run(journal.folder) if launch.silent else workers, timeout=GRACE_S)
    _kill(left)


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(processes, timeout=GRACE_S)


def of_run(folder: Path) -> list[psutil.Process]:
    """All that a run's script has started, whoever is its parent by now."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(ENVIRONMENT) == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


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


def _script(launch: Launch, journal: Journal, code: int, *, stopped: bool) -> Script:
    said = list(journal.all("trainer-"))
    ended = [one.get("ended_by") for one in said if is_trainer(one)]
    error = next((one["error"] for one in said if one.get("error")), None)
    by: EndedBy = "signal" if code < 0 else "error" if code else "itself"
    if code <= 0 or stopped:  # what a script we have stopped dies of on its way out takes nothing from what was seen
        by = "steps" if "steps" in ended else "seconds" if "seconds" in ended else by
    return Script(
        argv=list(launch.argv),
        module=launch.module,
        cwd=str(Path.cwd()),
        python=sys.executable,
        exit_status=status_of(code),
        ended_by=by,
        error=error,
    )


def with_script(recording: Recording, **changes: Any) -> Recording:
    return replace(recording, script=replace(recording.script, **changes))
