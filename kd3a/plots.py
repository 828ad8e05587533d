"""The style of the book's figures, and the figures that several pages share.

Functions return a Figure; :func:`save` writes it as a deterministic SVG. Figures are 5.2 inches wide with 10-point
text, so that they stay legible when a phone shrinks them to its width.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from kd3a import batchnorm, records
from kd3a.consensus import supporters
from kd3a.domains import Domain
from kd3a.records import Record

WIDTH = 5.2  # inches
PALETTE = ("#0173b2", "#de8f05", "#029e73", "#d55e00", "#cc78bc", "#ca9161", "#fbafe4", "#949494", "#ece133", "#56b4e9")
"""seaborn's palette ``colorblind``; to import seaborn takes longer than to draw most figures."""
BLUE, ORANGE, GREEN, RED, PURPLE, BROWN, PINK, GREY, YELLOW, SKY = PALETTE
INK, FAINT = "#222222", "#c8c8c8"
MARKERS = "osD^vP*X"
STYLE = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same glyphs on every machine
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "legend.fontsize": 9.5,
    "legend.frameon": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#666666",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.8,
    "lines.linewidth": 1.8,
    "svg.hashsalt": "kd3a",
    "svg.fonttype": "path",
}


def styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Draw inside the book's style, whatever the caller has set."""

    @wraps(draw)
    def inside(*args: Any, **kwargs: Any) -> Figure:
        with rc_context(STYLE):
            return draw(*args, **kwargs)

    return inside


def canvas(height: float, rows: int = 1, columns: int = 1, **kwargs: Any) -> tuple[Figure, Any]:
    """A figure of the book's width and its axes; nothing is registered with pyplot."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **kwargs)


def figures_folder() -> Path:
    """Where figures go: ``figures/`` of the repository, or the folder ``KD3A_FIGURES``."""
    return Path(os.environ.get("KD3A_FIGURES") or records.ROOT / "figures")


class Picture:
    """A saved figure. A notebook shows it; the book's page shows the file, with its caption and alternative text."""

    def __init__(self, path: Path):
        self.path = path

    def _repr_svg_(self) -> str:
        return self.path.read_text()

    def __repr__(self) -> str:
        return f"Picture({self.path.name})"


def save(figure: Figure, name: str) -> Picture:
    """Write ``figures/<name>.svg``, the same bytes for the same figure, and close it."""
    path = figures_folder() / f"{name}.svg"
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}.draft")
    with rc_context(STYLE):
        figure.savefig(draft, format="svg", dpi=RASTER_DPI, metadata={"Date": None, "Creator": None})
    os.replace(draft, path)
    plt.close(figure)
    return Picture(path)


# --- what the data look like --------------------------------------------------------------------------------------

RASTER_DPI = 288  # images inside an SVG are sampled to this


def as_image(x: Tensor) -> np.ndarray:
    """(3, H, W) uint8 as (H, W, 3)."""
    return x.permute(1, 2, 0).cpu().numpy()


@styled
def contact_sheet(domains: Mapping[str, Domain], classes: Sequence[str]) -> Figure:
    """One row per domain, one training sample per class: the shift at a glance."""
    first = next(iter(domains.values())).train.x
    high, wide = first.shape[-2:]
    gap = 2
    sheet = np.full((len(domains) * (high + gap) - gap, len(classes) * (wide + gap) - gap, 3), 255, np.uint8)
    for row, domain in enumerate(domains.values()):
        for column in range(len(classes)):
            at = int((domain.train.y == column).nonzero()[0])
            top, left = row * (high + gap), column * (wide + gap)
            sheet[top : top + high, left : left + wide] = as_image(domain.train.x[at])
    figure, ax = canvas(0.3 + 4.1 * sheet.shape[0] / sheet.shape[1])
    ax.imshow(sheet, interpolation="nearest")
    ax.set_yticks([row * (high + gap) + high / 2 for row in range(len(domains))], list(domains))
    ax.set_xticks([column * (wide + gap) + wide / 2 for column in range(len(classes))], list(classes))
    ax.xaxis.tick_top()
    bare(ax)
    return figure


@styled
def transfer_matrix(accuracy: pd.DataFrame, own: Mapping[str, str]) -> Figure:
    """Accuracy (fractions) of models (rows) on domains (columns); the cell of a model's ``own`` domain is framed."""
    figure, ax = canvas(0.9 + 0.42 * len(accuracy))
    heatmap(ax, 100 * accuracy, ".0f", "cividis", 100, "accuracy (%)")
    for row, model in enumerate(accuracy.index):
        if own.get(model) in accuracy.columns:
            column = accuracy.columns.get_loc(own[model])
            ax.add_patch(plt.Rectangle((column + 0.05, row + 0.05), 0.9, 0.9, fill=False, edgecolor=ORANGE, lw=2.5))
    ax.set(xlabel="tested on", ylabel="trained on")
    return figure


def heatmap(ax: Axes, table: pd.DataFrame, form: str, colours: str, most: float, label: str) -> None:
    """A table as coloured cells with their numbers, from 0 to ``most``."""
    import seaborn

    seaborn.heatmap(table, ax=ax, annot=True, fmt=form, cmap=colours, vmin=0, vmax=most, linewidths=2,
                    cbar_kws={"label": label}, annot_kws={"fontsize": 10})  # fmt: skip
    ax.tick_params(length=0)
    ax.set_yticklabels(ax.get_yticklabels(), rotation=0)


# --- one round -------------------------------------------------------------------------------------------------


def box(
    ax: Axes, x: float, y: float, w: float, h: float, title: str, text: str = "", edge: str = INK, fill: str = "white"
) -> None:
    """A rounded box of a diagram, its title in bold above its text."""
    style = "round,pad=0,rounding_size=1"
    ax.add_patch(FancyBboxPatch((x, y), w, h, boxstyle=style, facecolor=fill, edgecolor=edge, lw=1.6))
    at = y + h - 2.1 if text else y + h / 2
    ax.text(x + w / 2, at, title, ha="center", va="center", fontweight="bold", fontsize=10)
    ax.text(x + w / 2, y + (h - 2.6) / 2, text, ha="center", va="center", fontsize=9.5, linespacing=1.25)


def arrow(ax: Axes, a: tuple[float, float], b: tuple[float, float], colour: str, style: str = "-|>") -> None:
    """An arrow of a diagram, from ``a`` to ``b``."""
    ax.add_patch(FancyArrowPatch(a, b, arrowstyle=style, mutation_scale=14, color=colour, lw=2, shrinkA=0, shrinkB=0))


@styled
def round_diagram() -> Figure:
    """One round of KD3A: what stays at home, what travels, what the target does."""
    figure = Figure(figsize=(WIDTH, 4.6))
    ax = figure.add_axes((0, 0, 1, 1), xlim=(0, 55), ylim=(0, 46))
    ax.axis("off")

    for x, name in ((1, "Source 1"), (19.5, "Source 2"), (38, "Source K")):
        box(ax, x, 35.5, 16, 9.5, name, "labelled data stay,\na model is trained", BLUE, "#eaf3fa")
        arrow(ax, (x + 6.5, 35.3), (x + 6.5, 27.8), BLUE)
        arrow(ax, (x + 9.5, 27.8), (x + 9.5, 35.3), GREEN)
    ax.text(36.75, 40.2, "…", ha="center", va="center", fontsize=14)
    ax.text(18.25, 31.5, "models go to\nthe target", color="#015a8c", ha="center", va="center", fontsize=9.5)
    ax.text(36.75, 31.5, "the average\ncomes back", color="#006e50", ha="center", va="center", fontsize=9.5)
    box(ax, 1, 1, 53, 26.5, "", edge=ORANGE, fill="#fdf4e9")
    ax.text(27.5, 25.2, "Target: unlabelled data stay here", ha="center", va="center", fontweight="bold")
    steps = (
        ("1  Knowledge Vote", "confident sources\nthat agree label\nthe target's data"),
        ("2  Distillation", "a new model learns\nfrom these labels"),
        ("3  Consensus Focus", "who helped the\nvote gets weight"),
        ("4  Average", "weights, and BatchNorm\nstatistics in closed form"),
    )
    for (x, y), (title, text) in zip(((2.5, 13.2), (28.5, 13.2), (2.5, 2.3), (28.5, 2.3)), steps, strict=True):
        box(ax, x, y, 24, 9.9, title, text, ORANGE)
    return figure


def telling_samples(q: Tensor, n: Tensor, gate: float, each: int = 2) -> Tensor:
    """Positions of samples worth showing, from many supporters to none: first those on which somebody sure was
    outvoted, then those that divide the teachers most."""
    level, choice = n.round().long(), q.argmax(-1)  # the fallback weight rounds to 0
    outvoted = ((q.amax(-1) > gate) & ~supporters(q, gate)).sum(1)  # (N,)
    opinions = torch.tensor([len(set(row)) for row in choice.tolist()], device=q.device)
    order = ((q.shape[1] + 1) * outvoted + opinions).argsort(descending=True, stable=True)
    return torch.cat([order[level[order] == k][:each] for k in range(q.shape[1], -1, -1)])


@styled
def vote_gallery(
    x: Tensor, y: Tensor, q: Tensor, p: Tensor, n: Tensor, gate: float, names: Sequence[str], classes: Sequence[str]
) -> Figure:
    """Target images, what each teacher says of them, and what the vote makes of it.

    Args:
        x, y: the images, (N, 3, H, W) uint8, and the labels nobody but the reader sees, (N,).
        q: the teachers' probabilities, (N, K, C); ``p`` (N, C) and ``n`` (N,) the consensus.
    """
    agree = supporters(q, gate)  # (N, K)
    confidence, choice = q.max(-1)
    columns = len(names) + 2
    figure = Figure(figsize=(WIDTH, 0.62 + 0.5 * len(x)))
    ax = figure.add_axes((0, 0, 1, 1), xlim=(-0.05, columns + 0.3), ylim=(len(x), -1.2))
    ax.axis("off")
    for column, name in enumerate((*names, "consensus"), 1):
        ax.text(column + 0.5, -0.3, name, ha="center", va="center", fontweight="bold", fontsize=9.5)
    ax.text(0.42, -0.3, "image", ha="center", va="center", fontweight="bold", fontsize=9.5)
    styles = {"supports": (BLUE, "white"), "outvoted": ("#f6d9c3", INK), "not sure": ("#eeeeee", "#666666")}
    for row in range(len(x)):
        ax.imshow(as_image(x[row]), extent=(0.05, 0.8, row + 0.93, row + 0.07), interpolation="nearest", aspect="auto")
        for k in range(len(names)):
            sure = bool(confidence[row, k] > gate)
            fill, ink = styles["supports" if agree[row, k] else "outvoted" if sure else "not sure"]
            text = f"{classes[choice[row, k]]}  {100 * confidence[row, k]:.0f} %"
            _cell(ax, k + 1, row, fill, text, ink, struck=sure and not agree[row, k])
        best = int(p[row].argmax())
        right = best == int(y[row])
        text = f"{classes[best]}  n = {n[row]:g}"
        _cell(ax, columns - 1, row, "white", text, INK, edge=GREEN if right else RED, wide=1.28)
    ax.set_xlim(-0.05, columns + 0.35)
    handles = [plt.Rectangle((0, 0), 1, 1, color=fill) for fill, _ in styles.values()]
    handles += [plt.Rectangle((0, 0), 1, 1, fill=False, edgecolor=c, lw=2) for c in (GREEN, RED)]
    figure.legend(handles, [*styles, "right", "wrong"], ncols=5, loc="upper center", handlelength=1.1,
                  columnspacing=1.1, handletextpad=0.4, borderaxespad=0.1)  # fmt: skip
    return figure


def _cell(ax: Axes, column: float, row: int, fill: str, text: str, ink: str, struck: bool = False,
          edge: str = "white", wide: float = 0.94) -> None:  # fmt: skip
    style = "round,pad=0,rounding_size=0.08"
    box = FancyBboxPatch((column + 0.03, row + 0.12), wide, 0.76, boxstyle=style, facecolor=fill, edgecolor=edge, lw=2)
    ax.add_patch(box)
    ax.text(column + 0.03 + wide / 2, row + 0.52, text, ha="center", va="center", color=ink, fontsize=9.5)
    if struck:
        ax.plot([column + 0.15, column + 0.85], [row + 0.52, row + 0.52], color=ink, lw=1)


@styled
def vote_precision(p: Tensor, n: Tensor, y: Tensor, teachers: int) -> Figure:
    """How often the consensus is right, and how many samples there are, by the number of supporters."""
    level = n.round().long()  # the fallback weight rounds to 0
    right = (p.argmax(-1) == y).double()
    figure, (left, other) = canvas(2.5, 1, 2)
    counts = [int((level == k).sum()) for k in range(teachers + 1)]
    share = [100 * float(right[level == k].mean()) if count else np.nan for k, count in enumerate(counts)]
    for ax, values, label, colour in (
        (left, share, "consensus right (%)", BLUE),
        (other, [100 * c / len(y) for c in counts], "target samples (%)", GREY),
    ):
        bars = ax.bar(range(teachers + 1), np.nan_to_num(values), color=colour, width=0.7)
        texts = ["–" if np.isnan(value) else f"{value:.0f}" for value in values]
        ax.bar_label(bars, texts, padding=2, fontsize=9.5)
        ax.set(xlabel="sources that support it", ylabel=label, ylim=(0, 112), xticks=range(teachers + 1))
        ax.grid(axis="x", visible=False)
    return figure


@styled
def weight_bars(weights: Mapping[str, Sequence[float]], names: Sequence[str]) -> Figure:
    """Domain weights side by side, one colour per situation."""
    figure, ax = canvas(2.7)
    wide = 0.8 / len(weights)
    for i, (title, values) in enumerate(weights.items()):
        at = np.arange(len(names)) + (i - (len(weights) - 1) / 2) * wide
        bars = ax.bar(at, values, wide * 0.92, color=(BLUE, ORANGE, GREEN)[i], label=title)
        ax.bar_label(bars, fmt="%.2f", padding=2, fontsize=9)
    ax.set(ylabel=r"domain weight $\alpha$", xticks=range(len(names)), xticklabels=names)
    ax.margins(y=0.15)
    ax.grid(axis="x", visible=False)
    figure.legend(loc="outside upper center", ncols=len(weights))
    return figure


@styled
def layer_statistics(means: Tensor, variances: Tensor, alpha: Tensor, names: Sequence[str]) -> Figure:
    """One BatchNorm layer, channel by channel: what every model kept, and what the average model gets.

    Args:
        means, variances: (K + 1, C), a row per model; ``alpha``: (K + 1,).
    """
    mean, variance = batchnorm.closed_form(means, variances, alpha)
    plain = (alpha.to(variances)[:, None] * variances).sum(0)
    channels = np.arange(means.shape[1])
    figure, (top, bottom) = canvas(4.3, 2, 1, sharex=True)
    for k, name in enumerate(names):
        style = {"ls": "", "marker": MARKERS[k % 8], "ms": 4.5, "color": PALETTE[k], "alpha": 0.85, "label": name}
        top.plot(channels, means[k], **style)
        bottom.plot(channels, variances[k].sqrt(), **{**style, "label": "_"})
    top.hlines(mean, channels - 0.42, channels + 0.42, color=INK, lw=2.2, label="average model")
    bottom.hlines(variance.sqrt(), channels - 0.42, channels + 0.42, color=INK, lw=2.2)
    bottom.hlines(plain.sqrt(), channels - 0.42, channels + 0.42, color=INK, lw=1.6, ls=(0, (1.2, 1)),
                  label="variances merely averaged")  # fmt: skip
    top.set(ylabel="mean")
    bottom.set(ylabel="standard deviation", xlabel="channel", xticks=channels[:: max(1, len(channels) // 16)])
    figure.legend(loc="outside upper center", ncols=3, columnspacing=1.2, handletextpad=0.4)
    return figure


# --- whole runs and studies -------------------------------------------------------------------------------------

#: The colour of a row wherever it appears; rows without one take the next of the palette.
ROWS = {
    "Oracle": GREY,
    "Source-only": BROWN,
    "Source-only (K times the steps)": "#7a4a1d",
    "Source-only (batches of all)": YELLOW,
    "FedAvg": ORANGE,
    "FedAvg (target statistics)": RED,
    "KD3A": BLUE,
    "KD3A (target statistics)": PURPLE,
    "KD3A (official)": GREEN,
    "KD3A (no mixup)": SKY,
    "KD3A (mixup)": PINK,
}
PLAIN = "#6b8ba4"  # of a bar without a colour of its own


def row_colours(rows: Sequence[str]) -> dict[str, str]:
    spare = iter([PINK, INK] * len(rows))
    return {row: ROWS.get(row) or next(spare) for row in rows}


@styled
def curves(history: pd.DataFrame, rows: Sequence[str], columns: int = 2) -> Figure:
    """Target accuracy per epoch: a panel per target, a line per row, a band of one standard deviation over seeds.

    ``history`` has the columns row, target, seed, epoch and accuracy; see :func:`kd3a.report.history`.
    """
    history = history[history["row"].isin(rows)]
    targets = list(dict.fromkeys(history["target"]))
    if not targets:
        return nothing()
    rows = [row for row in rows if (history["row"] == row).any()]
    columns = min(columns, len(targets))
    lines = -(-len(targets) // columns)
    figure, axes = canvas(1 + 2 * lines, lines, columns, squeeze=False, sharex=True, sharey=True)
    colours = row_colours(rows)
    for ax, target in zip(axes.flat, targets, strict=False):
        for row in rows:
            mine = history[(history["row"] == row) & (history["target"] == target)]
            seeds = mine.groupby("epoch")["accuracy"]
            mean, std = 100 * seeds.mean(), 100 * seeds.std(ddof=1).fillna(0)
            ax.plot(mean.index, mean, color=colours[row], label=row)
            ax.fill_between(mean.index, mean - std, mean + std, color=colours[row], alpha=0.2, lw=0)
        ax.set_title(target if len(targets) > 1 else "", fontweight="bold", loc="left")
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    remove_spare(axes, len(targets))
    figure.supxlabel("epoch", fontsize=10)
    figure.supylabel("target accuracy (%)", fontsize=10)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    wide = max(map(len, labels)) > 18
    figure.legend(handles, labels, loc="outside upper center", ncols=2 if wide else 3, columnspacing=1.2)
    return figure


def remove_spare(axes: np.ndarray, used: int) -> None:
    """Take away the panels nobody needs; the panel above one shows its own ticks instead."""
    columns = axes.shape[1]
    for ax, above in zip(axes.flat[used:], axes.flat[used - columns :], strict=False):
        ax.remove()
        above.xaxis.set_tick_params(labelbottom=True)


@styled
def accuracy_bars(summary: pd.DataFrame, rows: Sequence[str], targets: Sequence[str]) -> Figure:
    """Accuracy per target and over all of them; the whiskers are one sample standard deviation over seeds.

    ``summary`` comes from :func:`kd3a.study.summary`.
    """
    shown = [row for row in rows if (summary[summary["row"] == row]["n"] > 0).any()]
    if not shown:
        return nothing()
    panels, columns = [*targets, "mean"], 2
    names = [row.replace(" (", "\n(") for row in shown]
    lines = -(-len(panels) // columns)
    tall = 0.28 if any("\n" in name for name in names) else 0.22  # inches of a bar
    height = 0.45 + lines * (0.4 + tall * len(shown))
    figure, axes = canvas(height, lines, columns, squeeze=False, sharex=True, sharey=True)
    colours = {row: ROWS.get(row, PLAIN) for row in rows}  # names stand beside the bars
    at = np.arange(len(shown))
    for ax, target in zip(axes.flat, panels, strict=False):
        cells = summary[summary["target"] == target].set_index("row").reindex(shown)
        spread = {"xerr": 100 * cells["std"].fillna(0), "error_kw": {"lw": 1.4, "ecolor": INK}}
        ax.barh(at, 100 * cells["mean"], 0.74, color=[colours[row] for row in shown], **spread)
        ax.set_title("mean of all targets" if target == "mean" else target, fontweight="bold", loc="left")
        ax.set(xlim=(0, 100))
        ax.set_yticks(at, names, fontsize=8.5, linespacing=0.95)
        ax.grid(axis="y", visible=False)
        ax.tick_params(axis="y", length=0)
    axes[0, 0].invert_yaxis()
    remove_spare(axes, len(panels))
    figure.supxlabel("accuracy on the target (%)", fontsize=10)
    return figure


@styled
def domain_weights(record: Record) -> Figure:
    """The weight of every domain in the average, epoch by epoch."""
    figure, ax = canvas(2.7)
    _weights(ax, record)
    ax.set(xlabel="epoch")
    return figure


@styled
def overview(runs: Mapping[str, Record], main: str) -> Figure:
    """A whole run beside others: accuracy, the gate, the weights of ``main`` and the bytes that crossed."""
    colours = row_colours(list(runs))
    figure, (accuracy, gate, weights, sent) = canvas(7.2, 4, 1, sharex=True, height_ratios=(1.4, 0.8, 1.4, 1))
    for title, record in runs.items():
        epochs = [e["epoch"] for e in record["epochs"]]
        mega = np.cumsum([e["bytes_up"] + e["bytes_down"] for e in record["epochs"]]) / 1e6
        lines = accuracy.plot(epochs, [100 * e["target_accuracy"] for e in record["epochs"]], color=colours[title])
        sent.plot(epochs, mega, color=colours[title], ls="-" if title == main else "--", label=title)
        lines[0].set_label(title)
    gates = [(e["epoch"], e["gate"]) for e in runs[main]["epochs"] if e["gate"] is not None]
    gate.plot(*zip(*gates, strict=True), color=colours[main], label=main)
    _weights(weights, runs[main])
    accuracy.set(ylabel="accuracy (%)")
    gate.set(ylabel="gate")
    sent.set(ylabel="megabytes\nexchanged", xlabel="epoch")
    for ax in (accuracy, gate, sent):
        legend_right(ax)
    figure.align_ylabels()
    return figure


def _weights(ax: Axes, record: Record) -> None:
    epochs = [e["epoch"] for e in record["epochs"]]
    for k, name in enumerate(record["epochs"][0]["weights"]):
        own = name == record["target"]
        values = [e["weights"][name] for e in record["epochs"]]
        ax.plot(epochs, values, color=INK if own else PALETTE[k], ls="--" if own else "-", marker=MARKERS[k % 8],
                ms=4, label=f"{name} (distilled)" if own else name)  # fmt: skip
    ax.set(ylabel=r"weight $\alpha$")
    ax.set_ylim(bottom=0)
    ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    legend_right(ax)


def legend_right(ax: Axes) -> None:
    """The legend outside the data, at their right."""
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), handlelength=1.5, handletextpad=0.5, labelspacing=0.35)


@styled
def nothing(text: str = "no run of this study is recorded yet") -> Figure:
    """A figure that says it has nothing to show."""
    figure, ax = canvas(1.0)
    ax.text(0.5, 0.5, text, ha="center", va="center", transform=ax.transAxes, color="#666666")
    ax.axis("off")
    return figure


def bare(ax: Axes) -> None:
    """No grid, no ticks and no frame: only what is drawn."""
    ax.grid(False)
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
