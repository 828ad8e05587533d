"""The target's side of a round over Flower: one message to every source, a deadline, and checked replies."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.app import Message as Letter
from flwr.serverapp import Grid
from flwr.supercore import log
from pydantic import Field

from kd3a.channel import Message, RefusedMessage
from kd3a.errors import UserError, listing
from kd3a.federation import order as orders
from kd3a.federation import wire
from kd3a.methods.base import Method
from kd3a.runs import Run
from kd3a.settings import Settings, Training
from kd3a.trainer import Stage

PAUSE = 0.2  # seconds between two looks for replies
FORMAT = "safetensors"


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
    nodes: dict[str, int]
    """Every source's name and the number of its node, as 'flwr supernode register' gave it; empty to ask the nodes."""
    sources: tuple[str, ...]
    """Names of all sources, in the task's order."""
    deadline: float = Field(600.0, gt=0)
    """Seconds that a round waits for a source."""
    min_sources: int = Field(1, ge=1)
    """Fewer answers than these in a round stop the run; the same command resumes it."""
    out: Path
    """Folder of the record, of the rounds' log and, if it comes to that, of the error."""


# --- Flower's records ---------------------------------------------------------------------------------------------


def packed(data: bytes) -> ArrayRecord:
    """Bytes of :mod:`kd3a.federation.wire` as the one array of a record; Flower does not look into it."""
    return ArrayRecord({"message": Array(dtype="uint8", shape=(len(data),), stype=FORMAT, data=data)})


def unpacked(content: RecordDict, sender: str) -> bytes:
    """The bytes of a record that came from elsewhere."""
    arrays = content.array_records.get("tensors", {})
    if set(arrays) != {"message"} or arrays["message"].stype != FORMAT:
        raise RefusedMessage(f"Message of {sender} holds something else than one array of {FORMAT}.")
    return arrays["message"].data


def question(text: str, data: bytes) -> RecordDict:
    """What the target sends: an order and the shared model."""
    return RecordDict({"order": ConfigRecord({"text": text}), "tensors": packed(data)})


def reply(data: bytes, loss: float) -> RecordDict:
    """What a source sends: its upload and the loss of its training."""
    return RecordDict({"tensors": packed(data), "log": MetricRecord({"loss": loss})})


def loss_of(content: RecordDict, sender: str) -> float:
    value = content.metric_records.get("log", {}).get("loss")
    if not isinstance(value, float):
        raise RefusedMessage(f"Message of {sender} names no loss.")
    return value


# --- one round ----------------------------------------------------------------------------------------------------


class FlowerExchange:
    """The exchange of a run whose sources are Flower's nodes.

    A source that is silent until the deadline, fails, or whose upload is refused, is left out of the round; it may
    answer again in the next.
    """

    executor = "flower"

    def __init__(self, grid: Grid, run: Run, plan: Plan, data_sha256: str):
        self.grid, self.run, self.plan, self.sha256 = grid, run, plan, data_sha256
        self.nodes = plan.nodes

    def __call__(self, method: Method, stage: Stage, message: Message, form: Message | None) -> dict[str, Message]:
        began, hub = time.monotonic(), method.task.target.name
        text = orders.write(self.run, self.plan.sources, self.sha256, stage)
        there = self.gather(stage)
        letters = {}
        for name in there:
            data = wire.encode(method.channel.send(message, hub, name))
            letters[name] = self.grid.create_message(
                question(text, data), "train", self.nodes[name], str(stage.round), ttl=self.plan.deadline
            )
        replies, uploads, refused, received = self.ask(letters), {}, {}, 0
        for name in (name for name in self.plan.sources if name in replies):  # in the task's order, for sums' sake
            try:
                letter = replies[name]
                if letter.has_error():
                    raise RefusedMessage(f"Source {name} failed: {letter.error.reason}")
                data = unpacked(letter.content, name)
                received += len(data)
                upload = wire.decode(data, name, form)
                loss = loss_of(letter.content, name)
                uploads[name] = method.channel.send(upload, name, hub, like=form)
                method.losses[name] = torch.tensor(loss, device=method.trainer.device)
            except RefusedMessage as error:
                refused[name] = str(error)
                log(WARNING, "Round %d: %s", stage.round, error)
        entry = {
            "round": stage.round,
            "answered": list(uploads),
            "refused": refused,
            "silent": [name for name in self.plan.sources if name not in replies],
            "seconds": round(time.monotonic() - began, 3),
            "payload_up": received,
            "payload_down": sum(len(unpacked(letter.content, hub)) for letter in letters.values()),
        }
        self.note(entry)
        self.enough(list(uploads), stage, refused)
        return uploads

    def gather(self, stage: Stage) -> list[str]:
        """The sources whose nodes are connected; waits until the deadline for those that are not."""
        wait = self.plan.deadline if stage.round == self.first(stage) else 0.0
        there = self.until(lambda: len(self.online()) == len(self.nodes), wait, self.online)
        if len(there) < self.plan.min_sources:
            there = self.until(lambda: len(self.online()) >= self.plan.min_sources, self.plan.deadline, self.online)
        self.enough(there, stage, {})
        return there

    def first(self, stage: Stage) -> int:
        """The round that this process began with."""
        self._first = getattr(self, "_first", stage.round)
        return self._first

    def online(self) -> list[str]:
        known = set(self.grid.get_node_ids())
        return [name for name in self.plan.sources if self.nodes.get(name) in known]

    @staticmethod
    def until(done: Callable[[], bool], seconds: float, value: Callable[[], Any]) -> Any:
        """``value()`` as soon as ``done()``, or when the seconds are over."""
        end = time.monotonic() + seconds
        while not done() and time.monotonic() < end:
            time.sleep(PAUSE)
        return value()

    def ask(self, letters: dict[str, Letter]) -> dict[str, Letter]:
        """The replies by source, of those that came before the deadline."""
        sent = dict(zip(self.grid.push_messages(letters.values()), letters, strict=True))  # message's number -> source
        replies: dict[str, Letter] = {}
        end = time.monotonic() + self.plan.deadline
        while len(replies) < len(sent) and time.monotonic() < end:
            pending = [number for number, name in sent.items() if name not in replies]
            for letter in self.pulled(pending):
                replies[sent[letter.metadata.reply_to_message_id]] = letter
            time.sleep(PAUSE)
        return replies

    def pulled(self, numbers: list[str]) -> Iterable[Letter]:
        return self.grid.pull_messages(numbers)

    def enough(self, names: list[str], stage: Stage, refused: dict[str, str]) -> None:
        if len(names) < self.plan.min_sources:
            why = "".join(f" {reason}" for reason in refused.values())
            raise UserError(
                f"Round {stage.round}: {len(names)} of {len(self.plan.sources)} sources ({listing(names) or 'none'}) "
                f"take part, fewer than min_sources = {self.plan.min_sources}; start the others and give the same "
                f"command again, it goes on from this round.{why}"
            )

    def note(self, entry: dict[str, Any]) -> None:
        log(INFO, "Round %d: %s", entry["round"], json.dumps(entry))
        with open(self.plan.out / "rounds.jsonl", "a") as file:
            file.write(json.dumps(entry) + "\n")
