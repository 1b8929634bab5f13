"""What machine this is: the hardware and version facts that every record and benchmark result carries."""

import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from feedline.pipeline.base.process import cgroup_cores, cgroup_memory_bytes, read_text, usable_cores
from feedline.profiling.record.loader_kinds import KINDS

PACKAGES = (*dict.fromkeys(name.partition(".")[0] for name in KINDS), "torchvision", "numpy", "pillow", "pillow-simd",
            "simplejpeg", "opencv-python-headless", "pyspark", "line_profiler")  # fmt: skip
"""Those of the loaders that are watched are named as their kinds."""


def describe_host() -> dict[str, Any]:
    """Plain JSON: cores, affinity, memory, cgroup limits, shared memory, GPU names, versions."""
    shared = shutil.disk_usage("/dev/shm") if Path("/dev/shm").is_dir() else None
    return {
        "cpu": _after_colon(read_text("/proc/cpuinfo"), "model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "affinity": usable_cores(),
        "cgroup_cores": cgroup_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "cgroup_memory_bytes": cgroup_memory_bytes(),
        "shared_memory_bytes": shared and shared.total,
        "free_shared_memory_bytes": shared and shared.free,
        "gpus": gpu_names(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "versions": {name: found for name in PACKAGES if (found := package_version(name))},
    }


def gpu_names() -> list[str]:
    """Names as the kernel driver lists them; NVML's view is in `profiling.machine.resources`."""
    infos = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    return [name for info in infos if (name := _after_colon(read_text(str(info)), "Model"))]


def package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _after_colon(text: str, key: str) -> str:
    return next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith(key)), "")
