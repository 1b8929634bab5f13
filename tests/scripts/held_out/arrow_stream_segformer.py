"""A SegFormer from scratch on a streamed Hugging Face dataset: JPEG bytes in Arrow, a shuffle buffer, a map."""

import argparse
import io
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from datasets import Dataset, Features, Image, Value  # noqa: E402
from PIL import Image as Pictures  # noqa: E402
from PIL import ImageFilter, ImageOps  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from transformers import SegformerConfig, SegformerForSemanticSegmentation  # noqa: E402

from stopwatch import lap, timed  # noqa: E402


def make_dataset(files, side=112):
    rows = {"name": [], "image": []}
    for file in files:
        image = Pictures.open(file)
        image.draft("RGB", (2 * side, 2 * side))
        image = image.convert("RGB").resize((side, side))
        data = io.BytesIO()
        image.save(data, "JPEG", quality=92)
        rows["name"].append(f"{file.parent.name}/{file.name}")
        rows["image"].append({"bytes": data.getvalue(), "path": None})
    return Dataset.from_dict(rows, features=Features({"name": Value("string"), "image": Image()}))


class Prepare:
    """A picture and its mask: three grades of lightness, smoothed; both cut, mirrored and turned together."""

    def __init__(self, side, grades=3):
        self.side, self.grades = side, grades

    def __call__(self, row):
        image = row["image"].convert("RGB")
        angle = np.random.uniform(-15, 15)
        image = image.rotate(angle, Pictures.Resampling.BICUBIC, expand=False)
        if np.random.random() < 0.5:
            image = ImageOps.mirror(image)
        left, top = np.random.randint(0, image.width - self.side + 1, 2)
        image = image.crop((left, top, left + self.side, top + self.side))
        grey = np.asarray(ImageOps.equalize(image.convert("L")).filter(ImageFilter.GaussianBlur(2)))
        mask = (grey.astype(np.int64) * self.grades) // 256
        pixels = np.asarray(image, np.float32).transpose(2, 0, 1) / 127.5 - 1
        return {"pixel_values": pixels, "labels": mask}


def collate(rows):
    return {name: torch.from_numpy(np.stack([row[name] for row in rows])) for name in ("pixel_values", "labels")}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/arrow_stream_segformer"))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    photos = make_dataset(sorted((args.data / "photos").glob("*/*.JPEG"))[::5])
    stream = (
        photos.to_iterable_dataset(num_shards=4)
        .shuffle(seed=13, buffer_size=60)
        .map(Prepare(96), remove_columns=["name", "image"])
    )
    loader = DataLoader(
        stream, batch_size=args.batch_size, drop_last=True, num_workers=1, persistent_workers=True, collate_fn=collate
    )
    config = SegformerConfig(
        num_encoder_blocks=3, depths=[1, 1, 1], sr_ratios=[4, 2, 1], hidden_sizes=[24, 48, 96],
        patch_sizes=[7, 3, 3], strides=[4, 2, 2], num_attention_heads=[1, 2, 4], mlp_ratios=[3, 3, 3],
        decoder_hidden_size=96, num_labels=3,
    )  # fmt: skip
    model = SegformerForSemanticSegmentation(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.01)
    for epoch in range(args.epochs):
        stream.set_epoch(epoch)
        hits = seen = 0
        for batch in timed(loader, "wait"):
            with lap("compute"):
                output = model(**batch)
                optimizer.zero_grad(set_to_none=True)
                output.loss.backward()
                optimizer.step()
            with lap("own"):
                guess = output.logits.detach().argmax(1)
                truth = batch["labels"][:, 2::4, 2::4]
                hits += int((guess == truth).sum())
                seen += truth.numel()
        print(f"epoch {epoch}: loss {output.loss.item():.4f}, {hits / seen:.3f} of the cells right", flush=True)
        model.save_pretrained(args.out)


if __name__ == "__main__":
    main()
