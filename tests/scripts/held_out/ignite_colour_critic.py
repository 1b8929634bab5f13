"""Ignite: grey photographs are coloured. A U-Net guesses the two colour channels of CIELAB and a critic of patches
tells them from true ones, each with an optimizer of its own; ignite's progress bar, checkpoints and averages."""

import argparse
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, DiskSaver, global_step_from_engine
from ignite.handlers.tqdm_logger import ProgressBar
from ignite.metrics import RunningAverage
from PIL import Image, ImageOps
from skimage.color import lab2rgb, rgb2lab
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap


class LabPhotos(Dataset):
    def __init__(self, root: Path, side: int):
        self.files, self.side = sorted(root.glob("*/*.JPEG")), side

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        with lap("decode"):
            photo = Image.open(self.files[index]).convert("RGB")
        with lap("transform"):
            photo = ImageOps.fit(photo, (self.side, self.side), Image.Resampling.LANCZOS)
            lab = rgb2lab(np.asarray(photo)).astype(np.float32)
            if np.random.rand() < 0.5:
                lab = lab[:, ::-1]
            lab = torch.from_numpy(np.ascontiguousarray(lab.transpose(2, 0, 1)))
        return lab[:1] / 50 - 1, lab[1:] / 110


def conv(before, after, stride=1, act=nn.SiLU):
    return nn.Sequential(nn.Conv2d(before, after, 3, stride, 1), nn.BatchNorm2d(after), act())


class Painter(nn.Module):
    def __init__(self, width=20):
        super().__init__()
        self.first, self.down = conv(1, width), conv(width, 2 * width, 2)
        deep = [conv(2 * width, 3 * width, 2), conv(3 * width, 3 * width)]
        self.deep = nn.Sequential(*deep, nn.Upsample(scale_factor=2))
        self.middle = nn.Sequential(conv(5 * width, 2 * width), nn.Upsample(scale_factor=2))
        self.last = nn.Sequential(conv(3 * width, width), nn.Conv2d(width, 2, 1), nn.Tanh())

    def forward(self, grey):
        high = self.first(grey)
        low = self.down(high)
        middle = self.middle(torch.cat([self.deep(low), low], 1))
        return self.last(torch.cat([middle, high], 1))


def critic(width=20):
    act = nn.LeakyReLU
    return nn.Sequential(
        conv(3, width, 2, act), conv(width, 2 * width, 2, act), conv(2 * width, 3 * width, 2, act),
        nn.Conv2d(3 * width, 1, 1),
    )  # fmt: skip


def preview(grey, colours, path, count=6):
    lab = torch.cat([(grey[:count] + 1) * 50, colours[:count] * 110], 1).permute(0, 2, 3, 1).double().numpy()
    row = np.concatenate([lab2rgb(picture) for picture in lab], 1)
    Image.fromarray((255 * row).clip(0, 255).astype(np.uint8)).save(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/ignite_colour_critic"))
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(83)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    photos = LabPhotos(args.data / "photos", 72)
    loader = DataLoader(photos, 8, shuffle=True, drop_last=True, num_workers=1, persistent_workers=True)
    painter, judge = Painter(), critic()
    paints = torch.optim.Adam(painter.parameters(), 2e-4, betas=(0.5, 0.999))
    judges = torch.optim.Adam(judge.parameters(), 2e-4, betas=(0.5, 0.999))

    def update(engine, batch):
        with lap("compute"):
            grey, colours = batch
            guess = painter(grey)
            true, false = judge(torch.cat([grey, colours], 1)), judge(torch.cat([grey, guess.detach()], 1))
            judge_loss = ((true - 1) ** 2).mean() + (false**2).mean()
            judges.zero_grad()
            judge_loss.backward()
            judges.step()
            paint_loss = 20 * (guess - colours).abs().mean() + ((judge(torch.cat([grey, guess], 1)) - 1) ** 2).mean()
            paints.zero_grad()
            paint_loss.backward()
            paints.step()
        return {"judge": judge_loss.item(), "painter": paint_loss.item(), "guess": guess.detach()}

    trainer, laps = Engine(update), ExitStack()
    for name in ("judge", "painter"):
        RunningAverage(output_transform=lambda output, name=name: output[name]).attach(trainer, name)
    trainer.add_event_handler(Events.GET_BATCH_STARTED, lambda: laps.enter_context(lap("wait")))
    trainer.add_event_handler(Events.GET_BATCH_COMPLETED, laps.close)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: laps.enter_context(lap("own")))
    ProgressBar(persist=True).attach(trainer, metric_names=["judge", "painter"])
    saver = Checkpoint(
        {"painter": painter, "judge": judge},
        DiskSaver(str(args.out), require_empty=False),
        n_saved=2,
        global_step_transform=global_step_from_engine(trainer),
    )
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=40), saver)

    @trainer.on(Events.ITERATION_COMPLETED(every=20))
    def show(engine):
        preview(engine.state.batch[0], engine.state.output["guess"], args.out / "preview.png")

    trainer.add_event_handler(Events.ITERATION_COMPLETED, laps.close)
    trainer.run(loader, max_epochs=args.epochs)


if __name__ == "__main__":
    main()
