"""A script has the terminal that its user has."""

import os
import pty
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys
open("seen", "w").write(f"{sys.stdin.isatty()} {os.popen('stty size').read().strip()} {input()}")
"""
FEEDLINE = ["-c", "from feedline.cli.main import run; run()", "profile", "--no-trials"]


@pytest.mark.parametrize("options", [[], ["--legs", "--lines"]])
def test_its_size_and_what_is_typed(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execv(sys.executable, [sys.executable, *FEEDLINE, *options, "train.py"])
    os.write(terminal, b"yes\n")
    with os.fdopen(terminal, "rb", buffering=0) as screen:
        try:
            while screen.read(1 << 16):
                pass
        except OSError:  # all who had it open have gone
            pass
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (tmp_path / "seen").read_text() == "True 0 0 yes"
