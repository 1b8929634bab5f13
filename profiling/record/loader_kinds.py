"""What is true of each kind of loader that is watched (`recording.LoaderSeen.kind`), whatever was seen of it. A kind
is named by its package, and what in it is behind a dot."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class LoaderKind:
    call: str = ""  # that makes one, with {} for settings; "": torch's, which has settings that no other knows
    reads: Literal["alone", "ahead", "in sequence"] = "alone"
    """Whether a worker waits for each read by itself, reads ahead of what it needs, or tars from front to back."""
    indexed: bool = False  # it hands a dataset the indices of a batch
    sends: bool = False  # its workers are processes that send each tensor of a batch on its own
    by_setting: dict[str, str] | None = None  # where each setting is a call of its own: that call


NODES = {
    "num_workers": "ParallelMapper(…, {})",
    "prefetch_factor": "Prefetcher(node, {})",
    "pin_memory": "PinMemory(node)",
}
KINDS = {
    "torch": LoaderKind(indexed=True, sends=True),
    "torchdata": LoaderKind(indexed=True, sends=True),
    "torchdata.nodes": LoaderKind(by_setting=NODES),
    "webdataset": LoaderKind(call="wds.WebLoader(dataset, batch_size=None, {})", reads="in sequence", sends=True),
    "fastai": LoaderKind(),
    "feedline": LoaderKind(call="Loader(…, {})", reads="ahead"),
}

MADE_BY = {
    "transformers": dict.fromkeys(
        ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers"), "TrainingArguments(…, dataloader_{})"
    )
    | {"batch_size": "TrainingArguments(…, per_device_train_{})"},
    "ultralytics": {"num_workers": "model.train(…, workers={value})", "batch_size": "model.train(…, batch={value})"},
    "keras": {"num_workers": "PyDataset.__init__(self, workers={value}, use_multiprocessing=True)"},
}
"""Libraries that make a script's loaders themselves: where each setting of them is given, with {} for NAME=VALUE."""


def loader_kind(name: str) -> LoaderKind:
    return KINDS.get(name, LoaderKind())
