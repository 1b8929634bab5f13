"""What is patched is put back as it lay there."""

from typing import Any

from feedline.profiling.watch.patches import Patches


def test_a_static_method_is_one_again() -> None:
    class Saver:
        @staticmethod
        def link(one: int, other: int) -> int:
            return one + other

    saver, patches = Saver(), Patches(complain=print)
    patches.replace(Saver, "link", lambda original: staticmethod(lambda *_: -original(1, 2)))
    assert saver.link(1, 2) == -3
    patches.remove()
    assert saver.link(1, 2) == 3


def test_what_is_inherited_is_inherited_again() -> None:
    class Base:
        def save(self) -> str:
            return "base"

    class Saver(Base): ...

    def quiet(_: Any) -> Any:
        return lambda self: "quiet"

    patches = Patches(complain=print)
    patches.replace(Saver, "save", quiet)
    assert Saver().save() == "quiet"
    patches.remove()
    assert Saver().save() == "base" and "save" not in vars(Saver)
