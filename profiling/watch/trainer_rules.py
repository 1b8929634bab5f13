"""What the trainer's main thread was doing, read off its stack: `recording.TrainerPart`, by a table of rules.

Innermost frame first. Library frames decide by file, a user's own frames by the text of their line; a frame no rule
knows passes the question outwards. Standard-library frames are charged to whoever called them.
"""

import re
from functools import lru_cache
from types import CodeType, FrameType

from feedline.profiling.watch.worker_rules import Rule, frames, is_library, place_name, source_line

LIBRARY_RULES: tuple[Rule, ...] = (
    Rule("unpickle", "/torch/multiprocessing/reductions.py"),
    Rule("unpickle", "/multiprocessing/queues.py", line=r"loads\(|_recv_bytes"),
    Rule("unpickle", "/multiprocessing/resource_sharer.py"),
    Rule("unpickle", "/multiprocessing/reduction.py", "recv.*|rebuild.*|loads"),
    Rule("pin", "/torch/utils/data/_utils/pin_memory.py"),
    Rule("wait", "/torch/utils/data/dataloader.py"),
    Rule("wait", "/torchdata/"),
    Rule("wait", "/webdataset/"),
    Rule("checkpoint", "/torch/serialization.py", ".*save.*|.*write.*"),
    Rule("backward", "/torch/autograd/"),
    Rule("backward", "/torch/_tensor.py", "backward"),
    Rule("synchronise", "/torch/cuda/", "synchronize"),
    Rule("optimizer", "/torch/optim/"),
    Rule("optimizer", "/torch/amp/grad_scaler.py"),
    Rule("optimizer", "/torch/nn/utils/clip_grad.py"),
    Rule("logging", "/tensorboard/"),
    Rule("logging", "/torch/utils/tensorboard/"),
    Rule("logging", "/tensorboardX/"),
    Rule("logging", "/wandb/"),
    Rule("logging", "/mlflow/"),
    Rule("logging", "/logging/__init__.py"),
    Rule("logging", "/tqdm/"),
    Rule("logging", "/rich/"),
    Rule("logging", "/matplotlib/"),
    Rule("python", "/torch/utils/data/"),
    Rule("forward", "/torch/nn/"),
    Rule("forward", "/torch/"),
    Rule("forward", "/torchvision/models/"),
    Rule("forward", "/torchvision/ops/"),
    Rule("forward", "/timm/"),
    Rule("forward", "/torchmetrics/"),
    Rule("python", "/numpy/"),
)

USER_LINES: tuple[tuple[str, str], ...] = (
    ("backward", r"\.backward\("),
    ("optimizer", r"\b(optim\w*|opt|scaler)\.(step|zero_grad)\(|zero_grad\("),
    ("checkpoint", r"torch\.save\("),
    ("synchronise", r"\.item\(|\.cpu\(|\.tolist\(|\.numpy\(|synchronize\("),
    ("copy", r"\.to\(|\.cuda\("),
    ("logging", r"\bprint\(|\blog(ger|ging)?\.\w+\(|writer\.add_|\.log\(|add_scalar"),
    ("forward", r"\b(model|net|network|criterion|loss_fn|loss_func|self\.\w+)\(|\bF\.\w+\(|\btorch\.\w+\("),
)

_USER_LINES = [(part, re.compile(text)) for part, text in USER_LINES]


HERE = __file__.replace("\\", "/").rpartition("/watch/")[0] + "/"


def is_ours(file: str) -> bool:
    """Frames of the probe itself stand between the script and what it called."""
    return file.startswith(HERE)


@lru_cache(maxsize=16384)
def part_of(code: CodeType, line_number: int | None) -> str | None:
    """The part one frame tells by itself; None when it passes the question on."""
    file = code.co_filename.replace("\\", "/")
    text = source_line(code.co_filename, line_number)
    if is_library(file):
        for rule in LIBRARY_RULES:
            if (
                rule.file in file
                and (not rule.function or re.fullmatch(rule.function, code.co_name))
                and re.search(rule.line, text)
            ):
                return rule.stage
        return None
    for part, pattern in _USER_LINES:
        if pattern.search(text):
            return part
    return "forward" if code.co_name == "forward" else "python"


def part(frame: FrameType | None) -> tuple[str, str]:
    """(part, place) of a stack, given its innermost frame; the place is `file:function:line` of the user's own."""
    found, own = None, None
    for one in frames(frame):
        file = one.f_code.co_filename
        if is_ours(file):
            continue
        if found is None:
            found = part_of(one.f_code, one.f_lineno)
        if not is_library(file):
            own = one
            break  # a frame of the user's own always decides
    place = f"{place_name(own.f_code)}:{own.f_lineno}" if own else "nowhere"
    return found or "other", place


def own_place(frame: FrameType) -> str:
    """file:line of the script's own code that a stack came from: a `print(loss)` synchronises deep inside torch."""
    for one in frames(frame):
        file = one.f_code.co_filename
        if not is_library(file) and not is_ours(file):
            return f"{file.replace(chr(92), '/').rpartition('/')[2]}:{one.f_lineno}"
    return "a library"
