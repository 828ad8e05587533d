"""Images that stay on disk: decoded, augmented and stacked by worker processes while the network trains."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from kd3a.domains import Batch, Part, normalised
from kd3a.errors import UserError

AHEAD = 2  # batches that every worker may have ready: with the number of workers, the bound on memory
SKIP = "get the file again, or set KD3A_DAMAGED=skip to leave such images out and count them"


def workers() -> int:
    """Worker processes that decode: ``KD3A_WORKERS``, or all cores but one, at most 8. With 0, nothing is ahead."""
    text = os.environ.get("KD3A_WORKERS", "")
    if text and not text.isdecimal():
        raise UserError(f"KD3A_WORKERS = {text!r}: expected a number of processes, 0 or more.")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2
    return int(text) if text else max(1, min(8, cores - 1))


def decode(path: Path, size: int, rng: np.random.Generator | None = None) -> np.ndarray:
    """An image file as (3, size, size) uint8, red, green, blue; with ``rng``, a random crop of it, perhaps mirrored.

    Grey, palette and CMYK images become RGB, transparent ones lie on white, and whatever the shape, the image (or
    the crop) is resized to a square, as in the released code.
    """
    try:
        with Image.open(path) as image:
            image.draft(None, (2 * size, 2 * size))  # a JPEG much larger than needed is decoded at a fraction of it
            if image.has_transparency_data:
                image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
            image = image.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = str(error).replace(f" {str(path)!r}", "")
        raise UserError(f"{path} cannot be read as an image ({reason}): {SKIP}.") from None
    box = None if rng is None else crop(rng, *image.size)
    pixels = np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box)).transpose(2, 0, 1)
    return pixels[:, :, ::-1] if rng is not None and rng.random() < 0.5 else pixels


def crop(rng: np.random.Generator, width: int, height: int) -> tuple[int, int, int, int]:
    """A random box of 75 to 100 % of the area and sides between 3:4 and 4:3; the whole image when none fits."""
    for _ in range(10):
        area = width * height * rng.uniform(0.75, 1)
        ratio = math.exp(rng.uniform(-1, 1) * math.log(4 / 3))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if w <= width and h <= height:
            left, top = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            return left, top, left + w, top + h
    return 0, 0, width, height


class Reader(Dataset):
    """Whole batches by their rows: the pixels, and a sentence for every row that could not be read (left black)."""

    def __init__(self, part: StreamedPart, augment: bool):
        self.root, self.size, self.augment = part.root, part.size, augment
        self.names = part.x.cpu().numpy()  # one array, not a list of strings: workers then share it by fork

    def path(self, row: int) -> Path:
        return self.root / os.fsdecode(self.names[row].tobytes().rstrip(b"\0"))

    def __getitem__(self, rows: np.ndarray) -> tuple[np.ndarray, dict[int, str]]:
        pixels, problems = np.zeros((len(rows), 3, self.size, self.size), np.uint8), {}
        # the batch itself is the seed: the same order gives the same crops, whoever reads it and however it is cut
        seed = int.from_bytes(hashlib.blake2b(rows.tobytes(), digest_size=8).digest(), "big")
        rng = np.random.default_rng(seed) if self.augment else None
        for i, row in enumerate(rows):
            try:
                pixels[i] = decode(self.path(row), self.size, rng)
            except UserError as error:
                problems[int(row)] = str(error)
        return pixels, problems


def _as_it_is(batch):
    return batch  # NumPy arrays travel through a pipe: shared memory is short in many containers


@dataclass(frozen=True, kw_only=True)
class StreamedPart(Part):
    """A part whose ``x`` holds the names of image files below ``root`` as padded bytes, (N, L) uint8.

    ``batches`` is the training path: worker processes decode (and augment, if ``augment``) a few batches ahead.
    ``inputs`` is the scoring path: the plain images, decoded by threads when they are asked for. Both resize to
    ``size`` and give what a resident :class:`~kd3a.domains.Part` of the same images gives.
    """

    root: Path
    size: int = 224
    augment: bool = False

    @classmethod
    def of(cls, root: Path, names: list[str], y: list[int], **settings) -> Self:
        encoded = np.array([os.fsencode(name) for name in names], dtype=bytes)
        x = torch.from_numpy(encoded.view(np.uint8).reshape(len(names), -1).copy())
        return cls(x=x, y=torch.tensor(y, dtype=torch.int64), root=Path(root), **settings)

    def read(self, order: Iterable[Tensor], augment: bool = False) -> Iterator[tuple[Tensor, dict[int, str]]]:
        """uint8 pixels of every batch of ``order``, in its order, and what could not be read, by position."""
        rows = [np.asarray(index.cpu(), dtype=np.int64) for index in order]
        processes = min(workers(), len(rows))
        loader = DataLoader(
            Reader(self, augment),
            batch_size=None,
            sampler=rows,
            num_workers=processes,
            prefetch_factor=AHEAD if processes else None,
            collate_fn=_as_it_is,
            generator=torch.Generator(),  # the loader's own seed must not come from the run's random numbers
        )
        for pixels, problems in loader:
            yield torch.from_numpy(pixels), problems

    def batches(self, order: Iterable[Tensor]) -> Iterator[Batch]:
        order = list(order)
        for index, (pixels, problems) in zip(order, self.read(order, self.augment), strict=True):
            for sentence in problems.values():
                raise UserError(sentence)
            pixels = pixels.to(self.y.device, non_blocking=True)
            yield Batch(normalised(pixels, self.mean, self.std), self.y[index], index)

    def inputs(self, index: Tensor) -> Tensor:
        reader = Reader(replace(self, x=self.x[index]), augment=False)
        with ThreadPoolExecutor(max(1, workers())) as pool:
            images = list(pool.map(lambda row: decode(reader.path(row), self.size), range(len(index))))
        pixels = torch.from_numpy(np.stack(images)) if images else torch.empty(0, *self.shape, dtype=torch.uint8)
        return normalised(pixels.to(self.y.device), self.mean, self.std)

    @property
    def shape(self) -> tuple[int, ...]:
        return 3, self.size, self.size

    @property
    def nbytes(self) -> int:
        """Bytes of the decoded samples and labels: what a resident part counts, so that ledgers can be compared."""
        return len(self) * math.prod(self.shape) + self.y.nbytes

    @classmethod
    def pool(cls, parts: list[Self]) -> Self:
        """All samples of several parts in one; they must lie below the same root."""
        longest = max(part.x.shape[1] for part in parts)
        return super().pool([replace(part, x=F.pad(part.x, (0, longest - part.x.shape[1]))) for part in parts])
