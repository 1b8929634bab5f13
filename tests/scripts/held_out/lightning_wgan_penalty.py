"""Lightning, manual optimisation: a Wasserstein GAN with gradient penalty on 32 px photographs."""

import argparse
from pathlib import Path

import lightning as L
import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stopwatch import lap, timed


def in_memory(root: Path, side: int):
    pixels = []
    for file in sorted(root.glob("*/*.JPEG")):
        image = Image.open(file)
        image.draft("RGB", (side, side))
        pixels.append(np.array(image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR)))
    return TensorDataset(torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous())


class TimedLoader(DataLoader):
    def __iter__(self):
        return timed(super().__iter__(), "wait")


def make_generator(latent, width):
    return nn.Sequential(
        nn.Unflatten(1, (latent, 1, 1)),
        nn.ConvTranspose2d(latent, 4 * width, 4),
        nn.BatchNorm2d(4 * width),
        nn.ReLU(True),
        nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(True),
        nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
        nn.BatchNorm2d(width),
        nn.ReLU(True),
        nn.ConvTranspose2d(width, 3, 4, 2, 1),
        nn.Tanh(),
    )


def make_critic(width):
    return nn.Sequential(
        nn.Conv2d(3, width, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(2 * width, 4 * width, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(4 * width * 16, 1),
    )


class WassersteinGAN(L.LightningModule):
    def __init__(self, latent=64, width=24, critic_steps=2, penalty=10.0, lr=2e-4):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.generator, self.critic = make_generator(latent, width), make_critic(width)

    def noise(self, count):
        return torch.randn(count, self.hparams.latent, device=self.device)

    def slope_penalty(self, real, fake):
        share = torch.rand(len(real), 1, 1, 1, device=self.device)
        between = (fake + share * (real - fake)).requires_grad_()
        (slope,) = torch.autograd.grad(self.critic(between).sum(), between, create_graph=True)
        return (slope.flatten(1).norm(dim=1) - 1).square().mean()

    def training_step(self, batch, number):
        real = batch[0].float() / 127.5 - 1
        generator_opt, critic_opt = self.optimizers()
        for _ in range(self.hparams.critic_steps):
            with torch.no_grad():
                fake = self.generator(self.noise(len(real)))
            distance = self.critic(real).mean() - self.critic(fake).mean()
            critic_opt.zero_grad()
            self.manual_backward(self.hparams.penalty * self.slope_penalty(real, fake) - distance)
            critic_opt.step()
        loss = -self.critic(self.generator(self.noise(len(real)))).mean()
        generator_opt.zero_grad()
        self.manual_backward(loss)
        generator_opt.step()
        self.log_dict({"distance": distance.detach(), "generator": loss.detach()}, on_step=False, on_epoch=True)

    def configure_optimizers(self):
        betas = (0.0, 0.9)
        return [
            torch.optim.Adam(self.generator.parameters(), self.hparams.lr, betas),
            torch.optim.Adam(self.critic.parameters(), self.hparams.lr, betas),
        ]


class Laps(L.Callback):
    def on_train_batch_start(self, trainer, module, batch, number):
        self.open = lap("compute")
        self.open.__enter__()

    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        self.open.__exit__(None, None, None)

    def on_train_epoch_end(self, trainer, module):
        values = {name: round(float(value), 4) for name, value in trainer.callback_metrics.items()}
        print(f"epoch {trainer.current_epoch}: {values}", flush=True)
        torch.save(module.generator.state_dict(), Path(trainer.default_root_dir) / "generator.pt")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/lightning_wgan_penalty"))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()
    L.seed_everything(50, verbose=False)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    photos = in_memory(args.data / "photos", 32)
    loader = TimedLoader(photos, batch_size=args.batch_size, shuffle=True, drop_last=True)
    trainer = L.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Laps()],
        default_root_dir=args.out,
    )
    trainer.fit(WassersteinGAN(), loader)


if __name__ == "__main__":
    main()
