"""`feedline profile`: why is this training script slow, proved, and what each remedy would give."""

import os
import shlex
import tempfile
from collections.abc import Container
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from feedline.cli.common import FailIf, HtmlFile, Record, TraceFile, say
from feedline.cli.options import REQUIRED, Settings, command, fields
from feedline.cli.report import show_recording, written
from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.text import count_of
from feedline.profiling.explain.fail_if import check, parse
from feedline.profiling.explain.verdict import Diagnosis, diagnose, record_keys
from feedline.profiling.record.journal import StudyConfig
from feedline.profiling.record.recording import Recording

OPTIONS = fields(
    "profiling.record.journal.StudyConfig",
    *("argv", "module", "steps", "seconds", "legs", "lines", "functions"),
    argv={"hint": list[str], "default": REQUIRED, "metavar": "SCRIPT [ARGS…]"},
    module={"flags": ("-m",)},
    legs={"hint": bool, "default": False},
    functions={"flags": ("--lines-of",), "metavar": "FUNC"},
)
Cold = Annotated[bool, typer.Option(help="--legs: with the data's files dropped from the page cache, at the end.")]
Trials = Annotated[bool, typer.Option(help="Try other sizes and codecs on some of the script's own samples.")]


@command
def profile(
    context: typer.Context,
    options: Annotated[Settings, OPTIONS],
    record: Record,
    cold: Cold = True,
    trials: Trials = True,
    html: HtmlFile = None,
    trace: TraceFile = None,
    fail_if: FailIf = None,
) -> None:
    """Run an unmodified training script and say what it waits for, and what each remedy would give.

    Options end at the script's name. The script runs to its end unless --steps or --seconds stop it. --legs and
    --lines make it a diagnostic run: their windows follow the verdict's steps in the same loop, which stays in its
    first pass, and the script is ended behind them. From the first window on it saves no model; what else it writes,
    it writes. The exit status is the script's own, or 0 once we ended it.
    Ctrl-C goes to the script; the report then shows what was seen until that. A second Ctrl-C ends all at once.

    A script that fails has its own words last; what was seen of it is kept as a recording.

    Examples:

      feedline profile --steps 200 --legs --html report.html train.py --epochs 1

      feedline profile -m package.train --epochs 1

      feedline profile --steps 200 torchrun --nproc-per-node 4 train.py

      feedline profile --steps 200 accelerate launch --num_processes 2 train.py
    """
    from feedline.profiling.interrupts import hearing
    from feedline.profiling.profile_run import INTERRUPTED, chosen_legs, study

    if os.environ.get("TORCHELASTIC_RUN_ID") and os.environ.get("LOCAL_RANK"):  # one profiler watches all ranks
        raise UsageError("started by torchrun: turn it around, feedline profile torchrun [options] SCRIPT")
    conditions = [parse(text) for text in fail_if or ()]
    options |= {"legs": chosen_legs(options["legs"], cold), "lines": options["lines"] or bool(options["functions"])}
    with hearing() as interrupts:
        done = study(StudyConfig(**options), say)
        failed = bool(done.status) and not interrupts.number
        recording = done.recording
        if trials:
            why = INTERRUPTED if interrupts.number else "the script failed" if failed else ""
            recording = recording.noted(f"no trials: {why}") if why else with_trials(with_reads(recording))
        diagnosis = diagnose(recording)
        if failed:
            flags = {flag for option in context.command.params for flag in option.opts}
            tell_failure(diagnosis, done.status, record, html, trace, flags)
            raise typer.Exit(done.status)
        show_recording(diagnosis, html, trace)
        write_record(diagnosis, record)
        if record.path is not None:
            say(f"wrote {record.path}")
    if interrupts.number:
        say(f"{INTERRUPTED}: this is what was seen until then")
        raise typer.Exit(interrupts.status)
    for words in check(conditions, diagnosis):
        say(words)


def write_record(diagnosis: Diagnosis, record: Record) -> None:
    record.write({**record_keys(diagnosis), "recording": diagnosis.recording.to_dict()})


def tell_failure(
    diagnosis: Diagnosis, status: int, record: Record, html: Path | None, trace: Path | None, flags: Container[str]
) -> None:
    """In two lines, so that what the script said itself stays in sight: how it ended and what was seen until then,
    and where the report of that is, or which of our `flags` it was given where no step was measured."""
    script, now = diagnosis.recording.script, diagnosis.measured.now
    why = f" ({script.error})" if script.error else ""
    seen = f"after {count_of(len(diagnosis.recording.steps), 'step')}. {diagnosis.headline}"
    say(f"{script.argv[0]} ended with status {status}{why} {seen if now else 'before a training step was measured'}")
    if status == 2 and not now and (ours := [word for word in script.argv[1:] if word.partition("=")[0] in flags]):
        say(f"{ours[0]} went to the script: options of feedline profile stand before the script's name")
    if record.path is None and now:
        with tempfile.NamedTemporaryFile(prefix="feedline-profile-", suffix=".json", delete=False) as kept:
            record.path = Path(kept.name)
    write_record(diagnosis, record)
    files = written(diagnosis, html, trace)
    if now:
        say(f"what was seen until then: feedline report {shlex.quote(str(record.path))}"
            + "".join(f", {path}" for path in files))  # fmt: skip


def with_reads(recording: Recording) -> Recording:
    """What storage gives to reads of the script's own files: a second, past the page cache."""
    if recording.train_loader is None or not recording.sample_paths:
        return recording
    try:
        from feedline.benchmarks.measure.reads import measure_reads, pieces_of_files

        pieces = pieces_of_files(recording.sample_paths, recording.costs.read_bytes)
        return replace(recording, reads=measure_reads(pieces))
    except ImportError:  # no NumPy here
        return recording
    except Exception as error:  # files that have changed or vanished meanwhile must not cost the verdict
        return recording.noted(f"what the storage gives was not tried: {type(error).__name__}: {error}")


def with_trials(recording: Recording) -> Recording:
    """What the script's own samples would cost at other sizes and codecs, where that room is installed."""
    from feedline.profiling.interrupts import Interrupted, hearing
    from feedline.profiling.profile_run import INTERRUPTED

    with hearing() as interrupts:
        if interrupts.number:  # nothing is imported for it: the prompt shall be back
            return recording.noted(f"no trials: {INTERRUPTED}")
    try:
        from feedline.benchmarks.what_if import needless, what_if, why_none
    except ImportError:  # no image libraries here: the other predictions stand
        return recording
    try:
        with hearing() as interrupts, interrupts.breaking_off():
            if recording.sample_paths and not needless(recording):
                say("the script is done; some of its samples are tried in other forms (seconds; --no-trials: not)")
            trials = what_if(recording)
    except Interrupted:
        return recording.noted(f"no trials: {INTERRUPTED}")
    except Exception as error:  # files that have changed or vanished meanwhile must not cost the verdict
        return recording.noted(f"no trials: {type(error).__name__}: {error}")
    if not trials and recording.train_loader is not None:
        return recording.noted(why_none(recording))
    return replace(recording, trials=trials)
