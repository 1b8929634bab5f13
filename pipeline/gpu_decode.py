"""Decoding on the device: what `workers.fill_regions` wrote, through torchvision's nvJPEG; crop, resize, flip there.

The pixels differ from the workers' by the decoder's rounding, the chroma's smoothing and, in evaluation, a box in
whole pixels: a mean of one to two grey levels on pure noise, tested on the CPU's decoder through the same code.
"""

import importlib.util
import warnings

import torch
from torch.nn.functional import interpolate

from feedline.pipeline.workers.dispatch import HostBatch
from feedline.pipeline.workers.fill_regions import unpack


def available(device: torch.device | None) -> bool:
    """Whether the device can decode. Says in one warning why not."""
    why = ""
    if device is None or device.type != "cuda":
        why = "device is not a CUDA device"
    elif not torch.cuda.is_available():
        why = "torch sees no CUDA device"
    elif importlib.util.find_spec("torchvision") is None:
        why = "torchvision is not installed"
    if why:
        warnings.warn(f"decode='gpu' is not possible here ({why}): the workers decode", stacklevel=3)
    return not why


def decode(batch: HostBatch, device: torch.device) -> torch.Tensor:
    """uint8 NHWC on `device`. Raises RuntimeError for a JPEG that nvJPEG refuses."""
    from torchvision.io import ImageReadMode, decode_jpeg

    count, px = len(batch.labels_N), batch.px
    out_NCHW = torch.empty((count, 3, px, px), dtype=torch.uint8, device=device, memory_format=torch.channels_last)
    if not count:  # torchvision takes no empty list
        return out_NCHW.permute(0, 2, 3, 1)
    packed = unpack(batch.images, count)
    with warnings.catch_warnings():  # deprecated in favour of TorchCodec, which not every torch has
        warnings.simplefilter("ignore", DeprecationWarning)
        images_CHW = decode_jpeg([torch.from_numpy(data) for data, _ in packed], ImageReadMode.RGB, device=device)
    for place, (image_CHW, (_, (left, top, width, height, flip))) in enumerate(zip(images_CHW, packed, strict=True)):
        region_CHW = image_CHW[:, top : top + height, left : left + width]
        region_CHW = (region_CHW.flip(2) if flip else region_CHW).float()
        # the filter of the CPU path: bilinear, antialiased where it shrinks
        scaled = interpolate(region_CHW[None], (px, px), mode="bilinear", antialias=width > px or height > px)
        out_NCHW[place] = scaled[0].round().clamp(0, 255).to(torch.uint8)
    return out_NCHW.permute(0, 2, 3, 1)
