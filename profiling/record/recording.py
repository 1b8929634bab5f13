"""What was seen of one run: plain frozen dataclasses, and their JSON.

A recording holds facts, never judgements: `profiling.explain.verdict` turns it into a verdict, `profiling.render`
into something to look at, both without running anything again. All times are seconds of the monotonic clock since
`Recording.started`; everything that could not be measured is None, never 0.

The file is one JSON object. It is either a bare recording or the record of `feedline profile --json`, which keeps the
recording under the key "recording". Fields may be added within a version; a reader ignores those it does not know and
fills those it misses with their defaults.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

from feedline.pipeline.base.errors import RecordingError
from feedline.pipeline.base.files import RECORDING_BYTES, read_bounded, refused_as, write_as_asked
from feedline.profiling.record.journal import Compute, LegName
from feedline.profiling.record.measurements import Gpu, Leg, Line, Reads, Series, Trial
from feedline.profiling.record.plain import build, to_plain

FORMAT_VERSION = 2
AUGMENT = ("whole", "scale", "crop_fraction", "train")  # what of `LoaderSeen.augment` is known

Phase = Literal["train", "eval", "other"]
TrainerPart = Literal[
    "wait", "load", "draw", "change", "prepare", "unpickle", "pin", "copy", "forward", "loss", "backward",
    "optimizer", "synchronise", "logging", "checkpoint", "python", "other",
]  # fmt: skip
"""What the trainer's main thread was doing. `load` is preparing data itself (num_workers=0); `draw` is a sampler that
chooses the next samples, while the loop waits for workers; `change` is what a loader does to batches that its workers
have made, and `prepare` the script's own Python in a generator (or `__next__`) between the loader and the loop;
`forward` is time inside torch between the batch and the backward pass, `loss` that which a function of the script's
asks for outside the model, called by the loop; `python` is the script's own Python."""
EndedBy = Literal["itself", "steps", "seconds", "error", "signal", "running"]


@dataclass(frozen=True, kw_only=True)
class Script:
    argv: list[str]
    """As given after `feedline profile`'s own options: the script (or module) and its arguments."""
    name: str = ""
    """Of what was profiled inside a running process (`profiling.profile`): a function, a notebook."""
    module: bool = False
    cwd: str = ""
    python: str = ""
    exit_status: int | None = None
    """What the script itself ended with; 128 + n for signal n; None while it runs on."""
    ended_by: EndedBy = "itself"
    error: str | None = None
    """The last line of its traceback."""


@dataclass(frozen=True, kw_only=True)
class LoaderSeen:
    """One loader of the script, with the settings that predictions start from. None where it could not be seen."""

    id: int
    kind: str
    """That of its adapter (`watch/loaders.py`); "unwatched" is whatever feeds a loop that asks none of these."""
    phase: Phase = "other"
    """train when backward passes or optimiser steps ran between its batches."""
    num_workers: int | None = None
    batch_size: int | None = None
    prefetch_factor: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    dataset: str | None = None
    dataset_samples: int | None = None
    folder: str | None = None
    """That of a torchvision dataset of class folders, as the script gives it."""
    sampler: str | None = None
    """What draws its samples, where that is not torch's of each sample once."""
    transforms: list[str] = field(default_factory=list)
    """Names of the transforms seen, in their order where the dataset shows it."""
    augment: dict[str, Any] = field(default_factory=dict)
    """How they crop, in words of `draw.regions.Augment`; {} for crops of random sizes, and where it is not known."""
    normalize: list[list[float]] = field(default_factory=list)
    """Mean and std of their Normalize, of values up to 1, three numbers each; [] without one."""
    batch_dtypes: list[str] = field(default_factory=list)
    """Of the tensors in a batch, e.g. ["float32", "int64"]."""
    batch_shapes: list[list[int]] = field(default_factory=list)
    batch_bytes: int | None = None
    batch_tensors: int | None = None
    """torch's, at least so many: a worker sends each on its own."""
    made: int = 1  # objects that took this place one after the other: a script may make one for each epoch
    datasets: int = 1  # how many datasets these have had one after the other
    opened: list[str] = field(default_factory=list)  # where the dataset holds a file open: `Photos.archive`
    made_by: str = ""
    """The library that made it for the script (`loader_kinds.MADE_BY`); "" where the script did."""
    background: bool = False
    """Another thread than the one that trains draws its batches: what that waits is not what the loop waits."""
    keeps: dict[str, int] = field(default_factory=dict)
    """Where its dataset keeps samples as it makes them (a dict, a list, `functools.cache`), and how many more than
    at first: of all processes that ask it."""
    refused: str | None = None
    """Why `Loader.like` cannot take its settings over, in words; "" where it can (own transforms were not tried),
    None where nobody asked."""

    def __post_init__(self) -> None:
        for name, value in self.augment.items():
            if name not in AUGMENT or not (value in (None, False) or 0.001 <= value <= 1):
                raise ValueError(f"augment[{name!r:.40}] of a loader is {value!r:.40}")

    @property
    def stretched(self) -> bool:
        """They show whole pictures, or crops of those, as squares: a Resize((N, N))."""
        return bool(self.augment.get("whole"))

    @property
    def unwatched(self) -> bool:
        return self.kind == "unwatched"


@dataclass(frozen=True, kw_only=True)
class Step:
    """One batch of one loader: from the moment the loop asks for it to the moment it asks for the next.

    start_s | wait_s | … copy_s, backward_s, optimizer_s, pause_s happen in here … | start_s + duration_s
    """

    AS_COLUMNS: ClassVar[bool] = True
    start_s: float
    wait_s: float
    """The loop was blocked on the batch: waiting for workers, or (num_workers=0) preparing it itself."""
    duration_s: float
    samples: int
    phase: Phase = "train"
    loader: int = 0
    epoch: int = 0
    """Which pass over this loader it belongs to, from 0."""
    rank: int = 0
    warm_up: bool = False
    """Left out of the verdict by the warm-up rule."""
    copy_s: float | None = None
    """Host to device: device time by CUDA events; None without CUDA."""
    backward_s: float = 0.0
    optimizer_s: float = 0.0
    pause_s: float = 0.0
    """Evaluation passes and checkpoints inside this step: kept apart, in no rate."""
    sync_s: float = 0.0
    """Host time in hidden synchronisations."""
    syncs: int = 0
    """How many these were."""
    starved_s: float | None = None
    """CUDA: the device had run dry before this batch came (event as the loop asks, behind the last step's kernels, to
    event before this step's first). None without CUDA. Of steps below 40 ms only some are marked by events: this,
    `copy_s` and `idle_s` are then what those have on average, starvation for each second of the wait."""
    idle_s: float | None = None
    """CUDA: as far as the device ran dry while the loop did something else: behind the optimiser's step and before
    the first copy (at most: what is launched there counts too). None without CUDA, and where neither was seen."""
    bytes: int | None = None

    @property
    def measured(self) -> bool:
        """Training, behind the warm-up."""
        return self.phase == "train" and not self.warm_up

    @property
    def compute_s(self) -> float:
        """What is left of the step without waiting, copying and pauses: forward, backward, optimiser, Python."""
        return max(0.0, self.duration_s - self.wait_s - (self.copy_s or 0.0) - self.pause_s)


@dataclass(frozen=True, kw_only=True)
class LoaderPass:
    """One iteration over one loader: what lies before its first batch and behind its last."""

    loader: int = 0
    epoch: int = 0
    rank: int = 0
    samples: int = 0
    start_s: float = 0.0
    """From asking for the iterator (workers start) to the first batch."""
    end_s: float | None = None
    """From asking for one more batch to being told that there is none (workers end); None: it was broken off."""


@dataclass(frozen=True, kw_only=True)
class ThreadTime:
    """The main thread of one trainer process, by stack samples over its training steps; its stages are those of
    `TrainerPart`."""

    rank: int = 0
    pid: int | None = None
    seconds: float = 0.0
    """Observed wall time; the stages sum to it."""
    cpu_s: float | None = None
    """CPU time of the whole process, all threads, in that time."""
    stages: dict[str, float] = field(default_factory=dict)
    """Seconds of wall time. Waiting for a batch that the pinning thread is unpickling or pinning counts as that."""
    stages_cpu_s: dict[str, float] = field(default_factory=dict)
    """CPU seconds of the thread by stage, the pinning thread's with those where it waits for that."""
    beside_cpu_s: dict[str, float] = field(default_factory=dict)
    """CPU seconds of the process's other Python threads, by function of the script's own ("": they waited then)."""
    stages_delay_s: dict[str, float] | None = None
    """Seconds in which the thread could have run and had no core; None where the kernel does not tell."""
    stages_error_s: dict[str, float] = field(default_factory=dict)
    """Standard error of each stage's seconds, over blocks of about a second."""
    functions: dict[str, float] = field(default_factory=dict)
    """Seconds of the busiest places: `stage file:function:line`; of a worker `stage file:function`."""
    apart_s: dict[str, float] = field(default_factory=dict)
    """The same, without the stage, of time amid the steps that is of none: between two passes, in evaluations."""
    ticks: int = 0
    """Stack samples behind these numbers: the error of a share p is about sqrt(p (1 - p) / ticks)."""


@dataclass(frozen=True, kw_only=True)
class WorkerTime(ThreadTime):
    """The same of one worker process, by `stages.STAGES`; or, for num_workers=0, of the trainer while it prepares
    data (then `in_trainer`)."""

    worker: int
    loader: int = 0
    phase: Phase = "train"
    in_trainer: bool = False
    sample_error_s: float | None = None
    """Standard error of what a sample keeps it busy (idle left out), over blocks; None for fewer than three."""
    transforms: dict[str, float] = field(default_factory=dict)
    """Seconds by transform name; sums to stages["transform"]."""
    batches: int = 0
    samples: int = 0
    ended: Literal["normally", "killed", "running"] = "normally"


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Per training sample, warm-up left out. What the throughput model is fed with."""

    worker_cpu_s: float | None = None
    worker_wall_s: float | None = None
    """Busy wall time of a worker per sample (idle left out)."""
    trainer_cpu_s: float | None = None
    read_bytes: float | None = None
    """Bytes the workers asked the system for."""
    device_bytes: float | None = None
    """Bytes that were fetched from disks for them; 0 for a file system that is none of a disk here (FUSE)."""
    read_calls: float | None = None
    """Calls in which they asked."""


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """What profiling itself cost, in CPU time."""

    seconds: float = 0.0
    """Observed time."""
    hooks_s: float = 0.0
    """In the script's own threads: the trainers'."""
    sampler_cpu_s: dict[str, float] = field(default_factory=dict)
    """By sampler: trainer, workers, resources."""
    fraction: float | None = None
    """Trainer and resource sampling over observed time, or the workers' over worker time, whichever is larger."""


@dataclass(frozen=True, kw_only=True)
class _Host:
    """What is read of `Recording.host`."""

    cpu: str | None = None
    cores: float | None = None
    affinity: float | None = None
    memory_bytes: float | None = None
    cgroup_memory_bytes: float | None = None
    shared_memory_bytes: float | None = None
    free_shared_memory_bytes: float | None = None
    gpus: list[str] | None = None
    python: str | None = None
    versions: dict[str, str] | None = None


def train_loader(loaders: Iterable[LoaderSeen], steps: Iterable[Step]) -> LoaderSeen | None:
    """The training loader whose steps took longest; the busiest loader when none was seen training."""
    spent: dict[tuple[int, str], float] = defaultdict(float)
    for step in steps:
        spent[step.loader, step.phase] += step.duration_s
    return min(loaders, key=lambda one: (one.phase != "train", -spent[one.id, one.phase]), default=None)


@dataclass(frozen=True, kw_only=True)
class Recording:
    script: Script
    started: str = ""
    """ISO 8601, UTC; second 0 of every time in here."""
    seconds: float = 0.0
    """Length of the profiled part."""
    feedline: str = ""
    host: dict[str, Any] = field(default_factory=dict)
    """As `profiling.record.host.describe_host`."""
    loaders: list[LoaderSeen] = field(default_factory=list)
    compute: Compute = field(default_factory=Compute)
    steps: list[Step] = field(default_factory=list)
    passes: list[LoaderPass] = field(default_factory=list)
    optimizer_steps: int = 0
    warm_up: str = "none"
    """The rule by which steps are left out, in words."""
    workers: list[WorkerTime] = field(default_factory=list)
    trainers: list[ThreadTime] = field(default_factory=list)
    costs: Costs = field(default_factory=Costs)
    series: list[Series] = field(default_factory=list)
    gpus: list[Gpu] = field(default_factory=list)
    gpu_note: str = ""
    """Why there are no GPU numbers, or how they came about."""
    legs: list[Leg] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    reads: Reads | None = None
    """Of the files below, behind the script's end."""
    sample_paths: list[str] = field(default_factory=list)
    """Some of the files that the workers read: material for the trials."""
    changing_files: float | None = None
    """The journal's `changing`: 0 of an archive that is kept open, 1 of a file a sample; None: none was seen."""
    files_bytes: float | None = None
    """Of the files that were seen open, where hardly a look found a new one; None: there may be more of them."""
    lines: list[Line] = field(default_factory=list)
    overhead: Overhead = field(default_factory=Overhead)
    notes: list[str] = field(default_factory=list)
    """What a reader must know and cannot see in the numbers."""
    version: int = FORMAT_VERSION

    @property
    def train_loader(self) -> LoaderSeen | None:
        return train_loader(self.loaders, self.steps)

    def measured(self) -> list[Step]:
        """What the numbers are of: the measured steps of the training loader; where there are none, its training
        steps, or all of its steps."""
        loader = self.train_loader
        of_loader = [step for step in self.steps if loader is None or step.loader == loader.id]
        chosen = [step for step in of_loader if step.phase == "train"] or of_loader
        return [step for step in chosen if not step.warm_up] or chosen

    def preparing(self) -> list[WorkerTime]:
        """Those that prepare the training loader's batches; all, where no loader is known. Where the training thread
        does, also what it prepares of other loaders that train in its loop: they hold up the same steps, whose
        samples are counted already. Of one that another thread draws, looks at the training thread tell nothing."""
        loader = self.train_loader
        found = [one for one in self.workers if loader is None or one.loader == loader.id]
        if loader is not None and loader.background:
            found = [one for one in found if not one.in_trainer]
        if loader is not None and found and all(one.in_trainer for one in found):
            others = (one for one in self.workers if one.loader != loader.id and one.in_trainer)
            found += [replace(one, samples=0, batches=0) for one in others if one.phase == "train"]
        return found

    def leg(self, name: LegName) -> Leg:
        """Empty where it was not measured."""
        return next((leg for leg in self.legs if leg.name == name), Leg(name=name))

    def noted(self, *notes: str) -> "Recording":
        """With these notes too, as far as they say something."""
        return replace(self, notes=[*self.notes, *filter(None, notes)])

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready. Steps are kept as columns: there may be a hundred thousand."""
        return cast("dict[str, Any]", to_plain(self))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "recording") -> "Recording":
        """Raises RecordingError, in one line, for anything that is not a recording of this version."""
        found = data.get("version")
        if found != FORMAT_VERSION:
            raise RecordingError(
                f"{where}: a recording of format version {found!r:.40}, this feedline reads {FORMAT_VERSION}: "
                "profile again, or read it with the feedline that wrote it"
            )
        try:
            build(_Host, data.get("host", {}))
            recording = build(cls, data)
            for one in recording.workers:
                if sum(one.stages.values()) > 1.01 * one.seconds + 0.01:
                    raise ValueError(f"the stages of worker {one.worker} take longer than its seconds")
            for one in recording.series:
                if len(one.t_s) != len(one.values):
                    raise ValueError(f"series {one.name} has {len(one.t_s)} times for {len(one.values)} values")
            return recording
        except (KeyError, TypeError, ValueError) as error:
            raise RecordingError(f"{where}: not a whole recording ({str(error)[:200]}): profile again") from error

    def save(self, path: Path) -> None:
        """Whole or not at all. Raises RecordingError when it cannot be written."""
        with refused_as(RecordingError, f"cannot write {path}"):
            write_as_asked(path, (json.dumps(self.to_dict()) + "\n").encode())

    @classmethod
    def load(cls, path: Path | str) -> "Recording":
        """A bare recording, or the record written by `feedline profile --json`."""
        try:
            data = json.loads(read_bounded(Path(path), RECORDING_BYTES))
        except OSError as error:
            raise RecordingError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise RecordingError(f"{path} is not JSON ({error}): is it a recording of `feedline profile`?") from error
        if isinstance(data, dict) and "recording" in data:
            data = data["recording"]
        if not isinstance(data, dict) or "script" not in data:
            raise RecordingError(f"{path} is not a recording of `feedline profile`")
        return cls.from_dict(data, where=str(path))
