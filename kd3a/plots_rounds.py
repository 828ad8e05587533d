"""Figures of the tutorial's later chapters: statistics that move, a vote over rounds, borders of rounds, leaked images.

The style and :func:`kd3a.plots.save` are those of :mod:`kd3a.plots`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from kd3a import batchnorm
from kd3a.consensus import knowledge_vote
from kd3a.plots import BLUE, FAINT, GREY, INK, MARKERS, ORANGE, PALETTE, RED, canvas, legend_right, styled
from kd3a.trainer import timeline

# --- BatchNorm MMD ----------------------------------------------------------------------------------------------------


@styled
def moving_statistics(
    means: Tensor, variances: Tensor, alpha: Tensor, path: Tensor, losses: Sequence[float], names: Sequence[str]
) -> Figure:
    """A descent on the BatchNorm-MMD loss beside the closed form, for one channel and for the objective of its layer.

    Args:
        means, variances: of the channel in the K + 1 models, (K + 1,); ``alpha`` their weights.
        path: the channel's mean and variance after every step, (steps, 2).
        losses: the objective at every step; the last one belongs to the closed form.
    """
    mean, variance = batchnorm.closed_form(means, variances, alpha)
    plain = (alpha.to(variances) * variances).sum()
    figure, (plane, fall) = canvas(3.5, 1, 2, width_ratios=(1.25, 1))
    for k, name in enumerate(names):
        plane.plot(means[k], variances[k].sqrt(), ls="", marker=MARKERS[k % 8], ms=6, color=PALETTE[k], label=name)
    plane.plot(path[:, 0], path[:, 1].sqrt(), color=INK, lw=1.2, marker=".", ms=3, label="descent on the loss")
    plane.plot(mean, plain.sqrt(), ls="", marker="x", ms=8, mew=2, color=RED, label="variances averaged")
    plane.plot(mean, variance.sqrt(), ls="", marker="+", ms=12, mew=2.4, color=INK, label="closed form")
    plane.set(xlabel="mean", ylabel="standard deviation")
    plane.margins(0.12)
    *steps, floor = losses
    fall.plot(range(len(steps)), steps, color=INK)
    fall.axhline(floor, color=INK, ls=(0, (1.2, 1)), lw=1.6)
    fall.annotate("closed form", (len(steps) - 1, floor), (0, 4), textcoords="offset points", ha="right", fontsize=9.5)
    fall.set(xlabel="step", ylabel="objective of the layer")
    figure.legend(loc="outside upper center", ncols=3, columnspacing=1.2, handletextpad=0.4)
    return figure


def prediction_shares(q: Tensor) -> Tensor:
    """How each teacher spreads its first choices over the classes, (K, C) from q (N, K, C); rows sum to one.

    >>> prediction_shares(torch.tensor([[[0.9, 0.1]], [[0.2, 0.8]], [[0.7, 0.3]], [[0.6, 0.4]]])).tolist()
    [[0.75, 0.25]]
    """
    return torch.nn.functional.one_hot(q.argmax(-1), q.shape[2]).double().mean(0)


@styled
def first_choices(situations: Mapping[str, Tensor], names: Sequence[str], classes: Sequence[str]) -> Figure:
    """Which classes the teachers name, in percent of the target's images: a panel per situation, q as (N, K, C)."""
    figure, axes = canvas(0.7 + len(situations) * (0.45 + 0.27 * len(names)), len(situations), 1, squeeze=False)
    for ax, (title, q) in zip(axes[:, 0], situations.items(), strict=True):
        shares = 100 * prediction_shares(q).numpy()
        image = ax.imshow(shares, cmap="cividis", vmin=0, vmax=100, aspect="auto")
        for (row, column), share in np.ndenumerate(shares):
            ax.text(column, row, f"{share:.0f}", ha="center", va="center", fontsize=9, color=_ink(share))
        ax.set_title(title, fontweight="bold", loc="left")
        ax.set_yticks(range(len(names)), names)
        ax.set_xticks(range(len(classes)), classes)
        ax.grid(False)
        ax.tick_params(length=0)
    axes[-1, 0].set_xlabel("first choice")
    figure.colorbar(image, ax=axes[:, 0], label="target images (%)", shrink=0.8)
    return figure


def _ink(share: float) -> str:
    """A colour that can be read on cividis at this percentage."""
    return INK if share > 55 else "white"


# --- a run ------------------------------------------------------------------------------------------------------------


def vote_summary(q: Tensor, gate: float, y: Tensor) -> dict[str, float]:
    """How right the teachers and their consensus are, and how many images each number of supporters has.

    Args:
        q: the teachers' probabilities, (N, K, C).
        y: labels that nobody but the reader sees, (N,).

    Returns:
        Fractions: ``teacher 0`` … for each of them, ``consensus`` counting every image once, ``consensus (weighted)``
        by n_p, and ``supporters 0`` … ``supporters K``.
    """
    p, n = knowledge_vote(q, gate)
    right = (p.argmax(-1) == y).to(n.dtype)
    facts = {f"teacher {k}": (q[:, k].argmax(-1) == y).double().mean().item() for k in range(q.shape[1])}
    facts |= {"consensus": right.mean().item(), "consensus (weighted)": ((n * right).sum() / n.sum()).item()}
    level = n.round().long()  # the fallback weight rounds to 0
    return facts | {f"supporters {k}": (level == k).double().mean().item() for k in range(q.shape[1] + 1)}


@styled
def vote_over_rounds(history: pd.DataFrame, names: Sequence[str]) -> Figure:
    """Accuracy of teachers, vote and average, and the number of supporters, round by round.

    ``history`` has a row per round with the columns of :func:`vote_summary` and ``average model``.
    """
    rounds = np.arange(1, len(history) + 1)
    figure, (top, bottom) = canvas(5.2, 2, 1, sharex=True, height_ratios=(1.5, 1))
    for k, name in enumerate(names):
        top.plot(
            rounds, 100 * history[f"teacher {k}"], color=PALETTE[k], lw=1.2, marker=MARKERS[k % 8], ms=4, label=name
        )
    top.plot(rounds, 100 * history["consensus (weighted)"], color=INK, ls="--", label="consensus,\nby its weight")
    top.plot(rounds, 100 * history["average model"], color=INK, lw=2.4, label="average model")
    top.set(ylabel="right on the target (%)")
    levels = [100 * history[f"supporters {k}"] for k in range(len(names), -1, -1)]
    shades = [*("#08306b", "#2171b5", "#6baed6", "#c6dbef")[: len(names)], FAINT]
    labels = [f"{k} supporters" if k != 1 else "1 supporter" for k in range(len(names), 0, -1)] + ["nobody sure"]
    bottom.stackplot(rounds, *levels, colors=_shades(shades, len(levels)), labels=labels, lw=0)
    bottom.set(xlabel="round", ylabel="target images (%)", ylim=(0, 100), xlim=(rounds[0], rounds[-1]))
    bottom.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    for ax in (top, bottom):
        legend_right(ax)
    figure.align_ylabels()
    return figure


def _shades(colours: Sequence[str], number: int) -> list[str]:
    """As many colours as there are levels, the last one kept for the last level."""
    return [*(colours[min(i, len(colours) - 2)] for i in range(number - 1)), colours[-1]]


def embedded(features: Tensor, seed: int = 0) -> np.ndarray:
    """Features (N, F) as points of the plane, (N, 2), by t-SNE: neighbours stay so, other distances mean little.

    The perplexity is 30, or what fewer than a hundred features allow.
    """
    from sklearn.manifold import TSNE  # most pages do not need it

    perplexity = min(30.0, (len(features) - 1) / 3)
    return TSNE(init="pca", perplexity=perplexity, random_state=seed).fit_transform(features.double().cpu().numpy())


def same_class_neighbours(features: Tensor, labels: Tensor) -> float:
    """Share of the samples, (N, F), whose nearest other sample has the same label.

    >>> same_class_neighbours(torch.tensor([[0.0], [0.1], [5.0], [5.1], [5.3]]), torch.tensor([0, 0, 1, 1, 0]))
    0.8
    """
    distance = torch.cdist(features.double(), features.double()).fill_diagonal_(torch.inf)
    return (labels[distance.argmin(1)] == labels).double().mean().item()


@styled
def feature_map(points: Mapping[str, np.ndarray], labels: Tensor, classes: Sequence[str]) -> Figure:
    """Samples in the plane, a panel for each title of ``points`` (N, 2); the digit that is drawn is the label, (N,)."""
    figure, axes = canvas(0.5 + 4.8 / len(points), 1, len(points), squeeze=False)
    for ax, (title, at) in zip(axes[0], points.items(), strict=True):
        for k, name in enumerate(classes):
            mine = at[(labels == k).cpu().numpy()]
            ax.scatter(*mine.T, marker=f"${name}$", s=22, lw=0.2, color=PALETTE[k % len(PALETTE)])
        ax.set(title=title, xticks=[], yticks=[])
        ax.grid(False)
    return figure


# --- communication ----------------------------------------------------------------------------------------------------


@styled
def round_borders(rounds_per_epoch: Sequence[float], epochs: int, batches: int) -> Figure:
    """The same batches cut into rounds in several ways; a line is a communication."""
    figure, ax = canvas(0.9 + 0.42 * len(rounds_per_epoch))
    total = epochs * batches
    for row, r in enumerate(rounds_per_epoch):
        stages = timeline(epochs, batches, r)
        spans = [(stage.first, len(stage)) for stage in stages]
        ax.broken_barh(spans, (row - 0.32, 0.64), facecolors=["#9ecae1", "#deebf7"], edgecolor="none")
        ax.vlines([stage.last for stage in stages], row - 0.42, row + 0.42, color=ORANGE, lw=2.2)
        ax.text(total * 1.015, row, f"{len(stages)} rounds", va="center", fontsize=9.5)
    ax.set_yticks(range(len(rounds_per_epoch)), [f"r = {r:g}" for r in rounds_per_epoch])
    ax.set(xlabel="batch", xlim=(0, total * 1.2), xticks=range(0, total + 1, batches))
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.tick_params(axis="y", length=0)
    return figure


@styled
def message_bars(floats: pd.DataFrame) -> Figure:
    """Bytes of a message, tensor by tensor: a row per tensor with its ``kind`` and ``bytes``, on a log axis."""
    figure, ax = canvas(0.8 + 0.2 * len(floats))
    kinds = list(dict.fromkeys(floats["kind"]))
    colours = dict(zip(kinds, (BLUE, ORANGE, GREY), strict=False))
    at = np.arange(len(floats))
    ax.barh(at, floats["bytes"], 0.72, color=[colours[kind] for kind in floats["kind"]])
    ax.set_yticks(at, floats.index, fontsize=8.5)
    ax.set(xscale="log", xlabel="bytes")
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    handles = [ax.barh([0], [0], color=colours[kind]) for kind in kinds]
    figure.legend(handles, kinds, loc="outside upper center", ncols=len(kinds))
    return figure


@styled
def image_row(images: Mapping[str, Tensor]) -> Figure:
    """Images (C, H, W) with pixels in [0, 1], side by side, each under its title."""
    figure, axes = canvas(1.35, 1, len(images), squeeze=False)
    for ax, (title, image) in zip(axes[0], images.items(), strict=True):
        ax.imshow(image.permute(1, 2, 0).cpu().numpy(), interpolation="nearest", vmin=0, vmax=1)
        ax.set_title(title, fontsize=9.5)
        ax.axis("off")
    return figure
