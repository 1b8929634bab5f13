"""What the training thread's own time is."""

from dataclasses import replace

from feedline.profiling.explain.measure.main_thread import busiest_place
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
    assert busiest_place(seen) is None
