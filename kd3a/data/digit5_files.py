"""The three ways in which Digit-5 lies on disk, and how its files are read and downloaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kd3a.data.files import damaged, missing, pick, read_idx, read_libsvm, read_mat, read_npz, root
from kd3a.errors import UserError

REAL = ("mt", "mm", "sv", "up")
PARTS = ("train", "test")
SYN_FILES = ("synth_train_32x32.mat", "synth_test_32x32.mat")
IDX = ("{}-images-idx3-ubyte", "{}-labels-idx1-ubyte")

LAYOUT = """Digit-5 is read from one of these, in DIR/digit5 or in DIR itself:

the classic release, Digit-Five of the authors of M3SDA (github.com/VisionLearningGroup/VisionLearningGroup.github.io)
  mnist_data.mat            train_32 55,000×32×32, test_32 10,000×32×32, label_train and label_test one-hot
  mnistm_with_label.mat     train 55,000×28×28×3, test 10,000×28×28×3, label_train and label_test one-hot
  svhn_train_32x32.mat      X 32×32×3×73,257, y 1 to 10 (182,040,794 bytes)
  svhn_test_32x32.mat       X 32×32×3×26,032, y 1 to 10 (64,275,384 bytes)
  usps_28x28.mat            dataset, a 2×2 cell: images 7,438×1×28×28 in [0, 1] and labels, then 1,860 for testing
  synth_train_32x32.mat     X 32×32×3×479,400, y (for digit5-syn; rendered if missing)
  synth_test_32x32.mat      X 32×32×3×9,553, y

torchvision's files (downloaded by this command where the network allows it)
  MNIST/raw/train-images-idx3-ubyte (47,040,016 bytes), train-labels-idx1-ubyte (60,008 bytes),
            t10k-images-idx3-ubyte (7,840,016 bytes), t10k-labels-idx1-ubyte (10,008 bytes)
  SVHN/train_32x32.mat (182,040,794 bytes), test_32x32.mat (64,275,384 bytes)
  USPS/usps.bz2 (7,291 images of 16×16), usps.t.bz2 (2,007 images)

one .npz per domain
  mt.npz, mm.npz, sv.npz, up.npz, each with x_train, y_train, x_test, y_test (uint8, 28×28 or 32×32, grey or RGB)
"""


class Raw(NamedTuple):
    """Images and labels as a file holds them, and the file's name for errors."""

    x: np.ndarray
    y: np.ndarray
    where: Path | str


Split = dict[str, Raw]  # "train" and "test"


def read_classic(base: Path, domain: str) -> Split:
    files = [base / name for name in CLASSIC.files[domain]]
    if domain in ("sv", "syn"):
        return {part: matlab_pair(path) for part, path in zip(PARTS, files, strict=True)}
    path, arrays = files[0], read_mat(files[0])
    if domain == "up":
        cell = pick(arrays, path, "dataset")
        if cell.shape != (2, 2) or cell.dtype != object:
            raise damaged(path, "the USPS release", ValueError(f"dataset is {cell.shape}, expected a 2×2 cell"))
        return {part: Raw(cell[i, 0], zero_for_ten(cell[i, 1]), path) for i, part in enumerate(PARTS)}
    return {
        part: Raw(pick(arrays, path, f"{part}_32", part, f"{part}_28"), pick(arrays, path, f"label_{part}"), path)
        for part in PARTS
    }


def matlab_pair(path: Path) -> Raw:
    arrays = read_mat(path)
    return Raw(pick(arrays, path, "X"), zero_for_ten(pick(arrays, path, "y")), path)


def zero_for_ten(y: np.ndarray) -> np.ndarray:
    """MATLAB counts from 1: the releases of SVHN, SYN and USPS call the digit 0 class 10."""
    return np.where(y == 10, 0, y)


def read_torchvision(base: Path, domain: str) -> Split:
    """As torchvision stores them; for mm, the MNIST digits that :func:`kd3a.data.digit5.mnist_m` blends."""
    files = [base / name for name in TORCHVISION.files[domain]]
    if domain == "sv":
        return {part: matlab_pair(path) for part, path in zip(PARTS, files, strict=True)}
    if domain == "up":  # grey levels in [-1, 1], the digit d has label d + 1
        pairs = {part: (*read_libsvm(path, 256), path) for part, path in zip(PARTS, files, strict=True)}
        return {part: Raw((x.reshape(-1, 16, 16) + 1) / 2, y - 1, path) for part, (x, y, path) in pairs.items()}
    pairs = zip(PARTS, files[::2], files[1::2], strict=True)
    return {part: Raw(read_idx(x), read_idx(y), f"{x} with {y.name}") for part, x, y in pairs}


def read_folder(base: Path, domain: str) -> Split:
    path = base / f"{domain}.npz"
    arrays = read_npz(path)
    return {part: Raw(pick(arrays, path, f"x_{part}"), pick(arrays, path, f"y_{part}"), path) for part in PARTS}


@dataclass(frozen=True, eq=False)
class Source:
    """One way in which the data can lie on disk."""

    title: str
    files: dict[str, tuple[str, ...]]
    read: Callable[[Path, str], Split]
    blends: bool = False  # mm is not in the files but built from mt's

    def paths(self, base: Path) -> list[Path]:
        """The files of the real domains."""
        return [base / name for domain in REAL for name in self.files[domain]]


CLASSIC = Source(
    "the classic .mat release",
    {
        "mt": ("mnist_data.mat",),
        "mm": ("mnistm_with_label.mat",),
        "sv": ("svhn_train_32x32.mat", "svhn_test_32x32.mat"),
        "syn": SYN_FILES,
        "up": ("usps_28x28.mat",),
    },
    read_classic,
)
MNIST = tuple(f"MNIST/raw/{name}".format(part) for part in ("train", "t10k") for name in IDX)
TORCHVISION = Source(
    "torchvision's files, with MNIST-M built by its recipe",
    {
        "mt": MNIST,
        "mm": MNIST,
        "sv": ("SVHN/train_32x32.mat", "SVHN/test_32x32.mat"),
        "up": ("USPS/usps.bz2", "USPS/usps.t.bz2"),
    },
    read_torchvision,
    blends=True,
)
FOLDER = Source("one .npz per domain", {domain: (f"{domain}.npz",) for domain in REAL}, read_folder)
SOURCES = (CLASSIC, TORCHVISION, FOLDER)


def find(data: Path | None) -> tuple[Source, Path]:
    """The first source that has every file of the real domains, and its folder."""
    folder = root(data)
    places = [(source, base) for base in (folder / "digit5", folder) for source in SOURCES]
    absent = {place: [p for p in place[0].paths(place[1]) if not os.path.isfile(p)] for place in places}
    for place, files in absent.items():
        if not files:
            return place
    source, base = max(places, key=lambda place: len(place[0].paths(place[1])) - len(absent[place]))
    if len(absent[source, base]) == len(source.paths(base)):  # nothing at all
        source, base = FOLDER, folder / "digit5"
    what = f"a part of Digit-5 as {source.title}"
    raise missing(absent[source, base][0], what, "'kd3a data prepare digit5' lists all files")


def find_syn(data: Path | None) -> Path | None:
    """The folder of the original Synthetic Digits, if they are there."""
    for base in (root(data) / "digit5", root(data)):
        if all(os.path.isfile(base / name) for name in SYN_FILES):
            return base
    return None


def download(base: Path, say: Callable[[str], None]) -> None:
    """MNIST, SVHN and USPS by torchvision, each file checked by its MD5."""
    try:
        from kd3a._torchvision import torchvision
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"torchvision cannot be imported here ({error}): put the files of one list by hand into {base}."
        ) from None
    datasets = torchvision.datasets
    for name, make in {
        "MNIST": lambda train: datasets.MNIST(base, train=train, download=True),
        "SVHN": lambda train: datasets.SVHN(base / "SVHN", "train" if train else "test", download=True),
        "USPS": lambda train: datasets.USPS(base / "USPS", train=train, download=True),
    }.items():
        say(f"Fetching {name} into {base}.")
        try:
            (base / name).mkdir(parents=True, exist_ok=True)
            for train in (True, False):
                make(train)
        except (OSError, RuntimeError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise UserError(
                f"{name} could not be downloaded into {base} ({reason}): run this again when the network is there, "
                "or put the files there by hand."
            ) from None
