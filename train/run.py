"""One run: everything that training changes, built from the configuration, saved and restored."""

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from feedline.pipeline.base.errors import FeedlineError, UsageError
from feedline.pipeline.base.settings import plain
from feedline.pipeline.base.text import count_of
from feedline.pipeline.loader import Batch, Loader
from feedline.train import checkpoint, data, masks
from feedline.train.checkpoint import CheckpointError, Checkpoints, Resume, State, Where
from feedline.train.config import FREE_TO_CHANGE, Amp, TrainConfig
from feedline.train.distributed import World
from feedline.train.metrics import Listener
from feedline.train.models import build_model, check_takes_size
from feedline.train.optimise import Ema, build_optimizer, build_schedule, take_state
from feedline.train.progress import Laps, LossSum, Progress


class TrainingError(FeedlineError):
    """The training itself went wrong."""


class Run:
    """`loop.fit` moves it forward. Every rank has one; what differs between ranks is the random state only."""

    def __init__(self, config: TrainConfig, world: World, checkpoints: Checkpoints, listener: Listener) -> None:
        self.config, self.world, self.checkpoints, self._listener = config, world, checkpoints, listener
        self.dataset = data.open_dataset(config)
        self.sizes = data.batch_sizes(config, world.world_size, self.dataset.train_samples)
        self.schedule = build_schedule(config, self.sizes.optimiser)
        self.amp_dtype = pick_amp(config.amp, world.device)
        self.progress, self.losses = Progress(), LossSum(world)
        self.batches_since_step = 0
        self.hopeless: Callable[[dict[str, Any]], bool] | None = None
        self.stopped = False
        """By `hopeless`."""
        self.resumed_from: Where | None = None
        self._build_model()
        dtype = self.amp_dtype if self.amp_dtype and world.device.type == "cuda" else torch.float32
        self._new_train_loader = partial(data.train_loader, config, world, self.sizes.per_rank, dtype)
        self.loader = self._train_loader()
        self.val_loader: Loader | None = None
        if self.dataset.val_samples is not None:
            self.val_loader = data.val_loader(config, world, self.sizes.per_rank, dtype)
        self.start_clock()

    def _train_loader(self) -> Loader:
        """Whose last batch is short where that is not one sample, of which batch norm may have no variance."""
        samples = self.dataset.train_samples
        rests = {left % self.sizes.per_rank for left in (samples, samples - self.progress.samples)}
        alone = self.world.world_size == 1 and self.config.policy == "pad"
        return self._new_train_loader(short_last_batch=alone and 1 not in rests)

    def _build_model(self) -> None:
        """The same weights on every rank; other dropout on each."""
        config, world = self.config, self.world
        torch.manual_seed(config.seed)
        model = build_model(config.model, self.dataset.classes, widths=config.widths)
        for size in {config.image_size, *(size for _, size in config.progressive)}:
            check_takes_size(model, size)
        if config.sync_bn and world.world_size > 1:
            if world.device.type == "cpu":
                raise UsageError("--sync-bn: torch has it on GPUs only; leave it out on CPUs")
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        layout = torch.channels_last if config.channels_last else torch.contiguous_format
        self.module: nn.Module = model.to(world.device, memory_format=layout)  # pyright: ignore[reportCallIssue]
        if not config.channels_last:  # batches come in that layout, and cuDNN takes it where one operand has it
            self.module.register_forward_pre_hook(_contiguous)
        if config.init:
            with checkpoint.as_whole(config.init):
                self._load_weights(checkpoint.read(config.init), config.init)
        self.ema = Ema(self.module, config.ema_decay) if config.ema_decay else None
        self.held: masks.Held | None = None
        """What keeps weights at zero."""
        if config.mask:
            self.held = masks.Held(masks.read(config.mask), self.module, self.ema.model if self.ema else None)
            self.held.weights()
        self.optimizer = build_optimizer(self.module, config, self.schedule.peak_lr)
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=self.amp_dtype == torch.float16)
        self.model: Any = self.module
        """What the loop calls: over DDP, whose buckets travel while the backward pass is still at work."""
        if world.world_size > 1:
            ids = [world.device.index] if world.device.type == "cuda" else None
            self.model = DistributedDataParallel(self.module, device_ids=ids, gradient_as_bucket_view=True)
        if config.compile:
            self.model = torch.compile(self.model)
        torch.manual_seed(config.seed + 1 + world.rank)

    def tell(self, event: str, **facts: Any) -> None:
        """Every listener, once: rank 0 speaks for all."""
        if self.world.is_main:
            self._listener({"event": event, **facts})

    # --- what the loop asks for ---------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        progress = self.progress
        reached = progress.time_to_target_s is not None
        return reached or progress.epoch >= self.config.epochs or self.out_of_steps or self.stopped

    @property
    def out_of_steps(self) -> bool:
        return self.config.steps is not None and self.progress.step >= self.config.steps

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.world.device.type, self.amp_dtype, enabled=self.amp_dtype is not None)

    def gradients_travel(self, travel: bool) -> AbstractContextManager[Any]:
        """Inside, backward adds to the gradients; only with `travel` are they averaged over the ranks."""
        if travel or self.world.world_size == 1:
            return nullcontext()
        return getattr(self.model, "_orig_mod", self.model).no_sync()

    def begin_epoch(self) -> tuple[Iterable[Batch], int]:
        """The loader, ready for the epoch under way (or the rest of it), and how many batches it will give.

        Behind an epoch's last batch nothing is left but the epoch's end, for which no worker need start.
        """
        progress = self.progress
        if not progress.samples:
            progress.begin_epoch()
        self.loader.set_epoch(progress.epoch)
        self.loader.set_image_size(self.config.image_size_at(progress.epoch))
        self.model.train()
        batches = self.loader.batches_left
        return (self.loader if batches else ()), batches

    def set_lr(self) -> None:
        """The rate at the middle of the step that is being taken."""
        half_step = self.sizes.optimiser / 2
        done = max(self.progress.samples - half_step, 0.0) / self.dataset.train_samples
        lr = self.schedule.lr(self.progress.epoch + min(done, 1.0))
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def start_clock(self) -> None:
        """From here on time counts as training: the set-up is not part of a time-to-accuracy."""
        self.laps = Laps(self.progress)
        self._waited_s = self.waited_s()

    def waited_s(self) -> float:
        """How long the loop has been blocked on its loader so far."""
        return float(self.loader.stats()["trainer"]["wait_s"])

    def settle(self) -> None:
        """Brings the clocks in `progress` up to now."""
        self.laps.lap("own")
        before_s, self._waited_s = self._waited_s, self.waited_s()
        self.progress.epoch_wait_s += self._waited_s - before_s

    def close(self) -> None:
        self.loader.close()
        if self.val_loader is not None:
            self.val_loader.close()

    def diverged(self, what: str) -> TrainingError:
        return TrainingError(
            f"{what} by step {self.progress.step} (epoch {self.progress.epoch + 1}): lower --lr (now "
            f"{self.schedule.peak_lr:g}), lengthen --warmup-epochs or set --clip-norm"
        )

    # --- checkpoints --------------------------------------------------------------------------------------

    def save(self, names: list[str]) -> None:
        """Writes one checkpoint under all of `names` in the run's folder. Every rank must call it. Raises
        TrainingError for weights that are not finite: no run could go on from them."""
        if not self.config.keep_last:
            return
        finite = torch.stack([weight.detach().isfinite().all() for weight in self.module.parameters()])
        if not finite.all():
            raise self.diverged("weights are no longer finite")
        self.settle()
        started_s = time.perf_counter()
        self.losses.collect(self.progress)
        random_states = self.world.gather(checkpoint.random_state(self.world.device))
        if self.world.is_main:
            size_bytes = self.checkpoints.save(self.state(random_states), names, self.config.keep_last)
            seconds = round(time.perf_counter() - started_s, 4)
            self.tell("checkpoint", step=self.progress.step, names=names, seconds=seconds, bytes=size_bytes)
        self.laps.lap("checkpoint")

    def state(self, random_states: list[State]) -> State:
        return {
            "model": self.module.state_dict(),
            "ema": self.ema.model.state_dict() if self.ema else None,
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "schedule": asdict(self.schedule),
            "progress": asdict(self.progress),
            "loader": self.loader.state_dict(),
            "random": random_states,
            "config": plain(self.config),
            "world_size": self.world.world_size,
            "dataset": {
                "identity": self.dataset.identity,
                "classes": self.dataset.class_names,
                "part": self.dataset.part,
            },
        }

    def restore(self, resume: Resume) -> list[str]:
        """Goes on from there; returns notes: damaged checkpoints, other settings. Raises CheckpointError when it is
        of another dataset, model or number of classes, or lacks something; UsageError amid an epoch of another order.
        """
        state, where, notes = resume
        with checkpoint.as_whole(where):
            self._take(state, where, optimizer=True)
            self.progress = Progress(**state["progress"])
            self.progress.check()
            target = self.config.target_top1
            if target is None or (self.progress.reached_top1 or 0.0) < target:  # what was reached was a lower one
                self.progress.time_to_target_s = None
            if self.progress.samples:
                self.loader = self._train_loader()
                self._check_order(state["loader"], where)
                self.loader.load_state_dict(state["loader"])
            self._draw_on(state)
            self.resumed_from = where
            return [*notes, *self._other_settings(state)]

    def rewind(self, where: Where) -> list[str]:
        """Begins a run of its own at the epoch behind which that checkpoint was written, with all that was learned
        until then; returns notes. With the same seed it goes on as that run did. Raises CheckpointError as `restore`,
        and for a checkpoint from within an epoch."""
        state = checkpoint.read(where)
        with checkpoint.as_whole(where):
            then = Progress(**state["progress"])
            then.check()
            if then.samples:
                raise CheckpointError(f"checkpoint {where} is from within an epoch: rewind to one of --keep-epochs")
            self._take(state, where, optimizer=self.config.rewind_optimizer)
            self.progress = Progress(epoch=then.epoch, step=then.step)
            if state["config"]["seed"] == self.config.seed:
                self._draw_on(state)
            return self._other_settings(state)

    def _take(self, state: State, where: Where, *, optimizer: bool) -> None:
        """What was learned: weights, statistics, moving average and, if asked, the optimiser's."""
        self._check_dataset(state["dataset"], where)
        self._load_weights(state, where)
        if self.ema:
            self.ema.model.load_state_dict(state["ema"] or state["model"])
        if self.held:
            self.held.weights()
        if optimizer:
            take_state(self.optimizer, state["optimizer"])
            if state["scaler"]:  # empty where nothing was scaled: fp16 that begins now has its own start
                self.scaler.load_state_dict(state["scaler"])

    def _draw_on(self, state: State) -> None:
        if self.world.rank < len(state["random"]):
            checkpoint.restore_random_state(state["random"][self.world.rank], self.world.device)

    def _check_order(self, theirs: dict[str, Any], where: Where) -> None:
        mine = self.loader.state_dict()
        for name, option in (("seed", "--seed"), ("window_shards", "--window-shards")):
            if (then := theirs[name]) != mine[name]:
                what = f"checkpoint {where} is from within an epoch of {option} {then}, this is {option} {mine[name]}"
                raise UsageError(f"{what}: give {option} {then}, or begin anew with another --run, without --resume")

    def _other_settings(self, state: State) -> list[str]:
        before = state["config"] | {"world size": state["world_size"]}
        now = plain(self.config) | {"world size": self.world.world_size}
        changed = [name for name in now if name not in FREE_TO_CHANGE and before.get(name) != now[name]]
        words = ", ".join(f"{name} {before.get(name)} -> {now[name]}" for name in changed)
        return [f"goes on with other settings: {words}"] if changed else []

    def _check_dataset(self, theirs: dict[str, Any], where: Where) -> None:
        mine, part = self.dataset, theirs.get("part")
        if part != mine.part and theirs["identity"] == mine.identity:
            raise CheckpointError(
                f"checkpoint {where} was made from another part of the dataset ({part}, here {mine.part}): give the "
                "same --classes, --samples and --subset-seed"
            )
        if len(theirs["classes"]) != mine.classes:
            raise CheckpointError(
                f"checkpoint {where} has {count_of(len(theirs['classes']), 'class')}, {mine.folder} has "
                f"{mine.classes}: resume with the dataset it was made from"
            )
        if theirs["identity"] != mine.identity:
            raise CheckpointError(
                f"checkpoint {where} was made from another dataset than {mine.folder} "
                f"(manifest {theirs['identity'][:12]}, here {mine.identity[:12]}): --init takes only its weights"
            )

    def _load_weights(self, state: State, where: Where) -> None:
        if (theirs := len(state["dataset"]["classes"])) != self.dataset.classes:
            raise CheckpointError(
                f"checkpoint {where} has {count_of(theirs, 'class')}, {self.dataset.folder} has "
                f"{self.dataset.classes}: weights are taken for the same classes"
            )
        try:
            self.module.load_state_dict(state["model"])
        except RuntimeError as error:
            # torch's first line names the class, the next the first difference
            difference = shorten(str(error).partition("\n")[2], 160, placeholder=" …")
            raise CheckpointError(
                f"checkpoint {where} is of another model ({state['config'].get('model')}; {difference}): give the "
                "same --model and --widths"
            ) from error


def pick_amp(name: Amp, device: torch.device) -> torch.dtype | None:
    """What autocast computes in; None: no autocast. A GPU that only emulates bf16 is slower with it than without."""
    if name == "auto":
        has_it = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        name = "bf16" if has_it else "none"
    return {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}[name]


def _contiguous(_: nn.Module, images: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(one.contiguous() for one in images)
