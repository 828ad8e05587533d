"""Image folders: any set of domains as ``<domain>/<class>/*.jpg``, whole or with lists of train and test files.

The domains, the classes and their order (alphabetic) come from the folder. Images are held in one of two ways:

* *resident*: decoded once to uint8 tensors of a fixed size and kept in the cache folder, a file per domain, so that an
  interrupted start goes on where it was. For what fits into memory.
* *streamed*: they stay on disk and worker processes decode them during training (:mod:`kd3a.data.streamed`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from kd3a.data import files
from kd3a.data.resident import RECIPE, digest, hold, readable, skips, stratified
from kd3a.data.streamed import StreamedPart
from kd3a.domains import IMAGENET_MEAN, IMAGENET_STD, Domain, Part
from kd3a.errors import UserError, listing

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".webp")
RESIDENT_BYTES = 2 * 2**30  # keep: auto streams what would need more

Index = dict[str, dict[str, tuple[list[str], list[int]]]]  # domain -> part -> file names and labels
Plan = dict[str, dict[str, tuple[StreamedPart, str]]]  # domain -> part -> images on disk and their hash


@dataclass(frozen=True)
class Folder:
    """A dataset of image folders. ``DATASETS["mine"] = Folder("mine", "my-images")`` is enough for one's own data.

    ``split`` says what is trained on and scored. ``stratified``: 80 % of every class train, the others test, in every
    domain. ``all``: train and test part are both the whole domain, so the *full* target is scored, on the images its
    unlabelled pool consists of (transductive, as SHOT and most work on small benchmarks do); the accuracy of an
    Oracle is then a training accuracy. ``lists``: the files named in ``<lists>/<domain>_{train,test}.txt``, a name
    and a label per line.
    """

    name: str
    folder: str = ""  # below the data folder; empty: the data folder itself
    domains: tuple[str, ...] = ()  # empty: all sub-folders
    count: int = 0  # classes there must be; 0: any
    size: int = 224
    split: Literal["stratified", "all", "lists"] = "stratified"
    lists: str = "splits"
    keep: Literal["auto", "resident", "streamed"] = "auto"
    augment: bool = False  # random crops and mirroring of training batches; such images are streamed
    normalise: bool = True  # by ImageNet's mean and standard deviation; off: pixels in [0, 1], as in the released code
    classes: tuple[str, ...] = ()  # filled in from the folder
    note: str = ""  # where the images come from

    # --- the contract of a dataset ------------------------------------------------------------------------------------

    @property
    def DOMAINS(self) -> tuple[str, ...]:
        """The domains; for a folder that names none, those found in ``KD3A_DATA``, or nothing."""
        return self.domains or self._found().domains

    @property
    def CLASSES(self) -> tuple[str, ...]:
        """The classes by name; as long as the folder is missing, by number."""
        return self.classes or self._found().classes or tuple(map(str, range(self.count)))

    def _found(self) -> Folder:
        try:
            return self.at(None)
        except UserError:
            return self

    def at(self, data: Path | None) -> Folder:
        """The same dataset, with the domains and classes that lie in the folder."""
        base = self.base(data)
        domains = self.domains or tuple(_folders(base))
        if not domains:
            raise UserError(f"{base} holds no folder: expected {self.layout}.")
        for domain in domains:
            if not (base / domain).is_dir():
                raise UserError(f"There is no folder {base / domain}: {self.name} has the domains {listing(domains)}.")
        named = replace(self, domains=domains)
        return replace(named, classes=named._listed(base)[1] if self.split == "lists" else named._common(base))

    def available(self, data: Path | None = None) -> str:
        """What is there, in one sentence."""
        try:
            there = self.at(data)
            return f"Found in {self.base(data)}: {len(there.domains)} domains, {len(there.classes)} classes."
        except UserError as error:
            if data or os.environ.get("KD3A_DATA"):
                return f"Not found: {error}"
            return f"Not found: name the folder that holds {self.layout} with --data DIR or set KD3A_DATA."

    def prepare(self, data: Path | None, say: Callable[[str], None] = print) -> None:
        """Say which files are expected; what is there is checked, decoded and cached by :meth:`load`."""
        say(f"{self.name} is read from {files.root(data)}: {self.layout}. {self.note}".rstrip())

    def load(self, data: Path | None = None) -> tuple[dict[str, Domain], str]:
        """The domains and the hash of their files (of names and sizes only, for streamed ones) and settings."""
        plan, sha256, resident = self.plan(data)
        domains = {}
        for domain, parts in plan.items():
            held = {
                name: (hold if resident else readable)(part, f"{self.name}-{domain}-{name}", content)
                for name, (part, content) in parts.items()
            }
            domains[domain] = Domain(domain, *self.divided(held))
        return domains, sha256

    def plan(self, data: Path | None) -> tuple[Plan, str, bool]:
        """All parts on disk with the hashes of their files, the hash of the whole, and whether it fits in memory."""
        there, base = self if self.classes else self.at(data), self.base(data)
        index = there.index(base)
        images = sum(len(names) for parts in index.values() for names, _ in parts.values())
        fits = self.keep == "resident" or (self.keep == "auto" and images * 3 * self.size**2 <= RESIDENT_BYTES)
        resident = fits and not self.augment
        told = (RECIPE, self.size, self.split, self.augment, self.normalise, skips())
        sha, plan = hashlib.sha256(repr(told).encode()), {}
        for domain, parts in index.items():
            for name, (names, y) in parts.items():
                part = StreamedPart.of(base, names, y, size=self.size, augment=self.augment, **self.statistics)
                content = digest(part, names, whole=resident)
                sha.update(f"{domain} {name} {content}".encode())
                plan.setdefault(domain, {})[name] = part, content
        return plan, sha.hexdigest(), resident

    def divided(self, held: dict[str, Part]) -> tuple[Part, Part]:
        """Train and test part of a domain."""
        train, test = held.get("train"), held.get("test")
        if self.split != "lists":
            train = test = held["all"]
        if self.split == "stratified":
            train, test = (replace(train, x=train.x[rows], y=train.y[rows]) for rows in stratified(train.y))
        return train, replace(test, augment=False) if getattr(test, "augment", False) else test

    # --- what lies where ----------------------------------------------------------------------------------------------

    @property
    def layout(self) -> str:
        base = f"{self.folder}/" if self.folder else ""
        lists = f", and {base}{self.lists}/<domain>_train.txt and <domain>_test.txt" if self.split == "lists" else ""
        return f"{base}{'|'.join(self.domains) or '<domain>'}/<class>/*.jpg{lists}"

    @property
    def statistics(self) -> dict[str, tuple[float, ...]]:
        none = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
        return {"mean": IMAGENET_MEAN, "std": IMAGENET_STD} if self.normalise else none

    def base(self, data: Path | None) -> Path:
        base = files.root(data) / self.folder
        if not base.is_dir():
            raise UserError(f"There is no folder {base}: expected {self.layout} in {files.root(data)}.")
        return base

    def index(self, base: Path) -> Index:
        """Names (below ``base``) and labels of all images."""
        if self.split == "lists":
            return self._listed(base)[0]
        index: Index = {}
        for domain in self.domains:
            names, y = index.setdefault(domain, {}).setdefault("all", ([], []))
            for label, name in enumerate(self.classes):
                images = _images(base / domain / name)
                names += [f"{domain}/{name}/{image}" for image in images]
                y += [label] * len(images)
        return index

    def _common(self, base: Path) -> tuple[str, ...]:
        """The classes of all domains, which must be the same."""
        first = _folders(base / self.domains[0])
        if not first:
            raise UserError(f"{base / self.domains[0]} holds no class folder: expected {self.layout}.")
        if self.count and len(first) != self.count:
            raise UserError(f"{base / self.domains[0]} holds {len(first)} class folders, expected {self.count}.")
        for domain in self.domains[1:]:
            own = _folders(base / domain)
            if odd := sorted(set(first) ^ set(own)):
                has, lacks = (self.domains[0], domain) if odd[0] in first else (domain, self.domains[0])
                raise UserError(f"{base / lacks} has no class folder {odd[0]!r}, which {has} has: classes must agree.")
        return tuple(first)

    def _listed(self, base: Path) -> tuple[Index, tuple[str, ...]]:
        """Names and labels from the lists, and the classes; a list may lack a class (DomainNet's painting does)."""
        index: Index = {}
        classes: dict[int, str] = {}
        for domain in self.domains:
            for part in ("train", "test"):
                path = base / self.lists / f"{domain}_{part}.txt"
                files.need(path, "a list of image files and labels", f"the layout is {self.layout}")
                names, y = index.setdefault(domain, {}).setdefault(part, ([], []))
                for where, name, label in _lines(path, base):
                    own = Path(name).parent.name
                    if classes.setdefault(label, own) != own:
                        raise UserError(f"{where}: label {label} is {own!r} here, but {classes[label]!r} before.")
                    names.append(name)
                    y.append(label)
        count = self.count or len(classes)
        if sorted(classes) != list(range(count)):
            low, high = min(classes, default=0), max(classes, default=0)
            raise UserError(
                f"The lists in {base / self.lists} name {len(classes)} labels from {low} to {high}, "
                f"expected {count} from 0 to {count - 1}."
            )
        return index, tuple(classes[label] for label in range(count))


def _lines(path: Path, base: Path) -> Iterator[tuple[str, str, int]]:
    """Where, name and label of every line of a list; every file it names must be there."""
    there: dict[Path, set[str]] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        where = f"{path}, line {number}"
        name, _, label = line.strip().rpartition(" ")
        if not label.isdecimal() or len(Path(name).parts) < 2:
            raise UserError(f"{where}: expected '<domain>/<class>/<file> <label>', not {line!r}.")
        folder = (base / name).parent
        if folder not in there:
            there[folder] = set(os.listdir(folder)) if folder.is_dir() else set()
        if Path(name).name not in there[folder]:
            raise UserError(f"There is no file {base / name}, which {where}, names.")
        yield where, name, int(label)


def _folders(base: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(base) if entry.is_dir() and not entry.name.startswith("."))


def _images(folder: Path) -> list[str]:
    images = sorted(n for n in os.listdir(folder) if n.lower().endswith(EXTENSIONS) and not n.startswith("."))
    if not images:
        raise UserError(f"Class folder {folder} holds no image: expected files such as *.jpg or *.png.")
    return images
