"""Shards: a grid dealt to the jobs of a scheduler's array, each of which trains its own part of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kd3a.errors import UserError
from kd3a.probes import Probe
from kd3a.runs import Run


@dataclass(frozen=True)
class Shard:
    """Part ``number`` of ``of`` parts, counted from 1; the only part of one is the whole grid."""

    number: int = 1
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read ``i/n``.

        >>> Shard.parse("2/8")
        Shard(number=2, of=8)
        """
        match = re.fullmatch("([0-9]{1,6})/([0-9]{1,6})", text)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise UserError(f"--shard {text}: expected i/n, part i of n, with i from 1 to n, such as 2/8.")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


WHOLE = Shard()


def deal(runs: Sequence[Run | Probe], of: int) -> list[int]:
    """The shard, from 1 to ``of``, that each run belongs to.

    Runs are dealt one by one in turn, those that see the most samples first and runs of the same method and settings
    together: every shard gets as many of each, give or take one, and the samples of two shards differ by no more than
    one run of the largest budget. Only the grid decides, never what is recorded: jobs of an array start at different
    times and must agree. A run that stands in two rows is dealt once.
    """
    distinct = {run.key(""): run for run in runs}
    alike = {key: str((run.method, run.settings)) for key, run in distinct.items()}
    first = {kind: place for place, kind in reversed(list(enumerate(alike.values())))}
    order = sorted(distinct, key=lambda key: (-distinct[key].samples, first[alike[key]]))
    shard = {key: place % of + 1 for place, key in enumerate(order)}
    return [shard[run.key("")] for run in runs]
