"""Who may import whom (the table in CONTRIBUTING.md), and which heavy module lives in which one file."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("pipeline", "preprocess", "profiling", "train", "benchmarks", "cli")
ANY = frozenset(ROOMS)
ALLOWED: dict[str, frozenset[str]] = {
    "profiling": frozenset({"profiling", "pipeline.scratch", "pipeline.allocator"}),
    "pipeline": frozenset({"pipeline"}),
    "preprocess": frozenset(
        {
            "preprocess",
            "pipeline.shards",
            "pipeline.errors",
            "pipeline.atomic",
            "pipeline.jpeg",
            "pipeline.npy",
            "pipeline.planes",
            "pipeline.allocator",
            "pipeline.pictures",
            "pipeline.scratch",
            "pipeline.text",
        }
    ),
    "train": frozenset({"train", "pipeline", "profiling.sample", "profiling.host"}),
    "benchmarks": ANY,
    "cli": ANY,
}
DOORS = {"train/main.py": "cli.main"}
"""torchrun and kernprof start this file, and it is the same command."""
ONE_HOME = {
    "pyspark": {"preprocess/job.py"},
    "pynvml": {"profiling/nvml.py"},
    "line_profiler": {"profiling/lines.py"},
}
TORCH_FREE = ("preprocess", "pipeline/shards.py", "pipeline/jpeg.py", "pipeline/worker.py", "pipeline/augment.py",
              "pipeline/order.py")  # fmt: skip


def product_files() -> list[Path]:
    return sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))


def imports(path: Path) -> list[str]:
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", product_files(), ids=name)
def test_a_room_imports_only_its_neighbours(path: Path) -> None:
    allowed = ALLOWED[path.relative_to(ROOT).parts[0]] | {door for file, door in DOORS.items() if file == name(path)}
    ours = [module.removeprefix("feedline.") for module in imports(path) if module.startswith("feedline.")]
    strangers = [
        module
        for module in ours
        if not any(
            module == door or module.startswith(door + ".") or door.startswith(module + ".") for door in allowed
        )
    ]
    assert not strangers


@pytest.mark.parametrize("path", product_files(), ids=name)
def test_a_heavy_module_has_one_home(path: Path) -> None:
    for module, homes in ONE_HOME.items():
        if any(found == module or found.startswith(module + ".") for found in imports(path)):
            # `from line_profiler import profile` is the user-facing decorator that kernprof looks for.
            decorator = module == "line_profiler" and path.parent.name == "train"
            assert name(path) in homes or decorator


@pytest.mark.parametrize("path", product_files(), ids=name)
def test_no_torch_in_workers_and_executors(path: Path) -> None:
    if name(path).startswith(TORCH_FREE):
        tree = ast.parse(path.read_text())
        top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {a.name for n in top if isinstance(n, ast.Import) for a in n.names}
        names |= {n.module or "" for n in top if isinstance(n, ast.ImportFrom)}
        assert not any(found.split(".")[0] in ("torch", "torchvision") for found in names)


def test_no_package_files() -> None:
    """A root `profiling/__init__.py` would shadow Python 3.15's own `profiling` for scripts run from the checkout."""
    assert not [name(path) for path in product_files() if path.name == "__init__.py"]


def test_the_rule_sees_a_stranger(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text("from feedline.preprocess import job\n")
    assert "feedline.preprocess.job" in imports(path)
    assert sys.version_info >= (3, 11)
