"""Frameworks that count batches themselves, and would leave their loop before the windows are over: they are told of
more. Only in a diagnostic run, which is ended behind its windows in any case. What its steps before these save is as
without us, and none is saved that there would not have been.

Lightning and ignite read their counts anew at every batch: theirs are put out of reach once the pass has trained.
transformers counts epochs by `range`, made as training begins: that is made longer, and windows go on from one epoch
to the next. Its arguments, and what schedules are made from, stay: only the check for the last step is told of
another one. Others either ask their loader until it has no more, and it is begun again underneath, or leave their
pass and begin another one.
"""

import functools
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, ModuleType
from typing import Any

from feedline.profiling.watch.patches import Patches
from feedline.profiling.watch.rules import frames

MANY = 1 << 30


def hold(frame: FrameType | None) -> None:
    """The loop that has asked for a batch there. Never raises."""
    for one in frames(frame):
        own = one.f_globals.get("__name__", "")
        holder = next((hold for start, hold in HOLDERS.items() if own.startswith(start)), None)
        if holder is not None:
            with suppress(Exception):  # another version of it
                holder(one.f_locals)


def _lightning(local: dict[str, Any]) -> None:
    loop, fetcher = local["self"], local["data_fetcher"]
    trainer = loop.trainer
    fetcher.length = None
    loop.max_steps = -1
    trainer.fit_loop.max_batches = trainer.val_check_batch = float("inf")


def _ignite(local: dict[str, Any]) -> None:
    state = local["self"].state
    if state.epoch_length is not None:
        state.epoch_length = MANY
    if state.max_iters is not None:
        state.max_iters = MANY


HOLDERS: dict[str, Callable[[dict[str, Any]], None]] = {
    "lightning.pytorch.loops.training_epoch_loop": _lightning,
    "pytorch_lightning.loops.training_epoch_loop": _lightning,
    "ignite.engine.engine": _ignite,
}
"""By the module whose frame it is; what it holds back is among that frame's variables."""


def counted_by(frame: FrameType | None) -> str:
    """The framework that counts the batches of the loop there; "" for none."""
    names = (one.f_globals.get("__name__", "") for one in frames(frame))
    return next((name.partition(".")[0] for name in names if name.startswith((*HOLDERS, "transformers.trainer"))), "")


def attach(patches: Patches, beyond: Callable[[], None]) -> None:
    """Before the script imports them. `beyond` is called as a step follows that was to be the last."""

    def with_more_epochs(original: Any) -> Any:
        @functools.wraps(original)
        def set_initial_training_values(*args: Any, **kwargs: Any) -> Any:
            _, *values = original(*args, **kwargs)
            return (MANY, *values)

        return set_initial_training_values

    def with_more_steps(original: Any) -> Any:
        @functools.wraps(original)
        def on_step_end(callback: Any, args: Any, state: Any, *others: Any, **kwargs: Any) -> Any:
            steps = state.max_steps
            if state.global_step > steps:
                beyond()
            state.max_steps = MANY
            try:
                return original(callback, args, state, *others, **kwargs)
            finally:
                state.max_steps = steps

        return on_step_end

    def trainer(module: ModuleType) -> None:
        patches.replace(module.Trainer, "set_initial_training_values", with_more_epochs)

    def callbacks(module: ModuleType) -> None:
        patches.replace(module.DefaultFlowCallback, "on_step_end", with_more_steps)

    patches.after_import("transformers.trainer", trainer)
    patches.after_import("transformers.trainer_callback", callbacks)
