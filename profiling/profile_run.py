"""One `feedline profile`: the verdict pass, and where asked the legs and the line pass, as one Recording."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from feedline.pipeline.base.process import usable_cores
from feedline.pipeline.base.scratch import scratch_folder
from feedline.profiling.launch import Launch, Run, hearing, launched
from feedline.profiling.record.journal import Options
from feedline.profiling.record.recording import Leg, LegName, Recording
from feedline.profiling.watch.legs.director import summarise
from feedline.profiling.watch.legs.elsewhere import remove_empty_folders
from feedline.profiling.watch.legs.write_guard import TRACKERS

LEGS: tuple[LegName, ...] = ("normal", "cached", "loader_only")


def chosen_legs(legs: bool, cold: bool = True) -> tuple[LegName, ...]:
    return (*LEGS, "cold") if legs and cold else LEGS if legs else ()


@dataclass(frozen=True, kw_only=True)
class StudyConfig:
    argv: Sequence[str]
    """The script (or module) and its arguments."""
    module: bool = False
    steps: int | None = None
    """Stop the script after so many training steps; it runs to its end without this and `seconds`."""
    seconds: float | None = None
    """Stop it after so long in training."""
    legs: tuple[LegName, ...] = ()
    window_s: float = 1.2
    """Length of one leg's window."""
    rounds: int = 5
    """How often every leg is measured."""
    lines: bool = False
    functions: tuple[str, ...] = ()
    """For `lines`: `function`, `Class.method` or `module:function`; beside the script's own."""
    line_steps: int = 30
    """Steps of the line pass."""


@dataclass(frozen=True)
class Study:
    recording: Recording
    status: int
    """The script's own exit status in the verdict pass; 128 + n after signal n to this process."""


Say = Callable[[str], None]


def study(config: StudyConfig, say: Say = lambda _: None) -> Study:
    """Runs the script once for the verdict, and again for the legs and for the lines where asked."""
    options = Options(steps=config.steps, seconds=config.seconds)
    asked = [("legs", with_legs)] if config.legs else []
    asked += [("lines", with_lines)] if config.lines else []
    with hearing() as interrupts:
        with launched(Launch(argv=config.argv, module=config.module, options=options)) as run:
            recording, status = run.recording, run.status
        failed = FAILED.get(recording.script.ended_by)
        while asked and not failed and not interrupts.number:
            _, part = asked.pop(0)
            recording = part(config, recording, say)
        if asked:
            left_out = " and no ".join(name for name, _ in asked)
            recording = noted(recording, f"no {left_out}: {INTERRUPTED if interrupts.number else failed}")
        return Study(recording, interrupts.status or status)


FAILED = {"error": "the script failed", "signal": "a signal ended the script"}
INTERRUPTED = "interrupted by a signal"


def with_legs(config: StudyConfig, recording: Recording, say: Say = lambda _: None) -> Recording:
    """The recording with its legs measured by a second run of the script."""
    if recording.train_loader is None:
        return noted(recording, "no legs: no loader was seen")
    say("legs: running the script again, its writes held back")
    legs = (*config.legs, *more_legs(config.legs, recording))
    found, why = measured_legs(config, recording, legs)
    if why and why != INTERRUPTED and "laid_out" in legs:
        say("legs: once more, without batches in channels_last")
        before = why
        found, why = measured_legs(config, recording, tuple(leg for leg in legs if leg != "laid_out"))
        if not why:  # else it was not the layout
            what = "with its batches in channels_last, as feedline's loader hands them over"
            recording = noted(recording, f"{what}, {before}")
    if not found:
        return noted(recording, f"no legs: {why or ENDED_EARLY}")
    recording = replace(recording, legs=found)
    return noted(recording, f"the legs are not whole: {why}") if why else recording


def measured_legs(config: StudyConfig, recording: Recording, legs: Sequence[LegName]) -> tuple[list[Leg], str | None]:
    """Of one run of the script, and why it failed, if it did."""
    loader, ranks = recording.train_loader, recording.compute.world_size
    assert loader is not None
    mine = [step for step in recording.measured() if step.rank == 0] or list(recording.steps)
    mean_step_s = sum(step.duration_s for step in mine) / len(mine) if mine else 0.1
    options = Options(
        mode="legs",
        legs=tuple(legs),
        window_s=config.window_s,
        window_steps=max(4, round(config.window_s / mean_step_s)) if ranks > 1 else 0,
        rounds=config.rounds,
        loader=loader.id,
        crowds=crowds(recording),
        worker_counts=tuple(worker_counts(loader.num_workers)) if loader.kind in ("torch", "torchdata") else (),
        paths=tuple(recording.sample_paths),
    )
    with rerun(config, options) as run:
        windows = [(said["rank"], window) for said in run.journal.all("legs-") for window in said["windows"]]
        why = _why_failed(run)
    return [Leg(**found) for found in summarise(windows)], why


def more_legs(legs: Sequence[LegName], recording: Recording) -> list[LegName]:
    """What belongs to the ceiling: a model on the CPU beside busy processes, and batches as feedline's loader has
    them."""
    loader = recording.train_loader
    if "cached" not in legs or loader is None:
        return []
    found: list[LegName] = ["crowded"] if crowds(recording) else []
    return found if loader.kind == "feedline" else [*found, "kept", "laid_out"]


def crowds(recording: Recording) -> tuple[int, ...]:
    """Numbers of busy processes: one, and as many as a rank has cores. None on a device, or with one core each."""
    share = usable_cores() // max(1, recording.compute.world_size)
    return tuple(sorted({1, share})) if recording.compute.device == "cpu" and share >= 2 else ()


ENDED_EARLY = "run again, the script ended before its training loop had warmed up"


NONE_RAN = "none of the chosen functions ran (name one with --lines-of)"


def _why_failed(run: Run) -> str | None:
    script = run.recording.script
    if run.interrupted:
        return INTERRUPTED
    if script.error:
        return f"run again, the script ended with {script.error}"
    last = run.stderr_tail.strip().splitlines()
    if run.status:
        return f"run again, the script ended with status {run.status}" + (f" ({last[-1]})" if last else "")
    return None


def worker_counts(current: int | None) -> list[int]:
    """1, 2, 4 … up to the usable cores, without the script's own number."""
    cores = usable_cores()
    counts = {cores, *(2**power for power in range(8) if 2**power <= cores)}
    return sorted(counts - {current or 0})[-4:]


def with_lines(config: StudyConfig, recording: Recording, say: Say = lambda _: None) -> Recording:
    from feedline.profiling.watch.lines import collect

    say("lines: running the script again under line_profiler")
    options = Options(mode="lines", steps=config.line_steps, functions=config.functions)
    with rerun(config, options) as run:
        lines = collect(run.journal)
        why = _why_failed(run)
    if not lines:
        return noted(recording, f"no lines: {why or NONE_RAN}")
    if why:
        recording = noted(recording, f"the line pass is not whole: {why}")
    if not any(line.where == "trainer" for line in lines):
        recording = noted(
            recording, "no lines of the training loop: lines are timed inside functions, put it into one"
        )
    return replace(recording, lines=lines)


@contextmanager
def rerun(config: StudyConfig, options: Options) -> Generator[Run]:
    """A silent second run whose writes end in a scratch folder that goes away with it."""
    with scratch_folder("held-back") as scratch:
        launch = Launch(
            argv=config.argv,
            module=config.module,
            options=replace(options, scratch=str(scratch)),
            silent=True,
            environment={**TRACKERS, "MLFLOW_TRACKING_URI": f"file:{scratch}/mlflow"},
        )
        with launched(launch) as run:
            remove_empty_folders(run.journal)
            yield run


def noted(recording: Recording, note: str) -> Recording:
    return replace(recording, notes=[*recording.notes, note])
