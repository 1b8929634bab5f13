"""What a profile is asked for."""

from typing import Any

import pytest

from feedline.pipeline.base.errors import UsageError
from feedline.profiling.record.journal import StudyConfig


@pytest.mark.parametrize(
    ("options", "line"),
    [({"steps": 0}, "--steps 0: at least 1"), ({"seconds": -1.0}, r"--seconds -1\.0: at least 0")],
)
def test_limits_hold_without_a_command_line_too(options: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError, match=line):
        StudyConfig(**options)
