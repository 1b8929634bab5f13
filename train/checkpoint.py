"""Checkpoints: one file that holds everything a run needs to go on to the same numbers.

The file is what `torch.save` writes (a zip whose members carry a CRC-32), made of tensors and plain values only,
so it loads with `weights_only=True` and cannot run anything. It appears under its name whole or not at all.
Names: `step-0000120.pt` (the last few are kept), `epoch-0005.pt` (asked for by name), `best.pt`.
"""

import errno
import hashlib
import io
import os
import pickle
import random
import zipfile
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from feedline.pipeline.base.errors import FeedlineError, UsageError
from feedline.pipeline.base.files import read_bounded, refused_as, sweep, write_atomically
from feedline.train.config import CHECKPOINTS
from feedline.train.distributed import is_restart, may_restart, short_line

FORMAT = "feedline-checkpoint"
VERSION = 1
BEST = "best.pt"
WENT_BACK = ".went-back"
MOST_BYTES = 64 << 30
"""What is larger is no checkpoint of these models, or has no end."""

State = dict[str, Any]
Where = Path
"""The place of a checkpoint: opaque to all but this module and the settings that name one."""


class CheckpointError(FeedlineError):
    """A checkpoint that is damaged, not ours, or of another dataset or model."""


class Resume(NamedTuple):
    """A checkpoint to go on from, its place, and what was wrong with newer ones."""

    state: State
    where: Where
    problems: list[str]


class Checkpoints:
    """Those of one run. Nothing else knows where they are kept."""

    def __init__(self, run: Path) -> None:
        self.run, self.folder = run, run / CHECKPOINTS

    def save(self, state: State, names: Iterable[str], keep_last: int) -> int:
        """The same bytes under each of `names`; returns how many. Of the step checkpoints only the newest `keep_last`
        stay. Raises CheckpointError when the disk refuses.

        `step-…` comes last: a run that is killed in between resumes before it, and writes the others anew.
        """
        data = to_bytes(state)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for name in sorted(names, key=lambda name: name.startswith("step-")):
                write_atomically(self.folder / name, data)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            remedy = "free some" if full else "make it a folder that can be written"
            said = f"cannot write a checkpoint to {self.folder}: {error.strerror or error}"
            raise CheckpointError(f"{said}: {remedy}, then go on with --resume auto") from error
        with suppress(OSError):  # the next time
            for where in self.steps()[:-keep_last]:
                where.unlink(missing_ok=True)
        sweep(self.folder)
        return len(data)

    @property
    def has_best(self) -> bool:
        return (self.folder / BEST).exists()

    def owns(self, where: Where) -> bool:
        return where.resolve().parent == self.folder.resolve()

    def go_on_from(self, resume: Resume, asked: str | None) -> list[str]:
        """Removes what lies beyond a checkpoint of this run's own: it is of a line that goes on no more; so is the
        best, if it came later. The checkpoint becomes the newest of the steps'. A restart does not go back to the one
        that `--resume` has `asked` for again. Returns notes. Raises CheckpointError when the disk refuses."""
        if not self.owns(resume.where):
            return []
        step = resume.state["progress"]["step"]
        left = [where for number, where in self._numbered("step-").items() if number > step]
        if (epoch := resume.state["progress"].get("epoch")) is not None:
            left += [where for number, where in self.kept().items() if number > epoch]
        with refused_as(CheckpointError, f"cannot go back in {self.folder}"):
            if not (own := self.folder / step_name(step)).exists():
                write_atomically(own, resume.where.read_bytes())
            with suppress(CheckpointError, KeyError):  # it is damaged, or there is none
                if read(self.folder / BEST)["progress"]["step"] > step:
                    (self.folder / BEST).unlink()
            for where in left:
                where.unlink(missing_ok=True)
            if asked not in (None, "auto") and self.owns(Path(asked)):
                write_atomically(self.folder / WENT_BACK, _going_back(asked).encode())
            else:
                (self.folder / WENT_BACK).unlink(missing_ok=True)
        return [f"went back to step {step}: removed {', '.join(where.name for where in left)}"] if left else []

    def _went_back_to(self) -> str:
        """The checkpoint that this run was last asked to go on from."""
        with suppress(OSError):
            return (self.folder / WENT_BACK).read_text()
        return ""

    def _numbered(self, kind: str) -> dict[int, Where]:
        """The smallest number first."""
        found = [(path.stem.removeprefix(kind), path) for path in self.folder.glob(f"{kind}*.pt")]
        return dict(sorted((int(number), path) for number, path in found if number.isdecimal()))

    def steps(self) -> list[Where]:
        """Oldest first."""
        return list(self._numbered("step-").values())

    def kept(self) -> dict[int, Where]:
        """Those of the epochs that were asked for by name, by epoch."""
        return self._numbered("epoch-")

    def newest_good(self) -> Resume | None:
        """Of those that are whole; None where there is none. Raises CheckpointError if all are damaged, and where the
        storage does not give one: it may be good, and to go on from an older one removes it."""
        problems: list[str] = []
        for where in reversed(self.steps()):
            try:
                state = read(where)
                told = [problem.removesuffix(": use an older one") for problem in problems]
                return Resume(state, where, [f"{problem}: going on from {where.name}" for problem in told])
            except CheckpointError as error:
                if isinstance(error.__cause__, OSError) and error.__cause__.errno != errno.ENOENT:
                    raise
                problems.append(str(error))
        if problems:
            raise CheckpointError(problems[0])
        return None

    def to_resume(self, asked: str | None) -> Resume | None:
        """What `--resume` means; None: from the start. Raises CheckpointError, or UsageError where a run would be
        overwritten."""
        if asked not in (None, "auto"):
            own, again = self.owns(Path(asked)), is_restart()
            # the next attempt goes on where the one before was, and not back to the file once it has been there
            if own:
                again = again and self._went_back_to() == _going_back(asked)
            if own and not again:  # another job's, or from before
                with suppress(OSError):
                    (self.folder / WENT_BACK).unlink()
            if (again or (may_restart() and not own)) and (newest := self.newest_good()):
                return newest
            found = Resume(read(Path(asked)), Path(asked), [])
            if self.steps() and not own:
                raise UsageError(f"{self.run} already holds another run: add --resume auto, or name another --run")
            return found
        # where torchrun may restart us, a start is a restart as soon as there is a checkpoint
        if asked or may_restart():
            return self.newest_good()
        if self.steps():
            raise UsageError(f"{self.run} already holds a run: add --resume auto, or name another --run")
        return None


def _going_back(asked: str) -> str:
    """What says that this job has gone back to a checkpoint: its restarts have the same words, and so may others."""
    job = os.environ.get("SLURM_JOB_ID") or os.environ.get("TORCHELASTIC_RUN_ID") or ""
    return f"{Path(asked).name} {job}"


def by_name(run: Path) -> dict[str, Where]:
    """A checkpoint file, or those of a run's kept epochs and its newest. Raises UsageError where there is none."""
    checkpoints = Checkpoints(run)
    found = [run] if run.is_file() else [*checkpoints.kept().values(), *checkpoints.steps()[-1:]]
    if not found:
        raise UsageError(f"{run} has no checkpoints: give the folder of a run that writes some (--keep-last)")
    return {where.stem: where for where in found}


def step_name(step: int) -> str:
    return f"step-{step:07d}.pt"


def epoch_name(epoch: int) -> str:
    return f"epoch-{epoch:04d}.pt"


def to_bytes(state: State) -> bytes:
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, "version": VERSION, **state}, buffer)
    return buffer.getvalue()


def from_bytes(data: bytes, where: str) -> State:
    """Raises CheckpointError with the reason for anything that is not a whole checkpoint of ours."""
    theirs = f"{where} is not a feedline checkpoint: give a file from a run's checkpoints/ folder"
    if data[:2] != b"PK" and data[:1024].strip(b"\0"):  # no zip, nor one that a full disk or a crash has emptied
        raise CheckpointError(theirs)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            damaged = archive.testzip()
        state = None if damaged else torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # torch's own words are advice to load it all the same
        reason = "it holds more than tensors and plain values, of which nothing was run"
        raise CheckpointError(f"checkpoint {where} cannot be read ({reason}): use one that feedline wrote") from error
    except Exception as error:  # torch.load raises whatever the unpickler met
        raise CheckpointError(f"checkpoint {where} cannot be read ({short_line(error)}): use an older one") from error
    if damaged:
        raise CheckpointError(f"checkpoint {where} is damaged ({damaged} has a wrong checksum): use an older one")
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(theirs)
    if state.get("version") != VERSION:
        raise CheckpointError(f"checkpoint {where} has version {state.get('version')}, this feedline reads {VERSION}")
    return state


def read(where: Where) -> State:
    """Raises CheckpointError."""
    with refused_as(CheckpointError, f"checkpoint {where} cannot be read"):
        data = read_bounded(where, MOST_BYTES)
    return from_bytes(data, str(where))


def digest(where: Where) -> str:
    """SHA-256 of its bytes."""
    return hashlib.sha256(where.read_bytes()).hexdigest()


@contextmanager
def as_whole(where: Where) -> Generator[None]:
    """What a state that lacks or mixes up something leads to while it is taken, as a CheckpointError."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {short_line(error)}"
        raise CheckpointError(f"checkpoint {where} is not whole ({reason}): use an older one") from error


def random_state(device: torch.device) -> State:
    """Of every generator a model or a user's code may draw from in this process."""
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    version, words, gauss_next = random.getstate()
    state: State = {
        "torch": torch.get_rng_state(),
        "numpy": [str(name), np.asarray(keys).tolist(), int(position), int(has_gauss), float(gauss)],
        "python": [version, list(words), gauss_next],
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(state: State, device: torch.device) -> None:
    torch.set_rng_state(state["torch"])
    name, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((name, np.array(keys, np.uint32), position, has_gauss, gauss))
    version, words, gauss_next = state["python"]
    random.setstate((version, tuple(words), gauss_next))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
