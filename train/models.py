"""The models to train: the small CNN of our own, and any torchvision classifier by name."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from feedline.pipeline.base.errors import UsageError
from feedline.train.distributed import short_line

HIDDEN = 84
"""Features between the small CNN's two linear layers, as in LeNet-5."""


class SmallCNN(nn.Module):
    """Two 5×5 convolutions and two linear layers, no batch norm: for CIFAR-10, MNIST and 64 px ImageNet.

    Works from 16 px upwards: the features are pooled to at most 6×6, so the linear layers never grow with the image.
    """

    def __init__(self, classes: int, widths: tuple[int, int] = (6, 16)) -> None:
        super().__init__()
        first, second = widths
        self.features = nn.Sequential(
            nn.Conv2d(3, first, 5),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, 5),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.AdaptiveAvgPool2d(6),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(second * 36, HIDDEN), nn.ReLU(inplace=True), nn.Linear(HIDDEN, classes)
        )

    def forward(self, images_NCHW: Tensor) -> Tensor:
        return self.classifier(self.features(images_NCHW))


OWN: dict[str, Callable[[int, tuple[int, int]], nn.Module]] = {"small_cnn": SmallCNN}
"""Models of our own by name: (classes, widths) -> the model. Every other name is torchvision's."""


def build_model(name: str, classes: int, *, widths: tuple[int, int] = (6, 16)) -> nn.Module:
    """A model with freshly drawn weights and `classes` outputs. Raises UsageError for a name nobody knows."""
    if name in OWN:
        return OWN[name](classes, widths)
    import torchvision.models as zoo

    check_name(name)
    extra = {"init_weights": True, "aux_logits": False} if name in ("googlenet", "inception_v3") else {}
    return zoo.get_model(name, weights=None, num_classes=classes, **extra)


def check_name(name: str) -> None:
    """Raises UsageError for a model that nobody knows."""
    import torchvision.models as zoo

    known = zoo.list_models(module=zoo)
    if name not in (*OWN, *known):
        near = [other for other in known if name[:4] == other[:4]] or ["mobilenet_v2", "resnet18", "resnet50"]
        raise UsageError(f"--model {name!r} is not known: try {', '.join([*OWN, *near[:6]])}")


def check_takes_size(model: nn.Module, image_size: int) -> None:
    """Raises UsageError when the model cannot take images of this size (inception_v3 needs 75 px, for one)."""
    mode = model.training
    model.eval()
    try:
        with torch.no_grad():
            model(torch.zeros(1, 3, image_size, image_size))
    except (RuntimeError, AssertionError) as error:  # vision transformers assert theirs
        raise UsageError(f"--image-size {image_size}: the model cannot take it ({short_line(error)})") from error
    finally:
        model.train(mode)
