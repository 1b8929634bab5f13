"""What peers' scripts share: they write pictures as feedline does, and their start is taken off."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feedline.benchmarks.peers.environments import SCRIPTS, environment
from feedline.benchmarks.peers.peer_protocol import started_apart
from feedline.preprocess.picture import Output

WRITES = """
from pathlib import Path
from peer_protocol import resizing, serve

def write(files, out, processes):
    with resizing(processes) as resize:
        yield "ready"
        Path(out).mkdir()
        for number, (image, label) in enumerate(resize(files)):
            Path(out, f"{number}-{label}.jpg").write_bytes(image)
        yield "end"

if __name__ == "__main__":
    serve(write=write)
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_peers_write_pictures_of_feedlines_size_and_quality(tmp_path: Path, processes: int) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    pixels_HWC = np.random.default_rng(0).integers(0, 255, (300, 400, 3), np.uint8)
    for number in range(3):
        Image.fromarray(np.roll(pixels_HWC, number, 0)).save(tmp_path / "in" / "a" / f"{number}.png")
    (tmp_path / "peer.py").write_text(WRITES)
    words = ["write", str(tmp_path / "in"), str(tmp_path / "out"), str(processes)]
    done = subprocess.run([sys.executable, str(tmp_path / "peer.py"), *words], capture_output=True, text=True,
                          env=environment() | {"PYTHONPATH": str(SCRIPTS)})  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["samples"] == 3
    Image.new("RGB", (8, 8)).save(tmp_path / "alike.jpg", quality=Output.quality)
    alike = Image.open(tmp_path / "alike.jpg")
    written = [Image.open(path) for path in (tmp_path / "out").glob("*-0.jpg")]
    assert len(written) == 3
    for image in written:
        assert min(image.size) == Output.size_px
        assert image.quantization == alike.quantization  # pyright: ignore[reportAttributeAccessIssue]


def test_a_start_is_that_of_a_picture_for_each_process() -> None:
    ran: list[tuple[int, str]] = []
    files = [(Path(str(number)), 0) for number in range(5)]
    marks = list(started_apart(lambda files, out: ran.append((len(files), out)), files, "out", 2))
    assert marks == ["start", "ready", "end"] and ran == [(2, "out-start"), (5, "out")]
