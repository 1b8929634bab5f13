"""Runs with known causes, and what is predicted for them."""

from dataclasses import replace
from typing import Any

from feedline.profiling.explain.measure.situation import Situation, measure, situation
from feedline.profiling.explain.predict import Prediction, all_predictions
from feedline.profiling.record.measurements import Reads
from feedline.profiling.record.recording import Compute, LoaderPass, Recording, Trial
from tests.profiling.recordings import made, rich

SMALL = {"read": 0.0, "decode": 0.0001, "transform": 0.0001, "collate": 0.0, "send": 0.0}
FAULTY = Compute(device="cpu", user_cpu_s=6.0, kernel_cpu_s=4.0, page_faults=400_000, faulty_steps=100)
GPU = Compute(device="cuda:0", items=9, items_s=1.0)
COMPUTING: dict[str, Any] = {"wait_s": 0.001, "compute_s": 0.1, "stages": SMALL}
PASSES = [LoaderPass(epoch=epoch, samples=1600, start_s=0.5, end_s=0.06) for epoch in range(3)]


def trials_of(*forms: tuple[str, int | None, float]) -> list[Trial]:
    return [
        Trial(codec=codec, size_px=size, samples=99, bytes_per_sample=9e3, load_cpu_s_per_sample=cost, psnr_db=40.0)
        for codec, size, cost in forms
    ]


TRIALS = trials_of(("as-is", None, 2e-3), ("jpeg", 256, 4e-4), ("planes", 256, 1e-4))


def with_loader(seen: Recording, **settings: Any) -> Recording:
    return replace(seen, loaders=[replace(seen.loaders[0], **settings)])


def with_workers(seen: Recording, **fields: Any) -> Recording:
    """What all of them have."""
    return replace(seen, workers=[replace(worker, **fields) for worker in seen.workers])


def with_trainer(seen: Recording, **fields: Any) -> Recording:
    return replace(seen, trainers=[replace(seen.trainers[0], **fields)])


def slow_transform(own: float = 0.9) -> Recording:
    """Two workers on two cores that spend most of a sample in a transform of the user's own."""
    stages = {"read": 0.0001, "decode": 0.0005, "transform": 0.004, "collate": 0.0001, "send": 0.0001}
    seen = made(wait_s=0.08, compute_s=0.01, workers=2, cores=2, ceiling=3200.0, stages=stages, trials=TRIALS)
    seconds = seen.workers[0].stages["transform"]
    names = {"Slow": own * seconds, "RandomResizedCrop": (1 - own) * seconds}
    return with_workers(seen, transforms=names, functions={"transform data.py:__call__": seconds})


def waiting_outside(stage: str, cores: int = 2) -> Recording:
    """Two workers that wait, for a server or a lock, nine tenths of a sample's time."""
    stages = {"decode": 0.0004, stage: 0.0045}
    seen = made(wait_s=0.08, compute_s=0.01, stages=stages, stages_cpu={"decode": 0.0004}, cores=cores)
    return with_workers(seen, functions={f"{stage} store.py:read_record (sleep)": 3.0, "decode a.py:b": 0.3})


def without_loader(**parts: float) -> Recording:
    """A hundred optimiser steps a second, samples=1, whose thread's time goes to `parts`."""
    seen = made(wait_s=0.0, compute_s=0.01, batch=1, cores=2, workers=0)
    seconds = seen.trainers[0].seconds
    shares = {name: share * seconds for name, share in parts.items()}
    waits_s = shares.get("wait", 0.0)
    places = {"load data.py:batches:9": 3.0, "wait fill.py:fills:17": waits_s, "forward train.py:main:8": 3.0}
    seen = with_trainer(seen, stages=shares, functions=places)
    return with_loader(replace(seen, workers=[]), kind="unwatched", num_workers=None, batch_size=None)


READS = Reads(piece_bytes=110e3, at_once=[1, 4, 16, 64], random_bytes_per_s=[12e6, 47e6, 150e6, 160e6],
              latency_s=0.009, cold=1.0)  # fmt: skip


def reading(
    kind: str = "torch", *, blocked_s: float = 0.008, from_disk: float | None = 1.0, reads: Reads | None = READS,
    **changes: Any,
) -> Recording:  # fmt: skip
    """Two workers that are blocked in reads for so long a sample, and compute for a millisecond; that share of its
    110 kB came from a disk."""
    cpu = {"read": 0.0001, "decode": 0.001}
    sample_s = 0.0011 + blocked_s
    step: dict[str, Any] = {"wait_s": 16 * sample_s - 0.005, "compute_s": 0.005}
    seen = made(**step, stages={"read": 0.0001 + blocked_s, "decode": 0.001}, stages_cpu=cpu, **changes)
    device = None if from_disk is None else 110e3 * from_disk
    costs = replace(seen.costs, device_bytes=device, read_calls=2.0)
    return with_loader(replace(seen, costs=costs, reads=reads, sample_paths=["a.jpg"]), kind=kind)


def runs() -> list[Recording]:
    """Between them every remedy applies, where it helps and where it does not."""
    waiting: dict[str, Any] = {"wait_s": 0.06, "compute_s": 0.03}
    short = with_loader(made(passes=PASSES), persistent_workers=False)
    return [
        rich(),
        short,
        made(**waiting),
        made(**waiting, workers=4, slow=6.0),
        made(**COMPUTING, compute=FAULTY),
        made(**COMPUTING, compute=Compute(parameters=9, unused_gradients=9, unused_in=["Teacher"])),
        made(**COMPUTING, compute=replace(GPU, items_s=0.0), starved_s=0.0),
        made(wait_s=0.001, compute_s=0.02, copy_s=0.02, compute=GPU, starved_s=0.0),
        made(wait_s=0.001, compute_s=0.02, python_s=0.08),
        made(wait_s=0.09, unpickle_s=0.085, compute_s=0.02, stages=SMALL),
        made(wait_s=0.06, compute_s=0.02, stages=SMALL),
        slow_transform(),
        waiting_outside("blocked"),
        waiting_outside("lock"),
        begun_anew(),
        picking(0.5),
        drawing(0.8),
        drawing(0.8, "change"),
        without_loader(load=0.6, forward=0.4),
        without_loader(wait=0.6, forward=0.4),
        reading(),
        reading("feedline", reads=replace(READS, sequential_bytes_per_s=400e6)),
    ]


def begun_anew() -> Recording:
    """`next(iter(loader))` in each step."""
    seen = made(wait_s=0.09, compute_s=0.01)
    return replace(seen, steps=[replace(step, epoch=number) for number, step in enumerate(seen.steps)])


def picking(share: float) -> Recording:
    """So much of the time goes to what a loss of the script's own asks of torch."""
    seen = made(wait_s=0.001, compute_s=0.1, stages=SMALL)
    seconds = seen.trainers[0].seconds
    looks: dict[str, Any] = {"stages": {"forward": (1 - share) * seconds, "loss": share * seconds}, "ticks": 500}
    seen = with_trainer(seen, **looks, functions={"loss losses.py:Triplet.pick:12": share * seconds})
    return replace(seen, compute=Compute(device="cpu"))


def drawing(share: float, part: str = "draw", home: str = "train.py") -> Recording:
    """A sampler (change: work on batches that are ready) takes so much of the time, of which the loop waits 0.9 for
    workers that idle."""
    seen = made(wait_s=0.09, compute_s=0.01, stages={"decode": 0.00001}, trainer_cpu_s=0.0)
    parts = {part: share * seen.trainers[0].seconds, "wait": (0.9 - share) * seen.trainers[0].seconds}
    places = {f"{part} {home}:Balanced.{part}:{line}": parts[part] / 2 for line in (3, 4)}
    return replace(seen, trainers=[replace(seen.trainers[0], stages=parts, functions=places)])


def found_in(seen: Recording) -> list[Prediction]:
    return all_predictions(measure(seen))


def first(seen: Recording) -> Prediction:
    found = found_in(seen)[0]
    assert found.helps
    return found


def helping(seen: Recording) -> list[str]:
    return list(dict.fromkeys(one.family for one in found_in(seen) if one.helps))


def of_family(seen: Recording, family: str) -> list[Prediction]:
    return [one for one in found_in(seen) if one.family == family]


def at(seen: Recording) -> Situation:
    found = situation(measure(seen))
    assert found is not None
    return found
