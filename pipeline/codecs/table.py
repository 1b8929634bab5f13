"""Every codec by its name, and what a loader worker does with each sample: choose a region, decode little more than
it, resize it into its place.

Which region: `regions`. Which filter: `resample`. How: the codec. What happens to a sample depends on (seed, epoch,
sample number) only. Training repeats chroma pixels where evaluation smooths them: 7 % of the decoding time for 45 dB.
"""

from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.codecs.base import Choose, Clock, Codec, Pixels
from feedline.pipeline.codecs.jpeg import JPEG
from feedline.pipeline.codecs.keep import KEEP
from feedline.pipeline.codecs.planes import PLANES
from feedline.pipeline.codecs.raw import RAW
from feedline.pipeline.draw import regions
from feedline.pipeline.draw.regions import Augment, Region
from feedline.pipeline.kernel import compiled
from feedline.pipeline.kernel.compiled import Job

NAMES = ("jpeg", "planes", "raw", "keep")
"""Apart from the codecs for the command line, which reads it here and imports nothing of theirs."""
CODECS: dict[str, Codec] = dict(zip(NAMES, (JPEG, PLANES, RAW, KEEP), strict=True))


class SampleKernel:
    """Fills places of a batch with samples, alone or several in one call; the same pixels either way."""

    def __init__(self, codec: str, augment: Augment, seed: int) -> None:
        """`codec` is the manifest's."""
        self._codec, self._augment, self._seed = CODECS[codec], augment, seed

    def job(self, data: bytes, px: int, sample: int, epoch: int) -> Job | None:
        """What the compiled kernel is told of a sample. None: it is for `alone`, which says what may be wrong."""
        if compiled.KERNEL is None:
            return None
        try:
            return self._codec.job(data, px, self._choose(px, sample, epoch))
        except (DatasetError, ValueError, RuntimeError, OSError):
            return None

    def together(self, jobs: list[Job], out_NHWC: Pixels, clock: Clock) -> int:
        """Fills the first places in one call of the compiled kernel; returns how many. Where these are not all, the
        next one is for `alone`."""
        if compiled.KERNEL is None or not jobs:
            return 0
        try:
            filled, decoding_ns = compiled.KERNEL.fill(jobs, not self._augment.train, out_NHWC)
        except (ValueError, OverflowError):  # sides beyond its limits
            return 0
        clock.filled(decoding_ns)
        return filled

    def alone(self, data: bytes, out_HWC: Pixels, sample: int, epoch: int, clock: Clock) -> None:
        """Fills a place as the codec itself does. Raises DatasetError, or whatever its libraries do, for bytes that
        cannot be used."""
        choose = self._choose(out_HWC.shape[1], sample, epoch)
        self._codec.fill(data, out_HWC, choose, clock, self._augment.train)

    def __call__(self, data: bytes, out_HWC: Pixels, sample: int, epoch: int, clock: Clock) -> None:
        """Fills a place, whichever way. Raises as `alone`."""
        job = self.job(data, out_HWC.shape[1], sample, epoch)
        if job is None or not self.together([job], out_HWC[None], clock):
            self.alone(data, out_HWC, sample, epoch, clock)

    def _choose(self, px: int, sample: int, epoch: int) -> Choose:
        def choose(width_px: int, height_px: int) -> Region:
            return regions.choose(width_px, height_px, px, self._augment, self._seed, epoch, sample)

        return choose
