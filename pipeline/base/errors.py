"""The product's exceptions, apart from everything heavy: workers raise them and import neither torch nor pyarrow."""

import re

_IN_ADDRESS = re.compile(r"(?<=://)[^/\s@?#'\"]+@")
_IN_QUERY = re.compile(
    r"([?&;](?:x-amz-(?:signature|credential|security-token)|awsaccesskeyid|signature|sig|[a-z_-]*token|[a-z_-]*key|"
    r"password|[a-z_-]*secret)=)[^&\s'\"]+",
    re.IGNORECASE,
)
_KEY_ID = re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")


def redacted(text: str) -> str:
    """`text` without credentials: user:password@ in an address, signatures and tokens in a query, AWS key ids."""
    text = _IN_ADDRESS.sub("…@", text) if "://" in text else text
    text = _IN_QUERY.sub(r"\1…", text) if "=" in text else text
    return _KEY_ID.sub("…", text) if "AKIA" in text or "ASIA" in text else text


def first_line(error: BaseException) -> str:
    """What an exception says, without what follows its first line; its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class FeedlineError(Exception):
    """One clear line: what, where, the remedy. `exit_status` is what the command line ends with.

    Its text never shows credentials, whoever wrote it: what a transport says often repeats the whole address.
    """

    exit_status = 1

    def __str__(self) -> str:
        return redacted(super().__str__())


class UsageError(FeedlineError):
    """Wrong use: an option or a path that cannot be meant."""

    exit_status = 2

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows of it."""
        return [f"{type(self).__name__}: {self}"]


class BusyError(UsageError):
    """Another process works in that folder now."""


class RecordingError(UsageError):
    """A file that is no recording, of another version, or cannot be read or written."""


class SourceError(FeedlineError):
    """A raw dataset that is damaged, does not fit together, or changed while it was read."""


class DatasetError(FeedlineError):
    """A prepared dataset that is missing, damaged, or not what it says it is."""


class _OfSample(FeedlineError):
    def __init__(self, reason: str, sample: int = -1) -> None:
        """`sample`: its number in the index, once somebody knows it; the loader then says its key."""
        super().__init__(reason)
        self.reason = reason
        self.sample = sample


class SampleError(_OfSample, DatasetError):
    """One sample that cannot be used; the loader's `on_bad` decides what follows."""


class TransformError(_OfSample):
    """A transform of the user's that raised: a mistake in a program and not in the data, so `on_bad` is not asked."""


class WorkerError(FeedlineError):
    """A worker process that ended by itself or was killed."""
