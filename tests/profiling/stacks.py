"""Real stacks: code of a user's that stops wherever a test wants to look, and what is told of it from there."""

import io
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

from feedline.profiling.watch.evidence import ThreadEvidence
from feedline.profiling.watch.parts import LoopCode, part
from feedline.profiling.watch.rules import Place, classify

PIL_Image = pytest.importorskip("PIL.Image")
USER = """
import copy
import queue
import threading
import time
import numpy as np
import torch

lock = threading.Lock()
x = torch.ones(64, 64)
ready = threading.Event()

def plain(look):
    return look()

class Inline:
    def __getitem__(self, look):
        return look()

def sleeps(over):
    time.sleep(20 if not over.is_set() else 0)

def polls(over):
    sleeps(over)

def read_everything(over):  # which only computes
    while not over.is_set():
        pass

def waits_for_a_lock(over):
    with lock:
        pass

def takes_from_a_queue(over):
    stream = queue.Queue()
    ready.wait(20)

class Ahead:
    def __iter__(self):
        return self
    def __next__(self):
        ready.wait(20)

def waits_in_an_iterator(over):
    for _ in zip(range(1), Ahead()):
        pass

def stacks(over):
    rows = [torch.ones(300_000)] * 40
    while not over.is_set():
        torch.stack(rows).mean(0)

def trains(over):
    x, w = torch.ones(400, 400), torch.ones(400, 400, requires_grad=True)
    while not over.is_set():
        (x @ w).sum()

def counts(over):
    probs = torch.ones(8, 400_000)
    while not over.is_set():
        [(row > 0.5).sum().item() for row in probs]

def spreads(over):
    probs = torch.ones(400, 4000)
    while not over.is_set():
        torch.nn.functional.softmax(probs, dim=1)

def multiplies(over):
    rows = torch.ones(600, 600)
    while not over.is_set():
        torch.einsum("ij,jk->ik", rows, rows)

def spreads_to_train(over):
    probs = torch.ones(400, 4000, requires_grad=True)
    while not over.is_set():
        torch.nn.functional.softmax(probs, dim=1)

def keeps_weights(over):
    layer = torch.nn.Linear(1000, 4000)
    while not over.is_set():
        copy.deepcopy(layer.state_dict())

def keeps_the_layer(over):
    layer = torch.nn.Linear(1000, 4000)
    while not over.is_set():
        copy.deepcopy(layer)

def turns_pictures(over):
    from torchvision.transforms.functional import hflip
    pictures = torch.ones(32, 3, 256, 256)
    while not over.is_set():
        hflip(pictures)

def own_numpy(over):
    rows = np.ones((2000, 2000))
    while not over.is_set():
        np.add(rows, rows)

def train(look):
    loss = look()
    return loss

class Blur:
    def __call__(self, look):
        return look()

def batches(look):
    yield look()

def makes_a_batch(look):
    return look()

def loop(look):
    for found in batches(look):
        return found

def calling_loop(look):
    return makes_a_batch(look)

def recording_loop(look):
    makes_a_batch(look)

class Heads(torch.nn.Module):
    def forward(self, look):
        return list(self.each(look))[0]
    def each(self, look):
        yield look()

def model_loop(look):
    return Heads()(look)

def summing_loop(look):
    return [found for found in iter([sum(look() or 0 for _ in range(1))])][0]

def sorts(look):
    sorted([1], key=lambda _: look())

class Jitter:
    def __call__(self, look):
        return plain(look)

class Feed:
    def take(self, over):
        waiting = queue.Queue()
        while not over.is_set():
            try:
                waiting.get(timeout=0.05)
            except queue.Empty:
                pass

def my_collate(looks):
    return plain(looks[0])

def bookkeeping(look):
    return plain(look)
"""


def users_module(folder: Path) -> ModuleType:
    """A module of the user's own."""
    path = folder / "user_code.py"
    path.write_text(USER)
    module = ModuleType("user_code")
    exec(compile(USER, str(path), "exec"), module.__dict__)
    return module


def seen(call: Callable[[Callable[[], Place]], Any]) -> Place:
    """The place of the stack that `call` ends in; our own frame is left out."""
    found: list[Place] = []

    def look() -> Place:
        found.append(classify(sys._getframe(1)))
        return found[-1]

    call(look)
    return found[0]


@contextmanager
def running(function: Callable[[threading.Event], Any]) -> Generator[Callable[[], tuple[FrameType, ThreadEvidence]]]:
    """A thread in it; what comes is its innermost frame when asked, and what the kernel says of it."""
    over = threading.Event()
    thread = threading.Thread(target=function, args=(over,), daemon=True)
    thread.start()
    evidence = ThreadEvidence(thread.native_id)
    time.sleep(0.1)
    try:
        yield lambda: (sys._current_frames()[thread.ident or 0], evidence)
    finally:
        over.set()


def caught(
    function: Callable[[threading.Event], Any],
    *,
    loop: LoopCode | None = None,
    trains: bool = False,
    hands_itself: bool = True,
) -> tuple[str, str]:
    """What a worker's thread would be said to do in it, and a training thread: the most frequent of many looks."""
    stages, parts = Counter[str](), Counter[str]()
    with running(function) as look:
        for _ in range(25):
            time.sleep(0.005)
            frame, evidence = look()
            blocked = evidence.mostly_blocked_in(evidence.spent(), 0.005)
            stages[classify(frame, lambda blocked=blocked: blocked).stage] += 1
            place = part(frame, on_device=False, loop=loop, blocked=blocked, held=True, trains=trains,
                         hands_itself=hands_itself)  # fmt: skip
            parts[place.stage] += 1
    return stages.most_common(1)[0][0], parts.most_common(1)[0][0]


class Looking(io.BytesIO):
    """A file that looks at the stack whenever it is read or written."""

    def __init__(self, look: Callable[[], Any], data: bytes = b"") -> None:
        super().__init__(data)
        self._look = look

    def read(self, size: int | None = -1, /) -> bytes:
        self._look()
        return super().read(size)

    def write(self, data: Any, /) -> int:
        self._look()
        return super().write(data)


def jpeg() -> bytes:
    out = io.BytesIO()
    PIL_Image.new("RGB", (640, 480), (200, 100, 50)).save(out, "JPEG")
    return out.getvalue()


def told(call: Callable[[Callable[[], Any]], Any], *, loop: LoopCode | None = None, hands_itself: bool = True) -> str:
    found: list[str] = []

    def look() -> None:
        found.append(part(sys._getframe(1), on_device=False, loop=loop, hands_itself=hands_itself).stage)

    call(look)
    return found[0]
