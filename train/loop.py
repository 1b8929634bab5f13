"""The training loop. `fit` is all of it, top to bottom; what it calls is named after what it does.

`train(TrainConfig(dataset=..., run=...))` is the door: it returns the record that `feedline train --json` writes.
"""

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from feedline.pipeline.base.errors import BusyError, FeedlineError, UsageError
from feedline.train import checkpoint, data
from feedline.train.config import TrainConfig
from feedline.train.distributed import joined, may_restart, short_line
from feedline.train.line_profile import profile
from feedline.train.metrics import Event, Journal, Listener
from feedline.train.report import Reporter
from feedline.train.run import Run


@profile
def fit(run: Run, report: Reporter) -> None:
    """Trains until the epochs are over, the target is reached or the steps are used up.

    Every sample weighs the same: losses are summed and divided by the full batch, so padding and skipped samples
    neither count nor shift the others, and N ranks give what one rank with the same global batch gives.
    """
    config, progress, laps = run.config, run.progress, run.laps
    while not run.finished:
        loader, batches_left = run.begin_epoch()
        laps.lap("own")
        for images_NCHW, labels_N in loader:
            laps.lap("next")
            batches_left -= 1
            progress.samples += run.sizes.delivered
            run.batches_since_step += 1
            step_now = run.batches_since_step == config.accumulate or batches_left == 0

            with run.gradients_travel(step_now):
                with run.autocast():
                    logits_NC = run.model(images_NCHW)
                    loss_sum = F.cross_entropy(
                        logits_NC, labels_N, ignore_index=-1, label_smoothing=config.label_smoothing, reduction="sum"
                    )
                    loss = loss_sum / (run.sizes.per_rank * config.accumulate)
                run.scaler.scale(loss).backward()

            if step_now:
                run.set_lr()
                if config.clip_norm is not None:
                    run.scaler.unscale_(run.optimizer)
                    if run.held is not None:
                        run.held.gradients()
                    report.grad_norm = nn.utils.clip_grad_norm_(run.module.parameters(), config.clip_norm)
                run.scaler.step(run.optimizer)
                run.scaler.update()
                if run.held is not None:
                    run.held.weights()
                run.optimizer.zero_grad(set_to_none=True)
                run.batches_since_step = 0
                progress.step += 1
                if run.ema is not None:
                    run.ema.update(run.module, progress.step)
            laps.lap("compute")

            run.losses.add(loss_sum, labels_N)
            if step_now:
                if progress.step % config.log_every == 0:
                    report.step()
                laps.lap("own")
                if run.out_of_steps:  # its checkpoint comes behind the evaluation, which a kill must not skip
                    break
                if config.checkpoint_every and progress.step % config.checkpoint_every == 0:
                    run.save([checkpoint.step_name(progress.step)])
            laps.lap("own")

        run.save(report.epoch(whole=batches_left == 0))


def train(
    config: TrainConfig, listeners: Iterable[Listener] = (), hopeless: Callable[[Event], bool] | None = None
) -> dict[str, Any]:
    """Trains as `config` says and returns the record; all ranks of a torchrun job call it.

    `listeners` hear every event on rank 0. There `hopeless` (given on every rank) is asked about each epoch, by its
    entry in the record, whether the run should end with it. Raises a FeedlineError with one line for whatever is
    wrong with the configuration, the dataset, a checkpoint, or the training itself (a loss that is not finite, a
    lost rank).
    """
    with sensible_batches(), joined(config) as world:
        folder = world.on_main(lambda: run_folder(config))
        checkpoints = checkpoint.Checkpoints(folder)
        there, resume = world.on_main(lambda: (checkpoints.steps(), checkpoints.to_resume(config.resume)))
        with Journal(folder, tensorboard=config.tensorboard) as journal:
            everyone = [journal, *listeners]

            def tell(event: Event) -> None:
                for listener in everyone:
                    listener(event)

            run = Run(config, world, checkpoints, tell)
            run.hopeless = hopeless
            try:
                notes = run.restore(resume) if resume else run.rewind(config.rewind) if config.rewind else []
                with Reporter(run) as report:
                    report.start(notes)  # takes the folder for this training alone
                    if world.on_main(checkpoints.steps) != there:
                        raise BusyError(f"another training in {folder} went on and ended meanwhile: start again")
                    if resume and config.keep_last:
                        for text in world.on_main(lambda: checkpoints.go_on_from(resume, config.resume)):
                            run.tell("note", text=text)
                    if resume is None and config.tensorboard and world.is_main:
                        journal.show_model(run.module, data.first_images(config, world))
                    run.start_clock()
                    if resume is None and run.progress.epoch in config.keep_epochs:
                        run.save([checkpoint.epoch_name(run.progress.epoch)])
                    fit(run, report)
                    return report.end()
            finally:
                run.close()


def run_folder(config: TrainConfig) -> Path:
    """As rank 0 has it. Raises UsageError where a run is to go on and nobody says which: a new folder holds none."""
    if config.run is None and (config.resume == "auto" or may_restart()):
        asked = "--resume auto" if config.resume == "auto" else "torchrun --max-restarts"
        raise UsageError(f"{asked} goes on with a run: name its folder, --run DIR (under torchrun --run-dir DIR)")
    return config.run or Path("runs") / f"{config.model}-{datetime.now():%Y%m%d-%H%M%S}"


@contextmanager
def sensible_batches() -> Generator[None]:
    """A model or a batch that is too large ends in one line, on the host and on the GPU; so does a batch of one."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        remedy = "take a larger --batch-size, or with --on-bad skip another --on-bad"
        raise FeedlineError(f"a batch of one sample has no variance for batch norm: {remedy}") from error
    except (RuntimeError, MemoryError) as error:
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        what = f"not enough memory ({short_line(error)}): lower --batch-size, --image-size or the model"
        raise FeedlineError(what) from error
