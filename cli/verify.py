"""`feedline verify OUT`: every promise of a prepared dataset, checked."""

from typing import Annotated

import typer

from feedline.cli.common import JsonFile, Record, console, progress, stderr
from feedline.cli.options import values

SHOWN = 20


def verify(
    out: Annotated[str, typer.Argument(help="A prepared dataset, or one split of it.")],
    full: Annotated[bool, typer.Option("--full", help="Decode every sample and check every byte.")] = False,
    storage_option: Annotated[
        list[str] | None, typer.Option("--storage-option", metavar="KEY=VALUE", help="For fsspec.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Check manifests, hashes, counts, balance, index and every label, and decode four samples of every shard (sizes
    and checksums in the index are checked for these only). Ends with status 1 if anything is wrong.

    Example: feedline verify OUT --full
    """
    from feedline.preprocess.verify import verify as run

    record = Record("verify", json_file)
    with progress("verify") as advance:
        said = run(out, full=full, storage_options=values(storage_option, "--storage-option"), on_progress=advance)
    for problem in said["problems"][:SHOWN]:
        sample = f" sample {problem['key']!r}" if problem["key"] else ""
        stderr.print(f"{problem['shard']}{sample}: {problem['what']}", markup=False, soft_wrap=True)
    if len(said["problems"]) > SHOWN:
        stderr.print(f"… and {len(said['problems']) - SHOWN} more (all of them with --json)", markup=False)
    verdict = "fine" if said["ok"] else f"{len(said['problems'])} problem{'s' * (len(said['problems']) != 1)}"
    console.print(
        f"{verdict}: {said['samples']:,} samples in {said['shards']} shards, {said['checked_samples']:,} decoded",
        markup=False,
        soft_wrap=True,
    )
    record.write(json_file, said)
    if not said["ok"]:
        raise typer.Exit(1)
