"""A cache that is too small is said once an epoch that is not the first came from storage again."""

from feedline.pipeline.rereading import Rereading, window_fits

GB = 1 << 30


def after(*epochs: tuple[int, int], window_shards: int = 0, shards: int = 560) -> str:
    """(read, of it from storage) of each epoch, in GiB."""
    rereading, read, stored = Rereading([35 * GB // shards] * shards, 12 * GB, window_shards), 0, 0
    for number, (more, of_it) in enumerate(epochs):
        read, stored = read + more * GB, stored + of_it * GB
        rereading.epoch_ended(number, read, stored)
    return rereading.note


def test_it_is_said_with_the_window_that_fits() -> None:
    note = after((35, 35), (35, 33))
    assert note == (
        "epoch 1 had 94% of its bytes from storage again (35.0 GiB of shards, 12.0 GiB of memory): "
        "where random requests are slow, window_shards=48 reads whole shards, and fits"
    )
    assert 48 * 35 / 560 <= 12 / 4
    assert window_fits(3, 64e6, 64 * GB) == 3
    assert "not even a window of one shard fits" in after((35, 35), (35, 33), shards=11)


def test_what_is_cached_or_new_is_nothing_to_say() -> None:
    assert after() == after((35, 35)) == after((35, 35), (35, 1)) == after((35, 0), (35, 0)) == ""
    assert after((35, 35), (35, 33), (35, 2)) == "", "it has become so"
    assert after((35, 35), (0, 1)) == "", "its samples were all read ahead"


def test_who_has_a_window_is_not_told_to_take_one() -> None:
    assert after((35, 35), (35, 33), window_shards=8).endswith("of memory)")
