"""What every experiment shares: its options, rounds in random order, processes of their own, a table, and a result
file that names its command and host.

An experiment is a set of cells, what measures one of them, and a record with a table of what came out. Results are
written where `--out` says, by default over the committed ones in benchmarks/results.
"""

import argparse
import json
import math
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from feedline.benchmarks.measure.intervals import Estimate, student_t
from feedline.benchmarks.measure.rounds import rounds
from feedline.pipeline.base.errors import FeedlineError
from feedline.pipeline.base.files import write_atomically
from feedline.profiling.record.host import describe_host

T = TypeVar("T")
RESULTS = Path(__file__).parents[1] / "results"
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
"""A program that burns CPU for as long as it is wanted."""


def module() -> str:
    return getattr(sys.modules["__main__"].__spec__, "name", Path(sys.argv[0]).stem)


def this_command() -> str:
    """The experiment that runs, as the line a user would type, without this machine's folders."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return shlex.join(["python", "-m", module(), *words])


def options(doc: str | None, result: str, *paths: str, **defaults: Any) -> argparse.Namespace:
    """`paths` are arguments, with `?` or `+` behind where there may be none or several; `--NAME` is an option that
    must be given. An option's kind is that of its default; a type is the kind of one without. `--out` is where the
    figures go."""
    kind = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=f"python -m {module()}", description=doc, formatter_class=kind)
    for name in paths:
        must: dict[str, Any] = {"required": True} if name.startswith("--") else {}
        parser.add_argument(name.rstrip("?+"), type=Path, nargs=name[-1] if name[-1] in "?+" else None, **must)
    for name, default in defaults.items():
        flag = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, type):
            parser.add_argument(flag, type=default)
        elif isinstance(default, tuple):
            parser.add_argument(flag, type=type(default[0]), nargs="+", default=list(default))
        else:
            parser.add_argument(flag, type=type(default), default=default, help=f"{default}")
    parser.add_argument("--out", type=Path, default=RESULTS / result)
    return parser.parse_args()


def write(path: Path, figures: Mapping[str, Any]) -> None:
    whole = {"command": this_command(), "host": describe_host(), **figures}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(whole, indent=1, default=str) + "\n").encode())


def in_rounds(
    cells: Mapping[str, Callable[[], T]], count: int, words: Callable[[T], str] = str, *,
    failed: dict[str, str] | None = None, but: type[FeedlineError] = FeedlineError,
    told: Callable[[list[dict[str, T]]], object] = lambda _: None, until_s: float = math.inf,
) -> list[dict[str, T]]:  # fmt: skip
    """What each cell measured, by round; every round visits all in an order drawn anew. `told` has it after each.

    A cell that raises `but` stands in `failed` from then on, with the reason, and is left out; without `failed` it
    raises. From `until_s` on, by the monotonic clock, none is begun."""
    measured: list[dict[str, T]] = [{} for _ in range(count)]
    for number, name in rounds([name for name in cells if name not in (failed or ())], count):
        if time.monotonic() > until_s:
            say("the time is over")
            break
        if failed and name in failed:
            continue
        try:
            measured[number][name] = cells[name]()
            said = words(measured[number][name])
        except but as error:
            if failed is None:
                raise
            failed[name] = said = str(error)
        say(f"{number + 1}/{count} {name}: {said}")
        told(measured)
    return measured


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def column(by_round: Sequence[Mapping[str, T]], name: str) -> list[T]:
    return [one[name] for one in by_round if name in one]


def spread(values: Sequence[float], digits: int | None = None) -> dict[str, float]:
    found = {"median": statistics.median(values), "low": min(values), "high": max(values)}
    return found if digits is None else {name: round(value, digits) for name, value in found.items()}


def mean(values: Sequence[float]) -> Estimate:
    """With its 95 % interval."""
    middle, n = statistics.fmean(values), len(values)
    if n < 2:
        return Estimate(value=middle, low=None, high=None, n=n)
    reach = student_t(n - 1, 0.95) * statistics.stdev(values) / math.sqrt(n)
    return Estimate(value=middle, low=middle - reach, high=middle + reach, n=n)


def output_of(command: Sequence[str | Path], what: str, **how: Any) -> str:
    """What a program writes to standard output. Raises FeedlineError with `what` failed and its last words."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, **how)
    if done.returncode:
        raise FeedlineError(f"{what} failed: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
    return done.stdout


def apart(function: Callable[..., Any], *arguments: Any, env: Mapping[str, str] | None = None) -> Any:
    """What the function of an experiment returns in a process of its own; all of it is JSON. Raises FeedlineError
    with its last words."""
    home = function.__module__ if function.__module__ != "__main__" else module()
    program = f"import json, sys; from {home} import {function.__name__} as f; "
    program += "print(json.dumps(f(*json.loads(sys.argv[1]))))"
    words = json.dumps(arguments, default=str)
    command = [sys.executable, "-c", program, words]
    said = output_of(command, f"{function.__name__} in a process of its own", env=env)
    return json.loads(said.strip().splitlines()[-1])


@contextmanager
def beside(count: int, program: str = BUSY, *words: str) -> Generator[None]:
    """So many processes run the program meanwhile."""
    others = [subprocess.Popen([sys.executable, "-c", program, str(number), *words]) for number in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def show(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table whose first column is words."""
    texts = [[str(cell) for cell in row] for row in (headers, *rows)]
    widths = [max(map(len, cells)) for cells in zip(*texts, strict=True)]
    for first, *rest in texts:
        cells = [text.rjust(width) for text, width in zip(rest, widths[1:], strict=True)]
        print("  ".join([first.ljust(widths[0]), *cells]).rstrip())


def end_with(main: Callable[[], int | None]) -> NoReturn:
    """Runs `main` as a program: our errors are one line and their status, Ctrl-C is 130."""
    try:
        sys.exit(main())
    except FeedlineError as error:
        say(f"feedline: {error}")
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(130)
