import itertools
import subprocess
from pathlib import Path
from typing import IO, Any

import pytest

from feedline.pipeline.base.errors import UsageError
from feedline.train.slurm import SlurmConfig, script, write


@pytest.mark.parametrize(("nodes", "gpus", "sizes"), list(itertools.product([1, 4], [0, 1, 4], [(), (1, 2, 4)])))
def test_every_kind_of_script_is_valid_bash(tmp_path: Path, nodes: int, gpus: int, sizes: tuple[int, ...]) -> None:
    config = SlurmConfig(dataset="/data/it's here", run="/runs/a b", nodes=nodes, gpus_per_node=gpus, sizes=sizes,
                         partition="gpu", account="abc", memory_gib=64, setup=("source .venv/bin/activate",),
                         train_args=("--model", "resnet 50"))  # fmt: skip
    write(config, tmp_path / "x.sbatch")
    subprocess.run(["bash", "-n", tmp_path / "x.sbatch"], check=True)


def run_script(config: SlurmConfig, tmp_path: Path, **extra: str) -> str:
    """What the script would start, with stand-ins for Slurm's commands that print what they are given."""
    for name, line in {"scontrol": "echo node1; echo node2", "srun": 'printf "%s\\n" "$@"'}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{line}\n")
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_JOB_ID": "45",
        "SLURM_CPUS_PER_TASK": "8",
        **extra,
    }
    done = subprocess.run(["bash"], input=script(config), env=environment, text=True, capture_output=True, check=True)
    return done.stdout


def test_what_it_starts_on_two_gpu_nodes(tmp_path: Path) -> None:
    config = SlurmConfig(dataset="/my data", run="/runs/x", nodes=2, gpus_per_node=4, train_args=("--epochs", "9"))
    words = run_script(config, tmp_path).splitlines()
    for word in ("--nodes=2", "--nnodes=2", "--nproc-per-node=4", "--rdzv-endpoint=node1:20045", "/my data"):
        assert word in words
    assert words[words.index("--run-dir") + 1] == "/runs/x"
    assert words[-2:] == ["--epochs", "9"]


def test_each_job_of_a_scaling_study_has_its_own_size_and_folder(tmp_path: Path) -> None:
    config = SlurmConfig(dataset="/d", run="/runs/x", sizes=(1, 2, 4))
    assert "#SBATCH --array=0-2%1" in script(config)
    assert "#SBATCH --nodes=4" in script(config)
    words = run_script(config, tmp_path, SLURM_ARRAY_TASK_ID="1").splitlines()
    assert "--nnodes=2" in words and "/runs/x/nodes-2" in words


@pytest.mark.parametrize("time", ["1440", "90:00", "100:00:00", "1-12", "1-12:30:00"])
def test_time_is_written_as_slurm_takes_it(time: str) -> None:
    assert f"#SBATCH --time={time}\n" in script(SlurmConfig(dataset="d", time=time))


def test_cpus_match_the_workers() -> None:
    on_gpus = SlurmConfig(dataset="d", run="r", gpus_per_node=4, workers_per_rank=6)
    assert on_gpus.cpus_per_task == 4 * (1 + 6)
    on_cpus = SlurmConfig(dataset="d", run="r", ranks_per_node=2, workers_per_rank=3, model_cpus=5)
    assert on_cpus.cpus_per_task == 2 * (5 + 3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"nodes": 0}, "--nodes 0"),
        ({"time": "soon"}, "--time 'soon'"),
        ({"gpus_per_node": 2, "ranks_per_node": 3}, "each needs its own"),
        ({"partition": 'x"; rm -rf /'}, "--partition"),
        ({"sizes": (0, 1)}, "--sizes 0,1"),
        ({"array": "train"}, "sweep or prune"),
        ({"array": "sweep", "nodes": 2}, "on one node"),
        ({"array": "prune", "after": "4711; rm"}, "--after"),
    ],
)
def test_wrong_use_is_one_line(options: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        SlurmConfig(dataset="d", run="r", **options)  # pyright: ignore[reportArgumentType]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("mine")
    with pytest.raises(UsageError, match="is there already"):
        write(SlurmConfig(dataset="d", run="r"), tmp_path / "x")
    assert (tmp_path / "x").read_text() == "mine"


def test_a_disk_that_is_full_leaves_no_part_of_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Path.open

    def full(path: Path, mode: str = "r", **more: Any) -> IO[Any]:
        opened = whole(path, mode, **more)
        return whole(Path("/dev/full"), "w") if mode == "x" else opened

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", full)
        with pytest.raises(UsageError, match="No space left"):
            write(SlurmConfig(dataset="d", run="r"), tmp_path / "x")
    write(SlurmConfig(dataset="d", run="r"), tmp_path / "x")


def test_each_job_of_an_array_does_one_task_of_the_study(tmp_path: Path) -> None:
    config = SlurmConfig(dataset="/my data", array="sweep", tasks=30, at_once=8, after="4711", gpus_per_node=2,
                         train_args=("--space", "space.toml", "--study", "/shared/my sweep"))  # fmt: skip
    text = script(config)
    for line in ("array=0-29%8", "dependency=afterok:4711", "output=%x-%A_%a.out", "nodes=1", "requeue"):
        assert f"#SBATCH --{line}\n" in text
    words = run_script(config, tmp_path).splitlines()
    assert words[words.index("feedline.cli.main") + 1 :] == [
        "sweep", "/my data", "--jobs", "1", "--at-most", "1", "--ranks", "2", "--device", "cuda",
        "--num-workers", "4", "--space", "space.toml", "--study", "/shared/my sweep",
    ]  # fmt: skip
    assert "#SBATCH --array=0-59\n" in script(SlurmConfig(dataset="runs/parent", array="prune", tasks=60))
