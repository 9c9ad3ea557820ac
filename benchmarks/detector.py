"""SSD300 with a ResNet-50, as NVIDIA's DeepLearningExamples train it, for benchmarks/devices.py."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from device_networks import define_torchvision_operators
from paceline.cluster import Precision
from paceline.steps import Step

NUM_CLASSES = 81
NUM_BOXES = 8732
BOXES_PER_PLACE = (4, 6, 6, 6, 4, 4)
SIZES = (1024, 512, 512, 256, 256, 256)
NARROW = (256, 256, 128, 128, 128)


class Detector(nn.Module):
    """Places and classes of objects, at six scales."""

    def __init__(self) -> None:
        super().__init__()
        define_torchvision_operators()
        import torchvision

        whole = torchvision.models.resnet50()
        first = whole.layer3[0]  # its stride is taken out
        first.conv1.stride = first.conv2.stride = first.downsample[0].stride = (1, 1)
        parts = (whole.conv1, whole.bn1, whole.relu, whole.maxpool)
        self.features = nn.Sequential(*parts, whole.layer1, whole.layer2, whole.layer3)
        self.scales = nn.ModuleList(
            _scale(before, narrow, after, halves=level < 3)
            for level, ((before, after), narrow) in enumerate(
                zip(pairwise(SIZES), NARROW, strict=True)
            )
        )
        self.places = _heads(4)
        self.classes = _heads(NUM_CLASSES)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        scales = [self.features(image)]
        for block in self.scales:
            scales.append(block(scales[-1]))
        return _joined(scales, self.places, 4), _joined(scales, self.classes, NUM_CLASSES)


def _joined(scales: list[Tensor], heads: nn.ModuleList, size: int) -> Tensor:
    made = [head(each) for each, head in zip(scales, heads, strict=True)]
    return torch.cat([each.reshape(len(each), size, -1) for each in made], 2)


def _scale(before: int, narrow: int, after: int, *, halves: bool) -> nn.Module:
    stride, padding = (2, 1) if halves else (1, 0)
    return nn.Sequential(
        nn.Conv2d(before, narrow, 1, bias=False),
        nn.BatchNorm2d(narrow),
        nn.ReLU(inplace=True),
        nn.Conv2d(narrow, after, 3, stride, padding, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(inplace=True),
    )


def _heads(size: int) -> nn.ModuleList:
    return nn.ModuleList(
        nn.Conv2d(given, boxes * size, 3, padding=1)
        for given, boxes in zip(SIZES, BOXES_PER_PLACE, strict=True)
    )


def _loss(found: tuple[Tensor, Tensor], wanted: Tensor) -> Tensor:
    """Of the boxes with an object, and of three times as many others, the hardest."""
    places, classes = found
    has_object = wanted > 0
    apart = functional.smooth_l1_loss(places, torch.zeros_like(places), reduction="none").sum(1)
    wrong = functional.cross_entropy(classes, wanted, reduction="none")
    _, order = wrong.masked_fill(has_object, 0).sort(1, descending=True)
    _, rank = order.sort(1)
    counts = has_object | (rank < 3 * has_object.sum(1, keepdim=True))
    loss: Tensor = ((has_object.float() * apart) + counts.float() * wrong).sum(1).mean()
    return loss


def detector_step(batch: int, precision: Precision) -> Step:
    """A step of the script with its default layout, channels-last."""
    return Step(
        model=Detector(),
        inputs=torch.empty(batch, 3, 300, 300, device="meta"),
        targets=torch.empty(batch, NUM_BOXES, dtype=torch.int64, device="meta"),
        loss=_loss,
        optimizer=lambda own: torch.optim.SGD(own, lr=2.6e-3, momentum=0.9, weight_decay=5e-4),
        precision=precision,
        memory_format="channels_last",
        name="ssd300",
    )
