"""What the trainer's main thread was doing, read off its stack: `recording.TrainerPart`.

Innermost frame first. Library frames decide by file, a user's own frames by the text of their line; a frame no rule
knows passes the question outwards. Standard-library frames are charged to whoever called them.
"""

from types import FrameType

from feedline.profiling.watch.rules import Rule, Rules, frames, is_library, is_ours, place_name

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
RULES = Rules(LIBRARY_RULES, USER_LINES, (("forward", r"^forward$"),), otherwise="python")


def part(frame: FrameType | None) -> tuple[str, str]:
    """(part, place) of a stack, given its innermost frame; the place is `file:function:line` of the user's own."""
    found, own = None, None
    for one in frames(frame):
        file = one.f_code.co_filename
        if is_ours(file):
            continue
        if found is None:
            found = RULES.stage_of(one.f_code, one.f_lineno)
        if not is_library(file):
            own = one
            break  # a frame of the user's own always decides
    place = f"{place_name(own.f_code)}:{own.f_lineno}" if own else "nowhere"
    return found or "other", place
