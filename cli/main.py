"""`feedline VERB …`: the one Typer app. Every verb is a thin file beside this one; heavy imports stay inside it."""

import errno
import io
import os
import re
import sys
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

try:
    import typer

    from feedline.cli import (
        compare,
        demo,
        doctor,
        index,
        inspect,
        ladder,
        plan,
        prepare,
        profile,
        report,
        slurm,
        synth,
        train,
        tune,
        verify,
    )
    from feedline.cli.common import console, stderr
    from feedline.pipeline.base.errors import UsageError
    from feedline.pipeline.base.text import printable
except KeyboardInterrupt:  # they take most of a second
    sys.stderr.write("interrupted\n")
    sys.exit(130)

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
app.command()(index.index)
app.command()(inspect.inspect)
app.command()(train.train)
app.command(context_settings=slurm.CONTEXT)(slurm.slurm)
app.command(context_settings=profile.CONTEXT)(profile.profile)
app.command()(report.report)
app.command()(demo.demo)
app.command()(compare.compare)
app.command()(tune.tune)
app.command()(plan.plan)
app.command(context_settings=ladder.CONTEXT)(ladder.ladder)


def _say_version(asked: bool) -> None:
    if asked:
        console.print(f"feedline {version('feedline')}")
        raise typer.Exit


@app.callback()
def _global_options(
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks."),
    _version: bool = typer.Option(False, "--version", callback=_say_version, is_eager=True, help="Show it and exit."),
) -> None:
    if debug:
        os.environ["FEEDLINE_DEBUG"] = "1"


def run() -> None:
    """Errors of ours end as one line and their exit status; anything else is a bug and keeps its traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # bars and typographic signs where the terminal has ASCII only
    verb = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    try:
        check_words(verb, sys.argv[1:])
        status = app(standalone_mode=False, prog_name="feedline")
        if sys.stdout is not None:
            sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        stderr.print("interrupted" + ": --resume auto goes on from the last checkpoint" * (verb == "train"))
        sys.exit(130)
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None and error.errno in UNWRITABLE:
            leave_output()
        sys.exit(explain(error, verb))
    sys.exit(status if isinstance(status, int) else 0)


UNWRITABLE = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EBADF)
"""What writing to a standard output fails with that is full, or whose terminal has gone."""


def leave_output() -> None:
    """What is still buffered for it goes nowhere; the interpreter would try again at its end."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


PASSED_ON = ("profile", "ladder", "slurm")
"""Verbs some of whose words are another program's."""
ADDRESS = re.compile(r"(?:--[\w-]+=)?[a-z][a-z\d+.-]*://")


def check_words(verb: str, words: list[str]) -> None:
    """Raises UsageError for what no verb can mean: a folder that is gone, an empty path (it would mean the current
    folder: a variable that is not set), an address where only local folders are read."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UsageError("the current folder was removed: cd to another one") from None
    if "" in words and verb not in PASSED_ON:
        raise UsageError("one of the arguments is empty: is a variable not set?")
    words = words[: words.index(verb) + 2] if verb in PASSED_ON else words
    address = next((word for word in words if ADDRESS.match(word)), None)
    if address and verb not in ("prepare", "verify"):
        raise UsageError(f"{address}: {verb} takes files and folders of this machine: copy it here first")


NEEDS = {
    "synth": "prepare", "prepare": "prepare", "verify": "shards", "index": "shards", "inspect": "shards",
    "train": "train", "tune": "train", "plan": "train", "compare": "train", "ladder": "all", "demo": "all",
}  # fmt: skip
"""The extra that brings what a verb imports; the base is enough for the others."""


def explain(error: Exception, verb: str) -> int:
    """Says in one line what is wrong; returns the exit status. Raises what is neither ours nor the file system's, and
    all with --debug."""
    if isinstance(error, WrongUse):
        return say(usage_line(error), 2)
    missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if missing not in ("", "feedline") and verb in NEEDS:
        status, what = 2, f"{verb} needs {missing}: pip install 'feedline[{NEEDS[verb]}]'"
    elif isinstance(error, OSError) and (error.filename is not None or error.errno in UNWRITABLE):
        status, what = 1, f"{error.filename or 'the output'}: {error.strerror}"
    else:
        status, what = getattr(error, "exit_status", None), str(error)
    if status is None or os.environ.get("FEEDLINE_DEBUG"):
        raise error
    return say(f"feedline: {what}", status)


WrongUse = typer.BadParameter.__mro__[1]  # the usage error of the click that Typer carries; it exports only a child


def usage_line(error: Any) -> str:
    """Empty where there were no words at all: Typer has shown the help."""
    verb = error.ctx.command_path if error.ctx else "feedline"
    text = error.format_message().strip()
    return f"{verb}: {text} (see {verb} --help)" if text else ""


def say(line: str, status: int) -> int:
    if line and not train.said_by_another_rank(line):
        stderr.print(printable(line), markup=False, soft_wrap=True)
    return status


if __name__ == "__main__":
    run()
