"""What a faster model gives, by how much of the time the loop computes."""

import shlex
from dataclasses import replace
from typing import Any

import pytest

from feedline.profiling.explain.predict import Prediction
from feedline.profiling.explain.remedies.remedy import Effort
from feedline.profiling.explain.verdict import diagnose
from feedline.profiling.record.recording import Compute, Gpu, LoaderPass, Recording, Script
from tests.profiling.recordings import made
from tests.profiling.remedy_runs import picking, with_trainer

GPU = Compute(device="cuda:0", channels_last=True)
SMALL = {"decode": 0.0001}
MAKING = {"decode": 0.04 / 32}


def autocast(seen: Recording) -> Prediction:
    """It makes the model half as fast again."""
    return next(one for one in diagnose(seen).predictions if one.family == "autocast")


def test_nodes_are_pinned_and_prefetched_by_nodes() -> None:
    seen = made(workers=2, wait_s=0.04, compute=GPU)
    nodes = replace(seen, loaders=[replace(seen.loaders[0], kind="torchdata.nodes")])
    lines = {one.family: one.command.splitlines()[0] for one in diagnose(nodes).predictions}
    assert (lines["pin"], lines["prefetch"]) == ("PinMemory(node)", "Prefetcher(node, prefetch_factor=4)")


def starting(**costs: Any) -> Recording:
    passes = [LoaderPass(epoch=epoch, samples=320, start_s=0.4, end_s=0.0) for epoch in range(6)]
    return made(wait_s=0.0, starved_s=0.0, passes=passes, **costs)


@pytest.mark.parametrize(
    ("seen", "gain"),
    [
        (
            made(workers=0, wait_s=0.04, starved_s=0.04, compute_s=0.06, compute=GPU, stages=MAKING),
            1 / (0.4 + 0.6 / 1.5),
        ),
        (starting(compute_s=0.06, stages=SMALL, compute=GPU), 1 / (0.4 + 0.6 / 1.5)),
        (made(wait_s=0.06, starved_s=0.06, compute_s=0.04, stages=SMALL, compute=GPU), 1 / (0.6 + 0.4 / 1.5)),
        (made(wait_s=0.0, starved_s=0.0, idle_s=0.025, python_s=0.05, compute_s=0.05, compute=GPU), 1.3),
    ],
    ids=["it makes its batches itself", "it waits for epochs to begin", "it waits for handing over", "Python"],
)
def test_it_gains_what_amdahl_says(seen: Recording, gain: float) -> None:
    found = autocast(seen)
    assert not found.vain
    assert found.gain == pytest.approx(gain, rel=0.06)


def test_it_gains_nothing_while_the_workers_are_the_limit() -> None:
    found = autocast(made(wait_s=0.06, starved_s=0.06, compute_s=0.03, compute=GPU))
    assert found.vain and "waits for its workers" in found.why


def test_python_of_the_scripts_own_is_predicted_as_an_upper_bound_and_says_so() -> None:
    found = diagnose(made(wait_s=0.001, compute_s=0.02, python_s=0.08, stages=SMALL)).predictions[0]
    assert (found.family, found.at_most) == ("python", True)
    assert "what it would give if it cost nothing" in found.why


def test_operations_outside_the_model_are_named_where_they_take_the_time() -> None:
    for share, device, told in ((0.5, "cpu", True), (0.12, "cpu", False), (0.5, "cuda:0", False)):
        diagnosis = diagnose(replace(picking(share), compute=Compute(device=device)))
        found = [one for one in diagnosis.predictions if one.family == "loss"]
        assert bool(found) is ("no module with weights" in " ".join(diagnosis.evidence)) is told
        assert ("the loop computes" in diagnosis.headline) is told
        if told:
            assert found[0].at_most and found[0].gain == pytest.approx(2.0, rel=0.1)
            assert "--lines-of Triplet.pick train.py" in found[0].command and "Triplet.pick:12" in found[0].why


def test_gradients_that_no_optimiser_uses_are_told_and_bounded_by_the_backward_pass() -> None:
    for unused, device, gain in ((900, "cpu", 2.0), (900, "cuda:0", 3.0), (9, "cpu", None), (0, "cpu", None)):
        where = ["Net.backbone", "Teacher"]
        compute = Compute(device=device, parameters=100, unused_gradients=unused, unused_in=where)
        seen = made(wait_s=0.0, starved_s=0.0, compute_s=0.1, stages=SMALL, compute=compute)
        half = seen.trainers[0].seconds / 2
        seen = with_trainer(seen, stages={"forward": half, "backward": half}, ticks=500)
        diagnosis = diagnose(seen)
        found = [one for one in diagnosis.predictions if one.family == "gradients"]
        assert (f"{unused} weights (Net.backbone and Teacher)" in " ".join(diagnosis.evidence)) is bool(unused)
        assert bool(found) is (gain is not None)
        if gain is not None:
            assert found[0].at_most and found[0].gain == pytest.approx(gain, rel=0.12)
            torch = pytest.importorskip("torch")
            net, names = torch.nn.Linear(2, 2), dict[str, Any]()
            names |= {"model": net, "optimizer": torch.optim.SGD([net.bias], lr=0.1)}
            exec(found[0].command, names)
            assert [weight.requires_grad for weight in net.parameters()] == [False, True]


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["train.py", "--lr", "1"], "torchrun --nproc-per-node 2 train.py --lr 1"),
        (["torchrun", "train.py"], "torchrun --nproc-per-node 2 …"),
        (["accelerate", "launch", "train.py"], "accelerate launch --num_processes 2 …"),
        (["composer", "train.py"], "composer …"),
        (["tools/train", "--lr", "1"], "torchrun --nproc-per-node 2 tools/train --lr 1"),
    ],
)
def test_more_gpus_are_given_by_the_launcher_that_is_used(argv: list[str], command: str) -> None:
    seen = made(wait_s=0.0, starved_s=0.0, compute_s=0.1, stages=SMALL, compute=GPU, script=Script(argv=argv))
    gpus = next(one for one in diagnose(seen).predictions if one.family == "gpus")
    assert gpus.command == command


def test_more_gpus_are_no_cure_for_workers() -> None:
    """Each brings its own, which is what would help, and is to be had for less."""
    seen = made(wait_s=0.06, starved_s=0.06, compute_s=0.03, compute=GPU, cores=16)
    gpus = next(one for one in diagnose(seen).predictions if one.family == "gpus")
    assert gpus.vain and "mend the data first" in gpus.why


def test_hardware_is_bought_when_two_lines_that_may_do_as_well_were_tried() -> None:
    costs = {"wait_s": 0.0, "starved_s": 0.0, "compute_s": 0.086, "copy_s": 0.014, "stages": SMALL}
    found = diagnose(made(**costs, compute=GPU)).predictions
    assert not [one for one in found if one.helps]
    in_doubt = [one.family for one in found if one.in_doubt]
    assert (in_doubt[0], in_doubt[-1]) == ("autocast", "gpus")
    tried = replace(GPU, autocast=True)
    (only,) = [one for one in diagnose(made(**costs, compute=tried)).predictions if one.helps]
    assert only.effort == Effort.HARDWARE


def test_what_may_gain_little_does_not_hold_back_a_gpu_that_gains_much() -> None:
    costs = {"wait_s": 0.0, "starved_s": 0.0, "compute_s": 0.086, "copy_s": 0.014, "stages": SMALL}
    found = diagnose(made(**costs, compute=replace(GPU, autocast=True))).predictions
    (pin,) = [one for one in found if one.family == "pin"]
    assert pin.in_doubt and [one.family for one in found if one.helps] == ["gpus"]


def test_another_s_gpu_says_nothing_of_the_script_s() -> None:
    many = replace(GPU, items=600, items_s=0.6 * 56 * 0.1)
    gpus = [Gpu(uuid="mine", utilization=0.1, sm_active=0.4, process_memory_bytes={"7": 1.0}),
            Gpu(uuid="others", utilization=1.0)]  # fmt: skip
    for seen, gain in ((gpus, 1 / 0.4), ([*gpus[1:], Gpu(uuid="unknown")], 1 / 0.4)):
        shown = made(wait_s=0.0, starved_s=0.0, idle_s=0.0, compute_s=0.1, stages=SMALL, compute=many, gpus=seen)
        found = next(one for one in diagnose(shown).predictions if one.family == "sync")
        assert found.gain == pytest.approx(gain, rel=0.03)


@pytest.mark.parametrize(("utilization", "gain"), [(0.1, 1 / 0.4), (0.9, 1 / 0.9), (1.0, 1.0)])
def test_many_synchronisations_in_a_step_cost_no_more_than_the_time_in_which_no_kernel_ran(
    utilization: float, gain: float
) -> None:
    """A loop that only computes waits for its kernels, too."""
    many = replace(GPU, items=600, items_s=0.6 * 56 * 0.1, item_lines=["train.py:9"])
    seen = made(wait_s=0.0, starved_s=0.0, idle_s=0.0, compute_s=0.1, stages=SMALL, compute=many,
                gpus=[Gpu(uuid="x", utilization=utilization)])  # fmt: skip
    found = next(one for one in diagnose(seen).predictions if one.family == "sync")
    assert found.gain == pytest.approx(gain, rel=0.03) and found.at_most
    assert ("no kernel ran on the GPU for 0 %" in found.why) == found.vain == (utilization == 1.0)


def test_a_loop_outside_any_function_has_no_lines_to_name() -> None:
    seen = made(wait_s=0.001, compute_s=0.02, python_s=0.08, stages=SMALL)
    named = [replace(one, functions={"python train.py:<module>:12": 9.0}) for one in seen.trainers]
    found = diagnose(replace(seen, trainers=named)).predictions[0]
    assert shlex.split(found.command) == ["feedline", "profile", "--lines", "train.py"]
    assert "the loop in a function" in found.needs


def test_a_script_is_started_by_python_whatever_it_is_called() -> None:
    faulty = replace(GPU, device="cpu", user_cpu_s=6.0, kernel_cpu_s=4.0, page_faults=400_000, faulty_steps=100)
    seen = made(wait_s=0.001, compute_s=0.1, stages=SMALL, compute=faulty, script=Script(argv=["train", "--lr", "1"]))
    kept = next(one for one in diagnose(seen).predictions if one.family == "memory")
    assert kept.command.endswith("\npython train --lr 1")


@pytest.mark.parametrize(("kernel_cpu_s", "sure"), [(0.4, False), (1.0, True)])
def test_page_faults_that_were_counted_are_a_sure_gain_where_it_is_large_enough(
    kernel_cpu_s: float, sure: bool
) -> None:
    faulty = replace(
        GPU, device="cpu", user_cpu_s=9.0, kernel_cpu_s=kernel_cpu_s, page_faults=400_000, faulty_steps=100
    )
    found = diagnose(made(wait_s=0.001, compute_s=0.1, stages=SMALL, compute=faulty)).predictions
    kept = next(one for one in found if one.family == "memory")
    assert kept.helps == sure == (kept.gain_low > 1.0)
    assert found[0] is kept or not sure


def test_a_heap_that_may_keep_its_memory_by_itself_makes_the_gain_less_sure() -> None:
    def kept_at(faults_per_step: int) -> tuple[float, float]:
        faulty = replace(
            GPU, device="cpu", user_cpu_s=9.0, kernel_cpu_s=2.0, page_faults=100 * faults_per_step, faulty_steps=100
        )
        found = diagnose(made(wait_s=0.001, compute_s=0.1, stages=SMALL, compute=faulty)).predictions
        kept = next(one for one in found if one.family == "memory")
        return kept.gain, kept.gain_low

    (gain, unsure), (same, sure) = kept_at(3_000), kept_at(30_000)
    assert gain == same and 1.0 < unsure < sure - 0.05


def test_synchronisations_cost_no_more_than_the_time_in_which_the_device_ran_dry() -> None:
    """It is seen behind the one at a step's end; of many within a step only the most that they may cost is known."""
    for items, idle_s, sure in ((40, 0.0, False), (40, 0.09, True), (4000, 0.0, True)):
        seen = made(wait_s=0.001, compute_s=0.1, stages=SMALL, compute=replace(GPU, items=items, items_s=9.0))
        steps = [replace(step, starved_s=0.0, idle_s=idle_s) for step in seen.steps]
        found = diagnose(replace(seen, steps=steps)).predictions
        sync = next(one for one in found if one.family == "sync")
        assert (sync.gain > 1.3) == sure and sync.vain != sure and sync.at_most == (items == 4000)
        assert sure or "the device ran dry for 0 % of it" in sync.why


def test_gpus_are_a_change_of_code_for_a_script_that_knows_of_one() -> None:
    seen = made(wait_s=0.001, compute_s=0.1, stages=SMALL, compute=GPU)
    two = replace(seen, host={**seen.host, "gpus": ["A", "B"]})
    alone = next(one for one in diagnose(two).predictions if one.remedy == "2 GPUs")
    assert alone.effort == Effort.CODE and "DistributedDataParallel" in alone.needs
    known = replace(two, compute=replace(GPU, world_size=2), host={**seen.host, "gpus": ["A"] * 4})
    more = next(one for one in diagnose(known).predictions if one.remedy == "4 GPUs")
    assert more.effort == Effort.SETTING and not more.needs


def offered(seen: Recording, family: str) -> list[Prediction]:
    return [one for one in diagnose(seen).predictions if one.family == family]


def test_what_a_change_of_the_model_needs_is_said() -> None:
    seen = made(wait_s=0.0, starved_s=0.0, compute_s=0.1, device="cuda:0")
    (layout,), (autocast,) = offered(seen, "layout"), offered(seen, "autocast")
    assert "where the model or the loop says view" in layout.needs and "bfloat16" in autocast.needs
    assert "channels_last before it" in autocast.needs and autocast.in_doubt
    there = replace(seen, compute=replace(seen.compute, channels_last=True))
    (then,) = offered(there, "autocast")
    assert "channels_last" not in then.needs and then.gain > 1.2 > autocast.gain
    dense = replace(seen, compute=replace(seen.compute, parameters=1000, channels_last=None))
    assert not offered(dense, "layout"), "it has no kernels to lay out"


def test_a_model_that_is_on_two_gpus_already_is_not_sold_a_second() -> None:
    seen = made(wait_s=0.0, starved_s=0.0, compute_s=0.1, device="cuda:0")
    of_mine = [Gpu(uuid=f"GPU-{n}", process_memory_bytes={"trainer": 1e9}) for n in range(2)]
    assert offered(replace(seen, gpus=[of_mine[0], Gpu(uuid="GPU-1")]), "gpus")
    assert not offered(replace(seen, gpus=of_mine), "gpus")
