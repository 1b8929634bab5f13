"""Files that a user names: whole or not there, links followed, and nothing replaced that is no file."""

import os
import subprocess
import threading
from pathlib import Path

from feedline.pipeline.base.files import write_as_asked


def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "latest.json").symlink_to(tmp_path / "elsewhere" / "record.json")
    for text in (b"first", b"second"):
        write_as_asked(tmp_path / "latest.json", text)
        assert (tmp_path / "elsewhere" / "record.json").read_bytes() == text
    assert (tmp_path / "latest.json").is_symlink()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_what_a_killed_process_left_of_a_file_goes_with_the_next_writing(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    left = [tmp_path / f".{name}.0123abcd.{dead.pid}.tmp" for name in ("run.json", "other.json")]
    mine = tmp_path / f".run.json.0123abcd.{os.getpid()}.tmp"
    for path in (*left, mine):
        path.touch()
    write_as_asked(tmp_path / "run.json", b"{}")
    assert not left[0].exists() and left[1].exists() and mine.exists()


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    write_as_asked(tmp_path / "pipe", b"record")
    reader.join()
    assert got == [b"record"]
    assert (tmp_path / "pipe").is_fifo()
