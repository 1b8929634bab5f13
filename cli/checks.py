"""What `feedline doctor` looks at: one small function per fact, each with its remedy when something is wrong."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

JAVA_MIN = 17


@dataclass(frozen=True, kw_only=True)
class Fact:
    key: str
    name: str
    value: Any
    text: str
    remedy: str = ""


def examine() -> list[Fact]:
    """All facts, in the order they are shown. Never raises: what is missing is a fact too."""
    return [check() for check in CHECKS]


def pillow() -> Fact:
    from feedline.profiling.record.host import package_version

    simd, plain = package_version("pillow-simd"), package_version("pillow")
    if importlib.util.find_spec("PIL") is None:
        return Fact(key="pil", name="Pillow", value=None, text="none", remedy="pip install pillow-simd (or pillow)")
    from PIL import Image

    active = str(getattr(Image, "__version__", "unknown"))
    flavour = "pillow-simd" if "post" in active else "pillow"
    value = {"flavour": flavour, "version": active}
    text = f"{flavour} {active}"
    remedy = ""
    if simd and plain:
        remedy = "both are installed over each other: pip uninstall -y pillow pillow-simd, then make -B setup"
    elif flavour == "pillow" and simd:
        remedy = "Pillow has overwritten Pillow-SIMD: pip uninstall -y pillow pillow-simd, then make -B setup"
    elif flavour == "pillow":
        remedy = "slower than Pillow-SIMD: install a C compiler, libjpeg-dev and zlib1g-dev, then make -B setup"
    return Fact(key="pil", name="Pillow", value=value, text=text, remedy=remedy)


def formats() -> Fact:
    """What this build of Pillow reads beside JPEG, PNG, GIF, BMP, PPM and plain TIFF."""
    try:
        from PIL import features
    except ImportError:
        return Fact(key="formats", name="more formats", value=None, text="none")
    from feedline.pipeline.codecs.pillow import OPTIONAL

    value = {name: bool(features.check(name)) for name in OPTIONAL}
    lacking = [package for name, (_, package, _) in OPTIONAL.items() if not value[name]]
    return Fact(
        key="formats",
        name="more formats",
        value=value,
        text=", ".join(words for name, (words, _, _) in OPTIONAL.items() if value[name]) or "none",
        remedy=f"apt-get install {' '.join(lacking)}, then make -B setup" if lacking else "",
    )


def libjpeg_turbo() -> Fact:
    try:
        from PIL import features

        value = features.version("libjpeg_turbo")
    except ImportError:
        value = None
    return Fact(
        key="libjpeg_turbo",
        name="libjpeg-turbo",
        value=value,
        text=value or "none",
        remedy="" if value else "apt-get install libjpeg62-turbo-dev, then make -B setup",
    )


def torch() -> Fact:
    from feedline.profiling.record.host import package_version

    value, vision = package_version("torch"), package_version("torchvision")
    text = f"{value or 'none'}, torchvision {vision or 'none'}"
    problem = first_line(import_error("torchvision")) if value and vision else ""
    remedy = f"torchvision does not import ({problem}): install a matching pair" if problem else ""
    return Fact(key="torch", name="torch", value=value, text=text, remedy=remedy)


def import_error(module: str) -> str:
    """Why a module does not import, as its last line; empty when it does. In a process of its own: imports stick."""
    import sys

    done = subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, text=True, check=False)
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""


def first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""


def cuda() -> Fact:
    try:
        import torch as module

        value = module.version.cuda if module.cuda.is_available() else None
    except Exception:  # a torch that does not import is the torch check's to explain
        value = None
    return Fact(key="cuda", name="CUDA", value=value, text=value or "none (training runs on the CPU)")


def nvml() -> Fact:
    from feedline.profiling.record.host import gpu_names

    gpus = gpu_names()
    library = any(Path(folder).glob("libnvidia-ml.so*") for folder in LIBRARY_FOLDERS if Path(folder).is_dir())
    text = ", ".join(gpus) if gpus else ("library without a GPU" if library else "none")
    return Fact(key="nvml", name="NVML", value=gpus or None, text=text)


LIBRARY_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/local/nvidia/lib64", "/usr/lib64")


def java() -> Fact:
    value = java_version()
    major = int(value.split(".")[0]) if value else 0
    remedy = ""
    if major < JAVA_MIN:
        remedy = f"`feedline prepare` needs Java {JAVA_MIN} or newer: apt-get install openjdk-17-jre-headless"
    return Fact(key="java", name="Java", value=value, text=value or "none", remedy=remedy)


def java_version() -> str | None:
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not program or not Path(program).exists():
        return None
    done = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(?:1\.)?([\d.]+)', done.stderr)
    return found.group(1) if found else None


def spark() -> Fact:
    from feedline.profiling.record.host import package_version

    value = package_version("pyspark")
    return Fact(
        key="spark", name="Spark", value=value, text=value or "none", remedy="" if value else "pip install pyspark"
    )


def cores() -> Fact:
    from feedline.pipeline.base.process import cgroup_cores, usable_cores

    value = {"cores": os.cpu_count(), "usable": usable_cores(), "cgroup": cgroup_cores()}
    quota = f", cgroup quota {value['cgroup']:g}" if value["cgroup"] else ", no cgroup quota"
    return Fact(key="cores", name="cores", value=value, text=f"{value['cores']}, usable {value['usable']}{quota}")


def memory() -> Fact:
    import psutil

    from feedline.profiling.record.host import cgroup_memory_bytes

    total_bytes, cgroup_bytes = psutil.virtual_memory().total, cgroup_memory_bytes()
    limit = f", cgroup limit {gib(cgroup_bytes)}" if cgroup_bytes else ", no cgroup limit"
    value = {"total_bytes": total_bytes, "cgroup_bytes": cgroup_bytes}
    return Fact(key="memory", name="memory", value=value, text=gib(total_bytes) + limit)


def shared_memory() -> Fact:
    from feedline.profiling.record.host import shared_memory_bytes

    value = shared_memory_bytes()
    small = value is not None and value < 1 << 30
    remedy = "small for torch's DataLoader (docker run --shm-size=8g); feedline's loader does not use it"
    return Fact(
        key="shared_memory_bytes",
        name="/dev/shm",
        value=value,
        text=gib(value) if value else "none",
        remedy=remedy if small else "",
    )


def gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"


CHECKS: tuple[Callable[[], Fact], ...] = (
    pillow, formats, libjpeg_turbo, torch, cuda, nvml, java, spark, cores, memory, shared_memory,
)  # fmt: skip
