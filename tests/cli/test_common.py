"""What every verb shares."""

from pathlib import Path

import pytest
from rich.progress import Progress

from feedline.cli.common import PlainConsole, RateColumn, write
from feedline.cli.main import app
from feedline.pipeline.base.errors import FeedlineError, UsageError

OUTPUTS = {
    "prepare no/source no/out": ["--json"],
    "verify no/dataset": ["--json"],
    "index no/folder": ["--json"],
    "inspect no/dataset": ["--json", "--html"],
    "train no/dataset": ["--json"],
    "slurm no/dataset --time never": ["--json"],
    "profile --json FILE no.py": [""],
    "profile --html FILE no.py": [""],
    "profile --trace FILE no.py": [""],
    "report no.json": ["--json", "--html", "--trace"],
    "demo --images 0": ["--json"],
    "compare no/dataset --num-workers 0,1": ["--json", "--html"],
    "tune no/dataset": ["--json", "--html", "--out"],
    "plan no/dataset": ["--json"],
    "ladder --json FILE no/source": [""],
    "ladder --html FILE no/source": [""],
    "synth no/out --images 0": ["--json"],
    "sweep no/dataset": ["--json"],
}
"""Command lines that would end with another error once they began their work, and what each writes."""


@pytest.mark.parametrize("line", [f"{line} {option}" for line, options in OUTPUTS.items() for option in options])
def test_every_output_is_tried_before_the_work(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing" / "x")
    for bad in ("nothing/x", "folder", "dangling", "/proc/x", f"{'x' * 250}"):
        words = (line.replace("FILE", bad) if "FILE" in line else f"{line} {bad}").split()
        with pytest.raises(UsageError, match=f"cannot write {bad}: "):
            app(words, standalone_mode=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "folder"]


def test_two_outputs_in_one_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"x\.html is named for two outputs"):
        app(["inspect", "no/dataset", "--html", "x.html", "--json", str(tmp_path / "x.html")], standalone_mode=False)


def test_an_output_may_be_a_pipe_or_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "real" / "record.json")
    line = "plan --gpu-rate 100 --load-us 300 --sample-kb 30 --json"
    for path in ("/dev/null", str(tmp_path / "link.json")):
        app([*line.split(), path], standalone_mode=False)
    assert [path.name for path in (tmp_path / "real").iterdir()] == ["record.json"]


def test_the_rate_is_of_what_came_since_the_start() -> None:
    clock = [10.0]
    column, bar = RateColumn("samples"), Progress(get_time=lambda: clock[0])
    bar.add_task("resumed", total=2000)
    task = bar.tasks[0]
    shown: list[str] = []
    for clock[0], done in ((10.0, 900), (12.0, 1000), (14.0, 1100)):
        bar.update(task.id, completed=done)
        shown.append(str(column.render(task)))
    assert shown == ["", "50 samples/s", "50 samples/s"]


def test_a_disk_that_fills_up_fails_the_verb_and_is_no_wrong_use(tmp_path: Path) -> None:
    """What can be known before the work is wrong use: status 2."""
    (tmp_path / "folder").mkdir()
    with pytest.raises(FeedlineError, match=r"cannot write .*: Is a directory") as failed:
        write(tmp_path / "folder", "text")
    assert failed.value.exit_status == 1


def test_a_place_in_a_script_is_no_emoji(capsys: pytest.CaptureFixture[str]) -> None:
    PlainConsole().print("toy.py:train:35")
    assert capsys.readouterr().out == "toy.py:train:35\n"
