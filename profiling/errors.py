"""Errors of this room. The command line prints them as one line and leaves with `exit_status`."""


class ProfilingError(Exception):
    """One line: what, where, remedy."""

    exit_status = 1


class ProfilingUsageError(ProfilingError):
    """Wrong use."""

    exit_status = 2


class RecordingError(ProfilingUsageError):
    """A file that is no recording, of another version, or cannot be read or written."""
