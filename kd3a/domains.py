"""Domains and tasks: who holds which samples.

A :class:`Part` is one split of one domain, resident on a device; a :class:`Domain` is a train and a test part; a
:class:`Task` is what a method is given: K labelled sources and one target whose labels only serve for scoring.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """One mini-batch: inputs ready for the network, labels, and the samples' positions in their part."""

    x: Tensor  # (B, ...) float
    y: Tensor  # (B,) int64
    index: Tensor  # (B,) int64


@dataclass(frozen=True)
class Part:
    """One split of one domain. ``x`` stays uint8 (or float features) on its device and is normalised per batch."""

    x: Tensor  # (N, ...) uint8 or float
    y: Tensor  # (N,) int64
    mean: float = 0.5
    std: float = 0.5

    def __len__(self) -> int:
        return len(self.y)

    def to(self, device: torch.device | str) -> Part:
        return replace(self, x=self.x.to(device), y=self.y.to(device))

    def inputs(self, index: Tensor) -> Tensor:
        """The samples at ``index`` as the network reads them; uint8 pixels become ``(x / 255 - mean) / std``."""
        x = self.x[index]
        if x.dtype != torch.uint8:
            return x
        return x.float().mul_(1 / (255 * self.std)).sub_(self.mean / self.std)

    def batches(self, order: Iterable[Tensor]) -> Iterator[Batch]:
        """Yield a :class:`Batch` for every tensor of positions in ``order``."""
        for index in order:
            yield Batch(self.inputs(index), self.y[index], index)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input, without the batch."""
        return tuple(self.x.shape[1:])

    @property
    def nbytes(self) -> int:
        """Bytes of the raw samples and labels, as they would travel."""
        return self.x.nbytes + self.y.nbytes

    @classmethod
    def pool(cls, parts: list[Part]) -> Part:
        """All samples of several parts in one."""
        return replace(parts[0], x=torch.cat([p.x for p in parts]), y=torch.cat([p.y for p in parts]))


@dataclass(frozen=True)
class Domain:
    """A named domain with disjoint train and test parts."""

    name: str
    train: Part
    test: Part

    def to(self, device: torch.device | str) -> Domain:
        return replace(self, train=self.train.to(device), test=self.test.to(device))


@dataclass(frozen=True)
class Task:
    """K sources and one target of a dataset; ``sha256`` names the exact data."""

    dataset: str
    sources: tuple[Domain, ...]
    target: Domain
    classes: tuple[str, ...]
    sha256: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input, without the batch."""
        return self.target.train.shape

    @property
    def sizes(self) -> list[int]:
        """N_k, the number of training samples of each source."""
        return [len(source.train) for source in self.sources]

    def to(self, device: torch.device | str) -> Task:
        return replace(self, sources=tuple(s.to(device) for s in self.sources), target=self.target.to(device))
