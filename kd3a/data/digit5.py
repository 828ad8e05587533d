"""Digit-5: MNIST (mt), MNIST-M (mm), SVHN (sv), Synthetic Digits (syn) and USPS (up), 32×32 RGB.

Two datasets. ``digit5`` holds the four real domains. ``digit5-syn`` adds ``syn``: the original files where they are
there; otherwise as many images as mt has, rendered by the recipe of the built-in digits' ``synth`` (its settings were
fixed before any adaptation result was seen), which is *not* the paper's SYN. Which of the two it is enters the hash.

The real domains come from the first of these that is complete, in ``DIR/digit5`` or in ``DIR``: the classic ``.mat``
release, torchvision's files (MNIST-M is then built by its recipe, SYN rendered), or one ``.npz`` per domain.

Protocol: at most 25,000 train and 9,000 test images per domain, all of USPS. Which ones is drawn once for all targets;
the test part is the first 9,000, as in the released code. Smaller images are enlarged bilinearly without antialiasing,
which is what Pillow's Resize(32) computes, up to its rounding; all weights are multiples of 1/16, so it is exact.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from kd3a.data import digits
from kd3a.data.digit5_files import CLASSIC, LAYOUT, REAL, Raw, Split, download, find, find_syn
from kd3a.data.files import Arrays, cached, digest, domain, root
from kd3a.domains import Domain
from kd3a.errors import UserError

DOMAINS = ("mt", "mm", "sv", "syn", "up")
CLASSES = tuple("0123456789")
LIMITS = {"train": 25_000, "test": 9_000}
SIZE = 32


def labels(raw: Raw) -> np.ndarray:
    """The digit of every sample, from one-hot rows or from numbers."""
    y = np.asarray(raw.y)
    if y.ndim == 2 and y.shape[1] == len(CLASSES) and (y.astype(bool).sum(1) == 1).all():
        return y.argmax(1)
    y = y.ravel()
    if len(odd := y[~np.isin(y, range(len(CLASSES)))]):
        raise UserError(f"{raw.where} holds the label {odd[0]}, expected the digits 0 to 9 or one-hot rows.")
    return y.astype(np.int64)


def images(raw: Raw, count: int) -> np.ndarray:
    """(count, channels, side, side), whatever the order of the axes; values as they are."""
    x = np.asarray(raw.x)
    if x.ndim == 2 and x.shape[0] == count:  # flat rows
        side = round(x.shape[1] ** 0.5)
        x = x.reshape(count, side, side) if side**2 == x.shape[1] else x
    if x.ndim == 3:
        x = x[..., None] if x.shape[0] == count else x[:, :, None]
    for batch, channel in ((0, 3), (0, 1), (3, 2)):  # NHWC, NCHW, and MATLAB's HWCN
        if x.ndim == 4 and 0 < x.shape[batch] == count and x.shape[channel] in (1, 3) and x.dtype.kind in "uif":
            ordered = np.moveaxis(x, (batch, channel), (0, 1))
            if ordered.shape[2] == ordered.shape[3] <= SIZE:
                return ordered
    raise UserError(
        f"{raw.where} holds images of shape {tuple(np.shape(raw.x))} for {count} labels, "
        f"expected grey or RGB images up to {SIZE}×{SIZE}."
    )


def levels(x: np.ndarray, where: Path | str) -> np.ndarray:
    """uint8 grey levels; numbers in [0, 1] are shares of 255."""
    if x.dtype == np.uint8:
        return x
    if not np.isfinite(x).all() or x.min(initial=0) < 0 or x.max(initial=0) > 255:
        raise UserError(f"{where} holds pixels outside 0 to 255.")
    return digits.pixels(x * 255 if x.dtype.kind == "f" and x.max(initial=0) <= 1 else x)


def enlarge(x: np.ndarray) -> np.ndarray:
    """(N, 1 or 3, side, side) to (N, 3, 32, 32), bilinear as Pillow does it, rounded once at the end."""
    if x.shape[-1] != SIZE:
        blocks = torch.from_numpy(np.ascontiguousarray(x)).split(1000)  # floats of a block at a time
        grown = (F.interpolate(b.float(), (SIZE, SIZE), mode="bilinear", antialias=False) for b in blocks)
        x = torch.cat([g.round_().to(torch.uint8) for g in grown]).numpy()
    return np.repeat(x, 3, axis=1) if x.shape[1] == 1 else np.ascontiguousarray(x)


def prepared(split: Split, domain: str, last: bool = False) -> Arrays:
    """The arrays of a domain: its samples of the protocol, as 32×32 RGB. ``last`` takes them from the draw's end."""
    out = {}
    for part, raw in split.items():
        y = labels(raw)
        x = images(raw, len(y))
        rows = np.arange(min(len(y), LIMITS[part]))
        if part == "train" and len(y) > LIMITS[part]:
            order = np.random.default_rng([2021, DOMAINS.index(domain)]).permutation(len(y))
            rows = np.sort(order[-LIMITS[part] :] if last else order[: LIMITS[part]])
        out[f"x_{part}"], out[f"y_{part}"] = enlarge(levels(x[rows], raw.where)), y[rows]
    return out


def mnist_m(plain: Arrays) -> Arrays:
    """MNIST digits blended with patches of photographs, as the built-in ``mnist_m`` is; kept in the cache."""
    told = repr((digits.made_by(), hashlib.sha256(plain["x_train"].tobytes() + plain["x_test"].tobytes()).hexdigest()))

    def blend() -> Arrays:
        streams = {part: digits.stream("mnist_m", i) for i, part in enumerate(LIMITS)}
        return {f"x_{part}": digits.blend(plain[f"x_{part}"], rng) for part, rng in streams.items()}

    return plain | cached("mnist-m", told, blend)


def rendered(sizes: dict[str, int]) -> Arrays:
    """``syn`` by the recipe of the built-in ``synth``; kept in the cache."""
    return cached("syn", repr((digits.made_by(), sizes)), lambda: digits.rendered("synth", digits.synth_image, sizes))


# --- the two datasets ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Digit5:
    """``digit5`` or ``digit5-syn``: the same files, without and with Synthetic Digits."""

    DOMAINS: tuple[str, ...]
    CLASSES: tuple[str, ...] = CLASSES

    def load(self, data: Path | None = None) -> tuple[dict[str, Domain], str]:
        """The domains and the hash of their arrays."""
        source, base = find(data)
        arrays: dict[str, Arrays] = {}
        for name in REAL:
            blended = source.blends and name == "mm"  # from other digits than mt's, where there are enough
            arrays[name] = prepared(source.read(base, name), "mt" if blended else name, last=blended)
            if blended:
                arrays[name] = mnist_m(arrays[name])
        note = ""
        if "syn" in self.DOMAINS:
            syn = find_syn(data)
            note = "syn: original" if syn else "syn: re-rendered"
            sizes = {part: len(arrays["mt"][f"y_{part}"]) for part in LIMITS}
            arrays["syn"] = prepared(CLASSIC.read(syn, "syn"), "syn") if syn else rendered(sizes)
        domains = {name: domain(name, arrays[name]) for name in self.DOMAINS}
        return domains, digest(domains, note)

    def available(self, data: Path | None = None) -> str:
        """What is there, or what is missing, in one sentence."""
        try:
            source, base = find(data)
            sentence = f"The real domains lie in {base} as {source.title}"
            if "syn" not in self.DOMAINS:
                return f"{sentence}."
            return f"{sentence}; syn is {'the original' if find_syn(data) else 're-rendered, not the original'}."
        except UserError as error:
            return str(error)

    def prepare(self, data: Path | None, say: Callable[[str], None] = print) -> None:
        """Say which files are expected, download those that torchvision can, and fill the cache.

        What is complete is not fetched again, so an interrupted download goes on with the file it was at.
        """
        folder = root(data)
        try:
            find(data)
        except UserError:
            say(LAYOUT)
            download(folder / "digit5", say)
        say(self.available(data))
        self.load(data)


FOUR = Digit5(REAL)
FIVE = Digit5(DOMAINS)
