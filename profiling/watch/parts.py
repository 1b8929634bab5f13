"""What the training thread does, read off its stack: one of `recording.TrainerPart`, and where.

What the loop itself calls is told apart by `LoopCode`, which is learnt while it runs: from the stacks under which an
optimiser steps and a loader is asked.
"""

import re
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from feedline.profiling.record.stages import STAGES
from feedline.profiling.watch.calls import called, discards, takes_gradient, variable
from feedline.profiling.watch.evidence import LOCK, SLEEP, WAIT
from feedline.profiling.watch.rules import (
    PLUMBING,
    TRAINER,
    WORKER,
    Place,
    frames,
    is_in,
    is_library,
    is_ours,
    line_of,
    of_package,
    place_name,
    slashed,
)

ONLY_ON_DEVICE = ("synchronise", "copy")
"""Where there is no device, what a model computes is all there is behind these calls."""
ELSE = ("logging", "checkpoint", "backward", "optimizer")
"""Parts that are no making of batches, whatever is read for them."""
GENERATOR, COROUTINE = 0x20 | 0x200, 0x80  # flags of code: a generator's, an asynchronous one's too
NO_SOURCE = r"/torch/nn/modules/module\.py:|/torch/_(dynamo|inductor)/|/contextlib\.py:|/PIL/\w+\.py:(\w+\.)?_?save"
"""Frames (file:qualified name) under which nobody makes batches, whatever is read or generated there: a model that
computes or is compiled, a block that is entered or left, a picture that is written."""
SIDE_WORK = (
    r"/(site|dist)-packages/(optuna|botorch|ax|skopt|sklearn|shap|captum)/"
    r"|/torch/fx/(_symbolic_trace|interpreter|passes)"
)
"""Packages that compute for themselves, with torch and gradients, too: the model that is trained is not theirs, or is
taken apart there."""
QUERIES = r"_?sqlite3\b.*"  # who asks a database in a loop reads samples; in a dataset it is what prepares them
CALLS_OF_C = r"/torch/((nn/)?functional|_tensor|_lowrank|_linalg_utils)\.py:"
"""What torch has in Python around its C code."""
HANDS_OVER = r"/(queue|multiprocessing/queues)\.py:\w+\.put$"
"""Whom a watched loader hands his batches waits for none where he waits until a queue takes something."""
NO_READING = r"\S*(open|stat|seek|scandir|listdir)"  # calls that belong to reading, and to writing as well
DECODERS = (
    r"/PIL/ImageFile\.py:\w+\.load$|/torchvision/io/image\.py:(decode_|read_image)"
    r"|/(simplejpeg|turbojpeg|imageio|skimage/io)\b[^:]*:[^<]"
)
DECODING = r"cv2\.im(de|re)\w+|(simplejpeg|_?turbojpeg|imagecodecs|nvidia)\b.*"
"""Where pictures are decoded (file:qualified name; importing a library is none of it), and calls that do. Whoever
does so between a loader and the model makes batches; other reading there may be for anything."""
ARRAYS = r"/numpy/lib/(_?npyio|_?format)\w*\.py:|/(h5py|lmdb|zarr|pyarrow)/|/torch/serialization\.py:"
ARRAY_CALLS = r"(h5py|lmdb|zarr|pyarrow)\b.*|numpy\.(fromfile|memmap)"
"""The same of arrays: who reads them behind a hand-made loop's step may fill what the next one is taken from."""


@dataclass(frozen=True)
class LoopCode:
    """What is known of a training loop's code, while it runs."""

    steps: set[CodeType] = field(default_factory=set[CodeType])
    """Code on the stack as the optimiser steps: what these functions call is the loop's work."""
    stepped: dict[CodeType, int] = field(default_factory=dict[CodeType, int])
    """The last of their lines that asked for such a step. What they call behind it, and keep nothing of, makes no
    batch, unless it was seen reading what batches are made of."""
    makers: set[CodeType] = field(default_factory=set[CodeType])
    """Functions of the script's that the loop calls and that were seen reading or decoding: they make its batches."""
    decoders: set[CodeType] = field(default_factory=set[CodeType])
    """Those that were seen decoding what a watched loader handed over."""
    models: set[CodeType] = field(default_factory=set[CodeType])
    """Those that were seen calling a model, which do more than that."""
    between: set[CodeType] = field(default_factory=set[CodeType])  # generators on the stack as a loader is asked


def part(
    frame: FrameType | None,
    *,
    on_device: bool,
    loop: LoopCode | None = None,
    hands_itself: bool = True,
    blocked: str | None = None,
    held: bool | None = None,
    trains: bool = False,
) -> Place:
    """What the training thread does (`recording.TrainerPart`), given its innermost frame, and where: at
    `file:function:line` of the user's own. What that called in a library decides, where a rule knows it; else what C
    function it calls, and whose. `blocked` is what the thread is mostly blocked in, `held` whether it held the
    interpreter lock. What makes batches is told of a loop that `hands_itself` its batches by all that it reads and
    iterates over, of one that a watched loader hands them by the pictures that are decoded, and by what a framework
    calls for that. Where an optimiser steps (`trains`), what the script, or a library for it, asks of torch, in no
    model and for no gradient, is no part of the model; beneath an optimiser's step, which may be one of the script's,
    it is that. Where none of the script's own works, it is at the innermost function of the package that the loop
    calls; "" for torch's."""
    inner, found, in_model, in_optimizer = True, None, False, False
    own: FrameType | None = None
    innermost: FrameType | None = None
    callee: FrameType | None = None  # what the loop has called
    outermost: CodeType | None = None  # of the user's own, beneath the loop's
    reads = yields = fills = prepares = False
    for one in frames(frame):
        code, file = one.f_code, one.f_code.co_filename
        if is_ours(file):
            continue
        in_model, stage = in_model or has_weights(one), TRAINER.stage_of(code, one.f_lineno)
        in_optimizer, prepares = in_optimizer or stage == "optimizer", prepares or stage == "prepare"
        library = is_library(file) or generated(one)
        innermost = innermost or one
        call = called(one) if inner else None
        if found is None and inner:
            found = _of_frame(one, call) or (None if library else _of_own(call, blocked, held))
        elif found is None and not slashed(file).endswith(PLUMBING):
            found = _of_frame(one, None) or (None if library else "python")
        if found == "wait" and not hands_itself and is_in(code, HANDS_OVER):
            found = None
        elif found in ("forward", "backward", "optimizer") and is_in(code, SIDE_WORK):
            found = "python"
        own = own or (None if library else one)
        source = not is_in(code, NO_SOURCE)
        fills = source and (fills or _is(one, call, DECODERS, DECODING))
        fills = fills or (source and hands_itself and _is(one, call, ARRAYS, ARRAY_CALLS))
        reads = source and (reads or fills or (hands_itself and _reads(one, call)))
        if loop is not None and code in loop.steps:
            if hands_itself and outermost is not None and found == "python" and blocked == SLEEP:
                found = "wait"  # nobody sleeps for it but until somebody has made a batch
            waits = found == "unpickle" or (found == "wait" and blocked in (LOCK, SLEEP, WAIT))  # whoever makes them
            makers = loop.makers if hands_itself else loop.decoders
            behind = line_of(one) > loop.stepped.get(code, sys.maxsize) and discards(code, one.f_lasti)
            if behind and not fills and outermost not in makers:
                reads, yields, outermost = False, False, None
            if not waits and found not in ELSE and _makes(outermost, reads, yields, in_model, makers, loop.models):
                found = "load" if hands_itself else "prepare"
            break
        yields = hands_itself and source and (yields or yields_batches(code) or is_task(one))
        outermost = outermost if library else code
        callee, inner = one, False
    if found is None and trains and innermost and not (hands_itself or in_model or blocked in (LOCK, WAIT)):
        found = _of_own(called(innermost), blocked, held)
    found = found if on_device or found not in ONLY_ON_DEVICE else "forward"
    if trains and found == "forward" and not in_model and own and innermost and _is_no_model(innermost, on_device):
        found = "optimizer" if in_optimizer else "python"
    if prepares and not (hands_itself or in_model) and found in (("python",) if on_device else ("python", "forward")):
        found = "prepare"
    own = own or of_package(frame, callee)
    return Place(found or "other", f"{place_name(own.f_code)}:{line_of(own)}" if own else "")


def _is(frame: FrameType, call: str | None, places: str, calls: str) -> bool:
    """Whether a frame is one of these, or calls one of these functions of C."""
    return is_in(frame.f_code, places) or (call is not None and re.fullmatch(calls, call) is not None)


def _reads(frame: FrameType, call: str | None) -> bool:
    """Whether a frame, or the C function that it calls, reads or decodes samples of any kind."""
    evident = call if call and not re.fullmatch(NO_READING, call) else None
    if evident and re.fullmatch(QUERIES, evident):
        return True
    stage = WORKER.stage_of(frame.f_code, frame.f_lineno) or (WORKER.stage_of_call(evident) if evident else None)
    return stage is not None and STAGES[stage].makes


def _of_frame(frame: FrameType, call: str | None) -> str | None:
    """What a frame and the C function that it calls say by themselves; None where no rule knows them."""
    found = TRAINER.stage_of(frame.f_code, frame.f_lineno) or (TRAINER.stage_of_call(call) if call else None)
    return found or ("forward" if generated(frame) else None)


def _is_no_model(frame: FrameType, on_device: bool) -> bool:
    """Whether something else than torch itself asks for tensors there of which none takes part in a gradient. What
    torch has in Python for one call of its C code is whoever's that called it, but on a device, where a call may wait
    for what was asked before."""
    code = frame.f_code
    torchs = is_library(code.co_filename) and "/torch/" in slashed(code.co_filename)
    if generated(frame) or (torchs and (on_device or not is_in(code, CALLS_OF_C))):
        return False
    return takes_gradient(frame) is False


def _of_own(call: str | None, blocked: str | None, held: bool | None) -> str:
    """The script's own code that calls what no rule knows, or nothing. A lock that it waits for in somebody's C code
    may be that of threads which compute for it."""
    if blocked in (LOCK, WAIT):
        return "other" if call and blocked == LOCK else "wait"
    unknown = call == "" and not blocked and held is False  # it computes in C, for whom is not known
    return "other" if unknown else "python"


def _makes(
    called: CodeType | None,
    reads: bool,
    yields: bool,
    in_model: bool,
    makers: set[CodeType],
    models: set[CodeType],
) -> bool:
    """Whether what the loop has called makes batches: an iterator, or a function that reads or decodes pictures, or
    was seen doing so and calls no model."""
    if called is not None and in_model:
        models.add(called)
    elif called is not None and reads:
        makers.add(called)
    return reads or yields or called in makers - models


def yields_batches(code: CodeType) -> bool:
    """Whether a loop may iterate over what it makes."""
    return code.co_name == "__next__" or bool(code.co_flags & GENERATOR and code.co_name != "<genexpr>")


def is_task(frame: FrameType) -> bool:
    """Whether it is a coroutine that an event loop runs: where another one trains, by turns with that."""
    behind = frame.f_back
    coroutine = frame.f_code.co_flags & COROUTINE
    return bool(coroutine and behind is not None and "/asyncio/" in slashed(behind.f_code.co_filename))


def generated(frame: FrameType) -> bool:
    """Code that torch has made of the script's, as Inductor's kernels and FX's graphs are."""
    file = frame.f_code.co_filename
    return file.startswith("<eval_with_key") or (
        frame.f_back is not None and "/torch/_inductor/" in slashed(frame.f_back.f_code.co_filename)
    )


def has_weights(frame: FrameType) -> bool:
    """Whether a module that has some is called there. Nothing of the module's own is asked."""
    return slashed(frame.f_code.co_filename).endswith(PLUMBING[0]) and _weighs(variable("self", frame, local=True))


def of_module(frame: FrameType) -> bool:
    """Whether it is a method of such a module, however it was called."""
    if frame.f_code.co_varnames[:1] != ("self",):
        return False
    one = variable("self", frame, local=True)
    return hasattr(one, "__dict__") and {"_parameters", "_modules"} <= vars(one).keys() and _weighs(one)


def _weighs(module: Any) -> bool:
    due, seen = [module], set[int]()
    with suppress(RuntimeError, LookupError, TypeError, AttributeError):  # it changes meanwhile; it is none
        while due:
            held = vars(due.pop())
            if any(one is not None for one in held["_parameters"].values()):
                return True
            inner = [one for one in held["_modules"].values() if one is not None and id(one) not in seen]
            seen.update(map(id, inner))
            due += inner
        return False
    return True
