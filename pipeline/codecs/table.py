"""Every codec by its name, and what a loader worker does with each sample: choose a region, decode little more than
it, resize it into its place.

Which region: `regions`. Which filter: `resample`. How: the codec. What happens to a sample depends on (seed, epoch,
sample number) only. Training repeats chroma pixels where evaluation smooths them: 7 % of the decoding time for 45 dB.
"""

from collections.abc import Callable

import cv2

from feedline.pipeline.codecs.base import Clock, Codec, Pixels
from feedline.pipeline.codecs.jpeg import JPEG
from feedline.pipeline.codecs.keep import KEEP
from feedline.pipeline.codecs.planes import PLANES
from feedline.pipeline.codecs.raw import RAW
from feedline.pipeline.draw import regions
from feedline.pipeline.draw.regions import Augment, Region

NAMES = ("jpeg", "planes", "raw", "keep")
"""Apart from the codecs for the command line, which reads it here and imports nothing of theirs."""
CODECS: dict[str, Codec] = dict(zip(NAMES, (JPEG, PLANES, RAW, KEEP), strict=True))

Kernel = Callable[[bytes, Pixels, int, int, Clock], None]
"""(data, out_HWC, sample, epoch, clock): fills `out_HWC`. Raises DatasetError for bytes that cannot be used."""


def make_kernel(codec: str, augment: Augment, seed: int) -> Kernel:
    """`codec` is the manifest's."""
    cv2.setNumThreads(1)  # a worker per core: threads inside one would only queue
    fill = CODECS[codec].fill

    def kernel(data: bytes, out_HWC: Pixels, sample: int, epoch: int, clock: Clock) -> None:
        def choose(width_px: int, height_px: int) -> Region:
            return regions.choose(width_px, height_px, out_HWC.shape[1], augment, seed, epoch, sample)

        fill(data, out_HWC, choose, clock, augment.train)

    return kernel
