"""Whose code a sample's cost is, the command that shows its lines, and what uint8 asks of the loop."""

from dataclasses import replace
from typing import Any

import pytest

from feedline.profiling.explain.measure.situation import measure
from feedline.profiling.explain.predict import Prediction, all_predictions
from feedline.profiling.explain.remedies.cures import CURES
from feedline.profiling.explain.remedies.remedy import image_size
from feedline.profiling.explain.verdict import diagnose
from feedline.profiling.record.recording import Recording, Trial
from tests.profiling.recordings import made
from tests.profiling.remedy_runs import trials_of

TRANSFORMING = {"decode": 0.0005, "transform": 0.004}


def found_in(seen: Recording, **of_workers: Any) -> list[Prediction]:
    return all_predictions(measure(replace(seen, workers=[replace(one, **of_workers) for one in seen.workers])))


def of_family(family: str, stages: dict[str, float], **of_workers: Any) -> Prediction:
    trials = [Trial(codec="jpeg", size_px=256, samples=99, load_cpu_s_per_sample=4e-4)]
    seen = made(wait_s=0.08, compute_s=0.01, cores=2, ceiling=3200.0, stages=stages, trials=trials)
    return next(one for one in found_in(seen, **of_workers) if one.family == family)


@pytest.mark.parametrize(
    ("transform", "place", "command"),
    [
        ("Slow", "data.py:_blur", "--lines-of Slow.__call__"),
        ("Slow", "ImageFilter.py:filter", "--lines-of Slow.__call__"),
        ("Slow", "data.py:Slow.forward", "--lines-of Slow.forward"),
        ("_blur", "data.py:_inner", "--lines-of _blur"),
        ("<lambda>", "data.py:<lambda>", "--lines"),
    ],
)
def test_lines_are_asked_of_what_has_that_name(transform: str, place: str, command: str) -> None:
    found = of_family("stage", TRANSFORMING, transforms={transform: 9.0}, functions={f"transform {place}": 9.0})
    assert found.command == f"feedline profile {command} train.py"


def test_a_transform_is_at_work_in_what_is_called_like_it() -> None:
    """Not where the stage's other transforms are busiest."""
    functions = {"transform Image.py:Image.resize:3": 5.0, "transform blur.py:Slow.__call__:9": 4.0}
    for known, where in ((functions, " in blur.py:Slow.__call__:"), (dict(list(functions.items())[:1]), " time: ")):
        found = of_family("stage", TRANSFORMING, transforms={"Slow": 9.0, "Resize": 5.0}, functions=known)
        assert where in found.why and "Image.resize" not in found.why


def test_what_is_decoded_elsewhere_than_in_pillow_may_be_no_picture() -> None:
    seen = made(stages={"decode": 0.004, "transform": 0.0002}, cores=2)
    for place, pictures in (("ImageFile.py:ImageFile.load", True), ("chunks.py:Chunks.read", False)):
        workers = [replace(worker, functions={f"decode {place}": 1.0}) for worker in seen.workers]
        (one,) = [p for p in all_predictions(measure(replace(seen, workers=workers))) if p.remedy == "cheaper decode"]
        assert ("smaller pictures" in f"{one.why}{one.changes}{one.needs}") is pictures
        assert ("--lines-of Chunks.read" in one.command) is not pictures


def test_draft_is_for_jpegs_and_for_pictures_that_are_resized_anyway() -> None:
    seen = made(wait_s=0.08, compute_s=0.01, cores=2, ceiling=3200.0, stages={"decode": 0.0045})
    functions = {"decode ImageFile.py:ImageFile.load": 1.0}

    def told(paths: list[str], **loader: Any) -> Prediction:
        theirs = replace(seen, sample_paths=paths, loaders=[replace(seen.loaders[0], **loader)])
        found = found_in(theirs, functions=functions, transforms={})
        return next(one for one in found if one.family == "stage")

    assert not told(["a/x.jpg", "a/y.png"]).vain and not told([]).vain
    assert "they are no JPEGs" in told(["a/x.PNG", "a/y.png"]).why
    assert "the crops are cut out of" in told([], transforms=["RandomCrop", "ToTensor"]).why
    assert "ImageFolder(…, loader=drafted)" in told([], dataset="ImageFolder").command


def test_draft_is_promised_what_it_left_of_the_users_own_pictures() -> None:
    """Of ImageNet's it leaves all at 224 px: half was promised. Where it was not tried, what is usual is told."""
    decode = {"stages": {"decode": 0.0045}, "functions": {"decode ImageFile.py:ImageFile.load": 1.0}}

    def tried(left: float | None) -> tuple[list[str], Prediction]:
        trials = [
            Trial(codec="as-is", samples=99, load_cpu_s_per_sample=2e-3, draft_left=left),
            Trial(codec="jpeg", size_px=256, samples=99, load_cpu_s_per_sample=4e-4),
        ]
        seen = made(wait_s=0.08, compute_s=0.01, cores=2, ceiling=3200.0, trials=trials, stages=decode["stages"])
        found = found_in(seen, functions=decode["functions"])
        return [one.family for one in found if one.helps], next(one for one in found if one.family == "stage")

    families, quarter = tried(0.25)
    assert "stage" in families and not quarter.at_most and "512" in quarter.command
    assert "25 % of it is left, as was measured on some of yours" in quarter.why
    families, vain = tried(1.0)
    assert vain.vain and "stage" not in families
    families, unknown = tried(None)
    assert "80 % of it is left, as was measured elsewhere" in unknown.why and "twice so many pixels" in unknown.needs
    assert families[0] == "shards" and unknown.gain < 1.3


def test_a_stage_without_a_cure_is_the_users_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(CURES, "decode")
    found = of_family("stage", {"decode": 0.0045}, functions={"decode store.py:Store.decrypt": 3.0})
    assert (found.remedy, found.at_most) == ("cheaper decode", True)
    assert found.command == "feedline profile --lines-of Store.decrypt train.py"
    assert "()" not in found.why


def test_an_assumed_saving_is_as_unsure_as_what_it_saves() -> None:
    """Collating is nearly all that workers do, and half of it is assumed to go: where the loop waits a third of its
    time, a quarter would do as well."""
    torchs = {"collate collate.py:default_collate": 1.0}
    some, most = (
        next(
            one
            for one in found_in(made(**seconds, stages={"collate": 0.0055}), functions=torchs)
            if one.remedy == "cheaper collate"
        )
        for seconds in ({"wait_s": 0.03, "compute_s": 0.06}, {"wait_s": 0.088, "compute_s": 0.002})
    )
    assert some.helps and some.gain < 1.6
    assert some.gain / some.gain_low < 0.8 * most.gain / most.gain_low


def test_what_a_dataset_waits_for_in_getitem_is_found_without_a_name() -> None:
    found = of_family("stage", {"decode": 0.0004, "blocked": 0.0045}, functions={"blocked data.py:__getitem__": 3.0})
    assert found.command == "feedline profile --lines train.py"


def test_a_function_of_ones_own_is_ones_own_whatever_its_name() -> None:
    """torchvision's `resize` is replaced by feedline's loader, a script's own is not."""
    theirs, own = (
        of_family("shards", TRANSFORMING, transforms={"resize": 9.0}, functions={f"transform {file}:resize": 9.0})
        for file in ("functional.py", "data.py")
    )
    assert theirs.gain > 2.5 * own.gain
    stage = of_family("stage", TRANSFORMING, transforms={"resize": 9.0}, functions={"transform data.py:resize": 9.0})
    assert "torchvision" not in stage.command and stage.at_most


def test_what_a_loader_that_tells_no_names_transforms_is_the_users() -> None:
    assert of_family("shards", TRANSFORMING, transforms={}).gain < 1.5
    assert of_family("stage", TRANSFORMING, transforms={}).remedy == "cheaper transform"


def test_what_feedlines_loader_transforms_is_the_users_where_it_was_given_a_transform() -> None:
    seen = made(wait_s=0.06, compute_s=0.01, stages=TRANSFORMING, trials=trials_of(("jpeg", 256, 4e-4)))
    for given, theirs in ((["Tint"], True), ([], False)):
        ours = replace(seen, loaders=[replace(seen.loaders[0], kind="feedline", transforms=given)])
        found = found_in(ours, transforms={})
        assert any(one.remedy == "cheaper transform" for one in found) is theirs
        shards = next(one for one in found if one.family == "shards")
        assert (shards.gain < 1.5) is theirs and "your_transforms" not in shards.command


def test_the_shorter_side_is_what_pictures_are_cropped_to() -> None:
    loader = made().loaders[0]
    for shape in ([32, 3, 480, 224], [32, 3, 224, 480], [32, 480, 224, 3]):
        assert image_size(replace(loader, batch_shapes=[shape])) == 224
        assert image_size(replace(loader, batch_shapes=[[32, 3, 56, 56], shape])) == 224
    assert image_size(replace(loader, batch_shapes=[[32, 7, 9, 11], [32]])) is None


def test_making_floats_of_uint8_costs_a_model_on_the_cpu_time() -> None:
    """150,528 floats a sample, where the model is the limit: the workers would save what they have to spare."""
    for device, gains in (("cpu", False), ("cuda:0", True)):
        seen = made(
            wait_s=0.001, compute_s=0.02, copy_s=0.01, starved_s=0.0, stages={"collate": 0.0005}, device=device
        )
        found = next(one for one in found_in(seen) if one.family == "uint8")
        assert (found.gain > 1.0) == gains


def test_spectrograms_were_no_bytes() -> None:
    for shape, transforms, offered in (
        ([32, 1, 128, 400], [], False),
        ([32, 1, 28, 28], ["ToTensor"], True),
        ([32, 3, 224, 224], [], True),
    ):
        seen = made(stages={"collate": 0.0045}, wait_s=0.08, compute_s=0.01)
        loader = replace(seen.loaders[0], batch_shapes=[shape], transforms=transforms)
        families = {one.family for one in found_in(replace(seen, loaders=[loader]), transforms={})}
        assert ("uint8" in families) is offered


EACH = [f"{number}.npz" for number in range(512)]


def test_an_archive_opened_for_every_sample_is_to_be_opened_once() -> None:
    stages = {"read": 0.03, "decode": 0.002}
    found = of_family("stage", stages, functions={"read zipfile.py:ZipFile._RealGetContents:1428": 9.0})
    assert (found.remedy, found.target, found.at_most) == ("cheaper read", "read", True)
    assert found.gain > 5 and "worker_init_fn" in found.command
    each: dict[str, Any] = {"sample_paths": EACH, "changing_files": 0.9}  # one for each sample
    seen = made(wait_s=0.08, compute_s=0.01, cores=2, stages=stages, **each)
    assert not any(one.target == "read" and one.family == "stage"
                   for one in found_in(seen, functions={"read npyio.py:ZipFile.__init__:9": 9.0}))  # fmt: skip
    shards = [f"n{number:08}.tar" for number in range(512)]  # of many samples each
    seen = replace(seen, sample_paths=shards, changing_files=0.03)
    found = found_in(seen, functions={"read tarfile.py:TarFile.open:1": 9.0}, samples=5000)
    assert any(one.target == "read" and one.needs == "an archive that holds many samples" for one in found)
    with pytest.raises(StopIteration):  # what reads files is a matter of storage
        of_family("stage", stages, functions={"read data.py:Photos.__getitem__:12": 9.0})


@pytest.mark.parametrize(
    ("cpu_s", "file", "told"), [(0.028, "a.h5", True), (0.002, "a.h5", False), (0.028, "a.bin", False)]
)
def test_chunks_of_hdf5_that_are_unpacked_for_each_sample_are_to_be_smaller(
    cpu_s: float, file: str, told: bool
) -> None:
    """Not where they are waited for, nor for another class of that name."""
    seen = made(
        wait_s=0.08, compute_s=0.01, cores=2, stages={"read": 0.03}, stages_cpu={"read": cpu_s}, sample_paths=[file]
    )
    found = found_in(seen, functions={"read dataset.py:Dataset.__getitem__:9": 9.0})
    reads = [one for one in found if one.remedy == "cheaper read"]
    assert bool(reads) == told
    assert all("chunks = (1," in one.command and one.at_most and one.gain > 5 for one in reads)


def test_of_feedlines_own_loader_nothing_is_said_to_be_the_users_but_transforms() -> None:
    seen = made(stages={"read": 0.0001, "decode": 0.003, "transform": 0.001, "collate": 0.002})
    ours = replace(seen, loaders=[replace(seen.loaders[0], kind="feedline")])
    theirs, mine = ({one.family for one in diagnose(one).predictions} for one in (seen, ours))
    assert {"stage", "uint8"} <= theirs
    assert not {"uint8", "send"} & mine
    assert not [one.remedy for one in diagnose(ours).predictions if one.remedy.startswith(("cheaper d", "cheaper c"))]


def test_lists_that_torch_takes_apart_are_to_be_one_array() -> None:
    seen = made(wait_s=0.012, compute_s=0.01, workers=0, stages={"collate": 0.012 / 32})
    theirs = [replace(one, functions={"collate collate.py:collate_float_fn": one.seconds}) for one in seen.workers]
    few, many = (
        diagnose(replace(seen, workers=theirs, loaders=[replace(seen.loaders[0], batch_tensors=tensors)])).predictions
        for tensors in (3, 600)
    )
    collating = {name: next(one for one in of if one.remedy == "cheaper collate") for name, of in
                 (("few", few), ("many", many))}  # fmt: skip
    assert "one array" not in collating["few"].why and not collating["few"].at_most
    assert "one array" in collating["many"].why and collating["many"].at_most
    assert many[0] == collating["many"], "workers would send each tensor on its own"


PILLOWS = ["Image.py:Image.resize", "Image.py:Image.tobytes"]


@pytest.mark.parametrize(
    ("name", "px", "places", "says", "gain"),
    [
        ("ToTensor", 28, ["functional.py:to_tensor"], "TensorDataset", 3.0),
        ("ToTensor", 64, ["functional.py:to_tensor"], "TensorDataset", 3.0),
        ("ToTensor", 224, ["functional.py:to_tensor"], "ToTensorV2", 1.3),
        ("PILToTensor", 224, ["functional.py:pil_to_tensor"], "", 3.0),  # as uint8 asks for
        ("Normalize", 224, ["_functional_tensor.py:normalize"], "ToTensorV2", 1.3),
        (
            "Normalize",
            224,
            ["functions.py:normalize", "Image.py:Image.tobytes"],
            "",
            3.0,
        ),
        ("RandomResizedCrop", 224, PILLOWS, "v2 as", 1.5),
        (
            "RandomResizedCrop",
            224,
            ["_geometry.py:resize_image", "Image.py:Image.tobytes"],
            "",
            3.0,
        ),
        ("RandomResizedCrop", 224, ["functional.py:resize", "Image.py:Image.tobytes"], "", 3.0),
        ("RandomResizedCrop", 32, PILLOWS, "", 3.0),
        ("ColorJitter", 224, ["ImageEnhance.py:_Enhance.enhance"], "albumentations.ColorJitter", 2.5),
        ("ColorJitter", 32, ["ImageEnhance.py:_Enhance.enhance"], "albumentations.ColorJitter", 1.8),
        ("ColorJitter", 224, ["photos.py:ColorJitter.forward"], "--lines-of ColorJitter.forward", 3.0),  # its own
        ("ColorJitter", 224, ["functions.py:add", "Image.py:Image.tobytes"], "", 3.0),
        ("GaussianBlur", 224, ["_functional_tensor.py:gaussian_blur"], "albumentations.GaussianBlur", 2.9),
        ("RandAugment", 224, ["Image.py:Image.transform"], "RandAugment(num_ops=1)", 1.43),
        ("RandAugment", 32, ["Image.py:Image.transform"], "RandAugment(num_ops=1)", 1.25),
        ("AutoAugment", 224, ["autoaugment.py:_apply_op"], "RandAugment(num_ops=1)", 1.25),
        ("TrivialAugmentWide", 224, ["Image.py:Image.transform"], "", 3.0),
        ("RandomHorizontalFlip", 224, ["Image.py:Image.transpose"], "", 3.0),
    ],
)
def test_of_a_librarys_transform_another_one_leaves_what_was_measured(
    name: str, px: int, places: list[str], says: str, gain: float
) -> None:
    """One that has nothing else to do: three quarters of the time."""
    seen = made(wait_s=0.06, compute_s=0.03, workers=0, stages={"transform": 0.0018})
    seen = replace(seen, loaders=[replace(seen.loaders[0], batch_shapes=[[32, 1, px, px], [32]])])
    functions = {f"transform {place}": 1.0 for place in places}
    (found,) = [one for one in found_in(seen, transforms={name: 1.0}, functions=functions) if one.family == "stage"]
    assert found.remedy == ("tensors made once" if says == "TensorDataset" else f"cheaper transform {name}")
    assert (says in found.command) if says else not found.command
    assert not says.startswith("albumentations.") or "p=" in found.command or "ToTensorV2" in found.command
    assert found.gain == pytest.approx(gain, rel=0.2)
    assert found.at_most == (gain == 3.0)


def test_the_faster_pillow_resizes_in_less_than_tensors_take() -> None:
    seen = made(wait_s=0.06, compute_s=0.03, workers=0, stages={"transform": 0.0018})
    seen = replace(seen, host={**seen.host, "versions": {"pillow-simd": "12.1.1.post0"}})
    (found,) = [one for one in found_in(seen, transforms={"Resize": 1.0}) if one.family == "stage"]
    assert ("v2" in found.command, found.at_most) == (False, True)


def test_tensors_are_not_made_once_where_a_transform_draws() -> None:
    seen = made(wait_s=0.06, compute_s=0.03, workers=0, stages={"transform": 0.0018})
    seen = replace(seen, loaders=[replace(seen.loaders[0], batch_shapes=[[32, 3, 32, 32], [32]])])
    names = {"ToTensor": 5.0, "RandomCrop": 3.0, "RandomHorizontalFlip": 1.0}
    (found,) = [one for one in found_in(seen, transforms=names) if one.family == "stage"]
    assert "TensorDataset" not in found.command and not found.at_most


def test_of_tensors_made_once_nothing_is_left_but_collating() -> None:
    seen = made(wait_s=0.06, compute_s=0.03, workers=0, stages={"decode": 0.0006, "transform": 0.0012})
    seen = replace(seen, loaders=[replace(seen.loaders[0], batch_shapes=[[32, 3, 32, 32], [32]])])
    (found,) = [one for one in found_in(seen, transforms={"ToTensor": 5.0}) if one.family == "stage"]
    assert found.at_most and found.gain == pytest.approx(3.0, rel=0.1)
    assert "TensorDataset" in found.command and "as the script starts, for all samples" in found.cost
    pairs = replace(
        seen.loaders[0],
        batch_shapes=[[32, 1, 28, 28], [32, 1, 28, 28], [32]],
        batch_dtypes=["float32", "float32", "int64"],
    )
    seen = replace(seen, loaders=[pairs])  # the second is drawn, for what is known
    (found,) = [one for one in found_in(seen, transforms={"ToTensor": 5.0}) if one.family == "stage"]
    assert "TensorDataset" not in found.command and found.remedy == "cheaper transform ToTensor"


def test_v2_is_for_pictures_that_are_resized_and_no_more() -> None:
    seen = made(wait_s=0.06, compute_s=0.03, workers=0, stages={"transform": 0.0018})
    for other, helps in (("RandomHorizontalFlip", True), ("RandAugment", False)):
        names = {"RandomResizedCrop": 5.0, other: 1.0}
        (found,) = [one for one in found_in(seen, transforms=names) if one.family == "stage"]
        assert ("v2 as" in found.command, found.at_most) == (helps, not helps)


def test_lists_of_indices_are_not_for_streams_nor_for_several_ranks() -> None:
    seen = made(wait_s=0.06, compute_s=0.03, workers=0, stages={"collate": 0.0018})
    theirs = {"collate collate.py:collate_tensor_fn": 1.0}
    for loader, ranks, there in (
        (seen.loaders[0], 1, True),
        (replace(seen.loaders[0], refused="Stream.__iter__ is code of its own"), 1, False),
        (seen.loaders[0], 2, False),
    ):
        compute = replace(seen.compute, world_size=ranks)
        found = found_in(replace(seen, loaders=[loader], compute=compute), functions=theirs)
        (one,) = [one for one in found if one.remedy == "cheaper collate"]
        assert ("BatchSampler" in one.command) == there
