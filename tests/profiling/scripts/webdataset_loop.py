import sys

import torch
import webdataset as wds
from torch import nn
from torchvision import transforms

augment = transforms.Compose([transforms.RandomResizedCrop(64), transforms.ToTensor()])


def identity(x):
    return x


def main(urls, workers):
    dataset = (
        wds.WebDataset(urls, shardshuffle=False, resampled=True, nodesplitter=wds.split_by_node)
        .shuffle(20)
        .decode("pil")
        .to_tuple("jpg", "cls")
        .map_tuple(augment, identity)
        .batched(8)
    )
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=workers) if workers >= 0 else dataset
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 9)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (images, labels) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(images), torch.as_tensor(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 240:
            break


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
