"""What processes wrote down becomes the right sums: synchronisations, GPU means, bytes, the watch's own cost."""

import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from feedline.profiling.explain.measure.situation import measure
from feedline.profiling.explain.predict import all_predictions
from feedline.profiling.record.journal import Journal, StudyConfig, TimeRow
from feedline.profiling.record.measurements import scope_of
from feedline.profiling.record.merge import merge, scopes
from feedline.profiling.record.recording import Compute, Gpu, Recording, Script, Series, Step
from feedline.profiling.record.watch_costs import costs
from feedline.profiling.record.windows import over_steps
from feedline.profiling.watch.capture import Capture, Finished
from feedline.profiling.watch.cuda import Device
from feedline.profiling.watch.hooks import Hooks
from feedline.profiling.watch.sampler import StackSampler
from tests.profiling.recordings import made

BATCH = [[1, 2, 3, 4]]


class Loader:
    num_workers = 0
    dataset: Any = None


class TwoWorkers:
    num_workers = prefetch_factor = 2


class OnDevice:
    """A CUDA tensor, as far as the hooks look."""

    is_cuda = True

    def to(self) -> "OnDevice":
        return self

    cuda = tolist = cpu = numpy = to

    def item(self) -> float:
        time.sleep(0.004)
        return 0.0


def trained(folder: Path, sampler: Any = None) -> Recording:
    """A loop that asks a device for a number in every step."""
    origin = time.perf_counter()
    capture = Capture(Journal(folder), StudyConfig(steady=False))
    hooks = Hooks(capture)
    Device(SimpleNamespace(Tensor=OnDevice, dtype=type(None)), capture).install(hooks.patches)
    loader = Loader()
    one = capture.begin_pass(loader, "torch")
    for _ in range(12):
        capture.ask(one)
        capture.got(one, BATCH)
        OnDevice().item()
        capture.backward(0.001)
    capture.end_pass(one, exhausted=True)
    capture.leave("itself")
    hooks.remove()
    return merge(capture.journal, origin=origin, script=Script(argv=["x.py"]), sampler=sampler)


def test_a_run_of_an_hour_started_an_hour_ago(tmp_path: Path) -> None:
    seen = merge(Journal(tmp_path), origin=time.perf_counter() - 3600, script=Script(argv=["x.py"]))
    ago = datetime.now(UTC) - datetime.fromisoformat(seen.started)
    assert timedelta(minutes=59) < ago < timedelta(minutes=61)


def test_without_cuda_nobody_knows_what_copies_take(tmp_path: Path) -> None:
    assert {step.copy_s for step in trained(tmp_path).steps} == {None}


def test_hidden_synchronisations_are_summed_over_measured_steps_and_placed(tmp_path: Path) -> None:
    seen = trained(tmp_path)
    measured = seen.measured()
    assert len(measured) == seen.compute.items == 9
    assert seen.compute.items_s == pytest.approx(sum(step.sync_s for step in measured))
    assert 9 * 0.004 <= seen.compute.items_s <= sum(step.duration_s for step in measured)
    (line,) = seen.compute.item_lines
    assert line.startswith("test_merge.py:")
    remedy = next(one for one in all_predictions(measure(seen)) if one.remedy == "no hidden synchronisations")
    assert line in remedy.why and "will not help" not in remedy.why


def test_costs_are_of_the_steps_that_the_rate_is_of(tmp_path: Path) -> None:
    """Two loaders are trained on, one after the other."""
    origin = time.perf_counter()
    capture = Capture(Journal(tmp_path), StudyConfig(steady=False))
    spent: list[float] = []
    for loader in (Loader(), Loader()):
        began_s = time.process_time()
        one = capture.begin_pass(loader, "torch", place=str(id(loader)))
        for _ in range(40):
            capture.ask(one)
            capture.got(one, BATCH)
            until_s = time.thread_time() + 0.01
            while time.thread_time() < until_s:
                pass
            capture.backward(0.001)
            capture.synchronised(0.002, sys._getframe())
        spent.append((time.process_time() - began_s) / 160)
        capture.end_pass(one, exhausted=True)  # which may import what tells whether feedline's loader can do it
    capture.leave("itself")
    seen = merge(capture.journal, origin=origin, script=Script(argv=["x.py"]))
    assert seen.costs.trainer_cpu_s == pytest.approx(sum(spent) / 2, rel=0.3)
    remedy = next(one for one in all_predictions(measure(seen)) if one.remedy == "no hidden synchronisations")
    assert seen.compute.items == 37 and remedy.why.startswith("37 of them")


def test_the_cost_of_the_watch_is_the_time_of_its_hooks_and_samplers(tmp_path: Path) -> None:
    found = trained(tmp_path).overhead
    assert 0 < found.hooks_s < 12e-3
    assert found.fraction == pytest.approx((found.hooks_s + found.sampler_cpu_s["trainer"]) / found.seconds)


def looped(
    folder: Path, *, pid: int, batches: int, trains: bool = True, rank: int = 0, worker: int | None = None,
    dataset: Any = None, stage: str = "read", step_s: float = 0.002,
) -> None:  # fmt: skip
    """What a process of that id told of one loop."""
    capture = Capture(Journal(folder), StudyConfig(steady=False))
    capture.pid, capture.rank = pid, rank
    loader = Loader()
    loader.dataset = dataset
    one = capture.begin_pass(loader, "torch")
    for _ in range(batches):
        capture.ask(one)
        capture.got(one, BATCH)
        time.sleep(step_s)
        if trains:
            capture.backward(0.001)
    capture.end_pass(one, exhausted=True)
    if worker is not None:
        about = {"pid": worker, "worker": 0, "loader": 0, "rank": rank, "ended": True, "paths": [], "trainer": pid}
        capture.journal.write(f"worker-{worker}", about)
        now = time.perf_counter()
        capture.journal.append(f"worker-{worker}", [TimeRow(now - 1, now, {stage: 1.0}, {}, {}, {}, 9, 9, 0.5, 99)])
    capture.leave("itself")
    capture.end()


def test_what_a_child_process_evaluates_is_no_training(tmp_path: Path) -> None:
    """Its first loader has the number of its parent's."""
    origin = time.perf_counter()
    looped(tmp_path, pid=11, batches=12, worker=12)
    looped(tmp_path, pid=7, batches=40, trains=False, worker=8)
    seen = merge(Journal(tmp_path), origin=origin, script=Script(argv=["x.py"]))
    assert (len(seen.steps), seen.compute.world_size) == (12, 1)
    assert [one.pid for one in seen.workers] == [12]


def test_two_processes_that_train_as_the_same_rank_are_one(tmp_path: Path) -> None:
    origin = time.perf_counter()
    looped(tmp_path, pid=7, batches=12, step_s=0.02)
    looped(tmp_path, pid=11, batches=12, step_s=0.02)
    seen = merge(Journal(tmp_path), origin=origin, script=Script(argv=["x.py"]))
    assert (len(seen.steps), seen.compute.world_size, seen.notes) == (24, 1, [])


def test_of_processes_that_train_each_in_its_own_way_one_is_told(tmp_path: Path) -> None:
    origin = time.perf_counter()
    looped(tmp_path, pid=7, batches=24, step_s=0.004, worker=8)
    looped(tmp_path, pid=11, batches=12, step_s=0.02, worker=12)
    looped(tmp_path, pid=13, batches=12, step_s=0.02)
    seen = merge(Journal(tmp_path), origin=origin, script=Script(argv=["x.py"]))
    assert (len(seen.steps), [one.pid for one in seen.workers], len(seen.trainers)) == (24, [12], 2)
    assert len(seen.notes) == 1
    assert seen.notes[0].startswith("3 processes train on their own, and differ: these figures are of one, which")
    assert seen.notes[0].endswith("), and 1 process like it")


def test_ranks_that_were_not_seen_are_said_and_are_not_in_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other ranks run on other machines."""
    monkeypatch.setenv("WORLD_SIZE", "8")
    origin = time.perf_counter()
    for rank, pid in enumerate((7, 11)):
        monkeypatch.setenv("RANK", str(rank))
        looped(tmp_path, pid=pid, batches=12, rank=rank)
    seen = merge(Journal(tmp_path), origin=origin, script=Script(argv=["x.py"]))
    assert seen.compute.world_size == 2
    assert "2 of 8 ranks were seen: rates and predictions are of these" in seen.notes


def test_a_batch_that_is_looked_at_before_the_loop_is_not_its_first_pass(tmp_path: Path) -> None:
    """Its queue fills as it begins, and workers that start then take nothing from later epochs."""
    origin = time.perf_counter()
    capture = Capture(Journal(tmp_path), StudyConfig(steady=False))
    loader = TwoWorkers()
    for epoch, batches in enumerate((1, 40, 40)):
        one = capture.begin_pass(loader, "torch")
        time.sleep(0.1 if epoch == 1 else 0.0)
        for _ in range(batches):
            capture.ask(one)
            capture.got(one, BATCH)
            time.sleep(0.002)
            if epoch:
                capture.backward(0.001)
        if epoch:
            capture.end_pass(one, exhausted=True)
    capture.leave("itself")
    seen = merge(capture.journal, origin=origin, script=Script(argv=["x.py"]))
    warm = [sum(step.warm_up for step in seen.steps if step.epoch == epoch) for epoch in (1, 2)]
    assert warm == [7, 1]
    assert measure(seen).rates.epoch_start_s < 0.05


@pytest.mark.parametrize(("sizes", "left_out"), [((64, 8), [9]), ((64, 64), []), ((8, 16, 24, 32), [])])
def test_the_first_step_of_a_smaller_last_batch_is_no_measure(
    tmp_path: Path, sizes: tuple[int, ...], left_out: list[int]
) -> None:
    """A GPU's kernels are chosen for each size: 3 s, once. Where there are many sizes that is how steps are."""
    origin = time.perf_counter()
    capture = Capture(Journal(tmp_path), StudyConfig(steady=False))
    for _ in range(2):
        one = capture.begin_pass(Loader(), "torch")
        for number in range(10):
            capture.ask(one)
            capture.got(one, [[0] * sizes[number % len(sizes) if len(sizes) > 2 else number == 9]])
            capture.backward(0.001)
        capture.end_pass(one, exhausted=True)
    capture.leave("itself")
    seen = merge(capture.journal, origin=origin, script=Script(argv=["x.py"]))
    first = [step for step in seen.steps if not step.epoch]
    assert [number for number, step in enumerate(first) if step.warm_up][2:] == left_out


class Event:
    """A mark on a device that takes a millisecond to the next."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, _: object) -> None:
        return

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: "Event") -> float:
        return 1.0


class OnHost(OnDevice):
    is_cuda = False
    nbytes = 1 << 20

    def to(self) -> OnDevice:
        return OnDevice()

    cuda = to


def test_copies_are_timed_by_marks(tmp_path: Path) -> None:
    cuda = SimpleNamespace(
        Event=Event,
        is_initialized=lambda: True,
        is_current_stream_capturing=lambda: False,
        current_stream=lambda _: SimpleNamespace(cuda_stream=0),
        memory_allocated=lambda: 1,
    )
    origin = time.perf_counter()
    capture = Capture(Journal(tmp_path), StudyConfig(steady=False))
    hooks = Hooks(capture)
    capture.device = device = Device(SimpleNamespace(Tensor=OnHost, cuda=cuda, dtype=type(None)), capture)
    device.install(hooks.patches)
    one = capture.begin_pass(Loader(), "torch")
    for _ in range(12):
        capture.ask(one)
        capture.got(one, BATCH)
        OnHost().to()
    capture.end_pass(one, exhausted=True)
    capture.leave("itself")
    hooks.remove()
    seen = merge(capture.journal, origin=origin, script=Script(argv=["x.py"]))
    assert [step.copy_s for step in seen.steps] == [0.001] * 12
    assert 0 < seen.overhead.hooks_s < 12e-3


def test_steps_without_marks_get_what_those_with_marks_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait two and four milliseconds, the device through half of it; every fifth is marked."""
    capture = Capture(Journal(tmp_path), StudyConfig(steady=False))
    monkeypatch.setattr(StackSampler, "start", lambda _: None)  # its thread would write rows before they are changed
    one = capture.begin_pass(Loader(), "torch")
    for _ in range(300):
        capture.ask(one)
        capture.got(one, BATCH)
        capture.backward(0.001)
    capture.end_pass(one, exhausted=True)
    for number, row in enumerate(capture.loop.closed):
        row.wait_s = 0.002 if number % 2 else 0.004
        if number % 5 == 0:
            row.starved_s, row.copy_s = row.wait_s / 2, 0.003
            row.idle_s = 0.006 if number % 10 else None  # behind an optimiser's step, of which there is none here
    capture.leave("itself")
    steps = merge(capture.journal, origin=0.0, script=Script(argv=["x.py"])).measured()
    assert [step.starved_s for step in steps] == pytest.approx([step.wait_s / 2 for step in steps])
    assert [step.copy_s for step in steps] == pytest.approx([0.003] * len(steps))
    assert sum(step.idle_s or 0.0 for step in steps) / len(steps) == pytest.approx(0.003, rel=0.05)


def test_steps_that_are_all_marked_do_not_stand_for_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first hundred are, on a device that does not starve yet; nor does a wait count for more than it is."""
    capture = Capture(Journal(tmp_path), StudyConfig(steady=False))
    monkeypatch.setattr(StackSampler, "start", lambda _: None)  # its thread would write rows before they are changed
    one = capture.begin_pass(Loader(), "torch")
    for _ in range(600):
        capture.ask(one)
        capture.got(one, BATCH)
        capture.backward(0.001)
    capture.end_pass(one, exhausted=True)
    for number, row in enumerate(capture.loop.closed):
        row.wait_s = 0.004
        if number < 100 or number % 10 == 0:
            row.starved_s = 0.0 if number < 100 else 0.02
    capture.leave("itself")
    steps = merge(capture.journal, origin=0.0, script=Script(argv=["x.py"])).steps
    later = [step.starved_s for step in steps[200:] if step.starved_s != 0.02]
    assert later == pytest.approx([0.004] * len(later), rel=0.1)


def test_optimiser_steps_without_a_loader_are_counted_and_stop_the_script(tmp_path: Path) -> None:
    capture = Capture(Journal(tmp_path), StudyConfig(steps=5))
    capture.start()
    origin, steps = time.perf_counter(), 0
    with pytest.raises(Finished):
        while True:
            steps += 1
            time.sleep(0.06)
            capture.optimizer_step(0.001)
    assert (steps, capture.ended_by) == (5, "steps")
    recording = merge(capture.journal, origin=origin, script=Script(argv=["x.py"]))
    assert [(one.kind, one.num_workers) for one in recording.loaders] == [("unwatched", None)]
    assert [(step.samples, step.wait_s, step.phase) for step in recording.steps] == [(1, 0.0, "train")] * 4
    assert recording.trainers[0].seconds > 0.1


# --- GPUs and bytes -----------------------------------------------------------------------------------


def gpu_series(name: str, values: list[float | None]) -> Series:
    times = [float(second) for second in range(1, len(values) + 1)]
    return Series(name=name, unit="", scope="gpu:GPU-1", source="nvml", t_s=times, values=values)


def test_gpu_means_are_of_the_training_steps() -> None:
    """Four seconds of start-up, four of training, two of evaluation."""
    steps = [Step(start_s=4.0 + i, wait_s=0.1, duration_s=1.0, samples=8) for i in range(4)]
    steps += [replace(steps[-1], start_s=8.0 + i, phase="eval") for i in range(2)]
    series = [gpu_series("utilization", [0.0] * 4 + [0.8] * 4 + [0.3] * 2), gpu_series("sm_active", [0.1, None])]
    whole = Gpu(uuid="GPU-1", utilization=0.38, sm_active=0.1, unavailable={"gpm": "refused"})
    (found,) = over_steps([whole], series, steps)
    assert found.utilization == pytest.approx(0.8)
    assert found.sm_active is None
    assert found.unavailable == {"gpm": "refused", "sm_active": "no look fell into the training steps"}
    (untrained,) = over_steps([whole], series, [])
    assert untrained.utilization == pytest.approx(0.38)


def test_a_merged_recording_has_the_means_of_its_steps(tmp_path: Path) -> None:
    """The sampler's own mean is of its whole life, start-up included."""
    series = replace(gpu_series("utilization", [0.0, 0.9]), t_s=[0.0, 10.0])
    gpu = Gpu(uuid="GPU-1", utilization=0.1)
    sampler = SimpleNamespace(gpus=[gpu], gpu_note="", cpu_s=0.0, recorded=[series])
    (found,) = trained(tmp_path, sampler).gpus
    assert found.utilization == pytest.approx(0.9)


def test_the_size_of_the_files_is_told_where_these_are_all(tmp_path: Path) -> None:
    archive, origin = tmp_path / "all.zip", time.perf_counter()
    archive.write_bytes(b"x" * 3000)
    looped(tmp_path, pid=11, batches=12, worker=12)
    told: list[float | None] = []
    for paths, every in (([archive], True), ([archive], False), ([archive, tmp_path / "gone.zip"], True)):
        files = {"paths": [*map(str, paths)], "changing": 0.0, "all": every}
        Journal(tmp_path).write("files", files)
        told.append(merge(Journal(tmp_path), origin=origin, script=Script(argv=["x.py"])).files_bytes)
    assert told == [3000, None, None]


@pytest.mark.parametrize(("rate", "stage"), [(1e3, "decode"), (1e12, "decode"), (1e3, "read")])
def test_files_that_a_dataset_lists_are_its_samples_where_they_are_read(
    tmp_path: Path, rate: float, stage: str
) -> None:
    """One that has decoded them to memory reads nothing."""
    files = [tmp_path / f"{number}.jpg" for number in range(30)]
    for file in files:
        file.write_bytes(b"x" * 100_000)
    Journal(tmp_path).write("files", {"paths": ["/data/seen.jpg"], "changing": 0.5})
    read = Series(
        name="read_bytes_per_s", unit="B/s", scope="worker:0", source="/proc", t_s=[0.0, 10.0], values=[rate, rate]
    )
    sampler: Any = SimpleNamespace(gpus=[], gpu_note="", cpu_s=0.0, recorded=[read])
    origin, dataset = time.perf_counter(), SimpleNamespace(samples=[(str(file), 0) for file in files])
    looped(tmp_path, pid=11, batches=12, worker=12, dataset=dataset, stage=stage)
    seen = merge(Journal(tmp_path), origin=origin, script=Script(argv=["x.py"]), sampler=sampler)
    assert seen.sample_paths[0] == "/data/seen.jpg" and seen.changing_files == 0.5
    assert set(seen.sample_paths[1:]) == (set() if (rate, stage) == (1e3, "decode") else set(map(str, files)))


def test_bytes_read_by_the_workers_of_every_rank_count() -> None:
    one = made(workers=1, steps=20)
    steps = [replace(step, rank=rank) for rank in (0, 1) for step in one.steps]
    workers = [replace(one.workers[0], rank=rank) for rank in (0, 1)]
    times = [float(second) for second in range(8)]
    series = [
        Series(name="read_bytes_per_s", unit="B/s", scope=scope, source="/proc", t_s=times, values=[1e6] * 8)
        for scope in ("worker:0", "worker:1:0")
    ]
    both = replace(one, steps=steps, workers=workers, series=series, compute=Compute(world_size=2))
    alone = replace(one, series=series[:1])
    assert costs(both).read_bytes == pytest.approx(costs(alone).read_bytes)


def test_bytes_read_while_the_loop_evaluates_are_no_training_samples() -> None:
    """Ten seconds of evaluation in the middle, by workers of the same number."""
    one = made(workers=1, steps=40)
    steps = [replace(step, start_s=step.start_s + 10 * (number >= 20)) for number, step in enumerate(one.steps)]
    times = [float(second) for second in range(20)]
    rates = [1e6 if t <= 3 or t >= 13 else 9e6 for t in times]
    read = Series(
        name="read_bytes_per_s", unit="B/s", scope="worker:0", source="/proc", t_s=times, values=list(rates)
    )
    measured_s = sum(step.duration_s for step in one.measured())
    samples = sum(step.samples for step in one.measured())
    assert costs(replace(one, steps=steps, series=[read])).read_bytes == pytest.approx(1e6 * measured_s / samples)


@pytest.mark.parametrize(
    ("rank", "worker", "scope"),
    [(0, None, "trainer"), (2, None, "trainer:2"), (0, 3, "worker:3"), (2, 3, "worker:2:3")],
)
def test_names_of_processes(rank: int, worker: int | None, scope: Any) -> None:
    assert scope_of(rank, worker) == scope


def test_processes_are_named_as_they_have_introduced_themselves(tmp_path: Path) -> None:
    """Dead workers' files are not even read: here they are none."""
    journal = Journal(tmp_path)
    journal.write("trainer-7", {"pid": 7, "rank": 1})
    journal.write("worker-8", {"pid": 8, "rank": 1, "worker": 3})
    journal.write("worker-9", {})
    assert scopes(journal, [7, 8, 10]) == {7: "trainer:1", 8: "worker:1:3"}
