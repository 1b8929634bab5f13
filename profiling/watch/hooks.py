"""What is switched on inside the script: patches on torch and on loaders, put in place as their modules are imported.

Nothing is imported that the script does not import itself. Every patch does its own work around the original and
passes arguments, results and exceptions through unchanged; once the capture is over it is one attribute test.
"""

import functools
import os
import sys
import threading
import time
from typing import Any

from feedline.profiling.watch.capture import Capture
from feedline.profiling.watch.cuda import Device
from feedline.profiling.watch.facts import quietly
from feedline.profiling.watch.feed import Feeds
from feedline.profiling.watch.loaders import LOADERS
from feedline.profiling.watch.patches import Patches

_installed: list["Hooks"] = []
"""What the interpreter calls in a forked child cannot be taken back: one call for the life of the process."""


def _in_forked_child() -> None:
    for hooks in _installed:
        hooks.forked()


os.register_at_fork(after_in_child=_in_forked_child)


class Hooks:
    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.patches = Patches(capture.journal.complain)
        self.feeds = Feeds(capture, self.patches)
        self.patches.after_import("torch", self._torch)
        for adapter in LOADERS:
            self.patches.after_import(adapter.module, functools.partial(adapter.attach, feeds=self.feeds))

    def install(self) -> None:
        self.patches.install()
        _installed.append(self)
        self.patches.on_remove(lambda: _installed.remove(self))

    def remove(self) -> None:
        """Everything is as it was before `install`."""
        self.patches.remove()

    def forked(self) -> None:
        """In a child: a loader's worker, or one that trains in its parent's place, watched from its beginning."""
        capture = self.capture
        trained = (one.get("ended_by") for one in capture.journal.all("trainer-"))
        if capture.watch is None and capture.active and not any(trained):
            device, autocast = capture.device, capture.facts.autocast
            capture.__init__(capture.journal, capture.config)
            capture.device, capture.facts.autocast = device, autocast
            return
        capture.active = False
        capture.asking = capture.loop.current = None
        self.feeds.director = None
        if capture.watch is not None:
            capture.watch.sampler.restore_interval()

    def _torch(self, torch: Any) -> None:
        capture, replace = self.capture, self.patches.replace
        replace(torch.autograd, "backward", self._backward)
        save = self._saving(torch.save)
        replace(torch, "save", lambda _: save)
        replace(torch.serialization, "save", lambda _: save)
        optimizers = sys.modules.get("torch.optim.optimizer")
        if hasattr(optimizers, "register_optimizer_step_pre_hook"):
            self._time_steps(optimizers)
        capture.facts.autocast = False
        replace(torch.autocast, "__enter__", self._noting_autocast)
        if has_cuda(torch):
            capture.device = Device(torch, capture)
            capture.device.install(self.patches)

    def _saving(self, original: Any) -> Any:
        capture, clock = self.capture, time.perf_counter

        @functools.wraps(original)
        def save(*args: Any, **kwargs: Any) -> Any:
            if not capture.active:
                return original(*args, **kwargs)
            started = clock()
            try:
                return original(*args, **kwargs)
            finally:
                capture.costing(capture.pause, clock() - started)

        return save

    def _backward(self, original: Any) -> Any:
        """The outermost: what runs within (a checkpoint's own backward) may be called by autograd's thread."""
        capture, clock, inside = self.capture, time.perf_counter, set[int]()

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            thread = threading.get_ident()
            if not capture.active or thread in inside:
                return original(*args, **kwargs)
            capture.costing(capture.trains_here)
            inside.add(thread)
            started = clock()
            try:
                return original(*args, **kwargs)
            finally:
                inside.discard(thread)
                capture.costing(capture.backward, clock() - started)

        return backward

    def _time_steps(self, optimizers: Any) -> None:
        """By what torch calls before and after an optimiser's step."""
        capture, clock = self.capture, time.perf_counter
        compiling = getattr(getattr(optimizers.torch, "compiler", None), "is_compiling", bool)
        started = 0.0

        def before(optimizer: Any, *_: Any) -> None:
            nonlocal started
            if capture.active:
                if capture.facts.optimizer is None:
                    quietly(lambda: capture.facts.see_optimizer(optimizer))
                if not compiling():  # it would take this for a part of the step
                    capture.costing(quietly, lambda: capture.facts.see_optimizer(optimizer))
                    capture.costing(quietly, lambda: capture.gradients.stepping(optimizer))
            started = clock()

        def after(optimizer: Any, *_: Any) -> None:
            seconds = clock() - started
            if capture.active:
                capture.start()
                capture.costing(capture.optimizer_step, seconds, id(optimizer), sys._getframe(1))
            elif capture.over:
                capture.finish()
            else:
                capture.trains_on()

        self.patches.on_remove(optimizers.register_optimizer_step_pre_hook(before).remove)
        self.patches.on_remove(optimizers.register_optimizer_step_post_hook(after).remove)

    def _noting_autocast(self, original: Any) -> Any:
        @functools.wraps(original)
        def __enter__(context: Any) -> Any:
            facts = self.capture.facts
            facts.autocast = facts.autocast or bool(getattr(context, "_enabled", True))
            return original(context)

        return __enter__


def has_cuda(torch: Any) -> bool:
    """Built for CUDA (or ROCm) on a machine that has a device; asks nothing that would create a context."""
    built = getattr(torch.version, "cuda", None) or getattr(torch.version, "hip", None)
    return bool(built) and any(os.path.exists(path) for path in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg"))  # noqa: PTH110
