import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from feedline.pipeline.base.errors import DatasetError, FeedlineError, SampleError, UsageError
from feedline.train import checkpoint
from feedline.train.checkpoint import CheckpointError
from feedline.train.config import TrainConfig
from feedline.train.distributed import pick_device
from feedline.train.loop import train
from feedline.train.metrics import Event, read_events
from feedline.train.models import SmallCNN, build_model
from feedline.train.run import Run, TrainingError

from .conftest import write_dataset, write_split

Configure = Callable[..., TrainConfig]


def losses(run: Path) -> dict[int, float]:
    """By step; where a run was interrupted, what its last part said."""
    return {event["step"]: event["loss"] for event in read_events(run, "step")}


def weights(path: Path) -> dict[str, torch.Tensor]:
    return checkpoint.read(path)["model"]


def same_weights(one: Path, other: Path) -> bool:
    mine, theirs = weights(one), weights(other)
    return all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_it_learns_and_the_record_has_its_keys(configure: Configure) -> None:
    config = configure(epochs=12, lr=0.05, warmup_epochs=0)
    record = train(config)
    assert record["best_top1"] >= 0.8
    assert [entry["epoch"] for entry in record["epochs"]] == list(range(1, 13))
    for entry in record["epochs"]:
        assert {"epoch", "samples", "seconds", "samples_per_s", "wait_fraction", "train_loss", "top1", "top5"} <= {
            *entry
        }
        assert entry["samples"] == 96 and entry["val_samples"] == 22
        assert 0 <= entry["wait_fraction"] <= 1
    assert record["world_size"] == 1 and record["time_to_target_s"] is None
    assert 0 < record["cpu_efficiency"] <= 1.5 and record["peak_memory_bytes"] > 2**20
    assert sum(one["samples"] for one in record["classes"]) == 22
    json.dumps(record)


def test_the_target_ends_the_run_and_is_timed(configure: Configure) -> None:
    record = train(configure(epochs=40, lr=0.05, warmup_epochs=0, target_top1=0.5))
    assert len(record["epochs"]) < 40
    assert record["epochs"][-1]["top1"] >= 0.5
    assert 0 < record["time_to_target_s"] <= record["train_s"]


def test_the_same_configuration_gives_the_same_numbers(configure: Configure, tmp_path: Path) -> None:
    options: dict[str, Any] = {"epochs": 1, "label_smoothing": 0.1, "clip_norm": 1.0, "ema_decay": 0.9}
    train(configure(run=tmp_path / "a", **options))
    train(configure(run=tmp_path / "b", num_workers=1, **options))
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert same_weights(tmp_path / "a/checkpoints/best.pt", tmp_path / "b/checkpoints/best.pt")


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {
            "model": "mobilenet_v2",
            "image_size": 32,
            "batch_size": 32,
            "epochs": 1,
            "ema_decay": 0.99,
            "clip_norm": 2.0,
        },
    ],
)
def test_resuming_inside_an_epoch_gives_the_same_rest(
    configure: Configure, tmp_path: Path, extra: dict[str, Any]
) -> None:
    """Dropout (mobilenet_v2) makes this a test of the random state too."""
    whole = configure(run=tmp_path / "whole", checkpoint_every=2, keep_last=100, **extra)
    train(whole)
    parts = replace(whole, run=tmp_path / "parts")
    train(replace(parts, steps=2))
    (tmp_path / "parts/checkpoints/best.pt").unlink()
    train(replace(parts, resume="auto"))
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts")
    last = checkpoint.Checkpoints(tmp_path / "whole").steps()[-1].name
    assert same_weights(tmp_path / "whole/checkpoints" / last, tmp_path / "parts/checkpoints" / last)
    ends = [read_events(tmp_path / run, "end")[-1]["epochs"] for run in ("whole", "parts")]
    for name in ("epoch", "samples", "train_loss", "top1"):
        assert [epoch[name] for epoch in ends[0]] == pytest.approx([epoch[name] for epoch in ends[1]])


@pytest.mark.parametrize("policy, batch_size", [("drop", 16), ("pad", 40)])
def test_resuming_behind_an_epochs_last_batch_only_closes_the_epoch(
    configure: Configure, tmp_path: Path, policy: str, batch_size: int
) -> None:
    """Killed between the last step's checkpoint and the one of the epoch's end."""
    whole = configure(run=tmp_path / "whole", epochs=2, policy=policy, batch_size=batch_size, checkpoint_every=3)
    train(whole)
    parts = replace(whole, run=tmp_path / "parts")

    class Killed(Exception):
        pass

    def kill(event: Event) -> None:
        if event["event"] == "checkpoint" and event["step"] == len(losses(tmp_path / "whole")):
            raise Killed

    with pytest.raises(Killed):
        train(parts, [kill])
    train(replace(parts, resume="auto"))
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts")
    ends = [read_events(tmp_path / run, "end")[-1]["epochs"] for run in ("whole", "parts")]
    for name in ("train_loss", "top1", "samples"):
        assert [epoch[name] for epoch in ends[0]] == pytest.approx([epoch[name] for epoch in ends[1]])


def test_accumulation_is_the_same_as_a_larger_batch(configure: Configure, tmp_path: Path) -> None:
    train(configure(run=tmp_path / "large", batch_size=32, epochs=1))
    train(configure(run=tmp_path / "small", batch_size=8, accumulate=4, epochs=1))
    large, small = losses(tmp_path / "large"), losses(tmp_path / "small")
    assert list(large) == list(small) == [1, 2, 3]
    assert list(large.values()) == pytest.approx(list(small.values()), rel=1e-5)


def test_padding_is_not_learned_from(configure: Configure, tmp_path: Path) -> None:
    record = train(configure(batch_size=40, policy="pad", epochs=1))
    assert record["epochs"][0]["samples"] == 96
    record = train(configure(batch_size=40, epochs=1, run=tmp_path / "drop"))
    assert record["epochs"][0]["samples"] == 80


@pytest.mark.parametrize("batch_size, last", [(40, 16), (19, 19)])
def test_padding_does_not_pass_through_the_model(configure: Configure, batch_size: int, last: int) -> None:
    """Batch norm would see it. A single sample is padded: of one, it may have nothing to see."""
    sizes: list[int] = []

    def look(module: nn.Module, images: tuple[Tensor]) -> None:
        if isinstance(module, SmallCNN) and module.training:
            sizes.append(len(images[0]))

    with register_module_forward_pre_hook(look):
        train(configure(batch_size=batch_size, policy="pad", epochs=1))
    assert sizes == [batch_size] * (96 // batch_size) + [last]


def test_nor_does_a_single_sample_that_a_resumed_epoch_has_left(configure: Configure) -> None:
    train(configure(batch_size=32, policy="pad", epochs=1, steps=2))
    sizes: list[int] = []

    def look(module: nn.Module, images: tuple[Tensor]) -> None:
        if isinstance(module, SmallCNN) and module.training:
            sizes.append(len(images[0]))

    with register_module_forward_pre_hook(look):
        train(configure(batch_size=31, policy="pad", epochs=1, resume="auto"))
    assert sizes == [31, 31]


def test_progressive_resizing_and_evaluation_at_the_same_size(configure: Configure) -> None:
    record = train(configure(progressive=((0, 16), (1, 24)), epochs=2))
    assert len(record["epochs"]) == 2


def test_named_epochs_are_kept_and_the_first_is_the_start(configure: Configure) -> None:
    config = configure(epochs=3, keep_epochs=(0, 2), keep_last=1, lr=0.05)
    train(config)
    folder = config.run / "checkpoints" if config.run else Path()
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["best.pt", "epoch-0000.pt", "epoch-0002.pt", "step-0000018.pt"]
    assert checkpoint.read(folder / "epoch-0000.pt")["progress"]["step"] == 0
    assert not same_weights(folder / "epoch-0000.pt", folder / "epoch-0002.pt")


def test_late_resetting_starts_from_the_weights_of_a_checkpoint(configure: Configure, tmp_path: Path) -> None:
    train(configure(epochs=1))
    best = tmp_path / "run/checkpoints/best.pt"
    config = configure(run=tmp_path / "again", init=best, keep_epochs=(0,), epochs=1)
    train(config)
    assert same_weights(best, tmp_path / "again/checkpoints/epoch-0000.pt")


def test_no_checkpoints_when_none_are_wanted(configure: Configure, tmp_path: Path) -> None:
    record = train(configure(keep_last=0, epochs=1))
    assert not (tmp_path / "run/checkpoints").exists()
    assert record["checkpoint_s"] == 0


def test_bf16_autocast_trains(configure: Configure) -> None:
    record = train(configure(amp="bf16", epochs=1))
    assert record["epochs"][0]["train_loss"] < 3


def test_tensorboard_has_scalars_graph_and_images(configure: Configure, tmp_path: Path) -> None:
    train(configure(tensorboard=True, epochs=1))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(tmp_path / "run/tensorboard")).Reload()
    tags = board.Tags()
    assert {"step/loss", "step/samples_per_s", "step/wait_fraction", "epoch/top1"} <= {*tags["scalars"]}
    assert tags["images"] == ["samples"] or any(tag.startswith("samples") for tag in tags["images"])
    assert tags["graph"]


def test_a_listener_hears_the_run(configure: Configure) -> None:
    heard: list[Event] = []
    train(configure(epochs=1), [heard.append])
    kinds = [event["event"] for event in heard]
    assert kinds[0] == "start" and kinds[-1] == "end"
    assert kinds.count("step") == 6 and kinds.count("epoch") == 1


def test_the_lines_that_the_readme_quotes_are_the_loop_s() -> None:
    root = Path(__file__).parents[2]
    table = (root / "README.md").read_text().partition("% Time  Line Contents\n")[2].partition("```")[0]
    quoted = [line.split(maxsplit=4)[4] for line in table.splitlines()]
    assert quoted and {*quoted} <= {line.strip() for line in (root / "train/loop.py").read_text().splitlines()}


@pytest.mark.parametrize("channels_last", [True, False])
def test_a_model_is_given_the_layout_that_was_asked_for(
    configure: Configure, monkeypatch: pytest.MonkeyPatch, channels_last: bool
) -> None:
    seen: list[bool] = []

    def model_of(*args: Any, **kwargs: Any) -> Any:
        model = build_model(*args, **kwargs)
        inner = model.forward
        model.forward = lambda images: (seen.append(images.is_contiguous()), inner(images))[1]
        return model

    monkeypatch.setattr("feedline.train.run.build_model", model_of)
    train(configure(channels_last=channels_last, epochs=1))
    assert seen and set(seen[1:]) == {not channels_last}


# --- a part of the dataset ------------------------------------------------------------------------------


def test_some_of_the_classes_are_trained_and_evaluated(configure: Configure) -> None:
    heard: list[Event] = []
    record = train(configure(classes=2, samples=40, batch_size=8, epochs=2), [heard.append])
    start = heard[0]
    assert (start["classes"], start["train_samples"]) == (2, 40)
    assert [entry["samples"] for entry in record["epochs"]] == [40, 40]
    assert sum(row["samples"] for row in record["classes"]) == start["val_samples"] in (14, 15)
    names = [row["name"] for row in record["classes"]]
    assert names == sorted(names) and {*names} < {"class0", "class1", "class2"}


def test_a_run_of_another_part_is_not_resumed(configure: Configure) -> None:
    part: dict[str, Any] = {"classes": 2, "samples": 40, "batch_size": 8}
    train(configure(epochs=1, **part))
    train(configure(epochs=2, resume="auto", **part))
    for change in ({"classes": None}, {"samples": 48}, {"samples": None}, {"subset_seed": 1}):
        with pytest.raises(
            CheckpointError, match=r"another part of the dataset .*give the same --classes, --samples"
        ):
            train(configure(epochs=2, resume="auto", **(part | change)))


@pytest.mark.parametrize(
    "part, said",
    [
        ({"classes": 4}, "4 classes cannot be taken from 3"),
        ({"classes": 2, "samples": 65}, "a subset of 65 samples cannot be taken from 64"),
        ({"samples": 8}, "larger than the 8 training samples"),
    ],
)
def test_more_than_there_is(configure: Configure, part: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        train(configure(**part))


# --- what can be wrong ----------------------------------------------------------------------------------


def test_a_batch_of_one_ends_in_one_line(configure: Configure) -> None:
    with pytest.raises(FeedlineError, match="a batch of one sample has no variance for batch norm: take a larger"):
        train(configure(model="resnet18", image_size=32, batch_size=1, epochs=1, steps=1))


def test_a_loss_that_is_not_finite_ends_the_run(configure: Configure) -> None:
    with pytest.raises(TrainingError, match=r"the loss became nan by step \d+ .*lower --lr"):
        train(configure(lr=1e9, warmup_epochs=0))


def test_weights_that_are_not_finite_are_not_kept(configure: Configure, tmp_path: Path) -> None:
    """Whatever --lr it went on with, no run could leave them."""

    class Poison:
        def __call__(self, event: Event) -> None:
            if event["event"] == "step" and event["step"] == 3:
                with torch.no_grad():
                    next(iter(self.run.module.parameters())).fill_(math.nan)

    poison, made = Poison(), Run.__init__

    def keep(self: Run, *words: Any) -> None:
        made(self, *words)
        poison.run = self  # pyright: ignore[reportAttributeAccessIssue]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "__init__", keep)
        with pytest.raises(TrainingError, match=r"weights are no longer finite by step 4 .*lower --lr"):
            train(configure(checkpoint_every=4, log_every=3, keep_last=9), [poison])
    assert not list((tmp_path / "run/checkpoints").glob("step-*"))


def test_a_bad_val_sample_that_may_be_left_out_is_named(configure: Configure, tmp_path: Path) -> None:
    config, heard = configure(dataset=write_dataset(tmp_path / "OUT"), on_bad="skip"), list[Event]()
    shard = next((config.dataset / "val").glob("*.tar"))
    data = bytearray(shard.read_bytes())
    data[600] ^= 1  # within the first sample
    shard.write_bytes(data)
    with pytest.raises(SampleError):
        train(replace(config, on_bad="raise"))
    train(replace(config, run=tmp_path / "again"), [heard.append])
    (said,) = [event["text"] for event in heard if event["event"] == "note"]
    assert said.startswith("bad sample (--on-bad skip): s0000: ")
    assert {event["val_samples"] for event in heard if event["event"] == "epoch"} == {21}


def test_too_little_memory_is_one_line(configure: Configure) -> None:
    with pytest.raises(FeedlineError, match=r"not enough memory .*: lower --batch-size, --image-size"):
        train(configure(widths=(10**6, 10**9)))


def test_no_dataset(configure: Configure, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        train(configure(dataset=tmp_path / "nothing"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match="not a prepared dataset"):
        train(configure(dataset=tmp_path / "empty"))


def test_several_datasets_are_named(configure: Configure, tmp_path: Path) -> None:
    write_dataset(tmp_path / "both/64-raw")
    write_dataset(tmp_path / "both/256-jpeg")
    with pytest.raises(UsageError, match=r"several prepared datasets: train from one of .*256-jpeg, .*64-raw"):
        train(configure(dataset=tmp_path / "both"))


def test_an_empty_val_split(configure: Configure, tmp_path: Path) -> None:
    write_dataset(tmp_path / "OUT", val=0)
    with pytest.raises(DatasetError, match="val has no samples: prepare with --val-fraction"):
        train(configure(dataset=tmp_path / "OUT"))
    record = train(configure(dataset=tmp_path / "OUT", eval_every=0, epochs=1))
    assert record["epochs"][0]["top1"] is None and record["best_top1"] is None


def test_no_val_split(configure: Configure, tmp_path: Path) -> None:
    write_split(tmp_path / "OUT/train", 32, 3, seed=0)
    with pytest.raises(DatasetError, match="has no val split"):
        train(configure(dataset=tmp_path / "OUT"))


def test_splits_with_other_classes(configure: Configure, tmp_path: Path) -> None:
    write_split(tmp_path / "OUT/train", 32, 3, seed=0)
    write_split(tmp_path / "OUT/val", 32, 4, seed=0)
    with pytest.raises(DatasetError, match="train has 3 classes and val 4"):
        train(configure(dataset=tmp_path / "OUT"))


def test_labels_beyond_the_classes(configure: Configure, tmp_path: Path) -> None:
    write_split(tmp_path / "OUT/train", 32, 3, seed=0, label_shift=1)
    write_split(tmp_path / "OUT/val", 32, 3, seed=0)
    with pytest.raises(DatasetError, match=r"row \d+ has label 3, manifest\.json has 3 classes"):
        train(configure(dataset=tmp_path / "OUT"))


def test_a_batch_larger_than_the_dataset(configure: Configure) -> None:
    with pytest.raises(UsageError, match=r"a batch of 97 \(97 a rank\) is larger than the 96 training samples"):
        train(configure(batch_size=97))


def test_what_fits_a_global_batch_is_said(configure: Configure) -> None:
    with pytest.raises(UsageError, match="use --global-batch 192 or less") as failed:
        train(configure(global_batch=200, accumulate=2))
    assert "--batch-size" not in str(failed.value)
    train(configure(global_batch=192, accumulate=2, epochs=1))


def test_a_device_by_number_is_for_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UsageError, match=r"^--device cuda:5: the last one here is cuda:1$"):
        pick_device("cuda:5")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(UsageError, match=r"each rank takes a GPU of its own, use --device cuda$"):
        pick_device("cuda:0")


def test_a_global_batch_that_does_not_divide(configure: Configure) -> None:
    with pytest.raises(UsageError, match="--global-batch 10 does not divide over 1 rank × 3 accumulation steps"):
        train(configure(global_batch=10, accumulate=3))


def test_a_run_is_not_overwritten(configure: Configure) -> None:
    train(configure(epochs=1))
    with pytest.raises(UsageError, match="already holds a run: add --resume auto"):
        train(configure(epochs=1))


def test_checkpoints_of_another_dataset_model_or_classes(configure: Configure, tmp_path: Path) -> None:
    train(configure(epochs=1))
    best = str(tmp_path / "run/checkpoints/best.pt")
    other = write_dataset(tmp_path / "other", train=90)
    with pytest.raises(CheckpointError, match="was made from another dataset"):
        train(configure(resume=best, dataset=other))
    with pytest.raises(CheckpointError, match="is of another model"):
        train(configure(resume=best, widths=(8, 16)))
    more = write_dataset(tmp_path / "more", classes=4)
    with pytest.raises(CheckpointError, match=r"has 3 classes, .* has 4"):
        train(configure(resume=best, dataset=more))
    with pytest.raises(CheckpointError, match="cannot be read"):
        train(configure(resume=str(tmp_path / "no.pt")))
    for change in ({"model": None}, {"progress": {"step": -5}}, {"progress": {"stop": 1}}, {"random": 7}):
        crafted = tmp_path / "run/checkpoints/crafted.pt"
        crafted.write_bytes(checkpoint.to_bytes(checkpoint.read(Path(best)) | change))
        with pytest.raises(CheckpointError, match=r"crafted\.pt is not whole"):
            train(configure(resume=str(crafted)))


def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_used(configure: Configure, tmp_path: Path) -> None:
    config = configure(epochs=2)
    train(config)
    newest = checkpoint.Checkpoints(tmp_path / "run").steps()[-1]
    newest.write_bytes(newest.read_bytes()[:2000])
    heard: list[Event] = []
    train(replace(config, resume="auto"), [heard.append])
    notes = [event["text"] for event in heard if event["event"] == "note"]
    assert any(newest.name in text for text in notes)
    assert next(event for event in heard if event["event"] == "resume")["step"] == 6


def test_a_training_that_is_over_says_so(configure: Configure) -> None:
    train(configure(epochs=2))
    heard: list[Event] = []
    train(configure(epochs=1, resume="auto"), [heard.append])
    notes = [event["text"] for event in heard if event["event"] == "note"]
    assert any(text.startswith("nothing is left to train: the checkpoint has 2 epochs and ") for text in notes)
    assert not any(event["event"] == "step" for event in heard)


def test_changed_settings_are_said(configure: Configure) -> None:
    train(configure(epochs=2, steps=3))
    heard: list[Event] = []
    train(configure(epochs=2, resume="auto", batch_size=8), [heard.append])
    text = next(event["text"] for event in heard if event["event"] == "note")
    assert "batch_size 16 -> 8" in text


def test_shard_windows_are_an_order_that_resuming_keeps(configure: Configure) -> None:
    train(configure(epochs=1, steps=3, window_shards=1))
    with pytest.raises(UsageError, match="--window-shards 1"):
        train(configure(epochs=1, resume="auto"))
    train(configure(epochs=1, resume="auto", window_shards=1))


def test_cuda_where_there_is_none(configure: Configure) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(FeedlineError, match="--device cuda: torch sees no CUDA device"):
        train(configure(device="cuda"))
