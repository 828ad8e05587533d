"""Small worlds in which every term of the bounds can be known: a square with three sources, and the counter-examples.

Used by the book's chapter *The bounds, computed*. Tables and hypothesis classes are as in :mod:`kd3a.bounds`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F

from kd3a import bounds
from kd3a.consensus import knowledge_vote
from kd3a.domains import Domain, Part, Task
from kd3a.methods.kd3a import KD3A

Problem = tuple[np.ndarray, list[np.ndarray], np.ndarray, np.ndarray]  # H, sources, target, consensus labels


@dataclass(frozen=True)
class World:
    """Inputs, true labels, a hypothesis class, and how often each domain meets each input."""

    x: np.ndarray  # (n, 2)
    labels: np.ndarray  # (n,)
    H: np.ndarray  # (M, n)
    lines: np.ndarray  # (M, 3): hypothesis m says 1 where lines[m, :2] @ x > lines[m, 2]
    masses: np.ndarray  # (K, n), of the sources
    target_mass: np.ndarray  # (n,)

    @property
    def target(self) -> np.ndarray:
        """The target's table, (n, 2)."""
        return bounds.domain(self.target_mass, self.labels)

    def sources(self, liars: Iterable[int] = (), wrong: float = 0.0) -> list[np.ndarray]:
        """The sources' tables; those in ``liars`` have a share ``wrong`` of wrong labels."""
        liars = set(liars)
        return [bounds.domain(m, self.labels, wrong=wrong if k in liars else 0.0) for k, m in enumerate(self.masses)]


def border(first: np.ndarray) -> np.ndarray:
    """The curve that parts the classes of the square: the second feature as a function of the first."""
    return 0.5 * np.sin(np.pi * first)


def square(side: int = 21, directions: int = 16, offsets: int = 13) -> World:
    """A square of ``side`` × ``side`` inputs. A curve parts the classes, hypotheses are straight lines; two sources see
    one end of the curve each, the third sees everything, the target its middle."""
    ticks = np.linspace(-1, 1, side)
    x = np.stack(np.meshgrid(ticks, ticks), -1).reshape(-1, 2)
    angles = 2 * np.pi * np.arange(directions) / directions
    offset = np.linspace(-1, 1, offsets) + 1e-3  # no input lies on a line
    around = np.stack([np.cos(angles), np.sin(angles)], 1)  # (directions, 2)
    H = bounds.separators(x, around, offset)
    lines = np.concatenate([np.repeat(around, offsets, 0), np.tile(offset, directions)[:, None]], 1)

    def cloud(centre: tuple[float, float], width: float) -> np.ndarray:
        return np.exp(-((x - centre) ** 2).sum(1) / (2 * width**2))

    sources = [cloud((-0.6, -0.3), 0.35), cloud((0.6, 0.3), 0.35), cloud((0, 0), 0.7)]
    labels = (x[:, 1] > border(x[:, 0])).astype(int)
    return World(x, labels, H, lines, np.stack(sources), cloud((0, 0), 0.45))


def least(values: np.ndarray) -> int:
    """Where the smallest value stands; the first of equals, whatever the rounding says."""
    return int(values.round(12).argmin())


def best(H: np.ndarray, sources: Sequence[np.ndarray]) -> list[int]:
    """Which hypothesis has the least risk in each source."""
    return [least(bounds.risks(H, S)) for S in sources]


def teachers(H: np.ndarray, sources: Sequence[np.ndarray]) -> np.ndarray:
    """What these hypotheses, the teachers, say about each input, (K, n)."""
    return H[best(H, sources)]


def consensus(answers: np.ndarray, classes: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Knowledge Vote of teachers that are always sure, (K, n): consensus labels (n,) and supporters n_p (n,)."""
    q = F.one_hot(torch.from_numpy(answers.T.copy()), classes).double()  # (n, K, C)
    p, n = knowledge_vote(q, gate=0.9)
    return p.argmax(-1).numpy(), n.numpy()


def sweep(world: World, liars: Iterable[int], shares: Iterable[float]) -> pd.DataFrame:
    """Proposition 2 as sources turn malicious: one row per share of wrong labels, equal source weights.

    The model is the one a student would become: least risk on the consensus.
    """
    rows, liars = [], tuple(liars)
    alpha = np.full(len(world.masses), 1 / len(world.masses))
    for share in shares:
        sources = world.sources(liars, share)
        t = bounds.terms(world.H, sources, world.target, consensus(teachers(world.H, sources))[0])
        h = least(t.consensus)
        rows.append(
            {
                "share": share,
                "label error": t.label_error,
                "risk gap": t.gap,
                "printed": bounds.printed_margins(t).min(),
                "corrected": bounds.corrected_margins(t).min(),
                "exact": bounds.exact_margin(t, alpha),
                "target risk": t.target[h],
                "Theorem 1": bounds.original_bound(t, alpha)[h],
                "Proposition 1": bounds.distillation_bound(t)[h],
            }
        )
    return pd.DataFrame(rows)


def misleading(table: pd.DataFrame) -> pd.Series:
    """Which rows of a :func:`sweep` fulfil the printed condition although the KD3A bound is looser, (rows,) bool."""
    return (table["printed"] >= 0) & (table["exact"] < 0)


# --- a real training in a world where all is known -----------------------------------------------------------------


def draw(x: np.ndarray, table: np.ndarray, number: int, rng: np.random.Generator) -> Part:
    """So many independent samples of a domain."""
    cells = rng.choice(table.size, number, p=table.ravel() / table.sum())
    at, labels = np.divmod(cells, table.shape[1])
    return Part(torch.tensor(x[at], dtype=torch.float32), torch.tensor(labels))


def as_task(world: World, sources: Sequence[np.ndarray], samples: int, seed: int) -> Task:
    """The world as a task for any method of this book: ``samples`` draws of each domain for training, and for tests."""
    rng = np.random.default_rng(seed)
    domains = [
        Domain(name, draw(world.x, table, samples, rng), draw(world.x, table, samples, rng))
        for name, table in (*((f"source {k}", S) for k, S in enumerate(sources, 1)), ("target", world.target))
    ]
    return Task("square", tuple(domains[:-1]), domains[-1], ("below", "above"), sha256="")


def train(method: KD3A, world: World, sources: Sequence[np.ndarray]) -> pd.DataFrame:
    """Run KD3A to its end and hold its bounds against the truth: one row per round.

    The hypothesis class is the world's, together with every teacher and every average model of the run.
    """
    everywhere = Part(torch.tensor(world.x, dtype=torch.float32), torch.tensor(world.labels))
    visited, told = [], []
    for stage in method.stages():
        logs = method.run(stage)
        q = torch.stack([method.trainer.predict(net, everywhere) for net in method.teachers], 1)  # (n, K, 2)
        average = method.predict(everywhere).argmax(-1)
        visited += [*q.argmax(-1).T.cpu().numpy(), average.cpu().numpy()]
        p, _ = knowledge_vote(q.cpu(), logs["gate"])
        told.append((len(visited) - 1, p.argmax(-1).numpy(), logs["weights"].cpu().double().numpy()))
    H = np.concatenate([np.stack(visited), world.H])
    clean = bounds.terms(H, sources, world.target, world.labels)  # all but the consensus stays the same
    return pd.DataFrame([_row(H, clean, world.target, *round) for round in told], index=range(1, len(told) + 1))


def _row(H: np.ndarray, clean: bounds.Terms, target: np.ndarray, at: int, labels: np.ndarray, alpha: np.ndarray):
    consensus_risks = bounds.risks(H, bounds.relabelled(target, labels))
    t = replace(clean, consensus=consensus_risks, label_error=bounds.risks(labels[None], target)[0])
    alpha = alpha / alpha.sum()
    own = alpha[:-1] / alpha[:-1].sum()
    return {
        "target risk": t.target[at],
        "Proposition 1": bounds.distillation_bound(t)[at],
        "Theorem 2 (KD3A)": bounds.kd3a_bound(t, alpha)[at],
        "Theorem 1": bounds.original_bound(t, own)[at],
        "label error": t.label_error,
        "risk gap": t.gap,
        "half divergence": own @ t.divergences / 2,
        "joint risk": t.lambda_0(own),
        "weights": alpha,
    }


# --- counter-examples ---------------------------------------------------------------------------------------------


def majority_of_liars() -> Problem:
    """One input, one honest source and two liars that outvote it. The printed condition of Proposition 2 holds, yet
    the distillation bound is above Theorem 1."""
    H, mass = np.array([[1], [0]]), np.ones(1)
    sources = [bounds.domain(mass, np.array([label])) for label in (1, 0, 0)]
    return H, sources, sources[0], consensus(teachers(H, sources))[0]


def noisy_target() -> Problem:
    """Ten equal inputs, one hypothesis, labels that are wrong for it in 2 (source), 3 (target) and 3 (consensus, the
    same 3) of them. The corrected condition holds, yet Theorem 2 in the ``joint`` reading is above Theorem 1."""
    mass = np.ones(10)
    source, target = (np.arange(10) >= number for number in (2, 3))
    return np.ones((1, 10), int), [bounds.domain(mass, source * 1)], bounds.domain(mass, target * 1), target * 1


def labels_outside() -> Problem:
    """Two inputs, one hypothesis, and the same labels everywhere, which no hypothesis knows. Appendix D's bound is 0,
    the target's risk is 1."""
    labels = np.array([1, 0])
    source, target = (bounds.domain(np.eye(2)[k], labels) for k in (0, 1))
    return np.ones((1, 2), int), [source], target, labels


def aligned_and_wrong() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Four inputs, the first two the source's, the others the target's, and a representation that maps each source
    input to the target input of the other class. Returns all functions of the inputs, all functions of the
    representation, and the two domains."""
    labels, representation = np.array([0, 1, 0, 1]), np.array([0, 1, 1, 0])
    of_inputs = np.array(list(product((0, 1), repeat=4)))
    of_features = np.array(list(product((0, 1), repeat=2)))[:, representation]
    source, target = (bounds.domain(np.array(mass), labels) for mass in ((1, 1, 0, 0), (0, 0, 1, 1)))
    return of_inputs, of_features, source, target


def same_moments() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Five inputs on a line and two domains with equal mean and second moment: x, S, T. No statistic of BatchNorm can
    tell them apart, thresholds can."""
    x = np.sqrt(2) * np.array([-1, -np.sqrt(0.5), 0, np.sqrt(0.5), 1])
    labels = np.zeros(5, int)
    return x, bounds.domain(np.array([0, 1, 0, 1, 0]), labels), bounds.domain(np.array([1, 0, 2, 0, 1]), labels)
