"""One run: from what it is told to its record, surviving a kill at any moment."""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from kd3a import records
from kd3a.attacks import Attack, AttackedChannel
from kd3a.channel import Channel
from kd3a.data.files import cache_folder
from kd3a.domains import Task
from kd3a.errors import Busy, Diverged, UserError, choose
from kd3a.losses import entropy
from kd3a.methods import METHODS
from kd3a.methods.base import Exchange, Method, Poll
from kd3a.poison import Poison, poisoned
from kd3a.progress import Progress
from kd3a.settings import Hardware, Settings, Training
from kd3a.trainer import Stage, Trainer

CHECKPOINT_SECONDS = 5.0  # at least, between two: those of large networks take a third of a second to write


@dataclass(frozen=True)
class Run:
    """What determines a result, apart from the data's hash."""

    dataset: str
    target: str
    method: str
    seed: int
    training: Training
    config: Settings

    @property
    def settings(self) -> dict[str, Any]:
        """Training and method settings in one flat dict, as the record shows them."""
        return self.training.model_dump() | self.config.model_dump()

    @property
    def samples(self) -> int:
        """How many samples of every domain the run sees."""
        return self.training.epochs * self.training.epoch_samples

    def facts(self) -> dict[str, Any]:
        """What a record says of the run, and all that :func:`run_from` needs."""
        names = ("dataset", "target", "method", "seed")
        return {name: getattr(self, name) for name in names} | {"config": self.settings}

    def key(self, data_sha256: str) -> str:
        """The run's name: a hash of what it was told. Settings at their defaults are left out, so that a switch added
        later does not rename the runs before it."""
        told = self.training.model_dump(exclude_defaults=True) | self.config.model_dump(exclude_defaults=True)
        return records.key_of(
            {
                "dataset": self.dataset,
                "data_sha256": data_sha256,
                "method": self.method,
                "target": self.target,
                "seed": self.seed,
                "config": told,
            }
        )


def make_run(dataset: str, target: str, method: str, seed: int, training: Training, values: dict[str, Any]) -> Run:
    """A checked run; ``values`` are the method's own settings."""
    cls = choose("method", method, METHODS)
    return Run(dataset, target, method, seed, training, cls.Config.read(values, f"method {method}"))


def run_from(facts: dict[str, Any]) -> Run:
    """The run that a record, or :meth:`Run.facts`, tells of."""
    own = {name: value for name, value in facts["config"].items() if name not in Training.model_fields}
    training = Training.read({name: value for name, value in facts["config"].items() if name not in own})
    return make_run(*(facts[name] for name in ("dataset", "target", "method", "seed")), training, own)


def checkpoint_folder() -> Path:
    folder = cache_folder() / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def start(run: Run, task: Task, hardware: Hardware, exchange: Exchange | None = None) -> Method:
    """Build the run's method, ready for its first stage. With an ``exchange``, its sources are elsewhere."""
    trainer = Trainer(run.training, hardware, run.seed)
    task = task.with_sources(run.training.sources, trainer.derive("sources"))
    task = poisoned(task.to(trainer.device), Poison.parse(run.training.poison), trainer.derive("poison"))
    channel = Channel(task.target.name)
    attack, kind = Attack.parse(run.training.attack), METHODS[run.method]
    if attack and (kind.needs_source_data or kind.uses_target_labels):
        raise UserError(
            f"No source uploads a model to method {run.method}: take attack = {run.training.attack!r} away."
        )
    if attack and not exchange:  # elsewhere, the source itself attacks
        choose("source that attacks", attack.source, [source.name for source in task.sources])
        channel = AttackedChannel(task.target.name, attack, trainer.derive("attack"))
    method = kind(task, run.config, trainer, channel)
    if exchange:
        method.exchange = exchange
        method.parties = [party for party in method.parties if party.name not in method.sources]
    return method


def execute(
    run: Run,
    task: Task,
    hardware: Hardware,
    study: str = "",
    scale: str = "",
    quiet: bool = False,
    on_stage: Callable[[Method, Stage], None] | None = None,
    out: Path | None = None,
    exchange: Exchange | None = None,
) -> records.Record:
    """Train the run and return its record; goes on from the run's checkpoint if there is one.

    With ``out``, the record is appended to that file, and a run that is there already is not trained again. With an
    ``exchange``, sources are elsewhere and go on from their own last round: every round leaves a checkpoint here.
    """
    key = run.key(task.sha256)
    checkpoint = checkpoint_folder() / f"{key}.safetensors"
    torch.set_num_threads(hardware.threads)
    try:
        lock = FileLock(checkpoint.with_suffix(".lock")).acquire(timeout=0)
    except Timeout:
        raise Busy(f"Run {key} is being trained by another process on this machine.") from None
    with lock, torch.random.fork_rng(_gpus()):
        known = {record["key"]: record for record in records.read(out)} if out else {}
        if key in known:
            return known[key]
        method = start(run, task, hardware, exchange)
        journal = resumed(method, checkpoint, hardware, getattr(exchange, "provenance", {}))
        stages = method.stages()
        with Progress(f"{run.method} → {run.target} (seed {run.seed})", len(stages), journal.rounds, quiet) as bar:
            written = -math.inf
            for stage in stages[journal.rounds :]:
                began = time.monotonic()
                method.channel.round = stage.round
                logs = method.run(stage)
                journal.note(method, stage, logs)
                journal.seconds += time.monotonic() - began
                journal.rounds = stage.round + 1
                ended = journal.rounds == len(stages)
                if exchange or ended or time.monotonic() - written > CHECKPOINT_SECONDS:
                    save_checkpoint(checkpoint, method, journal)
                    written = time.monotonic()
                bar.advance(journal.epochs[-1] if journal.epochs else {})
                if on_stage:
                    on_stage(method, stage)
        record = {"key": key, "study": study, "scale": scale} | told(run, task, method, journal)
        if out:
            records.append(out, record)  # before the lock opens: nobody may train it again
        return record


def told(run: Run, task: Task, method: Method, journal: Journal) -> records.Record:
    """What a record tells of a run that has ended."""
    return {
        "dataset": run.dataset,
        "data_sha256": task.sha256,
        "method": run.method,
        "target": run.target,
        "seed": run.seed,
        "config": run.settings,
        "epochs": journal.epochs,
        "target_accuracy": journal.epochs[-1]["target_accuracy"],
        "criterion": round(criterion(method), 6),
        "seconds": round(journal.seconds, 2),
        "peak_mb": round(peak_bytes(method.trainer.device) / 2**20, 1),
        "provenance": journal.provenance,
    }


def forget(key: str) -> None:
    """Remove the checkpoint of a run whose record is safe."""
    for suffix in (".safetensors", ".lock"):
        (checkpoint_folder() / f"{key}{suffix}").unlink(missing_ok=True)


class Journal:
    """What a run has to tell so far: rounds done, epoch entries, seconds, and the ledger when it was resumed."""

    def __init__(self, provenance: dict[str, Any]):
        self.provenance = provenance
        self.rounds = 0
        self.seconds = 0.0
        self.epochs: list[dict[str, Any]] = []
        self.ledger: list[list] = []
        self.pending: list[Tensor] = []  # losses since the last entry, still on the device
        self.since = 0  # first round that no entry speaks of

    def note(self, method: Method, stage: Stage, logs: dict[str, Any]) -> None:
        """Keep a stage's loss; at the end of an epoch, check that it is finite, score the target, write the entry."""
        self.pending.append(logs["loss"])
        if not stage.closes_epoch:
            return
        rounds = range(self.since, stage.round + 1)
        loss = sum(loss.item() for loss in self.pending) / len(self.pending)
        if not math.isfinite(loss):
            raise Diverged(f"The loss of epoch {stage.epochs_done} is not finite; try a lower learning rate.")
        entry = {
            "epoch": stage.epochs_done,
            "target_accuracy": accuracy(method),
            "loss": loss,
            "gate": logs.get("gate"),
            "weights": dict(zip(method.weighted, logs["weights"].tolist(), strict=True)) if "weights" in logs else {},
            "bytes_up": method.channel.bytes("up", rounds=rounds),
            "bytes_down": method.channel.bytes("down", rounds=rounds),
        }
        if "vote" in logs:
            entry["vote"] = score(logs["vote"], method.task.target.train.y)
        self.epochs.append(entry)
        self.pending, self.since = [], stage.round + 1

    def state(self) -> dict[str, Any]:
        names = ("provenance", "rounds", "seconds", "epochs", "ledger", "since")
        return {name: getattr(self, name) for name in names} | {"pending": [p.item() for p in self.pending]}

    @classmethod
    def restore(cls, state: dict[str, Any]) -> Journal:
        journal = cls(state["provenance"])
        journal.__dict__.update(state, pending=[torch.tensor(p) for p in state["pending"]])
        return journal


def accuracy(method: Method) -> float:
    """Share of the target's test samples that are classified correctly."""
    test = method.task.target.test
    return (method.predict(test).argmax(-1) == test.y).cpu().double().mean().item()


def criterion(method: Method) -> float:
    r"""How much the predictions tell about the target's training samples, from 0 to 1; no label is read.

    The mutual information of sample and predicted class, :math:`h(\bar p) - \frac1N \sum_i h(p_i)`, in units of its
    largest value :math:`\log C`: high when single predictions are sure and all classes are in use. Settings are chosen
    by it.
    """
    p = method.predict(method.task.target.train).cpu().double()  # (N, C)
    return ((entropy(p.mean(0)) - entropy(p).mean()) / math.log(p.shape[1])).item()


def score(poll: Poll, labels: Tensor) -> dict[str, float | None]:
    """Share of samples that a vote accepted, and share of those that it names correctly (nothing if there are none).

    Labels are read here alone, when the round is over: nothing that trains sees the outcome.
    """
    right = (poll.choice == labels[poll.rows]) & poll.accepted
    accepted = int(poll.accepted.sum())
    return {"accepted": accepted / len(poll.rows), "accuracy": int(right.sum()) / accepted if accepted else None}


def save_checkpoint(path: Path, method: Method, journal: Journal) -> None:
    """Everything a resumed run needs in one safetensors file, put in place at once."""
    journal.ledger = method.channel.state()
    tensors = {name: t.detach().cpu().contiguous() for name, t in method.state().items()}
    draft = path.with_suffix(".draft")
    save_file(tensors, draft, metadata={"journal": json.dumps(journal.state())})
    os.replace(draft, path)


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], Journal] | None:
    """Tensors and journal of an unfinished run, or nothing if there is none that can be read."""
    try:
        with safe_open(path, framework="pt") as file:
            journal = Journal.restore(json.loads(file.metadata()["journal"]))
            return {name: file.get_tensor(name) for name in file.keys()}, journal  # noqa: SIM118 (not a dict)
    except (FileNotFoundError, SafetensorError, ValueError, KeyError, TypeError):
        return None


def resumed(method: Method, path: Path, hardware: Hardware, notes: Mapping[str, Any] | None = None) -> Journal:
    """The run's journal: that of its checkpoint, whose state the method takes over, or a new one with these notes."""
    if state := load_checkpoint(path):
        tensors, journal = state
        method.load(tensors)
        method.channel.load(journal.ledger)
        return journal
    return Journal(records.provenance(method.trainer.device, hardware.threads) | (notes or {}))


def peak_bytes(device: torch.device) -> int:
    """Largest memory so far: of the GPU where there is one, of the process elsewhere."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _gpus() -> list[int]:
    return list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
