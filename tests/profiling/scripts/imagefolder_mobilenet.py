import sys

import torch
from torch import nn, optim
from torchvision import datasets, models, transforms

normalize = transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])

if __name__ == "__main__":
    train_dataset = datasets.ImageFolder(
        sys.argv[1],
        transforms.Compose(
            [transforms.RandomResizedCrop(64), transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalize]
        ),
    )
    train_loader = torch.utils.data.DataLoader(
        train_dataset, batch_size=8, shuffle=True, num_workers=int(sys.argv[2]), pin_memory=torch.cuda.is_available()
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    model = models.mobilenet_v2(num_classes=len(train_dataset.classes)).to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(int(sys.argv[3])):
        for i, (images, target) in enumerate(train_loader):
            images, target = images.to(device, non_blocking=True), target.to(device, non_blocking=True)
            loss = criterion(model(images), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(epoch, i, loss.item())
