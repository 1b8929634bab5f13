"""What a run reports while it goes: step, epoch and end events, evaluation, the record. `loop.fit` calls it."""

import math
import time
from dataclasses import asdict
from typing import Any, NamedTuple

import torch
from torch import Tensor

from feedline.pipeline.base.process import usable_cores
from feedline.pipeline.base.settings import plain
from feedline.pipeline.base.text import count_of
from feedline.train import checkpoint
from feedline.train.distributed import gpu_uuid
from feedline.train.evaluate import Evaluation, evaluate
from feedline.train.run import Run
from feedline.train.usage import Resources

BAD_NAMED = 20
"""Bad samples of an epoch that are named; of more their number is said."""


class Counters(NamedTuple):
    """Of one rank at one moment; only differences between two moments mean anything."""

    training_s: float
    wait_s: float
    own_s: float
    samples: float
    """Learned from, over all ranks."""


class Reporter:
    """Joins the ranks' numbers and emits them. Its methods are collective: every rank calls them."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.grad_norm: Tensor | None = None
        self.evaluation: Evaluation | None = None
        self._bad: set[tuple[str, str]] = set()
        self._resources = Resources(gpu_uuid(run.world.device))
        self._started_s = time.monotonic()
        self._first_sample = run.progress.trained_samples
        self._seen = self._counters()

    def __enter__(self) -> "Reporter":
        self._resources.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._resources.stop()

    def _counters(self) -> Counters:
        run = self.run
        own_s, samples = run.laps.total_s["own"], run.progress.trained_samples
        return Counters(run.laps.training_s(), run.waited_s(), own_s, samples)

    def start(self, notes: list[str]) -> None:
        """`notes`: what is to be known of the checkpoint resumed from."""
        run = self.run
        if run.resumed_from:
            run.tell(
                "resume",
                checkpoint=str(run.resumed_from),
                own=run.checkpoints.owns(run.resumed_from),
                step=run.progress.step,
                epoch=run.progress.epoch,
            )
        if run.finished and (step := run.progress.step):
            done = f"the checkpoint has {count_of(run.progress.epoch, 'epoch')} and {count_of(step, 'step')}"
            reached = run.progress.time_to_target_s is not None
            more = "and has reached --target-top1" if reached else "give more --epochs or --steps to go on"
            notes = [*notes, f"nothing is left to train: {done}, {more}"]
        for note in notes:
            run.tell("note", text=note)
        run.tell(
            "start",
            config=plain(run.config),
            run=str(run.checkpoints.run),
            device=str(run.world.device),
            world_size=run.world.world_size,
            global_batch=run.sizes.optimiser,
            threads=torch.get_num_threads(),
            num_workers=run.loader.num_workers,
            train_samples=run.dataset.train_samples,
            val_samples=run.dataset.val_samples or 0,
            classes=run.dataset.classes,
            parameters=sum(parameter.numel() for parameter in run.module.parameters()),
            dataset_identity=run.dataset.identity,
        )

    def step(self) -> None:
        """Raises TrainingError when the loss since the last line is not finite."""
        run, progress = self.run, self.run.progress
        run.losses.collect(progress)
        run.laps.lap("compute")  # it has waited for the device, and for the other ranks
        loss = self._fresh_loss()
        before, self._seen = self._seen, self._counters()
        since = Counters(*run.world.mean([now - then for now, then in zip(self._seen, before, strict=True)]))
        span_s = max(since.training_s, 1e-9)
        run.tell(
            "step",
            step=progress.step,
            epoch=progress.epoch + 1,
            loss=loss,
            lr=run.optimizer.param_groups[0]["lr"],
            grad_norm=None if self.grad_norm is None else float(self.grad_norm),
            gpu_memory_bytes=self._gpu_memory_bytes(),
            share_of_epoch=min(1.0, progress.samples / run.dataset.train_samples),
            eta_s=self._eta_s(),
            samples_per_s=since.samples / span_s,
            wait_fraction=min(1.0, since.wait_s / span_s),
            own_fraction=since.own_s / span_s,
        )
        self._tell_resources()

    def epoch(self, *, whole: bool) -> list[str]:
        """Closes an epoch (or, not `whole`, the part of one that the steps allowed): evaluates and keeps count.

        Returns the names its checkpoint is to have.
        """
        run, progress = self.run, self.run.progress
        run.losses.collect(progress)
        run.laps.lap("compute")
        run.settle()
        self._fresh_loss()
        progress.epoch_s, progress.epoch_wait_s = run.world.mean([progress.epoch_s, progress.epoch_wait_s])
        seconds = max(progress.epoch_s, 1e-9)
        entry: dict[str, Any] = {
            "epoch": progress.epoch + 1,
            "samples": progress.loss_samples,
            "seconds": progress.epoch_s,
            "samples_per_s": progress.loss_samples / seconds,
            "wait_fraction": min(1.0, progress.epoch_wait_s / seconds),
            "train_loss": progress.loss_sum / max(progress.loss_samples, 1),
            "top1": None,
            "top5": None,
        }
        done, last = progress.epoch + 1, not whole or progress.epoch + 1 == run.config.epochs or run.out_of_steps
        if run.val_loader is not None and (last or done % run.config.eval_every == 0):
            entry |= self._evaluate()
        if progress.history and progress.history[-1]["epoch"] == entry["epoch"]:
            progress.history.pop()  # its part before `steps` ended the run: the sums of this one have it too
        progress.history.append(entry)
        run.laps.lap("evaluate")
        self._tell_bad()
        names = [checkpoint.step_name(progress.step), *self._merits(entry["top1"])]
        if whole:
            progress.epoch, progress.samples = done, 0
            names += [checkpoint.epoch_name(done)] if done in run.config.keep_epochs else []
        classes = self.evaluation.classes if self.evaluation and entry["top1"] is not None else None
        run.tell("epoch", step=progress.step, elapsed_s=progress.elapsed_s, best_top1=progress.reached_top1,
                   classes=classes, **entry)  # fmt: skip
        self._tell_resources()
        if run.hopeless is not None:
            run.stopped = run.world.from_main(run.world.is_main and run.hopeless(entry))
        return names

    def end(self) -> dict[str, Any]:
        """Emits and returns the record of the whole run. Efficiency is as `seff` has it: CPU time of all ranks and
        their workers, of the cores they had times the wall time."""
        run, progress, world = self.run, self.run.progress, self.run.world
        self._tell_resources()
        cores = usable_cores() / world.local_world_size
        mine = [self._resources.tree_cpu_s(), cores * (time.monotonic() - self._started_s),
                self._resources.peak_memory_bytes]  # fmt: skip
        cpu_s, core_s, memory_bytes = world.sum(torch.tensor(mine, dtype=torch.float64)).tolist()
        record = {
            "epochs": progress.history,
            "best_top1": progress.reached_top1,
            "time_to_target_s": progress.time_to_target_s,
            "world_size": world.world_size,
            "run": str(run.checkpoints.run),
            "steps": progress.step,
            "train_s": progress.elapsed_s,
            "checkpoint_s": progress.checkpoint_s,
            "without_checkpoints_s": progress.elapsed_s - progress.checkpoint_s,
            "resumed_from": run.resumed_from and str(run.resumed_from),
            "laps_s": {name: round(spent_s, 4) for name, spent_s in run.laps.total_s.items()},
            "loader": run.loader.stats(),
            "cpu_s": cpu_s,
            "core_s": core_s,
            "cpu_efficiency": cpu_s / max(core_s, 1e-9),
            "peak_memory_bytes": int(memory_bytes),
            "gpu_memory_bytes": self._gpu_memory_bytes(),
            "gpus": [asdict(gpu) for gpu in self._resources.gpus] if world.device.type == "cuda" else [],
        }
        if self.evaluation:
            record["classes"] = self.evaluation.classes
        run.tell("end", step=progress.step, **record)
        return record

    def _fresh_loss(self) -> float:
        """Mean loss since the last line, over all ranks."""
        progress = self.run.progress
        samples = progress.loss_samples - progress.logged_loss_samples
        loss = (progress.loss_sum - progress.logged_loss_sum) / max(samples, 1)
        progress.logged_loss_sum, progress.logged_loss_samples = progress.loss_sum, progress.loss_samples
        if not math.isfinite(loss):
            raise self.run.diverged(f"the loss became {loss}")
        return loss

    def _evaluate(self) -> dict[str, Any]:
        run, started_s = self.run, time.monotonic()
        assert run.val_loader is not None
        run.val_loader.set_image_size(run.config.image_size_at(run.progress.epoch))
        run.val_loader.set_epoch(0)
        model = run.ema.model if run.ema else run.module
        run.world.share_buffers(model)  # what the checkpoint has, however many ranks there are
        result = evaluate(model, run.val_loader, run.world, run.dataset.class_names, run.amp_dtype)
        self.evaluation = result
        return {"top1": result.top1, "top5": result.top5, "val_loss": result.loss, "val_samples": result.samples,
                "eval_s": time.monotonic() - started_s}  # fmt: skip

    def _merits(self, top1: float | None) -> list[str]:
        """Notes a target that is reached; the name of the best checkpoint where this is it."""
        run, progress = self.run, self.run.progress
        if top1 is None:
            return []
        if run.config.target_top1 is not None and top1 >= run.config.target_top1:
            # rank 0's clock: all ranks must agree that the run is over
            progress.time_to_target_s = run.world.from_main(progress.elapsed_s)
        # The best so far may lie in the folder of a run that this one goes on from, or be gone with its line.
        kept = not run.config.keep_last or run.world.on_main(lambda: run.checkpoints.has_best)
        if progress.best_top1 is not None and top1 <= progress.best_top1 and kept:
            return []
        progress.best_top1 = top1
        return [checkpoint.BEST]

    def _eta_s(self) -> float:
        """To the end of the last epoch, at this process's pace so far."""
        run, progress = self.run, self.run.progress
        total = run.config.epochs * run.dataset.train_samples
        if run.config.steps:
            total = min(total, run.config.steps * run.sizes.optimiser)
        done = progress.epoch * run.dataset.train_samples + progress.samples
        pace = (progress.trained_samples - self._first_sample) / max(run.laps.training_s(), 1e-9)
        return max(0.0, total - done) / max(pace, 1e-9)

    def _gpu_memory_bytes(self) -> int | None:
        """By this process's tensors at their peak; None on a CPU."""
        device = self.run.world.device
        return int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else None

    def _tell_bad(self) -> None:
        """Names the samples that `--on-bad` left out or replaced, on whatever rank, each once."""
        run = self.run
        if run.config.on_bad == "raise":
            return
        loaders = [loader for loader in (run.loader, run.val_loader) if loader is not None]
        mine = [(one["key"], one["reason"]) for loader in loaders for one in loader.stats()["bad"]]
        new = {one for every in run.world.gather(mine) for one in every} - self._bad
        self._bad |= new
        for key, reason in sorted(new)[:BAD_NAMED]:
            run.tell("note", text=f"bad sample (--on-bad {run.config.on_bad}): {key}: {reason}")
        if len(new) > BAD_NAMED:
            run.tell("note", text=f"… and {len(new) - BAD_NAMED:,} more bad samples")

    def _tell_resources(self) -> None:
        for row in self._resources.drain():
            self.run.tell("resources", step=self.run.progress.step, **row)
