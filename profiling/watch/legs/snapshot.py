"""What a function trains and draws that is run for its measurement alone: kept before, put back behind.

The garbage collector knows every module, optimiser, schedule, scaler and loader of torch's that is alive: whatever
the function reaches is among them, and what it makes itself is nobody's. Parameters and buffers are copied to the
CPU's memory and put back in place, so whoever holds them keeps them. Cost: that copy, and one of every optimiser's
state.
"""

import copy
import functools
import gc
import random
import sys
from collections.abc import Callable
from typing import Any

from feedline.profiling.watch.facts import quietly

STATEFUL = ("Optimizer", "LRScheduler", "ReduceLROnPlateau", "GradScaler")
"""Classes of torch's that tell their whole state and take it back."""


class Snapshot:
    def __init__(self) -> None:
        self._put_back: list[Callable[[], object]] = []
        self._seen = set[int]()  # ids of tensors and generators: what is shared is kept once
        self._keep(random.getstate(), random.setstate)
        if "numpy.random" in sys.modules:
            numpy = sys.modules["numpy.random"]
            self._keep(numpy.get_state(), numpy.set_state)
        if "torch" in sys.modules:
            self._keep_torch(sys.modules["torch"])

    def restore(self) -> None:
        """As it was when this was made. What cannot be put back is raised when all else has been."""
        errors: list[Exception] = []
        for put_back in self._put_back:
            try:
                put_back()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _keep(self, state: Any, put_back: Callable[[Any], object]) -> None:
        self._put_back.append(lambda: put_back(state))

    def _keep_torch(self, torch: Any) -> None:
        self._keep(torch.get_rng_state(), torch.set_rng_state)
        if torch.cuda.is_initialized():
            self._keep(torch.cuda.get_rng_state_all(), torch.cuda.set_rng_state_all)
        homes = (torch.optim, torch.optim.lr_scheduler, torch.amp)  # older versions lack some of these
        stateful = tuple(getattr(home, name) for home in homes for name in STATEFUL if hasattr(home, name))
        alive = gc.get_objects()
        # not `isinstance`, which asks a proxy what it stands for
        themselves = {id(one): one for one in alive if issubclass(type(one), (torch.nn.Module, *stateful))}
        for one in alive:
            kind = type(one)
            if issubclass(kind, torch.nn.Module) and hasattr(one, "_parameters"):  # else its making has failed
                self._keep_module(torch, one)
            elif issubclass(kind, stateful) and (state := quietly(one.state_dict)) is not None:
                kept = quietly(lambda state=state: copied(torch, state, dict(themselves)))
                if kept is not None:  # else it holds what cannot be copied, as a lock
                    self._keep(kept, functools.partial(load, one))
            elif issubclass(kind, torch.utils.data.DataLoader):
                for home in (one, vars(one).get("sampler")):
                    generator = getattr(home, "generator", torch)
                    if isinstance(generator, torch.Generator) and self._is_new(generator):
                        self._keep(generator.get_state(), generator.set_state)

    def _is_new(self, one: Any) -> bool:
        new = id(one) not in self._seen
        self._seen.add(id(one))
        return new

    def _keep_module(self, torch: Any, module: Any) -> None:
        self._keep(module.training, lambda training: setattr(module, "training", training))
        for tensors in (module.named_parameters, module.named_buffers):
            for name, tensor in tensors(recurse=False):
                if self._is_new(tensor) and not tensor.is_meta and not torch.nn.parameter.is_lazy(tensor):
                    self._keep_tensor(torch, module, name, tensor)

    def _keep_tensor(self, torch: Any, module: Any, name: str, tensor: Any) -> None:
        before = tensor.detach().to("cpu", copy=True)
        had = tensor.grad if tensor.is_leaf else None
        gradient = None if had is None else had.detach().to("cpu", copy=True)

        def put_back() -> None:
            now = getattr(module, name, torch)
            if not isinstance(now, torch.Tensor) or now.shape != before.shape:  # the function has made another of it
                return
            with torch.no_grad():
                if not torch.equal(now.detach().cpu(), before):  # what is expanded cannot be written, nor has it been
                    now.copy_(before)
            if now.is_leaf:
                now.grad = None if gradient is None else gradient.to(now.device)

        self._put_back.append(put_back)


def copied(torch: Any, state: Any, themselves: dict[int, Any]) -> Any:
    """Modules, optimisers and schedules that a schedule holds stay `themselves`. What an optimiser has for each
    parameter, which it moves back by itself, is kept in the CPU's memory."""
    if not isinstance(state, dict) or not {"state", "param_groups"} <= state.keys():
        return copy.deepcopy(state, themselves)
    rest = {name: one for name, one in state.items() if name != "state"}
    of_each = {key: on_cpu(torch, one, themselves) for key, one in state["state"].items()}
    return {**copy.deepcopy(rest, themselves), "state": of_each}


def on_cpu(torch: Any, values: Any, themselves: dict[int, Any]) -> Any:
    if not isinstance(values, dict):
        return copy.deepcopy(values, themselves)
    return {
        name: one.detach().to("cpu", copy=True) if isinstance(one, torch.Tensor) else copy.deepcopy(one, themselves)
        for name, one in values.items()
    }


def load(one: Any, state: Any) -> None:
    """An optimiser's groups stay the objects they are, which a wrapper or a schedule may hold, too."""
    groups = getattr(one, "param_groups", None)
    if not isinstance(groups, list) or "param_groups" not in state:
        one.load_state_dict(state)
        return
    del groups[len(state["param_groups"]) :]  # what the function has added
    held = list(groups)
    one.load_state_dict(state)
    for old, new in zip(held, one.param_groups, strict=True):
        old.update(new)
    groups[:] = held
    one.param_groups = groups
