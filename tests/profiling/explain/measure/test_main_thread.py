"""What the training thread's own time is."""

from dataclasses import replace

from feedline.profiling.explain.measure.main_thread import busiest_places
from feedline.profiling.explain.measure.situation import measure
from tests.profiling.recordings import made


def test_waiting_for_a_device_is_no_python_of_the_scripts_own() -> None:
    """On any device, whether it tells when it has run dry or not."""
    seen = made(wait_s=0.001, compute_s=0.1, device="mps")
    trainer = replace(
        seen.trainers[0], stages={"forward": 3.0, "synchronise": 3.0}, functions={"synchronise train.py:main:9": 3.0}
    )
    seen = replace(seen, trainers=[trainer])
    assert measure(seen).trainer.shares.trainer == 0
    assert not busiest_places(seen)


def test_two_functions_that_lead_together_are_named_where_neither_leads() -> None:
    """As one that packs and one that it calls; of many alike none is."""
    pack, compress, rest = (f"python train.py:{name}:1" for name in ("pack", "compress", "rest"))
    seen = made(wait_s=0.001, compute_s=0.05, python_s=0.05)
    for times, named in (((1.5, 1.4, 0.1), ["train.py:pack", "train.py:compress"]), ((1.0, 1.0, 1.0), [])):
        functions = dict(zip((pack, compress, rest), times, strict=True))
        trainer = replace(seen.trainers[0], functions=functions, ticks=150)
        assert busiest_places(replace(seen, trainers=[trainer])) == named
    leads = replace(seen.trainers[0], functions={pack: 2.9, compress: 0.1}, ticks=150)
    assert busiest_places(replace(seen, trainers=[leads])) == ["train.py:pack:1"]


def test_a_loss_that_keeps_a_device_waiting_is_python_of_the_scripts_own() -> None:
    for device, places in (("cuda:0", ["losses.py:pick:12"]), ("cpu", ["train.py:main:9"])):
        seen = made(wait_s=0.001, compute_s=0.05, python_s=0.05, device=device)
        functions = {"loss losses.py:pick:12": 2.8, "python train.py:main:9": 1.0}
        trainer = replace(seen.trainers[0], functions=functions, ticks=150)
        assert busiest_places(replace(seen, trainers=[trainer])) == places


def test_no_place_is_named_where_most_of_the_time_has_none() -> None:
    seen = made(wait_s=0.001, compute_s=0.05, python_s=0.05)
    trainer = replace(seen.trainers[0], functions={"python ": 2.8, "python train.py:main:9": 0.2}, ticks=150)
    assert busiest_places(replace(seen, trainers=[trainer])) == []
