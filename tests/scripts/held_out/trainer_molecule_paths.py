"""Hugging Face Trainer: a Graphormer in small on molecule-like graphs. Attention knows how far two atoms are from each
other and which bonds lie between them."""

import argparse
import random
from contextlib import ExitStack
from pathlib import Path

import networkx as nx
import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from stopwatch import lap

ATOMS, BONDS, FAR = 8, 4, 12


def molecule(rng):
    """A tree with a few rings closed; the label is how many bonds lie on rings."""
    size = rng.randint(22, 34)
    atoms = [rng.randrange(ATOMS) for _ in range(size)]
    bonds = {(max(0, k - rng.randint(1, 4)), k): rng.randrange(BONDS) for k in range(1, size)}
    for _ in range(rng.randint(0, 4)):
        a = rng.randrange(size - 6)
        bonds[a, a + rng.choice([4, 5])] = rng.randrange(BONDS)
    graph = nx.Graph(bonds.keys())
    on_rings = graph.number_of_edges() - sum(1 for _ in nx.bridges(graph))
    return {"atoms": atoms, "bonds": [[a, b, kind] for (a, b), kind in bonds.items()], "labels": on_rings / 10}


class GraphCollator:
    def encode(self, item, size):
        graph = nx.Graph()
        graph.add_nodes_from(range(len(item["atoms"])))
        graph.add_edges_from((a, b, {"kind": kind}) for a, b, kind in item["bonds"])
        far = [[FAR] * size for _ in range(size)]
        between = torch.zeros(size, size, BONDS)
        for a, paths in nx.all_pairs_shortest_path(graph, cutoff=FAR - 1):
            for b, path in paths.items():
                far[a][b] = len(path) - 1
                counts = [0.0] * BONDS
                for u, v in zip(path, path[1:]):
                    counts[graph.edges[u, v]["kind"]] += 1 / (len(path) - 1)
                between[a, b] = torch.tensor(counts)
        atoms = [atom + 1 for atom in item["atoms"]] + [0] * (size - len(item["atoms"]))
        return torch.tensor(atoms), torch.tensor(far), between

    def __call__(self, items):
        size = max(len(item["atoms"]) for item in items)
        atoms, far, between = zip(*(self.encode(item, size) for item in items))
        labels = torch.tensor([item["labels"] for item in items])
        return {
            "atoms": torch.stack(atoms),
            "far": torch.stack(far),
            "between": torch.stack(between),
            "labels": labels,
        }


class Graphormer(nn.Module):
    def __init__(self, width=48, heads=4, layers=3):
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(ATOMS + 1, width, padding_idx=0)
        self.distance, self.bond = nn.Embedding(FAR + 1, heads), nn.Linear(BONDS, heads, bias=False)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 1)

    def forward(self, atoms, far, between, labels=None):
        bias = (self.distance(far) + self.bond(between)).permute(0, 3, 1, 2).flatten(0, 1)
        hidden = self.layers(self.embed(atoms), mask=bias)
        present = (atoms > 0).unsqueeze(2)
        guess = self.head((hidden * present).sum(1) / present.sum(1)).squeeze(1)
        return {"loss": nn.functional.smooth_l1_loss(guess, labels), "logits": guess}


class Laps(TrainerCallback):
    stack = ExitStack()

    def turn(self, name):
        self.stack.close()
        self.stack.enter_context(lap(name))

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.turn("wait")

    def on_step_begin(self, args, state, control, **kwargs):
        self.turn("compute")

    def on_step_end(self, args, state, control, **kwargs):
        self.turn("wait")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used: molecules are made up")
    parser.add_argument("--out", type=Path, default=Path("runs/trainer_molecule_paths"))
    parser.add_argument("--max-steps", type=int, default=20_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rng = random.Random(11)
    settings = TrainingArguments(
        output_dir=str(args.out), max_steps=args.max_steps, per_device_train_batch_size=16, learning_rate=1e-3,
        lr_scheduler_type="cosine", warmup_steps=100, logging_steps=25, save_steps=1000, save_total_limit=1,
        report_to="none", disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False, remove_unused_columns=False,
    )  # fmt: skip
    Trainer(
        model=Graphormer(), args=settings, train_dataset=[molecule(rng) for _ in range(1500)],
        data_collator=GraphCollator(), callbacks=[Laps()],
    ).train()  # fmt: skip


if __name__ == "__main__":
    main()
