"""A fully connected VAE on small grey images, which saves a thousand reconstructions as one large PNG every 20 steps."""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from stopwatch import lap, timed
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchvision.utils import save_image

parser = argparse.ArgumentParser(description="VAE")
parser.add_argument("data")
parser.add_argument("--out", default="runs/odd_vae_saving")
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--epochs", type=int, default=55)
parser.add_argument("--save-every", type=int, default=20)
args = parser.parse_args()
torch.set_num_threads(1)
SIDE = 32


def load_images(folder):
    arrays = []
    for path in sorted(Path(folder).glob("*/*.*")):
        image = Image.open(path)
        image.draft("L", (2 * SIDE, 2 * SIDE))
        arrays.append(np.asarray(image.convert("L").resize((SIDE, SIDE)), dtype=np.float32) / 255)
    return torch.from_numpy(np.stack(arrays)).flatten(1)


class VAE(nn.Module):
    def __init__(self, dim=SIDE * SIDE, hidden=256, latent=16):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.mu, self.logvar = nn.Linear(hidden, latent), nn.Linear(hidden, latent)
        self.fc3, self.fc4 = nn.Linear(latent, hidden), nn.Linear(hidden, dim)

    def forward(self, x):
        h = F.relu(self.fc1(x))
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


def loss_function(recon, x, mu, logvar):
    bce = F.binary_cross_entropy(recon, x, reduction="sum")
    return bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


def save_reconstructions(images, step):
    with torch.no_grad():
        recon = model(images)[0].view(-1, 1, SIDE, SIDE)
    big = F.interpolate(recon, scale_factor=2, mode="bilinear")
    save_image(big, f"{args.out}/recon_{step % 200:04d}.png", nrow=32)


Path(args.out).mkdir(parents=True, exist_ok=True)
everything = load_images(Path(args.data) / "photos")
train_loader = DataLoader(TensorDataset(everything), batch_size=args.batch_size, shuffle=True)
model = VAE()
optimizer = optim.Adam(model.parameters(), lr=1e-3)
step = 0
for epoch in range(1, args.epochs + 1):
    train_loss = 0
    for batch_idx, (x,) in enumerate(timed(train_loader, "wait")):
        with lap("compute"):
            optimizer.zero_grad()
            recon_batch, mu, logvar = model(x)
            loss = loss_function(recon_batch, x, mu, logvar)
            loss.backward()
            optimizer.step()
        train_loss += loss.item()
        step += 1
        if step % args.save_every == 0:
            with lap("own"):
                save_reconstructions(everything[:1000], step)
    print(f"====> Epoch: {epoch} Average loss: {train_loss / len(everything):.4f}", flush=True)
