"""The wheel carries the whole product, and its command works away from the checkout."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = ("experiments", "peers")
"""Of benchmarks/: what measures ourselves and others needs the checkout."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the tracked files, so that parallel tests never see a build folder in the checkout."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return next(out.glob("*.whl"))


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
