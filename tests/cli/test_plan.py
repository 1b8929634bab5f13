"""`feedline plan`: what its options mean."""

import pytest
from typer.testing import CliRunner

from feedline.cli.main import app
from feedline.cli.plan import parse_rate
from feedline.pipeline.base.errors import UsageError


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("2GB/s", 2e9), ("2 GB/s", 2e9), ("2GB", 2e9), ("2G", 2e9), ("1GiB/s", 2**30), ("1000000", 1e6),
        ("2Gb/s", 2.5e8), ("2Gbit/s", 2.5e8), ("10Gbps", 1.25e9), ("1Gib/s", 2**27), ("500MBps", 5e8), ("8b/s", 1),
    ],
)  # fmt: skip
def test_bits_are_not_bytes(text: str, bytes_per_s: float) -> None:
    assert parse_rate(text) == bytes_per_s


@pytest.mark.parametrize("text", ["fast", "", "nan", "-2GB/s", "2GB/h", "2XB/s", "1e9", "9999999999999TB/s"])
def test_what_is_no_rate_is_refused_by_its_option(text: str) -> None:
    with pytest.raises(UsageError, match="--bandwidth"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no/such/folder"], "no/such/folder does not exist"),
        (["--bandwidth", "fast"], "--bandwidth 'fast'"),
        ([], "--gpu-rate is not given: it is the ceiling of `feedline gpu-check`"),
    ],
)
def test_a_rate_that_is_not_given_is_said_behind_what_is_wrong(words: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["plan", *words])
    assert isinstance(done.exception, UsageError) and str(done.exception).startswith(said)


def test_the_option_at_fault_is_named() -> None:
    with pytest.raises(UsageError, match="--random-bandwidth"):
        parse_rate("fast", "--random-bandwidth")
