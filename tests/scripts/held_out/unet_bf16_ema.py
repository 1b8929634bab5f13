"""A denoising U-Net in bfloat16 with accumulated gradients, warm-up and cosine, and averaged weights."""

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from stopwatch import lap, timed
from torch import nn, optim
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset


class NoisyCrops(Dataset):
    """Crops of photographs kept in memory, with a noise level drawn for each; decoded once, when it is made."""

    def __init__(self, root: Path, side: int = 40, keep: int = 600, length: int = 4096):
        self.side, self.length = side, length
        files = sorted(root.glob("*/*"))
        self.photos = []
        for file in files[:: max(1, len(files) // keep)]:
            image = Image.open(file)
            image.draft("RGB", (2 * side, 2 * side))
            self.photos.append(np.asarray(image.convert("RGB").resize((2 * side, 2 * side))))

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int):
        with lap("transform"):
            photo = self.photos[index % len(self.photos)]
            y, x = torch.randint(0, self.side + 1, (2,)).tolist()
            crop = torch.from_numpy(photo[y : y + self.side, x : x + self.side].copy())
            clean = crop.permute(2, 0, 1).float() / 127.5 - 1
            sigma = 0.05 + 0.45 * torch.rand(())
            return clean + sigma * torch.randn_like(clean), clean


def double_conv(a: int, b: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(8, b), nn.SiLU(), nn.Conv2d(b, b, 3, padding=1), nn.SiLU()
    )


class UNet(nn.Module):
    def __init__(self, widths: tuple[int, ...] = (16, 24, 48)):
        super().__init__()
        self.down = nn.ModuleList(double_conv(a, b) for a, b in zip((3, *widths), widths))
        self.up = nn.ModuleList(double_conv(a + b, b) for a, b in zip(widths[:0:-1], widths[-2::-1]))
        self.pool, self.grow = nn.AvgPool2d(2), nn.Upsample(scale_factor=2)
        self.out = nn.Conv2d(widths[0], 3, 1)

    def forward(self, x):
        noisy, skips = x, []
        for number, block in enumerate(self.down):
            x = block(x if number == 0 else self.pool(x))
            skips.append(x)
        skips.pop()
        for block in self.up:
            x = block(torch.cat([self.grow(x), skips.pop()], dim=1))
        return noisy - self.out(x)


def schedule(warmup: int, total: int):
    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / (total - warmup))))

    return factor


def train(data: str, out: str, micro_steps: int, batch_size: int, accumulate: int):
    dataset = NoisyCrops(Path(data) / "photos")
    loader = DataLoader(dataset, batch_size=batch_size, shuffle=True, num_workers=0)
    model = UNet()
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.995))
    optimizer = optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99))
    scheduler = optim.lr_scheduler.LambdaLR(optimizer, schedule(5, micro_steps // accumulate))
    for micro_step, (noisy, clean) in enumerate(timed(loader, "wait"), start=1):
        with lap("compute"):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.l1_loss(model(noisy), clean) / accumulate
            loss.backward()
            if micro_step % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                ema.update_parameters(model)
        if micro_step % (4 * accumulate) == 0:
            print(f"update {micro_step // accumulate}: l1 {accumulate * loss.item():.4f}", flush=True)
        if micro_step >= micro_steps:
            break
    Path(out).mkdir(parents=True, exist_ok=True)
    torch.save({"ema": ema.module.state_dict(), "model": model.state_dict()}, Path(out) / "unet.pt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--out", default="runs/unet_bf16_ema")
    parser.add_argument("--micro-steps", type=int, default=160)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=4)
    train(**vars(parser.parse_args()))
