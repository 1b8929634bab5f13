"""`feedline prepare SOURCE OUT`: raw images to shards, on Spark."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feedline.cli.common import JsonFile, Record, console, progress, stderr

if TYPE_CHECKING:
    from feedline.preprocess.config import PrepareConfig

Opt = typer.Option


def prepare(
    source: Annotated[str, typer.Argument(help="Folder, archive or address of the raw images.")],
    out: Annotated[str, typer.Argument(help="Folder (or s3://… and the like) for the prepared dataset.")],
    size: Annotated[int, Opt("--size", help="Pixels of the short side, or of the square.")] = 256,
    codec: Annotated[str, Opt("--codec", help="jpeg, planes, raw or keep.")] = "jpeg",
    output: Annotated[
        list[str] | None,
        Opt("--output", metavar="SIZE:CODEC", help="Several forms in one pass: 256:jpeg, 64:raw:square, keep."),
    ] = None,
    resize: Annotated[str, Opt("--resize", help="shortest, square, crop, stretch or none.")] = "shortest",
    filter_name: Annotated[
        str, Opt("--filter", help="Antialiasing filter: bicubic, bilinear, lanczos, box, hamming.")
    ] = "bicubic",
    quality: Annotated[int, Opt("--quality", help="JPEG quality.")] = 90,
    subsampling: Annotated[str, Opt("--subsampling", help="JPEG chroma: 420 or 444.")] = "420",
    enlarge: Annotated[bool, Opt("--enlarge", help="Also scale up images smaller than SIZE.")] = False,
    apply_orientation: Annotated[
        bool, Opt("--apply-orientation", help="Turn the pixels as EXIF says (published accuracies ignore it).")
    ] = False,
    shards: Annotated[
        int | None, Opt("--shards", help="Shards per split; chosen, with a reason, if not given.")
    ] = None,
    shard_size: Annotated[str, Opt("--shard-size", help="Aim for shards of about this size.")] = "64MiB",
    master: Annotated[
        str | None, Opt("--master", help="local[*] (default), local[N], spark://host:7077, yarn, k8s://…")
    ] = None,
    spark_conf: Annotated[
        list[str] | None, Opt("--conf", metavar="KEY=VALUE", help="A Spark setting, as for spark-submit; repeatable.")
    ] = None,
    seed: Annotated[int, Opt("--seed", help="Of the global shuffle and of every random choice.")] = 0,
    max_bad: Annotated[
        float | None, Opt("--max-bad", help="Largest share of unusable samples; more is an error (0.001).")
    ] = None,
    max_pixels: Annotated[
        int | None, Opt("--max-pixels", help="Larger images go to quarantine undecoded (64 Mi).")
    ] = None,
    classes: Annotated[int | None, Opt("--classes", help="A seeded subset of this many classes.")] = None,
    class_order: Annotated[
        Path | None, Opt("--class-order", metavar="FILE", help="Class names in label order, one a line.")
    ] = None,
    val_fraction: Annotated[
        float | None, Opt("--val-fraction", help="Split a val off a source that has none.")
    ] = None,
    metadata: Annotated[bool, Opt("--metadata", help="Also write KEY.json: where each sample came from.")] = False,
    source_option: Annotated[
        list[str] | None,
        Opt("--source-option", metavar="KEY=VALUE", help="For the source: devkit=…, layout=classes, labels=words …"),
    ] = None,
    storage_option: Annotated[
        list[str] | None, Opt("--storage-option", metavar="KEY=VALUE", help="For fsspec; VALUE may be JSON.")
    ] = None,
    overwrite: Annotated[
        bool, Opt("--overwrite", help="Replace what is in OUT; a finished dataset stays till then: room for both.")
    ] = False,
    resume: Annotated[bool, Opt("--resume", help="The default: a rerun skips what is done.")] = True,
    retry_quarantine: Annotated[
        bool, Opt("--retry-quarantine", help="Try the (mended) files in OUT/quarantine again, in their places.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Prepare raw images into verified-ready WebDataset shards. A rerun resumes; bad images go to OUT/quarantine.

    Example: feedline prepare /data/imagenet OUT --output 256:jpeg --output 64:raw
    """
    from feedline.pipeline.base.errors import UsageError
    from feedline.preprocess.config import PrepareConfig, parse_bytes, parse_output
    from feedline.preprocess.picture import MAX_PIXELS, Output

    how: dict[str, Any] = {
        "resize": resize, "filter": filter_name, "quality": quality, "subsampling": subsampling,
        "enlarge": enlarge, "apply_orientation": apply_orientation,
    }  # fmt: skip
    if output and (size, codec) != (256, "jpeg"):
        raise UsageError("--size and --codec mean a single output: beside --output say SIZE:CODEC there")
    if output:
        outputs = tuple(parse_output(text, **how) for text in output)
    elif codec == "keep":
        outputs = (parse_output("keep"),)
    else:
        outputs = (Output(size_px=size, codec=codec, **how),)  # pyright: ignore[reportArgumentType] - it checks
    config = PrepareConfig(
        source=source,
        out=out,
        outputs=outputs,
        seed=seed,
        shards=shards,
        shard_bytes=parse_bytes(shard_size),
        classes=classes,
        class_order=read_lines(class_order),
        val_fraction=val_fraction,
        metadata=metadata,
        max_bad=max_bad,
        max_pixels=MAX_PIXELS if max_pixels is None else max_pixels,
        overwrite=overwrite,
        retry_quarantine=retry_quarantine,
        master=master,
        spark=pairs(spark_conf, "--conf"),
        source_options=values(source_option, "--source-option"),
        storage_options=values(storage_option, "--storage-option"),
    )
    run(config, json_file)


def run(config: "PrepareConfig", json_file: Path | None) -> None:
    from feedline.preprocess.prepare import prepare as run_job

    signal.signal(signal.SIGTERM, terminated)
    record = Record("prepare", json_file)
    with progress("prepare") as advance:
        said = run_job(config, advance, lambda note: stderr.print(note, markup=False, soft_wrap=True))
    show(said, config.out)
    record.write(json_file, said)


def show(said: dict[str, Any], out: str) -> None:
    def line(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    line(
        f"{said.get('output_samples', 0):,} of {said.get('input_samples', 0):,} samples in {said.get('shards', 0)} "
        f"shards, {gib(said.get('bytes_in', 0))} -> {gib(said.get('bytes_out', 0))}: {out}"
    )
    if said.get("samples_per_s"):
        stages = said["stage_s"]
        whole = sum(stages.values()) or 1.0
        shares = ", ".join(f"{stage} {seconds / whole:.0%}" for stage, seconds in stages.items() if seconds)
        line(f"{said['samples_per_s']:,.0f} samples/s, {said['samples_per_s_per_core']:,.0f} per core ({shares})")
        if imagenet := said.get("imagenet"):
            times = ", ".join(f"{span(hours)} on {cores}" for cores, hours in imagenet["hours_by_cores"].items())
            line(f"all of ImageNet at this rate: {times} cores (± {imagenet['relative_error']:.0%})")
    if said.get("quarantined"):
        reasons = ", ".join(f"{count} {reason}" for reason, count in said["reasons"].items())
        line(f"{said['quarantined']} in quarantine ({reasons}): {out}/quarantine/report.jsonl")
        line("  mend the files there, then: the same command with --retry-quarantine")


def span(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.0f} min"


def gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB" if size_bytes >= 1 << 30 else f"{size_bytes / 2**20:.1f} MiB"


def terminated(number: int, frame: object) -> None:
    """A polite kill ends like Ctrl-C: no JVM, nothing half-written."""
    raise SystemExit(128 + number)


LIST_BYTES = 64 << 20


def read_lines(path: Path | None) -> tuple[str, ...] | None:
    from feedline.pipeline.base.errors import UsageError
    from feedline.pipeline.format.local import read_bounded

    if path is None:
        return None
    try:
        text = read_bounded(path, LIST_BYTES).decode()
        return tuple(line.strip() for line in text.splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def pairs(texts: list[str] | None, option: str) -> dict[str, str]:
    from feedline.pipeline.base.errors import UsageError

    found: dict[str, str] = {}
    for text in texts or []:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"{option} {text!r} is not KEY=VALUE")
        found[key] = value
    return found


def values(texts: list[str] | None, option: str) -> dict[str, Any]:
    """KEY=VALUE where VALUE is JSON if it can be read as such, text otherwise."""
    import json

    found: dict[str, Any] = {}
    for key, text in pairs(texts, option).items():
        try:
            found[key] = json.loads(text)
        except (ValueError, RecursionError):
            found[key] = text
    return found
