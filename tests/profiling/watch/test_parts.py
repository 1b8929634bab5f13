"""What the training thread does: each case stops inside real library or user code and looks up from there."""

import asyncio
import functools
import gzip
import io
import json
import multiprocessing
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from feedline.profiling.watch.evidence import LOCK, WAIT
from feedline.profiling.watch.parts import LoopCode, part
from feedline.profiling.watch.rules import TRAINER, Place, frames
from tests.profiling.stacks import Looking, caught, jpeg, told, users_module

PIL_Image, torch = (pytest.importorskip(name) for name in ("PIL.Image", "torch"))


@pytest.fixture
def user(tmp_path: Path) -> ModuleType:
    return users_module(tmp_path)


def test_what_a_script_asks_of_torch_for_no_gradient_is_its_own(user: ModuleType) -> None:
    """Where an optimiser steps: what only computes may be the whole of a loop."""
    assert [caught(user.counts, trains=trains)[1] for trains in (True, False)] == ["python", "forward"]
    assert caught(user.trains, trains=True)[1] == "forward"


@pytest.mark.parametrize("name", ["spreads", "multiplies"])
def test_so_it_is_where_torch_has_python_around_a_call(user: ModuleType, name: str) -> None:
    assert [caught(getattr(user, name), trains=trains)[1] for trains in (True, False)] == ["python", "forward"]
    assert caught(user.spreads_to_train, trains=True)[1] == "forward"


@pytest.mark.parametrize("name", ["keeps_weights", "keeps_the_layer"])
def test_a_script_that_copies_weights_computes_no_model(user: ModuleType, name: str) -> None:
    assert caught(getattr(user, name), trains=True)[1] == "python"


def test_what_another_library_asks_of_torch_for_the_script_is_the_scripts_own(user: ModuleType) -> None:
    pytest.importorskip("torchvision")
    assert [caught(user.turns_pictures, trains=trains)[1] for trains in (True, False)] == ["python", "forward"]


def test_a_scripts_own_generator_makes_its_batches(user: ModuleType) -> None:
    stepping = LoopCode(steps={user.loop.__code__, user.calling_loop.__code__})
    assert told(user.loop, loop=stepping) == "load"
    assert told(user.loop) == "python", "no optimiser has stepped: nothing is known of the loop"
    assert told(user.calling_loop, loop=stepping) == "python"


def test_a_function_that_was_seen_decoding_makes_batches(user: ModuleType) -> None:
    stepping = LoopCode(steps={user.calling_loop.__code__})
    image = jpeg()

    def through(look: Callable[[], None]) -> None:
        user.calling_loop(lambda: PIL_Image.open(Looking(look, image)).convert("RGB"))

    assert told(through, loop=stepping) == "load"
    assert told(user.calling_loop, loop=stepping) == "load", "whatever it does now"


def test_what_a_loop_reads_behind_its_step_and_throws_away_is_no_batch(user: ModuleType) -> None:
    """As a record does that says what is installed; before the step it may fill a buffer. Whoever decodes pictures or
    reads arrays may fill one at any time, and does so whatever else is seen of it."""
    np.save(array := io.BytesIO(), np.zeros(4))
    text, behind, before = gzip.compress(b"packages"), 0, sys.maxsize

    def stepping(name: str, stepped: int) -> LoopCode:
        code = getattr(user, name).__code__
        return LoopCode(steps={code}, stepped={code: stepped})

    def reads_text(name: str, stepped: int) -> str:
        loop = getattr(user, name)
        return told(lambda look: loop(lambda: gzip.open(Looking(look, text)).read()), loop=stepping(name, stepped))

    def opened(look: Callable[[], None]) -> Any:
        source = Looking(lambda: None, jpeg())
        picture = PIL_Image.open(source)
        source._look = look
        return picture

    assert reads_text("recording_loop", behind) == "python"
    assert reads_text("recording_loop", before) == "load"
    assert reads_text("calling_loop", behind) == "load"
    loop, arrays, pictures = user.recording_loop, *(stepping("recording_loop", behind) for _ in range(2))
    assert told(lambda look: loop(lambda: np.load(Looking(look, array.getvalue()))), loop=arrays) == "load"
    assert told(lambda look: loop(lambda: opened(look).load()), loop=pictures) == "load"
    assert [told(loop, loop=known) for known in (arrays, pictures)] == ["load", "load"]
    assert told(loop, loop=stepping("recording_loop", behind)) == "python"


@pytest.mark.parametrize("name", ["model_loop", "summing_loop"])
def test_what_a_model_generates_is_no_batch(user: ModuleType, name: str) -> None:
    loop = getattr(user, name)
    assert told(loop, loop=LoopCode(steps={loop.__code__})) != "load"


def test_what_is_read_while_a_model_computes_makes_no_batches(user: ModuleType) -> None:
    """As a compiler's cache is."""
    stepping, image = LoopCode(steps={user.model_loop.__code__}), jpeg()
    picture = PIL_Image.open
    assert told(lambda look: user.model_loop(lambda: picture(Looking(look, image)).load()), loop=stepping) != "load"
    assert not stepping.makers


def test_writing_makes_no_batches(user: ModuleType) -> None:
    stepping = LoopCode(steps={user.calling_loop.__code__})
    picture = PIL_Image.new("RGB", (64, 64))
    assert told(lambda look: user.calling_loop(lambda: picture.save(Looking(look), "PNG")), loop=stepping) != "load"
    assert told(user.calling_loop, loop=stepping) != "load"
    assert not stepping.makers


def test_a_lock_that_somebodys_c_code_waits_for_is_no_wait_for_data(user: ModuleType) -> None:
    """Its own threads may compute."""
    found: list[str] = []

    def look() -> None:
        frame = sys._getframe(2)  # beside the lambda that sorts
        found.extend(part(frame, on_device=False, blocked=blocked).stage for blocked in (LOCK, WAIT))

    user.sorts(look)
    assert found == ["other", "wait"]


def test_waiting_in_an_iterator_is_no_making(user: ModuleType) -> None:
    assert caught(user.waits_in_an_iterator, loop=LoopCode(steps={user.waits_in_an_iterator.__code__}))[1] == "wait"
    user.ready.set()


def test_who_sleeps_for_a_loop_waits_for_what_another_makes(user: ModuleType) -> None:
    """As one that looks into a folder now and then; the loop itself may have reasons of its own."""
    polling, sleeping = (LoopCode(steps={one.__code__}) for one in (user.polls, user.sleeps))
    assert caught(user.polls, loop=polling)[1] == "wait"
    assert caught(user.polls, loop=polling, hands_itself=False)[1] == "python"
    assert caught(user.sleeps, loop=sleeping)[1] == "python"


def test_only_a_device_is_waited_for() -> None:
    assert TRAINER.stage_of_call("torch.Tensor.item") == "synchronise"
    assert TRAINER.stage_of_call("torch.Tensor.to") == "copy"
    assert TRAINER.stage_of_call("builtins.print") == "logging"
    assert TRAINER.stage_of_call("torch.conv2d") == "forward"
    assert TRAINER.stage_of_call("numpy.add") is None


def test_a_batch_that_comes_through_a_pipe_is_received_and_not_waited_for() -> None:
    """Behind its header, whoever holds up the rest of it."""
    reader, writer = multiprocessing.Pipe(duplex=False)
    thread = threading.Thread(target=reader.recv_bytes)
    thread.start()

    def seen(size: int) -> str:
        until_s = time.monotonic() + 20
        while (frame := sys._current_frames()[thread.ident or 0]).f_locals.get("remaining") != size:
            assert time.monotonic() < until_s
            time.sleep(0.001)
        return part(frame, on_device=False).stage

    assert seen(4) == "wait"
    os.write(writer.fileno(), struct.pack("!i", 10) + b"first")
    assert seen(5) == "unpickle"
    os.write(writer.fileno(), b"other")
    thread.join()


def test_waiting_until_a_queue_takes_what_is_put_is_no_wait_for_data() -> None:
    for queue in (Queue[int](1), multiprocessing.Queue(1)):
        queue.put(1)
        thread = threading.Thread(target=lambda queue=queue: queue.put(2))
        thread.start()
        until_s = time.monotonic() + 20
        while "put" not in [one.f_code.co_name for one in frames(sys._current_frames()[thread.ident or 0])]:
            assert time.monotonic() < until_s
        time.sleep(0.1)  # it blocks
        frame = sys._current_frames()[thread.ident or 0]
        assert part(frame, on_device=False, hands_itself=False).stage == "python"
        assert part(frame, on_device=False).stage == "wait", "whoever makes its batches may be slow to take it"
        queue.get()
        thread.join()
        assert queue.get() == 2


def test_a_package_that_computes_for_itself_is_no_model() -> None:
    """As one that proposes the next setting by a Gaussian process: its gradients are not those of what is trained."""
    for package, name, expected in (
        ("optuna", "ask", "python"),
        ("torch/fx/passes", "run", "python"),
        ("accelerate", "backward", "backward"),
        ("axolotl", "backward", "backward"),
    ):
        code = f"def {name}(loss, look):\n    loss.register_hook(lambda _: look())\n    loss.backward()"
        exec(compile(code, f"/x/site-packages/{package}/a.py", "exec"), names := dict[str, Any]())
        found = list[str]()
        look = lambda found=found: found.append(part(sys._getframe(2), on_device=False).stage)  # noqa: E731
        names[name](torch.ones((), requires_grad=True), look)
        assert found == [expected]


def test_what_an_optimizer_of_the_scripts_own_computes_is_the_optimizers(user: ModuleType) -> None:
    class Own(torch.optim.Optimizer):
        def step(self, closure: Callable[[], None] | None = None) -> None:
            assert closure is not None
            closure()

    own = Own([torch.nn.Parameter(torch.ones(2))], {})

    def through(look: Callable[[], None]) -> None:
        own.step(lambda: user.counts(look))

    assert [caught(way, trains=True)[1] for way in (through, user.counts)] == ["optimizer", "python"]
    assert caught(lambda look: own.step(lambda: user.trains(look)), trains=True)[1] == "forward"


@pytest.mark.parametrize(
    ("file", "function", "line"),
    [
        ("ignite/engine/__init__.py", "update", "x = prepare_batch(look)"),
        ("ignite/engine/__init__.py", "update", "x = output_transform(look)"),
        ("lightning/pytorch/core/module.py", "_apply_batch_transfer_handler", "hook(look)"),
        ("lightning/pytorch/core/module.py", "log", "hook(look)"),
    ],
)
def test_what_a_framework_has_a_script_prepare_of_a_batch_is_that(
    file: str, function: str, line: str, tmp_path: Path, user: ModuleType
) -> None:
    path = tmp_path / "site-packages" / file
    path.parent.mkdir(parents=True)
    path.write_text(code := f"def {function}(look):\n    {line}\n")
    names = dict.fromkeys(("prepare_batch", "output_transform", "hook"), user.plain)
    exec(compile(code, str(path), "exec"), names)
    found = list[str]()

    def look() -> None:
        frame = sys._getframe(1)
        found.extend(part(frame, on_device=False, hands_itself=itself).stage for itself in (False, True))

    names[function](look)
    prepares = function != "log" and "output" not in line
    assert found == ["prepare" if prepares else "python", "python"], "whom nobody hands batches makes them all"


def test_code_that_a_package_has_made_is_no_place_of_the_scripts() -> None:
    """As NetworkX makes its functions: it has no file, and a name that nobody knows."""
    names = dict[str, Any](look=lambda: part(sys._getframe(1), on_device=False, trains=True, held=True))
    exec(compile("def made():\n    return look()", "<class 'argmap'> compilation 54", "exec"), names)
    exec(compile("def measures():\n    return made()", "/home/x/train.py", "exec"), names)
    assert names["measures"]() == Place("python", "train.py:measures:2")


def test_what_a_librarys_callback_does_is_at_its_own_innermost_function() -> None:
    """In a library's loop; and not at that of NumPy, which it calls."""
    loop, found = LoopCode(), list[Place]()

    def look() -> None:
        frame = sys._getframe(1)
        found.append(part(frame, on_device=False, loop=loop, hands_itself=False, trains=True, held=True))

    def function(package: str, name: str, inner: Callable[[], object]) -> Callable[[], object]:
        code = compile(f"def {name}(inner):\n    inner()", f"/x/site-packages/{package}/a.py", "exec")
        exec(code, names := dict[str, Any]())
        if name == "run":
            loop.steps.add(names[name].__code__)
        return functools.partial(names[name], inner)

    function("ignite", "run", function("ignite", "handle", function("numpy", "sort", look)))()
    function("ignite", "run", function("ignite", "handle", look))()
    assert [(one.stage, one.where) for one in found] == [("python", "a.py:handle:2")] * 2


def decoding(
    user: ModuleType, monkeypatch: pytest.MonkeyPatch, then: Callable[[Callable[[], None]], object]
) -> list[str]:
    """What the loop that a watched loader hands its batches does: while a picture is decoded in a function of it, and
    in what that function does then."""
    loop, found = LoopCode(steps={user.calling_loop.__code__}), list[str]()

    def look() -> None:
        found.append(part(sys._getframe(1), on_device=False, loop=loop, hands_itself=False).stage)

    real = PIL_Image._getdecoder

    def getdecoder(*args: object) -> object:
        look()
        return real(*args)

    def transfer() -> None:
        PIL_Image.open(io.BytesIO(jpeg())).load()
        then(look)

    with monkeypatch.context() as patch:
        patch.setattr(PIL_Image, "_getdecoder", getdecoder)
        user.calling_loop(transfer)
        user.calling_loop(transfer)
    return found


def test_who_decodes_pictures_between_a_loader_and_the_model_makes_batches(
    user: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Lightning's transfer_batch_to_device may: whatever else it does for them, too."""
    assert decoding(user, monkeypatch, user.plain) == ["prepare"] * 4


def test_where_it_calls_the_model_too_only_its_decoding_is_that(
    user: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = user.Heads()
    model.weight = torch.nn.Parameter(torch.ones(1))
    *_, decodes, computes = decoding(user, monkeypatch, model)
    assert decodes == "prepare" and computes != "prepare"


def test_a_task_that_takes_turns_with_the_training_one_makes_its_batches() -> None:
    """What the training one awaits itself is its own."""
    loop, found = LoopCode(), list[str]()

    def look() -> None:
        found.append(part(sys._getframe(1), on_device=False, loop=loop).stage)

    async def listener(queue: asyncio.Queue[int]) -> None:
        look()
        await queue.put(1)

    async def helper() -> None:
        look()

    async def pupil() -> None:
        queue, loop_now = asyncio.Queue[int](1), frames(sys._getframe())
        loop.steps.update(one.f_code for one in loop_now)
        task = asyncio.create_task(listener(queue))
        await queue.get()
        await helper()
        await task

    asyncio.run(pupil())
    assert found == ["load", "python"]


def test_what_else_a_loop_reads_beside_a_watched_loader_is_its_own(
    user: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its settings, a picture that it draws; whatever it was taken for before a loader was seen."""
    loop, found = LoopCode(steps={user.calling_loop.__code__}), list[str]()

    def look(*args: object) -> object:
        found.append(part(sys._getframe(1), on_device=False, loop=loop, hands_itself=False).stage)
        return real(*args)

    real = PIL_Image._getdecoder
    monkeypatch.setattr(PIL_Image, "_getdecoder", look)
    user.calling_loop(lambda: PIL_Image.frombytes("RGB", (2, 2), bytes(12)))
    for library in ("PIL/ImageFile", "simplejpeg/__init__"):  # which is imported there
        code = compile("look()", f"/usr/lib/python3/dist-packages/{library}.py", "exec")
        user.calling_loop(lambda code=code: exec(code, {"look": lambda: found.append(
            part(sys._getframe(1), on_device=False, loop=loop, hands_itself=False).stage)}))  # fmt: skip
    reads = lambda: found.append(part(sys._getframe(2), on_device=False, loop=loop, hands_itself=False).stage)  # noqa: E731
    loop.makers.add(user.makes_a_batch.__code__)
    file = Looking(reads, b"{}")
    user.calling_loop(lambda: json.load(file))
    assert len(found) == 4 and "prepare" not in found
