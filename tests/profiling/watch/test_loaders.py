"""Windows of loops over every kind of loader that is watched."""

import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from feedline.profiling.profile import Profile  # noqa: E402
from feedline.profiling.profile_run import chosen_legs  # noqa: E402
from tests.profiling.diagnostic_runs import hits, rates, script, seen  # noqa: E402
from tests.profiling.trainings import Training  # noqa: E402

LOADERS = {
    "no workers": "DataLoader(data, batch_size=8)",
    "persistent workers": "DataLoader(data, batch_size=8, num_workers=2, persistent_workers=True)",
    "iterable": "DataLoader(Stream(), batch_size=8, num_workers=1)",
    "one iterator for all epochs": "Kept(data, batch_size=8, num_workers=1)",
    "stateful": "StatefulDataLoader(data, batch_size=8, num_workers=1)",
    "nodes": "nodes.Loader(nodes.Mapper(nodes.Batcher(nodes.IterableWrapper(data), batch_size=8), default_collate))",
}


@pytest.mark.parametrize("name", LOADERS)
def test_loaders_of_all_kinds(work: Path, name: str) -> None:
    if name in ("stateful", "nodes"):
        pytest.importorskip("torchdata")
    argv = script(
        work,
        f"""
        class Stream(IterableDataset):
            def __iter__(self):
                yield from data
        class Kept(DataLoader):  # as ultralytics' and timm's do
            batches = None
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                object.__setattr__(self, "batch_sampler", Endless(self.batch_sampler))
            def __iter__(self):
                self.batches = self._get_iterator() if self.batches is None else self.batches
                for _ in range(len(self.batch_sampler.sampler)):
                    yield next(self.batches)
        class Endless:
            def __init__(self, sampler):
                self.sampler = sampler
            def __iter__(self):
                while True:
                    yield from self.sampler
        if {name in ("stateful", "nodes")}:
            from torch.utils.data import default_collate
            from torchdata import nodes
            from torchdata.stateful_dataloader import StatefulDataLoader
        loader = {LOADERS[name]}
        if hasattr(loader, "state_dict"):
            loader.state_dict()  # which may begin an iterator
        def train():
            for batch in loader:
                step(batch)
        for epoch in range({20 if "epochs" in name else 1}):
            train()
        """,
    )
    found = seen(argv, legs=chosen_legs(True), lines=True, rounds=1)
    assert set(rates(found)) >= {"normal", "cached", "loader_only", "kept", "cold"}
    assert hits(found.lines, "trainer")["optimizer.step()"] == 30
    assert not [note for note in found.notes if "legs" in note or "lines" in note]
    assert [one.kind == "unwatched" for one in found.loaders] == [False]
    assert found.passes[0].epoch == 0 and found.passes[0].samples


def test_a_loader_that_a_thread_draws_from(work: Path) -> None:
    """And another one, for evaluations in between, which end as they would."""
    argv = script(
        work,
        """
        import queue, threading
        class Ahead(threading.Thread):
            def __init__(self, iterator):
                super().__init__(daemon=True)
                self.iterator, self.queue = iterator, queue.Queue(2)
                self.start()
            def run(self):
                for batch in self.iterator:
                    self.queue.put(batch)
                self.queue.put(None)
        class DataLoaderX(DataLoader):
            def __iter__(self):
                return iter(Ahead(super().__iter__()).queue.get, None)
        held_out = DataLoaderX(data, batch_size=32)
        for number, batch in enumerate(DataLoaderX(data, batch_size=8, num_workers=1)):
            step(batch)
            if number % 5 == 4:
                for x, _ in held_out:
                    model(x)
        """,
    )
    found = seen(argv, steps=30)
    assert set(rates(found)) >= {"normal", "cached"}
    assert {step.loader for step in found.measured()} == {0}
    assert [one.phase for one in found.loaders][:1] == ["train"]
    assert not [note for note in found.notes if "legs" in note]


def test_webdataset(work: Path) -> None:
    wds, image = pytest.importorskip("webdataset"), pytest.importorskip("PIL.Image")
    with wds.TarWriter(str(work / "shard.tar")) as sink:
        for number in range(40):
            picture = image.new("RGB", (90, 90), (number, 9, 9))
            sink.write({"__key__": f"{number:03d}", "jpg": picture.crop((0, 0, 4, 9)), "cls": number % 3})
    argv = script(
        work,
        """
        import webdataset as wds
        shards = wds.WebDataset("shard.tar", shardshuffle=False).decode("torchrgb").to_tuple("jpg", "cls").batched(8)
        for images, labels in shards:
            step((images.mean(dim=(1, 2)), torch.tensor(labels) % 3))
        """,
    )
    found = seen(argv, legs=("normal", "cached", "loader_only"), steps=12)
    assert set(rates(found)) >= {"normal", "cached", "loader_only"}
    assert found.loaders[0].kind == "webdataset"
    assert not [note for note in found.notes if "legs" in note]


FASTAI = """
from torch.utils.data import DataLoader as Inner
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

class DataLoader:
    num_workers = 1  # of the process that asks: here each is one

    def __init__(self, data, bs, num_workers):
        self.dataset, self.bs = data, bs
        self.fake_l = Inner(data, batch_size=bs, num_workers=num_workers)
        self.fake_l.d = self

    def __iter__(self):
        yield from _MultiProcessingDataLoaderIter(self.fake_l)
"""


def test_a_loader_that_iterates_torchs_iterators_with_one_inside(work: Path) -> None:
    """As fastai's does."""
    home = work / "fastai" / "data"
    home.mkdir(parents=True)
    (home / "load.py").write_text(FASTAI)
    argv = script(
        work,
        """
        from fastai.data.load import DataLoader as Outer
        loader = Outer(data, bs=8, num_workers=2)
        for epoch in range(3):
            for batch in loader:
                step(batch)
        """,
    )
    found = seen(argv, legs=("normal", "cached", "loader_only"), steps=30)
    assert set(rates(found)) >= {"normal", "cached", "loader_only"}
    (loader,) = found.loaders
    assert (loader.kind, loader.num_workers, loader.batch_size, loader.dataset_samples) == ("fastai", 2, 8, 160)
    assert {worker.loader for worker in found.workers} == {loader.id}
    assert {worker.worker for worker in found.workers} == {0, 1}
    assert not [note for note in found.notes if "legs" in note]


def test_who_makes_a_loader_is_told(work: Path) -> None:
    """A library whose loop it is takes its settings; keras asks a loader of the script's own, too."""
    for package in ("ultralytics", "keras"):
        home = work / "site-packages" / package
        home.mkdir(parents=True)
        (home / "engine.py").write_text(
            "from torch.utils.data import DataLoader\n"
            "def train(data, step):\n    for batch in DataLoader(data, batch_size=8):\n        step(batch)\n"
        )
    argv = script(
        work,
        """
        sys.path.insert(0, os.path.join(os.path.dirname(__file__), "site-packages"))
        import keras.engine, ultralytics.engine
        ultralytics.engine.train(data, step)
        for batch in DataLoader(data, batch_size=16):
            step(batch)
        keras.engine.train(data, step)
        """,
    )
    found = seen(argv, legs=(), steps=None)
    assert [one.made_by for one in found.loaders] == ["ultralytics", "", ""]


def test_an_evaluation_that_asks_for_gradients_trains_nothing(work: Path) -> None:
    argv = script(
        work,
        """
        def attacked(batch):
            x, y = batch
            x.requires_grad_()
            nn.functional.cross_entropy(model(x), y).backward()
            time.sleep(0.002)
        held_out = DataLoader(data, batch_size=2)
        for batch in held_out:  # before the first step, too
            attacked(batch)
        for epoch in range(4):
            for batch in DataLoader(data, batch_size=16):
                step(batch)
            for batch in held_out:
                attacked(batch)
        """,
    )
    found = seen(argv, legs=(), steps=None)
    assert [one.phase for one in found.loaders] == ["eval", "train"]
    assert {row.samples for row in found.measured()} == {16}


def test_a_loop_that_asks_its_loader_no_more_is_watched_on(work: Path) -> None:
    """`itertools.cycle` keeps a pass's batches and hands them out again: they come of nothing from then on."""
    argv = script(
        work,
        """
        import itertools
        for batch in itertools.cycle(DataLoader(data, batch_size=8, num_workers=1)):
            step(batch)
            if steps == 2000:
                break
        """,
    )
    found = seen(argv, legs=(), steps=300)
    assert found.script.ended_by == "steps"
    assert sum(row.wait_s for row in found.measured()) < 0.1 * sum(row.duration_s for row in found.measured())


def test_a_loop_beside_a_thread_that_waits_for_a_batch_is_watched(work: Path) -> None:
    argv = script(
        work,
        """
        import threading
        class Slow(IterableDataset):
            def __iter__(self):
                for number in range(3):
                    time.sleep(0.5)
                    yield torch.rand(4)
        thread = threading.Thread(target=list, args=(DataLoader(Slow(), batch_size=1),))
        thread.start()
        time.sleep(0.2)
        for batch in DataLoader(data, batch_size=4):
            step(batch)
        thread.join()
        """,
    )
    found = seen(argv, legs=(), steps=None)
    assert [(one.kind, one.phase) for one in found.loaders if one.batch_size == 4] == [("torch", "train")]
    assert {row.samples for row in found.measured()} == {4}


def test_feedlines_own_loader(work: Path) -> None:
    pytest.importorskip("simplejpeg")
    from tests.lab import tiny_split

    tiny_split.write(work / "train", 120, 3, classes=3)
    argv = script(
        work,
        """
        from feedline.pipeline.loader import Loader
        for images, labels in Loader("train", batch_size=8, image_size=32, train=True, num_workers=1):
            step((images.float().mean(dim=(1, 2)).repeat(1, 2)[:, :4], labels))
        """,
    )
    found = seen(argv, legs=chosen_legs(True), rounds=1, steps=12)
    assert set(rates(found)) == {"normal", "cached", "loader_only", "cold"}
    assert found.loaders[0].kind == "feedline"
    assert not [note for note in found.notes if "legs" in note]


def slow_batch(rows: list[Any]) -> Any:
    time.sleep(0.05)
    return torch.stack(rows), torch.zeros(len(rows), dtype=torch.long)


@pytest.mark.parametrize(("how", "workers"), [("alone", 0), ("ahead", 1), ("in parallel", 2)])
def test_torchdatas_nodes(how: str, workers: int) -> None:
    nodes = pytest.importorskip("torchdata.nodes")
    training, samples = Training(), torch.rand(40, 4)
    node = nodes.IterableWrapper(samples)
    node = nodes.Batcher(node, batch_size=4)
    node = nodes.ParallelMapper(node, slow_batch, 2) if how == "in parallel" else nodes.Mapper(node, slow_batch)
    loader = nodes.Loader(nodes.Prefetcher(node, 2) if how == "ahead" else node)
    with Profile(resources=False) as found:
        loader.state_dict()
        for _ in range(2):
            for batch in loader:
                training.step(batch)
    assert [step.samples for step in found.recording.steps] == [4] * 20
    assert [loader.kind for loader in found.recording.loaders] == ["torchdata.nodes"]
    assert {step.epoch for step in found.recording.steps} == {0, 1}
    assert any(worker.in_trainer for worker in found.recording.workers) is (workers == 0)
    assert found.recording.loaders[0].num_workers == workers
    told = [*found.verdict.evidence, *(one.why for one in found.predictions)]
    assert any("prepares every batch itself" in words for words in told) is (workers == 0)
