"""Small images, a small network, a progress bar, and .item() for everything one may want to look at later."""

import argparse
import collections
import json
import pathlib
import sys

import torch
import torch.nn as nn
import torchvision.transforms.functional as TF
from PIL import Image
from stopwatch import lap, timed
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

p = argparse.ArgumentParser()
p.add_argument("data")
p.add_argument("--out", default="runs/tqdm_item_stats")
p.add_argument("--epochs", type=int, default=40)
p.add_argument("--bs", type=int, default=128)
p.add_argument("--lr", type=float, default=0.02)
args = p.parse_args()
torch.set_num_threads(1)

root = pathlib.Path(args.data) / "photos"
names = sorted(d.name for d in root.iterdir())
xs, ys = [], []
for f in sorted(root.rglob("*.[jJ]*")):
    im = Image.open(f)
    im.draft("RGB", (64, 64))
    xs.append(TF.pil_to_tensor(im.convert("RGB").resize((32, 32))))
    ys.append(names.index(f.parent.name))
xs, ys = torch.stack(xs).float() / 255, torch.tensor(ys)
loader = DataLoader(TensorDataset(xs, ys), batch_size=args.bs, shuffle=True, drop_last=True)

model = nn.Sequential(
    nn.Conv2d(3, 8, 3, 2, 1),
    nn.ReLU(),
    nn.Conv2d(8, 8, 3, 2, 1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(512, len(names)),
)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
confusion = torch.zeros(len(names), len(names))
history = collections.defaultdict(list)


def update_stats(images, logits, labels):
    probs = torch.softmax(logits.detach(), dim=1)
    for i in range(len(labels)):
        target = labels[i].item()
        predicted = probs[i].argmax().item()
        confusion[target, predicted] += 1
        history["sample_loss"].append(criterion(logits[i : i + 1].detach(), labels[i : i + 1]).item())
        history["rank"].append((probs[i] > probs[i, target]).sum().item())
        history["brightness"].append(images[i].mean().item())
        history["contrast"].append(images[i].std().item())
        top2 = probs[i].topk(2).values
        history["margin"].append((top2[0] - top2[1]).item())
        history["entropy"].append(-(probs[i] * probs[i].clamp_min(1e-9).log()).sum().item())
        for c in range(len(names)):
            history[f"p_{names[c]}"].append(probs[i, c].item())
    accuracy = {}
    for c in range(len(names)):
        total = sum(confusion[c, k].item() for k in range(len(names)))
        accuracy[names[c]] = confusion[c, c].item() / max(total, 1)
    return accuracy


for epoch in range(args.epochs):
    model.train()
    bar = tqdm(timed(loader, "wait"), total=len(loader), desc=f"epoch {epoch}", file=sys.stdout, mininterval=5)
    for x, y in bar:
        with lap("compute"):
            out = model(x)
            loss = criterion(out, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with lap("own"):
            accuracy = update_stats(x, out, y)
            mean = sum(history["sample_loss"]) / len(history["sample_loss"])
            bar.set_postfix(loss=loss.item(), mean=mean, worst=min(accuracy.values()), refresh=False)

pathlib.Path(args.out).mkdir(parents=True, exist_ok=True)
with open(pathlib.Path(args.out) / "history.json", "w") as file:
    json.dump(history, file)
