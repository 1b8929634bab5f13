"""Accelerate and a Hugging Face dataset: slot attention takes scenes apart. Cut-outs of photographs in shapes are laid
on a ground, scene by scene as they are asked for, and an autoencoder has to draw each object from a slot of its own."""

import argparse
import io
import random
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from datasets import Dataset
from PIL import Image, ImageDraw, ImageFilter
from torch import nn
from torch.utils.data import DataLoader

from stopwatch import lap, timed

SIDE = 48


def cutouts(root, count):
    rows = []
    for file in random.Random(8).sample(sorted(root.glob("*/*.JPEG")), count):
        photo = Image.open(file)
        photo.draft("RGB", (200, 200))
        buffer = io.BytesIO()
        photo.convert("RGB").resize((160, 120)).save(buffer, "JPEG", quality=92)
        rows.append(buffer.getvalue())
    return Dataset.from_dict({"photo": rows})


def shape(size):
    mask = Image.new("L", (4 * size, 4 * size))
    ImageDraw.Draw(mask).regular_polygon((2 * size, 2 * size, 2 * size - 1), random.choice([3, 4, 6, 24]), fill=255)
    return mask.rotate(random.randrange(360)).resize((size, size), Image.Resampling.LANCZOS)


def scenes(batch):
    images, masks = [], []
    for data in batch["photo"]:
        photo = Image.open(io.BytesIO(data)).convert("RGB")
        scene, whole = Image.new("RGB", (SIDE, SIDE), (30, 40, 50)), np.zeros((SIDE, SIDE), np.uint8)
        for number in range(random.randint(2, 4)):
            size = random.randint(10, 18)
            spot = random.choices(range(SIDE - size), k=2)
            left, top, mask = random.randrange(100), random.randrange(60), shape(size)
            piece = photo.crop((left, top, left + 60, top + 60)).filter(ImageFilter.GaussianBlur(1))
            scene.paste(piece.resize((size, size)), spot, mask)
            whole[spot[1] : spot[1] + size, spot[0] : spot[0] + size][np.asarray(mask) > 127] = number + 1
        images.append(torch.tensor(np.asarray(scene)).permute(2, 0, 1).float() / 127.5 - 1)
        masks.append(torch.from_numpy(whole))
    return {"image": images, "mask": masks}


def grid(side):
    line = torch.linspace(-1, 1, side)
    return torch.stack(torch.meshgrid(line, line, indexing="ij"))[None]


class SlotAttention(nn.Module):
    def __init__(self, slots=5, width=48, rounds=3):
        super().__init__()
        self.slots, self.width, self.rounds = slots, width, rounds
        self.encoder = nn.Sequential(
            nn.Conv2d(5, width, 5, padding=2), nn.ReLU(), nn.Conv2d(width, width, 5, stride=2, padding=2), nn.ReLU(),
            nn.Conv2d(width, width, 5, padding=2), nn.ReLU(), nn.GroupNorm(1, width),
        )  # fmt: skip
        self.mean, self.spread = nn.Parameter(torch.randn(width) * 0.1), nn.Parameter(torch.zeros(width))
        self.key, self.value, self.query = (nn.Linear(width, width) for _ in range(3))
        self.update = nn.GRUCell(width, width)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(width + 2, 32, 4, stride=2, padding=1), nn.ReLU(),
            nn.ConvTranspose2d(32, 24, 4, stride=2, padding=1), nn.ReLU(), nn.Conv2d(24, 4, 3, padding=1),
        )  # fmt: skip

    def forward(self, images):
        count = len(images)
        features = (
            self.encoder(torch.cat([images, grid(SIDE).expand(count, -1, -1, -1)], 1)).flatten(2).transpose(1, 2)
        )
        keys, values = self.key(features), self.value(features)
        slots = self.mean + self.spread.exp() * torch.randn(count, self.slots, self.width)
        for _ in range(self.rounds):
            shares = (self.query(slots) @ keys.transpose(1, 2) / self.width**0.5).softmax(1) + 1e-6
            found = shares / shares.sum(2, keepdim=True) @ values
            slots = self.update(found.flatten(0, 1), slots.flatten(0, 1)).view_as(slots)
        spread = slots.flatten(0, 1)[:, :, None, None].expand(-1, -1, SIDE // 4, SIDE // 4)
        drawn = self.decoder(torch.cat([spread, grid(SIDE // 4).expand(len(spread), -1, -1, -1)], 1))
        colours, alpha = drawn.view(count, self.slots, 4, SIDE, SIDE).split((3, 1), 2)
        return (alpha.softmax(1) * colours).sum(1), alpha.squeeze(2)


def agreement(alpha, masks):
    guess, truth = alpha.argmax(1).flatten(1), masks.flatten(1)
    one, other = torch.randint(guess.shape[1], (2, 500))
    return ((guess[:, one] == guess[:, other]) == (truth[:, one] == truth[:, other])).float().mean(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/accelerate_slot_scenes"))
    parser.add_argument("--epochs", type=int, default=200)
    args = parser.parse_args()
    accelerator, step = Accelerator(cpu=True), 0
    args.out.mkdir(parents=True, exist_ok=True)
    dataset = cutouts(args.data / "photos", 900).with_transform(scenes)
    loader = DataLoader(dataset, 8, shuffle=True, num_workers=1, drop_last=True)
    model = SlotAttention()
    model, optimizer, loader = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=4e-4), loader)
    for epoch in range(args.epochs):
        for batch in timed(loader, "wait"):
            with lap("compute"):
                drawn, alpha = model(batch["image"])
                loss = nn.functional.mse_loss(drawn, batch["image"])
                optimizer.zero_grad()
                accelerator.backward(loss)
                optimizer.step()
            with lap("own"):
                step += 1
                scores = accelerator.gather_for_metrics(agreement(alpha.detach(), batch["mask"]))
                with (args.out / "scores.csv").open("a") as file:
                    file.write(f"{step},{loss.item():.5f},{','.join(f'{score:.4f}' for score in scores.tolist())}\n")
                if step % 20 == 0:
                    accelerator.print(
                        f"{epoch}/{step}: error {loss.item():.4f}, {scores.mean():.1%} agree", flush=True
                    )
        with lap("own"):
            accelerator.save_model(model, str(args.out / "slots"))


if __name__ == "__main__":
    main()
