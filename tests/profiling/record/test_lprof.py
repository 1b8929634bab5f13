"""Line profiles: kernprof's real files are read, the loader's line is found, and nothing in a file is ever run."""

import io
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.pipeline.base.errors import RecordingError
from feedline.profiling.explain.hot_lines import LineProfile, is_loader_line, line_profile
from feedline.profiling.record.lprof import read_lprof
from feedline.profiling.record.recording import Line
from feedline.profiling.render.html import document
from feedline.profiling.render.plain_text import text
from feedline.profiling.render.profile_page import lprof_report

SCRIPT = """
import time
class Loader:
    def __iter__(self):
        for index in range(6):
            time.sleep(0.02)
            yield index
@profile
def train(train_loader):
    total = 0
    for batch in train_loader:
        total += batch
        time.sleep(0.002)
    return total
@profile
def other(x):
    return x
train(Loader())
other(1)
"""


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lprof")
    (folder / "workshop.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "kernprof", "-l", "-o", "run.lprof", "workshop.py"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "run.lprof"


def test_the_workshops_profile_names_the_loaders_line(profiled: Path) -> None:
    found = read_profile(profiled)
    assert found.loader is not None
    assert found.loader.line.source.strip() == "for batch in train_loader:"
    assert found.loader.batches == 6
    assert found.loader.line == max(found.lines, key=lambda line: line.seconds)
    assert "train spends" in found.loader.headline and f"line {found.loader.line.line}" in found.loader.headline
    assert found.hints[found.loader.line.file, found.loader.line.line] == "waiting for the next batch"
    assert {line.function for line in found.lines} == {"train", "other"}
    assert sum(line.fraction for line in found.lines if line.function == "train") == pytest.approx(1.0)


def test_it_is_shown_as_text_and_page(profiled: Path) -> None:
    found = read_profile(profiled)
    shown = text(lprof_report("run.lprof", found))
    assert "WHAT TO TRY" in shown and "feedline profile SCRIPT" in shown and "for batch in train_loader:" in shown
    page = document(lprof_report("run.lprof", found))
    assert "waiting for batches" in page and "<script" not in page


def test_batches_of_all_epochs_are_counted() -> None:
    """A loop's line is hit once more in every pass than its body: three epochs of four batches."""
    sources = ["for epoch in range(3):", "    for batch in train_loader:", "        step(batch)", "print('done')"]
    lines = [
        Line(file="a.py", function="train", line=1 + n, hits=hits, seconds=1.0, fraction=0.25, source=source)
        for n, (hits, source) in enumerate(zip((4, 15, 12, 1), sources, strict=True))
    ]
    loader = line_profile(lines).loader
    assert loader is not None and loader.batches == 12
    (on_one_line,) = [replace(one, source=one.source + " step(batch)") for one in lines if "batch in" in one.source]
    alone = line_profile([on_one_line, lines[-1]]).loader
    assert alone is not None and alone.batches == 14


def read_profile(path: Path) -> LineProfile:
    return line_profile(read_lprof(path))


class Evil:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def malicious(proof: Path) -> list[bytes]:
    import builtins
    import os

    return [
        pickle.dumps(Evil(os.popen, f"touch {proof}")),
        pickle.dumps(Evil(builtins.exec, f"open({str(proof)!r}, 'w')")),
        pickle.dumps({"timings": Evil(builtins.eval, f"open({str(proof)!r}, 'w')")}),
        pickle.dumps(Evil(subprocess.check_call, ["touch", str(proof)])),
        # by hand: a class of the allowed name from another module, and a name with dots through an allowed module
        b"cposix\nsystem\n(S'touch " + str(proof).encode() + b"'\ntR.",
        b"\x80\x04\x8c\x1bline_profiler.line_profiler\x8c\x10LineStats.__init__\x93.",
        b"\x80\x04\x8c\x1bline_profiler.line_profiler\x8c\x09os.system\x93\x8c\x04true\x85R.",
        b"\x80\x04\x8c\x08builtins\x8c\x07getattr\x93.",
        b"(S'touch x'\nios\nsystem\n.",
        b"\x80\x04\x8c\x1bline_profiler.line_profiler\x8c\x09LineStats\x93\x8c\x04true\x8c\x02ls\x8c\x01x\x87R.",
        b"\x80\x02c__main__\nEvil\n)\x81}b.",
        b"\x80\x02\x82\x01.",
        b"Pos.system\n.",
    ]


def test_malicious_files_run_nothing(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    for number, data in enumerate(malicious(proof)):
        path = tmp_path / f"{number}.lprof"
        path.write_bytes(data)
        with pytest.raises(RecordingError) as caught:
            read_lprof(path)
        assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    assert not proof.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b".",  # a terabyte of zeros
        b"\x80\x05\x8e" + (1 << 40).to_bytes(8, "little") + b".",
        b"\x80\x04Nr\xff\xff\xff\x7f.",  # a memo of two thousand million places
        b"\x80\x04})" + b"\x85" * 200_000 + b"Ns.",  # tuples in tuples, as a key
        b"\x80\x04\x8c\x1bline_profiler.line_profiler\x8c\x09LineStats\x93N}\x8c\x08__call__Ns\x86b.",
    ],
)
def test_hostile_files_take_no_memory_and_crash_nothing(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.lprof"
    path.write_bytes(data)
    with pytest.raises(RecordingError, match="nothing in it was run"):
        read_lprof(path)


def stats(timings: Any, unit: Any = 1e-9) -> bytes:
    """As line_profiler writes it, without its class."""
    state = pickle.dumps({"timings": timings, "unit": unit}, protocol=4)[2:-1]
    if state[:1] == b"\x95":  # the frame's header: nine bytes
        state = state[9:]
    return b"\x80\x04\x8c\x1bline_profiler.line_profiler\x8c\x09LineStats\x93)\x81" + state + b"b."


def test_a_profile_built_by_hand_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.lprof"
    path.write_bytes(stats({("/gone/train.py", 3, "train"): [(4, 6, 3_000_000_000), (5, 5, 1_000_000_000)]}))
    found = read_profile(path)
    assert [(line.line, line.hits, line.seconds, line.fraction) for line in found.lines] == [
        (4, 6, 3.0, 0.75), (5, 5, 1.0, 0.25)
    ]  # fmt: skip
    assert found.loader is None and "mark the training function" in text(lprof_report("a.lprof", found))


@pytest.mark.parametrize(
    ("timings", "unit"),
    [(None, 1e-9), ([1, 2], 1e-9), ({"a": 1}, 1e-9), ({("f", 1, "g"): [(1, 2)]}, 1e-9), ({}, "much"), ({}, None),
     ({(1, 2, 3): []}, 1e-9), ({("f", 1, "g"): "text"}, 1e-9)],
)  # fmt: skip
def test_nonsense_is_one_line(tmp_path: Path, timings: Any, unit: Any) -> None:
    path = tmp_path / "a.lprof"
    path.write_bytes(stats(timings, unit))
    with pytest.raises(RecordingError) as caught:
        read_lprof(path)
    assert "\n" not in str(caught.value)


def test_a_profile_cannot_make_us_show_other_files(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret\n")
    path = tmp_path / "a.lprof"
    path.write_bytes(stats({(str(secret), 1, "f"): [(1, 1, 1)]}))
    assert "the secret" not in text(lprof_report("a.lprof", read_profile(path)))


@given(st.binary(max_size=300))
def test_any_bytes_end_as_one_line(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.lprof"
    path.write_bytes(data)
    with pytest.raises(RecordingError):
        read_lprof(path)


@given(st.data())
def test_a_damaged_profile_never_runs_nor_crashes(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = bytearray(stats({("train.py", 3, "train"): [(4, 6, 3_000_000), (5, 5, 1)]}))
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "fuzz2.lprof"
    path.write_bytes(bytes(whole))
    try:
        read_lprof(path)
    except RecordingError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("source", "is_one"),
    [
        ("    for batch in train_loader:", True),
        ("for i, (x, y) in enumerate(loader, 0):", True),
        ("for images, labels in tqdm(dl_train):", True),
        ("batch = next(data_iter)", True),
        ("for epoch in range(10):", False),
        ("for p in model.parameters():", False),
        ("x = loader", False),
        ("for k, v in metrics.items():", False),
    ],
)
def test_what_looks_like_a_loader_loop(source: str, is_one: bool) -> None:
    assert is_loader_line(source) is is_one


def test_the_file_object_is_not_left_open(tmp_path: Path) -> None:
    path = tmp_path / "a.lprof"
    path.write_bytes(pickle.dumps(io.StringIO))
    with pytest.raises(RecordingError, match="_io"):
        read_lprof(path)
