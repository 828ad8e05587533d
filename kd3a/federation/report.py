"""What a federation measured: a run on several processes beside the same run in one, and rounds of many sources.

Needs nothing but the file ``results/federation.json``, which ``python -m kd3a.federation demo --save`` and
``… scale --save`` write.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from kd3a.errors import UserError
from kd3a.records import ROOT, Record

FILE = ROOT / "results" / "federation.json"


@dataclass(frozen=True)
class Comparison:
    """A run in one process beside the same run on several."""

    alone: Record
    federated: Record
    rounds: list[dict[str, Any]]
    differing: list[str]  # tensors of the target that are not the same to the bit
    sockets: dict[str, tuple[int, int]]  # bytes that crossed by source: up, down

    def ledger(self, way: str) -> int:
        """Bytes of tensors that the ledger counted, ``up`` or ``down``."""
        return sum(entry[f"bytes_{way}"] for entry in self.federated["epochs"])

    def payload(self, way: str) -> int:
        """Bytes of the messages: tensors with their names and shapes."""
        return sum(entry[f"payload_{way}"] for entry in self.rounds)

    def crossed(self, way: str) -> int:
        """Bytes that the sockets carried, encryption, polling and all."""
        return sum(pair[way == "down"] for pair in self.sockets.values())

    @property
    def overhead(self) -> float:
        """Seconds of a round over several processes, in those of a round in one."""
        return self.federated["seconds"] / self.alone["seconds"]

    def bytes(self) -> pd.DataFrame:
        """What was counted where, and how much more that is than the ledger's count."""
        rows = {"ledger": self.ledger, "messages": self.payload, "sockets": self.crossed}
        frame = pd.DataFrame({name: {way: count(way) for way in ("up", "down")} for name, count in rows.items()}).T
        frame["more than the ledger"] = frame.sum(axis=1) / (self.ledger("up") + self.ledger("down")) - 1
        return frame

    def accuracies(self) -> pd.DataFrame:
        """Target accuracy by epoch, both ways."""
        runs = {"several processes": self.federated, "one process": self.alone}
        return pd.DataFrame({n: {e["epoch"]: e["target_accuracy"] for e in r["epochs"]} for n, r in runs.items()})


@dataclass(frozen=True)
class Measured:
    """The file's contents; a part that was not measured is missing."""

    comparison: Comparison | None = None
    scaling: list[dict[str, float]] | None = None  # of runs with K simulated sources: sources, rounds, seconds, bytes

    @classmethod
    def read(cls, path: Path = FILE) -> Self:
        if not path.exists():
            return cls()
        try:
            told = json.loads(path.read_text())
            comparison = Comparison(**told["comparison"]) if told.get("comparison") else None
            return cls(comparison, told.get("scaling"))
        except (ValueError, TypeError) as error:
            raise UserError(f"{path} cannot be read ({error}); delete it and measure again.") from None

    def write(self, path: Path = FILE) -> None:
        """Put the file in place; what this lacks is kept from the file that is there."""
        there = Measured.read(path)
        told = {"comparison": self.comparison or there.comparison, "scaling": self.scaling or there.scaling}
        told["comparison"] = told["comparison"] and asdict(told["comparison"])
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(told, indent=1) + "\n")
        os.replace(draft, path)


def table(c: Comparison) -> str:
    """The comparison in a few lines of text."""
    rounds = len(c.rounds)
    pace = f"{c.federated['seconds'] / rounds:.1f} s a round, {c.alone['seconds'] / rounds:.1f} s in one process"
    verdict = f"differs in {', '.join(c.differing)}" if c.differing else "is the same to the bit"
    formats = {"up": "{:,.0f}".format, "down": "{:,.0f}".format, "more than the ledger": "{:.1%}".format}
    return "\n".join(
        [
            f"Target accuracy by epoch:\n{c.accuracies().round(4).to_string()}",
            f"Bytes that crossed:\n{c.bytes().to_string(formatters=formats)}",
            f"{pace}: {c.overhead:.1f}×",
            f"The target's model {verdict}.",
        ]
    )


def line(scaling: list[dict[str, float]]) -> tuple[float, float]:
    r"""Seconds of a round as :math:`a + b K`, by least squares over the measured numbers of sources.

    >>> line([{"sources": k, "rounds": 2, "seconds": 2 * (3 + 0.5 * k)} for k in (2, 4, 8)])
    (3.0, 0.5)
    """
    sources = [entry["sources"] for entry in scaling]
    slope, start = np.polyfit(sources, [entry["seconds"] / entry["rounds"] for entry in scaling], 1)
    return round(float(start), 9), round(float(slope), 9)


def projected(scaling: list[dict[str, float]], sources: list[int], bandwidth: float = 1e9 / 8) -> pd.DataFrame:
    """What a round would take with so many sources, by :func:`line` and the measured bytes of a model.

    Args:
        bandwidth: of the target's line, bytes a second; every byte of every source goes through it.
    """
    start, slope = line(scaling)
    size = scaling[-1]["bytes"] / scaling[-1]["rounds"] / scaling[-1]["sources"]  # of one source in one round
    rows = {
        k: {"GB a round": k * size / 1e9, "line, s": k * size / bandwidth, "computing, s": start + slope * k}
        for k in sources
    }
    return pd.DataFrame(rows).T
