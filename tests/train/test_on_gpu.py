"""Training on a GPU: it learns, resumes, and gives the CPU's numbers as far as its arithmetic does."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from feedline.train import checkpoint
from feedline.train.config import TrainConfig
from feedline.train.loop import train
from feedline.train.metrics import read_events
from feedline.train.run import pick_amp

Configure = Callable[..., TrainConfig]
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


def losses(run: Path) -> list[float]:
    return [event["loss"] for event in read_events(run, "step")]


def test_the_first_steps_are_the_cpu_s(configure: Configure, tmp_path: Path) -> None:
    settings = {"amp": "none", "epochs": 1, "deterministic": False}
    for device in ("cpu", "cuda"):
        train(configure(run=tmp_path / device, device=device, **settings))
    assert losses(tmp_path / "cuda") == pytest.approx(losses(tmp_path / "cpu"), rel=0.02)


@pytest.mark.parametrize("amp", ["none", "bf16", "fp16"])
@pytest.mark.parametrize("workers", [0, 2])
def test_it_learns(configure: Configure, tmp_path: Path, amp: str, workers: int) -> None:
    record = train(configure(epochs=12, lr=0.05, warmup_epochs=0, amp=amp, device="cuda", num_workers=workers,
                             deterministic=False))  # fmt: skip
    assert record["best_top1"] >= 0.7
    assert record["gpu_memory_bytes"] > 0
    newest = checkpoint.Checkpoints(tmp_path / "run").steps()[-1]
    assert bool(checkpoint.read(newest)["scaler"]) == (amp == "fp16"), "bf16 needs no scaling of its gradients"


def test_a_run_that_was_ended_goes_on_where_it_was(configure: Configure, tmp_path: Path) -> None:
    settings = {"device": "cuda", "amp": "bf16", "epochs": 2, "deterministic": False}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(configure(run=whole, **settings))
    train(configure(run=parts, steps=4, **settings))
    train(configure(run=parts, resume="auto", **settings))
    assert losses(parts) == pytest.approx(losses(whole), rel=0.05)


def test_a_run_may_go_on_in_another_arithmetic(configure: Configure) -> None:
    train(configure(device="cuda", amp="none", steps=2, deterministic=False))
    assert train(configure(device="cuda", amp="fp16", steps=4, resume="auto", deterministic=False))["steps"] == 4


def test_auto_is_bf16_where_the_gpu_computes_in_it() -> None:
    import torch

    device = torch.device("cuda")
    has_it = torch.cuda.get_device_capability() >= (8, 0)
    assert pick_amp("auto", device) == (torch.bfloat16 if has_it else None)


NCCL = """
import torch, torch.distributed as dist
from feedline.train.config import TrainConfig
from feedline.train.distributed import joined
with joined(TrainConfig(dataset="x")) as world:
    ones = torch.ones(3, device=world.device)
    dist.all_reduce(ones)
    print(dist.get_backend_config(), ones.tolist(), world.mean([2.0]), world.gather("x"), world.from_main(7))
"""


def test_nccl_and_gloo_start_with_one_rank(tmp_path: Path) -> None:
    """Of several ranks one GPU can show nothing."""
    script = tmp_path / "script.py"
    script.write_text(NCCL)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", str(script)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "cuda:nccl" in done.stdout and "[1.0, 1.0, 1.0] [2.0] ['x'] 7" in done.stdout
