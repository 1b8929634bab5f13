"""One run of one script of the collection: as it is, profiled, to its end, or with a remedy; kept under a name that
holds what it depends on.

A run is a folder of `WORK/records`: `run.json` (written last: without it the run is made again), the stopwatch's
`laps`, what it printed, and the profiler's `profile.json`. The script's working directory and temporary folder are
its own and gone afterwards; the home folder is one for all, with their caches.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.process import CpuClocks
from tests.lab.collection_processes import end, left, text_of, watch

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests" / "scripts"
HELD_OUT = "held_out"
"""Their folder in there."""
PRODUCT = ("cli", "pipeline", "preprocess", "profiling", "benchmarks/what_if.py")
READS = ("cli/report.py", "profiling/explain", "profiling/render")
"""What makes a verdict of a recording, which is done again when it changes; the rest makes the recording."""
IMAGES, SMALL = 2200, 400
PLAIN_S, GAIN_S, PROFILE_S, LEGS_S = 30.0, 16.0, 20, 12
SETTLE_S = 3.0
"""Of a run without a profiler, from its third step on, that is in no share and no rate."""
Kind = Literal["plain", "profiled", "legs", "whole", "whole_profiled", "without", "with"]
PROFILED = ("profiled", "legs", "whole_profiled")
TRAINS_S = {"plain": PLAIN_S, "without": GAIN_S, "with": GAIN_S, "profiled": 45.0, "legs": 150.0}
"""From when it trains on; what is profiled is interrupted then."""
NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, kw_only=True)
class Script:
    """One table of truths.toml."""

    name: str
    framework: str
    launch: str
    arguments: Sequence[str]
    bound: Sequence[str]
    cause: Sequence[str]
    remedies: Sequence[str]
    truth: str
    why: str
    share: str
    writes: Sequence[str]
    folder: Path = SCRIPTS

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.py"

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    def option(self, pattern: str) -> str | None:
        """That of its own options."""
        found = re.search(rf'"(--{pattern})"', self.text)
        return found and found[1]

    @property
    def shortened(self) -> list[str]:
        """Arguments with which it comes to its end soon."""
        if epochs := self.option(r"(?:num[-_]|n[-_]?)?(?:epochs?|iter)"):
            return [epochs, "1"]
        steps = self.option("(?:num-|max-|micro-)?steps")
        return [steps, "40"] if steps else []


def scripts(only: Sequence[str] = (), *, held_out: bool = False) -> list[Script]:
    """All of one folder, or those of these names of both."""
    folders = [SCRIPTS, SCRIPTS / HELD_OUT] if only else [SCRIPTS / HELD_OUT if held_out else SCRIPTS]
    found = [
        Script(name=name, folder=folder, **table)
        for folder in folders
        for name, table in tomllib.loads((folder / "truths.toml").read_text()).items()
        if not only or name in only
    ]
    if unknown := set(only) - {script.name for script in found}:
        raise UsageError(f"no script {', '.join(sorted(unknown))} in truths.toml")
    return found


@dataclass(frozen=True, kw_only=True)
class Lap:
    name: str
    pid: int
    start_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True)
class Ran:
    """Facts of one run, its times by the monotonic clock."""

    kind: Kind
    command: list[str]
    status: int | None
    """None: we ended it."""
    interrupted: bool = False
    """A profile whose script trained on when it should have been over: Ctrl-C."""
    seconds: float = 0.0
    others_cores: float | None = None
    """What other programs took meanwhile, those of `--busy` too."""
    origin_s: float | None = None
    """When the profiler started the script."""
    files: list[str] = field(default_factory=list)
    """What is left in its working directory."""
    temporary: list[str] = field(default_factory=list)
    processes: list[str] = field(default_factory=list)
    """What still ran when it had ended."""
    folder: Path = Path()
    told: str = "profile.json"

    @cached_property
    def laps(self) -> list[Lap]:
        rows = (row.split() for row in text_of(self.folder / "laps").splitlines())
        return [Lap(name=n, pid=int(p), start_s=float(end) - float(s), end_s=float(end)) for n, p, end, s in rows]

    @cached_property
    def profile(self) -> dict[str, Any]:
        """The record of `feedline profile`, with what is told of it anew; empty where there is none."""
        texts = [text_of(self.folder / name) for name in ("profile.json", self.told)]
        return {key: value for text in texts if text for key, value in json.loads(text).items()}

    @property
    def printed(self) -> str:
        return text_of(self.folder / "output.txt")


@dataclass(frozen=True, kw_only=True)
class Lab:
    """Where runs are made and kept, and with which profiler."""

    work: Path
    feedline: Path
    frameworks: Path
    busy: int = 0
    say: Callable[[str], None] = print

    @property
    def data(self) -> Path:
        return self.work / "data"

    @property
    def small(self) -> Path:
        return self.work / "small"

    @cached_property
    def recorder(self) -> str:
        """Of the code that makes recordings."""
        return digest(file.read_bytes() for file in self._code(PRODUCT) if file not in self._code(READS))

    @cached_property
    def reader(self) -> str:
        """Of the code that tells a verdict from them."""
        return digest(file.read_bytes() for file in self._code(READS))

    def _code(self, parts: Iterable[str]) -> list[Path]:
        paths = [self.feedline.parents[2] / part for part in parts]
        return [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*.py")))]

    @cached_property
    def common(self) -> str:
        """Of what every script runs with."""
        files = [SCRIPTS / "stopwatch.py", SCRIPTS / "frameworks.txt", ROOT / "requirements.txt"]
        return digest([sys.version.encode(), str(IMAGES).encode(), *(file.read_bytes() for file in files)])

    def make_data(self) -> None:
        """DATA/photos: what `feedline synth` draws; and a fifth of it for runs to the end."""
        if not (self.data / "photos").exists():
            self.say(f"drawing {IMAGES} photographs")
            drawn = self.work / "synth"
            synth = [Path(sys.executable).with_name("feedline"), "synth", drawn, "--layout", "folder"]
            subprocess.run([*synth, "--images", str(IMAGES)], check=True, stdout=subprocess.DEVNULL)
            self.data.mkdir(parents=True, exist_ok=True)
            (drawn / "train").rename(self.data / "photos")
            shutil.rmtree(drawn)
        if not self.small.exists():
            for folder in sorted((self.data / "photos").iterdir()):
                (self.small / "photos" / folder.name).mkdir(parents=True)
                for file in sorted(folder.iterdir())[: SMALL // 10]:
                    os.link(file, self.small / "photos" / folder.name / file.name)

    def run(
        self,
        kind: Kind,
        script: Script,
        number: int = 0,
        more: Sequence[str] = (),
        env: Mapping[str, str] = NOTHING,
    ) -> Ran:
        """The kept one, or made now; its verdict is that of the present code."""
        profiling = kind in PROFILED
        parts = [self.common, script.text, *script.arguments, script.launch, *more, *(f"{n}={env[n]}" for n in env)]
        parts += [str((PLAIN_S, GAIN_S, PROFILE_S, LEGS_S)), self.recorder if profiling else ""]
        busy = f"busy{self.busy}-" if self.busy and profiling else ""
        folder = self.work / "records" / f"{script.name}.{kind}-{busy}{number}.{digest(p.encode() for p in parts)}"
        if not (folder / "run.json").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            ran = self._make(kind, script, [*script.arguments, *more], env, folder)
            facts = {name: value for name, value in asdict(ran).items() if name not in ("folder", "told")}
            (folder / "run.json").write_text(json.dumps(facts, indent=1))
        ran = Ran(**json.loads((folder / "run.json").read_text()), folder=folder, told=f"told-{self.reader}.json")
        if (recording := folder / "profile.json").exists() and not (told := folder / ran.told).exists():
            subprocess.run(
                [self.feedline, "report", recording, "--json", told], check=True, stdout=subprocess.DEVNULL
            )
        return ran

    def _make(self, kind: Kind, script: Script, more: Sequence[str], env: Mapping[str, str], folder: Path) -> Ran:
        place, home = self.work / "run", self.work / "home"
        shutil.rmtree(place, ignore_errors=True)
        for path in (place / "here", place / "tmp", home):
            path.mkdir(parents=True, exist_ok=True)
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("FEEDLINE_", "MALLOC_"))
        }
        own = {"HOME": home, "XDG_CACHE_HOME": home / ".cache", "TORCHINDUCTOR_CACHE_DIR": home / "inductor",
               "TMPDIR": place / "tmp", "STOPWATCH": folder / "laps", "PYTHONPATH": self.frameworks}  # fmt: skip
        environment = {**inherited, **{name: str(path) for name, path in own.items()}, "HF_HUB_OFFLINE": "1", **env}
        command = self._command(kind, script, more, folder)
        began, before = time.monotonic(), CpuClocks.now()
        with (folder / "output.txt").open("wb") as output:
            process = subprocess.Popen(
                command, cwd=place / "here", env=environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                status, interrupted, origin_s = watch(
                    process,
                    folder / "laps",
                    trains_s=TRAINS_S.get(kind),
                    profiles=script.path.name if kind in PROFILED else "",
                )
                others_cores = round(CpuClocks.now().since(before).others_cores, 2)
                processes = [] if status is None else left(process.pid)
            finally:
                end(process)
        ran = Ran(
            kind=kind, command=[_short(word, self) for word in command], status=status, interrupted=interrupted,
            seconds=time.monotonic() - began, others_cores=others_cores, origin_s=origin_s,
            files=_files(place / "here"), temporary=_files(place / "tmp"), processes=processes, folder=folder,
        )  # fmt: skip
        shutil.rmtree(place, ignore_errors=True)
        return ran

    def _command(self, kind: Kind, script: Script, more: Sequence[str], folder: Path) -> list[str]:
        whole = kind.startswith("whole")
        words = [
            str(script.path),
            str(self.small if whole else self.data),
            *more,
            *(script.shortened if whole else ()),
        ]
        torchrun = ["--standalone", "--nproc-per-node", *script.launch.split()[1:]] if " " in script.launch else []
        python = str(self.feedline.with_name("python"))
        if kind not in PROFILED:
            return [python, *(["-m", "torch.distributed.run", *torchrun] if torchrun else []), *words]
        how = {
            "profiled": ["--seconds", str(PROFILE_S)],
            "legs": ["--seconds", str(LEGS_S), "--legs"],
            "whole_profiled": ["--no-trials"],
        }[kind]
        profile = [str(self.feedline), "profile", *how, "--json", str(folder / "profile.json")]
        return [*profile, *(["torchrun", *torchrun] if torchrun else []), *words]


def digest(parts: Iterable[bytes]) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()[:12]


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _short(word: str, lab: Lab) -> str:
    """Without this machine's folders."""
    for path, name in ((lab.work, "WORK"), (SCRIPTS, "tests/scripts"), (lab.feedline.parent, "BIN")):
        word = word.replace(str(path), name)
    return word
