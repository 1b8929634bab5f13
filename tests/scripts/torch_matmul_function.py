"""A deep perceptron from first principles: weights in a list, the model a function, the update by hand."""

import argparse
import math

import torch
from stopwatch import lap, timed
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("data", nargs="?", default=None, help="ignored")
parser.add_argument("--epochs", type=int, default=25)
parser.add_argument("--width", type=int, default=1024)
parser.add_argument("--depth", type=int, default=8)
parser.add_argument("--lr", type=float, default=0.01)
args = parser.parse_args()

torch.manual_seed(7)


def init_params():
    weights = []
    for _ in range(args.depth):
        w = torch.randn(args.width, args.width) * math.sqrt(2 / args.width)
        weights.append((w.requires_grad_(), torch.zeros(args.width, requires_grad=True)))
    head = (torch.randn(args.width, 10) / math.sqrt(args.width)).requires_grad_()
    return weights, head


def predict(params, x):
    weights, head = params
    for w, b in weights:
        x = torch.relu(x @ w + b)
    return x @ head


def nll(logits, y):
    log_probs = logits - logits.logsumexp(1, keepdim=True)
    return -log_probs[torch.arange(len(y)), y].mean()


def sgd(params, lr):
    weights, head = params
    with torch.no_grad():
        for p in [tensor for layer in weights for tensor in layer] + [head]:
            p.add_(p.grad, alpha=-lr)
            p.grad.zero_()


features = torch.randn(8192, args.width)
labels = (features @ torch.randn(args.width, 10)).argmax(1)
loader = DataLoader(TensorDataset(features, labels), batch_size=128, shuffle=True)
params = init_params()

for epoch in range(args.epochs):
    running = 0.0
    for x, y in timed(loader, "wait"):
        with lap("compute"):
            loss = nll(predict(params, x), y)
            loss.backward()
            sgd(params, args.lr)
        running += loss.item()
    print("epoch", epoch, "loss", round(running / len(loader), 4), flush=True)
