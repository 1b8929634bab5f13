"""Batches on a device: the pixels that the CPU gives, whatever is held, reused, captured or killed meanwhile."""

import gc
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from feedline.pipeline import device
from feedline.pipeline.loader import Loader
from feedline.pipeline.loader_config import LoaderConfig
from feedline.pipeline.workers.memory import SharedMemory
from tests.pipeline.loading import SMALL

MakeSplit = Callable[..., Path]
CODECS = ("jpeg", "planes", "raw")
EXACT: dict[str, Any] = {"mean": (0.0,) * 3, "std": (1 / 255,) * 3}
"""Normalised to the grey levels themselves."""
TENTH_S = 150_000_000
"""Cycles of a GPU's clock."""


def on_cpu(split: Path, **options: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """An epoch: uint8 NHWC, labels."""
    return [(images.clone(), labels) for images, labels in Loader(split, **SMALL | options)]


def levels(images_NCHW: torch.Tensor) -> torch.Tensor:
    """Back to uint8 NHWC on the CPU."""
    return images_NCHW.permute(0, 2, 3, 1).to("cpu", torch.uint8)


@pytest.mark.parametrize("where", [None, "cpu"])
@pytest.mark.usefixtures("poisoned")
def test_no_batch_on_the_host_shows_a_slot_that_is_being_filled(split: Path, where: str | None) -> None:
    options = {"policy": "drop", "device": where, **EXACT}
    held = list(Loader(split, **SMALL | options))  # all of them at once
    for (images, labels_N), (expected_NHWC, expected_N) in zip(held, on_cpu(split, policy="drop"), strict=True):
        assert torch.equal(images if where is None else levels(images), expected_NHWC)
        assert torch.equal(labels_N, expected_N)


def test_labels_outlive_the_images_of_their_batch(split: Path) -> None:
    iterator = iter(Loader(split, **SMALL))
    labels_N = next(iterator)[1]
    as_delivered = labels_N.clone()
    list(iterator)
    assert torch.equal(labels_N, as_delivered)


def test_labels_are_sent_from_the_slot_and_not_from_a_copy(split: Path) -> None:
    """From pageable memory the driver may make the host wait for the stream."""
    loader = Loader(split, **SMALL)
    batch = next(iter(loader)._run)  # type: ignore[attr-defined]
    slots = np.frombuffer(loader._workshops[0].view, np.uint8)
    assert np.shares_memory(batch.labels_N, slots) and np.shares_memory(batch.images, slots)


class Stream:
    def __init__(self, name: str) -> None:
        self.name = name

    def record_event(self) -> str:
        return f"event in {self.name}"


def test_a_slot_waits_for_the_stream_that_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for what the model has queued; and a stream that is being captured is not asked."""
    capturing = False
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda number: Stream(f"the model's stream on {number}"))
    monkeypatch.setattr(device, "devices_in_use", lambda: [0, 2])
    ours = object.__new__(device.OnCuda)
    ours.stream = Stream("the loader's stream")  # type: ignore[assignment]
    assert device.fence(ours) == ["event in the loader's stream"]
    on_host = device.fence(device.show_on_host)
    assert on_host == ["event in the model's stream on 0", "event in the model's stream on 2"]
    capturing = True
    assert device.fence(device.show_on_host) == []
    assert device.fence(ours) == ["event in the loader's stream"]


def test_a_normaliser_takes_its_numbers_along_in_the_stream_that_uses_them() -> None:
    """None of them lies on the device before: another stream would have written them."""
    normalise = device.Normaliser(torch.device("meta"), LoaderConfig())
    assert normalise._mean_C.device.type == normalise._scale_C.device.type == "cpu"
    normalise(torch.empty((1, 4, 4, 3), dtype=torch.uint8, device="meta"))
    assert all(row.device.type == "meta" for row in normalise._rows[4])


def test_locked_memory_is_let_go_once_nothing_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Runtime:
        def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
            calls.append("register")
            return 0

        def cudaHostUnregister(self, address: int) -> None:
            calls.append("unregister")

    class Context:
        def __init__(self, number: object) -> None:
            calls.append(f"on {number}")

        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    def synchronize(number: int) -> None:
        calls.append(f"wait for {number}")
        raise RuntimeError("the device is lost")

    cuda = SimpleNamespace(cudart=Runtime, device=Context, synchronize=synchronize)
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(device, "devices_in_use", lambda: [1])
    device.page_lock(SharedMemory("test", 4096), torch.device("cuda", 1))()
    assert calls == ["on cuda:1", "register", "wait for 1", "unregister"]


def test_locking_what_no_gpu_reads_is_left_out(split: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert len(list(Loader(split, **SMALL | {"pin_memory": True}))) == 7


def test_workers_end_where_the_memory_cannot_be_locked(split: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no driver")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(device, "page_lock", refuse)
    before = psutil.Process().children()
    with pytest.raises(RuntimeError, match="no driver"):
        iter(Loader(split, **SMALL | {"pin_memory": True}))
    assert psutil.Process().children() == before


@pytest.mark.parametrize("where", [None, "cpu"])
def test_torch_s_default_device_is_not_that_of_the_batches(split: Path, where: str | None) -> None:
    options = SMALL | {"device": where}
    with torch.device("meta"):
        found = list(Loader(split, **options))
    for batch, expected in zip(found, Loader(split, **options), strict=True):
        assert all(torch.equal(one, other) for one, other in zip(batch, expected, strict=True))


def test_a_closed_loader_keeps_no_batch_that_was_sent_ahead(split: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor until the cycle collector comes: it is a GPU's memory. Here a CPU plays the GPU."""
    side = SimpleNamespace(record_event=lambda: "event", wait_event=lambda event: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: side)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: side)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    here = torch.device("cpu")

    def on_cuda(_: object, config: LoaderConfig, upload: device.Upload) -> device.OnCuda:
        return device.OnCuda(here, device.Normaliser(here, config), upload)

    monkeypatch.setattr(device, "deliver_to", on_cuda)
    loader: Any = Loader(split, **SMALL | {"pin_memory": False})
    batches = iter(loader)
    while loader._workshops[0].outstanding:
        loader._workshops[0].take_reply()
    next(batches)
    sent = weakref.ref(loader._delivery._ahead[1][0])
    monkeypatch.undo()
    gc.disable()
    try:
        loader.close()
        del batches
        assert sent() is None
    finally:
        gc.enable()
    assert len(list(loader)) == 7


# --- on a GPU -----------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_gpu_gets_the_cpu_s_pixels(make_split: MakeSplit, codec: str, workers: int) -> None:
    split = make_split(codec=codec)
    options = {"num_workers": workers, "policy": "pad", **EXACT}
    expected = on_cpu(split, policy="pad")
    for (images_NCHW, labels_N), (wanted_NHWC, wanted_N) in zip(
        Loader(split, **SMALL | options | {"device": "cuda"}), expected, strict=True
    ):
        assert images_NCHW.is_cuda and images_NCHW.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(levels(images_NCHW), wanted_NHWC)
        assert torch.equal(labels_N.cpu(), wanted_N)
    usual = {"policy": "pad"}
    on_gpu, on_host = (list(Loader(split, **SMALL | usual | {"device": where})) for where in ("cuda", "cpu"))
    for (images, _), (wanted, _) in zip(on_gpu, on_host, strict=True):
        torch.testing.assert_close(images.cpu(), wanted, rtol=2e-6, atol=2e-6)


@pytest.mark.gpu
@pytest.mark.usefixtures("poisoned")
def test_a_slow_model_that_holds_ten_batches_sees_no_poison(split: Path) -> None:
    expected, held = on_cpu(split, policy="drop"), list[tuple[torch.Tensor, torch.Tensor]]()
    loader = Loader(split, **SMALL | {"device": "cuda", "policy": "drop", **EXACT})
    for epoch in range(3):
        loader.set_epoch(0)
        for number, batch in enumerate(loader):
            torch.cuda._sleep(TENTH_S // 10)
            held.append(batch)
            if len(held) > 10:
                images_NCHW, labels_N = held.pop(0)
                wanted_NHWC, wanted_N = expected[(number + len(expected) * epoch - 10) % len(expected)]
                assert torch.equal(levels(images_NCHW), wanted_NHWC)
                assert torch.equal(labels_N.cpu(), wanted_N)


@pytest.mark.gpu
@pytest.mark.usefixtures("poisoned")
def test_what_a_user_copies_from_a_slot_is_there_before_the_slot_is_filled_again(split: Path) -> None:
    """The copy waits behind a slow kernel; the tensor that shows the slot is long gone."""
    expected = on_cpu(split, policy="drop")
    copies: list[torch.Tensor] = []
    for images_NHWC, _ in Loader(split, **SMALL | {"policy": "drop", "pin_memory": True}):
        torch.cuda._sleep(TENTH_S)
        copies.append(images_NHWC.to("cuda", non_blocking=True))
        del images_NHWC
    for copied, (wanted_NHWC, _) in zip(copies, expected, strict=True):
        assert torch.equal(copied.cpu(), wanted_NHWC)


@pytest.mark.gpu
def test_sending_a_batch_makes_the_host_wait_for_no_stream(split: Path) -> None:
    loader = Loader(split, **SMALL | {"device": "cuda", "batch_size": 4, "num_workers": 2})
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    stream = loader._delivery.stream  # type: ignore[union-attr]
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10 * TENTH_S)
    next(iterator)
    assert not stream.query(), "the batch was only submitted"
    torch.cuda.synchronize()
    torch.cuda._sleep(10 * TENTH_S)
    for _ in range(8):  # more than there are slots
        next(iterator)
    assert not torch.cuda.current_stream().query(), "slots come back although the model is behind"


@pytest.mark.gpu
def test_state_and_order_are_the_cpu_s(split: Path) -> None:
    loaders = [Loader(split, **SMALL | {"device": where}) for where in ("cpu", "cuda")]
    iterators = [iter(loader) for loader in loaders]
    for _ in range(3):
        on_host, on_gpu = (next(iterator)[1].tolist() for iterator in iterators)
        assert on_host == on_gpu
    state, other = (loader.state_dict() for loader in loaders)
    assert state == other
    resumed = Loader(split, **SMALL | {"device": "cuda", "num_workers": 1})
    resumed.load_state_dict(state)
    rest, expected = ([labels_N.tolist() for _, labels_N in one] for one in (resumed, iterators[0]))
    assert rest == expected


@pytest.mark.gpu
def test_batches_go_into_a_captured_graph(split: Path) -> None:
    """A batch in hand dies, and another is sent, while a stream is captured."""
    options = SMALL | {"device": "cuda", "policy": "drop"}
    model = torch.nn.Conv2d(3, 4, 3).cuda().to(memory_format=torch.channels_last).requires_grad_(False)
    expected = [model(images_NCHW) for images_NCHW, _ in Loader(split, **options)]
    batches = iter(Loader(split, **options | {"pin_memory": True}))
    on_host = iter(Loader(split, **SMALL | {"pin_memory": True}))
    first, shown = next(batches)[0], next(on_host)
    static = torch.empty_like(first)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        model(static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = model(static)
        del shown
    found: list[torch.Tensor] = []
    for images_NCHW in (first, *(images for images, _ in batches)):
        static.copy_(images_NCHW)
        graph.replay()
        found.append(out.clone())
    next(on_host)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.gpu
@pytest.mark.slow
def test_batches_go_into_a_compiled_model(split: Path) -> None:
    pytest.importorskip("triton")
    model = (
        torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).cuda().to(memory_format=torch.channels_last)
    )
    compiled = torch.compile(model)
    for images_NCHW, _ in Loader(split, **SMALL | {"device": "cuda", "policy": "drop"}):
        torch.testing.assert_close(compiled(images_NCHW), model(images_NCHW), rtol=1e-3, atol=1e-4)


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    memory = SharedMemory("test", 1 << 20)
    yield memory
    memory.close_descriptor()


@pytest.mark.gpu
def test_page_locked_memory_is_returned(memory: SharedMemory) -> None:
    shown = torch.frombuffer(memory.map, dtype=torch.uint8)
    assert not shown.is_pinned()
    undo = device.page_lock(memory, torch.device("cuda"))
    assert shown.is_pinned()
    refused = device.page_lock(memory, torch.device("cuda"))
    assert torch.ones(3, device="cuda").sum().item() == 3, "a refusal is not the next kernel's fault"
    refused()
    assert shown.is_pinned(), "what was not locked is not let go"
    undo()
    assert not shown.is_pinned()


@pytest.mark.gpu
def test_a_loader_s_end_returns_its_slots(split: Path) -> None:
    loader = Loader(split, **SMALL | {"device": "cuda"})
    next(iter(loader))
    shown = torch.frombuffer(loader._workshops[0].memory.map, dtype=torch.uint8)
    assert shown.is_pinned()
    loader.close()
    assert not shown.is_pinned()


KILLED = """
import sys, torch
from feedline.pipeline.loader import Loader
loader = Loader(sys.argv[1], batch_size=8, image_size=64, num_workers=2, rank=0, world_size=1, device="cuda")
print(*[next(iter(loader)) and ""], *loader.worker_pids, flush=True)
while True:
    for images, labels in loader:
        torch.cuda._sleep(10_000_000)
"""


@pytest.mark.gpu
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_trainer_killed_amid_its_copies_leaves_nobody(split: Path, end: signal.Signals) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(split)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    workers = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
    process.send_signal(end)
    process.communicate()
    assert len(workers) == 2 and process.returncode == -end
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert not [worker for worker in alive if worker.status() != psutil.STATUS_ZOMBIE]
