"""Draws pictures, here or in processes of their own, and hands them over in order.

Worker w of W draws every W-th picture and writes (length, bytes) to its standard output; the parent reads the pipes
in turn. Pipes are bounded, so nobody runs ahead and memory stays flat; the order never depends on W; and a worker
whose parent is gone ends at its next write, however the parent ended.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from itertools import islice
from typing import IO

from feedline.pipeline.base.errors import FeedlineError
from feedline.pipeline.base.process import usable_cores
from feedline.preprocess.synth.inventory import SynthConfig, SynthPlan

LENGTH_BYTES = 8
PIPE_BYTES = 1 << 20
F_SETPIPE_SZ = 1031
FEW_IMAGES = 64
"""Fewer are drawn sooner than processes start."""


def pictures(plan: SynthPlan) -> Iterator[bytes]:
    """The bytes of `plan.files`, in order. Close it to end the workers early. Raises FeedlineError."""
    config = plan.config
    workers = config.num_workers
    if workers is None:
        workers = 0 if len(plan) <= FEW_IMAGES else usable_cores()
    if workers == 0:
        yield from drawn(plan, 0, 1)
    else:
        yield from drawn_by_workers(config, workers, len(plan))


def drawn(plan: SynthPlan, worker: int, workers: int) -> Iterator[bytes]:
    from feedline.preprocess.synth.oddities import picture_bytes

    for file in islice(plan.files(), worker, None, workers):
        yield picture_bytes(file.picture, plan.config.long_side_px)


def drawn_by_workers(config: SynthConfig, workers: int, count: int) -> Iterator[bytes]:
    with ExitStack() as stack:
        running = [stack.enter_context(worker_process(config, worker, workers)) for worker in range(workers)]
        for place in range(count):
            yield received(running[place % workers])


@contextmanager
def worker_process(config: SynthConfig, worker: int, workers: int) -> Generator["subprocess.Popen[bytes]"]:
    """Ended and reaped on the way out, whatever happened."""
    command = [sys.executable, "-P", "-m", "feedline.preprocess.synth.drawing", json.dumps(asdict(config))]
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, str(worker), str(workers)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | one_thread,
    )
    try:
        yield process
    finally:
        process.kill()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        process.wait()


def received(process: "subprocess.Popen[bytes]") -> bytes:
    assert process.stdout is not None
    head = process.stdout.read(LENGTH_BYTES)
    length = int.from_bytes(head, "little") if len(head) == LENGTH_BYTES else 0
    data = process.stdout.read(length)
    if len(head) < LENGTH_BYTES or len(data) < length:
        said = process.stderr.read().decode(errors="replace").strip() if process.stderr is not None else ""
        raise FeedlineError(
            f"a process that draws pictures ended ({(said.splitlines() or ['killed'])[-1]}): run again"
        )
    return data


def main() -> None:
    """Started by `worker_process`: configuration, worker, workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C ends
    plan = SynthPlan(SynthConfig(**json.loads(sys.argv[1])))
    import cv2

    cv2.setNumThreads(1)
    widen(sys.stdout.buffer)
    with contextlib.suppress(BrokenPipeError):
        for data in drawn(plan, int(sys.argv[2]), int(sys.argv[3])):
            sys.stdout.buffer.write(len(data).to_bytes(LENGTH_BYTES, "little") + data)
            sys.stdout.buffer.flush()
    # Nothing is left to flush; the interpreter's own attempt at a closed pipe would complain.
    os._exit(0)


def widen(pipe: IO[bytes]) -> None:
    """A few pictures may wait in the pipe, so that a worker goes on while the parent writes."""
    import fcntl

    with suppress(OSError):
        fcntl.fcntl(pipe.fileno(), F_SETPIPE_SZ, PIPE_BYTES)


if __name__ == "__main__":
    main()
