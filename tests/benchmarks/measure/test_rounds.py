"""Fresh processes for real: windows come back, errors are one line, nothing is left behind."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from feedline.benchmarks.measure.rounds import TRIES, Bench, MeasureError, Tried, shuffled
from feedline.benchmarks.measure.window import Meter, Subject, Window, WindowDone
from tests.lab import tiny_split

SCRIPT = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
assert __name__ == "__main__" and sys.argv[1:] == ["--flag"]
images = torch.rand(64, 3, 8, 8)
checks = DataLoader(TensorDataset(images), batch_size=32)
for (batch,) in checks:
    assert len(batch) == 32
for epoch in range(10**6):
    for images, labels in DataLoader(TensorDataset(images, torch.zeros(64)), batch_size=16, shuffle=True):
        torch.save({}, "/nowhere/at/all")
"""


@pytest.fixture(scope="module")
def bench() -> "Bench":
    return Bench()


@pytest.fixture(scope="module", autouse=True)
def _closed(bench: Bench) -> object:
    yield
    bench.close()


def subject(script: Path, how: str = "none", **settings: object) -> Subject:
    return Subject(
        kind="script",
        settings={"argv": [str(script), "--flag"], "loader": 1, "how": how, **settings},
        warm_up_s=0.05,
        warm_up_batches=2,
        window_s=0.2,
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.parametrize("how", ["none", "cached", "workers"])
def test_a_script_is_measured_however_its_batches_come(bench: Bench, script: Path, how: str) -> None:
    window = bench.measure(subject(script, how, num_workers=1))
    assert window.samples == 16 * window.batches > 0 and window.seconds >= 0.2
    assert window.facts["shape"] == [16, 3, 8, 8] and window.facts["dtype"] == "float32"
    assert not children_named("train.py")


def test_a_long_window_is_waited_for(bench: Bench, script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.measure(subject(script))  # the server is there
    monkeypatch.setattr("feedline.benchmarks.measure.rounds.MOST_S", 0.5)
    assert bench.measure(replace(subject(script), window_s=3.0)).seconds >= 3


def test_ranks_train_in_step(bench: Bench, tmp_path: Path) -> None:
    tiny_split.write(tmp_path / "train", 128, 2, classes=4)
    settings = {"split": str(tmp_path / "train"), "model": "small_cnn", "devices": 2, "num_workers": 0,
                "batch_size": 8, "image_size": 32, "device": "cpu"}  # fmt: skip
    window = bench.measure(
        Subject(kind="loader", settings=settings, warm_up_s=0.0, warm_up_batches=1, window_s=0.1, least_batches=3)
    )
    assert window.samples == window.batches * 2 * 8  # both ranks count
    assert window.worker_cpu_s > 0  # the other rank's


def test_a_script_that_raises_is_one_line(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("raise ValueError('no such thing')\n")
    with pytest.raises(MeasureError, match="ValueError: no such thing"):
        bench.measure(subject(path))


def test_a_script_without_a_loader_says_so(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "empty.py"
    path.write_text("print('hello')\n")
    with pytest.raises(MeasureError, match="nothing to swap"):
        bench.measure(subject(path))


def test_a_killed_fork_is_an_error_and_the_next_window_works(bench: Bench, script: Path, tmp_path: Path) -> None:
    path = tmp_path / "killed.py"
    path.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    with pytest.raises(MeasureError, match="status -9"):
        bench.measure(subject(path))
    assert bench.measure(subject(script)).samples > 0


@pytest.mark.slow
def test_a_killed_server_is_one_line_and_the_next_window_works(script: Path) -> None:
    with Bench() as bench:
        bench.measure(subject(script))
        server = bench._process  # pyright: ignore[reportPrivateUsage]
        assert server is not None
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(MeasureError, match="was killed"):
            bench.measure(subject(script))
        assert bench.measure(subject(script)).samples > 0


def children_named(name: str) -> list[str]:
    found: list[str] = []
    for child in psutil.Process().children(recursive=True):
        try:
            found += [" ".join(child.cmdline())] if name in " ".join(child.cmdline()) else []
        except psutil.NoSuchProcess:
            continue
    return found


def test_the_meter_leaves_the_warm_up_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("feedline.benchmarks.measure.window.time.perf_counter", lambda: clock[0])
    meter = Meter(
        Subject(kind="loader", settings={}, warm_up_s=1.0, warm_up_batches=3, window_s=2.0, least_batches=2)
    )
    with pytest.raises(WindowDone):
        for _ in range(100):
            clock[0] += 0.5
            meter.batch(10, 0.1)
    assert meter.window is not None
    assert (meter.window.samples, meter.window.seconds, meter.window.batches) == (40, 2.0, 4)
    assert meter.window.wait_s == pytest.approx(0.4)


def test_the_window_begins_anew_behind_an_epoch_s_first_smaller_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its step took 3 s of a window of 2 s on a GPU, where cuDNN chose kernels for it; the next takes no longer than
    others."""
    now, meter = 0.0, Meter(Subject(kind="loader", settings={}, warm_up_s=0.5, warm_up_batches=2, window_s=2.0))
    monkeypatch.setattr("feedline.benchmarks.measure.window.time.perf_counter", lambda: now)
    with pytest.raises(WindowDone):
        for number in range(100):
            meter.batch(8 if number % 10 == 9 else 64, 0.01)
            now += 3.0 if number == 9 else 0.1
    window = meter.window
    assert window is not None
    assert window.seconds == pytest.approx(2.0, abs=0.11) and window.batches == round(window.seconds / 0.1)
    assert window.samples == 64 * (window.batches - 2) + 2 * 8
    assert window.wait_s == pytest.approx(0.01 * window.batches)


def test_where_every_batch_has_its_own_size_every_step_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now, meter = 0.0, Meter(Subject(kind="loader", settings={}, warm_up_s=0.0, warm_up_batches=5, window_s=1.0))
    monkeypatch.setattr("feedline.benchmarks.measure.window.time.perf_counter", lambda: now)
    with pytest.raises(WindowDone):
        for number in range(100):
            meter.batch(10 + number, 0.0)
            now += 0.1
    assert meter.window is not None and meter.window.batches == pytest.approx(10, abs=1)


def test_every_round_has_its_own_order_and_every_restart_the_same() -> None:
    cells = list("abcdef")
    orders = [shuffled(cells, 0, number) for number in range(8)]
    assert all(sorted(order) == cells for order in orders) and len({tuple(order) for order in orders}) > 4
    assert orders == [shuffled(cells, 0, number) for number in range(8)]


class Disturbed(Bench):
    """Windows while other programs take so many cores."""

    def __init__(self, *others_cores: float | None) -> None:
        super().__init__()
        self.left = list(others_cores)

    def measure(self, subject: Subject) -> Window:
        others_cores = self.left.pop(0)
        return Window(
            samples=1,
            seconds=1.0,
            batches=1,
            wait_s=0.0,
            trainer_cpu_s=0.0,
            worker_cpu_s=0.0,
            others_cores=others_cores,
        )


def test_a_disturbed_window_is_measured_again_and_the_quietest_counts() -> None:
    for others_cores, counts, left in (
        ([0.05, 1.0], 0.05, 1),
        ([1.0, 0.1, 0.0], 0.1, 1),
        ([None, 1.0], None, 1),
        ([1.0, 0.4, 0.9, 0.0][: TRIES + 1], 0.4, 1),
    ):
        bench = Disturbed(*others_cores)
        assert bench.measure_quiet(Subject(kind="script", settings={})).others_cores == counts
        assert len(bench.left) == left


def of_stock(samples: int, made: int | None) -> Window:
    """128 a batch; taking a sample costs 600 µs of a core, making one 200."""
    return Window(samples=samples, seconds=1.0, batches=samples // 128, wait_s=0.0, trainer_cpu_s=samples * 600e-6,
                  worker_cpu_s=(made or 0) * 200e-6, made=made)  # fmt: skip


def test_batches_taken_from_stock_do_not_make_a_loop_faster() -> None:
    assert of_stock(2560, None).samples_per_s == of_stock(2560, 2440).samples_per_s == 2560
    assert of_stock(2560, 2700).samples_per_s == 2560
    lasting = of_stock(2560, 1280).samples_per_s
    assert 1280 < lasting < 2560 and lasting == pytest.approx((2560 * 600 + 1280 * 200) / 800)


def test_a_budget_is_kept_by_the_longest_window_but_the_first() -> None:
    now_s, takes_s = 0.0, {"first": 10.0, "short": 2.0, "fails": 3.0}

    def measure(cell: str) -> Window:
        nonlocal now_s
        now_s += takes_s[cell]
        if cell == "fails":
            raise MeasureError("out of memory")
        return of_stock(128, None)

    tried = Tried[str](measure=measure, budget_s=20.0, clock=lambda: now_s)
    for cell in ("first", "fails", "short", "short", "short"):
        assert not tried.out_of_time
        tried.run(cell)
    assert tried.out_of_time, "one as long as that which failed would end at 22 s"
    assert tried.failed == {"fails": "out of memory"}
    assert {cell: len(windows) for cell, windows in tried.windows.items()} == {"first": 1, "short": 3}
    tried.check()
    with pytest.raises(MeasureError, match="out of memory"):
        Tried[str](measure=measure, budget_s=1.0, failed=tried.failed).check()


def test_the_window_begins_when_the_stock_is_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand in stock, of which 500 a second are used up until nothing is left."""
    meter, now = Meter(Subject(kind="loader", settings={}, warm_up_s=0, warm_up_batches=1, window_s=0.5)), 0.0
    taken = 0
    meter.made = lambda: round(max(1000 + 500 * now, taken))
    monkeypatch.setattr("feedline.benchmarks.measure.window.time.perf_counter", lambda: now)
    with pytest.raises(WindowDone):
        for _ in range(200):
            now += 0.1
            meter.batch(100, 0.0)
            taken += 100
    assert meter.window is not None and now - meter.window.seconds == pytest.approx(3.0, abs=0.25)
