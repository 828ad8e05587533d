"""Many sources on one machine or cluster: Flower's simulation engine runs the same two apps in Ray's workers.

No process is started per answer, so this is the way to many sources; there is no TLS, for nothing leaves the engine.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kd3a.domains import Domain, Part, Task
from kd3a.errors import UserError
from kd3a.federation import files
from kd3a.federation.demo import plan_of, told, watch
from kd3a.federation.processes import Link
from kd3a.records import Record
from kd3a.runs import Run


class Simulation(Link):
    """A SuperLink whose nodes are simulated, with a share of CPUs and GPUs for each source at work."""

    def __init__(self, folder: Path, task: Task, cpus: float = 1, gpus: float = 0.0):
        super().__init__(folder, task)
        self.cpus, self.gpus = cpus, gpus
        for path in files.export(task, folder / "exported"):
            home = self.link_folder if path.stem == task.target.name else folder / "sources"
            home.mkdir(parents=True, exist_ok=True)
            path.replace(home / path.name)

    def start_link(self) -> None:
        self._link("insecure = true", "--insecure", "--simulation")
        self.wait(self.listens, 120, "the SuperLink to answer", "superlink")

    def record(self, run: Run, scale: str = "", say: Callable[[str], None] = told) -> Record:
        """Do the run."""
        numbers = {
            "num-supernodes": len(self.names),
            "client-resources-num-cpus": self.cpus,
            "client-resources-num-gpus": self.gpus,
            "init-args-num-cpus": os.cpu_count(),
        }
        words = " ".join(f"{key}={value}" for key, value in numbers.items())
        self.begin(plan_of(run, scale), simulated=str(self.folder), options=("--federation-config", words))
        return watch(self, say)


def simulate(run: Run, task: Task, folder: Path, cpus: float = 1, gpus: float = 0.0, scale: str = "") -> Record:
    """The record of a run whose sources are simulated nodes."""
    with Simulation(folder.resolve(), task, cpus, gpus) as simulation:
        simulation.start_link()
        return simulation.record(run, scale)


# --- many sources -----------------------------------------------------------------------------------------------------


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


def scaling(run: Run, task: Task, numbers: list[int], folder: Path, cpus: float = 1) -> list[dict[str, float]]:
    """Rounds, seconds and bytes of the run with each of these numbers of sources, simulated.

    The first round is left out, for Ray's workers start in it; the target's own work is shared out evenly.
    """
    out = []
    for number in numbers:
        with Simulation((folder / str(number)).resolve(), shards(task, number), cpus) as simulation:
            simulation.start_link()
            record, rounds = simulation.record(run), simulation.rounds()
        later = [entry["seconds"] for entry in rounds[1:]]
        share = len(later) / len(rounds)
        own = record["seconds"] - sum(entry["seconds"] for entry in rounds)
        crossed = sum(entry["bytes_up"] + entry["bytes_down"] for entry in record["epochs"])
        seconds = round(sum(later) + share * own, 2)
        out.append({"sources": number, "rounds": len(later), "seconds": seconds, "bytes": share * crossed})
        told(json.dumps(out[-1]))
    return out
