"""Knowledge distillation: a narrow student learns from a wide teacher that stays frozen."""

import argparse
import os

import torch
import torch.nn.functional as F
from PIL import Image
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader
from torchvision import models, transforms
from torchvision.datasets import ImageFolder


def open_reduced(path):
    with lap("decode"):
        image = Image.open(path)
        image.draft("RGB", (128, 128))
        return image.convert("RGB")


class Student(nn.Module):
    def __init__(self, classes, width=32):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.stages = nn.ModuleList()
        for _ in range(3):
            self.stages.append(
                nn.Sequential(
                    nn.Conv2d(width, 2 * width, 3, 2, 1, bias=False),
                    nn.BatchNorm2d(2 * width),
                    nn.ReLU(),
                    nn.Conv2d(2 * width, 2 * width, 3, 1, 1, bias=False),
                    nn.BatchNorm2d(2 * width),
                    nn.ReLU(),
                )
            )
            width *= 2
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return self.head(x.mean((2, 3)))


class DistillationLoss(nn.Module):
    def __init__(self, temperature, alpha):
        super().__init__()
        self.temperature, self.alpha = temperature, alpha

    def forward(self, student_logits, teacher_logits, target):
        t = self.temperature
        soft = F.kl_div(
            F.log_softmax(student_logits / t, dim=1), F.softmax(teacher_logits / t, dim=1), reduction="batchmean"
        )
        return self.alpha * t * t * soft + (1 - self.alpha) * F.cross_entropy(student_logits, target)


def build_teacher(classes, checkpoint=None):
    teacher = models.resnet34(weights=None, num_classes=classes)
    if checkpoint:
        teacher.load_state_dict(torch.load(checkpoint, map_location="cpu"))
    for parameter in teacher.parameters():
        parameter.requires_grad_(False)
    return teacher.eval()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--out", default="runs/distill_frozen_teacher")
    parser.add_argument("--teacher", help="weights of the teacher; random ones without")
    parser.add_argument("--max-steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--temperature", type=float, default=4.0)
    args = parser.parse_args()
    torch.manual_seed(17)

    train_transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(64, scale=(0.4, 1.0)),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    train_set = ImageFolder(os.path.join(args.data, "photos"), train_transform, loader=open_reduced)
    train_loader = DataLoader(train_set, args.batch_size, shuffle=True, num_workers=1, drop_last=True)

    teacher = build_teacher(len(train_set.classes), args.teacher)
    student = Student(len(train_set.classes))
    criterion = DistillationLoss(args.temperature, alpha=0.7)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.max_steps)

    step = 0
    while step < args.max_steps:
        for images, target in timed(train_loader, "wait"):
            with lap("compute"):
                with torch.no_grad():
                    teacher_logits = teacher(images)
                loss = criterion(student(images), teacher_logits, target)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
            step += 1
            if step % 10 == 0:
                print(f"step {step:4d}  lr {scheduler.get_last_lr()[0]:.4f}  loss {loss.item():.4f}", flush=True)
            if step == args.max_steps:
                break

    os.makedirs(args.out, exist_ok=True)
    torch.save(student.state_dict(), os.path.join(args.out, "student.pth"))


if __name__ == "__main__":
    main()
