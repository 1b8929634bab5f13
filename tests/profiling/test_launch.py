"""A script runs under the probe exactly as without it: arguments, streams, status, signals. No torch in these."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest

from feedline.pipeline.base.errors import UsageError
from feedline.profiling.launch import Idle, Run, command_line, launched
from feedline.profiling.record.journal import StudyConfig
from tests.commands import Commands, all_gone

Profiled = Callable[..., "subprocess.CompletedProcess[str]"]
FEEDLINE = [sys.executable, "-c", "from feedline.cli.main import run; run()", "profile", "--no-trials"]


def script(folder: Path, text: str, name: str = "script.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


@pytest.fixture
def profiled(feedline: Commands) -> Profiled:
    return partial(feedline, "profile", "--no-trials")


def profile(argv: list[str]) -> Run:
    with launched(StudyConfig(argv=argv)) as run:
        return run


ABOUT = """
    import json, os, sys
    seen = {"name": __name__, "file": __file__, "argv": sys.argv, "path": [p for p in sys.path if p],
            "cwd": os.getcwd(), "spec": repr(__spec__),
            "main": sys.modules["__main__"].__dict__ is globals()}
    print(json.dumps(seen))
"""


@pytest.mark.parametrize("words", [["script.py", "--x", "1", "-m", "--json"], ["./sub/script.py", "--", "-h"]])
def test_it_looks_the_same_from_inside(profiled: Profiled, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "sub").mkdir()
    script(tmp_path, ABOUT)
    script(tmp_path / "sub", ABOUT)
    alone = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True)
    watched = profiled(*words, cwd=tmp_path)
    assert alone.returncode == watched.returncode == 0
    assert watched.stdout.splitlines()[0] == alone.stdout.splitlines()[0]


def test_a_module_of_the_scripts_own_hides_the_standard_librarys_as_it_would(
    profiled: Profiled, tmp_path: Path
) -> None:
    script(tmp_path, "def mine(): return 'my own'", "resource.py")
    script(tmp_path, "import resource, sys; print(resource.mine())")
    assert profiled("script.py", cwd=tmp_path).stdout.splitlines()[0] == "my own"


def test_a_module(profiled: Profiled, tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    script(package, "import sys; print(__name__, __package__, sys.argv[1:])", "train.py")
    done = profiled("-m", "package.train", "-v", cwd=tmp_path)
    assert done.stdout.splitlines()[0] == "__main__ package ['-v']"


def test_help_after_the_script_is_the_scripts_own(profiled: Profiled, tmp_path: Path) -> None:
    script(tmp_path, "import argparse; argparse.ArgumentParser(description='My own').parse_args()")
    done = profiled("script.py", "--help", cwd=tmp_path)
    assert "My own" in done.stdout
    assert done.returncode == 0
    assert "Run an unmodified training script" in profiled("--help", cwd=tmp_path).stdout


def test_stdin_and_binary_output_pass_through(profiled: Profiled, tmp_path: Path) -> None:
    script(tmp_path, "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])")
    data = bytes(range(256)) * 100
    said = profiled("script.py", cwd=tmp_path, given=data).stdout
    assert said.encode(errors="surrogateescape").startswith(data[::-1])


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("raise ValueError('no such class')", 1, "ended with status 1 (ValueError: no such class)"),
        ("import sys; sys.exit(3)", 3, "ended with status 3"),
        ("import sys; sys.exit('wrong data')", 1, "wrong data"),
        ("import os; os._exit(7)", 7, "ended with status 7"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137, "ended with status 137"),
        ("import sys; sys.exit()", 0, ""),
        ("def f(:", 1, "SyntaxError"),
    ],
)
def test_the_exit_status_is_the_scripts_own(
    profiled: Profiled, tmp_path: Path, text: str, status: int, said: str
) -> None:
    script(tmp_path, text)
    done = profiled("script.py", cwd=tmp_path)
    assert done.returncode == status
    assert said in done.stderr
    ours = [line for line in done.stderr.splitlines() if line.startswith("feedline: ")]
    assert len(ours) == (1 if status else 0)


@pytest.mark.parametrize(
    ("text", "by"),
    [("import sys; sys.exit(-1)", "error"), ("import os; os.kill(os.getpid(), 9)", "signal"), ("pass", "itself")],
)
def test_how_a_script_ended(tmp_path: Path, text: str, by: str) -> None:
    assert profile([str(script(tmp_path, text))]).recording.script.ended_by == by


def test_a_ctrl_c_as_the_interpreter_ends_shows_nothing_of_ours(profiled: Profiled, tmp_path: Path) -> None:
    script(
        tmp_path,
        """
        import signal
        from feedline.profiling import probe

        end = probe._active.end
        def interrupted():
            signal.raise_signal(signal.SIGINT)
            end()
        probe._active.end = interrupted
    """,
    )
    done = profiled("script.py", cwd=tmp_path)
    assert done.returncode == 0 and "Traceback" not in done.stderr and "KeyboardInterrupt" not in done.stderr


def test_what_is_left_out_after_a_failure_is_said(profiled: Profiled, tmp_path: Path) -> None:
    script(tmp_path, "raise ValueError")
    done = profiled("--legs", "--lines", "--json", "out.json", "script.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "no legs and no lines: the script failed" in json.loads((tmp_path / "out.json").read_text())["notes"]


def test_files_are_written_in_utf_8_whatever_the_locale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("PYTHONUTF8", "0")
    monkeypatch.setenv("PYTHONCOERCECLOCALE", "0")
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8")
    script(tmp_path, "pass")
    done = subprocess.run([*FEEDLINE, "--html", "r.html", "script.py"], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert "–" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_a_script_without_any_loader_gets_one_line_that_says_so(profiled: Profiled, tmp_path: Path) -> None:
    script(tmp_path, "print('done')")
    done = profiled("script.py", cwd=tmp_path)
    assert done.returncode == 0
    assert "no DataLoader was iterated" in done.stdout + done.stderr
    script(tmp_path, "raise ValueError('before the data')")
    done = profiled("script.py", cwd=tmp_path)
    assert done.returncode == 1
    last = done.stderr.splitlines()
    assert last[-2] == "ValueError: before the data"
    ended = (
        "feedline: script.py ended with status 1 (ValueError: before the data) before a training step was measured"
    )
    assert last[-1] == ended and not done.stdout


def test_forks_and_changes_of_folder_are_the_scripts_business(profiled: Profiled, tmp_path: Path) -> None:
    script(
        tmp_path,
        """
        import os, subprocess, sys
        os.chdir("/")
        child = os.fork()
        if child == 0:
            sys.exit(5)
        _, status = os.waitpid(child, 0)
        done = subprocess.run([sys.executable, "-c", "import sys; print('inner', sys.argv)"], capture_output=True)
        print(os.waitstatus_to_exitcode(status), done.stdout.decode().strip())
        """,
    )
    done = profiled("--json", "out.json", "script.py", cwd=tmp_path)
    assert done.stdout.splitlines()[0] == "5 inner ['-c']"
    assert (tmp_path / "out.json").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none.py"], "no script at none.py"),
        (["no; module"], "feedline profile -m 'no; module'"),
        (["folder"], "folder without __main__.py"),
        (["ls"], "ls is not a Python program"),
        (["--json", "no/where.json", "script.py"], "no folder"),
        (["--fail-if", "speed>1", "script.py"], "speed"),
        (["--steps", "0", "script.py"], "--steps"),
    ],
)
def test_wrong_use_is_one_line_and_status_2(profiled: Profiled, tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "folder").mkdir()
    script(tmp_path, "open('ran', 'w')")
    done = profiled(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("start", "python"),
    [
        ("#!/usr/bin/env python3\nimport this\n", True),
        ("#!/bin/sh\n'''exec' '/a long/path/bin/python' \"$0\" \"$@\"\n' '''\n", True),
        ("#!/bin/sh\nexec python -m this\n", False),
    ],
)
def test_programs_of_python_are_known_however_they_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str, python: bool
) -> None:
    program = tmp_path / "launcher"
    program.write_text(start)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    if python:
        assert command_line(["launcher", "x"], module=False) == [sys.executable, str(program), "x"]
        return
    with pytest.raises(UsageError, match="launcher is not a Python program"):
        command_line(["launcher", "x"], module=False)


def test_nothing_to_run() -> None:
    with pytest.raises(UsageError, match="no script"):
        command_line([], module=False)


SLEEPER = """
    import os, subprocess, sys, time
    try:
        open("started", "w").write(str(os.getpid()))
        time.sleep(60)
    except KeyboardInterrupt:
        print("cleaned up")
        raise
"""


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.05)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_reaches_the_script_and_nothing_is_left(tmp_path: Path, number: signal.Signals, status: int) -> None:
    script(tmp_path, SLEEPER)
    before = signal.signal(number, signal.SIG_DFL)  # under nohup, or in the background, it is inherited as ignored
    watched = subprocess.Popen(
        [*FEEDLINE, "--json", "out.json", "script.py"], cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    signal.signal(number, before)
    wait_for(tmp_path / "started")
    watched.send_signal(number)
    output, _ = watched.communicate(timeout=60)
    assert watched.returncode == status
    assert (b"cleaned up" in output) == (number == signal.SIGINT)
    assert all_gone([int((tmp_path / "started").read_text())])
    assert (tmp_path / "out.json").exists()


def test_a_batch_systems_warning_is_the_scripts_alone(tmp_path: Path) -> None:
    """SIGUSR1, sent to all processes of a job before its time is over."""
    script(tmp_path, """
        import os, signal, time
        heard = []
        signal.signal(signal.SIGUSR1, lambda *_: heard.append(print("heard", flush=True)))
        open("started", "w").write(str(os.getpid()))
        while not heard:
            time.sleep(0.01)
        time.sleep(1)  # for a second one
    """)  # fmt: skip
    watched = subprocess.Popen([*FEEDLINE, "script.py"], cwd=tmp_path, stdout=subprocess.PIPE)
    wait_for(tmp_path / "started")
    for process in (watched.pid, int((tmp_path / "started").read_text())):
        os.kill(process, signal.SIGUSR1)
    output, _ = watched.communicate(timeout=60)
    assert watched.returncode == 0 and output.count(b"heard") == 1


def test_the_script_ends_with_a_feedline_that_is_killed_and_the_next_one_clears_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path, SLEEPER)
    (tmp_path / "tmp").mkdir()
    environment = os.environ | {"TMPDIR": str(tmp_path / "tmp")}
    watched = subprocess.Popen([*FEEDLINE, "script.py"], cwd=tmp_path, stdin=subprocess.DEVNULL, env=environment)
    wait_for(tmp_path / "started")
    process = psutil.Process(int((tmp_path / "started").read_text()))
    watched.kill()
    watched.wait()
    assert all_gone([process], 60)
    assert list((tmp_path / "tmp").iterdir())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    profile([str(script(tmp_path, "pass", "next.py"))])
    assert not list((tmp_path / "tmp").iterdir())


WRITES = """
import os, time
out = os.open("/dev/null", os.O_WRONLY)
while True:
    os.write(out, bytes(2 << 20))
    time.sleep(0.05)
"""


def test_a_program_that_only_writes_does_not_hang() -> None:
    with (
        subprocess.Popen([sys.executable, "-c", WRITES]) as writes,
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as sleeps,
    ):
        try:
            time.sleep(1)  # they have started
            looks, began = [Idle(writes.pid), Idle(sleeps.pid)], time.monotonic()
            while (waited := time.monotonic() - began) < 3:
                writes_s, sleeps_s = [one.seconds() for one in looks]
                time.sleep(0.1)
        finally:
            writes.kill()
            sleeps.kill()
    assert writes_s < 0.8 * waited < sleeps_s


def test_a_stranger_with_the_number_of_a_worker_is_left_alone(tmp_path: Path) -> None:
    """Workers that hang are ended: by their numbers, which pass to others."""
    stranger = subprocess.Popen(["sleep", "60"])
    text = f"""
        import json, os, subprocess, time
        hangs = subprocess.Popen(["sleep", "60"])
        open({str(tmp_path / "hangs")!r}, "w").write(str(hangs.pid))
        for pid in (hangs.pid, {stranger.pid}):
            about = {{"pid": pid, "worker": 0, "loader": 0, "rank": 0, "ended": False}}
            with open(os.environ["FEEDLINE_PROFILE"] + f"/worker-{{pid}}.json", "w") as file:
                json.dump({{**about, "paths": [], "sampler_cpu_s": 0.0}}, file)
        os._exit(0)
    """
    try:
        profile([str(script(tmp_path, text))])
        assert stranger.poll() is None
        assert all_gone([int((tmp_path / "hangs").read_text())])
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize("own", ["", "def profile(f): return lambda: 40\n"])
def test_a_profile_decorator_left_in_the_script(tmp_path: Path, own: str) -> None:
    path = tmp_path / "script.py"
    path.write_text(own + "@profile\ndef f(): return 3\nraise SystemExit(f())")
    assert profile([str(path)]).status == (40 if own else 3)


def test_the_machines_own_sitecustomize_still_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own"
    own.mkdir()
    script(own, "import builtins; builtins.from_own_sitecustomize = 42", "sitecustomize.py")
    monkeypatch.setenv("PYTHONPATH", str(own))
    path = script(tmp_path, "import sys; sys.exit(from_own_sitecustomize)")
    assert profile([str(path)]).status == 42


def test_the_runs_folder_is_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    path = script(tmp_path, "import os; print(os.environ['FEEDLINE_PROFILE'])")
    profile([str(path)])
    assert [one.name for one in tmp_path.iterdir()] == ["script.py"]
    assert "FEEDLINE_PROFILE" not in os.environ
