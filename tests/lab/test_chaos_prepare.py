"""What a run of kills counts, and what it calls alive."""

import subprocess

import psutil

from tests.lab.chaos_prepare import missing, strike
from tests.lab.spark_cluster import alive


def test_only_the_kills_of_this_place_that_are_missing_are_made() -> None:
    before = [{"where": "local[2]", "victim": victim} for victim in ("driver", "jvm", "driver")]
    assert missing(before, "local[2]", ("driver", "jvm"), 3) == ["jvm", "driver", "jvm"]
    assert missing(before, "two workers", ("jvm",), 2) == ["jvm", "jvm"]


def test_what_is_gone_cannot_be_struck_and_what_is_dead_is_not_alive() -> None:
    process = subprocess.Popen(["sleep", "60"])
    target = psutil.Process(process.pid)
    assert alive([target])
    assert strike(target, stop=False)
    process.wait()
    assert not alive([target])
    assert not strike(target, stop=False)
