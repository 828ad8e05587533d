"""One run twice: in one process, then with SuperLink and SuperNodes as processes of their own, and the comparison."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from kd3a.domains import Task
from kd3a.federation.order import admit
from kd3a.federation.processes import Link, Machines
from kd3a.records import Record
from kd3a.runs import Run, checkpoint_folder, execute, forget
from kd3a.settings import Hardware

CPU = Hardware(device="cpu", precision="float32")


@dataclass(frozen=True)
class Comparison:
    """A run in one process beside the same run on several."""

    alone: Record
    federated: Record
    rounds: list[dict[str, Any]]
    differing: list[str]  # tensors of the target that are not the same to the bit
    sockets: dict[str, tuple[int, int]]  # bytes that crossed by source: up, down

    def ledger(self, direction: str) -> int:
        """Bytes of tensors that the ledger counted, ``up`` or ``down``."""
        return sum(entry[f"bytes_{direction}"] for entry in self.federated["epochs"])

    def payload(self, direction: str) -> int:
        """Bytes of the messages' tensors with their names and shapes."""
        return sum(entry[f"payload_{direction}"] for entry in self.rounds)

    def crossed(self, direction: str) -> int:
        """Bytes that the sockets carried, encryption, polling and all."""
        return sum(pair[direction == "down"] for pair in self.sockets.values())

    @property
    def overhead(self) -> float:
        """Seconds of a round over several processes, in those of a round in one."""
        return self.federated["seconds"] / self.alone["seconds"]


def told(line: str) -> None:
    print(line, flush=True)


def compare(run: Run, task: Task, folder: Path, scale: str = "", say: Callable[[str], None] = told) -> Comparison:
    """Do the run both ways; all that the federation writes is in ``folder``, which is emptied first."""
    admit(run)
    forget(run.key(task.sha256))
    began = time.monotonic()
    alone = execute(run, task, CPU, run.dataset, scale, quiet=True)
    expected = load_file(checkpoint_folder() / f"{alone['key']}.safetensors")
    forget(alone["key"])
    say(f"In one process: accuracy {alone['target_accuracy']:.4f} after {time.monotonic() - began:.0f} s.")
    shutil.rmtree(folder, ignore_errors=True)
    with Machines(folder.resolve(), task) as machines:
        machines.start_link()
        machines.register(*machines.names)
        say(f"SuperLink on port {machines.port}, TLS on, keys of {len(machines.nodes)} nodes registered.")
        for name in machines.names:
            machines.start_node(name)
        machines.begin(plan_of(run, scale))
        record = watch(machines, say)
        reached = load_file(machines.link_folder / "cache" / "runs" / f"{record['key']}.safetensors")
        differing = [name for name, tensor in reached.items() if not torch.equal(tensor, expected[name])]
        sockets = {name: (proxy.up, proxy.down) for name, proxy in machines.proxies.items()}
        return Comparison(alone, record, machines.rounds(), differing, sockets)


def plan_of(run: Run, scale: str = "", **more: Any) -> dict[str, Any]:
    """The plan of a run, but for what the machines fill in."""
    told = {"dataset": run.dataset, "method": run.method, "seed": run.seed, "scale": scale}
    return told | {"training": run.training.model_dump(), "config": run.config.model_dump()} | more


def watch(machines: Link, say: Callable[[str], None]) -> Record:
    """Tell every round as it ends; returns the record."""
    told = 0

    def look() -> bool:
        nonlocal told
        for entry in machines.rounds()[told:]:
            missing = [*entry["refused"], *entry["silent"]]
            rest = f", without {', '.join(missing)}" if missing else ""
            say(f"round {entry['round']}  {len(entry['answered'])} answers in {entry['seconds']:6.1f} s{rest}")
            told += 1
        return machines.outcome.exists()

    machines.wait(look, 3600, "the run to end", "superlink")
    return machines.finish()


def table(c: Comparison) -> str:
    """The comparison in a few lines."""
    lines = [f"{'epoch':>5} {'accuracy':>9} {'in one process':>15}"]
    for one, other in zip(c.federated["epochs"], c.alone["epochs"], strict=True):
        lines.append(f"{one['epoch']:5d} {one['target_accuracy']:9.4f} {other['target_accuracy']:15.4f}")
    lines.append(f"{'bytes':>5} {'up':>14} {'down':>14}")
    for name, count in (("ledger", c.ledger), ("messages", c.payload), ("sockets", c.crossed)):
        lines.append(f"{name:8} {count('up'):11,d} {count('down'):14,d}")
    rounds = len(c.rounds)
    lines.append(
        f"{c.federated['seconds'] / rounds:.1f} s a round, {c.alone['seconds'] / rounds:.1f} s in one process: "
        f"{c.overhead:.1f}×"
    )
    lines.append(
        f"The target's model {'differs in ' + ', '.join(c.differing) if c.differing else 'is the same to the bit'}."
    )
    return "\n".join(lines)
