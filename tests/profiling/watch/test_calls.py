"""What a frame is in the middle of calling, looked up in its variables without a trace left there."""

import inspect
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from feedline.profiling.watch.calls import called, takes_gradient


def looking(found: list[Any]) -> Callable[[Any], Any]:
    """For a C function to call: notes what the frame that called that one calls."""

    def look(value: Any) -> Any:
        found.append(called(sys._getframe(1)))
        return value

    return look


def test_a_dict_of_variables_that_the_script_holds_stays_as_it_is() -> None:
    def keeps(operation: Any, look: Callable[[Any], Any]) -> Any:
        held = sys._getframe().f_locals
        operation([1], key=look)
        return held

    def goes_through(operation: Any, look: Callable[[Any], Any]) -> Any:
        frame = inspect.currentframe()
        assert frame is not None
        return [operation([name], key=look)[0] for name in frame.f_locals]

    assert {"operation", "look"} <= set(keeps(sorted, looking([])))
    assert {"operation", "look"} <= set(goes_through(sorted, looking([])))


def test_a_line_that_calls_one_function_after_the_other_has_the_name_of_each() -> None:
    found: list[Any] = []
    look = looking(found)

    def each(operations: list[Any]) -> None:
        for operation in operations:
            operation([1], key=look)

    each([sorted, min])
    assert found == ["builtins.sorted", "builtins.min"]


def test_a_function_that_names_no_module_is_of_the_one_it_is_taken_from() -> None:
    cv2, picture, over = pytest.importorskip("cv2"), np.zeros((2000, 2000, 3), np.uint8), threading.Event()

    def blurs() -> None:
        while not over.is_set():
            cv2.GaussianBlur(picture, (0, 0), 5.0)

    thread = threading.Thread(target=blurs)
    thread.start()
    try:
        found = set[str | None]()
        until = time.monotonic() + 20.0
        while "cv2.GaussianBlur" not in found and time.monotonic() < until:
            found.add(called(sys._current_frames()[thread.ident or 0]))
            time.sleep(0.01)
    finally:
        over.set()
        thread.join()
    assert "cv2.GaussianBlur" in found


class Told(torch.Tensor):
    """Notes what it is asked."""

    asked: ClassVar[list[Any]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.asked.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("learns", [True, False])
def test_a_tensors_subclass_does_not_hear_of_being_looked_at(learns: bool) -> None:
    found: list[Any] = []

    def works(one: Any, look: Any) -> None:
        sorted([one], key=look)

    one = torch.ones(2).as_subclass(Told).requires_grad_(learns)
    Told.asked.clear()
    works(one, lambda value: found.append(takes_gradient(sys._getframe(1))) or 0)
    assert (found, Told.asked) == ([learns], [])
