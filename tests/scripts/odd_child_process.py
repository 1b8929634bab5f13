"""Each experiment trains in a process of its own (memory is surely given back); the parent starts it and waits."""

import argparse
import glob
import multiprocessing
import os

import cv2
import numpy as np
import torch
import torch.nn as nn
from stopwatch import lap, timed
from torch.utils.data import DataLoader, Dataset

cv2.setNumThreads(0)


class CvPhotos(Dataset):
    def __init__(self, root, size):
        self.files = sorted(glob.glob(os.path.join(root, "*", "*")))
        self.names = sorted(os.listdir(root))
        self.size = size

    def __len__(self):
        return len(self.files)

    def __getitem__(self, idx):
        path = self.files[idx]
        with lap("read"):
            raw = np.fromfile(path, dtype=np.uint8)
        with lap("decode"):
            img = cv2.cvtColor(cv2.imdecode(raw, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
        with lap("transform"):
            img = cv2.resize(img, (self.size, self.size), interpolation=cv2.INTER_LINEAR)
            if np.random.rand() < 0.5:
                img = img[:, ::-1]
            x = torch.from_numpy(np.ascontiguousarray(img.transpose(2, 0, 1)))
        return x, self.names.index(path.split(os.sep)[-2])


def run_experiment(cfg):
    torch.set_num_threads(1)
    torch.manual_seed(cfg["seed"])
    ds = CvPhotos(os.path.join(cfg["data"], "photos"), cfg["size"])
    dl = DataLoader(ds, batch_size=cfg["bs"], shuffle=True, num_workers=cfg["workers"], persistent_workers=True)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1),
        nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(32, len(ds.names)),
    )  # fmt: skip
    opt = torch.optim.Adam(net.parameters(), lr=cfg["lr"])
    for ep in range(cfg["epochs"]):
        right = n = 0
        for x, y in timed(dl, "wait"):
            with lap("compute"):
                out = net(x.float().div_(255))
                loss = nn.functional.cross_entropy(out, y)
                opt.zero_grad()
                loss.backward()
                opt.step()
            right += (out.argmax(1) == y).sum().item()
            n += len(y)
        print(f"[pid {os.getpid()}] ep {ep} acc {right / n:.3f}", flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("data")
    ap.add_argument("--epochs", type=int, default=36)
    ap.add_argument("--bs", type=int, default=64)
    ap.add_argument("--size", type=int, default=64)
    ap.add_argument("--workers", type=int, default=1)
    a = ap.parse_args()
    for lr in (1e-3,):
        p = multiprocessing.Process(target=run_experiment, args=(dict(vars(a), lr=lr, seed=1),))
        p.start()
        p.join()
        print("lr", lr, "finished with code", p.exitcode)
