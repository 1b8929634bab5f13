"""`%load_ext feedline.profiling.notebook`: from then on a cell that begins with `%%feedline` is profiled."""

import ast
from importlib import import_module
from typing import Any

from feedline.pipeline.base.errors import UsageError
from feedline.profiling.profile import Profile


def load_ipython_extension(shell: Any) -> None:
    def feedline(line: str, cell: str) -> None:
        """Profile this cell and show the report beneath it: %%feedline [NAME]

        The Profile is kept under NAME, or as `profile`: profile.verdict, profile.predictions, profile.recording.
        """
        profile_cell(shell, line.strip(), cell)

    shell.register_magic_function(feedline, "cell")


def profile_cell(shell: Any, name: str, cell: str) -> None:
    """Runs it as the shell runs any cell, and shows the report, however it ends. Raises what it has raised."""
    name = name or "profile"
    if not name.isidentifier():
        raise UsageError(f"%%feedline {name}: a name for the profile or nothing; options: Profile(…).run(function)")
    ast.parse(shell.transform_cell(cell))  # what is no Python is not begun, and told once
    profile = shell.user_ns[name] = Profile()
    try:
        with profile:
            result = shell.run_cell(cell)
            if (error := result.error_before_exec or result.error_in_exec) is not None:
                error._render_traceback_ = list  # empty: it has been shown, and now only fails this cell too
                raise error
    finally:
        import_module("IPython.display").display(profile)
