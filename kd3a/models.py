"""Networks: a backbone that makes features and a linear head that makes logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kd3a.errors import choose


class Net(nn.Module):
    """``head(backbone(x))``. The split matters: the released KD3A code averages backbones and keeps heads private."""

    def __init__(self, backbone: nn.Module, features: int, classes: int):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(features, classes)
        self.features = features

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))  # (B, C)


def convolutions(widths: tuple[int, int, int], channels: int, kernel: int = 5) -> list[nn.Module]:
    """The paper's three convolutions: BatchNorm and ReLU after each, max-pooling after the first two; 32×32 → 8×8."""
    layers: list[nn.Module] = []
    for i, width in enumerate(widths):
        layers += [nn.Conv2d(channels, width, kernel, padding=kernel // 2), nn.BatchNorm2d(width), nn.ReLU()]
        if i < 2:
            layers.append(nn.MaxPool2d(3, stride=2, padding=1))
        channels = width
    return [*layers, nn.Flatten()]


def cnn_narrow(shape: tuple[int, ...], classes: int) -> Net:
    """The shape of the paper's CNN at a width two CPU cores can train, and one BatchNorm layer of 128 features."""
    flat = 64 * (shape[1] // 4) * (shape[2] // 4)
    layers = convolutions((16, 32, 64), shape[0], kernel=3)
    return Net(nn.Sequential(*layers, nn.Linear(flat, 128), nn.BatchNorm1d(128), nn.ReLU()), 128, classes)


def cnn_paper(shape: tuple[int, ...], classes: int) -> Net:
    """The Digit-5 network of the paper's appendix: three convolutions, then the head on 8,192 features."""
    flat = 128 * (shape[1] // 4) * (shape[2] // 4)
    return Net(nn.Sequential(*convolutions((64, 64, 128), shape[0])), flat, classes)


def cnn_official(shape: tuple[int, ...], classes: int) -> Net:
    """The Digit-5 network of the released code: two more fully connected layers with BatchNorm, 31.8 M parameters."""
    flat = 128 * (shape[1] // 4) * (shape[2] // 4)
    layers = convolutions((64, 64, 128), shape[0])
    layers += [nn.Linear(flat, 3072), nn.BatchNorm1d(3072), nn.ReLU(), nn.Dropout(0.5)]
    layers += [nn.Linear(3072, 2048), nn.BatchNorm1d(2048), nn.ReLU()]
    return Net(nn.Sequential(*layers), 2048, classes)


MODELS = {"cnn-narrow": cnn_narrow, "cnn-paper": cnn_paper, "cnn-official": cnn_official}


def build(name: str, shape: tuple[int, ...], classes: int, seed: int) -> Net:
    """A freshly initialised network. The seed alone determines its weights on any device: they are drawn on the CPU."""
    make = choose("model", name, MODELS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(shape, classes)


def parcel(net: nn.Module, prefix: str = "") -> dict[str, dict[str, Tensor]]:
    """The network as a message: ``params`` and floating ``buffers`` (BatchNorm statistics) whose name has ``prefix``.

    Integer counters stay at home: no computation reads them.
    """
    buffers = {n: b for n, b in net.named_buffers() if b.is_floating_point()}
    kinds = {"params": dict(net.named_parameters()), "buffers": buffers}
    return {kind: {n: t.detach() for n, t in ts.items() if n.startswith(prefix)} for kind, ts in kinds.items()}


def contents(message: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
    """Weights and statistics of a message made by :func:`parcel`, as one state dict."""
    return message.get("params", {}) | message.get("buffers", {})


@torch.no_grad()
def unpack(net: nn.Module, state: dict[str, Tensor]) -> None:
    """Copy the given tensors into the network; what is not given stays as it is."""
    own = dict(net.named_parameters()) | dict(net.named_buffers())
    for name, tensor in state.items():
        own[name].copy_(tensor)
