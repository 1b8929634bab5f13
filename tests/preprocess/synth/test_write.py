"""The synthetic ImageNet: exact layout, deterministic, odd where asked, learnable but not from a channel's mean."""

import gzip
import hashlib
import io
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image, UnidentifiedImageError
from scipy.io import loadmat
from sklearn.linear_model import LogisticRegression

from feedline.pipeline.base.errors import FeedlineError, UsageError
from feedline.preprocess.synth.inventory import SynthConfig, SynthPlan
from feedline.preprocess.synth.pictures import ODDITIES, Picture, draw, picture_bytes
from feedline.preprocess.synth.write import synth
from tests.preprocess.raw import DEVKIT, TRAIN, VAL, indexed, samples

SMALL = {"images": 40, "classes": 3, "long_side_px": 48}


def small(out: Path, **changes: object) -> SynthConfig:
    return SynthConfig(**({"out": str(out), "num_workers": 0} | SMALL | changes))  # pyright: ignore


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def members(tar: bytes) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        for member in archive:
            yield member.name, (archive.extractfile(member) or io.BytesIO()).read()


# --- layout -------------------------------------------------------------------------------------------


def test_the_archives_are_tars_of_tars(tiny_ilsvrc: Path) -> None:
    classes = dict(members((tiny_ilsvrc / TRAIN).read_bytes()))
    names = [name for tar in classes.values() for name, _ in members(tar)]
    assert len(classes) == 4
    assert all(len(name) == len("n01440764.tar") and name[0] == "n" for name in classes)
    assert len(set(names)) == 36
    assert list(classes) != sorted(classes) or names != sorted(names)
    val = [name for name, _ in members((tiny_ilsvrc / VAL).read_bytes())]
    assert sorted(val) == [f"ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, 13)]
    assert val != sorted(val)


def test_the_devkit_reads_as_the_real_one(tiny_ilsvrc: Path) -> None:
    """Read the way torchvision's `parse_devkit_archive` does; IDs are no ranks, and val is balanced."""
    kit = dict(members(gzip.decompress((tiny_ilsvrc / DEVKIT).read_bytes())))
    data = kit["ILSVRC2012_devkit_t12/data/meta.mat"]
    synsets = loadmat(io.BytesIO(data), squeeze_me=True)["synsets"]
    leaves = [synset for synset in synsets if list(synset)[4] == 0]
    idents, wnids, words = list(zip(*leaves, strict=True))[:3]
    assert sorted(idents) == [1, 2, 3, 4]
    assert len(synsets) > len(leaves)
    assert [wnid for _, wnid in sorted(zip(idents, wnids, strict=True))] != sorted(wnids)
    assert all("," in word for word in words)
    truth = kit["ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"].split()
    assert sorted(map(int, truth)) == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]


def test_both_layouts_hold_the_same_pictures(tiny_ilsvrc: Path, tiny_folder: Path) -> None:
    assert sorted(path.name for path in tiny_folder.iterdir()) == ["synth.json", "train", "val"]
    assert samples(indexed(tiny_ilsvrc)) == samples(indexed(tiny_folder))


def test_sizes_and_names_are_like_imagenet_s() -> None:
    plan = SynthPlan(SynthConfig(out="x", images=26_000, classes=1000, val_fraction=0.05))
    sizes = np.array(plan.train_sizes)
    assert sizes.sum() + len(plan.val) == 26_000
    assert 0.5 < sizes.min() / sizes.max() < 0.8
    assert np.mean(sizes >= sizes.max() - 1) > 0.6
    wnids = [synset.wnid for synset in plan.synsets]
    assert wnids == sorted(set(wnids))
    numbers = [int(file.name[10:-5]) for _, files in islice(plan.train(), 50) for file in files]
    assert len({len(str(number)) for number in numbers}) > 1


def test_files_are_of_imagenet_s_size_and_cost() -> None:
    sizes = [len(picture_bytes(Picture(seed=1, split="train", label=n % 8, number=n))) for n in range(40)]
    assert 80_000 < np.mean(sizes) < 115_000
    with Image.open(io.BytesIO(picture_bytes(Picture(seed=1, split="train", label=0, number=0)))) as image:
        assert (image.mode, max(image.size) in range(495, 645)) == ("RGB", True)


# --- determinism --------------------------------------------------------------------------------------


def test_any_number_of_processes_gives_the_same_bytes(tmp_path: Path) -> None:
    for workers in (0, 1, 3):
        synth(small(tmp_path / str(workers), num_workers=workers, oddities=True))
    assert digests(tmp_path / "0") == digests(tmp_path / "1") == digests(tmp_path / "3")
    synth(small(tmp_path / "other", seed=1))
    synth(small(tmp_path / "same", seed=0))
    assert not set(digests(tmp_path / "other").values()) & set(digests(tmp_path / "same").values())


def test_progress_counts_to_the_end(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    said = synth(small(tmp_path / "x"), lambda done, total: seen.append((done, total)))
    assert seen == [(done, 40) for done in range(1, 41)]
    assert (said["train_samples"], said["val_samples"]) == (37, 3)


# --- oddities -----------------------------------------------------------------------------------------


def test_every_oddity_is_what_it_says(odd_ilsvrc: Path) -> None:
    import json

    odd = json.loads((odd_ilsvrc / "synth.json").read_text())["oddities"]
    assert set(odd.values()) == set(ODDITIES)
    assert odd[next(name for name in odd if "_val_" in name)] == "cmyk"
    data = {key.rpartition("/")[2]: data for (_, key), (_, data) in samples(indexed(odd_ilsvrc)).items()}
    found = {kind: data[name.removesuffix(".JPEG")] for name, kind in odd.items()}
    assert found["empty"] == b""
    opened = {kind: Image.open(io.BytesIO(found[kind])) for kind in ("cmyk", "png", "grey", "orientation")}
    with pytest.warns(UserWarning, match="Corrupt EXIF data"):
        opened["bad exif"] = Image.open(io.BytesIO(found["bad exif"]))
    assert opened["cmyk"].mode == "CMYK"
    assert opened["cmyk"].info["adobe_transform"] in (0, 2)
    assert (opened["png"].format, opened["png"].mode) == ("PNG", "RGBA")
    assert opened["grey"].mode == "L"
    assert opened["orientation"].getexif()[0x0112] == 6
    assert b"Exif\0\0" in found["bad exif"]
    assert not dict(opened["bad exif"].getexif())
    for image in opened.values():
        assert np.asarray(image.convert("RGB")).std() > 10
    with pytest.raises((OSError, UnidentifiedImageError), match="truncated"):
        Image.open(io.BytesIO(found["truncated"])).load()


def test_a_cmyk_picture_looks_like_its_rgb(odd_ilsvrc: Path) -> None:
    picture = Picture(seed=5, split="train", label=0, number=0, oddity="cmyk")
    image, _ = draw(picture, 96)
    again = np.asarray(Image.open(io.BytesIO(picture_bytes(picture, 96))).convert("RGB")).astype(int)
    assert np.abs(again - image).mean() < 12


# --- the class signal ---------------------------------------------------------------------------------


def features(split: str, classes: int, per_class: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(channel means, energy of luminance by direction and place, labels)."""
    means, shapes, labels = [], [], []
    for label in range(classes):
        for number in range(per_class):
            image, _ = draw(Picture(seed=2, split=split, label=label, number=number), 64)
            means.append(image.reshape(-1, 3).mean(axis=0))
            square = np.asarray(Image.fromarray(image).convert("L").resize((48, 48)), np.float64)
            spectrum = np.log1p(np.abs(np.fft.rfft2(square - square.mean())))
            shapes.append(spectrum[:12, :12].ravel())
            labels.append(label)
    return np.array(means), np.array(shapes), np.array(labels)


def test_channel_means_say_nothing_and_patterns_say_much() -> None:
    """A linear probe on channel means stays at chance; one on a coarse spectrum, without a network, far above."""
    train, test = features("train", 8, 60), features("val", 8, 30)

    def score(which: int) -> float:
        mean, spread = train[which].mean(axis=0), train[which].std(axis=0)
        probe = LogisticRegression(max_iter=500).fit((train[which] - mean) / spread, train[2])
        return probe.score((test[which] - mean) / spread, test[2])

    assert score(0) < 0.22
    assert score(1) > 0.4


def test_the_photograph_says_nothing_of_the_class() -> None:
    """The generator draws the photograph before it knows the class: equal numbers, other classes, other places."""
    views = {label: draw(Picture(seed=0, split="train", label=label, number=0), 64)[0].mean() for label in range(6)}
    assert len({round(float(value), 3) for value in views.values()}) == 6


# --- where it goes ------------------------------------------------------------------------------------


def test_a_second_run_finds_it_there(tmp_path: Path) -> None:
    synth(small(tmp_path / "x"))
    before = digests(tmp_path)
    assert synth(small(tmp_path / "x"))["already_complete"]
    assert digests(tmp_path) == before
    with pytest.raises(UsageError, match="holds another synthetic dataset"):
        synth(small(tmp_path / "x", seed=9))
    (tmp_path / "x" / VAL).unlink()
    with pytest.raises(UsageError, match="some of its files are gone: remove it"):
        synth(small(tmp_path / "x"))


def test_something_else_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    (tmp_path / "file").write_text("x")
    (tmp_path / "stamp").mkdir()
    (tmp_path / "stamp" / "synth.json").write_text("[1]")
    for out in ("mine", "file", "stamp"):
        with pytest.raises(UsageError, match="holds something else: choose another folder"):
            synth(small(tmp_path / out))
    (tmp_path / "empty").mkdir()
    synth(small(tmp_path / "empty"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "mine", "stamp"]


def test_an_error_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(plan: SynthPlan) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SynthPlan, "devkit", fail)
    with pytest.raises(FeedlineError, match="x cannot be written: No space left on device"):
        synth(small(tmp_path / "x"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_place(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="cannot be written"):
        synth(small(tmp_path / "x"))


def test_wrong_numbers() -> None:
    for changes, complaint in (
        ({"images": 5, "classes": 3}, "5 images for 3 classes: give at least 6"),
        ({"classes": 0}, "0 classes: 1 to 1024"),
        ({"layout": "zip"}, "layout 'zip' is neither"),
        ({"val_fraction": 1.0}, "val fraction 1.0"),
        ({"seed": -1}, "--seed -1: at least 0"),
    ):
        with pytest.raises(UsageError, match=complaint):
            SynthConfig(out="x", **changes)  # pyright: ignore


@pytest.mark.parametrize(("end", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_an_end_in_the_middle_leaves_no_process_and_no_dataset(tmp_path: Path, end: int, status: int) -> None:
    seed = 10**9 + os.getpid() * 100 + end
    words = f"synth {tmp_path / 'x'} --images 100000 --seed {seed} --num-workers 2"
    process = subprocess.Popen(
        [sys.executable, "-m", "feedline.cli.main", *words.split()], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    tar = tmp_path / ".x.synth" / TRAIN
    while not (tar.exists() and tar.stat().st_size > 1 << 20):
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.05)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) >= 2
    process.send_signal(end)
    said = process.communicate()[1].decode()
    assert process.returncode == status
    assert "Traceback" not in said
    assert not (tmp_path / "x").exists()
    if end == signal.SIGINT:
        assert list(tmp_path.iterdir()) == []
    assert not psutil.wait_procs(workers, timeout=10)[1]
    synth(small(tmp_path / "x"))
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_worker_whose_parent_has_ended_before_it_began_ends_too() -> None:
    """Else it waits for a lock that the dead hold (found by the test above: a worker hung for good)."""
    code = "from feedline.preprocess.synth.write import start_worker; start_worker(); print('works')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    def meddle(done: int, total: int) -> None:
        if done == 1:
            with pytest.raises(UsageError, match="another `feedline synth` is writing"):
                synth(small(tmp_path / "x"))

    synth(small(tmp_path / "x"), meddle)
    assert len(indexed(tmp_path / "x").columns) == 40
