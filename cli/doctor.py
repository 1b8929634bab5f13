"""`feedline doctor`: what is active on this machine, and how to mend what is not."""

import ctypes.util
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from feedline.cli.common import Record, console
from feedline.cli.options import command
from feedline.pipeline.base.errors import FeedlineError, UsageError
from feedline.preprocess.java import java as java_for_spark
from feedline.profiling.record import units
from feedline.profiling.record.host import describe_host

REINSTALL = "pip uninstall -y pillow pillow-simd, then make -B setup"


@dataclass(frozen=True)
class Fact:
    """What is missing is a fact too; nothing here raises."""

    key: str
    name: str
    value: Any
    text: str
    remedy: str = ""


@command
def doctor(
    record: Record,
    dataset: Annotated[Path | None, typer.Argument(help="Prepared data whose storage is measured, too.")] = None,
) -> None:
    """Print what feedline found on this machine: image libraries, kernel, torch, GPU, Java, Spark, cores, verbs. Of
    prepared data: what its storage gives, whether it fits into memory, and in which order to read it.

    Example: feedline doctor OUT --json doctor.json
    """
    host = describe_host()
    facts = [*images(host["versions"]), kernel(), *torch(host), java(), spark(host["versions"]), *resources(host)]
    facts += verbs()
    facts += storage(dataset) if dataset is not None else ()
    for fact in facts:
        console.print(f"{fact.name:<16} {fact.text}")
        if fact.remedy:
            console.print(f"{'':<16} -> {fact.remedy}")
    record.write({fact.key: fact.value for fact in facts})


def storage(dataset: Path) -> Iterator[Fact]:
    """A second of reads. Raises DatasetError, and UsageError where the packages that read datasets are missing."""
    if missing := lacking("shards"):
        raise UsageError(f"doctor DATASET needs {', '.join(missing)}: pip install 'feedline[shards]'")
    from feedline.benchmarks.storage_advice import storage_of
    from feedline.benchmarks.variants import find_train

    found = storage_of(find_train(dataset))
    for number, (name, words) in enumerate(found.lines()):
        key = "storage" if not number else f"storage_{name.replace(' ', '_')}"
        yield Fact(key, name, words if number else found.record(), words)


def images(versions: dict[str, str]) -> Iterator[Fact]:
    try:
        import PIL.features
    except ImportError as error:
        words, remedy = "none", "pip install pillow-simd (or pillow)"
        if importlib.util.find_spec("PIL") is not None:
            words, remedy = f"does not load: {error}", REINSTALL
        yield Fact("pil", "Pillow", None, words, remedy)
        yield Fact("formats", "more formats", None, "none")
        yield Fact("libjpeg_turbo", "libjpeg-turbo", None, "none")
        return
    active = PIL.__version__
    flavour = "pillow-simd" if "post" in active else "pillow"
    remedy = ""
    if "pillow-simd" in versions and "pillow" in versions:
        remedy = f"both are installed over each other: {REINSTALL}"
    elif flavour == "pillow" and "pillow-simd" in versions:
        remedy = f"Pillow has overwritten Pillow-SIMD: {REINSTALL}"
    elif flavour == "pillow":
        remedy = "slower than Pillow-SIMD: install a C compiler, libjpeg-dev and zlib1g-dev, then make -B setup"
    yield Fact("pil", "Pillow", {"flavour": flavour, "version": active}, f"{flavour} {active}", remedy)
    yield formats()
    value = PIL.features.version("libjpeg_turbo")
    remedy = "" if value else "apt-get install libjpeg62-turbo-dev, then make -B setup"
    yield Fact("libjpeg_turbo", "libjpeg-turbo", value, value or "none", remedy)


def formats() -> Fact:
    """What not every Pillow reads, and whether this one does."""
    from feedline.pipeline.codecs.pillow import OPTIONAL

    value = {part.feature: part.is_there for part in OPTIONAL}
    text = ", ".join(part.reads for part in OPTIONAL if value[part.feature]) or "none"
    lacking = [part.package for part in OPTIONAL if not value[part.feature]]
    remedy = f"apt-get install {' '.join(lacking)}, then make -B setup" if lacking else ""
    return Fact("formats", "more formats", value, text, remedy)


def kernel() -> Fact:
    """What makes the loader's pixels."""
    try:
        from feedline.pipeline.kernel import compiled
    except FeedlineError as error:
        return Fact("kernel", "kernel", {"compiled": False, "why": str(error)}, str(error))
    if compiled.KERNEL is None:
        remedy = "slower: install a C compiler and Python's headers, then make -B setup"
        text, value = f"OpenCV and Pillow ({compiled.TROUBLE})", {"compiled": False, "why": compiled.TROUBLE}
        return Fact("kernel", "kernel", value, text, "" if compiled.asked_for_python() else remedy)
    level = compiled.KERNEL.level()
    levels = ", ".join(compiled.KERNEL.LEVELS)
    return Fact("kernel", "kernel", {"compiled": True, "level": level}, f"compiled, {level} (of {levels})")


def torch(host: dict[str, Any]) -> Iterator[Fact]:
    version, vision = (host["versions"].get(name) for name in ("torch", "torchvision"))
    remedy = ""
    if version and vision:  # in a process of its own: imports stick
        command_line = [sys.executable, "-P", "-c", "import torchvision"]
        done = subprocess.run(command_line, stderr=subprocess.PIPE, text=True, check=False)
        problem = done.stderr.strip().rpartition("\n")[2]
        remedy = f"torchvision does not import ({problem}): install a matching pair" if done.returncode else ""
    yield Fact("torch", "torch", version, f"{version or 'none'}, torchvision {vision or 'none'}", remedy)
    try:
        import torch

        cuda = (torch.version.cuda or f"ROCm {torch.version.hip}") if torch.cuda.is_available() else None
    except Exception:  # a torch that does not import is explained above
        cuda = None
    yield Fact("cuda", "CUDA", cuda, cuda or "none (training runs on the CPU)")
    without = "library without a GPU" if ctypes.util.find_library("nvidia-ml") else "none"
    yield Fact("nvml", "NVML", host["gpus"] or None, ", ".join(host["gpus"]) or without)


def java() -> Fact:
    version, trouble = java_for_spark()
    return Fact("java", "Java", version or None, version or "none", trouble)


def spark(versions: dict[str, str]) -> Fact:
    value = versions.get("pyspark")
    return Fact("spark", "Spark", value, value or "none", "" if value else "pip install pyspark")


def verbs() -> Iterator[Fact]:
    """What each extra of feedline's own metadata needs, and so which verbs work here."""
    from feedline.cli.main import VERBS

    missing = {extra: lacking(extra) for extra in sorted({*VERBS.values()})}
    works = [verb for verb, extra in VERBS.items() if not missing[extra]]
    yield Fact("verbs", "verbs", works, ", ".join(works))
    for extra in (extra for extra, packages in missing.items() if packages):
        names = ", ".join(verb for verb in VERBS if VERBS[verb] == extra)
        yield Fact(f"without_{extra}", "", missing[extra], f"{names}: not without {', '.join(missing[extra])}",
                   f"pip install 'feedline[{extra}]'")  # fmt: skip


def lacking(extra: str) -> list[str]:
    """Packages of an extra that are not installed, those of the extras in it included."""
    names: list[str] = []
    for line in importlib.metadata.requires("feedline") or []:
        requirement = re.fullmatch(r"([\w.-]+)(?:\[(.*?)\])?[^;]*?(?:;.*extra == [\"'](\w+)[\"'].*)?", line.strip())
        if requirement is None or (requirement[3] or "") != extra:
            continue
        if requirement[1] == "feedline":
            names += [name for inner in requirement[2].split(",") for name in lacking(inner)]
            continue
        alike = ("pillow", "pillow-simd") if requirement[1] == "pillow" else (requirement[1],)
        if not any(map(installed, alike)):
            names.append(requirement[1])
    return names


def installed(distribution: str) -> bool:
    try:
        return bool(importlib.metadata.version(distribution))
    except importlib.metadata.PackageNotFoundError:
        return False


def resources(host: dict[str, Any]) -> Iterator[Fact]:
    """Cores, memory, shared memory, and what a container leaves of them."""
    cores = {"cores": host["cores"], "usable": host["affinity"], "cgroup": host["cgroup_cores"]}
    quota = f", cgroup quota {cores['cgroup']:g}" if cores["cgroup"] else ", no cgroup quota"
    yield Fact("cores", "cores", cores, f"{cores['cores']}, usable {cores['usable']}{quota}")
    memory = {"total_bytes": host["memory_bytes"], "cgroup_bytes": host["cgroup_memory_bytes"]}
    limit = f"cgroup limit {units.size(memory['cgroup_bytes'])}" if memory["cgroup_bytes"] else "no cgroup limit"
    yield Fact("memory", "memory", memory, f"{units.size(memory['total_bytes'])}, {limit}")
    shared = host["shared_memory_bytes"]
    small = shared is not None and shared < 1 << 30
    remedy = "small for torch's DataLoader (docker run --shm-size=8g); feedline's loader does not use it"
    text = units.size(shared) if shared else "none"
    yield Fact("shared_memory_bytes", "/dev/shm", shared, text, remedy if small else "")
