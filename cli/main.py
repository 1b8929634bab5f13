"""`feedline VERB …`: the one Typer app. Every verb is a thin file beside this one; heavy imports stay inside it."""

import os
import sys

import typer

from feedline.cli import demo, doctor, ladder, prepare, profile, slurm, synth, train, verify
from feedline.cli.common import stderr

app = typer.Typer(
    name="feedline",
    help="Find out why the GPU is waiting, fix it, and prove it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(doctor.doctor)
app.command()(synth.synth)
app.command()(prepare.prepare)
app.command()(verify.verify)
app.command()(train.train)
app.command(context_settings=slurm.CONTEXT)(slurm.slurm)
app.command(context_settings=profile.CONTEXT)(profile.profile)
app.command()(demo.demo)
app.command(context_settings=ladder.CONTEXT)(ladder.ladder)


@app.callback()
def _global_options(debug: bool = typer.Option(False, "--debug", help="Show tracebacks.")) -> None:
    if debug:
        os.environ["FEEDLINE_DEBUG"] = "1"


def run() -> None:
    """Errors of ours end as one line and their exit status; anything else is a bug and keeps its traceback."""
    try:
        app()
    except KeyboardInterrupt:
        stderr.print("interrupted")
        sys.exit(130)
    except Exception as error:
        status = getattr(error, "exit_status", None)
        if status is None or os.environ.get("FEEDLINE_DEBUG"):
            raise
        stderr.print(f"feedline: {error}", markup=False, soft_wrap=True)
        sys.exit(status)
