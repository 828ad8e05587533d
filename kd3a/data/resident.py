"""From files to parts: their hash, their pixels in memory, and what to do with damaged ones."""

from __future__ import annotations

import hashlib
import os
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import __version__ as pillow
from torch import Tensor

from kd3a.data import files
from kd3a.data.streamed import StreamedPart
from kd3a.domains import Part
from kd3a.errors import UserError, choose

RECIPE = "images 1"  # raise the number with every change of the decoding, so that old caches are left behind
CHUNK = 64  # images that are decoded at a time


def skips() -> bool:
    """Whether damaged images are left out and counted (``KD3A_DAMAGED=skip``) instead of stopping the load."""
    return choose("value of KD3A_DAMAGED:", os.environ.get("KD3A_DAMAGED") or "stop", ("stop", "skip")) == "skip"


def digest(part: StreamedPart, names: list[str], whole: bool) -> str:
    """SHA-256 over names, labels and the files' bytes (``whole``) or sizes."""
    sha = hashlib.sha256()
    for name, label in zip(names, part.y.tolist(), strict=True):
        path = Path(part.root, name)
        content = hashlib.sha256(path.read_bytes()).hexdigest() if whole else path.stat().st_size
        sha.update(os.fsencode(f"{name} {label} {content}\n"))
    return sha.hexdigest()


def chunks(part: Part) -> list[Tensor]:
    return list(torch.arange(len(part)).split(CHUNK))


def hold(part: StreamedPart, label: str, content: str) -> Part:
    """The part as uint8 tensors in memory, from the cache or decoded now; damaged images stop it or are left out."""

    def make() -> files.Arrays:
        pixels, bad = torch.empty(len(part), *part.shape, dtype=torch.uint8), set()
        for rows, (images, problems) in zip(chunks(part), part.read(chunks(part)), strict=True):
            if problems and not skips():
                raise UserError(next(iter(problems.values())))
            pixels[rows] = images
            bad |= set(problems)
        rows = np.array([row for row in range(len(part)) if row not in bad], dtype=np.int64)
        return {"rows": rows, "x": pixels.numpy()[rows] if bad else pixels.numpy()}

    arrays = files.cached(f"images-{label}", f"{RECIPE} {content} {part.size} {pillow}", make)
    if len(arrays["rows"]) < len(part) and not skips():
        make()  # cached when damaged images were left out: say now which they are
    tell(label, len(part) - len(arrays["rows"]))
    return Part(torch.from_numpy(arrays["x"]), part.y[torch.from_numpy(arrays["rows"])], part.mean, part.std)


def readable(part: StreamedPart, label: str, content: str) -> StreamedPart:
    """The part on disk; to leave damaged images out, all files are read through once, and the outcome is cached."""
    if not skips():
        return part

    def make() -> files.Arrays:
        small = replace(part, size=16)  # a JPEG is then read to its end, but not computed in full
        bad = {row for _, problems in small.read(chunks(part)) for row in problems}
        return {"rows": np.array([row for row in range(len(part)) if row not in bad], dtype=np.int64)}

    rows = torch.from_numpy(files.cached(f"readable-{label}", f"{RECIPE} {content} {pillow}", make)["rows"])
    tell(label, len(part) - len(rows))
    return replace(part, x=part.x[rows], y=part.y[rows])


def tell(label: str, images: int) -> None:
    if images:
        warnings.warn(f"{label}: {images} damaged images are left out (KD3A_DAMAGED=skip).", stacklevel=2)


def stratified(y: Tensor, share: float = 0.2) -> tuple[Tensor, Tensor]:
    """Positions of two disjoint parts; the second holds ``share`` of every class, of two images one at least.

    >>> [part.tolist() for part in stratified(torch.tensor([0] * 5 + [1] * 2))]
    [[0, 1, 3, 4, 6], [2, 5]]
    """
    rng = np.random.default_rng(0)
    test = torch.zeros(len(y), dtype=torch.bool)
    for label in y.unique().tolist():
        rows = rng.permutation(np.flatnonzero(y.numpy() == label))
        test[rows[: max(1, round(share * len(rows))) if len(rows) > 1 else 0]] = True
    return (~test).nonzero().flatten(), test.nonzero().flatten()
