"""How a benchmark command ends: with its own status, or with one line where it was asked for the impossible."""

import sys
from collections.abc import Callable
from typing import NoReturn

from feedline.pipeline.base.errors import FeedlineError, UsageError


def end_with(main: Callable[[], int | None]) -> NoReturn:
    """Runs `main` as a program: 2 for a wrong argument, 1 for what else is one of our errors, 130 for Ctrl-C."""
    try:
        sys.exit(main())
    except FeedlineError as error:
        sys.stderr.write(f"feedline: {error}\n")
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
