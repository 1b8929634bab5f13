"""`feedline profile`: why is this training script slow, proved, and what each remedy would give."""

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from feedline.cli.common import FailIf, HtmlFile, Record, TraceFile, say
from feedline.cli.options import REQUIRED, Settings, command, fields
from feedline.cli.report import show_recording
from feedline.pipeline.base.errors import UsageError

if TYPE_CHECKING:
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

    Example: feedline profile --steps 200 --legs --html report.html train.py --epochs 1
    """
    from feedline.profiling.explain.fail_if import check, parse
    from feedline.profiling.explain.verdict import diagnose, record_keys
    from feedline.profiling.interrupts import hearing
    from feedline.profiling.profile_run import INTERRUPTED, chosen_legs, study
    from feedline.profiling.record.journal import StudyConfig

    if os.environ.get("TORCHELASTIC_RUN_ID") and os.environ.get("LOCAL_RANK"):  # one profiler watches all ranks
        raise UsageError("started by torchrun: turn it around, feedline profile torchrun [options] SCRIPT")
    conditions = [parse(text) for text in fail_if or ()]
    options |= {"legs": chosen_legs(options["legs"], cold), "lines": options["lines"] or bool(options["functions"])}
    with hearing() as interrupts:
        done = study(StudyConfig(**options), say)
        recording = with_trials(done.recording) if trials else done.recording
        diagnosis = diagnose(recording)
        show_recording(diagnosis, html, trace)
        record.write({**record_keys(diagnosis), "recording": recording.to_dict()})
        if record.path is not None:
            say(f"wrote {record.path}")
    if interrupts.number:
        say(f"{INTERRUPTED}: this is what was seen until then")
        raise typer.Exit(interrupts.status)
    if done.status:
        script = recording.script
        why = f" ({script.error})" if script.error else ""
        say(f"{script.argv[0]} ended with status {script.exit_status}{why} after {len(recording.steps)} batches")
        raise typer.Exit(done.status)
    check(conditions, diagnosis)


def with_trials(recording: "Recording") -> "Recording":
    """What the script's own samples would cost at other sizes and codecs, where that room is installed."""
    from feedline.profiling.interrupts import Interrupted, hearing
    from feedline.profiling.profile_run import INTERRUPTED, noted

    with hearing() as interrupts:
        if interrupts.number:  # nothing is imported for it: the prompt shall be back
            return noted(recording, f"no trials: {INTERRUPTED}")
    try:
        from feedline.benchmarks.what_if import what_if, why_none
    except ImportError:  # no image libraries here: the other predictions stand
        return recording
    try:
        with hearing() as interrupts, interrupts.breaking_off():
            if recording.sample_paths:
                say("trials: some of the script's own samples at other sizes and codecs")
            trials = what_if(recording)
    except Interrupted:
        return noted(recording, f"no trials: {INTERRUPTED}")
    except Exception as error:  # files that have changed or vanished meanwhile must not cost the verdict
        return noted(recording, f"no trials: {type(error).__name__}: {error}")
    if not trials and recording.train_loader is not None:
        return noted(recording, why_none(recording))
    return replace(recording, trials=trials)
