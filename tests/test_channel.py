"""The channel: copies, refusals, and bytes that agree with the formulas."""

from __future__ import annotations

import math

import pytest
import tiny
import torch

from kd3a import models
from kd3a.channel import Channel, RefusedMessage
from kd3a.methods import METHODS
from kd3a.settings import Training
from kd3a.trainer import Trainer

HUB, SOURCE = "denim", "amber"


@pytest.fixture
def channel() -> Channel:
    return Channel(HUB)


def message() -> dict[str, dict[str, torch.Tensor]]:
    """One of several kinds and types: 24 bytes of params, 12 of buffers, 8 of stats."""
    return {
        "params": {"weight": torch.arange(6.0).view(2, 3)},
        "buffers": {"mean": torch.ones(3)},
        "stats": {"samples": torch.tensor(7)},
    }


def test_bytes_by_kind_round_and_direction(channel):
    channel.send(message(), SOURCE, HUB)
    channel.round = 2
    channel.send(message(), SOURCE, HUB)
    channel.send({"params": message()["params"]}, HUB, SOURCE)
    assert channel.bytes() == 44 + 44 + 24
    assert (channel.bytes("up"), channel.bytes("down")) == (88, 24)
    assert (channel.bytes(kind="params"), channel.bytes("up", "stats"), channel.bytes(kind="data")) == (72, 16, 0)
    assert [channel.bytes("up", rounds=range(i, i + 1)) for i in range(4)] == [44, 0, 44, 0]
    assert channel.bytes(rounds=range(2)) == 44
    assert channel.kinds() == {"params", "buffers", "stats"}
    assert channel.ledger[2, "params", "down"] == 24


@pytest.mark.parametrize(("dtype", "width"), [(torch.float64, 8), (torch.bfloat16, 2), (torch.uint8, 1)])
def test_bytes_go_by_the_type(channel, dtype, width):
    channel.send({"data": {"x": torch.zeros(5, 2, dtype=dtype)}}, SOURCE, HUB)
    assert channel.bytes() == 10 * width


def test_copies_are_detached_and_independent(channel):
    weight = torch.ones(3, requires_grad=True)
    sent = {"params": {"weight": weight, "view": weight.detach()[:2]}}
    received = channel.send(sent, SOURCE, HUB)["params"]
    assert not received["weight"].requires_grad
    received["weight"].zero_()
    assert torch.equal(weight, torch.ones(3)) and torch.equal(received["view"], torch.ones(2))
    with torch.no_grad():
        weight.fill_(5)
    assert torch.equal(received["weight"], torch.zeros(3)) and torch.equal(received["view"], torch.ones(2))


def test_one_message_to_two_parties_is_two_copies(channel):
    sent = message()
    one, other = (channel.send(sent, HUB, name)["params"]["weight"] for name in ("amber", "beige"))
    one.zero_()
    assert torch.equal(other, sent["params"]["weight"]) and channel.bytes("down") == 88


def test_shared_samples_are_counted_as_data(channel, tiny_task):
    part = tiny_task.sources[0].train
    assert channel.share(part, SOURCE, HUB) is part
    assert channel.ledger == {(0, "data", "up"): 40 * (3 * 8 * 8 + 8)}


def changed(kind: str, name: str, tensor: torch.Tensor | None) -> dict[str, dict[str, torch.Tensor]]:
    """The message with one tensor replaced, added or (``None``) left out."""
    bad = message()
    bad.setdefault(kind, {})[name] = tensor
    return {k: {n: t for n, t in tensors.items() if t is not None} for k, tensors in bad.items()}


BAD = {
    "nan": (changed("params", "weight", torch.full((2, 3), math.nan)), "params weight"),
    "one inf": (changed("buffers", "mean", torch.tensor([0, math.inf, 0])), "buffers mean"),
    "minus inf": (changed("buffers", "mean", torch.tensor([0, 0, -math.inf])), "buffers mean"),
    "shape": (changed("params", "weight", torch.zeros(3, 2)), "params weight"),
    "scalar": (changed("stats", "samples", torch.tensor([7])), "stats samples"),
    "dtype": (changed("stats", "samples", torch.tensor(7.0)), "stats samples"),
    "half": (changed("buffers", "mean", torch.ones(3).half()), "buffers mean"),
    "missing name": (changed("params", "weight", None), "params weight"),
    "extra name": (changed("params", "bias", torch.ones(1)), "params bias"),
    "unknown kind": (changed("secrets", "key", torch.ones(1)), "secrets"),
    "unexpected kind": (changed("data", "x", torch.ones(1)), "data"),
    "missing kind": ({k: v for k, v in message().items() if k != "stats"}, "stats"),
}


@pytest.mark.parametrize(("bad", "named"), BAD.values(), ids=BAD)
def test_refused_messages_name_sender_and_tensor_and_cost_nothing(channel, bad, named):
    with pytest.raises(RefusedMessage) as caught:
        channel.send(bad, SOURCE, HUB, like=message())
    assert SOURCE in str(caught.value) and named in str(caught.value)
    assert not channel.ledger
    channel.send(message(), SOURCE, HUB, like=message())
    assert channel.bytes() == 44


@pytest.mark.parametrize("name", ["nan", "one inf", "unknown kind"])
def test_refused_even_without_a_form(channel, name):
    with pytest.raises(RefusedMessage):
        channel.send(BAD[name][0], HUB, SOURCE)
    assert not channel.ledger


def test_a_model_that_diverged_is_not_sent(tiny_task):
    method = tiny.make("fedavg", tiny_task)
    with torch.no_grad():
        method.net.head.bias.fill_(math.nan)
    with pytest.raises(RefusedMessage, match=r"denim.*head\.bias"):
        tiny.train(method, last=1)


def test_state_and_load(channel):
    channel.round = 3
    channel.send(message(), SOURCE, HUB)
    other = Channel(HUB)
    other.load(channel.state())
    assert other.ledger == channel.ledger


# --- the ledgers of whole runs against the formulas -------------------------------------------------------------------


def sizes(net: models.Net) -> tuple[int, int, int]:
    """|G|, |H| and the number of BatchNorm floats, counted from the modules, not from the message."""
    batchnorm = sum(2 * m.num_features for m in net.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm))
    return *(sum(p.numel() for p in part.parameters()) for part in (net.backbone, net.head)), batchnorm


def run(name: str, task, rounds_per_epoch: float, config: dict):
    training = Training(model="small", epochs=2, epoch_samples=16, batch_size=8, rounds_per_epoch=rounds_per_epoch)
    method = METHODS[name]
    method = method(task, method.Config(**config), Trainer(training, tiny.CPU, 0), Channel(HUB))
    tiny.train(method)
    return method


@pytest.mark.parametrize("rounds_per_epoch", [0.5, 2])
@pytest.mark.parametrize(
    ("name", "config", "goes_down"),
    [
        ("fedavg", {}, "G H BN"),
        ("kd3a", {}, "G H BN"),
        ("kd3a", {"shared": "backbone"}, "G BN"),
        ("kd3a", {"variant": "official"}, "G BN"),
        ("kd3a", {"batchnorm_mmd": "local"}, "G H"),
    ],
)
def test_bytes_of_a_round_are_the_formula(name, config, goes_down, rounds_per_epoch, tiny_task):
    method = run(name, tiny_task, rounds_per_epoch, config)
    floats = dict(zip(("G", "H", "BN"), sizes(method.net), strict=True))
    sources = len(tiny_task.sources)
    down, up = 4 * sources * sum(floats[part] for part in goes_down.split()), 4 * sources * sum(floats.values())
    rounds = len(method.stages())
    assert rounds == 2 * rounds_per_epoch
    for i in range(rounds):
        assert method.channel.bytes("down", rounds=range(i, i + 1)) == down
        assert method.channel.bytes("up", rounds=range(i, i + 1)) == up + 8 * sources
        assert method.channel.ledger[i, "buffers", "up"] == 4 * sources * floats["BN"]
        assert method.channel.ledger[i, "stats", "up"] == 8 * sources
    assert method.channel.bytes() == rounds * (down + up + 8 * sources)


def test_source_only_sends_its_samples_once(tiny_task):
    method = run("source-only", tiny_task, 1, {})
    assert method.channel.ledger == {(0, "data", "up"): sum(tiny_task.sizes) * (3 * 8 * 8 + 8)}


def test_oracle_sends_nothing(tiny_task):
    assert run("oracle", tiny_task, 1, {}).channel.bytes() == 0


def test_sizes_of_the_released_network():
    """The Digit-5 row of the table of sizes in the specification."""
    with torch.device("meta"):
        assert sizes(models.build("cnn-official", (3, 32, 32), 10, seed=0)) == (31_785_408, 20_490, 10_752)
