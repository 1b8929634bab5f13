"""`feedline verify OUT`: every promise of a prepared dataset, checked."""

from typing import Annotated

import typer

from feedline.cli.common import Record, StorageOption, console, progress, stderr
from feedline.cli.options import command, pairs
from feedline.pipeline.base.text import count_of

SHOWN = 20


@command
def verify(
    out: Annotated[str, typer.Argument(help="A prepared dataset, or one split of it.")],
    record: Record,
    full: Annotated[bool, typer.Option("--full", help="Decode every sample and check every byte.")] = False,
    storage_option: StorageOption = None,
) -> None:
    """Check manifests, hashes, counts, balance, index and every label, and decode four samples of every shard (sizes
    and checksums in the index are checked for these only). Ends with status 1 if anything is wrong.

    Example: feedline verify OUT --full
    """
    from feedline.preprocess.verify import verify as run

    with progress("verify") as advance:
        result = run(out, full=full, storage_options=pairs(storage_option, "--storage-option"), on_progress=advance)
    problems = result["problems"]
    for problem in problems[:SHOWN]:
        sample = f" sample {problem['key']!r}" if problem["key"] else ""
        stderr.print(f"{problem['shard']}{sample}: {problem['what']}")
    if len(problems) > SHOWN:
        stderr.print(f"… and {len(problems) - SHOWN} more (all of them with --json)")
    verdict = "fine" if result["ok"] else count_of(len(problems), "problem")
    console.print(
        f"{verdict}: {count_of(result['samples'], 'sample')} in {count_of(result['shards'], 'shard')}, "
        f"{result['checked_samples']:,} decoded"
    )
    record.write(result)
    if not result["ok"]:
        raise typer.Exit(1)
