"""`feedline report`: look at recordings again, without running anything."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from feedline.cli.common import FailIf, HtmlFile, Record, TraceFile, say, show, write
from feedline.cli.options import command
from feedline.pipeline.base.errors import UsageError
from feedline.profiling.explain.fail_if import check, parse
from feedline.profiling.explain.verdict import Diagnosis, diagnose, record_keys
from feedline.profiling.record.recording import Recording

Files = Annotated[list[Path], typer.Argument(metavar="RECORDING…", help="Records of profile, or one .lprof file.")]


@command
def report(
    recordings: Files, record: Record, html: HtmlFile = None, trace: TraceFile = None, fail_if: FailIf = None
) -> None:
    """Render a recording of `feedline profile` again; compare two or more; or read a line profile of kernprof safely.

    Example: feedline report before.json after.json --html comparison.html
    """
    conditions = [parse(text) for text in fail_if or ()]
    if any(is_line_profile(path) for path in recordings):
        if len(recordings) > 1 or trace is not None or conditions:
            raise UsageError("a line profile stands alone: one .lprof file, with --html or --json only")
        record.write(report_lines(recordings[0], html))
        return
    diagnoses = load(recordings)
    if len(diagnoses) == 1:
        (diagnosis,) = diagnoses.values()
        show_recording(diagnosis, html, trace)
        record.write(record_keys(diagnosis))
    elif trace is not None:
        raise UsageError("--trace shows one recording: give one")
    else:
        record.write(report_several(diagnoses, html))
    for name, diagnosis in diagnoses.items():
        for words in check(conditions, diagnosis, name if len(diagnoses) > 1 else ""):
            say(words)


def is_line_profile(path: Path) -> bool:
    """By its name, or by how a pickle begins: kernprof's output may be called anything."""
    if path.suffix == ".lprof" or not path.is_file():
        return path.suffix == ".lprof"
    try:
        with path.open("rb") as file:
            return file.read(1) == b"\x80"
    except OSError:
        return False


def load(paths: list[Path]) -> dict[str, Diagnosis]:
    """By a short name that tells them apart. Raises RecordingError."""
    diagnoses: dict[str, Diagnosis] = {}
    for path in paths:
        name = path.stem if path.stem not in diagnoses else str(path)
        name = name if name not in diagnoses else f"{name} ({len(diagnoses) + 1})"
        diagnoses[name] = diagnose(Recording.load(path))
    return diagnoses


def show_recording(diagnosis: Diagnosis, html: Path | None, trace: Path | None) -> None:
    from feedline.profiling.render.profile_page import report

    show(report(diagnosis))
    for path in written(diagnosis, html, trace):
        say(f"wrote {path}")


def written(diagnosis: Diagnosis, html: Path | None, trace: Path | None) -> list[Path]:
    """The files that were asked for."""
    from feedline.profiling.render import profile_page
    from feedline.profiling.render.html import document
    from feedline.profiling.render.trace import trace as timeline

    if html is not None:
        write(html, document(profile_page.report(diagnosis)))
    if trace is not None:
        write(trace, json.dumps(timeline(diagnosis.recording)))
    return [path for path in (html, trace) if path is not None]


def report_several(diagnoses: dict[str, Diagnosis], html: Path | None) -> dict[str, Any]:
    """Each after the first is compared with the first; returns the keys of the record."""
    from feedline.profiling.explain.difference import versus
    from feedline.profiling.render.profile_page import comparison

    named = list(diagnoses.items())
    first, before = named[0]
    compared = {name: versus(before, after, (first, name)) for name, after in named[1:]}
    show(comparison(named, list(compared.values())), html)
    return {
        "recordings": [{"name": name, "samples_per_s": one.samples_per_s, "bound": one.bound} for name, one in named],
        "comparisons": [{"before": first, "after": name, **asdict(found)} for name, found in compared.items()],
        "statement": next(iter(compared.values())).statement,
    }


def report_lines(path: Path, html: Path | None) -> dict[str, Any]:
    """Returns the keys of the record."""
    from feedline.profiling.explain.hot_lines import line_profile
    from feedline.profiling.record.lprof import read_lprof
    from feedline.profiling.render.profile_page import lprof_report

    profile = line_profile(read_lprof(path))
    show(lprof_report(path.name, profile), html)
    loop = asdict(profile.loader) if profile.loader else None
    return {"loader": loop, "lines": [asdict(line) for line in profile.lines]}
