"""The loop as it runs: passes (iterations over one loader) and rows (one batch each).

A row opens when a batch is asked for and closes when the next one is asked for; a pass that runs to its end inside
another's open row (an evaluation inside a training step) is that row's pause. A pass of fewer batches in there is
part of the step, and one that began before is beside it (`zip(a, b)`): the row waits for their batches too. Where
that hands out many in one row, none of them trained on, it evaluates (`next(held_out)`, again and again) and has come
into the row with the first of them; unless it does so in row after row. A batch that some rows begin a pass for
(`next(iter(held_out))`) is a pause of theirs, too, whatever it is for; where the row before had one as well, it is
part of the step.

Where the thread that trains asks no watched loader itself (a generator or a queue of the script's own, a thread that
draws ahead), rows go from one step of its optimiser to the next, and what it waits is left to the sampler. What else
is iterated over in such a row, an evaluation or a batch more, is to it what it is to a row of a loader's.
"""

import threading
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from feedline.profiling.record.journal import OF_STEP, OWN_EPOCH, StepRow

EVAL_BATCHES = 3  # a pass with this many batches inside one open row is an evaluation, whether it ends or breaks off
MOST_OPEN = 16  # passes that may go on: what scripts broke off is forgotten, the oldest first


@dataclass
class Visit:
    """What a pass has drawn within a row of another that was begun later, and not trained on."""

    row: StepRow
    since: float
    before_s: float  # what the pass had waited until then
    batches: int = 0


@dataclass(eq=False)
class Pass:
    loader: int
    epoch: int
    started: float
    in_trainer: bool
    outer: StepRow | None
    entered: float  # when it came into that row: as it began, or later on (`Visit`)
    thread: int = 0  # that has begun it, then the one that has asked for its last batch
    background: bool = False  # another thread than the one that trains draws its batches: they have no rows
    restart: bool = False
    """It takes the place of a pass of one batch, as `next(iter(loader))` has them: its start is part of the step."""
    resumed: bool = False  # it goes on with the iterator of one that was taken to be over
    pin_thread: Any = None  # which makes its batches ready in this process, if one does
    row: StepRow | None = None
    batches: int = 0
    samples: int = 0
    waited_s: float = 0.0
    goes_round: bool = False
    """It follows one of the same loader that has ended beside another, whose row is its outer."""
    anew: bool = False  # its loader had just said that there is no more
    begin_s: float = 0.0  # that `iter()` took
    first_got: float | None = None  # when its first batch had come
    asked: float = 0.0  # when its last batch was asked for
    trained: bool = False  # a backward pass or an optimiser step ran inside one of its rows
    done: bool = False
    over: bool = False  # its loader has said that there is no more
    visit: Visit | None = None
    inner: list["Pass"] = field(default_factory=list)
    draws: dict[int, bool] = field(default_factory=dict)
    """By loader, whether many batches of a pass are drawn in its open row, one that was begun before it or in it."""
    drew: dict[int, bool] | None = None  # the same of the row that was closed last

    def written(self, ended: float | None) -> dict[str, Any]:
        """Fields of `recording.LoaderPass`. `ended` is when the loader said that there is no more."""
        start_s = (self.first_got or self.started) - self.started
        end_s = None if ended is None else ended - self.asked
        counts = {name: getattr(self, name) for name in ("loader", "epoch", "samples")}
        return {**counts, "start_s": start_s, "end_s": end_s}


class Loop:
    """All passes of this process. Fed by the script's own thread; the sampler's takes from `closed`."""

    def __init__(self) -> None:
        self.current: StepRow | None = None  # the row that is open, of the pass that was last given a batch
        self.own: Pass | None = None
        """Of a loop that asks no watched loader: its rows go from one step of its optimiser to the next."""
        self.closed: deque[StepRow] = deque()
        self.rows = 0
        self.train_steps = 0
        self.trained = set[int]()  # loaders between whose batches something was trained
        self.totals = (0.0, 0.0, 0)  # of all closed rows: seconds waited, seconds without pauses, samples
        self._metered = self.totals  # what `take_metrics` has handed out
        self.optimized: set[int] = set()  # loaders in whose steps an optimiser stepped
        self._epochs: Counter[int] = Counter()
        self._over: Pass | None = None  # that has ended, where no batch has come since
        self._open: list[Pass] = []
        self._ended: dict[tuple[int, int], dict[str, Any]] = {}

    @property
    def any_trained(self) -> bool:
        return bool(self.trained)

    @property
    def row(self) -> StepRow | None:
        """The open one that what happens now is part of."""
        return self.current or (self.own.row if self.own is not None else None)

    def take_metrics(self) -> dict[str, float]:
        """Wait fraction and samples/s since the last call, over all batches; empty when there were none."""
        before, self._metered = self._metered, self.totals
        waited_s, seconds, samples = (now - then for now, then in zip(self._metered, before, strict=True))
        return {"wait_fraction": waited_s / seconds, "samples_per_s": samples / seconds} if seconds else {}

    def begin(
        self, loader: int, now: float, *, in_trainer: bool, background: bool = False
    ) -> tuple[Pass, list[StepRow]]:
        """The pass, and the rows that it ends, of `next(iter(loader))`. A pass that goes on after all is taken up
        again."""
        mine = (one for one in self._open if one.loader == loader and not background)
        left = [one for one in mine if one.row is not None and one.batches == 1]
        ended = [row for one in left if (row := self.close(one, now)) is not None]
        self._open = [one for one in self._open if one not in left]
        epoch, thread = self._epochs[loader], threading.get_ident()
        outer = self.row
        over = self._over if self._over is not None and self._over.loader == loader else None
        goes_round = outer is None and over is not None
        anew = goes_round or (over is not None and over.outer is not outer)  # else that was begun and ended here
        if goes_round:
            outer = max((one.row for one in self._open if one.row), key=lambda row: row.start_s, default=None)
        begun = Pass(loader, epoch, now, in_trainer, outer, now, thread, background)
        begun.restart, begun.goes_round, begun.anew = bool(left), goes_round, anew
        self._epochs[loader] += 1
        if not background:
            for other in (*self._open, *filter(None, [self.own])):
                if begun.outer is not None and other.row is begun.outer:
                    other.inner.append(begun)
            self._open = [*self._open[1 - MOST_OPEN :], begun]
        return begun, ended

    def got(self, to: Pass, now: float, samples: int, size: int) -> list[StepRow]:
        """The rows that have waited for the batch: its own, and those of passes beside it."""
        self._over = None
        if to not in self._open:  # it has gone on after all
            self._open.append(to)
        to.waited_s += now - to.asked
        others = [one for one in (*self._open, *filter(None, [self.own])) if one is not to]
        rows = [(row, one) for one in others if (row := one.row) is not None and to.entered < row.start_s]
        beside = [row for row, one in rows if one is not self.own]
        for row in beside:
            row.wait_s += now - to.asked
        if rows:
            visit = self._visit(to, *max(rows, key=lambda pair: pair[0].start_s), now)
            if visit.batches == EVAL_BATCHES:
                for row in beside:
                    row.wait_s = max(0.0, row.wait_s - (to.waited_s - visit.before_s))
                beside = []
        began = to.started if to.restart and not to.batches else to.asked
        to.row = self.current = StepRow(
            began, now - began, samples, size, to.loader, to.epoch, own_wait_s=now - began
        )
        to.first_got = now if to.first_got is None else to.first_got
        to.samples += samples
        to.batches += 1
        return [to.row, *beside]

    def _visit(self, by: Pass, row: StepRow, host: Pass, now: float) -> Visit:
        """A batch more that it draws in a row that was begun later: with the third in it, it has come in."""
        visit = by.visit
        if visit is None or visit.row is not row:
            visit = by.visit = Visit(row, by.asked, by.waited_s - (now - by.asked))
            host.draws.setdefault(by.loader, False)
        visit.batches += 1
        if visit.batches == EVAL_BATCHES:
            by.outer, by.entered, by.trained = row, visit.since, False
            host.inner.append(by)
        return visit

    def close(self, of: Pass, now: float) -> StepRow | None:
        """The row that ends as the pass asks for its next batch."""
        row, of.row = of.row, None
        if row is None:
            return None
        for inner in of.inner:
            if not (inner.done or inner.background or inner.trained):
                self._take_in(inner, row, of, now)
        of.inner.clear()
        of.drew, of.draws = of.draws, {}
        row.duration_s = now - row.start_s
        if row.optimizer_s:
            self.optimized.add(row.loader)
        row.trained = row.trains(self.optimized)
        if row.trained:
            self.train_steps += 1
            self.trained.add(of.loader)
            of.trained, of.visit = True, None
            if of is not self.own:  # it asks a watched loader after all
                self.own = None
        if self.current is not None and self.current.start_s >= row.start_s:  # it, or one that was opened in it
            self.current = None
        waited_s, seconds, samples = self.totals
        self.totals = waited_s + row.wait_s, seconds + row.duration_s - row.pause_s, samples + row.samples
        self.closed.append(row)
        self.rows += 1
        return row

    def of_others(self, thread: int) -> list[Pass]:
        """Open passes whose batches another thread draws."""
        return [one for one in self._open if one.thread != thread]

    def to_background(self, one: Pass) -> None:
        """It is drawn by another thread than the one that trains: what was noted of it is no step."""
        self.current = None if self.current is one.row else self.current
        one.background, one.row = True, None
        if one in self._open:
            self._open.remove(one)

    def own_step(self, now: float, loader: int, samples: int, size: int) -> StepRow | None:
        """An optimiser has stepped in a loop that asks no watched loader: the row since the last such step ends."""
        row = None
        if self.own is None:
            self.own = Pass(loader, OWN_EPOCH, now, in_trainer=False, outer=None, entered=now)
            if self.current is not None:  # of a pass that was broken off
                self.current.trained, self.current = False, None
        elif self.own.row is not None:
            self.own.row.trained = True
            row = self.close(self.own, now)
        self.own.loader, self.own.row = loader, StepRow(now, 0.0, samples, size, loader, OWN_EPOCH)
        return row

    def _take_in(self, inner: Pass, row: StepRow, host: Pass, now: float) -> None:
        """A pass that was begun in the row and has not ended. What was done since its last batch belongs to the row's
        step. One of many batches was an evaluation, broken off as in `if i == 50: break`; one of few is a pause, too,
        as long as it is waited for, where only some rows have one. What goes on in every row is part of the step, and
        so are other few batches. Whether these go on is not known: they are forgotten until they do."""
        if inner.row is not None:
            row.trained |= inner.row.trained
            inner.row.trained = False
            for name in OF_STEP:
                setattr(row, name, getattr(row, name) + getattr(inner.row, name))
                setattr(inner.row, name, 0)
        many, goes_on = inner.batches >= EVAL_BATCHES, inner.resumed or inner.visit is not None
        few = inner.outer is row and not (many or inner.resumed or inner.anew)
        seldom = few and host.drew is not None and inner.loader not in host.drew
        always = goes_on and host.drew is not None and host.drew.get(inner.loader, False)
        host.draws[inner.loader] = many or host.draws.get(inner.loader, False)
        if (many and not always) or seldom:
            ended = inner.row.start_s + inner.row.own_wait_s if inner.row else now
            if seldom:
                inner.entered = ended - inner.begin_s - inner.waited_s
                if inner.row is not None and inner.batches == 1:  # its beginning is of its one wait
                    inner.row.start_s, inner.row.wait_s = inner.entered, ended - inner.entered
            self.close(inner, ended)
            self.finish(inner, ended)
            return
        row.wait_s += inner.waited_s - (inner.visit.before_s if inner.visit and inner.visit.row is row else 0.0)
        if inner.outer is row:
            row.wait_s += inner.begin_s
        if inner in self._open:
            self._open.remove(inner)

    def end(self, ending: Pass, now: float, *, exhausted: bool) -> StepRow | None:
        """The iterator is exhausted, or has failed."""
        ending.over = exhausted
        self._over = ending if exhausted else None
        beside = [one.row for one in self._open if one is not ending and one.row and ending.entered < one.row.start_s]
        if beside:  # which wait for this, too
            max(beside, key=lambda row: row.start_s).wait_s += now - ending.asked
        if not ending.done and ending.batches and exhausted and not ending.resumed:
            self._ended[ending.loader, ending.epoch] = ending.written(now)
        row, visit = self.close(ending, now), ending.visit
        self.finish(ending, now)
        if self.current is None and visit is not None and not visit.row.duration_s and visit.row.epoch != OWN_EPOCH:
            self.current = visit.row  # which goes on
        return row

    def finish(self, ending: Pass, now: float) -> None:
        if ending.done:
            return
        ending.done = True
        if ending in self._open:
            self._open.remove(ending)
        outer = None if ending.goes_round else ending.outer
        if outer is not None and not outer.duration_s and not (ending.background and ending.loader == outer.loader):
            outer.pause_s += now - ending.entered
            self.current = self.current if outer.epoch == OWN_EPOCH else outer

    def passes(self) -> list[dict[str, Any]]:
        """Those that have ended, and those still open."""
        going = [one.written(None) for one in list(self._open) if one.first_got is not None and not one.resumed]
        return [*self._ended.values(), *going]
