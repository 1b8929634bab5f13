"""Marks on a device: what they are said to measure, who reads them, and what they leave alone."""

import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from feedline.profiling.record.journal import Journal, StepRow, StudyConfig
from feedline.profiling.record.merge import merge
from feedline.profiling.record.recording import Recording
from feedline.profiling.record.recording import Script as SeenScript
from feedline.profiling.watch.capture import Capture
from feedline.profiling.watch.cuda import Device
from feedline.profiling.watch.hooks import Hooks
from feedline.profiling.watch.parts import part


class Cuda:
    """A device whose clock is told; what it is asked while it captures is an error, as with CUDA's global mode."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.stream = 0
        self.capturing = False
        self.passed = True
        self.askers: set[int] = set()
        self.asked: set[int | None] = set()
        """Devices whose stream was asked for; None: the current one."""
        self.allocated = 1 << 20
        cuda = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self, _: Any) -> None:
                self.at_ms = cuda.now_ms

            def query(self) -> bool:
                if cuda.capturing:
                    raise RuntimeError("operation not permitted when stream is capturing")
                cuda.askers.add(threading.get_ident())
                return cuda.passed

            def elapsed_time(self, other: "Event") -> float:
                return other.at_ms - self.at_ms

        self.Event = Event

    def is_initialized(self) -> bool:
        return True

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def current_stream(self, device: int | None) -> Any:
        self.asked.add(device)
        return SimpleNamespace(cuda_stream=self.stream)

    def memory_allocated(self) -> int:
        return self.allocated


def tensors(cuda: Cuda) -> type[Any]:
    """Of a device on which a copy takes 2 ms."""

    class Tensor:
        def __init__(self, is_cuda: bool = False, nbytes: int = 1 << 20) -> None:
            self.is_cuda, self.nbytes = is_cuda, nbytes

        def to(self, where: str, **_: Any) -> "Tensor":
            cuda.now_ms += 2.0
            return Tensor(where != "cpu")

        cuda = to

        def item(self) -> float:
            return 1.0

        cpu = tolist = numpy = __float__ = item

        def __int__(self) -> int:
            return 1

        def __bool__(self) -> bool:
            return True

    return Tensor


class Script:
    """A loop that is watched, step by step."""

    def __init__(self, folder: Path) -> None:
        self.cuda = Cuda()
        self.Tensor = tensors(self.cuda)
        self.capture = Capture(Journal(folder), StudyConfig(steady=False))
        self.hooks = Hooks(self.capture)
        self.device = Device(SimpleNamespace(Tensor=self.Tensor, cuda=self.cuda, dtype=torch.dtype), self.capture)
        self.capture.device = self.device
        self.device.install(self.hooks.patches)
        self.origin = time.perf_counter()
        self.loader = SimpleNamespace(num_workers=0)
        self.loop = self.capture.begin_pass(self.loader, "torch")

    def step(self, *, dry_ms: float = 0.0, own_ms: float = 0.0, before_ms: float = 0.0) -> None:
        """Asks, gets, copies, trains. The device is dry while the loop waits, in its own Python behind the optimiser,
        and in what it does before it copies."""
        self.capture.ask(self.loop)
        self.cuda.now_ms += dry_ms
        self.capture.got(self.loop, [[1, 2]])
        self.cuda.now_ms += before_ms
        self.Tensor().to("cuda")
        self.cuda.now_ms += 5.0
        self.capture.optimizer_step(0.001)
        self.cuda.now_ms += own_ms

    def end(self) -> Recording:
        self.capture.end_pass(self.loop, exhausted=True)
        self.capture.leave("itself")
        self.hooks.remove()
        return merge(self.capture.journal, origin=self.origin, script=SeenScript(argv=["x.py"]))


def test_starvation_is_the_waiting_and_idleness_what_the_loop_does_beside_it(tmp_path: Path) -> None:
    script = Script(tmp_path)
    for _ in range(12):
        script.step(dry_ms=4.0, own_ms=3.0, before_ms=1.0)
    steps = script.end().steps
    assert [step.starved_s for step in steps] == pytest.approx([0.004] * 12)
    assert [step.copy_s for step in steps] == pytest.approx([0.002] * 12)
    assert [step.idle_s for step in steps[:-1]] == pytest.approx([0.004] * 11)


def test_of_short_steps_some_are_marked_and_stand_for_the_others(tmp_path: Path) -> None:
    script = Script(tmp_path)
    made = list[Any]()
    event = script.cuda.Event
    script.cuda.Event = lambda **given: made.append(event(**given)) or made[-1]
    for number in range(1200):
        script.step(dry_ms=4.0, own_ms=3.0, before_ms=1.0 if number % 2 else 2.0)
    steps = script.end().steps
    assert 5 * 100 < len(made) < 5 * 200  # the first hundred, and few of those that take a millionth of a second
    assert [step.copy_s for step in steps] == pytest.approx([0.002] * 1200)
    told = [step for step in steps if not step.warm_up]
    assert sum(step.idle_s or 0.0 for step in told) / len(told) == pytest.approx(0.0045, rel=0.1)


@pytest.mark.parametrize("trained_every", [0, 8, 50])
def test_of_short_batches_few_are_marked_where_an_optimiser_steps_seldom_or_never(
    tmp_path: Path, trained_every: int
) -> None:
    """Gradients that are accumulated; a script that only evaluates."""
    script = Script(tmp_path)
    made = list[Any]()
    event = script.cuda.Event
    script.cuda.Event = lambda **given: made.append(event(**given)) or made[-1]
    for number in range(4000):
        script.capture.ask(script.loop)
        script.cuda.now_ms += 4.0
        script.capture.got(script.loop, [[1, 2]])
        script.Tensor().to("cuda")
        if trained_every and number % trained_every == 0:
            script.capture.optimizer_step(0.001)
    assert 0 < len(made) < 4000, "the first lots, and few of the batches that take a millionth of a second"
    script.end()


def test_a_cast_on_the_device_is_not_looked_at(tmp_path: Path) -> None:
    script = Script(tmp_path)
    script.step()
    script.device._away = lambda *_: pytest.fail("nothing of it waits, and a model makes hundreds in a step")
    script.Tensor(is_cuda=True).to(torch.float16)
    script.end()


def test_two_loaders_in_a_loop_have_all_of_a_step_marked_or_nothing(tmp_path: Path) -> None:
    script = Script(tmp_path)
    other = SimpleNamespace(num_workers=0)
    beside = script.capture.begin_pass(other, "torch")
    for _ in range(600):
        for one in (script.loop, beside):
            script.capture.ask(one)
            script.cuda.now_ms += 2.0
            script.capture.got(one, [[1, 2]])
            script.Tensor().to("cuda")
        script.cuda.now_ms += 5.0
        script.capture.optimizer_step(0.001)
    script.capture.end_pass(beside, exhausted=True)
    script.end()
    rows = script.capture.journal.rows(f"steps-{os.getpid()}", StepRow)
    for one in (script.loop, beside):  # the last row of each is waited for by nobody
        marked = [row for row in rows if row.loader == one.loader and row.starved_s is not None][:-1]
        assert 80 < len(marked) < 300
        assert [row.starved_s for row in marked] == pytest.approx([0.004] * len(marked))
        assert all(row.copy_s is not None for row in marked)


def test_long_steps_are_all_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedline.profiling.watch.cuda.ALWAYS_S", 0.0)
    script = Script(tmp_path)
    for _ in range(400):
        script.step(dry_ms=4.0)
    assert [step.starved_s for step in script.end().steps] == pytest.approx([0.004] * 400)


def test_marks_are_made_where_the_model_is_and_nowhere_before(tmp_path: Path) -> None:
    """The current device may be another one, full or not begun yet: a mark there would make a context."""
    script = Script(tmp_path)
    script.cuda.allocated = 0
    for _ in range(6):
        script.step(dry_ms=4.0)
    assert script.cuda.asked == set()
    script.capture.facts.device = "cuda:1"
    for _ in range(6):
        script.step(dry_ms=4.0)
    steps = script.end().steps
    assert script.cuda.asked == {1}
    assert [step.starved_s for step in steps[-5:]] == pytest.approx([0.004] * 5)


def test_what_is_copied_beside_the_steps_delays_none(tmp_path: Path) -> None:
    script = Script(tmp_path)
    script.capture.ask(script.loop)
    script.capture.got(script.loop, [[1, 2]])
    script.cuda.stream = 7
    script.Tensor().to("cuda")
    script.cuda.stream = 0
    script.Tensor().to("cuda")
    assert script.end().steps[0].copy_s == pytest.approx(0.002)


def test_a_copy_as_small_as_labels_are_is_not_marked(tmp_path: Path) -> None:
    script = Script(tmp_path)
    script.capture.ask(script.loop)
    script.capture.got(script.loop, [[1, 2]])
    script.capture.ask(script.loop)
    script.capture.got(script.loop, [[1, 2]])
    script.Tensor().to("cuda")
    script.Tensor(nbytes=2048).to("cuda")
    assert script.end().steps[1].copy_s == pytest.approx(0.002)


def test_what_the_loop_does_before_it_copies_is_seen_whatever_the_size(tmp_path: Path) -> None:
    """Texts that it makes into numbers are small."""
    script = Script(tmp_path)
    for _ in range(3):
        script.capture.ask(script.loop)
        script.capture.got(script.loop, [[1, 2]])
        script.cuda.now_ms += 7.0
        script.Tensor(nbytes=2048).to("cuda")
        script.capture.optimizer_step(0.001)
    assert script.end().steps[1].idle_s == pytest.approx(0.007)


def test_what_has_no_size_is_copied_and_marked(tmp_path: Path) -> None:
    script = Script(tmp_path)
    script.capture.ask(script.loop)
    script.capture.got(script.loop, [[1, 2]])
    sparse = script.Tensor()
    del sparse.nbytes
    sparse.to("cuda")
    assert script.end().steps[0].copy_s == pytest.approx(0.002)


def test_only_the_script_s_own_thread_asks_the_device(tmp_path: Path) -> None:
    """Another thread that did would break a graph's capture."""
    script = Script(tmp_path)
    for _ in range(5):
        script.step(dry_ms=1.0)
        thread = threading.Thread(target=script.capture.flush)
        thread.start()
        thread.join()
    script.end()
    assert script.cuda.askers == {threading.get_ident()}


def test_nothing_is_marked_nor_read_while_a_graph_is_captured(tmp_path: Path) -> None:
    script = Script(tmp_path)
    script.step(dry_ms=1.0)
    script.cuda.passed = False  # so that marks are left
    script.step(dry_ms=1.0)
    before = len(script.device._marks)
    script.cuda.capturing = script.cuda.passed = True
    script.step(dry_ms=1.0)
    script.device.read()
    assert len(script.device._marks) == before
    script.cuda.capturing = False
    script.step(dry_ms=1.0)
    assert script.end().steps[1].starved_s == pytest.approx(0.001)


def test_rows_whose_marks_have_not_passed_are_not_written(tmp_path: Path) -> None:
    script = Script(tmp_path)
    script.cuda.passed = False
    for _ in range(3):
        script.step(dry_ms=1.0)
    script.capture.flush()
    assert not script.capture.journal.rows(f"steps-{script.capture.pid}", StepRow)
    script.cuda.passed = True
    script.step()
    script.step()
    script.capture.flush()
    assert len(script.capture.journal.rows(f"steps-{script.capture.pid}", StepRow)) == 3
    script.end()


def test_a_row_that_ends_while_rows_are_written_waits_for_its_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(tmp_path)
    script.cuda.passed = False
    waiting = script.device.waiting

    def meanwhile() -> set[int]:
        found = waiting()
        for _ in range(3):
            script.step(dry_ms=1.0)
        return found

    monkeypatch.setattr(script.device, "waiting", meanwhile)
    script.capture.flush()
    assert not script.capture.journal.rows(f"steps-{script.capture.pid}", StepRow)


def test_of_very_many_hidden_synchronisations_the_places_are_a_sample(tmp_path: Path) -> None:
    script = Script(tmp_path)
    script.step()
    one = script.Tensor(is_cuda=True)
    for number in range(12_000):
        if number % 4:
            one.item()
        else:
            one.tolist()
    often, seldom = script.capture._sync_places.most_common()
    (step,) = script.end().steps
    assert step.syncs == 12_000
    assert often[1] + seldom[1] == pytest.approx(12_000, rel=0.15)
    assert seldom[1] == pytest.approx(3_000, rel=0.3)


@pytest.mark.parametrize(
    "synchronise",
    [float, int, bool, lambda x: x.item(), lambda x: x.tolist(), lambda x: x.cpu(), lambda x: x.to("cpu")],
    ids=["float", "int", "bool", "item", "tolist", "cpu", "to"],
)
def test_whatever_fetches_a_number_from_the_device_is_a_hidden_synchronisation(
    tmp_path: Path, synchronise: Any
) -> None:
    script = Script(tmp_path)
    script.step()
    synchronise(script.Tensor(is_cuda=True))
    script.Tensor(is_cuda=True).to("cpu", non_blocking=True)
    script.Tensor(is_cuda=True).to("cuda")
    synchronise(script.Tensor())
    ((_, place),) = script.capture._sync_places
    (step,) = script.end().steps
    assert step.syncs == 1 and place.startswith("test_cuda.py:")


class OfItsOwn(torch.Tensor):
    """Asked by torch whether it handles a function; it says that it is on a device."""

    is_cuda = True  # type: ignore[assignment]
    asked: ClassVar[list[Any]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.asked.append(func)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs or {})


def test_subclasses_of_tensors_find_the_functions_that_they_know_and_count_once(tmp_path: Path) -> None:
    """Some of which they look up in sets and tables."""
    known, one = {torch.Tensor.item}, torch.ones(1).as_subclass(OfItsOwn)
    script = Script(tmp_path)
    script.step()
    device = Device(SimpleNamespace(Tensor=torch.Tensor, cuda=script.cuda, dtype=torch.dtype), script.capture)
    device.install(script.hooks.patches)
    OfItsOwn.asked.clear()
    assert one.item() == 1.0
    (asked,) = OfItsOwn.asked
    assert asked in known and {asked} == known and asked.__name__ == "item"
    later = {torch.Tensor.item}
    (step,) = script.end().steps
    assert step.syncs == 1
    assert later == known and torch.Tensor.item in later
    assert "item" not in vars(torch.Tensor)


class Asked(OfItsOwn):
    """Looks at who asks, as the sampler does."""

    seen: ClassVar[list[Any]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        frame = sys._getframe(1)
        while Path(frame.f_code.co_filename).name != Path(__file__).name:  # the watch's own stands between
            assert frame.f_back is not None
            frame = frame.f_back
        cls.seen.append(part(frame, on_device=True).stage)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs or {})


def fetch(tensor: Any, weight: Any) -> None:
    tensor.item()
    tensor.tolist()
    tensor.to("cpu")
    weight.grad.item()


def test_who_waits_for_a_number_from_the_device_does_not_work_in_python(tmp_path: Path) -> None:
    """Nor where it is an attribute's, as of a gradient."""
    script = Script(tmp_path)
    Device(SimpleNamespace(Tensor=torch.Tensor, cuda=script.cuda, dtype=torch.dtype), script.capture).install(
        script.hooks.patches
    )
    script.step()
    asked, weight = torch.ones(1).as_subclass(Asked), torch.ones(1, requires_grad=True)
    weight.grad = asked
    Asked.seen.clear()
    fetch(asked, weight)
    script.end()
    assert Asked.seen == ["synchronise", "synchronise", "copy", "synchronise"]


def test_pictures_of_torchvision_stay_pictures(tmp_path: Path) -> None:
    tv_tensors = pytest.importorskip("torchvision.tv_tensors")
    script = Script(tmp_path)
    Device(SimpleNamespace(Tensor=torch.Tensor, cuda=script.cuda, dtype=torch.dtype), script.capture).install(
        script.hooks.patches
    )
    script.step()
    assert type(tv_tensors.Image(torch.zeros(3, 4, 4)).to(torch.float64)) is tv_tensors.Image
    script.end()


# --- on a GPU -----------------------------------------------------------------------------------------

TENTH_S = 150_000_000
"""Cycles of a GPU's clock."""


class OnGpu:
    """The same on a real device."""

    def __init__(self, folder: Path) -> None:
        self.memory = torch.zeros(1, device="cuda")  # the device is in use
        self.capture = Capture(Journal(folder), StudyConfig(steady=False))
        self.hooks = Hooks(self.capture)
        self.hooks.install()
        self.origin = time.perf_counter()
        self.loader = SimpleNamespace(num_workers=0)
        self.loop = self.capture.begin_pass(self.loader, "torch")

    def end(self) -> Recording:
        torch.cuda.synchronize()
        self.capture.end_pass(self.loop, exhausted=True)
        self.capture.leave("itself")
        self.hooks.remove()
        return merge(self.capture.journal, origin=self.origin, script=SeenScript(argv=["x.py"]))


@pytest.mark.gpu
def test_a_gpu_is_starved_while_the_loop_waits_and_not_while_it_has_work_queued(tmp_path: Path) -> None:
    script = OnGpu(tmp_path)
    for queued in [True, False] * 6:
        if queued:
            torch.cuda._sleep(TENTH_S)
        else:
            torch.cuda.synchronize()
        script.capture.ask(script.loop)
        time.sleep(0.02)  # the loop waits
        script.capture.got(script.loop, [[1, 2]])
        torch.ones(1 << 15).to("cuda")
    steps = script.end().steps
    assert all(step.starved_s is not None for step in steps)
    dry = [step.starved_s or 0.0 for step in steps]
    assert max(dry[0::2]) < 0.002 and min(dry[1::2]) > 0.018
    assert all(step.copy_s for step in steps[1:])


@pytest.mark.gpu
def test_a_script_may_capture_a_graph_while_it_is_watched(tmp_path: Path) -> None:
    script = OnGpu(tmp_path)
    over = threading.Event()

    def sample() -> None:
        while not over.is_set():
            script.capture.flush()

    sampler = threading.Thread(target=sample)
    sampler.start()
    static = torch.zeros(64, 64, device="cuda")
    try:
        for _ in range(20):
            script.capture.ask(script.loop)
            script.capture.got(script.loop, [[1, 2]])
            torch.ones(1 << 15).to("cuda")
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(50):
                    static = static * 0.5 + 1
            graph.replay()
    finally:
        over.set()
        sampler.join()
    assert len(script.end().steps) == 20


@pytest.mark.gpu
def test_numbers_fetched_from_a_gpu_are_seen(tmp_path: Path) -> None:
    script = OnGpu(tmp_path)
    script.capture.ask(script.loop)
    script.capture.got(script.loop, [[1, 2]])
    one = torch.ones(1, device="cuda")
    assert (float(one), int(one), bool(one), one.item(), one.cpu().item(), one.to("cpu").item()) == (1.0,) * 6
    (step,) = script.end().steps
    assert step.syncs == 6
