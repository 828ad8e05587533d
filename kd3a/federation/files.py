"""One file per domain: what a node needs of the data, and nothing of any other domain."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from kd3a.data.files import damaged, need
from kd3a.domains import Domain, Part, SparsePart, Task
from kd3a.errors import UserError, choose

PARTS: dict[str, type[Part]] = {"Part": Part, "SparsePart": SparsePart}


@dataclass(frozen=True)
class Holding:
    """A domain with what its owner knows of the dataset."""

    dataset: str
    classes: tuple[str, ...]
    domains: tuple[str, ...]  # of the whole dataset, in its order
    sha256: str  # of the whole dataset
    domain: Domain

    def task(self, sources: tuple[str, ...], target: str) -> Task:
        """The task as this owner sees it: all domains by name, its own with samples, the others empty.

        Sources stand in the dataset's order, on which sums depend; a task without some of them has another hash.
        """
        choose("domain of the run", self.domain.name, (*sources, target))
        for name in (*sources, target):
            choose(f"domain of {self.dataset}", name, self.domains)
        whole = set(self.domains) == {*sources, target}
        sha256 = self.sha256 if whole else hashlib.sha256(f"{self.sha256} {sorted(sources)}".encode()).hexdigest()
        none = [replace(p, **{n: t[:0] for n, t in p.tensors().items()}) for p in (self.domain.train, self.domain.test)]

        def domain(name: str) -> Domain:
            return self.domain if name == self.domain.name else Domain(name, *none)

        ordered = tuple(domain(name) for name in self.domains if name in sources)
        return Task(self.dataset, ordered, domain(target), self.classes, sha256)


def export(task: Task, folder: Path) -> list[Path]:
    """Write every domain of the task into a file of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    domains = (*task.sources, task.target)
    common = {"dataset": task.dataset, "classes": task.classes, "sha256": task.sha256}
    common |= {"domains": [domain.name for domain in domains]}
    for domain in domains:
        tensors: dict[str, Tensor] = {}
        told: dict[str, Any] = dict(common)
        for split, part in (("train", domain.train), ("test", domain.test)):
            if type(part) not in PARTS.values():
                raise UserError(f"Domain {domain.name} of {task.dataset} is read from its images; it has no export.")
            tensors |= {f"{split}/{name}": t.contiguous().clone() for name, t in part.tensors().items()}
            plain = {f.name: getattr(part, f.name) for f in fields(part) if f.name not in part.tensors()}
            told[split] = {"kind": type(part).__name__} | plain
        paths.append(folder / f"{domain.name}.safetensors")
        save_file(tensors, paths[-1], metadata={"domain": domain.name, "told": json.dumps(told)})
    return paths


def read(path: Path) -> Holding:
    """The domain that :func:`export` wrote."""
    need(path, "the domain of this node", "write it with 'kd3a data export'")
    try:
        with safe_open(path, framework="pt") as file:
            name, told = file.metadata()["domain"], json.loads(file.metadata()["told"])
            parts = [_part(told[split], split, file) for split in ("train", "test")]
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise damaged(path, "an exported domain", error) from None
    names = tuple(told["classes"]), tuple(told["domains"])
    return Holding(told["dataset"], *names, told["sha256"], Domain(name, *parts))


def _part(told: dict[str, Any], split: str, file) -> Part:
    kind = PARTS[told.pop("kind")]
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in told.items()}
    names = [path for path in file.keys() if path.startswith(f"{split}/")]  # noqa: SIM118 (not a dict)
    return kind(**plain, **{path.removeprefix(f"{split}/"): file.get_tensor(path) for path in names})
