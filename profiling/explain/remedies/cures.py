"""What does the work of a stage, or of a transform, in less time, and what was measured to be left of it. Pure."""

from typing import NamedTuple

LIGHTER = "hand over tensors rather than objects, uint8 rather than float, few pieces per batch"


class Cure(NamedTuple):
    """For a stage of which a library does the work, or nobody."""

    hint: str = ""
    command: str = ""
    left: float = 0.0  # of its cost
    changes: str = ""
    needs: str = ""
    known: str = "was measured elsewhere, not here"
    error: float = 0.15  # standard error of `left`; of little, half of it


CURES = {
    "read": Cure("an archive opened once in each worker, not for each sample",
                 "DataLoader(…, worker_init_fn=open_one)  # and each sample is read from what it opened",
                 needs="an archive that holds many samples"),
    "decode": Cure("decode smaller pictures", 'image.draft("RGB", (PX, PX))  # before image.convert("RGB")', 0.8,
                   changes="crops are cut out of smaller pictures",
                   needs="JPEGs of at least twice so many pixels on both sides: others it decodes whole"),
    "transform": Cure("no library is known that does it in less"),
    "collate": Cure("take whole batches by a list of indices",
                    "batches = BatchSampler(RandomSampler(dataset), batch_size, drop_last=True)\n"
                    "DataLoader(dataset, sampler=batches, batch_size=None)",
                    0.5, "a smaller last batch is left out, and another sampler's order",
                    "a dataset that takes a list of indices, as TensorDataset does",
                    "is typical; not measured here"),
    "send": Cure(LIGHTER,
                 "return default_collate(samples)  # of tensors: in a worker it stacks them in shared memory"),
    "blocked": Cure("ask for it ahead, or keep a copy here"),
    "lock": Cure("open one for each worker",
                 "DataLoader(…, worker_init_fn=open_one)  # a file or store of its own"),
}  # fmt: skip
"""By stage; one that has none here is the user's own code, to be made cheaper."""
CHUNKS = Cure("chunks of one sample each, not compressed: all of a chunk is unpacked for any part of it",
              'with h5py.File("old.h5") as old, h5py.File("new.h5", "w") as new:  # once\n'
              "    for name, data in old.items():\n"
              "        chunks = (1, *data.shape[1:]) if data.ndim > 1 else None\n"
              "        new.create_dataset(name, data=data[:], chunks=chunks)",
              needs="chunks that hold several samples or are compressed (data.chunks and data.compression tell), "
              "and memory for all of it as it is copied")  # fmt: skip
DRAFTED = """def drafted(path):
    image = Image.open(path)
    image.draft("RGB", (PX, PX))
    return image.convert("RGB")
ImageFolder(…, loader=drafted)"""
ONE_ARRAY = Cure("torch makes a tensor for each key of a sample and each place of its lists: hand over one array",
                 "return torch.tensor(numbers), label  # in __getitem__")  # fmt: skip
MADE_ONCE = Cure("for all epochs: of small pictures v2 makes them no faster",
                 "images, labels = zip(*dataset)  # once\n"
                 "dataset = TensorDataset(torch.stack(images), torch.tensor(labels))",
                 needs="memory for all tensors, and that neither dataset nor transforms draw anything")  # fmt: skip
ON_ARRAYS = "on arrays, by OpenCV"
DIFFERS = "OpenCV's pixels and some of its ranges differ a little"
ONE_THREAD = "cv2.setNumThreads(0)  # in each worker\n"
ALBUMENTATIONS = "albumentations (it has most of torchvision's transforms)"
TENSORS = Cure(ON_ARRAYS, ONE_THREAD +
               "made = albumentations.Compose([albumentations.Normalize(…), albumentations.pytorch.ToTensorV2()])\n"
               'made(image=numpy.asarray(image))["image"]  # in place of ToTensor() and Normalize(…)',
               0.65, needs=ALBUMENTATIONS)  # fmt: skip
RESIZED = Cure("on uint8 tensors", "from torchvision.transforms import v2 as transforms  # ToImage() first", 0.6)
ONE = Cure("one operation on each picture", "RandAugment(num_ops=1)  # in its place", 0.55,
           changes="pictures are changed by one operation: a weaker augmentation",
           needs="the default of two operations (num_ops=2) now")  # fmt: skip
ONE_OPERATION = {
    "randaugment": (ONE, ONE._replace(left=0.7)),
    "autoaugment": (ONE._replace(left=0.7), ONE._replace(left=0.6)),
}
"""Of large pictures, of small ones."""
OPENCVS = {
    "colorjitter": ("ColorJitter(brightness=…, contrast=…, saturation=…, hue=…, p=1)", 0.15, 0.35),
    "gaussianblur": ("GaussianBlur(blur_limit=(…, …), sigma_limit=(…, …), p=1)", 0.05, 0.1),
    "grayscale": ("ToGray(p=1)", 0.25, 0.35), "randomgrayscale": ("ToGray(p=…)", 0.25, 0.35),
    "randomadjustsharpness": ("Sharpen(alpha=(…, …), p=…)", 0.25, 0.65),
    "randomperspective": ("Perspective(scale=(…, …), p=…)", 0.4, 0.4),
    "randomequalize": ('Equalize(mode="pil", p=…)', 0.6, 0.25),
    "randomsolarize": ("Solarize(threshold_range=(…, …), p=…)", 0.35, 0.35),
}  # fmt: skip
"""albumentations' call with what its defaults make another transform, and what it leaves of Pillow's time: of large
pictures, of small ones. Not those that turn pictures or choose others."""
