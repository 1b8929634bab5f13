"""Counts in words; names that others chose: what reaches a terminal, a key or a manifest steers nothing."""

from hypothesis import given
from hypothesis import strategies as st

from feedline.pipeline.base.text import count_of, is_printable, printable
from feedline.pipeline.format.shard_tar import safe_key


def test_one_of_a_kind_is_no_plural() -> None:
    counts = [count_of(number, "shard") for number in (0, 1, 2, 1000)]
    assert counts == ["0 shards", "1 shard", "2 shards", "1,000 shards"]
    assert count_of(90, "epoch") == "90 epochs"
    assert (count_of(1, "class"), count_of(3, "class"), count_of(2, "batch")) == ("1 class", "3 classes", "2 batches")


@given(st.text())
def test_what_is_made_printable_is(text: str) -> None:
    assert is_printable(printable(text))
    assert is_printable(printable(text, "\n\t").replace("\n", "").replace("\t", ""))
    assert is_printable(safe_key(text))


def test_readable_text_stays_and_escapes_show() -> None:
    assert printable("naïve 猫\u3000犬 \U0001f469\u200d\U0001f4bb") == "naïve 猫\u3000犬 \U0001f469\u200d\U0001f4bb"
    assert printable("\x1b[31mred\x1b]0;title\x07\n") == r"\x1b[31mred\x1b]0;title\x07\n"
    assert printable("half \udc80", "\n") == r"half \udc80"
    assert safe_key("n\0ul") != safe_key("nul")
