"""Many sources on one machine or cluster: Flower's simulation engine runs the same two apps in Ray's workers.

No process is started per answer, so this is the way to many sources; there is no TLS, for nothing leaves the engine.
Ray starts on this machine, or is the cluster whose address stands in RAY_ADDRESS; its nodes read the same files.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

from kd3a.domains import Task
from kd3a.errors import UserError
from kd3a.federation import files
from kd3a.federation.demo import plan_of, told, watch
from kd3a.federation.processes import Link
from kd3a.records import Record
from kd3a.runs import Run


class Simulation(Link):
    """A SuperLink whose nodes are simulated, with CPUs and a share of a GPU for each source at work."""

    def __init__(self, folder: Path, task: Task, cpus: int = 1, gpus: float = 0.0):
        self.cpus, self.gpus, self.cluster = cpus, gpus, bool(os.environ.get("RAY_ADDRESS"))
        there = {"CPUs": (cpus, os.cpu_count()), "GPUs": (gpus, torch.cuda.device_count())}
        for what, (wanted, found) in there.items():
            if wanted > found and not self.cluster:
                raise UserError(f"A source is to have {wanted:g} {what}, and this machine has {found}: ask for less.")
        super().__init__(folder, task)
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
        }
        if not self.cluster:
            numbers["init-args-num-cpus"] = os.cpu_count()
        words = " ".join(f"{key}={value}" for key, value in numbers.items())
        self.begin(plan_of(run, scale), simulated=str(self.folder), options=("--federation-config", words))
        return watch(self, say)


def simulate(run: Run, task: Task, folder: Path, cpus: int = 1, gpus: float = 0.0, scale: str = "") -> Record:
    """The record of a run whose sources are simulated nodes."""
    with Simulation(folder.resolve(), task, cpus, gpus) as simulation:
        simulation.start_link()
        return simulation.record(run, scale)
