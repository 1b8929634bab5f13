"""What a prepare job is asked to do."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from feedline.pipeline.format.manifest import UsageError
from feedline.preprocess.picture import MAX_PIXELS, RESIZES, Output, check

DEFAULT_SHARD_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Everything `prepare` needs. What changes the prepared bytes is part of the plan's identity; the rest is not."""

    source: str
    """A folder, an archive, or an address that fsspec speaks."""
    out: str
    """The folder (or object store address) that becomes the prepared dataset."""
    outputs: tuple[Output, ...] = (Output(),)
    """Prepared forms, all made from one decode of each original."""
    seed: int = 0
    """Of the global shuffle, of `classes` and of `val_fraction`."""
    shards: int | None = None
    """Shards per split; None chooses."""
    shard_bytes: int = DEFAULT_SHARD_BYTES
    """Aim for shards of about this size (of the first output)."""
    classes: int | None = None
    """Take a seeded subset of this many classes."""
    class_order: tuple[str, ...] | None = None
    """Class names in label order; None takes the source's own order."""
    val_fraction: float | None = None
    """Split this share off, class by class, from a source that has no val."""
    metadata: bool = False
    """Also write KEY.json with where the sample came from."""
    max_bad: float | None = None
    """More quarantined samples than this share is an error; None is 0.1 %, with some room for small sources."""
    max_pixels: int = MAX_PIXELS
    """Larger images go to quarantine undecoded."""
    overwrite: bool = False
    """Replace what is prepared in `out`, this plan's too. A finished dataset stays until the new one is whole, so
    there must be room for both; a rerun resumes."""
    retry_quarantine: bool = False
    """Do the shards with quarantined samples again, reading those samples from the (mended) files in quarantine."""
    master: str | None = None
    """Spark master; None means that of spark-submit, else local[*]."""
    spark: Mapping[str, str] = field(default_factory=dict[str, str])
    """More Spark settings, as for `spark-submit --conf`."""
    source_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Passed on to the source: kind, devkit, ground truth and the like."""
    storage_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """For fsspec: credentials, endpoint. For the output, and for a source of its scheme or beside a local output."""

    def __post_init__(self) -> None:
        check(len(self.outputs) > 0, "no output asked for")
        names = [output.name for output in self.outputs]
        twice = sorted({name for name in names if names.count(name) > 1})
        check(not twice, f"two outputs named {', '.join(twice)}: outputs must differ in size or codec")
        check(self.shards is None or self.shards >= 1, f"{self.shards} shards: at least 1 is needed")
        check(self.shard_bytes >= 1 << 16, f"a shard size of {self.shard_bytes} bytes is under 64KiB")
        check(self.classes is None or self.classes >= 1, f"{self.classes} classes: at least 1 is needed")
        check(
            self.val_fraction is None or 0 < self.val_fraction < 1,
            f"val fraction {self.val_fraction} is not between 0 and 1",
        )
        check(self.max_bad is None or 0 <= self.max_bad <= 1, f"max bad {self.max_bad} is not between 0 and 1")
        check(
            not (self.overwrite and self.retry_quarantine),
            "overwriting would remove the mended files in quarantine: ask for one of the two",
        )
        check(self.max_pixels >= 1, f"a limit of {self.max_pixels} pixels leaves nothing")

    @property
    def source_storage_options(self) -> dict[str, Any]:
        """For fsspec at the source's end; `source_options["storage_options"]` wins."""
        out, source = (where.partition("://")[0] if "://" in where else "" for where in (self.out, self.source))
        ours = self.storage_options if out in ("", source) else {}
        return dict(self.source_options.get("storage_options", ours))

    def folder(self, output: Output, split: str) -> str:
        """Where a split goes, relative to `out`."""
        return split if len(self.outputs) == 1 else f"{output.name}/{split}"


def parse_output(text: str, **settings: Any) -> Output:
    """`256:jpeg`, `64:raw`, `64:raw:square` or `keep` with further `Output` settings. Raises UsageError."""
    parts = text.split(":")
    if parts == ["keep"]:
        return Output(codec="keep", resize="none", size_px=0)
    if len(parts) not in (2, 3) or not re.fullmatch(r"\d{1,9}", parts[0]):
        raise UsageError(f"output {text!r} is not SIZE:CODEC or SIZE:CODEC:RESIZE, like 256:jpeg or 64:raw:square")
    if len(parts) == 3:
        check(parts[2] in RESIZES, f"resize {parts[2]!r} in output {text!r} is none of {', '.join(RESIZES)}")
        settings = settings | {"resize": parts[2]}
    settings |= {"size_px": int(parts[0]), "codec": parts[1]}
    return Output(**settings)


SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?)B?|B)?", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """`64MiB`, `500KB`, `1048576`. Raises UsageError."""
    found = SIZE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"size {text!r} is not a number of bytes like 64MiB or 1000000")
    number, unit, binary = found.groups()
    power = " KMGT".index(unit.upper()) if unit else 0
    size = float(number) * (1024 if binary else 1000) ** power
    check(size < 1 << 62, "a size is of more bytes than anything holds")
    return int(size)


def output_names(outputs: Sequence[Output]) -> list[str]:
    return [output.name for output in outputs]
