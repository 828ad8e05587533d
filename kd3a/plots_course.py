"""The pictures of the course: each draws what a student's functions compute, so that a right one can be recognised."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import wraps

import numpy as np
import pandas as pd
import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from torch import Tensor

from kd3a import worlds
from kd3a.houses import play, small_digits, source_only
from kd3a.plots import BLUE, FAINT, ORANGE, STYLE, canvas, styled
from kd3a.plots_rounds import image_row
from kd3a.plots_tutorial import grouped_bars, lines


class Shown:
    """A figure that a notebook shows as SVG, without a file."""

    def __init__(self, figure: Figure):
        self.figure = figure

    def _repr_svg_(self) -> str:
        text = io.StringIO()
        with rc_context(STYLE):
            self.figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
        return text.getvalue()


def shown(draw: Callable[..., Figure]) -> Callable[..., Shown]:
    """The drawing function, with a result that a notebook shows."""

    @wraps(draw)
    def inside(*args, **kwargs) -> Shown:
        return Shown(draw(*args, **kwargs))

    return inside


@shown
@styled
def vote_map(knowledge_vote: Callable, gate: float = 0.8) -> Figure:
    """Assignment 1: a third teacher is 90 % sure of class 0; the other two say everything there is to say."""
    share = torch.linspace(0.005, 0.995, 100)
    a, b = torch.meshgrid(share, share, indexing="ij")
    first = torch.stack([a.flatten(), b.flatten(), torch.full((a.numel(),), 0.9)], 1)  # (N, 3), of class 0
    p, n = knowledge_vote(torch.stack([first, 1 - first], 2), gate)
    figure, axes = canvas(2.6, columns=2, sharey=True)
    for ax, values, title in zip(axes, (p[:, 0], n), ("p of class 0", "n"), strict=True):
        values = np.asarray(values.detach()).reshape(a.shape).T
        image = ax.imshow(values, origin="lower", extent=(0, 1, 0, 1), cmap="cividis")
        ax.set(title=title, xlabel="first teacher, q of class 0")
        ax.grid(False)
        figure.colorbar(image, ax=ax, shrink=0.8)
    axes[0].set_ylabel("second teacher")
    return figure


def committee() -> Tensor:
    """Answers of four teachers about six samples, (6, 4, 3): the last teacher is sure and mostly alone."""
    firsts = [(0, 0, 0, 1), (1, 1, 1, 2), (2, 2, 0, 0), (0, 0, 1, 1), (1, 1, 1, 1), (2, 0, 2, 1)]
    sure = [(0.95, 0.92, 0.97, 0.99), (0.99, 0.6, 0.93, 0.98), (0.94, 0.95, 0.5, 0.97)] * 2
    q = torch.zeros(6, 4, 3)
    for i, (row, confidences) in enumerate(zip(firsts, sure, strict=True)):
        for k, (first, confidence) in enumerate(zip(row, confidences, strict=True)):
            q[i, k] = (1 - confidence) / 2
            q[i, k, first] = confidence
    return q


@shown
@styled
def value_bars(quality: Callable, leave_one_out: Callable, shapley: Callable, gate: float = 0.9) -> Figure:
    """Assignment 2: both values of the four teachers of :func:`committee`."""
    q = committee()

    def Q(coalition) -> float:
        return quality(q, gate, tuple(sorted(coalition)))

    columns = {"leave-one-out": leave_one_out(Q, 4), "Shapley": shapley(Q, 4)}
    values = {name: np.asarray(column, dtype=float) for name, column in columns.items()}
    return grouped_bars(pd.DataFrame(values, index=[f"teacher {k}" for k in range(4)]), "value", "%.1f")


@shown
@styled
def merged_bells(merge: Callable) -> Figure:
    """Assignment 3: two models' features as bell curves, all features together, and what the merged layer thinks."""
    means, variances, alpha = torch.tensor([[0.0], [5.0]]), torch.tensor([[1.0], [1.0]]), torch.tensor([0.6, 0.4])
    mean, variance = (float(v) for v in merge(means, variances, alpha))
    x = np.linspace(-6, 11, 200)

    def bell(centre: float, spread: float) -> np.ndarray:
        return np.exp(-((x - centre) ** 2) / (2 * spread)) / np.sqrt(2 * np.pi * spread)

    together = sum(
        a * bell(m, v) for a, m, v in zip(*(t.flatten().tolist() for t in (alpha, means, variances)), strict=True)
    )
    figure, ax = canvas(2.6)
    ax.fill_between(x, together, color=FAINT, label="features of both models")
    ax.plot(x, bell(mean, variance), color=BLUE, label="merged mean and variance")
    ax.plot(x, bell(mean, float(alpha @ variances[:, 0])), color=ORANGE, linestyle="--", label="variances averaged")
    ax.set(xlabel="feature", ylabel="density")
    figure.legend(loc="outside upper center", ncols=1)
    return figure


@shown
@styled
def round_curve(one_round: Callable, seed: int = 0) -> Figure:
    """Assignment 4: accuracy on the target after every round, and source-only."""
    trace: list[float] = []
    play(one_round, seed, trace.append)
    rounds = range(1, len(trace) + 1)
    columns = {"one_round": trace, "source-only": [source_only(seed)] * len(trace)}
    return lines(100 * pd.DataFrame(columns, index=rounds), "round", "accuracy on the target (%)")


@shown
@styled
def bound_curve(risk: Callable, divergence: Callable, bound: Callable) -> Figure:
    """Assignment 5: target risk and bound of all hypotheses of the square world, from the first source's view."""
    world = worlds.square(side=11, directions=8, offsets=7)
    S, T = world.sources()[0], world.target
    target = np.asarray(risk(world.H, T))
    upper = np.asarray(bound(np.asarray(risk(world.H, S)), target, divergence(world.H, S, T)))
    order = np.argsort(target)
    table = pd.DataFrame({"bound": upper[order], "target risk": target[order]})
    return lines(table, "hypotheses, by their target risk", "probability of an error")


@shown
def stolen_image(read_input: Callable) -> Figure:
    """Assignment 6: a private digit, and what a first layer's gradients tell of it."""
    image = small_digits().target.train.x[0].float() / 255  # (3, 16, 16)
    generator = torch.Generator().manual_seed(0)
    layer = torch.nn.Linear(image.numel(), 8)
    with torch.no_grad():
        layer.weight.copy_(0.05 * torch.randn(layer.weight.shape, generator=generator))
    loss = layer(image.flatten()[None]).relu().square().sum()
    gradients = torch.autograd.grad(loss, [layer.weight, layer.bias])
    found = torch.as_tensor(read_input(*gradients)).view_as(image).clamp(0, 1)
    return image_row({"private": image, "recovered": found})
