"""Small loops in this process, to be watched."""

import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from feedline.profiling.record.recording import Recording, Step


def data(samples: int = 64) -> TensorDataset:
    return TensorDataset(torch.rand(samples, 4), torch.randint(0, 3, (samples,)))


class Slow(Dataset[Any]):
    """2 ms a sample, in reading it."""

    def __init__(self, samples: int = 160) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def read_bytes(self) -> None:
        time.sleep(0.002)

    def __getitem__(self, index: int) -> Any:
        self.read_bytes()
        return torch.zeros(4), 1


class Training:
    def __init__(self, features: int = 4) -> None:
        self.model = nn.Linear(features, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, batch: Any) -> None:
        x, y = batch
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()


def steps(recording: Recording, phase: str) -> list[Step]:
    return [step for step in recording.steps if step.phase == phase]
