"""What a rank and its workers use, as rows: each is one whole look of the sampler."""

import threading
import time
from typing import Any

from feedline.train.usage import Resources


class Stopping(dict[Any, Any]):
    """Series; who adds the second one stops there until `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.go = threading.Event(), threading.Event()

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if len(self) == 1 and key not in self:
            self.began.set()
            self.go.wait(20)
        return super().setdefault(key, default)


def test_a_row_that_is_being_added_is_not_torn() -> None:
    resources = Resources()
    resources._look(time.perf_counter())  # rates need two
    whole = {name for row in resources.drain() for name in row} | {"cpu_cores"}
    resources._series = series = Stopping()
    look = threading.Thread(target=resources._look, args=(time.perf_counter(),))
    look.start()
    assert series.began.wait(20)
    rows: list[dict[str, Any]] = []
    drain = threading.Thread(target=lambda: rows.extend(resources.drain()))
    drain.start()
    drain.join(0.2)
    series.go.set()
    drain.join()
    look.join()
    rows += resources.drain()
    assert [set(row) for row in rows] == [whole]
