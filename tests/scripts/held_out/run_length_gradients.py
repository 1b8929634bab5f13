"""Federated client, simulated: as soon as a parameter's gradient is ready a hook keeps the largest entries, remembers
the rest for later (error feedback) and packs positions and values for the wire, as run lengths in a varint code."""

import argparse
from contextlib import ExitStack
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision.transforms import functional as tv

from stopwatch import lap, timed


class Clock(ExitStack):
    def turn(self, name=None):
        self.close()
        if name:
            self.enter_context(lap(name))


def varints(numbers, out):
    for number in numbers:
        while number > 127:
            out.append(number & 127 | 128)
            number >>= 7
        out.append(number)


def pack(positions, values):
    """Gaps between the positions, then the values in eight bits with their sign."""
    out = bytearray()
    gaps, last = [], -1
    for position in positions:
        gaps.append(position - last - 1)
        last = position
    varints(gaps, out)
    top = max((abs(value) for value in values), default=1.0) or 1.0
    varints([int(127 * abs(value) / top) << 1 | (value < 0) for value in values], out)
    return bytes(out)


class SparseUplink:
    def __init__(self, model, share, clock):
        self.share, self.clock = share, clock
        self.left, self.packets, self.sent = {}, {}, 0
        for name, parameter in model.named_parameters():
            self.left[name] = torch.zeros(parameter.numel())
            parameter.register_post_accumulate_grad_hook(self.hook(name))

    def hook(self, name):
        def compress(parameter):
            self.clock.turn("own")
            gradient = parameter.grad.flatten() + self.left[name]
            keep = max(1, int(self.share * gradient.numel()))
            positions = gradient.abs().topk(keep).indices.sort().values
            values = gradient[positions]
            self.left[name] = gradient.clone().index_fill_(0, positions, 0.0)
            parameter.grad.zero_().view(-1)[positions] = values
            self.packets[name] = pack(positions.tolist(), values.tolist())
            self.clock.turn("compute")

        return compress

    def flush(self, file):
        for packet in self.packets.values():
            file.write(len(packet).to_bytes(4, "little") + packet)
            self.sent += len(packet)
        self.packets.clear()
        if file.tell() > 30_000_000:
            file.seek(0)
            file.truncate()


def thumbnails(root, side):
    images, labels = [], []
    for label, folder in enumerate(sorted(root.iterdir())):
        for file in sorted(folder.glob("*.JPEG")):
            image = Image.open(file)
            image.draft("RGB", (side, side))
            images.append(tv.pil_to_tensor(image.convert("RGB").resize((side, side))))
            labels.append(label)
    return TensorDataset(torch.stack(images), torch.tensor(labels))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/run_length_gradients"))
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--share", type=float, default=0.12)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    loader = DataLoader(thumbnails(args.data / "photos", 40), 32, shuffle=True, drop_last=True)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(64, 96, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(96 * 25, 160), nn.ReLU(), nn.Linear(160, 10),
    )  # fmt: skip
    clock = Clock()
    uplink = SparseUplink(model, args.share, clock)
    optimizer = torch.optim.SGD(model.parameters(), 0.02)
    with open(args.out / "uplink.bin", "wb") as wire:
        for epoch in range(args.epochs):
            for images, labels in timed(loader, "wait"):
                clock.turn("compute")
                loss = nn.functional.cross_entropy(model(images.float() / 127.5 - 1), labels)
                optimizer.zero_grad(set_to_none=False)
                loss.backward()
                optimizer.step()
                clock.turn("own")
                uplink.flush(wire)
                clock.turn()
            print(f"epoch {epoch}: loss {loss.item():.3f}, {uplink.sent / 1e6:.1f} MB sent", flush=True)
    torch.save(model.state_dict(), args.out / "client.pt")


if __name__ == "__main__":
    main()
