"""A server of fresh processes, each of which runs one subject.

`python -m feedline.benchmarks.measure.fork_server` imports torch once and then forks a fresh process for every line
    of JSON it
reads, so that each figure comes from a process without a past and yet costs no import (5–10 s). The fork runs the
subject through one warm-up and one window and answers with one line. It is its own process group, ended as a whole;
and the kernel ends it when whoever asked is gone, also by kill -9.
"""

import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NoReturn, cast

from feedline.benchmarks.measure.window import Meter, Subject
from feedline.pipeline.base.errors import FeedlineError
from feedline.pipeline.base.process import die_with_parent

PRELOAD = ("numpy", "psutil", "torch", "torchvision", "torch.utils.data")


def serve() -> None:
    """One answer per line of input, until the input ends."""
    die_with_parent()
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w")
    quieten()
    preload()
    answers.write('{"ready": true}\n')
    answers.flush()
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Run the subject in a fork and wait for what it says; {"error": …} when it says nothing."""
    log = request.pop("log")
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        run_fork(Subject(**request), writing, log)
    os.close(writing)
    text = read_until_end(reading, pid)
    _, status = os.waitpid(pid, 0)
    end_group(pid)  # workers of a subject that was killed
    return json.loads(text) if text else {"error": f"ended with status {os.waitstatus_to_exitcode(status)}"}


def read_until_end(descriptor: int, pid: int) -> str:
    """What the fork writes; ends it when our own input closes, that is, when nobody waits for the answer."""
    parts: list[bytes] = []
    watcher = select.poll()
    watcher.register(descriptor, select.POLLIN | select.POLLHUP)
    watcher.register(0, select.POLLHUP)
    while True:
        for ready, _ in watcher.poll():
            if ready == 0:
                end_group(pid)
                os._exit(0)
            data = os.read(descriptor, 1 << 16)
            parts.append(data)
        # The pipe's end, or the line's: workers may hold the writing end open longer than the fork lives.
        if parts and (not parts[-1] or parts[-1].endswith(b"\n")):
            os.close(descriptor)
            return b"".join(parts).decode()


def run_fork(subject: Subject, writing: int, log: str) -> NoReturn:
    """Never returns, and lets nothing reach the caller's frames."""
    status = 1
    try:
        os.setpgid(0, 0)
        die_with_parent()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        redirect(log)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        result = run(subject)
        os.write(writing, (json.dumps(result) + "\n").encode())
        status = 0
    except BaseException as error:
        traceback.print_exc()
        os.write(writing, (json.dumps({"error": one_line(error)}) + "\n").encode())
    finally:
        sys.stderr.flush()
        os._exit(status)


def run(subject: Subject) -> dict[str, Any]:
    """The window as plain JSON. Raises what the subject raises."""
    if subject.kind == "script":
        from feedline.benchmarks.measure.script_subject import run_script as drive
    else:
        from feedline.benchmarks.measure.loader_subject import run_loader as drive
    meter = Meter(subject)
    cast("Callable[[Meter, dict[str, Any]], None]", drive)(meter, subject.settings)
    if meter.window is None:
        raise RuntimeError("it ended before a whole window was measured: give it more data or more epochs")
    return asdict(meter.window)


def one_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    if text and isinstance(error, FeedlineError):
        return text[-1]  # written for users
    return f"{type(error).__name__}: {text[-1]}" if text else type(error).__name__


def preload() -> None:
    """Imports only: nothing here may start a thread or touch a GPU, or forks would inherit the halves of both."""
    for name in PRELOAD:
        __import__(name)


def quieten() -> None:
    redirect(os.devnull)


def redirect(path: str) -> None:
    """Standard output and error go to `path`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def end_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # all of it has ended


if __name__ == "__main__":
    serve()
