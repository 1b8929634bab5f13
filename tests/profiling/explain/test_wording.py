"""What a verdict says beside its shares."""

from dataclasses import replace

import pytest

from feedline.profiling.explain.verdict import diagnose
from feedline.profiling.record import units
from feedline.profiling.record.recording import LoaderPass, Step
from tests.profiling.recordings import made
from tests.profiling.remedy_runs import SMALL


def test_evaluations_that_no_rate_has_are_said() -> None:
    seen = made()
    assert not any("Evaluations" in sentence for sentence in diagnose(seen).evidence)
    steps = [replace(one, pause_s=0.09, duration_s=one.duration_s + 0.09) for one in seen.steps]
    said = diagnose(replace(seen, steps=steps)).evidence
    assert any("Evaluations and checkpoints amid the steps take 50 % of the whole time" in one for one in said)


@pytest.mark.parametrize("each", [1, 4])
def test_an_evaluation_that_waits_for_its_batches_is_told_what_has_them_ready(each: int) -> None:
    """Workers; where a new iterator is asked for each batch, one that is kept."""
    seen = made()
    loaders = [*seen.loaders, replace(seen.loaders[0], id=1, phase="eval", num_workers=0)]
    steps = [replace(one, pause_s=0.09, duration_s=one.duration_s + 0.09) for one in seen.steps]
    batch = Step(start_s=0.0, wait_s=0.08 / each, duration_s=0.09 / each, samples=8, phase="eval", loader=1)
    evaluated = [
        replace(batch, start_s=one.start_s + 0.01 * number, epoch=epoch)
        for epoch, one in enumerate(steps)
        for number in range(each)
    ]
    whole = [LoaderPass(loader=1, epoch=epoch, samples=8, start_s=0.0, end_s=0.0) for epoch in range(len(steps))]
    seen = replace(seen, loaders=loaders, steps=[*steps, *evaluated])
    for passes, single in (([], each == 1), (whole, False)):  # one of one batch that ended is an evaluation
        said = " ".join(diagnose(replace(seen, passes=passes)).evidence)
        assert ("It begins anew for each of these batches." in said) == single
        assert ("Workers would make these batches meanwhile" in said) != single
        assert ("Evaluations and checkpoints amid" in said) != single


def test_a_script_that_fails_in_its_first_step_had_a_loader() -> None:
    seen = replace(made(), steps=[])
    assert diagnose(seen).evidence[0].startswith("No whole step over a loader was seen, so there is nothing")
    without = [replace(seen.loaders[0], kind="unwatched")]
    assert diagnose(replace(seen, loaders=without)).evidence[0].startswith("No loader of a known kind was iterated")


def test_a_first_epoch_of_a_dataset_that_keeps_its_samples_is_told_as_that() -> None:
    seen = made()
    kept = [replace(seen.loaders[0], keeps={"Photos.cache": 10_000}, persistent_workers=True)]
    said = diagnose(replace(seen, loaders=kept)).evidence
    assert any("(Photos.cache): this is a first epoch, and later ones find them there" in one for one in said)
    later = [replace(one, epoch=1, duration_s=one.duration_s / 2) for one in seen.steps]
    said = diagnose(replace(seen, loaders=kept, steps=[*seen.steps, *later])).evidence
    assert any("the first epoch ran at 356 samples/s, the last that was seen at 711 samples/s" in one for one in said)
    none = diagnose(replace(seen, loaders=kept, steps=[replace(one, duration_s=0.0) for one in seen.steps])).evidence
    assert not any("the last that was seen" in one for one in none)
    ends = [replace(kept[0], persistent_workers=False)]
    assert any("and loses them" in one for one in diagnose(replace(seen, loaders=ends)).evidence)


def test_an_evaluation_s_waiting_for_its_own_loader_is_no_puzzle_and_is_said() -> None:
    """The training thread was seen to load batches that the training loader's clock does not know."""
    seen = made(wait_s=0.001, compute_s=0.03, stages=SMALL)
    steps = [replace(one, pause_s=0.03, duration_s=one.duration_s + 0.03) for one in seen.steps]
    evals = [replace(one, start_s=one.start_s + 0.031, wait_s=0.025, duration_s=0.03, loader=1, phase="eval",
                     pause_s=0.0) for one in steps]  # fmt: skip
    theirs = replace(seen.loaders[0], id=1, phase="eval", num_workers=0)
    thread = seen.trainers[0]
    loading = replace(thread, stages={**thread.stages, "load": 0.4 * thread.seconds})
    seen = replace(seen, steps=[*steps, *evals], loaders=[*seen.loaders, theirs], trainers=[loading])
    found = diagnose(seen)
    assert found.bound == "compute" and found.measured.trainer.shares.other == 0
    assert "apart from evaluations and checkpoints: 49 % of the whole" in found.headline
    said = "and 41 % of the whole is waiting for batches of their own DataLoader (num_workers=0)"
    assert any(said in one for one in found.evidence)
    cure = "up to 1.7× of the whole: DataLoader(…, num_workers=2, persistent_workers=True)"
    assert any(cure in one for one in found.evidence)
    apart = replace(theirs, batch_tensors=600)  # each of which a worker would send on its own
    for other in (replace(theirs, num_workers=2), apart):
        told = diagnose(replace(seen, loaders=[*seen.loaders[:-1], other]))
        assert not any("Workers would" in one for one in told.evidence)
    assert diagnose(replace(seen, steps=steps)).bound is None  # nobody knows what it loads


def test_the_first_batch_of_a_loader_beside_is_no_loop_of_its_own() -> None:
    """It was asked for before the first of the other."""
    seen = made()
    few = seen.steps[:2]
    first = replace(few[0], start_s=few[0].start_s - 0.001, duration_s=3.0, loader=1, phase="eval")
    other = replace(seen.loaders[0], id=1, phase="eval")
    told = diagnose(replace(seen, steps=[first, *few], loaders=[*seen.loaders, other])).evidence
    assert not any("Loops that train nothing" in one for one in told)
    before = replace(first, duration_s=first.duration_s, start_s=few[0].start_s - 3.1)
    told = diagnose(replace(seen, steps=[before, *few], loaders=[*seen.loaders, other])).evidence
    assert any("Loops that train nothing" in one for one in told)


def test_what_a_script_does_between_its_passes_is_said_with_its_place() -> None:
    seen = made()
    half, whole_s = len(seen.steps) // 2, sum(one.duration_s for one in seen.steps)
    apart = [replace(one, start_s=one.start_s + (whole_s if number >= half else 0.0))
             for number, one in enumerate(seen.steps)]  # fmt: skip
    trainer = replace(seen.trainers[0], apart_s={"data.py:rebuild:8": 0.7 * whole_s, "train.py:main:3": 0.1})
    for steps, rate in ((seen.steps, None), (apart, 0.5)):
        told = diagnose(replace(seen, steps=steps, trainers=[trainer]))
        lines = [one for one in told.evidence if one.startswith("Between its loops")]
        assert len(lines) == (rate is not None)
        if rate is not None:
            now = sum(one.samples for one in seen.steps) / whole_s
            assert "(most of it in data.py:rebuild)" in lines[0]
            assert lines[0].endswith(f"it is {units.rate(rate * now, 'samples/s')}.")


def test_a_loop_before_the_training_that_takes_longer_than_that_is_said() -> None:
    """Statistics of the dataset; features for a small head."""
    seen = made()
    assert not any("Loops that train nothing" in one for one in diagnose(seen).evidence)
    long_s = sum(one.duration_s for one in seen.steps)
    first = [replace(one, start_s=one.start_s - 2 * long_s, loader=1, phase="eval", wait_s=0.8 * one.duration_s)
             for one in seen.steps]  # fmt: skip
    shifted = [replace(one, start_s=one.start_s + 2 * long_s) for one in (*first, *seen.steps)]
    theirs = replace(seen.loaders[0], id=1, phase="eval", num_workers=0)
    said = diagnose(replace(seen, steps=shifted, loaders=[*seen.loaders, theirs])).evidence
    (line,) = [one for one in said if "Loops that train nothing take" in one]
    assert "80 % of it is waiting for their batches: DataLoader(…, num_workers=2) there" in line
    short = replace(theirs, made=1000)  # of its own for each, where workers would only start and end
    (line,) = [one for one in diagnose(replace(seen, steps=shifted, loaders=[*seen.loaders, short])).evidence
               if "Loops that train nothing take" in one]  # fmt: skip
    assert line.endswith("is waiting for their batches.")
    within = [replace(one, loader=1, phase="eval", start_s=one.start_s + 1e-4) for one in seen.steps]
    said = diagnose(replace(seen, steps=[*seen.steps, *within])).evidence
    assert not any("Loops that train" in one for one in said)
    assert any("takes a batch of 1 other loader, too; rates count the samples of one of them" in one for one in said)
    seldom = diagnose(replace(seen, steps=[*seen.steps, *within[::3]])).evidence
    assert not any("other loader" in one for one in seldom)
    for phase in ("train", "eval"):
        theirs = [replace(one, loader=1, phase=phase, optimizer_s=1e-3) for one in seen.steps[::3]]
        turns = [replace(one, start_s=one.start_s + 1e-4) for one in theirs]
        said = diagnose(replace(seen, steps=[*seen.steps, *turns])).evidence
        assert any(one.startswith("2 loaders take turns; rates count the samples of one") for one in said), phase
