"""The data of the book's two explorers, as HTML that ``book/_static/explorers.js`` brings to life.

The script has its own Knowledge Vote and Consensus Focus; a test holds them against :mod:`kd3a.consensus`. Without the
script, in a notebook, a sentence says where the explorer works.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from kd3a.errors import UserError


class Explorer:
    """An explorer on a page: its kind and the data it works on."""

    def __init__(self, kind: str, data: Mapping[str, Any]):
        self.kind, self.data = kind, data

    def _repr_html_(self) -> str:
        text = json.dumps(self.data, separators=(",", ":")).replace("</", "<\\/")
        return (
            f'<div class="kd3a-explorer" data-explorer="{self.kind}">'
            f'<script type="application/json">{text}</script>'
            "<p>An interactive part of the book's page; it needs JavaScript.</p></div>"
        )

    def __repr__(self) -> str:
        return f"Explorer({self.kind})"


def thousandths(q: Tensor) -> list:
    """Probabilities as integers in thousandths: short in a page, and exact enough to look at."""
    return (1000 * q).round().int().tolist()


def picture(x: Tensor) -> str:
    """An image (3, H, W) uint8 as the text of a PNG that a page can hold."""
    buffer = io.BytesIO()
    Image.fromarray(x.permute(1, 2, 0).cpu().numpy()).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def vote_explorer(
    x: Tensor, y: Tensor, q: Tensor, shown: Sequence[int], gate: float, names: Sequence[str], classes: Sequence[str]
) -> Explorer:
    """Move the gate, see who survives and what the consensus becomes.

    Args:
        x, y: images, (N, 3, H, W) uint8, and labels, for scoring, (N,).
        q: the teachers' probabilities, (N, K, C).
        shown: positions of the samples that can be looked at one by one.
        gate: where the slider begins.
    """
    pictures = [{"row": int(row), "src": picture(x[row])} for row in shown]
    data = {"names": list(names), "classes": list(classes), "gate": round(gate, 2), "q": thousandths(q)}
    return Explorer("vote", data | {"truth": y.tolist(), "images": pictures})


def focus_explorer(
    q: Tensor,
    y: Tensor,
    rates: Sequence[float],
    gate: float,
    names: Sequence[str],
    sizes: Sequence[int],
    target_size: int,
    start: Sequence[int] | None = None,
) -> Explorer:
    """Poison one source or several, see qualities, values and weights change.

    Args:
        q: probabilities of every source's model at every rate of wrong labels, (K, R, N, C).
        y: labels, for scoring, (N,).
        rates: the R rates, the first of them 0; ``start``: which of them each source begins with.
    """
    if q.ndim != 4 or q.shape[:2] != (len(names), len(rates)):
        raise UserError(f"q must have shape (K, R, N, C) with K = {len(names)} and R = {len(rates)}, not {q.shape}.")
    right = (q.argmax(-1) == y).double().mean(-1)  # (K, R)
    data = {"names": list(names), "rates": list(rates), "gate": round(gate, 2), "sizes": list(sizes)}
    data |= {"targetSize": target_size, "start": list(start or [0] * len(names)), "q": thousandths(q)}
    return Explorer("focus", data | {"accuracy": torch.round(right, decimals=3).tolist()})
