"""Which stage of data preparation a worker's stack belongs to, read from the innermost frame outwards.

PIL decodes lazily, so `ImageFile.load` is where decoding happens, whoever called it; a transform that triggers it is
not blamed. What else the user's own code does for a sample is `transform`, by the name of its function; what no rule
knows is `other`, with its place named.
"""

from functools import lru_cache
from types import CodeType, FrameType

from feedline.profiling.watch.rules import Place, Rule, Rules, frames, is_library, place_name, source_line

LIBRARY_RULES: tuple[Rule, ...] = (
    # torch's own loader
    Rule("idle", "/torch/utils/data/_utils/worker.py", line=r"index_queue\.get"),
    Rule("send", "/torch/utils/data/_utils/worker.py", line=r"data_queue\.put"),
    Rule("idle", "/torchdata/stateful_dataloader/worker.py", line=r"index_queue\.get"),
    Rule("send", "/torchdata/stateful_dataloader/worker.py", line=r"data_queue\.put"),
    Rule("collate", "/torch/utils/data/_utils/fetch.py", line=r"collate_fn\("),
    Rule("collate", "/torch/utils/data/_utils/collate.py"),
    Rule("send", "/torch/multiprocessing/reductions.py"),
    Rule("send", "/multiprocessing/reduction.py"),
    # Pillow: opening reads the header, loading reads the rest and decodes
    Rule("read", "/PIL/ImageFile.py", "load", r"read\("),
    Rule("decode", "/PIL/ImageFile.py", "load.*"),
    Rule("read", "/PIL/Image.py", "open|_open_core|preinit|init"),
    Rule("decode", "/PIL/Image.py", "convert|from(array|buffer|bytes)|_?new|__init__|copy|load|_getdecoder|im"),
    Rule("read", "/PIL/JpegImagePlugin.py"),
    Rule("read", "/PIL/PngImagePlugin.py"),
    Rule("read", "/PIL/ImageFile.py"),
    # torchvision
    Rule("decode", "/torchvision/io/image.py", "decode_.*|read_image"),
    Rule("read", "/torchvision/io/", "read_file|_read_.*"),
    Rule("decode", "/torchvision/datasets/mnist.py", "__getitem__", r"fromarray"),
    Rule("decode", "/torchvision/datasets/cifar.py", "__getitem__", r"fromarray"),
    Rule("transform", "/torchvision/datasets/", line=r"transforms?\("),
    Rule("transform", "/torchvision/transforms/"),
    Rule("transform", "/torchvision/tv_tensors/"),
    Rule("read", "/torchvision/datasets/"),
    # other transforms
    Rule("transform", "/albumentations/"),
    Rule("transform", "/albucore/"),
    Rule("transform", "/imgaug/"),
    Rule("transform", "/kornia/"),
    Rule("transform", "/timm/data/"),
    Rule("transform", "/PIL/ImageOps.py"),
    Rule("transform", "/PIL/ImageEnhance.py"),
    Rule("transform", "/PIL/ImageFilter.py"),
    Rule("transform", "/PIL/Image.py"),
    # webdataset
    Rule("read", "/webdataset/tariterators.py"),
    Rule("read", "/webdataset/gopen.py"),
    Rule("read", "/webdataset/cache.py"),
    Rule("decode", "/webdataset/autodecode.py"),
    Rule("decode", "/webdataset/filters.py", "decode"),
    Rule("collate", "/webdataset/filters.py", "_?batched|.*collation.*|default_collation_fn"),
    Rule("transform", "/webdataset/filters.py", "_?map.*"),
    # files and stores
    Rule("read", "/tarfile.py"),
    Rule("read", "/zipfile"),
    Rule("read", "/gzip.py"),
    Rule("read", "/fsspec/"),
    Rule("read", "/s3fs/"),
    Rule("read", "/botocore/"),
    Rule("read", "/urllib"),
    Rule("read", "/requests/"),
    Rule("read", "/http/client.py"),
    Rule("read", "/ssl.py"),
    Rule("read", "/h5py/"),
    Rule("read", "/lmdb/"),
    Rule("read", "/zarr/"),
    Rule("read", "/pyarrow/"),
    Rule("read", "/numpy/lib/_npyio_impl.py"),
    Rule("read", "/numpy/lib/npyio.py"),
    Rule("read", "/numpy/lib/format.py"),
    Rule("read", "/numpy/lib/_format_impl.py"),
    Rule("read", "/torch/serialization.py"),
    Rule("read", "/pathlib"),
    Rule("decode", "/simplejpeg/"),
    Rule("decode", "/turbojpeg"),
    Rule("decode", "/imageio/"),
    Rule("decode", "/skimage/io/"),
    Rule("transform", "/skimage/"),
    Rule("transform", "/scipy/ndimage/"),
)

USER_LINES: tuple[tuple[str, str], ...] = (
    ("decode", r"imdecode|imread\(|decode_(jpe?g|png|image)|jpeg\.decode|\.convert\(|fromarray\(|from_?buffer\("),
    ("read", r"\bopen\(|\.read(_bytes|_text|into|lines?)?\(|np\.load\(|torch\.load\(|read_file\(|\.get_object|"
             r"requests\.|\.fetch\(|\.download|memmap\("),
    ("collate", r"collate\w*\("),
    ("transform", r"(?<!def )\b\w*transforms?\w*\(|augment\w*\(|\baug\(|\.resize\(|\.crop\(|\.flip\(|normali[sz]e\(|"
                  r"from_numpy\(|np\.(as)?array\(|\.astype\(|\.permute\(|\btorch\.(as_)?tensor\("),
)  # fmt: skip
USER_FUNCTIONS: tuple[tuple[str, str], ...] = (
    ("collate", r"collate|to_batch|make_batch"),
    ("decode", r"decod|imread"),
    ("read", r"read|fetch|download|load_bytes|load_file|open"),
    ("transform", r"transform|augment|resize|crop|flip|jitter|blur|normali[sz]e"),
)
RULES = Rules(LIBRARY_RULES, USER_LINES, USER_FUNCTIONS)

COMPOSERS = (
    ("/torchvision/transforms/transforms.py", "__call__"),
    ("/torchvision/transforms/v2/_container.py", "forward"),
    ("/albumentations/core/composition.py", "__call__"),
)
"""Frames that call one transform after the other: the frame they called is the transform."""
FETCH = "/torch/utils/data/_utils/fetch.py"
"""What calls the dataset for every sample. Code of the user's own under it that no rule knows prepares a sample."""
PLUMBING = ("/torch/nn/modules/module.py", "/torch/utils/_contextlib.py")


def classify(frame: FrameType | None) -> Place:
    """The stage of a whole stack, given its innermost frame."""
    own: FrameType | None = None
    inner: FrameType | None = None
    for one in frames(frame):
        stage = RULES.stage_of(one.f_code, one.f_lineno)
        if stage is not None:
            name = transform_name(one, inner) if stage == "transform" else None
            return Place(stage, place_name(one.f_code), name)
        if own is not None and FETCH in one.f_code.co_filename.replace("\\", "/"):
            return _of_a_sample(own)
        if not _is_plumbing(one.f_code.co_filename):
            inner = one
        if own is None and not is_library(one.f_code.co_filename):
            own = one
    where = own or frame
    return Place("other", place_name(where.f_code) if where else "nowhere")


def _of_a_sample(own: FrameType) -> Place:
    """Code of the user's own that prepares a sample: who sleeps there stands in for a slow source."""
    if "sleep(" in source_line(own.f_code.co_filename, own.f_lineno):
        return Place("read", place_name(own.f_code))
    return Place("transform", place_name(own.f_code), display_name(own))


def transform_name(frame: FrameType, called: FrameType | None) -> str:
    """Which transform a frame of stage transform works for: what a Compose called; else, in the user's own code, what
    the frame called; else the outermost transform frame around it."""
    inner, named = called, frame
    if not is_library(frame.f_code.co_filename) and not _composes(frame.f_code):
        return display_name(called or frame)
    for one in frames(frame):
        if _composes(one.f_code):
            return display_name(inner or one)
        if _is_plumbing(one.f_code.co_filename):
            continue
        if RULES.stage_of(one.f_code, one.f_lineno) == "transform" and is_library(one.f_code.co_filename):
            named = one
        inner = one
    return display_name(named)


@lru_cache(maxsize=4096)
def _is_plumbing(file: str) -> bool:
    return any(part in file for part in PLUMBING)


@lru_cache(maxsize=4096)
def _composes(code: CodeType) -> bool:
    file = code.co_filename.replace("\\", "/")
    qualified = getattr(code, "co_qualname", code.co_name)
    return any(file.endswith(end) and code.co_name == function for end, function in COMPOSERS) and (
        "Compose" in qualified or "Sequential" in qualified or "albumentations" in file
    )


def display_name(frame: FrameType) -> str:
    """Class of a method, name of a function."""
    function = frame.f_code.co_name
    if function in ("__call__", "forward", "transform", "_transform", "apply", "<lambda>"):
        owner = frame.f_locals.get("self")
        if owner is not None:
            return type(owner).__name__
    return function
