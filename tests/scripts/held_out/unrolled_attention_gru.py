"""Photographs read row by row: an own recurrent cell looks back at what it has read, and may look at a row twice."""

import argparse
import os

import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms.functional import pil_to_tensor

from stopwatch import lap, timed


class Rows(Dataset):
    """Small photographs, opened once; a sample is shifted by some pixels."""

    def __init__(self, root, side=48, every=2):
        self.side = side
        self.names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        self.images, self.labels = [], []
        for label, name in enumerate(self.names):
            for file in sorted(os.listdir(os.path.join(root, name)))[::every]:
                image = Image.open(os.path.join(root, name, file))
                image.draft("RGB", (side, side))
                self.images.append(pil_to_tensor(image.convert("RGB").resize((side + 8, side + 8))))
                self.labels.append(label)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        y, x = torch.randint(9, (2,)).tolist()
        return self.images[index][:, y : y + self.side, x : x + self.side], self.labels[index]


class LookBackCell(nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.gates = nn.Linear(inputs + 2 * hidden, 2 * hidden)
        self.candidate = nn.Linear(inputs + 2 * hidden, hidden)
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.norm = nn.LayerNorm(hidden)
        self.again = nn.Linear(hidden, 1)

    def forward(self, row, state, memory):
        seen = torch.stack(memory, 1)
        weights = torch.softmax((seen @ self.query(state).unsqueeze(2)).squeeze(2) / seen.shape[2] ** 0.5, 1)
        context = (weights.unsqueeze(1) @ seen).squeeze(1)
        update, reset = torch.sigmoid(self.gates(torch.cat([row, state, context], 1))).chunk(2, 1)
        candidate = torch.tanh(self.candidate(torch.cat([row, reset * state, context], 1)))
        new = self.norm(update * state + (1 - update) * candidate)
        return new, torch.sigmoid(self.again(new))


class RowReader(nn.Module):
    def __init__(self, inputs, hidden, classes, looks=2):
        super().__init__()
        self.embed = nn.Linear(inputs, hidden)
        self.cell = LookBackCell(hidden, hidden)
        self.head = nn.Linear(hidden, classes)
        self.hidden, self.looks = hidden, looks

    def forward(self, images):
        rows = images.float().div(127.5).sub(1).permute(2, 0, 1, 3).flatten(2)  # row, sample, values
        rows = F.gelu(self.embed(rows))
        state = rows.new_zeros(rows.shape[1], self.hidden)
        memory, ponder = [state], 0.0
        for row in rows.unbind(0):
            kept = 0.0
            rest = torch.ones(len(state), 1)
            for look in range(self.looks):
                state, again = self.cell(row, state, memory)
                share = rest if look == self.looks - 1 else rest * (1 - again)
                kept = kept + share * state
                rest = rest - share
                ponder = ponder + share.mean() * look
            state = kept
            memory.append(state)
        return self.head(state), ponder / len(rows)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--out", default="runs/unrolled_attention_gru")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=96)
    args = parser.parse_args()
    torch.manual_seed(27)
    torch.set_num_threads(1)
    os.makedirs(args.out, exist_ok=True)

    rows = Rows(os.path.join(args.data, "photos"))
    loader = DataLoader(rows, batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = RowReader(3 * rows.side, args.hidden, len(rows.names))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-4)
    for epoch in range(args.epochs):
        right = seen = 0
        for step, (images, labels) in enumerate(timed(loader, "wait")):
            with lap("compute"):
                scores, ponder = model(images)
                loss = F.cross_entropy(scores, labels) + 0.01 * ponder
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            with lap("own"):
                right += (scores.argmax(1) == labels).sum().item()
                seen += len(labels)
            if step % 15 == 0:
                print(f"epoch {epoch} step {step}: loss {loss.item():.4f}, ponder {float(ponder):.3f}", flush=True)
        torch.save(model.state_dict(), os.path.join(args.out, "reader.pt"))
        print(f"epoch {epoch}: {right / seen:.1%}", flush=True)


if __name__ == "__main__":
    main()
