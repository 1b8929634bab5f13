"""Decoding on the device: what `workers.fill_regions` wrote, through torchvision's nvJPEG; crop, resize, flip there.

The pixels differ from the workers' by the decoder's rounding, the chroma's smoothing and, in evaluation, a box in
whole pixels: a mean of one to two grey levels on pure noise, tested on the CPU's decoder through the same code.

The host waits for the decoder (torchvision does), with whatever the model has queued still running meanwhile.
"""

import importlib.util
import io
import warnings
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from feedline.pipeline.base.errors import first_line
from feedline.pipeline.workers.dispatch import HostBatch
from feedline.pipeline.workers.fill_regions import unpack

PIECE_BYTES = 256 << 20
"""Of device memory that regions take while they are resized; a file that could not be cut may be of any size."""
PIXEL_BYTES = 3 * 4


def available(device: torch.device | None) -> bool:
    """Whether the device can decode. Says in one warning why not."""
    why = ""
    if device is None or device.type != "cuda":
        why = "device is not a CUDA device"
    elif not torch.cuda.is_available():
        why = "torch sees no CUDA device"
    elif importlib.util.find_spec("torchvision") is None:
        why = "torchvision is not installed"
    else:  # a torchvision of somebody's own making may be without its decoder
        file = io.BytesIO()
        Image.new("RGB", (16, 16)).save(file, "JPEG")
        try:
            decode_all([np.frombuffer(file.getvalue(), np.uint8)], device)
        except RuntimeError as error:
            why = first_line(error)
    if why:
        warnings.warn(f"decode='gpu' is not possible here ({why}): the workers decode", stacklevel=3)
    return not why


def decode(batch: HostBatch, device: torch.device) -> torch.Tensor:
    """uint8 NHWC on `device`. Raises RuntimeError for a JPEG that nvJPEG refuses."""
    count = len(batch.labels_N)
    if not count:  # torchvision takes no empty list
        return torch.empty((0, batch.px, batch.px, 3), dtype=torch.uint8, device=device)
    packed = unpack(batch.images, count)
    images_CHW = decode_all([data for data, _ in packed], device)
    return resized(images_CHW, [box for _, box in packed], batch.px)


def decode_all(jpegs: Sequence[npt.NDArray[np.uint8]], device: torch.device) -> list[torch.Tensor]:
    """uint8 CHW on `device`. Raises RuntimeError."""
    from torchvision.io import ImageReadMode, decode_jpeg

    if device.type == "cuda":
        # The decoder writes on a stream of its own, and waits for no other: what it is given of this stream's freed
        # memory must not be read any more.
        torch.cuda.current_stream(device).synchronize()
    with warnings.catch_warnings():  # deprecated in favour of TorchCodec, which not every torch has
        warnings.simplefilter("ignore", DeprecationWarning)
        return list(decode_jpeg([torch.from_numpy(data) for data in jpegs], ImageReadMode.RGB, device=device))


@torch.no_grad()
def resized(images_CHW: Sequence[torch.Tensor], boxes: Sequence[Sequence[int]], px: int) -> torch.Tensor:
    """Of each image the region (left, top, width, height, flip), px × px: uint8 NHWC. Bilinear, antialiased where it
    shrinks, as torch's `interpolate` has it.

    Two products of matrices for many regions at once: image by image it would take eight kernels for each.
    """
    regions_CHW: list[torch.Tensor] = []
    for image_CHW, (left, top, wide, high, _) in zip(images_CHW, boxes, strict=True):
        regions_CHW.append(image_CHW[:, top : top + high, left : left + wide])
    flip_N = torch.tensor([box[4] for box in boxes], device=images_CHW[0].device)
    return torch.cat([_resized(regions_CHW[piece], flip_N[piece], px) for piece in pieces(regions_CHW)])


def pieces(regions_CHW: Sequence[torch.Tensor]) -> Iterator[slice]:
    """Neighbours that take up to PIECE_BYTES where each has the room of the largest, or one that alone takes more."""
    begin = height = width = 0
    for number, region_CHW in enumerate(regions_CHW):
        height, width = max(height, region_CHW.shape[1]), max(width, region_CHW.shape[2])
        if number > begin and (number + 1 - begin) * height * width * PIXEL_BYTES > PIECE_BYTES:
            yield slice(begin, number)
            begin, (_, height, width) = number, region_CHW.shape
    yield slice(begin, len(regions_CHW))


def _resized(regions_CHW: Sequence[torch.Tensor], flip_N: torch.Tensor, px: int) -> torch.Tensor:
    device, count = flip_N.device, len(regions_CHW)
    sizes = [region_CHW.shape[1:] for region_CHW in regions_CHW]
    high_N, wide_N = torch.tensor(sizes, dtype=torch.float32, device=device).T
    height, width = (max(sides) for sides in zip(*sizes, strict=True))
    whole_NHCW = torch.zeros((count, height, 3, width), device=device)
    for place_HCW, region_CHW in zip(whole_NHCW, regions_CHW, strict=True):
        place_HCW[: region_CHW.shape[1], :, : region_CHW.shape[2]] = region_CHW.permute(1, 0, 2)
    with torch.autocast(device.type, enabled=False):
        down = shares(high_N, torch.zeros_like(flip_N), height, px) @ whole_NHCW.view(count, height, 3 * width)
        across = down.view(count, px * 3, width) @ shares(wide_N, flip_N, width, px).transpose(1, 2)
    levels = across.view(count, px, 3, px).permute(0, 1, 3, 2).round().clamp(0, 255)
    return levels.to(torch.uint8, memory_format=torch.contiguous_format)


def shares(size_N: torch.Tensor, flip_N: torch.Tensor, length: int, px: int) -> torch.Tensor:
    """(image, output pixel, input pixel): what each output takes of each of `length` inputs, along one axis. They are
    triangles, a pixel of the coarser side wide either way, that end with the region; each output's sum to 1."""
    size, flip = (values[:, None, None] for values in (size_N, flip_N))
    out = torch.arange(px, device=size.device)[:, None] + 0.5
    at = torch.arange(length, device=size.device) + 0.5
    centre = size / px * torch.where(flip > 0, px - out, out)
    near = (1 - (at - centre).abs() / (size / px).clamp(min=1)).clamp(min=0) * (at < size)
    return near / near.sum(2, keepdim=True)
