"""The only way a tensor crosses from one party to another, and the ledger of the bytes that did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor

from kd3a.domains import Part
from kd3a.errors import Diverged, UserError

Tensors = Mapping[str, Tensor]
Message = dict[str, dict[str, Tensor]]  # kind -> name -> tensor

#: What must stay at home: a method whose ledger holds any of it is not decentralised. Features and their gradients
#: cross in every batch, sampled features once a round.
PRIVATE = ("data", "features", "feature_grads", "sampled_features")
#: What may cross.
KINDS = (*PRIVATE, "params", "buffers", "stats", "weights")


class RefusedMessage(UserError):
    """A message that must not be used: not finite, or not of the expected names, shapes and types."""


class NotFinite(RefusedMessage, Diverged):
    """A message with a number that is none."""


class Channel:
    """Hands copies over and counts them. ``hub`` is the target: what reaches it goes up, what it sends goes down.

    A place between the two is named after its source, ``amber/identifier``: what the source sends there goes up, too.
    """

    def __init__(self, hub: str):
        self.hub = hub
        self.round = 0
        self.ledger: Counter[tuple[int, str, str]] = Counter()  # (round, kind, direction) -> bytes

    def send(self, message: Message, sender: str, receiver: str, like: Message | None = None) -> Message:
        """Detached copies of ``message``; refuses what is not finite or, with ``like``, not of its form.

        Nothing is counted for a refused message.
        """
        self.check(message, sender, like)
        direction = "up" if receiver == self.hub or receiver.startswith(f"{sender}/") else "down"
        for kind, tensors in message.items():
            self.ledger[self.round, kind, direction] += sum(t.nbytes for t in tensors.values())
        return {kind: {n: t.detach().clone() for n, t in tensors.items()} for kind, tensors in message.items()}

    def share(self, part: Part, sender: str, receiver: str) -> Part:
        """Hand raw samples over, as centralised methods do; the ledger counts them as ``data``."""
        self.ledger[self.round, "data", "up" if receiver == self.hub else "down"] += part.nbytes
        return part

    def check(self, message: Message, sender: str, like: Message | None = None) -> None:
        """Refuse a message of an unknown kind, one that is not finite, or one that has not the form of ``like``."""
        for kind, tensors in message.items():
            if kind not in KINDS:
                raise RefusedMessage(f"Message of {sender}: unknown kind {kind!r}; known are {', '.join(KINDS)}.")
            if like is not None:
                self._compare(tensors, like.get(kind, {}), sender, kind)
        if like is not None and set(message) != set(like):
            raise RefusedMessage(f"Message of {sender} holds {sorted(message)}, expected {sorted(like)}.")
        floating = [
            (f"{kind} {name}", torch.stack(t.detach().aminmax()).isfinite().all())  # one pass; NaN would be both ends
            for kind, tensors in message.items()
            for name, t in tensors.items()
            if t.is_floating_point() and t.numel()
        ]
        if floating:  # one transfer to the host for the whole message
            flags = torch.stack([flag for _, flag in floating]).tolist()
            for (name, _), fine in zip(floating, flags, strict=True):
                if not fine:
                    raise NotFinite(f"Message of {sender}: {name} is not finite; the message is refused.")

    @staticmethod
    def _compare(tensors: Tensors, like: Tensors, sender: str, kind: str) -> None:
        if odd := sorted(set(tensors) ^ set(like)):
            raise RefusedMessage(f"Message of {sender}: {kind} {odd[0]} is missing or not expected.")
        for name, tensor in tensors.items():
            if tensor.shape != like[name].shape or tensor.dtype != like[name].dtype:
                raise RefusedMessage(
                    f"Message of {sender}: {kind} {name} is {tuple(tensor.shape)} {tensor.dtype}, "
                    f"expected {tuple(like[name].shape)} {like[name].dtype}."
                )

    def bytes(self, direction: str | None = None, kind: str | None = None, rounds: range | None = None) -> int:
        """Bytes that crossed, in all or of one direction, kind or range of rounds."""
        return sum(
            count
            for (at, what, where), count in self.ledger.items()
            if direction in (None, where) and kind in (None, what) and (rounds is None or at in rounds)
        )

    def kinds(self) -> set[str]:
        return {kind for _, kind, _ in self.ledger}

    def state(self) -> list[list]:
        """The ledger as plain lists, for checkpoints."""
        return [[*key, count] for key, count in sorted(self.ledger.items())]

    def load(self, state: list[list]) -> None:
        self.ledger = Counter({(at, kind, direction): count for at, kind, direction, count in state})
