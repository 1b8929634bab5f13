"""What a prepare job is asked to do."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.settings import check_limits, limited
from feedline.preprocess.picture import MAX_PIXELS, RESIZES, Output, check

DEFAULT_SHARD_BYTES = 64 << 20
ENGINES = ("spark", "processes")


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Everything `prepare` needs. What changes the prepared bytes is part of the plan's identity; the rest is not."""

    source: str
    """Folder, archive or address of the raw images."""
    out: str
    """Folder (or s3://… and the like) for the prepared dataset."""
    outputs: tuple[Output, ...] = (Output(),)
    """Several forms in one pass: 256:jpeg, 64:raw:square, keep."""
    seed: int = 0
    """Of the global shuffle and of every random choice."""
    shards: int | None = limited(None, 1)
    """Shards per split; chosen, with a reason, if not given."""
    shard_bytes: int = limited(DEFAULT_SHARD_BYTES, 1 << 16, 1 << 62)
    """Aim for shards of about this size."""
    classes: int | None = limited(None, 1)
    """A seeded subset of this many classes."""
    class_order: tuple[str, ...] | None = None
    """Class names in label order, one a line."""
    val_fraction: float | None = None
    """Split a val off a source that has none."""
    metadata: bool = False
    """Also write KEY.json: where each sample came from."""
    max_bad: float | None = limited(None, 0, 1)
    """Largest share of unusable samples; more is an error (0.001)."""
    max_pixels: int = limited(MAX_PIXELS, 1, 1 << 62)
    """Larger images go to quarantine undecoded."""
    overwrite: bool = False
    """Replace what is in OUT; a finished dataset stays till then: room for both."""
    retry_quarantine: bool = False
    """Try the (mended) files in OUT/quarantine again, in their places."""
    engine: str | None = None
    """spark, or processes of this machine; not given: Spark where there is Java for it."""
    master: str | None = None
    """local[*] (default), local[N], spark://host:7077, yarn, k8s://…"""
    spark: Mapping[str, str] = field(default_factory=dict[str, str])
    """A Spark setting, as for spark-submit; repeatable."""
    source_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """For the source: devkit=…, layout=classes, labels=words …"""
    storage_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """For fsspec; VALUE may be JSON. For the output, and for a source of its scheme or beside a local output."""

    def __post_init__(self) -> None:
        check_limits(self)
        check(len(self.outputs) > 0, "no output asked for")
        names = [output.name for output in self.outputs]
        twice = sorted({name for name in names if names.count(name) > 1})
        check(not twice, f"two outputs named {', '.join(twice)}: outputs must differ in size or codec")
        check(self.engine in (None, *ENGINES), f"engine {self.engine!r} is none of {', '.join(ENGINES)}")
        check(
            self.engine != "processes" or not (self.master or self.spark),
            "--master and --conf are for Spark: leave them out with --engine processes",
        )
        check(
            self.val_fraction is None or 0 < self.val_fraction < 1,
            f"val fraction {self.val_fraction} is not between 0 and 1",
        )
        check(
            not (self.overwrite and self.retry_quarantine),
            "overwriting would remove the mended files in quarantine: ask for one of the two",
        )

    @property
    def source_storage_options(self) -> dict[str, Any]:
        """For fsspec at the source's end; `source_options["storage_options"]` wins."""
        out, source = (where.partition("://")[0] if "://" in where else "" for where in (self.out, self.source))
        ours = self.storage_options if out in ("", "file", source) else {}
        return dict(self.source_options.get("storage_options", ours))

    def folders(self, split: str) -> list[str]:
        """Where each output of a split goes, relative to `out`."""
        return [split] if len(self.outputs) == 1 else [f"{output.name}/{split}" for output in self.outputs]


def parse_output(text: str, **settings: Any) -> Output:
    """`256:jpeg`, `64:raw`, `64:raw:square` or `keep` with further `Output` settings. Raises UsageError."""
    parts = text.split(":")
    if parts == ["keep"]:
        return Output(codec="keep", resize="none", size_px=0)
    if len(parts) not in (2, 3) or not re.fullmatch(r"\d{1,99}", parts[0]):
        raise UsageError(f"output {text!r} is not SIZE:CODEC or SIZE:CODEC:RESIZE, like 256:jpeg or 64:raw:square")
    if len(parts) == 3:
        check(parts[2] in RESIZES, f"resize {parts[2]!r} in output {text!r} is none of {', '.join(RESIZES)}")
        settings = settings | {"resize": parts[2]}
    check(parts[1] != "keep", f"output {text!r}: keep takes the files as they are, without a size")
    settings |= {"size_px": int(parts[0]), "codec": parts[1]}
    return Output(**settings)


SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?)B?|B)?", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """`64MiB`, `500KB`, `1048576`. Raises UsageError."""
    match = SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"size {text!r} is not a number of bytes like 64MiB or 1000000")
    number, unit, binary = match.groups()
    power = " KMGT".index(unit.upper()) if unit else 0
    size = float(number) * (1024 if binary else 1000) ** power
    check(size < 1 << 62, "a size is of more bytes than anything holds")
    return int(size)
