"""The target's side of a round whose sources are elsewhere: orders out, a deadline, checked uploads in."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import Field

from kd3a.channel import Message, RefusedMessage
from kd3a.domains import Task
from kd3a.errors import UserError, listing
from kd3a.federation import order as orders
from kd3a.federation import wire
from kd3a.methods.base import Method
from kd3a.runs import Run
from kd3a.settings import Hardware, Settings, Training
from kd3a.trainer import Stage

PAUSE = 0.5  # seconds between two looks


class Plan(Settings):
    """What the target's operator decides: the run, who takes part, and how long to wait."""

    dataset: str
    """Name of the dataset."""
    method: str
    """Name of the method."""
    seed: int = 0
    """Seed of everything random."""
    scale: str = ""
    """Scale that the record names."""
    training: Training
    """Budget and optimiser."""
    config: dict[str, Any] = Field(default_factory=dict)
    """The method's own settings."""
    domain: Path
    """File of the target's own domain."""
    sources: tuple[str, ...] = Field(min_length=1)
    """Names of the sources that are to take part."""
    nodes: dict[str, int] = Field(default_factory=dict)
    """Every source's name and the number of its node, as 'flwr supernode register' gave it; none in a simulation."""
    deadline: float = Field(600.0, gt=0)
    """Seconds that a round waits for a source."""
    min_sources: int = Field(1, ge=1)
    """Fewer sources than these in a round stop the run; the same command resumes it."""
    hardware: Hardware = Hardware()
    """Where the target computes."""
    out: Path
    """Folder of the outcome and of the rounds' log."""


@dataclass(frozen=True)
class Reply:
    """What came back from a source: the bytes of its upload and its loss, or why there are none."""

    data: bytes = b""
    loss: float = 0.0
    error: str = ""


class RemoteExchange:
    """The exchange of a run whose sources are elsewhere; a subclass knows how to reach them.

    A source that is silent until the deadline, that fails, or whose upload is refused, is left out of the round; it
    may take part in the next.
    """

    provenance: ClassVar[dict[str, str]] = {}
    """What the record tells of it."""

    def __init__(self, run: Run, plan: Plan, task: Task):
        self.run, self.plan, self.sha256 = run, plan, task.sha256
        self.sources = tuple(source.name for source in task.sources)
        self.log = logging.getLogger("flwr")
        self.fresh = True  # in its first round, a run waits for everybody

    def online(self) -> list[str]:
        """The sources that can be reached now, in the task's order."""
        raise NotImplementedError

    def ask(self, stage: Stage, text: str, data: dict[str, bytes]) -> dict[str, Reply]:
        """Send everybody in ``data`` the order and the bytes; the replies that came before the deadline."""
        raise NotImplementedError

    def __call__(self, method: Method, stage: Stage, message: Message, form: Message | None) -> dict[str, Message]:
        began, hub, there = time.monotonic(), method.task.target.name, self.gather(stage)
        text = orders.write(self.run, self.sources, self.sha256, stage)
        sent = {name: wire.encode(method.channel.send(message, hub, name)) for name in there}
        replies, uploads, refused = self.ask(stage, text, sent), {}, {}
        for name in (name for name in self.sources if name in replies):  # sums depend on the order
            try:
                uploads[name] = self.take(method, name, replies[name], form)
            except RefusedMessage as error:
                refused[name] = str(error)
                self.log.warning("Round %d: %s", stage.round, error)
        self.note(
            round=stage.round,
            answered=list(uploads),
            refused=refused,
            silent=[name for name in self.sources if name not in replies],
            seconds=round(time.monotonic() - began, 3),
            payload_up=sum(len(reply.data) for reply in replies.values()),
            payload_down=sum(map(len, sent.values())),
        )
        self.enough(list(uploads), stage, refused)
        return uploads

    def take(self, method: Method, name: str, reply: Reply, form: Message | None) -> Message:
        """One source's upload, checked and counted as in one process."""
        if reply.error:
            raise RefusedMessage(f"Source {name} failed: {reply.error}")
        if not isinstance(reply.loss, float):
            raise RefusedMessage(f"Message of {name}: the loss {reply.loss!r} is not a number.")
        message = wire.decode(reply.data, name, form)
        upload = method.channel.send(message, name, method.task.target.name, like=form)
        method.losses[name] = torch.tensor(reply.loss, device=method.trainer.device)
        return upload

    def gather(self, stage: Stage) -> list[str]:
        """Who takes part: at first everybody is waited for, later only as many as are needed."""
        needed = len(self.sources) if self.fresh else self.plan.min_sources
        self.fresh = False
        end = time.monotonic() + self.plan.deadline
        while len(there := self.online()) < needed and time.monotonic() < end:
            time.sleep(PAUSE)
        self.enough(there, stage, {})
        return there

    def enough(self, names: list[str], stage: Stage, refused: dict[str, str]) -> None:
        if len(names) < self.plan.min_sources:
            reasons = "".join(f" {reason}" for reason in refused.values())
            raise UserError(
                f"Round {stage.round}: {len(names)} of {len(self.sources)} sources ({listing(names) or 'none'}) "
                f"take part, fewer than min_sources = {self.plan.min_sources}; start the others and give the same "
                f"command again, it goes on from this round.{reasons}"
            )

    def note(self, **entry: Any) -> None:
        """One line about a round, for the operator and for the tables made of it."""
        self.log.info("Round %d: %s answered", entry["round"], listing(entry["answered"]) or "nobody")
        with open(self.plan.out / "rounds.jsonl", "a") as file:
            file.write(json.dumps(entry) + "\n")
