"""A DCGAN-like pair of networks with two optimisers on 64 px photos."""

import argparse
import os

import torch
import torch.nn as nn
import torchvision.transforms as transforms
import torchvision.utils as vutils
from stopwatch import lap, timed
from torchvision.datasets import ImageFolder


def weights_init(m):
    name = m.__class__.__name__
    if "Conv" in name:
        nn.init.normal_(m.weight, 0.0, 0.02)
    elif "BatchNorm" in name:
        nn.init.normal_(m.weight, 1.0, 0.02)
        nn.init.zeros_(m.bias)


def up(i, o, k=4, s=2, p=1):
    return [nn.ConvTranspose2d(i, o, k, s, p, bias=False), nn.BatchNorm2d(o), nn.ReLU(True)]


def down(i, o):
    return [nn.Conv2d(i, o, 4, 2, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.2, inplace=True)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--out", default="runs/odd_gan")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--niter", type=int, default=7, help="epochs")
    parser.add_argument("--ngf", type=int, default=24)
    parser.add_argument("--ndf", type=int, default=24)
    opt = parser.parse_args()
    os.makedirs(opt.out, exist_ok=True)
    dataset = ImageFolder(
        os.path.join(opt.data, "photos"),
        transforms.Compose(
            [
                transforms.Resize(64),
                transforms.CenterCrop(64),
                transforms.ToTensor(),
                transforms.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
            ]
        ),
    )
    dataloader = torch.utils.data.DataLoader(
        dataset, batch_size=32, shuffle=True, num_workers=opt.workers, drop_last=True
    )
    g, d = opt.ngf, opt.ndf
    netG = nn.Sequential(
        *up(100, g * 8, 4, 1, 0), *up(g * 8, g * 4), *up(g * 4, g * 2), *up(g * 2, g),
        nn.ConvTranspose2d(g, 3, 4, 2, 1, bias=False), nn.Tanh(),
    ).apply(weights_init)  # fmt: skip
    netD = nn.Sequential(
        nn.Conv2d(3, d, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True), *down(d, d * 2), *down(d * 2, d * 4),
        *down(d * 4, d * 8), nn.Conv2d(d * 8, 1, 4, 1, 0, bias=False), nn.Flatten(0),
    ).apply(weights_init)  # fmt: skip
    criterion = nn.BCEWithLogitsLoss()
    optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
    fixed_noise = torch.randn(32, 100, 1, 1)
    real, fake = torch.ones(32), torch.zeros(32)
    for epoch in range(opt.niter):
        for i, (images, _) in enumerate(timed(dataloader, "wait")):
            with lap("compute"):
                netD.zero_grad()
                errD_real = criterion(netD(images), real)
                errD_real.backward()
                made = netG(torch.randn(32, 100, 1, 1))
                errD_fake = criterion(netD(made.detach()), fake)
                errD_fake.backward()
                optimizerD.step()
                netG.zero_grad()
                errG = criterion(netD(made), real)
                errG.backward()
                optimizerG.step()
            errD = errD_real.item() + errD_fake.item()
            print(f"[{epoch}/{opt.niter}][{i}/{len(dataloader)}] Loss_D: {errD:.4f} Loss_G: {errG.item():.4f}")
        with lap("own"), torch.no_grad():
            vutils.save_image(netG(fixed_noise), f"{opt.out}/fake_{epoch:03d}.png", normalize=True)


if __name__ == "__main__":
    main()
