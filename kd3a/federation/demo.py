"""One run twice: in one process, then with SuperLink and SuperNodes as processes of their own, and the comparison."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from kd3a.domains import Task
from kd3a.federation.order import admit
from kd3a.federation.processes import Link, Machines
from kd3a.federation.report import Comparison
from kd3a.federation.scaling import CPU
from kd3a.records import Record
from kd3a.runs import Run, checkpoint_folder, execute, forget


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
        return machines.ended()

    machines.wait(look, 3600, "the run to end", "superlink")
    return machines.finish()
