"""A page cache that is too small is seen from inside a control group. Skipped where there can be none."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab import tiny_split
from tests.lab.small_memory import small_memory, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())
LIMIT = 1 << 29
SAY = """
import json, sys
from pathlib import Path
from feedline.benchmarks.storage_advice import storage_of
print(json.dumps(storage_of(Path(sys.argv[1]), 0.05).record()))
"""


def test_what_a_control_group_leaves_of_the_page_cache(tmp_path: Path) -> None:
    tiny_split.write(tmp_path / "train", 48, 3)
    with small_memory(LIMIT) as inside:
        command = [*inside, sys.executable, "-c", SAY, str(tmp_path / "train")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 0 < json.loads(done.stdout)["cache_bytes"] <= LIMIT
    done = subprocess.run(command[len(inside) :], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["next_epoch_in_memory"] == 1.0
