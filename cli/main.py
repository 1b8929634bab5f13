"""`feedline VERB …`: the one Typer app. Every verb is a thin file beside this one; heavy imports stay inside it."""

import sys

VERBS = {
    "doctor": "", "synth": "shards", "prepare": "shards", "verify": "shards", "index": "shards",
    "inspect": "shards", "train": "train", "slurm": "", "profile": "", "report": "", "demo": "train",
    "prune": "train",
    "compare": "train", "tune": "train", "plan": "train", "ladder": "train", "gpu-check": "train",
    "sweep": "sweep",
}  # fmt: skip
"""Each a function in the module of its name, and the extra that brings what it imports; none: the base is enough."""
OPTIONS_END_AT_THE_SCRIPT = {"allow_interspersed_args": False}
PASSED_ON = {
    "profile": OPTIONS_END_AT_THE_SCRIPT,
    "ladder": OPTIONS_END_AT_THE_SCRIPT,
    "slurm": {"allow_extra_args": True, "ignore_unknown_options": True},
}
"""Verbs some of whose words are another program's."""

try:
    import errno
    import io
    import os
    import re
    import signal
    from contextlib import suppress
    from importlib import import_module
    from importlib.metadata import version
    from pathlib import Path
    from typing import Any

    import typer

    from feedline.cli.common import console, said_by_another_rank, stderr
    from feedline.pipeline.base.errors import UsageError
    from feedline.pipeline.base.text import printable

    names = [verb.replace("-", "_") for verb in VERBS]
    functions = [getattr(import_module(f"feedline.cli.{name}"), name) for name in names]
except KeyboardInterrupt:  # they take most of a second
    sys.stderr.write("interrupted\n")
    sys.exit(130)

app = typer.Typer(
    name="feedline",
    help="Find out why the GPU is waiting, fix it, and prove it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb_name, function in zip(VERBS, functions, strict=True):
    app.command(verb_name, context_settings=PASSED_ON.get(verb_name))(function)


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
    if verb in RERUN:  # a polite kill ends like Ctrl-C: no child left, nothing half-written
        signal.signal(signal.SIGTERM, terminated)
    try:
        check_words(verb, sys.argv[1:])
        status = app(standalone_mode=False, prog_name="feedline")
        if sys.stdout is not None:
            sys.stdout.flush()
        if status == 130 and verb != "profile":  # Typer's word for Ctrl-C; profile has said what became of it
            raise KeyboardInterrupt
    except (KeyboardInterrupt, typer.Abort) as error:
        stderr.print("interrupted" + (str(error) or GOES_ON.get(verb, "")))
        sys.exit(130)
    except Exception as error:
        sys.exit(explain(error, verb))
    sys.exit(status if isinstance(status, int) else 0)


RERUN = ("prepare", "compare", "ladder", "demo", "tune", "gpu-check", "sweep", "prune")
GOES_ON = {
    **dict.fromkeys(("prepare", "compare", "demo", "sweep", "prune"), ": the same command resumes"),
    "ladder": ": what is prepared stays, the same command measures anew",
}


def terminated(number: int, frame: object) -> None:
    verb = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    stderr.print("terminated" + GOES_ON.get(verb, ""))
    raise SystemExit(128 + number)


UNWRITABLE = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EBADF)
"""What writing to a standard output fails with that is full, or whose terminal has gone."""
ADDRESS = re.compile(r"(?:--[\w-]+=)?[a-z][a-z\d+.-]*://")
WrongUse = typer.BadParameter.__mro__[1]  # the usage error of the click that Typer carries; it exports only a child


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


def explain(error: Exception, verb: str) -> int:
    """Says in one line what is wrong; returns the exit status. Raises what is neither ours nor the file system's, and
    all with --debug."""
    prefix, status, what = "feedline", getattr(error, "exit_status", None), str(error)
    missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if isinstance(error, WrongUse):
        wrong: Any = error
        prefix, text = wrong.ctx.command_path if wrong.ctx else prefix, wrong.format_message().strip()
        if not text:  # there were no words at all: Typer has shown the help
            return 2
        status, what = 2, f"{text} (see {prefix} --help)"
    elif missing not in ("", "feedline") and VERBS.get(verb):
        extra = "train" if missing == "torch" and VERBS[verb] == "shards" else VERBS[verb]  # inspect, of a run
        status, what = 2, f"{verb} needs {missing}: pip install 'feedline[{extra}]'"
    elif isinstance(error, RuntimeError) and what.startswith("Symlink loop"):  # Path.resolve, until Python 3.13
        status = 2
    elif isinstance(error, OSError) and (error.filename is not None or error.errno in UNWRITABLE):
        status, what = 1, f"{error.filename or 'the output'}: {error.strerror}"
        if error.filename is None:  # what is still buffered goes nowhere; the interpreter would try again at its end
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if status is None or (os.environ.get("FEEDLINE_DEBUG") and not isinstance(error, WrongUse)):
        raise error
    line = f"{prefix}: {what}"
    if not said_by_another_rank(line):
        stderr.print(printable(line))
    return status


if __name__ == "__main__":
    run()
