"""A server of fresh processes, each of which runs one subject.

`python -m feedline.benchmarks.measure.fork_server` imports torch once and then forks a process for every line of JSON
it reads, so that each figure comes from a process without a past and yet costs no import (5–10 s). The fork runs the
subject through one warm-up and one window and answers with one line. It is its own process group, ended as a whole;
and the kernel ends it when whoever asked is gone, also by kill -9.
"""

import json
import os
import select
import signal
import sys
import traceback
from contextlib import suppress
from dataclasses import asdict
from typing import Any, NoReturn

from feedline.benchmarks.measure.window import Meter, Subject
from feedline.pipeline.base.errors import FeedlineError
from feedline.pipeline.base.process import die_with

PRELOAD = ("numpy", "psutil", "torch", "torchvision", "torch.utils.data")
"""Imports only: nothing here may start a thread or touch a GPU, or forks would inherit the halves of both."""


def serve(parent: int, terminal: int) -> None:
    """One answer per line of input, until the input ends. `terminal`: what a script has for its input."""
    die_with(parent)
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    redirect(os.devnull)
    for name in PRELOAD:
        __import__(name)
    answers.write('{"ready": true}\n')
    for line in sys.stdin:
        answers.write(answer(json.loads(line), terminal))


def answer(request: dict[str, Any], terminal: int) -> str:
    """Run the subject in a fork and wait for its line; {"error": …} when it says nothing."""
    log = request.pop("log")
    reading, writing = os.pipe()
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        os.close(reading)
        run_fork(Subject(**request), writing, log, parent, terminal)
    os.close(writing)
    text = read_line(reading, pid)
    _, status = os.waitpid(pid, 0)
    end_group(pid)  # workers of a subject that was killed
    return text or json.dumps({"error": f"ended with status {os.waitstatus_to_exitcode(status)}"}) + "\n"


def read_line(descriptor: int, pid: int) -> str:
    """What the fork writes; ends it when our own input closes, that is, when nobody waits for the answer."""
    with os.fdopen(descriptor) as answer:
        ready, _, _ = select.select([answer, 0], [], [])
        if 0 in ready:
            end_group(pid)
            os._exit(0)
        return answer.readline()


def run_fork(subject: Subject, writing: int, log: str, parent: int, terminal: int) -> NoReturn:
    """Never returns, and lets nothing reach the caller's frames."""
    try:
        os.setpgid(0, 0)
        die_with(parent)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        redirect(log)
        signal.signal(signal.SIGTTIN, signal.SIG_IGN)  # not the terminal's group: it may ask for its size, not read
        os.dup2(terminal, 0)
        text = json.dumps(run(subject))
    except BaseException as error:
        traceback.print_exc()
        kind, words = type(error).__name__, str(error).strip().splitlines()[-1:]
        said = words[0] if words and isinstance(error, FeedlineError) else ": ".join([kind, *words])
        text = json.dumps({"error": said})
    os.write(writing, f"{text}\n".encode())
    sys.stderr.flush()
    os._exit(0)


def run(subject: Subject) -> dict[str, Any]:
    """The window as plain JSON. Raises what the subject raises."""
    meter = Meter(subject)
    if subject.kind == "script":
        from feedline.benchmarks.measure.script_subject import run_script

        run_script(meter, subject.settings)
    else:
        from feedline.benchmarks.measure.loader_subject import run_loader

        run_loader(meter, subject.settings)
    if meter.window is None:
        raise RuntimeError("it ended before a whole window was measured: give it more data or more epochs")
    return asdict(meter.window)


def redirect(path: str) -> None:
    """Standard output and error go to `path`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def end_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # all of it has ended
        os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:]))
