"""What a run says while it goes: step, epoch and end events, evaluation, the record. `loop.fit` calls it."""

import math
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from feedline.pipeline.base.errors import FeedlineError
from feedline.pipeline.base.process import usable_cores
from feedline.train import checkpoint, data
from feedline.train.evaluate import Evaluation, evaluate
from feedline.train.metrics import Journal, memory_in_use_bytes
from feedline.train.models import parameter_count
from feedline.train.run import Run, plain
from feedline.train.usage import Resources


class TrainingError(FeedlineError):
    """The training itself went wrong."""


class Reporter:
    """Joins the ranks' numbers and tells them. Its methods are collective: every rank calls them."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.grad_norm: Tensor | None = None
        self.evaluation: Evaluation | None = None
        self._resources = Resources()
        self._wall_started_s = time.monotonic()
        self._first = self._seen = Seen.of(run)

    def __enter__(self) -> "Reporter":
        self._resources.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._resources.__exit__(*error)

    # --- the events ---------------------------------------------------------------------------------------

    def start(self, skipped: list[str]) -> None:
        """`skipped`: what was wrong with checkpoints newer than the one resumed from."""
        run = self.run
        for problem in skipped:
            self._tell("note", text=problem)
        if run.resumed_from:
            self._tell("resume", checkpoint=run.resumed_from, step=run.progress.step, epoch=run.progress.epoch)
        self._tell(
            "start",
            config=plain(run.config),
            run=str(run.folder),
            device=str(run.world.device),
            world_size=run.world.world_size,
            global_batch=run.sizes.optimiser,
            threads=torch.get_num_threads(),
            num_workers=run.loader.num_workers,
            train_samples=run.dataset.train.samples,
            val_samples=run.dataset.val.samples if run.dataset.val else 0,
            classes=run.dataset.classes,
            parameters=parameter_count(run.module),
            dataset_identity=run.dataset.identity,
        )

    def show_model(self, journal: Journal) -> None:
        """Costs the first batch once more and a trace; only when there is a TensorBoard."""
        run = self.run
        if not run.config.tensorboard:
            return
        images_NCHW = data.first_images(run.config, run.world)
        journal.show_model(run.module, images_NCHW)

    def step(self) -> None:
        """Raises TrainingError when the loss since the last line is not finite."""
        run, progress = self.run, self.run.progress
        run.losses.collect(progress)
        loss = self._fresh_loss()
        span = self._span()
        if not run.world.is_main:
            return
        self._tell(
            "step",
            step=progress.step,
            epoch=progress.epoch + 1,
            loss=loss,
            lr=run.optimizer.param_groups[0]["lr"],
            grad_norm=None if self.grad_norm is None else float(self.grad_norm),
            gpu_memory_bytes=memory_in_use_bytes(run.world.device),
            share_of_epoch=min(1.0, progress.samples / run.dataset.train.samples),
            eta_s=self._eta_s(),
            **span,
        )
        self._tell_resources()

    def epoch(self, *, whole: bool) -> list[str]:
        """Closes an epoch (or, not `whole`, the part of one that the steps allowed): evaluates, tells, keeps count.

        Returns the names its checkpoint is to have.
        """
        run, progress = self.run, self.run.progress
        run.losses.collect(progress)
        self._fresh_loss()
        entry = self._entry()
        if self._evaluation_is_due(whole):
            entry |= self._evaluate()
        progress.history.append(entry)
        run.settle()
        self._note_target()
        names = [checkpoint.step_name(progress.step)]
        names += [checkpoint.BEST] if self._is_best(entry) else []
        if whole:
            progress.epoch, progress.samples = progress.epoch + 1, 0
            names += [checkpoint.epoch_name(progress.epoch)] if progress.epoch in run.config.keep_epochs else []
        classes = [asdict(one) for one in self.evaluation.classes] if self.evaluation and "top1" in entry else None
        self._tell("epoch", step=progress.step, elapsed_s=progress.elapsed_s, best_top1=progress.best_top1,
                   classes=classes, **entry)  # fmt: skip
        self._tell_resources()
        return names

    def end(self) -> dict[str, Any]:
        """Tells and returns the record of the whole run."""
        run, progress = self.run, self.run.progress
        run.settle()
        record = {
            "epochs": progress.history,
            "best_top1": progress.best_top1,
            "time_to_target_s": progress.time_to_target_s,
            "world_size": run.world.world_size,
            "run": str(run.folder),
            "steps": progress.step,
            "train_s": progress.elapsed_s,
            "checkpoint_s": progress.checkpoint_s,
            "without_checkpoints_s": progress.elapsed_s - progress.checkpoint_s,
            "resumed_from": run.resumed_from,
            "laps_s": {name: round(spent_s, 4) for name, spent_s in run.laps.total_s.items()},
            "loader": run.loader.stats(),
            **self._efficiency(),
        }
        if self.evaluation:
            record["classes"] = [asdict(one) for one in self.evaluation.classes]
        self._tell("end", step=progress.step, **record)
        return record

    # --- the numbers --------------------------------------------------------------------------------------

    def _fresh_loss(self) -> float:
        """Mean loss since the last line, over all ranks."""
        progress = self.run.progress
        samples = progress.loss_samples - progress.logged_loss_samples
        loss = (progress.loss_sum - progress.logged_loss_sum) / max(samples, 1)
        progress.logged_loss_sum, progress.logged_loss_samples = progress.loss_sum, progress.loss_samples
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss became {loss} by step {progress.step} (epoch {progress.epoch + 1}): "
                f"lower --lr (now {self.run.schedule.peak_lr:g}), lengthen --warmup-epochs or set --clip-norm"
            )
        return loss

    def _span(self) -> dict[str, float]:
        """Rates and shares since the last call: samples over all ranks, shares as the mean over them."""
        run, before = self.run, self._seen
        self._seen = now = Seen.of(run)
        mine = [now.wait_s - before.wait_s, now.own_s - before.own_s, now.training_s - before.training_s]
        wait_s, own_s, span_s = self._mean(mine)
        return {
            "samples_per_s": (now.samples - before.samples) / max(span_s, 1e-9),
            "wait_fraction": min(1.0, wait_s / max(span_s, 1e-9)),
            "own_fraction": own_s / max(span_s, 1e-9),
        }

    def _mean(self, numbers: list[float]) -> list[float]:
        world = self.run.world
        return (world.sum(torch.tensor(numbers, dtype=torch.float64)) / world.world_size).tolist()

    def _entry(self) -> dict[str, Any]:
        progress = self.run.progress
        self.run.settle()
        progress.epoch_s, progress.epoch_wait_s = self._mean([progress.epoch_s, progress.epoch_wait_s])
        seconds = max(progress.epoch_s, 1e-9)
        return {
            "epoch": progress.epoch + 1,
            "samples": progress.loss_samples,
            "seconds": progress.epoch_s,
            "samples_per_s": progress.loss_samples / seconds,
            "wait_fraction": min(1.0, progress.epoch_wait_s / seconds),
            "train_loss": progress.loss_sum / max(progress.loss_samples, 1),
            "top1": None,
            "top5": None,
        }

    def _evaluation_is_due(self, whole: bool) -> bool:
        run = self.run
        if run.val_loader is None:
            return False
        done = run.progress.epoch + 1
        return not whole or done == run.config.epochs or run.out_of_steps or done % run.config.eval_every == 0

    def _evaluate(self) -> dict[str, Any]:
        run, started_s = self.run, time.monotonic()
        assert run.val_loader is not None
        run.val_loader.set_image_size(run.config.image_size_at(run.progress.epoch))
        run.val_loader.set_epoch(0)
        self.evaluation = found = evaluate(
            run.evaluated_model, run.val_loader, run.world, run.dataset.class_names, run.amp_dtype
        )
        return {"top1": found.top1, "top5": found.top5, "val_loss": found.loss, "val_samples": found.samples,
                "eval_s": time.monotonic() - started_s}  # fmt: skip

    def _is_best(self, entry: dict[str, Any]) -> bool:
        progress, top1 = self.run.progress, entry["top1"]
        if top1 is None or (progress.best_top1 is not None and top1 <= progress.best_top1):
            return False
        progress.best_top1 = top1
        return True

    def _note_target(self) -> None:
        run, top1 = self.run, self.run.progress.history[-1]["top1"]
        target = run.config.target_top1
        if target is not None and top1 is not None and top1 >= target:
            # rank 0's clock: all ranks must agree that the run is over
            run.progress.time_to_target_s = run.world.from_main(run.progress.elapsed_s)

    def _eta_s(self) -> float:
        """To the end of the last epoch, at this process's pace so far."""
        run, progress = self.run, self.run.progress
        total = run.config.epochs * run.dataset.train.samples
        if run.config.steps:
            total = min(total, run.config.steps * run.sizes.optimiser)
        done = progress.epoch * run.dataset.train.samples + progress.samples
        pace = (progress.trained_samples - self._first.samples) / max(run.laps.training_s(), 1e-9)
        return max(0.0, total - done) / max(pace, 1e-9)

    def _efficiency(self) -> dict[str, Any]:
        """As `seff` has it: CPU time of all ranks and their workers, of the cores they had times the wall time."""
        world = self.run.world
        cores = usable_cores() / world.local_world_size
        mine = torch.tensor([self._resources.cpu_s(), cores * (time.monotonic() - self._wall_started_s),
                             self._resources.peak_memory_bytes()], dtype=torch.float64)  # fmt: skip
        cpu_s, core_s, memory_bytes = world.sum(mine).tolist()
        return {
            "cpu_s": cpu_s,
            "core_s": core_s,
            "cpu_efficiency": cpu_s / max(core_s, 1e-9),
            "peak_memory_bytes": int(memory_bytes),
            "gpu_memory_bytes": memory_in_use_bytes(world.device),
            "gpus": self._resources.gpus() if world.device.type == "cuda" else [],
        }

    def _tell(self, event: str, **facts: Any) -> None:
        if self.run.world.is_main:
            self.run.tell({"event": event, **facts})

    def _tell_resources(self) -> None:
        for row in self._resources.drain():
            self._tell("resources", step=self.run.progress.step, **row)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A run's counters at one moment."""

    wait_s: float
    own_s: float
    training_s: float
    samples: int

    @classmethod
    def of(cls, run: Run) -> "Seen":
        return cls(
            wait_s=data.waited_s(run.loader),
            own_s=run.laps.total_s["own"],
            training_s=run.laps.training_s(),
            samples=run.progress.trained_samples,
        )
