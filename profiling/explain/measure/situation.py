"""A recording in numbers, and the throughput model set to it: all that verdict, remedies and predictions rest on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from feedline.profiling.explain.measure import shared_cores
from feedline.profiling.explain.measure.cores import Machine, measure_machine
from feedline.profiling.explain.measure.from_storage import Storage, measure_storage
from feedline.profiling.explain.measure.main_thread import Shares, Trainer, looked, measure_trainer
from feedline.profiling.explain.measure.rates import ERRORS_90, Rate, Rates, believed, measure_rates, waited_s
from feedline.profiling.explain.measure.throughput import Throughput, over_epochs
from feedline.profiling.explain.measure.workers import Workers, measure_workers
from feedline.profiling.record.recording import LoaderSeen, Recording, Step

DATA_BOUND = 0.10  # a loop that waits for data this share of its time is bound by it …
COPY_BOUND, TRAINER_BOUND = 0.15, 0.25  # … and by its copies, or by its own Python, from these shares on
HARDLY = 0.03  # a share of waiting below this is noise
ANEW = 0.9  # share of the steps that begin a pass of their own, from which a loop is said to do so
THREADS = 1.25  # CPU seconds a second, from which a worker has threads of its own
SPARE = 0.25  # share of their time that workers idle, from which more of them would not help
OWN_CPU, OWN_CPU_ERROR = 0.62, 0.15
"""Of the CPU time of a worker that waits in reads, what it takes where they cost nothing: 0.69 for a server's files
on an AMD EPYC; with 0.62 a local copy is predicted as much too low there as too high on an Intel Xeon
(results/cold-profile.json)."""
HANDOVER = 0.8  # workers that idle more than this share of the time have batches ready


@dataclass(frozen=True, kw_only=True)
class Measured:
    recording: Recording
    rates: Rates
    workers: Workers
    storage: Storage
    trainer: Trainer
    errors_alone: Shares  # those of the trainer's shares, without what other programs may have made of them
    machine: Machine
    restart_s: float  # what a sample waits where each step begins the loader anew, as `next(iter(loader))` does, or 0
    loader: LoaderSeen | None  # the training loader
    notes: list[str]  # what qualifies the numbers

    @property
    def now(self) -> Rate | None:
        """`rates.now`, its error widened by what other programs may have taken from it."""
        now = self.rates.now
        return now and replace(now, error=math.hypot(now.error, self.machine.others_error))

    @property
    def over_epochs(self) -> Rate | None:
        """`now`, with what each epoch begins and ends with."""
        now, rates = self.now, self.rates
        if now is None:
            return None
        error = math.hypot((1.0 - rates.start_share) * now.error, rates.start_share * rates.epoch_start_error)
        return Rate(value=over_epochs(now.value, rates.epoch_start_s, rates.epoch_samples), error=error)

    @property
    def free(self) -> Rate | None:
        """How many times as fast the loop is with data for free."""
        now, ceiling = self.rates.now, self.rates.ceiling
        if now is None or ceiling is None:
            return None
        return Rate(value=ceiling.value / now.value, error=math.hypot(ceiling.error, now.error))

    @property
    def longer(self) -> str:
        """What to do where too little was seen, which depends on what ended the run."""
        ended_by = self.recording.script.ended_by
        if ended_by == "itself":
            return "the loop is too short, it needs more epochs or a larger dataset"
        if ended_by == "error":
            return "the script failed before more was seen"
        if ended_by == "steps":
            return f"let it run longer (--steps {max(100, 20 * math.ceil(self.trainer.steps / 10))})"
        return f"let it run longer (--seconds {max(60, 20 * math.ceil(self.recording.seconds / 10))})"

    @property
    def uncounted(self) -> bool:
        """Batches were drawn of which nobody can see how many samples they have."""
        steps = self.recording.steps
        return bool(steps) and not any(step.samples for step in steps)

    @property
    def unit(self) -> str:
        """Of its rates."""
        return "steps/s" if self.loader is not None and self.loader.unwatched else "samples/s"

    @property
    def threads(self) -> float:
        return shared_cores.threads(self.machine, self.trainer, self.rates)

    @property
    def lacks_cores(self) -> float:
        return shared_cores.lacks_cores(self.machine, self.trainer, self.workers, self.rates)

    @property
    def crowded(self) -> float:
        return shared_cores.crowded(self.machine, self.trainer, self.workers, self.rates)

    @property
    def stalled_beside(self) -> float:
        return shared_cores.beside(self.machine, self.trainer, self.rates)

    @property
    def uses_all_cores(self) -> bool:
        """Workers and model share them: more workers would get no more of them."""
        machine = self.machine
        return self.workers.count > 0 and not machine.others_cores and machine.own >= shared_cores.ALL * machine.cores

    @property
    def waits(self) -> float:
        """Share of the time that the loop waits for its loader, what begins an epoch included."""
        prepares = self.trainer.prepare_share * (1.0 - self.rates.start_share)
        return max(0.0, self.trainer.shares.data - prepares)

    @property
    def own_part(self) -> tuple[str, float, float]:
        """What the training thread does of its batches beside making them: draw the samples, or change what workers
        have made, in the loader (`change`) or between that and the loop (`prepare`). The largest, its share of the
        time and the error of that."""
        parts = ("draw", "change") if self.workers.count else ("draw",)
        seen = [(part, *looked(self.recording, (part,))) for part in parts]
        prepares = ("prepare", self.trainer.prepare_share, self.trainer.prepare_error)
        return max([*seen, prepares], key=lambda one: one[1])

    @property
    def own_part_limits(self) -> bool:
        """Workers wait for a slow sampler; where batches are changed too slowly they have time to spare."""
        part, share, error = self.own_part
        spare = part == "draw" or not self.workers.count or self.workers.stages.get("idle", 1.0) >= SPARE
        return spare and share - ERRORS_90 * error > 0.5 * self.trainer.shares.data > 0.0

    @property
    def starts_slowly(self) -> bool:
        """Most of the waiting is for passes over the loader to begin and end."""
        rates, waits = self.rates, self.trainer.shares.data
        return rates.start_share * (1.0 - ERRORS_90 * rates.epoch_start_error) > 0.5 * waits > 0.0

    @property
    def drawn_at_start(self) -> bool:
        """By a sampler that draws a whole epoch as that begins."""
        part, share, _ = self.own_part
        slow = self.starts_slowly or (self.draws_too and self.rates.start_share > 0.5 * share)
        return slow and (self.own_part_limits or self.draws_too) and part == "draw"

    @property
    def draws_too(self) -> bool:
        """The training thread draws samples and makes batches of them, in turn."""
        part, share, error = self.own_part
        begins = self.rates.start_share > HARDLY  # of which the measured steps show little
        return part == "draw" and not self.workers.count and share - ERRORS_90 * error > HARDLY * (not begins)

    @property
    def own_part_share(self) -> float:
        """Of the time in which the thread waits for its loader, that it cannot compute meanwhile: all of it where
        workers wait for the thread, too."""
        part, share, error = self.own_part
        if self.draws_too:
            return 0.0 if self.drawn_at_start else min(share, self.waits)
        if part == "draw":
            return self.waits if self.own_part_limits and not self.starts_slowly else 0.0
        return min(share, self.waits) if part == "change" and share - ERRORS_90 * error > HARDLY else 0.0

    @property
    def unpickling_limits(self) -> bool:
        """The loop waits for its own unpickling more than for its workers, and these have time to spare."""
        spare = self.workers.count == 0 or self.workers.stages.get("idle", 1.0) >= SPARE
        share, unsure = self.trainer.unpickle_share, ERRORS_90 * self.trainer.unpickle_error
        return spare and share >= 0.1 and share - unsure > 0.5 * (self.trainer.wait_fraction or 0.0)

    @property
    def batches_ready(self) -> bool:
        """The workers hardly do anything, and no work of the training thread, pinning or single worker explains a
        wait."""
        pinned = self.loader is not None and self.loader.pin_memory and not self.machine.on_cpu
        explained = pinned or self.workers.slow is not None or self.own_part_limits or self.unpickling_limits
        idle = self.workers.stages.get("idle", 0.0) - ERRORS_90 * self.workers.stage_errors.get("idle", 0.0)
        return self.workers.count > 0 and idle > HANDOVER and not explained


def measure(recording: Recording) -> Measured:
    steps, notes = recording.measured(), list[str]()
    if steps and steps[0].phase != "train":
        notes.append("No training step was seen: the numbers are of a loop over a loader.")
        if recording.compute.world_size > 1 and recording.script.ended_by == "itself":
            notes.append("Ranks that do not train are ended by no --steps or --seconds: others may wait for them.")
    rates = measure_rates(recording, steps)
    workers = measure_workers(recording)
    trainer = measure_trainer(recording, steps, idle=workers.stages.get("idle", 0.0), start_share=rates.start_share)
    restart_s = _restart_s(workers, rates, steps)
    machine = measure_machine(recording, steps, rates.now.value if rates.now else 0.0, anew=restart_s > 0)
    waits = trainer.shares.data - trainer.prepare_share  # a leg's kept batches are prepared as the loader's are
    rates, trainer = believed(rates, waits, trainer.errors.data), _with_starts(trainer, rates)
    if workers.count and workers.stages and workers.delay is None:
        notes.append("Whether the workers lacked cores cannot be told: the kernel did not say how long they waited.")
    return Measured(
        recording=recording,
        rates=rates,
        workers=workers,
        storage=measure_storage(recording, workers, recording.train_loader),
        trainer=replace(trainer, errors=_beside_others(trainer, workers, machine)),
        errors_alone=trainer.errors,
        machine=machine,
        restart_s=restart_s,
        loader=recording.train_loader,
        notes=[*notes, *([rates.doubt] if rates.doubt else [])],
    )


def _restart_s(workers: Workers, rates: Rates, steps: Sequence[Step]) -> float:
    begun = len({(step.rank, step.epoch) for step in steps})
    if not workers.count or rates.epoch_samples or len(steps) < 2 or begun < ANEW * len(steps):
        return 0.0  # passes that come to their end begin with a cost of their own (`rates.epoch_start_s`)
    return sum(map(waited_s, steps)) / max(1, sum(step.samples for step in steps))


def _with_starts(trainer: Trainer, rates: Rates) -> Trainer:
    """Its shares over whole epochs: what these begin and end with is waiting for data."""
    share, waited = rates.start_share, trainer.wait_fraction
    shares, errors = (
        Shares(**{name: (1.0 - share) * value for name, value in vars(of).items()})
        for of in (trainer.shares, trainer.errors)
    )
    return replace(
        trainer,
        wait_fraction=None if waited is None else waited * (1.0 - share) + share,
        shares=replace(shares, data=shares.data + share),
        errors=replace(errors, data=math.hypot(errors.data, share * rates.epoch_start_error)),
    )


def _beside_others(trainer: Trainer, workers: Workers, machine: Machine) -> Shares:
    """The errors of its shares, widened by what other programs may have made of them: half of that, as a rate's. Data
    is what is left of it once workers and trainer have the cores they waited for, where that is known."""
    if not machine.others_cores:
        return trainer.errors
    errors, data = vars(trainer.errors), trainer.shares.data
    taken = {name: share * (1.0 - share) * machine.others_error for name, share in vars(trainer.shares).items()}
    if workers.delay is not None and trainer.delay is not None:
        step, core = (1.0 - data) * (1.0 - trainer.delay), 1.0 - workers.delay
        left = 1.0 - machine.others_cores / machine.cores
        idle = max(0.0, data - workers.busy) * left  # waiting in which no worker is busy shrinks as its cores grow
        wait = max(0.0, workers.busy * core - step) + idle if workers.count else data * core
        taken["data"] = abs(data - (wait / (wait + step) if wait + step else 0.0)) / 2
    return Shares(**{name: math.hypot(error, taken[name]) for name, error in errors.items()})


@dataclass(frozen=True, kw_only=True)
class Situation:
    """A measured run and the model set to it."""

    measured: Measured
    rate: Rate  # `rates.now`: its error is noise alone, no gain is hidden by what other programs took
    now: Throughput
    workers: tuple[int, ...] = ()
    """Numbers of workers to predict for, beside those that remedies choose by themselves."""

    @property
    def recording(self) -> Recording:
        return self.measured.recording

    @property
    def of_data(self) -> bool:
        """The ceiling comes of the very steps, not of a leg, the workers have no time to spare, and the wait is for
        nothing that the training thread does: then what the model misses of their rate is the data's."""
        measured, now = self.measured, self.now
        spare = measured.workers.stages.get("idle", 1.0) >= SPARE
        own = measured.own_part_limits or measured.unpickling_limits or measured.batches_ready or measured.restart_s
        unmeasured = measured.rates.ceiling is None
        return unmeasured and now.workers > 0 and now.step_s > 0 and not (spare or own)

    @property
    def factor(self) -> float:
        """Measured over modelled rate of the present settings; `of_data`: over that of all limits but the model's."""
        modelled = self.now.rate()
        if not math.isfinite(modelled) or modelled <= 0:
            return 1.0
        return self.now.data_factor(self.rate.value) if self.of_data else self.rate.value / modelled

    @property
    def rate_over_epochs(self) -> float:
        return self.now.over_epochs(self.rate.value)

    @property
    def ceiling(self) -> float:
        """The most that better data can give: the leg's ceiling, never below what was measured."""
        return max(self.now.limits()["compute"], self.rate.value)

    @property
    def dataset_samples(self) -> int | None:
        return self.measured.loader.dataset_samples if self.measured.loader else None

    @property
    def batch_samples(self) -> float:
        """Of a batch; what came on average where the loader does not tell (`batch_size=None`)."""
        steps, loader = self.recording.measured(), self.measured.loader
        seen = sum(step.samples for step in steps) / len(steps) if steps else 1.0
        return (loader and loader.batch_size) or max(1.0, seen)

    @property
    def hardly_waits(self) -> bool:
        """No time is lost on data: neither in waiting for it nor in cores that workers take from the model."""
        return self.measured.trainer.shares.data < HARDLY and self.ceiling < 1.1 * self.rate.value

    @property
    def computed_s(self) -> float:
        """What a sample takes a worker where no read waits: its CPU time, reads' own included, and what it waits for
        elsewhere. By the process's clocks: looks, at which it nearly always reads, give reading too much."""
        stages = self.measured.workers.stage_alone_s
        return min(self.now.worker_s, self.now.worker_cpu_s + stages.get("blocked", 0.0) + stages.get("lock", 0.0))

    @property
    def without_reads_s(self) -> tuple[float, float]:
        """What a sample takes a worker that waits in reads where they cost nothing, and the standard error of that:
        by looks, at which it hardly ever does anything else, and by its CPU time, of which reads have a part and
        the waking behind each of them; each weighed by its error, and half of that time at least."""
        looks_s = max(0.0, self.now.worker_s - self.measured.storage.read_s)
        looks_error_s = self.measured.storage.error * self.now.worker_s
        clock_s, clock_error_s = OWN_CPU * self.computed_s, OWN_CPU_ERROR * self.computed_s
        error_s = math.hypot(looks_error_s, clock_error_s)
        by_clock = (looks_error_s / error_s) ** 2 if error_s else 0.0
        found_s = by_clock * clock_s + (1.0 - by_clock) * looks_s
        return min(self.computed_s, max(0.5 * self.computed_s, found_s)), clock_error_s * by_clock**0.5

    def with_workers(self, count: int, left: float = 1.0) -> Throughput:
        """The script's own loader with other workers, and so much left of a sample's cost. With sending that is
        known from the loader-only leg with that many: at most all cores' time at its rate, for starting processes is
        in its clocks. That storage keeps more of them waiting, from what it gave to more reads at once."""
        legs = [leg for leg in self.recording.legs if leg.name == "loader_only" and leg.num_workers == count]
        alone = self.measured.rates.loader_only.get(count)
        most_s = self.now.cores / alone.value if alone else math.inf
        cpu_s = max(self.now.worker_cpu_s, *(min(leg.worker_cpu_s_per_sample or 0.0, most_s) for leg in legs), 0.0)
        storage, ranks = self.measured.storage, self.now.ranks
        waited_s = storage.blocked_with(ranks * max(1, count)) - storage.blocked_s
        worker_s = max(0.0, self.now.worker_s + waited_s)
        return self.sending(replace(self.now, workers=count, worker_cpu_s=left * cpu_s, worker_s=left * worker_s))

    def sending(self, then: Throughput) -> Throughput:
        """With what it costs to take batches from workers (`Throughput.sent`), where none does that yet."""
        loader, kind = self.measured.loader, self.measured.storage.kind
        if loader is None or not kind.sends or self.now.workers or not then.workers:
            return then
        pinned = bool(loader.pin_memory) and not self.measured.machine.on_cpu
        return then.sent(loader.batch_tensors or 0, loader.batch_bytes or 0, self.batch_samples, pinned=pinned)

    def kept_start_s(self, worker_s: float) -> float:
        """What an epoch begins with when workers live on: one of them prepares the first batch, the others wait."""
        return min(self.now.epoch_start_s, self.batch_samples * worker_s)


def situation(measured: Measured, workers: tuple[int, ...] = ()) -> Situation | None:
    """The model with the run's own costs; None when no rate was measured: then nothing can be predicted."""
    rates, preparing, trainer, machine = measured.rates, measured.workers, measured.trainer, measured.machine
    if rates.now is None:
        return None
    ranks, count = machine.ranks, preparing.count
    # What threads take that wait for each other is `stall`.
    spun = 1.0 if rates.ceiling else (1.0 - measured.crowded) / (1.0 - min(measured.lacks_cores, measured.crowded))
    step_s = ranks / rates.ceiling.value if rates.ceiling else trainer.step_s * (1.0 - measured.crowded)
    trainer_cpu_s = trainer.cpu_s * spun
    prepare_s = trainer.prepare_share * ranks / rates.now.value
    own_part_s = prepare_s + measured.own_part_share * ranks / rates.now.value
    if rates.ceiling:  # by a leg, whose batches are prepared as well
        step_s = max(0.0, step_s - prepare_s)
    # Batches are dealt to workers in turn and taken in order: one slow worker sets the pace of all.
    worker_s = preparing.even_s * preparing.slow.factor if preparing.slow else preparing.alone_s
    if count == 0 and not worker_s:  # no sampler saw the preparing: what the loop waited for it is its cost
        worker_s = max(0.0, ranks / rates.now.value - trainer.step_s - prepare_s)
    unlooked = count and not preparing.each and not preparing.alone_s
    if unlooked and measured.waits >= DATA_BOUND:  # they are what the loop waits for
        worker_s = ranks * count / rates.now.value
    worker_cpu_s = preparing.cpu_s or 0.0
    if worker_cpu_s < THREADS * worker_s:  # more is that of a worker's threads; a little more is noise
        worker_cpu_s = min(worker_cpu_s, worker_s)
    if count == 0 and preparing.cpu_s is None:  # it is what the trainer needs less of with free data
        worker_cpu_s = max(0.0, (measured.recording.costs.trainer_cpu_s or 0.0) - trainer.cpu_s)
    # The loader's rate alone over that of as many workers each with a core to itself.
    k = {n: rate.value * worker_s / (ranks * n) for n, rate in rates.loader_only.items() if n > 0}
    locked = preparing.stage_alone_s.get("lock", 0.0) / preparing.alone_s if preparing.alone_s else 0.0
    most_k = 1.2 / max(0.05, 1.0 - locked)  # fewer workers wait less for the others' lock
    # Batches that a leg replays were changed before.
    replayed = measured.own_part[0] == "change" and measured.recording.leg("cached").trainer_cpu_s_per_sample
    now = Throughput(
        workers=count,
        step_s=step_s,
        worker_s=worker_s,
        worker_cpu_s=worker_cpu_s,
        trainer_cpu_s=trainer_cpu_s + (own_part_s - prepare_s if replayed else 0.0),
        handover_s=trainer.unpickle_s,
        own_part_s=own_part_s,
        restart_s=max(0.0, measured.restart_s - (own_part_s - prepare_s)),  # all waiting
        cores=machine.cores,
        others=machine.others_as_processes(ranks * (count + 1), lacking=preparing.lack_cores),
        ranks=ranks,
        contention={n: min(most_k, max(0.05, value)) for n, value in k.items()} if worker_s > 0 else {},
        epoch_start_s=rates.epoch_start_s,
        epoch_samples=rates.epoch_samples,
        stall=shared_cores.stall(measured.threads),
    )
    return Situation(measured=measured, rate=rates.now, now=now, workers=workers)
