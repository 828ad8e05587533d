"""Datasets by name: ``load(name, target) -> Task``. One file per dataset, one line here."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from kd3a.data import amazon, digit5, digits
from kd3a.data.images import IMAGES
from kd3a.domains import Domain, Task
from kd3a.errors import choose


class Dataset(Protocol):
    """What a dataset is to everyone else; a module or an object.

    It may also have ``at(data)``, itself with the domains and classes that only the folder knows, ``prepare(data)``,
    to fetch or list its files, and ``describe(domains)``, a sentence in place of a contact sheet.
    """

    DOMAINS: tuple[str, ...]
    CLASSES: tuple[str, ...]

    def load(self, data: Path | None = None) -> tuple[dict[str, Domain], str]:
        """The domains and the hash of their arrays."""

    def available(self, data: Path | None = None) -> str:
        """What is there, or what is missing, in one sentence; never an error."""


DATASETS: dict[str, Dataset] = {
    "digits": digits,
    "digit5": digit5.FOUR,
    "digit5-syn": digit5.FIVE,
    "amazon": amazon,
    **IMAGES,
}


@lru_cache(maxsize=1)
def _domains(dataset: Dataset, data: Path | str | None) -> tuple[dict[str, Domain], str]:
    """The last dataset read, so that the tasks of its targets share one copy."""
    return dataset.load(Path(data) if data else None)


def find(name: str, data: Path | None = None) -> Dataset:
    """The dataset by its name; where only its folder knows domains and classes, with those of the folder."""
    dataset, folder = choose("dataset", name, DATASETS), data or os.environ.get("KD3A_DATA")
    return dataset.at(Path(folder) if folder else None) if hasattr(dataset, "at") else dataset


def domains(name: str, data: Path | None = None) -> tuple[str, ...]:
    """The domains by name; where only a folder knows them, those that lie in ``data``, or in ``KD3A_DATA``."""
    dataset = choose("dataset", name, DATASETS)
    return dataset.DOMAINS if getattr(dataset, "domains", True) else find(name, data).DOMAINS


def load(name: str, target: str, data: Path | None = None) -> Task:
    """The task of adapting all other domains of dataset ``name`` to domain ``target``.

    ``data`` is the folder of downloaded files, for the datasets that need one; ``digits`` needs nothing.
    """
    dataset = find(name, data)
    choose(f"target of {name}", target, dataset.DOMAINS)
    domains, sha256 = _domains(dataset, data or os.environ.get("KD3A_DATA"))
    sources = tuple(domains[d] for d in dataset.DOMAINS if d != target)
    return Task(name, sources, domains[target], dataset.CLASSES, sha256)
