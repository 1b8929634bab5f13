"""A variational autoencoder of small road networks (random geometric graphs), under Accelerate. Graphs that it makes up
are compared with real ones by what people measure in road networks."""

import argparse
import json
from pathlib import Path

import networkx as nx
import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed

NODES = 28


class Roads(Dataset):
    def __init__(self, length, seed=0):
        rng = np.random.default_rng(seed)
        self.matrices = []
        for _ in range(400):
            places = rng.random((NODES, 2))
            order = np.argsort(places[:, 0] + 0.3 * places[:, 1])
            places = places[order]
            distance = np.linalg.norm(places[:, None] - places[None], axis=2)
            matrix = (distance < rng.uniform(0.2, 0.32)).astype(np.float32)
            np.fill_diagonal(matrix, 0)
            self.matrices.append(torch.from_numpy(matrix))
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.matrices[index % len(self.matrices)]


class GraphVae(nn.Module):
    def __init__(self, latent=16, width=256):
        super().__init__()
        self.pairs = torch.triu_indices(NODES, NODES, 1)
        count = self.pairs.shape[1]
        self.encode = nn.Sequential(nn.Linear(count, width), nn.GELU(), nn.Linear(width, 2 * latent))
        self.decode = nn.Sequential(
            nn.Linear(latent, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, count)
        )
        self.latent = latent

    def forward(self, matrices):
        edges = matrices[:, self.pairs[0], self.pairs[1]]
        mean, spread = self.encode(edges).chunk(2, 1)
        codes = mean + torch.randn_like(mean) * (0.5 * spread).exp()
        logits = self.decode(codes)
        rebuilt = F.binary_cross_entropy_with_logits(logits, edges, reduction="none").sum(1).mean()
        prior = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(1).mean()
        return rebuilt + 0.5 * prior

    @torch.no_grad()
    def invent(self, count):
        edges = self.decode(torch.randn(count, self.latent)).sigmoid().bernoulli()
        matrices = torch.zeros(count, NODES, NODES)
        matrices[:, self.pairs[0], self.pairs[1]] = edges
        return matrices + matrices.transpose(1, 2)


def measures(matrix):
    graph = nx.from_numpy_array(matrix.numpy())
    through = nx.betweenness_centrality(graph)
    parts = sorted(nx.connected_components(graph), key=len, reverse=True)
    largest = graph.subgraph(parts[0])
    return {
        "degree": 2 * graph.number_of_edges() / NODES,
        "clustering": nx.average_clustering(graph),
        "busiest": max(through.values()),
        "parts": len(parts),
        "diameter": nx.diameter(largest),
        "efficiency": nx.global_efficiency(graph),
    }


def compare(invented, real):
    ours, theirs = [measures(m) for m in invented], [measures(m) for m in real]
    return {key: float(np.mean([o[key] for o in ours]) - np.mean([t[key] for t in theirs])) for key in ours[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used")
    parser.add_argument("--out", type=Path, default=Path("runs/accelerate_graph_statistics"))
    parser.add_argument("--epochs", type=int, default=500)
    parser.add_argument("--compared", type=int, default=4)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    loader = DataLoader(Roads(6400), batch_size=128, shuffle=True, num_workers=0)
    vae = GraphVae()
    optimizer = torch.optim.AdamW(vae.parameters(), lr=5e-4)
    model, optimizer, loader = accelerator.prepare(vae, optimizer, loader)
    log = (args.out / "measures.jsonl").open("w")
    for epoch in range(args.epochs):
        for step, matrices in enumerate(timed(loader, "wait")):
            with lap("compute"):
                loss = model(matrices)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            with lap("own"):
                row = compare(vae.invent(args.compared), matrices[: args.compared])
                log.write(json.dumps({"epoch": epoch, "step": step, "loss": loss.item(), **row}) + "\n")
        accelerator.print(f"epoch {epoch}: {loss.item():.3f}, busiest {row['busiest']:+.3f}", flush=True)
        accelerator.save_model(model, str(args.out))


if __name__ == "__main__":
    main()
