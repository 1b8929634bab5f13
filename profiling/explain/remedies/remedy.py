"""What a remedy is: a function from a measured run to changes.

    def my_remedy(at: Situation) -> Iterable[Change]: ...

It yields nothing where it does not apply, and a change that is `Vain`, with the reason, where it applies and would
not help. Its name is listed in the `REMEDIES` of its file; what a change gives, and what comes first, is for
`profiling.explain.predict` to say.
"""

import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from feedline.profiling.explain.measure.situation import Situation
from feedline.profiling.explain.measure.throughput import Throughput
from feedline.profiling.record.loader_kinds import MADE_BY
from feedline.profiling.record.recording import LoaderSeen, Recording, Trial


class Effort(IntEnum):
    """What a remedy asks of the user, the least first."""

    SETTING = 0
    CODE = 1
    PREPARING = 2
    REWRITE = 3
    HARDWARE = 4

    @property
    def words(self) -> str:
        names = ("a setting", "a change of code", "preparing once", "preparing once and a rewrite", "hardware")
        return names[self]


class Vain(str):
    """A reason why it will not help, whatever the model says."""

    __slots__ = ()


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What is offered, with or without a figure of what it gives."""

    family: str  # of its kind, of which the best alone is shown; "": of none
    remedy: str  # its name, with its values
    effort: Effort
    why: str  # it may help (how much is for the model to say), or is `Vain`
    command: str  # what to type or the line to write, to be copied
    target: str = ""  # the stage, function or transform that it is about
    needs: str = ""  # what it takes beside the command
    changes: str = ""  # what it changes in the training
    cost: str = ""  # what it costs beside the effort's words
    at_most: bool = False
    """What it is about is predicted as if it cost nothing: nobody gains more, and hardly anybody that much."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What to change, as keywords of the loader or of `feedline prepare`."""


@dataclass(frozen=True, kw_only=True)
class Change(Offer):
    """One remedy on one run, before it is turned into a prediction."""

    then: Throughput  # the model as it would be
    trial: Trial | None = None  # prepared samples that it rests on
    extra_error: float = 0.0  # relative error beyond the model's own, e.g. of an assumed factor
    ceiling_times: float = 1.0
    """How far it moves the ceiling; infinite where that is not known, as for copies and compute."""
    cause: bool = False  # it mends the very cause that was found: it comes before what gains more by another way
    measured: bool = False
    """It comes of what was seen of this loop: while that stays the limit, the model's own error is not in it."""

    @property
    def of_data(self) -> bool:
        """It mends the data's side, not the model, its copies or the script's own Python."""
        return math.isfinite(self.ceiling_times) or (self.cause and self.family not in ("pin", "python"))


Remedy = Callable[[Situation], Iterable[Change]]
ANEW = 0.4  # share of its passes, begun twice by some frameworks, from which a loader is made anew for each epoch
ONE_DATASET = "one dataset for all epochs: the script makes another with each, which may hold other samples"
AT_MOST = "this is what it would give if it cost nothing"
CROPS = re.compile("^(rand(om)?|cent(er|re)|five|ten)?_?(spatial)?_?crop")
RESIZES = re.compile("resiz|(?<!gray)(?<!grey)scale|maxsize|zoom")  # in a transform's name, lower case


def image_size(loader: LoaderSeen | None) -> int | None:
    """Shorter side of the images in its batches, NCHW or NHWC; of the largest, where there are several."""
    sides = [0]
    for _, first, middle, last in (shape for shape in (loader.batch_shapes if loader else []) if len(shape) == 4):
        sides.append(min(middle, last) if first in (1, 3) else min(first, middle) if last in (1, 3) else 0)
    return max(sides) or None


def squares(loader: LoaderSeen | None) -> str:
    """How `feedline prepare --resize` makes squares of what the script shows: all of a picture, or its middle."""
    return "stretch" if loader is not None and loader.stretched else "square"


def mirrors(loader: LoaderSeen | None) -> bool:
    return loader is not None and any("horizontalflip" in name.lower() for name in loader.transforms)


def trains(at: Situation) -> bool:
    """An optimiser stepped, or gradients were computed."""
    return at.recording.optimizer_steps > 0 or any(step.backward_s > 0 for step in at.recording.steps)


def unheld(loader: LoaderSeen) -> str:
    """What its batches have that those of feedline's loader have not, which are pictures in colour and the numbers of
    classes; "" where nothing is known to be. Classes may be left out."""
    seen = list(zip(loader.batch_dtypes, loader.batch_shapes, strict=False))
    if not seen or not all(shape for _, shape in seen) or loader.batch_size is None:
        return ""
    pictures = [one for one in seen if len(one[1]) == 4 and {1, 3} & {one[1][1], one[1][3]}]
    classes = [one for one in seen if len(one[1]) - (one[1][-1] == 1) == 1 and one[0].startswith(("int", "uint"))]
    if not pictures:
        return "its batches are no pictures (N, 3, H, W) or (N, H, W, 3)"
    more = [one for one in seen if one not in (*pictures, *classes)] + pictures[1:] + classes[1:]
    words = [f"{kind} ({', '.join(map(str, shape))}{',' * (len(shape) == 1)})" for kind, shape in more]
    return f"its batches have {' and '.join(words[:2])} beside them" if words else ""


def several_views(loader: LoaderSeen) -> bool:
    """All that its batches have more are pictures of the same kind and size, as transforms make them of one."""
    kept: list[tuple[str, list[int]]] = []
    for one in zip(loader.batch_dtypes, loader.batch_shapes, strict=False):
        kept += [] if one in kept and len(one[1]) == 4 else [one]
    return not unheld(replace(loader, batch_dtypes=[kind for kind, _ in kept], batch_shapes=[of for _, of in kept]))


def native_crops(loader: LoaderSeen | None, seen: Iterable[str]) -> bool:
    """It crops pictures as they are stored, as super-resolution does: no transform that is known resizes them before.
    `seen`: names of those that were at work, of which no order is known."""
    known = [name.lower() for name in (loader.transforms if loader else [])]
    names = [name.lower() for name in seen]
    if not any(map(RESIZES.search, known)) and any(map(RESIZES.search, names)):
        return False  # in code of its own, or inside one that is known by another name
    first = next((name for name in known or names if RESIZES.search(name) or CROPS.search(name)), "")
    return bool(first) and not RESIZES.search(first)


def drafted_px(crop_px: int | None) -> int:
    """What `Image.draft` is asked for: crops of half the picture then need no enlarging."""
    return 2 * (crop_px or 256)


def error_between(least: Throughput, most: Throughput) -> float:
    """Relative standard error of a rate that lies between the two's as a mean does between its standard errors."""
    return abs(math.log(most.rate() / least.rate())) / 2


def without_handover(at: Situation) -> float:
    """How far it moves the ceiling that batches need no unpickling."""
    return (at.now.step_s + at.now.handover_s) / at.now.step_s if at.now.step_s else 1.0


def loader_line(at: Situation, words: str, of_torch: str = "") -> str:
    """The call that makes the script's loader, with these words, and those that torch's alone needs; "" where whoever
    makes it takes no such setting."""
    kind, loader = at.measured.storage.kind, at.measured.loader
    by_setting = MADE_BY.get(loader.made_by, kind.by_setting) if loader is not None else kind.by_setting
    if by_setting is not None:
        name, _, value = words.partition("=")
        return by_setting.get(name, "").format(words, value=value)
    return kind.call.format(words) if kind.call else f"DataLoader(…, {words}{of_torch})"


def folder_of(at: Situation, otherwise: str) -> str:
    """Of the script's dataset, as a word of a command."""
    known = at.measured.loader.folder if at.measured.loader is not None else None
    return shlex.quote(known or otherwise)


def busy_time(at: Situation) -> str:
    """Of what shares of a sample's stages are, in words."""
    return "a worker's busy time" if at.now.workers else "the time that batches take to make"


def launcher(recording: Recording) -> str:
    """The program that starts the script: torchrun, accelerate; "" where Python does."""
    first, *others = recording.script.argv or [""]
    program = not recording.script.module and "/" not in first and not first.endswith(".py")
    return first if program and any(word.endswith(".py") or word in ("-m", "--module") for word in others) else ""


def script_command(recording: Recording, *before: str) -> str:
    """The script's own command line, started by `python`, or with other words before it."""
    words = ["-m"] * recording.script.module + (recording.script.argv or ["SCRIPT.py"])
    python = [] if launcher(recording) else ["python"]
    return shlex.join([*(before or python), *words])


def lines_of(recording: Recording, function: str) -> str:
    """What shows which lines of a function take the time. One that cannot be named (`<module>`, `__getitem__`: there
    is none of that name in a module) is left to `--lines`, which times the script's own. Both hand a loader's batches
    on; of a loop that asks none, kernprof times all functions of the script until its end, or Ctrl-C."""
    loader, first = recording.train_loader, (recording.script.argv or ["SCRIPT.py"])[0]
    if (loader is None or loader.unwatched) and not launcher(recording):
        return script_command(recording, "kernprof", "-l", "-v", "-p", first)
    named = bool(function) and "<" not in function and not function.startswith("__")
    return script_command(recording, "feedline", "profile", *(("--lines-of", function) if named else ("--lines",)))


def made_anew(at: Situation) -> bool:
    """Whether the script makes its loader anew for each epoch."""
    loader = at.measured.loader
    if loader is None:
        return False
    passes = 1 + max((epoch.epoch for epoch in at.recording.passes if epoch.loader == loader.id), default=0)
    return loader.made > max(1.0, ANEW * passes)


def datasets_anew(at: Situation) -> bool:
    """Whether it makes another dataset with each, which may hold other samples."""
    loader = at.measured.loader
    return loader is not None and loader.datasets > max(1.0, ANEW * loader.made)


def opened_anew(at: Situation) -> str:
    """What its dataset holds open before it has workers."""
    held = ", ".join(at.measured.loader.opened) if at.measured.loader else ""
    return held and f"{held} opened by each worker for itself: workers cannot share what is open already"
