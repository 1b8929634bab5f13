"""Accelerate: attention pooling over patches. Figures of where the network looks are kept while it learns."""

import argparse
import os

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from accelerate.utils import set_seed  # noqa: E402
from PIL import Image  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from stopwatch import lap, timed  # noqa: E402


def in_memory(root, side, every=2):
    names = sorted(name for name in os.listdir(root) if os.path.isdir(os.path.join(root, name)))
    images, labels = [], []
    for label, name in enumerate(names):
        for file in sorted(os.listdir(os.path.join(root, name)))[::every]:
            image = Image.open(os.path.join(root, name, file))
            image.draft("RGB", (side, side))
            images.append(np.array(image.convert("RGB").resize((side, side))))
            labels.append(label)
    return TensorDataset(torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2), torch.tensor(labels)), names


class AttentionPool(nn.Module):
    """Ilse, Tomczak and Welling (2018) over an 8 x 8 grid of features."""

    def __init__(self, classes, width=48):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 24, 4, stride=4),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.Conv2d(24, width, 3, stride=2, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        )
        self.value, self.gate = nn.Linear(width, 32), nn.Linear(width, 32)
        self.weigh, self.head = nn.Linear(32, 1), nn.Linear(width, classes)

    def forward(self, images):
        cells = self.features(images.float() / 255 - 0.5).flatten(2).transpose(1, 2)
        weights = self.weigh(torch.tanh(self.value(cells)) * torch.sigmoid(self.gate(cells))).softmax(1)
        return self.head((weights * cells).sum(1)), weights.squeeze(2).unflatten(1, (8, 8))


def draw_attention(images, weights, labels, guesses, names, losses, path):
    figure, axes = plt.subplots(2, 4, figsize=(11, 5.5))
    for axis, image, weight, label, guess in zip(axes.flat[:7], images, weights, labels, guesses, strict=False):
        axis.imshow(image.transpose(1, 2, 0))
        axis.imshow(weight, cmap="inferno", alpha=0.5, extent=(0, 64, 64, 0), interpolation="bicubic")
        axis.set_title(f"{names[label]} / {names[guess]}", fontsize=7, color="green" if label == guess else "red")
        axis.set_axis_off()
    axes.flat[7].plot(losses, linewidth=0.8)
    axes.flat[7].set(xlabel="step", ylabel="loss", yscale="log")
    axes.flat[7].grid(True, which="both", alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--out", default="runs/attention_figures_accelerate")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--figure-every", type=int, default=6)
    parser.add_argument("--keep", type=int, default=30, help="figures are written anew after so many")
    args = parser.parse_args()
    set_seed(31)
    torch.set_num_threads(1)
    os.makedirs(os.path.join(args.out, "figures"), exist_ok=True)

    dataset, names = in_memory(os.path.join(args.data, "photos"), side=64)
    accelerator = Accelerator(cpu=True)
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = AttentionPool(len(names))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    losses, step = [], 0
    for epoch in range(args.epochs):
        model.train()
        for images, labels in timed(loader, "wait"):
            with lap("compute"):
                scores, weights = model(images)
                loss = nn.functional.cross_entropy(scores, labels)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                guesses = scores.argmax(1)
            losses.append(loss.item())
            if step % args.figure_every == 0:
                with lap("own"):
                    number = step // args.figure_every % args.keep
                    draw_attention(
                        images.numpy(),
                        weights.detach().numpy(),
                        labels.tolist(),
                        guesses.tolist(),
                        names,
                        losses[-500:],
                        os.path.join(args.out, "figures", f"{number:03d}.png"),
                    )
            step += 1
        accelerator.print(f"epoch {epoch}: loss {np.mean(losses[-len(loader) :]):.4f}", flush=True)
        accelerator.save(accelerator.unwrap_model(model).state_dict(), os.path.join(args.out, "pool.pt"))


if __name__ == "__main__":
    main()
