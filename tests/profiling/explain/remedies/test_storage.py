"""The user's own transforms in every prediction, and Loader.like; no shards of less than the script crops."""

from dataclasses import replace
from typing import Any

import pytest

from feedline.profiling.explain.measure.situation import Measured
from feedline.profiling.explain.remedies.remedy import Effort
from feedline.profiling.record import units
from feedline.profiling.record.recording import LoaderPass
from tests.profiling.recordings import made
from tests.profiling.remedy_runs import (
    TRIALS,
    first,
    helping,
    of_family,
    reading,
    slow_transform,
    trials_of,
    with_loader,
    with_workers,
)


def test_the_users_own_transform_is_never_left_out() -> None:
    seen = with_loader(slow_transform(), refused="Data.__getitem__, which is not torchvision's,")
    assert (first(seen).family, first(seen).target) == ("stage", "Slow")
    assert "--lines-of Slow.__call__ train.py" in first(seen).command
    for family in ("shards", "loader"):
        for one in of_family(seen, family):
            assert one.gain < 1.5 and one.effort == Effort.REWRITE
            assert "Data.__getitem__, which is not torchvision's" in one.needs
    assert helping(seen)[0] == "stage"


def test_what_functions_of_ones_own_do_may_or_may_not_take_less_of_smaller_pictures() -> None:
    """As padding does, and looking a label up does not."""
    trials = [replace(one, loader="script", load_cpu_s_per_sample=5e-3 if one.codec == "as-is" else 1e-3)
              for one in TRIALS]  # fmt: skip
    seen = with_loader(replace(slow_transform(), trials=trials), refused="Data.__getitem__")
    for name, sure in (("Data.__getitem__", True), ("get_label", False)):
        found = of_family(with_workers(seen, transforms={name: 1.0}), "own-shards")
        assert found and all((one.gain_high < 1.5 * one.gain_low) == sure for one in found)
    label = with_workers(seen, transforms={"get_label": 1.0})
    assert of_family(label, "own-shards")[0].gain < of_family(seen, "own-shards")[0].gain


def test_transforms_that_the_loader_has_itself_cost_what_its_trial_says() -> None:
    plain, own = (of_family(slow_transform(own=share), "shards")[0].samples_per_s for share in (0.0, 0.9))
    assert plain > 3 * own


def test_a_collate_function_of_ones_own_is_kept_unless_like_takes_the_loader() -> None:
    stages = {"decode": 0.003, "collate": 0.003}
    seen = made(wait_s=0.2, compute_s=0.01, workers=2, cores=2, stages=stages, trials=TRIALS, ceiling=3200.0)
    own = with_workers(seen, functions={"collate train.py:pad": 2.0})
    torchs = with_workers(seen, functions={"collate collate.py:collate": 2.0})
    rates = [of_family(one, "shards")[0].samples_per_s for one in (own, torchs, with_loader(own, refused=""))]
    assert rates[0] < 0.5 * rates[1] and rates[1] == rates[2]


@pytest.mark.parametrize(
    ("refused", "effort", "line", "needs"),
    [
        ("", Effort.PREPARING, 'loader = Loader.like(your_dataloader, "OUT/train")', ""),
        ("the collate_fn pad", Effort.REWRITE, 'loader = Loader("OUT/train", ', "the collate_fn pad"),
        (None, Effort.REWRITE, 'loader = Loader("OUT/train", ', "not checked"),
    ],
)
def test_feedlines_loader_is_offered_as_what_it_takes(
    refused: str | None, effort: Effort, line: str, needs: str
) -> None:
    seen = with_loader(made(trials=TRIALS, ceiling=3000.0), refused=refused)
    shards, keep = of_family(seen, "shards")[0], of_family(seen, "loader")[0]
    assert shards.effort == keep.effort == effort
    assert shards.command.splitlines()[0] == f"feedline prepare SOURCE OUT --output 256:{shards.settings['codec']}"
    assert keep.command.splitlines()[0] == "feedline prepare SOURCE OUT --codec keep"
    assert all(line in one.command and needs in one.needs for one in (shards, keep))
    assert all("from feedline.pipeline.loader import Loader" in one.command for one in (shards, keep))
    assert (shards.needs == "") == (refused == "")
    assert "256 px of the short side" in shards.changes and "40 dB" in shards.changes
    assert all(("augment=Augment(" in one.changes) == (refused != "") for one in (shards, keep))


def test_the_folder_that_the_script_reads_is_the_one_to_prepare() -> None:
    seen = with_loader(made(trials=TRIALS, ceiling=3000.0), folder="my photos/train")
    keep = of_family(seen, "loader")[0]
    assert keep.command.splitlines()[0] == "feedline prepare 'my photos/train' OUT --codec keep"
    assert of_family(seen, "cache")[0].command.startswith("cp -r 'my photos/train' /dev/shm/")


def test_what_the_shards_ask_of_the_classes_and_lose_of_the_order_is_said() -> None:
    seen = made(trials=TRIALS, ceiling=3000.0)
    code = "Photos.__getitem__ is code of its own"
    own = of_family(with_loader(seen, refused=code, sampler="Hardest"), "shards")[0]
    assert "classes that are folders" in own.needs and code in own.needs
    assert "without your Hardest" in own.changes
    known = of_family(with_loader(seen, refused=code, folder="photos"), "shards")[0]
    assert "classes" not in known.needs and code in known.needs and "without your" not in known.changes
    told = of_family(with_loader(seen, refused="the sampler Hardest", sampler="Hardest"), "shards")[0]
    assert "without your" not in told.changes


def test_a_loop_that_trains_nothing_is_given_whole_pictures_in_order() -> None:
    refused = "Files.__getitem__ is code of its own"
    seen = with_loader(made(trials=TRIALS, ceiling=3000.0), refused=refused, sampler="Ranked")
    cases = ((0, ", train=False, ", "the middle square"), (9, '("OUT/train", ', "mirrored"))
    for steps, lines, changes in cases:
        keep = of_family(replace(seen, optimizer_steps=steps), "loader")[0]
        assert lines in keep.command and changes in keep.changes
        assert ("train=False," in keep.command) is (steps == 0) is ("random order" not in keep.changes)


def test_whole_pictures_stretched_to_squares_are_stored_as_what_the_script_shows() -> None:
    jpeg, raw = trials_of(("jpeg", 64, 2e-4), ("raw", 64, 1e-5))
    trials = [jpeg, replace(raw, psnr_db=None)]
    seen = with_loader(made(trials=trials, ceiling=3000.0), batch_shapes=[[32, 3, 64, 64], [32]])
    seen = with_loader(seen, augment={"whole": 1.0}, refused="", transforms=["Resize"])
    lossy, exact = (of_family(replace(seen, trials=[trial]), "shards")[0] for trial in trials)
    assert (
        "--output 64:raw:stretch --filter bilinear --enlarge\n" in exact.command and "Loader.like(" in exact.command
    )
    assert exact.changes == "" and lossy.changes == "pictures are stored at 64 x 64 px, re-encoded (40 dB)"
    own = with_loader(seen, refused="Files.__getitem__ is code of its own")
    flipped = with_loader(own, transforms=["Resize", "RandomHorizontalFlip"])
    idle = replace(own, optimizer_steps=0)
    for script, augment, order in (
        (own, "whole=1, flip=0", ""), (flipped, "whole=1", ", half of them mirrored"),
        (idle, "whole=1, train=False", ", in the order of the shards"),
    ):  # fmt: skip
        told = next(one for one in of_family(script, "shards") if one.settings["codec"] == "raw")
        assert f"augment=Augment({augment})" in told.command and "import Augment, Loader\n" in told.command
        assert told.changes == f"whole pictures stretched to squares are RGB and bilinear{order}"


@pytest.mark.parametrize(
    ("known", "mirrored", "augment", "shown"),
    [
        ({"scale": None, "crop_fraction": 64 / 72}, True, "scale=None, crop_fraction=64/72",
         "crops are RGB and bilinear, half of them mirrored"),
        ({"scale": None, "crop_fraction": 64 / 72}, False, "scale=None, crop_fraction=64/72, flip=0",
         "crops are RGB and bilinear"),
        ({"whole": 0.8}, True, "whole=64/80",
         "crops stretched to squares are RGB and bilinear, half of them mirrored"),
        ({"train": False, "crop_fraction": 0.8}, True, "train=False, crop_fraction=64/80",
         "the middles are RGB and bilinear, none of them mirrored"),
    ],
)  # fmt: skip
def test_crops_of_one_size_are_cut_as_the_script_does(
    known: dict[str, Any], mirrored: bool, augment: str, shown: str
) -> None:
    seen = with_loader(made(trials=trials_of(("jpeg", 72, 2e-4)), ceiling=3000.0), augment=known,
                       batch_shapes=[[32, 3, 64, 64], [32]], refused="Files.__getitem__ is code of its own",
                       transforms=["Resize", "RandomCrop", *["RandomHorizontalFlip"] * mirrored])  # fmt: skip
    told = of_family(seen, "shards")[0]
    assert f"augment=Augment({augment})" in told.command and told.changes.endswith(f"; {shown}")
    assert ("of smaller ones" in told.changes, "8 to 100 %" in told.changes) == (False, False)
    assert ("72:jpeg:stretch" in told.command) is ("whole" in known)


def test_tars_need_a_class_beside_each_picture_and_batches_of_pictures_alone_no_names() -> None:
    seen = with_loader(made(trials=TRIALS, ceiling=3000.0), refused="Files.__getitem__ is code of its own")
    tars = of_family(replace(seen, sample_paths=["a/0.tar"]), "shards")[0]
    assert "a class (.cls, .json) beside each picture" in tars.needs and "folders" not in tars.needs
    bare = with_loader(seen, batch_dtypes=["float32"], batch_shapes=[[32, 3, 64, 64]])
    assert "batches without names or paths" in of_family(bare, "shards")[0].needs
    labelled = with_loader(seen, batch_dtypes=["float32", "int64"], batch_shapes=[[32, 3, 64, 64], [32]])
    assert "names or paths" not in of_family(labelled, "shards")[0].needs


def test_floats_stay_floats_where_settings_are_moved_by_hand() -> None:
    cpu, cuda = 'device="cpu"', 'device="cuda"'
    for dtypes, device, floats in ((["float32"], "cpu", cpu), (["float32"], "cuda:0", cuda), (["uint8"], "cpu", "")):
        seen = made(trials=TRIALS, ceiling=3000.0, device=device, wait_s=0.2, starved_s=0.2, idle_s=0.0)
        seen = with_loader(seen, refused="the collate_fn pad cannot be carried over: keep it", batch_dtypes=dtypes)
        shards = of_family(seen, "shards")[0]
        assert shards.needs.endswith("the collate_fn pad cannot be carried over")
        assert ("mean=MEAN, std=STD)" in shards.command) == bool(floats) and floats in shards.command
        assert ("# uint8 NHWC" in shards.command) == (not floats)
    seen = with_loader(seen, batch_dtypes=["float32"], normalize=[[0.5, 0.4, 0.3], [1 / 3, 0.25, 0.2]])
    command = of_family(seen, "shards")[0].command
    assert "mean=(0.5, 0.4, 0.3), std=(0.333333, 0.25, 0.2))\n# floats NCHW, normalised as yours" in command


@pytest.mark.parametrize(
    ("dtypes", "shapes", "lacks"),
    [
        (["float32", "int64"], [[32, 3, 64, 64], [32]], ""),
        (["float32"], [[32, 3, 64, 64]], ""),
        ([], [], ""),
        (["float32", "int64"], [[32, 3, 64, 64], [32, 64, 64]], "have int64 (32, 64, 64) beside"),
        (["float32", "float32"], [[32, 3, 64, 64], [32, 6]], "have float32 (32, 6) beside"),
        (["float32", "float32"], [[32, 3, 64, 64], [32]], "have float32 (32,) beside"),
        (["uint8", "int32"], [[32, 64, 64, 3], [32, 1]], ""),
        (["float32", "int64", "int64"], [[32, 1, 28, 28], [32], [32]], "have int64 (32,) beside"),
        (["float32", "int64"], [[], []], ""),
        (["float32", "int64"], [[32, 13, 64, 64], [32]], "are no pictures (N, 3, H, W)"),
        (
            ["float32", "float32", "int64"],
            [[32, 3, 64, 64], [32, 3, 64, 64], [32]],
            "have float32 (32, 3, 64, 64) beside",
        ),
        (["float32", "float32"], [[32, 3, 32, 32], [32, 3, 64, 64]], "have float32 (32, 3, 64, 64) beside"),
        (["float32", "int64"], [[32, 512], [32]], "are no pictures (N, 3, H, W)"),
    ],
)
def test_what_prepared_samples_do_not_hold_is_said(dtypes: list[str], shapes: list[list[int]], lacks: str) -> None:
    seen = with_loader(made(trials=TRIALS, ceiling=3000.0), refused="Pairs.__getitem__, which is not torchvision's,")
    seen = with_loader(seen, batch_dtypes=dtypes, batch_shapes=shapes)
    first_of = of_family(seen, "shards")[0]
    assert first_of.vain == bool(lacks) and lacks in first_of.why
    assert bool(of_family(seen, "loader")) == (not lacks)
    own = [replace(one, loader="script") for one in TRIALS]
    shards = of_family(replace(seen, trials=[*TRIALS, *own]), "own-shards")
    views = shapes[:2] == [[32, 3, 64, 64]] * 2  # which the script's own transforms make of a picture
    assert bool(shards) == (not lacks or views)
    assert not views or "made of a picture and its class" in shards[0].needs
    taken = with_loader(seen, refused="")
    assert not of_family(taken, "shards")[0].vain


def test_transforms_of_ones_own_go_on_with_shards_that_are_a_dataset() -> None:
    trials = [*TRIALS, *(replace(one, loader="script", load_cpu_s_per_sample=5e-3 if one.codec == "as-is" else 2e-3)
                         for one in TRIALS)]  # fmt: skip
    seen = with_loader(made(trials=trials, ceiling=3000.0), refused="Mine.__getitem__, which is not torchvision's,")
    (best, *_) = of_family(seen, "own-shards")
    assert 'Shards("OUT/train", transform=your_transforms)' in best.command and best.effort == Effort.PREPARING
    assert best.needs.startswith("classes that are folders") and "Augment" not in best.changes
    assert 1.0 < best.gain < of_family(seen, "shards")[0].gain
    assert of_family(with_loader(seen, refused=""), "own-shards")[0].needs == ""


def test_a_script_on_feedlines_loader_gives_it_the_shards() -> None:
    seen = with_loader(made(trials=TRIALS, ceiling=3000.0, workers=1, wait_s=0.2), kind="feedline")
    (line,) = {one.command.splitlines()[1].partition(",")[0] for one in of_family(seen, "shards")}
    assert line.startswith('"OUT/train"') and all("Loader(" not in one.command for one in of_family(seen, "shards"))


@pytest.mark.parametrize(
    ("known", "at_work", "native"),
    [
        (["RandomCrop", "ToTensor"], [], True),
        (["CenterCrop", "Resize", "ToTensor"], [], True),
        (["Resize", "RandomCrop", "ToTensor"], [], False),
        (["RandomResizedCrop", "ToTensor"], ["RandomCrop"], False),
        ([], ["RandomCrop", "ToTensor"], True),
        ([], ["RandomCrop", "resize"], False),
        ([], ["ToTensor"], False),
        (["TwoCropsTransform"], ["RandomResizedCrop"], False),
        (["RandomGrayscale", "RandomCrop"], [], True),
        (["RandomCrop", "ToTensor"], ["RandomCrop", "resize"], False),
    ],
)
def test_pictures_that_are_cropped_as_they_are_stored_stay_as_large(
    known: list[str], at_work: list[str], native: bool
) -> None:
    seen = with_loader(made(trials=TRIALS, ceiling=3000.0), transforms=known)
    seen = with_workers(seen, transforms=dict.fromkeys(at_work, 1.0))
    assert (of_family(seen, "shards") == []) == native and of_family(seen, "loader")
    whole = replace(seen, trials=[replace(one, smaller=False) for one in seen.trials])
    assert of_family(whole, "shards")


@pytest.mark.parametrize(("share", "ceiling", "said"), [(0.3, None, True), (0.0, None, False), (0.3, 3000.0, False)])
def test_a_model_that_shares_its_cores_may_be_faster_than_can_be_told(
    monkeypatch: pytest.MonkeyPatch, share: float, ceiling: float | None, said: bool
) -> None:
    """Its other threads spin for one that has none: alone it came to three times what its own waiting tells."""
    monkeypatch.setattr(Measured, "crowded", share)
    seen = with_loader(made(wait_s=0.04, compute_s=0.03, trials=TRIALS, ceiling=ceiling), refused="")
    assert ("estimate of its rate without the workers beside it: --legs" in of_family(seen, "shards")[0].why) is said


def test_another_number_of_workers_is_in_the_line() -> None:
    seen = with_loader(made(trials=TRIALS, ceiling=3000.0, workers=0, wait_s=0.2), refused="")
    assert all("num_workers=2" in one.command for one in of_family(seen, "shards"))


@pytest.mark.parametrize(
    ("device", "dtypes", "on_gpu"),
    [("cuda:0", ["float32", "int64"], True), ("cuda:0", ["uint8", "int64"], False), ("cpu", ["float32"], False)],
)
def test_on_a_gpu_floats_are_made_there_and_the_model_waits_for_no_copy(
    device: str, dtypes: list[str], on_gpu: bool
) -> None:
    costs = {"wait_s": 0.2, "compute_s": 0.02, "cores": 16, "device": device, "starved_s": 0.2, "idle_s": 0.0}
    without, copying = (
        with_loader(made(trials=TRIALS, ceiling=free, copy_s=copy_s, **costs), refused="", batch_dtypes=dtypes)
        for copy_s, free in ((0.0, 1600.0), (0.02, 800.0))
    )
    shards = of_family(copying, "shards")[0]
    assert ('"OUT/train", device="cuda")' in shards.command) == on_gpu
    times = shards.samples_per_s / of_family(without, "shards")[0].samples_per_s
    assert times == pytest.approx(1.0 if on_gpu else 0.5, rel=0.05)
    assert ("copied while it computes" in shards.why) == on_gpu
    ranks = replace(copying, compute=replace(copying.compute, world_size=2))
    assert ('device=f"cuda:{local_rank}")' in of_family(ranks, "shards")[0].command) == on_gpu


def test_a_cache_has_the_room_that_is_there() -> None:
    """In a container /dev/shm has 64 MB, whatever memory its host has."""
    seen = made(wait_s=0.2, compute_s=0.01, workers=2, cores=2, stages={"read": 0.01}, trials=TRIALS)
    assert seen.train_loader is not None
    loader = replace(seen.train_loader, dataset_samples=1000)
    seen = replace(seen, loaders=[loader], costs=replace(seen.costs, read_bytes=100_000.0))
    host = {**seen.host, "memory_bytes": 512 << 30, "cgroup_memory_bytes": 16 << 30}
    small, large = (replace(seen, host={**host, "free_shared_memory_bytes": size}) for size in (64 << 20, 8 << 30))
    assert "do not fit into the 67.1 MB that there are of free shared memory" in of_family(small, "cache")[0].why
    assert not of_family(large, "cache")[0].vain


def test_an_archive_that_is_opened_for_each_sample_is_no_larger_than_it_is() -> None:
    """Its list of members is read with each of them. Of files read once more may follow than were seen."""
    seen = with_loader(reading(), dataset_samples=50_000)  # 5.5 GB by what a sample reads
    read = 110e3 * sum(step.samples for step in seen.measured())
    for files_bytes, needs in ((0.3 * read, 0.3 * read), (0.9 * read, 5.5e9), (None, 5.5e9)):
        found = of_family(replace(seen, files_bytes=files_bytes), "cache")[0]
        assert found.needs == f"{units.size(needs)} of memory"


def test_a_first_epoch_of_what_fits_into_memory_says_so() -> None:
    """Nobody buys a disk for one epoch: later ones may come from the page cache. Not said of what outgrows it, nor
    where a second pass waited for storage, too."""
    for samples, epoch, said in ((20_000, 0, True), (20_000_000, 0, False), (20_000, 1, False)):
        seen = with_loader(reading(), dataset_samples=samples)
        seen = replace(seen, host={**seen.host, "memory_bytes": 16 << 30}, passes=[LoaderPass(epoch=epoch)])
        assert ("later epochs may read them anyway" in of_family(seen, "storage")[0].why) is said


def test_no_shards_of_less_resolution_than_the_crops_are_offered() -> None:
    trials = trials_of(("jpeg", 256, 4e-4), ("jpeg", 160, 2e-4), ("raw", 64, 1e-5), ("raw", 224, 2e-5))
    seen = with_loader(made(trials=trials, ceiling=3000.0), batch_shapes=[[32, 3, 224, 224], [32]])
    assert {one.settings["size"] for one in of_family(seen, "shards")} == {256, 224}
