"""Reading a stack by a table of rules: what a worker prepares (`classify`), what the training thread does (`part`).

From the innermost frame outwards, the first frame that a rule knows decides. Rules for libraries name a file and,
where it matters, a function or the text of the source line; rules for a user's own code look at the line ("np.load("
reads, "imdecode(" decodes) and then at the function's name. PIL decodes lazily, so `ImageFile.load` is where decoding
happens, whoever called it; a transform that triggers it is not blamed. Standard-library frames that no rule knows are
charged to whoever called them.

Cost: one dictionary look-up per frame once a place has been seen.
"""

import linecache
import re
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FrameType

DEPTH = 80  # frames looked at; deeper stacks are cut at the outside
HERE = __file__.replace("\\", "/").rpartition("/watch/")[0] + "/"
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


@dataclass(frozen=True)
class Rule:
    stage: str
    files: str
    """Parts of files' paths, with / on both sides of folders; any of them, between spaces."""
    function: str = ""
    """Regular expression the whole function name matches; empty for any."""
    line: str = ""
    """Regular expression found in the source line; empty for any."""

    def fits(self, file: str, function: str, text: str) -> bool:
        return (
            any(part in file for part in self.files.split())
            and (not self.function or re.fullmatch(self.function, function) is not None)
            and (not self.line or re.search(self.line, text) is not None)
        )


@dataclass(frozen=True)
class Place:
    """What a stack was doing."""

    stage: str
    where: str
    """file:function of the frame that decided, or of the innermost frame of the user's own."""
    transform: str | None = None
    """Class or function name, for stage transform."""


class Rules:
    """A table: rules for libraries, and (name, regular expression) for lines and functions of the user's own code."""

    def __init__(
        self,
        library: Sequence[Rule],
        lines: Sequence[tuple[str, str]],
        functions: Sequence[tuple[str, str]],
        otherwise: str | None = None,
    ) -> None:
        """`otherwise`: what the user's own code is that no rule knows."""
        self.library = library
        self.lines = lines
        self.functions = functions
        self._otherwise = otherwise
        self.stage_of = lru_cache(maxsize=16384)(self._stage_of)
        """(code, line number) -> the name of one frame by itself; None when no rule knows it."""

    def _stage_of(self, code: CodeType, line_number: int | None) -> str | None:
        file, function = slashed(code.co_filename), code.co_name
        text = source_line(code.co_filename, line_number)
        if is_library(file):
            return next((rule.stage for rule in self.library if rule.fits(file, function, text)), None)
        by_line = (stage for stage, pattern in self.lines if re.search(pattern, text))
        by_name = (stage for stage, pattern in self.functions if re.search(pattern, function.lower()))
        return next(by_line, None) or next(by_name, self._otherwise)


TORCH_WORKERS = "/torch/utils/data/_utils/worker.py /torchdata/stateful_dataloader/worker.py"
WORKER = Rules(
    (
        # torch's own loader
        Rule("idle", TORCH_WORKERS, line=r"index_queue\.get"),
        Rule("send", TORCH_WORKERS, line=r"data_queue\.put"),
        Rule("collate", "/torch/utils/data/_utils/fetch.py", line=r"collate_fn\("),
        Rule("collate", "/torch/utils/data/_utils/collate.py"),
        Rule("send", "/torch/multiprocessing/reductions.py /multiprocessing/reduction.py"),
        # Pillow: opening reads the header, loading reads the rest and decodes
        Rule("read", "/PIL/ImageFile.py", "load", r"read\("),
        Rule("decode", "/PIL/ImageFile.py", "load.*"),
        Rule("read", "/PIL/Image.py", "open|_open_core|preinit|init"),
        Rule("decode", "/PIL/Image.py", "convert|from(array|buffer|bytes)|_?new|__init__|copy|load|_getdecoder|im"),
        Rule("read", "/PIL/JpegImagePlugin.py /PIL/PngImagePlugin.py /PIL/ImageFile.py"),
        # torchvision
        Rule("decode", "/torchvision/io/image.py", "decode_.*|read_image"),
        Rule("read", "/torchvision/io/", "read_file|_read_.*"),
        Rule("decode", "/torchvision/datasets/mnist.py /torchvision/datasets/cifar.py", "__getitem__", r"fromarray"),
        Rule("transform", "/torchvision/datasets/", line=r"transforms?\("),
        Rule("transform", "/torchvision/transforms/ /torchvision/tv_tensors/"),
        Rule("read", "/torchvision/datasets/"),
        # other transforms
        Rule("transform", "/albumentations/ /albucore/ /imgaug/ /kornia/ /timm/data/"),
        Rule("transform", "/PIL/ImageOps.py /PIL/ImageEnhance.py /PIL/ImageFilter.py /PIL/Image.py"),
        # webdataset
        Rule("read", "/webdataset/tariterators.py /webdataset/gopen.py /webdataset/cache.py"),
        Rule("decode", "/webdataset/autodecode.py"),
        Rule("decode", "/webdataset/filters.py", "decode"),
        Rule("collate", "/webdataset/filters.py", "_?batched|.*collation.*|default_collation_fn"),
        Rule("transform", "/webdataset/filters.py", "_?map.*"),
        # files and stores
        Rule("read", "/tarfile.py /zipfile /gzip.py /fsspec/ /s3fs/ /botocore/ /urllib /requests/ /http/client.py"),
        Rule("read", "/ssl.py /h5py/ /lmdb/ /zarr/ /pyarrow/ /numpy/lib/_npyio_impl.py /numpy/lib/npyio.py"),
        Rule("read", "/numpy/lib/format.py /numpy/lib/_format_impl.py /torch/serialization.py /pathlib"),
        Rule("decode", "/simplejpeg/ /turbojpeg /imageio/ /skimage/io/"),
        Rule("transform", "/skimage/ /scipy/ndimage/"),
    ),
    lines=(
        ("decode", r"imdecode|imread\(|decode_(jpe?g|png|image)|jpeg\.decode|\.convert\(|fromarray\(|from_?buffer\("),
        ("read", r"\bopen\(|\.read(_bytes|_text|into|lines?)?\(|np\.load\(|torch\.load\(|read_file\(|\.get_object|"
                 r"requests\.|\.fetch\(|\.download|memmap\("),
        ("collate", r"collate\w*\("),
        ("transform", r"(?<!def )\b\w*transforms?\w*\(|augment\w*\(|\baug\(|\.resize\(|\.crop\(|\.flip\(|"
                      r"normali[sz]e\(|from_numpy\(|np\.(as)?array\(|\.astype\(|\.permute\(|\btorch\.(as_)?tensor\("),
    ),
    functions=(
        ("collate", r"collate|to_batch|make_batch"),
        ("decode", r"decod|imread"),
        ("read", r"read|fetch|download|load_bytes|load_file|open"),
        ("transform", r"transform|augment|resize|crop|flip|jitter|blur|normali[sz]e"),
    ),
)  # fmt: skip
TRAINER = Rules(
    (
        Rule("unpickle", "/torch/multiprocessing/reductions.py /multiprocessing/resource_sharer.py"),
        Rule("unpickle", "/multiprocessing/queues.py", line=r"loads\(|_recv_bytes"),
        Rule("unpickle", "/multiprocessing/reduction.py", "recv.*|rebuild.*|loads"),
        Rule("pin", "/torch/utils/data/_utils/pin_memory.py"),
        Rule("wait", "/torch/utils/data/dataloader.py /torchdata/ /webdataset/"),
        Rule("checkpoint", "/torch/serialization.py", ".*save.*|.*write.*"),
        Rule("backward", "/torch/autograd/"),
        Rule("backward", "/torch/_tensor.py", "backward"),
        Rule("synchronise", "/torch/cuda/", "synchronize"),
        Rule("optimizer", "/torch/optim/ /torch/amp/grad_scaler.py /torch/nn/utils/clip_grad.py"),
        Rule("logging", "/tensorboard/ /torch/utils/tensorboard/ /tensorboardX/ /wandb/ /mlflow/"),
        Rule("logging", "/logging/__init__.py /tqdm/ /rich/ /matplotlib/"),
        Rule("python", "/torch/utils/data/"),
        Rule("forward", "/torch/ /torchvision/models/ /torchvision/ops/ /timm/ /torchmetrics/"),
        Rule("python", "/numpy/"),
    ),
    lines=(
        ("backward", r"\.backward\("),
        ("optimizer", r"\b(optim\w*|opt|scaler)\.(step|zero_grad)\(|zero_grad\("),
        ("checkpoint", r"torch\.save\("),
        ("synchronise", r"\.item\(|\.cpu\(|\.tolist\(|\.numpy\(|synchronize\("),
        ("copy", r"\.to\(|\.cuda\("),
        ("logging", r"\bprint\(|\blog(ger|ging)?\.\w+\(|writer\.add_|\.log\(|add_scalar"),
        ("forward", r"\b(model|net|network|criterion|loss_fn|loss_func|self\.\w+)\(|\bF\.\w+\(|\btorch\.\w+\("),
    ),
    functions=(("forward", r"^forward$"),),
    otherwise="python",
)
ON_CPU = Rules(
    TRAINER.library,
    [line for line in TRAINER.lines if line[0] != "synchronise"],
    TRAINER.functions,
    otherwise="python",
)
"""Where there is no device to wait for."""
COMPOSERS = re.compile(
    r"/torchvision/transforms/(transforms|v2/_container)\.py:Compose\.(__call__|forward)"
    r"|/albumentations/core/composition\.py:\w+\.__call__"
)
"""Frames (file:qualified name) that call one transform after the other: the frame they called is the transform."""
FETCH = "/torch/utils/data/_utils/fetch.py"
"""What calls the dataset for every sample. Code of the user's own under it that no rule knows prepares a sample."""
PLUMBING = ("/torch/nn/modules/module.py", "/torch/utils/_contextlib.py")


def part(frame: FrameType | None, *, on_device: bool) -> Place:
    """What the training thread does (`recording.TrainerPart`), given its innermost frame, and where: at
    `file:function:line` of the user's own. What that called in a library decides, where a rule knows it."""
    found, rules = None, TRAINER if on_device else ON_CPU
    for one in frames(frame):
        file = one.f_code.co_filename
        if not is_ours(file):
            found = found or rules.stage_of(one.f_code, one.f_lineno)
            if not is_library(file):
                return Place(found or "other", f"{place_name(one.f_code)}:{one.f_lineno}")
    return Place(found or "other", "nowhere")


def classify(frame: FrameType | None) -> Place:
    """The stage of a worker's whole stack, given its innermost frame. What the user's own code does for a sample, and
    no rule knows, is `transform` by the name of its function; what else no rule knows is `other`."""
    own: FrameType | None = None
    inner: FrameType | None = None
    for one in frames(frame):
        code = one.f_code
        stage = WORKER.stage_of(code, one.f_lineno)
        if stage is not None:
            return Place(stage, place_name(code), transform_name(one, inner) if stage == "transform" else None)
        if own is not None and FETCH in slashed(code.co_filename):
            if "sleep(" in source_line(own.f_code.co_filename, own.f_lineno):  # it stands in for a slow source
                return Place("read", place_name(own.f_code))
            return Place("transform", place_name(own.f_code), display_name(own))
        if not slashed(code.co_filename).endswith(PLUMBING):
            inner = one
        if own is None and not is_library(code.co_filename):
            own = one
    where = own or frame
    return Place("other", place_name(where.f_code) if where else "nowhere")


def transform_name(frame: FrameType, called: FrameType | None) -> str:
    """Which transform a frame of stage transform works for: what a Compose called; else, in the user's own code, what
    the frame called; else the outermost transform frame around it."""
    inner, named = called, frame
    if not is_library(frame.f_code.co_filename) and not _composes(frame.f_code):
        return display_name(called or frame)
    for one in frames(frame):
        if _composes(one.f_code):
            return display_name(inner or one)
        if slashed(one.f_code.co_filename).endswith(PLUMBING):
            continue
        if WORKER.stage_of(one.f_code, one.f_lineno) == "transform" and is_library(one.f_code.co_filename):
            named = one
        inner = one
    return display_name(named)


@lru_cache(maxsize=4096)
def _composes(code: CodeType) -> bool:
    return COMPOSERS.search(f"{slashed(code.co_filename)}:{code.co_qualname}") is not None


@lru_cache(maxsize=4096)
def slashed(file: str) -> str:
    return file.replace("\\", "/")


def display_name(frame: FrameType) -> str:
    """Class of a method, name of a function."""
    function = frame.f_code.co_name
    if function in ("__call__", "forward", "transform", "_transform", "apply", "<lambda>"):
        owner = frame.f_locals.get("self")
        if owner is not None:
            return type(owner).__name__
    return function


def frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Innermost first."""
    for _ in range(DEPTH):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


@lru_cache(maxsize=1024)
def _source(file: str) -> list[str]:
    # linecache only where there is no file, as of a notebook's cell, and as it is: other threads use it meanwhile.
    try:
        with open(file, encoding="utf-8", errors="replace") as lines:  # noqa: PTH123  cheap: inside the script
            return lines.readlines()
    except OSError:
        entry = linecache.cache.get(file, ())
        return list(entry[2]) if len(entry) == 4 else []


def source_line(file: str, number: int | None) -> str:
    """Empty where there is no source. A frame between two lines has no number."""
    lines = _source(file)
    return lines[number - 1] if number and 0 < number <= len(lines) else ""


@lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Installed packages and the standard library: everything else is the user's own code."""
    return file.startswith((*_LIBRARIES, "<frozen")) or "/site-packages/" in file or "/dist-packages/" in file


def is_ours(file: str) -> bool:
    """Frames of the probe itself stand between the script and what it called."""
    return file.startswith(HERE)


def place_name(code: CodeType) -> str:
    return f"{slashed(code.co_filename).rpartition('/')[2]}:{code.co_name}"


def own_place(frame: FrameType) -> str:
    """file:line of the script's own code that a stack came from: a `print(loss)` synchronises deep inside torch."""
    for one in frames(frame):
        file = one.f_code.co_filename
        if not is_library(file) and not is_ours(file):
            return f"{slashed(file).rpartition('/')[2]}:{one.f_lineno}"
    return "a library"
