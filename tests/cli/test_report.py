"""`feedline report`: recordings shown, compared and judged; line profiles; every misuse is one line."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from feedline.cli.common import console
from feedline.cli.main import app
from feedline.pipeline.base.errors import FeedlineError, UsageError
from feedline.profiling.explain.verdict import diagnose
from feedline.profiling.record.recording import Recording, Script
from feedline.profiling.render import profile_page
from feedline.profiling.render.plain_text import text
from tests.profiling.recordings import made, rich

runner = CliRunner()


def saved(path: Path, recording: Recording) -> Path:
    recording.save(path)
    return path


def test_one_recording_in_every_form(tmp_path: Path) -> None:
    run = saved(tmp_path / "run.json", rich())
    html, trace, record = (tmp_path / name for name in ("r.html", "r.trace.json", "r.json"))
    shown = runner.invoke(
        app, ["report", str(run), "--html", str(html), "--trace", str(trace), "--json", str(record)]
    )
    assert shown.exit_code == 0, shown.output
    assert "Data-bound" in shown.output and "DO THIS FIRST" in shown.output
    assert html.read_text().startswith("<!doctype html>")
    assert json.loads(trace.read_text())["traceEvents"]
    keys = json.loads(record.read_text())
    assert keys["verb"] == "report" and keys["verdict"]["bound"] == "data" and keys["predictions"]


@pytest.mark.parametrize("seen", [rich(), made(wait_s=0.0), Recording(script=Script(argv=["x.py"]))])
def test_a_recording_says_the_same_as_when_it_was_made(tmp_path: Path, seen: Recording) -> None:
    shown = runner.invoke(app, ["report", str(saved(tmp_path / "run.json", seen))])
    then = text(profile_page.report(diagnose(seen)), width=console.width)
    assert (shown.stdout, shown.stderr) == (then, "")


def test_the_record_of_profile_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"verb": "profile", "recording": made().to_dict()}))
    assert runner.invoke(app, ["report", str(path)]).exit_code == 0


def test_two_recordings_are_compared(tmp_path: Path) -> None:
    before, after = (
        saved(tmp_path / "before.json", made(wait_s=0.08)),
        saved(tmp_path / "after.json", made(wait_s=0.01)),
    )
    html, record = tmp_path / "c.html", tmp_path / "c.json"
    shown = runner.invoke(app, ["report", str(before), str(after), "--html", str(html), "--json", str(record)])
    assert shown.exit_code == 0, shown.output
    assert "after is 2.8× as fast as before" in " ".join(shown.output.split())
    assert "after is" in html.read_text()
    assert json.loads(record.read_text())["comparisons"][0]["ratio"] == pytest.approx(2.75)


def test_recordings_of_one_name_stay_apart(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b", "c")]
    paths: list[str] = []
    for folder in folders:
        folder.mkdir()
        paths.append(str(saved(folder / "run.json", made())))
    shown = runner.invoke(app, ["report", *paths, "--json", str(tmp_path / "c.json")])
    assert shown.exit_code == 0
    assert len({one["name"] for one in json.loads((tmp_path / "c.json").read_text())["recordings"]}) == 3


def test_of_several_it_is_said_which_one_is_meant(tmp_path: Path) -> None:
    waits = {"first": 0.08, "second": 0.01, "third": 0.04}
    paths = [str(saved(tmp_path / f"{name}.json", made(wait_s=wait_s))) for name, wait_s in waits.items()]
    shown = " ".join(runner.invoke(app, ["report", *paths]).output.split())
    for name in ("second", "third"):
        assert f"{name}: waiting for data went from 73 % to" in shown
    error = runner.invoke(app, ["report", *paths, "--fail-if", "wait<50%"]).exception
    assert isinstance(error, FeedlineError) and "--fail-if 'wait<50%' of second: wait = " in str(error)
    both = " ".join(runner.invoke(app, ["report", *paths[:2]]).output.split())
    assert "waiting for data went from" in both and "second: waiting" not in both


@pytest.mark.parametrize(("condition", "status"), [("wait>10%", 1), ("wait>90%", 0), ("wait>>1", 2), ("hope>1", 2)])
def test_fail_if(tmp_path: Path, condition: str, status: int) -> None:
    run = saved(tmp_path / "run.json", made(wait_s=0.06, compute_s=0.03))
    shown = runner.invoke(app, ["report", str(run), "--fail-if", condition])
    found = getattr(shown.exception, "exit_status", shown.exit_code)
    assert found == status


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("gone.json", None),
        ("text.json", "not JSON"),
        ("other.json", '{"verb": "train"}'),
        ("version.json", '{"script": {"argv": []}, "version": 99}'),
        ("list.json", "[1]"),
        ("torn.lprof", "\x80\x04"),
        ("gone.lprof", None),
    ],
)
def test_what_is_no_recording_is_one_line(tmp_path: Path, name: str, content: str | None) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    error = runner.invoke(app, ["report", str(path)]).exception
    assert isinstance(error, FeedlineError) and error.exit_status == 2
    assert "\n" not in str(error) and name in str(error)


def test_an_output_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    run = saved(tmp_path / "run.json", made())
    error = runner.invoke(app, ["report", str(run), "--html", str(tmp_path / "no" / "r.html")]).exception
    assert isinstance(error, UsageError) and "cannot write" in str(error)


def test_a_line_profile_stands_alone(tmp_path: Path) -> None:
    run = saved(tmp_path / "run.json", made())
    (tmp_path / "a.lprof").write_bytes(b"\x80\x04")
    error = runner.invoke(app, ["report", str(run), str(tmp_path / "a.lprof")]).exception
    assert isinstance(error, FeedlineError) and "stands alone" in str(error)


def edited(*edits: tuple[tuple[str | int, ...], Any]) -> dict[str, Any]:
    data: dict[str, Any] = copy.deepcopy(RICH)
    for (*where, last), value in edits:
        place: Any = data
        for key in where:
            place = place[key]
        place[last] = value
    return data


RICH = rich().to_dict()


def report_on(folder: Path, data: dict[str, Any]) -> Exception | None:
    """Every form of report on one recording, and beside another; what was complained of in one line."""
    (folder / "run.json").write_text(json.dumps(data))
    (folder / "rich.json").write_text(json.dumps(RICH))
    run, other, html = (str(folder / name) for name in ("run.json", "rich.json", "r.html"))
    files = ["--html", html, "--json", str(folder / "r.json")]
    for words in ([run, "--trace", str(folder / "r.trace")], [run, other], [other, run]):
        error = runner.invoke(app, ["report", *words, *files]).exception
        if isinstance(error, FeedlineError):
            assert error.exit_status in (1, 2) and "\n" not in str(error) and len(str(error)) < 400
            return error
        if error is not None:
            raise error
        assert "<script>alert" not in Path(html).read_text()
        for name in ("r.json", "r.trace"):
            json.loads((folder / name).read_text(), parse_constant=pytest.fail)
    return None


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ((("host", "gpus"), 3.0), "gpus"),
        ((("host", "affinity"), "many"), "affinity"),
        ((("host", "memory_bytes"), {}), "memory_bytes"),
        ((("host", "versions"), 4.5), "versions"),
        ((("host",), None), "Host"),
        ((("steps", "columns", "wait_s", 7), float("nan")), "wait_s is nan"),
        ((("steps", "columns", "wait_s", 7), 10**400), "wait_s is 1000"),
        ((("steps", "columns", "duration_s", 7), -3.0), "duration_s is -3"),
        ((("workers", 0, "stages", "idle"), 1e14), "stages of worker 0"),
        ((("series", 0, "t_s"), [0.0]), "1 times for 12 values"),
        ((("compute", "user_cpu_s"), 1e308), "user_cpu_s is 1e"),
        ((("trials", 1, "load_cpu_s_per_sample"), -0.1), "load_cpu_s_per_sample is -0.1"),
        ((("version",), "v" * 5000), "format version"),
    ],
)
def test_a_recording_edited_into_nonsense_is_one_line(
    tmp_path: Path, edit: tuple[tuple[str | int, ...], Any], said: str
) -> None:
    assert said in str(report_on(tmp_path, edited(edit)))


def test_text_that_is_no_text_is_shown_all_the_same(tmp_path: Path) -> None:
    """A file name on Linux may hold any bytes; Python keeps them as lone surrogates."""
    assert report_on(tmp_path, edited((("script", "argv"), ["train-\udcff.py"]), (("notes",), ["\ud800"]))) is None


@pytest.mark.parametrize("numbers", [[[]], [[0.5] * 3], [[0.5], [0.5]]])
def test_a_mean_and_std_that_are_none_are_left_out(tmp_path: Path, numbers: list[list[float]]) -> None:
    assert report_on(tmp_path, edited((("loaders", 0, "normalize"), numbers))) is None


@pytest.mark.parametrize("place", [("trials", 0, "samples"), ("workers", 1, "ticks")])
def test_nothing_that_was_seen_of_something_is_no_division(tmp_path: Path, place: tuple[str | int, ...]) -> None:
    assert report_on(tmp_path, edited((place, 0))) is None


def places(node: Any, where: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if where:
        yield where
    inner = node.items() if isinstance(node, dict) else enumerate(node[:3]) if isinstance(node, list) else ()
    for key, value in inner:
        yield from places(value, (*where, key))


NONSENSE: list[Any] = [
    None, True, 0, -1, 1, -0.5, 1e-300, 1e14, 1e308, float("nan"), float("inf"), 10**18, 10**400, "", "1", "x" * 5000,
    "<script>alert(1)</script>", "\ud800", "\x1b[31m", [], [None], [[]], [0] * 60, [1e14] * 60, {}, {"columns": {}},
    {"idle": 1e14}, {"<b>": 0.5},
]  # fmt: skip


@pytest.mark.slow
@settings(max_examples=150)
@given(st.sampled_from(list(places(RICH))), st.sampled_from(NONSENSE))
def test_a_hand_edited_recording_is_a_report_or_one_line(
    tmp_path: Path, place: tuple[str | int, ...], value: Any
) -> None:
    report_on(tmp_path, edited((place, value)))
