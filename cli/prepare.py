"""`feedline prepare SOURCE OUT`: raw images to shards, on Spark or in processes of this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from feedline.cli.common import Record, console, progress, stderr
from feedline.cli.options import Settings, command, fields, source
from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.files import read_bounded
from feedline.pipeline.base.text import count_of
from feedline.profiling.record import units

if TYPE_CHECKING:
    from feedline.preprocess.picture import Output

PICTURE = fields(
    "preprocess.picture.Output",
    codec={"help": f"{', '.join(source('pipeline.codecs.table')['NAMES'])}."},
    subsampling={"hint": str},
)
JOB = fields(
    "preprocess.config.PrepareConfig",
    outputs={"flags": ("--output",), "hint": list[str] | None, "default": None, "metavar": "SIZE:CODEC"},
    shard_bytes={
        "flags": ("--shard-size",),
        "hint": str,
        "default": f"{source('preprocess.config')['DEFAULT_SHARD_BYTES'] >> 20}MiB",
    },
    class_order={"hint": Path | None, "metavar": "FILE"},
    spark={"flags": ("--conf",), "metavar": "KEY=VALUE"},
    source_options={"flags": ("--source-option",), "metavar": "KEY=VALUE"},
    storage_options={"flags": ("--storage-option",), "metavar": "KEY=VALUE"},
)
LIST_BYTES = 64 << 20


@command
def prepare(job: Annotated[Settings, JOB], picture: Annotated[Settings, PICTURE], record: Record) -> None:
    """Prepare raw images into verified-ready WebDataset shards. A rerun resumes; bad images go to OUT/quarantine.

    Example: feedline prepare /data/imagenet OUT --output 256:jpeg --output 64:raw
    """
    from feedline.preprocess.config import PrepareConfig, parse_bytes
    from feedline.preprocess.prepare import prepare as run

    job["outputs"] = outputs(job["outputs"] or [], picture)
    job["shard_bytes"] = parse_bytes(job["shard_bytes"])
    job["class_order"] = read_lines(job["class_order"])
    config = PrepareConfig(**job)
    with progress("prepare") as advance:
        result = run(config, advance, stderr.print)
    show_result(result, config.out)
    record.write(result)


def outputs(texts: list[str], picture: Settings) -> "tuple[Output, ...]":
    """What --output asks for, else one output of these settings. Raises UsageError."""
    from feedline.preprocess.config import parse_output
    from feedline.preprocess.picture import Output

    if (not texts and picture["codec"] == "keep") or {*texts} == {"keep"}:
        given = [name for name, value in picture.items() if name != "codec" and value != getattr(Output, name)]
        if given:
            raise UsageError(
                f"keep takes the files as they are: leave --{given[0].removesuffix('_px').replace('_', '-')} out"
            )
        return (parse_output("keep"),)
    if texts and (picture["size_px"], picture["codec"]) != (Output.size_px, Output.codec):
        raise UsageError("--size and --codec mean a single output: beside --output say SIZE:CODEC there")
    shared = {name: value for name, value in picture.items() if name not in ("size_px", "codec")}
    made = tuple(parse_output(text, **shared) for text in texts) or (Output(**picture),)
    for name in ("quality", "subsampling"):
        if picture[name] != getattr(Output, name) and not any(name in output.settings() for output in made):
            codecs = " or ".join(dict.fromkeys(output.codec for output in made))
            raise UsageError(f"--{name} does nothing for {codecs}: leave it out, or prepare jpeg")
    return made


def read_lines(path: Path | None) -> tuple[str, ...] | None:
    if path is None:
        return None
    try:
        lines = read_bounded(path, LIST_BYTES).decode().splitlines()
        return tuple(line.strip() for line in lines if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def show_result(done: dict[str, Any], out: str) -> None:
    sizes = f"{units.size(done.get('bytes_in'))} -> {units.size(done.get('bytes_out', 0))}"
    console.print(f"{done.get('output_samples', 0):,} of {done.get('input_samples', 0):,} samples in "
                  f"{count_of(done.get('shards', 0), 'shard')}, {sizes}: {out}")  # fmt: skip
    if done.get("samples_per_s"):
        stages = done["stage_s"]
        whole = sum(stages.values()) or 1.0
        shares = ", ".join(f"{stage} {seconds / whole:.0%}" for stage, seconds in stages.items() if seconds)
        rate, per_core = done["samples_per_s"], done["samples_per_s_per_core"]
        console.print(f"{rate:,.0f} samples/s, {per_core:,.0f} per core ({shares})")
        if imagenet := done.get("imagenet"):
            times = ", ".join(
                f"{units.seconds(hours * 3600)} on {cores}" for cores, hours in imagenet["hours_by_cores"].items()
            )
            console.print(f"all of ImageNet at this rate: {times} cores (± {imagenet['relative_error']:.0%})")
    if done.get("quarantined"):
        reasons = ", ".join(f"{count} {reason}" for reason, count in done["reasons"].items())
        console.print(f"{done['quarantined']} in quarantine ({reasons}): {out}/quarantine/report.jsonl\n"
                      "  mend the files there, then: the same command with --retry-quarantine")  # fmt: skip
