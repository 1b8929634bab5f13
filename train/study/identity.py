"""What a study is: written into its folder by whoever comes first, and compared by all others."""

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.files import TEMPORARY, read_bounded, write_error
from feedline.train.study.tasks import make_once

STUDY = "study.json"
MOST_BYTES = 1 << 20


def versions(*packages: str) -> dict[str, str]:
    """What else decides a result: "feedline version" and the like, by the words that a refusal names it with."""
    return {f"{package} version": version(package) for package in ("feedline", *packages)}


def holds_others(folder: Path) -> bool:
    """Whether there is more in it than what processes of ours, which open it just now, are writing."""
    return any(not TEMPORARY.fullmatch(entry.name) for entry in folder.iterdir())


def open_study(study: Path, identity: Mapping[str, Any]) -> None:
    """Makes the study's folder, or joins it.

    `identity`: what all of its processes must agree on, by the words a refusal names it with, as JSON: kind, hash of
    the dataset, versions, settings. Raises UsageError with both values where one differs, or where the folder holds
    something else; FeedlineError where it cannot be written.
    """
    path = study / STUDY
    mine = json.loads(json.dumps(identity, default=str))
    try:
        if not path.exists():
            if study.exists() and (not study.is_dir() or holds_others(study)) and not path.exists():
                raise UsageError(f"{study} is not empty and no study: name another folder for --study")
            study.mkdir(parents=True, exist_ok=True)
            make_once(path, mine)
        theirs = json.loads(read_bounded(path, MOST_BYTES))
    except OSError as error:
        raise write_error(error, f"opening the study {study}") from error
    except ValueError as error:
        raise UsageError(f"{path} cannot be read ({error}): name another folder for --study") from error
    for name in [*mine, *(theirs.keys() - mine.keys())]:
        if theirs.get(name) != mine.get(name):
            was, now = (f"{side.get(name)!s:.60}" for side in (theirs, mine))
            raise UsageError(f"the study {study} has another {name} ({was}, here {now}): name another --study")
