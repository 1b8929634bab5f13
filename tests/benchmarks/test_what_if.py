"""Trials on the user's own samples: plain numbers that make sense, whatever the files are."""

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feedline.benchmarks.what_if import image_size, samples_of, trials, what_if
from feedline.preprocess.picture import Output
from feedline.profiling.record.recording import LoaderSeen, Recording, Script, Trial

FORMS = (
    Output(codec="keep"),
    Output(codec="jpeg", size_px=64),
    Output(codec="raw", size_px=32, resize="square"),
)


def quick(paths: Sequence[Path]) -> list[Trial]:
    return trials(paths, 32, forms=FORMS, rounds=2, samples=12)


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


def test_trials_are_plain_and_plausible(photos: list[Path]) -> None:
    found = {(trial.codec, trial.loader): trial for trial in quick(photos)}
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
    assert image_size(seen) == size
    assert what_if(seen) == []
