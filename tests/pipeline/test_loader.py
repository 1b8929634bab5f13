"""The loader as its users see it: what comes out, in which order, and how it ends."""

import copy
import gc
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from feedline.pipeline.base.errors import DatasetError, UsageError
from feedline.pipeline.draw import order
from feedline.pipeline.loader import Loader, which_rank
from tests.pipeline.loading import SMALL, labels

MakeSplit = Callable[..., Path]


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


def test_the_length_of_a_class_balanced_epoch_sorts_nothing(split: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A progress bar asks for it at every step."""
    with monkeypatch.context() as patch:
        patch.setattr(order, "shuffled", lambda *_, **__: pytest.fail("sorted"))
        loader = Loader(split, **SMALL | {"class_balanced": True, "num_workers": 0})
        assert (len(loader), loader.batches_left) == (7, 7)
    assert len(labels(loader)) == 56


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
    ledger = loader._workshops[0].ledger
    assert ledger.lent == 1
    del row, iterator
    gc.collect()
    assert ledger.lent == 0


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
    assert [worker["worker"] for worker in stats["workers"]] == [0, 1]
    for worker in stats["workers"]:
        assert sum(worker["seconds"].values()) == pytest.approx(worker["alive_s"], rel=0.01)
    assert stats["stages"]["decode"] > 0
    assert stats["trainer"]["wait_s"] > 0


def test_without_workers_it_is_the_trainer_that_works(split: Path) -> None:
    loader = Loader(split, **SMALL | {"num_workers": 0})
    labels(loader)
    (worker,) = loader.stats()["workers"]
    assert (worker["pid"], worker["samples"]) == (os.getpid(), 56)


def test_stats_count_what_the_user_has_and_not_what_the_device_was_sent_ahead(split: Path) -> None:
    loader = Loader(split, **SMALL)
    iterator = iter(loader)
    next(iterator)
    next(iterator._run)  # type: ignore[attr-defined]
    assert (loader.stats()["batches"], loader.stats()["samples"]) == (1, 8) == (1, loader.state_dict()["samples"])


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
    monkeypatch.delenv("RANK")
    assert which_rank(None, None) == (0, 1)  # left over from another job
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(UsageError, match="WORLD_SIZE=4, and RANK is not set: make the Loader once the process group"):
        which_rank(None, None)


def test_a_loader_that_was_made_before_the_ranks_were_known_says_so(
    split: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them would be handed all samples."""
    alone = SMALL | {"rank": None, "world_size": None}
    late, given = Loader(split, **alone), Loader(split, **SMALL)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(UsageError, match="made as rank 0 of 1, and is rank 1 of 2 now: make the Loader once"):
        next(iter(late))
    assert len(next(iter(given)))
    assert Loader(split, **alone).rank == 1


def test_a_relative_split_is_the_same_wherever_the_process_goes(split: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(split.parent)
    loader = Loader(split.name, **SMALL)
    monkeypatch.chdir("/")
    assert len(labels(loader)) == len(labels(loader)) == 56


@pytest.mark.parametrize("text", ["one", "1.0", "%h"])
def test_an_environment_that_is_no_number_is_one_line(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", text)
    with pytest.raises(UsageError, match=f"WORLD_SIZE={text} in the environment is no number"):
        which_rank(None, None)


@pytest.mark.parametrize(("rank", "world_size"), [(3, 3), (-1, 2), (0, 0), (1, None), (None, 1)])
def test_a_rank_that_cannot_be_is_refused(rank: int | None, world_size: int | None) -> None:
    with pytest.raises(UsageError):
        which_rank(rank, world_size)
