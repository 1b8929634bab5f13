"""Synthetic recordings with known answers: a training run described by its costs, as capture would record it."""

from dataclasses import replace
from typing import Any

from feedline.profiling.record.recording import (
    Compute,
    Costs,
    Gpu,
    Leg,
    Line,
    LoaderSeen,
    Overhead,
    Recording,
    Script,
    Series,
    Step,
    ThreadTime,
    Trial,
    WorkerTime,
)
from feedline.profiling.record.stages import STAGES

SCATTER = (0.99, 0.995, 1.0, 1.005, 1.01)
"""A leg's windows over their median."""


def made(
    *,
    wait_s: float = 0.06,
    compute_s: float = 0.03,
    copy_s: float = 0.0,
    python_s: float = 0.0,
    unpickle_s: float = 0.0,
    batch: int = 32,
    steps: int = 60,
    workers: int = 2,
    stages: dict[str, float] | None = None,
    stages_cpu: dict[str, float] | None = None,
    slow: float = 1.0,
    cores: int = 4,
    ceiling: float | None = None,
    loader_only: dict[int, float] | None = None,
    trials: list[Trial] | None = None,
    trainer_cpu_s: float | None = None,
    device: str = "cpu",
    starved_s: float | None = None,
    idle_s: float | None = None,
    dataset_samples: int | None = 100_000,
    **others: Any,
) -> Recording:
    """Seconds are per step for the trainer and per sample for the workers' `stages`; worker 0 is `slow` times so."""
    per_sample = stages or {"read": 0.0002, "decode": 0.002, "transform": 0.001, "collate": 0.0002, "send": 0.0001}
    cpu = stages_cpu or {name: value for name, value in per_sample.items() if name not in ("read", "lock")}
    duration = wait_s + compute_s + copy_s + python_s
    seconds = duration * steps
    seen = Recording(
        script=Script(argv=["train.py"], cwd="/data", python="3.11"),
        started="2026-01-01T00:00:00+00:00",
        seconds=seconds + 1,
        host={"affinity": cores, "cores": cores, "memory_bytes": 16 << 30, "cpu": "a test"},
        loaders=[
            LoaderSeen(
                id=0, kind="torch", phase="train", num_workers=workers, batch_size=batch, prefetch_factor=2,
                pin_memory=False, batch_dtypes=["float32", "int64"], batch_bytes=batch * 150_528 * 4,
                dataset_samples=dataset_samples,
            )
        ],
        compute=Compute(device=device),
        optimizer_steps=steps,
        steps=[
            Step(
                start_s=1 + index * duration * 1.0, wait_s=wait_s, duration_s=duration, samples=batch, copy_s=copy_s,
                warm_up=index < 4, starved_s=starved_s, idle_s=idle_s,
            )
            for index in range(steps)
        ],
        warm_up="the first four",
        workers=[_worker(i, workers, per_sample, cpu, slow, seconds, batch * steps) for i in range(max(workers, 1))],
        trainers=[
            ThreadTime(
                seconds=seconds,
                stages={
                    "wait" if workers else "load": (wait_s - unpickle_s) * steps, "unpickle": unpickle_s * steps,
                    "copy": copy_s * steps,
                    "forward": compute_s * steps, "python": python_s * steps,
                },
                functions={"python train.py:log:12": python_s * steps} if python_s else {},
                ticks=1000,
            )
        ],
        costs=Costs(
            worker_cpu_s=sum(cpu.values()), trainer_cpu_s=trainer_cpu_s, read_bytes=110_000.0
        ),
        legs=_legs(ceiling, loader_only or {}),
        trials=trials or [],
        overhead=Overhead(seconds=seconds, fraction=0.004),
    )  # fmt: skip
    return replace(seen, **others)


def _worker(
    index: int,
    workers: int,
    per_sample: dict[str, float],
    cpu: dict[str, float],
    slow: float,
    seconds: float,
    total: int,
) -> WorkerTime:
    samples = total // max(workers, 1)
    factor = slow if index == 0 else 1.0
    stages = {name: per_sample.get(name, 0.0) * samples * factor for name in STAGES if name not in ("idle", "other")}
    stages["idle"] = max(0.0, seconds - sum(stages.values()))
    return WorkerTime(
        worker=index,
        pid=100 + index,
        in_trainer=workers == 0,
        seconds=sum(stages.values()),
        cpu_s=sum(cpu.values()) * samples * factor,
        stages=stages,
        stages_cpu_s={name: value * samples * factor for name, value in cpu.items()},
        transforms={"RandomResizedCrop": stages["transform"] * 0.8, "ToTensor": stages["transform"] * 0.2},
        batches=60,
        samples=samples,
        ticks=1000,
    )


def _legs(ceiling: float | None, loader_only: dict[int, float]) -> list[Leg]:
    legs = [Leg(name="cached", samples_per_s=[ceiling * off for off in SCATTER])] if ceiling else []
    for workers, rate in loader_only.items():
        legs.append(Leg(name="loader_only", samples_per_s=[rate * off for off in SCATTER], num_workers=workers))
    return legs


def crowded(machine: float, **costs: Any) -> Recording:
    """So many cores of the machine were busy."""
    seen = made(trainer_cpu_s=0.0005, **costs)
    end = int(seen.seconds) + 2
    times = [float(second) for second in range(end)]
    busy = Series(
        name="cpu_cores", unit="cores", scope="host", source="/proc/stat", t_s=times, values=[machine] * end
    )
    return replace(seen, series=[busy])


def rich() -> Recording:
    """Everything a report can show, with text that wants to be markup."""
    times = [index * 0.5 for index in range(12)]
    evil = "<script>alert('x')</script>"
    return made(
        ceiling=3900.0,
        loader_only={1: 170.0, 2: 330.0},
        trials=[
            Trial(codec="as-is", loader="feedline", samples=200, load_cpu_s_per_sample=0.0021),
            Trial(
                codec="jpeg", size_px=256, samples=200, bytes_per_sample=27_000.0, load_cpu_s_per_sample=0.0004,
                load_cpu_s_spread=0.00002, prepare_cpu_s_per_sample=0.006, psnr_db=41.0,
            ),
            Trial(
                codec="raw", size_px=64, samples=200, bytes_per_sample=12_416.0, load_cpu_s_per_sample=0.00002,
                prepare_cpu_s_per_sample=0.005,
            ),
        ],
        series=[
            Series(name="cpu_cores", unit="cores", scope=scope, source="/proc", t_s=times, values=[1.5, 2.0, 1.0] * 4)
            for scope in ("workers", "trainer")
        ]
        + [
            Series(name="rss_bytes", unit="B", scope="trainer", source="/proc", t_s=times, values=[1e9] * 12),
            Series(name="sm_active", unit="fraction", scope="gpu:GPU-1", source="nvml gpm 2", t_s=times,
                   values=[None if i == 3 else 0.4 for i in range(12)]),
        ],
        gpus=[
            Gpu(uuid="GPU-1", name=f"H{evil}", source="gpm", sm_active=0.4, utilization=1.0,
                unavailable={"tensor_active": "not supported"}),
        ],
        lines=[
            Line(file="train.py", function="train", line=12, hits=60, seconds=3.6, fraction=0.84,
                 source=f"for x in loader:  # {evil}"),
            Line(file="train.py", function="train", line=13, hits=60, seconds=0.7, fraction=0.16,
                 source="    loss.backward()"),
        ],
        notes=[f"a note {evil}"],
    )  # fmt: skip
