"""One `feedline profile`: a run of the script, its legs and lines where asked, as one Recording.

A run with legs or lines is a diagnostic run: their windows follow the verdict's steps in the same loop, and the
script is ended behind them. Nothing runs twice.
"""

import re
import shlex
from dataclasses import replace

from feedline.profiling.interrupts import hearing
from feedline.profiling.launch import Report, Run, launched
from feedline.profiling.record.diagnostic import progress
from feedline.profiling.record.journal import NOTABLE, LegName, StudyConfig
from feedline.profiling.record.recording import Recording
from feedline.profiling.watch.legs.ways import LEGS
from feedline.profiling.watch.rules import is_library

INTERRUPTED = "interrupted by a signal"


def chosen_legs(legs: bool, cold: bool = True) -> tuple[LegName, ...]:
    return (*LEGS, "cold") if legs and cold else LEGS if legs else ()


def study(config: StudyConfig, report: Report = lambda _: None) -> Run:
    """Its journal's folder is gone."""
    with hearing() as interrupts, launched(config, report) as run:
        return replace(run, recording=explained(config, run, interrupted=bool(interrupts.number)))


def explained(config: StudyConfig, run: Run, *, interrupted: bool) -> Recording:
    """The run's recording, with notes on what is missing of its legs and lines. The journal's folder is there."""
    missing = _what_is_missing(config, run, interrupted=interrupted)
    return run.recording.noted(missing, _not_timed(config, run.recording), _disturbed(run.recording))


def _what_is_missing(config: StudyConfig, run: Run, *, interrupted: bool) -> str:
    """Of the legs and lines that were asked for, and why; empty where nothing is."""
    recording, went = run.recording, progress(run.journal)
    asked = [name for name, wanted in (("legs", config.legs), ("lines", config.lines)) if wanted]
    missing = [name for name in asked if not getattr(recording, name)]
    if not asked:
        return ""
    if went.ended_by is None:
        return f"no {' and no '.join(asked)}: {INTERRUPTED if interrupted else _why_none(config, recording)}"
    why = INTERRUPTED if interrupted and not went.whole else went.why or ("" if went.whole else _how_it_ended(run))
    if why and went.window == "laid_out":
        return f"with its batches in channels_last, as feedline's loader hands them over, {why}"
    if why and missing:
        return f"no {' and no '.join(missing)}: {why}"
    if why:
        return f"the {went.window if went.window == 'lines' else 'legs'} are not whole: {why}"
    if "lines" in missing:
        return "no lines: none of the chosen functions ran (name one with --lines-of)"
    if config.lines and not any(line.where == "trainer" and not is_library(line.file) for line in recording.lines):
        return "no lines of the training loop: lines are timed inside functions, put it into one"
    return ""


def _not_timed(config: StudyConfig, recording: Recording) -> str:
    """Functions that the user named, where others were timed and these were not."""
    timed = {line.function.rpartition(".")[2] for line in recording.lines}
    without = [name for name in config.functions if re.split("[.:]", name)[-1] not in timed] if timed else []
    named = "nothing of that name ran (function, Class.method or module:function)"
    return f"no lines of {' or '.join(without)}: {named}" if without else ""


def _disturbed(recording: Recording) -> str:
    count = sum(leg.disturbed for leg in recording.legs)
    had = count + sum(len(leg.samples_per_s) for leg in recording.legs)
    others = f"other programs had {100 * NOTABLE:.0f} % of the cores or more"
    return f"{count} of the legs' {had} windows do not count: {others}" if count else ""


def _why_none(config: StudyConfig, recording: Recording) -> str:
    script = recording.script
    if script.ended_by in ("error", "signal"):
        return "the script failed" if script.ended_by == "error" else "a signal ended the script"
    if recording.train_loader is None:
        return "no loader was seen"
    if recording.train_loader.unwatched:
        kernprof = shlex.join(["kernprof", "-l", "-v", "-p", script.argv[0], *["-m"] * script.module, *script.argv])
        lines = f"; `{kernprof}` times its lines" if config.lines else ""
        return f"its batches come from no loader that is known here{lines}"
    steps = sum(step.measured for step in recording.steps)
    return f"the script left its loop before enough was seen: give --steps, fewer than the {steps} that it had"


def _how_it_ended(run: Run) -> str:
    """In a window."""
    if run.recording.script.error:
        return f"the script ended with {run.recording.script.error}"
    return (
        f"the script ended with status {run.exit_status}" if run.exit_status else "the script left its training loop"
    )
