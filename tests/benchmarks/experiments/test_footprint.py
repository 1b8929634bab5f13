"""The larger datasets of the footprint benchmark are real ones: every row leads to its sample."""

from pathlib import Path

import pytest

from feedline.benchmarks.experiments.footprint import enlarge
from feedline.pipeline.format import manifest as shards
from feedline.pipeline.format import shard_tar
from feedline.pipeline.format.local import LocalFiles


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """Four samples in two shards; what is in them does not matter here."""
    folder = tmp_path / "train"
    folder.mkdir()
    rows: list[shards.SampleRow] = []
    infos: list[shards.ShardInfo] = []
    for number in range(2):
        name = shard_tar.shard_name("train", number)
        with (folder / name).open("wb") as file, shard_tar.ShardWriter(file, number) as writer:
            for sample in (2 * number, 2 * number + 1):
                writer.add(f"s{sample}", f"picture {sample}".encode(), "jpg", label=sample, width=1, height=1)
        rows += writer.rows
        infos.append(
            shards.ShardInfo(name=name, samples=2, planned_samples=2, bytes=writer.bytes, sha256=writer.sha256)
        )
    (folder / shards.INDEX).write_bytes(shards.index_bytes(rows))
    manifest = shards.Manifest(split="train", samples=4, classes=[{"name": str(n)} for n in range(4)], shards=infos,
                               settings={"codec": "jpeg"}, seed=0, plan_hash="0" * 64)  # fmt: skip
    (folder / shards.MANIFEST).write_text(manifest.to_json())
    return folder


@pytest.mark.parametrize(("copies", "count"), [(True, 6), (False, 2)])
def test_an_enlarged_split_holds_the_same_samples_again_and_again(
    split: Path, tmp_path: Path, copies: bool, count: int
) -> None:
    larger = enlarge(split, tmp_path / "larger", 10, copies=copies)
    index = shards.read_index(larger, shards.read_manifest(larger))
    files = LocalFiles(larger, shards.read_manifest(larger).shard_names)
    assert [files.read(*index.place(sample)) for sample in range(10)] == [
        f"picture {n % 4}".encode() for n in range(10)
    ]
    assert index.labels_N.tolist() == [n % 4 for n in range(10)]
    assert len(list(larger.glob("*.tar"))) == count
    files.close()
