"""Are the GPU's counters what they are called? GPM's SM activity and occupancy of kernels whose own is known.

    python -m feedline.benchmarks.experiments.gpu_occupancy [--seconds 2 --repeats 3]

A kernel that only computes is launched with so many blocks of so many warps that all of them are resident, on a known
share of the multiprocessors: active is that share, occupancy is its warps of all there is room for, while they are
resident. A multiprocessor has four schedulers; each issues one instruction in a cycle, from the oldest warp that is
ready, and an addition's result is there four cycles later: four warps keep one busy, and of more the oldest four end
first, then the next four. One thread that spins shows what "utilisation" is worth. Where Nsight Compute is installed
and may read counters, it is asked about the same kernels: its occupancy is of the cycles in which a multiprocessor is
active, GPM's of all. Needs Triton.
Writes results/gpu-occupancy.json.
"""

import csv
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from feedline.benchmarks.experiments.harness import column, end_with, in_rounds, module, options, show, write
from feedline.benchmarks.measure.rounds import check_devices
from feedline.pipeline.base.errors import FeedlineError
from feedline.profiling.machine.nvml import GpuSampler

KERNEL_S = 0.02
SCHEDULERS, LATENCY_CYCLES = 4, 4
LAG_S = 0.3
"""For which GPM's counters may still tell of the kernel before."""
AHEAD = 4
"""Launches that are queued: the device never runs dry."""
NCU_METRICS = {
    "sm__cycles_active.avg.pct_of_peak_sustained_elapsed": "active",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy_while_active",
    "sm__warps_active.avg.pct_of_peak_sustained_elapsed": "occupancy",
}


@dataclass(frozen=True)
class Load:
    """A kernel's resident warps."""

    name: str
    share: float
    """Of the multiprocessors that have a block."""
    blocks: int
    """On each of these."""
    warps: int
    """Of a block."""


LOADS = [
    Load("1 warp on every SM", 1.0, 1, 1),
    Load("8 warps on every SM", 1.0, 1, 8),
    Load("4 x 8 warps on every SM", 1.0, 4, 8),
    Load("8 x 8 warps on every SM", 1.0, 8, 8),
    Load("4 warps on half of them", 0.5, 1, 4),
]
ONE_THREAD = "one thread"


def main() -> None:
    given = options(__doc__, "gpu-occupancy.json", seconds=2.0, repeats=3, kernel="")
    check_devices([1], "cuda", ["small_cnn"])
    if given.kernel:  # what ncu is shown
        launcher(next(load for load in LOADS if load.name == given.kernel))()
        return
    processors, room = device()
    truths = {load.name: truth(load, processors, room) for load in LOADS}
    truths[ONE_THREAD] = {"active": 1 / processors, "occupancy": 1 / processors / room}
    cells = {load.name: partial(watched, load, given.seconds) for load in LOADS}
    cells[ONE_THREAD] = partial(watched, None, given.seconds)
    by_round = in_rounds(cells, given.repeats)
    found: dict[str, dict[str, Any]] = {
        name: {"known": truths[name], "gpm": column(by_round, name)} for name in cells
    }
    write(given.out, {"loads": found})
    for load in LOADS:
        found[load.name]["ncu"] = by_ncu(load)
    write(given.out, {"loads": found})
    rows = [(name, *(percents(one["known"])), *(percents(one["gpm"][0])), str(one.get("ncu", "")))
            for name, one in found.items()]  # fmt: skip
    show(("load", "active", "occupancy", "by GPM", "", "by Nsight Compute"), rows)


def percents(told: dict[str, Any]) -> list[str]:
    return ["–" if told[name] is None else f"{told[name]:.1%}" for name in ("active", "occupancy")]


def device() -> tuple[int, int]:
    """Multiprocessors, and warps that one has room for."""
    import torch

    known = torch.cuda.get_device_properties(torch.cuda.current_device())
    return known.multi_processor_count, known.max_threads_per_multi_processor // known.warp_size


def truth(load: Load, processors: int, room: int) -> dict[str, float]:
    """By the kernel's own arithmetic."""
    share, warps = round(load.share * processors) / processors, load.blocks * load.warps
    of_one = list(range(-(-warps // SCHEDULERS), 0, -LATENCY_CYCLES))
    resident = sum(of_one) / len(of_one) / of_one[0]
    return {"active": share, "occupancy": share * warps / room * resident}


def launcher(load: Load | None) -> Callable[[], Any]:
    """Launches a kernel of about KERNEL_S; None: one thread that spins."""
    import torch

    if load is None:
        cycles = int(KERNEL_S * 1.5e9)
        return lambda: torch.cuda._sleep(cycles)
    processors, _ = device()
    blocks = round(load.share * processors) * load.blocks
    kernel = computing()
    out = torch.empty(blocks * load.warps * 32, device="cuda")

    def launch(turns: int) -> None:
        kernel[(blocks,)](out, turns, SIZE=load.warps * 32, num_warps=load.warps)

    launch(100_000)  # compiled: for numbers that 16 divides, as those of the launches that count
    torch.cuda.synchronize()
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    before.record()
    launch(100_000)
    after.record()
    torch.cuda.synchronize()
    turns = max(1000, int(100_000 * KERNEL_S * 1e3 / before.elapsed_time(after)))
    return partial(launch, turns // 16 * 16)


def computing() -> Any:
    """A kernel that neither reads nor shares memory: a block is resident for as long as it takes."""
    global tl  # Triton looks for it among the names of the module
    import triton
    import triton.language as tl

    def compute(out, turns, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]  # Triton reads all annotations
        place = tl.arange(0, SIZE)
        value = place.to(tl.float32)
        for _ in range(turns):
            value = value * 0.999 + 1.0
        tl.store(out + tl.program_id(0) * SIZE + place, value)

    return triton.jit(compute)


def watched(load: Load | None, seconds: float) -> dict[str, Any]:
    """What NVML says while the kernel runs without a break."""
    import torch

    launch, queued = launcher(load), deque[Any]()
    sampler = GpuSampler()
    sampler.start()
    began_s, looked = time.perf_counter(), False
    while time.perf_counter() - began_s < seconds:
        launch()
        queued.append(event := torch.cuda.Event())
        event.record()
        if len(queued) > AHEAD:
            queued.popleft().synchronize()
            if not looked and time.perf_counter() - began_s > LAG_S:
                looked, _ = True, list(sampler.look(set()))
    list(sampler.look(set()))
    gpu = next(iter(sampler.summary()), None)
    sampler.stop()
    torch.cuda.synchronize()
    if gpu is None:
        raise FeedlineError(sampler.note)
    return {"active": gpu.sm_active, "occupancy": gpu.sm_occupancy, "utilization": gpu.utilization,
            "sources": gpu.sources, "unavailable": gpu.unavailable}  # fmt: skip


def by_ncu(load: Load) -> Any:
    """Nsight Compute's own figures of the last launch; why there are none."""
    program = shutil.which("ncu")
    if program is None:
        return "ncu is not installed"
    command = [program, "--clock-control", "none", "--csv", "--metrics", ",".join(NCU_METRICS), sys.executable, "-m"]
    done = subprocess.run([*command, module(), "--kernel", load.name], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), None)
    if done.returncode or start is None:
        return (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1][:200]
    told: dict[str, float] = {}
    for row in csv.DictReader(lines[start:]):
        if (name := NCU_METRICS.get(row.get("Metric Name", ""))) and row.get("Kernel Name", "").startswith("compute"):
            told[name] = float(row["Metric Value"].replace(",", "")) / 100  # the last launch counts
    return told or "ncu saw no kernel"


if __name__ == "__main__":
    end_with(main)
