"""Being written."""

from feedline.preprocess.sources import Source, SourceOptions


def recognise(path: str, options: SourceOptions) -> Source | None:
    return None
