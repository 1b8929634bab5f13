"""Shared memory and its handles go with whoever owned them, at once."""

from pathlib import Path

import pytest

from feedline.pipeline.base.errors import FeedlineError
from feedline.pipeline.loader import Loader
from feedline.pipeline.workers.memory import SharedMemory


def handles() -> list[str]:
    links: list[str] = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(entry.readlink()))
        except OSError:
            continue
    return sorted(link for link in links if "feedline" in link)


def test_a_memory_that_nobody_has_any_more_keeps_no_handle() -> None:
    before = handles()
    memory = SharedMemory("test", 10)
    assert len(handles()) > len(before)
    del memory
    assert handles() == before


def test_a_loader_that_is_gone_leaves_no_handle(split: Path) -> None:
    """An hour of epochs found one left behind by each loader: the index's."""
    before = handles()
    for workers in (0, 1):
        loader = Loader(split, batch_size=20, image_size=8, num_workers=workers, rank=0, world_size=1)
        for _ in range(3):  # of the last one's end, the next is begun
            for images, _ in loader:
                del images
        loader.close()
        del loader
    assert handles() == before


@pytest.mark.parametrize("px", [3_000, 30_000])
def test_more_memory_than_there_is_or_can_be_is_one_line(split: Path, px: int) -> None:
    loader = Loader(split, batch_size=2**31 - 1, image_size=px, policy="pad", rank=0, world_size=1, num_workers=0)
    with pytest.raises(FeedlineError, match=r"cannot share [\d,]+ MiB of memory"):
        iter(loader)
