"""Every codec by its name."""

from feedline.pipeline.codecs.base import Codec
from feedline.pipeline.codecs.jpeg import JPEG
from feedline.pipeline.codecs.keep import KEEP
from feedline.pipeline.codecs.planes import PLANES
from feedline.pipeline.codecs.raw import RAW

CODECS: dict[str, Codec] = {codec.name: codec for codec in (JPEG, PLANES, RAW, KEEP)}
