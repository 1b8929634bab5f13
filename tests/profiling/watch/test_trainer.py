"""What the loop waits for is called by its name: a thread that unpickles and pins, a sampler that draws."""

import functools
import os
import queue
import socket
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.utils.data import DataLoader, Sampler

from feedline.profiling.explain.verdict import diagnose
from feedline.profiling.profile import Profile
from feedline.profiling.record.journal import Journal, StepRow, StudyConfig, TimeRow
from feedline.profiling.record.merge import merge
from feedline.profiling.record.recording import Script
from feedline.profiling.watch.capture import Capture
from feedline.profiling.watch.evidence import Spent
from feedline.profiling.watch.rules import HERE
from feedline.profiling.watch.trainer import TrainerWatch, drawing
from tests.profiling.trainings import Training, data

TORCH = "/x/site-packages/torch/utils/data/_utils/pin_memory.py"
REDUCTIONS = "/x/site-packages/torch/multiprocessing/reductions.py"


class Loader:
    num_workers, pin_memory = 2, True


def function(name: str, file: str) -> Callable[[Callable[[], None]], None]:
    """`name(inner)`, as if it stood in `file`."""
    namespace: dict[str, Callable[[Callable[[], None]], None]] = {}
    exec(compile(f"def {name}(inner):\n    inner()", file, "exec"), namespace)
    return namespace[name]


@contextmanager
def pinning(work: Callable[[], None]) -> Iterator[threading.Thread]:
    loop = function("_pin_memory_loop", TORCH)
    over = threading.Event()

    def until_over() -> None:
        while not over.is_set():
            work()

    thread = threading.Thread(target=loop, args=(until_over,), name="Thread-7 (_pin_memory_loop)")
    thread.start()
    yield thread
    over.set()
    thread.join()


def compute() -> None:
    ends = time.perf_counter() + 0.02
    while time.perf_counter() < ends:
        sum(range(100))


def wait() -> None:
    time.sleep(0.02)


WORK = {
    "unpickle": lambda: function("rebuild_storage_fd", REDUCTIONS)(compute),
    "pin": lambda: function("pin_memory", TORCH)(compute),
    "wait": wait,
}


@pytest.mark.parametrize("doing", WORK)
def test_waiting_for_the_pinning_thread_has_its_own_name(doing: str, tmp_path: Path) -> None:
    """Another loader's, begun before, does something else."""
    capture = Capture(Journal(tmp_path), StudyConfig(steady=False))
    loader = Loader()
    origin = time.perf_counter()
    with pinning(WORK["pin" if doing == "wait" else "wait"]), pinning(WORK[doing]) as thread:
        one = capture.begin_pass(loader, "torch")
        one.pin_thread = thread
        capture.ask(one)
        clock = time.pthread_getcpuclockid(thread.ident or 0)
        began_s = time.clock_gettime(clock)
        time.sleep(1.0)
        used_s = time.clock_gettime(clock) - began_s
        capture.leave("itself")
    (trainer,) = merge(capture.journal, origin=origin, script=Script(argv=["x.py"])).trainers
    assert max(trainer.stages, key=lambda name: trainer.stages[name]) == doing
    if doing != "wait":
        assert trainer.stages_cpu_s[doing] == pytest.approx(used_s, rel=0.3)


class Drawing(Sampler[int]):
    """Chooses slowly, in the training thread."""

    def __len__(self) -> int:
        return 256

    def __iter__(self) -> Iterator[int]:
        for number in range(256):
            until = time.monotonic() + 0.004
            while time.monotonic() < until:
                pass
            yield number


@pytest.mark.parametrize("workers", [0, 1])
def test_a_slow_sampler_is_told_from_waiting_and_from_preparing(workers: int) -> None:
    training = Training()
    with Profile(resources=False) as seen:
        for batch in DataLoader(data(256), batch_size=8, num_workers=workers, sampler=Drawing()):
            training.step(batch)
    (trainer,) = seen.recording.trainers
    assert trainer.stages["draw"] > trainer.stages.get("wait", 0.0) + trainer.stages.get("load", 0.0)
    assert "draw test_trainer.py:Drawing.__iter__" in {name.rpartition(":")[0] for name in trainer.functions}


class AllAtOnce(Sampler[int]):
    """Chooses a whole epoch before it gives any."""

    def __len__(self) -> int:
        return 16

    def __iter__(self) -> Iterator[int]:
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            pass
        yield from range(16)


@pytest.mark.slow
def test_a_sampler_that_draws_as_an_epoch_begins_is_told_from_starting_workers() -> None:
    training = Training()
    loader = DataLoader(data(16), batch_size=4, num_workers=1, sampler=AllAtOnce(), persistent_workers=True)
    with Profile(resources=False) as seen:
        for _ in range(12):
            for batch in loader:
                training.step(batch)
                time.sleep(0.02)
    (trainer,) = seen.recording.trainers
    assert trainer.stages["draw"] > 5 * trainer.stages.get("wait", 0.0)  # no look may have seen it wait
    cause = diagnose(seen.recording).cause
    assert (cause.kind, cause.where) == ("draw", "test_trainer.py:AllAtOnce.__iter__")


def warped(images: torch.Tensor) -> None:
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        images = images.flip(2).contiguous()


def test_what_a_loader_does_to_batches_that_are_ready_is_told_from_waiting(tmp_path: Path) -> None:
    """In the thread that asks it, as fastai does."""
    capture = Capture(Journal(tmp_path), StudyConfig(steady=False))
    origin = time.perf_counter()
    capture.ask(capture.begin_pass(Loader(), "torch"))
    warped(torch.ones(32, 3, 64, 64))
    capture.leave("itself")
    (trainer,) = merge(capture.journal, origin=origin, script=Script(argv=["x.py"])).trainers
    assert trainer.stages["change"] > 2 * trainer.stages.get("wait", 0.0)
    assert "change test_trainer.py:warped" in {name.rpartition(":")[0] for name in trainer.functions}


def busily(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def opened(loader: Any) -> Iterator[Any]:
    """Works on each batch before the loop has it."""
    for batch in loader:
        busily(0.02)
        yield batch


def trained_in_a_generator(loader: Any, training: Training) -> Iterator[float]:
    """The loop itself is one, too."""
    for batch in loader:
        training.step(batch)
        busily(0.02)
        yield 0.0


def echoed(loader: Any) -> Iterator[Any]:
    """Each batch four times, worked on anew."""
    for batch in loader:
        for _ in range(4):
            busily(0.01)
            yield batch


def batched_anew(loader: Any) -> Iterator[Any]:
    """Batches of 12 out of such of 8, each sample worked on."""
    images, labels = list[torch.Tensor](), list[torch.Tensor]()
    for batch in loader:
        for image, label in zip(*batch, strict=True):
            busily(0.003)
            images.append(image)
            labels.append(label)
            if len(images) == 12:
                yield torch.stack(images), torch.stack(labels)
                images, labels = [], []


def told(loader: Any) -> Iterator[Any]:
    """Works on each batch when the loop has trained on it, as a callback does."""
    for batch in loader:
        yield batch
        busily(0.02)


def modelled(loader: Any, model: torch.nn.Module) -> Iterator[Any]:
    """What it hands over is the model's."""
    for images, labels in loader:
        many = images.repeat(3000, 1)  # so that calling it takes next to no time
        for _ in range(40):
            made = model(many)
        yield made[: len(labels)], labels


def learn(training: Training, made: torch.Tensor, labels: torch.Tensor) -> None:
    training.optimizer.zero_grad()
    torch.nn.functional.cross_entropy(made, labels).backward()
    training.optimizer.step()


@torch.no_grad()
def measured(model: torch.nn.Module) -> None:
    """20 ms of a callback, in which torch works on weights that take part in a gradient."""
    until = time.thread_time() + 0.02
    while time.thread_time() < until:
        torch.stack([weight.repeat(200, *[1] * (weight.ndim - 1)).norm() for weight in model.parameters()])


def trained_twice(loader: Any) -> None:
    """Two updates for each batch of a model that is a function: the second is behind a step and no callback."""
    weight = torch.ones(4, 300, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.01)
    for images, _ in loader:
        for _ in range(2):
            many = images.flatten(1)[:, :4].repeat(200, 1)
            loss = sum((many @ weight).relu().mean() for _ in range(10))
            optimizer.zero_grad()
            loss.mean().backward()
            optimizer.step()


def scored(model: torch.nn.Module, images: torch.Tensor) -> None:
    """20 ms of what is said of a model's own output, behind its step."""
    scores = model(images).repeat(500, 10)
    until = time.thread_time() + 0.02
    while time.thread_time() < until:
        scores.argmax(1)


def asked() -> None:
    """20 ms in which a server does not answer."""
    ours, theirs = socket.socketpair()
    with ours, theirs, suppress(TimeoutError):
        ours.settimeout(0.02)
        ours.recv(1)


GENERATORS: dict[str, Callable[[Any, Training], Any]] = {
    "prepare": lambda loader, training: [training.step(batch) for batch in opened(loader)],
    "prepare, an expression": lambda loader, training: [
        training.step(batch) for batch in ((busily(0.02), batch)[1] for batch in loader)
    ],
    "prepare, several times": lambda loader, training: [training.step(batch) for batch in echoed(loader)],
    "prepare, in batches anew": lambda loader, training: [training.step(batch) for batch in batched_anew(loader)],
    "python, the loop itself": lambda loader, training: list(trained_in_a_generator(loader, training)),
    "python, behind the step": lambda loader, training: [training.step(batch) for batch in told(loader)],
    "python, of weights": lambda loader, training: [
        (training.step(batch), measured(training.model)) for batch in loader
    ],
    "python, reported to a server": lambda loader, training: [(training.step(batch), asked()) for batch in loader],
    "wait, for a server's part of the batch": lambda loader, training: [
        (asked(), training.step(batch)) for batch in loader
    ],
    "loss, of its output": lambda loader, training: [
        (training.step(batch), scored(training.model, batch[0])) for batch in loader
    ],
    "forward, twice": lambda loader, _: trained_twice(loader),
    "forward": lambda loader, training: [
        learn(training, made, labels) for made, labels in modelled(loader, training.model)
    ],
}


@pytest.mark.parametrize("kind", GENERATORS)
def test_what_stands_between_the_loader_and_the_step_and_behind_it(kind: str) -> None:
    training, loader = Training(), DataLoader(data(512), batch_size=8)
    with Profile(resources=False) as seen:
        GENERATORS[kind](loader, training)
    (trainer,) = seen.recording.trainers
    part = kind.partition(",")[0]
    seconds = trainer.stages[part] + (trainer.stages.get("loss", 0.0) if part == "forward" else 0.0)
    for other in {"python", "prepare", "wait"} - {part}:  # a step has a little Python of its own
        assert seconds > 3 * trainer.stages.get(other, 0.0)
    if kind == "python, of weights":
        assert trainer.stages[part] > 3 * trainer.stages.get("forward", 0.0)


def test_a_thread_that_runs_on_while_it_is_looked_at_is_not_mistaken(tmp_path: Path) -> None:
    """A callback's work in a generator, behind the step: when the machine has said what the thread did, the next
    batch is there, and nobody has trained on it."""
    trained = StepRow(start_s=0.0, wait_s=0.0, samples=1, bytes=0, loader=0, epoch=0, optimizer_s=0.1, trained=True)
    watched: Any = SimpleNamespace(asking=None, hands_itself=False, ours=Counter(), flush=lambda: None)
    watched.loop = SimpleNamespace(row=trained)
    journal = Journal(tmp_path)
    watch = TrainerWatch(watched, journal, lambda: False)

    def evidence() -> Spent:
        watched.loop.row = replace(trained, optimizer_s=0.0, trained=False)
        return Spent(0.05, 0.0)

    watch._evidence = SimpleNamespace(spent=evidence, mostly_blocked_in=lambda *_: None)  # type: ignore[assignment]

    def calls_back() -> None:
        watched.loop.row = trained
        watch._look({threading.get_ident(): sys._getframe()}, 0.05, True)

    def generator() -> Iterator[None]:
        yield
        while True:
            yield calls_back()

    def loop() -> None:
        watch.see_step(sys._getframe())
        batches = generator()
        for _ in range(4):
            next(batches)

    watch._loop.between.add(generator.__code__)
    loop()
    watch.write()
    (row,) = journal.rows(f"main-{os.getpid()}", TimeRow)
    assert set(row.stages) == {"python"} and row.ticks == 2  # the third is told with the next …
    watched.loop.row = None
    watch.stop()  # … or as the watch ends
    watch.write()
    assert sum(row.ticks for row in journal.rows(f"main-{os.getpid()}", TimeRow)) == 3


def test_what_torch_s_loader_does_to_take_a_batch_apart_is_waiting(tmp_path: Path) -> None:
    """Rebuilding its tensors, of which no rule says that it is unpickling."""
    capture = Capture(Journal(tmp_path), StudyConfig(steady=False))
    origin = time.perf_counter()
    capture.ask(capture.begin_pass(Loader(), "torch"))
    packages, namespace = (
        "/usr/lib/python3/site-packages/torch",
        dict[str, Any](ends=origin + 1.0, now=time.perf_counter),
    )
    code = "def rebuild():\n    while now() < ends:\n        sum(range(100))"
    exec(compile(code, f"{packages}/_utils.py", "exec"), namespace)
    function("_next_data", f"{packages}/utils/data/dataloader.py")(namespace["rebuild"])
    capture.leave("itself")
    (trainer,) = merge(capture.journal, origin=origin, script=Script(argv=["x.py"])).trainers
    assert not trainer.stages.get("change") and trainer.stages["wait"] > 0.5


def slowly(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """20 ms of Python."""
    until = time.thread_time() + 0.02
    while time.thread_time() < until:
        pass
    return torch.rand(8, 4), torch.full((8,), number % 3)


def reads(file: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """20 ms."""
    until = time.thread_time() + 0.02
    while time.thread_time() < until:
        file.read_text()
    return torch.rand(8, 4), torch.zeros(8, dtype=torch.long)


@pytest.mark.parametrize("part", ["python", "load"])
def test_a_hand_made_loop_reads_for_its_batches_or_for_its_own_records(part: str, tmp_path: Path) -> None:
    """Also in a second phase, in another function than the first."""
    training, file = Training(), tmp_path / "packages.txt"
    file.write_text("torch")

    def warms_up() -> None:
        batch = reads(file)
        for _ in range(5):
            training.step(batch)

    def trains() -> None:
        batch = reads(file)
        for _ in range(80):
            if part == "load":
                batch = reads(file)
            training.step(batch)
            if part == "python":
                reads(file)

    with Profile(resources=False) as seen:
        warms_up()
        trains()
    (trainer,) = seen.recording.trainers
    other = ({"python", "load"} - {part}).pop()
    assert trainer.stages[part] > 5 * trainer.stages.get(other, 0.0)


def test_a_sampler_is_not_named_by_what_watches_it() -> None:
    """A tensor's `tolist` is in the watch's hands where there is a GPU."""
    found = list[str]()

    def look() -> None:
        place = drawing(sys._getframe(1))
        found.append(place.where if place is not None else "")

    packages = "/x/site-packages/torch/utils/data"
    stack = [
        ("_next_index", f"{packages}/dataloader.py"),
        ("each", f"{packages}/sampler.py"),
        ("watched", f"{HERE}watch/cuda.py"),
    ]
    inner: Callable[[], None] = look
    for name, file in reversed(stack):
        inner = functools.partial(function(name, file), inner)
    inner()
    assert found == ["None:each:2"]


def idle(over: threading.Event) -> None:
    over.wait()


def test_a_loop_that_waits_for_threads_of_its_own_is_told_what_they_do() -> None:
    training, over = Training(), threading.Event()
    threading.Thread(target=idle, args=(over,)).start()
    with Profile(resources=False) as seen, ThreadPoolExecutor(2) as pool:
        for number in range(60):
            training.step(pool.submit(slowly, number).result())
    over.set()
    (trainer,) = seen.recording.trainers
    waits: dict[str, float] = defaultdict(float)
    for name, seconds in trainer.functions.items():
        if name.startswith("wait "):
            waits[name.rpartition(":")[0]] += seconds  # of all its lines
    assert max(waits, key=lambda name: waits[name]) == "wait test_trainer.py:slowly"


def counting(over: threading.Event) -> None:
    while not over.is_set():
        sum(range(1000))


def test_what_other_threads_compute_is_told_by_their_function() -> None:
    training, over = Training(), threading.Event()
    for work in (counting, idle):
        threading.Thread(target=work, args=(over,), daemon=True).start()
    with Profile(resources=False) as seen:
        for _ in range(100):
            training.step((torch.rand(64, 4), torch.zeros(64, dtype=torch.long)))
            time.sleep(0.002)
    over.set()
    (trainer,) = seen.recording.trainers
    assert set(trainer.beside_cpu_s) == {"test_trainer.py:counting"}
    assert trainer.beside_cpu_s["test_trainer.py:counting"] > 0.05 * trainer.seconds


def rebuilds(seconds: float) -> None:
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        pass


def test_what_a_script_does_between_its_passes_is_of_no_step() -> None:
    training, loader = Training(), DataLoader(data(1600), batch_size=8)
    with Profile(resources=False) as seen:
        for _ in range(4):
            rebuilds(0.5)
            for batch in loader:
                training.step(batch)
    (trainer,) = seen.recording.trainers
    own_s = sum(s for place, s in trainer.functions.items() if "rebuilds" in place)
    apart_s = sum(s for place, s in trainer.apart_s.items() if "rebuilds" in place)
    assert own_s < 0.1 < 0.8 < apart_s <= 2.0


class Costly(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 800

    def __getitem__(self, index: int) -> Any:
        until_s = time.thread_time() + 0.004
        while time.thread_time() < until_s:
            pass
        return torch.rand(4), 0


def test_what_a_thread_takes_for_the_samples_it_draws_is_their_cost() -> None:
    training, ready = Training(), queue.Queue[Any](4)

    def draw() -> None:
        for batch in DataLoader(Costly(), batch_size=8):
            ready.put(batch)

    with Profile(resources=False) as seen:
        threading.Thread(target=draw, daemon=True).start()
        for _ in range(100):
            training.step(ready.get())
    assert seen.recording.loaders[0].background
    beside_cpu_s = seen.recording.trainers[0].beside_cpu_s
    assert max(beside_cpu_s, key=lambda name: beside_cpu_s[name]) == "test_trainer.py:Costly.__getitem__"
    assert 0.002 < (seen.recording.costs.worker_cpu_s or 0.0) < 0.008


class Farthest(torch.nn.Module):
    """A loss of many small operations, with no weights."""

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        return torch.stack([(scores[row] - scores[0]).pow(2).sum() for row in range(1, 200)]).amax()


class Lit(torch.nn.Module):
    """As of Lightning: what stands in the loop elsewhere is a method of what holds the model."""

    def __init__(self, model: torch.nn.Module, criterion: torch.nn.Module | None) -> None:
        super().__init__()
        self.model, self.criterion = model, criterion

    def training_step(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.model(x)
        return self.criterion(scores) if self.criterion else scores.pow(2).mean()


@pytest.mark.parametrize("own", [False, True])
def test_operations_of_a_loss_in_lightnings_training_step_are_told_from_the_model(own: bool) -> None:
    deep = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(100)])
    lit = Lit(torch.nn.Linear(64, 64) if own else deep, Farthest() if own else None)
    optimizer = torch.optim.SGD(lit.parameters(), lr=1e-4)
    with Profile(resources=False) as seen:
        for (x,) in DataLoader(torch.utils.data.TensorDataset(torch.rand(300 * 200, 64)), batch_size=200):
            optimizer.zero_grad()
            lit.training_step(x).backward()
            optimizer.step()
    (trainer,) = seen.recording.trainers
    assert (trainer.stages.get("loss", 0.0) > 0.1 * trainer.seconds) is own
    assert not own or any(name.startswith("loss test_trainer.py:Farthest.forward:") for name in trainer.functions)


@pytest.mark.parametrize("own", [False, True])
def test_operations_of_the_scripts_own_loss_are_told_from_the_model(own: bool) -> None:
    model, criterion = torch.nn.Linear(64, 64), Farthest()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    deep = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(100)])
    with Profile(resources=False) as seen:
        for (x,) in DataLoader(torch.utils.data.TensorDataset(torch.rand(300 * 200, 64)), batch_size=200):
            scores = model(x)
            loss = criterion(scores) if own else deep(scores).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    (trainer,) = seen.recording.trainers
    assert (trainer.stages.get("loss", 0.0) > 0.1 * trainer.seconds) is own
    assert not own or any(name.startswith("loss test_trainer.py:Farthest.forward:") for name in trainer.functions)
