"""A run stopped between two rounds, so that a page can look inside: trained once, then kept in the cache."""

from __future__ import annotations

from filelock import FileLock

from kd3a import records
from kd3a.domains import Task
from kd3a.errors import UserError
from kd3a.methods.base import Method
from kd3a.runs import Journal, Run, checkpoint_folder, load_checkpoint, save_checkpoint, start
from kd3a.settings import Hardware

RECIPE = 1  # raise it with every change of what a round does, so that old checkpoints are left behind


def halfway(run: Run, task: Task, hardware: Hardware, rounds: int) -> Method:
    """The run's method after its first ``rounds`` rounds: every party, optimiser and byte of the ledger.

    The first call trains and writes a checkpoint, the next ones read it; both give the same method. It goes on with
    ``method.run(method.stages()[rounds])``.
    """
    method = start(run, task, hardware)
    stages = method.stages()
    if not 0 < rounds <= len(stages):
        raise UserError(f"This run has {len(stages)} rounds; choose from 1 to {len(stages)}, not {rounds}.")
    path = checkpoint_folder() / f"{run.key(task.sha256)}-{rounds}-{RECIPE}.safetensors"
    with FileLock(path.with_suffix(".lock")):
        if state := load_checkpoint(path):
            tensors, journal = state
            method.load(tensors)
            method.channel.load(journal.ledger)
        else:
            journal = Journal(records.provenance(method.trainer.device, hardware.threads))
            for stage in stages[:rounds]:
                method.channel.round = stage.round
                method.run(stage)
            save_checkpoint(path, method, journal)
    return method
