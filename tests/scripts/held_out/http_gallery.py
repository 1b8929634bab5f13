"""The photographs come from an HTTP server; the dataset fetches a batch with a few threads (`__getitems__`).

To try it without a network the server is a process of this script, which answers as late as the real one.
"""

import argparse
import functools
import http.client
import multiprocessing
import os
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

from stopwatch import lap, timed


class LateHandler(SimpleHTTPRequestHandler):
    wbufsize = 1 << 20
    latency = 0.0

    def do_GET(self):
        time.sleep(self.latency)
        super().do_GET()

    def log_message(self, *args):
        pass


class Gallery(ThreadingHTTPServer):
    request_queue_size = 128

    def service_actions(self):
        if os.getppid() != self.parent:  # the trainer is gone
            os._exit(0)


def serve(folder, latency, parent, pipe):
    LateHandler.latency = latency
    server = Gallery(("127.0.0.1", 0), functools.partial(LateHandler, directory=folder))
    server.parent = parent
    pipe.send(server.server_address[1])
    server.serve_forever()


class RemotePhotos(Dataset):
    def __init__(self, port, keys, transform, threads):
        self.port, self.keys, self.transform, self.threads = port, keys, transform, threads
        self.classes = sorted({key.split("/")[0] for key in keys})
        self.pool = None

    def __len__(self):
        return len(self.keys)

    def download(self, key):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", "/" + urllib.parse.quote(key))
            response = connection.getresponse()
            blob = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise OSError(f"{key}: {response.status}")
        return blob

    def load(self, index):
        key = self.keys[index]
        with lap("read"):
            blob = self.download(key)
        with lap("decode"):
            image = decode_image(torch.frombuffer(bytearray(blob), dtype=torch.uint8), ImageReadMode.RGB)
        with lap("transform"):
            return self.transform(image), self.classes.index(key.split("/")[0])

    def __getitem__(self, index):
        return self.load(index)

    def __getitems__(self, indices):
        if self.pool is None:
            self.pool = ThreadPoolExecutor(self.threads, thread_name_prefix="download")
        return list(self.pool.map(self.load, indices))


def train(args, port):
    root = args.data / "photos"
    keys = sorted(path.relative_to(root).as_posix() for path in root.glob("*/*.*"))
    transform = v2.Compose(
        [
            v2.Resize(72, antialias=True),
            v2.RandomCrop(64),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    photos = RemotePhotos(port, keys, transform, args.threads)
    loader = DataLoader(
        photos,
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
    )
    model = nn.Sequential(
        nn.Conv2d(3, 24, 3, 2, 1),
        nn.GELU(),
        nn.Conv2d(24, 48, 3, 2, 1),
        nn.GELU(),
        nn.Conv2d(48, 48, 3, 2, 1),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(48, len(photos.classes)),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for step, (images, labels) in enumerate(timed(loader, "wait")):
            with lap("compute"):
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if step % 20 == 0:
                print(f"epoch {epoch} step {step}/{len(loader)} loss {loss.item():.4f}", flush=True)
        args.out.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), args.out / "net.pt")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/http_gallery"))
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=3, help="downloads at a time in each worker")
    parser.add_argument("--latency", type=float, default=0.045)
    args = parser.parse_args()
    torch.set_num_threads(1)
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(
        target=serve, args=(str(args.data / "photos"), args.latency, os.getpid(), theirs), daemon=True
    )
    server.start()
    try:
        train(args, ours.recv())
    finally:
        server.terminate()
        server.join()


if __name__ == "__main__":
    main()
