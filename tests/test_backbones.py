"""ImageNet backbones: their shape, where their weights come from, and that nothing starts at random by itself."""

from __future__ import annotations

import os
import pickle
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from kd3a import backbones, models
from kd3a.domains import IMAGENET_MEAN, IMAGENET_STD, normalised
from kd3a.errors import UserError

PARAMETERS = {"resnet18": 11_176_512, "resnet34": 21_284_672, "resnet50": 23_508_032, "resnet101": 42_500_160}
LITE = "efficientnet-lite0"
needs_lite = pytest.mark.skipif(
    find_spec(backbones.PACKAGES[LITE]) is None, reason=f"package {backbones.PACKAGES[LITE]} is not installed"
)


@pytest.fixture
def no_weights(tmp_path, monkeypatch) -> Path:
    """No weights anywhere: neither in the folder that is returned, nor in torch's cache, nor in a package."""
    monkeypatch.setenv("KD3A_WEIGHTS", str(tmp_path))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    monkeypatch.setattr(backbones, "find_spec", lambda name: None)
    backbones.weights.cache_clear()
    yield tmp_path
    backbones.weights.cache_clear()


def test_torchvision_can_be_imported():
    from kd3a._torchvision import torchvision

    assert sys.modules["torchvision"] is torchvision and torchvision.models.resnet18 and torchvision.transforms


@pytest.mark.parametrize("name", PARAMETERS)
def test_resnets_are_torchvisions(name):
    from kd3a._torchvision import torchvision

    net = models.MODELS[f"{name}-random"]((3, 64, 64), 10)
    theirs = getattr(torchvision.models, name)(weights=None).state_dict()
    own = {key.removeprefix("backbone."): t.shape for key, t in net.state_dict().items() if key.startswith("backbone.")}
    assert own == {key: tensor.shape for key, tensor in theirs.items() if not key.startswith("fc.")}
    assert sum(p.numel() for p in net.backbone.parameters()) == PARAMETERS[name]
    assert net.head.in_features == net.features == theirs["fc.weight"].shape[1]


def test_published_files_are_torchvisions():
    from kd3a._torchvision import torchvision

    for name in PARAMETERS:
        url = torchvision.models.get_model_weights(name).IMAGENET1K_V1.url
        assert url.endswith(f"/{backbones.BACKBONES[name][0]}")


@pytest.mark.parametrize("name", ["resnet18-random", f"{LITE}-random"])
def test_networks_train(name):
    net = models.build(name, (3, 64, 64), 5, seed=0)
    x = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    net(x).logsumexp(-1).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    assert any(isinstance(m, nn.BatchNorm2d) for m in net.modules())  # BatchNorm MMD has something to match


@pytest.mark.parametrize("size", [33, 64])
def test_scoring_in_groups_changes_nothing(size):
    net = models.build(f"{LITE}-random", (3, size, size), 5, seed=0).eval()
    x = torch.randn(35, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(net(x), net.head(net.backbone(x)), atol=1e-5, rtol=1e-4)


# --- weights ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", backbones.BACKBONES)
def test_missing_weights_are_an_error(name, no_weights):
    with pytest.raises(UserError) as caught:
        models.build(name, (3, 64, 64), 10, seed=0)
    text = str(caught.value)
    assert text.startswith(f"The ImageNet weights of {name} are missing") and backbones.BACKBONES[name][0] in text
    assert "KD3A_WEIGHTS" in text and "\n" not in text


def test_random_start_only_by_name(no_weights):
    first, same, other = (models.build("resnet18-random", (3, 64, 64), 10, seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[k], same[k]) for k in first)
    assert not torch.equal(first["backbone.conv1.weight"], other["backbone.conv1.weight"])
    assert [name for name in models.MODELS if name.endswith("-random")] == [f"{n}-random" for n in backbones.BACKBONES]


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    tensors = backbones.resnet("resnet18").state_dict()
    return tensors | {"fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}


@pytest.mark.parametrize("file", ["resnet18.safetensors", "resnet18.pth"])
def test_weights_from_a_local_file(file, no_weights, state):
    if file.endswith(".pth"):
        torch.save(state, no_weights / file)
    else:
        save_file(state, no_weights / file)
    nets = [models.build("resnet18", (3, 64, 64), 10, seed) for seed in (0, 1)]
    for net in nets:
        assert all(torch.equal(net.backbone.state_dict()[k], state[k]) for k in state if not k.startswith("fc."))
    assert not torch.equal(nets[0].head.weight, nets[1].head.weight)  # the seed still draws the head
    with torch.no_grad():
        nets[0].backbone.conv1.weight.zero_()
    assert nets[1].backbone.conv1.weight.any()  # no net shares tensors with another


def test_weights_from_torchs_cache(no_weights, state, monkeypatch):
    path = no_weights / "hub" / "checkpoints" / backbones.BACKBONES["resnet18"][0]
    path.parent.mkdir(parents=True)
    torch.save(state, path)
    assert backbones.weight_file("resnet18") == path
    with pytest.raises(UserError, match="is damaged: its SHA-256 begins with"):
        backbones.backbone("resnet18")


def test_wrong_tensors(no_weights, state):
    save_file(state | {"conv1.weight": torch.zeros(1)}, no_weights / "resnet18.safetensors")
    with pytest.raises(UserError, match=r"resnet18\.safetensors does not hold the weights of resnet18: size mismatch"):
        backbones.backbone("resnet18")


class Malice:
    def __reduce__(self):
        return os.mkdir, (str(Path.cwd() / "malice"),)


@pytest.mark.parametrize("content", ["pickle", "text", "empty", "list"])
def test_files_that_are_no_weights(content, no_weights, monkeypatch):
    """Whatever lies there is told in one sentence, and no code in it runs."""
    monkeypatch.chdir(no_weights)
    path = no_weights / "resnet18.pth"
    if content == "list":
        torch.save([1, 2], path)
    else:
        path.write_bytes({"pickle": pickle.dumps(Malice()), "text": b"hello", "empty": b""}[content])
    with pytest.raises(UserError, match=r"resnet18\.pth is not a file of weights") as caught:
        backbones.backbone("resnet18")
    assert "\n" not in str(caught.value) and not (no_weights / "malice").exists()


# --- EfficientNet-Lite0 -----------------------------------------------------------------------------------------------


def test_lite_has_its_size():
    net = backbones.EfficientNetLite0()
    assert sum(p.numel() for p in net.parameters()) == 3_371_008
    assert sum(isinstance(m, nn.BatchNorm2d) for m in net.modules()) == 49


def test_lite_converts_the_normalisation():
    """ImageNet-normalised pixels in, (pixel - 127) / 128 at the first convolution."""
    net, seen = backbones.EfficientNetLite0().eval(), []
    net.conv_stem.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    pixels = torch.arange(3 * 32 * 32).view(1, 3, 32, 32).remainder(256).to(torch.uint8)
    with torch.no_grad():
        net(normalised(pixels, IMAGENET_MEAN, IMAGENET_STD))
    torch.testing.assert_close(seen[0], (pixels.float() - 127) / 128, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("size", [6, 7, 8, 9])
def test_padding_is_tensorflows(kernel, size):
    """Output i of a strided convolution reads inputs from 2i - before: half the padding, rounded down."""
    conv = backbones.SameConv(1, 1, kernel, stride=2)
    nn.init.ones_(conv.weight)
    x = torch.rand(1, 1, size, size, generator=torch.Generator().manual_seed(0))
    outputs = -(-size // 2)
    before = max(0, (outputs - 1) * 2 + kernel - size) // 2
    windows = [slice(max(0, 2 * i - before), 2 * i - before + kernel) for i in range(outputs)]
    expected = [[x[0, 0, rows, columns].sum().item() for columns in windows] for rows in windows]
    np.testing.assert_allclose(conv(x)[0, 0].detach().numpy(), expected, rtol=1e-5)


@needs_lite
def test_lite_weights_are_the_published_ones():
    state, sha256 = backbones.weights(LITE)
    assert sha256 == "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
    assert state.keys() == backbones.EfficientNetLite0().state_dict().keys()


@needs_lite
def test_lite_features_are_pinned():
    """Values that agreed with those of the package efficientnet_lite_pytorch to 1e-5 when they were written down."""
    net = backbones.backbone(LITE)[0].eval()
    ramp = torch.linspace(-2, 2, 128)
    x = torch.stack([ramp.expand(128, 128), ramp[:, None].expand(128, 128), ramp.flip(0).expand(128, 128)])[None]
    with torch.no_grad():
        out = net(x)
    assert out.shape == (1, 1280)
    values = torch.tensor([5.38237, 4.33525, 3.57328, 3.2392, 3.06722, 3.03391])  # the largest six
    torch.testing.assert_close(out[0, [113, 897, 1157, 930, 1167, 755]], values, atol=1e-3, rtol=1e-3)


def test_models_refuse_other_inputs():
    with pytest.raises(UserError, match="features-bn reads feature vectors, not 3×32×32"):
        models.build("features-bn", (3, 32, 32), 10, seed=0)
    with pytest.raises(UserError, match="resnet18 reads colour images, not 1280"):
        models.build("resnet18-random", (1280,), 10, seed=0)
    net = models.build("features-bn", (1280,), 10, seed=0)
    assert net(torch.randn(4, 1280)).shape == (4, 10) and isinstance(net.backbone[1], nn.BatchNorm1d)
