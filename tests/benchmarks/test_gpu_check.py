"""gpu-check on a machine of our own making: what it measures, in which order, and what it says of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from feedline.benchmarks import gpu_check
from feedline.benchmarks.gpu_check import (
    GPU_DECODE,
    Cell,
    GpuCheckConfig,
    cells_of,
    cores_needed,
    find_splits,
    measure_cells,
    record_of,
    subject,
    worker_counts,
)
from feedline.benchmarks.measure.rounds import MeasureError
from feedline.benchmarks.measure.window import Subject, Window
from feedline.benchmarks.pages import gpu_check_page
from feedline.benchmarks.sample_shards import make_shards
from feedline.cli.main import app
from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.format.manifest import read_manifest
from feedline.pipeline.loader import Loader
from feedline.preprocess.verify import verify
from feedline.profiling.render.html import document
from feedline.profiling.render.plain_text import text

PER_CORE = {"jpeg": 3000.0, "planes": 8000.0, "raw": 12_000.0, GPU_DECODE: 9000.0}
CEILING = 20_000.0
GPU = {"gpu": "A GPU", "gpus": 1, "gpu_memory_bytes": 80e9, "multiprocessors": 132, "cuda": "13.0",
       "copies": [{"source": "slots", "size_bytes": 38_535_168, "bytes_per_s": [5e10] * 5}]}  # fmt: skip


class Machine:
    """Four cores, a GPU that takes 20,000 samples/s; windows of two seconds."""

    def __init__(self, cores: int = 4, ceiling: float = CEILING, launching: float = 1.0) -> None:
        """`launching`: what of its ceiling another process of the model reaches, whatever feeds it."""
        self.cores, self.ceiling, self.launching, self.now_s = cores, ceiling, launching, 0.0
        self.seen: list[Subject] = []

    def measure(self, subject: Subject) -> Window:
        self.now_s += 5.0
        self.seen.append(subject)
        settings = subject.settings
        way = GPU_DECODE if settings["decode"] == "gpu" else Path(settings["split"]).parent.name.split("-")[1]
        rate = PER_CORE[way] * min(settings["num_workers"], self.cores)
        if settings["cached"]:
            rate = self.ceiling
        elif settings["model"]:
            rate = min(rate, self.ceiling * self.launching)
        gpus = [{"sm_active": 0.8, "sm_occupancy": None, "sources": {"sm_active": "nvml gpm 2"},
                 "unavailable": {"gpm": "lost"}}]  # fmt: skip
        waits = max(0.0, 1 - rate / (self.ceiling * self.launching))
        return Window(samples=round(2 * rate), seconds=2.0, batches=9, wait_s=2 * waits, trainer_cpu_s=1.0,
                      worker_cpu_s=2.0 * settings["num_workers"], facts={"gpus": gpus})  # fmt: skip


SPLITS = {(way, px): Path(f"{stored}-{codec}/train") for way, codec in gpu_check.WAYS.items()
          for px, stored in ((224, 256), (64, 96))}  # fmt: skip
CONFIG = GpuCheckConfig(models=("mobilenet_v2",), device="cuda", budget_s=1000)


def checked(
    machine: Machine, config: GpuCheckConfig = CONFIG, most: int | None = None, **about: Any
) -> dict[str, Any]:
    cells = cells_of(SPLITS, config.models, worker_counts(most or machine.cores))
    found = measure_cells(cells, SPLITS, config, machine.measure, lambda: machine.now_s)
    return record_of(found, cells, config, SPLITS, {"cores": machine.cores, **GPU, "notes": [], **about})


def test_cores_that_deliver_a_rate_are_read_off_the_curve() -> None:
    rates = {1: 1000.0, 2: 1900.0, 4: 3600.0}
    assert cores_needed(rates, 500) == pytest.approx(0.5)
    assert cores_needed(rates, 1900) == pytest.approx(2)
    assert cores_needed(rates, 2750) == pytest.approx(3)
    assert cores_needed(rates, 7200) == pytest.approx(8), "beyond what was measured, at the last rate per core"
    assert cores_needed({1: 1000.0, 2: 1900.0, 4: 1950.0}, 7200) is None, "more of them do not help"
    scaling = {count: 1000.0 * count for count in (1, 2, 4, 8, 16, 32, 33)}
    assert cores_needed(scaling, 66_000) == 66, "the last step was none of a doubling"


def test_counts_of_workers_double_up_to_the_cores() -> None:
    assert worker_counts(1) == (1,) and worker_counts(2) == (1, 2) and worker_counts(12) == (1, 2, 4, 8, 12)


def test_a_gpu_that_is_fed_is_said_to_be_and_by_how_many_cores() -> None:
    record = checked(Machine())
    assert record["fed_all"] is True
    assert record["statement"].startswith("4 cores can feed A GPU: 100 % of its ceiling or more, each model in its")
    one = gpu_check.statement(record | {"fed": record["fed"][-1:]})["statement"]
    assert one.endswith("its best way).") and "or more" not in one
    needs = {(one["image_size"], one["way"]): one["cores"] for one in record["needs"]}
    assert [needs[224, way] for way in ("jpeg", "raw")] == pytest.approx([CEILING / 3000, CEILING / 12_000])
    fed = next(one for one in record["fed"] if (one["way"], one["image_size"]) == ("jpeg", 224))
    assert (fed["share"], fed["sm_active"]) == pytest.approx((0.6, 0.8)) and fed["sm_occupancy"] is None
    json.dumps(record)


def test_a_gpu_that_is_not_fed_is_told_what_would_do() -> None:
    record = checked(Machine(ceiling=60_000.0))
    assert record["fed_all"] is False
    assert "gets 80 % of its ceiling, from raw; raw on 5 cores would do." in record["statement"]


def test_a_loop_that_does_not_wait_is_not_held_back_by_data() -> None:
    record = checked(Machine(launching=0.8))
    assert record["fed_all"] is True
    assert record["statement"].startswith("4 cores keep A GPU waiting for 0 % of the time: mobilenet_v2 at")
    assert "gets 80 % of its ceiling, and it is not the data that keeps it from the rest" in record["statement"]


def test_one_model_that_does_not_wait_does_not_speak_for_another_that_does() -> None:
    record = checked(Machine())
    fed = [{"model": model, "image_size": 64, "way": "raw", "workers": 4, "share": share, "wait_fraction": waits}
           for model, share, waits in (("idle", 0.79, 0.03), ("starving", 0.85, 0.15))]  # fmt: skip
    told = gpu_check.statement(record | {"fed": fed, "needs": []})
    assert told["fed_all"] is False and "cannot feed A GPU: starving at 64 px gets 85 %" in told["statement"]


def test_more_than_all_of_a_ceiling_is_no_statement() -> None:
    record = checked(Machine(launching=2.1))
    assert record["fed_all"] is None and "a model reaches 210 % of the ceiling" in record["statement"]


def test_cores_that_were_not_tried_are_not_told_to_fall_short() -> None:
    record = checked(Machine(ceiling=60_000.0), most=2)
    assert record["statement"].startswith("2 workers cannot feed A GPU: mobilenet_v2")
    assert "(estimated)" in text(gpu_check_page(record))


def test_one_of_several_gpus_is_not_taken_for_all_of_them() -> None:
    fed, hungry = (checked(Machine(ceiling=ceiling), gpus=8)["statement"] for ceiling in (CEILING, 60_000.0))
    assert fed.startswith("all 4 cores together can feed one of the 8 GPUs here (A GPU): 100 %")
    assert hungry.startswith("all 4 cores together cannot feed one of the 8 GPUs here (A GPU): mobilenet_v2")


def test_the_time_is_kept_and_what_it_had_no_room_for_is_named() -> None:
    machine = Machine()
    config = GpuCheckConfig(models=("mobilenet_v2",), device="cuda", budget_s=62)
    record = checked(machine, config)
    assert machine.now_s <= 62
    assert len(record["ceilings"]) == 2, "the most telling comes first"
    assert "the time was over" in record["notes"][-1] and "1 worker;" in record["notes"][-1]


def test_a_ceiling_without_the_time_to_feed_it_is_told_as_that() -> None:
    record = checked(Machine(), GpuCheckConfig(models=("mobilenet_v2",), device="cuda", budget_s=20))
    assert record["ceilings"] and not record["fed"] and record["fed_all"] is None
    assert "what A GPU takes; no time was left to see one feed the other" in record["statement"]


def test_everything_is_measured_again_while_there_is_time() -> None:
    record = checked(Machine())
    assert {one["n"] for name in ("ceilings", "loaders", "fed") for one in record[name]} == {3}
    some = checked(Machine(), GpuCheckConfig(models=("mobilenet_v2",), device="cuda", budget_s=200))
    assert {one["n"] for name in ("ceilings", "loaders", "fed") for one in some[name]} == {1, 2}
    assert some["fed_all"] and not some["notes"], "all of it was measured once"


def test_what_cannot_be_measured_is_a_note_and_the_rest_goes_on() -> None:
    asked: list[dict[str, Any]] = []

    class Lacking(Machine):
        def measure(self, subject: Subject) -> Window:
            if subject.settings["decode"] == "gpu":
                assert subject.settings not in asked, "a second time"
                asked.append(subject.settings)
                self.now_s += 5
                raise MeasureError("torchvision was built without nvJPEG")
            return super().measure(subject)

    record = checked(Lacking())
    assert not [one for one in record["loaders"] if one["way"] == GPU_DECODE]
    assert any("gpu decode, 224 px, 4 workers could not be measured: torchvision" in note for note in record["notes"])


def test_without_a_gpu_there_is_what_the_cores_deliver() -> None:
    config = GpuCheckConfig(device="cpu", budget_s=100)
    splits = {key: path for key, path in SPLITS.items() if key[0] != GPU_DECODE}
    machine = Machine()
    cells = cells_of(splits, (), worker_counts(2))
    found = measure_cells(cells, splits, config, machine.measure, lambda: machine.now_s)
    record = record_of(found, cells, config, splits, {"cores": 2, "notes": ["no GPU takes part"]})
    assert record["fed_all"] is None and not record["ceilings"] and not record["needs"]
    assert "no GPU was there to feed" in record["statement"]
    shown = " ".join(text(gpu_check_page(record)).split())
    assert "no GPU takes part" in shown and "WHAT THE CORES DELIVER" in shown and "WHAT IT TAKES" not in shown
    document(gpu_check_page(record))


def test_the_page_says_all_of_it_with_its_sources() -> None:
    page = gpu_check_page(checked(Machine()))
    shown = " ".join(text(page, width=200).split())
    for words in ("Does this machine", "A GPU, 80 GB, 132 multiprocessors"):
        assert words in document(page)
    for words in ("4 cores can feed A GPU",
                  "WHAT IT TAKES", "BOTH TOGETHER", "CORES IT NEEDS", "COPIES", "(estimated)",
                  "SM active: nvml gpm 2; SM occupancy: lost", "feedline's slots, page-locked"):  # fmt: skip
        assert words in shown, words


def test_a_cell_is_what_the_measuring_process_is_told() -> None:
    told = subject(Cell(224, GPU_DECODE, 3, "resnet50"), SPLITS, CONFIG).settings
    assert (told["decode"], told["num_workers"], told["model"], told["cached"]) == ("gpu", 3, "resnet50", None)
    assert told["split"] == "256-jpeg/train"
    assert subject(Cell(64, "raw", 3, "resnet50", cached=True), SPLITS, CONFIG).settings["cached"]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("own"), images=40, epoch=500)


def test_own_shards_have_every_codec_at_every_size_and_long_epochs(shards: Path) -> None:
    names = {path.name for path in shards.glob("*-*")}
    assert names == {f"{px}-{codec}" for px in (256, 96) for codec in ("jpeg", "planes", "raw")}
    for split in shards.glob("*/train"):
        manifest = read_manifest(split)
        assert manifest.samples == 500
        loader = Loader(split, batch_size=50, image_size=32, num_workers=0, rank=0, world_size=1)
        assert sum(len(labels_N) for _, labels_N in loader) == 500
    for split in shards.glob("*/val"):
        assert verify(str(split))["ok"]


def test_shards_that_fit_the_images_are_found_or_missed_by_name(shards: Path, tmp_path: Path) -> None:
    found = find_splits(shards, (224, 64), "cuda")
    assert {key: path.parent.name for key, path in found.items()} == {
        (way, px): f"{stored}-{codec}"
        for way, codec in gpu_check.WAYS.items()
        for px, stored in ((224, 256), (64, 96))
    }
    assert not [way for way, _ in find_splits(shards, (64,), "cpu") if way == GPU_DECODE]
    with pytest.raises(DatasetError, match="no prepared train split"):
        find_splits(tmp_path, (64,), "cpu")


@pytest.mark.slow
def test_the_verb_measures_for_real(shards: Path, tmp_path: Path) -> None:
    words = ["gpu-check", str(shards), "--device", "cpu", "--model", "small_cnn", "--image-size", "32"]
    words += ["--batch-size", "8", "--num-workers", "1", "--window", "0.2", "--rounds", "1"]
    words += ["--json", str(tmp_path / "check.json"), "--html", str(tmp_path / "check.html")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "check.json").read_text())
    assert record["verb"] == "gpu-check" and record["ceilings"][0]["samples_per_s"] > 0 and record["loaders"]
    assert "no GPU takes part" in " ".join(done.output.split()) and (tmp_path / "check.html").exists()
