import pytest
import torch
from torch import nn

from feedline.pipeline.base.errors import UsageError
from feedline.train.models import SmallCNN, build_model, check_takes_size


@pytest.mark.parametrize("px", [28, 32, 64, 97, 224])
def test_the_small_cnn_takes_any_size(px: int) -> None:
    assert SmallCNN(10)(torch.zeros(2, 3, px, px)).shape == (2, 10)


def test_its_widths_are_an_option_and_it_has_no_batch_norm() -> None:
    model = build_model("small_cnn", 7, widths=(12, 40))
    convolutions = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    assert [(layer.out_channels, layer.kernel_size) for layer in convolutions] == [(12, (5, 5)), (40, (5, 5))]
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in model.modules())


@pytest.mark.parametrize("name", ["mobilenet_v2", "resnet18", "googlenet"])
def test_torchvision_models_by_name_have_the_dataset_s_classes(name: str) -> None:
    model = build_model(name, 5)
    assert model(torch.zeros(2, 3, 64, 64)).shape == (2, 5)


@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_no_weights_are_there_that_no_loss_would_reach(name: str) -> None:
    """DDP waits for the gradient of each."""
    with torch.device("meta"):
        assert not [name for name, _ in build_model(name, 5).named_parameters() if "aux" in name.lower()]


def test_an_unknown_model_is_refused_with_suggestions() -> None:
    with pytest.raises(UsageError, match="'mobilenet_v9' is not known: try small_cnn, mobilenet_v2"):
        build_model("mobilenet_v9", 5)


def test_a_size_the_model_cannot_take_is_refused() -> None:
    for name in ("alexnet", "vit_b_32"):  # which assert where others raise
        with pytest.raises(UsageError, match="--image-size 32: the model cannot take it"):
            check_takes_size(build_model(name, 5), 32)
