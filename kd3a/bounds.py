r"""The quantities of the theory, computed exactly where inputs and hypotheses are finite in number.

There are n inputs :math:`x_1, \dots, x_n`. A **hypothesis class** is an integer matrix ``H`` (M, n): row m holds the
class that hypothesis m gives to each input. A **domain** is a table ``D`` (n, C) of joint probabilities,
``D[i, c]`` = :math:`\Pr[X = x_i, y = c]`, so labels may be noisy. Nothing is estimated: a supremum over the class is a
maximum over rows. Derived in the book's chapters *The bounds, proved* and *The bounds, computed*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kd3a.errors import UserError

Reading = Literal["joint", "combined", "single"]


# --- domains and hypotheses ---------------------------------------------------------------------------------------


def domain(mass: np.ndarray, labels: np.ndarray, classes: int = 2, wrong: float = 0.0) -> np.ndarray:
    """A domain (n, C) from input weights (n,) and labels (n,); a share ``wrong`` of each input has the next class.

    >>> domain(np.array([1, 3]), np.array([0, 1]), wrong=0.2).round(2).tolist()
    [[0.2, 0.05], [0.15, 0.6]]
    """
    mass, labels = np.asarray(mass, float), np.asarray(labels)
    if mass.shape != labels.shape or (mass < 0).any() or not mass.sum() > 0 or not 0 <= wrong <= 1:
        raise UserError(
            "A domain needs a weight >= 0 and a label for every input, and a share of wrong ones in [0, 1]."
        )
    table, rows = np.zeros((len(mass), classes)), np.arange(len(mass))
    table[rows, labels] += (1 - wrong) * mass / mass.sum()
    table[rows, (labels + 1) % classes] += wrong * mass / mass.sum()
    return table


def separators(x: np.ndarray, directions: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    r"""The class :math:`h(x) = 1[\langle w, x \rangle > b]` for w in ``directions`` (A, d), b in ``offsets`` (B,).

    With ``x`` (n, 1) and directions ±1 these are thresholds of both orientations. Returns (A · B, n).
    """
    scores = np.asarray(directions, float) @ np.asarray(x, float).T  # (A, n)
    return (scores[:, None] > np.asarray(offsets, float)[:, None]).reshape(-1, len(x)).astype(int)


def risks(H: np.ndarray, D: np.ndarray) -> np.ndarray:
    r"""Task risks :math:`\epsilon_D(h) = \Pr_D[h(X) \ne y]` of all hypotheses, (M,)."""
    return D.sum() - D[np.arange(len(D)), H].sum(1)


def _indicators(H: np.ndarray) -> list[np.ndarray]:
    """For each class c, the matrix (M, n) that is 1 where a hypothesis says c."""
    return [np.equal(H, c).astype(float) for c in range(H.max() + 1)]


def disagreements(H: np.ndarray, D: np.ndarray) -> np.ndarray:
    r""":math:`\epsilon_D(h, h') = \Pr_D[h(X) \ne h'(X)]` of all pairs, (M, M); linear in ``D``."""
    mass, says = D.sum(1), _indicators(H)
    return mass.sum() - sum((chosen * mass) @ chosen.T for chosen in says)


def divergence(H: np.ndarray, S: np.ndarray, T: np.ndarray) -> float:
    r"""The exact :math:`d_{H \Delta H}(S, T) = 2 \max_{h, h'} |\epsilon_S(h, h') - \epsilon_T(h, h')|`, in [0, 2]."""
    return float(2 * np.abs(disagreements(H, S - T)).max())


def a_distance(H: np.ndarray, S: np.ndarray, T: np.ndarray) -> float:
    r"""The exact :math:`d_H(S, T) = 2 \max_{h, c} |\Pr_S[h = c] - \Pr_T[h = c]|`.

    It equals :math:`2 (1 - 2 \epsilon)` with :math:`\epsilon` the error of the best domain classifier in H or its
    complement, which is what :func:`kd3a.weighting.proxy_a_distance` estimates with a logistic regression.
    """
    moved = S.sum(1) - T.sum(1)
    return float(2 * max(np.abs(chosen @ moved).max() for chosen in _indicators(H)))


def relabelled(T: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """The distilled domain: inputs as in ``T``, labels of the consensus (n,). ``weights`` (n,) such as n_p re-weigh
    the inputs, as the Knowledge Vote loss does; the marginal is then no longer that of T."""
    mass = T.sum(1) if weights is None else T.sum(1) * weights
    return domain(mass, labels, T.shape[1])


# --- the terms of the bounds --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Terms:
    r"""What every bound is made of: risks of all hypotheses, divergences, and the consensus' error."""

    sources: np.ndarray  # (K, M): epsilon of each source
    target: np.ndarray  # (M,): epsilon of the target
    consensus: np.ndarray  # (M,): epsilon of the (K+1)-th, distilled domain
    divergences: np.ndarray  # (K,): d_HdH of each source and the target
    label_error: float  # eta, the share of target samples whose consensus label is wrong

    @property
    def lambdas(self) -> np.ndarray:
        r""":math:`\lambda_k = \min_h [\epsilon_k(h) + \epsilon_T(h)]`, (K,)."""
        return (self.sources + self.target).min(1)

    def lambda_0(self, alpha: np.ndarray) -> float:
        r""":math:`\lambda_0(\alpha) = \min_h [\sum_k \alpha_k \epsilon_k(h) + \epsilon_T(h)]`; it moves with alpha."""
        return float((alpha @ self.sources + self.target).min())

    @property
    def lambda_1(self) -> float:
        r""":math:`\lambda_1 = \min_h [\epsilon_{K+1}(h) + \epsilon_T(h)]`."""
        return float((self.consensus + self.target).min())

    @property
    def gap(self) -> float:
        r"""The risk gap :math:`G = \max_h |\epsilon_{K+1}(h) - \epsilon_T(h)|` of Propositions 1 and 2."""
        return float(np.abs(self.consensus - self.target).max())


def terms(H: np.ndarray, sources: Sequence[np.ndarray], target: np.ndarray, consensus: np.ndarray) -> Terms:
    """All terms for K source tables, the target's table and the consensus labels (n,)."""
    distilled = relabelled(target, consensus)
    return Terms(
        sources=np.stack([risks(H, S) for S in sources]),
        target=risks(H, target),
        consensus=risks(H, distilled),
        divergences=np.array([divergence(H, S, target) for S in sources]),
        label_error=float(risks(np.asarray(consensus)[None], target)[0]),
    )


# --- the bounds, one value per hypothesis -------------------------------------------------------------------------


def single_source_bounds(t: Terms) -> np.ndarray:
    r""":math:`B_k(h) = \epsilon_k(h) + \tfrac12 d_k + \lambda_k`, (K, M)."""
    return t.sources + t.divergences[:, None] / 2 + t.lambdas[:, None]


def original_bound(t: Terms, alpha: np.ndarray) -> np.ndarray:
    r"""Theorem 1: :math:`\sum_k \alpha_k (\epsilon_k(h) + \tfrac12 d_k) + \lambda_0(\alpha)`, (M,)."""
    return alpha @ (t.sources + t.divergences[:, None] / 2) + t.lambda_0(alpha)


def distillation_bound(t: Terms) -> np.ndarray:
    r"""Proposition 1: :math:`\epsilon_{K+1}(h) + \min\{\lambda_1, G\}`, (M,). The divergence is 0: same inputs."""
    return t.consensus + min(t.lambda_1, t.gap)


def kd3a_bound(t: Terms, alpha: np.ndarray, reading: Reading = "combined") -> np.ndarray:
    r"""Theorem 2 for weights ``alpha`` (K + 1,), the distilled domain last, (M,).

    The paper does not say what :math:`\lambda_2` is. With a = :math:`\alpha_{K+1}`:

    * ``joint``: :math:`\lambda_2 = \min_h [\sum_{k \le K+1} \alpha_k \epsilon_k(h) + \epsilon_T(h)]`;
    * ``combined``: :math:`\lambda_2 = (1 - a)\,\lambda_0(\tfrac{\alpha}{1 - a}) + a \min\{\lambda_1, G\}`;
    * ``single``: :math:`\lambda_2 = \sum_{k \le K} \alpha_k \lambda_k + a \min\{\lambda_1, G\}`.

    All three are valid, and none is larger than the one before it.
    """
    own, share = np.asarray(alpha[:-1]), float(alpha[-1])
    if reading == "joint":
        mixed = own @ t.sources + share * t.consensus
        return mixed + own @ t.divergences / 2 + (mixed + t.target).min()
    if reading == "single":
        return own @ single_source_bounds(t) + share * distillation_bound(t)
    if reading != "combined":
        raise UserError(f"Unknown reading {reading!r} of Theorem 2: choose joint, combined or single.")
    if share >= 1:
        return distillation_bound(t)
    return (1 - share) * original_bound(t, own / (1 - share)) + share * distillation_bound(t)


# --- Proposition 2: when is the KD3A bound tighter? A margin >= 0 means that the condition holds --------------------


def printed_margins(t: Terms) -> np.ndarray:
    r"""The paper's: :math:`\min_h |\epsilon_{K+1}(h) - \epsilon_k(h)| + \tfrac12 d_k + \lambda_k - G`, (K,)."""
    return np.abs(t.consensus - t.sources).min(1) + t.divergences / 2 + t.lambdas - t.gap


def corrected_margins(t: Terms) -> np.ndarray:
    r"""What the proof needs: :math:`\min_h [\epsilon_k(h) - \epsilon_{K+1}(h)] + \tfrac12 d_k + \lambda_k - G`."""
    return (t.sources - t.consensus).min(1) + t.divergences / 2 + t.lambdas - t.gap


def exact_margin(t: Terms, alpha: np.ndarray) -> float:
    """Theorem 1 minus Proposition 1 at the hypothesis where this is least; >= 0 exactly if the KD3A bound (reading
    ``combined``, any share of the distilled domain) is nowhere above Theorem 1 with source weights ``alpha`` (K,)."""
    return float((original_bound(t, alpha) - distillation_bound(t)).min())


# --- Appendix D ---------------------------------------------------------------------------------------------------


def shift_constant(S: np.ndarray, T: np.ndarray, f_s: np.ndarray, f_t: np.ndarray) -> float:
    r""":math:`C = \min\{E_S |f_S - f_T|, E_T |f_S - f_T|\}` of two labelling functions (n,) with values in [0, 1]."""
    moved = np.abs(np.asarray(f_s, float) - f_t)
    return float(min(S.sum(1) @ moved, T.sum(1) @ moved))


def invariant_bound(H: np.ndarray, S: np.ndarray, T: np.ndarray, f_s: np.ndarray, f_t: np.ndarray) -> np.ndarray:
    r"""Appendix D: :math:`\epsilon_S(h) + d_{\tilde H}(S, T) + C`, (M,), for two classes; there
    :math:`d_{\tilde H} = \tfrac12 d_{H \Delta H}`. It needs :math:`f_S, f_T \in H`."""
    return risks(H, S) + divergence(H, S, T) / 2 + shift_constant(S, T, f_s, f_t)


# --- Appendix A: what a distillation loss says about the risk -----------------------------------------------------


def kl(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    r""":math:`D_{KL}(p \| q)` of each row."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(p > 0, p * (np.log(p) - np.log(q)), 0.0).sum(-1)


def flip_cost(p: np.ndarray) -> np.ndarray:
    r"""The smallest :math:`D_{KL}(p \| q)` at which q has another first choice than p, per row.

    With the two largest probabilities a, b: :math:`a \log\frac{2a}{a+b} + b \log\frac{2b}{a+b} \ge (a - b)^2 / 2`.

    >>> float(flip_cost(np.array([[1.0, 0.0, 0.0]]))[0].round(4))  # log 2
    0.6931
    """
    b, a = np.sort(p, -1)[..., -2:].T
    return kl(np.stack([a, b], -1), np.stack([a + b, a + b], -1) / 2)


# --- samples instead of domains -----------------------------------------------------------------------------------


def finite_term(samples: int, hypotheses: int, delta: float) -> float:
    r"""With probability 1 - delta no risk of M hypotheses exceeds its estimate from N samples by more than
    :math:`\sqrt{\log(M / \delta) / 2N}`."""
    return float(np.sqrt(np.log(hypotheses / delta) / (2 * samples)))


def vc_term(samples: int, dimension: int, delta: float) -> float:
    r"""The same for a class of VC dimension d: :math:`\sqrt{8 d \log(eN/d) / N} + \sqrt{\log(1/\delta) / 2N}`."""
    if samples < dimension:
        raise UserError(f"The bound needs at least as many samples as the VC dimension, not {samples} < {dimension}.")
    growth = dimension * np.log(np.e * samples / dimension)
    return float(np.sqrt(8 * growth / samples) + np.sqrt(np.log(1 / delta) / (2 * samples)))
