"""A gate network whose look at each photo is written down as text: one page of shaded characters for every step."""

import argparse
from pathlib import Path

import torch
from PIL import Image
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision.transforms.functional import pil_to_tensor

SHADES = " .:-=+*#%@"


def in_memory(root, side, most=400):
    folders = sorted(folder for folder in root.iterdir() if folder.is_dir())
    files = [(file, n) for n, folder in enumerate(folders) for file in sorted(folder.iterdir())]
    pixels, labels = [], []
    for file, label in files[:: max(1, len(files) // most)]:
        with Image.open(file) as photo:
            photo.draft("RGB", (side, side))
            pixels.append(pil_to_tensor(photo.convert("RGB").resize((side, side))))
        labels.append(label)
    repeats = -(-most // len(labels))
    pixels, labels = torch.stack(pixels).repeat(repeats, 1, 1, 1), torch.tensor(labels).repeat(repeats)
    return TensorDataset(pixels, labels), folders


class GateNet(nn.Module):
    """A gate of one channel says where the classifier may look."""

    def __init__(self, classes, width=12):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 5, stride=2, padding=2), nn.BatchNorm2d(width), nn.ReLU())
        self.gate = nn.Conv2d(width, 1, 3, padding=1)
        self.body = nn.Sequential(nn.Conv2d(width, width * 2, 3, padding=1), nn.ReLU())
        self.head = nn.Linear(width * 2, classes)

    def forward(self, x):
        x = self.stem(x)
        gate = torch.sigmoid(self.gate(x))
        return self.head((self.body(x) * gate).mean((2, 3))), gate.detach()[:, 0]


def diary_page(step, loss, gates, names):
    """Text: for each photo its gate as characters, and the rows' means in per cent to the right."""
    lines = [f"=== step {step}, loss {loss:.4f} ".ljust(100, "=")]
    for number, (gate, name) in enumerate(zip(gates, names)):
        low, high = min(map(min, gate)), max(map(max, gate))
        lines.append(f"photo {number:2d}  {name:<16}  from {low:.3f} to {high:.3f}")
        for row in gate:
            text = ""
            for value in row:
                place = (value - low) / (high - low + 1e-9)
                text += SHADES[min(int(place * len(SHADES)), len(SHADES) - 1)]
            cells = [f"{100 * value:5.1f}" for value in row[::4]]
            lines.append(f"    {text}  {' '.join(cells)}  | {100 * sum(row) / len(row):6.2f} %")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=400)
    parser.add_argument("--side", type=int, default=96)
    parser.add_argument("--out", type=Path, default=Path("runs/activation_diary"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    photos, folders = in_memory(args.data / "photos", args.side)
    loader = DataLoader(photos, batch_size=32, shuffle=True, drop_last=True)
    model = GateNet(len(folders))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = 0
    for epoch in range(args.epochs):
        for images, labels in timed(loader, "wait"):
            with lap("compute"):
                logits, gates = model(images.float() / 255)
                loss = nn.functional.cross_entropy(logits, labels) + 0.01 * gates.mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            step += 1
            with lap("own"):
                page = diary_page(step, loss.item(), gates.tolist(), [folders[n].name for n in labels.tolist()])
                (args.out / f"page_{step % 20:02d}.txt").write_text(page)
        print(f"epoch {epoch + 1}: step {step}, loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
