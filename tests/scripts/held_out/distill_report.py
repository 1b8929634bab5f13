"""Knowledge distillation with a running report: agreement, confusion and calibration, in plain Python, every step."""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from stopwatch import lap, timed


def load_thumbnails(root: Path, side=64, every=2):
    images, labels = [], []
    for label, folder in enumerate(sorted(p for p in root.iterdir() if p.is_dir())):
        for path in sorted(folder.iterdir())[::every]:
            image = Image.open(path)
            image.draft("RGB", (side, side))
            images.append(np.asarray(image.convert("RGB").resize((side, side))))
            labels.append(label)
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous(), torch.tensor(labels)


def batches(images, labels, size):
    """Everything is in memory: no loader is needed."""
    order = torch.randperm(len(images))
    for start in range(0, len(order) - size + 1, size):
        rows = order[start : start + size]
        yield images[rows], labels[rows]


def convnet(width, classes=10):
    layers, inputs = [], 3
    for depth in range(3):
        outputs = width * 2**depth
        layers += [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.BatchNorm2d(outputs), nn.ReLU()]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


class Report:
    """Keeps every prediction of the last `window` samples and describes them anew after each step."""

    def __init__(self, classes=10, window=8000, bins=15):
        self.classes, self.window, self.bins = classes, window, bins
        self.rows = []

    def add(self, student, teacher, labels):
        for s, t, label in zip(student.softmax(1).tolist(), teacher.softmax(1).tolist(), labels.tolist()):
            self.rows.append((s, t, label))
        del self.rows[: -self.window]

    def describe(self):
        confusion = [[0] * self.classes for _ in range(self.classes)]
        tallies = [[0, 0.0, 0] for _ in range(self.bins)]
        agree, gap = 0, 0.0
        for student, teacher, label in self.rows:
            guess = student.index(max(student))
            confusion[label][guess] += 1
            agree += guess == teacher.index(max(teacher))
            gap += sum(abs(a - b) for a, b in zip(student, teacher))
            tally = tallies[min(int(student[guess] * self.bins), self.bins - 1)]
            tally[0] += 1
            tally[1] += student[guess]
            tally[2] += guess == label
        error = sum(abs(confidence - right) for n, confidence, right in tallies) / len(self.rows)
        recall = {}
        for label in range(self.classes):
            recall[label] = confusion[label][label] / max(1, sum(confusion[label]))
        ranks = [sorted(student, reverse=True).index(student[label]) for student, _, label in self.rows]
        return {
            "agreement": agree / len(self.rows),
            "gap": gap / len(self.rows),
            "calibration": error,
            "recall": recall,
            "rank": sum(ranks) / len(ranks),
            "confusion": confusion,
        }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/distill_report"))
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--temperature", type=float, default=3.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(8)
    args.out.mkdir(parents=True, exist_ok=True)
    images, labels = load_thumbnails(args.data / "photos")
    teacher, student = convnet(20).eval(), convnet(8)
    teacher.requires_grad_(False)
    optimizer = torch.optim.Adam(student.parameters(), lr=2e-3)
    report = Report()
    T = args.temperature
    for epoch in range(args.epochs):
        with open(args.out / "report.jsonl", "a") as log:
            for inputs, target in timed(batches(images, labels, 24), "wait"):
                with lap("compute"):
                    inputs = inputs.float() / 255
                    taught = teacher(inputs)
                    logits = student(inputs)
                    soft = (
                        nn.functional.kl_div(
                            (logits / T).log_softmax(1), (taught / T).softmax(1), reduction="batchmean"
                        )
                        * T
                        * T
                    )
                    loss = 0.5 * soft + nn.functional.cross_entropy(logits, target)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                with lap("own"):
                    report.add(logits.detach(), taught, target)
                    facts = report.describe()
                    log.write(json.dumps(facts) + "\n")
        print(f"epoch {epoch}: loss {loss.item():.4f} agreement {facts['agreement']:.3f}", flush=True)
        torch.save(student.state_dict(), args.out / "student.pt")


if __name__ == "__main__":
    main()
