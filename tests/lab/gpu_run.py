"""feedline's checks, GPU tests and GPU experiments on a machine that has a GPU, torch and little else.

    python3 tests/lab/gpu_run.py STEP… [--out OUT --seconds 570 --device auto --kit gpu-kit --work DIR]

From a checkout with the folder that `make gpu-kit` made; no network, Java, Spark or installer is needed, and this
file imports nothing but the standard library. What the machine lacks is unpacked from the kit's wheels into
DIR/site, the checkout is linked there as `feedline`, and the kit's shards are copied until they are more than a
processor's caches hold. A call ends within `--seconds`: a machine may be had for ten minutes at a time. Each call
writes one file, OUT/STEP….json, anew after every command: its status, its last words, and the result file it wrote,
as far as it came. Tests come first, and a check takes what time is left. `--device cpu` tries everything that needs
no GPU, with small settings.

    python3 tests/lab/gpu_run.py --keep OUT/*.json        puts the results where they are committed
"""

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
RESULTS, KERNEL = ROOT / "benchmarks" / "results", ROOT / "pipeline" / "kernel"
TESTS = (
    "tests/pipeline/test_device.py", "tests/pipeline/test_like.py", "tests/pipeline/test_gpu_decode.py",
    "tests/profiling/watch/test_cuda.py", "tests/profiling/machine/test_nvml.py", "tests/train/test_on_gpu.py",
)  # fmt: skip
GRACE_S = 15
"""Of the time that a call has, what its last writing may take; of that, what a command may that is told to stop."""
ENDING_S = 8
TAIL = 4000
EXPERIMENT = "feedline.benchmarks.experiments."


def compiled() -> bool:
    return any(KERNEL.glob("native*.so"))


@dataclass
class Place:
    """What commands are told of this machine."""

    device: str
    work: Path
    until_s: float

    @property
    def gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def left_s(self) -> int:
        return max(1, int(self.until_s - time.monotonic()))

    @property
    def shards(self) -> str:
        return str(self.work / "shards")

    def result_of(self, command: "Command") -> Path:
        return self.work / f"{command.name}.result"

    @property
    def photos(self) -> str:
        return str(self.work / "photos")


@dataclass(frozen=True)
class Command:
    name: str
    """Of its result, as in benchmarks/results."""
    words: list[str]
    """After `python`."""
    result: str = "--out"
    """The option that names a result file; empty: it writes none."""


@dataclass
class Done:
    name: str
    argv: list[str]
    status: int | str
    seconds: float
    tail: str
    result: Any = None


@dataclass
class Report:
    steps: list[str]
    device: str
    started: float = field(default_factory=time.time)
    python: str = platform.python_version()
    compiled_kernel: bool = field(default_factory=compiled)
    """Else the loaders take twice as long for a sample."""
    commands: list[dict[str, Any]] = field(default_factory=list)


# --- the steps ----------------------------------------------------------------------------------------


def check(at: Place) -> Iterator[Command]:
    small = ["--model", "small_cnn", "--image-size", "64", "--batch-size", "16", "--num-workers", "1,2",
             "--window", "0.3"]  # fmt: skip
    page = [
        "--html",
        str(at.work / "gpu-check.html"),
        "--device",
        at.device,
        "--budget",
        str(max(20, at.left_s - 60)),
    ]
    yield Command("gpu-check", feedline("gpu-check", at.shards, *page, *([] if at.gpu else small)), "--json")


def tests(at: Place) -> Iterator[Command]:
    """Warnings of other versions of torch fail no test here."""
    options = ["-m", "gpu", "-q", "-rs", "-W", "default", "-p", "no:cacheprovider"]
    yield Command("gpu-tests", ["-m", "pytest", *options, *TESTS], "--junitxml")


def feed(at: Place) -> Iterator[Command]:
    small = ["--model", "small_cnn", "--image-sizes", "64", "--batch-size", "16", "--workers", "1", "2",
             "--rounds", "1", "--window", "0.3"]  # fmt: skip
    words = [at.shards, "--seconds", str(at.left_s - 30), "--device", at.device, *([] if at.gpu else small)]
    yield Command("gpu-feed", experiment("gpu_feed", *words))


def jpeg(at: Place) -> Iterator[Command]:
    small = ["--image-size", "64", "--batch-size", "16", "--rounds", "2", "--workers", "1"]
    words = [at.shards, "--device", at.device, *(["--workers", "1", "2", "4", "8", "16"] if at.gpu else small)]
    yield Command("gpu-jpeg", experiment("gpu_jpeg", *words))


def recipe(at: Place) -> Iterator[Command]:
    small = ["--model", "small_cnn", "--image-size", "64", "--batch-size", "16", "--steps", "10", "--rounds", "1",
             "--only", "as it is", "channels_last"]  # fmt: skip
    words = [at.shards, "--device", at.device, *([] if at.gpu else small)]
    yield Command("gpu-recipe", experiment("gpu_recipe", *words))


def truth(at: Place) -> Iterator[Command]:
    """Verdicts on planted causes, and starvation against a trace."""
    words = ["--device", at.device, "--busy", "0", "--repeats", "2" if at.gpu else "1"]
    yield Command("gpu-verdicts", experiment("verdicts", *words, *([] if at.gpu else ["--only", "decode"])))
    if at.gpu:
        yield Command("gpu-starvation", experiment("gpu_starvation", "--repeats", "2"))


def overhead(at: Place) -> Iterator[Command]:
    """What watching costs, by the clock."""
    size = ["--repeats", "8", "--samples", "30000"] if at.gpu else ["--repeats", "1", "--samples", "400"]
    yield Command("gpu-overhead", experiment("overhead", "--device", at.device, "--plant", "none", *size))


def occupancy(at: Place) -> Iterator[Command]:
    if at.gpu:
        yield Command("gpu-occupancy", experiment("gpu_occupancy"))


def ladder(at: Place) -> Iterator[Command]:
    """The script everybody writes first: its verdict, and from there to where data is as good as free."""
    images, px, batch, model = ("2000", "224", "64", "mobilenet_v2") if at.gpu else ("200", "32", "8", "small_cnn")
    yield Command("synth", feedline("synth", at.photos, "--layout", "folder", "--images", images), "")
    naive = [str(ROOT / "benchmarks" / "naive.py"), at.photos, "--model", model, "--image-size", px]
    script = [*naive, "--batch-size", batch, "--epochs", "1000"]
    profiled = Command("gpu-naive", feedline("profile", "--legs", "--steps", "60", *script), "--json")
    yield profiled
    climb = ["--work", str(at.work / "ladder"), "--rounds", "2", "--window", "2" if at.gpu else "0.3"]
    climb += ["--profiled", str(at.result_of(profiled))]
    yield Command("gpu-ladder", feedline("ladder", *climb, at.photos, *script), "--json")


def predictions(at: Place) -> Iterator[Command]:
    """The remedies of two scripts, which take eight minutes there, a file after each; a second call goes on where the
    first one stopped. On a CPU it is an experiment of its own."""
    if at.gpu:
        words = ["--work", str(at.work / "predictions"), "--rounds", "1"]
        yield Command("gpu-predictions", experiment("predictions", *words))


STEPS: dict[str, Callable[[Place], Iterator[Command]]] = {
    step.__name__: step
    for step in (tests, check, feed, truth, overhead, occupancy, jpeg, recipe, ladder, predictions)
}


def feedline(verb: str, *words: str) -> list[str]:
    return ["-m", "feedline.cli.main", verb, *words]


def experiment(name: str, *words: str) -> list[str]:
    return ["-m", EXPERIMENT + name, *words]


# --- the machine --------------------------------------------------------------------------------------


def install(kit: Path, site: Path) -> list[str]:
    """What the machine lacks, unpacked, and the checkout as the package `feedline`; names what was unpacked."""
    site.mkdir(parents=True, exist_ok=True)
    unpacked: list[str] = []
    for wheel in sorted((kit / "wheels").glob("*.whl")):
        name = wheel.name.partition("-")[0]
        if not is_installed(name):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)
            unpacked.append(name)
    for kernel in kit.glob("native*.so"):  # a checkout that was cloned has none
        if not compiled():
            shutil.copyfile(kernel, KERNEL / kernel.name)
            unpacked.append(kernel.name)
    for info in kit.glob("feedline-*.dist-info"):
        shutil.copytree(info, site / info.name, dirs_exist_ok=True)
    link = site / "feedline"
    link.unlink(missing_ok=True)
    link.symlink_to(ROOT)
    return unpacked


def is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


LENGTHEN = """
import sys
from pathlib import Path
from feedline.benchmarks.sample_shards import EPOCH, IMAGES, lengthen, read_manifest
for split in Path(sys.argv[1]).glob("*/train"):
    samples = read_manifest(split).samples
    lengthen(split, EPOCH, -(-IMAGES // samples) if sys.argv[2] == "cuda" else 1)
"""


def prepare(at: Place, kit: Path) -> Iterator[Command]:
    """Long epochs of many bytes, of the kit's few pictures; they stay for the calls that follow."""
    ready = at.work / "shards.ready"
    if not ready.exists():
        shutil.rmtree(at.shards, ignore_errors=True)
        shutil.copytree(kit / "shards", at.shards)
        yield Command("shards", ["-c", LENGTHEN, at.shards, at.device], "")
        ready.touch()


def environment(site: Path) -> dict[str, str]:
    """Some machines' torch comes without bytecode: to compile it takes 10 s, at every start."""
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH", "")]))
    bytecode = {"PYTHONPYCACHEPREFIX": str(site.with_name("bytecode")), "PYTHONDONTWRITEBYTECODE": ""}
    return {**os.environ, **bytecode, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def run(command: Command, at: Place, site: Path) -> Done:
    """Within the time that is left; what a command that outlasts it has written is kept."""
    result = at.result_of(command)
    result.unlink(missing_ok=True)
    argv = [sys.executable, *command.words[:2], *with_result(command, result)]
    began_s = time.monotonic()
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(argv, cwd=ROOT, env=environment(site), stdout=log, stderr=log,
                                   stdin=subprocess.DEVNULL, process_group=0)  # fmt: skip
        try:
            status: int | str = process.wait(at.left_s)
        except subprocess.TimeoutExpired:
            status = "the time was over"
            os.killpg(process.pid, signal.SIGINT)  # pytest then writes what it has
            with suppress(subprocess.TimeoutExpired):
                process.wait(ENDING_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.seek(0)
        tail = log.read()[-TAIL:]
    return Done(command.name, argv[1:], status, round(time.monotonic() - began_s, 1), tail, read_result(result))


def with_result(command: Command, result: Path) -> list[str]:
    """Options of ours stand before a verb's own words: behind a script they would be the script's."""
    rest = command.words[2:]
    if not command.result:
        return rest
    verb = rest[:1] if command.words[1] == "feedline.cli.main" else []
    return [*verb, command.result, str(result), *rest[len(verb) :]]


def read_result(path: Path) -> Any:
    if not path.exists():
        return None
    text = path.read_text(errors="replace")
    try:
        return counts(ElementTree.fromstring(text)) if text.startswith("<") else json.loads(text)
    except (ValueError, ElementTree.ParseError) as error:
        return {"unreadable": str(error)}


def counts(report: ElementTree.Element) -> dict[str, Any]:
    """Of a JUnit file: how many tests passed and were skipped, which failed and why."""
    cases = list(report.iter("testcase"))
    failed = {f"{case.get('classname')}.{case.get('name')}": (bad.get("message") or "")[:500]
              for case in cases for bad in case if bad.tag in ("failure", "error")}  # fmt: skip
    skipped = sum(case.find("skipped") is not None for case in cases)
    return {"passed": len(cases) - skipped - len(failed), "skipped": skipped, "failed": failed}


# --- a call -------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="+", metavar="STEP", help=f"{', '.join(STEPS)}; with --keep, files")
    parser.add_argument("--out", type=Path, default=Path("gpu-results"))
    parser.add_argument("--seconds", type=float, default=570.0)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--kit", type=Path, default=ROOT / "gpu-kit")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "feedline-gpu")
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    if args.keep:
        return keep([Path(step) for step in args.steps])
    if unknown := [step for step in args.steps if step not in STEPS]:
        parser.error(f"{unknown[0]} is none of {', '.join(STEPS)}")
    if not (args.kit / "wheels").is_dir():
        parser.error(f"{args.kit} is no kit: make gpu-kit, where there is a network")
    until_s = time.monotonic() + args.seconds - GRACE_S
    site = args.work / "site"
    unpacked = install(args.kit, site)
    device = args.device if args.device != "auto" else found_device(site)
    without = "" if compiled() else "; no compiled kernel: loaders take twice as long for a sample"
    print(f"{device}; unpacked {', '.join(unpacked) or 'nothing'}{without}", flush=True)
    at = Place(device, args.work, until_s)
    report, file = Report(args.steps, device), args.out / f"{'-'.join(args.steps)}.json"
    args.out.mkdir(parents=True, exist_ok=True)
    for command in commands(at, args.kit, args.steps):
        over = time.monotonic() >= until_s
        done = Done(command.name, [], "the time was over", 0.0, "not started") if over else run(command, at, site)
        report.commands.append(asdict(done))
        part = file.with_suffix(".part")
        part.write_text(json.dumps(asdict(report), indent=1, default=str) + "\n")
        part.replace(file)
        print(f"--- {done.name}: {done.status}, {done.seconds} s\n{done.tail}", flush=True)
        if over:  # nor what follows
            break
    if (page := args.work / "gpu-check.html").exists():
        shutil.copyfile(page, args.out / page.name)
    return int(any(done["status"] != 0 for done in report.commands))


def commands(at: Place, kit: Path, steps: list[str]) -> Iterator[Command]:
    """Each is asked for when the one before it is done: it knows how much time is left."""
    yield from prepare(at, kit)
    for step in (step for step in STEPS if step in steps):
        yield from STEPS[step](at)


def found_device(site: Path) -> str:
    code = "import torch; print('cuda' if torch.cuda.is_available() else 'cpu')"
    told = subprocess.run([sys.executable, "-c", code], env=environment(site), capture_output=True, text=True)
    if told.returncode:
        sys.exit(f"torch cannot be imported here: {told.stderr.strip().splitlines()[-1]}")
    return told.stdout.split()[-1]


def keep(files: list[Path]) -> int:
    """Results of a GPU, each to the file that the repository has of it."""
    for file in files:
        report = json.loads(file.read_text())
        for done in report["commands"]:
            if report["device"] == "cuda" and done["result"]:
                (RESULTS / f"{done['name']}.json").write_text(json.dumps(done["result"], indent=1) + "\n")
                print(f"{done['name']}: {done['status']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
