"""Active learning: the labels come from an annotation service, which is asked for what the network is unsure about.

The service here is a process on this machine that takes its time for each answer; elsewhere it was on the intranet.
"""

import argparse
import json
import multiprocessing as mp
import socket
import socketserver
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from stopwatch import lap, timed


class Annotator(socketserver.StreamRequestHandler):
    """One JSON line in, one JSON line out."""

    def handle(self):
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for line in self.rfile:
            question = json.loads(line)
            time.sleep(self.server.delay)
            self.wfile.write(json.dumps({"label": self.server.truth[question["name"]]}).encode() + b"\n")


def serve(truth, delay, pipe):
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Annotator) as server:
        server.daemon_threads, server.truth, server.delay = True, truth, delay
        pipe.send(server.server_address)
        server.serve_forever()


class Service:
    def __init__(self, address):
        self.line = socket.create_connection(address).makefile("rw", newline="\n")

    def ask(self, name):
        self.line.write(json.dumps({"name": name}) + "\n")
        self.line.flush()
        return json.loads(self.line.readline())["label"]


class Pool:
    """Thumbnails without labels, and how unsure the network was about each when it saw it last."""

    def __init__(self, files, side):
        self.names, self.images = [f"{file.parent.name}/{file.name}" for file in files], []
        for file in files:
            image = Image.open(file)
            image.draft("RGB", (side, side))
            self.images.append(np.asarray(image.convert("RGB").resize((side, side))))
        self.images = torch.from_numpy(np.stack(self.images)).permute(0, 3, 1, 2).contiguous()
        self.doubt = np.ones(len(files))

    def note(self, chosen, doubt):
        self.doubt *= 1.002  # what was not looked at for long comes round again
        self.doubt[chosen] = doubt


def labelled(pool, service, size, rng):
    """Endless batches of the most doubtful among some candidates, with labels as the service gives them."""
    while True:
        candidates = rng.choice(len(pool.names), 8 * size, replace=False)
        chosen = candidates[np.argsort(-pool.doubt[candidates])[:size]]
        labels = torch.tensor([service.ask(pool.names[number]) for number in chosen])
        yield chosen, pool.images[chosen].float() / 127.5 - 1, labels


def network(classes, width=32):
    return nn.Sequential(
        nn.Conv2d(3, width, 5, stride=2, padding=2), nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(8 * width, classes),
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/labels_by_socket"))
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--ask", type=int, default=12, help="questions a step")
    parser.add_argument("--delay", type=float, default=0.008, help="seconds an answer takes")
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    files = sorted((args.data / "photos").glob("*/*.JPEG"))[::2]
    kinds = sorted({file.parent.name for file in files})
    truth = {f"{file.parent.name}/{file.name}": kinds.index(file.parent.name) for file in files}
    near, far = mp.Pipe()
    mp.get_context("fork").Process(target=serve, args=(truth, args.delay, far), daemon=True).start()
    service = Service(near.recv())

    pool, rng = Pool(files, side=64), np.random.default_rng(2)
    model = network(len(kinds))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    for step, (chosen, images, labels) in enumerate(timed(labelled(pool, service, args.ask, rng), "wait")):
        with lap("compute"):
            logits = model(torch.cat([images, images.flip(3)]))
            loss = nn.functional.cross_entropy(logits, labels.repeat(2))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with lap("own"):
            chance = logits[: args.ask].detach().softmax(1)
            pool.note(chosen, -(chance * chance.clamp_min(1e-8).log()).sum(1).numpy())
            if step % 50 == 0:
                print(f"{(step + 1) * args.ask} labels: loss {loss.item():.3f}", flush=True)
        if step == args.steps:
            break
    torch.save(model.state_dict(), args.out / "active.pt")


if __name__ == "__main__":
    main()
