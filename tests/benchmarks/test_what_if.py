"""Trials on the user's own samples: plain numbers that make sense, whatever the files are."""

import io
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from feedline.benchmarks import what_if as module
from feedline.benchmarks.what_if import draft_left, forms_for, needless, samples_of, trials, what_if, why_none
from feedline.pipeline.draw.regions import Augment
from feedline.preprocess.picture import Output
from feedline.profiling.explain.remedies.remedy import image_size
from feedline.profiling.record.recording import LoaderSeen, Recording, Script, Trial
from tests.profiling.recordings import made

FORMS = (
    Output(codec="keep"),
    Output(codec="jpeg", size_px=64),
    Output(codec="raw", size_px=32, resize="square"),
)


def quick(paths: Sequence[Path], **options: Any) -> list[Trial]:
    return trials(paths, 32, forms=FORMS, rounds=2, samples=12, **options)


def photo(seed: int) -> Image.Image:
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:150, 0:200]
    picture = np.stack([rows + columns * (1 + seed % 3), rows * 2, columns], axis=-1) % 256
    return Image.fromarray((0.8 * picture + rng.integers(0, 40, picture.shape)).astype(np.uint8))


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{number}.jpg" for number in range(12)]
    for number, path in enumerate(paths):
        photo(number).save(path, quality=90)
    return paths


def test_draft_spares_what_the_pictures_size_allows(photos: list[Path], tmp_path: Path) -> None:
    jpegs = [path.read_bytes() for path in photos] * 4
    photo(1).resize((800, 600)).save(tmp_path / "large.jpg")
    large = (tmp_path / "large.jpg").read_bytes()
    assert draft_left([large] * 20, 64) < 0.6
    assert draft_left(jpegs, 128) > 0.75  # 150 px are less than twice that
    photo(1).save(tmp_path / "one.png")
    assert draft_left([(tmp_path / "one.png").read_bytes()] * 20, 16) > 0.75
    found = {(trial.codec, trial.loader): trial.draft_left for trial in quick(photos)}
    assert found["jpeg", "feedline"] is None and found["as-is", "feedline"] is not None


def test_trials_are_plain_and_plausible(photos: list[Path]) -> None:
    found = {(trial.codec, trial.loader): trial for trial in quick(photos, script_loader=True)}
    assert set(found) == {(codec, who) for codec in ("as-is", "jpeg", "raw") for who in ("feedline", "script")}
    jpeg, raw, as_is = found["jpeg", "feedline"], found["raw", "feedline"], found["as-is", "feedline"]
    assert raw.bytes_per_sample == 32 * 32 * 3 + 128
    assert as_is.bytes_per_sample == sum(path.stat().st_size for path in photos) / 12
    assert jpeg.bytes_per_sample is not None and as_is.bytes_per_sample is not None
    assert jpeg.bytes_per_sample < as_is.bytes_per_sample
    assert jpeg.psnr_db is not None and 20 < jpeg.psnr_db < 60
    assert raw.psnr_db is None and as_is.prepare_cpu_s_per_sample is None
    for trial in found.values():
        assert trial.samples == 12
        assert trial.load_cpu_s_per_sample is not None and 0 < trial.load_cpu_s_per_sample < 0.1


def test_what_is_no_image_is_passed_over(photos: list[Path], tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff no picture")
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "labels.csv").write_text("a,b")
    mixed = [
        *photos[:3],
        tmp_path / "broken.jpg",
        tmp_path / "empty.jpg",
        tmp_path / "labels.csv",
        tmp_path / "gone.jpg",
    ]
    assert {trial.samples for trial in quick(mixed)} == {3}
    assert quick([tmp_path / "labels.csv"]) == []
    assert quick([]) == []


def test_samples_come_out_of_tars(tmp_path: Path) -> None:
    path = tmp_path / "shard.tar"
    with tarfile.open(path, "w") as archive:
        for number in range(5):
            file = io.BytesIO()
            photo(number).save(file, "JPEG")
            for name, data in ((f"{number}.jpg", file.getvalue()), (f"{number}.cls", b"1")):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    assert len(list(samples_of([path], 4))) == 4
    (tmp_path / "torn.tar").write_bytes(path.read_bytes()[:2000])
    list(samples_of([tmp_path / "torn.tar"], 4))


def test_no_more_is_read_than_there_is_room_for(photos: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [path.stat().st_size for path in photos]
    with photos[1].open("ab") as file:  # a picture by its first bytes
        file.truncate(1 << 40)
    assert [len(data) for data in samples_of(photos[:3], 9)] == [sizes[0], sizes[2]]
    monkeypatch.setattr(module, "MOST_BYTES_IN_ALL", sizes[2] + sizes[3])
    assert [len(data) for data in samples_of(photos[2:], 9)] == sizes[2:4]


def test_only_formats_that_photographs_come_in_are_opened(tmp_path: Path) -> None:
    """Pillow reads many more when it is not told."""
    photo(0).save(tmp_path / "a.ico")
    assert not list(samples_of([tmp_path / "a.ico"], 9))


@pytest.mark.parametrize(
    ("shapes", "size"),
    [
        ([[64, 3, 224, 224], [64]], 224),
        ([[64, 96, 96, 3]], 96),
        ([[64, 1, 28, 28]], 28),
        ([[64, 100]], None),
        ([], None),
    ],
)
def test_the_size_the_loop_asks_for(shapes: list[list[int]], size: int | None) -> None:
    seen = Recording(script=Script(argv=["t.py"]), loaders=[LoaderSeen(id=0, kind="torch", batch_shapes=shapes)])
    assert image_size(seen.train_loader) == size
    assert what_if(seen) == []


@pytest.mark.parametrize(("crop_px", "stored_px"), [(224, 256), (64, 96), (32, 64), (160, 192), (384, 448)])
def test_no_form_has_less_resolution_than_the_crop(crop_px: int, stored_px: int) -> None:
    forms = forms_for(crop_px, Augment())
    assert [form.codec for form in forms][:3] == ["keep", "jpeg", "planes"]
    assert all(form.size_px == stored_px >= 8 / 7 * crop_px for form in forms[1:])
    assert ("raw" in {form.codec for form in forms}) == (stored_px <= 128)


def test_whole_pictures_as_squares_are_tried_as_the_script_shows_them(photos: list[Path]) -> None:
    for px, codecs in ((65, ("jpeg", "raw")), (64, ("jpeg", "planes", "raw"))):  # planes have even sides
        whole = Augment(whole=1)
        forms = forms_for(px, whole)
        assert {(one.codec, one.size_px, one.resize, one.enlarge) for one in forms[1:]} == {
            (codec, px, "stretch", True) for codec in codecs
        }
        tried = trials(photos, px, forms=forms, samples=4, rounds=1, script_loader=True, augment=whole)
        assert {one.codec for one in tried if one.loader == "feedline"} == {"as-is", *codecs}
        (raw,) = [one for one in tried if one.codec == "raw" and one.loader == "feedline"]
        assert px * px * 3 < raw.bytes_per_sample < px * px * 3 + 200


def test_names_say_nothing_of_what_a_file_is(photos: list[Path], tmp_path: Path) -> None:
    """Images without a suffix or with a wrong one, in tars that are called something else."""
    plain = [photo.rename(tmp_path / f"blob-{photo.stem}") for photo in photos[:3]]
    lie = tmp_path / "lie.jpg"
    lie.write_text("no image at all")
    assert len(list(samples_of([lie, *plain], 9))) == 3
    shard = tmp_path / "shard.bin"
    with tarfile.open(shard, "w") as archive:
        for path in [lie, *plain]:
            archive.add(path, f"{path.name}.dat")
    assert len(list(samples_of([shard, lie], 9))) == 3


def test_pictures_of_another_loader_that_trains_beside_are_not_tried(photos: list[Path]) -> None:
    seen = made(sample_paths=[str(path) for path in photos])
    (own,) = seen.loaders
    table = replace(own, id=1, dataset="Table", folder=None)
    alone, beside = seen, replace(seen, loaders=[own, table])
    assert what_if(alone, forms=FORMS[:1], rounds=1, samples=3)
    assert not what_if(beside, forms=FORMS[:1], rounds=1, samples=3) and "whose files" in why_none(beside)
    here = replace(beside, loaders=[replace(own, folder=str(photos[0].parent)), table])
    assert what_if(here, forms=FORMS[:1], rounds=1, samples=3)


def test_nothing_is_tried_where_nothing_of_the_data_could_help(photos: list[Path]) -> None:
    paths = [str(path) for path in photos]
    small = {"read": 0.0, "decode": 0.0001}
    computing = made(wait_s=0.001, compute_s=0.1, stages=small, ceiling=322.0, sample_paths=paths)
    waiting = made(sample_paths=paths)
    queue = replace(waiting, loaders=[replace(waiting.loaders[0], kind="unwatched")])
    assert what_if(computing) == [] and "the loop hardly waits for data" in why_none(computing)
    assert what_if(queue) == [] and "no loader" in why_none(queue)
    assert what_if(Recording(script=Script(argv=["t.py"]), sample_paths=paths)) == []
    (own,) = waiting.loaders
    for known, samples, tried in (
        (9.0, 3 * len(paths), False),
        (9.0, len(paths), True),
        (None, 3 * len(paths), True),
    ):
        cut = replace(own, dataset_samples=samples, batch_shapes=[[8, 3, 16, 16]])
        patches = replace(waiting, loaders=[cut], files_bytes=known)
        assert (needless(patches) == "") == tried  # patches of large pictures, all of which were seen
        again = replace(patches, loaders=[replace(cut, batch_shapes=[])])  # as large as what is cropped
        assert needless(again) == ""
        assert tried or f"its {len(paths)} files hold {samples} samples" in why_none(patches)
    gone = replace(waiting, sample_paths=["/gone/a.jpg", "/gone/b.jpg"])
    assert why_none(gone) == "nothing is predicted for prepared shards: 2 files seen to be opened are gone"
    assert needless(waiting) == "" and "none is an image" in why_none(waiting)
    assert what_if(computing, forms=FORMS[:1], rounds=1, samples=3)  # who asks for it, gets it
