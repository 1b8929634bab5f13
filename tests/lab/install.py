"""Every extra in a clean environment, and its verbs there.

    python -m tests.lab.install [--python 3.11 --python 3.13] [--only base --only shards] --work DIR

Builds wheel and sdist from the tracked files, checks both with twine, and installs the wheel with `uv` from the
registry that the environment names: stock Pillow, and torch only where the extra or the case brings it. Java is used
by `prepare` alone; `no compiler` installs the sdist with none on the path, and runs the loader's tests there.
Prints a table; the exit status is 1 when a step did something else than it should.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UV = str(Path(sys.executable).with_name("uv"))
SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset
for _ in DataLoader(TensorDataset(torch.zeros(4000, 8)), batch_size=8):
    pass
"""
SPACE = "[lr]\nlow = 0.01\nhigh = 0.1\n"


@dataclass(frozen=True)
class Step:
    line: str
    """The command's words; DATA, SHARDS, OUT, SCRIPT and SPACE are places."""
    status: int = 0
    says: str = ""
    """Stands in what it prints."""


@dataclass(frozen=True)
class Case:
    extra: str
    packages: tuple[str, ...]
    """Beside the wheel."""
    without: tuple[str, ...]
    """What must not have come along."""
    steps: tuple[Step, ...]
    compiler: bool = True
    """Else the sdist is installed, and a C compiler is not to be found."""
    tests: tuple[str, ...] = ()
    """Of this checkout, by pytest: patterns of paths."""


NO_SPARK = ("pyspark", "pandas", "scipy", "py4j")
JAVA = r"javac?"
NEITHER = JAVA + r"|(.*-)?(cc|c89|c99|gcc|cpp|c\+\+|g\+\+|clang|clang\+\+|tcc)(-[\d.]+)?"
ASKS = "pip install 'feedline["
SYNTH = Step("synth DATA --images 200 --classes 4 --oddities", says="images")
PREPARE = Step("prepare DATA SHARDS --output 64:jpeg --output 32:raw:square --max-bad 0.2", says="samples/s")
WITHOUT_JAVA = Step(PREPARE.line, says="processes of this machine")
COMPARE = "compare SHARDS/32-raw --num-workers 0,1 --image-size 32 --rounds 3 --window 0.3 --work OUT/compare"
SMALL = "SHARDS/32-raw --model small_cnn --image-size 32 --epochs 1"
TRAIN = f"train {SMALL} --keep-epochs 0 --run OUT/run"
SWEEP = f"sweep {SMALL} --space SPACE --study OUT/study --trials 2"
CASES = {
    "base": Case("", (), ("torch", "pillow", "pyarrow", *NO_SPARK), (
        Step("--help"), Step("doctor", says="profile"), Step("train SHARDS", 2, ASKS),
        Step("prepare DATA SHARDS", 2, ASKS), Step("verify SHARDS", 2, ASKS), Step("synth DATA", 2, ASKS))),
    "base with torch": Case("", ("torch", "torchvision"), ("pyarrow", *NO_SPARK), (
        Step("profile --json OUT/profile.json SCRIPT", says="samples/s"), Step("report OUT/profile.json"))),
    "shards": Case("shards", (), ("torch", *NO_SPARK), (
        SYNTH, WITHOUT_JAVA, Step("verify SHARDS"), Step("inspect SHARDS"), Step(TRAIN, 2, ASKS),
        Step("prepare DATA OUT/again --engine spark", 1, f"{ASKS}prepare]"), Step("doctor", says="prepare"))),
    "prepare": Case("prepare", (), ("torch", "pandas", "scipy"), (SYNTH, PREPARE, Step("verify SHARDS"))),
    "train": Case("train", (), NO_SPARK, (
        SYNTH, WITHOUT_JAVA, Step(TRAIN), Step("prune OUT/run --keep 0.5", says="study.html"), Step(SWEEP, 2, ASKS),
        Step(COMPARE), Step("plan SHARDS/32-raw --gpu-rate 1000 --image-size 32"),
        Step("demo --quick --out OUT/demo"))),
    "sweep": Case("sweep", (), NO_SPARK, (SYNTH, WITHOUT_JAVA, Step(SWEEP, says="study.html"))),
    "test": Case("train,test", ("pytest", "hypothesis"), NO_SPARK, (), tests=("profiling/test_notebook.py",)),
    "no compiler": Case("train", ("pytest", "hypothesis"), NO_SPARK, (
        Step("doctor", says="it was not built"), SYNTH, WITHOUT_JAVA, Step("verify SHARDS"), Step(TRAIN)),
        compiler=False, tests=("pipeline/test_loader*.py", "pipeline/workers")),
    "all": Case("all", (), (), (
        Step("doctor", says="Spark"), Step("--version"), Step("--show-completion", says="COMPREPLY"))),
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--python", action="append", help="version or path (this one's)")
    parser.add_argument("--only", action="append", choices=CASES)
    parser.add_argument("--work", type=Path, required=True)
    args = parser.parse_args()
    wheel, sdist = build(args.work / "dist")
    failed = 0
    for python in args.python or [sys.executable]:
        for name in args.only or CASES:
            packed = wheel if CASES[name].compiler else sdist
            failed += not try_case(name, CASES[name], python, packed, args.work / "case")
    return int(failed > 0)


def build(out: Path) -> tuple[Path, Path]:
    """Wheel and sdist, of a copy of the tracked files."""
    shutil.rmtree(out, ignore_errors=True)
    source = out / "source"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name)
    building = [sys.executable, "-m", "build", "--no-isolation", "-o", out / "made", source]
    subprocess.run(building, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    made = sorted((out / "made").iterdir())
    subprocess.run([UV, "tool", "run", "-q", "twine", "check", "--strict", *made], check=True)
    sdist, wheel = sorted(made, key=lambda path: path.suffix == ".whl")
    return wheel, sdist


def try_case(name: str, case: Case, python: str, packed: Path, work: Path) -> bool:
    shutil.rmtree(work, ignore_errors=True)
    places = {word: str(work / word.lower()) for word in ("DATA", "SHARDS", "OUT")}
    (work / "out").mkdir(parents=True)
    for word, name, text in (("SCRIPT", "script.py", SCRIPT), ("SPACE", "space.toml", SPACE)):
        (work / name).write_text(text)
        places[word] = str(work / name)
    started = time.monotonic()
    subprocess.run([UV, "venv", "-q", "--python", python, work / "venv"], check=True)
    target = f"{packed}[{case.extra}]" if case.extra else str(packed)
    inside = work / "venv" / "bin"
    lacking = JAVA if case.compiler else NEITHER
    programs = os.environ["PATH"] if case.extra == "prepare" else path_without(work, lacking)
    installing = [UV, "pip", "install", "-q", "--python", inside / "python", target, *case.packages]
    subprocess.run(installing, check=True, env={**os.environ, "PATH": programs})
    listed = subprocess.run([UV, "pip", "list", "-q", "--python", inside / "python"], capture_output=True, text=True)
    here = {line.split()[0].lower() for line in listed.stdout.splitlines()[2:]}
    wrong = [f"{package} came along" for package in case.without if package in here]
    took_s = time.monotonic() - started
    print(f"{name}, Python {python}: {len(here)} packages in {took_s:.0f} s", flush=True)
    environment = {"HOME": str(work), "PATH": f"{inside}:{programs}"}
    for step in case.steps:
        words = step.line.split()
        for place, path in places.items():
            words = [word.replace(place, path) for word in words]
        began = time.monotonic()
        command = [
            "bash",
            "-c",
            'feedline "$@"; exit $?',
            "bash",
            *words,
        ]  # a shell, whose completion can be asked for
        done = subprocess.run(command, capture_output=True, text=True, cwd=work, env=environment)
        output = done.stdout + done.stderr
        lines = done.stderr.strip().splitlines()
        good = done.returncode == step.status and step.says in output and "Traceback" not in output
        good = good and (step.status != 2 or len(lines) == 1)
        if not good:
            wrong.append(f"{step.line}: status {done.returncode}: {output.strip()[-400:]}")
        print(f"  {'ok' if good else 'WRONG':<6} {time.monotonic() - began:6.1f} s  feedline {step.line}", flush=True)
    if case.tests:
        wrong += test(case.tests, inside / "python", work, environment)
    for words in wrong:
        print(f"  -> {words}", flush=True)
    return not wrong


def test(patterns: tuple[str, ...], python: Path, work: Path, environment: dict[str, str]) -> list[str]:
    """What pytest says of a copy of these tests, where they fail. Away from the checkout: what is installed runs."""
    shutil.copytree(ROOT / "tests", work / "tests")
    paths = sorted(path for pattern in patterns for path in (work / "tests").glob(pattern))
    command = [python, "-m", "pytest", "-q", "--import-mode=importlib", "-p", "no:cacheprovider", *paths]
    done = subprocess.run(command, capture_output=True, text=True, cwd=work, env=environment)
    said = (done.stdout + done.stderr).strip()
    print(f"  {'WRONG' if done.returncode else 'ok':<6} pytest: {said.splitlines()[-1]}", flush=True)
    return [f"pytest: {said[-2000:]}"] if done.returncode else []


def path_without(work: Path, names: str) -> str:
    """A folder of links to the system's programs, but for those that the pattern names."""
    folder = work / "bin"
    folder.mkdir(exist_ok=True)
    for where in ("/usr/bin", "/bin"):
        for program in Path(where).iterdir():
            if not re.fullmatch(names, program.name) and not (folder / program.name).exists():
                (folder / program.name).symlink_to(program)
    return str(folder)


if __name__ == "__main__":
    sys.exit(main())
