"""Which values a sweep tries, and which trials it ends early: Optuna, over a journal that is a file of the study.

The sampler is TPE. It learns from trials that were ended early too, and that may be most of them; a Gaussian process
sees finished ones only. It takes choices, whole numbers and logarithms together, counts what other processes
are at as bad until they know better (so that they do not all try one place), and needs no more than NumPy. The pruner
is asynchronous successive halving: a trial goes on behind a rung (`min_epochs`, times `reduction`, …) if it is among
the best in `reduction` of those that have reached it. It waits for nobody.

What has become of a trial its task's record says (tasks.py); the journal follows it (`catch_up`).
"""

import hashlib
import os
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from feedline.pipeline.base.errors import FeedlineError, first_line
from feedline.train.study.space import Choices, Range, Space
from feedline.train.study.tasks import Record

JOURNAL = "journal.log"
NAME = "feedline"
TASK = "task"
"""The attribute of Optuna's trials that says which task of ours one is."""
GRACE_S = 15
"""After so long without a write, the lock of a process that was killed while it had it is broken."""
STATES = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}


class MendingLock(JournalFileSymlinkLock):
    """Whoever may write first cuts off what a killed process, or a full disk, has left of a last line. Nobody has
    read that: Optuna's readers pass over what has no line's end."""

    def __init__(self, journal: Path) -> None:
        super().__init__(str(journal), grace_period=GRACE_S)
        self._journal = journal

    def acquire(self) -> bool:
        got = super().acquire()
        try:
            mend(self._journal)
        except BaseException:
            self.release()
            raise
        return got


def mend(journal: Path) -> None:
    """Cuts off a last line without an end."""
    with journal.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        if file.read(1) not in (b"", b"\n"):
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            os.fsync(file.fileno())


@contextmanager
def quietly() -> Generator[None]:
    """Optuna calls what we use experimental, and says more than one line."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


ENOUGH = 20
"""Trials, to say what mattered."""


class Search:
    """The journal of one study folder, which is there. Any number of processes may have it open."""

    def __init__(self, study: Path, space: Space, *, seed: int = 0, min_epochs: int = 1, reduction: int = 3) -> None:
        """`reduction` 1 ends no trial early. Raises FeedlineError for a journal that cannot be read."""
        self.space, self.seed = space, seed
        path = (study / JOURNAL).resolve()  # the lock is a link to it
        pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
        if reduction > 1:
            pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=min_epochs, reduction_factor=reduction)
        self._trials: dict[int, Trial] = {}
        with quietly():
            try:
                storage = JournalStorage(JournalFileBackend(str(path), lock_obj=MendingLock(path)))
                self._study = optuna.create_study(
                    storage=storage, study_name=NAME, direction="maximize", pruner=pruner, load_if_exists=True
                )
            except (ValueError, LookupError, TypeError, AssertionError) as error:
                what = f"{path} is damaged ({first_line(error)}): begin the study anew in another folder"
                raise FeedlineError(what) from error

    def draw(self, task: int) -> dict[str, Any]:
        """The values of this task: those it has, or new ones."""
        with quietly():
            if (found := self._running().get(task)) is None:
                self._study.add_trial(create_trial(state=TrialState.RUNNING, user_attrs={TASK: task}))
                found = self._running()[task]
            # one sampler a draw: a study that was killed and goes on draws as it would have
            seed = int.from_bytes(hashlib.sha256(f"{self.seed}/{task}".encode()).digest()[:4])
            self._study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
            trial = self._trials[task] = Trial(self._study, found._trial_id)
            return {name: suggested(trial, name, where) for name, where in self.space.items()}

    def report(self, task: int, epoch: int, value: float) -> bool:
        """Of a task that was drawn here: `value` behind `epoch` epochs. Whether it should end."""
        with quietly():
            self._trials[task].report(value, epoch)
            return self._trials[task].should_prune()

    def catch_up(self, records: Mapping[int, Record]) -> None:
        """Writes into the journal what has become of tasks, where it does not say so yet."""
        with quietly():
            for task, trial in self._running().items():
                if (record := records.get(task)) is not None:
                    state = STATES.get(record["state"], TrialState.FAIL)
                    value = record["value"] if state == TrialState.COMPLETE else None
                    with suppress(UpdateFinishedTrialError, ValueError):  # another process was first
                        self._study.tell(trial.number, value, state)

    def _running(self) -> dict[int, FrozenTrial]:
        """By task. Of two for one task, made when a slow process lost its lease, the first."""
        trials = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        return {trial.user_attrs[TASK]: trial for trial in reversed(trials) if TASK in trial.user_attrs}

    def importance(self) -> dict[str, float]:
        """Of each hyper-parameter, summing to 1: PED-ANOVA (Watanabe, Bansal, Hutter, IJCAI 2023), over the last
        accuracy of all trials, those that were ended early too. Empty of fewer than ENOUGH: its quantile of
        the best is then one or two."""
        with quietly():
            ended = [
                create_trial(value=trial.intermediate_values.get(trial.last_step, 0.0) if trial.last_step else 0.0,
                             params=trial.params, distributions=trial.distributions)
                for trial in self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
            ]  # fmt: skip
            if len(ended) < ENOUGH:
                return {}
            flat = optuna.create_study(direction="maximize")
            flat.add_trials(ended)
            try:
                evaluator = optuna.importance.PedAnovaImportanceEvaluator()
                return optuna.importance.get_param_importances(flat, evaluator=evaluator)
            except (ValueError, RuntimeError):
                return {}


def suggested(trial: Trial, name: str, where: Range | Choices) -> Any:
    """Drawn from one distribution. Optuna knows choices by their text, since they may be lists."""
    if isinstance(where, Choices):
        texts: dict[Any, Any] = {str(value): value for value in where.values}
        return texts[str(trial.suggest_categorical(name, list(texts)))]
    suggest: Callable[..., Any] = trial.suggest_int if where.whole else trial.suggest_float
    return suggest(name, where.low, where.high, log=where.log)
