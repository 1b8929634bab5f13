"""The loader as its users see it: what comes out, in which order, after which interruption."""

import copy
import gc
import os
import pickle
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from feedline.pipeline.base.errors import DatasetError, FeedlineError, UsageError, WorkerError
from feedline.pipeline.base.memory import shared_columns
from feedline.pipeline.draw.regions import Augment
from feedline.pipeline.format import manifest as shards
from feedline.pipeline.format import shard_tar
from feedline.pipeline.loader import Loader, which_rank
from feedline.pipeline.shards_dataset import Shards

MakeSplit = Callable[..., Path]
SMALL: dict[str, Any] = {"batch_size": 8, "image_size": 16, "num_workers": 2, "seed": 3, "rank": 0, "world_size": 1}


def labels(loader: Loader) -> list[int]:
    return [int(label) for _, labels_N in loader for label in labels_N]


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_epoch_delivers_every_sample_once_as_uint8_NHWC(split: Path, workers: int) -> None:
    loader = Loader(split, **SMALL | {"num_workers": workers, "policy": "pad"})
    seen: list[int] = []
    for images_NHWC, labels_N in loader:
        assert images_NHWC.shape == (8, 16, 16, 3)
        assert images_NHWC.dtype == torch.uint8
        assert labels_N.dtype == torch.int64
        seen += labels_N.tolist()
    assert sorted(seen) == [-1] * 4 + list(range(60))
    assert seen[:20] != list(range(20)), "training shuffles"


def test_neither_pixels_nor_order_depend_on_the_number_of_workers(split: Path) -> None:
    whole = [list(Loader(split, **SMALL | {"num_workers": workers})) for workers in (0, 1, 4)]
    for one, two, three in zip(*whole, strict=True):
        for other in (two, three):
            assert torch.equal(one[0], other[0])
            assert torch.equal(one[1], other[1])


def test_epochs_differ_and_repeat_by_seed(split: Path) -> None:
    loader = Loader(split, **SMALL)
    first, second = labels(loader), labels(loader)
    assert first != second, "each iteration is the next epoch"
    loader.set_epoch(0)
    assert labels(loader) == first
    assert labels(Loader(split, **SMALL | {"seed": 4})) != first


def test_evaluation_is_in_index_order_and_centred(split: Path) -> None:
    loader = Loader(split, **SMALL | {"train": False})
    assert labels(loader) == [*range(60), *[-1] * 4]


def test_length_is_the_number_of_batches_on_this_rank(split: Path) -> None:
    assert len(Loader(split, **SMALL)) == 7
    assert len(Loader(split, **SMALL | {"policy": "pad"})) == 8
    assert len(Loader(split, **SMALL | {"rank": 2, "world_size": 3})) == 2


def test_padding_can_be_cut_off_again(split: Path) -> None:
    options = SMALL | {"policy": "pad", "short_last_batch": True, "num_workers": 1}
    assert [len(labels_N) for _, labels_N in Loader(split, **options)] == [*[8] * 7, 4]
    last = [list(Loader(split, **options | {"rank": rank, "world_size": 2}))[-1] for rank in range(2)]
    assert [(len(images_NHWC), len(labels_N)) for images_NHWC, labels_N in last] == [(8, 8), (4, 4)]
    third = list(Loader(split, **options | {"rank": 2, "world_size": 3, "batch_size": 19}))
    assert [len(labels_N) for _, labels_N in third] == [19, 0]


def test_ranks_share_the_epoch_without_overlap(split: Path) -> None:
    parts = [labels(Loader(split, **SMALL | {"rank": rank, "world_size": 3, "batch_size": 4})) for rank in range(3)]
    assert {len(part) for part in parts} == {20}
    assert sorted(label for part in parts for label in part) == list(range(60))


def test_a_batch_in_hand_is_never_overwritten(split: Path) -> None:
    loader = Loader(split, **SMALL | {"num_workers": 3})
    held = [(images_NHWC, images_NHWC.clone()) for _ in range(3) for images_NHWC, _ in loader]
    assert loader.stats()["trainer"]["copied_batches"] > 0, "more were held than there are slots"
    for images_NHWC, as_delivered in held:
        assert torch.equal(images_NHWC, as_delivered)


def test_a_view_keeps_its_batch_and_letting_go_frees_the_slot(split: Path) -> None:
    loader = Loader(split, **SMALL)
    iterator = iter(loader)
    row = next(iterator)[0][2, 4:9]
    as_delivered = row.clone()
    assert len(list(map(len, iterator))) == 6  # `map` keeps none of them
    assert torch.equal(row, as_delivered)
    assert loader.stats()["trainer"]["copied_batches"] == 0
    ledger = loader._engines[0].ledger
    assert ledger.lent == 1
    del row, iterator
    gc.collect()
    assert ledger.lent == 0


def test_resuming_gives_the_same_rest_with_other_workers_ranks_and_batch_size(split: Path) -> None:
    whole = [(images.clone(), labels_N) for images, labels_N in Loader(split, **SMALL | {"batch_size": 4})]
    pictures = {
        int(label): image for images, labels_N in whole for image, label in zip(images, labels_N, strict=True)
    }
    order = [int(label) for _, labels_N in whole for label in labels_N]
    loader = Loader(split, **SMALL)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = loader.state_dict()
    del iterator
    rest: dict[int, torch.Tensor] = {}
    for rank in range(2):
        resumed = Loader(split, **SMALL | {"batch_size": 3, "num_workers": rank, "rank": rank, "world_size": 2})
        resumed.load_state_dict(state)
        resumed.set_epoch(0)
        for images_NHWC, labels_N in resumed:
            rest |= zip(labels_N.tolist(), images_NHWC.clone(), strict=True)
    assert sorted(rest) == sorted(order[24:])
    assert all(torch.equal(rest[label], pictures[label]) for label in rest)


def test_state_counts_delivered_batches_and_moves_on_at_the_epochs_end(split: Path) -> None:
    loader = Loader(split, **SMALL)
    assert loader.state_dict()["samples"] == 0
    iterator = iter(loader)
    next(iterator)
    assert loader.state_dict()["samples"] == 8
    for _ in iterator:
        pass
    assert (loader.state_dict()["epoch"], loader.state_dict()["samples"]) == (1, 0)


def test_a_state_taken_behind_the_last_sample_goes_on_with_the_next_epoch(split: Path) -> None:
    options = SMALL | {"num_workers": 0, "batch_size": 6}
    loader = Loader(split, **options)
    iterator = iter(loader)
    for _ in range(len(loader)):
        next(iterator)
    state = loader.state_dict()
    resumed = Loader(split, **options)
    resumed.load_state_dict(state)
    after = labels(resumed)
    assert len(after) == 60
    resumed.load_state_dict(state)
    resumed.set_epoch(0)
    assert labels(resumed) == [], "of the epoch that was asked for, nothing is left"
    resumed.set_epoch(1)
    assert labels(resumed) == after


def test_looking_at_nothing_does_not_use_up_an_epoch(split: Path) -> None:
    loader = Loader(split, **SMALL | {"num_workers": 0})
    iter(loader)
    assert labels(loader) == labels(Loader(split, **SMALL | {"num_workers": 0}))


def test_another_epoch_drops_the_resumed_position(split: Path) -> None:
    loader = Loader(split, **SMALL)
    loader.load_state_dict(loader.state_dict() | {"samples": 24})
    loader.set_epoch(1)
    assert len(labels(loader)) == 56


def test_an_epoch_named_while_another_is_under_way_begins_at_its_start(split: Path) -> None:
    loader = Loader(split, **SMALL | {"num_workers": 0})
    for _ in loader:
        loader.set_epoch(3)
        break
    iterator = iter(loader)
    loader.set_epoch(5)
    next(iterator)
    assert len(labels(loader)) == 56
    assert loader.state_dict()["epoch"] == 6


def test_the_state_of_a_changed_dataset_is_refused(split: Path, make_split: MakeSplit) -> None:
    other = Loader(make_split(samples=61), **SMALL)
    with pytest.raises(UsageError, match="another dataset"):
        other.load_state_dict(Loader(split, **SMALL).state_dict())
    with pytest.raises(UsageError, match="seed"):
        Loader(split, **SMALL | {"seed": 9}).load_state_dict(Loader(split, **SMALL).state_dict())


def test_leaving_an_epoch_early_and_starting_another(split: Path) -> None:
    loader = Loader(split, **SMALL)
    for _ in range(4):
        for _ in loader:
            break
    loader.set_epoch(0)
    assert labels(loader) == labels(Loader(split, **SMALL))


def test_an_iterator_of_the_epoch_before_says_that_it_has_ended(split: Path) -> None:
    loader = Loader(split, **SMALL)
    old = iter(loader)
    iter(loader)
    with pytest.raises(UsageError, match="has ended"):
        next(old)


def test_images_may_grow_and_shrink_between_epochs(split: Path) -> None:
    loader = Loader(split, **SMALL)
    sizes: list[int] = []
    for px in (16, 12, 24):
        loader.set_image_size(px)
        sizes += [images_NHWC.shape[1] for images_NHWC, _ in loader]
    assert sizes == [16] * 7 + [12] * 7 + [24] * 7


def test_batches_on_a_device_are_normalised_channels_last_NCHW(split: Path) -> None:
    plain = Loader(split, **SMALL)
    normal = Loader(split, **SMALL | {"device": "cpu", "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)})
    for (images_NHWC, _), (images_NCHW, _) in zip(plain, normal, strict=True):
        assert images_NCHW.is_contiguous(memory_format=torch.channels_last)
        unit = images_NHWC.permute(0, 3, 1, 2) / 255
        mean, std = (torch.tensor(v).view(-1, 1, 1) for v in ((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)))
        torch.testing.assert_close(images_NCHW, (unit - mean) / std, rtol=1e-5, atol=1e-5)
    half = Loader(split, **SMALL | {"device": "cpu", "dtype": torch.bfloat16})
    assert next(iter(half))[0].dtype == torch.bfloat16


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


def _explode(image_HWC: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    raise RuntimeError("no such colour")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_transform_that_raises_names_the_sample_and_the_place(split: Path, workers: int) -> None:
    loader = Loader(split, **SMALL | {"transform": _explode, "num_workers": workers})
    with pytest.raises(FeedlineError, match=r"sample 's000\d\d': .* raised RuntimeError: no such colour \("):
        labels(loader)


def test_a_transform_that_kills_its_worker_is_named_with_the_sample(split: Path) -> None:
    def fall(image_HWC: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        os.kill(os.getpid(), signal.SIGSEGV)
        return image_HWC

    with pytest.raises(WorkerError, match=r"SIGSEGV while it worked on .*sample 's000"):
        labels(Loader(split, **SMALL | {"transform": fall}))


@pytest.mark.parametrize("workers", [0, 2])
def test_own_transforms_see_each_image_and_each_batch(split: Path, workers: int) -> None:
    shade = 7

    def paint(image_HWC: np.ndarray[Any, Any], rng: np.random.Generator) -> np.ndarray[Any, Any]:
        return np.full_like(image_HWC, shade + rng.integers(3))

    def double(images_NHWC: np.ndarray[Any, Any], labels_N: np.ndarray[Any, Any]) -> None:
        labels_N *= 2

    options = SMALL | {"transform": paint, "batch_transform": double, "num_workers": workers}
    seen = [(images_NHWC.clone(), labels_N) for images_NHWC, labels_N in Loader(split, **options)]
    assert {int(value) for images_NHWC, _ in seen for value in images_NHWC.unique()} == {7, 8, 9}
    assert all(int(label) % 2 == 0 for _, labels_N in seen for label in labels_N)
    again = [images_NHWC.clone() for images_NHWC, _ in Loader(split, **options | {"num_workers": 1})]
    assert all(torch.equal(images, repeated) for (images, _), repeated in zip(seen, again, strict=True))


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


def damage(folder: Path, sample: int) -> None:
    index = shards.read_index(folder)
    with (folder / shard_tar.shard_name("train", int(index.shards_N[sample]))).open("r+b") as file:
        file.seek(int(index.offsets_N[sample]) + 200)
        file.write(b"\0\0\0\0\0\0")


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
    with pytest.raises(DatasetError, match=r"train-000001.tar cannot be read: No such file"):
        labels(Loader(folder, **SMALL | {"num_workers": workers}))
    assert len(labels(Loader(folder, **SMALL | {"num_workers": workers, "on_bad": "skip", "policy": "pad"}))) == 44


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


def test_wrong_use_is_one_line_before_any_process_starts(split: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="feedline prepare"):
        Loader(tmp_path)
    for wrong in ({"batch_size": 0}, {"num_workers": -1}, {"policy": "x"}, {"on_bad": "x"}, {"colour": 1},
                  {"rank": 2, "world_size": 2}, {"rank": 1}, {"device": "meta"}, {"image_size": 0}):  # fmt: skip
        with pytest.raises(UsageError):
            next(iter(Loader(split, **{"batch_size": 8, "num_workers": 0} | wrong)))


def test_an_epoch_without_a_batch_is_said(split: Path) -> None:
    with pytest.warns(UserWarning, match="no batch of 64 in the 60 samples of rank 0"):
        loader = Loader(split, **SMALL | {"batch_size": 64, "policy": "drop"})
    assert not list(loader)


def test_stats_say_where_the_time_went(split: Path) -> None:
    loader = Loader(split, **SMALL | {"persistent_workers": False})
    labels(loader)
    labels(loader)
    stats = loader.stats()
    assert sum(stats["stages"].values()) == pytest.approx(1)
    assert sum(worker["samples"] for worker in stats["workers"]) == 112 == stats["samples"]
    for worker in stats["workers"]:
        assert sum(worker["seconds"].values()) == pytest.approx(worker["alive_s"], rel=0.01)
    assert stats["stages"]["decode"] > 0
    assert stats["trainer"]["wait_s"] > 0


def test_the_end_of_the_loader_is_the_end_of_its_workers(split: Path) -> None:
    loader = Loader(split, **SMALL)
    iterator = iter(loader)
    images_NHWC, _ = next(iterator)
    as_delivered, pids = images_NHWC.clone(), loader.worker_pids
    del loader, iterator
    gc.collect()
    assert all(gone(pid) for pid in pids)
    assert torch.equal(images_NHWC, as_delivered), "a batch outlives its loader"


def test_a_loader_is_not_pickled_and_says_what_is(split: Path) -> None:
    """Made anew in another process it would not know its rank: each rank would train on the same samples."""
    loader = Loader(split, **SMALL)
    for copy_it in (pickle.dumps, copy.deepcopy):
        with pytest.raises(UsageError, match="make a Loader in each process"):
            copy_it(loader)
    assert pickle.loads(pickle.dumps(loader.config)) == loader.config


def test_the_rank_is_given_or_from_the_environment_or_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert which_rank(None, None) == (0, 1) and which_rank(2, 3) == (2, 3)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert which_rank(None, None) == (1, 4) and which_rank(2, 3) == (2, 3)


@pytest.mark.parametrize("text", ["one", "1.0", "%h"])
def test_an_environment_that_is_no_number_is_one_line(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", text)
    with pytest.raises(UsageError, match=f"WORLD_SIZE={text} in the environment is no number"):
        which_rank(None, None)


@pytest.mark.parametrize(("rank", "world_size"), [(3, 3), (-1, 2), (0, 0), (1, None), (None, 1)])
def test_a_rank_that_cannot_be_is_refused(rank: int | None, world_size: int | None) -> None:
    with pytest.raises(UsageError):
        which_rank(rank, world_size)
