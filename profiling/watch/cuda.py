"""Host-to-device copies and starvation on CUDA, by events: nothing here waits for the device but `settle_device`.

An event is a mark in a stream. The mark after a step's last kernel and the one before the next step's first are as
far apart as the device had nothing of that stream to do (or less than the host's own overhead of a launch). Marks are
read back later, once they have passed, and by the script's own thread: any other that asks CUDA about an event while
a graph is captured breaks the capture.

Marking a step costs the host twice what all else does that watches it, so of short steps only some are marked, by
lot; `record.merge` lets them stand for the others.

What is copied on another stream than the steps' is copied beside them, and no step is said to wait for it. Copies of
less than SMALL_BYTES take no longer than to be asked for: none but a step's first is marked, which costs as much.
"""

import functools
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from types import MethodType
from typing import Any

from feedline.profiling.record.journal import StepRow
from feedline.profiling.watch.capture import Capture
from feedline.profiling.watch.facts import quietly
from feedline.profiling.watch.patches import Patches

SYNCHRONISING = ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__")
LIMIT = 8192  # marks that are waited for
SMALL_BYTES = 64 << 10
ALWAYS_S = 40e-3
"""Steps as long as this are all marked, which takes an H200's host up to 0.2 ms each (benchmarks/NOTES.md): 0.5 %. Of
shorter ones so many are marked that it stays at that."""
LATEST = 32  # batches: their mean duration, weighed towards the last, decides; so many without a step are a new lot


def in_use() -> Any:
    """torch, where this process computes on CUDA; else None."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_initialized() else None


def settle_device() -> None:
    """Kernels still queued on a GPU belong to the time before."""
    torch = in_use()
    if torch is None:
        return
    for index in range(torch.cuda.device_count()):
        # On a device without memory of ours there is nothing of ours, perhaps not even a context.
        if quietly(functools.partial(torch.cuda.memory_allocated, index)):
            torch.cuda.synchronize(index)


def is_small(tensor: Any) -> bool:
    try:
        return tensor.nbytes < SMALL_BYTES
    except Exception:  # a sparse one, a subclass that has no storage or refuses to tell
        return False


class Method:
    """Takes the place of a method of `torch.Tensor`. Whoever knows the original takes it for that: subclasses are
    asked by `__torch_function__`, with the function that the class has, whether they handle it; and the sampler, by
    the class and the module that it names."""

    def __init__(self, original: Any, watched: Any) -> None:
        functools.update_wrapper(self, original)
        self.__objclass__ = getattr(original, "__objclass__", None)
        self._original, self._watched = original, watched

    def __get__(self, tensor: Any, _: Any = None) -> Any:
        return self if tensor is None else MethodType(self._watched, tensor)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._watched(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return self is other or self._original == other

    def __hash__(self) -> int:
        return hash(self._original)


class Device:
    def __init__(self, torch: Any, capture: Capture) -> None:
        self._torch = torch
        self._capture = capture
        self._ended: Any = None
        self._came: Any = None  # the mark behind a batch that nothing has been copied of
        self._stepped: tuple[StepRow, Any] | None = None
        """The row of the optimiser's last step, and the mark behind that."""
        self._stream: int | None = None  # the one that the steps are in: where the last of them ended
        self._marks: deque[tuple[StepRow, str, Any, Any]] = deque(maxlen=LIMIT)
        """Row, its field that grows by the time between, two marks."""
        self._begun = False  # it is known that the script uses the device that marks are made on
        self._inside = set[int]()  # threads in a call that counts already: a subclass may make it once more
        self._marking = False  # the step that the loop is in, whatever it asks in it, is one of those that are marked
        self._due, self._asks = True, 0
        """The optimiser has stepped: the next lot may be drawn; and the batches asked for since the last was."""
        self._batch_s, self._drawn_s = 1.0, time.perf_counter()
        """The mean duration: the first hundred are marked, however short; and when the last lot was drawn."""
        self._draw = random.Random(1).random  # not the global one: it is the script's

    def install(self, patches: Patches) -> None:
        for watching, names in ((self._copying, ("to", "cuda")), (self._synchronising, SYNCHRONISING)):
            for name in names:
                patches.replace(self._torch.Tensor, name, lambda one, watch=watching: Method(one, watch(one)))

    def _once(self, original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        thread = threading.get_ident()
        self._inside.add(thread)
        try:
            return original(tensor, *args, **kwargs)
        finally:
            self._inside.discard(thread)

    def _markable(self) -> bool:
        """Whether the script itself has made a context on the device (we never do), and captures no graph."""
        cuda = self._torch.cuda
        if not cuda.is_initialized() or cuda.is_current_stream_capturing():
            return False
        self._begun = self._begun or self._model_s() is not None or bool(quietly(cuda.memory_allocated))
        return self._begun

    def _model_s(self) -> str | None:
        """The device that the model is on, which need not be the current one; None while nobody knows."""
        device = self._capture.facts.device
        return device if device.startswith("cuda") else None

    def _mark(self, stream: Any = None) -> Any:
        event = self._torch.cuda.Event(enable_timing=True)
        event.record(stream or self._current())
        return event

    def optimizer_stepped(self, row: StepRow) -> None:
        self._due = True
        self._stepped = (row, self._mark()) if self._marking and self._markable() else None

    def step_ended(self) -> None:
        """The loop is about to ask for a batch."""
        stepped, self._ended, self._stepped, self._came = self._stepped, None, None, None
        self._asks += 1
        if self._due or self._asks == LATEST:
            now_s = time.perf_counter()
            self._batch_s += (now_s - self._drawn_s - self._asks * self._batch_s) / LATEST
            self._due, self._asks, self._drawn_s = False, 0, now_s
            self._marking = self._draw() * ALWAYS_S < self._batch_s
        if (self._marking or stepped is not None) and self._markable():
            self._read()
            stream = self._current()
            ended, self._stream = self._mark(stream), stream.cuda_stream
            self._ended = ended if self._marking else None
            if stepped is not None:
                self._marks.append((stepped[0], "idle_s", stepped[1], ended))

    def step_begins(self, rows: Sequence[StepRow]) -> None:
        """Which have waited for the batch: the new one, and those that were begun before, perhaps by another lot. A
        row that is marked in part is not marked."""
        if self._marking:
            rows[0].copy_s = 0.0
        else:
            for row in rows[1:]:
                row.copy_s = row.starved_s = row.idle_s = None
        if self._ended is not None:
            self._came = self._mark()
            self._marks.extend((row, "starved_s", self._ended, self._came) for row in rows)
            self._ended = None

    def _current(self) -> Any:
        index = (self._model_s() or "").partition(":")[2]  # by number it is found in half the time
        return self._torch.cuda.current_stream(int(index) if index else None)

    def _copying(self, original: Any) -> Any:
        capture = self._capture

        @functools.wraps(original)
        def copy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            row = capture.loop.current if capture.active else None
            if row is None or threading.get_ident() in self._inside:
                return original(tensor, *args, **kwargs)
            if tensor.is_cuda:
                if args and isinstance(args[0], self._torch.dtype):
                    return original(tensor, *args, **kwargs)
                return self._away(original, tensor, *args, **kwargs)
            if not self._marking or (is_small(tensor) and self._came is None) or not self._markable():
                return original(tensor, *args, **kwargs)
            stream = self._current()
            if stream.cuda_stream != self._stream:
                return original(tensor, *args, **kwargs)
            before = capture.costing(self._mark, stream)
            result = self._once(original, tensor, *args, **kwargs)
            if result.is_cuda:
                self._marks.append((row, "copy_s", before, capture.costing(self._mark, stream)))
                came, self._came = self._came, None
                if came is not None:
                    self._marks.append((row, "idle_s", came, before))
            return result

        return copy

    def _away(self, original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """`to("cpu")` waits for the device, unless it is asked not to."""
        started = time.perf_counter()
        result = self._once(original, tensor, *args, **kwargs)
        if not result.is_cuda and not kwargs.get("non_blocking"):
            spent = time.perf_counter() - started
            self._capture.costing(self._capture.synchronised, spent, sys._getframe(2))
        return result

    def _synchronising(self, original: Any) -> Any:
        capture, clock = self._capture, time.perf_counter

        @functools.wraps(original)
        def synchronise(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if not capture.active or not tensor.is_cuda or threading.get_ident() in self._inside:
                return original(tensor, *args, **kwargs)
            started = clock()
            result = self._once(original, tensor, *args, **kwargs)
            capture.costing(capture.synchronised, clock() - started, sys._getframe(1))
            return result

        return synchronise

    def read(self) -> None:
        """Takes what the marks that have passed say, in the script's own thread."""
        if self._markable():
            self._read()

    def _read(self) -> None:
        """Marks that cannot be read (a lost device) are given up."""
        while self._marks:
            row, name, before, after = self._marks[0]
            try:
                if not after.query():
                    break
                if row.copy_s is not None:
                    setattr(row, name, (getattr(row, name) or 0.0) + before.elapsed_time(after) / 1e3)
            except RuntimeError:
                pass
            self._marks.popleft()

    def waiting(self) -> set[int]:
        """The ids of the rows of which marks have not been read. In any thread: CUDA is not asked."""
        return {id(row) for row, *_ in list(self._marks)}
