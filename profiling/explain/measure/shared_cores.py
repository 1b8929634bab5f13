"""A model on the CPU and its own loader's workers want the same cores: what that costs a step. Pure.

Where n threads want one of C cores, a fair scheduler gives each C / n of one. A model's threads wait for each other
at every operation: while one of them has no core, all of them stand, and what each of them lacks adds up (NOTES).
"""

from feedline.profiling.explain.measure.cores import Machine
from feedline.profiling.explain.measure.main_thread import Trainer
from feedline.profiling.explain.measure.rates import Rates
from feedline.profiling.explain.measure.workers import FEW_LOOKS, Workers

FILLS = 0.8  # a model that uses this share of the cores while it computes is taken to use all
ALL = 0.9  # share of its cores from which a script is said to use all
CROWDED = 0.1  # share of a step that a model waits for its workers' cores, from which its own rate is hardly known
MOST_CROWDED = 0.9  # share of a step that it may be said to wait for the workers' cores
MOST_STALLED = 0.7  # the same where its threads wait for each other


def threads(machine: Machine, trainer: Trainer, rates: Rates) -> float:
    """Cores that the model's threads fill while it computes: all that its rank has, or one."""
    running_s = trainer.step_s * (1.0 - (trainer.delay or 0.0))
    if rates.ceiling:  # the CPU time is that leg's, too
        running_s = machine.ranks / rates.ceiling.value
    share = machine.cores / machine.ranks
    fills = machine.on_cpu and share >= 2 and 0 < FILLS * share * running_s <= trainer.cpu_s
    return share if fills else 1.0


def lacks_cores(machine: Machine, trainer: Trainer, workers: Workers, rates: Rates) -> float:
    """Share of a step in which its main thread has no core because of the workers: without them the n that want one,
    C / (1 - delay), are less by those of them that do. 0 where the kernel does not tell, too few looks do, or cores
    are free."""
    if rates.now is None or not workers.count:
        return 0.0
    busy = (workers.delay or 0.0) * workers.busy * machine.ranks * workers.count
    return _lacks(machine, trainer, rates.now.value * (workers.cpu_s or 0.0) + busy)


def _lacks(machine: Machine, trainer: Trainer, want_cores: float) -> float:
    full = machine.own + machine.others_cores >= ALL * machine.cores
    few = trainer.looks * (1.0 - trainer.shares.data) < FEW_LOOKS
    if not trainer.delay or few or not (machine.on_cpu and full):
        return 0.0
    return min(want_cores * (1.0 - trainer.delay) / machine.cores, trainer.delay)


def crowded(machine: Machine, trainer: Trainer, workers: Workers, rates: Rates) -> float:
    """Share of a step that a model waits for the workers' cores: no longer than these compute."""
    of_one = lacks_cores(machine, trainer, workers, rates)
    most = (workers.cpu_s or 0.0) / trainer.step_s if trainer.step_s else 0.0
    return _stalled(of_one, threads(machine, trainer, rates), most)


def beside(machine: Machine, trainer: Trainer, rates: Rates) -> float:
    """The same for the cores of the script's other threads, which may make its batches."""
    of_one = _lacks(machine, trainer, trainer.beside_cores)
    return _stalled(of_one, threads(machine, trainer, rates), trainer.beside_cores / machine.ranks)


def _stalled(of_one: float, threads: float, most: float) -> float:
    return min(max(of_one, min(MOST_STALLED, threads * of_one)), MOST_CROWDED, most)


def stall(threads: float) -> dict[int, float]:
    """CPU time that a model whose threads fill the cores loses per CPU second of one worker, and of as many as there
    are cores. Assumed: measured beside processes that burned CPU it was 0.97 and 0.50 for a small model, 0.03 for a
    MobileNetV2, and the gains of results/predictions.json were predicted as well with the assumption as with the
    measurement (median error 8.4 and 8.3 %, interval score 0.510 and 0.509; 16 % and 1.01 with neither).
    """
    return {1: 1.0, max(2, int(threads)): 0.5} if threads > 1 else {}
