"""Draws pictures, here or in processes of their own, and hands them over in order.

A bounded number of pictures is drawn ahead, so memory stays flat; the order never depends on the number of processes.
"""

import signal
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from feedline.pipeline.base.errors import FeedlineError
from feedline.pipeline.base.process import die_with_parent, usable_cores
from feedline.preprocess.synth.inventory import SynthPlan
from feedline.preprocess.synth.pictures import Picture

FEW_IMAGES = 64
"""Fewer are drawn sooner than processes start."""
AHEAD = 8
"""Pictures drawn or waiting for each process."""


def pictures(plan: SynthPlan) -> Generator[bytes]:
    """The bytes of `plan.files`, in order. Close it to end the processes early. Raises FeedlineError."""
    workers = plan.config.num_workers
    if workers is None:
        workers = 0 if len(plan) <= FEW_IMAGES else usable_cores()
    if workers:
        yield from drawn_by_workers(plan, workers)
    else:
        for file in plan.files():
            yield drawn(file.picture, plan.config.long_side_px)


def drawn_by_workers(plan: SynthPlan, workers: int) -> Generator[bytes]:
    pool = ProcessPoolExecutor(workers, get_context("spawn"), start_worker)
    coming: deque[Future[bytes]] = deque()
    try:
        for file in plan.files():
            coming.append(pool.submit(drawn, file.picture, plan.config.long_side_px))
            if len(coming) == AHEAD * workers:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()
    except BrokenProcessPool as error:
        raise FeedlineError("a process that draws pictures was killed (out of memory?): run again") from error
    finally:
        pool.shutdown(cancel_futures=True)


def start_worker() -> None:
    """It ends with its parent, however that ends; and the parent decides what Ctrl-C ends."""
    import cv2

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    cv2.setNumThreads(1)


def drawn(picture: Picture, long_side_px: int) -> bytes:
    from feedline.preprocess.synth.oddities import picture_bytes

    return picture_bytes(picture, long_side_px)
