"""Slow and broken storage, made here; and what the product says of it. Skipped where nothing can be mounted."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from feedline.benchmarks.measure.reads import Piece, in_memory, measure_reads, pieces_of_files
from feedline.benchmarks.storage_advice import storage_of
from feedline.cli.profile import with_reads
from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.format.local import ask_ahead
from feedline.profiling.explain.predict import all_predictions, prediction_for
from feedline.profiling.explain.verdict import diagnose, record_keys
from feedline.profiling.profile_run import study
from feedline.profiling.record.journal import StudyConfig
from tests.lab import tiny_split
from tests.lab.slow_files import Slow, mounted, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())
LATENCY_S = 0.01
Mount = Callable[..., Any]


@pytest.fixture
def mount(tmp_path: Path) -> Mount:
    @contextmanager
    def made(source: Path, **settings: float) -> Generator[Slow]:
        with mounted(source, tmp_path / "slow", **settings) as slow:
            yield slow

    return made


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    (folder / "inner").mkdir()
    (folder / "long").write_bytes(os.urandom(24 << 20))
    (folder / "inner" / "short").write_bytes(b"a few bytes")
    tiny_split.write(folder / "train", 48, 3)
    return folder


def drop(path: Path) -> None:
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_the_same_bytes_are_there_and_the_page_cache_keeps_and_drops_them(mount: Mount, source: Path) -> None:
    with mount(source, latency_s=0.001) as slow:
        assert sorted(path.name for path in slow.path.iterdir()) == ["inner", "long", "train"]
        assert (slow.path / "inner" / "short").read_bytes() == b"a few bytes"
        long = slow.path / "long"
        pieces = [Piece(long, 0, 1 << 20), Piece(long, 5 << 20, 10_000)]
        assert in_memory(pieces) == 0.0
        assert long.read_bytes() == (source / "long").read_bytes()
        read = slow.counts()["bytes"]
        assert in_memory(pieces) == 1.0 and long.read_bytes() and slow.counts()["bytes"] < 1.1 * read
        drop(long)
        assert in_memory(pieces) == 0.0
    assert not list(slow.path.iterdir())


def test_files_that_are_asked_for_ahead_come_to_memory_unread(mount: Mount, source: Path) -> None:
    with mount(source, latency_s=LATENCY_S) as slow:
        files = [slow.path / "long", slow.path / "inner" / "short", slow.path / "train" / "manifest.json"]
        ask_ahead([slow.path / "missing", slow.path, *files], read=True)
        pieces, until_s = [Piece(path, 0, path.stat().st_size) for path in files], time.monotonic() + 60
        while in_memory(pieces) != 1.0:
            assert time.monotonic() < until_s
            time.sleep(0.01)
        assert slow.counts()["most_at_once"] > 1


def test_many_reads_at_once_hide_a_networks_latency(mount: Mount, source: Path) -> None:
    with mount(source, latency_s=LATENCY_S) as slow:
        reads = measure_reads(pieces_of_files([str(slow.path / "long")], 30_000))
    assert reads is not None and reads.of_storage and reads.latency_s >= LATENCY_S
    assert reads.random_at(16) > 4 * reads.random_at(1)
    assert reads.random_at(1) <= 30_000 / LATENCY_S * 1.01


def test_a_spinning_disk_is_told_by_its_sequential_reads(mount: Mount, source: Path) -> None:
    with mount(source, seek_s=0.008, bytes_per_s=80e6) as slow:
        reads = measure_reads(pieces_of_files([str(slow.path / "long")], 30_000))
    assert reads is not None and reads.sequential_bytes_per_s is not None
    assert reads.best_random_bytes_per_s < 30_000 / 0.008 * 1.1
    assert 4 * reads.best_random_bytes_per_s < reads.sequential_bytes_per_s < 80e6 * 1.1


def test_what_doctor_says_of_a_mounted_split(mount: Mount, source: Path) -> None:
    with mount(source, latency_s=LATENCY_S) as slow:
        told = storage_of(slow.path / "train", seconds=0.3)
    words = dict(told.lines())
    assert told.reads.latency_s >= LATENCY_S and "one by one" in words["random reads"]
    assert told.window_shards == 0 and "full random order" in words["order"]


EPOCHS = """
import sys
sys.path[:0] = [sys.argv[1]]
from tests.lab.chaos_live import Epochs
from feedline.pipeline.base.errors import FeedlineError
for split in sys.argv[2:]:
    try:
        had = Epochs(split, 2).run(1)
    except FeedlineError as error:
        print("error:", error)
    else:
        print("exact:", len({label for batch in had for label in batch}))
"""
FAULTS = {
    "error": (1000, ("Input/output error",)),
    "short": (1000, ("is cut short",)),
    "gone": (1, ("connect",)),  # it is not connected, or has just been aborted
    "stall": (2, ()),
}


def test_a_fault_is_one_clear_line_or_nothing_is_wrong(source: Path, tmp_path: Path) -> None:
    """Behind the manifest and the index, which are in memory by then."""
    splits: list[str] = []
    with ExitStack() as stack:
        for fault, (times, _) in FAULTS.items():
            slow = stack.enter_context(mounted(source, tmp_path / fault, stall_s=0.5))
            for name in ("manifest.json", "index.parquet"):
                (slow.path / "train" / name).read_bytes()
            slow.tell(fault=fault, times=times)
            splits.append(str(slow.path / "train"))
        command = [sys.executable, "-c", EPOCHS, str(Path(__file__).resolve().parents[2]), *splits]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(FAULTS), done.stdout
    for line, split, (_, words) in zip(lines, splits, FAULTS.values(), strict=True):
        if words:
            assert line.startswith("error: ") and split in line and any(word in line for word in words), line
        else:
            assert line == "exact: 48"


def test_a_mount_that_goes_away_ends_the_measurement_in_one_line(mount: Mount, source: Path) -> None:
    with mount(source) as slow:
        pieces = pieces_of_files([str(slow.path / "long")], 30_000)
        slow.tell(fault="gone", after=3, times=1)
        with pytest.raises(DatasetError, match="cannot be read"):
            measure_reads(pieces)


TRAINING = """
import sys
from pathlib import Path
import torch
from torch.utils.data import DataLoader, Dataset

class Files(Dataset):
    def __init__(self, folder):
        self.files = sorted(Path(folder).iterdir())
    def __len__(self):
        return len(self.files)
    def __getitem__(self, index):
        return torch.frombuffer(bytearray(self.files[index].read_bytes()), dtype=torch.uint8)[:100].float()

torch.set_num_threads(1)
model = torch.nn.Linear(100, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in DataLoader(Files(sys.argv[1]), batch_size=4, shuffle=True, num_workers=2):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_profile_of_a_script_that_reads_cold_files_says_so(mount: Mount, tmp_path: Path) -> None:
    """Each file takes some requests of 20 ms, so the loop runs no faster than that on any machine."""
    files, script = tmp_path / "files", tmp_path / "train.py"
    files.mkdir()
    script.write_text(TRAINING)
    for number in range(400):
        (files / f"{number:04d}.bin").write_bytes(os.urandom(20_000))
    with mount(files, latency_s=0.02) as slow:
        recording = with_reads(study(StudyConfig(argv=[str(script), str(slow.path)], steps=40)).recording)
    told = diagnose(recording)
    storage = record_keys(told)["storage"]
    assert told.bound == "data" and told.cause.kind == "read"
    assert storage["limits"] is True and storage["source"] == "storage" and storage["blocked_share"] > 0.5
    assert any(words.startswith("Storage is what it waits for") for words in told.evidence)
    assert storage["gives"]["latency_s"] >= 0.02
    more = prediction_for(all_predictions(told.measured, workers=[4]), num_workers=4)
    assert more is not None and 1.5 < more.gain < 2.1
    together = next(one for one in told.predictions if one.family == "ahead")
    assert together.helps and 2.5 < together.gain <= 4.1  # a batch has four reads
