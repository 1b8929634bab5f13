"""What experiments share: rounds that go on where a cell fails, means, programs, options that must be given."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from feedline.benchmarks.experiments.harness import in_rounds, mean, options, output_of
from feedline.benchmarks.peers.environments import PeerError
from feedline.pipeline.base.errors import FeedlineError


def raises(error: Exception) -> Callable[[], float]:
    def cell() -> float:
        raise error

    return cell


def test_a_cell_that_fails_is_left_out_and_the_others_go_on() -> None:
    failed, lengths = {"known": "it was so before"}, list[int]()
    cells = {"good": lambda: 1.0, "bad": raises(PeerError("no peer")), "known": raises(PeerError("never run"))}
    measured = in_rounds(
        cells, 2, failed=failed, but=PeerError, told=lambda rounds: lengths.append(sum(map(len, rounds)))
    )
    assert measured == [{"good": 1.0}, {"good": 1.0}]
    assert failed == {"known": "it was so before", "bad": "no peer"}
    assert lengths[-1] == 2 and len(lengths) == 3, "after each that was tried"


def test_without_a_place_for_failures_and_for_others_than_these_it_raises() -> None:
    with pytest.raises(PeerError):
        in_rounds({"bad": raises(PeerError("no peer"))}, 1)
    with pytest.raises(FeedlineError):
        in_rounds({"bad": raises(FeedlineError("another"))}, 1, failed={}, but=PeerError)


def test_a_mean_has_the_interval_of_students_t() -> None:
    found = mean([1.0, 2.0, 3.0])
    assert found.value == 2.0 and found.n == 3
    assert (found.low, found.high) == (pytest.approx(2 - 2.484, abs=1e-3), pytest.approx(2 + 2.484, abs=1e-3))
    assert mean([5.0]).low is None


def test_a_program_that_fails_is_one_line() -> None:
    assert output_of([sys.executable, "-c", "print(2)"], "it") == "2\n"
    with pytest.raises(FeedlineError, match=r"^the loader failed: SystemExit: no$|^the loader failed: no$"):
        output_of([sys.executable, "-c", "import sys; print(1, file=sys.stderr); sys.exit('no')"], "the loader")


def test_an_option_may_have_to_be_given(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["x", "here", "--work", "there"])
    given = options(None, "x.json", "split", "--work", rounds=3)
    assert (given.split, given.work, given.rounds) == (Path("here"), Path("there"), 3)
    monkeypatch.setattr(sys, "argv", ["x", "here"])
    with pytest.raises(SystemExit):
        options(None, "x.json", "split", "--work")
    assert "--work" in capsys.readouterr().err
