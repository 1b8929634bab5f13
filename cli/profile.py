"""`feedline profile`: why is this training script slow, proved, and what each remedy would give."""

from typing import Annotated

import typer

from feedline.cli.common import JsonFile, Record, console, stderr

CONTEXT = {"allow_interspersed_args": False}
"""Options end at the script's name: what follows is the script's own, `--help` included."""


def profile(
    script: Annotated[list[str], typer.Argument(metavar="SCRIPT [ARGS…]", help="The script and its own arguments.")],
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module's name.")] = False,
    steps: Annotated[int | None, typer.Option(min=1, help="Stop the script after so many training steps.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="Stop it after so long in training.")] = None,
    legs: Annotated[bool, typer.Option("--legs", help="Also measure the ceiling and the loader alone.")] = False,
    json_file: JsonFile = None,
) -> None:
    """Run an unmodified training script and say what it waits for.

    Example: feedline profile --steps 200 --legs --json run.json train.py --epochs 1
    """
    from feedline.profiling.journal import Options
    from feedline.profiling.launch import Launch
    from feedline.profiling.launch import profile as run_profiled

    record = Record("profile")
    run = run_profiled(Launch(argv=script, module=module, options=Options(steps=steps, seconds=seconds)))
    recording = run.recording
    record.write(json_file, {"recording": recording.to_dict()})
    console.print(f"{len(recording.steps)} steps", markup=False)
    if run.status:
        stderr.print(f"feedline: the script ended with status {run.status}", markup=False)
        raise typer.Exit(run.status)
