"""Figures of the tutorial's first chapters, in the style of :mod:`kd3a.plots`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from kd3a.channel import PRIVATE
from kd3a.domains import Domain
from kd3a.plots import BLUE, FAINT, GREY, INK, MARKERS, ORANGE, PALETTE, WIDTH, as_image, bare, canvas, heatmap, styled


@styled
def one_class(domains: Mapping[str, Domain], label: int, count: int = 10) -> Figure:
    """Several samples of one class, a row per domain: what varies inside a domain, and what between them."""
    rows = []
    for domain in domains.values():
        at = (domain.train.y == label).nonzero()[:count, 0]
        rows.append(np.concatenate([as_image(x) for x in domain.train.x[at]], axis=1))
    sheet = np.concatenate(rows, axis=0)
    high = sheet.shape[0] // len(rows)
    figure, ax = canvas(0.1 + 4.1 * sheet.shape[0] / sheet.shape[1])
    ax.imshow(sheet, interpolation="nearest")
    ax.set_yticks([row * high + high / 2 for row in range(len(rows))], list(domains))
    ax.set_xticks([])
    bare(ax)
    return figure


@styled
def distance_matrix(distance: pd.DataFrame) -> Figure:
    """Proxy A-distances between domains: 0 if nobody can tell two apart, 2 if everybody can."""
    figure, ax = canvas(0.9 + 0.42 * len(distance))
    heatmap(ax, distance, ".1f", "cividis_r", 2, "proxy A-distance")
    return figure


@styled
def distance_against_loss(pairs: pd.DataFrame) -> Figure:
    """For ordered pairs of domains, the distance and the accuracy lost; see :func:`kd3a.shift.pairs`."""
    figure, ax = canvas(2.8)
    for k, (target, mine) in enumerate(pairs.groupby("target", sort=False)):
        ax.plot(mine["distance"], 100 * mine["loss"], ls="", marker=MARKERS[k % 8], ms=6, color=PALETTE[k],
                label=f"to {target}")  # fmt: skip
    ax.set(
        xlabel="proxy A-distance of the two domains", ylabel="accuracy lost\non the way (points)", xlim=(-0.05, 2.08)
    )
    figure.legend(loc="outside right center", handletextpad=0.3)
    return figure


@styled
def wire(crossed: pd.DataFrame) -> Figure:
    """What crossed between houses: a bar per run, in pieces by kind; see :func:`kd3a.shift.crossed`."""
    private = [kind for kind in crossed.columns if kind in PRIVATE]
    warm, cool = iter((ORANGE, "#8c3b00", "#ecb27a")), iter((BLUE, "#8fc3e8", GREY, "#3f3f3f"))
    figure, ax = canvas(1.2 + 0.33 * len(crossed))
    left = np.zeros(len(crossed))
    for kind in crossed.columns:
        mega = crossed[kind].to_numpy() / 1e6
        colour = next(warm if kind in private else cool)
        words = kind.replace("_", " ") + (" (private)" if kind in private else "")
        ax.barh(crossed.index, mega, left=left, color=colour, label=words, height=0.7)
        left += mega
    for row, total in enumerate(left):
        ax.text(total + 0.01 * left.max(), row, f"{total:.1f}", va="center", fontsize=9.5)
    ax.invert_yaxis()
    ax.set(xlabel="megabytes that crossed", xlim=(0, 1.12 * left.max()))
    ax.grid(axis="y", visible=False)
    figure.legend(loc="outside upper center", ncols=3, columnspacing=1.2, handletextpad=0.5)
    return figure


@styled
def soft_labels(image: Tensor, labels: Mapping[str, Tensor], classes: Sequence[str]) -> Figure:
    """An image (3, H, W) and several distributions over its classes, one panel each, on one scale."""
    figure = Figure(figsize=(WIDTH, 0.5 + 0.95 * len(labels)), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1, 3))
    ax = left.subplots()
    ax.imshow(as_image(image), interpolation="nearest")
    ax.set(xticks=[], yticks=[])
    bare(ax)
    axes = right.subplots(len(labels), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for ax, (title, p) in zip(axes, labels.items(), strict=True):
        ax.bar(range(len(classes)), (100 * p).tolist(), color=BLUE, width=0.75)
        ax.set_title(title, loc="left")
        ax.set(xticks=range(len(classes)), xticklabels=classes)
        ax.grid(axis="x", visible=False)
    right.supylabel("probability (%)", fontsize=10)
    axes[-1].set_xlabel("class")
    return figure


@styled
def pinsker(divergence: Tensor, deviation: Tensor) -> Figure:
    r"""Samples' largest deviation against their KL divergence, below the curve :math:`\sqrt{\mathrm{KL} / 2}`."""
    figure, ax = canvas(2.7)
    ax.plot(divergence, deviation, ls="", marker="o", ms=3, alpha=0.5, color=BLUE, label="image", rasterized=True)
    at = np.linspace(0, max(float(divergence.max()), 0.1), 200)
    ax.plot(at, np.sqrt(at / 2), color=ORANGE, label=r"$\sqrt{\mathrm{KL} / 2}$")
    ax.set(xlabel="KL divergence (nats)", ylabel="largest deviation of a class", ylim=(0, 1.05))
    ax.set_xlim(0, min(float(divergence.max()), 3.0) * 1.02)
    figure.legend(loc="outside upper center", ncols=2)
    return figure


@styled
def grouped_bars(values: pd.DataFrame, label: str, form: str = "%.2f") -> Figure:
    """A group of bars per row, a colour per column; ``label`` names the axis of values."""
    figure, ax = canvas(2.8)
    small = 9 if values.size <= 10 else 8  # points, of the numbers above bars
    wide = 0.8 / len(values.columns)
    for i, title in enumerate(values.columns):
        at = np.arange(len(values)) + (i - (len(values.columns) - 1) / 2) * wide
        bars = ax.bar(at, values[title], wide * 0.92, color=PALETTE[i], label=title)
        ax.bar_label(bars, fmt=form, padding=2, fontsize=small)
    ax.set(ylabel=label, xticks=range(len(values)), xticklabels=values.index)
    ax.margins(y=0.15)
    ax.grid(axis="x", visible=False)
    if len(values.columns) > 1:
        figure.legend(loc="outside upper center", ncols=min(3, len(values.columns)))
    return figure


@styled
def lines(values: pd.DataFrame, across: str, label: str, mark: float | None = None) -> Figure:
    """A line per column over the index; ``mark`` draws a vertical line at one place of it."""
    figure, ax = canvas(2.7)
    for k, title in enumerate(values.columns):
        ax.plot(values.index, values[title], color=PALETTE[k], marker=MARKERS[k % 8], ms=4.5, label=title)
    if mark is not None:
        ax.axvline(mark, color=INK, lw=1, ls=":")
    ax.set(xlabel=across, ylabel=label)
    ax.set_ylim(bottom=min(0, float(np.nanmin(values.to_numpy()))))
    figure.legend(loc="outside upper center", ncols=2 if max(map(len, map(str, values.columns))) > 14 else 4)
    return figure


@styled
def reliability(q: Tensor, y: Tensor, names: Sequence[str], edges: Sequence[float]) -> Figure:
    """How often a teacher is right among the samples on which it is so confident; on the diagonal it keeps its word.

    Args:
        q: probabilities, (N, K, C); ``y``: labels, (N,); ``edges``: of the bins of confidence.
    """
    confidence, choice = q.max(-1)
    right = (choice == y[:, None]).double()
    figure, ax = canvas(3.0)
    ax.plot([0, 100], [0, 100], color=FAINT, lw=1.4, ls="--")
    for k, name in enumerate(names):
        bins = torch.bucketize(confidence[:, k].contiguous(), torch.tensor(edges, dtype=q.dtype)[1:-1])
        members = [bins == b for b in range(len(edges) - 1)]
        points = [(100 * confidence[m, k].mean(), 100 * right[m, k].mean()) for m in members if m.sum() >= 5]
        if points:
            ax.plot(*zip(*points, strict=True), color=PALETTE[k], marker=MARKERS[k % 8], ms=4.5, label=name)
    ax.set(xlabel="confidence (%)", ylabel="right (%)", xlim=(10, 102), ylim=(0, 102))
    figure.legend(loc="outside upper center", ncols=4)
    return figure


@styled
def coalitions(quality: Mapping[tuple[int, ...], float], names: Sequence[str]) -> Figure:
    """The quality of every coalition: on the left who is in it, on the right a bar."""
    rows = sorted(quality, key=lambda c: (len(c), c))
    figure, (left, right) = canvas(0.7 + 0.21 * len(rows), 1, 2, sharey=True, width_ratios=(1, 1.6))
    for row, coalition in enumerate(rows):
        for k in range(len(names)):
            inside = k in coalition
            left.plot(k, row, marker="o", ms=7, color=PALETTE[k] if inside else FAINT, mfc=None if inside else "none")
    left.set_xticks(range(len(names)), names, rotation=35, ha="right", rotation_mode="anchor")
    left.set(xlim=(-0.6, len(names) - 0.4), yticks=[])
    bare(left)
    bars = right.barh(range(len(rows)), [quality[c] for c in rows], color=BLUE, height=0.7)
    right.bar_label(bars, fmt="%.0f", padding=2, fontsize=9)
    right.set(xlabel="consensus quality Q")
    right.margins(x=0.15)
    right.grid(axis="y", visible=False)
    right.tick_params(axis="y", length=0)
    right.invert_yaxis()
    return figure
