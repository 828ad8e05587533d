"""Datasets by name: ``load(name, target) -> Task``. One file per dataset, one line here."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from kd3a.data import digits
from kd3a.domains import Task
from kd3a.errors import choose

DATASETS: dict[str, ModuleType] = {"digits": digits}


def load(name: str, target: str, data: Path | None = None) -> Task:
    """The task of adapting all other domains of dataset ``name`` to domain ``target``.

    ``data`` is the folder of downloaded files, for the datasets that need one; ``digits`` needs nothing.
    """
    dataset = choose("dataset", name, DATASETS)
    choose(f"target of {name}", target, dataset.DOMAINS)
    domains, sha256 = dataset.load(data)
    sources = tuple(domains[d] for d in dataset.DOMAINS if d != target)
    return Task(name, sources, domains[target], dataset.CLASSES, sha256)
