"""WebDataset: short videos in shards, as the cameras wrote them. A clip is opened by OpenCV, and eight of its frames
are kept: does the camera pan, zoom, or stand still?"""

import argparse
import tempfile
from pathlib import Path

import cv2
import numpy as np
import torch
import webdataset as wds
from torch import nn

from stopwatch import lap, timed

MOVES = ["left", "right", "nearer", "still"]
FRAMES = 8


def film(photo, move, length, size=(192, 144)):
    """Frames of a window that moves over a photograph."""
    height, width = photo.shape[:2]
    for k in range(length):
        part = k / (length - 1)
        scale = 0.6 - 0.25 * part if move == "nearer" else 0.6
        w, h = int(width * scale), int(height * scale)
        x = {"left": 1 - part, "right": part}.get(move, 0.5) * (width - w)
        y = (height - h) // 2
        yield cv2.resize(photo[y : y + h, int(x) : int(x) + w], size, interpolation=cv2.INTER_AREA)


def write_shards(root: Path, out: Path, shards=4, each=10, length=80):
    """Once: clips as Motion JPEG, as trail cameras have it."""
    out.mkdir(parents=True, exist_ok=True)
    if len(list(out.glob("*.tar"))) == shards:
        return
    files = sorted(root.glob("*/*.JPEG"))[:: max(1, 2000 // (shards * each))]
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/clip.avi"
        for shard in range(shards):
            with wds.TarWriter(str(out / f"clips-{shard:02d}.tar")) as tar:
                for number in range(shard * each, (shard + 1) * each):
                    photo = cv2.imread(str(files[number % len(files)]))
                    move = number % len(MOVES)
                    writer = cv2.VideoWriter(path, cv2.VideoWriter_fourcc(*"MJPG"), 25, (192, 144))
                    for frame in film(photo, MOVES[move], length):
                        writer.write(frame)
                    writer.release()
                    tar.write({"__key__": f"{number:05d}", "avi": Path(path).read_bytes(), "cls": move})


def open_clip(data, side=64):
    """OpenCV wants a file, so the bytes go to one first."""
    with lap("decode"), tempfile.NamedTemporaryFile(suffix=".avi") as file:
        file.write(data)
        file.flush()
        capture = cv2.VideoCapture(file.name)
        frames = []
        while True:
            good, frame = capture.read()
            if not good:
                break
            frames.append(frame)
        capture.release()
    picked = np.linspace(0, len(frames) - 1, FRAMES).round().astype(int)
    small = [cv2.resize(frames[k], (side, side), interpolation=cv2.INTER_AREA) for k in picked]
    return torch.from_numpy(np.stack(small)).permute(3, 0, 1, 2).contiguous()


def video(key, data):
    """A handler for decode(); other endings are for the handlers after it."""
    return open_clip(data) if key.endswith("avi") else None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/wds_video_clips"))
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(75)
    torch.set_num_threads(1)
    cv2.setNumThreads(1)

    shards = args.out / "shards"
    write_shards(args.data / "photos", shards)
    dataset = (
        wds.WebDataset(sorted(str(path) for path in shards.glob("*.tar")), resampled=True, shardshuffle=False)
        .shuffle(24)
        .decode(video)
        .to_tuple("avi", "cls")
        .batched(args.batch_size, partial=False)
    )
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True).with_epoch(50)
    model = nn.Sequential(
        nn.Conv3d(3, 12, (3, 8, 8), (1, 8, 8), (1, 0, 0)),
        nn.BatchNorm3d(12),
        nn.ReLU(),
        nn.Conv3d(12, 24, 3, 2, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(24, len(MOVES)),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        for clips, moves in timed(loader, "wait"):
            with lap("compute"):
                loss = nn.functional.cross_entropy(model(clips.float() / 127.5 - 1), torch.as_tensor(moves))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
        torch.save(model.state_dict(), args.out / "moves.pt")


if __name__ == "__main__":
    main()
