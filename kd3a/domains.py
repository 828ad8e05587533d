"""Domains and tasks: who holds which samples.

A :class:`Part` is one split of one domain, resident on a device; a :class:`Domain` is a train and a test part; a
:class:`Task` is what a method is given: K labelled sources and one target whose labels only serve for scoring.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from kd3a.errors import UserError

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # red, green, blue


@dataclass(frozen=True)
class Batch:
    """One mini-batch: inputs ready for the network, labels, and the samples' positions in their part."""

    x: Tensor  # (B, ...) float
    y: Tensor  # (B,) int64
    index: Tensor  # (B,) int64


def normalised(x: Tensor, mean: float | tuple[float, ...], std: float | tuple[float, ...]) -> Tensor:
    """uint8 pixels as ``(x / 255 - mean) / std``; tuples hold a value per channel of (B, C, H, W)."""
    if isinstance(mean, tuple):
        scale = torch.tensor([1 / (255 * s) for s in std], device=x.device)[:, None, None]
        shift = torch.tensor([m / s for m, s in zip(mean, std, strict=True)], device=x.device)[:, None, None]
        return x.float().mul_(scale).sub_(shift)
    return x.float().mul_(1 / (255 * std)).sub_(mean / std)


@dataclass(frozen=True)
class Part:
    """One split of one domain. ``x`` stays uint8 (or float features) on its device and is normalised per batch."""

    x: Tensor  # (N, ...) uint8 or float
    y: Tensor  # (N,) int64
    mean: float | tuple[float, ...] = 0.5  # of all channels, or of each
    std: float | tuple[float, ...] = 0.5

    def __len__(self) -> int:
        return len(self.y)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors of the part, by field name."""
        return {f.name: value for f in fields(self) if isinstance(value := getattr(self, f.name), Tensor)}

    def to(self, device: torch.device | str) -> Self:
        return replace(self, **{name: tensor.to(device) for name, tensor in self.tensors().items()})

    def inputs(self, index: Tensor) -> Tensor:
        """The samples at ``index`` as the network reads them; uint8 pixels become ``(x / 255 - mean) / std``."""
        x = self.x[index]
        return normalised(x, self.mean, self.std) if x.dtype == torch.uint8 else x

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
        return sum(tensor.nbytes for tensor in self.tensors().values())

    @classmethod
    def pool(cls, parts: list[Self]) -> Self:
        """All samples of several parts in one."""
        return replace(parts[0], **{n: torch.cat([p.tensors()[n] for p in parts]) for n in parts[0].tensors()})


@dataclass(frozen=True, kw_only=True)
class SparsePart(Part):
    """A part whose samples are mostly zeros: ``x`` holds their other values, ``columns`` where these stand among the
    ``width`` features. M is the most that a sample has; shorter ones are padded with zeros, which add nothing.

    A batch becomes dense when it is asked for, by one scatter of fixed size, so that a GPU never waits for the host.
    """

    # x: (N, M) float
    columns: Tensor  # (N, M) int16 or int32
    width: int

    def inputs(self, index: Tensor) -> Tensor:
        """The samples at ``index`` as dense float rows, (B, width), not scaled."""
        dense = self.x.new_zeros(len(index), self.width)
        return dense.scatter_add_(1, self.columns[index].long(), self.x[index])

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.width,)

    @property
    def nbytes(self) -> int:
        """Bytes of values, columns and labels as they would travel, without the padding."""
        return int(self.x.count_nonzero()) * (self.x.element_size() + self.columns.element_size()) + self.y.nbytes

    @classmethod
    def pool(cls, parts: list[Self]) -> Self:
        most = max(part.x.shape[1] for part in parts)

        def pad(t: Tensor) -> Tensor:
            return F.pad(t, (0, most - t.shape[1]))

        return super().pool([replace(part, x=pad(part.x), columns=pad(part.columns)) for part in parts])


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

    def with_sources(self, number: int, seed: int) -> Task:
        """The task with ``number`` of its sources, drawn by the seed and in their order; 0 is all.

        A larger number adds to what a smaller one draws.
        """
        if number > len(self.sources):
            raise UserError(f"sources = {number} is more than the {len(self.sources)} that this task has; lower it.")
        order = torch.randperm(len(self.sources), generator=torch.Generator().manual_seed(seed)).tolist()
        drawn = sorted(order[:number]) if number else range(len(self.sources))
        return replace(self, sources=tuple(self.sources[k] for k in drawn))
