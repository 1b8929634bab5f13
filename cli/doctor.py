"""`feedline doctor`: what is active on this machine, one small function per fact, and how to mend what is not."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.cli.common import Record, console
from feedline.cli.options import command
from feedline.profiling.record import units

JAVA_MIN = 17
LIBRARY_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/local/nvidia/lib64", "/usr/lib64")


@dataclass(frozen=True)
class Fact:
    key: str
    name: str
    value: Any
    text: str
    remedy: str = ""


@command
def doctor(record: Record) -> None:
    """Print what feedline found on this machine: image libraries, torch, GPU, Java, Spark, cores, limits.

    Example: feedline doctor --json doctor.json
    """
    facts = [check() for check in CHECKS]
    for fact in facts:
        console.print(f"{fact.name:<16} {fact.text}")
        if fact.remedy:
            console.print(f"{'':<16} -> {fact.remedy}")
    record.write({fact.key: fact.value for fact in facts})


# --- the facts; none raises: what is missing is a fact too --------------------------------------------


def pillow() -> Fact:
    from feedline.profiling.record.host import package_version

    simd, plain = package_version("pillow-simd"), package_version("pillow")
    if importlib.util.find_spec("PIL") is None:
        return Fact("pil", "Pillow", None, "none", "pip install pillow-simd (or pillow)")
    from PIL import Image

    active = str(getattr(Image, "__version__", "unknown"))
    flavour = "pillow-simd" if "post" in active else "pillow"
    remedy = ""
    if simd and plain:
        remedy = "both are installed over each other: pip uninstall -y pillow pillow-simd, then make -B setup"
    elif flavour == "pillow" and simd:
        remedy = "Pillow has overwritten Pillow-SIMD: pip uninstall -y pillow pillow-simd, then make -B setup"
    elif flavour == "pillow":
        remedy = "slower than Pillow-SIMD: install a C compiler, libjpeg-dev and zlib1g-dev, then make -B setup"
    return Fact("pil", "Pillow", {"flavour": flavour, "version": active}, f"{flavour} {active}", remedy)


def formats() -> Fact:
    """What this build of Pillow reads beside JPEG, PNG, GIF, BMP, PPM and plain TIFF."""
    try:
        from PIL import features
    except ImportError:
        return Fact("formats", "more formats", None, "none")
    from feedline.pipeline.codecs.pillow import OPTIONAL

    value = {name: bool(features.check(name)) for name in OPTIONAL}
    text = ", ".join(words for name, (words, _, _) in OPTIONAL.items() if value[name]) or "none"
    lacking = [package for name, (_, package, _) in OPTIONAL.items() if not value[name]]
    remedy = f"apt-get install {' '.join(lacking)}, then make -B setup" if lacking else ""
    return Fact("formats", "more formats", value, text, remedy)


def libjpeg_turbo() -> Fact:
    try:
        from PIL import features

        value = features.version("libjpeg_turbo")
    except ImportError:
        value = None
    remedy = "" if value else "apt-get install libjpeg62-turbo-dev, then make -B setup"
    return Fact("libjpeg_turbo", "libjpeg-turbo", value, value or "none", remedy)


def torch() -> Fact:
    from feedline.profiling.record.host import package_version

    value, vision = package_version("torch"), package_version("torchvision")
    remedy = ""
    if value and vision:  # in a process of its own: imports stick
        done = subprocess.run(
            [sys.executable, "-c", "import torchvision"], capture_output=True, text=True, check=False
        )
        problem = done.stderr.strip().rpartition("\n")[2]
        remedy = f"torchvision does not import ({problem}): install a matching pair" if done.returncode else ""
    return Fact("torch", "torch", value, f"{value or 'none'}, torchvision {vision or 'none'}", remedy)


def cuda() -> Fact:
    try:
        import torch as module

        value = module.version.cuda if module.cuda.is_available() else None
    except Exception:  # a torch that does not import is the torch check's to explain
        value = None
    return Fact("cuda", "CUDA", value, value or "none (training runs on the CPU)")


def nvml() -> Fact:
    from feedline.profiling.record.host import gpu_names

    gpus = gpu_names()
    library = any(Path(folder).glob("libnvidia-ml.so*") for folder in LIBRARY_FOLDERS if Path(folder).is_dir())
    text = ", ".join(gpus) or ("library without a GPU" if library else "none")
    return Fact("nvml", "NVML", gpus or None, text)


def java() -> Fact:
    home, value = os.environ.get("JAVA_HOME"), None
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if program and Path(program).exists():
        done = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
        version = re.search(r'version "(?:1\.)?([\d.]+)', done.stderr)
        value = version and version.group(1)
    fits = value and int(value.split(".")[0]) >= JAVA_MIN
    remedy = f"`feedline prepare` needs Java {JAVA_MIN} or newer: apt-get install openjdk-17-jre-headless"
    return Fact("java", "Java", value, value or "none", "" if fits else remedy)


def spark() -> Fact:
    from feedline.profiling.record.host import package_version

    value = package_version("pyspark")
    return Fact("spark", "Spark", value, value or "none", "" if value else "pip install pyspark")


def cores() -> Fact:
    from feedline.pipeline.base.process import cgroup_cores, usable_cores

    value = {"cores": os.cpu_count(), "usable": usable_cores(), "cgroup": cgroup_cores()}
    quota = f", cgroup quota {value['cgroup']:g}" if value["cgroup"] else ", no cgroup quota"
    return Fact("cores", "cores", value, f"{value['cores']}, usable {value['usable']}{quota}")


def memory() -> Fact:
    import psutil

    from feedline.profiling.record.host import cgroup_memory_bytes

    total_bytes, cgroup_bytes = psutil.virtual_memory().total, cgroup_memory_bytes()
    limit = f", cgroup limit {units.size(cgroup_bytes)}" if cgroup_bytes else ", no cgroup limit"
    value = {"total_bytes": total_bytes, "cgroup_bytes": cgroup_bytes}
    return Fact("memory", "memory", value, units.size(total_bytes) + limit)


def shared_memory() -> Fact:
    from feedline.profiling.record.host import shared_memory_bytes

    value = shared_memory_bytes()
    small = value is not None and value < 1 << 30
    remedy = "small for torch's DataLoader (docker run --shm-size=8g); feedline's loader does not use it"
    return Fact(
        "shared_memory_bytes", "/dev/shm", value, units.size(value) if value else "none", remedy if small else ""
    )


CHECKS: tuple[Callable[[], Fact], ...] = (
    pillow, formats, libjpeg_turbo, torch, cuda, nvml, java, spark, cores, memory, shared_memory,
)  # fmt: skip
