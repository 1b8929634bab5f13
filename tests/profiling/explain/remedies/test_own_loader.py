"""What is said of other numbers of workers."""

from dataclasses import replace

import pytest

from feedline.profiling.explain.predict import Prediction
from feedline.profiling.explain.remedies.remedy import Effort
from feedline.profiling.explain.verdict import diagnose
from feedline.profiling.record.recording import Compute, Costs, LoaderPass, Recording, Series
from tests.profiling.recordings import made
from tests.profiling.remedy_runs import PASSES, begun_anew, first, found_in, with_loader, with_trainer, without_loader


def of_family(seen: Recording, family: str) -> list[Prediction]:
    return [one for one in diagnose(seen).predictions if one.family == family]


def test_fewer_workers_are_not_refused_for_want_of_waiting() -> None:
    """A loop that does not wait is no reason against fewer; that they take no core from the model is one."""
    seen = made(wait_s=0.001, compute_s=0.1, stages={"decode": 0.0001}, ceiling=322.0)
    fewer, more = of_family(seen, "fewer-workers"), of_family(seen, "workers")
    assert fewer and all("nothing shows that the workers take cores" in one.why for one in fewer)
    assert more and all("hardly waits for data" in one.why for one in more)


def test_a_loader_that_a_library_makes_is_set_there() -> None:
    seen = made(wait_s=0.2, compute_s=0.01, workers=1, cores=4, stages={"decode": 0.004}, ceiling=3200.0)
    for library, line in (
        ("", "DataLoader(…, num_workers=4, persistent_workers=True)"),
        ("transformers", "TrainingArguments(…, dataloader_num_workers=4)"),
        ("ultralytics", "model.train(…, workers=4)"),
        ("keras", "PyDataset.__init__(self, workers=4, use_multiprocessing=True)"),
    ):
        loaders = [replace(seen.loaders[0], made_by=library)]
        found = of_family(replace(seen, loaders=loaders), "workers")
        assert next(one.command for one in found if one.remedy == "num_workers=4") == line
    (pin,) = of_family(replace(seen, loaders=loaders), "pin")
    assert pin.command == "images = images.to(device, non_blocking=True)"


def test_ultralytics_takes_no_workers_on_a_cpu() -> None:
    for workers, device, none in ((0, "cpu", True), (1, "cpu", False), (0, "cuda:0", False)):
        seen = made(wait_s=0.2, compute_s=0.01, workers=workers, cores=4, stages={"decode": 0.004}, device=device)
        (more, *_) = of_family(with_loader(seen, made_by="ultralytics"), "workers")
        assert ("no workers where it trains on a CPU" in more.why) is none


def test_a_sampler_beside_a_thread_that_prepares_too_is_told_of() -> None:
    """With no workers 0.2 of the time; or as an epoch begins, where it is the whole start, of 0.4 s behind 3.2 of
    steps, and the measured steps saw little of it."""
    place = "torch.utils.data.sampler:WeightedRandomSampler.__iter__"
    seen = made(wait_s=0.05, compute_s=0.05, workers=0, stages={"decode": 0.001})
    whole_s = seen.trainers[0].seconds
    for share, start_s, gain in ((0.2, 0.0, 1 / (1 - 0.2)), (0.02, 0.4, 1 + 0.4 / 3.2)):
        stages = {"draw": share * whole_s, "load": (0.5 - share) * whole_s, "forward": 0.5 * whole_s}
        passes = [LoaderPass(epoch=epoch, samples=32 * 32, start_s=start_s, end_s=None) for epoch in range(4)]
        drawn = with_trainer(seen, stages=stages, functions={f"draw {place}:277": stages["draw"]}, ticks=2000)
        found = diagnose(replace(drawn, passes=passes if start_s else []))
        (sampler,) = [one for one in found.predictions if one.remedy == "a cheaper sampler"]
        assert sampler.at_most and sampler.gain == pytest.approx(gain, rel=0.05)
        assert found.cause.kind == "main"
        assert ("num_samples=" in (sampler.command or "")) is bool(start_s)


def test_threads_that_take_the_model_s_cores_are_told_and_bound_what_they_cost() -> None:
    """Of two cores they take one, and the main thread lacks one for 0.3 of its time."""
    seen = without_loader(forward=1.0)
    (trainer,), times = seen.trainers, [float(second) for second in range(int(seen.seconds) + 2)]
    busy = Series(name="cpu_cores", unit="cores", scope="host", source="", t_s=times, values=[2.0] * len(times))
    own = replace(busy, scope="trainer:0")
    seconds = trainer.seconds
    beside = {"data.py:load": 0.8 * seconds, "": 0.2 * seconds}
    seen = with_trainer(seen, beside_cpu_s=beside, stages_delay_s={"forward": 0.3 * seconds})
    seen = replace(seen, series=[busy, own], costs=replace(seen.costs, trainer_cpu_s=0.02))
    verdict = diagnose(seen)
    (told,) = [line for line in verdict.evidence if line.startswith("Other threads")]
    assert told.startswith("Other threads of the script took 1 of the 2 cores meanwhile, most of it in data.py:load")
    (bound,) = [one for one in verdict.predictions if one.target == "data.py:load"]
    assert bound.at_most and bound.gain == pytest.approx(1 / (1 - 0.3), rel=0.05)
    assert not [one for one in diagnose(without_loader(forward=1.0)).evidence if one.startswith("Other threads")]


def test_a_worker_that_sleeps_is_not_said_to_read() -> None:
    stages = {"decode": 0.0004, "blocked": 0.0045}
    seen = made(wait_s=0.08, compute_s=0.01, stages=stages, stages_cpu={"decode": 0.0004}, cores=2)
    assert "waits for something outside 92 % of its time" in of_family(seen, "workers")[0].why


def test_reading_is_as_sure_a_gain_as_it_is_a_share() -> None:
    seen = made(wait_s=0.13, compute_s=0.01, workers=1, stages={"read": 0.002, "decode": 0.002}, ceiling=3200.0)
    hardly = replace(seen, workers=[replace(worker, ticks=30) for worker in seen.workers])
    sure, unsure = (of_family(one, "cache")[0] for one in (seen, hardly))
    assert sure.gain == unsure.gain and unsure.gain_high / unsure.gain > 1.1 * sure.gain_high / sure.gain


def test_workers_with_threads_take_more_cores_than_one() -> None:
    """One worker whose library computes in two threads: on two cores a second worker gains nothing."""
    gains = dict[float, float]()
    for threads in (1.0, 2.0):
        seen = made(wait_s=0.15, compute_s=0.01, workers=1, stages={"transform": 0.005}, cores=2,
                    stages_cpu={"transform": 0.005 * threads}, trainer_cpu_s=0.0002)  # fmt: skip
        gains[threads] = next(one.gain for one in of_family(seen, "workers") if one.remedy == "num_workers=2")
    assert gains[1.0] > 1.7
    assert gains[2.0] < 1.1


def test_workers_that_idle_are_not_what_the_loop_waits_for() -> None:
    """Whatever it is: more of them would idle, too. Busy ones are."""
    costs = {"wait_s": 0.08, "compute_s": 0.01, "cores": 16}
    idle, busy = (made(**costs, stages={"decode": seconds}) for seconds in (0.0018, 0.0052))
    more = of_family(idle, "workers")
    assert more and all(one.vain and "the workers idle 6" in one.why for one in more)
    assert not of_family(idle, "stage"), "nor is cheaper work"
    assert max(one.gain_low for one in of_family(busy, "workers")) > 3
    now_and_then = [replace(step, wait_s=0.4 if number % 5 == 0 else 0.0) for number, step in enumerate(idle.steps)]
    assert not any("the workers idle" in one.why for one in of_family(replace(idle, steps=now_and_then), "workers"))
    one_works = [replace(idle.workers[0], stages={"decode": 9.0, "idle": 0.5}, seconds=9.5), *idle.workers[1:]]
    some = of_family(replace(idle, workers=one_works), "workers")
    assert some and not any("the workers idle" in one.why for one in some)


def test_a_queue_that_runs_empty_now_and_then_is_told_how_long_it_must_be() -> None:
    """Beside workers with time to spare; where these have none, or each step waits, a longer queue is no help."""
    costs = {"wait_s": 0.08, "compute_s": 0.01, "cores": 16}
    idle, busy = (made(**costs, stages={"decode": seconds}) for seconds in (0.0018, 0.0052))
    waits = [0.4 if number % 5 == 0 else 0.0 for number in range(len(idle.steps))]
    bursts = [replace(one, wait_s=s, duration_s=0.01 + s) for one, s in zip(idle.steps, waits, strict=True)]
    (queue,) = of_family(replace(idle, steps=bursts), "prefetch")
    assert (queue.remedy, queue.helps, queue.needs) == ("prefetch_factor=32", True, "memory for 64 batches")
    assert 2.5 < queue.gain < 3.3, "the workers' rate, which is then the limit"
    more = of_family(replace(idle, steps=bursts), "workers")
    assert all(one.gain > 1.2 for one in more), "they have batches of their own ahead"
    (even,), (slow,) = of_family(idle, "prefetch"), of_family(replace(busy, steps=bursts), "prefetch")
    assert even.vain and "the workers idle" in even.why
    assert slow.vain and "the workers' average rate" in slow.why


def test_threads_that_spin_behind_the_loading_are_no_reason_against_workers() -> None:
    """On a machine of many cores torch's threads take them all while the trainer prepares its batches."""
    usage = Compute(device="cuda:0", user_cpu_s=56 * 0.02, faulty_steps=56)
    seen = made(wait_s=0.2, compute_s=0.02, workers=0, cores=16, stages={"transform": 0.2 / 32},
                trainer_cpu_s=0.22 * 15 / 32, compute=usage)  # fmt: skip
    best = of_family(seen, "workers")[0]
    assert best.helps and best.gain > 6
    assert best.gain_low < 0.5 * best.gain, "nor is it known that they spin"


def test_a_worker_sends_each_tensor_of_a_batch_on_its_own() -> None:
    """A sample of 600 numbers that torch collates place by place: 2 workers took two seconds a batch (measured)."""
    seen = made(wait_s=0.012, compute_s=0.01, workers=0, stages={"collate": 0.012 / 32})
    gains = dict[int, float]()
    for tensors in (0, 3, 600):
        seen = replace(seen, loaders=[replace(seen.loaders[0], batch_tensors=tensors)])
        best = of_family(seen, "workers")[0]
        gains[tensors] = best.gain
        assert best.vain == (tensors == 600) and best.helps == (tensors != 600)
        assert ("a batch has 600 tensors" in best.why) == best.vain
    assert gains[600] < 0.1 < 1.5 < gains[3] < gains[0]
    ours = replace(seen, loaders=[replace(seen.loaders[0], kind="feedline")])
    assert of_family(ours, "workers")[0].helps, "its workers send no tensors"
    busy = replace(seen.loaders[0], num_workers=2)
    sent = [of_family(replace(made(), loaders=[replace(busy, batch_tensors=n)]), "workers")[0] for n in (0, 600)]
    assert sent[0].gain == sent[1].gain, "what is sent already is in what was measured"


def test_a_loader_that_each_step_begins_anew_is_kept() -> None:
    """Whatever would make the workers faster does not help, nor what spares the model the page faults that each fork
    brings: it is their start that is waited for."""
    seen = begun_anew()
    faulty = replace(seen.compute, user_cpu_s=6.0, kernel_cpu_s=4.0, page_faults=200_000, faulty_steps=100)
    found = diagnose(replace(seen, compute=faulty))
    assert (found.bound, found.cause.kind) == ("data", "start")
    kept, *others = [one for one in found.predictions if one.helps]
    assert (kept.family, kept.effort.name, others) == ("persistent", "CODE", [])
    assert kept.gain > 1.5 and "iter(loader)  # once" in kept.command


def test_short_passes_are_not_begun_anew_in_each_step() -> None:
    seen = begun_anew()
    pairs = replace(seen, steps=[replace(step, epoch=number // 2) for number, step in enumerate(seen.steps)])
    assert not of_family(pairs, "persistent") and diagnose(pairs).cause.kind != "start"


def test_a_setting_that_surely_gains_comes_before_a_change_of_code() -> None:
    """Here one worker of two cores: the other stands idle."""
    stages = {"decode": 0.0004, "transform": 0.004}
    seen = made(wait_s=0.13, compute_s=0.01, workers=1, stages=stages, stages_cpu=stages, cores=2)
    assert first(seen).remedy == "num_workers=2"
    assert "cheaper transform" in [one.remedy for one in diagnose(seen).predictions if one.helps][1]


def test_workers_that_nobody_looks_at_are_what_a_loop_waits_for() -> None:
    seen = made(wait_s=0.09, compute_s=0.01, workers=2, cores=8)
    loader = replace(seen.loaders[0], kind="torchdata.nodes")
    more = of_family(replace(seen, workers=[], costs=Costs(), loaders=[loader]), "workers")
    assert any(one.helps and one.gain > 1.5 for one in more)
    assert all(one.command.startswith("ParallelMapper(…, num_workers=") for one in more)


def test_fewer_workers_lose_nothing_where_all_wait_for_one_lock() -> None:
    """As the legs have shown: each holds it a hundredth of a second for every sample."""
    stages = {"lock": 0.03, "blocked": 0.01, "decode": 0.001}
    seen = made(wait_s=0.43, compute_s=0.007, workers=3, stages=stages, stages_cpu={"decode": 0.001}, cores=3,
                loader_only={3: 73.0, 2: 74.0, 1: 73.0})  # fmt: skip
    fewer = of_family(seen, "fewer-workers")
    assert {one.remedy for one in fewer} == {"num_workers=1", "num_workers=2"}
    assert all(one.vain and abs(one.gain - 1) < 0.1 for one in fewer), fewer


def test_what_starting_workers_takes_is_not_what_a_sample_costs_them() -> None:
    """A leg that a spawned process began in has its imports in the clocks: 7 ms of CPU a sample, 7,000 samples/s."""
    stages = {"transform": 0.0002}
    seen = made(wait_s=0.0, compute_s=0.064, workers=2, stages=stages, cores=2, loader_only={1: 7000.0})
    legs = [replace(leg, worker_cpu_s_per_sample=0.0072) for leg in seen.legs]
    (one,) = of_family(replace(seen, legs=legs), "fewer-workers")
    assert one.remedy == "num_workers=1" and one.gain > 0.9


def test_more_workers_wait_for_another_thread_as_this_one_does() -> None:
    stages = {"lock": 0.004, "transform": 0.0001}
    seen = made(wait_s=0.13, compute_s=0.01, workers=0, stages=stages, stages_cpu={"transform": 0.0001})
    found = diagnose(seen)
    assert found.cause.kind == "blocked" and "in waiting for another thread" in found.cause.words
    assert not [one for one in found.predictions if one.helps and one.family == "workers"]
    assert first(seen).remedy == "no waiting outside"


def test_a_dataset_that_gives_its_samples_in_turn_must_share_them_out() -> None:
    seen = made(workers=0)
    iterable = replace(seen.loaders[0], refused="Photos.__iter__ is code of its own")
    more = of_family(replace(seen, loaders=[iterable]), "workers")
    assert {one.remedy: "get_worker_info" in one.needs for one in more} == {
        "num_workers=1": False, "num_workers=2": True, "num_workers=4": True
    }  # fmt: skip
    assert not any(one.needs for one in of_family(seen, "workers"))


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("torch", "DataLoader(…, num_workers=4, persistent_workers=True)"),
        ("webdataset", "wds.WebLoader(dataset, batch_size=None, num_workers=4)"),
        ("feedline", "Loader(…, num_workers=4)"),
        ("torchdata.nodes", "ParallelMapper(…, num_workers=4)"),
    ],
)
def test_workers_are_asked_for_as_the_loader_takes_them(kind: str, line: str) -> None:
    seen = made(workers=2)
    of_kind = replace(seen, loaders=[replace(seen.loaders[0], kind=kind)])
    assert [one.command for one in of_family(of_kind, "workers") if one.remedy == "num_workers=4"] == [line]


def test_no_workers_go_with_nothing_that_is_of_workers() -> None:
    seen = made(wait_s=0.05, compute_s=0.05, stages={"decode": 0.00001}, cores=4)
    none = next(one for one in diagnose(seen).predictions if one.remedy == "num_workers=0")
    assert none.command == "DataLoader(…, num_workers=0)  # without persistent_workers and prefetch_factor"


def test_fewer_workers_are_not_called_vain_where_their_starts_are_waited_for() -> None:
    for start_s, said in ((0.0, True), (4.0, False)):
        seen = made(wait_s=0.02, compute_s=0.05, workers=4, passes=[replace(one, start_s=start_s) for one in PASSES])
        assert any(one.remedy == "num_workers=2" for one in found_in(seen)) is said


def test_reading_that_computes_wants_cores_and_no_more_workers_than_these() -> None:
    """As gzip in an HDF5 file does."""
    for cpu_s, more in ((0.0001, True), (0.0045, False)):
        stages = {"decode": 0.0004, "read": 0.0046}
        cpu = {"decode": 0.0004, "read": cpu_s}
        seen = made(wait_s=0.08, compute_s=0.01, stages=stages, stages_cpu=cpu, cores=2)
        assert any(one.remedy == "num_workers=16" for one in found_in(seen)) is more


def test_lines_of_a_loop_without_a_loader_are_for_kernprof() -> None:
    seen = without_loader(python=0.8, forward=0.2)
    seen = with_trainer(seen, functions={"python train.py:log:9": 5.0})
    assert first(seen).command == "kernprof -l -v -p train.py train.py"


def test_files_that_a_dataset_holds_open_are_to_be_opened_by_each_worker() -> None:
    alone = made(wait_s=0.04, compute_s=0.04, workers=0, stages={"decode": 0.001})
    for seen, told in ((alone, True), (made(wait_s=0.08, compute_s=0.02, workers=1, cores=4), False)):
        found = of_family(with_loader(seen, opened=["Photos.archive"]), "workers")
        assert found and all(one.needs.startswith("Photos.archive opened by each worker") is told for one in found)


def test_workers_of_a_loader_that_is_made_anew_want_it_made_once() -> None:
    seen = replace(made(wait_s=0.04, compute_s=0.04, workers=0, stages={"decode": 0.001}), passes=PASSES)
    for count, once in ((1, False), (len(PASSES), True)):
        found = next(one for one in of_family(with_loader(seen, made=count), "workers"))
        assert ("made once" in found.needs) is ("# once, before the first epoch" in found.command) is once
        assert found.effort == (Effort.CODE if once else Effort.SETTING)
