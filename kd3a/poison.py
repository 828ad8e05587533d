"""Poisoned and irrelevant sources: wrappers around a task's data. Methods see nothing but a domain that is bad.

``per-batch`` is the released code's way: the first round(m · B) labels of every shuffled batch are shifted by one, so a
sample is wrong in one epoch and right in the next. The other kinds choose round(m · N) samples once: ``fixed`` shifts
their labels, ``random`` draws labels for them, ``noise`` scatters their inputs, ``letters`` puts rendered letters in
their place, each labelled by its letter (:mod:`kd3a.data.letters`). With m = 1, ``random`` and ``noise`` leave nothing
to learn; ``letters`` makes an irrelevant source, which can be learned well but is another task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Self

import torch
from torch import Tensor

from kd3a.data.letters import LETTERS, letters
from kd3a.domains import Batch, Part, SparsePart, Task
from kd3a.errors import UserError, choose, listing

KINDS = ("per-batch", "fixed", "random", "noise", "letters")


@dataclass(frozen=True)
class Poison:
    """Which source is bad, how much of it (m, a fraction) and in which way."""

    domain: str
    rate: float
    kind: str = "per-batch"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read ``domain:rate`` or ``domain:rate:kind``; nothing is no poison.

        >>> Poison.parse("street:0.3")
        Poison(domain='street', rate=0.3, kind='per-batch')
        """
        if not text:
            return None
        domain, _, rest = text.partition(":")
        rate, _, kind = rest.partition(":")
        try:
            poison = cls(domain, float(rate), kind or "per-batch")
        except ValueError:
            raise ValueError("write domain:rate or domain:rate:kind, such as street:0.3:fixed") from None
        if not 0 <= poison.rate <= 1:
            raise ValueError(f"the rate {rate} is not between 0 and 1")
        if poison.kind not in KINDS:
            raise ValueError(f"unknown kind {kind!r}; known are {listing(KINDS)}")
        return poison


def poisoned(task: Task, poison: Poison | None, seed: int) -> Task:
    """The task with one source's training part replaced; the target and all test parts stay as they are."""
    if poison is None:
        return task
    names = [source.name for source in task.sources]
    choose("source to poison", poison.domain, names)
    classes = len(task.classes)
    parts = {source.name: source.train for source in task.sources}
    if poison.kind == "per-batch":  # clean sources are wrapped too, so that all can be pooled
        parts = {n: wrapped(p, classes, poison.rate if n == poison.domain else 0.0) for n, p in parts.items()}
    else:
        parts[poison.domain] = corrupted(parts[poison.domain], classes, poison, seed)
    return replace(task, sources=tuple(replace(s, train=parts[s.name]) for s in task.sources))


def corrupted(part: Part, classes: int, poison: Poison, seed: int) -> Part:
    """The part with round(m · N) samples spoilt for good."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(part), generator=generator)[: round(poison.rate * len(part))].to(part.y.device)
    if poison.kind == "noise":
        if type(part) not in (Part, SparsePart):
            raise UserError(f"Poison noise scatters inputs in memory; {poison.domain} reads its own from files.")
        scattered = {n: scatter(t, chosen, generator) for n, t in part.tensors().items() if n != "y"}
        return replace(part, **scattered)
    if poison.kind == "letters":
        return lettered(part, chosen, classes, poison.domain, seed)
    if poison.kind == "fixed":
        wrong = (part.y[chosen] + 1) % classes
    else:
        wrong = torch.randint(classes, (len(chosen),), generator=generator).to(part.y.device)
    return replace(part, y=part.y.index_copy(0, chosen, wrong))


def lettered(part: Part, rows: Tensor, classes: int, name: str, seed: int) -> Part:
    """The part with images of letters at these rows, each labelled by its letter."""
    if type(part) is not Part or (part.x.dtype, part.shape) != (torch.uint8, (3, 32, 32)) or classes != len(LETTERS):
        raise UserError(f"Poison letters replaces 32×32 colour images of ten classes in memory; {name} has other data.")
    x, y = (torch.from_numpy(array).to(part.y.device) for array in letters(len(rows), seed))
    return replace(part, x=part.x.index_copy(0, rows, x), y=part.y.index_copy(0, rows, y))


def scatter(tensor: Tensor, rows: Tensor, generator: torch.Generator) -> Tensor:
    """The tensor with the values of these rows shuffled over all of their places: its own noise."""
    values = tensor[rows].flatten()
    order = torch.randperm(len(values), generator=generator).to(tensor.device)
    return tensor.index_copy(0, rows, values[order].view_as(tensor[rows]))


def wrapped(part: Part, classes: int, rate: float) -> Part:
    """The part with labels that are wrong in another place in every batch."""
    own = {field.name: getattr(part, field.name) for field in fields(part)}
    rates = torch.full((len(part),), rate, device=part.y.device)
    return per_batch(type(part))(**own, rates=rates, classes=classes)


@cache
def per_batch(kind: type[Part]) -> type[Part]:
    """A kind of part, in the version whose labels are poisoned per batch."""

    @dataclass(frozen=True, kw_only=True)
    class PoisonedPart(kind):
        rates: Tensor  # (N,): m of the samples' domain
        classes: int

        def batches(self, order: Iterable[Tensor]) -> Iterator[Batch]:
            for batch in super().batches(order):
                yield replace(batch, y=shifted(batch.y, self.rates[batch.index], self.classes))

        @property
        def nbytes(self) -> int:
            return kind(**{field.name: getattr(self, field.name) for field in fields(kind)}).nbytes

    return PoisonedPart


def shifted(y: Tensor, rates: Tensor, classes: int) -> Tensor:
    """Labels (B,) of which the first round(m · n) among the n of a bad domain are shifted by one.

    >>> shifted(torch.tensor([0, 1, 2, 0]), torch.full((4,), 0.5), classes=3).tolist()
    [1, 2, 2, 0]
    """
    bad = rates > 0
    wrong = bad & (bad.cumsum(0) <= (rates.amax() * bad.sum()).round())
    return torch.where(wrong, (y + 1) % classes, y)
