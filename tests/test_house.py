"""The house keeps its walls: who may import whom, no circles, one noun a file, nothing heavy in a user's script."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("pipeline", "preprocess", "profiling", "train", "benchmarks", "cli")
OUTSIDE_THE_WHEEL = ("benchmarks/experiments", "benchmarks/peers")

# A folder -> the folders it may import from, itself and pipeline.base apart. The same table is in CONTRIBUTING.md.
ALLOWED: dict[str, set[str]] = {
    "pipeline.base": set(),
    "pipeline.format": {"pipeline.codecs"},
    "pipeline.kernel": set(),
    "pipeline.draw": {"pipeline.kernel"},
    "pipeline.codecs": {"pipeline.draw", "pipeline.kernel"},
    "pipeline.workers": {"pipeline.format", "pipeline.codecs", "pipeline.draw"},
    "pipeline": {"pipeline.format", "pipeline.codecs", "pipeline.draw", "pipeline.workers"},
    "preprocess.sources": {"pipeline.format", "pipeline.codecs"},
    "preprocess.synth": {"preprocess.sources"},
    "preprocess": {"pipeline.format", "pipeline.codecs", "preprocess.sources"},
    "profiling.record": set(),
    "profiling.machine": {"profiling.record"},
    "profiling.watch": {"profiling.record", "pipeline"},  # `like`, where that is installed
    "profiling.watch.legs": {"profiling.record", "profiling.watch"},
    "profiling.explain.measure": {"profiling.record"},
    "profiling.explain.remedies": {"profiling.record", "profiling.explain.measure"},
    "profiling.explain": {"profiling.record", "profiling.explain.measure", "profiling.explain.remedies"},
    "profiling.render": {"profiling.record", "profiling.explain", "profiling.explain.measure"},
    "profiling": {
        *("profiling.record", "profiling.machine", "profiling.watch", "profiling.watch.legs"),
        *("profiling.explain", "profiling.render"),
    },
    "train": {"pipeline", "pipeline.format", "profiling.machine", "profiling.record"},
    "train.study": {"train"},
    "benchmarks": {"*"},
    "benchmarks.measure": {"*"},
    "benchmarks.experiments": {"*"},
    "benchmarks.peers": {"*"},
    "cli": {"*"},
}
DOORS = {"train.main": {"cli.main"}}
"""Modules that are programs: what torchrun and kernprof start by the room's name is the command line all the same."""
NOT_IN_THE_PRODUCT = {"benchmarks.experiments", "benchmarks.peers"}
ONE_HOME = {
    "pyspark": {"preprocess/spark.py"},
    "pynvml": {"profiling/machine/nvml.py"},
    "jinja2": {"profiling/render/html.py"},
    "optuna": {"train/study/search.py"},
    "line_profiler": {"profiling/watch/legs/lines.py", "train/line_profile.py"},
}
TORCH_FREE = (
    "preprocess",
    "pipeline/base",
    "pipeline/format",
    "pipeline/codecs",
    "pipeline/draw",
    "pipeline/kernel",
    "pipeline/workers",
)
LINES = 400
TWICE = {"base", "main", "config", "plan"}
"""File names that may stand in two rooms; a verb's file in cli/ may bear the name of what it starts."""


@cache
def modules() -> dict[str, Path]:
    paths = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in paths}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def imports(path: Path) -> list[str]:
    """Every name that is imported anywhere in the file, in functions and for types too."""
    return [name for node in ast.walk(tree(path)) for name in imported(node)]


def ours(path: Path) -> set[str]:
    """The product's modules among them."""
    names = {name.removeprefix("feedline.") for name in imports(path) if name.startswith("feedline.")}
    return names & modules().keys()


def folder(module: str) -> str:
    return module.rpartition(".")[0]


@pytest.mark.parametrize("module", modules())
def test_a_folder_imports_only_what_lies_below_it(module: str) -> None:
    here = folder(module)
    allowed = ALLOWED[here] | {here, "pipeline.base"}
    used = ours(modules()[module]) - DOORS.get(module, set())
    upward = [name for name in used if folder(name) not in allowed and "*" not in allowed]
    if here not in NOT_IN_THE_PRODUCT:
        upward += [name for name in ours(modules()[module]) if folder(name) in NOT_IN_THE_PRODUCT]
    assert not upward


def test_no_module_imports_itself_through_others() -> None:
    graph = {module: ours(path) for module, path in modules().items()}
    while free := [module for module, needs in graph.items() if not needs & graph.keys()]:
        for module in free:
            del graph[module]
    behind = {module for needs in graph.values() for module in needs}
    assert not sorted(graph.keys() & behind)


@pytest.mark.parametrize("module", modules())
def test_a_file_is_short(module: str) -> None:
    assert len(modules()[module].read_text().splitlines()) <= LINES


def test_a_file_name_stands_for_one_idea() -> None:
    by_name: dict[str, list[str]] = defaultdict(list)
    for module in modules():
        by_name[module.rpartition(".")[2]].append(module)
    verbs = {name for name in by_name if f"cli.{name}" in modules()}
    several = {
        name: where for name, where in by_name.items() if len(where) - (name in verbs) > (2 if name in TWICE else 1)
    }
    assert not several


@pytest.mark.parametrize("module", modules())
def test_what_is_installed_needs_nothing_of_the_checkout(module: str) -> None:
    path = modules()[module]
    if not path.relative_to(ROOT).as_posix().startswith(OUTSIDE_THE_WHEEL):
        assert not [name for name in imports(path) if name.startswith("tests")]
        strings = [node.value for node in ast.walk(tree(path)) if isinstance(node, ast.Constant)]
        assert not [text for text in strings if isinstance(text, str) and "tests/" in text]


@pytest.mark.parametrize("module", modules())
def test_a_heavy_module_has_one_home(module: str) -> None:
    path = modules()[module]
    for heavy, homes in ONE_HOME.items():
        if any(name == heavy or name.startswith(heavy + ".") for name in imports(path)):
            assert path.relative_to(ROOT).as_posix() in homes


def test_the_ground_floor_stands_on_the_standard_library_and_psutil() -> None:
    floor = [path for module, path in modules().items() if folder(module) == "pipeline.base"]
    used = {name.partition(".")[0] for path in floor for name in imports(path)}
    assert not used - sys.stdlib_module_names - {"feedline", "psutil"}


@pytest.mark.parametrize("module", modules())
def test_no_torch_in_workers_and_executors(module: str) -> None:
    path = modules()[module]
    if path.relative_to(ROOT).as_posix().startswith(TORCH_FREE):
        names = {name.partition(".")[0] for node in tree(path).body for name in imported(node)}
        assert not names & {"torch", "torchvision"}


def test_no_package_files() -> None:
    """A root `profiling/__init__.py` would shadow Python 3.15's own `profiling` for scripts run from the checkout."""
    assert not [module for module in modules() if module.endswith("__init__")]


HEAVY = {"torch", "torchvision", "numpy", "pyarrow", "pandas", "cv2", "PIL", "pyspark", "scipy", "matplotlib", "rich"}
SLOW = {"ctypes", "multiprocessing", "platform", "psutil", "statistics", "subprocess", "sysconfig"}
"""What every interpreter of a profiled run would pay for, the standard library's too."""


def loaded_by(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after `code`."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def rooms_of(loaded: set[str]) -> set[str]:
    """Folders of the product's modules among them."""
    return {folder(module) for module in modules() if f"feedline.{module}" in loaded}


def test_what_runs_inside_a_users_script_imports_little() -> None:
    loaded = loaded_by("import feedline.profiling.probe")
    assert not loaded & (HEAVY | SLOW)
    assert rooms_of(loaded) == {"profiling", "profiling.watch", "profiling.record", "pipeline.base"}
    assert "feedline.profiling.record.recording" not in loaded


def test_a_profile_inside_a_process_imports_what_explains_it_only_to_be_read() -> None:
    loaded = loaded_by("import feedline.profiling.profile")
    assert not loaded & HEAVY
    assert not rooms_of(loaded) & {"profiling.explain", "profiling.explain.measure", "profiling.render"}


def test_the_command_line_imports_nothing_heavy() -> None:
    assert loaded_by("import feedline.cli.main") & HEAVY <= {"rich"}


def test_the_rules_see_a_stranger(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text("def f():\n    from feedline.preprocess import spark\n")
    assert ours(path) == {"preprocess.spark"}


def test_contributing_names_what_is_there() -> None:
    """Of each change the files, and what is in them."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    changes = re.sub(r"`[\w/]+/NAME\.\w+`", "", text[text.index("\n## Add or change") : text.index("\n## Measure")])
    there = [f"/{path.relative_to(ROOT).as_posix()}/" for path in (*ROOT.glob("*.*"), *ROOT.glob("[a-z]*/**/*"))]

    def paths(name: str) -> list[Path]:
        return [ROOT / path.strip("/") for path in there if path.endswith(f"/{name.strip('/')}/")]

    named = re.findall(r"`([a-z_]+/[\w/.-]*|[\w-]+\.(?:py|css|html|[ch]|sh|toml))`", changes)
    gone = [name for name in named if not paths(name)]
    for name, file in re.findall(r"`(\w+)` (?:in|of) `([\w/]+\.\w+)`", changes):
        if not any(re.search(rf"\b{name}\b", path.read_text()) for path in paths(file)):
            gone.append(f"{name} in {file}")
    assert len(named) > 100 and not gone
