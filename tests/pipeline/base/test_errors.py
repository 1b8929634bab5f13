"""What an error shows: one line's facts, and no credentials whoever wrote them into it."""

import pytest

from feedline.cli.common import shown
from feedline.pipeline.base.errors import DatasetError, SampleError, redacted


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("https://me:PASS@host/a.tar failed", "https://…@host/a.tar failed"),
        ("s3://TOKEN@bucket/x", "s3://…@bucket/x"),
        ("https://b.s3.amazonaws.com/t.tar?X-Amz-Credential=AB&X-Amz-Signature=0f", None),
        ("GET https://host/a?sig=SECRET&n=1 gave 403", "GET https://host/a?sig=…&n=1 gave 403"),
        ("The key AKIAABCDEFGHIJKLMNOP does not exist", "The key … does not exist"),
        ("no split at /data/a@b/train, seed=3: 5 samples", "no split at /data/a@b/train, seed=3: 5 samples"),
        ("https://host/key=value/train", "https://host/key=value/train"),
    ],
)
def test_credentials_are_left_out_and_nothing_else(text: str, left: str | None) -> None:
    said = redacted(text)
    assert not any(secret in said for secret in ("PASS", "TOKEN", "SECRET", "=AB", "=0f", "AKIA"))
    assert left is None or said == left
    assert str(DatasetError(text)) == str(SampleError(text)) == said


def test_a_record_names_storage_options_and_not_their_values() -> None:
    argv = ["prepare", "s3://k:v@b/raw", "--storage-option", "secret=XYZ", "--storage-option=key=XYZ", "--seed", "1"]
    said = shown(argv)
    assert said == [
        "prepare",
        "s3://…@b/raw",
        "--storage-option",
        "secret=…",
        "--storage-option=key=…",
        "--seed",
        "1",
    ]
