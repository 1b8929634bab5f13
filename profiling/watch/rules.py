"""Reading a stack by tables of rules: what a worker prepares (`classify`), what the training thread does (`parts`).

From the innermost frame outwards, the first frame that a rule knows decides. Rules know libraries: a file of theirs
and, where it matters, a function, or a C function of theirs that a script calls itself (`calls`). A user's code is
not guessed at, neither by its text nor by its names: what it does is told by what it calls, by what its thread is
blocked in (`evidence`), and by who called it. PIL decodes lazily, so `ImageFile.load` is where decoding happens,
whoever called it; a transform that triggers it is not blamed. Standard-library frames that no rule knows are charged
to whoever called them. Cost: one dictionary look-up per frame once a place has been seen.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, takewhile
from types import CodeType, FrameType
from typing import Any

from feedline.profiling.record.loader_kinds import MADE_BY
from feedline.profiling.watch.calls import UNKNOWN, called, source_line, variable
from feedline.profiling.watch.evidence import LOCK, READ, SLEEP, WAIT

DEPTH = 80  # frames looked at; deeper stacks are cut at the outside
HERE = __file__.replace("\\", "/").rpartition("/watch/")[0] + "/"
_OF_NO_FILE = ("<stdin", "<string", "<ipython", "<python", "<console", "<command", "<doctest")
_MANY = 10_000  # names in a folder that is looked through for a package's metadata
_STANDARD = os.path.dirname(os.__file__)  # noqa: PTH120  cheap: this is imported in every interpreter of a run


@dataclass(frozen=True)
class Rule:
    stage: str
    files: str  # parts of files' paths, with / on both sides of folders; any of them, between spaces
    function: str = ""  # regular expression the whole function name matches; empty for any
    line: str = ""  # regular expression found in the source line; empty for any

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
    where: str  # file:function of the frame that decided, or of the innermost frame of the user's own
    transform: str | None = None  # class or function name, for stage transform


class Rules:
    """A table for libraries' frames, and one for what C code is called in a script's own: (stage, regular expression
    that the whole of `calls.called` matches)."""

    def __init__(self, library: Sequence[Rule], calls: Sequence[tuple[str, str]]) -> None:
        self.library = library
        self.stage_of = lru_cache(maxsize=16384)(self._stage_of)
        """(code, line number) -> the stage of a library's frame by itself; None when no rule knows it."""
        self.calls = calls
        self.stage_of_call = lru_cache(maxsize=4096)(self._stage_of_call)
        """What `calls.called` says -> its stage; None when no rule knows it."""

    def _stage_of(self, code: CodeType, line_number: int | None) -> str | None:
        file = slashed(code.co_filename)
        if not is_library(file):
            return None
        text = source_line(code.co_filename, line_number)
        return next((rule.stage for rule in self.library if rule.fits(file, code.co_name, text)), None) or None

    def _stage_of_call(self, call: str) -> str | None:
        return next((stage for stage, pattern in self.calls if re.fullmatch(pattern, call)), None)


LOCKS = r"_thread\.\S*(acquire\S*|lock|RLock)|_multiprocessing\.SemLock\S*|fcntl\.(flock|lockf)"
WORKER = Rules(
    (
        # torch's own loader
        Rule("collate", "/torch/utils/data/_utils/fetch.py", line=r"collate_fn\("),
        Rule("collate", "/torch/utils/data/_utils/collate.py"),
        Rule("send", "/torch/multiprocessing/reductions.py /multiprocessing/reduction.py"),
        Rule("", "/PIL/ /numpy/lib/ /torch/serialization.py /zipfile /tarfile.py /gzip.py",
             r"(\w*_)?(save|write|dump)\w*|_encode_tile|putchunk|addfile"),  # whoever writes it is asked
        Rule("", "/PIL/Image.py", r"mode|size|width|height|readonly|_copy_info|get\w*|_import_plugin\w*|__getattr__"),
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
        Rule("transform", "/albumentations/ /albucore/ /imgaug/ /kornia/ /timm/data/ /monai/transforms/"
             " /torchio/transforms/ /ultralytics/data/augment.py"),
        Rule("transform", "/PIL/ImageOps.py /PIL/ImageEnhance.py /PIL/ImageFilter.py /PIL/Image.py"),
        # webdataset
        Rule("read", "/webdataset/tariterators.py /webdataset/gopen.py /webdataset/cache.py"),
        Rule("decode", "/webdataset/autodecode.py"),
        Rule("decode", "/webdataset/filters.py", "decode"),
        Rule("collate", "/webdataset/filters.py", "_?batched", r"collation_fn\("),  # else it waits for a sample
        Rule("collate", "/webdataset/filters.py", ".*collation.*"),
        Rule("transform", "/webdataset/filters.py", "_?map.*"),
        # files and stores
        Rule("read", "/tarfile.py /zipfile /gzip.py /fsspec/ /s3fs/ /botocore/ /urllib /requests/ /http/client.py"),
        Rule("read", "/ssl.py /h5py/ /lmdb/ /zarr/ /pyarrow/ /numpy/lib/_npyio_impl.py /numpy/lib/npyio.py"),
        Rule("read", "/numpy/lib/format.py /numpy/lib/_format_impl.py /torch/serialization.py /pathlib"),
        Rule("decode", "/simplejpeg/ /turbojpeg /imageio/ /skimage/io/"),
        Rule("transform", "/skimage/ /scipy/ndimage/"),
        Rule("lock", "/threading.py", "wait|wait_for|join"),  # for another thread of this process
        Rule("lock", "/multiprocessing/synchronize.py /filelock/"),
    ),
    calls=(
        ("blocked", r"time\.sleep"),
        ("lock", LOCKS),
        ("decode", r"\w*(zlib|bz2|lzma|zstd|zstandard|lz4|blosc2?|snappy|brotli)\b\S*decompress\S*"
                   r"|_?pickle\.\S*loads?|_json\.\S*[sS]can\S*|(msgpack|orjson)\b\S*(unpack|load)\S*"
                   r"|cv2\.im(de|re)\w+|(simplejpeg|_?turbojpeg|imagecodecs|nvidia)\b.*|.*\bdecode_(jpe?g|png|image)"),
        ("read", r"_?io\.\S*(open|read\w*|seek)|builtins\.open"
                 r"|(posix|nt|mmap)\.\S*(open|read\w*|stat|scandir|listdir|mmap\S*)|(h5py|lmdb|zarr|pyarrow|_socket|_ssl)\b.*|numpy\.(fromfile|memmap)"),
    ),
)  # fmt: skip
TRAINER = Rules(
    (
        Rule("unpickle", "/torch/multiprocessing/reductions.py /multiprocessing/resource_sharer.py"),
        Rule("unpickle", "/multiprocessing/queues.py", line=r"loads\(|_recv_bytes"),
        Rule("unpickle", "/multiprocessing/connection.py", "_recv_bytes", r"_recv\(size\)"),  # behind its header
        Rule("unpickle", "/multiprocessing/reduction.py", "recv.*|rebuild.*|loads"),
        Rule("pin", "/torch/utils/data/_utils/pin_memory.py"),
        Rule("wait", "/torch/utils/data/dataloader.py /torchdata/ /webdataset/"),
        # where frameworks have a script prepare a batch that its loader has made
        Rule("prepare", "/ignite/engine/__init__.py", line=r"prepare_batch\("),
        Rule("prepare", "/lightning/pytorch/core/module.py /pytorch_lightning/core/module.py",
             "_apply_batch_transfer_handler"),
        Rule("checkpoint", "/torch/serialization.py", ".*save.*|.*write.*"),
        Rule("python", "/torch/_tensor.py /torch/nn/parameter.py /torch/storage.py", "_?_?deepcopy_?_?|clone"),
        Rule("backward", "/torch/autograd/"),
        Rule("backward", "/torch/_tensor.py", "backward"),
        Rule("synchronise", "/torch/cuda/", "synchronize"),
        Rule("optimizer", "/torch/optim/ /torch/amp/grad_scaler.py /torch/nn/utils/clip_grad.py"),
        Rule("logging", "/tensorboard/ /torch/utils/tensorboard/ /tensorboardX/ /wandb/ /mlflow/"),
        Rule("logging", "/logging/__init__.py /tqdm/ /rich/ /matplotlib/"),
        Rule("python", "/torch/utils/data/"),
        Rule("forward", "/torch/ /torchvision/models/ /torchvision/ops/ /timm/models/ /timm/layers/ /torchmetrics/"),
        Rule("python", "/numpy/"),
        Rule("wait", "/multiprocessing/connection.py /multiprocessing/synchronize.py /queue.py", "(?!_recv$).*"),
    ),
    calls=(
        ("wait", LOCKS + r"|_queue\.\S*get|_?(multiprocessing|socket|ssl|posixshmem)\b.*|select\..*"),
        ("synchronise", r"torch\b.*\.(item|cpu|tolist|numpy|synchronize|__bool__|__float__|__int__)"),
        ("copy", r"torch\b.*\.(to|cuda)"),
        ("checkpoint", r"torch\b.*(PyTorchFileWriter|write_record)\S*"),
        ("backward", r"torch\b.*\b(run_backward|backward)"),
        ("forward", r"torch\w*\b.*"),
        ("logging", r"builtins\.print|_?io\.(?!BytesIO)\S*(write|flush)|_?json\b.*"),
    ),
)  # fmt: skip
COMPOSERS = (
    r"/torchvision/transforms/(transforms|v2/_container)\.py:(Compose|Random(Apply|Choice|Order))\.(__call__|forward)"
    r"|/albumentations/core/composition\.py:\w+\.__call__"
    r"|/monai/transforms/compose\.py:|/torchio/transforms/.*/composition\.py:|/ultralytics/data/augment\.py:Compose\."
)
"""Frames (file:qualified name) that call one transform after the other: the frame they called is the transform."""
PARSES = r"/numpy/lib/_?npyio\w*\.py:(_read|loadtxt|genfromtxt|fromregex)$|/pandas/io/(parsers|json|html|xml|excel)/"
"""Frames of libraries that read text: what that takes is the parsing, unless they are blocked in a read."""
BLOCKED = {SLEEP: "blocked", WAIT: "blocked", READ: "read", LOCK: "lock"}
"""What a worker's thread is blocked in -> the stage, where no rule knows better."""
FETCH = "/torch/utils/data/_utils/fetch.py"
"""What calls the dataset for every sample. Code of the user's own under it, or of the dataset's package, that no rule
knows prepares a sample."""
OF_THE_USER = ("blocked", "lock", "collate", "transform")
"""Stages whose place is the user's own function, where one is within the library's that decides."""
OF_DATASETS = ("__getitem__", "__getitems__", "__iter__", "__next__")  # no transforms themselves
CALLERS = ("/torchvision/datasets/", "/webdataset/")  # of a transform, and none
PLUMBING = ("/torch/nn/modules/module.py", "/torch/utils/_contextlib.py", "/monai/transforms/transform.py",
            "/torchvision/tv_tensors/_tv_tensor.py")  # fmt: skip


def classify(frame: FrameType | None, blocked: Callable[[], str | None] = lambda: None) -> Place:
    """The stage of a worker's whole stack, given its innermost frame. What the user's own code does for a sample, and
    no rule knows, is `transform`, by the name of what the dataset's own function has called, unless the thread is
    `blocked` meanwhile; where all of it is a package's dataset, by the package's innermost function. What else no
    rule knows is `other`."""
    own: FrameType | None = None
    inner: FrameType | None = None
    outer: FrameType | None = None  # the user's outermost
    within: FrameType | None = None  # what that has called
    for one in frames(frame):
        code = one.f_code
        if is_ours(code.co_filename):
            continue
        unpacks = is_in(code, PARSES) and blocked() != READ
        stage = "decode" if unpacks else WORKER.stage_of(code, one.f_lineno)
        if stage in (None, "read") and one is frame and (call := called(one)):
            told = WORKER.stage_of_call(call)  # an archive's members are unpacked
            unpacks, stage = told == "decode", told if told == "decode" else stage or told
        if stage is not None:
            theirs = inner if stage == "collate" and own is not None else own
            if theirs is None and (unpacks or stage in ("blocked", "lock")):
                theirs = next((each for each in inside(one) if not is_library(each.f_code.co_filename)), None)
            place = place_name((theirs or one).f_code if unpacks or stage in OF_THE_USER else code)
            return Place(stage, place, transform_name(one, inner) if stage == "transform" else None)
        fetches = FETCH in slashed(code.co_filename)
        works = of_package(frame, inner) if fetches and own is None else None
        if works is not None:
            stage = BLOCKED.get(blocked() or "", "transform")
            place = place_name(works.f_code)
            return Place(stage, place, place.rpartition(":")[2] if stage == "transform" else None)
        if fetches and own is not None and outer is not None:
            stage = BLOCKED.get(blocked() or "", "transform")
            asked = inner is outer or outer.f_code.co_name in OF_DATASETS
            named = within if asked and within and not is_library(within.f_code.co_filename) else outer
            return Place(stage, place_name(own.f_code), display_name(named) if stage == "transform" else None)
        if not is_library(code.co_filename):
            own, outer, within = own or one, one, inner
        if not slashed(code.co_filename).endswith(PLUMBING):
            inner = one
    where = own or frame
    return Place("other", place_name(where.f_code) if where else "")


def transform_name(frame: FrameType, called: FrameType | None) -> str:
    """Which transform a frame of stage transform works for: what a Compose called; else, in the user's own code, what
    the frame called; else the outermost transform frame around it."""
    inner, named = called, frame
    calls = any(caller in slashed(frame.f_code.co_filename) for caller in CALLERS)
    if calls and called is not None and not is_library(called.f_code.co_filename):
        return display_name(called)
    if not is_library(frame.f_code.co_filename) and not is_in(frame.f_code, COMPOSERS):
        return display_name(called or frame)
    for one in frames(frame):
        if is_in(one.f_code, COMPOSERS):
            return display_name(inner or one)
        file = slashed(one.f_code.co_filename)
        if file.endswith(PLUMBING):
            continue
        if any(caller in file for caller in CALLERS):
            break
        wraps = "<locals>" in one.f_code.co_qualname  # as a decorator's function does
        if WORKER.stage_of(one.f_code, one.f_lineno) == "transform" and is_library(file) and not wraps:
            named = one
        inner = one
    return display_name(named)


@lru_cache(maxsize=8192)
def is_in(code: CodeType, places: str) -> bool:
    """Whether file:qualified name of a function contains one of these."""
    return re.search(places, f"{slashed(code.co_filename)}:{code.co_qualname}") is not None


@lru_cache(maxsize=4096)
def slashed(file: str) -> str:
    return file.replace("\\", "/")


def display_name(frame: FrameType) -> str:
    """Class of a transform's method, name of a function; a name that many classes have, with its class."""
    function = frame.f_code.co_name
    if function in ("__call__", "forward", "transform", "_transform", "apply", "encodes", "<lambda>"):
        owner = variable("self", frame, local=True)
        if owner is not UNKNOWN:
            return type(owner).__name__
    many = function.startswith("__") or function == "get_params"
    return frame.f_code.co_qualname.rpartition("<locals>.")[2] if many else function


def inside(frame: FrameType) -> Iterator[FrameType]:
    """As far as what calls the dataset: around that stands the loop."""
    return takewhile(lambda one: FETCH not in slashed(one.f_code.co_filename), frames(frame))


def frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Innermost first."""
    for _ in range(DEPTH):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


@lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Installed packages, the standard library, and what these have made, which has a name in <> for a file, as a
    script that is no file has: everything else is the user's own code."""
    made = file.startswith("<") and not file.startswith(_OF_NO_FILE)
    return made or file.startswith(_STANDARD) or _installed(file) != ""


def _installed(file: str) -> str:
    """Its path from the folder of packages that it is installed in; "" for what is in none."""
    found = re.search(r"/(?:site|dist)-packages/(.+)", slashed(file))
    if found:
        return found[1]
    folders = (os.path.join(one, "") for one in sys.path if one)  # noqa: PTH118
    folder = max((one for one in folders if file.startswith(one)), key=len, default="")
    return file[len(folder) :] if folder and _has_packages(folder) else ""


@lru_cache(maxsize=256)
def _has_packages(folder: str) -> bool:
    """Whether `pip install --target` has put some there, and the script is none of what lies there."""
    main = sys.modules.get("__mp_main__") or sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if (os.path.abspath(file) if file else os.path.join(os.getcwd(), "")).startswith(folder):  # noqa: PTH100,PTH109,PTH118
        return False
    try:
        with os.scandir(folder) as names:
            return any(one.name.endswith(".dist-info") for one in islice(names, _MANY))
    except OSError:
        return False


@lru_cache(maxsize=4096)
def package(file: str) -> str:
    """Which installed one it is of; "" for the standard library's and for the user's own."""
    found = re.match(r"\w+", _installed(file))
    return found[0] if found else ""


def of_package(frame: FrameType | None, called: FrameType | None) -> FrameType | None:
    """The innermost frame of the package that was called; None for torch, the standard library and the user's own."""
    name = package(called.f_code.co_filename) if called else ""
    mine = (one for one in frames(frame) if package(one.f_code.co_filename) == name)
    return next(mine, None) if name not in ("", "torch") else None


def is_ours(file: str) -> bool:
    """Frames of the probe itself stand between the script and what it called."""
    return file.startswith(HERE)


def place_name(code: CodeType) -> str:
    """file:function, a method with its class; a comprehension and a lambda are their function's."""
    name = re.sub(r"(\.<locals>\.<(?!locals>)\w+>)+$", "", code.co_qualname)
    return f"{slashed(code.co_filename).rpartition('/')[2]}:{name.rpartition('<locals>.')[2]}"


def line_of(frame: FrameType) -> int:
    """Between two lines a frame has none: its function's first."""
    return frame.f_lineno or frame.f_code.co_firstlineno  # typeshed promises a number


def own_place(frame: FrameType) -> str:
    """file:line of the script's own code that a stack came from: a `print(loss)` synchronises deep inside torch."""
    for one in frames(frame):
        file = one.f_code.co_filename
        if not is_library(file) and not is_ours(file):
            return f"{slashed(file).rpartition('/')[2]}:{line_of(one)}"
    return "a library"


def made_by(frame: FrameType, loader: Any) -> str:
    """The library whose loop asks a loader that it makes itself; "" for one that the script makes."""
    for one in frames(frame):
        file = one.f_code.co_filename
        if (name := package(file)) in MADE_BY:  # keras takes the script's own, too
            dataset = type(getattr(loader, "dataset", None)).__module__.partition(".")[0]
            return name if name != "keras" or dataset == name else ""
        if not is_library(file) and not is_ours(file):
            break
    return ""
