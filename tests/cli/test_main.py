"""How the command line ends: one line and a status, never a traceback."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image
from typer.testing import CliRunner

from feedline.cli import doctor
from feedline.cli.main import app
from feedline.pipeline.kernel import compiled
from tests.commands import Commands
from tests.lab import tiny_split
from tests.train.conftest import write_dataset

SHARDS = ("pyarrow", "simplejpeg", "cv2", "PIL", "fsspec")
PREPARE = ("pyspark", "pandas", "scipy", "skimage", "sklearn")
TRAIN = ("cloudpickle", "torch", "torchvision", "tensorboard")


FEEDLINE = [sys.executable, "-c", "from feedline.cli.main import run; run()"]


Without = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Generator[Without]:
    """As `feedline`, in `folder`, where these modules are not installed; nor in the processes it starts."""
    with ExitStack() as stack:

        @cache
        def commands(modules: tuple[str, ...]) -> tuple[Commands, dict[str, str]]:
            folder = tmp_path_factory.mktemp("hidden")
            (folder / "sitecustomize.py").write_text(f"import sys; sys.modules.update(dict.fromkeys({modules!r}))")
            paths = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
            hidden = {**os.environ, "PYTHONPATH": paths}
            return stack.enter_context(Commands(hidden)), hidden

        def run(folder: Path, modules: tuple[str, ...], *words: str) -> "subprocess.CompletedProcess[str]":
            feedline, hidden = commands(modules)
            return feedline(*words, cwd=folder, environment=hidden)

        yield run


def alone(*words: str) -> "subprocess.CompletedProcess[str]":
    """As its user starts it."""
    return subprocess.run([*FEEDLINE, *words], capture_output=True, text=True)


def test_no_verb_shows_help() -> None:
    assert "Usage" in alone().stdout


def test_every_verb_has_help_with_an_example() -> None:
    runner = CliRunner()
    names = [command.name or command.callback.__name__ for command in app.registered_commands]  # type: ignore[union-attr]
    assert len(names) == len(set(names))
    for verb in names:
        done = runner.invoke(app, [verb, "--help"])
        assert done.exit_code == 0, verb
        assert "xample" in done.stdout, f"{verb} --help has no example"


@pytest.mark.parametrize("verb", ["verify", "inspect", "doctor", "tune", "train", "gpu-check"])
def test_a_prepared_dataset_that_is_not_there_is_said_alike(feedline: Commands, tmp_path: Path, verb: str) -> None:
    gone = tmp_path / "gone"
    done = feedline(verb, str(gone))
    assert done.returncode == 2
    assert done.stderr == f"feedline: {gone} does not exist: give a folder that `feedline prepare` made\n"


@pytest.mark.parametrize("words", [("prepair",), ("verify", "--no-such-option", "x"), ("prepare",)])
def test_wrong_use_is_one_line_with_the_way_to_the_help(feedline: Commands, words: tuple[str, ...]) -> None:
    done = feedline(*words)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "--help" in done.stderr


@pytest.mark.parametrize("words", [("verify", "no/such/folder"), ("inspect", "no/such/folder")])
def test_errors_are_one_line_without_a_traceback(words: tuple[str, ...]) -> None:
    done = alone(*words)
    assert done.returncode in (1, 2)
    assert len(done.stderr.strip().splitlines()) == 1
    assert "no/such/folder" in done.stderr


@pytest.mark.parametrize(
    "verb", ["inspect", "train", "tune", "index", "ladder", "compare", "gpu-check", "sweep", "plan", "report"]
)
def test_a_verb_that_reads_folders_says_so_of_an_address_and_keeps_its_slashes(
    feedline: Commands, verb: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.touch()
    more = {"ladder": (str(script),), "compare": ("--num-workers", "0,1")}.get(verb, ())
    done = feedline(verb, "http://127.0.0.1:9/x", *more)
    assert done.returncode == 2
    assert f"feedline: http://127.0.0.1:9/x: {verb} takes files and folders of this machine" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_size_beside_the_outputs_is_not_ignored(feedline: Commands) -> None:
    done = feedline("prepare", "no/such/folder", "out", "--output", "256:jpeg", "--size", "128")
    assert done.returncode == 2
    assert "beside --output say SIZE:CODEC" in done.stderr


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("a/new", "--output", "999999999999:jpeg"), "feedline: size 999999999999 px is not in 2..16384\n"),
        (
            ("a/new", "--codec", "keep", "--apply-orientation"),
            "feedline: keep takes the files as they are: leave --apply-orientation out\n",
        ),
        (
            ("a/new", "--output", "64:raw", "--output", "64:planes", "--quality", "80"),
            "feedline: --quality does nothing for raw or planes: leave it out, or prepare jpeg\n",
        ),
        (
            ("a/new", "--codec", "raw", "--subsampling", "444"),
            "feedline: --subsampling does nothing for raw: leave it out, or prepare jpeg\n",
        ),
        (("/dev/full",), "feedline: /dev/full is not a folder: choose another place for OUT\n"),
        (
            ("/proc/out",),
            "feedline: making the folder /proc/out failed: No such file or directory: choose another place for OUT\n",
        ),
    ],
)
def test_prepare_says_what_is_wrong_with_its_output(
    feedline: Commands, tmp_path: Path, words: tuple[str, ...], line: str
) -> None:
    (tmp_path / "source" / "class").mkdir(parents=True)
    Image.new("RGB", (40, 40)).save(tmp_path / "source" / "class" / "picture.jpg")
    words = (*words, "--engine", "processes")  # else it is said that there is no Java where there is none
    done = feedline("prepare", str(tmp_path / "source"), *words)
    assert (done.returncode, done.stderr) == (2, line)


def test_an_address_that_does_not_answer_is_one_line(feedline: Commands) -> None:
    done = feedline("verify", "http://127.0.0.1:9/x")
    assert done.returncode == 1
    assert done.stderr.startswith("feedline: http://127.0.0.1:9/x") and done.stderr.count("\n") == 1


def test_what_the_file_system_refuses_is_one_line(feedline: Commands) -> None:
    done = feedline("verify", "x" * 300)
    assert done.returncode == 1
    assert done.stderr.strip().endswith("File name too long") and len(done.stderr.strip().splitlines()) == 1


def test_an_empty_argument_is_a_variable_that_is_not_set(feedline: Commands) -> None:
    done = feedline("verify", "")
    assert done.returncode == 2
    assert "is a variable not set?" in done.stderr


def test_names_do_not_steer_the_terminal(feedline: Commands) -> None:
    done = feedline("verify", "no\x1b]0;title\x07\nsuch folder")
    assert done.returncode in (1, 2)
    assert r"no\x1b]0;title\x07\nsuch folder" in done.stderr


def test_an_output_that_is_full_is_one_line() -> None:
    code = "from feedline.cli.main import run; run()"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, "--version"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr == "feedline: the output: No space left on device\n"


def test_a_terminal_without_unicode_gets_question_marks() -> None:
    code = "from feedline.cli.main import console, run, app; app.command('bars')(lambda: console.print('▁▂')); run()"
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code, "bars"], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "??\n", "")


def test_an_interrupt_while_it_imports_is_one_too(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from feedline.cli.main import run; run()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


SWALLOWING = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":  # as its own import takes it for a module that is missing
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                pass

sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize("line", ["train no/dataset", "sweep no --space x --study y", "prune no"])
def test_an_interrupt_is_not_lost_in_torch_s_import(feedline: Commands, line: str) -> None:
    done = feedline(*line.split(), first=SWALLOWING)
    assert (done.returncode, done.stderr.startswith("interrupted")) == (130, True)


def test_a_path_that_leads_in_a_circle_is_one_line(feedline: Commands, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    done = feedline("prepare", str(tmp_path / "loop"), str(tmp_path / "out"))
    assert done.returncode == 2 and "Traceback" not in done.stderr and str(tmp_path / "loop") in done.stderr


def test_debug_shows_the_traceback() -> None:
    assert "Traceback" in alone("--debug", "verify", "no/such/folder").stderr


@pytest.mark.slow
def test_doctor_writes_what_it_prints(feedline: Commands, tmp_path: Path) -> None:
    done = feedline("doctor", "--json", str(tmp_path / "doctor.json"))
    assert done.returncode == 0
    record = json.loads((tmp_path / "doctor.json").read_text())
    assert record["verb"] == "doctor"
    assert record["pil"]["version"] in done.stdout
    assert {"kernel", "torch", "cuda", "nvml", "java", "spark", "cores", "shared_memory_bytes"} <= set(record)


@pytest.mark.slow
def test_doctor_measures_the_storage_under_a_dataset(feedline: Commands, tmp_path: Path) -> None:
    tiny_split.write(tmp_path / "OUT" / "train", 48, 3)
    done = feedline("doctor", str(tmp_path / "OUT"), "--json", str(tmp_path / "doctor.json"))
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "doctor.json").read_text())
    assert record["storage"]["reads"]["piece_bytes"] > 0 and "random order" in record["storage_order"]
    assert all(name in done.stdout for name in ("random reads", "page cache", "one by one"))
    (tmp_path / "empty").mkdir()
    none = feedline("doctor", str(tmp_path / "empty"))
    assert none.returncode == 1 and "run `feedline prepare` first" in none.stderr


def test_doctor_names_what_pillow_was_built_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("PIL.features.check", lambda name: name == "libtiff")
    fact = doctor.formats()
    assert fact.text == "compressed TIFF"
    assert "libwebp-dev liblcms2-dev" in fact.remedy and "libtiff-dev" not in fact.remedy


def test_doctor_says_which_kernel_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "KERNEL", SimpleNamespace(LEVELS=["plain", "avx2"], level=lambda: "avx2"))
    assert (doctor.kernel().text, doctor.kernel().remedy) == ("compiled, avx2 (of plain, avx2)", "")
    monkeypatch.setattr(compiled, "KERNEL", None)
    monkeypatch.setattr(compiled, "TROUBLE", "it was not built")
    monkeypatch.delenv(compiled.VARIABLE, raising=False)
    assert "OpenCV and Pillow (it was not built)" in doctor.kernel().text and "C compiler" in doctor.kernel().remedy
    monkeypatch.setenv(compiled.VARIABLE, "python")
    assert doctor.kernel().remedy == ""


def test_doctor_says_that_a_kernel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = sys.modules["feedline.pipeline.kernel"]
    monkeypatch.delenv(compiled.VARIABLE, raising=False)
    monkeypatch.delattr(folder, "compiled")
    monkeypatch.delitem(sys.modules, compiled.__name__)
    monkeypatch.setitem(sys.modules, "feedline.pipeline.kernel.native", SimpleNamespace(__file__="native.abi3.so"))
    fact = doctor.kernel()
    assert fact.text.startswith("native.abi3.so was compiled for other Python code") and not fact.value["compiled"]


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("synth", "new"), "shards"),
        (("prepare", "OUT", "new"), "shards"),
        (("verify", "OUT"), "shards"),
        (("index", "OUT"), "shards"),
        (("inspect", "OUT"), "shards"),
        (("train", "OUT"), "train"),
        (("tune", "OUT"), "train"),
        (("plan", "OUT", "--gpu-rate", "5"), "train"),
        (("compare", "OUT", "--num-workers", "0,1"), "train"),
        (("ladder", "OUT"), "train"),
        (("demo",), "train"),
        (("gpu-check", "OUT"), "train"),
        (("sweep", "OUT", "--space", "space.toml", "--study", "DIR"), "sweep"),
    ],
    ids=lambda words: words[0] if isinstance(words, tuple) else "",
)
def test_in_a_base_install_a_verb_names_what_to_install(
    without: Without, tmp_path: Path, words: tuple[str, ...], extra: str
) -> None:
    done = without(tmp_path, SHARDS + PREPARE + TRAIN, *words)
    assert done.returncode == 2
    assert done.stderr.startswith(f"feedline: {words[0]} needs ")
    assert done.stderr.endswith(f": pip install 'feedline[{extra}]'\n") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words", [("train",), ("tune",), ("plan", "--gpu-rate", "5"), ("compare", "--num-workers", "0,1"), ("ladder",),
              ("gpu-check",), ("demo", "--out")], ids=lambda words: words[0]
)  # fmt: skip
def test_without_torch_too(without: Without, tmp_path: Path, words: tuple[str, ...]) -> None:
    dataset = write_dataset(tmp_path / "OUT")
    done = without(tmp_path, TRAIN, *words, str(dataset))
    assert done.returncode == 2
    assert done.stderr.startswith(f"feedline: {words[0]} needs torch: pip install ") and done.stderr.count("\n") == 1


def test_what_needs_nothing_runs_in_a_base_install(without: Without, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('ran')")
    for words in (("doctor",), ("slurm", "OUT"), ("profile", "script.py"), ("train", "--help")):
        assert without(tmp_path, SHARDS + PREPARE + TRAIN, *words).returncode == 0, words


GONE = (2, "feedline: the current folder was removed: cd to another one\n")


def test_a_folder_that_was_removed_is_one_line_for_every_verb(feedline: Commands, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    for verb in [command.name or command.callback.__name__ for command in app.registered_commands]:  # type: ignore[union-attr]
        gone.mkdir()
        done = feedline(verb, "x", "y", cwd=gone, first="os.rmdir(os.getcwd())")
        assert (done.returncode, done.stderr) == GONE


def test_it_starts_in_a_folder_that_was_removed(tmp_path: Path) -> None:
    command = ["bash", "-c", 'rmdir "$PWD"; exec "$0" "$@"', *FEEDLINE, "verify", "x"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == GONE


@pytest.mark.parametrize(
    "words",
    [
        ("train", "OUT", "--config", "half.json"),
        ("inspect", "OUT", "--html", "x.html", "--seed", "-1"),
        ("synth", "new", "--images", "9" * 20),
        ("tune", "OUT", "--window", "inf"),
        ("gpu-check", "--window", "inf"),
        ("gpu-check", "--num-workers", "0"),
        ("gpu-check", "--device", "cpu", "--model", "nothing"),
        ("compare", "OUT", "--num-workers", "0,1", "--window", "inf"),
        ("ladder", "--window", "inf", "OUT"),
        ("slurm", "OUT", "--memory-gib", "-3"),
    ],
)
def test_odd_values_are_one_line(feedline: Commands, tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "half.json").write_text('{"options": 3}')
    write_dataset(tmp_path / "OUT")
    done = feedline(*words, cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"batch_size": 0}, "'--batch-size'"),
        ({"num_workers": "many"}, "'--num-workers'"),
        ({"tensorboard": [3]}, "'--tensorboard'"),
    ],
)
def test_a_bad_value_in_a_file_of_settings_names_the_file_and_the_option(
    feedline: Commands, tmp_path: Path, options: dict[str, object], line: str
) -> None:
    (tmp_path / "tuned.json").write_text(json.dumps({"options": {"model": "small_cnn", **options}}))
    words = ("train", "OUT", "--config", "tuned.json")
    done = feedline(*words, cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.startswith("feedline: --config tuned.json: ")
    assert line in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("option", ["--gpu-rate", "--load-us", "--sample-kb", "--prepare-ms", "--core-speed"])
@pytest.mark.parametrize("value", ["nan", "-1", "0", "1e300"])
def test_a_plan_names_the_option_that_cannot_be(option: str, value: str) -> None:
    costs = {"--gpu-rate": "5", "--load-us": "3", "--sample-kb": "3"} | {option: value}
    done = CliRunner().invoke(app, ["plan", *(word for pair in costs.items() for word in pair)])
    assert done.exit_code == 2 and option in done.output


def test_the_module_is_the_command_too() -> None:
    done = subprocess.run([sys.executable, "-m", "feedline.cli.main", "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("feedline ")
