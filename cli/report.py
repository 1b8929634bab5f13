"""`feedline report`: look at recordings again, without running anything."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feedline.cli.common import JsonFile, Record, console, stderr
from feedline.cli.common import write as write_file

if TYPE_CHECKING:
    from feedline.profiling.explain.verdict import Diagnosis
    from feedline.profiling.record.recording import Recording
    from feedline.profiling.render.sections import Page

Files = Annotated[list[Path], typer.Argument(metavar="RECORDING…", help="Records of profile, or one .lprof file.")]
HtmlFile = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write it as one HTML file.")]
TraceFile = Annotated[Path | None, typer.Option("--trace", metavar="FILE", help="Write a timeline for Perfetto.")]
FailIf = Annotated[
    list[str] | None, typer.Option(metavar="EXPR", help='Exit 1 if it holds: "wait>10%"; may be given several times.')
]


def report(
    recordings: Files,
    html: HtmlFile = None,
    trace: TraceFile = None,
    json_file: JsonFile = None,
    fail_if: FailIf = None,
) -> None:
    """Render a recording of `feedline profile` again; compare two or more; or read a line profile of kernprof safely.

    Example: feedline report before.json after.json --html comparison.html
    """
    from feedline.pipeline.base.errors import UsageError
    from feedline.profiling.explain.fail_if import check, parse

    record = Record("report", json_file, html, trace)
    conditions = [parse(text) for text in fail_if or ()]
    if any(is_line_profile(path) for path in recordings):
        if len(recordings) > 1 or trace is not None or conditions:
            raise UsageError("a line profile stands alone: one .lprof file, with --html or --json only")
        report_lines(recordings[0], html, json_file, record)
        return
    loaded = load(recordings)
    for name, (_, diagnosis) in loaded.items():
        if diagnosis.bound is None:
            stderr.print(f"feedline: {name}: {diagnosis.headline}", markup=False, soft_wrap=True)
    if len(loaded) == 1:
        report_one(*next(iter(loaded.values())), html, trace, json_file, record)
    else:
        if trace is not None:
            raise UsageError("--trace shows one recording: give one")
        report_several(loaded, html, json_file, record)
    for recording, diagnosis in loaded.values():
        check(conditions, recording, diagnosis)


def is_line_profile(path: Path) -> bool:
    """By its name, or by how a pickle begins: kernprof's output may be called anything."""
    if path.suffix == ".lprof" or not path.is_file():
        return path.suffix == ".lprof"
    try:
        with path.open("rb") as file:
            return file.read(1) == b"\x80"
    except OSError:
        return False


def load(paths: list[Path]) -> "dict[str, tuple[Recording, Diagnosis]]":
    """By a short name that tells them apart. Raises RecordingError."""
    from feedline.profiling.explain.verdict import diagnose
    from feedline.profiling.record.recording import Recording

    loaded: dict[str, tuple[Recording, Diagnosis]] = {}
    for path in paths:
        recording = Recording.load(path)
        name = path.stem if path.stem not in loaded else str(path)
        loaded[name if name not in loaded else f"{name} ({len(loaded) + 1})"] = (recording, diagnose(recording))
    return loaded


def report_one(
    recording: "Recording",
    diagnosis: "Diagnosis",
    html: Path | None,
    trace: Path | None,
    json_file: Path | None,
    record: Record,
) -> None:
    import json

    from feedline.profiling.explain.verdict import record_keys
    from feedline.profiling.render.profile_page import report
    from feedline.profiling.render.trace import trace as timeline

    show(report(recording, diagnosis), html)
    if trace is not None:
        write(trace, json.dumps(timeline(recording)))
    record.write(json_file, record_keys(recording, diagnosis))


def report_several(
    loaded: "dict[str, tuple[Recording, Diagnosis]]", html: Path | None, json_file: Path | None, record: Record
) -> None:
    """Each after the first is compared with the first."""
    from dataclasses import asdict

    from feedline.profiling.explain.difference import versus
    from feedline.profiling.render.profile_page import comparison

    named = [(name, diagnosis) for name, (_, diagnosis) in loaded.items()]
    first, before = named[0]
    compared = [versus(before, after, (first, name)) for name, after in named[1:]]
    show(comparison(named, compared), html)
    keys: dict[str, Any] = {
        "recordings": [{"name": name, "samples_per_s": one.samples_per_s, "bound": one.bound} for name, one in named],
        "comparisons": [
            {"before": first, "after": n, **asdict(v)} for (n, _), v in zip(named[1:], compared, strict=True)
        ],
        "statement": compared[0].statement,
    }
    record.write(json_file, keys)


def report_lines(path: Path, html: Path | None, json_file: Path | None, record: Record) -> None:
    from dataclasses import asdict

    from feedline.profiling.explain.hot_lines import line_profile
    from feedline.profiling.record.lprof import read_lprof
    from feedline.profiling.render.profile_page import lprof_report

    profile = line_profile(read_lprof(path))
    show(lprof_report(path.name, profile), html)
    loop = asdict(profile.loader) if profile.loader else None
    record.write(json_file, {"loader": loop, "lines": [asdict(line) for line in profile.lines]})


def show(page: "Page", file: Path | None) -> None:
    """On the terminal, and in a file of its own where one was asked for."""
    from feedline.profiling.render.html import document
    from feedline.profiling.render.plain_text import text

    console.print(text(page, width=columns()), markup=False, soft_wrap=True, end="")
    if file is not None:
        write(file, document(page))


def columns() -> int:
    return min(console.width, 110)


def write(path: Path, text: str) -> None:
    write_file(path, text)
    stderr.print(f"feedline: wrote {path}", markup=False, soft_wrap=True)
