"""The wheel carries the whole product, and its command works away from the checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = ("experiments", "peers")
"""Of benchmarks/: what measures ourselves and others needs the checkout."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tracked files, so that parallel tests never see a build folder in the checkout."""
    source = tmp_path_factory.mktemp("source")
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    return source


def built(kind: str, source: Path, out: Path, **environment: str) -> Path:
    command = [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr[-2000:]
    return next(path for path in out.iterdir() if path.is_file())


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", source, tmp_path_factory.mktemp("wheel"))


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_kernel_is_in_the_wheel_and_its_sources_are_in_the_sdist(
    wheel: Path, source: Path, tmp_path: Path
) -> None:
    packed = zipfile.ZipFile(wheel).namelist()
    assert [name for name in packed if name.startswith("feedline/pipeline/kernel/native.")]
    assert not [name for name in packed if name.endswith((".c", ".h", ".pyx"))]
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        assert "-cp311-abi3-" in wheel.name  # this one wheel is for every later Python too
    with tarfile.open(built("sdist", source, tmp_path)) as sdist:
        names = {Path(name).name for name in sdist.getnames()}
    sources = {path.name for path in (ROOT / "pipeline" / "kernel").iterdir() if path.suffix in (".c", ".h", ".pyx")}
    assert sources | {"setup.py"} <= names


def test_without_a_compiler_the_wheel_is_built_without_the_kernel(source: Path, tmp_path: Path) -> None:
    copy = tmp_path / "source"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("build", "*.egg-info", "*.so"))
    packed = zipfile.ZipFile(built("wheel", copy, tmp_path / "out", CC=str(tmp_path / "cc"))).namelist()
    assert "feedline/pipeline/kernel/compiled.py" in packed
    assert not [name for name in packed if name.startswith("feedline/pipeline/kernel/native.")]


def test_every_module_and_data_file_is_in_the_wheel(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    rooms = ("pipeline", "preprocess", "profiling", "train", "benchmarks", "cli")
    kinds = (".py", ".css", ".js", ".html")
    ours = [
        path.relative_to(ROOT)
        for room in rooms
        for path in (ROOT / room).rglob("*")
        if path.suffix in kinds and path.parent.name not in ("results", *OUTSIDE)
    ]
    typed = [f"{room}/py.typed" for room in rooms]  # a namespace has no marker of its own (PEP 561)
    missing = [str(path) for path in (*ours, *typed) if f"feedline/{path}" not in packed]
    assert not missing
    outside = ("feedline/tests", "tests", *(f"feedline/benchmarks/{name}" for name in OUTSIDE))
    assert not [name for name in packed if name.startswith(outside)]


def test_the_command_runs_from_an_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True
    ).stdout.strip()
    zipfile.ZipFile(wheel).extractall(site)
    Path(site, "seen.pth").write_text(sysconfig.get_path("purelib") + "\n")
    code = "import feedline.cli.main as m, sys; print(m.__file__); sys.argv[1:] = ['--help']; m.run()"
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=clean)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(site)
    assert "doctor" in done.stdout
