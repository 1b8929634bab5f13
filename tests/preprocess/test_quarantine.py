"""Samples that cannot be used: kept, counted, mended and tried again."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from feedline.pipeline.base.errors import FeedlineError
from feedline.pipeline.format.manifest import read_index
from feedline.preprocess import prepare as door
from feedline.preprocess import quarantine
from feedline.preprocess.store import open_store
from feedline.preprocess.verify import verify
from tests.preprocess.making import PER_CLASS, Killed, dies_after, names, photo, prepare, saved, write_images


def test_quarantine_keeps_the_bytes_and_the_reason(images: Path, tmp_path: Path) -> None:
    prepare(images, tmp_path / "out")
    lines = (tmp_path / "out" / "quarantine" / "report.jsonl").read_text().splitlines()
    rows = {row["reason"]: row for row in map(json.loads, lines)}
    cut = rows["truncated"]
    assert cut["source"] == str(images / "bear" / "cut.JPEG")
    assert (tmp_path / "out" / "quarantine" / cut["file"]).read_bytes() == (images / "bear" / "cut.JPEG").read_bytes()
    assert rows["empty"]["length"] == 0


def test_the_size_of_what_is_too_large_is_said(clean_images: Path, tmp_path: Path) -> None:
    prepare(clean_images, tmp_path / "out", max_bad=1, max_pixels=16)
    lines = (tmp_path / "out" / "quarantine" / "report.jsonl").read_text().splitlines()
    assert all(re.match(r"\d+x\d+ is over the limit of 16 ", json.loads(line)["detail"]) for line in lines)


def test_links_to_nothing_and_images_without_a_class_are_quarantined(clean_images: Path, tmp_path: Path) -> None:
    source = shutil.copytree(clean_images, tmp_path / "in")
    (source / "apple" / "gone.jpg").symlink_to("nowhere")
    shutil.copy(source / "bear" / "bear_1.JPEG", source / "stray.jpg")
    said = prepare(source, tmp_path / "out", shards=1, max_bad=0.1)
    assert (said["output_samples"], said["reasons"]) == (48, {"broken link": 1, "no label": 1})
    rows = quarantine.read_report(open_store(str(tmp_path / "out")))
    assert {(row.key, row.source) for row in rows} == {
        ("apple/gone", str(source / "apple/gone.jpg")), ("stray", str(source / "stray.jpg")),
    }  # fmt: skip


@pytest.mark.parametrize(
    "change", [{"file": "../../secret"}, {"shard": [1]}, {"split": None, "more": 1}, {"key": {}}]
)
def test_a_crafted_quarantine_report_is_one_line(images: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    prepare(images, tmp_path / "out")
    report = tmp_path / "out" / "quarantine" / "report.jsonl"
    row = json.loads(report.read_text().splitlines()[0])
    report.write_text(json.dumps(row | change) + "\n")
    assert not verify(str(tmp_path / "out"))["ok"]
    with pytest.raises(FeedlineError, match=r"report\.jsonl is damaged"):
        prepare(images, tmp_path / "out", retry_quarantine=True)


def test_a_bad_file_whose_name_is_no_utf_8_is_quarantined_under_its_own_name(
    clean_images: Path, tmp_path: Path
) -> None:
    source, out = shutil.copytree(clean_images, tmp_path / "in"), tmp_path / "out"
    odd = source / "apple" / os.fsdecode(b"caf\xe9.jpg")
    odd.write_bytes(b"no picture")
    (source / "apple" / os.fsdecode(b"\xff.jpg")).symlink_to("nowhere")
    assert prepare(source, out, shards=1, max_bad=0.1)["quarantined"] == 2
    assert str(odd) in {row.source for row in quarantine.read_report(open_store(str(out)))}
    next((out / "quarantine").glob("*caf*.bin")).write_bytes(saved(photo(3)))
    assert prepare(source, out, shards=1, max_bad=0.1, retry_quarantine=True)["quarantined"] == 1


def test_too_many_bad_samples_are_an_error_that_resumes(images: Path, tmp_path: Path) -> None:
    with pytest.raises(door.TooManyBad, match=r"that may be: .*quarantine/report\.jsonl, .* --max-bad"):
        prepare(images, tmp_path / "out", max_bad=0.001)
    assert not list((tmp_path / "out").rglob("manifest.json"))
    assert reasons(tmp_path / "out")
    report = prepare(images, tmp_path / "out", max_bad=0.1)
    assert report["quarantined"] == 2


@pytest.mark.parametrize("lost", [False, True])
def test_what_was_mended_is_not_written_over_by_a_plain_rerun(images: Path, tmp_path: Path, lost: bool) -> None:
    """Nor where its shard must be made again."""
    with pytest.raises(door.TooManyBad):
        prepare(images, tmp_path / "out", max_bad=0.001, shards=1)
    mended = {file: saved(photo(number)) for number, file in enumerate((tmp_path / "out").glob("quarantine/*.bin"))}
    for file, data in mended.items():
        file.write_bytes(data)
    if lost:
        (tmp_path / "out" / "train" / "train-000000.tar").unlink()
    said = prepare(images, tmp_path / "out", max_bad=0.1, shards=1)
    assert (said["quarantined"], said["resumed_samples"]) == (2, 0 if lost else 53)
    assert {file: file.read_bytes() for file in mended} == mended
    assert prepare(images, tmp_path / "out", shards=1, retry_quarantine=True)["quarantined"] == 0


def test_what_a_retry_took_in_is_still_there_when_a_plain_rerun_ends_the_job(images: Path, tmp_path: Path) -> None:
    """As the error of the retry, of which too many were left, advises. The source is what it was."""
    out = tmp_path / "out"
    with pytest.raises(door.TooManyBad):
        prepare(images, out, max_bad=0.001, shards=2)
    first, second = sorted((out / "quarantine").glob("*.bin"))
    first.write_bytes(saved(photo(3)))
    with pytest.raises(door.TooManyBad):
        prepare(images, out, max_bad=0.001, shards=2, retry_quarantine=True)
    assert prepare(images, out, max_bad=0.1, shards=2)["quarantined"] == 1
    assert first.read_bytes() == saved(photo(3)) and first.name in (out / "quarantine/mended.jsonl").read_text()
    second.write_bytes(saved(photo(4)))
    assert prepare(images, out, shards=2, retry_quarantine=True)["quarantined"] == 0


def test_a_link_to_nothing_is_mended_by_a_picture_in_its_place(clean_images: Path, tmp_path: Path) -> None:
    source, out = shutil.copytree(clean_images, tmp_path / "in"), tmp_path / "out"
    (source / "apple" / "gone.jpg").symlink_to("nowhere")
    assert prepare(source, out, shards=1, max_bad=0.1)["reasons"] == {"broken link": 1}
    next((out / "quarantine").glob("*.bin")).write_bytes(saved(photo(3)))
    said = prepare(source, out, shards=1, max_bad=0.1, retry_quarantine=True)
    assert (said["quarantined"], said["output_samples"]) == (0, 49)


def reasons(out: Path) -> list[str]:
    lines = (out / "quarantine" / "report.jsonl").read_text().splitlines()
    return sorted(json.loads(line)["reason"] for line in lines)


def test_what_was_too_much_can_be_mended_and_tried_again(images: Path, tmp_path: Path) -> None:
    """The reasons are there before the dataset is; too many left after a retry takes none of them away."""
    out = tmp_path / "out"
    for _ in range(2):  # the second finds nothing left to do but to commit
        with pytest.raises(door.TooManyBad):
            prepare(images, out, max_bad=0.001, shards=1)
        assert reasons(out) == ["empty", "truncated"]
    with pytest.raises(door.TooManyBad):
        prepare(images, out, max_bad=0.001, shards=1, retry_quarantine=True)
    assert reasons(out) == ["empty", "truncated"]
    for file in (out / "quarantine").glob("*.bin"):
        file.write_bytes(saved(photo(3)))
    assert prepare(images, out, max_bad=0.001, shards=1, retry_quarantine=True)["quarantined"] == 0
    assert verify(str(out), full=True)["ok"]


def test_mended_files_go_to_their_places(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(images, out)
    rows = [json.loads(line) for line in (out / "quarantine" / "report.jsonl").read_text().splitlines()]
    cut = next(row for row in rows if row["reason"] == "truncated")
    (out / "quarantine" / cut["file"]).write_bytes(saved(photo(3)))
    report = prepare(images, out, retry_quarantine=True)
    assert report["reasons"] == {"empty": 1}
    assert report["output_samples"] == 3 * PER_CLASS + 4
    assert cut["key"] in read_index(out / "train").keys
    assert verify(str(out), full=True)["ok"]
    kept = {"report.jsonl", "mended.jsonl", cut["file"]}  # what was mended may be wanted by another retry
    assert len(set(names(out / "quarantine")) - kept) == 1
    empty = json.loads((out / "quarantine" / "report.jsonl").read_text())
    assert empty["source"].startswith(str(images))


def test_a_file_of_a_very_large_shard_is_ours() -> None:
    assert quarantine.FILE.fullmatch(quarantine.file_name("train", 1_234_567, 100_000, "n01440764/x"))


def test_what_was_mended_stays_mended_when_the_rest_is_tried_again(tmp_path: Path) -> None:
    """The source is as broken as it was; the mended bytes are nowhere but in the quarantine."""
    source, out = write_images(tmp_path / "in", per_class=6, oddities=False), tmp_path / "out"
    broken = sorted((source / "bear").iterdir())[:3]
    whole = {file.name: file.read_bytes() for file in broken}
    for file in broken:
        file.write_bytes(whole[file.name][:200])
    settings: dict[str, Any] = {"shards": 2, "max_bad": 0.5}
    assert prepare(source, out, **settings)["quarantined"] == 3

    def mend(count: int) -> None:
        rows = [json.loads(line) for line in (out / "quarantine" / "report.jsonl").read_text().splitlines()]
        for row in rows[:count]:
            (out / "quarantine" / row["file"]).write_bytes(whole[Path(row["source"]).name])

    for left in (2, 1):
        mend(1)
        assert prepare(source, out, **settings, retry_quarantine=True)["quarantined"] == left
        assert verify(str(out), full=True)["ok"]
    assert prepare(source, out, **settings, retry_quarantine=True)["quarantined"] == 1  # nothing was mended
    mend(1)
    assert prepare(source, out, **settings, retry_quarantine=True)["quarantined"] == 0
    assert not (out / "quarantine").exists()
    for file in broken:
        file.write_bytes(whole[file.name])
    prepare(source, tmp_path / "never", **settings)
    assert shards(out) == shards(tmp_path / "never")


def shards(out: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in out.rglob("*.tar")}


def test_a_retry_that_dies_leaves_the_dataset_as_it_was(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(images, out)
    for file in (out / "quarantine").glob("*.bin"):
        file.write_bytes(saved(photo(3)))
    with pytest.raises(Killed):
        prepare(images, out, retry_quarantine=True, engine=dies_after(2))
    assert verify(str(out), full=True)["ok"]
    assert prepare(images, out, retry_quarantine=True)["quarantined"] == 0
    assert verify(str(out), full=True)["ok"]
    assert prepare(images, out, retry_quarantine=True)["already_complete"]


def test_nothing_bad_leaves_no_quarantine(clean_images: Path, tmp_path: Path) -> None:
    prepare(clean_images, tmp_path / "out")
    assert names(tmp_path / "out") == ["report.json", "train"]
