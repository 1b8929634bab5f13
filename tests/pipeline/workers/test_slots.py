"""Slots: who has which, when they come back; and the small records that travel between trainer and worker."""

import gc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.pipeline.loader_config import MOST_EPOCH
from feedline.pipeline.workers import counters
from feedline.pipeline.workers.memory import SharedMemory, share_columns, shared_columns
from feedline.pipeline.workers.messages import MAX_BYTES, Reply, Task
from feedline.pipeline.workers.slots import HINT_BATCHES, Ledger, SlotLayout

LAYOUT = SlotLayout(batch_size=5, px=7)


class FakeEvent:
    def __init__(self) -> None:
        self.passed = False

    def query(self) -> bool:
        return self.passed

    def synchronize(self) -> None:
        self.passed = True


def shown() -> Any:
    return np.zeros(3, np.uint8)


def test_a_lent_slot_is_free_when_the_last_view_is_gone() -> None:
    ledger = Ledger(1)
    slot = ledger.take()
    assert slot == 0
    array = shown()
    ledger.lend(slot, array)
    view = array[1:]
    del array
    gc.collect()
    assert ledger.take() is None, "a view keeps it"
    del view
    gc.collect()
    assert ledger.take() == 0


def test_a_slot_waits_for_the_fence_behind_its_copy() -> None:
    fence = FakeEvent()
    ledger = Ledger(2, lambda: [fence])
    first, second = ledger.take(), ledger.take()
    assert first is not None
    assert second is not None
    array = shown()
    ledger.lend(first, array)
    del array
    gc.collect()
    assert ledger.take() is None, "the device may still be reading it"
    fence.passed = True
    assert ledger.take() == first
    array = shown()
    fence.passed = False
    ledger.lend(second, array)
    del array
    gc.collect()
    ledger.wait()
    assert ledger.take() == second


def test_parts_of_a_slot_do_not_overlap_and_slots_do_not_touch() -> None:
    view = memoryview(bytearray(3 * LAYOUT.slot_bytes))
    for slot in range(3):
        for number, part in enumerate(LAYOUT.slot(view, slot)):
            part[:] = 16 * slot + number + 1
    for slot in range(3):
        parts = LAYOUT.slot(view, slot)
        assert (parts.images == 16 * slot + 1).all() and len(parts.images) >= 5 * 7 * 7 * 3
        assert (parts.labels_N == 16 * slot + 2).all() and (parts.samples_N == 16 * slot + 3).all()
        assert (parts.filled == 16 * slot + 4).all() and (parts.hints_N == 16 * slot + 5).all()
        assert [len(part) for part in parts[1:]] == [5, 5, 2, 5 * HINT_BATCHES]


NUMBERS = st.integers(0, 2**31 - 1)
EPOCHS = st.integers(0, MOST_EPOCH)


@given(st.builds(Task, *[NUMBERS] * 4, EPOCHS, *[NUMBERS] * 3))
def test_tasks_travel_unchanged(task: Task) -> None:
    assert Task.unpack(task.pack()) == task


@given(st.integers(1, 5), st.integers(-1, 999), NUMBERS, NUMBERS, NUMBERS, st.text(max_size=99))
def test_replies_travel_unchanged(kind: int, slot: int, run: int, batch: int, sample: int, text: str) -> None:
    reply = Reply(kind, slot, run, batch, sample, text)
    assert Reply.unpack(reply.pack()) == reply
    assert len(Reply(kind, slot, run, batch, sample, text * 9999).pack()) <= MAX_BYTES


LINES = st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=99)


@given(st.lists(st.tuples(NUMBERS, LINES), max_size=20))
def test_bad_samples_travel_unchanged(bad: list[tuple[int, str]]) -> None:
    assert Reply.unpack(Reply.done(1, 2, 3, bad).pack()).bad == bad


def test_columns_are_shared_and_not_copied() -> None:
    arrays: dict[str, Any] = {"a": np.arange(5, dtype=np.int64), "b": np.arange(3, dtype=np.uint8)}
    memory, layout = share_columns(arrays)
    one, two = shared_columns(memory.view, layout), shared_columns(memory.view, layout)
    one["b"][1] = 77
    assert two["b"].tolist() == [0, 77, 2]
    assert two["a"].tolist() == [0, 1, 2, 3, 4]


def test_stages_and_the_rest_make_up_a_workers_life() -> None:
    memory = SharedMemory("test", 2 * counters.ROW_BYTES)
    rows = counters.rows_of(memory.view, 2)
    clock = counters.Clock(rows[1])
    for stage in counters.STAGES:
        clock.mark(counters.FIELD[stage])
    clock.skip()
    clock.tick()
    described = counters.describe(rows[1])
    assert set(described["seconds"]) == {*counters.STAGES, "other"}
    assert sum(described["seconds"].values()) == described["alive_s"]
    assert abs(sum(counters.fractions([described]).values()) - 1) < 1e-9
    assert sum(counters.fractions([]).values()) == 0


def test_a_clock_goes_on_where_an_earlier_worker_s_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = iter([1000, 1010, 5000, 5030])
    monkeypatch.setattr(counters.time, "perf_counter_ns", lambda: next(now_ns))
    row = np.zeros(counters.ROW_BYTES // 8, np.int64)
    for samples in (3, 7):
        clock = counters.Clock(row)
        clock.row[counters.FIELD["samples"]] += samples
        clock.mark(counters.FIELD["decode"])
        clock.tick()
    described = counters.describe(row)
    assert described["samples"] == 10
    assert described["alive_s"] == described["seconds"]["decode"] == pytest.approx(40e-9)
