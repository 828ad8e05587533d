"""Amazon Review: is a review of books, DVDs, electronics or kitchen ware positive or negative?

``amazon.npz`` as MDAN laid it out: one sparse matrix of all reviews in coordinates, stored transposed (features ×
reviews). A value is how often a word or a pair of words occurs in the review; the first 5,000 features are used, not
scaled, as in the released KD3A code. Per domain, 2,000 reviews train and the rest test, after one seeded shuffle that
is the same for every target.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from kd3a.data.files import Arrays, digest, need, pick, read_npz, root
from kd3a.domains import Domain, SparsePart
from kd3a.errors import UserError, listing

if TYPE_CHECKING:
    from scipy.sparse import csr_array

DOMAINS = ("books", "dvd", "electronics", "kitchen")
CLASSES = ("negative", "positive")
FEATURES = 5000
TRAIN = 2000  # reviews of every domain; the others test
KEYS = ("xx_data", "xx_row", "xx_col", "xx_shape", "yy", "offset")
WHAT = f"Amazon Review in MDAN's layout, one .npz with {listing(KEYS)}"
HOW = "it comes with the code of MDAN (github.com/hanzhaoml/MDAN)"


def load(data: Path | None = None) -> tuple[dict[str, Domain], str]:
    """The four domains and the hash of their arrays."""
    path = find(data)
    x, y, borders = check(path, read_npz(path))
    domains = {}
    for i, name in enumerate(DOMAINS):
        rows = borders[i] + np.random.default_rng([2021, i]).permutation(borders[i + 1] - borders[i])
        train, test = (pack(x[part], y[part]) for part in (rows[:TRAIN], rows[TRAIN:]))
        domains[name] = Domain(name, train, test)
    return domains, digest(domains)


def find(data: Path | None) -> Path:
    return need(root(data) / "amazon.npz", WHAT, HOW)


def check(path: Path, arrays: Arrays) -> tuple[csr_array, np.ndarray, np.ndarray]:
    """Reviews × features, labels in {0, 1} and the borders of the domains; an error names what does not fit."""
    from scipy.sparse import csr_array

    values, feature, review, shape, y, borders = (pick(arrays, path, key).ravel() for key in KEYS)
    reviews = len(y)
    if len(odd := y[~np.isin(y, (-1, 1))]):
        raise UserError(f"{path}: yy holds the label {odd[0]}, expected -1 or 1.")
    if len(borders) != 5 or borders[0] != 0 or borders[-1] != reviews or (np.diff(borders) <= TRAIN).any():
        raise UserError(
            f"{path}: offset is {borders.tolist()}, expected five borders from 0 to {reviews}, "
            f"more than {TRAIN:,} reviews apart."
        )
    sizes = tuple(shape.tolist())
    if len(sizes) != 2 or sizes[0] < FEATURES or sizes[1] != reviews:
        raise UserError(f"{path}: xx_shape is {sizes}, expected at least {FEATURES:,} features × {reviews:,} reviews.")
    try:
        x = csr_array((values.astype(np.float32), (review, feature)), shape=sizes[::-1])[:, :FEATURES]
    except (ValueError, TypeError) as error:
        raise UserError(f"{path}: xx_data, xx_row and xx_col do not fit together ({error}).") from None
    if not np.isfinite(x.data).all():
        raise UserError(f"{path}: xx_data holds values that are not finite.")
    return x, (y > 0).astype(np.int64), borders


def pack(x: csr_array, y: np.ndarray) -> SparsePart:
    """A sparse part of equally long rows, padded with zeros."""
    counts = np.diff(x.indptr)
    filled = np.arange(max(1, counts.max(initial=0))) < counts[:, None]  # (N, M)
    columns, values = np.zeros(filled.shape, np.int16), np.zeros(filled.shape, np.float32)
    columns[filled], values[filled] = x.indices, x.data
    return SparsePart(*map(torch.from_numpy, (values, y)), columns=torch.from_numpy(columns), width=FEATURES)


def available(data: Path | None = None) -> str:
    """What is there, or what is missing, in one sentence."""
    try:
        return f"Amazon Review lies in {find(data)}."
    except UserError as error:
        return str(error)


def describe(domains: dict[str, Domain]) -> str:
    """The sparsity of the reviews, in place of a picture."""
    parts = [part for domain in domains.values() for part in (domain.train, domain.test)]
    counts = torch.cat([part.x.count_nonzero(1) for part in parts]).double()
    largest = max(part.x.max().item() for part in parts)
    return (
        f"A review holds {counts.mean():.0f} of {FEATURES:,} features on average ({counts.mean() / FEATURES:.1%}), "
        f"at most {int(counts.max()):,}; a value is a count, the largest is {largest:g}."
    )
