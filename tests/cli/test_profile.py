"""Signals to `feedline profile` in every phase: the script's own handlers run once, nothing new begins, the report of
what was seen is written, and nothing is left."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from feedline.cli.profile import with_trials
from feedline.profiling.interrupts import SAME_S
from feedline.profiling.record.recording import Recording, Trial
from tests.profiling.recordings import made

pytest.importorskip("torch")

TRAINING = """
import os, signal, sys, time

def tell(word):
    with open(sys.argv[2], "a") as file:
        file.write(word + "\\n")

def handle(number, frame):
    if os.getpid() == main:
        tell("handled")
        if sys.argv[1] == "leaves":
            sys.exit(0)
        while sys.argv[1] == "hangs":
            time.sleep(1)

main = os.getpid()
if sys.argv[1] != "dies":
    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
tell("importing")
import torch
from torch.utils.data import DataLoader, TensorDataset

def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(1_000_000):
        for number, (x, y) in enumerate(loader):
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            time.sleep(0.002)
            if epoch == 0 and number == 10:
                tell("training")
            global steps
            steps += 1
            if steps == 75:
                tell("window")

steps = 0

torch.set_num_threads(1)
data = TensorDataset(torch.rand(256, 4), torch.randint(0, 3, (256,)))
train(torch.nn.Linear(4, 3), DataLoader(data, batch_size=8, num_workers=1, persistent_workers=True))
"""


class Watched:
    """`feedline profile` of a training script, in a process group, a temporary folder and a session of its own."""

    def __init__(self, folder: Path, *options: str, how: str, patch: str = "") -> None:
        (folder / "train.py").write_text(TRAINING)
        # of its own and short: a worker's socket has a path of at most 107 bytes
        self._temporary = Path(tempfile.mkdtemp(prefix="watched-"))
        self._told = folder / "told"
        self._folder = folder
        code = f"{patch}\nfrom feedline.cli.main import run; run()"
        words = ["profile", "--json", "out.json", *options, "train.py", how, str(self._told)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *words],
            cwd=folder,
            env=os.environ | {"TMPDIR": str(self._temporary)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def told(self, word: str) -> int:
        return self._told.read_text().split().count(word) if self._told.exists() else 0

    def wait_for(self, word: str, times: int) -> None:
        while self.told(word) < times:
            assert self.process.poll() is None, self.process.stdout and self.process.stdout.read().decode()
            time.sleep(0.02)

    def ended(self) -> tuple[int, str]:
        output, _ = self.process.communicate()
        assert not list(self._temporary.glob("feedline-*"))
        assert not [one for one in psutil.process_iter() if self._is_ours(one)]
        self.left = [path.name for path in self._temporary.iterdir()]
        shutil.rmtree(self._temporary)
        return self.process.returncode, output.decode()

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get("TMPDIR") == str(self._temporary)
        except psutil.Error:
            return False

    def record(self) -> dict[str, Any]:
        return json.loads((self._folder / "out.json").read_text())


def to_driver(watched: Watched, number: signal.Signals) -> None:
    watched.process.send_signal(number)


def to_group(watched: Watched, number: signal.Signals) -> None:
    """As a terminal does."""
    os.killpg(watched.process.pid, number)


def twice(watched: Watched, number: signal.Signals) -> None:
    """As `timeout` does: to its child, then to the whole group."""
    to_driver(watched, number)
    to_group(watched, number)


Send = Callable[[Watched, signal.Signals], None]


LONG = """
from feedline.profiling.profile_run import StudyConfig
StudyConfig.__init__.__kwdefaults__ |= {"line_steps": 10**9, "window_s": 10**9}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "send", "part", "how"),
    [
        (signal.SIGINT, to_driver, "--legs", "goes on"),
        (signal.SIGTERM, to_group, "--legs", "goes on"),
        (signal.SIGINT, to_group, "--legs", "dies"),
        (signal.SIGTERM, to_driver, "--legs", "dies"),
        (signal.SIGINT, to_driver, "--lines", "goes on"),
        (signal.SIGINT, to_driver, "--lines", "dies"),
        (signal.SIGTERM, twice, "--lines", "leaves"),
    ],
)
def test_a_signal_in_a_window(tmp_path: Path, number: signal.Signals, send: Send, part: str, how: str) -> None:
    watched = Watched(tmp_path, "--steps", "60", part, how=how, patch=LONG)
    watched.wait_for("window", 1)
    send(watched, number)
    status, output = watched.ended()
    assert status == 128 + number, output
    assert (watched.told("training"), watched.told("handled")) == (1, how != "dies")
    assert watched.record()["verdict"]["samples_per_s"]
    assert "interrupted by a signal" in output
    assert "no trials: interrupted" in output
    if (number, send, how) == (signal.SIGTERM, to_driver, "dies"):  # else the workers, too, have had the signal
        assert not [name for name in watched.left if name.startswith("pymp-")]
    assert "cli/main.py" not in output  # no traceback of ours; torch's own is of its workers, which had it too


NOTHING_TO_TRY_WITH = "import sys; sys.modules['feedline.benchmarks.what_if'] = None"


@pytest.mark.parametrize("send", [to_driver, to_group])
def test_a_script_that_ends_well_after_a_signal_has_no_windows_and_no_trials(tmp_path: Path, send: Send) -> None:
    watched = Watched(tmp_path, "--legs", "--lines", how="leaves", patch=NOTHING_TO_TRY_WITH)
    watched.wait_for("training", 1)
    send(watched, signal.SIGTERM)
    status, output = watched.ended()
    assert status == 143, output
    assert (watched.told("training"), watched.told("handled")) == (1, 1)
    assert "no legs and no lines: interrupted" in output
    assert "no trials: interrupted" in output  # and not even imported
    assert watched.record()["recording"]["script"]["exit_status"] == 0


@pytest.mark.parametrize(("legs", "number"), [(False, signal.SIGINT), (True, signal.SIGTERM)])
def test_a_second_signal_ends_at_once(tmp_path: Path, number: signal.Signals, legs: bool) -> None:
    watched = Watched(tmp_path, *(("--legs", "--steps", "60") if legs else ()), how="hangs", patch=LONG)
    watched.wait_for("window" if legs else "training", 1)
    to_group(watched, number)
    watched.wait_for("handled", 1)
    time.sleep(2 * SAME_S)
    to_driver(watched, number)
    status, output = watched.ended()
    assert status == 128 + number and "Traceback" not in output, output
    assert not (tmp_path / "out.json").exists()


IN_TRIALS = """
import os, time
import feedline.benchmarks.what_if as whatif
def what_if(recording):
    os.kill(os.getpid(), {number})
    time.sleep(3600)
whatif.what_if = what_if
"""
WHILE_WRITING = """
import os
import feedline.profiling.render.plain_text as render
write = render.text
def text(*args, **options):
    os.kill(os.getpid(), {number})
    return write(*args, **options)
render.text = text
"""


@pytest.mark.parametrize(("patch", "number"), [(IN_TRIALS, signal.SIGINT), (WHILE_WRITING, signal.SIGTERM)])
def test_a_signal_after_the_script(tmp_path: Path, patch: str, number: signal.Signals) -> None:
    watched = Watched(tmp_path, "--steps", "20", how="goes on", patch=patch.format(number=int(number)))
    status, output = watched.ended()
    assert status == 128 + number, output
    assert ("no trials: interrupted" in output) == (patch == IN_TRIALS)
    assert watched.record()["verdict"]["samples_per_s"] and "Traceback" not in output


def test_a_signal_while_the_script_imports(tmp_path: Path) -> None:
    watched = Watched(tmp_path, "--legs", how="leaves")
    watched.wait_for("importing", 1)
    to_driver(watched, signal.SIGTERM)
    status, output = watched.ended()
    assert status == 143 and watched.told("training") == 0, output
    assert watched.record()["recording"]["script"]["argv"] == ["train.py", "leaves", str(tmp_path / "told")]


BEFORE_THE_SCRIPT = """
import os, signal, time
import feedline.profiling.launch as launch
environment = launch.environment
def signalled(*words):
    os.killpg(0, signal.SIGTERM)
    time.sleep(1)
    return environment(*words)
launch.environment = signalled
"""


def test_a_signal_to_the_group_before_the_script_is_there(tmp_path: Path) -> None:
    watched = Watched(tmp_path, "--legs", how="dies", patch=BEFORE_THE_SCRIPT)
    status, output = watched.ended()
    assert status == 143 and watched.told("training") == 0, output
    assert "no legs: interrupted" in output


FAILING = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number, (x,) in enumerate(DataLoader(TensorDataset(torch.rand(256, 4)), batch_size=8)):
    model(x).sum().backward()
    optimizer.step()
raise ValueError("at the end")
"""


@pytest.mark.slow
def test_a_failing_script_has_the_last_word_but_two_lines(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FAILING)
    command = [sys.executable, "-c", "from feedline.cli.main import run; run()"]

    def feedline(*words: str) -> "subprocess.CompletedProcess[str]":
        here = os.environ | {"TMPDIR": str(tmp_path)}
        return subprocess.run([*command, *words], cwd=tmp_path, env=here, capture_output=True, text=True)

    done = feedline("profile", "train.py")
    assert done.returncode == 1 and not done.stdout
    *_, error, ended, kept = done.stderr.splitlines()
    assert error == "ValueError: at the end"
    assert ended.startswith("feedline: train.py ended with status 1 (ValueError: at the end) after 32 steps. ")
    told, _, words = kept.partition("feedline report ")
    assert told == "feedline: what was seen until then: "
    shown = feedline("report", words)
    assert "no trials: the script failed" in shown.stdout and "THE STEP" in shown.stdout.upper()

    done = feedline("profile", "--json", "out.json", "--html", "out.html", "train.py")
    assert done.stderr.splitlines()[-1] == f"{told}feedline report out.json, out.html"
    assert (tmp_path / "out.html").exists() and not done.stdout


def test_an_option_that_went_to_a_script_is_named(tmp_path: Path, feedline: Any) -> None:
    (tmp_path / "train.py").write_text("import argparse; argparse.ArgumentParser().parse_args()")
    done = feedline("profile", "train.py", "--html=out.html", "--epochs", "1", cwd=tmp_path)
    assert done.returncode == 2 and not done.stdout
    *_, ended, hint = done.stderr.splitlines()
    assert ended == "feedline: train.py ended with status 2 before a training step was measured"
    assert hint.startswith("feedline: --html=out.html went to the script: options of feedline profile stand before")
    done = feedline("profile", "train.py", "--epochs", "1", cwd=tmp_path)
    assert done.stderr.splitlines()[-1] == ended


def test_trials_are_announced(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import feedline.benchmarks.what_if as module

    announced: list[str] = []

    def what_if(_: Recording) -> list[Trial]:
        announced.append(capsys.readouterr().err)
        return [Trial(codec="raw")]

    monkeypatch.setattr(module, "what_if", what_if)
    assert with_trials(made(sample_paths=["a.jpg"])).trials == [Trial(codec="raw")]
    with_trials(made(wait_s=0.0, ceiling=1066.0, sample_paths=["a.jpg"]))  # nothing is tried: no data remedy can help
    assert announced[0].startswith("feedline: the script is done; some of its samples are tried")
    assert announced[1] == ""
