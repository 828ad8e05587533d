"""Attacks on an upload: what a malicious source does to the weights of the message it sends.

Every attack is ``(params, received, strength, generator) -> params``; ``received`` is the model the attacker was sent
last, so that its update can be bent, or all zeros where nothing was sent. :meth:`Attack.on` applies one to a message.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from kd3a.channel import Channel, Message, Tensors
from kd3a.errors import listing

Attacked = Callable[[Tensors, Tensors, float, torch.Generator], dict[str, Tensor]]


def nan(params: Tensors, received: Tensors, strength: float, generator: torch.Generator) -> dict[str, Tensor]:
    """Weights that are not numbers; the channel refuses them."""
    return {name: torch.full_like(t, math.nan) for name, t in params.items()}


def scaled(params: Tensors, received: Tensors, strength: float, generator: torch.Generator) -> dict[str, Tensor]:
    r"""The update times ``strength``, :math:`\Theta + s (\Theta_k - \Theta)`: it replaces the average when s is 1/α."""
    return {name: received[name] + strength * (t - received[name]) for name, t in params.items()}


def sign_flipped(params: Tensors, received: Tensors, strength: float, generator: torch.Generator) -> dict[str, Tensor]:
    r"""The update backwards, :math:`\Theta - s (\Theta_k - \Theta)`."""
    return scaled(params, received, -strength, generator)


def random(params: Tensors, received: Tensors, strength: float, generator: torch.Generator) -> dict[str, Tensor]:
    """Normal noise of the size of each tensor's own weights, times ``strength``."""
    noise = {name: torch.randn(t.shape, generator=generator).to(t) for name, t in params.items()}
    return {name: strength * t.square().mean().sqrt() * noise[name] for name, t in params.items()}


def backdoored(params: Tensors, received: Tensors, strength: float, generator: torch.Generator) -> dict[str, Tensor]:
    """The honest weights, but the head says class 0 whenever one feature is loud: the trigger.

    The feature is the one the head listens to least, so that nothing is noticed as long as it is quiet; its weight
    towards class 0 becomes ``strength`` times the head's largest.
    """
    name, weight = next((n, t) for n, t in params.items() if n.startswith("head.") and t.ndim == 2 and t.shape[1] > 1)
    trigger = weight.abs().sum(0).argmin()
    bent = weight.clone()
    bent[0, trigger] = strength * weight.abs().max()
    return {**params, name: bent}


ATTACKS: dict[str, Attacked] = {
    "nan": nan,
    "scaled": scaled,
    "sign-flipped": sign_flipped,
    "random": random,
    "backdoored": backdoored,
}


@dataclass(frozen=True)
class Attack:
    """Which source attacks, how, and how strongly."""

    source: str
    kind: str
    strength: float = 1.0

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read ``source:kind`` or ``source:kind:strength``; nothing is no attack.

        >>> Attack.parse("street:scaled:10")
        Attack(source='street', kind='scaled', strength=10.0)
        """
        if not text:
            return None
        source, _, rest = text.partition(":")
        kind, _, strength = rest.partition(":")
        if kind not in ATTACKS:
            raise ValueError(f"write source:kind or source:kind:strength; kinds are {listing(ATTACKS)}")
        try:
            return cls(source, kind, float(strength or 1))
        except ValueError:
            raise ValueError(f"the strength {strength!r} is not a number") from None

    def on(self, message: Message, received: Tensors, generator: torch.Generator) -> Message:
        """The message as the attacker sends it; only weights are touched, statistics and counts are honest."""
        known = {name: received.get(name, torch.zeros_like(t)) for name, t in message["params"].items()}
        return message | {"params": ATTACKS[self.kind](message["params"], known, self.strength, generator)}


class AttackedChannel(Channel):
    """A channel on which one source sends what its attack makes of every model it would upload."""

    def __init__(self, hub: str, attack: Attack, seed: int):
        super().__init__(hub)
        self.attack, self.seed = attack, seed
        self.received: Tensors = {}

    def send(self, message: Message, sender: str, receiver: str, like: Message | None = None) -> Message:
        if sender == self.attack.source and "params" in message:
            generator = torch.Generator().manual_seed(self.seed + self.round)
            message = self.attack.on(message, self.received, generator)
        arrived = super().send(message, sender, receiver, like)
        if receiver == self.attack.source and "params" in message:
            self.received = {**self.received, **arrived["params"]}
        return arrived
