"""More and more sources: what a round costs when one process simulates them all."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import replace

from kd3a.domains import Domain, Part, Task
from kd3a.errors import UserError
from kd3a.runs import Run, execute, forget
from kd3a.settings import Hardware
from kd3a.trainer import Stage

CPU = Hardware(device="cpu", precision="float32")


def shards(task: Task, number: int) -> Task:
    """The task with so many sources: the first ones, or every source cut into parts of equal size.

    Smaller sources, and the same target: what changes with the number is the work of a round, not the samples.
    """
    sha256 = hashlib.sha256(f"{task.sha256} {number}".encode()).hexdigest()
    if number <= len(task.sources):
        return replace(task, sources=task.sources[:number], sha256=sha256)
    pieces, rest = divmod(number, len(task.sources))
    if rest:
        raise UserError(f"{number} sources cannot be cut from {len(task.sources)} evenly; choose a multiple.")

    def piece(part: Part, i: int) -> Part:
        return replace(part, **{name: tensor[i::pieces] for name, tensor in part.tensors().items()})

    cut = (Domain(f"{s.name}-{i}", piece(s.train, i), piece(s.test, i)) for s in task.sources for i in range(pieces))
    return replace(task, sources=tuple(cut), sha256=sha256)


def scaling(run: Run, task: Task, numbers: list[int], say: Callable[[dict], None] = print) -> list[dict[str, float]]:
    """Rounds, seconds and bytes of the run with each of these numbers of sources.

    The first run is done twice and counted once, for what happens only once in a process.
    """
    cost(run, shards(task, numbers[0]))
    out = []
    for number in numbers:
        out.append({"sources": number} | cost(run, shards(task, number)))
        say(out[-1])
    return out


def cost(run: Run, task: Task) -> dict[str, float]:
    """Rounds, seconds and bytes of one run, done from its beginning.

    Seconds are those that one core computed, so that other work on the machine does not count.
    """
    rounds: list[Stage] = []
    forget(run.key(task.sha256))
    began = time.process_time()
    record = execute(run, task, CPU, quiet=True, on_stage=lambda _, stage: rounds.append(stage))
    seconds = round(time.process_time() - began, 2)
    forget(record["key"])
    crossed = sum(entry["bytes_up"] + entry["bytes_down"] for entry in record["epochs"])
    return {"rounds": len(rounds), "seconds": seconds, "bytes": crossed}
