"""The script that runs on a rented machine, on this one: what it unpacks, what it keeps when the time is over."""

import json
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from tests.commands import all_gone
from tests.lab import gpu_run
from tests.lab.gpu_run import ROOT, Command, Place, install, keep, run, with_result


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """Of a wheel that is installed here and one that is not."""
    kit = tmp_path / "kit"
    (kit / "wheels").mkdir(parents=True)
    for name in ("psutil", "no_such_package"):
        with zipfile.ZipFile(kit / "wheels" / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}/__init__.py", "told = 'from the kit'")
    (kit / "feedline-9.9.dist-info").mkdir()
    (kit / "feedline-9.9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: feedline\nVersion: 9.9\n")
    return kit


def place(tmp_path: Path, seconds: float = 60.0) -> Place:
    return Place("cpu", tmp_path, time.monotonic() + seconds)


def test_what_is_missing_is_unpacked_and_the_checkout_linked(kit: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    assert install(kit, site) == ["no_such_package"] == install(kit, site)
    assert (site / "feedline").resolve() == ROOT and not (site / "psutil").exists()
    code = "import no_such_package as one, importlib.metadata as m, feedline.pipeline.base.text as t; "
    code += "print(one.told, m.version('feedline'), t.__file__)"
    done = run(Command("told", ["-c", code], ""), place(tmp_path), site)
    assert done.status == 0, done.tail
    assert done.tail.split() == ["from", "the", "kit", "9.9", str(site / "feedline" / "pipeline/base/text.py")]


def test_a_command_s_result_and_last_words_are_kept(tmp_path: Path) -> None:
    code = "import sys, json; json.dump({'n': 1}, open(sys.argv[2], 'w')); print('done'); sys.exit(3)"
    done = run(Command("one", ["-c", code]), place(tmp_path), tmp_path / "site")
    assert (done.status, done.result, done.tail) == (3, {"n": 1}, "done\n")


def test_what_outlasts_the_call_is_ended_with_its_children_and_its_result_kept(tmp_path: Path) -> None:
    code = "import sys, json, subprocess, time; json.dump({'n': 1}, open(sys.argv[2], 'w'))\n"
    code += "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    code += "print(child.pid, flush=True); time.sleep(600)"
    done = run(Command("long", ["-c", code]), place(tmp_path, 3.0), tmp_path / "site")
    assert (done.status, done.result) == ("the time was over", {"n": 1})
    assert all_gone([int(done.tail.split()[0])])


def test_what_is_told_to_stop_may_write_its_result_first(tmp_path: Path) -> None:
    code = "import sys, json, time\ntry:\n    time.sleep(600)\n"
    code += "except KeyboardInterrupt:\n    json.dump({'n': 2}, open(sys.argv[2], 'w'))"
    done = run(Command("told", ["-c", code]), place(tmp_path, 3.0), tmp_path / "site")
    assert (done.status, done.result) == ("the time was over", {"n": 2})


def test_no_command_is_started_when_the_time_is_over(kit: Path, tmp_path: Path) -> None:
    (kit / "shards").mkdir()
    command = [sys.executable, str(ROOT / "tests/lab/gpu_run.py"), "check", "--kit", str(kit), "--seconds", "15"]
    command += ["--device", "cpu", "--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
    assert subprocess.run(command, capture_output=True, cwd=tmp_path).returncode == 1
    told = json.loads((tmp_path / "out" / "check.json").read_text())["commands"]
    assert [(one["name"], one["tail"]) for one in told] == [("shards", "not started")]
    assert not (tmp_path / "work" / "shards.ready").exists()


def test_a_clone_gets_the_kit_s_kernel(kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_run, "KERNEL", tmp_path)
    (kit / "native.abi3.so").write_bytes(b"compiled")
    assert not gpu_run.compiled()
    assert "native.abi3.so" in install(kit, tmp_path / "site")
    assert gpu_run.compiled() and "native.abi3.so" not in install(kit, tmp_path / "site")


def test_a_verb_gets_its_result_s_option_before_a_script(tmp_path: Path) -> None:
    *_, climb = gpu_run.ladder(place(tmp_path))
    words = with_result(climb, tmp_path / "r")
    assert words[:3] == ["ladder", "--json", str(tmp_path / "r")] and words[-2:] == ["--epochs", "1000"]


def test_every_step_names_its_commands_on_both_kinds_of_machine(tmp_path: Path) -> None:
    for device in ("cpu", "cuda"):
        at = Place(device, tmp_path, time.monotonic() + 500)
        named = {name: [command.name for command in step(at)] for name, step in gpu_run.STEPS.items()}
        assert named["check"] == ["gpu-check"] and named["tests"] == ["gpu-tests"]
        assert next(iter(named)) == "tests"  # a check takes all the time that is left
        assert bool(named["occupancy"]) == bool(named["predictions"]) == (device == "cuda")


def test_tests_are_counted_and_failures_named(tmp_path: Path) -> None:
    file = tmp_path / "report.xml"
    file.write_text("""<testsuites><testsuite><testcase classname="a" name="x"/>
        <testcase classname="a" name="y"><failure message="no"/></testcase>
        <testcase classname="a" name="z"><skipped/></testcase></testsuite></testsuites>""")
    assert gpu_run.read_result(file) == {"passed": 1, "skipped": 1, "failed": {"a.y": "no"}}


def test_results_of_a_gpu_alone_are_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_run, "RESULTS", tmp_path)
    for device in ("cpu", "cuda"):
        done = {"name": f"of-{device}", "status": 0, "result": {"n": 1}}
        (tmp_path / "call").write_text(json.dumps({"device": device, "commands": [done]}))
        keep([tmp_path / "call"])
    assert {path.name for path in tmp_path.glob("*.json")} == {"of-cuda.json"}


def test_without_a_kit_it_says_what_to_do(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tests/lab/gpu_run.py"), "check", "--kit", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and "make gpu-kit" in done.stderr


def test_it_needs_nothing_but_the_standard_library() -> None:
    command = [sys.executable, "-I", "-S", str(ROOT / "tests/lab/gpu_run.py"), "--help"]
    assert subprocess.run(command, capture_output=True).returncode == 0
