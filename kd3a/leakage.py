"""Gradient leakage: rebuild private images from a gradient, or from an update, that left the house.

The attacker knows the network and what it observed. It looks for inputs whose gradient is the observed one.

* :func:`dlg` (Zhu et al., 2019) looks for inputs and labels together.
* :func:`idlg` (Zhao et al., 2020) first reads the label off the last layer, then looks for the input alone.
* :func:`inversion` (Geiping et al., 2020) knows the labels, matches the direction alone, prefers smooth images and can
  follow several local steps.

The first two match gradients by their squared distance with L-BFGS, the third by their angle with signed Adam.
Used in the book's chapter *Communication and privacy* and in the study *Privacy*.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from kd3a.errors import UserError
from kd3a.losses import soft_cross_entropy

Gradient = dict[str, Tensor]  # one tensor per parameter, by its name
Objective = Callable[[Tensor, Tensor], Tensor]  # inputs (B, ...), label probabilities (B, C) -> scalar


@dataclass(frozen=True)
class Recovery:
    """What an attack found: its best guess and how well the guess explains the observation, step by step."""

    x: Tensor  # (B, ...), as the network reads inputs
    labels: Tensor  # (B,) int64
    trace: list[float]  # the objective before every step and after the last

    @property
    def loss(self) -> float:
        """The objective of the guess."""
        return self.trace[-1]


# --- what leaks -------------------------------------------------------------------------------------------------------


def gradient(
    net: nn.Module, x: Tensor, labels: Tensor, create_graph: bool = False, weights: Gradient | None = None
) -> Gradient:
    r"""The gradient that a batch causes, :math:`\nabla_\theta \frac{1}{B} \sum_i \ell(h_\theta(x_i), y_i)`.

    Args:
        x: inputs, (B, ...).
        labels: classes (B,) or probabilities (B, C); the loss is the cross-entropy.
        create_graph: keep the graph, so that the gradient can itself be differentiated.
        weights: where the gradient is taken; at the network's own by default.
    """
    parameters = dict(net.named_parameters()) if weights is None else weights
    logits = functional_call(net, parameters, (x,))
    probabilities = labels if labels.is_floating_point() else F.one_hot(labels, logits.shape[1]).to(logits)
    loss = soft_cross_entropy(logits, probabilities).mean()
    grads = torch.autograd.grad(loss, list(parameters.values()), create_graph=create_graph)
    return dict(zip(parameters, grads, strict=True))


def update_as_gradient(before: Gradient, after: Gradient, rate: float) -> Gradient:
    r"""A round's update read as one gradient, :math:`(\Theta - \Theta_k) / \eta`.

    Exact for one step of plain SGD with learning rate :math:`\eta`; for several, ``rate`` is their sum and the result
    a mean of gradients at different weights.
    """
    return {name: (before[name] - tensor).detach() / rate for name, tensor in after.items()}


def local_update(
    net: nn.Module, x: Tensor, labels: Tensor, steps: int = 1, rate: float = 0.0, create_graph: bool = False
) -> Gradient:
    r"""What ``steps`` of plain SGD at learning rate :math:`\eta` do, read as one gradient.

    .. math:: \frac{\Theta - \Theta_k}{n \eta} = \frac{1}{n} \sum_{t=1}^n g_t(\Theta - \eta \, (g_1 + \dots + g_{t-1}))

    Args:
        x, labels: of all steps one after the other, (n B, ...) and (n B,); every step sees B of them.
        create_graph: keep the graph of all steps, so that the update can itself be differentiated.
    """
    start = {name: p if create_graph else p.detach() for name, p in net.named_parameters()}
    total: Gradient = {}
    for batch, classes in zip(x.chunk(steps), labels.chunk(steps), strict=True):
        weights = {name: p - rate * total[name] for name, p in start.items()} if total else start
        weights = weights if create_graph else {name: w.requires_grad_() for name, w in weights.items()}
        slope = gradient(net, batch, classes, create_graph, weights)
        total = {name: total[name] + slope[name] for name in slope} if total else slope
    return {name: t / steps for name, t in total.items()} if steps > 1 else total


# --- what the attacker minimises --------------------------------------------------------------------------------------


def squared_distance(a: Gradient, b: Gradient) -> Tensor:
    r""":math:`\sum_l \|a_l - b_l\|_2^2`, the objective of DLG and iDLG.

    >>> squared_distance({"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([1.0, 0.0])}).item()
    4.0
    """
    return torch.stack([(a[name] - b[name]).square().sum() for name in b]).sum()


def cosine_distance(a: Gradient, b: Gradient) -> Tensor:
    r""":math:`1 - \langle a, b \rangle / (\|a\| \, \|b\|)` over all layers together: the length does not matter.

    >>> round(cosine_distance({"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([3.0, 0.0])}).item(), 6)
    0.0
    """

    def dot(one: Gradient, other: Gradient) -> Tensor:
        return torch.stack([one[name].flatten() @ other[name].flatten() for name in b]).sum()

    return 1 - dot(a, b) / (dot(a, a) * dot(b, b)).clamp_min(1e-24).sqrt()


def total_variation(x: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels, down plus across, of images (B, C, H, W).

    >>> total_variation(torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]])).item()
    1.0
    """
    return x.diff(dim=-2).abs().mean() + x.diff(dim=-1).abs().mean()


def objective(
    net: nn.Module,
    observed: Gradient,
    distance: Callable[[Gradient, Gradient], Tensor] = squared_distance,
    smoothness: float = 0.0,
    steps: int = 1,
    rate: float = 0.0,
) -> Objective:
    """What a guess is judged by: the distance of the update that it causes in ``steps`` local steps from the observed
    one, plus ``smoothness`` times the guess's total variation."""

    def judged(x: Tensor, labels: Tensor) -> Tensor:
        loss = distance(local_update(net, x, labels, steps, rate, create_graph=True), observed)
        return loss + smoothness * total_variation(x) if smoothness else loss

    return judged


# --- attacks ----------------------------------------------------------------------------------------------------------


def dlg(
    net: nn.Module,
    observed: Gradient,
    shape: tuple[int, ...],
    steps: int = 100,
    seed: int = 0,
    tolerance: float = 1e-6,
    on_step: Callable[[Tensor], None] | None = None,
    labels: Tensor | None = None,
) -> Recovery:
    r"""Deep leakage from gradients: inputs and soft labels whose gradient is the observed one.

    .. math:: \min_{x, y} \sum_l \big\|\nabla_{\theta_l} \ell(h(x), \mathrm{softmax}(y)) - g_l\big\|_2^2

    Args:
        observed: the gradient g, by parameter.
        shape: of the batch of inputs to find, (B, ...); B is part of what the attacker knows.
        steps: of L-BFGS, each about 20 evaluations; it ends early when the objective is below ``tolerance`` or stuck.
        seed: of the random start.
        on_step: is given the inputs before every step, to watch them take shape.
        labels: the classes (B,), where they are known; only the inputs are then looked for.
    """
    x, y = _start(shape, observed["head.bias"], seed)
    judged = objective(net, observed)
    if labels is not None:
        trace = _lbfgs(lambda: judged(x, labels), [x], steps, tolerance, on_step)
        return Recovery(x.detach(), labels, trace)
    trace = _lbfgs(lambda: judged(x, y.softmax(-1)), [x, y], steps, tolerance, on_step)
    return Recovery(x.detach(), y.detach().argmax(-1), trace)


def idlg(net: nn.Module, observed: Gradient, shape: tuple[int, ...], **options) -> Recovery:
    """Improved DLG for one input: its label is read off the last layer (:func:`label_of`), the input is looked for.

    ``options`` are those of :func:`dlg`.
    """
    if shape[0] != 1:
        raise UserError(f"iDLG reads the label of one input, not of {shape[0]}; use dlg.")
    return dlg(net, observed, shape, labels=label_of(observed).view(1), **options)


def inversion(
    net: nn.Module,
    observed: Gradient,
    labels: Tensor,
    shape: tuple[int, ...],
    iterations: int = 200,
    smoothness: float = 0.01,
    seed: int = 0,
    steps: int = 1,
    rate: float = 0.0,
    box: tuple[float, float] = (-1.0, 1.0),
) -> Recovery:
    r"""Inverting gradients: smooth inputs of known labels whose update points where the observed one does.

    .. math:: \min_x \; 1 - \frac{\langle u(x), g \rangle}{\|u(x)\| \, \|g\|} + \lambda \, \mathrm{TV}(x)

    Adam follows the sign of the gradient, at 0.1 and a tenth of it after 3/8, 5/8 and 7/8 of the iterations.

    Args:
        labels: the classes of the inputs, (B,).
        shape: of one input, without the batch.
        smoothness: :math:`\lambda`, the weight of the total variation.
        steps, rate: of the local training that u(x) follows (:func:`local_update`); one step is the gradient.
        box: the smallest and largest value of an input, as the network reads it.
    """
    x, _ = _start((len(labels), *shape), observed["head.bias"], seed)
    judged = objective(net, observed, cosine_distance, smoothness, steps, rate)
    optimiser = torch.optim.Adam([x], lr=0.1)
    falls = [int(iterations * share) for share in (3 / 8, 5 / 8, 7 / 8)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, falls, gamma=0.1)
    trace = []
    for _ in range(iterations):
        loss = judged(x, labels)
        trace.append(loss.item())
        x.grad = torch.autograd.grad(loss, x)[0].sign()
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            x.clamp_(*box)
    return Recovery(x.detach(), labels, [*trace, judged(x, labels).item()])


def label_of(observed: Gradient) -> Tensor:
    r"""The label of a single input: the only row of :math:`\nabla W_\text{head}` that is negative where features are
    not, :math:`\arg\min_c \sum_j (\nabla W_\text{head})_{cj}`."""
    return observed["head.weight"].sum(1).argmin()


def _start(shape: tuple[int, ...], bias: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Standard normal inputs and label scores, (B, C), to begin with; C is the length of the head's bias."""
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(size, generator=generator) for size in (shape, (shape[0], len(bias))))
    return x.to(bias).requires_grad_(), y.to(bias).requires_grad_()


def _lbfgs(
    judged: Callable[[], Tensor],
    variables: list[Tensor],
    steps: int,
    tolerance: float,
    on_step: Callable[[Tensor], None] | None,
) -> list[float]:
    """Minimise in place. The line search costs nothing here and keeps L-BFGS from leaping away, as it does without."""
    optimiser = torch.optim.LBFGS(variables, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        loss = judged()
        for variable, grad in zip(variables, torch.autograd.grad(loss, variables), strict=True):
            variable.grad = grad.contiguous()  # whatever layout the network prefers
        return loss.detach()

    trace = []
    for _ in range(steps):
        if on_step:
            on_step(variables[0].detach().clone())
        trace.append(float(optimiser.step(closure)))  # the value before the step
        stuck = len(trace) > 1 and trace[-1] == trace[-2]  # the line search finds no way down any more
        if trace[-1] < tolerance or stuck:
            break
    return [*trace, float(judged().detach())]


# --- how much was recovered -------------------------------------------------------------------------------------------


def pixels(x: Tensor, mean: float, std: float) -> Tensor:
    """Network inputs as pixels in [0, 1]."""
    return (x * std + mean).clamp(0, 1)


def fidelity(truth: Tensor, guess: Tensor) -> dict[str, float]:
    """How close one image (C, H, W) in [0, 1] comes to another: mean squared error, PSNR in decibels and SSIM."""
    from skimage.metrics import peak_signal_noise_ratio, structural_similarity  # slow to import, and few runs need it

    a, b = truth.detach().cpu().double().numpy(), guess.detach().cpu().double().numpy()
    mse = float(np.mean((a - b) ** 2))
    return {
        "mse": mse,
        "psnr": float(peak_signal_noise_ratio(a, b, data_range=1.0)) if mse else float("inf"),
        "ssim": float(structural_similarity(a, b, channel_axis=0, data_range=1.0)),
    }


def matched(truth: Tensor, guess: Tensor) -> list[tuple[int, int]]:
    """Which true image (M, ...) each of the guesses (B, ...) is nearest to, B ≤ M, no image twice: pairs (guess,
    truth) of the least total squared error. The order of a batch leaves no trace in its gradient."""
    from scipy.optimize import linear_sum_assignment  # slow to import, and few runs need it

    cost = torch.cdist(guess.flatten(1).double(), truth.flatten(1).double()).square().numpy()
    return [(int(g), int(t)) for g, t in zip(*linear_sum_assignment(cost), strict=True)]
