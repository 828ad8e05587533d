"""Networks: a backbone that makes features and a linear head that makes logits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kd3a import backbones
from kd3a.errors import UserError, choose


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


def cnn_sigmoid(shape: tuple[int, ...], classes: int) -> Net:
    """The network of the gradient-leakage attack (Zhu et al., 2019): three convolutions with sigmoids, all weights
    uniform in [-0.5, 0.5]. Smooth to the second derivative, which the attack needs, and without BatchNorm."""
    layers: list[nn.Module] = []
    for channels, stride in zip((shape[0], 12, 12), (2, 2, 1), strict=True):
        layers += [nn.Conv2d(channels, 12, 5, stride, padding=2), nn.Sigmoid()]
    flat = 12 * -(-shape[1] // 4) * -(-shape[2] // 4)
    net = Net(nn.Sequential(*layers, nn.Flatten()), flat, classes)
    for parameter in net.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return net


class SparseLinear(nn.Module):
    """``nn.Linear`` for inputs that are mostly zeros, such as bags of words.

    On a CPU only the weights of words that occur are read, which trains the Amazon network more than twice as fast; a
    GPU multiplies faster than it could look for zeros.
    """

    def __init__(self, inputs: int, width: int):
        super().__init__()
        layer = nn.Linear(inputs, width)  # for its initial values
        self.weight = nn.Parameter(layer.weight.detach().T.contiguous())  # (inputs, width): a word's weights in a row
        self.bias = layer.bias

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu":
            return torch.addmm(self.bias, x, self.weight)
        row, column = x.nonzero(as_tuple=True)
        begins = torch.searchsorted(row, torch.arange(len(x)))
        return self.bias + F.embedding_bag(
            column, self.weight, begins, per_sample_weights=x[row, column], mode="sum"
        )  # (B, width)


def mlp(shape: tuple[int, ...], classes: int, batchnorm: bool = False) -> Net:
    """The Amazon Review network of the paper and of the released code: 1,000, 500 and 100 units, no BatchNorm."""
    layers: list[nn.Module] = [nn.Flatten()]
    inputs = math.prod(shape)
    for i, width in enumerate((1000, 500, 100)):
        layers += [
            (nn.Linear if i else SparseLinear)(inputs, width),
            *([nn.BatchNorm1d(width)] if batchnorm else []),
            nn.ReLU(),
        ]
        inputs = width
    return Net(nn.Sequential(*layers), inputs, classes)


def mlp_small(shape: tuple[int, ...], classes: int) -> Net:
    """Two hidden layers of 64 units: for a handful of features, as in the examples and tests."""
    layers = [nn.Flatten(), nn.Linear(math.prod(shape), 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()]
    return Net(nn.Sequential(*layers), 64, classes)


def mlp_bn(shape: tuple[int, ...], classes: int) -> Net:
    """The same with BatchNorm in every hidden layer, so that BatchNorm MMD has something to match."""
    return mlp(shape, classes, batchnorm=True)


def features_bn(shape: tuple[int, ...], classes: int) -> Net:
    """A small BatchNorm head on the features of a frozen backbone."""
    if len(shape) != 1:
        raise UserError(f"Model features-bn reads feature vectors, not {'×'.join(map(str, shape))}: see the datasets.")
    return Net(nn.Sequential(nn.Linear(shape[0], 256), nn.BatchNorm1d(256), nn.ReLU()), 256, classes)


class ImageNet(Net):
    """A network on large images. It is scored in groups of them, so that scoring needs no more memory than training."""

    def forward(self, x: Tensor) -> Tensor:
        group = 16 if x.device.type == "cpu" else 128
        if self.training or len(x) <= group:
            return super().forward(x)
        return torch.cat([Net.forward(self, images) for images in x.split(group)])


def image_net(name: str, pretrained: bool, shape: tuple[int, ...], classes: int) -> Net:
    """An ImageNet backbone and a new head."""
    if len(shape) != 3 or shape[0] != 3:
        raise UserError(f"Model {name} reads colour images, not {'×'.join(map(str, shape))}.")
    return ImageNet(*backbones.backbone(name, pretrained), classes)


MODELS: dict[str, Callable[[tuple[int, ...], int], Net]] = {
    "cnn-narrow": cnn_narrow,
    "cnn-paper": cnn_paper,
    "cnn-official": cnn_official,
    "cnn-sigmoid": cnn_sigmoid,
    "mlp": mlp,
    "mlp-bn": mlp_bn,
    "mlp-small": mlp_small,
    "features-bn": features_bn,
    **{name: partial(image_net, name, True) for name in backbones.BACKBONES},
    **{f"{name}-random": partial(image_net, name, False) for name in backbones.BACKBONES},  # for tests only
}


def build(name: str, shape: tuple[int, ...], classes: int, seed: int) -> Net:
    """A freshly initialised network. The seed alone determines its weights on any device: they are drawn on the CPU."""
    make = choose("model", name, MODELS)
    return drawn(seed, lambda: make(shape, classes))


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


class Experts(nn.ModuleList):
    """Several heads in the place of one, which answer with their mean probability."""

    def probabilities(self, features: Tensor) -> Tensor:
        """What each expert says about the features, (B, K, C)."""
        return torch.stack([expert(features) for expert in self], 1).float().softmax(-1)

    def forward(self, features: Tensor) -> Tensor:
        return self.probabilities(features).mean(1).log()  # (B, C): logits whose softmax is that mean


class DomainBatchNorm(nn.Module):
    """One BatchNorm per domain, all starting as copies of ``norm``. A batch goes through that of ``domain``."""

    def __init__(self, norm: nn.Module, domains: int):
        super().__init__()
        self.branches = nn.ModuleList(deepcopy(norm) for _ in range(domains))
        self.domain = domains - 1

    def forward(self, x: Tensor) -> Tensor:
        return self.branches[self.domain](x)


def with_domain_bn(net: Net, domains: int) -> Net:
    """Give every BatchNorm layer of the network, of whatever dimension, a branch per domain; see :func:`enter`."""
    for parent in list(net.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                setattr(parent, name, DomainBatchNorm(child, domains))
    return net


def enter(net: nn.Module, domain: int) -> nn.Module:
    """The network with its BatchNorm branches set to ``domain``; without branches, the network as it is."""
    for module in net.modules():
        if isinstance(module, DomainBatchNorm):
            module.domain = domain
    return net


def drawn(seed: int, make: Callable[[], nn.Module]) -> nn.Module:
    """What ``make`` makes, with initial weights that the seed alone determines."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def with_bottleneck(net: Net, width: int = 256, seed: int = 0) -> Net:
    """SHOT's form of a network, in place: a linear bottleneck with BatchNorm ends the backbone, and the head on it is
    weight-normalised, so that it knows directions only. The new layers stand where the old head stood."""
    old = net.head.weight

    def layers() -> nn.ModuleList:
        head = nn.utils.parametrizations.weight_norm(nn.Linear(width, net.head.out_features))
        return nn.ModuleList([nn.Linear(net.features, width), nn.BatchNorm1d(width), head])

    bottleneck, norm, net.head = drawn(seed, layers).to(old.device)
    net.backbone, net.features = nn.Sequential(net.backbone, bottleneck, norm), width
    return net


class Ensemble(nn.Module):
    """Several networks that answer with their mean probability."""

    def __init__(self, nets: Iterable[Net]):
        super().__init__()
        self.nets = nn.ModuleList(nets)

    def logits(self, x: Tensor) -> Tensor:
        return torch.stack([net(x) for net in self.nets])  # (K, B, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x).float().log_softmax(-1).logsumexp(0)  # (B, C): logits whose softmax is that mean


class WeightedEnsemble(Ensemble):
    """Several networks that answer with the weighted mean of their logits; the weights are learned from ``scores``.

    ``sigmoid`` (DECISION) divides the sigmoids of the scores by their sum, ``softmax`` (CAiDA) takes their softmax.
    """

    def __init__(self, nets: Iterable[Net], scores: Tensor, rule: Literal["sigmoid", "softmax"]):
        super().__init__(nets)
        self.scores = nn.Parameter(scores)  # (K,)
        self.rule = rule

    def weights(self) -> Tensor:
        if self.rule == "softmax":
            return self.scores.softmax(0)
        return self.scores.sigmoid() / self.scores.sigmoid().sum()

    def forward(self, x: Tensor) -> Tensor:
        logits = self.logits(x).float()
        with torch.autocast(logits.device.type, enabled=False):
            return torch.einsum("k,kbc->bc", self.weights(), logits)
