"""fastai: ImageDataLoaders.from_folder and a plain Learner, with an item transform of one's own."""

import argparse
import math
from contextlib import ExitStack

from fastai.vision.all import *

from stopwatch import lap


class Vignette(Transform):
    """Brightens the corners again, which the lens left dark."""

    order = 2

    def __init__(self, strength=0.5):
        self.strength = strength

    def encodes(self, img: PILImage):
        with lap("transform"):
            width, height = img.size
            mask = np.empty((height, width, 1), dtype=np.float32)
            for y in range(height):
                for x in range(width):
                    distance = math.hypot(x / width - 0.5, y / height - 0.5)
                    mask[y, x, 0] = 1 + self.strength * distance**2
            return PILImage.create((np.asarray(img) * mask).clip(0, 255).astype(np.uint8))


class Stopwatch(Callback):
    """From the end of one batch to the start of the next is `wait`."""

    laps = ExitStack()

    def after_batch(self):
        self.laps.enter_context(lap("wait"))

    def before_batch(self):
        self.laps.close()

    def after_fit(self):
        self.laps.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--out", type=Path, default="runs/fastai_item_tfms")
    args = parser.parse_args()

    item_tfms = [Resize(160), Vignette()]
    dls = ImageDataLoaders.from_folder(
        args.data / "photos", valid_pct=0.1, seed=42, item_tfms=item_tfms, bs=32, num_workers=2
    )
    model = SimpleCNN([3, 8, 16, 32, dls.c])
    args.out.mkdir(parents=True, exist_ok=True)
    cbs = [Stopwatch(), CSVLogger()]
    learn = Learner(dls, model, loss_func=CrossEntropyLossFlat(), metrics=accuracy, path=args.out, cbs=cbs)
    learn.fit_one_cycle(args.epochs, 3e-3)
    learn.save("final")


if __name__ == "__main__":
    main()
