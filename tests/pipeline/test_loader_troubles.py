"""What goes wrong in a loader's workers, shards and transforms is one line, and costs no more than it must."""

import errno
import json
import os
import resource
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil
import pytest

from feedline.pipeline.base.errors import DatasetError, FeedlineError, UsageError, WorkerError
from feedline.pipeline.draw.regions import Augment
from feedline.pipeline.loader import Loader
from feedline.pipeline.shards_dataset import Shards
from feedline.pipeline.workers import pool
from feedline.pipeline.workers.dispatch import EpochRun
from feedline.pipeline.workers.memory import shared_columns
from feedline.pipeline.workers.pool import InlineCrew, WorkerCrew
from feedline.pipeline.workers.slots import Ledger
from tests.pipeline.conftest import write_split
from tests.pipeline.loading import SMALL, damage, labels

MakeSplit = Callable[..., Path]


def test_a_worker_that_is_killed_ends_the_epoch_with_its_signal(split: Path) -> None:
    loader = Loader(split, **SMALL)
    iterator = iter(loader)
    next(iterator)
    os.kill(loader.worker_pids[1], signal.SIGKILL)
    os.waitid(os.P_PID, loader.worker_pids[1], os.WEXITED | os.WNOWAIT)
    with pytest.raises(WorkerError, match=r"worker 1 .*SIGKILL"):
        for _ in iterator:
            pass
        next(iter(loader))
    assert len(labels(loader)) == 56, "new workers for the next epoch"


def test_a_worker_that_is_killed_between_two_epochs_costs_one_attempt_and_no_batch(split: Path) -> None:
    loader = Loader(split, **SMALL | {"num_workers": 1})
    whole = labels(loader)
    loader.load_state_dict(loader.state_dict() | {"epoch": 0, "samples": 24})
    os.kill(loader.worker_pids[0], signal.SIGKILL)
    os.waitid(os.P_PID, loader.worker_pids[0], os.WEXITED | os.WNOWAIT)
    with pytest.raises(WorkerError, match=r"SIGKILL.* while it waited for work"):
        iter(loader)
    assert labels(loader) == whole[24:]


def _let_go(image_HWC: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Closes the worker's socket, and stays."""
    os.closerange(3, 1 << 16)
    time.sleep(60)
    return image_HWC


def test_a_worker_s_trouble_is_told_beside_a_thousand_open_files(
    split: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "GRACE_S", 0.2)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], min(before[1], 4096)), before[1]))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1024)]
    try:
        with pytest.raises(WorkerError, match="closed its connection and did not end"):
            labels(Loader(split, **SMALL | {"transform": _let_go, "num_workers": 1}))
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_worker_that_cannot_be_watched_is_none(split: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Loader(split, **SMALL | {"num_workers": 1})
    expected = labels(loader)
    crew = loader._workshops[0].crew
    assert isinstance(crew, pool.WorkerCrew)
    pids: list[int] = []

    def refused(pid: int) -> int:
        pids.append(pid)
        raise OSError(errno.EMFILE, "Too many open files")

    opened = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with monkeypatch.context() as patch, pytest.raises(OSError, match="Too many"):
        patch.setattr(os, "pidfd_open", refused)
        crew.add()
    assert len(os.listdir("/proc/self/fd")) == opened  # noqa: PTH208
    with pytest.raises(ChildProcessError):
        os.waitpid(pids[0], 0)
    assert crew.count == len(crew.workers) == 1
    loader.set_epoch(0)
    assert labels(loader) == expected


def test_workers_start_where_a_kernel_cannot_watch_processes(split: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Linux 5.3, and in sandboxes that refuse it."""

    def refused(_: int) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refused)
    loader = Loader(split, **SMALL | {"num_workers": 2})
    assert len(labels(loader)) == 56
    batches = iter(loader)
    next(batches)
    os.kill(pid := loader._workshops[0].crew.pids[0], signal.SIGKILL)
    with suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
    with pytest.raises(WorkerError, match="killed"):
        list(batches)  # which may have been made already
        labels(loader)


def _explode(image_HWC: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    raise RuntimeError("no such colour")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_transform_that_raises_names_the_sample_and_the_place(split: Path, workers: int) -> None:
    loader = Loader(split, **SMALL | {"transform": _explode, "num_workers": workers})
    with pytest.raises(FeedlineError, match=r"sample 's000\d\d': .* raised RuntimeError: no such colour \("):
        labels(loader)


def test_a_ctrl_c_amid_a_batch_loses_neither_the_batch_nor_its_slot(split: Path, tmp_path: Path) -> None:
    pressed = tmp_path / "pressed"

    def wait(image_HWC: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if pressed.exists():
            pressed.unlink()
            signal.raise_signal(signal.SIGINT)
        return image_HWC

    options = SMALL | {"num_workers": 0}
    loader = Loader(split, **options | {"transform": wait})
    for _ in range(9):
        iterator = iter(loader)
        pressed.touch()
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
    assert [int(label) for _, labels_N in iterator for label in labels_N] == labels(Loader(split, **options))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "at", [(Ledger, "take"), (WorkerCrew, "submit"), (WorkerCrew, "receive"), (EpochRun, "_show")]
)
def test_a_ctrl_c_at_any_place_leaves_a_loader_that_can_be_used_again(
    split: Path, monkeypatch: pytest.MonkeyPatch, at: tuple[type, str], workers: int
) -> None:
    """A notebook's cell that is stopped and run again. What is under way then is lost, and no iterator goes on."""
    kind, name = at
    if workers == 0 and kind is WorkerCrew:
        kind = InlineCrew
    real, calls, wanted = getattr(kind, name), 0, -1

    def pressed(self: Any, *given: Any) -> Any:
        nonlocal calls
        answer = real(self, *given)
        calls += 1
        if calls == wanted:
            signal.raise_signal(signal.SIGINT)
        return answer

    monkeypatch.setattr(kind, name, pressed)
    loader, iterators = Loader(split, **SMALL | {"num_workers": workers, "shuffle": False}), list[Any]()
    for press_at in (2, 5, 9):
        calls, wanted = 0, press_at
        with pytest.raises(KeyboardInterrupt):
            for _ in range(3):
                iterators.append(iter(loader))
                list(iterators[-1])
        wanted = -1
        for iterator in iterators:
            with pytest.raises((UsageError, StopIteration)):
                next(iterator)
        assert len(labels(loader)) == 56
    loader.close()


@pytest.mark.parametrize("on_bad", ["raise", "skip"])
@pytest.mark.parametrize("what", ["", "manifest.json"])
def test_a_split_that_is_taken_away_amid_an_epoch_is_said_to_be(
    tmp_path: Path, on_bad: Literal["raise", "skip"], what: str
) -> None:
    """No sample of it is bad; and where its manifest is gone, shards that lie there may be another split's."""
    split = write_split(tmp_path / "OUT", 64, 32, codec="raw")
    batches = iter(Loader(split, batch_size=2, image_size=40, num_workers=1, on_bad=on_bad))
    next(batches)
    shutil.move(split / what, tmp_path / "away")
    with pytest.raises(FeedlineError, match="was prepared anew or taken away meanwhile: make a new Loader"):
        list(batches)


@pytest.mark.parametrize("on_bad", ["raise", "skip"])
@pytest.mark.parametrize("checksums", [True, False])
def test_a_split_that_is_prepared_anew_amid_an_epoch_is_not_read_by_the_old_index(
    tmp_path: Path, on_bad: Literal["raise", "skip"], checksums: bool
) -> None:
    """Raw samples of other shards lie at the same places, and each was checked before, by another worker."""
    split = write_split(tmp_path / "OUT", 64, 32, codec="raw")
    loader = Loader(split, batch_size=2, image_size=40, num_workers=2, on_bad=on_bad, checksums=checksums)
    list(loader)
    batches = iter(loader)
    next(batches)
    shutil.move(split, tmp_path / "old")
    write_split(split, 64, 32, codec="raw", classes=7)
    with pytest.raises(FeedlineError, match="was prepared anew or taken away meanwhile: make a new Loader"):
        list(batches)
        list(iter(loader))


def test_a_transform_that_kills_its_worker_is_named_with_the_sample(split: Path) -> None:
    def fall(image_HWC: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        os.kill(os.getpid(), signal.SIGSEGV)
        return image_HWC

    with pytest.raises(WorkerError, match=r"SIGSEGV while it worked on .*sample 's000.*, or on one that it read"):
        labels(Loader(split, **SMALL | {"transform": fall}))


@pytest.mark.parametrize(
    "options",
    [
        {"transform": lambda image_HWC: image_HWC / 255},
        {"transform": lambda image_HWC: image_HWC[0, 0, 0]},
        {"batch_transform": lambda images_NHWC, labels_N: (images_NHWC, labels_N * 0.7)},
        {"batch_transform": lambda images_NHWC, labels_N: (images_NHWC[0], labels_N)},
        {"batch_transform": lambda images_NHWC, labels_N: 1},
    ],
)
def test_what_a_transform_returns_is_not_cast_or_spread_in_silence(split: Path, options: dict[str, Any]) -> None:
    with pytest.raises(FeedlineError, match="transform returned"):
        labels(Loader(split, **SMALL | options | {"num_workers": 0}))


def test_an_epoch_without_a_batch_is_warned_of(split: Path) -> None:
    with pytest.warns(UserWarning, match="no batch of 4000 in the 60 samples"):
        assert len(Loader(split, **SMALL | {"batch_size": 4000, "train": True})) == 0


@pytest.mark.parametrize("options", [{"batch_size": 9, "rank": 1, "world_size": 7}, {"batch_size": 11, "subset": 10}])
def test_ranks_and_a_subset_make_fewer_samples_of_which_to_fill_a_batch(split: Path, options: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match=f"no batch of {options['batch_size']} in the"):
        loader = Loader(split, **SMALL | options)
    assert len(loader) == 0


@pytest.mark.parametrize("policy", ["drop", "pad"])
def test_a_subset_of_more_samples_than_there_are_is_refused_at_once(split: Path, policy: str) -> None:
    with pytest.raises(UsageError, match="a subset of 61 samples cannot be taken from 60"):
        Loader(split, **SMALL | {"subset": 61, "policy": policy})


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_sample_raises_or_is_left_out_or_replaced(make_split: MakeSplit, workers: int) -> None:
    folder = make_split()
    damage(folder, 5)
    options = SMALL | {"num_workers": workers, "policy": "pad", "train": False}
    with pytest.raises(DatasetError, match=r"train-000000.tar: sample 's00005': .*wrong CRC"):
        labels(Loader(folder, **options))
    skipping = Loader(folder, **options | {"on_bad": "skip"})
    sizes = [len(labels_N) for _, labels_N in skipping]
    assert sizes == [7, *[8] * 7], "a shorter batch, never fewer"
    assert skipping.stats()["bad"][0]["key"] == "s00005"
    replacing = Loader(folder, **options | {"on_bad": "replace"})
    assert labels(replacing)[:8] == [0, 1, 2, 3, 4, 6, 6, 7]
    assert "CRC" in replacing.stats()["bad"][0]["reason"]


@pytest.mark.parametrize("part", [{"classes": 20}, {"subset": 20}])
def test_what_replaces_a_damaged_sample_is_of_the_part_in_use_too(
    make_split: MakeSplit, part: dict[str, Any]
) -> None:
    folder = make_split()
    options = SMALL | {"num_workers": 0, "policy": "pad", "train": False, "on_bad": "replace", **part}
    loader = Loader(folder, **options)
    before = labels(loader)
    assert loader.split.part_N is not None
    part_N = loader.split.part_N.tolist()
    at = next(at for at, sample in enumerate(part_N[:-1]) if part_N[at + 1] > sample + 1)  # its neighbour is left out
    damage(folder, part_N[at])
    assert labels(Loader(folder, **options)) == [*before[:at], before[at + 1], *before[at + 1 :]]


@pytest.mark.parametrize("workers", [0, 2])
def test_after_a_failed_epoch_its_iterator_has_ended_and_the_loader_has_not(
    make_split: MakeSplit, workers: int
) -> None:
    folder = make_split()
    damage(folder, 20)
    loader = Loader(folder, **SMALL | {"num_workers": workers, "train": False, "policy": "drop"})
    iterator = iter(loader)
    with pytest.raises(DatasetError):
        for _ in iterator:
            pass
    with pytest.raises(UsageError, match="has ended"):
        next(iterator)
    assert next(iter(loader))[1].tolist() == list(range(8))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_missing_or_short_shard_is_named(make_split: MakeSplit, workers: int) -> None:
    folder = make_split()
    victim = folder / "train-000001.tar"
    os.truncate(victim, 4096)
    with pytest.raises(DatasetError, match=r"train-000001.tar.* cut short"):
        labels(Loader(folder, **SMALL | {"num_workers": workers}))
    victim.unlink()
    missing = r"train-000001.tar: sample '\w+': cannot be read: No such file.*; copy it again, or run again"
    with pytest.raises(DatasetError, match=missing):
        labels(Loader(folder, **SMALL | {"num_workers": workers}))
    assert len(labels(Loader(folder, **SMALL | {"num_workers": workers, "on_bad": "skip", "policy": "pad"}))) == 44


def gone(make_split: MakeSplit, samples: int, name: str) -> Path:
    """A split without its only shard."""
    folder = make_split(samples=samples, shard_count=1, px=16, name=name)
    (folder / "train-000000.tar").unlink()
    return folder


SKIPPED = SMALL | {"train": False, "on_bad": "skip"}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_sample_is_told_in_one_line_of_its_own(make_split: MakeSplit, workers: int) -> None:
    loader = Loader(gone(make_split, 16, "two\nlines"), **SKIPPED | {"num_workers": workers})
    assert labels(loader) == []
    bad = loader.stats()["bad"]
    assert [row["key"] for row in bad] == [f"s{sample:05d}" for sample in range(16)]
    assert all(row["reason"].endswith("/two") for row in bad)


@pytest.mark.parametrize("workers", [0, 1])
def test_where_not_all_bad_samples_can_be_told_their_number_is(make_split: MakeSplit, workers: int) -> None:
    loader = Loader(gone(make_split, 700, "x" * 200), **SKIPPED | {"num_workers": workers, "batch_size": 700})
    assert labels(loader) == []
    bad = loader.stats()["bad"]
    assert [row["key"] for row in bad] == [f"s{sample:05d}" for sample in range(len(bad))]
    assert bad[-1]["reason"].endswith(f"`feedline index`) (and {700 - len(bad)} more of this batch)")


def test_what_a_busy_trainer_has_not_heard_yet_may_fill_the_socket(make_split: MakeSplit) -> None:
    """Evaluating, say; with the storage down."""
    options = {"num_workers": 1, "prefetch_factor": 12, "batch_size": 120}
    iterator = iter(Loader(gone(make_split, 1680, "x" * 200), **SKIPPED | options))
    next(iterator)
    time.sleep(3)  # a worker looks after its trainer every 2 s
    assert len(list(iterator)) == 13


@pytest.mark.parametrize("workers", [0, 2])
def test_raw_images_in_their_stored_size_are_copied_as_they_are(make_split: MakeSplit, workers: int) -> None:
    folder = make_split(codec="raw")
    options = SMALL | {"image_size": 40, "augment": Augment(train=False, crop_fraction=1.0), "num_workers": workers}
    loader = Loader(folder, **options | {"shuffle": True, "policy": "pad"})
    stored = Shards(folder, decode="array")
    for _ in range(2):  # the first epoch checks every sample, the second copies whole batches
        for images_NHWC, labels_N in loader:
            for image_HWC, label in zip(images_NHWC, labels_N.tolist(), strict=True):
                assert label < 0 or (image_HWC.numpy() == stored[label][0]).all()
    assert loader.stats()["stages"]["read"] > 0
    (folder / "train-000000.tar").write_bytes(b"")
    with pytest.raises(DatasetError, match=r"train-000000.tar.* cut short"):
        labels(Loader(folder, **options))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_raw_shard_that_becomes_shorter_costs_its_own_samples_only(make_split: MakeSplit, workers: int) -> None:
    folder, augment = make_split(codec="raw"), Augment(train=False, crop_fraction=1.0)
    options = SMALL | {"image_size": 40, "augment": augment, "num_workers": workers, "policy": "pad"}
    loader = Loader(folder, **options | {"on_bad": "skip"})
    assert len(labels(loader)) == 64, "60 and padding: every sample is checked"
    os.truncate(folder / "train-000000.tar", 512)
    assert {label for label in labels(loader) if label >= 0} == set(range(20, 60))


def test_without_checksums_whole_raw_batches_are_copied_too(make_split: MakeSplit) -> None:
    augment = Augment(train=False, crop_fraction=1.0)
    loader = Loader(
        make_split(codec="raw"), **SMALL | {"image_size": 40, "augment": augment, "checksums": False, "policy": "pad"}
    )
    labels(loader)
    assert shared_columns(loader.split.memory.view, loader.split.layout)["checked"].all()


def test_a_manifest_that_a_storage_does_not_give_for_a_moment_was_not_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = write_split(tmp_path / "OUT", 8, 1, codec="raw")
    loader = Loader(split, batch_size=8, image_size=16, num_workers=0, persistent_workers=False)

    def fails(_: Path) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "read_bytes", fails)
    assert len(list(loader)) == 1


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (1, False), (1, True)])
def test_a_split_that_was_prepared_anew_is_not_read_by_its_old_index(
    tmp_path: Path, workers: int, persistent: bool
) -> None:
    """Its members may lie where those did that the index knows."""
    split = write_split(tmp_path / "OUT", 8, 1, codec="raw")
    loader = Loader(split, batch_size=8, image_size=16, num_workers=workers, persistent_workers=persistent)
    list(loader)
    manifest = split / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"seed": 1}))
    with pytest.raises(DatasetError, match="was prepared anew or taken away meanwhile: make a new Loader"):
        list(loader)


def test_a_bad_sample_has_its_number_where_the_index_is_gone(tmp_path: Path) -> None:
    split = write_split(tmp_path / "OUT", 8, 1, codec="raw")
    shard = split / "train-000000.tar"
    data = bytearray(shard.read_bytes())
    data[700] ^= 255
    loader = Loader(split, batch_size=4, image_size=16, num_workers=0, on_bad="skip", shuffle=False, train=False)
    shard.write_bytes(data)
    batches = iter(loader)
    next(batches)
    (split / "index.parquet").unlink()
    assert [bad["key"] for bad in loader.stats()["bad"]] == ["number 0"]
    next(batches)
    assert loader.stats() == loader.stats() and len(loader.stats()["bad"]) == 1


def test_what_fails_on_the_way_to_the_device_ends_the_epoch(split: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rather than to hand over the next batch, as if nothing had been lost."""
    loader = Loader(split, batch_size=8, image_size=16, num_workers=0)
    batches = iter(loader)
    next(batches)

    def fails(_: Any) -> Any:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(batches, "_deliver", fails)
        with pytest.raises(RuntimeError, match="out of memory"):
            next(batches)
    with pytest.raises(UsageError, match="this iterator has ended"):
        next(batches)


def test_an_address_that_is_a_path_is_told_what_it_lost() -> None:
    with pytest.raises(DatasetError, match="give the address as text"):
        Loader(Path("s3://bucket/train"))
