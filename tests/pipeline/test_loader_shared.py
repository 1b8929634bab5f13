"""Loaders that share their workers: each has the batches it would have alone, whoever dies, stalls or comes late."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from feedline.pipeline.base.errors import SampleError, UsageError
from feedline.pipeline.loader import Batch, Loader
from tests.pipeline.loading import SMALL, damage

MakeSplit = Callable[..., Path]
ALONE = SMALL | {"num_workers": 1, "device": "cpu"}
SHARED = ALONE | {"share_loader": 2}
EPOCHS = 4
AHEAD = 2
"""Batches of an epoch that nobody wants any more."""
SCRIPT = """
import hashlib, json, sys, time
from feedline.pipeline.loader import Loader
loader = Loader(sys.argv[1], **json.loads(sys.argv[2]))
digest = hashlib.sha256()
print("ready", flush=True)
sys.stdin.readline()
for epoch in range(int(sys.argv[3])):
    for images, labels in loader:
        digest.update(images.numpy().tobytes() + labels.numpy().tobytes())
        print("batch", flush=True)
        time.sleep(float(sys.argv[4]))
print(json.dumps([digest.hexdigest(), loader.stats()["shared"]]), flush=True)
"""


@pytest.fixture
def start(split: Path, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts SCRIPT, which then waits for a line."""
    script, started = tmp_path / "script.py", list["subprocess.Popen[str]"]()
    script.write_text(SCRIPT)

    def run(pause_s: float = 0.0, **options: Any) -> "subprocess.Popen[str]":
        words = [sys.executable, str(script), str(split), json.dumps(SHARED | options), str(EPOCHS), str(pause_s)]
        started.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert said(started[-1]) == "ready\n"
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def said(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def go(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def outcome(process: "subprocess.Popen[str]") -> tuple[str, dict[str, Any]]:
    digest, shared = json.loads(process.communicate()[0].splitlines()[-1])
    return digest, shared


def alone(split: Path, epochs: int = EPOCHS, **options: Any) -> list[Batch]:
    loader = Loader(split, **ALONE | options)
    return [batch for _ in range(epochs) for batch in loader]


def digest(batches: list[Batch]) -> str:
    return hashlib.sha256(b"".join(part.numpy().tobytes() for batch in batches for part in batch)).hexdigest()


def same(batches: list[Batch], expected: list[Batch]) -> bool:
    pairs = zip(batches, expected, strict=True)
    return all(torch.equal(one, other) for batch, wanted in pairs for one, other in zip(batch, wanted, strict=True))


def shared(loader: Loader) -> dict[str, Any]:
    return loader.stats()["shared"]


def ended(pid: int) -> bool:
    """Once it has."""
    if psutil.pid_exists(pid):
        psutil.wait_procs([psutil.Process(pid)])
    return not psutil.pid_exists(pid)


@pytest.fixture
def pair(split: Path) -> Iterator[tuple[Loader, Loader]]:
    """Two that share, in one process."""
    loaders = Loader(split, **SHARED), Loader(split, **SHARED)
    yield loaders
    for loader in loaders:
        loader.close()


def test_four_processes_have_the_batches_of_one_alone_and_each_is_made_once(start: Any, split: Path) -> None:
    expected = alone(split)
    trainings = [start(pause_s, share_loader=4) for pause_s in (0.0, 0.01, 0.02, 0.03)]
    for training in trainings:
        go(training)
    outcomes = [outcome(training) for training in trainings]
    assert {found for found, _ in outcomes} == {digest(expected)}
    facts = [fact for _, fact in outcomes]
    assert {fact["alone"] for fact in facts} == {""} and len({fact["host_pid"] for fact in facts}) == 1
    assert sum(fact["batches"] - fact["from_others"] for fact in facts) <= len(expected) + AHEAD
    assert ended(facts[0]["host_pid"])


@pytest.mark.parametrize("options", [{"policy": "pad"}, {"subset": 40}, {"num_workers": 2, "batch_size": 3}])
def test_two_go_side_by_side(split: Path, options: dict[str, Any]) -> None:
    expected = alone(split, 2, **options)
    one, other = Loader(split, **SHARED | options), Loader(split, **SHARED | options)
    sides = [pair for _ in range(2) for pair in zip(one, other, strict=True)]
    assert same([left for left, _ in sides], expected)
    assert same([right for _, right in sides], expected)
    assert shared(one)["from_others"] + shared(other)["from_others"] >= len(expected)
    one.close()
    other.close()


def test_other_settings_have_a_host_of_their_own(split: Path) -> None:
    one, other = Loader(split, **SHARED), Loader(split, **SHARED | {"seed": 4})
    assert same(list(other), alone(split, 1, seed=4))
    assert same(list(one), alone(split, 1))
    assert shared(one)["host_pid"] != shared(other)["host_pid"]
    one.close()
    other.close()


def test_who_is_killed_leaves_its_slots(start: Any, split: Path) -> None:
    killed, loader = start(0.01), Loader(split, **SHARED)
    batches = iter(loader)
    first = next(batches)
    go(killed)
    said(killed)
    killed.kill()
    found = [first, *batches, *(batch for _ in range(EPOCHS - 1) for batch in loader)]
    assert same(found, alone(split))
    assert not shared(loader)["alone"]
    loader.close()


def test_who_stalls_is_left_behind_and_goes_on_where_it_was(pair: tuple[Loader, Loader], split: Path) -> None:
    stalled, loader = pair
    batches = iter(stalled)
    first = next(batches)
    expected = alone(split)
    assert same([batch for _ in range(EPOCHS) for batch in loader], expected)
    assert same([first, *batches, *(batch for _ in range(EPOCHS - 1) for batch in stalled)], expected)


def test_who_comes_late_begins_at_the_beginning(pair: tuple[Loader, Loader], split: Path) -> None:
    early, late = pair
    expected = alone(split)
    found = [batch for _ in range(2) for batch in early]
    found += [batch for batch, _ in zip(early, late, strict=True)]
    late.set_epoch(0)
    assert same([batch for _ in range(EPOCHS) for batch in late], expected)
    assert same([*found, *early], expected)


def test_who_resumes_amid_an_epoch_has_its_rest(pair: tuple[Loader, Loader], split: Path) -> None:
    loader, resumed = pair
    batches = iter(loader)
    first = [next(batches) for _ in range(3)]
    resumed.load_state_dict(loader.state_dict())
    rest = list(zip(batches, resumed, strict=True))
    assert same([*first, *(left for left, _ in rest)], alone(split, 1))
    assert same([right for _, right in rest], alone(split, 1)[3:])
    assert shared(loader)["from_others"] + shared(resumed)["from_others"] == len(rest)


def test_without_the_host_each_goes_on_by_itself(pair: tuple[Loader, Loader], split: Path) -> None:
    sides = [iter(loader) for loader in pair]
    found = [[next(side)] for side in sides]
    os.kill(shared(pair[0])["host_pid"], signal.SIGKILL)
    for side, batches, loader in zip(sides, found, pair, strict=True):
        batches += [*side, *loader]
        assert same(batches, alone(split, 2))
        assert shared(loader)["alone"] == "the host has ended" and len(loader.worker_pids) == 1


def test_one_too_many_is_alone(pair: tuple[Loader, Loader], split: Path) -> None:
    iterators = [iter(loader) for loader in pair]
    third = Loader(split, **SHARED)
    assert same(list(third), alone(split, 1))
    assert shared(third)["alone"] == "no host could be had (2 loaders share it already)"
    assert [same(list(iterator), alone(split, 1)) for iterator in iterators] == [True, True]
    third.close()


def test_a_place_is_free_again(pair: tuple[Loader, Loader], split: Path) -> None:
    iterators = [iter(loader) for loader in pair]
    next(iterators[0])
    pair[1].close()
    third = Loader(split, **SHARED)
    assert same(list(third), alone(split, 1))
    assert not shared(third)["alone"]
    third.close()


@pytest.mark.parametrize("on_bad", ["raise", "skip"])
def test_a_bad_sample_is_told_to_both(make_split: MakeSplit, on_bad: str) -> None:
    folder = make_split()
    damage(folder, 7)
    loaders = [Loader(folder, **SHARED | {"on_bad": on_bad}) for _ in range(2)]
    for loader in loaders:
        if on_bad == "raise":
            with pytest.raises(SampleError, match="s00007"):
                list(loader)
        else:
            list(loader)
            assert [bad["key"] for bad in loader.stats()["bad"]] == ["s00007"]
    for loader in loaders:
        loader.close()


def test_a_batch_that_its_user_may_write_into_is_not_shared(split: Path) -> None:
    with pytest.raises(UsageError, match="device"):
        Loader(split, **SHARED | {"device": None})
