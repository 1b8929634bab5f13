"""Stages are told from real stacks: each case stops inside real library or user code and looks up from there."""

import io
import json
import sqlite3
import sys
import threading
import time
import weakref
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, cast

import numpy as np
import pytest

from feedline.profiling.record.stages import STAGES
from feedline.profiling.watch.calls import source_line
from feedline.profiling.watch.rules import WORKER, Place, classify, is_library, line_of, package, place_name
from tests.profiling.stacks import Looking, caught, jpeg, running, seen, users_module

PIL_Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def user(tmp_path: Path) -> ModuleType:
    return users_module(tmp_path)


def test_every_stage_that_a_rule_names_has_its_row() -> None:
    named = {rule.stage for rule in WORKER.library} | {stage for stage, _ in WORKER.calls}
    assert named - {""} <= set(STAGES)


def test_what_a_thread_sleeps_in_or_waits_for_is_no_reading(user: ModuleType) -> None:
    assert caught(user.sleeps) == ("blocked", "python")
    with user.lock:
        assert caught(user.waits_for_a_lock) == ("lock", "wait")
    assert caught(user.takes_from_a_queue)[1] == "wait"
    user.ready.set()


def test_whose_c_code_works_decides_not_the_name_or_text_of_a_line(user: ModuleType) -> None:
    assert caught(user.multiplies)[1] == "forward"
    assert caught(user.stacks)[1] == "forward"
    assert caught(user.own_numpy)[1] == "python"
    assert caught(user.read_everything) == ("other", "python")


def test_a_comprehension_is_its_functions() -> None:
    inner = [one for one in (lambda rows: [len(row) for row in rows]).__code__.co_consts if isinstance(one, CodeType)]
    for code in inner:  # none from Python 3.12 on
        assert place_name(code) == "test_rules.py:test_a_comprehension_is_its_functions"


def test_what_no_rule_knows_is_other_with_its_place(user: ModuleType) -> None:
    assert seen(user.bookkeeping) == Place("other", "user_code.py:plain")


def test_what_else_a_dataset_does_for_a_sample_is_transform(user: ModuleType) -> None:
    fetch = pytest.importorskip("torch.utils.data._utils.fetch")

    def through(get: Callable[..., Any], collate: Callable[..., Any]) -> Callable[[Any], Any]:
        data = type("Samples", (), {"__getitem__": lambda _, look: get(look)})()
        return lambda look: fetch._MapDatasetFetcher(data, True, collate, False).fetch([look])

    assert seen(through(user.plain, list)) == Place("transform", "user_code.py:plain", "plain")
    assert seen(through(user.Jitter(), list)) == Place("transform", "user_code.py:plain", "Jitter")
    assert seen(through_libraries(user.Jitter())) == Place("transform", "user_code.py:plain", "Jitter")
    assert seen(through(lambda look: look, user.my_collate)) == Place("collate", "user_code.py:my_collate")


def test_what_a_dataset_does_in_its_own_method_bears_its_class(user: ModuleType) -> None:
    fetch = pytest.importorskip("torch.utils.data._utils.fetch")
    fetcher = fetch._MapDatasetFetcher(user.Inline(), True, list, False)
    assert seen(lambda look: fetcher.fetch([look])).transform == "Inline.__getitem__"


def test_what_a_packages_dataset_does_by_itself_is_transform_in_its_innermost_function() -> None:
    fetch, shelf = pytest.importorskip("torch.utils.data._utils.fetch"), dict[str, Any]()
    text = "def turn(look):\n    return sorted([0], key=lambda _: look())\nclass Shelf:\n"
    text += "    def __getitems__(self, looks):\n        return [turn(looks[0])]\n"
    exec(compile(text, "/usr/lib/python3/dist-packages/shelf/shelf.py", "exec"), shelf)
    place = seen(lambda look: fetch._MapDatasetFetcher(shelf["Shelf"](), True, list, False).fetch([look]))
    assert place == Place("transform", "shelf.py:turn", "turn")


def test_another_thread_is_waited_for_as_a_lock_is_in_a_place_of_the_users(user: ModuleType) -> None:
    with running(user.Feed().take) as look:
        frame, _ = look()
        assert classify(frame) == Place("lock", "user_code.py:Feed.take")


def test_a_frame_between_two_lines_has_its_functions_first(user: ModuleType) -> None:
    class Between:
        f_lineno, f_code = None, user.Feed.take.__code__

    assert line_of(cast(Any, Between())) == user.Feed.take.__code__.co_firstlineno


def through_libraries(transform: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Frames of a library between torch's fetcher and the dataset."""
    from torch.utils.data import Subset
    from torch.utils.data._utils.fetch import _MapDatasetFetcher

    class Samples:
        def __init__(self, look: Any) -> None:
            self.look = look

        def __getitem__(self, _: int) -> Any:
            return transform(self.look)

    def fetch(look: Any) -> Any:
        nested = Subset(Subset(cast(Any, Samples(look)), [0]), [0])
        return _MapDatasetFetcher(nested, True, list, False).fetch([0])

    return fetch


def test_pil_reads_while_it_opens_and_while_it_loads() -> None:
    stages: list[str] = []
    image = PIL_Image.open(Looking(lambda: stages.append(classify(sys._getframe(2)).stage), jpeg()))
    opening = len(stages)
    image.convert("RGB")
    assert len(stages) > opening > 0
    assert set(stages) == {"read"}


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


def here() -> Place:
    """Of whoever calls it."""
    return classify(sys._getframe(1))


def test_transforms_go_by_the_name_that_compose_called() -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    found: list[Place] = []

    class Probe:
        def __call__(self, image: Any) -> Any:
            found.append(here())
            return image

    transforms.Compose([Probe(), transforms.RandomApply([Probe()], p=1.0)])(None)
    assert found[0].stage == "transform"
    assert [place.transform for place in found] == ["Probe", "Probe"]  # what it applies, not RandomApply


def test_a_transform_goes_by_its_own_name_and_not_by_its_decorators() -> None:
    code = """
def decorated(function):
    def fixed_func(look):
        return function(look)
    return fixed_func

@decorated
def slic(look):
    return look()
"""
    exec(compile(code, "/x/site-packages/skimage/slic.py", "exec"), names := dict[str, Any]())
    assert seen(names["slic"]).transform == "slic"


def test_a_transform_of_monai_goes_by_its_own_name() -> None:
    """Between a Compose and what that calls stand functions of its own."""
    codes = {
        "transform.py": "def apply_transform(transform, look):\n    return transform(look)\n",
        "compose.py": "def execute_compose(look, transforms):\n    return apply_transform(transforms[0], look)\n"
        "class Compose:\n    def __call__(self, look):\n        return execute_compose(look, [Zoom()])\n",
        "spatial/array.py": "class Zoom:\n    def __call__(self, look):\n        return resample(look)\n"
        "def resample(look):\n    return look()\n",
    }
    names = dict[str, Any]()
    for file, code in codes.items():
        exec(compile(code, f"/x/site-packages/monai/transforms/{file}", "exec"), names)
    assert seen(names["Compose"]()).transform == "Zoom"


def test_a_dataset_that_calls_a_transform_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    transforms, datasets = (pytest.importorskip(f"torchvision.{name}") for name in ("transforms", "datasets"))
    found: list[Place] = []

    def look(_: Any) -> bool:
        found.append(here())
        return True

    monkeypatch.setattr("torchvision.transforms.functional.F_pil._is_pil_image", look)
    _ = datasets.FakeData(1, (3, 8, 8), transform=transforms.ToTensor())[0]
    assert (found[-1].stage, found[-1].transform) == ("transform", "ToTensor")


def test_what_is_installed_in_a_folder_of_its_own_is_a_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pip install --target`, as clusters have it on PYTHONPATH."""
    theirs, beside, mine = (tmp_path / name for name in ("theirs", "beside", "mine"))
    for folder in (theirs, beside, mine):
        monkeypatch.syspath_prepend(folder)
        (folder / "PIL").mkdir(parents=True)
    for folder in (theirs, mine):
        (folder / "pillow-12.1.1.dist-info").mkdir()
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(mine / "jobs" / "train.py"), raising=False)
    monkeypatch.delitem(sys.modules, "__mp_main__", raising=False)
    names = [str(folder / "PIL" / "ImageFile.py") for folder in (theirs, beside, mine)]
    assert [is_library(name) for name in names] == [True, False, False]
    assert [package(name) for name in names] == ["PIL", "", ""]


def test_a_filter_of_the_scripts_is_not_the_library_s_that_calls_it() -> None:
    filters = pytest.importorskip("webdataset.filters")
    found: list[Place] = []

    class FarFromHoldout:
        def near(self) -> None:
            found.append(here())

        def __call__(self, samples: Any) -> Any:
            for sample in samples:
                self.near()
                yield sample

    assert list(filters.map(lambda sample: sample)(FarFromHoldout()([1]))) == [1]
    assert found[0].stage == "transform" and found[0].transform == "FarFromHoldout"


def test_who_makes_samples_for_a_batch_of_webdataset_s_collates_none() -> None:
    filters = pytest.importorskip("webdataset.filters")
    found: list[Place] = []

    def reads(samples: Any) -> Any:
        for sample in samples:
            found.append(here())
            yield sample

    def stacked(samples: Any) -> Any:
        found.append(here())
        return samples

    assert list(filters.batched(3, collation_fn=stacked)(filters.shuffle(2)(reads([1, 2, 3])))) != []
    said = [(one.stage, one.where) for one in found]
    assert said == [("other", "test_rules.py:reads")] * 3 + [("collate", "test_rules.py:stacked")]


def test_a_look_keeps_nothing_of_the_scripts_alive() -> None:
    """Before Python 3.13 a frame keeps the dict of its variables that it was asked for."""
    transforms = pytest.importorskip("torchvision.transforms")
    found: list[Any] = []

    class Probe:
        def __call__(self, image: Any) -> Any:  # no assert in here: pytest makes it ask for its own locals
            batch = Probe()
            kept = weakref.ref(batch)
            found.append(here().transform)
            del batch
            found.append(kept())

    transforms.Compose([Probe()])(None)
    assert found == ["Probe", None]


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


def test_what_a_dataset_writes_is_its_own_work_and_no_reading() -> None:
    picture = PIL_Image.new("RGB", (64, 64))
    keeping = through_libraries(lambda look: picture.save(Looking(look), "PNG", optimize=True))
    assert seen(keeping).stage == "transform"
    assert seen(through_libraries(lambda look: np.save(Looking(look), np.ones(4)))).stage == "transform"


def test_what_an_archive_inflates_is_decoding(tmp_path: Path) -> None:
    """Its bytes come from memory; a core is at work."""
    np.savez_compressed(tmp_path / "scene.npz", photo=np.random.default_rng(0).random(2_000_000, np.float32))

    def inflates(over: threading.Event) -> None:
        while not over.is_set():
            np.load(tmp_path / "scene.npz")["photo"]

    assert caught(inflates)[0] == "decode"


def test_what_a_library_parses_or_inflates_is_told_of_the_function_that_asks(tmp_path: Path) -> None:
    """Nobody changes the library's lines, nor does `--lines-of` time them."""
    np.savez_compressed(tmp_path / "scene.npz", photo=np.random.default_rng(0).random(2_000_000, np.float32))
    text = json.dumps([{"label": number} for number in range(100_000)])

    def asks(over: threading.Event) -> None:
        while not over.is_set():
            json.loads(text)
            np.load(tmp_path / "scene.npz")["photo"]

    with running(asks) as look:
        places = {classify(look()[0]) for _ in range(60) if not time.sleep(0.005)}
    places = {place for place in places if place.stage == "decode"}
    assert places and all(place.where == "test_rules.py:asks" for place in places)


def test_text_that_numpy_parses_is_no_reading(tmp_path: Path) -> None:
    np.savetxt(tmp_path / "points.txt", np.random.default_rng(0).random((4000, 8)))

    def asks(over: threading.Event) -> None:
        while not over.is_set():
            np.loadtxt(tmp_path / "points.txt")
            np.genfromtxt(tmp_path / "points.txt", max_rows=100)

    with running(asks) as look:
        places = Counter(classify(look()[0]) for _ in range(60) if not time.sleep(0.005))
    assert places.most_common(1)[0][0] == Place("decode", "test_rules.py:asks")


@pytest.mark.parametrize("asks", ["picks", "__getitem__"])
def test_a_query_of_the_datasets_own_is_what_prepares_a_sample(asks: str) -> None:
    """A scan of a whole table computes; a faster disk does nothing for it."""
    data, found = pytest.importorskip("torch.utils.data"), list[Place]()
    base = sqlite3.connect(":memory:")
    base.create_function("seen", 0, lambda: found.append(classify(sys._getframe(1))))
    lines = f"class Rows:\n  def {asks}(self, index):\n    return BASE.execute('select seen()').fetchall()\n"
    lines += "  def __getitem__(self, index):\n    return self.picks(index)\n" * (asks == "picks")
    made: dict[str, Any] = {"BASE": base}
    exec(compile(lines, "rows.py", "exec"), made)
    list(data.DataLoader(made["Rows"](), sampler=[0], collate_fn=list))
    assert {(place.stage, place.where) for place in found} == {("transform", f"rows.py:Rows.{asks}")}


def test_what_a_library_s_dataset_inflates_is_not_told_of_the_loop_around_it(tmp_path: Path) -> None:
    data = pytest.importorskip("torch.utils.data")
    made: dict[str, Any] = {"DATA": zlib.compress(bytes(4_000_000))}
    lines = "import zlib\nclass Packed:\n  def __getitem__(self, index):\n    return len(zlib.decompress(DATA))"
    file = tmp_path / "site-packages" / "packed.py"
    file.parent.mkdir()
    file.write_text(lines)
    exec(compile(lines, file, "exec"), made)

    def loops(over: threading.Event) -> None:
        while not over.is_set():
            for _ in data.DataLoader(made["Packed"](), batch_size=2, sampler=range(4)):
                pass

    with running(loops) as look:
        places = {classify(look()[0]) for _ in range(60) if not time.sleep(0.005)}
    assert {place.where for place in places if place.stage == "decode"} == {"packed.py:Packed.__getitem__"}


def test_libraries_calls_of_a_dataset() -> None:
    wanted = {
        "decode": ("cv2.imread", "zlib.decompress", "_pickle.loads", "_json.Scanner"),
        "read": ("_io.BufferedReader.read",),
        "blocked": ("time.sleep",),
        "lock": ("_multiprocessing.SemLock.__enter__",),
        None: ("numpy.add", "zlib.compress", "_pickle.dumps", "_json.Encoder"),
    }
    assert {stage: {WORKER.stage_of_call(call) for call in calls} for stage, calls in wanted.items()} == {
        stage: {stage} for stage in wanted
    }
