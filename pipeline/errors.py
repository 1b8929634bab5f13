"""The product's exceptions, apart from everything heavy: workers raise them and import neither torch nor pyarrow."""


class FeedlineError(Exception):
    """One clear line: what, where, the remedy. `exit_status` is what the command line ends with."""

    exit_status = 1


class UsageError(FeedlineError):
    """Wrong use: an option or a path that cannot be meant."""

    exit_status = 2


class DatasetError(FeedlineError):
    """A prepared dataset that is missing, damaged, or not what it says it is."""


class SampleError(DatasetError):
    """One sample that cannot be used; the loader's `on_bad` decides what follows."""

    def __init__(self, reason: str, sample: int = -1) -> None:
        """`sample`: its number in the index, once somebody knows it; the loader then says its key."""
        super().__init__(reason)
        self.reason = reason
        self.sample = sample


class TransformError(FeedlineError):
    """A transform of the user's that raised: a mistake in a program and not in the data, so `on_bad` is not asked."""

    def __init__(self, reason: str, sample: int = -1) -> None:
        super().__init__(reason)
        self.reason = reason
        self.sample = sample


class WorkerError(FeedlineError):
    """A worker process that ended by itself or was killed."""
