"""Stages are told from real stacks: each case stops inside real library or user code and looks up from there."""

import io
import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

from feedline.profiling.watch.rules import TRAINER, WORKER, Place, classify, part, source_line

PIL_Image = pytest.importorskip("PIL.Image")
USER = """
def slow_read(path, look):
    return look()

def decode_it(data, look):
    return look()

def plain(look):
    return look()

class Blur:
    def __call__(self, look):
        return look()

class Data:
    transform = staticmethod(lambda look: look())
    def __init__(self):
        self.blur_transform = Blur()
    def by_name(self, look):
        return slow_read("x", look)
    def by_line(self, look):
        return self.blur_transform(look)
    def array(self, look):
        return look() if (np := None) else (look(), "np.asarray(image)")[0]
    def rest(self, look):
        return plain(look)
    def decodes(self, look):
        return decode_it(b"", look)

def my_collate(look):
    return look()

def step(model, look):
    return look()

def forward(look):
    return look()

def report(look):
    print(look())  # loss.item()

def train(look):
    loss = look()  # loss.backward()
    return loss

def book_keeping(look):
    return look()
"""


@pytest.fixture
def user(tmp_path: Path) -> ModuleType:
    """A module of the user's own."""
    path = tmp_path / "user_code.py"
    path.write_text(USER)
    module = ModuleType("user_code")
    exec(compile(USER, str(path), "exec"), module.__dict__)
    return module


def seen(call: Callable[[Callable[[], Place]], Any]) -> Place:
    """The place of the stack that `call` ends in; our own frame is left out."""
    found: list[Place] = []

    def look() -> Place:
        found.append(classify(sys._getframe(1)))
        return found[-1]

    call(look)
    return found[0]


def test_users_functions_by_name_and_by_line(user: ModuleType) -> None:
    data = user.Data()
    assert seen(data.by_name).stage == "read"
    assert seen(data.decodes).stage == "decode"
    assert seen(user.my_collate).stage == "collate"
    assert seen(data.by_line) == Place("transform", "user_code.py:by_line", "Blur")


def test_what_no_rule_knows_is_other_with_its_place(user: ModuleType) -> None:
    assert seen(user.Data().rest) == Place("other", "user_code.py:plain")


def test_what_else_a_dataset_does_for_a_sample_is_transform(user: ModuleType) -> None:
    fetch = pytest.importorskip("torch.utils.data._utils.fetch")

    def through(get: Callable[..., Any], collate: Callable[..., Any]) -> Callable[[Any], Any]:
        data = type("Samples", (), {"__getitem__": lambda _, look: get(look)})()
        return lambda look: fetch._MapDatasetFetcher(data, True, collate, False).fetch([look])

    assert seen(through(user.plain, list)) == Place("transform", "user_code.py:plain", "plain")
    assert seen(through(lambda look: look, lambda looks: user.plain(looks[0]))).stage == "collate"


class Spying(io.BytesIO):
    """A file that classifies the stack whenever it is read."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.stages: list[str] = []

    def read(self, size: int | None = -1, /) -> bytes:
        self.stages.append(classify(sys._getframe(1)).stage)
        return super().read(size)


def jpeg() -> bytes:
    out = io.BytesIO()
    PIL_Image.new("RGB", (640, 480), (200, 100, 50)).save(out, "JPEG")
    return out.getvalue()


def test_pil_reads_while_it_opens_and_while_it_loads() -> None:
    file = Spying(jpeg())
    image = PIL_Image.open(file)
    opening = len(file.stages)
    image.convert("RGB")
    assert len(file.stages) > opening > 0
    assert set(file.stages) == {"read"}


def test_pil_decodes_in_load_whoever_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import ImageFile

    found: list[Place] = []
    real = PIL_Image._getdecoder

    def getdecoder(*args: Any) -> Any:
        found.append(classify(sys._getframe(1)))
        return real(*args)

    monkeypatch.setattr(PIL_Image, "_getdecoder", getdecoder)
    assert ImageFile.__name__ == "PIL.ImageFile"
    PIL_Image.open(io.BytesIO(jpeg())).resize((8, 8))
    assert {place.stage for place in found} == {"decode"}


def test_transforms_go_by_the_name_that_compose_called() -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    found: list[Place] = []

    class Probe:
        def __call__(self, image: Any) -> Any:
            found.append(classify(sys._getframe()))
            return image

    transforms.Compose([Probe(), transforms.RandomApply([Probe()], p=1.0)])(None)
    assert found[0].stage == "transform"
    assert found[0].transform == "Probe"


def test_default_collate_is_collating() -> None:
    collate = pytest.importorskip("torch.utils.data").default_collate
    found: list[str] = []

    class Odd(dict[str, int]):
        def __iter__(self) -> Any:
            found.append(classify(sys._getframe(1)).stage)
            return super().__iter__()

    collate([Odd(a=1), Odd(a=2)])
    assert set(found) == {"collate"}


def test_no_frame_at_all() -> None:
    assert classify(None).stage == "other"
    assert source_line("/nowhere.py", 3) == ""


def told(call: Callable[[Callable[[], Any]], Any], *, on_device: bool = False) -> str:
    found: list[str] = []

    def look() -> None:
        frame: FrameType | None = sys._getframe(1)
        found.append(part(frame, on_device=on_device).stage)

    call(look)
    return found[0]


def test_parts_of_the_trainer(user: ModuleType) -> None:
    assert told(user.train) == "backward"
    assert told(user.forward) == "forward"
    assert told(user.book_keeping) == "python"


def test_only_a_device_is_waited_for(user: ModuleType) -> None:
    assert told(user.report, on_device=True) == "synchronise"
    assert told(user.report) == "logging"


def test_lines_of_a_notebooks_cell_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def cell(look):\n    loss = look()  # loss.backward()\n"
    monkeypatch.setitem(linecache.cache, "<ipython-input-1>", (len(text), None, text.splitlines(True), ""))
    module = ModuleType("__main__")
    exec(compile(text, "<ipython-input-1>", "exec"), module.__dict__)
    assert told(module.cell) == "backward"


def test_a_frame_between_two_lines_has_no_number() -> None:
    def decode_picture() -> None: ...

    assert WORKER.stage_of(decode_picture.__code__, None) == "decode"
    assert TRAINER.stage_of(decode_picture.__code__, None) == "python"
