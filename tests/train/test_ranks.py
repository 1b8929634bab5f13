"""Several processes for real: ranks under torchrun, kill -9, elastic restarts, three hosts in network namespaces."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import psutil
import pytest
import torch
import torch.distributed as dist
import typer

from feedline.cli.options import Settings, command
from feedline.cli.train import OPTIONS
from feedline.pipeline.base.errors import UsageError
from feedline.train import checkpoint
from feedline.train.config import TrainConfig
from feedline.train.data import val_loader
from feedline.train.distributed import RankLost, World, joined, pick_device
from feedline.train.evaluate import evaluate
from feedline.train.loop import train
from feedline.train.metrics import read_events
from feedline.train.models import build_model
from tests.commands import all_gone

from .conftest import PX, write_dataset

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
MAIN = ["-m", "feedline.train.main"]
BASE = ["--model", "small_cnn", "--image-size", str(PX), "--num-workers", "1", "--no-tensorboard", "--log-every", "1",
        "--no-flip", "--deterministic", "--threads", "1"]  # fmt: skip
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough for 50 steps of 16 in two epochs."""
    return write_dataset(tmp_path_factory.mktemp("prepared") / "OUT", train=400, val=30)


def start(words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def run(words: list[str]) -> str:
    process = start(words)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    return output


def alone(words: list[str]) -> None:
    """The same command in this process: one rank needs no process of its own."""
    app = typer.Typer()
    app.command()(command(_train))
    app(words, standalone_mode=False)


def _train(settings: Annotated[Settings, OPTIONS]) -> None:
    train(TrainConfig(**settings))


def losses(folder: Path) -> dict[int, float]:
    return {event["step"]: event["loss"] for event in read_events(folder, "step")}


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str], timeout_s: float = 120) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until, "it did not get there in time"
        time.sleep(0.1)


def steps_done(folder: Path) -> int:
    return max(losses(folder), default=0) if (folder / "metrics.jsonl").exists() else 0


def ranks_of(agent: subprocess.Popen[str]) -> list[psutil.Process]:
    """The trainers, not their loader workers."""
    children = psutil.Process(agent.pid).children()
    return [child for child in children if "feedline.train.main" in " ".join(child.cmdline())]


@pytest.mark.slow
def test_four_ranks_train_as_one_does(many: Path, tmp_path: Path) -> None:
    options = [str(many), *BASE, "--global-batch", "16", "--epochs", "2", "--ema-decay", "0.9", "--num-workers", "0"]
    alone([*options, "--run-dir", str(tmp_path / "one")])
    run(
        [
            *TORCHRUN,
            "--standalone",
            "--nproc-per-node=4",
            *MAIN,
            *options,
            "--run-dir",
            str(tmp_path / "four"),
            "--json",
            str(tmp_path / "four.json"),
        ]
    )
    assert json.loads((tmp_path / "four.json").read_text())["world_size"] == 4
    assert (tmp_path / "four" / "curves.html").exists()
    one, four = losses(tmp_path / "one"), losses(tmp_path / "four")
    assert list(one) == list(four) == list(range(1, 51))
    assert list(one.values()) == pytest.approx(list(four.values()), rel=1e-4)
    ends = [read_events(tmp_path / name, "end")[0] for name in ("one", "four")]
    assert [end["world_size"] for end in ends] == [1, 4]
    assert [sum(c["samples"] for c in end["classes"]) for end in ends] == [30, 30]  # 30 over 4 ranks: none twice
    assert ends[0]["best_top1"] == ends[1]["best_top1"]


@pytest.mark.slow
def test_ranks_evaluate_with_the_statistics_that_the_checkpoint_has(many: Path, tmp_path: Path) -> None:
    """Each rank's batch norm has seen other images."""
    words = ["--model", "resnet18", "--image-size", "32", "--batch-size", "8", "--steps", "6", "--no-tensorboard",
             "--num-workers", "0", "--threads", "1", "--run-dir", str(tmp_path / "run")]  # fmt: skip
    run([*TORCHRUN, "--standalone", "--nproc-per-node=2", *MAIN, str(many), *words])
    (epoch,) = read_events(tmp_path / "run", "epoch")
    state = checkpoint.read(checkpoint.Checkpoints(tmp_path / "run").steps()[-1])
    model = build_model("resnet18", 3)
    model.load_state_dict(state["model"])
    config = TrainConfig(dataset=many, image_size=32, num_workers=0)
    alone = World(rank=0, world_size=1, local_world_size=1, device=torch.device("cpu"))
    loader = val_loader(config, alone, 30, torch.float32)
    assert evaluate(model, loader, alone, ["a", "b", "c"], None).loss == pytest.approx(epoch["val_loss"], rel=1e-4)


@pytest.mark.slow
def test_kill_9_and_resume_end_in_the_same_weights(many: Path, tmp_path: Path) -> None:
    options = [*MAIN, str(many), *BASE, "--batch-size", "16", "--epochs", "2", "--checkpoint-every", "3"]
    alone([*options[2:], "--run-dir", str(tmp_path / "whole")])
    process = start([sys.executable, *options, "--run-dir", str(tmp_path / "killed")])
    wait_until(lambda: steps_done(tmp_path / "killed") >= 8, process)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    alone([*options[2:], "--run-dir", str(tmp_path / "killed"), "--resume", "auto"])
    assert losses(tmp_path / "whole") == losses(tmp_path / "killed")
    ends = [checkpoint.Checkpoints(tmp_path / name).steps()[-1] for name in ("whole", "killed")]
    whole, killed = (checkpoint.read(path) for path in ends)
    assert all((whole["model"][name] == killed["model"][name]).all() for name in whole["model"])
    assert all_gone(workers)


@pytest.mark.slow
def test_one_rank_killed_ends_all_with_the_reason(many: Path, tmp_path: Path) -> None:
    options = [*MAIN, str(many), *BASE, "--batch-size", "4", "--epochs", "1000", "--run-dir", str(tmp_path / "run")]
    agent = start([*TORCHRUN, "--standalone", "--nproc-per-node=2", *options])
    wait_until(lambda: steps_done(tmp_path / "run") >= 2, agent)
    everyone = psutil.Process(agent.pid).children(recursive=True)
    killed_s = time.monotonic()
    ranks_of(agent)[1].kill()
    output, _ = agent.communicate(timeout=60)
    assert time.monotonic() - killed_s < 30
    assert agent.returncode != 0
    assert "SIGKILL" in output or "another rank ended" in output
    _, alive = psutil.wait_procs(everyone, timeout=10)
    assert not alive


@pytest.mark.slow
def test_a_restarted_job_goes_on_by_itself_and_with_another_world_size(many: Path, tmp_path: Path) -> None:
    """torchrun starts both ranks again when one is killed; later the run goes on with one rank."""
    options = [str(many), *BASE, "--global-batch", "16", "--epochs", "1", "--checkpoint-every", "2"]
    run_folder = ["--run-dir", str(tmp_path / "run")]
    agent = start([*TORCHRUN, "--standalone", "--nproc-per-node=2", "--max-restarts=2", *MAIN, *options, *run_folder,
                   "--steps", "16"])  # fmt: skip
    wait_until(lambda: steps_done(tmp_path / "run") >= 5, agent)
    ranks_of(agent)[0].kill()
    output, _ = agent.communicate(timeout=200)
    assert agent.returncode == 0, output
    assert read_events(tmp_path / "run", "resume")[0]["step"] >= 4
    alone([*options, *run_folder, "--resume", "auto"])
    alone([*options, "--run-dir", str(tmp_path / "alone")])
    whole, broken = losses(tmp_path / "alone"), losses(tmp_path / "run")
    assert list(whole) == sorted(broken) == list(range(1, 26))
    assert list(whole.values()) == pytest.approx([broken[step] for step in whole], rel=1e-4)
    assert [event["world_size"] for event in read_events(tmp_path / "run", "end")] == [2, 1]


@pytest.mark.slow
def test_bad_input_is_one_line_for_all_ranks(many: Path, tmp_path: Path) -> None:
    few = write_dataset(tmp_path / "few", train=1, val=3)
    agent = start([*TORCHRUN, "--standalone", "--nproc-per-node=2", *MAIN, str(few), *BASE])
    output, _ = agent.communicate(timeout=120)
    assert agent.returncode != 0
    lines = [line for line in output.splitlines() if line.startswith("feedline: ")]
    assert lines == ["feedline: 2 ranks for 1 training sample: start at most 1"]


@pytest.fixture
def three_hosts() -> Generator[list[list[str]]]:
    """Command prefixes that run something on one of three hosts that reach each other at 10.83.0.1 to .3."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        yield [[], [], []]  # three agents on one host
        return
    with ExitStack() as stack:
        tag = uuid.uuid4().hex[:6]
        bridge = f"fl{tag}b"
        ip("link", "add", bridge, "type", "bridge")
        stack.callback(ip, "link", "del", bridge)
        ip("link", "set", bridge, "up")
        names = [f"fl{tag}n{number}" for number in range(3)]
        for number, name in enumerate(names):
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
            ip("link", "add", f"fl{tag}v{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", f"fl{tag}v{number}", "master", bridge, "up")
            ip("-n", name, "addr", "add", f"10.83.0.{number + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield [["ip", "netns", "exec", name] for name in names]


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no network namespaces here: {done.stderr.strip()}")


@pytest.mark.slow
def test_three_hosts_train_as_one_does(many: Path, tmp_path: Path, three_hosts: list[list[str]]) -> None:
    options = [*MAIN, str(many), *BASE, "--global-batch", "24", "--epochs", "1", "--num-workers", "0"]
    real = bool(three_hosts[0])
    address = "10.83.0.1" if real else "127.0.0.1"
    port = 29500 if real else free_port()
    agents = []
    for number, host in enumerate(three_hosts):
        where = [f"--node-rank={number}", f"--master-addr={address}", f"--master-port={port}"]
        environment = ["env", "GLOO_SOCKET_IFNAME=eth0"] if real else []
        agents.append(start([*host, *environment, *TORCHRUN, "--nnodes=3", "--nproc-per-node=1", *where, *options,
                             "--run-dir", str(tmp_path / "three")]))  # fmt: skip
    outputs = [agent.communicate(timeout=200)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0, 0], "\n".join(outputs)
    alone([*options[2:], "--run-dir", str(tmp_path / "one")])
    one, three = losses(tmp_path / "one"), losses(tmp_path / "three")
    assert list(one.values()) == pytest.approx(list(three.values()), rel=1e-4)
    assert read_events(tmp_path / "three", "end")[0]["world_size"] == 3


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_what_nccl_says_went_wrong_is_told_and_a_failed_rank_keeps_no_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        free_port = free.getsockname()[1]
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port}.items():
        monkeypatch.setenv(name, str(value))
    said = (
        "NCCL error in: Backend.cpp:1, invalid usage\nncclInvalidUsage: by its rules.\nLast error:\nDuplicate GPU: 0"
    )
    with (
        pytest.raises(RankLost, match=r"invalid usage Duplicate GPU: 0"),
        joined(TrainConfig(dataset=tmp_path, device="cpu")),
    ):
        assert dist.is_initialized()
        raise dist.DistBackendError(said)
    assert not dist.is_initialized()


def test_ranks_of_a_launcher_that_does_not_say_whose_gpu_is_whose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(UsageError, match="LOCAL_RANK is not, which says which of the 4 GPUs"):
        pick_device("cuda")
